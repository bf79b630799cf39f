
/*
 * Products with a packed weight.
 *
 * A weight's outputs are cut into panels of 32 columns; a panel is [k][32],
 * so that one step along k reads it in order.  bf16 keeps columns i and
 * i + 16 in one 32-bit word (i in the low half), which a shift and a mask
 * widen to two vectors; f16 and f32 are in natural order.  A panel of a
 * GATED weight has 16 rows of the gate, then the same 16 rows of up.  The
 * last panel is filled with zeros.
 *
 * Rows of x are cut into tiles of nearly equal height, at most tile_rows.  A
 * tile is copied to blocks of 16 steps: [k / 16][rows of the tile][16], which
 * a single row already is.
 */

#ifndef VLM_CPU_LINEAR_H
#define VLM_CPU_LINEAR_H


#include "kernels/cpu/cpu.h"


#define VLM_PANEL           32
#define VLM_HALF_PANEL      16
#define VLM_BLOCK_K         16

/* panels whose slices are widened at once */
#define VLM_MAX_GROUP       4


typedef struct {
    const char         *panels;
    size_t              panel_bytes;
    const float        *bias;               /* [panels][32], or NULL */
    vlm_dtype_t         dtype;
    vlm_act_t           act;
    int                 gated;
    int64_t             n;                  /* columns of y */
    int64_t             k;

    const float        *tiles;              /* rows of x, packed */
    int64_t             rows;
    int64_t             ntiles;

    float              *y;
    int64_t             y_stride;
    const float        *residual;           /* or NULL */
    int64_t             residual_stride;
} vlm_product_t;

struct vlm_cpu_linear_s {
    int                 tile_rows;
    int                 direct_tiles;
    int                 depth;              /* of a widened slice */

    /* all tiles, at most direct_tiles, straight from the panels */
    void (*direct)(const vlm_product_t *p, int64_t panel, int64_t npanels);

    /* some tiles with up to VLM_MAX_GROUP panels */
    void (*blocked)(const vlm_product_t *p, int64_t panel, int64_t npanels,
        int64_t tile, int64_t ntiles, float *scratch);
};

extern const vlm_cpu_linear_t  vlm_cpu_linear_scalar;
#if defined(__x86_64__)
extern const vlm_cpu_linear_t  vlm_cpu_linear_avx2;
extern const vlm_cpu_linear_t  vlm_cpu_linear_avx512;
#endif


static inline int64_t
vlm_weight_panels(const vlm_weight_t *w)
{
    int64_t  per_part, n;

    per_part = w->layout == VLM_WEIGHT_GATED ? VLM_HALF_PANEL : VLM_PANEL;
    n = w->layout == VLM_WEIGHT_GATED ? w->n / 2 : w->n;

    return (n + per_part - 1) / per_part;
}


/* where a column is in a step of a bf16 panel */

static inline int
vlm_bf16_place(int column)
{
    return column < 16 ? 2 * column : 2 * (column - 16) + 1;
}


/* the first row of a tile */

static inline int64_t
vlm_tile_row(const vlm_product_t *p, int64_t tile)
{
    return tile * p->rows / p->ntiles;
}


/* where a tile begins among the packed tiles */

static inline size_t
vlm_tile_offset(const vlm_product_t *p, int64_t tile)
{
    size_t  blocks;

    blocks = ((size_t) p->k + VLM_BLOCK_K - 1) / VLM_BLOCK_K;

    return blocks * VLM_BLOCK_K * (size_t) vlm_tile_row(p, tile);
}


/* floats of work space of blocked() */

static inline size_t
vlm_blocked_scratch(const vlm_cpu_linear_t *linear, int64_t ntiles)
{
    return (size_t) VLM_MAX_GROUP * VLM_PANEL
           * ((size_t) linear->depth + (size_t) linear->tile_rows * ntiles);
}


#endif /* VLM_CPU_LINEAR_H */
