
/*
 * The guard device: weights, steps and operations, each with what can be
 * checked of its arguments.
 */

#include <stdlib.h>
#include <string.h>

#include "t/unit/lib/guard_private.h"


static vlm_tensor_t
guard_tensor(guard_t *g, const vlm_tensor_t *t, const char *op)
{
    size_t        n;
    vlm_tensor_t  real = *t;

    if (t->device != (vlm_device_t *) g) {
        guard_broken("%s: tensor of another device", op);
    }

    if (t->rows < 0 || t->cols < 0 || t->stride < t->cols) {
        guard_broken("%s: tensor of %lld x %d, stride %lld", op,
                     (long long) t->rows, (int) t->cols,
                     (long long) t->stride);
    }

    n = t->rows == 0 ? 0 : (size_t) (t->rows - 1) * t->stride + t->cols;

    real.data = guard_real(g, t->data, n * vlm_dtype_size(t->dtype), op);
    real.device = g->real_dev;

    return real;
}


static int
guard_weight_create(vlm_device_t *dev, vlm_weight_t *w,
    vlm_weight_layout_t layout, vlm_quant_t quant,
    const vlm_host_matrix_t *parts, const vlm_host_matrix_t *biases,
    int nparts, char *err, size_t errlen)
{
    void          *token;
    guard_t       *g = (guard_t *) dev;
    vlm_weight_t   real;

    if (g->real->weight_create(g->real_dev, &real, layout, quant,
                               parts, biases, nparts, err, errlen)
        != 0)
    {
        return -1;
    }

    token = guard_alloc(dev, sizeof(vlm_weight_t));
    if (token == NULL) {
        guard_broken("no memory");
    }

    memcpy(guard_real(g, token, sizeof(real), "weight_create"), &real,
           sizeof(real));

    *w = real;
    w->data = token;
    w->bias = real.bias != NULL ? token : NULL;
    w->device = dev;

    return 0;
}


static void
guard_weight_destroy(vlm_weight_t *w)
{
    void     *token = w->data;
    guard_t  *g = (guard_t *) w->device;

    if (token == NULL) {
        return;
    }

    g->real->weight_destroy(guard_object(g, token, sizeof(vlm_weight_t),
                                         "weight_destroy"));
    guard_free((vlm_device_t *) g, token);
    memset(w, 0, sizeof(vlm_weight_t));
}


static size_t
guard_kv_block_bytes(vlm_device_t *dev, int32_t block_size, int32_t kv_heads,
    int32_t head_dim)
{
    guard_t  *g = (guard_t *) dev;

    return g->real->kv_block_bytes(g->real_dev, block_size, kv_heads,
                                   head_dim);
}


static size_t
guard_vision_kv_bytes(vlm_device_t *dev, const vlm_segments_t *seg)
{
    guard_t  *g = (guard_t *) dev;

    return g->real->vision_kv_bytes(g->real_dev, seg);
}


static int
guard_step_upload(vlm_queue_t *queue, vlm_step_t *step,
    const vlm_step_host_t *host, const vlm_rope_t *rope)
{
    int             rc;
    size_t          n;
    vlm_step_t     *real;
    guard_queue_t  *q = (guard_queue_t *) queue;

    if (step->data == NULL) {
        step->data = guard_alloc((vlm_device_t *) q->g, sizeof(vlm_step_t));
        if (step->data == NULL) {
            guard_broken("no memory");
        }

        memset(guard_real(q->g, step->data, sizeof(vlm_step_t), "step"), 0,
               sizeof(vlm_step_t));
    }

    real = guard_object(q->g, step->data, sizeof(vlm_step_t), "step_upload");
    rc = q->g->real->step_upload(q->real, real, host, rope);

    step->host = *host;
    step->size = real->size;

    n = host->nrows;
    guard_host_reads(q, host->row_start, (host->nseqs + 1) * sizeof(int32_t),
                     "step_upload: row_start");
    guard_host_reads(q, host->context, host->nseqs * sizeof(int32_t),
                     "step_upload: context");
    guard_host_reads(q, host->blocks,
                     (size_t) host->nseqs * host->max_blocks * sizeof(int32_t),
                     "step_upload: blocks");
    guard_host_reads(q, host->positions, rope->naxes * n * sizeof(int32_t),
                     "step_upload: positions");

    if (host->ids != NULL) {
        guard_host_reads(q, host->ids, n * sizeof(int32_t),
                         "step_upload: ids");
    }

    return rc;
}


