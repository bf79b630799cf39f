
/*
 * Products of int8 by AVX2: bytes of w are widened to pairs of int16, of
 * steps 0 and 2 and of 1 and 3, which one instruction multiplies and adds (no
 * sum is cut, as that of bytes would be); a tile of up to 6 rows and half a
 * panel in registers, or of 3 rows and a whole one.
 */

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/linear.h"

#define LINEAR         vlm_cpu_linear_i8_avx2
#define PAIRS          1
#define TILE_ROWS      6
#define SLICE_GROUPS   256
#define DIRECT_TILES   4
#define DIRECT_GROUPS  128

/* registers of a panel's sums: 8 columns each */
#define WIDTH          4

/* how far ahead of a pass over a panel memory is asked for */
#define AHEAD          2048

#define inline_always  static inline __attribute__((always_inline))


/* one of the two pairs, of all rows and 8 columns */

inline_always void
step(const int rows, const int16_t *a, __m256i b, __m256i (*sum)[WIDTH],
    const int i)
{
    int      r;
    int32_t  x;

#pragma GCC unroll 8
    for (r = 0; r < rows; r++) {
        memcpy(&x, a + r * VLM_I8_STEPS, sizeof(x));
        sum[r][i] = _mm256_add_epi32(sum[r][i],
                               _mm256_madd_epi16(_mm256_set1_epi32(x), b));
    }
}


/* "width" registers of columns; w and c are at the first */

inline_always void
multiply_part(const int rows, const int width, const int16_t *a,
    const char *w, int64_t groups, int32_t *c)
{
    int      r, i;
    int64_t  g;
    __m256i  sum[TILE_ROWS][WIDTH], b;

#pragma GCC unroll 8
    for (r = 0; r < rows; r++) {

#pragma GCC unroll 4
        for (i = 0; i < width; i++) {
            sum[r][i] = _mm256_loadu_si256((const __m256i *)
                                           (c + r * VLM_PANEL + i * 8));
        }
    }

    for (g = 0; g < groups; g++) {

#pragma GCC unroll 4
        for (i = 0; i < width; i++) {

            if (i % 2 == 0) {
                _mm_prefetch(w + i * 32 + AHEAD, _MM_HINT_T0);
            }

            b = _mm256_loadu_si256((const __m256i *) (w + i * 32));

            step(rows, a, _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8), sum,
                 i);
            step(rows, a + 2, _mm256_srai_epi16(b, 8), sum, i);
        }

        a += rows * VLM_I8_STEPS;
        w += VLM_I8_LINE;
    }

#pragma GCC unroll 8
    for (r = 0; r < rows; r++) {

#pragma GCC unroll 4
        for (i = 0; i < width; i++) {
            _mm256_storeu_si256((__m256i *) (c + r * VLM_PANEL + i * 8),
                                sum[r][i]);
        }
    }
}


#define whole(n)                                                              \
    static void                                                               \
    multiply_##n(const int16_t *a, const char *w, int64_t groups, int32_t *c) \
    {                                                                         \
        multiply_part(n, WIDTH, a, w, groups, c);                             \
    }

#define halves(n)                                                             \
    static void                                                               \
    multiply_##n(const int16_t *a, const char *w, int64_t groups, int32_t *c) \
    {                                                                         \
        multiply_part(n, WIDTH / 2, a, w, groups, c);                         \
        multiply_part(n, WIDTH / 2, a, w + VLM_I8_LINE / 2, groups,           \
                      c + VLM_PANEL / 2);                                     \
    }

whole(1)
whole(2)
whole(3)
halves(4)
halves(5)
halves(6)


typedef void (*multiply_pt)(const int16_t *a, const char *w, int64_t groups,
    int32_t *c);

static const multiply_pt  kernels[TILE_ROWS] = {
    multiply_1, multiply_2, multiply_3, multiply_4, multiply_5, multiply_6
};


static void
multiply(int64_t rows, const int16_t *a, const char *w, int64_t groups,
    int32_t *c)
{
    kernels[rows - 1](a, w, groups, c);
}


#include "kernels/cpu/linear_i8_impl.h"

#else

typedef int  vlm_cpu_no_linear_i8_avx2;

#endif
