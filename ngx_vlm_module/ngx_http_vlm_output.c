
/*
 * The answer.  Text from the engine is collected in a bounded buffer; when
 * the client's connection can take something, all that has come together
 * leaves as one piece, in a single buffer that is used again and again.
 *
 * If the client reads so slowly that the bound is reached, the request is
 * cancelled at once: the engine is shared and cannot wait.  What is collected
 * and an error event are still sent, within send_timeout.
 */


#include "ngx_http_vlm_module.h"


static void ngx_http_vlm_reset(ngx_http_request_t *r);
static ngx_int_t ngx_http_vlm_drain(ngx_http_vlm_ctx_t *ctx);
static ngx_int_t ngx_http_vlm_next_piece(ngx_http_vlm_ctx_t *ctx,
    ngx_http_vlm_piece_t *piece);
static ngx_int_t ngx_http_vlm_send_piece(ngx_http_vlm_ctx_t *ctx,
    ngx_http_vlm_piece_t *piece);
static void ngx_http_vlm_compose(ngx_http_vlm_ctx_t *ctx,
    ngx_http_vlm_piece_t *piece, vlm_out_t *o);
static void ngx_http_vlm_compose_sse(ngx_http_vlm_ctx_t *ctx,
    ngx_http_vlm_piece_t *piece, vlm_out_t *o);
static void ngx_http_vlm_compose_text(ngx_http_vlm_ctx_t *ctx, vlm_out_t *o);
static void ngx_http_vlm_compose_json(ngx_http_vlm_ctx_t *ctx, vlm_out_t *o);
static void ngx_http_vlm_usage(ngx_http_vlm_ctx_t *ctx, vlm_usage_t *usage);
static ngx_int_t ngx_http_vlm_output_buf(ngx_http_vlm_ctx_t *ctx, size_t size);
static ngx_int_t ngx_http_vlm_send_header(ngx_http_vlm_ctx_t *ctx,
    off_t length);
static void ngx_http_vlm_output_wait(ngx_http_vlm_ctx_t *ctx);


/* NGX_OK, or NGX_ERROR and ctx->fail */

ngx_int_t
ngx_http_vlm_output_init(ngx_http_vlm_ctx_t *ctx)
{
    vlm_form_t             *form;
    vlm_answer_t           *a;
    ngx_http_vlm_output_t  *out;

    out = &ctx->output;
    form = &ctx->body->form;
    a = &out->answer;

    out->type = ngx_http_vlm_accept(ctx->request, form->stream);
    out->stream = (out->type == VLM_ANSWER_SSE
                   || (out->type == VLM_ANSWER_TEXT
                       && form->stream != VLM_STREAM_FALSE));
    out->sent = ngx_current_msec;

    if (form->model.len) {
        ctx->model.data = (u_char *) form->model.data;
        ctx->model.len = form->model.len;

    } else if (ctx->engine->info.nmodels) {

        /* the engine's information may change while the answer goes out */

        ngx_cpystrn(ctx->model_name, (u_char *) ctx->engine->info.models[0],
                    VLM_MODEL_NAME_LEN);
        ctx->model.data = ctx->model_name;
        ctx->model.len = ngx_strlen(ctx->model_name);
    }

    a->id = (char *) ctx->request_id.data;
    a->id_len = ctx->request_id.len;
    a->model = (char *) ctx->model.data;
    a->model_len = ctx->model.len;
    a->created = ngx_time();
    a->usage = 1;

    return ngx_http_vlm_choices_init(ctx);
}


unsigned
ngx_http_vlm_accept(ngx_http_request_t *r, unsigned stream)
{
    ngx_uint_t        i;
    vlm_accept_t      accept;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *header;

    ngx_memzero(&accept, sizeof(vlm_accept_t));

    part = &r->headers_in.headers.part;
    header = part->elts;

    for (i = 0; /* void */ ; i++) {

        if (i >= part->nelts) {
            if (part->next == NULL) {
                break;
            }

            part = part->next;
            header = part->elts;
            i = 0;
        }

        if (header[i].key.len == sizeof("accept") - 1
            && ngx_strncmp(header[i].lowcase_key, "accept",
                           sizeof("accept") - 1)
               == 0)
        {
            vlm_accept_add(&accept, (char *) header[i].value.data,
                           header[i].value.len);
        }
    }

    return vlm_accept_answer(&accept, stream);
}


/* the client could take something now, and should before more is collected */

ngx_uint_t
ngx_http_vlm_output_due(ngx_http_vlm_ctx_t *ctx)
{
    ngx_http_vlm_output_t  *out;

    out = &ctx->output;

    return out->len > out->limit / 2
           && (!out->busy || ctx->request->connection->write->ready);
}


