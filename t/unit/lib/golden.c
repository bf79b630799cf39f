
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "t/unit/lib/golden.h"
#include "t/unit/lib/tap.h"


static int golden_spans(golden_case_t *c);
static void golden_rows(golden_seq_t *seqs, int nseqs, int32_t nrows,
    int32_t *ids, int32_t *positions);
static int golden_injects(const golden_seq_t *seq, int32_t row,
    vlm_inject_t *inject);


static int
failed(const char *what, const vlm_error_t *err)
{
    tap_ok(0, "%s: %s", what, err->message);

    return -1;
}


int
golden_open(golden_rig_t *rig, const char *dir, vlm_device_t *dev,
    const vlm_ops_t *ops)
{
    return golden_open_as(rig, dir, NULL, dev, ops);
}


int
golden_open_as(golden_rig_t *rig, const char *dir,
    const vlm_model_options_t *opt, vlm_device_t *dev, const vlm_ops_t *ops)
{
    char         why[256];
    vlm_error_t  err;

    memset(rig, 0, sizeof(*rig));
    memset(&err, 0, sizeof(err));

    rig->model = vlm_model_open(dir, opt, &err);
    if (rig->model == NULL) {
        return failed("open", &err);
    }

    rig->dev = dev;
    rig->ops = ops;

    if (dev == NULL) {
        rig->dev = vlm_cpu_device(2, &rig->ops, why, sizeof(why));
        if (rig->dev == NULL) {
            return tap_ok(0, "device: %s", why) - 1;
        }

        rig->owned = 1;
    }

    if (vlm_model_load(rig->model, rig->dev, rig->ops, NULL, NULL, &err)
        == VLM_ERROR)
    {
        return failed("load", &err);
    }

    rig->queue = rig->ops->queue_create(rig->dev, 0);
    if (rig->queue == NULL) {
        return tap_ok(0, "queue") - 1;
    }

    rig->encoder = vlm_encoder_create(rig->model, rig->queue, &err);
    if (rig->encoder == NULL) {
        return failed("encoder", &err);
    }

    rig->decoder = vlm_decoder_create(rig->model, rig->queue,
                                      GOLDEN_SEQS * GOLDEN_BLOCKS,
                                      GOLDEN_BLOCK, GOLDEN_ROWS, GOLDEN_SEQS,
                                      &err);

    return rig->decoder != NULL ? 0 : failed("decoder", &err);
}


void
golden_close(golden_rig_t *rig)
{
    vlm_decoder_free(rig->decoder);
    vlm_encoder_free(rig->encoder);

    if (rig->queue != NULL) {
        rig->ops->queue_destroy(rig->queue);
    }

    vlm_model_free(rig->model);

    if (rig->owned) {
        vlm_cpu_device_destroy(rig->dev);
    }
}


int
golden_picture(const char *file, vlm_image_t *image)
{
    tap_tensor_t  rgb;

    rgb = tap_tensor(tap_path("build-data/images_rgb/%s.safetensors", file),
                     "rgb");

    image->height = (uint32_t) rgb.shape[0];
    image->width = (uint32_t) rgb.shape[1];
    image->data = rgb.data;

    return rgb.data != NULL ? 0 : -1;
}


int
golden_load(golden_case_t *c, const vlm_model_t *m, const char *variant,
    const char *name)
{
    char               file[256];
    size_t             n;
    const char        *data;
    vlm_error_t        err;
    const vlm_json_t  *v;

    memset(c, 0, sizeof(*c));
    snprintf(c->name, sizeof(c->name), "%s/%s", variant, name);
    snprintf(c->tensors, sizeof(c->tensors), "%s",
             tap_path("t/data/golden/qwen2_vl/%s/cases/%s.safetensors",
                      variant, name));

    c->doc = vlm_json_load(tap_path("t/data/golden/qwen2_vl/%s/cases/%s.json",
                                    variant, name), &err);
    if (c->doc == NULL) {
        return failed(c->name, &err);
    }

    c->json = vlm_json_root(c->doc);

    for (v = vlm_json_first(vlm_json_get(c->json, "images")); v != NULL;
         v = vlm_json_next(v))
    {
        vlm_json_string(vlm_json_get(v, "file"), &data, &n);
        snprintf(file, sizeof(file), "%.*s", (int) n, data);

        if (golden_picture(file, &c->pictures[c->npictures]) < 0) {
            return -1;
        }

        if (vlm_model_plan(m, c->pictures[c->npictures].width,
                           c->pictures[c->npictures].height, VLM_DETAIL_AUTO,
                           &c->plans[c->npictures], &err)
            == VLM_ERROR
            || vlm_image_resize(&c->pictures[c->npictures],
                                c->plans[c->npictures].width,
                                c->plans[c->npictures].height,
                                c->plans[c->npictures].filter,
                                &c->resized[c->npictures], &err)
               == VLM_ERROR)
        {
            return failed(c->name, &err);
        }

        c->npictures++;
    }

    if (golden_spans(c) < 0) {
        return -1;
    }

    c->positions = calloc(c->prompt.ids.len * 3, sizeof(int32_t));

    if (vlm_model_positions(m, &c->prompt, c->plans, c->positions, &c->delta,
                            &err)
        == VLM_ERROR)
    {
        return failed(c->name, &err);
    }

    return 0;
}


