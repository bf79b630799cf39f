
/*
 * The compute thread: loads the model, then turns its loop: take requests
 * in, let waiting ones start, encode a slice, run a step.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/runtime/internal.h"


static void compute_take(vlm_engine_t *e, vlm_req_t *list);
static void compute_decoded(vlm_engine_t *e, vlm_work_t *w);
static void compute_check(vlm_engine_t *e);
static void compute_admit(vlm_engine_t *e);
static void compute_start(vlm_engine_t *e, vlm_work_t *w);
static void compute_gauges(vlm_engine_t *e);


void *
vlm_compute_main(void *data)
{
    int            rc, stop, idle;
    vlm_req_t     *list;
    vlm_error_t    err;
    vlm_engine_t  *e = data;

    pthread_setname_np(pthread_self(), "vlm-compute");

    if (vlm_load(e, &err) != VLM_OK) {
        vlm_mail_state(e, VLM_STATE_FAILED, &err);
        return NULL;
    }

    compute_gauges(e);
    vlm_mail_state(e, VLM_STATE_READY, NULL);

    idle = 1;

    for ( ;; ) {
        list = vlm_inbox_take(&e->inbox, !idle ? 0
                                         : e->sched.nwaiting > 0 ? 100 : -1,
                              &stop);

        if (stop) {
            break;
        }

        compute_take(e, list);
        compute_check(e);
        compute_admit(e);
        vlm_embed_turn(e);
        compute_gauges(e);

        rc = vlm_encode_slice(e);
        idle = (rc == VLM_AGAIN);

        rc = vlm_step(e);
        idle = idle && (rc == VLM_AGAIN);

        if (vlm_device_lost(e)) {
            vlm_fail(&err, 500, NULL, "device %s is lost: the engine must "
                     "be started again", e->ops->name);
            vlm_mail_state(e, VLM_STATE_FAILED, &err);
            break;
        }
    }

    return NULL;
}


static void
compute_take(vlm_engine_t *e, vlm_req_t *list)
{
    vlm_work_t  *w;

    while (list != NULL) {
        w = list->work;
        list = list->next;

        if (w->started_us != 0) {
            compute_decoded(e, w);

        } else {
            vlm_sched_wait(&e->sched, &w->seq);
        }
    }
}


/* all pictures of a request have come back from the image pool */

static void
compute_decoded(vlm_engine_t *e, vlm_work_t *w)
{
    uint32_t      i;
    vlm_error_t  *err, *first;

    w->decoding = 0;
    w->decoded_us = vlm_now_us();

    first = NULL;

    for (i = 0; i < w->in.npictures; i++) {
        err = &w->pics[i].error;

        if (err->status != 0 && (first == NULL || first->status == 499)) {
            first = err;
        }
    }

    if (first != NULL) {
        vlm_compute_fail(e, w, first);
        return;
    }

    vlm_embed_pixels(e, w);
}


/* who is not wanted any more, or has waited too long */

static void
compute_check(vlm_engine_t *e)
{
    int32_t      i;
    uint64_t     now;
    vlm_seq_t   *seq, *next;
    vlm_work_t  *w;
    vlm_error_t  err;

    vlm_fail(&err, 499, "cancelled", "cancelled");

    for (i = e->sched.nrunning - 1; i >= 0; i--) {
        w = (vlm_work_t *) e->sched.running[i];

        /* a picture that is being decoded must come back first */

        if (!w->decoding && vlm_req_cancelled(w->req)) {
            vlm_compute_fail(e, w, &err);
        }
    }

    if (e->sched.waiting == NULL) {
        return;
    }

    now = vlm_now_us();

    for (seq = e->sched.waiting; seq != NULL; seq = next) {
        next = seq->next;
        w = (vlm_work_t *) seq;

        if (vlm_req_cancelled(w->req)) {
            vlm_compute_fail(e, w, &err);

        } else if (vlm_req_late(e, w->req, now)) {
            vlm_compute_fail(e, w, &w->req->error);
        }
    }
}


static void
compute_admit(vlm_engine_t *e)
{
    int          nomem;
    uint32_t     place;
    vlm_seq_t   *seq;
    vlm_work_t  *w;
    vlm_error_t  err;

    for ( ;; ) {
        seq = vlm_sched_admit(&e->sched, &nomem);

        if (seq != NULL) {
            compute_start(e, (vlm_work_t *) seq);

        } else if (nomem) {
            vlm_fail(&err, 500, NULL, "no memory for a block table");
            vlm_compute_fail(e, (vlm_work_t *) e->sched.waiting, &err);

        } else {
            break;
        }
    }

    place = 0;

    for (seq = e->sched.waiting; seq != NULL; seq = seq->next) {
        w = (vlm_work_t *) seq;
        place++;

        if (!w->announced) {
            w->announced = 1;
            vlm_mail_admitted(e, w->req, place);
        }

        if (w->place != place) {
            w->place = place;
            vlm_mail_stage(e, w->req, VLM_STAGE_QUEUED, place);
        }
    }
}


