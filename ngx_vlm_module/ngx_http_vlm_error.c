
/* Error answers, and what becomes of a body that was not read. */


#include "ngx_http_vlm_module.h"


static ngx_int_t ngx_http_vlm_error_header(ngx_http_vlm_ctx_t *ctx,
    off_t length);
static void ngx_http_vlm_unread_body(ngx_http_request_t *r);


/*
 * Sends ctx->fail as the answer; nothing has been sent before.  The result is
 * for ngx_http_finalize_request().
 */

ngx_int_t
ngx_http_vlm_error(ngx_http_vlm_ctx_t *ctx)
{
    vlm_out_t            o;
    ngx_int_t            rc;
    ngx_buf_t           *b;
    ngx_chain_t          out;
    ngx_http_request_t  *r;

    r = ctx->request;

    ctx->status = ctx->fail.status;

    ngx_log_error(NGX_LOG_INFO, r->connection->log, 0,
                  "vlm request is answered with %ud, code \"%s\", "
                  "param \"%s\"", ctx->fail.status, ctx->fail.code,
                  ctx->fail.param);

    ngx_http_vlm_unread_body(r);

    vlm_out_init(&o, NULL, 0);
    vlm_json_error(&o, &ctx->fail);

    b = ngx_create_temp_buf(r->pool, o.len);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    vlm_out_init(&o, b->start, b->end - b->start);
    vlm_json_error(&o, &ctx->fail);

    b->last += o.len;
    b->last_buf = 1;
    b->last_in_chain = 1;

    out.buf = b;
    out.next = NULL;

    rc = ngx_http_vlm_error_header(ctx, o.len);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_output_filter(r, &out);
}


static ngx_int_t
ngx_http_vlm_error_header(ngx_http_vlm_ctx_t *ctx, off_t length)
{
    ngx_str_t            value;
    ngx_http_request_t  *r;

    r = ctx->request;

    ngx_http_clear_content_length(r);
    ngx_http_clear_accept_ranges(r);

    r->headers_out.status = ctx->fail.status;
    r->headers_out.content_length_n = length;

    ngx_str_set(&r->headers_out.content_type, "application/json");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    if (ngx_http_vlm_add_header(r, "X-Request-Id", &ctx->request_id)
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ctx->fail.status == NGX_HTTP_NOT_ALLOWED) {
        ngx_str_set(&value, "POST");

        if (ngx_http_vlm_add_header(r, "Allow", &value) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    if (ctx->fail.retry_after) {
        value.data = ngx_pnalloc(r->pool, NGX_INT32_LEN);
        if (value.data == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        value.len = ngx_sprintf(value.data, "%ud", ctx->fail.retry_after)
                    - value.data;

        if (ngx_http_vlm_add_header(r, "Retry-After", &value) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    return ngx_http_send_header(r);
}


/*
 * An answer before the end of the body: the connection is kept only if the
 * rest is already here; otherwise it is closed lingeringly.
 */

static void
ngx_http_vlm_unread_body(ngx_http_request_t *r)
{
    ngx_connection_t  *c;

    c = r->connection;

    if (r->reading_body) {
        r->keepalive = 0;
        r->lingering_close = 1;

        if (c->read->timer_set) {
            ngx_del_timer(c->read);
        }

        /* else the lingering close would end at once */

        c->read->timedout = 0;

#if (NGX_HTTP_V2)
        if (r->stream) {
            r->stream->skip_data = 1;
        }
#endif

        return;
    }

    if (r->request_body) {
        return;
    }

    /* a client that waits for "100 Continue" gets the answer instead */

    r->expect_tested = 1;

    if (ngx_http_discard_request_body(r) != NGX_OK || r->discard_body) {
        r->keepalive = 0;
    }
}


/* an engine's error; its strings end within their arrays, as was checked */

void
ngx_http_vlm_fail_from_event(vlm_fail_t *fail, const vlm_event_t *event)
{
    const vlm_event_error_t  *error;

    error = &event->u.error;

    vlm_fail(fail, error->status, error->code, error->param, "%.*s",
             (int) error->length, event->text);

    fail->retry_after = error->retry_after;
}
