
/*
 * Products over the kernels of one instruction set.  The file that includes
 * this one has defined
 *
 *   LINEAR        the name of its vlm_cpu_linear_t
 *   TILE_ROWS     the greatest height of a tile
 *   SLICE_DEPTH   steps of a widened slice
 *   DIRECT_TILES  tiles up to which direct() is faster than blocked()
 *   DIRECT_DEPTH  steps of a panel that the first cache holds
 *
 *   direct_tile(rows, dtype, a, w, k, c)
 *                adds k steps of a tile and a panel to c [rows][32]
 *   widen(dtype, w, depth, slice)
 *                a slice of a panel as float32, in an order of its own
 *   slice_tile(rows, a, slice, depth, c, ahead, step)
 *                adds a slice to c; prefetches a line at "ahead" at each
 *                step, "step" bytes further each time
 *
 * All of them take k in order, so a result does not depend on the choice.
 */

#include "kernels/cpu/linear_end.h"


static void
start_tile(const vlm_product_t *p, int64_t panel, int64_t rows, float *c)
{
    v16           lo, hi;
    int64_t       i;
    const float  *bias;

    lo = hi = v16_zero();

    if (p->bias != NULL) {
        bias = p->bias + panel * VLM_PANEL;
        lo = v16_load(bias);
        hi = v16_load(bias + 16);
    }

    for (i = 0; i < rows; i++) {
        v16_store(c + i * VLM_PANEL, lo);
        v16_store(c + i * VLM_PANEL + 16, hi);
    }
}


/* several tiles take turns with a part of the panel, which the first reads */

static void
direct(const vlm_product_t *p, int64_t panel, int64_t npanels)
{
    int64_t               t, k, depth, end, row, rows;
    const char           *w;
    const float          *a;
    _Alignas(64) float    c[DIRECT_TILES][TILE_ROWS * VLM_PANEL];

    end = panel + npanels;

    for (/* void */; panel < end; panel++) {
        w = p->panels + (size_t) panel * p->panel_bytes;
        depth = p->ntiles == 1 ? p->k : DIRECT_DEPTH;

        for (k = 0; k < p->k; k += depth) {

            if (depth > p->k - k) {
                depth = p->k - k;
            }

            for (t = 0; t < p->ntiles; t++) {
                row = vlm_tile_row(p, t);
                rows = vlm_tile_row(p, t + 1) - row;
                a = (const float *) vlm_tile(p, t) + k * rows;

                if (k == 0) {
                    start_tile(p, panel, rows, c[t]);
                }

                direct_tile(rows, p->dtype, a, w, depth, c[t]);

                if (k + depth == p->k) {
                    end_tile(p, panel, row, rows, c[t]);
                }
            }

            w += (size_t) depth * VLM_PANEL * vlm_dtype_size(p->dtype);
        }
    }
}


/*
 * What the first tiles of a slice prefetch meanwhile: the same panel's next
 * slice, or the first slice of the panel that follows this group.
 */

typedef struct {
    const char  *from;
    size_t       left;
} ahead_t;


static ahead_t
next_slice(const vlm_product_t *p, int64_t panel, int64_t npanels, int64_t k,
    int64_t depth)
{
    size_t   line, here;
    ahead_t  ahead;

    line = VLM_PANEL * vlm_dtype_size(p->dtype);
    here = (size_t) panel * p->panel_bytes;

    if (k + depth < p->k) {
        ahead.from = p->panels + here + (size_t) (k + depth) * line;
        ahead.left = (size_t) (p->k - k - depth) * line;

    } else {
        ahead.from = p->panels + here + (size_t) npanels * p->panel_bytes;
        ahead.left = p->panel_bytes;
    }

    if (ahead.left > SLICE_DEPTH * line) {
        ahead.left = SLICE_DEPTH * line;
    }

    return ahead;
}


/*
 * A slice of a group with one tile of x.  The panels' next slices are fetched
 * by the first tiles; after them a tile's last product fetches the same part
 * of the next tile.
 */

static void
group_tile(const vlm_product_t *p, int64_t tile, int64_t k, int64_t depth,
    int64_t npanels, const float *slices, float *c, ahead_t *ahead)
{
    int64_t       i, row, rows, distance;
    const char   *from;
    const float  *a;

    row = vlm_tile_row(p, tile);
    rows = vlm_tile_row(p, tile + 1) - row;
    a = (const float *) vlm_tile(p, tile) + k * rows;

    for (i = 0; i < npanels; i++) {

        from = (const char *) a;
        distance = 0;

        if (ahead[i].left >= (size_t) depth * 64) {
            from = ahead[i].from;
            distance = 64;
            ahead[i].from += depth * 64;
            ahead[i].left -= depth * 64;

        } else if (i == npanels - 1 && tile + 1 < p->ntiles) {
            from = (const char *) ((const float *) vlm_tile(p, tile + 1)
                                   + k * rows);
            distance = rows * sizeof(float);
        }

        slice_tile(rows, a, slices + i * SLICE_DEPTH * VLM_PANEL, depth,
                   c + i * TILE_ROWS * VLM_PANEL, from, distance);
    }
}


static void
blocked(const vlm_product_t *p, int64_t panel, int64_t npanels, int64_t tile,
    int64_t ntiles, float *scratch)
{
    float    *slices, *c;
    size_t    line;
    int64_t   i, t, k, depth, row, rows;
    ahead_t   ahead[VLM_MAX_GROUP];

    line = VLM_PANEL * vlm_dtype_size(p->dtype);
    slices = scratch;
    scratch += VLM_MAX_GROUP * SLICE_DEPTH * VLM_PANEL;

    for (k = 0; k < p->k; k += depth) {
        depth = p->k - k < SLICE_DEPTH ? p->k - k : SLICE_DEPTH;

        for (i = 0; i < npanels; i++) {
            widen(p->dtype,
                  p->panels + (size_t) (panel + i) * p->panel_bytes
                  + (size_t) k * line,
                  depth, slices + i * SLICE_DEPTH * VLM_PANEL);

            ahead[i] = next_slice(p, panel + i, npanels, k, depth);
        }

        for (t = 0; t < ntiles; t++) {
            row = vlm_tile_row(p, tile + t);
            rows = vlm_tile_row(p, tile + t + 1) - row;
            c = scratch + t * VLM_MAX_GROUP * TILE_ROWS * VLM_PANEL;

            for (i = 0; k == 0 && i < npanels; i++) {
                start_tile(p, panel + i, rows, c + i * TILE_ROWS * VLM_PANEL);
            }

            group_tile(p, tile + t, k, depth, npanels, slices, c, ahead);

            for (i = 0; k + depth == p->k && i < npanels; i++) {
                end_tile(p, panel + i, row, rows,
                         c + i * TILE_ROWS * VLM_PANEL);
            }
        }
    }
}


const vlm_cpu_linear_t  LINEAR = {
    TILE_ROWS,
    DIRECT_TILES,
    SLICE_DEPTH,
    sizeof(float),
    NULL,
    direct,
    blocked
};
