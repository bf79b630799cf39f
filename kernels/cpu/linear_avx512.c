
/* products by AVX-512: a tile of up to 14 rows and 32 columns in registers */

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/linear.h"

#define LINEAR        vlm_cpu_linear_avx512
#define TILE_ROWS     14
#define SLICE_DEPTH   512
#define DIRECT_TILES  4
#define DIRECT_DEPTH  256

/* how far ahead of a single pass over a panel memory is asked for */
#define AHEAD         4096

#define inline_always  static inline __attribute__((always_inline))


/* 32 weights of one step; w has advanced by "k" steps */

inline_always void
load_panel(vlm_dtype_t dtype, const char *w, int64_t k, __m512 *lo,
    __m512 *hi)
{
    __m512i  v;

    switch (dtype) {

    case VLM_BF16:
        v = _mm512_loadu_si512(w + k * 64);
        *lo = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
        *hi = _mm512_castsi512_ps(_mm512_and_si512(v,
                                        _mm512_set1_epi32(0xffff0000)));
        break;

    case VLM_F16:
        v = _mm512_loadu_si512(w + k * 64);
        *lo = _mm512_cvtph_ps(_mm512_castsi512_si256(v));
        *hi = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(v, 1));
        break;

    default:
        *lo = _mm512_loadu_ps(w + k * 128);
        *hi = _mm512_loadu_ps(w + k * 128 + 64);
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


/* one step: all rows with 32 columns; a is [rows][16] at the step's place */

inline_always void
step(const int rows, const float *a, __m512 b0, __m512 b1, __m512 *lo,
    __m512 *hi)
{
    int     r;
    __m512  v;

#pragma GCC unroll 16
    for (r = 0; r < rows; r++) {
        v = _mm512_set1_ps(a[r * VLM_BLOCK_K]);
        lo[r] = _mm512_fmadd_ps(v, b0, lo[r]);
        hi[r] = _mm512_fmadd_ps(v, b1, hi[r]);
    }
}


inline_always void
load_tile(const int rows, const float *c, __m512 *lo, __m512 *hi)
{
    int  r;

#pragma GCC unroll 16
    for (r = 0; r < rows; r++) {
        lo[r] = _mm512_loadu_ps(c + r * VLM_PANEL);
        hi[r] = _mm512_loadu_ps(c + r * VLM_PANEL + 16);
    }
}


inline_always void
store_tile(const int rows, float *c, const __m512 *lo, const __m512 *hi)
{
    int  r;

#pragma GCC unroll 16
    for (r = 0; r < rows; r++) {
        _mm512_storeu_ps(c + r * VLM_PANEL, lo[r]);
        _mm512_storeu_ps(c + r * VLM_PANEL + 16, hi[r]);
    }
}


inline_always void
direct_rows(const int rows, vlm_dtype_t dtype, const float *a, const char *w,
    int64_t k, float *c)
{
    __m512   lo[TILE_ROWS], hi[TILE_ROWS], b0, b1;
    int64_t  i, j, n;

    load_tile(rows, c, lo, hi);

    for (i = 0; i < k; i += VLM_BLOCK_K) {
        n = k - i < VLM_BLOCK_K ? k - i : VLM_BLOCK_K;

        for (j = 0; j < n; j++) {
            load_panel(dtype, w, j, &b0, &b1);
            prefetch_panel(dtype, w, j);
            step(rows, a + j, b0, b1, lo, hi);
        }

        a += rows * VLM_BLOCK_K;
        w += VLM_BLOCK_K * VLM_PANEL * vlm_dtype_size(dtype);
    }

    store_tile(rows, c, lo, hi);
}


inline_always void
slice_rows(const int rows, const float *a, const float *b, int64_t k,
    float *c, const char *ahead, int64_t distance)
{
    __m512   lo[TILE_ROWS], hi[TILE_ROWS];
    int64_t  i, j, n;

    load_tile(rows, c, lo, hi);

    for (i = 0; i < k; i += VLM_BLOCK_K) {
        n = k - i < VLM_BLOCK_K ? k - i : VLM_BLOCK_K;

        for (j = 0; j < n; j++) {
            _mm_prefetch(ahead, _MM_HINT_T1);
            ahead += distance;
            step(rows, a + j, _mm512_loadu_ps(b), _mm512_loadu_ps(b + 16),
                 lo, hi);
            b += VLM_PANEL;
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
kernels(7)
kernels(8)
kernels(9)
kernels(10)
kernels(11)
kernels(12)
kernels(13)
kernels(14)


typedef void (*direct_pt)(const float *a, const char *w, int64_t k, float *c);
typedef void (*slice_pt)(const float *a, const float *b, int64_t k, float *c,
    const char *ahead, int64_t distance);

#define all(name)                                                             \
    {                                                                         \
        name##1, name##2, name##3, name##4, name##5, name##6, name##7,        \
        name##8, name##9, name##10, name##11, name##12, name##13, name##14    \
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
}


static void
widen(vlm_dtype_t dtype, const char *w, int64_t depth, float *slice)
{
    __m512   lo, hi;
    int64_t  i;

    switch (dtype) {

    case VLM_BF16:
        for (i = 0; i < depth; i++) {
            load_panel(VLM_BF16, w, i, &lo, &hi);
            _mm512_storeu_ps(slice + i * VLM_PANEL, lo);
            _mm512_storeu_ps(slice + i * VLM_PANEL + 16, hi);
        }

        break;

    case VLM_F16:
        for (i = 0; i < depth; i++) {
            load_panel(VLM_F16, w, i, &lo, &hi);
            _mm512_storeu_ps(slice + i * VLM_PANEL, lo);
            _mm512_storeu_ps(slice + i * VLM_PANEL + 16, hi);
        }

        break;

    default:
        memcpy(slice, w, (size_t) depth * VLM_PANEL * sizeof(float));
        break;
    }
}


#include "kernels/cpu/linear_impl.h"

#else

typedef int  vlm_cpu_no_linear_avx512;

#endif
