
/* The client while it only has to listen: is it still there, can it read? */


#include "ngx_http_vlm_module.h"


static void ngx_http_vlm_read_check(ngx_http_request_t *r);
static void ngx_http_vlm_write_check(ngx_http_request_t *r);
static ngx_int_t ngx_http_vlm_client_left(ngx_http_request_t *r,
    ngx_event_t *ev);


/*
 * The client has nothing more to say: from now on its events tell whether it
 * is still there.  If it left before, that event has passed already.
 */

void
ngx_http_vlm_watch_client(ngx_http_vlm_ctx_t *ctx)
{
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    r = ctx->request;
    c = r->connection;

    r->read_event_handler = ngx_http_vlm_read_check;
    r->write_event_handler = ngx_http_vlm_write_check;

#if (NGX_HTTP_V2)
    if (r->stream) {
        return;
    }
#endif

    if (c->read->timer_set) {
        ngx_del_timer(c->read);
    }

    if ((ngx_event_flags & NGX_USE_CLEAR_EVENT) && !c->write->active) {
        (void) ngx_add_event(c->write, NGX_WRITE_EVENT, NGX_CLEAR_EVENT);
    }

    if (c->read->ready) {
        ngx_post_event(c->read, &ngx_posted_events);
    }
}


static void
ngx_http_vlm_read_check(ngx_http_request_t *r)
{
    ngx_http_vlm_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_vlm_module);

    /* a timer of the body, which HTTP/2 arms at any time, means nothing now */

    r->connection->read->timedout = 0;

    if (ngx_http_vlm_client_left(r, r->connection->read) == NGX_OK) {
        return;
    }

    ctx->status = NGX_HTTP_CLIENT_CLOSED_REQUEST;
    ngx_http_vlm_finalize(ctx, NGX_HTTP_CLIENT_CLOSED_REQUEST);
}


static void
ngx_http_vlm_write_check(ngx_http_request_t *r)
{
    ngx_event_t         *wev;
    ngx_http_vlm_ctx_t  *ctx;

    wev = r->connection->write;
    ctx = ngx_http_get_module_ctx(r, ngx_http_vlm_module);

    if (wev->timedout) {
        ngx_log_error(NGX_LOG_INFO, wev->log, NGX_ETIMEDOUT,
                      "client timed out");
        r->connection->timedout = 1;

        ctx->status = NGX_HTTP_REQUEST_TIME_OUT;
        ngx_http_vlm_finalize(ctx, NGX_HTTP_REQUEST_TIME_OUT);
        return;
    }

    if (ngx_http_vlm_client_left(r, wev) != NGX_OK) {
        ctx->status = NGX_HTTP_CLIENT_CLOSED_REQUEST;
        ngx_http_vlm_finalize(ctx, NGX_HTTP_CLIENT_CLOSED_REQUEST);
        return;
    }

    if (ctx->state == NGX_HTTP_VLM_ANSWER) {
        ngx_http_vlm_output(ctx);
    }
}


/* NGX_OK: it is there as far as can be told; NGX_DONE: it has left */

static ngx_int_t
ngx_http_vlm_client_left(ngx_http_request_t *r, ngx_event_t *ev)
{
    int                  n;
    char                 buf[1];
    ngx_err_t            err;
    ngx_connection_t    *c;
    ngx_http_vlm_ctx_t  *ctx;

    c = r->connection;
    ctx = ngx_http_get_module_ctx(r, ngx_http_vlm_module);

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, c->log, 0,
                   "vlm check client, write:%d, error:%d",
                   ev->write, c->error);

    if (c->error) {
        return NGX_DONE;
    }

#if (NGX_HTTP_V2)
    if (r->stream) {
        return NGX_OK;
    }
#endif

#if (NGX_HTTP_V3)
    if (c->quic) {
        return c->write->error ? NGX_DONE : NGX_OK;
    }
#endif

    if (ctx->conf->ignore_client_abort) {
        return NGX_OK;
    }

    err = 0;

#if (NGX_HAVE_EPOLLRDHUP)

    if ((ngx_event_flags & NGX_USE_EPOLL_EVENT) && ngx_use_epoll_rdhup) {

        if (!ev->pending_eof && !c->read->pending_eof) {
            return NGX_OK;
        }

        goto left;
    }

#endif

    n = recv(c->fd, buf, 1, MSG_PEEK);

    err = (n == -1) ? ngx_socket_errno : 0;

    if (n > 0 || err == NGX_EAGAIN) {

        if ((ngx_event_flags & NGX_USE_LEVEL_EVENT)
            && !ev->write && ev->active && n > 0)
        {
            (void) ngx_del_event(ev, NGX_READ_EVENT, 0);
        }

        return NGX_OK;
    }

left:

    c->read->eof = 1;
    c->error = 1;

    ngx_log_error(NGX_LOG_INFO, c->log, err,
                  "client prematurely closed connection");

    return NGX_DONE;
}