static void
guard_step_free(vlm_device_t *dev, vlm_step_t *step)
{
    guard_t  *g = (guard_t *) dev;

    if (step->data == NULL) {
        return;
    }

    g->real->step_free(g->real_dev,
                       guard_object(g, step->data, sizeof(vlm_step_t),
                                    "step_free"));
    guard_free(dev, step->data);
    step->data = NULL;
    step->size = 0;
}


static const vlm_step_t *
real_step(guard_t *g, const vlm_step_t *step, const char *op)
{
    return guard_object(g, step->data, sizeof(vlm_step_t), op);
}


static const vlm_weight_t *
real_weight(guard_t *g, const vlm_weight_t *w, const char *op)
{
    return guard_object(g, w->data, sizeof(vlm_weight_t), op);
}


static vlm_kv_t
real_kv(guard_t *g, const vlm_kv_t *kv, const char *op)
{
    size_t    size;
    vlm_kv_t  real = *kv;

    if (kv->device != (vlm_device_t *) g) {
        guard_broken("%s: cache of another device", op);
    }

    size = kv->nblocks * g->real->kv_block_bytes(g->real_dev, kv->block_size,
                                                 kv->kv_heads, kv->head_dim);
    real.data = guard_real(g, kv->data, size, op);
    real.device = g->real_dev;

    return real;
}


/* behind what a queue had up to a number */

typedef struct {
    guard_t            *g;
    vlm_fence_t        *real;
    guard_queue_t      *queue;              /* NULL: never recorded */
    uint64_t            number;
} guard_fence_t;


static vlm_fence_t *
guard_fence_create(vlm_device_t *dev)
{
    guard_t        *g = (guard_t *) dev;
    guard_fence_t  *f;

    f = calloc(1, sizeof(guard_fence_t));
    if (f == NULL) {
        guard_broken("no memory");
    }

    f->g = g;
    f->real = g->real->fence_create(g->real_dev);

    return (vlm_fence_t *) f;
}


static void
guard_fence_destroy(vlm_fence_t *fence)
{
    guard_fence_t  *f = (guard_fence_t *) fence;

    if (f != NULL) {
        f->g->real->fence_destroy(f->real);
        free(f);
    }
}


static void
guard_record(vlm_queue_t *queue, vlm_fence_t *fence)
{
    guard_queue_t  *q = (guard_queue_t *) queue;
    guard_fence_t  *f = (guard_fence_t *) fence;

    f->queue = q;
    f->number = q->number;
    q->g->real->record(q->real, f->real);
}


static void
guard_wait(vlm_queue_t *queue, vlm_fence_t *fence)
{
    guard_queue_t  *q = (guard_queue_t *) queue;

    q->g->real->wait(q->real, ((guard_fence_t *) fence)->real);
}


static int
guard_fence_reached(vlm_fence_t *fence)
{
    guard_fence_t  *f = (guard_fence_t *) fence;

    if (!f->g->real->reached(f->real)) {
        return 0;
    }

    if (f->queue != NULL) {
        guard_reached(f->queue, f->number);
    }

    return 1;
}


static void
guard_convert(vlm_queue_t *queue, const vlm_tensor_t *y,
    const vlm_tensor_t *x)
{
    guard_queue_t  *q = (guard_queue_t *) queue;
    vlm_tensor_t    ry = guard_tensor(q->g, y, "convert");
    vlm_tensor_t    rx = guard_tensor(q->g, x, "convert");

    if (y->rows != x->rows || y->cols != x->cols) {
        guard_broken("convert: %lld x %d to %lld x %d", (long long) x->rows,
                     (int) x->cols, (long long) y->rows, (int) y->cols);
    }

    q->g->real->convert(q->real, &ry, &rx);
}


static void
guard_embed(vlm_queue_t *queue, const vlm_tensor_t *y, const vlm_weight_t *w,
    const vlm_step_t *step)
{
    guard_queue_t  *q = (guard_queue_t *) queue;
    vlm_tensor_t    ry = guard_tensor(q->g, y, "embed");

    if (y->rows != step->host.nrows || y->cols != w->k) {
        guard_broken("embed: %lld x %d for %d rows of %lld",
                     (long long) y->rows, (int) y->cols,
                     (int) step->host.nrows, (long long) w->k);
    }

    q->g->real->embed(q->real, &ry, real_weight(q->g, w, "embed"),
                      real_step(q->g, step, "embed"));
}


