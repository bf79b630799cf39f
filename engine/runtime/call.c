
/*
 * Requests between a worker's ring and the engine: what the engine leaves in
 * the mail becomes events, in their order, whenever the ring has room.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/runtime/server_internal.h"


/* with the loop's tick this is less than a second */
#define SILENCE_US      700000


static void call_refuse(vlm_conn_t *c, const vlm_submission_t *sub,
    int status, const char *code, const char *message);
static vlm_call_t *call_create(vlm_conn_t *c, const vlm_submission_t *sub);
static void call_log(const vlm_call_t *call);
static int flush_text(vlm_call_t *call);
static int flush_final(vlm_call_t *call);
static int call_send(vlm_call_t *call, uint16_t type);


void
vlm_call_begin(vlm_conn_t *c, const vlm_submission_t *sub)
{
    vlm_call_t    *call;
    vlm_server_t  *s;

    s = c->server;

    if (c->slots[sub->slot] != NULL) {
        vlm_conn_close(c, VLM_LOG_ERROR, "used a slot again whose request "
                       "has not ended");
        return;
    }

    switch (s->state) {

    case VLM_STATE_READY:
        break;

    case VLM_STATE_DRAINING:
        call_refuse(c, sub, 503, "draining", "the engine is about to end");
        return;

    default:
        call_refuse(c, sub, 503, "loading", "the engine is loading its "
                    "model");
        return;
    }

    /* those that will find a seat at once do not count as queued */

    if (s->nqueued + s->nrunning >= (uint32_t) s->conf.engine.max_queue
                                    + (uint32_t) s->conf.engine.max_num_seqs)
    {
        call_refuse(c, sub, 503, "queue_full", "the engine's queue is full");
        return;
    }

    call = call_create(c, sub);
    if (call == NULL) {
        return;
    }

    call->req->order = ++s->order;
    call->req->arena = c->peer.arena;
    call->req->arena_size = c->peer.arena_size;
    call->req->record_offset = sub->offset;
    call->req->record_length = sub->length;

    s->nqueued++;

    vlm_engine_submit(s->engine, call->req);
}


/* an error right away: it takes the way of all others, the ring may be full */

static void
call_refuse(vlm_conn_t *c, const vlm_submission_t *sub, int status,
    const char *code, const char *message)
{
    vlm_call_t  *call;

    call = call_create(c, sub);
    if (call == NULL) {
        return;
    }

    vlm_fail(&call->req->error, status, code, "%s", message);
    call->req->submitted_us = vlm_now_us();

    c->server->nqueued++;

    call->final = 1;
    call->out.flags |= VLM_MAIL_FINAL;
    call->out.result = VLM_ERROR;

    vlm_call_flush(call);
}


static vlm_call_t *
call_create(vlm_conn_t *c, const vlm_submission_t *sub)
{
    vlm_call_t  *call;

    call = calloc(1, sizeof(vlm_call_t));

    if (call != NULL) {
        call->req = vlm_req_create();
    }

    if (call == NULL || call->req == NULL) {
        free(call);
        vlm_conn_close(c, VLM_LOG_ERROR, "no memory for its request");
        return NULL;
    }

    call->conn = c;
    call->said_us = vlm_now_us();

    call->req->owner = call;
    call->req->slot = sub->slot;
    call->req->generation = sub->generation;

    call->next = c->calls;

    if (c->calls != NULL) {
        c->calls->prev = call;
    }

    c->calls = call;
    c->ncalls++;
    c->slots[sub->slot] = call;

    return call;
}


void
vlm_call_end(vlm_call_t *call)
{
    vlm_conn_t  *c;

    call_log(call);

    c = call->conn;

    if (call->started) {
        c->server->nrunning--;

    } else {
        c->server->nqueued--;
    }

    if (call->prev != NULL) {
        call->prev->next = call->next;

    } else {
        c->calls = call->next;
    }

    if (call->next != NULL) {
        call->next->prev = call->prev;
    }

    c->slots[call->req->slot] = NULL;
    c->ncalls--;
    c->server->drained_us = vlm_now_us();

    vlm_buf_free(&call->out.text);
    vlm_req_free(call->req);
    free(call);
}


/* an unknown one has ended already: its last event is the answer */

