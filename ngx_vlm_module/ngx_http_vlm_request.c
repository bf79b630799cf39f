
/*
 * The life of a request: checks of its header, admission before the body is
 * read, waiting for an engine, and everything that can end it.
 */


#include "ngx_http_vlm_module.h"


static ngx_int_t ngx_http_vlm_init_ctx(ngx_http_request_t *r,
    ngx_http_vlm_ctx_t **pctx);
static u_char *ngx_http_vlm_log_request(ngx_http_request_t *r,
    ngx_http_request_t *sr, u_char *buf, size_t len);
static ngx_int_t ngx_http_vlm_check_header(ngx_http_vlm_ctx_t *ctx);
static ngx_int_t ngx_http_vlm_admit(ngx_http_vlm_ctx_t *ctx);
static void ngx_http_vlm_too_many(ngx_http_vlm_ctx_t *ctx);
static ngx_int_t ngx_http_vlm_read_body(ngx_http_vlm_ctx_t *ctx);
static ngx_int_t ngx_http_vlm_wait(ngx_http_vlm_ctx_t *ctx);
static void ngx_http_vlm_resume(ngx_http_vlm_ctx_t *ctx);
static ngx_int_t ngx_http_vlm_submit_now(ngx_http_vlm_ctx_t *ctx);
static void ngx_http_vlm_wake_handler(ngx_event_t *ev);
static ngx_uint_t ngx_http_vlm_pings(ngx_http_vlm_output_t *out);
static void ngx_http_vlm_timer_handler(ngx_event_t *ev);
static void ngx_http_vlm_answer_timer(ngx_http_vlm_ctx_t *ctx);
static void ngx_http_vlm_cleanup(void *data);


ngx_int_t
ngx_http_vlm_handler(ngx_http_request_t *r)
{
    ngx_int_t            rc;
    ngx_http_vlm_ctx_t  *ctx;

    if (r != r->main) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "\"vlm_pass\" cannot serve a subrequest");
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ngx_http_vlm_init_ctx(r, &ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_vlm_check_header(ctx);

    if (rc == NGX_OK) {
        rc = ngx_http_vlm_admit(ctx);
    }

    if (rc == NGX_AGAIN) {
        r->main->count++;
        return ngx_http_vlm_wait(ctx);
    }

    if (rc != NGX_OK) {
        rc = ngx_http_vlm_error(ctx);
        ngx_http_vlm_close(ctx);
        return rc;
    }

    rc = ngx_http_vlm_read_body(ctx);

    return (rc >= NGX_HTTP_SPECIAL_RESPONSE) ? rc : NGX_DONE;
}


static ngx_int_t
ngx_http_vlm_init_ctx(ngx_http_request_t *r, ngx_http_vlm_ctx_t **pctx)
{
    ngx_str_t                   name;
    ngx_http_cleanup_t         *cln;
    ngx_http_vlm_ctx_t         *ctx;
    ngx_http_variable_value_t  *vv;

    ctx = ngx_pcalloc(r->pool, sizeof(ngx_http_vlm_ctx_t));
    if (ctx == NULL) {
        return NGX_ERROR;
    }

    cln = ngx_http_cleanup_add(r, 0);
    if (cln == NULL) {
        return NGX_ERROR;
    }

    cln->handler = ngx_http_vlm_cleanup;
    cln->data = ctx;

    ctx->request = r;
    ctx->main = ngx_http_get_module_main_conf(r, ngx_http_vlm_module);
    ctx->conf = ngx_http_get_module_loc_conf(r, ngx_http_vlm_module);
    ctx->engine = ((ngx_http_vlm_server_t *)
                   ctx->conf->group->servers.elts)->engine;
    ctx->received = ngx_current_msec;

    /* the chunked filter counts in content_length_n what it has seen */

    ctx->length = r->headers_in.chunked ? -1 : r->headers_in.content_length_n;

    if (ctx->length < 0 && !r->headers_in.chunked) {
        ctx->length = 0;
    }

    ctx->wake.handler = ngx_http_vlm_wake_handler;
    ctx->wake.data = ctx;
    ctx->wake.log = r->connection->log;

    ctx->timer.handler = ngx_http_vlm_timer_handler;
    ctx->timer.data = ctx;
    ctx->timer.log = r->connection->log;

    ngx_http_set_ctx(r, ctx, ngx_http_vlm_module);
    ngx_http_vlm_count_start(ctx);

    ngx_str_set(&name, "request_id");

    vv = ngx_http_get_variable(r, &name, ngx_hash_key(name.data, name.len));
    if (vv == NULL) {
        return NGX_ERROR;
    }

    if (!vv->not_found) {
        ctx->request_id.len = ngx_min(vv->len, VLM_MAX_REQUEST_ID);
        ctx->request_id.data = vv->data;
    }

    ctx->log_handler = r->log_handler;
    r->log_handler = ngx_http_vlm_log_request;

    *pctx = ctx;

    return NGX_OK;
}


