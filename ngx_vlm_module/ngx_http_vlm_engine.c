
/*
 * The connection of a worker process to an engine: opened by the first
 * request, kept, and opened again after a failure, with a growing delay or
 * when a request wants it.
 *
 * Its descriptors belong to vlm_worker_t, which closes them; here they are
 * only watched.  The eventfd is shared with the engine, so closing it would
 * not take it out of epoll's set: it is always deleted explicitly.
 */


#include "ngx_http_vlm_module.h"


#define NGX_HTTP_VLM_MIN_DELAY      100
#define NGX_HTTP_VLM_MAX_DELAY      5000

/* an engine that accepts but does not answer is given up after so long */
#define NGX_HTTP_VLM_HANDSHAKE      5000


static ngx_int_t ngx_http_vlm_start(ngx_http_vlm_main_conf_t *vmcf,
    const char **what);
static ngx_int_t ngx_http_vlm_connect(ngx_http_vlm_engine_t *engine);
static ngx_int_t ngx_http_vlm_handshake(ngx_http_vlm_engine_t *engine);
static ngx_int_t ngx_http_vlm_connected(ngx_http_vlm_engine_t *engine);
static void ngx_http_vlm_not_connected(ngx_http_vlm_engine_t *engine,
    ngx_uint_t version);
static void ngx_http_vlm_retry(ngx_http_vlm_engine_t *engine);
static void ngx_http_vlm_engine_timer(ngx_event_t *ev);
static void ngx_http_vlm_socket_event(ngx_event_t *ev);
static void ngx_http_vlm_wake_waiting(ngx_http_vlm_engine_t *engine);
static void ngx_http_vlm_wake_all(ngx_http_vlm_main_conf_t *vmcf);
static void ngx_http_vlm_disconnect(ngx_http_vlm_engine_t *engine);
static ngx_connection_t *ngx_http_vlm_watch(ngx_http_vlm_engine_t *engine,
    ngx_socket_t fd, ngx_event_handler_pt handler);
static void ngx_http_vlm_unwatch(ngx_connection_t **pc);


ngx_int_t
ngx_http_vlm_engine_get(ngx_http_vlm_engine_t *engine)
{
    if (engine->state == NGX_HTTP_VLM_UP) {
        return NGX_OK;
    }

    if (engine->state == NGX_HTTP_VLM_CONNECTING) {
        return NGX_AGAIN;
    }

    /*
     * It was tried a moment ago, in vain; but whether somebody listens by now
     * costs little to find out.
     */

    if (engine->refused
        && engine->channel.err != ECONNREFUSED
        && engine->channel.err != ENOENT
        && ngx_current_msec - engine->tried < NGX_HTTP_VLM_MIN_DELAY)
    {
        return NGX_ERROR;
    }

    return ngx_http_vlm_connect(engine);
}


static ngx_int_t
ngx_http_vlm_start(ngx_http_vlm_main_conf_t *vmcf, const char **what)
{
    if (vmcf->started) {
        return NGX_OK;
    }

    if (vlm_arena_create(&vmcf->arena, vmcf->arena_size, what) == -1) {
        return NGX_ERROR;
    }

    vmcf->started = 1;

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "vlm arena of %O bytes", vmcf->arena_size);

    return NGX_OK;
}


