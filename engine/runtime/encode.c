
/*
 * Pictures to embeddings, a slice at a time between the steps, so that
 * answers that are being written go on.
 */

#include <string.h>

#include "engine/runtime/internal.h"


/* with answers running, a step may grow by half; alone, requests are seen */
#define SLICE_SHARE     0.5
#define SLICE_ALONE_US  100000
#define SLICE_LEAST_US  2000
#define FIRST_RATE      2000.0      /* multiply-adds a microsecond */


static int encode_next(vlm_engine_t *e);
static int encode_finish(vlm_engine_t *e, vlm_error_t *err);


void
vlm_work_ready(vlm_work_t *w)
{
    size_t             i;
    const vlm_span_t  *span;

    if (w->decoding) {
        w->seq.ready = w->seq.computed;
        return;
    }

    w->seq.ready = w->seq.total;

    if (w->nencoded == (int32_t) w->in.npictures) {
        return;
    }

    for (i = 0; i < w->prompt.nspans; i++) {
        span = &w->prompt.spans[i];

        if (w->pics[span->picture].embedding.data == NULL
            && span->first < w->seq.ready)
        {
            w->seq.ready = span->first;
        }
    }
}


int
vlm_encode_slice(vlm_engine_t *e, int decoding)
{
    int              rc;
    double           budget, us;
    uint64_t         start;
    vlm_error_t      err;
    vlm_work_t      *w;
    vlm_encoding_t  *enc;

    enc = &e->encoding;

    if (enc->work == NULL) {
        rc = encode_next(e);

        if (rc != VLM_OK) {
            /* after an error there may be others */
            return rc == VLM_AGAIN ? VLM_AGAIN : VLM_OK;
        }
    }

    us = SLICE_ALONE_US;

    if (decoding) {
        us = (double) e->step_us * SLICE_SHARE;
        us = us > SLICE_LEAST_US ? us : SLICE_LEAST_US;
    }

    budget = us * enc->rate;
    start = vlm_now_us();

    rc = vlm_encode_step(enc->job, budget, &err);

    us = (double) (vlm_now_us() - start);

    if (rc == VLM_AGAIN) {
        if (us > 0) {
            enc->rate = 0.7 * enc->rate + 0.3 * budget / us;
        }

        return VLM_OK;
    }

    w = enc->work;

    if (rc == VLM_OK) {
        rc = encode_finish(e, &err);
    }

    vlm_encode_free(enc->job);
    enc->job = NULL;
    enc->work = NULL;

    if (rc != VLM_OK) {
        vlm_log(VLM_LOG_ERROR, "encoding failed: %s", err.message);
        vlm_compute_fail(e, w, &err);
    }

    return VLM_OK;
}


/* begins with the next picture, those of the oldest request first */

static int
encode_next(vlm_engine_t *e)
{
    int32_t          i, k;
    vlm_error_t      err;
    vlm_pic_t       *pic;
    vlm_work_t      *w;
    vlm_encoding_t  *enc;

    enc = &e->encoding;

    if (enc->rate == 0) {
        enc->rate = FIRST_RATE;
    }

    for (i = 0; i < e->sched.nrunning; i++) {
        w = (vlm_work_t *) e->sched.running[i];

        if (w->decoding || w->nencoded == (int32_t) w->in.npictures) {
            continue;
        }

        for (k = 0; w->pics[k].embedding.data != NULL; k++) {
            /* void */
        }

        pic = &w->pics[k];

        enc->job = vlm_encode_begin(e->encoder, &pic->image, &pic->plan, 1,
                                    &err);

        /* the job has its own copy */
        vlm_image_free(&pic->image);

        if (enc->job == NULL) {
            vlm_log(VLM_LOG_ERROR, "encoding failed: %s", err.message);
            vlm_compute_fail(e, w, &err);
            return VLM_ERROR;
        }

        enc->work = w;
        enc->picture = k;

        return VLM_OK;
    }

    return VLM_AGAIN;
}


/* keeps the result, rounded to the type in which it would be cached */

static int
encode_finish(vlm_engine_t *e, vlm_error_t *err)
{
    char                 text[256];
    size_t               size;
    vlm_work_t          *w;
    vlm_tensor_t        *to;
    const vlm_tensor_t  *from;

    w = e->encoding.work;
    from = vlm_encode_result(e->encoding.job);
    to = &w->pics[e->encoding.picture].embedding;

    *to = *from;
    to->dtype = e->conf.embedding_dtype;
    to->stride = to->cols;

    size = (size_t) to->rows * (size_t) to->cols * vlm_dtype_size(to->dtype);

    to->data = e->ops->alloc(e->dev, size);
    if (to->data == NULL) {
        return vlm_fail(err, 500, NULL, "no memory for an embedding of %zu "
                        "bytes", size);
    }

    e->ops->convert(e->vision_queue, to, from);

    if (e->ops->sync(e->vision_queue, text, sizeof(text)) != 0) {
        return vlm_fail(err, 500, NULL, "%s", text);
    }

    w->nencoded++;

    if (w->nencoded == (int32_t) w->in.npictures) {
        w->encoded_us = vlm_now_us();
        vlm_mail_stage(e, w->req, VLM_STAGE_PREFILL, 0);
    }

    vlm_work_ready(w);

    return VLM_OK;
}


void
vlm_encode_drop(vlm_engine_t *e, vlm_work_t *w)
{
    if (e->encoding.work != w) {
        return;
    }

    vlm_encode_free(e->encoding.job);
    e->encoding.job = NULL;
    e->encoding.work = NULL;
}