/* n rows of "inner", at places of "outer" */

static void
check_places(const vlm_tensor_t *outer, const vlm_tensor_t *inner,
    const int32_t *places, int32_t n, const char *op)
{
    int32_t  i;

    if (n < 0 || n > inner->rows || outer->cols != inner->cols) {
        guard_broken("%s: %d rows, of %lld x %d and %lld x %d", op, (int) n,
                     (long long) inner->rows, (int) inner->cols,
                     (long long) outer->rows, (int) outer->cols);
    }

    for (i = 0; i < n; i++) {

        if (places[i] < 0 || places[i] >= outer->rows) {
            guard_broken("%s: row %d of %lld", op, (int) places[i],
                         (long long) outer->rows);
        }
    }
}


static void
guard_scatter(vlm_queue_t *queue, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const int32_t *to, int32_t n)
{
    guard_queue_t  *q = (guard_queue_t *) queue;
    vlm_tensor_t    ry = guard_tensor(q->g, y, "scatter");
    vlm_tensor_t    rx = guard_tensor(q->g, x, "scatter");

    check_places(y, x, to, n, "scatter");
    guard_host_reads(q, to, n * sizeof(int32_t), "scatter");
    q->g->real->scatter(q->real, &ry, &rx, to, n);
}


static void
guard_gather(vlm_queue_t *queue, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const int32_t *from, int32_t n)
{
    guard_queue_t  *q = (guard_queue_t *) queue;
    vlm_tensor_t    ry = guard_tensor(q->g, y, "gather");
    vlm_tensor_t    rx = guard_tensor(q->g, x, "gather");

    check_places(x, y, from, n, "gather");
    guard_host_reads(q, from, n * sizeof(int32_t), "gather");
    q->g->real->gather(q->real, &ry, &rx, from, n);
}


static void
guard_norm(vlm_queue_t *queue, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const float *gain, const float *bias, float eps, vlm_norm_kind_t kind)
{
    size_t          size = (size_t) x->cols * sizeof(float);
    guard_queue_t  *q = (guard_queue_t *) queue;
    vlm_tensor_t    ry = guard_tensor(q->g, y, "norm");
    vlm_tensor_t    rx = guard_tensor(q->g, x, "norm");

    if (y->rows != x->rows || y->cols != x->cols) {
        guard_broken("norm: %lld x %d to %lld x %d", (long long) x->rows,
                     (int) x->cols, (long long) y->rows, (int) y->cols);
    }

    q->g->real->norm(q->real, &ry, &rx,
                     guard_object(q->g, gain, size, "norm: gain"),
                     guard_real(q->g, bias, size, "norm: bias"), eps, kind);
}


static void
guard_linear(vlm_queue_t *queue, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const vlm_weight_t *w, vlm_act_t act,
    const vlm_tensor_t *residual)
{
    int64_t         n;
    guard_queue_t  *q = (guard_queue_t *) queue;
    vlm_tensor_t    ry = guard_tensor(q->g, y, "linear");
    vlm_tensor_t    rx = guard_tensor(q->g, x, "linear");
    vlm_tensor_t    rr;

    n = w->layout == VLM_WEIGHT_GATED ? w->n / 2 : w->n;

    if (y->rows != x->rows || y->cols != n || x->cols != w->k) {
        guard_broken("linear: %lld x %d by weights of %lld x %lld to "
                     "%lld x %d", (long long) x->rows, (int) x->cols,
                     (long long) n, (long long) w->k, (long long) y->rows,
                     (int) y->cols);
    }

    if (residual != NULL) {
        rr = guard_tensor(q->g, residual, "linear: residual");

        if (residual->rows != y->rows || residual->cols != y->cols) {
            guard_broken("linear: residual of %lld x %d for %lld x %d",
                         (long long) residual->rows, (int) residual->cols,
                         (long long) y->rows, (int) y->cols);
        }
    }

    q->g->real->linear(q->real, &ry, &rx, real_weight(q->g, w, "linear"), act,
                       residual != NULL ? &rr : NULL);
}


