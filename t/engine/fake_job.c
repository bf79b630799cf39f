
/* Requests of the fake engine: what is answered, and what goes wrong. */

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "t/engine/fake_engine.h"


job_t  *jobs;


void
peer_close(peer_t *peer, const char *why)
{
    job_t  *job;

    say("peer closed id=%u why=\"%s\"", peer->id, why);
    say_end();

    for (job = jobs; job != NULL; job = job->next) {
        if (job->peer == peer) {
            job->step = STEP_GONE;
        }
    }

    vlm_peer_close(&peer->vlm);
    peer->open = 0;
    peer->ready = 0;
}


static void
die(const char *why)
{
    say("died why=\"%s\"", why);
    say_end();
    _exit(3);
}


/* 1: the fault of this mode happens now, in place of the next token */

static int
fault(job_t *job)
{
    if (job->token < job->script.at
        && job->token < job->ntokens * job->nchoices)
    {
        return 0;
    }

    switch (job->script.mode) {

    case MODE_SILENT:
        job->step = STEP_SILENT;
        return 1;

    case MODE_PROGRESS:
        job->step = STEP_PROGRESS;
        return 1;

    case MODE_LATE_ERROR:
        job->step = STEP_ERROR;
        return 1;

    case MODE_GARBAGE:
        job->step = STEP_SILENT;
        send_garbage(job);
        return 1;

    case MODE_DIE:
        vlm_peer_ring(&job->peer->vlm);
        die("told to");
        return 1;

    case MODE_CLOSE:
        vlm_peer_ring(&job->peer->vlm);
        peer_close(job->peer, "told to");
        return 1;

    default:
        return 0;
    }
}


static int
step_admitted(job_t *job, int64_t now)
{
    int          rc;
    vlm_event_t  e;

    switch (job->script.mode) {

    case MODE_ERROR:
    case MODE_BUSY:
        job->step = STEP_ERROR;
        return VLM_CHANNEL_OK;

    case MODE_DIE:
    case MODE_CLOSE:

        if (job->script.kind == 0) {
            (void) fault(job);
            return VLM_CHANNEL_OK;
        }

        break;

    default:
        break;
    }

    new_event(&e, VLM_EVENT_ADMITTED);
    e.u.admitted.prompt_tokens = job->prompt_tokens;
    e.u.admitted.image_tokens = 64 * job->npictures;
    e.u.admitted.queue_place = (job->script.mode == MODE_QUEUED);

    rc = send_event(job, &e);

    if (rc == VLM_CHANNEL_OK) {
        job->wake = now + job->script.ms;
        job->step = (job->script.mode == MODE_QUEUED) ? STEP_QUEUED
                    : (job->script.mode == MODE_HOLD) ? STEP_TOKENS
                    : STEP_RELEASED;
    }

    return rc;
}


static int
step_progress(job_t *job, uint32_t stage, int64_t next)
{
    int          rc;
    vlm_event_t  e;

    new_event(&e, VLM_EVENT_PROGRESS);
    e.u.progress.stage = stage;
    e.u.progress.queue_place = (stage == VLM_STAGE_QUEUED);

    rc = send_event(job, &e);

    if (rc == VLM_CHANNEL_OK) {
        job->due = next;
    }

    return rc;
}


static int
step_simple(job_t *job, uint16_t type, step_e next)
{
    int          rc;
    vlm_event_t  e;

    new_event(&e, type);
    rc = send_event(job, &e);

    if (rc == VLM_CHANNEL_OK) {
        say("%s slot=%u generation=%u",
            type == VLM_EVENT_RELEASED ? "released" : "cancelled",
            job->slot, job->generation);
        say_end();

        job->step = next;
    }

    return rc;
}


/* a choice is complete, the next one has to wait */

static int
step_turn(job_t *job, int64_t now)
{
    int  rc;

    rc = send_finish(job, job->finished);

    if (rc == VLM_CHANNEL_OK) {
        job->finished++;
        job->due = now + job->script.ms;
    }

    return rc;
}


