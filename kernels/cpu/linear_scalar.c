
/* products on any machine, by fmaf() */

#include <math.h>
#include <string.h>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/vec.h"

#define LINEAR        vlm_cpu_linear_scalar
#define TILE_ROWS     4
#define SLICE_DEPTH   256
#define DIRECT_TILES  1
#define DIRECT_DEPTH  256


static void
widen(vlm_dtype_t dtype, const char *w, int64_t depth, float *slice)
{
    int             c;
    int64_t         i;
    const uint16_t *h = (const uint16_t *) w;

    if (dtype == VLM_F32) {
        memcpy(slice, w, (size_t) depth * VLM_PANEL * sizeof(float));
        return;
    }

    for (i = 0; i < depth; i++) {

        for (c = 0; c < 16; c++) {

            if (dtype == VLM_BF16) {
                slice[c] = vlm_bf16_to_f32(h[2 * c]);
                slice[c + 16] = vlm_bf16_to_f32(h[2 * c + 1]);

            } else {
                slice[c] = vlm_f16_to_f32(h[c]);
                slice[c + 16] = vlm_f16_to_f32(h[c + 16]);
            }
        }

        slice += VLM_PANEL;
        h += VLM_PANEL;
    }
}


static void
slice_tile(int64_t rows, const float *a, const float *slice, int64_t depth,
    float *c, const char *ahead, int64_t distance)
{
    int           j;
    float         x, *y;
    int64_t       i, r;
    const float  *b;

    for (i = 0; i < depth; i++) {
        b = slice + i * VLM_PANEL;

        for (r = 0; r < rows; r++) {
            x = a[i / VLM_BLOCK_K * VLM_BLOCK_K * rows + r * VLM_BLOCK_K
                  + i % VLM_BLOCK_K];
            y = c + r * VLM_PANEL;

            for (j = 0; j < VLM_PANEL; j++) {
                y[j] = fmaf(x, b[j], y[j]);
            }
        }
    }
}


static void
direct_tile(int64_t rows, vlm_dtype_t dtype, const float *a, const char *w,
    int64_t k, float *c)
{
    float    block[VLM_BLOCK_K * VLM_PANEL];
    int64_t  i, n;

    for (i = 0; i < k; i += n) {
        n = k - i < VLM_BLOCK_K ? k - i : VLM_BLOCK_K;

        widen(dtype, w + (size_t) i * VLM_PANEL * vlm_dtype_size(dtype), n,
              block);
        slice_tile(rows, a + i * rows, block, n, c, NULL, 0);
    }
}


#include "kernels/cpu/linear_impl.h"