static void
compute_start(vlm_engine_t *e, vlm_work_t *w)
{
    w->started_us = vlm_now_us();
    w->decoded_us = w->started_us;
    w->encoded_us = w->started_us;

    if (!w->announced) {
        vlm_mail_admitted(e, w->req, 0);
    }

    if (w->in.npictures == 0) {
        vlm_work_ready(w);
        vlm_mail_stage(e, w->req, VLM_STAGE_PREFILL, 0);
        return;
    }

    vlm_embed_start(e, w);
}


static void
compute_gauges(vlm_engine_t *e)
{
    pthread_mutex_lock(&e->out_lock);

    e->gauges.running = (uint32_t) e->sched.nrunning;
    e->gauges.queued = (uint32_t) e->sched.nwaiting;
    e->gauges.kv_blocks = (uint32_t) e->sched.blocks.total;
    e->gauges.kv_blocks_free = (uint32_t) e->sched.blocks.nfree;

    pthread_mutex_unlock(&e->out_lock);
}


void
vlm_compute_fail(vlm_engine_t *e, vlm_work_t *w, const vlm_error_t *err)
{
    vlm_req_t  *req;

    req = w->req;

    if (err != &req->error) {
        req->error = *err;
    }

    vlm_encode_drop(e, w);
    vlm_sched_remove(&e->sched, &w->seq);
    vlm_mail_final(e, req, VLM_ERROR);
}


static void
mean_update(uint32_t *mean, uint64_t us)
{
    uint32_t  ms;

    ms = (uint32_t) (us / 1000) + 1;
    *mean = (*mean == 0) ? ms : (*mean * 7 + ms) / 8;
}


/* the answer is complete */

void
vlm_compute_done(vlm_engine_t *e, vlm_work_t *w)
{
    uint32_t            i;
    uint64_t            now;
    vlm_req_t          *req;
    vlm_event_done_t   *done;

    req = w->req;
    done = &req->done;
    now = vlm_now_us();

    done->prompt_tokens = (uint32_t) w->prompt.ids.len;
    done->image_tokens = req->admitted.image_tokens;
    done->completion_tokens = (uint32_t) w->generated.len;

    if (w->in.received_ms != 0
        && w->in.received_ms * 1000 < req->submitted_us)
    {
        done->receive_us = (uint32_t) (req->submitted_us
                                       - w->in.received_ms * 1000);
    }

    done->queue_us = (uint32_t) (w->started_us - req->submitted_us);
    done->decode_us = (uint32_t) (w->decoded_us - w->started_us);

    if (w->in.npictures != 0) {
        done->encode_us = (uint32_t) (w->encoded_us - w->decoded_us);
        done->prefill_us = (uint32_t) (w->first_us - w->encoded_us);

    } else {
        done->prefill_us = (uint32_t) (w->first_us - w->started_us);
    }

    done->first_token_us = (uint32_t) (w->first_us - req->submitted_us);
    done->total_us = (uint32_t) (now - req->submitted_us);

    done->noutcomes = w->in.npictures < VLM_MAX_CACHE_OUTCOMES
                      ? w->in.npictures : VLM_MAX_CACHE_OUTCOMES;

    for (i = 0; i < done->noutcomes; i++) {
        done->outcomes[i] = (uint8_t) w->pics[i].cache.outcome;
    }

    if (w->cached_us > w->started_us) {
        done->cache_us = (uint32_t) (w->cached_us - w->started_us);
    }

    req->answer = w->generated;
    memset(&w->generated, 0, sizeof(w->generated));

    if (e->conf.digest) {
        EVP_DigestFinal_ex(w->digest, req->digest, NULL);
    }

    pthread_mutex_lock(&e->out_lock);
    mean_update(&e->gauges.first_token_ms, done->first_token_us);
    mean_update(&e->service_ms, now - w->started_us);
    pthread_mutex_unlock(&e->out_lock);

    vlm_sched_remove(&e->sched, &w->seq);
    vlm_mail_final(e, req, VLM_OK);
}