static int
step_token(job_t *job, int64_t now)
{
    int       rc;
    unsigned  choice, n;

    if (fault(job)) {
        return VLM_CHANNEL_OK;
    }

    if (job->token == job->ntokens * job->nchoices) {
        job->step = STEP_FINISH;
        return VLM_CHANNEL_OK;
    }

    if ((job->script.mode == MODE_STALE
         || job->script.mode == MODE_WRONG_SLOT)
        && job->extra <= job->token)
    {
        rc = send_intruder(job);

        if (rc != VLM_CHANNEL_OK) {
            return rc;
        }

        job->extra++;
    }

    choice = job->token % job->nchoices;
    n = job->token / job->nchoices;

    if (job->script.mode == MODE_TURNS) {
        choice = job->token / job->ntokens;
        n = job->token % job->ntokens;

        if (choice != job->finished) {
            return step_turn(job, now);
        }
    }

    rc = send_token(job, choice, n);

    if (rc == VLM_CHANNEL_OK) {
        job->token++;
        job->due = conf.hurry ? now : now + job->delay;
    }

    return rc;
}


static int
step_finish(job_t *job)
{
    int  rc;

    if (job->finished == job->nchoices
        || job->script.mode == MODE_UNFINISHED)
    {
        job->step = (job->script.mode == MODE_HOLD) ? STEP_RELEASED_LATE
                                                    : STEP_DONE;
        return VLM_CHANNEL_OK;
    }

    rc = send_finish(job, job->finished);

    if (rc == VLM_CHANNEL_OK) {
        job->finished++;
    }

    return rc;
}


static int
step_done(job_t *job, int64_t now)
{
    int                rc;
    unsigned           i;
    vlm_event_t        e;
    vlm_event_done_t  *d;

    new_event(&e, VLM_EVENT_DONE);

    d = &e.u.done;
    d->prompt_tokens = job->prompt_tokens;
    d->image_tokens = 64 * job->npictures;
    d->cached_tokens = job->prompt_tokens / 2;
    d->completion_tokens = job->token + (job->length ? 0 : job->nchoices);
    d->receive_us = 1000;
    d->queue_us = 2000;
    d->decode_us = 3000;
    d->cache_us = 100;
    d->encode_us = 4000;
    d->prefill_us = 5000;
    d->first_token_us = 15000;
    d->total_us = (uint32_t) (now - job->start) * 1000 + 16000;
    d->noutcomes = job->npictures;

    for (i = 0; i < job->npictures; i++) {
        d->outcomes[i] = (uint8_t) (VLM_CACHE_MISS + i % VLM_CACHE_PREFIX);
    }

    rc = send_event(job, &e);

    if (rc == VLM_CHANNEL_OK) {
        say("done slot=%u generation=%u tokens=%u", job->slot,
            job->generation, job->token);
        say_end();

        job->step = (job->script.mode == MODE_AFTER_DONE) ? STEP_AFTER_DONE
                                                          : STEP_GONE;
    }

    return rc;
}


static int
step_error(job_t *job)
{
    int          rc;
    vlm_event_t  e;

    new_event(&e, VLM_EVENT_ERROR);
    e.u.error.status = job->script.status;
    e.u.error.length = (uint32_t) strnlen(job->script.rest,
                                          VLM_MAX_EVENT_TEXT);
    e.text = job->script.rest;
    memcpy(e.u.error.code, job->script.code, sizeof(job->script.code));
    memcpy(e.u.error.param, job->script.param, sizeof(job->script.param));

    if (job->script.mode == MODE_BUSY) {
        e.u.error.retry_after = (uint32_t) job->script.ms;
    }

    rc = send_event(job, &e);

    if (rc == VLM_CHANNEL_OK) {
        say("error slot=%u generation=%u status=%u", job->slot,
            job->generation, job->script.status);
        say_end();

        job->step = STEP_GONE;
    }

    return rc;
}


