
/*
 * The decoder: work space for max_rows rows, the KV pool, and a step.  On a
 * device that records work, steps of answers have few sizes (padding.c).
 */

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/internal.h"
#include "engine/model/padding.h"


struct vlm_decoder_s {
    const vlm_model_t  *model;
    vlm_queue_t        *queue;
    int32_t             max_rows;
    int32_t             max_out;
    int32_t             nblocks;
    int32_t             block_size;
    int32_t            *identity;           /* 0, 1 ... for scatter() */
    vlm_kv_t           *kv;                 /* [layers] */
    vlm_step_t          step;
    uint64_t            number;             /* of decoders so far: its work */
    vlm_padding_t       padding;            /* if the device records */

    vlm_tensor_t        x;
    vlm_tensor_t        h;                  /* normed; attention's result */
    vlm_tensor_t        qkv;
    vlm_tensor_t        wide;
    vlm_tensor_t        out;
    vlm_tensor_t        logits;
};


static int decoder_memory(vlm_decoder_t *d, vlm_error_t *err);
static int decoder_kv(vlm_decoder_t *d, vlm_error_t *err);
static int decoder_check(const vlm_decoder_t *d,
    const vlm_decode_batch_t *batch, vlm_error_t *err);
static int decoder_check_lists(const vlm_decoder_t *d,
    const vlm_decode_batch_t *batch, vlm_error_t *err);
static int is_identity(const int32_t *list, int32_t n);
static void decoder_again(vlm_decoder_t *d, const vlm_decode_batch_t *batch);
static void decoder_forward(vlm_decoder_t *d,
    const vlm_decode_batch_t *batch);
static void decoder_embed(vlm_decoder_t *d, const vlm_decode_batch_t *batch);
static void decoder_layer(vlm_decoder_t *d, int32_t n, int32_t number);
static void decoder_head(vlm_decoder_t *d, const vlm_decode_batch_t *batch);


static atomic_uint_fast64_t  decoders;


uint64_t
vlm_decoder_block_bytes(const vlm_model_t *m, vlm_device_t *dev,
    const vlm_ops_t *ops, int32_t block_size)
{
    return (uint64_t) m->config.layers
           * ops->kv_block_bytes(dev, block_size, m->config.kv_heads,
                                 m->config.head_dim);
}


vlm_decoder_t *
vlm_decoder_create(const vlm_model_t *m, vlm_queue_t *q, int32_t nblocks,
    int32_t block_size, int32_t max_rows, int32_t max_out, vlm_error_t *err)
{
    int32_t         i;
    vlm_decoder_t  *d;

    if (nblocks < 1 || block_size < 16 || block_size % 16 != 0
        || max_rows < 1 || max_out < 1)
    {
        vlm_fail(err, 500, NULL, "a decoder of %d blocks of %d positions, %d "
                 "rows and %d outputs is not possible", nblocks, block_size,
                 max_rows, max_out);
        return NULL;
    }

    d = calloc(1, sizeof(*d));
    if (d == NULL) {
        vlm_fail(err, 500, NULL, "no memory for a decoder");
        return NULL;
    }

    d->model = m;
    d->queue = q;
    d->max_rows = max_rows;
    d->max_out = max_out;
    d->nblocks = nblocks;
    d->block_size = block_size;

    d->identity = malloc((size_t) max_rows * sizeof(int32_t));
    d->kv = calloc((size_t) m->config.layers, sizeof(vlm_kv_t));

    if (d->identity == NULL || d->kv == NULL) {
        vlm_fail(err, 500, NULL, "no memory for a decoder of %d rows",
                 max_rows);
        vlm_decoder_free(d);
        return NULL;
    }

    for (i = 0; i < max_rows; i++) {
        d->identity[i] = i;
    }

    d->number = atomic_fetch_add(&decoders, 1);

    if (m->ops->graph_begin != NULL
        && vlm_padding_init(&d->padding,
                            max_out < max_rows ? max_out : max_rows,
                            m->text_rope.naxes, nblocks, err)
           == VLM_ERROR)
    {
        vlm_decoder_free(d);
        return NULL;
    }

    if (decoder_memory(d, err) == VLM_ERROR
        || decoder_kv(d, err) == VLM_ERROR)
    {
        vlm_decoder_free(d);
        return NULL;
    }

    return d;
}


