
/*
 * The body of a request: taken from NGINX piece by piece as it arrives,
 * parsed, and copied once, into the arena; pictures are hashed on the way.
 */


#include "ngx_http_vlm_module.h"


#define NGX_HTTP_VLM_FILE_BUF  65536


static void ngx_http_vlm_body_read(ngx_http_request_t *r);
static ngx_int_t ngx_http_vlm_body_take(ngx_http_vlm_ctx_t *ctx);
static ngx_int_t ngx_http_vlm_body_take_buffered(ngx_http_vlm_ctx_t *ctx);
static void ngx_http_vlm_body_next_buf(ngx_http_vlm_body_t *body,
    ngx_chain_t *cl);
static ngx_int_t ngx_http_vlm_body_file(ngx_http_vlm_ctx_t *ctx);
static ngx_int_t ngx_http_vlm_body_parse(ngx_http_vlm_ctx_t *ctx,
    u_char **pos, u_char *last);
static ngx_int_t ngx_http_vlm_body_end(ngx_http_vlm_ctx_t *ctx);
static void ngx_http_vlm_body_starve(ngx_http_vlm_ctx_t *ctx);
static void ngx_http_vlm_body_error(ngx_http_vlm_ctx_t *ctx, ngx_int_t rc);
static ngx_int_t ngx_http_vlm_field_begin(ngx_http_vlm_ctx_t *ctx);
static ngx_int_t ngx_http_vlm_field_data(ngx_http_vlm_ctx_t *ctx);
static ngx_int_t ngx_http_vlm_field_end(ngx_http_vlm_ctx_t *ctx);
static ngx_int_t ngx_http_vlm_no_memory(ngx_http_vlm_ctx_t *ctx);


/* the last step of admission: NGX_OK, or NGX_ERROR and ctx->fail */

ngx_int_t
ngx_http_vlm_body_init(ngx_http_vlm_ctx_t *ctx)
{
    ngx_uint_t                max_images;
    ngx_http_request_t       *r;
    vlm_form_limits_t         limits;
    ngx_http_vlm_body_t      *body;
    ngx_http_vlm_loc_conf_t  *conf;

    r = ctx->request;
    conf = ctx->conf;

    max_images = conf->max_images;

    if (ctx->engine->info.nmodels && ctx->engine->info.max_images) {
        max_images = ngx_min(max_images, ctx->engine->info.max_images);
    }

    body = ngx_pcalloc(r->pool, sizeof(ngx_http_vlm_body_t));
    if (body == NULL) {
        return ngx_http_vlm_no_memory(ctx);
    }

    ctx->body = body;

    if (max_images) {
        body->pictures = ngx_pcalloc(r->pool,
                                     max_images * sizeof(vlm_picture_t));
        if (body->pictures == NULL) {
            return ngx_http_vlm_no_memory(ctx);
        }
    }

    limits.max_parts = conf->max_parts;
    limits.max_images = max_images;
    limits.max_image_size = conf->max_image_size;
    limits.max_text_size = conf->max_text_size;

    vlm_form_init(&body->form, (char *) ctx->boundary, ctx->boundary_len,
                  &limits);

    return ngx_http_vlm_room_admit(ctx);
}


void
ngx_http_vlm_body_free(ngx_http_vlm_ctx_t *ctx)
{
    if (ctx->body && ctx->body->md) {
        EVP_MD_CTX_free(ctx->body->md);
        ctx->body->md = NULL;
    }
}


/* ngx_http_read_client_request_body() has begun, or has all of it */

void
ngx_http_vlm_body_start(ngx_http_request_t *r)
{
    ngx_http_vlm_ctx_t   *ctx;
    ngx_http_vlm_body_t  *body;

    ctx = ngx_http_get_module_ctx(r, ngx_http_vlm_module);
    body = ctx->body;

    if (!r->reading_body) {
        body->buffered = 1;
        ngx_http_vlm_body_next_buf(body, r->request_body
                                             ? r->request_body->bufs : NULL);

    } else if (!r->request_body_no_buffering) {

        /* after a redirect: its beginning went to another handler */

        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "the request body was partly read before "
                      "\"vlm_pass\" got the request");

        vlm_fail(&ctx->fail, NGX_HTTP_INTERNAL_SERVER_ERROR, NULL, NULL,
                 "the request body was partly read before");
    }

    ngx_http_vlm_body_pump(ctx);
}


static void
ngx_http_vlm_body_read(ngx_http_request_t *r)
{
    ngx_http_vlm_body_pump(ngx_http_get_module_ctx(r, ngx_http_vlm_module));
}