/* sends what can be sent; after it the request may be gone */

void
ngx_http_vlm_output(ngx_http_vlm_ctx_t *ctx)
{
    ngx_int_t               rc;
    ngx_http_request_t     *r;
    ngx_http_vlm_piece_t    piece;
    ngx_http_vlm_output_t  *out;

    r = ctx->request;

    out = &ctx->output;

    /* with the first token the status is 200, even if both come together */

    if (ctx->fail.status && !r->header_sent
        && !(out->stream && out->len))
    {
        ngx_http_vlm_finalize(ctx, ngx_http_vlm_error(ctx));
        return;
    }

    for ( ;; ) {

        rc = ngx_http_vlm_drain(ctx);

        if (rc == NGX_OK) {
            rc = ngx_http_vlm_next_piece(ctx, &piece);
        }

        if (rc == NGX_ABORT) {

            /* plain text cannot tell of an error but by being cut */

            r->keepalive = 0;
            ngx_http_vlm_reset(r);
            ngx_http_vlm_finalize(ctx, NGX_ERROR);
            return;
        }

        if (rc != NGX_OK) {
            break;
        }

        rc = ngx_http_vlm_send_piece(ctx, &piece);

        if (rc == NGX_ERROR || rc >= NGX_HTTP_SPECIAL_RESPONSE || piece.last) {

            if (rc != NGX_ERROR && ctx->fail.status == 0) {
                ctx->status = NGX_HTTP_OK;
            }

            ngx_http_vlm_finalize(ctx, rc);
            return;
        }
    }

    if (rc == NGX_ERROR) {
        ngx_http_vlm_finalize(ctx, NGX_ERROR);
        return;
    }

    ngx_http_vlm_output_wait(ctx);
}


/*
 * Where the end of the connection is that of the answer, as in HTTP/1.0, a
 * text that is cut would look whole: closing is made to be a reset.
 */

static void
ngx_http_vlm_reset(ngx_http_request_t *r)
{
    struct linger  linger;

    if (r->chunked || r->http_version > NGX_HTTP_VERSION_11) {
        return;
    }

    linger.l_onoff = 1;
    linger.l_linger = 0;

    if (setsockopt(r->connection->fd, SOL_SOCKET, SO_LINGER,
                   (const void *) &linger, sizeof(struct linger)) == -1)
    {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, ngx_socket_errno,
                      "setsockopt(SO_LINGER) failed");
    }
}


/* NGX_OK: nothing is on its way; NGX_AGAIN: the client must read first */

static ngx_int_t
ngx_http_vlm_drain(ngx_http_vlm_ctx_t *ctx)
{
    ngx_connection_t       *c;
    ngx_http_request_t     *r;
    ngx_http_vlm_output_t  *out;

    out = &ctx->output;
    r = ctx->request;
    c = r->connection;

    if (!out->busy) {
        return NGX_OK;
    }

    if (ngx_buf_size(out->buf) || r->buffered || c->buffered) {

        if (!c->write->ready) {
            return NGX_AGAIN;
        }

        if (ngx_http_output_filter(r, NULL) == NGX_ERROR) {
            return NGX_ERROR;
        }

        if (ngx_buf_size(out->buf) || r->buffered || c->buffered) {
            return NGX_AGAIN;
        }
    }

    out->busy = 0;

    return NGX_OK;
}


/* NGX_OK: *piece is to be sent; NGX_AGAIN: there is nothing yet */

static ngx_int_t
ngx_http_vlm_next_piece(ngx_http_vlm_ctx_t *ctx, ngx_http_vlm_piece_t *piece)
{
    ngx_http_vlm_output_t  *out;

    out = &ctx->output;

    ngx_memzero(piece, sizeof(ngx_http_vlm_piece_t));

    if (!out->stream) {
        piece->last = 1;
        return ctx->finished ? NGX_OK : NGX_AGAIN;
    }

    ngx_http_vlm_choices_take(ctx, piece);

    if (piece->take == out->len) {

        if (ctx->fail.status && out->type == VLM_ANSWER_TEXT) {
            return piece->take ? NGX_OK : NGX_ABORT;
        }

        piece->error = (ctx->fail.status != 0);
        piece->last = (piece->error || ctx->finished);
    }

    piece->ping = (out->ping && piece->take == 0 && !piece->end
                   && !piece->last);
    out->ping = 0;

    return (piece->take || piece->end || piece->ping || piece->last)
           ? NGX_OK : NGX_AGAIN;
}


