
/* models of random weights, for bench_gpu.c */

#ifndef BENCH_GPU_H
#define BENCH_GPU_H


#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/vlm_cuda.h"


#define BLOCK       16
#define CONTEXT     512             /* tokens in the cache when decoding */


typedef struct {
    const char         *name;
    int                 layers, hidden, heads, kv_heads, dim, inter, vocab;
} text_shape_t;

typedef struct {
    const char         *name;
    int                 layers, width, heads, dim, inter, rows, pictures;
} vision_shape_t;

typedef struct {
    vlm_device_t       *dev;
    const vlm_ops_t    *ops;
    int                 emu;
    double              seconds;
    const char         *filter;
    double              copy;           /* measured: bytes a second */
    uint16_t           *random;         /* bf16, of the largest weight */
    size_t              nrandom;
} bench_t;

typedef struct {
    vlm_weight_t        qkv, out, up, down;
} layer_t;

/* all that a model needs to run, in its shape */

typedef struct {
    bench_t            *b;
    vlm_queue_t        *q;
    int                 layers;
    layer_t            *layer;
    vlm_weight_t        head;
    float              *gain;           /* and bias: all the same */
    vlm_tensor_t        x, h, qkv, wide, both, out, logits, table;
    void               *kv;
    size_t              kv_bytes;       /* of a layer */
    double              weights;        /* values, and bytes of them */
    double              weight_bytes;

    const text_shape_t   *text;
    const vision_shape_t *vision;
    vlm_segments_t      seg;
    int32_t            *start;
    vlm_step_t          step;
    vlm_step_host_t     host;
    int                 eager;              /* steps are not recorded */
    vlm_rope_t          rope;
    int32_t            *ints;
    vlm_sample_t       *params;
    vlm_sampled_t      *sampled;
} model_t;

typedef void (*pass_pt)(model_t *m);


static double
now(void)
{
    struct timespec  ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return (double) ts.tv_sec + 1e-9 * (double) ts.tv_nsec;
}


static void
stop(const char *what, const char *why)
{
    fprintf(stderr, "bench_gpu: %s: %s\n", what, why);
    exit(1);
}


static void
finish(model_t *m)
{
    char  err[256];

    if (m->b->ops->sync(m->q, err, sizeof(err)) != 0) {
        stop(m->b->ops->name, err);
    }
}


static void *
memory(size_t size)
{
    void  *p = calloc(1, size);

    if (p == NULL) {
        stop("memory", "none");
    }

    return p;
}


static void *
device_memory(bench_t *b, size_t size)
{
    void  *p = b->ops->alloc(b->dev, size);

    if (p == NULL) {
        stop("device memory", "none");
    }

    return p;
}


static vlm_tensor_t
tensor(bench_t *b, int64_t rows, int64_t cols, vlm_dtype_t dtype)
{
    vlm_tensor_t  t;

    t.device = b->dev;
    t.dtype = dtype;
    t.rows = rows;
    t.cols = (int32_t) cols;
    t.stride = cols;
    t.data = device_memory(b, (size_t) (rows * cols) * vlm_dtype_size(dtype));

    return t;
}


/* small values: what is computed from them stays finite */

static void
fill_random(bench_t *b, size_t n)
{
    size_t    i;
    uint64_t  s = 1;

    b->random = memory(n * sizeof(uint16_t));
    b->nrandom = n;

    for (i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;

        /* 2^-8 to 2^-6, of both signs */
        b->random[i] = (uint16_t) ((s >> 63 << 15) | 0x3b80
                                   | ((s >> 40) & 0xff));
    }
}


static vlm_weight_t
weight(model_t *m, int64_t n, int64_t k, int gated, vlm_quant_t quant)
{
    char               err[256];
    bench_t           *b = m->b;
    vlm_weight_t       w;
    vlm_host_matrix_t  parts[2];

    parts[0].data = b->random;
    parts[0].dtype = VLM_BF16;
    parts[0].rows = gated ? n / 2 : n;
    parts[0].cols = k;
    parts[1] = parts[0];

    if ((size_t) (n * k) > b->nrandom
        || b->ops->weight_create(b->dev, &w,
                                 gated ? VLM_WEIGHT_GATED : VLM_WEIGHT_PLAIN,
                                 quant, parts, NULL, gated ? 2 : 1, err,
                                 sizeof(err))
           != 0)
    {
        stop("weight", err);
    }

    m->weights += (double) (n * k);
    m->weight_bytes += (double) (n * k)
                       * (double) vlm_dtype_size(w.dtype);

    return w;
}


static void
make_layers(model_t *m, int64_t width, int64_t qkv, int64_t attn,
    int64_t inter, int gated, vlm_quant_t quant)
{
    int       i;
    float    *ones;
    int64_t   k;

    m->layer = memory((size_t) m->layers * sizeof(layer_t));

    for (i = 0; i < m->layers; i++) {
        m->layer[i].qkv = weight(m, qkv, width, 0, quant);
        m->layer[i].out = weight(m, width, attn, 0, quant);
        m->layer[i].up = weight(m, gated ? 2 * inter : inter, width, gated,
                                quant);
        m->layer[i].down = weight(m, width, inter, 0, quant);
    }

    ones = memory((size_t) width * sizeof(float));

    for (k = 0; k < width; k++) {
        ones[k] = 1.0f;
    }

    m->gain = device_memory(m->b, (size_t) width * sizeof(float));
    m->b->ops->upload(m->q, m->gain, ones, (size_t) width * sizeof(float));
    finish(m);
    free(ones);
}


