
/*
 * Requests between a worker's ring and the engine: what the engine leaves in
 * the mail becomes events, in their order, whenever the ring has room.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/channel/vlm_logprob.h"
#include "engine/runtime/server_internal.h"


/* with the loop's tick this is less than a second */
#define SILENCE_US      700000


static void call_refuse(vlm_conn_t *c, const vlm_submission_t *sub,
    int status, const char *code, const char *message);
static vlm_call_t *call_create(vlm_conn_t *c, const vlm_submission_t *sub);
static void call_log(const vlm_call_t *call);
static int flush_said(vlm_call_t *call, uint32_t choice);
static uint32_t piece_text(const vlm_said_t *said);
static uint32_t piece_listed(vlm_server_t *s, const vlm_said_t *said,
    vlm_event_text_t *piece);
static int flush_final(vlm_call_t *call);
static int call_send(vlm_call_t *call, uint16_t type, uint32_t choice);


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
        call_refuse(c, sub, 503, "engine_draining",
                    "the engine is about to stop");
        return;

    default:
        call_refuse(c, sub, 503, "engine_loading", "the engine is loading its "
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

    vlm_mail_free(&call->out);
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

    if (mail->flags & VLM_MAIL_FINAL) {
        call->final = 1;
        call->out.result = mail->result;
    }

    call->out.flags |= mail->flags & ~(unsigned) VLM_MAIL_STAGE;

    if (vlm_mail_move(&call->out, mail) != VLM_OK) {
        vlm_conn_close(call->conn, VLM_LOG_ERROR, "no memory for an answer");
    }

    vlm_mail_free(mail);

    vlm_call_flush(call);
}


void
vlm_call_tick(vlm_call_t *call, uint64_t now)
{
    if (!call->final && now - call->said_us >= SILENCE_US) {
        call->progress = 1;
    }

    vlm_call_flush(call);
}


/* VLM_OK; VLM_AGAIN: no room; VLM_ERROR: the connection is closed */

static int
call_send(vlm_call_t *call, uint16_t type, uint32_t choice)
{
    vlm_conn_t   *c;
    vlm_event_t  *ev;

    c = call->conn;
    ev = &c->server->event;

    ev->type = type;
    ev->choice = (uint16_t) choice;
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
    uint32_t       i;
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

        if (call_send(call, VLM_EVENT_ADMITTED, 0) != VLM_OK) {
            return;
        }

        *flags &= ~(unsigned) VLM_MAIL_ADMITTED;
    }

    if (*flags & VLM_MAIL_RELEASED) {
        if (call_send(call, VLM_EVENT_RELEASED, 0) != VLM_OK) {
            return;
        }

        *flags &= ~(unsigned) VLM_MAIL_RELEASED;
    }

    if (call->progress && !call->final) {
        ev->u.progress.stage = call->stage;
        ev->u.progress.queue_place = call->place;

        if (call_send(call, VLM_EVENT_PROGRESS, 0) != VLM_OK) {
            return;
        }
    }

    call->progress = 0;

    for (i = 0; i < call->out.nsaid; i++) {
        if (flush_said(call, i) != VLM_OK) {
            return;
        }
    }

    if (call->final) {
        (void) flush_final(call);
    }
}


/* what a choice has said, in pieces that an event holds */

static int
flush_said(vlm_call_t *call, uint32_t choice)
{
    int            rc;
    uint32_t       listed;
    vlm_said_t    *said;
    vlm_event_t   *ev;
    vlm_server_t  *s;

    s = call->conn->server;
    ev = &s->event;
    said = &call->out.said[choice];

    while (said->text_sent < said->text.len
           || said->listed_sent < said->nlisted)
    {
        memset(&ev->u.text, 0, sizeof(ev->u.text));

        ev->text = said->text.data + said->text_sent;
        ev->u.text.length = piece_text(said);
        listed = piece_listed(s, said, &ev->u.text);

        rc = call_send(call, VLM_EVENT_TEXT, choice);

        if (rc != VLM_OK) {
            return rc;
        }

        said->text_sent += ev->u.text.length;
        said->listed_sent += listed;
        said->ntokens -= ev->u.text.ntokens;

        if (listed == 0 && said->listed_sent < said->nlisted) {
            /* a part of the text of one token */
            said->tokens[said->listed_sent].length -= ev->u.text.length;
        }
    }

    if (said->finish != 0) {
        memset(&ev->u.finish, 0, sizeof(ev->u.finish));
        ev->u.finish.reason = said->finish;

        rc = call_send(call, VLM_EVENT_FINISH, choice);

        if (rc != VLM_OK) {
            return rc;
        }

        call->finish = said->finish;
        said->finish = 0;
    }

    return VLM_OK;
}