static ngx_int_t
ngx_http_vlm_send_piece(ngx_http_vlm_ctx_t *ctx, ngx_http_vlm_piece_t *piece)
{
    vlm_out_t               o;
    ngx_int_t               rc;
    ngx_buf_t              *b;
    ngx_http_request_t     *r;
    ngx_http_vlm_output_t  *out;

    r = ctx->request;
    out = &ctx->output;

    /* measured first, then written */

    vlm_out_init(&o, NULL, 0);
    ngx_http_vlm_compose(ctx, piece, &o);

    if (ngx_http_vlm_output_buf(ctx, o.len) != NGX_OK) {
        return r->header_sent ? NGX_ERROR : NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b = out->buf;

    vlm_out_init(&o, b->start, b->end - b->start);
    ngx_http_vlm_compose(ctx, piece, &o);

    b->pos = b->start;
    b->last = b->start + o.len;
    b->last_buf = piece->last;
    b->last_in_chain = piece->last;

    out->role = 1;
    ngx_http_vlm_choices_taken(ctx);

    if (!r->header_sent) {
        rc = ngx_http_vlm_send_header(ctx, out->stream ? -1 : (off_t) o.len);

        if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
            piece->last = 1;
            return rc;
        }
    }

    out->link.buf = b;
    out->link.next = NULL;
    out->busy = 1;
    out->sent = ngx_current_msec;

    return ngx_http_output_filter(r, &out->link);
}


static void
ngx_http_vlm_compose(ngx_http_vlm_ctx_t *ctx, ngx_http_vlm_piece_t *piece,
    vlm_out_t *o)
{
    ngx_http_vlm_output_t  *out;

    out = &ctx->output;

    switch (out->type) {

    case VLM_ANSWER_SSE:
        ngx_http_vlm_compose_sse(ctx, piece, o);
        break;

    case VLM_ANSWER_JSON:
        ngx_http_vlm_compose_json(ctx, o);
        break;

    default: /* VLM_ANSWER_TEXT */
        ngx_http_vlm_compose_text(ctx, o);

        if (piece->last) {
            vlm_out_str(o, "\n");
        }

        break;
    }
}


static void
ngx_http_vlm_compose_sse(ngx_http_vlm_ctx_t *ctx, ngx_http_vlm_piece_t *piece,
    vlm_out_t *o)
{
    ngx_uint_t              i;
    vlm_usage_t             usage;
    vlm_answer_t           *a;
    ngx_http_vlm_choice_t  *choice;
    ngx_http_vlm_output_t  *out;

    out = &ctx->output;
    a = &out->answer;

    if (piece->ping) {
        vlm_sse_ping(o);
        return;
    }

    if (!out->role) {
        for (i = 0; i < out->nchoices; i++) {
            vlm_sse_role(o, a, i);
        }
    }

    for (i = 0; i < out->nchoices; i++) {
        choice = &out->choices[i];

        if (choice->take || choice->take_logprobs) {
            vlm_sse_text(o, a, i, (char *) choice->text.data, choice->take,
                         choice->logprobs.data, choice->take_logprobs);
        }

        if (choice->end) {
            vlm_sse_finish(o, a, i, choice->finish);
        }
    }

    if (piece->error) {
        vlm_sse_error(o, &ctx->fail);

    } else if (piece->last) {
        ngx_http_vlm_usage(ctx, &usage);

        vlm_sse_usage(o, a, &usage);
        vlm_sse_done(o);
    }
}


static void
ngx_http_vlm_compose_text(ngx_http_vlm_ctx_t *ctx, vlm_out_t *o)
{
    ngx_http_vlm_choice_t  *choice;

    choice = &ctx->output.choices[0];

    vlm_out_bytes(o, choice->text.data, ctx->output.stream ? choice->take
                                                           : choice->text.len);
}


static void
ngx_http_vlm_compose_json(ngx_http_vlm_ctx_t *ctx, vlm_out_t *o)
{
    ngx_uint_t              i;
    vlm_usage_t             usage;
    ngx_http_vlm_choice_t  *choice;
    ngx_http_vlm_output_t  *out;

    out = &ctx->output;

    ngx_http_vlm_usage(ctx, &usage);

    vlm_json_begin(o, &out->answer);

    for (i = 0; i < out->nchoices; i++) {
        choice = &out->choices[i];

        vlm_json_choice(o, i);
        vlm_out_json(o, (char *) choice->text.data, choice->text.len);
        vlm_json_finish(o, choice->finish, choice->logprobs.data,
                        choice->logprobs.len);
    }

    vlm_json_end(o, &usage);
}


