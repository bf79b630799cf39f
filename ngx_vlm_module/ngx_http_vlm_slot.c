
/*
 * Requests on an engine's channel.  A slot outlives the interest of its
 * request: after a cancel it is kept, with the regions of the arena that the
 * engine may still read, until the engine has said its last word or is gone.
 */


#include "ngx_http_vlm_module.h"


#define NGX_HTTP_VLM_NO_SLOT  0xffffffff


static ngx_int_t ngx_http_vlm_slot_event(ngx_http_vlm_engine_t *engine,
    vlm_event_t *event);
static void ngx_http_vlm_slot_ctx_event(ngx_http_vlm_ctx_t *ctx,
    vlm_event_t *event);
static void ngx_http_vlm_slot_lost(ngx_http_vlm_engine_t *engine,
    ngx_http_vlm_ctx_t *ctx);
static void ngx_http_vlm_left_queue(ngx_http_vlm_ctx_t *ctx);
static void ngx_http_vlm_slot_free(ngx_http_vlm_engine_t *engine,
    ngx_http_vlm_slot_t *slot);


ngx_int_t
ngx_http_vlm_slots_init(ngx_http_vlm_engine_t *engine)
{
    uint32_t  i, n;

    if (engine->slots) {
        return NGX_OK;
    }

    n = engine->main->max_requests;

    engine->slots = ngx_calloc(n * sizeof(ngx_http_vlm_slot_t),
                               ngx_cycle->log);
    if (engine->slots == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < n; i++) {
        engine->slots[i].next = (i + 1 < n) ? i + 1 : NGX_HTTP_VLM_NO_SLOT;
    }

    engine->free = 0;
    ngx_queue_init(&engine->cancelled);

    return NGX_OK;
}


/* NULL: all are in use */

ngx_http_vlm_slot_t *
ngx_http_vlm_slot_take(ngx_http_vlm_ctx_t *ctx)
{
    ngx_http_vlm_slot_t    *slot;
    ngx_http_vlm_engine_t  *engine;

    engine = ctx->engine;

    if (engine->free == NGX_HTTP_VLM_NO_SLOT) {
        return NULL;
    }

    slot = &engine->slots[engine->free];
    engine->free = slot->next;
    engine->nslots++;

    slot->state = NGX_HTTP_VLM_SLOT_TAKEN;
    slot->ctx = ctx;
    ctx->slot = slot;

    if (++slot->generation == 0) {
        slot->generation = 1;
    }

    return slot;
}


static void
ngx_http_vlm_slot_free(ngx_http_vlm_engine_t *engine,
    ngx_http_vlm_slot_t *slot)
{
    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "vlm slot %uz.%uD is free",
                   (size_t) (slot - engine->slots), slot->generation);

    if (slot->ctx) {
        slot->ctx->slot = NULL;
        slot->ctx = NULL;
    }

    if (slot->state == NGX_HTTP_VLM_SLOT_CANCELLED) {
        ngx_queue_remove(&slot->queue);
    }

    slot->state = NGX_HTTP_VLM_SLOT_FREE;
    slot->next = engine->free;

    engine->free = slot - engine->slots;
    engine->nslots--;

    ngx_http_vlm_hold_free(engine->main, &slot->hold);
}


/* the regions of the request now belong to the slot */

ngx_int_t
ngx_http_vlm_slot_submit(ngx_http_vlm_ctx_t *ctx, uint64_t offset,
    uint32_t length)
{
    int                     rc;
    uint32_t                n;
    ngx_http_vlm_slot_t    *slot;
    ngx_http_vlm_engine_t  *engine;

    slot = ctx->slot;
    engine = ctx->engine;
    n = slot - engine->slots;

    rc = vlm_worker_submit(&engine->channel, n, slot->generation, offset,
                           length);

    ngx_log_debug4(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "vlm submit to slot %uD.%uD, %uD bytes: %d",
                   n, slot->generation, length, rc);

    if (rc != VLM_CHANNEL_OK) {
        return (rc == VLM_CHANNEL_AGAIN) ? NGX_AGAIN : NGX_ERROR;
    }

    slot->state = NGX_HTTP_VLM_SLOT_ACTIVE;
    slot->hold = ctx->hold;
    ctx->hold = NULL;

    ngx_http_vlm_watchdog_start(engine);

    return NGX_OK;
}


