
/* The finished form, with what the location adds, as a request record. */


#include "ngx_http_vlm_module.h"


typedef struct {
    vlm_request_t               request;
    vlm_message_t               messages[2];
    vlm_part_t                  parts[VLM_MAX_PICTURES + 2];
} ngx_http_vlm_record_t;


static ngx_int_t ngx_http_vlm_record_messages(ngx_http_vlm_ctx_t *ctx,
    ngx_http_vlm_record_t *rec);
static ngx_int_t ngx_http_vlm_record_default(ngx_http_vlm_ctx_t *ctx,
    ngx_http_complex_value_t *cv, const char *fallback, const char *param,
    vlm_extent_t *extent);
static void ngx_http_vlm_record_part(ngx_http_vlm_record_t *rec,
    vlm_extent_t *text);
static void ngx_http_vlm_record_sampling(ngx_http_vlm_ctx_t *ctx,
    vlm_sampling_t *sampling);
static ngx_int_t ngx_http_vlm_record_scope(ngx_http_vlm_ctx_t *ctx,
    ngx_str_t *scope);


/* NGX_OK, or NGX_ERROR and ctx->fail */

ngx_int_t
ngx_http_vlm_record(ngx_http_vlm_ctx_t *ctx, uint64_t *offset,
    uint32_t *length)
{
    size_t                  size;
    ngx_str_t               scope;
    vlm_form_t             *form;
    vlm_request_t          *req;
    ngx_http_vlm_record_t   rec;

    ngx_memzero(&rec, sizeof(ngx_http_vlm_record_t));

    req = &rec.request;
    form = &ctx->body->form;

    if (ngx_http_vlm_record_scope(ctx, &scope) != NGX_OK) {
        vlm_fail(&ctx->fail, NGX_HTTP_INTERNAL_SERVER_ERROR, NULL, NULL,
                 "there is not enough memory");
        return NGX_ERROR;
    }

    if (ngx_http_vlm_record_messages(ctx, &rec) != NGX_OK) {
        return NGX_ERROR;
    }

    req->request_id.data = (char *) ctx->request_id.data;
    req->request_id.len = ctx->request_id.len;
    req->scope.data = (char *) scope.data;
    req->scope.len = scope.len;
    req->model = form->model;
    req->received_ms = ctx->received;
    req->deadline_ms = ngx_current_msec + ctx->conf->queue_timeout;
    req->stops = form->stops;
    req->nstops = form->nstops;

    req->logit_bias = form->logit_bias.bias;
    req->nlogit_bias = form->logit_bias.n;

    req->sampling = form->sampling;
    ngx_http_vlm_record_sampling(ctx, &req->sampling);

    size = vlm_record_size(req);

    if (size == 0) {
        vlm_fail(&ctx->fail, NGX_HTTP_REQUEST_ENTITY_TOO_LARGE,
                 "payload_too_large", NULL,
                 "the request does not fit into a record");
        return NGX_ERROR;
    }

    if (ngx_http_vlm_room_add(ctx, size, offset) != NGX_OK) {
        return NGX_ERROR;
    }

    vlm_record_encode(req, ctx->main->arena.base + *offset, size);

    *length = size;

    return NGX_OK;
}


/* a system message if there is one; pictures in order, then the prompt */