/* the reference's ids; its pictures lie where <|image_pad|> (458) does */

static int
golden_spans(golden_case_t *c)
{
    size_t             i, at;
    int64_t            id;
    vlm_span_t        *span;
    const vlm_json_t  *v;

    for (v = vlm_json_first(vlm_json_get(c->json, "input_ids")); v != NULL;
         v = vlm_json_next(v))
    {
        if (vlm_json_int(v, &id) == VLM_ERROR
            || vlm_ids_append(&c->prompt.ids, (int32_t) id, 1) == VLM_ERROR)
        {
            return -1;
        }
    }

    c->prompt.spans = calloc(c->npictures + 1, sizeof(vlm_span_t));
    c->prompt.nspans = c->npictures;
    at = 0;

    for (i = 0; i < c->npictures; i++) {

        while (at < c->prompt.ids.len && c->prompt.ids.data[at] != 458) {
            at++;
        }

        span = &c->prompt.spans[i];
        span->first = (int32_t) at;
        span->picture = (int32_t) i;
        span->count = c->plans[i].ntokens;
        at += (size_t) span->count;
    }

    return 0;
}


void
golden_free(golden_case_t *c)
{
    size_t  i;

    for (i = 0; i < c->npictures; i++) {
        free(c->pictures[i].data);
        vlm_image_free(&c->resized[i]);
    }

    vlm_prompt_free(&c->prompt);
    vlm_json_free(c->doc);
    free(c->positions);
}


vlm_encode_job_t *
golden_encode(golden_rig_t *rig, const golden_case_t *c, double budget)
{
    int                rc;
    vlm_error_t        err;
    vlm_encode_job_t  *job;

    job = vlm_encode_begin(rig->encoder, c->resized, c->plans, c->npictures,
                           &err);
    if (job == NULL) {
        failed(c->name, &err);
        return NULL;
    }

    do {
        rc = vlm_encode_step(job, budget, &err);
    } while (rc == VLM_AGAIN);

    if (rc != VLM_OK) {
        failed(c->name, &err);
        vlm_encode_free(job);
        return NULL;
    }

    return job;
}


float *
golden_download(const golden_rig_t *rig, const vlm_tensor_t *t)
{
    char     why[256];
    float   *to;
    size_t   size;

    size = (size_t) t->rows * (size_t) t->cols * sizeof(float);
    to = malloc(size + 1);

    if (to == NULL || t->dtype != VLM_F32 || t->stride != t->cols) {
        tap_ok(0, "a tensor of floats without gaps");
        free(to);
        return NULL;
    }

    rig->ops->download(rig->queue, to, t->data, size);

    if (rig->ops->sync(rig->queue, why, sizeof(why)) != 0) {
        tap_ok(0, "download: %s", why);
    }

    return to;
}


int
golden_begin(golden_seq_t *seq, const golden_case_t *c,
    const vlm_tensor_t *embeddings, int slot)
{
    size_t  i;

    memset(seq, 0, sizeof(*seq));
    seq->c = c;
    seq->embeddings = embeddings;
    seq->slot = slot;
    seq->n = (int32_t) c->prompt.ids.len;

    for (i = 0; i < c->prompt.ids.len; i++) {
        if (vlm_ids_append(&seq->ids, c->prompt.ids.data[i], 1) == VLM_ERROR)
        {
            return -1;
        }
    }

    return 0;
}


