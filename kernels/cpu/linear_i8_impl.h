
/*
 * Products of int8 over the kernels of one instruction set.  The file that
 * includes this one has defined
 *
 *   LINEAR         the name of its vlm_cpu_linear_t
 *   PAIRS          x is int16, in the order 0, 2, 1, 3; else bytes plus 128
 *   TILE_ROWS      the greatest height of a tile
 *   SLICE_GROUPS   groups of a panel that the second cache holds
 *   DIRECT_TILES   tiles up to which direct() is faster than blocked()
 *   DIRECT_GROUPS  groups of a panel that the first cache holds
 *
 *   multiply(rows, a, w, groups, c)
 *                  adds groups of a tile and a panel to c [rows][32]
 *
 * The sums are exact, so nothing depends on their order.
 */

#include "kernels/cpu/linear_end.h"
#include "kernels/cpu/linear_i8.h"


/* groups of a row that are quantised at once */
#define QUANTISE_GROUPS  64


#if (PAIRS)

#define SIGN  0

typedef int16_t  x_t;

static inline void
place_x(const uint8_t *from, x_t *to)
{
    to[0] = (int8_t) from[0];
    to[1] = (int8_t) from[2];
    to[2] = (int8_t) from[1];
    to[3] = (int8_t) from[3];
}

#else

#define SIGN  0x80

typedef uint8_t  x_t;

static inline void
place_x(const uint8_t *from, x_t *to)
{
    memcpy(to, from, VLM_I8_STEPS);
}

#endif


static void
pack(const float *x, int64_t stride, int64_t rows, int64_t k, char *tile,
    float *scale)
{
    x_t      *to;
    float     inverse;
    int64_t   i, j, r, n;
    uint8_t   bytes[QUANTISE_GROUPS * VLM_I8_STEPS];

    for (r = 0; r < rows; r++) {
        scale[r] = vlm_i8_scale(x, k, &inverse);
        to = (x_t *) tile + r * VLM_I8_STEPS;

        for (i = 0; i < k; i += n) {
            n = k - i < (int64_t) sizeof(bytes)
                ? k - i : (int64_t) sizeof(bytes);

            vlm_i8_quantise(x + i, n, inverse, SIGN, bytes);

            for (j = n; j % VLM_I8_STEPS != 0; j++) {
                bytes[j] = SIGN;
            }

            for (j = 0; j < n; j += VLM_I8_STEPS) {
                place_x(bytes + j, to);
                to += rows * VLM_I8_STEPS;
            }
        }

        x += stride;
    }
}


static inline const char *
panel_groups(const vlm_product_t *p, int64_t panel, int64_t group)
{
    return p->panels + (size_t) panel * p->panel_bytes + VLM_I8_HEAD
           + (size_t) group * VLM_I8_LINE;
}


static void
start_sums(const vlm_product_t *p, int64_t panel, int64_t rows, int32_t *c)
{
    int64_t      i;
    const char  *head;

    head = p->panels + (size_t) panel * p->panel_bytes;

    for (i = 0; i < rows; i++) {

        if (PAIRS) {
            memset(c + i * VLM_PANEL, 0, VLM_PANEL * sizeof(int32_t));

        } else {
            memcpy(c + i * VLM_PANEL, head, VLM_PANEL * sizeof(int32_t));
        }
    }
}


static void
end_sums(const vlm_product_t *p, int64_t panel, int64_t row, int64_t rows,
    const int32_t *c)
{
    int                   j;
    float                 scale;
    int64_t               i;
    const float          *w, *bias;
    _Alignas(64) float    y[TILE_ROWS * VLM_PANEL];
    static const float    zeros[VLM_PANEL];

    w = p->scale + panel * VLM_PANEL;
    bias = p->bias != NULL ? p->bias + panel * VLM_PANEL : zeros;

    for (i = 0; i < rows; i++) {
        scale = p->x_scale[row + i];

        for (j = 0; j < VLM_PANEL; j++) {
            y[i * VLM_PANEL + j] = fmaf((float) c[i * VLM_PANEL + j],
                                        scale * w[j], bias[j]);
        }
    }

    end_tile(p, panel, row, rows, y);
}


/* several tiles take turns with a part of the panel, which the first reads */

static void
direct(const vlm_product_t *p, int64_t panel, int64_t npanels)
{
    x_t                    *a;
    int64_t                 t, g, n, groups, end, row, rows;
    _Alignas(64) int32_t    c[DIRECT_TILES][TILE_ROWS * VLM_PANEL];

    groups = (int64_t) vlm_i8_groups(p->k);
    end = panel + npanels;

    for (/* void */; panel < end; panel++) {

        for (g = 0; g < groups; g += n) {
            n = p->ntiles == 1 ? groups : DIRECT_GROUPS;
            n = n < groups - g ? n : groups - g;

            for (t = 0; t < p->ntiles; t++) {
                row = vlm_tile_row(p, t);
                rows = vlm_tile_row(p, t + 1) - row;
                a = (x_t *) vlm_tile(p, t) + g * rows * VLM_I8_STEPS;

                if (g == 0) {
                    start_sums(p, panel, rows, c[t]);
                }

                multiply(rows, a, panel_groups(p, panel, g), n, c[t]);

                if (g + n == groups) {
                    end_sums(p, panel, row, rows, c[t]);
                }
            }
        }
    }
}


static void
blocked(const vlm_product_t *p, int64_t panel, int64_t npanels, int64_t tile,
    int64_t ntiles, float *scratch)
{
    x_t      *a;
    int32_t  *c;
    int64_t   i, t, g, n, groups, row, rows;

    groups = (int64_t) vlm_i8_groups(p->k);

    for (g = 0; g < groups; g += n) {
        n = groups - g < SLICE_GROUPS ? groups - g : SLICE_GROUPS;
        c = (int32_t *) scratch;

        for (t = tile; t < tile + ntiles; t++) {
            row = vlm_tile_row(p, t);
            rows = vlm_tile_row(p, t + 1) - row;
            a = (x_t *) vlm_tile(p, t) + g * rows * VLM_I8_STEPS;

            for (i = panel; i < panel + npanels; i++) {

                if (g == 0) {
                    start_sums(p, i, rows, c);
                }

                multiply(rows, a, panel_groups(p, i, g), n, c);

                if (g + n == groups) {
                    end_sums(p, i, row, rows, c);
                }

                c += TILE_ROWS * VLM_PANEL;
            }
        }
    }
}


const vlm_cpu_linear_t  LINEAR = {
    TILE_ROWS,
    DIRECT_TILES,
    0,
    sizeof(x_t),
    pack,
    direct,
    blocked
};
