
/*
 * Pictures to embeddings, so that answers that are being written go on: a
 * slice at a time between the steps, or on a queue of its own beside them.
 */

#include <string.h>

#include "engine/runtime/internal.h"


/* with nobody to hold up; it bounds how late requests are seen */
#define SLICE_ALONE_US  100000.0
#define SLICE_BESIDE_US 30000.0

/*
 * What a slice leaves of its time, or takes too much, counts for the next
 * ones within limits: an interruption by others is not to stop encoding.
 */
#define SLICE_CREDIT    0.1

/*
 * Slices aim a little below what a step may grow by: beside them the step
 * itself finds less of its weights in the caches.
 */
#define SLICE_AIM       0.95
#define SLICE_DEBT      2.0


void
vlm_encode_add(vlm_engine_t *e, vlm_work_t *w)
{
    double      macs;
    uint32_t    i;
    uint64_t    now;
    vlm_pic_t  *pic;

    macs = 0;
    now = vlm_now_us();

    for (i = 0; i < w->in.npictures; i++) {
        pic = &w->pics[i];

        if (pic->cache.state != VLM_PIC_PIXELS || pic->item.owner != NULL) {
            continue;
        }

        macs += vlm_model_cost(e->model, &pic->plan);

        pic->item.image = &pic->image;
        pic->item.plan = &pic->plan;
        pic->item.owner = w;

        vlm_encoding_add(&e->encoding, &pic->item, now, macs);
    }
}


void
vlm_encode_done(void *data, vlm_encode_item_t *item, void *copy,
    const vlm_error_t *err)
{
    int32_t        i;
    vlm_work_t    *w;
    vlm_error_t    failed;
    vlm_engine_t  *e = data;

    if (item == NULL) {
        vlm_embed_copy_free(e, copy);
        return;
    }

    w = item->owner;

    for (i = 0; item != &w->pics[i].item; i++) { /* void */ }

    if (err != NULL) {
        vlm_embed_copy_free(e, copy);
        failed = *err;

    } else if (vlm_embed_encoded(e, w, i, copy, &failed) == VLM_OK) {
        return;
    }

    vlm_log(VLM_LOG_ERROR, "encoding failed: %s", failed.message);
    vlm_compute_fail(e, w, &failed);
}


/* does anybody wait for a prompt that could be computed? */

static int
encode_beside(const vlm_engine_t *e)
{
    int32_t           i;
    const vlm_seq_t  *seq;

    for (i = 0; i < e->sched.nrunning; i++) {
        seq = e->sched.running[i];

        if (seq->ready - seq->computed > (seq->total > seq->prompt)) {
            return 1;
        }
    }

    return 0;
}


int
vlm_encode_busy(const vlm_engine_t *e)
{
    int  i;

    for (i = 0; i < VLM_ENCODE_LANES; i++) {
        if (e->encoding.lanes[i].job != NULL) {
            return 1;
        }
    }

    return e->encoding.waiting != NULL;
}


static void
encode_learn(vlm_engine_t *e)
{
    __atomic_store_n(&e->embed.rate, (uint64_t) e->encoding.rate,
                     __ATOMIC_RELAXED);
}


int
vlm_encode_slice(vlm_engine_t *e)
{
    int     rc;
    double  us, allowed;

    if (e->ops->async) {
        rc = vlm_encoding_collect(&e->encoding);
        encode_learn(e);
        return rc;
    }

    allowed = vlm_pace_allowance(&e->pace, vlm_answers(e));

    if (allowed > 0) {
        allowed *= SLICE_AIM;
    }

    if (allowed > 0 && encode_beside(e)) {
        /* rows of prompts have the other half of it */
        allowed /= 2;
    }

    if (allowed < 0) {
        e->encode_debt_us = 0;
        us = encode_beside(e) ? SLICE_BESIDE_US : SLICE_ALONE_US;

    } else if (e->encode_debt_us > allowed / 2) {
        /* the last slice took too long: this step goes without one */
        e->encode_debt_us -= allowed;
        return VLM_OK;

    } else {
        us = allowed - e->encode_debt_us;
    }

    us = vlm_encoding_run(&e->encoding, us);

    if (us == 0) {
        e->encode_debt_us = 0;
        return VLM_AGAIN;
    }

    encode_learn(e);

    if (allowed >= 0) {
        e->encode_debt_us += us - allowed;

        if (e->encode_debt_us < -allowed * SLICE_CREDIT) {
            e->encode_debt_us = -allowed * SLICE_CREDIT;
        }

        if (e->encode_debt_us > allowed * SLICE_DEBT) {
            e->encode_debt_us = allowed * SLICE_DEBT;
        }
    }

    return VLM_OK;
}


int
vlm_encode_submit(vlm_engine_t *e)
{
    return e->ops->async ? vlm_encoding_submit(&e->encoding) : VLM_AGAIN;
}


void
vlm_encode_drop(vlm_engine_t *e, vlm_work_t *w)
{
    uint32_t  i;

    for (i = 0; w->pics != NULL && i < w->in.npictures; i++) {
        vlm_encoding_remove(&e->encoding, &w->pics[i].item);
    }
}


int32_t
vlm_answers(const vlm_engine_t *e)
{
    int32_t           i, n;
    const vlm_seq_t  *seq;

    n = 0;

    for (i = 0; i < e->sched.nrunning; i++) {
        seq = e->sched.running[i];
        n += (seq->total > seq->prompt);
    }

    return n;
}


void
vlm_pace_learn(vlm_engine_t *e, uint64_t us)
{
    vlm_pace_step(&e->pace, e->plan.nstreams,
                  e->plan.rows - e->plan.nstreams, us);
}