static int
step(job_t *job, int64_t now)
{
    int  rc;

    switch (job->step) {

    case STEP_ADMITTED:
        return step_admitted(job, now);

    case STEP_QUEUED:

        if (now >= job->wake || conf.hurry) {
            job->step = STEP_RELEASED;
            return VLM_CHANNEL_OK;
        }

        return step_progress(job, VLM_STAGE_QUEUED,
                             (now + 200 < job->wake) ? now + 200
                                                     : job->wake);

    case STEP_RELEASED:
        return step_simple(job, VLM_EVENT_RELEASED, STEP_TOKENS);

    case STEP_TOKENS:
        return step_token(job, now);

    case STEP_FINISH:
        return step_finish(job);

    case STEP_RELEASED_LATE:
        return step_simple(job, VLM_EVENT_RELEASED, STEP_DONE);

    case STEP_DONE:
        return step_done(job, now);

    case STEP_AFTER_DONE:
        rc = send_token(job, 0, 0);

        if (rc == VLM_CHANNEL_OK) {
            job->step = STEP_GONE;
        }

        return rc;

    case STEP_ERROR:
        return step_error(job);

    case STEP_CANCELLED:
        return step_simple(job, VLM_EVENT_CANCELLED, STEP_GONE);

    case STEP_PROGRESS:
        return step_progress(job, VLM_STAGE_GENERATE, now + 1000);

    default:    /* STEP_SILENT */
        job->due = NEVER;
        return VLM_CHANNEL_OK;
    }
}


int64_t
jobs_run(int64_t now)
{
    int64_t   next;
    job_t    *job, **link;

    next = NEVER;

    for (job = jobs; job != NULL; job = job->next) {

        if (job->cancel_at <= now && job->step != STEP_GONE) {
            job->cancel_at = NEVER;
            job->step = STEP_CANCELLED;
            job->due = now;
        }

        while (job->step != STEP_GONE && job->due <= now) {
            if (step(job, now) != VLM_CHANNEL_OK) {
                job->due = now + RETRY_MS;
            }
        }
    }

    for (link = &jobs; *link != NULL; /* void */ ) {
        job = *link;

        if (job->step == STEP_GONE) {
            *link = job->next;
            free(job);
            continue;
        }

        next = (job->due < next) ? job->due : next;
        next = (job->cancel_at < next) ? job->cancel_at : next;
        link = &job->next;
    }

    return next;
}


static job_t *
job_new(peer_t *peer, const vlm_submission_t *sub)
{
    job_t  *job, **link;

    job = calloc(1, sizeof(job_t));

    if (job == NULL) {
        die("no memory");
    }

    job->peer = peer;
    job->slot = sub->slot;
    job->generation = sub->generation;
    job->start = now_ms();
    job->cancel_at = NEVER;
    job->nchoices = 1;

    for (link = &jobs; *link != NULL; link = &(*link)->next) {
        /* void */
    }

    *link = job;

    return job;
}


static void
job_cancel(peer_t *peer, const vlm_submission_t *sub)
{
    job_t  *job;

    say("cancel slot=%u generation=%u", sub->slot, sub->generation);
    say_end();

    for (job = jobs; job != NULL; job = job->next) {
        if (job->peer == peer && job->slot == sub->slot
            && job->generation == sub->generation && job->step != STEP_GONE)
        {
            break;
        }
    }

    if (job == NULL) {
        job = job_new(peer, sub);

    } else if (job->script.mode == MODE_DEAF) {
        job->cancel_at = (job->script.ms == NEVER)
                         ? NEVER : now_ms() + job->script.ms;
        return;
    }

    job->step = STEP_CANCELLED;
    job->due = 0;
}


static void
job_fail(job_t *job, unsigned status, const char *code, const char *param,
    const char *message)
{
    script_t  *s;

    s = &job->script;
    memset(s, 0, sizeof(script_t));

    s->mode = MODE_ERROR;
    s->status = status;
    snprintf(s->code, sizeof(s->code), "%s", code);
    snprintf(s->param, sizeof(s->param), "%s", param);
    snprintf(s->rest, sizeof(s->rest), "%s", message);
}


/* how much is answered, and how fast */

