
/*
 * The compute thread: loads the model, then turns its loop: take requests
 * in, let waiting ones start, encode a slice, run a step.
 *
 * Where a device runs asynchronously, slices are put on their queue while a
 * step is at work, and looked after once a turn.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/runtime/internal.h"


/* its prompt is computed: it costs little more than its tokens */
#define SIBLING_COST    64

/* looks for late requests, and for slices that have been done */
#define LATE_US         100000
#define FLIGHT_US       250


static int compute_wait(const vlm_engine_t *e);
static void compute_take(vlm_engine_t *e, vlm_req_t *list);
static void compute_decoded(vlm_engine_t *e, vlm_work_t *w);
static void compute_check(vlm_engine_t *e);
static void compute_admit(vlm_engine_t *e);
static void compute_places(vlm_engine_t *e);
static void compute_start(vlm_engine_t *e, vlm_choice_t *c);
static void compute_reuse(vlm_engine_t *e);
static void compute_end(vlm_engine_t *e, vlm_work_t *w, int result);
static void compute_done(vlm_engine_t *e, vlm_work_t *w);
static void compute_gauges(vlm_engine_t *e);
static void compute_lost(vlm_engine_t *e);
static vlm_work_t *compute_any(vlm_engine_t *e);


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
        list = vlm_inbox_take(&e->inbox, idle ? compute_wait(e) : 0, &stop);

        if (stop) {
            break;
        }

        compute_take(e, list);
        compute_check(e);
        compute_admit(e);
        compute_reuse(e);
        vlm_embed_turn(e);
        compute_gauges(e);

        rc = vlm_encode_slice(e);
        idle = (rc == VLM_AGAIN);

        rc = vlm_step(e);

        if (rc == VLM_AGAIN) {
            rc = vlm_encode_submit(e);
        }

        idle = idle && (rc == VLM_AGAIN);

        if (vlm_device_lost(e)) {
            compute_lost(e);
            break;
        }
    }

    vlm_encoding_stop(&e->encoding);

    return NULL;
}


/* with nothing to do: until something may have happened */

static int
compute_wait(const vlm_engine_t *e)
{
    if (e->encoding.nflights > 0) {
        return FLIGHT_US;
    }

    return e->sched.waiting.n > 0 ? LATE_US : -1;
}


/*
 * Nothing can be computed any more.  All requests fail, those too that come
 * from the image pool yet, until the front ends the engine.
 */

static void
compute_lost(vlm_engine_t *e)
{
    int           stop;
    vlm_req_t    *list;
    vlm_work_t   *w;
    vlm_error_t   err;

    vlm_fail(&err, 503, NULL, "device %s is lost: the engine must be started "
             "again", e->ops->name);

    for (w = compute_any(e); w != NULL; w = compute_any(e)) {
        vlm_compute_fail(e, w, &err);
    }

    compute_gauges(e);
    vlm_mail_state(e, VLM_STATE_FAILED, &err);

    do {
        list = vlm_inbox_take(&e->inbox, -1, &stop);

        while (list != NULL) {
            w = list->work;
            list = list->next;
            w->decoding = 0;

            if (w->ended) {
                vlm_mail_final(e, w->req, w->result);

            } else {
                vlm_compute_fail(e, w, &err);
            }
        }

    } while (!stop);
}


/* one that runs or waits */

static vlm_work_t *
compute_any(vlm_engine_t *e)
{
    vlm_seq_t  *seq;

    seq = e->sched.nrunning > 0 ? e->sched.running[0] : e->sched.preempted;

    if (seq == NULL && e->sched.waiting.n > 0) {
        seq = vlm_queue_list(&e->sched.waiting)[0];
    }

    return seq != NULL ? ((vlm_choice_t *) seq)->work : NULL;
}