static void
guard_rope_kv(vlm_queue_t *queue, const vlm_step_t *step,
    const vlm_tensor_t *qkv, int32_t heads, const vlm_kv_t *kv,
    const float *q_gain, const float *k_gain, float eps)
{
    size_t          size = kv->head_dim * sizeof(float);
    vlm_kv_t        rkv;
    guard_queue_t  *q = (guard_queue_t *) queue;
    vlm_tensor_t    rqkv = guard_tensor(q->g, qkv, "rope_kv");

    if (qkv->rows != step->host.nrows
        || qkv->cols != (heads + 2 * kv->kv_heads) * kv->head_dim)
    {
        guard_broken("rope_kv: %lld x %d for %d rows", (long long) qkv->rows,
                     (int) qkv->cols, (int) step->host.nrows);
    }

    rkv = real_kv(q->g, kv, "rope_kv");
    q->g->real->rope_kv(q->real, real_step(q->g, step, "rope_kv"), &rqkv,
                        heads, &rkv,
                        guard_real(q->g, q_gain, size, "rope_kv: q_gain"),
                        guard_real(q->g, k_gain, size, "rope_kv: k_gain"),
                        eps);
}


static void
guard_attention(vlm_queue_t *queue, const vlm_step_t *step,
    const vlm_tensor_t *y, const vlm_tensor_t *qkv, int32_t heads,
    const vlm_kv_t *kv)
{
    vlm_kv_t        rkv;
    guard_queue_t  *q = (guard_queue_t *) queue;
    vlm_tensor_t    ry = guard_tensor(q->g, y, "attention");
    vlm_tensor_t    rqkv = guard_tensor(q->g, qkv, "attention");

    if (y->rows != step->host.nrows || y->cols != heads * kv->head_dim) {
        guard_broken("attention: %lld x %d for %d rows", (long long) y->rows,
                     (int) y->cols, (int) step->host.nrows);
    }

    rkv = real_kv(q->g, kv, "attention");
    q->g->real->attention(q->real, real_step(q->g, step, "attention"), &ry,
                          &rqkv, heads, &rkv);
}


static void
guard_rope_table(vlm_queue_t *queue, const vlm_tensor_t *table,
    const int32_t *positions, const vlm_rope_t *rope)
{
    guard_queue_t  *q = (guard_queue_t *) queue;
    vlm_tensor_t    rt = guard_tensor(q->g, table, "rope_table");

    if (table->cols != 2 * rope->npairs) {
        guard_broken("rope_table: %d columns for %d pairs", (int) table->cols,
                     (int) rope->npairs);
    }

    guard_host_reads(q, positions, rope->naxes * table->rows * sizeof(int32_t),
                     "rope_table");
    q->g->real->rope_table(q->real, &rt, positions, rope);
}


static void
check_vision(const vlm_segments_t *seg, const vlm_tensor_t *qkv, int64_t row0,
    const char *op)
{
    if (qkv->cols != 3 * seg->heads * seg->head_dim || row0 < 0
        || row0 + qkv->rows > seg->start[seg->nsegments])
    {
        guard_broken("%s: %lld x %d from row %lld of %d", op,
                     (long long) qkv->rows, (int) qkv->cols, (long long) row0,
                     (int) seg->start[seg->nsegments]);
    }
}


static void
guard_vision_rope(vlm_queue_t *queue, const vlm_segments_t *seg,
    const vlm_tensor_t *qkv, const vlm_tensor_t *table, int64_t row0,
    void *kv)
{
    size_t          size;
    guard_queue_t  *q = (guard_queue_t *) queue;
    vlm_tensor_t    rqkv = guard_tensor(q->g, qkv, "vision_rope");
    vlm_tensor_t    rt;

    check_vision(seg, qkv, row0, "vision_rope");
    guard_host_reads(q, seg->start, (seg->nsegments + 1) * sizeof(int32_t),
                     "vision_rope");

    if (table != NULL) {
        rt = guard_tensor(q->g, table, "vision_rope: table");

        if (table->rows != qkv->rows) {
            guard_broken("vision_rope: table of %lld rows for %lld",
                         (long long) table->rows, (long long) qkv->rows);
        }
    }

    size = q->g->real->vision_kv_bytes(q->g->real_dev, seg);
    q->g->real->vision_rope(q->real, seg, &rqkv, table != NULL ? &rt : NULL,
                            row0, guard_object(q->g, kv, size,
                                               "vision_rope: kv"));
}