int
golden_step(golden_rig_t *rig, golden_seq_t *seqs, int nseqs, float *logits,
    vlm_sampled_t *sampled)
{
    int                  s, i, n, vocab;
    char                 why[256];
    int32_t              start[GOLDEN_SEQS + 1], context[GOLDEN_SEQS];
    int32_t              out[GOLDEN_SEQS];
    int32_t              blocks[GOLDEN_SEQS * GOLDEN_BLOCKS];
    int32_t              ids[GOLDEN_ROWS], positions[3 * GOLDEN_ROWS];
    vlm_error_t          err;
    vlm_inject_t         inject[GOLDEN_SEQS * GOLDEN_PICTURES];
    vlm_tensor_t         rows;
    vlm_sample_t         greedy[GOLDEN_SEQS];
    vlm_decode_batch_t   batch;

    memset(&batch, 0, sizeof(batch));
    memset(greedy, 0, sizeof(greedy));
    start[0] = 0;
    n = 0;

    for (s = 0; s < nseqs; s++) {
        n += golden_injects(&seqs[s], start[s], &inject[n]);
        start[s + 1] = start[s] + seqs[s].n;
        context[s] = seqs[s].computed;
        out[s] = start[s + 1] - 1;

        greedy[s].top_p = 1;
        greedy[s].repetition = 1;
        greedy[s].ntop = 5;

        /* no two blocks of a sequence are neighbours */

        for (i = 0; i < GOLDEN_BLOCKS; i++) {
            blocks[s * GOLDEN_BLOCKS + i] = i * GOLDEN_SEQS + seqs[s].slot;
        }
    }

    golden_rows(seqs, nseqs, start[nseqs], ids, positions);

    batch.step.nrows = start[nseqs];
    batch.step.nseqs = nseqs;
    batch.step.row_start = start;
    batch.step.context = context;
    batch.step.blocks = blocks;
    batch.step.max_blocks = GOLDEN_BLOCKS;
    batch.step.ids = ids;
    batch.step.positions = positions;
    batch.inject = inject;
    batch.ninject = n;
    batch.out_rows = out;
    batch.nout = nseqs;

    if (vlm_decoder_step(rig->decoder, &batch, &rows, &err) == VLM_ERROR) {
        return failed("step", &err);
    }

    vocab = vlm_model_info(rig->model)->vocab;

    if (logits != NULL) {
        rig->ops->download(rig->queue, logits, rows.data,
                           (size_t) nseqs * (size_t) vocab * sizeof(float));
    }

    rig->ops->sample(rig->queue, &rows, greedy, sampled);

    if (rig->ops->sync(rig->queue, why, sizeof(why)) != 0) {
        return tap_ok(0, "step: %s", why) - 1;
    }

    for (s = 0; s < nseqs; s++) {
        seqs[s].computed += seqs[s].n;
        seqs[s].n = 1;
    }

    return 0;
}


static void
golden_rows(golden_seq_t *seqs, int nseqs, int32_t nrows, int32_t *ids,
    int32_t *positions)
{
    int      s, axis;
    int32_t  i, at, row, total;

    row = 0;

    for (s = 0; s < nseqs; s++) {
        total = (int32_t) seqs[s].c->prompt.ids.len;

        for (i = 0; i < seqs[s].n; i++) {
            at = seqs[s].computed + i;
            ids[row] = seqs[s].ids.data[at];

            for (axis = 0; axis < 3; axis++) {
                positions[axis * nrows + row] =
                    at < total ? seqs[s].c->positions[axis * total + at]
                               : at + seqs[s].c->delta;
            }

            row++;
        }
    }
}


/* the parts of pictures that lie in the rows of the next step */

static int
golden_injects(const golden_seq_t *seq, int32_t row, vlm_inject_t *inject)
{
    int                n;
    size_t             i;
    int32_t            from, to, before;
    const vlm_span_t  *span;

    n = 0;
    before = 0;

    for (i = 0; i < seq->c->prompt.nspans; i++) {
        span = &seq->c->prompt.spans[i];

        from = span->first > seq->computed ? span->first : seq->computed;
        to = span->first + span->count;

        if (to > seq->computed + seq->n) {
            to = seq->computed + seq->n;
        }

        if (from < to) {
            inject[n].embeddings = seq->embeddings;
            inject[n].first = before + from - span->first;
            inject[n].row = row + from - seq->computed;
            inject[n].n = to - from;
            n++;
        }

        before += span->count;
    }

    return n;
}