/* after it the request may be gone */

void
ngx_http_vlm_body_pump(ngx_http_vlm_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = ctx->request;

    ngx_http_vlm_unqueue(ctx);

    if (ctx->fail.status) {
        ngx_http_vlm_finalize(ctx, ngx_http_vlm_error(ctx));
        return;
    }

    ctx->state = NGX_HTTP_VLM_BODY;
    ctx->body->turn = 0;

    r->read_event_handler = ngx_http_vlm_body_read;

    for ( ;; ) {

        rc = ctx->body->buffered ? ngx_http_vlm_body_take_buffered(ctx)
                                 : ngx_http_vlm_body_take(ctx);

        if (rc == NGX_ERROR) {
            ngx_http_vlm_finalize(ctx, ngx_http_vlm_error(ctx));
            return;
        }

        if (rc == NGX_AGAIN) {
            ngx_http_vlm_body_starve(ctx);
            return;
        }

        if (rc == NGX_BUSY) {
            ngx_post_event(&ctx->wake, &ngx_posted_next_events);
            return;
        }

        if (!r->reading_body) {
            break;
        }

        rc = ngx_http_read_unbuffered_request_body(r);

        if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
            ngx_http_vlm_body_error(ctx, rc);
            return;
        }

        if (r->request_body->bufs == NULL && r->reading_body) {
            return;
        }
    }

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    ctx->deadline = 0;

    if (ngx_http_vlm_body_end(ctx) != NGX_OK) {
        ngx_http_vlm_finalize(ctx, ngx_http_vlm_error(ctx));
        return;
    }

    ngx_http_vlm_upload_end(ctx);
    ngx_http_vlm_submit(ctx);
}


/*
 * Takes what has arrived.  NGX_OK: all of it; NGX_AGAIN: there is no room;
 * NGX_BUSY: others shall have their turn; NGX_ERROR: ctx->fail is set.
 */

static ngx_int_t
ngx_http_vlm_body_take(ngx_http_vlm_ctx_t *ctx)
{
    ngx_int_t                 rc;
    ngx_buf_t                *b;
    ngx_chain_t              *cl;
    ngx_http_request_t       *r;
    ngx_http_request_body_t  *rb;

    r = ctx->request;
    rb = r->request_body;

    while (rb->bufs) {
        cl = rb->bufs;
        b = cl->buf;

        rc = ngx_http_vlm_body_parse(ctx, &b->pos, b->last);

        if (rc != NGX_OK) {
            return rc;
        }

        rb->bufs = cl->next;
        ngx_free_chain(r->pool, cl);
    }

    return NGX_OK;
}


/* as above, for a body that others may want to read too */

static ngx_int_t
ngx_http_vlm_body_take_buffered(ngx_http_vlm_ctx_t *ctx)
{
    ngx_int_t             rc;
    ngx_buf_t            *b;
    ngx_http_vlm_body_t  *body;

    body = ctx->body;

    while (body->chain) {
        b = body->chain->buf;

        if (ngx_buf_in_memory(b)) {
            rc = ngx_http_vlm_body_parse(ctx, &body->pos, b->last);

        } else if (b->in_file) {
            rc = ngx_http_vlm_body_file(ctx);

        } else {
            rc = NGX_OK;
        }

        if (rc != NGX_OK) {
            return rc;
        }

        ngx_http_vlm_body_next_buf(body, body->chain->next);
    }

    return NGX_OK;
}


static void
ngx_http_vlm_body_next_buf(ngx_http_vlm_body_t *body, ngx_chain_t *cl)
{
    body->chain = cl;

    if (cl) {
        body->pos = cl->buf->pos;
        body->file_pos = cl->buf->file_pos;
    }
}