/* the request has no further interest in its slot */

void
ngx_http_vlm_slot_leave(ngx_http_vlm_ctx_t *ctx)
{
    ngx_http_vlm_slot_t    *slot;
    ngx_http_vlm_engine_t  *engine;

    slot = ctx->slot;
    engine = ctx->engine;

    if (slot == NULL) {
        return;
    }

    ctx->slot = NULL;
    slot->ctx = NULL;

    if (slot->state == NGX_HTTP_VLM_SLOT_TAKEN) {
        ngx_http_vlm_slot_free(engine, slot);
        return;
    }

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "vlm cancel of slot %uz.%uD",
                   (size_t) (slot - engine->slots), slot->generation);

    slot->state = NGX_HTTP_VLM_SLOT_CANCELLED;
    slot->cancelled = ngx_current_msec;
    slot->overdue = 0;
    ngx_queue_insert_tail(&engine->cancelled, &slot->queue);

    /*
     * The ring has room for it; an error means a damaged ring, which the next
     * event finds too, then all slots are freed.
     */

    (void) vlm_worker_cancel(&engine->channel, slot - engine->slots,
                             slot->generation);
}


/* the channel is gone: no slot is in use any more */

void
ngx_http_vlm_slots_lost(ngx_http_vlm_engine_t *engine)
{
    ngx_uint_t            i;
    ngx_http_vlm_ctx_t   *ctx;
    ngx_http_vlm_slot_t  *slot;

    if (engine->slots == NULL) {
        return;
    }

    for (i = 0; i < engine->main->max_requests && engine->nslots; i++) {
        slot = &engine->slots[i];

        if (slot->state == NGX_HTTP_VLM_SLOT_FREE) {
            continue;
        }

        ctx = slot->ctx;

        /* who has not yet submitted takes another slot then */

        if (ctx && slot->state == NGX_HTTP_VLM_SLOT_ACTIVE) {
            ngx_http_vlm_slot_lost(engine, ctx);
        }

        if (engine->hung || engine->deaf) {
            ngx_http_vlm_suspect(engine, &slot->hold);
        }

        ngx_http_vlm_slot_free(engine, slot);
    }
}


static void
ngx_http_vlm_slot_lost(ngx_http_vlm_engine_t *engine, ngx_http_vlm_ctx_t *ctx)
{
    if (engine->hung) {
        vlm_fail(&ctx->fail, NGX_HTTP_GATEWAY_TIME_OUT, "engine_timeout",
                 NULL, "the engine does not move any more");

    } else {
        vlm_fail(&ctx->fail, NGX_HTTP_BAD_GATEWAY, "engine_died", NULL,
                 "the engine was lost before the answer was complete");
    }

    ngx_http_vlm_wake(ctx);
}


/* the handler of the eventfd */

void
ngx_http_vlm_slot_events(ngx_event_t *ev)
{
    int                     rc;
    ngx_uint_t              n;
    ngx_connection_t       *c;
    ngx_http_vlm_engine_t  *engine;

    if (ev->write) {
        return;
    }

    c = ev->data;
    engine = c->data;

    ev->ready = 0;

    for (n = 0; n < NGX_HTTP_VLM_EVENT_TURN; n++) {

        rc = vlm_worker_next(&engine->channel, &engine->event);

        if (rc == VLM_CHANNEL_OK) {

            if (ngx_http_vlm_slot_event(engine, &engine->event) == NGX_BUSY) {
                break;
            }

            continue;
        }

        if (rc != VLM_CHANNEL_AGAIN) {
            ngx_http_vlm_engine_broken(engine, NULL);
            return;
        }

        if (vlm_worker_sleep(&engine->channel) == 1) {
            return;
        }
    }

    ngx_post_event(ev, &ngx_posted_next_events);
}


/* what the engine said before it left; the ring holds no more than this */

