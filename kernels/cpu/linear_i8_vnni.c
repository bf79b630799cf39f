
/*
 * Products of int8 by AVX-512 VNNI: one instruction multiplies a group of 16
 * columns, x unsigned; a tile of up to 14 rows and 32 columns in registers.
 */

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/linear.h"

#define LINEAR         vlm_cpu_linear_i8_vnni
#define PAIRS          0
#define TILE_ROWS      14
#define SLICE_GROUPS   256
#define DIRECT_TILES   4
#define DIRECT_GROUPS  128

/* how far ahead of a single pass over a panel memory is asked for */
#define AHEAD          4096

#define inline_always  static inline __attribute__((always_inline))


inline_always void
multiply_rows(const int rows, const uint8_t *a, const char *w, int64_t groups,
    int32_t *c)
{
    int      r;
    int32_t  x;
    int64_t  g;
    __m512i  lo[TILE_ROWS], hi[TILE_ROWS], b0, b1, v;

#pragma GCC unroll 16
    for (r = 0; r < rows; r++) {
        lo[r] = _mm512_loadu_si512(c + r * VLM_PANEL);
        hi[r] = _mm512_loadu_si512(c + r * VLM_PANEL + 16);
    }

    for (g = 0; g < groups; g++) {
        _mm_prefetch(w + AHEAD, _MM_HINT_T0);
        _mm_prefetch(w + AHEAD + 64, _MM_HINT_T0);

        b0 = _mm512_loadu_si512(w);
        b1 = _mm512_loadu_si512(w + 64);

#pragma GCC unroll 16
        for (r = 0; r < rows; r++) {
            memcpy(&x, a + r * VLM_I8_STEPS, sizeof(x));
            v = _mm512_set1_epi32(x);
            lo[r] = _mm512_dpbusd_epi32(lo[r], v, b0);
            hi[r] = _mm512_dpbusd_epi32(hi[r], v, b1);
        }

        a += rows * VLM_I8_STEPS;
        w += VLM_I8_LINE;
    }

#pragma GCC unroll 16
    for (r = 0; r < rows; r++) {
        _mm512_storeu_si512(c + r * VLM_PANEL, lo[r]);
        _mm512_storeu_si512(c + r * VLM_PANEL + 16, hi[r]);
    }
}


#define kernel(n)                                                             \
    static void                                                               \
    multiply_##n(const uint8_t *a, const char *w, int64_t groups, int32_t *c) \
    {                                                                         \
        multiply_rows(n, a, w, groups, c);                                    \
    }

kernel(1)
kernel(2)
kernel(3)
kernel(4)
kernel(5)
kernel(6)
kernel(7)
kernel(8)
kernel(9)
kernel(10)
kernel(11)
kernel(12)
kernel(13)
kernel(14)


typedef void (*multiply_pt)(const uint8_t *a, const char *w, int64_t groups,
    int32_t *c);

static const multiply_pt  kernels[TILE_ROWS] = {
    multiply_1, multiply_2, multiply_3, multiply_4, multiply_5, multiply_6,
    multiply_7, multiply_8, multiply_9, multiply_10, multiply_11,
    multiply_12, multiply_13, multiply_14
};


static void
multiply(int64_t rows, const uint8_t *a, const char *w, int64_t groups,
    int32_t *c)
{
    kernels[rows - 1](a, w, groups, c);
}


#include "kernels/cpu/linear_i8_impl.h"

#else

typedef int  vlm_cpu_no_linear_i8_vnni;

#endif