static ngx_int_t
ngx_http_vlm_record_messages(ngx_http_vlm_ctx_t *ctx,
    ngx_http_vlm_record_t *rec)
{
    ngx_uint_t            i;
    vlm_form_t           *form;
    vlm_request_t        *req;
    vlm_message_t        *msg;
    ngx_http_vlm_body_t  *body;

    body = ctx->body;
    form = &body->form;
    req = &rec->request;

    if (!form->has_system
        && ngx_http_vlm_record_default(ctx, ctx->conf->system, NULL, "system",
                                       &body->system)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (!form->has_prompt && form->npictures
        && ngx_http_vlm_record_default(ctx, ctx->conf->prompt,
                                       "Describe this image.", "prompt",
                                       &body->prompt)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    req->messages = rec->messages;
    req->parts = rec->parts;
    req->pictures = body->pictures;
    req->npictures = form->npictures;

    msg = rec->messages;

    if (body->system.length) {
        msg->role = VLM_ROLE_SYSTEM;
        msg->first_part = 0;
        ngx_http_vlm_record_part(rec, &body->system);
        msg->nparts = 1;
        msg++;
    }

    msg->role = VLM_ROLE_USER;
    msg->first_part = req->nparts;

    for (i = 0; i < form->npictures; i++) {
        body->pictures[i].detail = form->detail;

        rec->parts[req->nparts].type = VLM_PART_PICTURE;
        rec->parts[req->nparts].picture = i;
        req->nparts++;
    }

    if (body->prompt.length) {
        ngx_http_vlm_record_part(rec, &body->prompt);
    }

    msg->nparts = req->nparts - msg->first_part;
    req->nmessages = msg - rec->messages + 1;

    return NGX_OK;
}


static ngx_int_t
ngx_http_vlm_record_default(ngx_http_vlm_ctx_t *ctx,
    ngx_http_complex_value_t *cv, const char *fallback, const char *param,
    vlm_extent_t *extent)
{
    ngx_str_t            value;
    vlm_utf8_t           utf8;
    ngx_http_request_t  *r;

    r = ctx->request;

    if (cv) {
        if (ngx_http_complex_value(r, cv, &value) != NGX_OK) {
            vlm_fail(&ctx->fail, NGX_HTTP_INTERNAL_SERVER_ERROR, NULL, NULL,
                     "there is not enough memory");
            return NGX_ERROR;
        }

    } else if (fallback) {
        value.data = (u_char *) fallback;
        value.len = ngx_strlen(fallback);

    } else {
        return NGX_OK;
    }

    if (value.len == 0) {
        return NGX_OK;
    }

    ngx_memzero(&utf8, sizeof(vlm_utf8_t));

    if (vlm_utf8_add(&utf8, value.data, value.len) != 0
        || vlm_utf8_end(&utf8) != 0)
    {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "\"vlm_%s\" of %uz bytes is not valid UTF-8",
                      param, value.len);

        vlm_fail(&ctx->fail, NGX_HTTP_BAD_REQUEST, "invalid_utf8", param,
                 "the default of %s is not valid UTF-8", param);
        return NGX_ERROR;
    }

    if (ngx_http_vlm_room_add(ctx, value.len, &extent->offset) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_memcpy(ctx->main->arena.base + extent->offset, value.data, value.len);
    extent->length = value.len;

    return NGX_OK;
}


static void
ngx_http_vlm_record_part(ngx_http_vlm_record_t *rec, vlm_extent_t *text)
{
    vlm_part_t  *part;

    part = &rec->parts[rec->request.nparts++];

    part->type = VLM_PART_TEXT;
    part->text = *text;
}


static void
ngx_http_vlm_record_sampling(ngx_http_vlm_ctx_t *ctx, vlm_sampling_t *sampling)
{
    uint32_t  max;

    max = ctx->conf->max_tokens;

    if (!(sampling->set & VLM_SET_MAX_TOKENS) || sampling->max_tokens > max) {
        sampling->max_tokens = max;
        sampling->set |= VLM_SET_MAX_TOKENS;
    }

    if (!ctx->output.logprobs) {
        sampling->logprobs = 0;
        sampling->top_logprobs = 0;
    }
}


static ngx_int_t
ngx_http_vlm_record_scope(ngx_http_vlm_ctx_t *ctx, ngx_str_t *scope)
{
    u_char               hash[EVP_MAX_MD_SIZE];
    u_char              *p;
    unsigned             len;
    ngx_http_request_t  *r;

    r = ctx->request;

    ngx_str_null(scope);

    if (ctx->conf->cache_scope == NULL) {
        return NGX_OK;
    }

    if (ngx_http_complex_value(r, ctx->conf->cache_scope, scope) != NGX_OK) {
        return NGX_ERROR;
    }

    if (scope->len <= VLM_MAX_SCOPE) {
        return NGX_OK;
    }

    if (EVP_Digest(scope->data, scope->len, hash, &len, EVP_sha256(), NULL)
        != 1)
    {
        return NGX_ERROR;
    }

    p = ngx_pnalloc(r->pool, 2 * len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    scope->data = p;
    scope->len = ngx_hex_dump(p, hash, len) - p;

    return NGX_OK;
}