static int
decoder_memory(vlm_decoder_t *d, vlm_error_t *err)
{
    int64_t              q, width;
    vlm_dtype_t          dtype;
    const vlm_model_t   *m;
    const vlm_config_t  *c;

    m = d->model;
    c = &m->config;
    dtype = m->ops->act_dtype;

    q = (int64_t) c->heads * c->head_dim;
    width = c->hidden > q ? c->hidden : q;

    if (vlm_tensor_alloc(m, &d->x, d->max_rows, c->hidden, dtype,
                         "the decoder's rows", err)
        == VLM_ERROR
        || vlm_tensor_alloc(m, &d->h, d->max_rows, width, dtype,
                            "the decoder's rows", err)
           == VLM_ERROR
        || vlm_tensor_alloc(m, &d->qkv, d->max_rows,
                            q + 2 * (int64_t) c->kv_heads * c->head_dim,
                            dtype, "the decoder's attention", err)
           == VLM_ERROR
        || vlm_tensor_alloc(m, &d->wide, d->max_rows, c->intermediate, dtype,
                            "the decoder's MLP", err)
           == VLM_ERROR
        || vlm_tensor_alloc(m, &d->out, d->max_out, c->hidden, dtype,
                            "the decoder's outputs", err)
           == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    return vlm_tensor_alloc(m, &d->logits, d->max_out, c->vocab, VLM_F32,
                            "logits", err);
}


static int
decoder_kv(vlm_decoder_t *d, vlm_error_t *err)
{
    size_t              size;
    int32_t             i, nblocks;
    const vlm_model_t  *m;

    m = d->model;

    /* one more: of rows that only make a step larger */

    nblocks = d->nblocks + (m->ops->graph_begin != NULL);

    size = vlm_mul((size_t) nblocks,
                   m->ops->kv_block_bytes(m->dev, d->block_size,
                                          m->config.kv_heads,
                                          m->config.head_dim));

    for (i = 0; i < m->config.layers; i++) {
        d->kv[i].device = m->dev;
        d->kv[i].nblocks = nblocks;
        d->kv[i].block_size = d->block_size;
        d->kv[i].kv_heads = m->config.kv_heads;
        d->kv[i].head_dim = m->config.head_dim;
        d->kv[i].data = size != 0 ? m->ops->alloc(m->dev, size) : NULL;

        if (d->kv[i].data == NULL) {
            return vlm_fail(err, 500, NULL, "no memory for keys and values: "
                            "%d blocks of %d positions, %zu bytes in each of "
                            "%d layers: lower --kv-cache-memory", nblocks,
                            d->block_size, size, m->config.layers);
        }
    }

    return VLM_OK;
}


void
vlm_decoder_free(vlm_decoder_t *d)
{
    int32_t             i;
    const vlm_model_t  *m;

    if (d == NULL) {
        return;
    }

    m = d->model;

    for (i = 0; d->kv != NULL && i < m->config.layers; i++) {
        if (d->kv[i].data != NULL) {
            m->ops->free(m->dev, d->kv[i].data);
        }
    }

    m->ops->step_free(m->dev, &d->step);
    vlm_tensor_free(m, &d->x);
    vlm_tensor_free(m, &d->h);
    vlm_tensor_free(m, &d->qkv);
    vlm_tensor_free(m, &d->wide);
    vlm_tensor_free(m, &d->out);
    vlm_tensor_free(m, &d->logits);

    vlm_padding_free(&d->padding);
    free(d->identity);
    free(d->kv);
    free(d);
}


int
vlm_decoder_step(vlm_decoder_t *d, const vlm_decode_batch_t *batch,
    vlm_tensor_t *logits, vlm_error_t *err)
{
    int                        again;
    vlm_decode_batch_t         padded;
    const vlm_model_t         *m;
    const vlm_decode_batch_t  *run;

    m = d->model;

    if (decoder_check(d, batch, err) == VLM_ERROR
        || decoder_check_lists(d, batch, err) == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    again = m->ops->graph_begin != NULL && m->trace == NULL
            && vlm_padding_fits(&d->padding, batch)
            && is_identity(batch->out_rows, batch->nout);
    run = batch;

    if (again) {
        if (vlm_padding_fill(&d->padding, batch, d->block_size, &padded, err)
            == VLM_ERROR)
        {
            return VLM_ERROR;
        }

        padded.out_rows = d->identity;
        run = &padded;
    }

    if (m->ops->step_upload(d->queue, &d->step, &run->step, &m->text_rope)
        != 0)
    {
        /* why is in the queue */

        return vlm_model_sync(m, d->queue, err) == VLM_ERROR
               ? VLM_ERROR
               : vlm_fail(err, 500, NULL, "no tables for a step of %d rows",
                          batch->step.nrows);
    }

    if (again) {
        decoder_again(d, run);

    } else {
        decoder_forward(d, run);
    }

    *logits = vlm_rows(&d->logits, 0, batch->nout);

    return VLM_OK;
}


/* recorded before, or now, or not to be recorded */

static void
decoder_again(vlm_decoder_t *d, const vlm_decode_batch_t *batch)
{
    char              why[256];
    const vlm_ops_t  *ops;

    ops = d->model->ops;

    if (ops->graph_begin(d->queue, &d->step, d->number) == 1) {
        return;
    }

    decoder_forward(d, batch);

    if (ops->graph_end(d->queue, why, sizeof(why)) != 0) {
        vlm_log(VLM_LOG_WARN, "steps of %d rows are not recorded: %s",
                batch->step.nrows, why);
        decoder_forward(d, batch);
    }
}


static void
decoder_forward(vlm_decoder_t *d, const vlm_decode_batch_t *batch)
{
    int32_t  i;

    decoder_embed(d, batch);

    for (i = 0; i < d->model->config.layers; i++) {
        decoder_layer(d, batch->step.nrows, i);
    }

    decoder_head(d, batch);
}


/* every index that a device would follow, since it follows them blindly */

static int
decoder_check(const vlm_decoder_t *d, const vlm_decode_batch_t *batch,
    vlm_error_t *err)
{
    int32_t                 s, i, n, used;
    const vlm_step_host_t  *step;

    step = &batch->step;

    if (step->nrows < 1 || step->nrows > d->max_rows || step->nseqs < 1
        || step->row_start[0] != 0
        || step->row_start[step->nseqs] != step->nrows)
    {
        return vlm_fail(err, 500, NULL, "a step of %d rows in %d sequences, "
                        "the decoder has %d rows", step->nrows, step->nseqs,
                        d->max_rows);
    }

    for (s = 0; s < step->nseqs; s++) {
        n = step->row_start[s + 1] - step->row_start[s];

        if (n < 1 || step->context[s] < 0
            || step->context[s] > INT32_MAX - d->max_rows
            || (step->context[s] + n - 1) / d->block_size
               >= step->max_blocks)
        {
            return vlm_fail(err, 500, NULL, "sequence %d: %d rows after %d "
                            "do not fit in %d blocks", s, n,
                            step->context[s], step->max_blocks);
        }

        used = (step->context[s] + n - 1) / d->block_size + 1;

        for (i = 0; i < used; i++) {
            if ((uint32_t) step->blocks[(int64_t) s * step->max_blocks + i]
                >= (uint32_t) d->nblocks)
            {
                return vlm_fail(err, 500, NULL, "sequence %d: no block %d",
                                s, step->blocks[(int64_t) s
                                                * step->max_blocks + i]);
            }
        }
    }

    return VLM_OK;
}


static int
decoder_check_lists(const vlm_decoder_t *d, const vlm_decode_batch_t *batch,
    vlm_error_t *err)
{
    int32_t              i, nrows;
    const vlm_inject_t  *inject;

    nrows = batch->step.nrows;

    for (i = 0; i < nrows; i++) {
        if ((uint32_t) batch->step.ids[i]
            >= (uint32_t) d->model->config.vocab)
        {
            return vlm_fail(err, 500, NULL, "row %d: no token %d", i,
                            batch->step.ids[i]);
        }
    }

    for (i = 0; i < batch->ninject; i++) {
        inject = &batch->inject[i];

        if (inject->n < 1 || inject->n > nrows || inject->row < 0
            || inject->row > nrows - inject->n || inject->first < 0
            || inject->first > inject->embeddings->rows - inject->n
            || inject->embeddings->cols != d->model->config.hidden)
        {
            return vlm_fail(err, 500, NULL, "%d embeddings from row %d of "
                            "%lld do not fit at row %d of %d", inject->n,
                            inject->first,
                            (long long) inject->embeddings->rows,
                            inject->row, nrows);
        }
    }

    if (batch->nout < 0 || batch->nout > d->max_out) {
        return vlm_fail(err, 500, NULL, "logits of %d rows, the decoder has "
                        "%d", batch->nout, d->max_out);
    }

    for (i = 0; i < batch->nout; i++) {
        if ((uint32_t) batch->out_rows[i] >= (uint32_t) nrows) {
            return vlm_fail(err, 500, NULL, "logits of row %d of %d",
                            batch->out_rows[i], nrows);
        }
    }

    return VLM_OK;
}


static void
decoder_embed(vlm_decoder_t *d, const vlm_decode_batch_t *batch)
{
    int32_t              i;
    vlm_tensor_t         x, from;
    const vlm_ops_t     *ops;
    const vlm_inject_t  *inject;

    ops = d->model->ops;

    x = vlm_rows(&d->x, 0, batch->step.nrows);
    ops->embed(d->queue, &x, &d->model->weights.embed, &d->step);

    for (i = 0; i < batch->ninject; i++) {
        inject = &batch->inject[i];

        x = vlm_rows(&d->x, inject->row, inject->n);
        from = vlm_rows(inject->embeddings, inject->first, inject->n);
        ops->scatter(d->queue, &x, &from, d->identity, inject->n);
    }
}


static void
decoder_layer(vlm_decoder_t *d, int32_t n, int32_t number)
{
    float                eps;
    vlm_tensor_t         x, h, attn, qkv, wide;
    const vlm_ops_t     *ops;
    const vlm_layer_t   *layer;
    const vlm_config_t  *c;

    ops = d->model->ops;
    c = &d->model->config;
    layer = &d->model->text[number];
    eps = (float) c->eps;

    x = vlm_rows(&d->x, 0, n);
    h = vlm_tensor_view(&d->h, n, c->hidden);
    attn = vlm_tensor_view(&d->h, n, (int64_t) c->heads * c->head_dim);
    qkv = vlm_rows(&d->qkv, 0, n);
    wide = vlm_rows(&d->wide, 0, n);

    ops->norm(d->queue, &h, &x, layer->norm1.gain, NULL, eps, VLM_NORM_RMS);
    ops->linear(d->queue, &qkv, &h, &layer->qkv, VLM_ACT_NONE, NULL);
    ops->rope_kv(d->queue, &d->step, &qkv, c->heads, &d->kv[number],
                 layer->q_norm.gain, layer->k_norm.gain, eps);
    ops->attention(d->queue, &d->step, &attn, &qkv, c->heads,
                   &d->kv[number]);
    ops->linear(d->queue, &x, &attn, &layer->out, VLM_ACT_NONE, &x);

    ops->norm(d->queue, &h, &x, layer->norm2.gain, NULL, eps, VLM_NORM_RMS);
    ops->linear(d->queue, &wide, &h, &layer->up, c->act, NULL);
    ops->linear(d->queue, &x, &wide, &layer->down, VLM_ACT_NONE, &x);

    vlm_model_show(d->model, d->model->family->trace_text_layer, number, &x);
}


static int
is_identity(const int32_t *list, int32_t n)
{
    int32_t  i;

    for (i = 0; i < n; i++) {
        if (list[i] != i) {
            return 0;
        }
    }

    return 1;
}


/* the final norm of the wanted rows alone */

static void
decoder_head(vlm_decoder_t *d, const vlm_decode_batch_t *batch)
{
    vlm_tensor_t        x, out, logits;
    const vlm_ops_t    *ops;
    const vlm_model_t  *m;

    if (batch->nout == 0) {
        return;
    }

    m = d->model;
    ops = m->ops;

    x = vlm_rows(&d->x, 0, batch->step.nrows);
    out = vlm_rows(&d->out, 0, batch->nout);
    logits = vlm_rows(&d->logits, 0, batch->nout);

    if (is_identity(batch->out_rows, batch->nout)) {
        x = vlm_rows(&d->x, 0, batch->nout);

    } else {
        ops->gather(d->queue, &out, &x, batch->out_rows, batch->nout);
        x = out;
    }

    ops->norm(d->queue, &out, &x, m->weights.norm.gain, NULL,
              (float) m->config.eps, VLM_NORM_RMS);
    ops->linear(d->queue, &logits, &out,
                m->tied ? &m->weights.embed : &m->weights.head,
                VLM_ACT_NONE, NULL);
}