void
vlm_call_cancel(vlm_conn_t *c, const vlm_submission_t *sub)
{
    vlm_call_t  *call;

    call = c->slots[sub->slot];

    if (call == NULL || call->req->generation != sub->generation
        || call->cancelled)
    {
        return;
    }

    call->cancelled = 1;

    if (call->final) {
        vlm_call_flush(call);
        return;
    }

    vlm_engine_cancel(c->server->engine, call->req);
}


void
vlm_call_mail(vlm_call_t *call, vlm_mail_t *mail)
{
    vlm_server_t  *s;

    s = call->conn->server;

    if ((mail->flags & VLM_MAIL_STAGE) && !call->started
        && mail->stage != VLM_STAGE_QUEUED)
    {
        call->started = 1;
        s->nqueued--;
        s->nrunning++;
    }

    if (mail->flags & VLM_MAIL_STAGE) {
        /* a new place alone can wait for the next sign of life */
        call->progress |= (mail->stage != call->stage);
        call->stage = mail->stage;
        call->place = mail->place;
    }

    if (mail->flags & VLM_MAIL_ADMITTED) {
        call->req->admitted.queue_place = mail->place;
    }

    if (mail->flags & VLM_MAIL_FINISH) {
        call->out.finish = mail->finish;
        call->finish = mail->finish;
    }

    if (mail->flags & VLM_MAIL_FINAL) {
        call->final = 1;
        call->out.result = mail->result;
    }

    call->out.flags |= mail->flags & ~(unsigned) VLM_MAIL_STAGE;
    call->out.ntokens += mail->ntokens;

    if (call->out.text.len == 0) {
        vlm_buf_free(&call->out.text);
        call->out.text = mail->text;
        call->text_pos = 0;

    } else {
        if (mail->text.len != 0
            && vlm_buf_append(&call->out.text, mail->text.data,
                              mail->text.len)
               != VLM_OK)
        {
            vlm_conn_close(call->conn, VLM_LOG_ERROR, "no memory for an "
                           "answer");
        }

        vlm_buf_free(&mail->text);
    }

    vlm_call_flush(call);
}


void
vlm_call_tick(vlm_call_t *call, uint64_t now)
{
    if (!call->final && now - call->said_us >= SILENCE_US) {
        call->progress = 1;
    }

    if (call->progress || call->out.flags != 0 || call->out.text.len != 0) {
        vlm_call_flush(call);
    }
}


/* VLM_OK; VLM_AGAIN: no room; VLM_ERROR: the connection is closed */

static int
call_send(vlm_call_t *call, uint16_t type)
{
    vlm_conn_t   *c;
    vlm_event_t  *ev;

    c = call->conn;
    ev = &c->server->event;

    ev->type = type;
    ev->choice = 0;
    ev->slot = call->req->slot;
    ev->generation = call->req->generation;

    switch (vlm_peer_send(&c->peer, ev)) {

    case VLM_CHANNEL_OK:
        call->said_us = vlm_now_us();
        return VLM_OK;

    case VLM_CHANNEL_AGAIN:
        c->blocked = 1;
        return VLM_AGAIN;

    default:
        vlm_conn_close(c, VLM_LOG_ERROR, c->peer.why);
        return VLM_ERROR;
    }
}


void
vlm_call_flush(vlm_call_t *call)
{
    unsigned      *flags;
    vlm_event_t   *ev;

    if (call->conn->dead) {
        return;
    }

    ev = &call->conn->server->event;
    flags = &call->out.flags;

    /* who cancelled wants to hear nothing else */

    if (call->cancelled) {
        if (call->final) {
            (void) flush_final(call);
        }

        return;
    }

    if (*flags & VLM_MAIL_ADMITTED) {
        ev->u.admitted = call->req->admitted;

        if (call_send(call, VLM_EVENT_ADMITTED) != VLM_OK) {
            return;
        }

        *flags &= ~(unsigned) VLM_MAIL_ADMITTED;
    }

    if (*flags & VLM_MAIL_RELEASED) {
        if (call_send(call, VLM_EVENT_RELEASED) != VLM_OK) {
            return;
        }

        *flags &= ~(unsigned) VLM_MAIL_RELEASED;
    }

    if (call->progress && !call->final) {
        ev->u.progress.stage = call->stage;
        ev->u.progress.queue_place = call->place;

        if (call_send(call, VLM_EVENT_PROGRESS) != VLM_OK) {
            return;
        }
    }

    call->progress = 0;

    if (flush_text(call) != VLM_OK) {
        return;
    }

    if (*flags & VLM_MAIL_FINISH) {
        memset(&ev->u.finish, 0, sizeof(ev->u.finish));
        ev->u.finish.reason = call->out.finish;

        if (call_send(call, VLM_EVENT_FINISH) != VLM_OK) {
            return;
        }

        *flags &= ~(unsigned) VLM_MAIL_FINISH;
    }

    if (call->final) {
        (void) flush_final(call);
    }
}


