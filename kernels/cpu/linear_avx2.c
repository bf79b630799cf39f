
/*
 * Products by AVX2: a tile of up to 6 rows and half a panel in registers.
 * The first half has columns 0 - 7 and 16 - 23, the second 8 - 15 and
 * 24 - 31, so that a load of packed bf16 gives both parts.
 */

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/linear.h"

#define LINEAR        vlm_cpu_linear_avx2
#define TILE_ROWS     6
#define SLICE_DEPTH   256
#define DIRECT_TILES  4
#define DIRECT_DEPTH  128

/* how far ahead of a pass over a panel memory is asked for */
#define AHEAD         2048

#define inline_always  static inline __attribute__((always_inline))


/* 16 weights of one step; w has advanced by "k" steps */

inline_always void
load_half(vlm_dtype_t dtype, const char *w, int64_t k, int half, __m256 *lo,
    __m256 *hi)
{
    __m256i  v;

    switch (dtype) {

    case VLM_BF16:
        v = _mm256_loadu_si256((const __m256i *) (w + k * 64 + half * 32));
        *lo = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
        *hi = _mm256_castsi256_ps(_mm256_and_si256(v,
                                        _mm256_set1_epi32(0xffff0000)));
        break;

    case VLM_F16:
        w += k * 64 + half * 16;
        *lo = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) w));
        *hi = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (w + 32)));
        break;

    default:
        w += k * 128 + half * 32;
        *lo = _mm256_loadu_ps((const float *) w);
        *hi = _mm256_loadu_ps((const float *) (w + 64));
        break;
    }
}


inline_always void
prefetch_panel(vlm_dtype_t dtype, const char *w, int64_t k)
{
    if (dtype == VLM_F32) {
        _mm_prefetch(w + k * 128 + AHEAD, _MM_HINT_T0);
        _mm_prefetch(w + k * 128 + AHEAD + 64, _MM_HINT_T0);
        return;
    }

    _mm_prefetch(w + k * 64 + AHEAD, _MM_HINT_T0);
}


/* one step: all rows with 16 columns; a is [rows][16] at the step's place */

inline_always void
step(const int rows, const float *a, __m256 b0, __m256 b1, __m256 *lo,
    __m256 *hi)
{
    int     r;
    __m256  v;

#pragma GCC unroll 8
    for (r = 0; r < rows; r++) {
        v = _mm256_broadcast_ss(a + r * VLM_BLOCK_K);
        lo[r] = _mm256_fmadd_ps(v, b0, lo[r]);
        hi[r] = _mm256_fmadd_ps(v, b1, hi[r]);
    }
}


/* c is at the half's first column */

inline_always void
load_tile(const int rows, const float *c, __m256 *lo, __m256 *hi)
{
    int  r;

#pragma GCC unroll 8
    for (r = 0; r < rows; r++) {
        lo[r] = _mm256_loadu_ps(c + r * VLM_PANEL);
        hi[r] = _mm256_loadu_ps(c + r * VLM_PANEL + 16);
    }
}


inline_always void
store_tile(const int rows, float *c, const __m256 *lo, const __m256 *hi)
{
    int  r;

#pragma GCC unroll 8
    for (r = 0; r < rows; r++) {
        _mm256_storeu_ps(c + r * VLM_PANEL, lo[r]);
        _mm256_storeu_ps(c + r * VLM_PANEL + 16, hi[r]);
    }
}


/* one or two rows: the whole panel at once */

inline_always void
direct_few(const int rows, vlm_dtype_t dtype, const float *a, const char *w,
    int64_t k, float *c)
{
    __m256   lo[2][2], hi[2][2], b0, b1;
    int64_t  i, j, n;

    load_tile(rows, c, lo[0], hi[0]);
    load_tile(rows, c + 8, lo[1], hi[1]);

    for (i = 0; i < k; i += VLM_BLOCK_K) {
        n = k - i < VLM_BLOCK_K ? k - i : VLM_BLOCK_K;

        for (j = 0; j < n; j++) {
            prefetch_panel(dtype, w, j);
            load_half(dtype, w, j, 0, &b0, &b1);
            step(rows, a + j, b0, b1, lo[0], hi[0]);
            load_half(dtype, w, j, 1, &b0, &b1);
            step(rows, a + j, b0, b1, lo[1], hi[1]);
        }

        a += rows * VLM_BLOCK_K;
        w += VLM_BLOCK_K * VLM_PANEL * vlm_dtype_size(dtype);
    }

    store_tile(rows, c, lo[0], hi[0]);
    store_tile(rows, c + 8, lo[1], hi[1]);
}


/*
 * Half a panel.  The two passes over a part of a panel fetch the next part
 * meanwhile, half of it each.
 */

inline_always void
direct_half(const int rows, vlm_dtype_t dtype, const int half,
    const float *a, const char *w, int64_t k, float *c)
{
    size_t       line;
    __m256       lo[TILE_ROWS], hi[TILE_ROWS], b0, b1;
    int64_t      i, j, n;
    const char  *ahead;

    line = VLM_PANEL * vlm_dtype_size(dtype);
    ahead = w + (size_t) k * line + (half == 0 ? 0 : (size_t) k * line / 2);

    c += half * 8;
    load_tile(rows, c, lo, hi);

    for (i = 0; i < k; i += VLM_BLOCK_K) {
        n = k - i < VLM_BLOCK_K ? k - i : VLM_BLOCK_K;

        for (j = 0; j < n; j++) {
            _mm_prefetch(ahead + j * (line / 2), _MM_HINT_T0);
            load_half(dtype, w, j, half, &b0, &b1);
            step(rows, a + j, b0, b1, lo, hi);
        }

        a += rows * VLM_BLOCK_K;
        w += VLM_BLOCK_K * line;
        ahead += VLM_BLOCK_K * line / 2;
    }

    store_tile(rows, c, lo, hi);
}