static void
job_plan(job_t *job, const vlm_request_t *req)
{
    script_t  *s;

    s = &job->script;

    job->npictures = req->npictures;
    job->prompt_tokens = 10 + 64 * req->npictures
                         + (unsigned) job->text_len / 4;
    job->nchoices = (s->mode == MODE_CHOICES) ? s->kind
                                              : req->sampling.nchoices;
    job->logprobs = (s->mode == MODE_LOGPROBS) ? (int) s->kind
                    : req->sampling.logprobs ? (int) req->sampling.top_logprobs
                    : -1;
    job->delay = conf.delay;
    job->ntokens = conf.tokens;
    job->length = (s->mode == MODE_LENGTH);

    switch (s->mode) {

    case MODE_SLOW:
        job->delay = s->ms;
        job->words = 1;
        break;

    case MODE_DEAF:
        job->delay = s->kind;
        job->words = 1;
        break;

    case MODE_FLOOD:
        job->delay = 0;
        job->words = 1;
        break;

    default:

        if (job->ntokens > job->text_len) {
            job->ntokens = (unsigned) job->text_len;
        }
    }

    if (job->words) {
        job->ntokens = s->at;
    }

    job->npieces = job->ntokens;

    if ((req->sampling.set & VLM_SET_MAX_TOKENS)
        && job->ntokens >= req->sampling.max_tokens)
    {
        job->ntokens = req->sampling.max_tokens;
        job->length = 1;
    }
}


static void
job_request(job_t *job, const vlm_request_t *req)
{
    char         line[MAX_TEXT];
    size_t       len;
    unsigned     i;
    const char  *prompt;

    job->script = conf.script;

    prompt = record_prompt(job->peer, req, &len);

    if (prompt != NULL && len > 1 && prompt[0] == '!') {
        snprintf(line, sizeof(line), "%.*s", (int) len - 1, prompt + 1);

        if (script_parse(&job->script, line) == -1) {
            job_fail(job, 400, "bad_mode", "prompt",
                     "the fake engine has no such mode");
        }
    }

    for (i = 0; i < conf.info.nmodels; i++) {
        if (req->model.len == strlen(conf.info.models[i])
            && memcmp(req->model.data, conf.info.models[i], req->model.len)
               == 0)
        {
            break;
        }
    }

    if (i == conf.info.nmodels && req->model.len != 0) {
        job_fail(job, 404, "model_not_found", "model", "no such model");
    }

    if (conf.state != VLM_STATE_READY) {
        job_fail(job, 503, "not_ready", "", "the engine is not ready");
    }

    if (job->script.mode == MODE_TEXT) {
        job->text_len = strlen(job->script.rest);
        memcpy(job->text, job->script.rest, job->text_len);

    } else if (conf.text != NULL) {
        job->text_len = strnlen(conf.text, sizeof(job->text));
        memcpy(job->text, conf.text, job->text_len);

    } else {
        job->text_len = record_describe(job->peer, req, job->text,
                                        sizeof(job->text));
    }

    job_plan(job, req);
}


void
job_submit(peer_t *peer, const vlm_submission_t *sub)
{
    void           *record, *scratch;
    job_t          *job;
    const char     *why;
    vlm_request_t   req;

    if (sub->type == VLM_SUBMIT_CANCEL) {
        job_cancel(peer, sub);
        return;
    }

    job = job_new(peer, sub);

    record = malloc(sub->length);
    scratch = malloc(vlm_record_scratch(sub->length));

    if (record == NULL || scratch == NULL) {
        die("no memory");
    }

    memcpy(record, vlm_peer_arena(&peer->vlm, sub->offset, sub->length),
           sub->length);

    if (vlm_record_decode(record, sub->length, peer->vlm.arena_size, scratch,
                          &req, &why) == -1)
    {
        say("bad record slot=%u why=\"%s\"", sub->slot, why);
        say_end();
        job_fail(job, 500, "bad_record", "", why);

    } else {
        record_log(peer, sub, &req);
        job_request(job, &req);
    }

    free(record);
    free(scratch);
}