/* in pieces that an event holds, cut between characters */

static int
flush_text(vlm_call_t *call)
{
    int           rc;
    char         *data;
    size_t        n, left;
    vlm_mail_t   *out;
    vlm_event_t  *ev;

    out = &call->out;
    ev = &call->conn->server->event;

    while (out->text.len > call->text_pos) {
        data = out->text.data + call->text_pos;
        left = out->text.len - call->text_pos;
        n = left;

        if (n > VLM_MAX_EVENT_TEXT) {
            n = VLM_MAX_EVENT_TEXT;

            while ((data[n] & 0xc0) == 0x80) {
                n--;
            }
        }

        memset(&ev->u.text, 0, sizeof(ev->u.text));
        ev->u.text.length = (uint32_t) n;
        ev->u.text.ntokens = (n == left) ? out->ntokens : 0;
        ev->text = data;

        rc = call_send(call, VLM_EVENT_TEXT);

        if (rc != VLM_OK) {
            return rc;
        }

        if (n == left) {
            out->ntokens = 0;
        }

        call->text_pos += n;
    }

    out->text.len = 0;
    call->text_pos = 0;

    return VLM_OK;
}


static int
flush_final(vlm_call_t *call)
{
    int           rc;
    vlm_req_t    *req;
    vlm_event_t  *ev;

    req = call->req;
    ev = &call->conn->server->event;

    if (call->cancelled) {
        rc = call_send(call, VLM_EVENT_CANCELLED);

    } else if (call->out.result == VLM_OK) {
        ev->u.done = req->done;
        rc = call_send(call, VLM_EVENT_DONE);

    } else {
        memset(&ev->u.error, 0, sizeof(ev->u.error));

        ev->u.error.status = (uint32_t) req->error.status;
        ev->u.error.length = (uint32_t) strlen(req->error.message);
        memcpy(ev->u.error.code, req->error.code, sizeof(ev->u.error.code));
        memcpy(ev->u.error.param, req->error.param,
               sizeof(ev->u.error.param));
        ev->text = req->error.message;

        if (req->error.status == 503) {
            ev->u.error.retry_after =
                                  vlm_server_retry_after(call->conn->server);
        }

        rc = call_send(call, VLM_EVENT_ERROR);
    }

    if (rc == VLM_OK) {
        vlm_call_end(call);
    }

    return rc;
}


/* sizes and times, never contents */

static void
call_log(const vlm_call_t *call)
{
    const char              *result;
    const vlm_req_t         *req;
    const vlm_event_done_t  *d;

    req = call->req;
    d = &req->done;

    if (call->cancelled || call->conn->dead
        || call->out.result != VLM_OK)
    {
        vlm_log(VLM_LOG_INFO, "request %s: %s, status %d %s %s, prompt %u "
                "(images %u), after %llu ms", req->id[0] ? req->id : "-",
                call->cancelled ? "cancelled"
                : call->conn->dead ? "worker gone" : "refused",
                req->error.status, req->error.code, req->error.param,
                req->admitted.prompt_tokens, req->admitted.image_tokens,
                (unsigned long long) ((vlm_now_us() - req->submitted_us)
                                      / 1000));
        return;
    }

    result = call->finish == VLM_FINISH_LENGTH ? "length" : "stop";

    vlm_log(VLM_LOG_INFO, "request %s: %s, prompt %u (images %u in %u), "
            "completion %u, receive %.1f ms, queue %.1f, decode %.1f, "
            "encode %.1f, prefill %.1f, first token %.1f, total %.1f",
            req->id, result, d->prompt_tokens, d->image_tokens, d->noutcomes,
            d->completion_tokens, d->receive_us / 1e3, d->queue_us / 1e3,
            d->decode_us / 1e3, d->encode_us / 1e3, d->prefill_us / 1e3,
            d->first_token_us / 1e3, d->total_us / 1e3);
}
