
/* products and embeddings: what an operation is cut into; see linear.h */

#include <string.h>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/vec.h"


/* rows of x that are packed at a time: their tiles stay in the last cache */
#define CHUNK_ROWS   256

/* tiles of a task: its results stay in the second cache between slices */
#define TASK_ROWS    256

/* what a task of few rows reads at least */
#define TASK_BYTES   (256 * 1024)


typedef struct {
    vlm_product_t            p;
    const vlm_cpu_linear_t  *linear;
    vlm_queue_t             *q;
    const float             *x;
    int64_t                  x_stride;
    char                    *packed;
    float                   *scales;
    int64_t                  npanels;
    int64_t                  group;         /* panels of a task */
    int64_t                  ngroups;
    int64_t                  task_tiles;    /* tiles of a task */
    int64_t                  ntasks;        /* for each group */
} linear_t;

typedef struct {
    const vlm_tensor_t      *y;
    const vlm_weight_t      *w;
    const int32_t           *ids;
} embed_t;


static int check(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const vlm_weight_t *w,
    const vlm_tensor_t *residual);
static void chunk(linear_t *l, int64_t row, int64_t rows);
static void run_direct(linear_t *l);
static void run_blocked(linear_t *l);
static void direct_task(void *arg, int task, int worker);
static void pack_task(void *arg, int task, int worker);
static void blocked_task(void *arg, int task, int worker);
static void pack_tile(const linear_t *l, int64_t tile);
static void embed_task(void *arg, int task, int worker);


void
vlm_cpu_linear(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const vlm_weight_t *w, vlm_act_t act, const vlm_tensor_t *residual)
{
    int64_t   row, rows, max;
    linear_t  l;

    if (q->failed || x->rows == 0 || check(q, y, x, w, residual) != 0) {
        return;
    }

    memset(&l, 0, sizeof(linear_t));

    l.q = q;
    l.linear = w->dtype == VLM_I8 ? q->dev->linear_i8 : q->dev->linear;
    l.x = x->data;
    l.x_stride = x->stride;

    l.p.panels = w->data;
    l.p.panel_bytes = vlm_panel_bytes(w);
    l.p.bias = w->bias;
    l.p.scale = w->scale;
    l.p.dtype = w->dtype;
    l.p.act = act;
    l.p.gated = w->layout == VLM_WEIGHT_GATED;
    l.p.n = y->cols;
    l.p.k = w->k;
    l.p.y = y->data;
    l.p.y_stride = y->stride;

    if (residual != NULL) {
        l.p.residual = residual->data;
        l.p.residual_stride = residual->stride;
    }

    l.p.row_bytes = vlm_row_bytes(l.linear, w->k);
    l.npanels = vlm_weight_panels(w);

    max = CHUNK_ROWS / l.linear->tile_rows * l.linear->tile_rows;

    for (row = 0; row < x->rows; row += rows) {
        rows = x->rows - row < max ? x->rows - row : max;
        chunk(&l, row, rows);
    }
}


static int
check(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const vlm_weight_t *w, const vlm_tensor_t *residual)
{
    int64_t  n;

    n = w->layout == VLM_WEIGHT_GATED ? w->n / 2 : w->n;

    if (x->dtype != VLM_F32 || y->dtype != VLM_F32 || x->cols != w->k
        || y->cols != n || x->rows != y->rows)
    {
        vlm_cpu_fail(q, "linear: [%lld, %d] by weight [%lld, %lld] "
                     "to [%lld, %d]", (long long) x->rows, x->cols,
                     (long long) w->n, (long long) w->k,
                     (long long) y->rows, y->cols);
        return -1;
    }

    if (residual != NULL && (residual->dtype != VLM_F32
        || residual->cols != y->cols || residual->rows != y->rows))
    {
        vlm_cpu_fail(q, "linear: residual [%lld, %d] to [%lld, %d]",
                     (long long) residual->rows, residual->cols,
                     (long long) y->rows, y->cols);
        return -1;
    }

    return 0;
}


static void
chunk(linear_t *l, int64_t row, int64_t rows)
{
    int       i;
    linear_t  c = *l;

    c.x += row * c.x_stride;
    c.p.y += row * c.p.y_stride;

    if (c.p.residual != NULL) {
        c.p.residual += row * c.p.residual_stride;
    }

    c.p.rows = rows;
    c.p.ntiles = (rows + c.linear->tile_rows - 1) / c.linear->tile_rows;

    if (rows == 1 && c.linear->pack == NULL) {
        c.p.tiles = (const char *) c.x;
        run_direct(&c);
        return;
    }

    c.packed = vlm_cpu_shared(c.q, (size_t) rows
                                   * (c.p.row_bytes + sizeof(float)));
    if (c.packed == NULL) {
        return;
    }

    c.scales = (float *) (c.packed + (size_t) rows * c.p.row_bytes);
    c.p.tiles = c.packed;
    c.p.x_scale = c.scales;

    if (c.p.ntiles > c.linear->direct_tiles) {
        vlm_pool_run(c.q->dev->pool, (int) c.p.ntiles, pack_task, &c);
        run_blocked(&c);
        return;
    }

    if (c.linear->pack != NULL) {
        vlm_pool_run(c.q->dev->pool, (int) c.p.ntiles, pack_task, &c);

    } else {

        for (i = 0; i < c.p.ntiles; i++) {
            pack_tile(&c, i);
        }
    }

    run_direct(&c);
}


/* few rows: the weight is read once, from memory as a rule */

