
/*
 * The part of <mma.h> that the CUDA sources use: matrices of 16 x 16, bfloat16
 * times bfloat16 to float32.  Elements lie in other lanes than on any GPU, and
 * in other ones for each use, so that code which knows places goes wrong.
 *
 * Loads and stores are the lane's own: who reads what another lane writes
 * without a barrier between sees it.  A product waits for all lanes.
 */

#ifndef VLM_EMU_WMMA_H
#define VLM_EMU_WMMA_H


#include <string.h>

#include "kernels/emu/emu.h"


struct __nv_bfloat16 {
    uint16_t            bits;
};


namespace nvcuda {
namespace wmma {


struct matrix_a {};
struct matrix_b {};
struct accumulator {};

struct row_major {};
struct col_major {};

enum layout_t { mem_row_major, mem_col_major };


/* 8 of 256 elements, NaNs at first; where they were loaded from */

template <typename Use, int M, int N, int K, typename T, typename L = void>
struct fragment {
    enum { num_elements = 8 };

    T                   x[8];
    const void         *from;
    unsigned            ldm;

    fragment() : from(NULL), ldm(0)
    {
        static_assert(M == 16 && N == 16 && K == 16, "16 x 16 x 16 alone");
        memset(x, 0xff, sizeof(x));
    }
};


/*
 * The place of a lane's element "e".  A: half a column, the other half in the
 * next lane; B: every second of a column; sums: half a column, the other half
 * 16 lanes away.
 */

static inline void
place(const matrix_a *, int lane, int e, int *row, int *col)
{
    *row = lane % 2 * 8 + e;
    *col = lane / 2;
}


static inline void
place(const matrix_b *, int lane, int e, int *row, int *col)
{
    *row = 2 * e + lane % 2;
    *col = lane / 2;
}


static inline void
place(const accumulator *, int lane, int e, int *row, int *col)
{
    *row = lane / 16 * 8 + e;
    *col = lane % 16;
}


static inline int
is_rows(const row_major *)
{
    return 1;
}


static inline int
is_rows(const col_major *)
{
    return 0;
}


/* 256 bits, and 128 from a row to the next, which holds 16 elements */

static inline int
is_matrix(const void *p, unsigned ldm, size_t size, int line)
{
    if ((uintptr_t) p % 32 != 0) {
        vlm_emu_wrong("a matrix %d bytes after a multiple of 32 at line %d",
                      (int) ((uintptr_t) p % 32), line);
        return 0;
    }

    if (ldm < 16 || ldm * size % 16 != 0) {
        vlm_emu_wrong("a matrix with rows %d elements apart at line %d",
                      (int) ldm, line);
        return 0;
    }

    return 1;
}


template <typename Use, typename T, typename L>
static inline void
load(fragment<Use, 16, 16, 16, T, L> &f, const T *p, unsigned ldm, int rows,
    int line)
{
    int  lane, e, row, col;

    if (!is_matrix(p, ldm, sizeof(T), line)) {
        return;
    }

    f.from = p;
    f.ldm = ldm;
    lane = (int) vlm_emu_at.thread.x % 32;

    for (e = 0; e < 8; e++) {
        place((const Use *) NULL, lane, e, &row, &col);
        memcpy(&f.x[e], rows ? p + row * ldm + col : p + col * ldm + row,
               sizeof(T));
    }
}


template <typename Use, typename T, typename L>
static inline void
load_matrix_sync(fragment<Use, 16, 16, 16, T, L> &f, const T *p, unsigned ldm,
    int line = __builtin_LINE())
{
    load(f, p, ldm, is_rows((const L *) NULL), line);
}


static inline void
load_matrix_sync(fragment<accumulator, 16, 16, 16, float> &f, const float *p,
    unsigned ldm, layout_t layout, int line = __builtin_LINE())
{
    load(f, p, ldm, layout == mem_row_major, line);
}


static inline void
store_matrix_sync(float *p, const fragment<accumulator, 16, 16, 16, float> &f,
    unsigned ldm, layout_t layout, int line = __builtin_LINE())
{
    int  lane, e, row, col;

    if (!is_matrix(p, ldm, sizeof(float), line)) {
        return;
    }

    lane = (int) vlm_emu_at.thread.x % 32;

    for (e = 0; e < 8; e++) {
        place((const accumulator *) NULL, lane, e, &row, &col);
        memcpy(layout == mem_row_major ? p + row * ldm + col
                                       : p + col * ldm + row,
               &f.x[e], sizeof(float));
    }
}


static inline void
fill_fragment(fragment<accumulator, 16, 16, 16, float> &f, float v)
{
    int  e;

    for (e = 0; e < 8; e++) {
        f.x[e] = v;
    }

    f.from = NULL;
    f.ldm = 0;
}


/* ---- a product: what a lane hands in, and what the last of them does ---- */

typedef struct {
    const __nv_bfloat16  *a;
    const __nv_bfloat16  *b;
    const float          *c;
    float                *d;
    const void           *from[2];
    unsigned              ldm[2];
} product_t;

typedef float  eight_t __attribute__((vector_size(32)));


static inline void
widen(float *to, const __nv_bfloat16 *from)
{
    int       e;
    uint32_t  bits;

    for (e = 0; e < 8; e++) {
        bits = (uint32_t) from[e].bits << 16;
        memcpy(&to[e], &bits, sizeof(bits));
    }
}


static inline void
multiply(const uint64_t *pointers, int line)
{
    int               i, k;
    float             b[32][8];
    eight_t           a[32], sum;
    const product_t  *p[32];

    for (i = 0; i < 32; i++) {
        p[i] = (const product_t *) (uintptr_t) pointers[i];
        widen((float *) &a[i], p[i]->a);
        widen(b[i], p[i]->b);

        if (memcmp(p[i]->from, p[0]->from, sizeof(p[0]->from)) != 0
            || memcmp(p[i]->ldm, p[0]->ldm, sizeof(p[0]->ldm)) != 0)
        {
            vlm_emu_wrong("lane %d multiplies another matrix at line %d", i,
                          line);
            return;
        }
    }

    for (i = 0; i < 32; i++) {
        memcpy(&sum, p[i]->c, sizeof(sum));

        for (k = 0; k < 16; k++) {
            sum += a[2 * k + i / 16] * b[2 * (i % 16) + k % 2][k / 2];
        }

        memcpy(p[i]->d, &sum, sizeof(sum));
    }
}


template <typename A, typename B>
static inline void
mma_sync(fragment<accumulator, 16, 16, 16, float> &d,
    const fragment<matrix_a, 16, 16, 16, __nv_bfloat16, A> &a,
    const fragment<matrix_b, 16, 16, 16, __nv_bfloat16, B> &b,
    const fragment<accumulator, 16, 16, 16, float> &c,
    int line = __builtin_LINE())
{
    product_t  p = { a.x, b.x, c.x, d.x, { a.from, b.from },
                     { a.ldm, b.ldm } };

    vlm_emu_meet(&p, multiply, line);

    d.from = NULL;
    d.ldm = 0;
}


}
}


#endif /* VLM_EMU_WMMA_H */