inline_always void
direct_rows(const int rows, vlm_dtype_t dtype, const float *a, const char *w,
    int64_t k, float *c)
{
    int64_t  i, n;

    if (rows <= 2) {
        direct_few(rows, dtype, a, w, k, c);
        return;
    }

    for (i = 0; i < k; i += DIRECT_DEPTH) {
        n = k - i < DIRECT_DEPTH ? k - i : DIRECT_DEPTH;

        direct_half(rows, dtype, 0, a, w, n, c);
        direct_half(rows, dtype, 1, a, w, n, c);

        a += rows * DIRECT_DEPTH;
        w += DIRECT_DEPTH * VLM_PANEL * vlm_dtype_size(dtype);
    }
}


/* b is [k][16]: 8 columns of the low part, 8 of the high */

inline_always void
slice_rows(const int rows, const float *a, const float *b, int64_t k,
    float *c, const char *ahead, int64_t distance)
{
    __m256   lo[TILE_ROWS], hi[TILE_ROWS];
    int64_t  i, j, n;

    load_tile(rows, c, lo, hi);

    for (i = 0; i < k; i += VLM_BLOCK_K) {
        n = k - i < VLM_BLOCK_K ? k - i : VLM_BLOCK_K;

        for (j = 0; j < n; j++) {
            _mm_prefetch(ahead, _MM_HINT_T1);
            ahead += distance;
            step(rows, a + j, _mm256_loadu_ps(b), _mm256_loadu_ps(b + 8), lo,
                 hi);
            b += VLM_HALF_PANEL;
        }

        a += rows * VLM_BLOCK_K;
    }

    store_tile(rows, c, lo, hi);
}


#define kernels(n)                                                            \
    static void                                                               \
    direct_bf16_##n(const float *a, const char *w, int64_t k, float *c)       \
    {                                                                         \
        direct_rows(n, VLM_BF16, a, w, k, c);                                 \
    }                                                                         \
                                                                              \
    static void                                                               \
    direct_f16_##n(const float *a, const char *w, int64_t k, float *c)        \
    {                                                                         \
        direct_rows(n, VLM_F16, a, w, k, c);                                  \
    }                                                                         \
                                                                              \
    static void                                                               \
    direct_f32_##n(const float *a, const char *w, int64_t k, float *c)        \
    {                                                                         \
        direct_rows(n, VLM_F32, a, w, k, c);                                  \
    }                                                                         \
                                                                              \
    static void                                                               \
    slice_##n(const float *a, const float *b, int64_t k, float *c,            \
        const char *ahead, int64_t distance)                                  \
    {                                                                         \
        slice_rows(n, a, b, k, c, ahead, distance);                           \
    }

kernels(1)
kernels(2)
kernels(3)
kernels(4)
kernels(5)
kernels(6)


typedef void (*direct_pt)(const float *a, const char *w, int64_t k, float *c);
typedef void (*slice_pt)(const float *a, const float *b, int64_t k, float *c,
    const char *ahead, int64_t distance);

#define all(name)                                                             \
    {                                                                         \
        name##1, name##2, name##3, name##4, name##5, name##6                  \
    }

static const direct_pt  direct_kernels[3][TILE_ROWS] = {
    [VLM_F32] = all(direct_f32_),
    [VLM_BF16] = all(direct_bf16_),
    [VLM_F16] = all(direct_f16_)
};

static const slice_pt  slice_kernels[TILE_ROWS] = all(slice_);


static void
direct_tile(int64_t rows, vlm_dtype_t dtype, const float *a, const char *w,
    int64_t k, float *c)
{
    direct_kernels[dtype][rows - 1](a, w, k, c);
}


static void
slice_tile(int64_t rows, const float *a, const float *slice, int64_t depth,
    float *c, const char *ahead, int64_t distance)
{
    slice_kernels[rows - 1](a, slice, depth, c, ahead, distance);
    slice_kernels[rows - 1](a, slice + SLICE_DEPTH * VLM_HALF_PANEL, depth,
                            c + 8, ahead, 0);
}


inline_always void
widen_as(vlm_dtype_t dtype, const char *w, int64_t depth, float *slice)
{
    int      half;
    float   *to;
    __m256   lo, hi;
    int64_t  i;

    for (i = 0; i < depth; i++) {

        for (half = 0; half < 2; half++) {
            to = slice + (half * SLICE_DEPTH + i) * VLM_HALF_PANEL;

            load_half(dtype, w, i, half, &lo, &hi);
            _mm256_storeu_ps(to, lo);
            _mm256_storeu_ps(to + 8, hi);
        }
    }
}


static void
widen(vlm_dtype_t dtype, const char *w, int64_t depth, float *slice)
{
    switch (dtype) {

    case VLM_BF16:
        widen_as(VLM_BF16, w, depth, slice);
        break;

    case VLM_F16:
        widen_as(VLM_F16, w, depth, slice);
        break;

    default:
        widen_as(VLM_F32, w, depth, slice);
        break;
    }
}


#include "kernels/cpu/linear_impl.h"

#else

typedef int  vlm_cpu_no_linear_avx2;

#endif