static ngx_int_t
ngx_http_vlm_connect(ngx_http_vlm_engine_t *engine)
{
    int                        rc;
    const char                *what;
    vlm_worker_conf_t          conf;
    ngx_http_vlm_main_conf_t  *vmcf;

    vmcf = engine->main;

    engine->tried = ngx_current_msec;

    if (engine->timer.timer_set) {
        ngx_del_timer(&engine->timer);
    }

    engine->timer.handler = ngx_http_vlm_engine_timer;
    engine->timer.data = engine;
    engine->timer.log = ngx_cycle->log;
    engine->timer.cancelable = 1;

    if (ngx_http_vlm_start(vmcf, &what) != NGX_OK) {
        engine->channel.err = ngx_errno;
        ngx_snprintf((u_char *) engine->channel.why,
                     sizeof(engine->channel.why),
                     "%s of the arena of %O bytes failed: %s%Z", what,
                     vmcf->arena_size, strerror(engine->channel.err));
        goto failed;
    }

    if (ngx_http_vlm_slots_init(engine) != NGX_OK) {
        engine->channel.err = NGX_ENOMEM;
        ngx_snprintf((u_char *) engine->channel.why,
                     sizeof(engine->channel.why), "no memory for %ui slots%Z",
                     vmcf->max_requests);
        goto failed;
    }

    conf.max_requests = vmcf->max_requests;
    conf.event_ring_size = NGX_HTTP_VLM_EVENT_RING;
    conf.generation = ++vmcf->generation;

    /* every slot can have its request and its cancel in the ring */

    for (conf.nsubmissions = 16;
         conf.nsubmissions < 2 * conf.max_requests;
         conf.nsubmissions *= 2)
    {
        /* void */
    }

    rc = vlm_worker_open(&engine->channel, &conf, &vmcf->arena, engine->path);

    if (rc == VLM_CHANNEL_ERROR && engine->channel.err == NGX_EAGAIN) {

        /* it is there but its backlog is full */

        engine->state = NGX_HTTP_VLM_CONNECTING;
        ngx_add_timer(&engine->timer, NGX_HTTP_VLM_MIN_DELAY);

        return NGX_AGAIN;
    }

    if (rc != VLM_CHANNEL_OK && rc != VLM_CHANNEL_AGAIN) {
        goto failed;
    }

    engine->state = NGX_HTTP_VLM_CONNECTING;

    engine->socket = ngx_http_vlm_watch(engine, engine->channel.fd,
                                        ngx_http_vlm_socket_event);
    if (engine->socket == NULL) {
        engine->channel.err = 0;
        ngx_snprintf((u_char *) engine->channel.why,
                     sizeof(engine->channel.why),
                     "no connection to watch its socket with%Z");
        goto failed;
    }

    ngx_add_timer(&engine->timer, NGX_HTTP_VLM_HANDSHAKE);

    return ngx_http_vlm_handshake(engine);

failed:

    ngx_http_vlm_not_connected(engine, 0);

    return NGX_ERROR;
}


static ngx_int_t
ngx_http_vlm_handshake(ngx_http_vlm_engine_t *engine)
{
    int  rc;

    rc = vlm_worker_handshake(&engine->channel);

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "vlm handshake with \"%V\": %d", &engine->name, rc);

    if (rc == VLM_CHANNEL_OK) {
        return ngx_http_vlm_connected(engine);
    }

    if (rc == VLM_CHANNEL_AGAIN) {

        /* the hello is sent when its descriptors are no more needed */

        if ((ngx_event_flags & NGX_USE_LEVEL_EVENT)
            && engine->socket->write->active
            && engine->channel.ring_fd == -1)
        {
            (void) ngx_del_event(engine->socket->write, NGX_WRITE_EVENT, 0);
        }

        return NGX_AGAIN;
    }

    ngx_http_vlm_not_connected(engine, rc == VLM_CHANNEL_ERROR
                                       && engine->channel.err == EPROTO);

    return NGX_ERROR;
}


static ngx_int_t
ngx_http_vlm_connected(ngx_http_vlm_engine_t *engine)
{
    ngx_uint_t  level;

    if (engine->timer.timer_set) {
        ngx_del_timer(&engine->timer);
    }

    /* its end may have come in one event with the welcome */

    if (vlm_worker_check(&engine->channel) != VLM_CHANNEL_OK) {
        ngx_http_vlm_not_connected(engine, 0);
        return NGX_ERROR;
    }

    engine->bell = ngx_http_vlm_watch(engine, engine->channel.event_fd,
                                      ngx_http_vlm_slot_events);
    if (engine->bell == NULL) {
        engine->channel.err = 0;
        ngx_snprintf((u_char *) engine->channel.why,
                     sizeof(engine->channel.why),
                     "no connection to watch its eventfd with%Z");
        ngx_http_vlm_not_connected(engine, 0);
        return NGX_ERROR;
    }

    level = engine->failures ? NGX_LOG_NOTICE : NGX_LOG_INFO;

    ngx_log_error(level, ngx_cycle->log, 0,
                  "engine \"%V\" is connected, its pid is %uD",
                  &engine->name, engine->channel.welcome.pid);

    engine->state = NGX_HTTP_VLM_UP;
    engine->failures = 0;
    engine->refused = 0;
    engine->connected = ngx_current_msec;
    engine->delay = 0;
    engine->info.nmodels = 0;

    if (engine->suspects) {
        ngx_http_vlm_watchdog_start(engine);
    }

    ngx_http_vlm_zone_set_engine(engine);

    ngx_http_vlm_wake_all(engine->main);

    /* publish that we sleep: from now on the engine rings */

    ngx_post_event(engine->bell->read, &ngx_posted_events);

    return NGX_OK;
}