/* sequences of as many rows each, behind "context" tokens */

static void
make_step(model_t *m, int nseqs, int rows, int context)
{
    int      i, s, blocks;
    int32_t *p;

    blocks = (context + rows) / BLOCK + 1;
    m->ints = p = memory(((size_t) nseqs * (2 + blocks) + 1
                          + (size_t) nseqs * rows * 4) * sizeof(int32_t));

    m->host.nseqs = nseqs;
    m->host.nrows = nseqs * rows;
    m->host.max_blocks = blocks;
    m->host.row_start = p;

    for (s = 0; s <= nseqs; s++) {
        *p++ = s * rows;
    }

    m->host.context = p;

    for (s = 0; s < nseqs; s++) {
        *p++ = context;
    }

    m->host.blocks = p;

    for (i = 0; i < nseqs * blocks; i++) {
        *p++ = i;
    }

    m->host.ids = p;
    p += m->host.nrows;
    m->host.positions = p;

    for (i = 0; i < 3 * m->host.nrows; i++) {
        *p++ = context + i % rows;
    }
}


static void
text_open(model_t *m, bench_t *b, const text_shape_t *t, vlm_quant_t quant,
    int nseqs, int rows, int context)
{
    int      i;
    int64_t  all, n;

    memset(m, 0, sizeof(model_t));
    m->b = b;
    m->text = t;
    m->layers = t->layers;
    m->q = b->ops->queue_create(b->dev, 0);
    all = (int64_t) (t->heads + 2 * t->kv_heads) * t->dim;
    n = (int64_t) nseqs * rows;

    make_layers(m, t->hidden, all, (int64_t) t->heads * t->dim, t->inter, 1,
                quant);
    m->head = weight(m, t->vocab, t->hidden, 0, VLM_QUANT_NONE);
    make_step(m, nseqs, rows, context);

    m->rope.npairs = t->dim / 2;
    m->rope.naxes = 3;

    for (i = 0; i < m->rope.npairs; i++) {
        m->rope.inv_freq[i] = powf(1e6f, -2.0f * (float) i / (float) t->dim);
        m->rope.axis[i] = (uint8_t) (i % 3);
    }

    m->kv_bytes = (size_t) nseqs * m->host.max_blocks
                  * b->ops->kv_block_bytes(b->dev, BLOCK, t->kv_heads,
                                           t->dim);
    m->kv = device_memory(b, m->kv_bytes * t->layers);

    m->x = tensor(b, n, t->hidden, b->ops->act_dtype);
    m->h = tensor(b, n, (int64_t) t->heads * t->dim, b->ops->act_dtype);
    m->qkv = tensor(b, n, all, b->ops->act_dtype);
    m->wide = tensor(b, n, t->inter, b->ops->act_dtype);
    m->both = tensor(b, n, 2 * t->inter, b->ops->act_dtype);
    m->out = tensor(b, nseqs, t->hidden, b->ops->act_dtype);
    m->logits = tensor(b, nseqs, t->vocab, VLM_F32);

    m->params = memory(nseqs * sizeof(vlm_sample_t));
    m->sampled = memory(nseqs * sizeof(vlm_sampled_t));

    for (i = 0; i < nseqs; i++) {
        m->params[i].top_p = 1;
        m->params[i].repetition = 1;
        m->params[i].ntop = -1;
    }
}


static vlm_kv_t
text_cache(const model_t *m, int layer)
{
    vlm_kv_t  kv;

    kv.data = (char *) m->kv + m->kv_bytes * layer;
    kv.device = m->b->dev;
    kv.nblocks = m->host.nseqs * m->host.max_blocks;
    kv.block_size = BLOCK;
    kv.kv_heads = m->text->kv_heads;
    kv.head_dim = m->text->dim;

    return kv;
}


/* hidden and heads * dim are equal in the shapes above */

static void
text_forward(model_t *m)
{
    int                  i;
    vlm_kv_t             kv;
    vlm_queue_t         *q = m->q;
    vlm_tensor_t        *out;
    const vlm_ops_t     *o = m->b->ops;
    const text_shape_t  *t = m->text;

    o->embed(q, &m->x, &m->head, &m->step);

    for (i = 0; i < m->layers; i++) {
        kv = text_cache(m, i);

        o->norm(q, &m->h, &m->x, m->gain, NULL, 1e-6f, VLM_NORM_RMS);
        o->linear(q, &m->qkv, &m->h, &m->layer[i].qkv, VLM_ACT_NONE, NULL);
        o->rope_kv(q, &m->step, &m->qkv, t->heads, &kv, NULL, NULL, 1e-6f);
        o->attention(q, &m->step, &m->h, &m->qkv, t->heads, &kv);
        o->linear(q, &m->x, &m->h, &m->layer[i].out, VLM_ACT_NONE, &m->x);
        o->norm(q, &m->h, &m->x, m->gain, NULL, 1e-6f, VLM_NORM_RMS);
        o->linear(q, &m->wide, &m->h, &m->layer[i].up, VLM_ACT_SILU, NULL);
        o->linear(q, &m->x, &m->wide, &m->layer[i].down, VLM_ACT_NONE,
                  &m->x);
    }

    out = &m->x;

    if (m->host.nrows != m->host.nseqs) {
        out = &m->out;
        o->gather(q, out, &m->x, m->host.row_start, m->host.nseqs);
    }

    o->linear(q, &m->logits, out, &m->head, VLM_ACT_NONE, NULL);
}


