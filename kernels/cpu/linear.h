
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
 *
 * A panel of int8 begins with 32 int32, -128 times the sum of each column;
 * then come groups of 4 steps, [k / 4][32][4], zeros beyond k.  All that is
 * multiplied of x is quantised when its tiles are packed, [k / 4][rows of the
 * tile][4]: bytes plus 128, unsigned, for which the sums start from the
 * panel's head, or int16 of the steps 0, 2, 1, 3, whichever the instructions
 * multiply; a row of x with an infinity or a NaN has NaN for its scale.
 */

#ifndef VLM_CPU_LINEAR_H
#define VLM_CPU_LINEAR_H


#include "kernels/cpu/cpu.h"


#define VLM_PANEL           32
#define VLM_HALF_PANEL      16
#define VLM_BLOCK_K         16

/* panels whose slices are widened at once */
#define VLM_MAX_GROUP       4

/* int8: steps of a group, bytes of a panel's head and of a group */
#define VLM_I8_STEPS        4
#define VLM_I8_HEAD         128
#define VLM_I8_LINE         128

/* |sum| <= k * 127 * 255 stays below 2^31, whatever the order */
#define VLM_I8_MAX_K        66311

/* rows whose greatest magnitude is below this count as zeros */
#define VLM_I8_LEAST        0x1p-100f


typedef struct {
    const char         *panels;
    size_t              panel_bytes;
    const float        *bias;               /* [panels][32], or NULL */
    const float        *scale;              /* [panels][32], int8 */
    vlm_dtype_t         dtype;
    vlm_act_t           act;
    int                 gated;
    int64_t             n;                  /* columns of y */
    int64_t             k;

    const char         *tiles;              /* rows of x, packed */
    size_t              row_bytes;          /* of a packed row */
    const float        *x_scale;            /* [rows], int8 */
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
    int                 depth;              /* of a widened slice, or 0 */
    size_t              x_size;             /* of an element of a tile */

    /* quantises rows to a tile, and gives their scales; NULL: a copy does */
    void (*pack)(const float *x, int64_t stride, int64_t rows, int64_t k,
        char *to, float *scale);

    /* all tiles, at most direct_tiles, straight from the panels */
    void (*direct)(const vlm_product_t *p, int64_t panel, int64_t npanels);

    /* some tiles with up to VLM_MAX_GROUP panels */
    void (*blocked)(const vlm_product_t *p, int64_t panel, int64_t npanels,
        int64_t tile, int64_t ntiles, float *scratch);
};

extern const vlm_cpu_linear_t  vlm_cpu_linear_scalar;
extern const vlm_cpu_linear_t  vlm_cpu_linear_i8_scalar;
#if defined(__x86_64__)
extern const vlm_cpu_linear_t  vlm_cpu_linear_avx2;
extern const vlm_cpu_linear_t  vlm_cpu_linear_i8_avx2;
extern const vlm_cpu_linear_t  vlm_cpu_linear_avx512;
extern const vlm_cpu_linear_t  vlm_cpu_linear_i8_avx512;
extern const vlm_cpu_linear_t  vlm_cpu_linear_i8_vnni;
#endif


/* linear_pack.c: the source of a panel's column, NULL: beyond the last */
const char *vlm_cpu_panel_row(const vlm_weight_t *w,
    const vlm_host_matrix_t *parts, int nparts, int64_t panel, int column);

/* linear_i8_pack.c: fills w->data and w->scale; -1: no memory */
int vlm_cpu_pack_i8(vlm_weight_t *w, const vlm_host_matrix_t *parts,
    int nparts);


static inline size_t
vlm_i8_groups(int64_t k)
{
    return ((size_t) k + VLM_I8_STEPS - 1) / VLM_I8_STEPS;
}


static inline int64_t
vlm_weight_panels(const vlm_weight_t *w)
{
    int64_t  per_part, n;

    per_part = w->layout == VLM_WEIGHT_GATED ? VLM_HALF_PANEL : VLM_PANEL;
    n = w->layout == VLM_WEIGHT_GATED ? w->n / 2 : w->n;

    return (n + per_part - 1) / per_part;
}


static inline size_t
vlm_panel_bytes(const vlm_weight_t *w)
{
    if (w->dtype == VLM_I8) {
        return VLM_I8_HEAD + vlm_i8_groups(w->k) * VLM_I8_LINE;
    }

    return (size_t) w->k * VLM_PANEL * vlm_dtype_size(w->dtype);
}


/* of a packed row of x */

static inline size_t
vlm_row_bytes(const vlm_cpu_linear_t *linear, int64_t k)
{
    size_t  block;

    block = linear->pack != NULL ? VLM_I8_STEPS : VLM_BLOCK_K;

    return ((size_t) k + block - 1) / block * block * linear->x_size;
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


/* a tile's place among the packed ones */

static inline const char *
vlm_tile(const vlm_product_t *p, int64_t tile)
{
    return p->tiles + p->row_bytes * (size_t) vlm_tile_row(p, tile);
}


/* words of work space of blocked() */

static inline size_t
vlm_blocked_scratch(const vlm_cpu_linear_t *linear, int64_t ntiles)
{
    return (size_t) VLM_MAX_GROUP * VLM_PANEL
           * ((size_t) linear->depth + (size_t) linear->tile_rows * ntiles);
}


#endif /* VLM_CPU_LINEAR_H */