static void
ngx_http_vlm_not_connected(ngx_http_vlm_engine_t *engine, ngx_uint_t version)
{
    ngx_uint_t  level;

    level = engine->failures ? NGX_LOG_INFO : NGX_LOG_ERR;

    ngx_log_error(level, ngx_cycle->log, 0,
                  "engine \"%V\" is not available: %s",
                  &engine->name, engine->channel.why);

    if (version) {
        vlm_fail(&engine->fail, NGX_HTTP_BAD_GATEWAY, "engine_version", NULL,
                 "%s", engine->channel.why);

    } else {
        vlm_fail(&engine->fail, NGX_HTTP_BAD_GATEWAY, "engine_unavailable",
                 NULL, "the engine cannot be reached");
    }

    engine->refused = 1;
    ngx_http_vlm_engine_failed(engine);

    /* nobody listens: it is not stopped but gone */

    if (engine->channel.err == ECONNREFUSED) {
        ngx_http_vlm_suspects_free(engine);
    }

    ngx_http_vlm_disconnect(engine);
    ngx_http_vlm_retry(engine);
    ngx_http_vlm_wake_waiting(engine);
}


static void
ngx_http_vlm_retry(ngx_http_vlm_engine_t *engine)
{
    engine->failures++;

    if (ngx_exiting || ngx_terminate) {
        return;
    }

    engine->delay = engine->delay ? ngx_min(engine->delay * 2,
                                            NGX_HTTP_VLM_MAX_DELAY)
                                  : NGX_HTTP_VLM_MIN_DELAY;

    ngx_add_timer(&engine->timer,
                  engine->delay + ngx_random() % (engine->delay / 4));
}


static void
ngx_http_vlm_engine_timer(ngx_event_t *ev)
{
    ngx_http_vlm_engine_t  *engine;

    engine = ev->data;

    if (engine->state == NGX_HTTP_VLM_CONNECTING && engine->socket) {
        engine->channel.err = NGX_ETIMEDOUT;
        ngx_snprintf((u_char *) engine->channel.why,
                     sizeof(engine->channel.why),
                     "it did not answer within %d ms%Z",
                     NGX_HTTP_VLM_HANDSHAKE);
        ngx_http_vlm_not_connected(engine, 0);
        return;
    }

    if (engine->state == NGX_HTTP_VLM_UP) {
        ngx_http_vlm_watchdog(engine);
        return;
    }

    if (ngx_exiting && ngx_queue_empty(&engine->waiting)) {
        return;
    }

    (void) ngx_http_vlm_connect(engine);
}


static void
ngx_http_vlm_socket_event(ngx_event_t *ev)
{
    u_char                  why[sizeof(((vlm_worker_t *) NULL)->why)];
    ngx_connection_t       *c;
    ngx_http_vlm_engine_t  *engine;

    c = ev->data;
    engine = c->data;

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ev->log, 0,
                   "vlm socket of \"%V\", write:%d",
                   &engine->name, ev->write);

    if (engine->state == NGX_HTTP_VLM_CONNECTING) {

        /* ready is left unset, so that the events stay as they are */

        c->read->ready = 0;
        c->write->ready = 0;

        (void) ngx_http_vlm_handshake(engine);
        return;
    }

    if (ev->write) {
        if ((ngx_event_flags & NGX_USE_LEVEL_EVENT) && ev->active) {
            (void) ngx_del_event(ev, NGX_WRITE_EVENT, 0);
        }

        return;
    }

    ev->ready = 0;

    if (vlm_worker_check(&engine->channel) != VLM_CHANNEL_OK) {
        ngx_cpystrn(why, (u_char *) engine->channel.why, sizeof(why));

        ngx_http_vlm_slots_drain(engine);
        ngx_http_vlm_engine_broken(engine, (char *) why);
    }
}


/* the channel is of no use any more; "what" is NULL: see channel.why */