/* a step of answers is recorded, as the engine's are */

static void
text_pass(model_t *m)
{
    char              why[256];
    vlm_queue_t      *q = m->q;
    const vlm_ops_t  *o = m->b->ops;

    o->step_upload(q, &m->step, &m->host, &m->rope);

    if (m->eager || m->host.nrows != m->host.nseqs) {
        text_forward(m);

    } else if (o->graph_begin(q, &m->step, 0) == 0) {
        text_forward(m);

        if (o->graph_end(q, why, sizeof(why)) != 0) {
            stop("not recorded", why);
        }
    }

    o->sample(q, &m->logits, m->params, m->sampled);
}


static void
vision_open(model_t *m, bench_t *b, const vision_shape_t *v,
    vlm_quant_t quant)
{
    int      i;
    int64_t  n, all;

    memset(m, 0, sizeof(model_t));
    m->b = b;
    m->vision = v;
    m->layers = v->layers;
    m->q = b->ops->queue_create(b->dev, 1);
    n = (int64_t) v->rows * v->pictures;
    all = (int64_t) v->heads * v->dim;

    make_layers(m, v->width, 3 * all, all, v->inter, 0, quant);

    m->start = memory((v->pictures + 1) * sizeof(int32_t));

    for (i = 0; i <= v->pictures; i++) {
        m->start[i] = i * v->rows;
    }

    m->seg.nsegments = v->pictures;
    m->seg.start = m->start;
    m->seg.heads = v->heads;
    m->seg.head_dim = v->dim;

    m->kv = device_memory(b, b->ops->vision_kv_bytes(b->dev, &m->seg));
    m->x = tensor(b, n, v->width, b->ops->act_dtype);
    m->h = tensor(b, n, v->width, b->ops->act_dtype);
    m->qkv = tensor(b, n, 3 * all, b->ops->act_dtype);
    m->wide = tensor(b, n, v->inter, b->ops->act_dtype);
    m->table = tensor(b, n, v->dim, VLM_F32);
}


static void
vision_layer(model_t *m, int i)
{
    vlm_queue_t      *q = m->q;
    const vlm_ops_t  *o = m->b->ops;

    o->norm(q, &m->h, &m->x, m->gain, m->gain, 1e-6f, VLM_NORM_LAYER);
    o->linear(q, &m->qkv, &m->h, &m->layer[i].qkv, VLM_ACT_NONE, NULL);
    o->vision_rope(q, &m->seg, &m->qkv, &m->table, 0, m->kv);
    o->vision_attention(q, &m->seg, &m->h, &m->qkv, 0, m->kv);
    o->linear(q, &m->x, &m->h, &m->layer[i].out, VLM_ACT_NONE, &m->x);
    o->norm(q, &m->h, &m->x, m->gain, m->gain, 1e-6f, VLM_NORM_LAYER);
    o->linear(q, &m->wide, &m->h, &m->layer[i].up, VLM_ACT_GELU_TANH, NULL);
    o->linear(q, &m->x, &m->wide, &m->layer[i].down, VLM_ACT_NONE, &m->x);
}


static void
vision_pass(model_t *m)
{
    int  i;

    for (i = 0; i < m->layers; i++) {
        vision_layer(m, i);
    }
}


static void
model_close(model_t *m)
{
    int               i;
    bench_t          *b = m->b;
    const vlm_ops_t  *o = b->ops;

    for (i = 0; i < m->layers; i++) {
        o->weight_destroy(&m->layer[i].qkv);
        o->weight_destroy(&m->layer[i].out);
        o->weight_destroy(&m->layer[i].up);
        o->weight_destroy(&m->layer[i].down);
    }

    if (m->text != NULL) {
        o->weight_destroy(&m->head);
        o->free(b->dev, m->both.data);
        o->free(b->dev, m->out.data);
        o->free(b->dev, m->logits.data);
        o->step_free(b->dev, &m->step);

    } else {
        o->free(b->dev, m->table.data);
    }

    o->free(b->dev, m->x.data);
    o->free(b->dev, m->h.data);
    o->free(b->dev, m->qkv.data);
    o->free(b->dev, m->wide.data);
    o->free(b->dev, m->kv);
    o->free(b->dev, m->gain);
    o->queue_destroy(m->q);

    free(m->layer);
    free(m->start);
    free(m->ints);
    free(m->params);
    free(m->sampled);
}


#endif /* BENCH_GPU_H */