static ngx_int_t
ngx_http_vlm_body_file(ngx_http_vlm_ctx_t *ctx)
{
    size_t                size;
    ssize_t               n;
    ngx_int_t             rc;
    ngx_buf_t            *b, *fb;
    ngx_http_vlm_body_t  *body;

    body = ctx->body;
    b = body->chain->buf;

    if (body->file_buf == NULL) {
        body->file_buf = ngx_create_temp_buf(ctx->request->pool,
                                             NGX_HTTP_VLM_FILE_BUF);
        if (body->file_buf == NULL) {
            return ngx_http_vlm_no_memory(ctx);
        }
    }

    fb = body->file_buf;

    for ( ;; ) {
        rc = ngx_http_vlm_body_parse(ctx, &fb->pos, fb->last);

        if (rc != NGX_OK || body->file_pos >= b->file_last) {
            return rc;
        }

        size = (size_t) ngx_min(b->file_last - body->file_pos,
                                NGX_HTTP_VLM_FILE_BUF);

        n = ngx_read_file(b->file, fb->start, size, body->file_pos);

        if (n <= 0) {
            ngx_log_error(NGX_LOG_CRIT, ctx->request->connection->log, 0,
                          "request body in file \"%V\" ends at %O of %O bytes",
                          &b->file->name, body->file_pos, b->file_last);

            vlm_fail(&ctx->fail, NGX_HTTP_INTERNAL_SERVER_ERROR, NULL, NULL,
                     "the request body could not be read");
            return NGX_ERROR;
        }

        fb->pos = fb->start;
        fb->last = fb->start + n;
        body->file_pos += n;
    }
}


static ngx_int_t
ngx_http_vlm_body_parse(ngx_http_vlm_ctx_t *ctx, u_char **pos, u_char *last)
{
    u_char               *p;
    ngx_int_t             rc;
    ngx_http_vlm_body_t  *body;

    body = ctx->body;

    if (body->turn >= NGX_HTTP_VLM_BODY_TURN) {
        return NGX_BUSY;
    }

    if (*pos < last) {
        ctx->heard = ngx_current_msec;
    }

    rc = NGX_OK;

    for ( ;; ) {

        if (body->unplaced) {
            rc = ngx_http_vlm_field_begin(ctx);

            if (rc != NGX_OK) {
                return rc;
            }

            body->unplaced = 0;
            ctx->deadline = 0;
        }

        p = *pos;

        rc = vlm_form_next(&body->form, (const uint8_t **) pos, last, 0);

        body->received += *pos - p;
        body->turn += *pos - p;

        if (body->received > ctx->conf->max_request_size) {
            vlm_fail(&ctx->fail, NGX_HTTP_REQUEST_ENTITY_TOO_LARGE,
                     "payload_too_large", NULL,
                     "the request is larger than %llu bytes",
                     (unsigned long long) ctx->conf->max_request_size);
            return NGX_ERROR;
        }

        switch (rc) {

        case VLM_FORM_BEGIN:
            body->unplaced = 1;
            rc = NGX_OK;
            break;

        case VLM_FORM_DATA:
            rc = ngx_http_vlm_field_data(ctx);
            break;

        case VLM_FORM_END:
            rc = ngx_http_vlm_field_end(ctx);
            break;

        case VLM_FORM_ERROR:
            ctx->fail = *body->form.fail;
            return NGX_ERROR;

        default:

            /* AGAIN, or DONE, when the rest is consumed unseen */

            if (*pos == last) {
                return NGX_OK;
            }

            rc = NGX_OK;
            break;
        }

        if (rc != NGX_OK) {
            return rc;
        }
    }
}


/* nothing follows: what does the form say? */

static ngx_int_t
ngx_http_vlm_body_end(ngx_http_vlm_ctx_t *ctx)
{
    static const uint8_t  nothing[1];

    int                   rc;
    const uint8_t        *pos;
    ngx_http_vlm_body_t  *body;

    body = ctx->body;
    pos = nothing;

    for ( ;; ) {
        rc = vlm_form_next(&body->form, &pos, pos, 1);

        if (rc == VLM_FORM_DONE) {
            return NGX_OK;
        }

        if (rc == VLM_FORM_END && ngx_http_vlm_field_end(ctx) == NGX_OK) {
            continue;
        }

        if (rc == VLM_FORM_ERROR) {
            ctx->fail = *body->form.fail;

        } else if (ctx->fail.status == 0) {
            vlm_fail(&ctx->fail, NGX_HTTP_BAD_REQUEST, "invalid_body", NULL,
                     "the form is not complete");
        }

        return NGX_ERROR;
    }
}


/* no room: the rest of the body stays where it is */

static void
ngx_http_vlm_body_starve(ngx_http_vlm_ctx_t *ctx)
{
    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "vlm body waits for room after %uz bytes",
                   ctx->body->received);

    ctx->state = NGX_HTTP_VLM_STARVED;

    if (ctx->deadline == 0) {
        ctx->deadline = ngx_current_msec + ctx->conf->queue_timeout;
    }

    ngx_http_vlm_timer(ctx);
    ngx_http_vlm_watch_client(ctx);
}


/* an error of NGINX's own body reading */