/* adds the id, by which the engine's log can be searched, to every line */

static u_char *
ngx_http_vlm_log_request(ngx_http_request_t *r, ngx_http_request_t *sr,
    u_char *buf, size_t len)
{
    u_char              *p;
    ngx_http_vlm_ctx_t  *ctx;

    /* not there after an internal redirect */

    ctx = ngx_http_get_module_ctx(r, ngx_http_vlm_module);

    if (ctx == NULL) {
        return buf;
    }

    p = ctx->log_handler(r, sr, buf, len);

    return ngx_snprintf(p, len - (p - buf), ", request id: \"%V\"",
                        &ctx->request_id);
}


/* what the header alone can tell: NGX_OK, or NGX_ERROR and ctx->fail */

static ngx_int_t
ngx_http_vlm_check_header(ngx_http_vlm_ctx_t *ctx)
{
    ngx_str_t            type;
    ngx_http_request_t  *r;

    r = ctx->request;

    if (r->method != NGX_HTTP_POST) {
        vlm_fail(&ctx->fail, NGX_HTTP_NOT_ALLOWED, "method_not_allowed", NULL,
                 "only POST is possible here");
        return NGX_ERROR;
    }

    ngx_str_null(&type);

    if (r->headers_in.content_type) {
        type = r->headers_in.content_type->value;
    }

    if (vlm_multipart_content_type((char *) type.data, type.len,
                                   (char *) ctx->boundary, &ctx->boundary_len,
                                   &ctx->fail)
        != 0)
    {
        return NGX_ERROR;
    }

    if (ctx->length > (off_t) ctx->conf->max_request_size) {
        vlm_fail(&ctx->fail, NGX_HTTP_REQUEST_ENTITY_TOO_LARGE,
                 "payload_too_large", NULL,
                 "the request of %lld bytes is larger than %llu bytes",
                 (long long) ctx->length,
                 (unsigned long long) ctx->conf->max_request_size);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/*
 * Everything that could refuse the request is asked before its body is read,
 * so that a client that expects "100 Continue" need not send it.  NGX_AGAIN:
 * the engine is being connected.
 */

static ngx_int_t
ngx_http_vlm_admit(ngx_http_vlm_ctx_t *ctx)
{
    ngx_int_t                  rc;
    ngx_http_vlm_main_conf_t  *vmcf;

    vmcf = ctx->main;

    rc = ngx_http_vlm_choose(ctx);

    if (rc != NGX_OK) {
        return rc;
    }

    if (vmcf->nrequests >= vmcf->max_requests
        || ngx_http_vlm_slot_take(ctx) == NULL)
    {
        ngx_http_vlm_too_many(ctx);
        return NGX_ERROR;
    }

    vmcf->nrequests++;
    ctx->counted = 1;

    return ngx_http_vlm_body_init(ctx);
}


static void
ngx_http_vlm_too_many(ngx_http_vlm_ctx_t *ctx)
{
    vlm_fail(&ctx->fail, NGX_HTTP_SERVICE_UNAVAILABLE, "too_many_requests",
             NULL, "there are too many requests now");
    ctx->fail.retry_after = 1;

    ngx_log_error(NGX_LOG_WARN, ctx->request->connection->log, 0,
                  "%ui requests are in flight, %ui of engine \"%V\", "
                  "\"vlm_max_requests\" is %ui", ctx->main->nrequests,
                  ctx->engine->nslots, &ctx->engine->name,
                  ctx->main->max_requests);
}


/* NGX_OK, NGX_AGAIN, or NGX_ERROR and ctx->fail */

ngx_int_t
ngx_http_vlm_check_engine(ngx_http_vlm_ctx_t *ctx)
{
    ngx_int_t               rc;
    vlm_gauges_t            gauges;
    ngx_http_vlm_engine_t  *engine;

    engine = ctx->engine;

    rc = ngx_http_vlm_engine_get(engine);

    if (rc == NGX_ERROR) {
        ctx->fail = engine->fail;

        ngx_log_error(NGX_LOG_ERR, ctx->request->connection->log, 0,
                      "engine \"%V\" is not available: %s",
                      &engine->name, engine->channel.why);
    }

    if (rc != NGX_OK) {
        return rc;
    }

    (void) vlm_worker_info(&engine->channel, &engine->info);

    ngx_http_vlm_zone_set_engine(engine);

    vlm_worker_gauges(&engine->channel, &gauges);

    switch (vlm_worker_state(&engine->channel)) {

    case VLM_STATE_READY:
        break;

    case VLM_STATE_LOADING:
        vlm_fail(&ctx->fail, NGX_HTTP_SERVICE_UNAVAILABLE, "engine_loading",
                 NULL, "the engine is loading its model");
        goto later;

    case VLM_STATE_DRAINING:
        vlm_fail(&ctx->fail, NGX_HTTP_SERVICE_UNAVAILABLE, "engine_draining",
                 NULL, "the engine is about to stop");
        goto later;

    default:
        vlm_fail(&ctx->fail, NGX_HTTP_BAD_GATEWAY, "engine_failed", NULL,
                 "the engine has failed");
        return NGX_ERROR;
    }

    if (engine->info.max_queue && gauges.queued >= engine->info.max_queue) {
        vlm_fail(&ctx->fail, NGX_HTTP_SERVICE_UNAVAILABLE, "queue_full", NULL,
                 "the queue of the engine is full, %u requests wait",
                 gauges.queued);
        goto later;
    }

    return NGX_OK;

later:

    ctx->fail.retry_after = gauges.retry_after ? gauges.retry_after : 1;

    return NGX_ERROR;
}


static ngx_int_t
ngx_http_vlm_read_body(ngx_http_vlm_ctx_t *ctx)
{
    ngx_http_request_t  *r;

    r = ctx->request;

    ctx->state = NGX_HTTP_VLM_BODY;

    ngx_http_vlm_upload_start(ctx);

    r->request_body_no_buffering = 1;

    return ngx_http_read_client_request_body(r, ngx_http_vlm_body_start);
}


/* for the engine; the caller holds a reference to the request */

static ngx_int_t
ngx_http_vlm_wait(ngx_http_vlm_ctx_t *ctx)
{
    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "vlm wait for engine \"%V\"", &ctx->engine->name);

    ngx_queue_insert_tail(&ctx->engine->waiting, &ctx->queue);
    ctx->queued = 1;

    if (ctx->deadline == 0) {
        ctx->deadline = ngx_current_msec + ctx->conf->connect_timeout;
    }

    ngx_http_vlm_timer(ctx);
    ngx_http_vlm_watch_client(ctx);

    return NGX_DONE;
}


/* the engine may be there now */

static void
ngx_http_vlm_resume(ngx_http_vlm_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = ctx->request;

    ngx_http_vlm_unqueue(ctx);

    rc = ctx->fail.status ? NGX_ERROR : ngx_http_vlm_admit(ctx);

    if (rc == NGX_AGAIN) {
        (void) ngx_http_vlm_wait(ctx);
        return;
    }

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    ctx->deadline = 0;

    if (rc != NGX_OK) {
        ngx_http_vlm_finalize(ctx, ngx_http_vlm_error(ctx));
        return;
    }

    /* from here on as in the content handler */

    rc = ngx_http_vlm_read_body(ctx);

    ngx_http_finalize_request(r, (rc >= NGX_HTTP_SPECIAL_RESPONSE) ? rc
                                                                   : NGX_DONE);
}


/* the body is complete and valid; after it the request may be gone */

void
ngx_http_vlm_submit(ngx_http_vlm_ctx_t *ctx)
{
    ngx_int_t  rc;

    ctx->state = NGX_HTTP_VLM_SUBMIT;

    ngx_http_vlm_unqueue(ctx);

    rc = ctx->fail.status ? NGX_ERROR : ngx_http_vlm_output_init(ctx);

    if (rc == NGX_OK) {
        rc = ngx_http_vlm_submit_now(ctx);
    }

    if (rc == NGX_AGAIN) {
        (void) ngx_http_vlm_wait(ctx);
        return;
    }

    if (rc != NGX_OK) {
        ngx_http_vlm_finalize(ctx, ngx_http_vlm_error(ctx));
        return;
    }

    ctx->state = NGX_HTTP_VLM_ANSWER;
    ctx->heard = ngx_current_msec;

    ngx_http_vlm_timer(ctx);
    ngx_http_vlm_watch_client(ctx);
}


/* NGX_OK; NGX_AGAIN: the engine is being connected; NGX_ERROR and ctx->fail */

static ngx_int_t
ngx_http_vlm_submit_now(ngx_http_vlm_ctx_t *ctx)
{
    uint32_t   length;
    uint64_t   offset;
    ngx_int_t  rc;

    ngx_http_vlm_place(ctx);

    if (ctx->engine->state != NGX_HTTP_VLM_UP
        || ngx_http_vlm_left_out(ctx))
    {
        rc = ngx_http_vlm_choose(ctx);

        if (rc != NGX_OK) {
            return rc;
        }
    }

    /* the slot is lost if the engine was */

    if (ctx->slot == NULL && ngx_http_vlm_slot_take(ctx) == NULL) {
        ngx_http_vlm_too_many(ctx);
        return NGX_ERROR;
    }

    if (ngx_http_vlm_record(ctx, &offset, &length) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ngx_http_vlm_slot_submit(ctx, offset, length) != NGX_OK) {
        vlm_fail(&ctx->fail, NGX_HTTP_BAD_GATEWAY, "engine_error", NULL,
                 "the engine does not take the request");
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* something concerns the request: it is looked at in an event of its own */

void
ngx_http_vlm_wake(ngx_http_vlm_ctx_t *ctx)
{
    ngx_post_event(&ctx->wake, &ngx_posted_events);
}


static void
ngx_http_vlm_wake_handler(ngx_event_t *ev)
{
    ngx_connection_t    *c;
    ngx_http_vlm_ctx_t  *ctx;
    ngx_http_request_t  *r;

    ctx = ev->data;
    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, c->log, 0,
                   "vlm wake, state:%d", ctx->state);

    switch (ctx->state) {

    case NGX_HTTP_VLM_START:
        ngx_http_vlm_resume(ctx);
        break;

    case NGX_HTTP_VLM_BODY:
    case NGX_HTTP_VLM_STARVED:
        ngx_http_vlm_body_pump(ctx);
        break;

    case NGX_HTTP_VLM_SUBMIT:
        ngx_http_vlm_submit(ctx);
        break;

    case NGX_HTTP_VLM_ANSWER:
        ngx_http_vlm_output(ctx);
        break;

    case NGX_HTTP_VLM_CLOSED:
        break;
    }

    ngx_http_run_posted_requests(c);
}


static ngx_uint_t
ngx_http_vlm_pings(ngx_http_vlm_output_t *out)
{
    return out->stream && out->type == VLM_ANSWER_SSE && out->left_queue;
}


/* one timer for whatever the request waits for; it keeps the worker alive */

void
ngx_http_vlm_timer(ngx_http_vlm_ctx_t *ctx)
{
    ngx_msec_t              end, ping;
    ngx_msec_int_t          rest;
    ngx_http_vlm_output_t  *out;

    if (ctx->state == NGX_HTTP_VLM_ANSWER) {
        out = &ctx->output;
        end = ctx->heard + ctx->conf->read_timeout;

        if (ngx_http_vlm_pings(out)) {
            ping = out->sent + ctx->conf->ping_interval;

            if ((ngx_msec_int_t) (ping - end) < 0) {
                end = ping;
            }
        }

    } else {
        end = ctx->deadline;
    }

    rest = (ngx_msec_int_t) (end - ngx_current_msec);

    ngx_add_timer(&ctx->timer, (ngx_msec_t) ngx_max(rest, 1));
}


static void
ngx_http_vlm_timer_handler(ngx_event_t *ev)
{
    ngx_connection_t    *c;
    ngx_http_vlm_ctx_t  *ctx;
    ngx_http_request_t  *r;

    ctx = ev->data;
    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, c->log, 0,
                   "vlm timer, state:%d", ctx->state);

    switch (ctx->state) {

    case NGX_HTTP_VLM_START:
        vlm_fail(&ctx->fail, NGX_HTTP_BAD_GATEWAY, "engine_unavailable", NULL,
                 "the engine cannot be reached");
        ngx_log_error(NGX_LOG_ERR, c->log, NGX_ETIMEDOUT,
                      "engine \"%V\" did not connect within %M ms",
                      &ctx->engine->name, ctx->conf->connect_timeout);
        ngx_http_vlm_resume(ctx);
        break;

    case NGX_HTTP_VLM_SUBMIT:
        vlm_fail(&ctx->fail, NGX_HTTP_BAD_GATEWAY, "engine_unavailable", NULL,
                 "the engine cannot be reached");
        ngx_http_vlm_submit(ctx);
        break;

    case NGX_HTTP_VLM_STARVED:
        vlm_fail(&ctx->fail, NGX_HTTP_SERVICE_UNAVAILABLE, "arena_full", NULL,
                 "there was no room for the upload within %llu ms",
                 (unsigned long long) ctx->conf->queue_timeout);
        ctx->fail.retry_after = 1;
        ngx_http_vlm_body_pump(ctx);
        break;

    case NGX_HTTP_VLM_ANSWER:
        ngx_http_vlm_answer_timer(ctx);
        break;

    default:
        break;
    }

    ngx_http_run_posted_requests(c);
}


static void
ngx_http_vlm_answer_timer(ngx_http_vlm_ctx_t *ctx)
{
    ngx_msec_t              now;
    ngx_http_vlm_output_t  *out;

    now = ngx_current_msec;
    out = &ctx->output;

    if (now - ctx->heard >= ctx->conf->read_timeout) {

        vlm_fail(&ctx->fail, NGX_HTTP_GATEWAY_TIME_OUT, "engine_timeout", NULL,
                 "the engine said nothing for %llu ms",
                 (unsigned long long) ctx->conf->read_timeout);

        ngx_log_error(NGX_LOG_ERR, ctx->request->connection->log,
                      NGX_ETIMEDOUT,
                      "engine \"%V\" said nothing for %M ms after %uD tokens",
                      &ctx->engine->name, ctx->conf->read_timeout,
                      ctx->ntokens);

        ngx_http_vlm_engine_failed(ctx->engine);

        ngx_http_vlm_slot_leave(ctx);
        ngx_http_vlm_output(ctx);
        return;
    }

    /* the engine may have reported since the timer was set */

    if (ngx_http_vlm_pings(out)
        && now - out->sent >= ctx->conf->ping_interval)
    {
        if (out->reported) {
            out->reported = 0;
            out->ping = 1;
        }

        out->sent = now;
    }

    ngx_http_vlm_timer(ctx);

    if (out->ping) {
        ngx_http_vlm_output(ctx);
    }
}


void
ngx_http_vlm_finalize(ngx_http_vlm_ctx_t *ctx, ngx_int_t rc)
{
    ngx_http_request_t  *r;

    r = ctx->request;

    ngx_http_vlm_close(ctx);

    ngx_http_finalize_request(r, rc);
}


static void
ngx_http_vlm_cleanup(void *data)
{
    ngx_http_vlm_close(data);
}


/* cuts every link to the request but its own; may be called again */

void
ngx_http_vlm_close(ngx_http_vlm_ctx_t *ctx)
{
    if (ctx->state == NGX_HTTP_VLM_CLOSED) {
        return;
    }

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "vlm close, state:%d, slot:%p", ctx->state, ctx->slot);

    ctx->state = NGX_HTTP_VLM_CLOSED;

    if (ctx->log_handler != NULL) {
        ctx->request->log_handler = ctx->log_handler;
    }

    if (ctx->status == 0) {
        ctx->status = ctx->fail.status;
    }

    ngx_http_vlm_count_end(ctx);

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    ngx_http_vlm_unqueue(ctx);
    ngx_http_vlm_slot_leave(ctx);
    ngx_http_vlm_upload_end(ctx);
    ngx_http_vlm_hold_free(ctx->main, &ctx->hold);
    ngx_http_vlm_body_free(ctx);

    if (ctx->counted) {
        ctx->counted = 0;
        ctx->main->nrequests--;
    }

    if (ctx->wake.posted) {
        ngx_delete_posted_event(&ctx->wake);
    }
}


void
ngx_http_vlm_unqueue(ngx_http_vlm_ctx_t *ctx)
{
    if (ctx->queued) {
        ngx_queue_remove(&ctx->queue);
        ctx->queued = 0;
    }
}