static void
run_direct(linear_t *l)
{
    int64_t  workers, least;

    workers = vlm_pool_size(l->q->dev->pool);

    least = TASK_BYTES / l->p.panel_bytes + 1;

    l->group = l->npanels / (workers * 8);
    if (l->group < least) {
        l->group = least;
    }

    l->ngroups = (l->npanels + l->group - 1) / l->group;

    vlm_pool_run(l->q->dev->pool, (int) l->ngroups, direct_task, l);
}


static void
direct_task(void *arg, int task, int worker)
{
    int64_t    panel, n;
    linear_t  *l = arg;

    panel = task * l->group;
    n = l->npanels - panel < l->group ? l->npanels - panel : l->group;

    l->linear->direct(&l->p, panel, n);
}


static void
run_blocked(linear_t *l)
{
    int64_t  enough;

    enough = 3 * vlm_pool_size(l->q->dev->pool);

    l->task_tiles = TASK_ROWS / l->linear->tile_rows;
    l->group = VLM_MAX_GROUP;

    /* more and smaller tasks where there are many workers */

    for ( ;; ) {
        l->ntasks = (l->p.ntiles + l->task_tiles - 1) / l->task_tiles;
        l->ngroups = (l->npanels + l->group - 1) / l->group;

        if (l->ntasks * l->ngroups >= enough) {
            break;
        }

        if (l->group > 1) {
            l->group /= 2;

        } else if (l->task_tiles > 4) {
            l->task_tiles /= 2;

        } else {
            break;
        }
    }

    if (vlm_cpu_scratch_all(l->q, vlm_blocked_scratch(l->linear,
                                                      l->task_tiles)
                                  * sizeof(float))
        != 0)
    {
        return;
    }

    vlm_pool_run(l->q->dev->pool, (int) (l->ntasks * l->ngroups),
                 blocked_task, l);
}


static void
blocked_task(void *arg, int task, int worker)
{
    int64_t    panel, n, tile, ntiles;
    linear_t  *l = arg;

    panel = task / l->ntasks * l->group;
    n = l->npanels - panel < l->group ? l->npanels - panel : l->group;

    tile = task % l->ntasks * l->task_tiles;
    ntiles = l->p.ntiles - tile < l->task_tiles
             ? l->p.ntiles - tile : l->task_tiles;

    l->linear->blocked(&l->p, panel, n, tile, ntiles,
                       vlm_cpu_scratch(l->q, worker));
}


static void
pack_task(void *arg, int task, int worker)
{
    pack_tile(arg, task);
}


static void
pack_tile(const linear_t *l, int64_t tile)
{
    char         *packed;
    float        *to;
    int64_t       i, k, r, row, rows;
    const float  *x;

    row = vlm_tile_row(&l->p, tile);
    rows = vlm_tile_row(&l->p, tile + 1) - row;
    packed = l->packed + (size_t) row * l->p.row_bytes;

    if (l->linear->pack != NULL) {
        l->linear->pack(l->x + row * l->x_stride, l->x_stride, rows, l->p.k,
                        packed, l->scales + row);
        return;
    }

    for (r = 0; r < rows; r++) {
        x = l->x + (row + r) * l->x_stride;
        to = (float *) packed + r * VLM_BLOCK_K;

        for (k = 0; k + VLM_BLOCK_K <= l->p.k; k += VLM_BLOCK_K) {

            for (i = 0; i < VLM_BLOCK_K; i++) {
                to[i] = x[k + i];
            }

            to += rows * VLM_BLOCK_K;
        }

        for (i = 0; k + i < l->p.k; i++) {
            to[i] = x[k + i];
        }
    }
}


void
vlm_cpu_embed(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_weight_t *w,
    const vlm_step_t *step)
{
    int32_t  i, id;
    embed_t  e;

    if (q->failed) {
        return;
    }

    if (y->dtype != VLM_F32 || y->cols != w->k || y->rows > step->host.nrows
        || w->layout != VLM_WEIGHT_PLAIN || w->dtype > VLM_F16)
    {
        vlm_cpu_fail(q, "embed: rows of weight [%lld, %lld] to [%lld, %d] "
                     "in a step of %d rows", (long long) w->n,
                     (long long) w->k, (long long) y->rows, y->cols,
                     step->host.nrows);
        return;
    }

    for (i = 0; i < y->rows; i++) {
        id = step->host.ids[i];

        if (id < 0 || id >= w->n) {
            vlm_cpu_fail(q, "embed: id %d of row %d, the embedding has %lld "
                         "rows", id, i, (long long) w->n);
            return;
        }
    }

    e.y = y;
    e.w = w;
    e.ids = step->host.ids;

    vlm_pool_run(q->dev->pool, (int) y->rows, embed_task, &e);
}


static void
embed_task(void *arg, int task, int worker)
{
    int              column;
    float           *y;
    int64_t          i, k, panel;
    const float     *f;
    const embed_t   *e = arg;
    const uint16_t  *h;

    k = e->w->k;
    y = (float *) e->y->data + task * e->y->stride;
    panel = e->ids[task] / VLM_PANEL;
    column = e->ids[task] % VLM_PANEL;

    if (e->w->dtype == VLM_F32) {
        f = (const float *) e->w->data + panel * k * VLM_PANEL + column;

        for (i = 0; i < k; i++) {
            y[i] = f[i * VLM_PANEL];
        }

        return;
    }

    h = (const uint16_t *) e->w->data + panel * k * VLM_PANEL;

    if (e->w->dtype == VLM_F16) {

        for (i = 0; i < k; i++) {
            y[i] = vlm_f16_to_f32(h[i * VLM_PANEL + column]);
        }

        return;
    }

    column = vlm_bf16_place(column);

    for (i = 0; i < k; i++) {
        y[i] = vlm_bf16_to_f32(h[i * VLM_PANEL + column]);
    }
}