static void
compute_take(vlm_engine_t *e, vlm_req_t *list)
{
    vlm_work_t  *w;
    vlm_error_t  err;

    while (list != NULL) {
        w = list->work;
        list = list->next;

        if (w->started_us != 0) {
            compute_decoded(e, w);

        } else if (vlm_sched_wait(&e->sched, &w->choices[0].seq) != VLM_OK) {
            vlm_fail(&err, 500, NULL, "no memory for the request");
            vlm_compute_fail(e, w, &err);
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

    if (w->first_us == 0) {
        w->decoded_us = vlm_now_us();
    }

    if (w->ended) {
        vlm_mail_final(e, w->req, w->result);
        return;
    }

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


/* who is not wanted any more, or has waited too long: the first that is */

static vlm_work_t *
compute_unwanted(vlm_engine_t *e, vlm_error_t *err)
{
    int32_t             i;
    uint64_t            now;
    vlm_seq_t          *seq, *const *list;
    vlm_work_t         *w;

    vlm_fail(err, 499, "cancelled", "cancelled");

    for (i = 0; i < e->sched.nrunning; i++) {
        w = ((vlm_choice_t *) e->sched.running[i])->work;

        if (vlm_req_cancelled(w->req)) {
            return w;
        }
    }

    for (seq = e->sched.preempted; seq != NULL; seq = seq->next) {
        w = ((vlm_choice_t *) seq)->work;

        if (vlm_req_cancelled(w->req)) {
            return w;
        }
    }

    if (e->sched.waiting.n == 0) {
        return NULL;
    }

    now = vlm_now_us();
    list = vlm_queue_list(&e->sched.waiting);

    for (i = 0; i < e->sched.waiting.n; i++) {
        w = ((vlm_choice_t *) list[i])->work;

        if (vlm_req_cancelled(w->req)) {
            return w;
        }

        if (w->started_us == 0 && vlm_req_late(e, w->req, now)) {
            *err = w->req->error;
            return w;
        }
    }

    return NULL;
}


static void
compute_check(vlm_engine_t *e)
{
    vlm_work_t  *w;
    vlm_error_t  err;

    for ( ;; ) {
        w = compute_unwanted(e, &err);

        if (w == NULL) {
            return;
        }

        vlm_compute_fail(e, w, &err);
    }
}


static void
compute_admit(vlm_engine_t *e)
{
    vlm_seq_t  *seq;

    for ( ;; ) {
        seq = vlm_sched_admit(&e->sched);

        if (seq == NULL) {
            break;
        }

        compute_start(e, (vlm_choice_t *) seq);
    }

    if (e->sched.waiting.n > 0) {
        compute_places(e);
    }
}


static void
compute_places(vlm_engine_t *e)
{
    int32_t             i;
    uint32_t            place;
    vlm_work_t         *w;
    vlm_seq_t *const   *list;

    place = 0;
    list = vlm_queue_list(&e->sched.waiting);

    for (i = 0; i < e->sched.waiting.n; i++) {
        w = ((vlm_choice_t *) list[i])->work;

        /* further choices of a request that runs are not told about */

        if (w->started_us != 0) {
            continue;
        }

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


/* has a seat: for the first time, again, or as a further choice */

static void
compute_start(vlm_engine_t *e, vlm_choice_t *c)
{
    vlm_work_t  *w;

    w = c->work;

    vlm_choice_ready(c);

    if (w->started_us != 0) {
        vlm_embed_start(e, w);
        return;
    }

    w->started_us = vlm_now_us();
    w->cached = c->seq.reused;

    if (!w->announced) {
        vlm_mail_admitted(e, w->req, 0);
    }

    if (w->in.npictures == 0) {
        vlm_mail_stage(e, w->req, VLM_STAGE_PREFILL, 0);
        return;
    }

    vlm_embed_start(e, w);
}


int
vlm_compute_siblings(vlm_engine_t *e, vlm_work_t *w)
{
    uint32_t    i;
    vlm_seq_t  *seq;

    for (i = 1; i < w->nchoices; i++) {
        seq = &w->choices[i].seq;
        seq->cost = SIBLING_COST;

        if (vlm_sched_wait(&e->sched, seq) != VLM_OK) {
            return VLM_ERROR;
        }
    }

    return VLM_OK;
}


/* what others have computed since a request started need not be done again */

static void
compute_reuse(vlm_engine_t *e)
{
    int32_t        i, n;
    vlm_seq_t     *seq;
    vlm_choice_t  *c;

    for (i = 0; i < e->sched.nrunning; i++) {
        seq = e->sched.running[i];
        c = (vlm_choice_t *) seq;

        if (seq->total - seq->computed == 1) {
            continue;
        }

        n = vlm_sched_reuse(&e->sched, seq);

        if (n > 0) {
            c->work->cached += (c->work->first_us == 0) ? n : 0;
            vlm_choice_ready(c);
        }
    }
}


static void
compute_gauges(vlm_engine_t *e)
{
    pthread_mutex_lock(&e->out_lock);

    e->gauges.running = (uint32_t) e->sched.nrunning;
    e->gauges.queued = (uint32_t) (e->sched.waiting.n
                                   + e->sched.npreempted);
    e->gauges.kv_blocks = (uint32_t) e->sched.blocks.total;
    e->gauges.kv_blocks_free =
                      (uint32_t) vlm_blocks_available(&e->sched.blocks);

    pthread_mutex_unlock(&e->out_lock);
}


void
vlm_compute_fail(vlm_engine_t *e, vlm_work_t *w, const vlm_error_t *err)
{
    if (err != &w->req->error) {
        w->req->error = *err;
    }

    compute_end(e, w, VLM_ERROR);
}


static void
compute_end(vlm_engine_t *e, vlm_work_t *w, int result)
{
    uint32_t  i;

    vlm_encode_drop(e, w);

    for (i = 0; i < w->nchoices; i++) {
        vlm_sched_remove(&e->sched, &w->choices[i].seq);
    }

    /*
     * A picture that is being decoded must come back first, though nobody
     * needs it: of a request that failed, or found its rows in the KV cache.
     */

    if (w->decoding) {
        w->ended = 1;
        w->result = result;
        return;
    }

    vlm_mail_final(e, w->req, result);
}


static void
mean_update(uint32_t *mean, uint64_t us)
{
    uint32_t  ms;

    ms = (uint32_t) (us / 1000) + 1;
    *mean = (*mean == 0) ? ms : (*mean * 7 + ms) / 8;
}


void
vlm_compute_ended(vlm_engine_t *e, vlm_choice_t *c)
{
    vlm_work_t  *w;

    w = c->work;

    vlm_sched_remove(&e->sched, &c->seq);

    if (++w->nended == w->nchoices) {
        compute_done(e, w);
    }
}


/* the SHA-256 of an answer's logits, or of those of several answers */

static void
compute_digest(vlm_work_t *w, uint8_t digest[32])
{
    uint32_t      i;
    EVP_MD_CTX   *first;

    first = w->choices[0].digest;
    EVP_DigestFinal_ex(first, digest, NULL);

    if (w->nchoices == 1 || EVP_DigestInit_ex(first, EVP_sha256(), NULL) != 1)
    {
        return;
    }

    EVP_DigestUpdate(first, digest, 32);

    for (i = 1; i < w->nchoices; i++) {
        EVP_DigestFinal_ex(w->choices[i].digest, digest, NULL);
        EVP_DigestUpdate(first, digest, 32);
    }

    EVP_DigestFinal_ex(first, digest, NULL);
}


/* from "*at" to a later time; "*at" follows */

static uint32_t
stage_time(uint64_t *at, uint64_t to)
{
    uint64_t  us;

    if (to <= *at) {
        return 0;
    }

    us = to - *at;
    *at = to;

    return us < UINT32_MAX ? (uint32_t) us : UINT32_MAX;
}


/*
 * Stages follow each other without gaps, so that they sum up to the time of
 * the first token: what goes on at the same time counts for the first of
 * them, and waiting for the cache only where nothing else was to be done.
 */

static void
compute_times(const vlm_work_t *w, vlm_event_done_t *done, uint64_t now)
{
    uint64_t  at, received;

    received = w->in.received_ms * 1000;
    at = w->req->submitted_us;

    if (received != 0) {
        done->receive_us = stage_time(&received, at);
    }

    done->queue_us = stage_time(&at, w->started_us);
    done->decode_us = stage_time(&at, w->decoded_us);
    done->encode_us = stage_time(&at, w->encoded_us);
    done->cache_us = stage_time(&at, w->cached_us);
    done->prefill_us = stage_time(&at, w->first_us);

    at = w->req->submitted_us;
    done->first_token_us = stage_time(&at, w->first_us);

    at = w->req->submitted_us;
    done->total_us = stage_time(&at, now);
}


/* all answers are complete */

static void
compute_done(vlm_engine_t *e, vlm_work_t *w)
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
    done->cached_tokens = w->cached < (int32_t) w->prompt.ids.len
                          ? (uint32_t) w->cached : done->prompt_tokens;
    done->completion_tokens = 0;

    for (i = 0; i < w->nchoices; i++) {
        done->completion_tokens += (uint32_t) w->choices[i].generated.len;
    }

    compute_times(w, done, now);

    done->noutcomes = w->in.npictures < VLM_MAX_CACHE_OUTCOMES
                      ? w->in.npictures : VLM_MAX_CACHE_OUTCOMES;

    for (i = 0; i < done->noutcomes; i++) {
        done->outcomes[i] = (uint8_t) vlm_embed_outcome(&w->pics[i].cache);
    }

    req->answer = w->choices[0].generated;
    memset(&w->choices[0].generated, 0, sizeof(vlm_ids_t));

    if (e->conf.digest) {
        compute_digest(w, req->digest);
    }

    pthread_mutex_lock(&e->out_lock);
    mean_update(&e->gauges.first_token_ms, done->first_token_us);
    mean_update(&e->service_ms, now - w->started_us);
    pthread_mutex_unlock(&e->out_lock);

    compute_end(e, w, VLM_OK);
}