void
ngx_http_vlm_engine_broken(ngx_http_vlm_engine_t *engine, const char *what)
{
    if (what == NULL) {
        what = engine->channel.why;
    }

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "engine \"%V\" is lost with %ui requests: %s",
                  &engine->name, engine->nslots, what);

    vlm_fail(&engine->fail, NGX_HTTP_BAD_GATEWAY, "engine_unavailable", NULL,
             "the engine cannot be reached");

    ngx_http_vlm_engine_failed(engine);
    ngx_http_vlm_slots_lost(engine);
    ngx_http_vlm_disconnect(engine);
    ngx_http_vlm_retry(engine);
}


/*
 * Those who wait look for themselves whether the engine is up; links are cut
 * here, a context that still has to wait will be queued again.
 */

static void
ngx_http_vlm_wake_waiting(ngx_http_vlm_engine_t *engine)
{
    ngx_queue_t         *q;
    ngx_http_vlm_ctx_t  *ctx;

    while (!ngx_queue_empty(&engine->waiting)) {
        q = ngx_queue_head(&engine->waiting);
        ngx_queue_remove(q);

        ctx = ngx_queue_data(q, ngx_http_vlm_ctx_t, queue);
        ctx->queued = 0;

        ngx_http_vlm_wake(ctx);
    }
}


/* one that waits for an engine may as well go to another of its group */

static void
ngx_http_vlm_wake_all(ngx_http_vlm_main_conf_t *vmcf)
{
    ngx_uint_t               i;
    ngx_http_vlm_engine_t  **engines;

    engines = vmcf->engines.elts;

    for (i = 0; i < vmcf->engines.nelts; i++) {
        ngx_http_vlm_wake_waiting(engines[i]);
    }
}


void
ngx_http_vlm_engine_exit(ngx_http_vlm_engine_t *engine)
{
    if (engine->timer.timer_set) {
        ngx_del_timer(&engine->timer);
    }

    ngx_http_vlm_slots_lost(engine);
    ngx_http_vlm_suspects_free(engine);
    ngx_http_vlm_disconnect(engine);

    if (engine->slots) {
        ngx_free(engine->slots);
        engine->slots = NULL;
    }
}


static void
ngx_http_vlm_disconnect(ngx_http_vlm_engine_t *engine)
{
    engine->state = NGX_HTTP_VLM_DOWN;

    if (!ngx_exiting && !ngx_terminate) {
        ngx_http_vlm_zone_set_engine(engine);
    }

    ngx_http_vlm_unwatch(&engine->socket);
    ngx_http_vlm_unwatch(&engine->bell);

    vlm_worker_close(&engine->channel);
}


/* as ngx_add_channel_event(), and both directions for a socket */

static ngx_connection_t *
ngx_http_vlm_watch(ngx_http_vlm_engine_t *engine, ngx_socket_t fd,
    ngx_event_handler_pt handler)
{
    ngx_int_t          rc;
    ngx_event_t       *rev, *wev;
    ngx_connection_t  *c;

    c = ngx_get_connection(fd, ngx_cycle->log);
    if (c == NULL) {
        return NULL;
    }

    rev = c->read;
    wev = c->write;

    c->data = engine;
    c->pool = ngx_cycle->pool;

    rev->log = ngx_cycle->log;
    wev->log = ngx_cycle->log;

    rev->channel = 1;
    wev->channel = 1;

    rev->handler = handler;
    wev->handler = handler;

    rc = ngx_handle_read_event(rev, 0);

    if (rc == NGX_OK && handler == ngx_http_vlm_socket_event) {
        rc = ngx_handle_write_event(wev, 0);
    }

    if (rc != NGX_OK) {
        ngx_http_vlm_unwatch(&c);
        return NULL;
    }

    return c;
}


static void
ngx_http_vlm_unwatch(ngx_connection_t **pc)
{
    ngx_connection_t  *c;

    c = *pc;

    if (c == NULL) {
        return;
    }

    *pc = NULL;

    if (c->read->active || c->read->disabled) {
        (void) ngx_del_event(c->read, NGX_READ_EVENT, 0);
    }

    if (c->write->active || c->write->disabled) {
        (void) ngx_del_event(c->write, NGX_WRITE_EVENT, 0);
    }

    if (c->read->posted) {
        ngx_delete_posted_event(c->read);
    }

    if (c->write->posted) {
        ngx_delete_posted_event(c->write);
    }

    c->read->closed = 1;
    c->write->closed = 1;

    ngx_free_connection(c);

    c->fd = (ngx_socket_t) -1;
}
