
/* products of int8 on any machine */

#include <string.h>

#include "kernels/cpu/linear.h"

#define LINEAR         vlm_cpu_linear_i8_scalar
#define PAIRS          0
#define TILE_ROWS      4
#define SLICE_GROUPS   256
#define DIRECT_TILES   1
#define DIRECT_GROUPS  256


static void
multiply(int64_t rows, const uint8_t *a, const char *w, int64_t groups,
    int32_t *c)
{
    int            j;
    int32_t        sum;
    int64_t        g, r;
    const int8_t  *b;

    for (g = 0; g < groups; g++) {

        for (r = 0; r < rows; r++) {
            b = (const int8_t *) w;

            for (j = 0; j < VLM_PANEL; j++) {
                sum = a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3];
                c[r * VLM_PANEL + j] += sum;
                b += VLM_I8_STEPS;
            }

            a += VLM_I8_STEPS;
        }

        w += VLM_I8_LINE;
    }
}


#include "kernels/cpu/linear_i8_impl.h"