static void
guard_vision_attention(vlm_queue_t *queue, const vlm_segments_t *seg,
    const vlm_tensor_t *y, const vlm_tensor_t *qkv, int64_t row0,
    const void *kv)
{
    size_t          size;
    guard_queue_t  *q = (guard_queue_t *) queue;
    vlm_tensor_t    ry = guard_tensor(q->g, y, "vision_attention");
    vlm_tensor_t    rqkv = guard_tensor(q->g, qkv, "vision_attention");

    check_vision(seg, qkv, row0, "vision_attention");
    guard_host_reads(q, seg->start, (seg->nsegments + 1) * sizeof(int32_t),
                     "vision_attention");

    if (y->rows != qkv->rows || y->cols != seg->heads * seg->head_dim) {
        guard_broken("vision_attention: %lld x %d for %lld rows",
                     (long long) y->rows, (int) y->cols,
                     (long long) qkv->rows);
    }

    size = q->g->real->vision_kv_bytes(q->g->real_dev, seg);
    q->g->real->vision_attention(q->real, seg, &ry, &rqkv, row0,
                                 guard_object(q->g, kv, size,
                                              "vision_attention: kv"));
}


static void
guard_patchify(vlm_queue_t *queue, const vlm_tensor_t *y, const uint8_t *rgb,
    const vlm_patch_geometry_t *geo, int64_t patch0)
{
    int64_t         patches;
    guard_queue_t  *q = (guard_queue_t *) queue;
    vlm_tensor_t    ry = guard_tensor(q->g, y, "patchify");

    patches = (int64_t) (geo->width / geo->patch) * (geo->height / geo->patch);

    if (patch0 < 0 || patch0 + y->rows > patches
        || y->cols != 3 * geo->frames * geo->patch * geo->patch)
    {
        guard_broken("patchify: %lld x %d from patch %lld of %lld",
                     (long long) y->rows, (int) y->cols, (long long) patch0,
                     (long long) patches);
    }

    q->g->real->patchify(q->real, &ry,
                         guard_object(q->g, rgb,
                                      (size_t) geo->width * geo->height * 3,
                                      "patchify: rgb"),
                         geo, patch0);
}


static int
guard_graph_begin(vlm_queue_t *queue, const vlm_step_t *step, uint64_t work)
{
    guard_queue_t  *q = (guard_queue_t *) queue;

    return q->g->real->graph_begin(q->real, real_step(q->g, step,
                                                      "graph_begin"), work);
}


static int
guard_graph_end(vlm_queue_t *queue, char *err, size_t errlen)
{
    guard_queue_t  *q = (guard_queue_t *) queue;

    return q->g->real->graph_end(q->real, err, errlen);
}


static void
guard_sample(vlm_queue_t *queue, const vlm_tensor_t *logits,
    const vlm_sample_t *params, vlm_sampled_t *out)
{
    int64_t         i;
    size_t          n = (size_t) logits->rows;
    guard_queue_t  *q = (guard_queue_t *) queue;
    vlm_tensor_t    rl = guard_tensor(q->g, logits, "sample");

    guard_host_reads(q, params, n * sizeof(vlm_sample_t), "sample: params");

    for (i = 0; i < logits->rows; i++) {
        guard_host_reads(q, params[i].adjust,
                         params[i].nadjust * sizeof(vlm_adjust_t),
                         "sample: adjust");
    }

    q->g->real->sample(q->real, &rl, params,
                       guard_host_writes(q, out, n * sizeof(vlm_sampled_t),
                                         "sample"));
}


void
guard_operations(const guard_t *g, vlm_ops_t *ops)
{
    ops->fence_create = guard_fence_create;
    ops->fence_destroy = guard_fence_destroy;
    ops->record = guard_record;
    ops->wait = guard_wait;
    ops->reached = guard_fence_reached;

    if (g->real->graph_begin != NULL) {
        ops->graph_begin = guard_graph_begin;
        ops->graph_end = guard_graph_end;
    }

    ops->weight_create = guard_weight_create;
    ops->weight_destroy = guard_weight_destroy;
    ops->kv_block_bytes = guard_kv_block_bytes;
    ops->vision_kv_bytes = guard_vision_kv_bytes;
    ops->step_upload = guard_step_upload;
    ops->step_free = guard_step_free;
    ops->convert = guard_convert;
    ops->embed = guard_embed;
    ops->scatter = guard_scatter;
    ops->gather = guard_gather;
    ops->norm = guard_norm;
    ops->linear = guard_linear;
    ops->rope_kv = guard_rope_kv;
    ops->attention = guard_attention;
    ops->rope_table = guard_rope_table;
    ops->vision_rope = guard_vision_rope;
    ops->vision_attention = guard_vision_attention;
    ops->patchify = guard_patchify;
    ops->sample = guard_sample;
}