/* bytes of text for one event, cut between characters */

static uint32_t
piece_text(const vlm_said_t *said)
{
    size_t       n;
    const char  *data;

    data = said->text.data + said->text_sent;
    n = said->text.len - said->text_sent;

    if (n > VLM_MAX_EVENT_TEXT) {
        n = VLM_MAX_EVENT_TEXT;

        while ((data[n] & 0xc0) == 0x80) {
            n--;
        }
    }

    return (uint32_t) n;
}


static void
piece_token(const vlm_tokenizer_t *tok, int32_t id, float logprob,
    vlm_logprob_t *p)
{
    int     special;
    size_t  len;

    len = 0;

    p->bytes = vlm_tokenizer_bytes(tok, id, &len, &special);
    p->length = p->bytes != NULL ? (uint32_t) len : 0;
    p->logprob = logprob;
}


/* one token and its alternatives into s->logprobs; the bytes used then */

static size_t
piece_entry(vlm_server_t *s, const vlm_sampled_t *sampled, size_t used)
{
    int32_t                 i;
    vlm_logprobs_t          entry;
    const vlm_tokenizer_t  *tok;

    tok = vlm_model_tokenizer(vlm_engine_model(s->engine));

    piece_token(tok, sampled->id, sampled->logprob, &entry.token);

    for (i = 0; i < sampled->ntop; i++) {
        piece_token(tok, sampled->top_id[i], sampled->top_logprob[i],
                    &entry.top[i]);
    }

    entry.ntop = (uint32_t) i;

    return vlm_logprobs_append(s->logprobs, sizeof(s->logprobs), used,
                               &entry);
}


/*
 * Adds the log probabilities of tokens whose texts the piece has room for,
 * and ends it where the text of the last of them ends.  Returns their number.
 */

static uint32_t
piece_listed(vlm_server_t *s, const vlm_said_t *said,
    vlm_event_text_t *piece)
{
    size_t              used;
    uint32_t            n, text, all;
    const vlm_token_t  *t;

    text = 0;
    all = (uint32_t) (said->nlisted - said->listed_sent);

    for (n = 0; n < all; n++) {
        t = &said->tokens[said->listed_sent + n];

        if (t->length > piece->length - text) {
            break;
        }

        used = piece_entry(s, &t->sampled, piece->nlogprobs);

        if (used == piece->nlogprobs) {
            break;
        }

        piece->nlogprobs = (uint32_t) used;
        text += t->length;
    }

    s->event.logprobs = s->logprobs;

    if (n != 0) {
        piece->ntokens = n;

        if (n != all) {
            piece->length = text;
        }

    } else if (all == 0
               && said->text_sent + piece->length == said->text.len)
    {
        piece->ntokens = said->ntokens;
    }

    return n;
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
        rc = call_send(call, VLM_EVENT_CANCELLED, 0);

    } else if (call->out.result == VLM_OK) {
        ev->u.done = req->done;
        rc = call_send(call, VLM_EVENT_DONE, 0);

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

        rc = call_send(call, VLM_EVENT_ERROR, 0);
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
    double                   each;
    vlm_buf_t                outcomes;
    const char              *result;
    const vlm_req_t         *req;
    const vlm_event_done_t  *d;

    req = call->req;
    d = &req->done;
    each = 0;

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

    if (d->completion_tokens > 1) {
        each = (d->total_us - d->first_token_us) / 1e3
               / (d->completion_tokens - 1);
    }

    memset(&outcomes, 0, sizeof(outcomes));
    vlm_cache_outcomes(d, &outcomes);

    vlm_log(VLM_LOG_INFO, "request %s: %s, prompt %u (cached %u, images %u "
            "in %u%s%s), completion %u, receive %.1f ms, queue %.1f, decode "
            "%.1f, encode %.1f, cache %.1f, prefill %.1f, first token %.1f, "
            "per token %.2f, total %.1f",
            req->id, result, d->prompt_tokens, d->cached_tokens,
            d->image_tokens, d->noutcomes, outcomes.len != 0 ? ": " : "",
            outcomes.len != 0 ? outcomes.data : "", d->completion_tokens,
            d->receive_us / 1e3, d->queue_us / 1e3, d->decode_us / 1e3,
            d->encode_us / 1e3, d->cache_us / 1e3, d->prefill_us / 1e3,
            d->first_token_us / 1e3, each, d->total_us / 1e3);

    vlm_buf_free(&outcomes);
}