static void
ngx_http_vlm_usage(ngx_http_vlm_ctx_t *ctx, vlm_usage_t *usage)
{
    usage->prompt_tokens = ctx->done.prompt_tokens;
    usage->completion_tokens = ctx->done.completion_tokens;
    usage->cached_tokens = ctx->done.cached_tokens;
    usage->image_tokens = ctx->done.image_tokens;
}


/* nothing is on its way, so the buffer is free */

static ngx_int_t
ngx_http_vlm_output_buf(ngx_http_vlm_ctx_t *ctx, size_t size)
{
    ngx_buf_t              *b;
    ngx_pool_t             *pool;
    ngx_http_vlm_output_t  *out;

    out = &ctx->output;
    pool = ctx->request->pool;

    if (out->buf == NULL) {
        out->buf = ngx_calloc_buf(pool);
        if (out->buf == NULL) {
            return NGX_ERROR;
        }
    }

    b = out->buf;

    if ((size_t) (b->end - b->start) < size) {

        if (b->start) {
            (void) ngx_pfree(pool, b->start);
        }

        size = ngx_max(size, 4096);

        b->start = ngx_palloc(pool, size);
        if (b->start == NULL) {
            b->end = NULL;
            return NGX_ERROR;
        }

        b->end = b->start + size;
    }

    b->temporary = 1;
    b->flush = 1;
    b->tag = (ngx_buf_tag_t) &ngx_http_vlm_module;

    return NGX_OK;
}


/* "length" is -1 for a stream */

static ngx_int_t
ngx_http_vlm_send_header(ngx_http_vlm_ctx_t *ctx, off_t length)
{
    ngx_str_t                  value;
    ngx_http_request_t        *r;
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_vlm_output_t     *out;

    static ngx_str_t  types[] = {
        ngx_string("text/event-stream"),        /* VLM_ANSWER_SSE */
        ngx_string("application/json"),         /* VLM_ANSWER_JSON */
        ngx_string("text/plain")                /* VLM_ANSWER_TEXT */
    };

    r = ctx->request;
    out = &ctx->output;

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_type = types[out->type];
    r->headers_out.content_type_len = types[out->type].len;
    r->headers_out.content_type_lowcase = NULL;

    if (out->type == VLM_ANSWER_TEXT) {
        ngx_str_set(&r->headers_out.charset, "utf-8");
    }

    ngx_http_clear_content_length(r);
    ngx_http_clear_accept_ranges(r);

    r->headers_out.content_length_n = length;

    if (ngx_http_vlm_add_header(r, "X-Request-Id", &ctx->request_id)
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (out->stream) {
        ngx_str_set(&value, "no-cache");

        if (ngx_http_vlm_add_header(r, "Cache-Control", &value) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        ngx_str_set(&value, "no");

        if (ngx_http_vlm_add_header(r, "X-Accel-Buffering", &value)
            != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        r->limit_rate = 0;
        r->limit_rate_set = 1;

        clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

        if (clcf->tcp_nodelay && ngx_tcp_nodelay(r->connection) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    return ngx_http_send_header(r);
}


ngx_int_t
ngx_http_vlm_add_header(ngx_http_request_t *r, const char *key,
    ngx_str_t *value)
{
    ngx_table_elt_t  *h;

    if (value->len == 0) {
        return NGX_OK;
    }

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->hash = 1;
#if (nginx_version >= 1023000)
    h->next = NULL;
#endif
    h->key.data = (u_char *) key;
    h->key.len = ngx_strlen(key);
    h->value = *value;
    h->lowcase_key = NULL;

    return NGX_OK;
}


/* for the client to read, as long as it reads something in send_timeout */

static void
ngx_http_vlm_output_wait(ngx_http_vlm_ctx_t *ctx)
{
    ngx_event_t               *wev;
    ngx_connection_t          *c;
    ngx_http_vlm_output_t     *out;
    ngx_http_core_loc_conf_t  *clcf;

    c = ctx->request->connection;
    out = &ctx->output;
    wev = c->write;

    clcf = ngx_http_get_module_loc_conf(ctx->request, ngx_http_core_module);

    if (ngx_handle_write_event(wev, clcf->send_lowat) != NGX_OK) {
        ngx_http_vlm_finalize(ctx, NGX_ERROR);
        return;
    }

    if (!out->busy) {
        if (wev->timer_set) {
            ngx_del_timer(wev);
        }

        return;
    }

    /* the engine has said its last word: only the client is waited for */

    if ((ctx->finished || ctx->fail.status) && ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    if (!wev->timer_set || out->conn_sent != c->sent
        || out->buf_pos != out->buf->pos)
    {
        ngx_add_timer(wev, clcf->send_timeout);
    }

    out->conn_sent = c->sent;
    out->buf_pos = out->buf->pos;
}