void
ngx_http_vlm_slots_drain(ngx_http_vlm_engine_t *engine)
{
    ngx_uint_t  n;

    n = NGX_HTTP_VLM_EVENT_RING / sizeof(vlm_event_header_t);

    while (n--) {

        if (vlm_worker_next(&engine->channel, &engine->event)
            != VLM_CHANNEL_OK)
        {
            return;
        }

        (void) ngx_http_vlm_slot_event(engine, &engine->event);
    }
}


/* NGX_BUSY: what has come should be sent before more is taken */

static ngx_int_t
ngx_http_vlm_slot_event(ngx_http_vlm_engine_t *engine, vlm_event_t *event)
{
    ngx_http_vlm_ctx_t   *ctx;
    ngx_http_vlm_slot_t  *slot;

    slot = &engine->slots[event->slot];

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "vlm event %ud for slot %uD.%uD",
                   (unsigned) event->type, event->slot, event->generation);

    if (slot->generation != event->generation
        || (slot->state != NGX_HTTP_VLM_SLOT_ACTIVE
            && slot->state != NGX_HTTP_VLM_SLOT_CANCELLED))
    {
        /* of an earlier request in this slot */
        return NGX_OK;
    }

    ctx = slot->ctx;

    if (ctx) {
        ngx_http_vlm_slot_ctx_event(ctx, event);
    }

    switch (event->type) {

    case VLM_EVENT_RELEASED:
        ngx_http_vlm_hold_free(engine->main, &slot->hold);
        break;

    case VLM_EVENT_DONE:
    case VLM_EVENT_ERROR:
    case VLM_EVENT_CANCELLED:
        ngx_http_vlm_slot_free(engine, slot);
        break;

    case VLM_EVENT_TEXT:
        if (slot->ctx && ngx_http_vlm_output_due(slot->ctx)) {
            return NGX_BUSY;
        }

        break;
    }

    return NGX_OK;
}


static void
ngx_http_vlm_slot_ctx_event(ngx_http_vlm_ctx_t *ctx, vlm_event_t *event)
{
    ctx->heard = ngx_current_msec;
    ctx->output.reported = 1;

    switch (event->type) {

    case VLM_EVENT_ADMITTED:
        ctx->admitted = 1;
        ctx->prompt_tokens = event->u.admitted.prompt_tokens;
        ctx->image_tokens = event->u.admitted.image_tokens;
        return;

    case VLM_EVENT_PROGRESS:
        if (event->u.progress.stage > VLM_STAGE_QUEUED) {
            ngx_http_vlm_left_queue(ctx);
        }

        return;

    case VLM_EVENT_TEXT:
        ngx_http_vlm_left_queue(ctx);
        ngx_http_vlm_count_tokens(ctx, event);
        ctx->ntokens += event->u.text.ntokens;

        ngx_http_vlm_output_text(ctx, event);
        break;

    case VLM_EVENT_FINISH:
        if (event->choice < ctx->output.nchoices) {
            ctx->output.choices[event->choice].finish = event->u.finish.reason;
        }

        if (ctx->output.nchoices == 1) {

            /* the end of the answer is on its way too */

            return;
        }

        break;

    case VLM_EVENT_DONE:
        ctx->engine->fails = 0;
        ctx->done = event->u.done;
        ctx->finished = 1;
        break;

    case VLM_EVENT_ERROR:
        ngx_http_vlm_fail_from_event(&ctx->fail, event);
        break;

    case VLM_EVENT_CANCELLED:

        /* nobody asked for it */

        vlm_fail(&ctx->fail, NGX_HTTP_BAD_GATEWAY, "engine_error", NULL,
                 "the engine gave the request up");
        break;

    default:
        return;
    }

    ngx_http_vlm_wake(ctx);
}


/* from now on there are pings */

static void
ngx_http_vlm_left_queue(ngx_http_vlm_ctx_t *ctx)
{
    ngx_http_vlm_output_t  *out;

    out = &ctx->output;

    if (out->left_queue) {
        return;
    }

    out->left_queue = 1;
    out->sent = ngx_current_msec;

    ngx_http_vlm_timer(ctx);
}