static void
ngx_http_vlm_body_error(ngx_http_vlm_ctx_t *ctx, ngx_int_t rc)
{
    ngx_connection_t  *c;

    c = ctx->request->connection;

    if (c->error) {
        ctx->status = NGX_HTTP_CLIENT_CLOSED_REQUEST;
        ngx_http_vlm_finalize(ctx, NGX_HTTP_CLIENT_CLOSED_REQUEST);
        return;
    }

    if (rc == NGX_HTTP_REQUEST_TIME_OUT) {
        c->timedout = 0;
        c->read->timedout = 0;

        vlm_fail(&ctx->fail, NGX_HTTP_REQUEST_TIME_OUT, "upload_timeout", NULL,
                 "the request body did not arrive in time");

        ngx_log_error(NGX_LOG_INFO, c->log, NGX_ETIMEDOUT,
                      "client timed out after %uz bytes of the body",
                      ctx->body->received);

    } else if (rc == NGX_HTTP_BAD_REQUEST) {
        vlm_fail(&ctx->fail, NGX_HTTP_BAD_REQUEST, "invalid_body", NULL,
                 "the request body is not encoded as its header says");

    } else {
        ctx->status = rc;
        ngx_http_vlm_finalize(ctx, rc);
        return;
    }

    ngx_http_vlm_finalize(ctx, ngx_http_vlm_error(ctx));
}


static ngx_int_t
ngx_http_vlm_field_begin(ngx_http_vlm_ctx_t *ctx)
{
    size_t                max;
    ngx_int_t             rc;
    ngx_http_vlm_body_t  *body;

    body = ctx->body;

    max = (body->form.field == VLM_FIELD_IMAGE) ? ctx->conf->max_image_size
                                                : ctx->conf->max_text_size;

    rc = ngx_http_vlm_room_begin(ctx, max);

    if (rc != NGX_OK) {
        return rc;
    }

    body->start = body->room.used;

    if (body->form.field != VLM_FIELD_IMAGE) {
        return NGX_OK;
    }

    ctx->npictures = body->form.npictures;

    if (body->md == NULL) {
        body->md = EVP_MD_CTX_new();
        if (body->md == NULL) {
            return ngx_http_vlm_no_memory(ctx);
        }
    }

    if (EVP_DigestInit_ex(body->md, EVP_sha256(), NULL) != 1) {
        return ngx_http_vlm_no_memory(ctx);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_vlm_field_data(ngx_http_vlm_ctx_t *ctx)
{
    vlm_form_t           *form;
    ngx_http_vlm_room_t  *room;

    form = &ctx->body->form;
    room = &ctx->body->room;

    if (form->len > room->size - room->used) {
        ngx_log_error(NGX_LOG_ALERT, ctx->request->connection->log, 0,
                      "%uz bytes of a field do not fit into its room, "
                      "%uL of %uL bytes are used",
                      form->len, room->used, room->size);

        vlm_fail(&ctx->fail, NGX_HTTP_INTERNAL_SERVER_ERROR, NULL, NULL,
                 "the upload does not fit");
        return NGX_ERROR;
    }

    ngx_memcpy(ctx->main->arena.base + room->offset + room->used,
               form->data, form->len);
    room->used += form->len;

    if (form->field == VLM_FIELD_IMAGE
        && EVP_DigestUpdate(ctx->body->md, form->data, form->len) != 1)
    {
        return ngx_http_vlm_no_memory(ctx);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_vlm_field_end(ngx_http_vlm_ctx_t *ctx)
{
    vlm_extent_t          extent;
    vlm_picture_t        *picture;
    ngx_http_vlm_body_t  *body;

    body = ctx->body;

    extent.offset = body->room.offset + body->start;
    extent.length = body->room.used - body->start;

    switch (body->form.field) {

    case VLM_FIELD_PROMPT:
        body->prompt = extent;
        break;

    case VLM_FIELD_SYSTEM:
        body->system = extent;
        break;

    case VLM_FIELD_IMAGE:
        picture = &body->pictures[body->form.npictures - 1];
        picture->bytes = extent;

        if (EVP_DigestFinal_ex(body->md, picture->sha256, NULL) != 1) {
            return ngx_http_vlm_no_memory(ctx);
        }

        break;
    }

    ngx_http_vlm_room_end(ctx);

    return NGX_OK;
}


static ngx_int_t
ngx_http_vlm_no_memory(ngx_http_vlm_ctx_t *ctx)
{
    vlm_fail(&ctx->fail, NGX_HTTP_INTERNAL_SERVER_ERROR, NULL, NULL,
             "there is not enough memory");

    return NGX_ERROR;
}
