
/*
 * An engine that does not move any more while it has requests: it is stopped
 * or caught in a loop, and its socket stays open.  Its requests end by their
 * own timeouts, but their slots and regions would wait for it for ever, so
 * the connection is given up.  So it is if the engine moves but does not
 * acknowledge a cancel.
 *
 * Should the engine go on later, it may still look at regions of its old
 * requests before it finds the connection closed.  Whatever it read there it
 * would keep under the digest of the picture that lay there before: they are
 * used again only when it is gone, or some time after it came back.
 */


#include "ngx_http_vlm_module.h"


#define NGX_HTTP_VLM_MAX_LOOK  5000


static ngx_uint_t ngx_http_vlm_engine_moved(ngx_http_vlm_engine_t *engine);
static ngx_uint_t ngx_http_vlm_engine_deaf(ngx_http_vlm_engine_t *engine);
static void ngx_http_vlm_watchdog_timer(ngx_http_vlm_engine_t *engine);


/* the engine has been given something to do; it is up */

void
ngx_http_vlm_watchdog_start(ngx_http_vlm_engine_t *engine)
{
    if (engine->timer.timer_set) {
        return;
    }

    (void) ngx_http_vlm_engine_moved(engine);

    engine->moved = ngx_current_msec;

    ngx_http_vlm_watchdog_timer(engine);
}


/* the timer of an engine that is up */

void
ngx_http_vlm_watchdog(ngx_http_vlm_engine_t *engine)
{
    u_char      what[80];
    ngx_msec_t  now;

    now = ngx_current_msec;

    if (ngx_http_vlm_engine_moved(engine)) {
        engine->moved = now;
    }

    if (engine->nslots && now - engine->moved >= engine->patience) {

        ngx_snprintf(what, sizeof(what), "it did not move for %M ms%Z",
                     now - engine->moved);

        engine->hung = 1;
        ngx_http_vlm_engine_broken(engine, (char *) what);
        engine->hung = 0;

        return;
    }

    if (ngx_http_vlm_engine_deaf(engine)) {

        ngx_snprintf(what, sizeof(what),
                     "it did not acknowledge a cancel within %M ms%Z",
                     engine->patience);

        engine->deaf = 1;
        ngx_http_vlm_engine_broken(engine, (char *) what);
        engine->deaf = 0;

        return;
    }

    if (engine->suspects && now - engine->connected >= engine->patience) {
        ngx_http_vlm_suspects_free(engine);
    }

    if (engine->nslots || engine->suspects) {
        ngx_http_vlm_watchdog_timer(engine);
    }
}


static ngx_uint_t
ngx_http_vlm_engine_moved(ngx_http_vlm_engine_t *engine)
{
    uint64_t      beat;
    vlm_gauges_t  gauges;

    vlm_worker_gauges(&engine->channel, &gauges);

    beat = engine->heartbeat;
    engine->heartbeat = gauges.heartbeat;

    return beat != gauges.heartbeat;
}


/*
 * The acknowledgement may be in the ring already, if this process was stopped:
 * so a second look tells.
 */

static ngx_uint_t
ngx_http_vlm_engine_deaf(ngx_http_vlm_engine_t *engine)
{
    ngx_queue_t          *q;
    ngx_http_vlm_slot_t  *slot;

    if (ngx_queue_empty(&engine->cancelled)) {
        return 0;
    }

    q = ngx_queue_head(&engine->cancelled);
    slot = ngx_queue_data(q, ngx_http_vlm_slot_t, queue);

    if (slot->overdue) {
        return 1;
    }

    slot->overdue = (ngx_current_msec - slot->cancelled >= engine->patience);

    return 0;
}


static void
ngx_http_vlm_watchdog_timer(ngx_http_vlm_engine_t *engine)
{
    ngx_msec_t  look;

    look = ngx_min(engine->patience / 4 + 1, NGX_HTTP_VLM_MAX_LOOK);

    ngx_add_timer(&engine->timer, look);
}


/* regions that the engine may still read, though nobody waits for it */

void
ngx_http_vlm_suspect(ngx_http_vlm_engine_t *engine,
    ngx_http_vlm_hold_t **hold)
{
    ngx_http_vlm_hold_t  *h;

    h = *hold;

    if (h == NULL) {
        return;
    }

    *hold = NULL;

    /* uploads that find no room must not wait for these */

    if (h->complete) {
        h->complete = 0;
        engine->main->nheld--;
    }

    h->next = engine->suspects;
    engine->suspects = h;
}


void
ngx_http_vlm_suspects_free(ngx_http_vlm_engine_t *engine)
{
    ngx_http_vlm_hold_t  *h;

    while (engine->suspects) {
        h = engine->suspects;
        engine->suspects = h->next;

        ngx_http_vlm_hold_free(engine->main, &h);
    }
}
