
/* $vlm_*: what is known of a request, for logs. */


#include "ngx_http_vlm_module.h"


static ngx_int_t ngx_http_vlm_variable_status(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_vlm_variable_string(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_vlm_variable_number(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_vlm_variable_time(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_vlm_variable_cache(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_vlm_variable_none(ngx_http_variable_value_t *v);
static ngx_int_t ngx_http_vlm_variable_printf(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, const char *fmt, ...);


#define NGX_HTTP_VLM_ENGINE             0
#define NGX_HTTP_VLM_MODEL              1

#define NGX_HTTP_VLM_IMAGES             0
#define NGX_HTTP_VLM_IMAGE_TOKENS       1
#define NGX_HTTP_VLM_PROMPT_TOKENS      2
#define NGX_HTTP_VLM_CACHED_TOKENS      3
#define NGX_HTTP_VLM_COMPLETION_TOKENS  4


static ngx_http_variable_t  ngx_http_vlm_vars[] = {

    { ngx_string("vlm_status"), NULL, ngx_http_vlm_variable_status,
      0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("vlm_engine"), NULL, ngx_http_vlm_variable_string,
      NGX_HTTP_VLM_ENGINE, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("vlm_model"), NULL, ngx_http_vlm_variable_string,
      NGX_HTTP_VLM_MODEL, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("vlm_images"), NULL, ngx_http_vlm_variable_number,
      NGX_HTTP_VLM_IMAGES, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("vlm_image_tokens"), NULL, ngx_http_vlm_variable_number,
      NGX_HTTP_VLM_IMAGE_TOKENS, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("vlm_prompt_tokens"), NULL, ngx_http_vlm_variable_number,
      NGX_HTTP_VLM_PROMPT_TOKENS, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("vlm_cached_tokens"), NULL, ngx_http_vlm_variable_number,
      NGX_HTTP_VLM_CACHED_TOKENS, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("vlm_completion_tokens"), NULL, ngx_http_vlm_variable_number,
      NGX_HTTP_VLM_COMPLETION_TOKENS, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("vlm_image_cache"), NULL, ngx_http_vlm_variable_cache,
      0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("vlm_queue_time"), NULL, ngx_http_vlm_variable_time,
      offsetof(vlm_event_done_t, queue_us), NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("vlm_encode_time"), NULL, ngx_http_vlm_variable_time,
      offsetof(vlm_event_done_t, encode_us), NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("vlm_first_token_time"), NULL, ngx_http_vlm_variable_time,
      offsetof(vlm_event_done_t, first_token_us), NGX_HTTP_VAR_NOCACHEABLE,
      0 },

    { ngx_string("vlm_total_time"), NULL, ngx_http_vlm_variable_time,
      offsetof(vlm_event_done_t, total_us), NGX_HTTP_VAR_NOCACHEABLE, 0 },

      ngx_http_null_variable
};


ngx_int_t
ngx_http_vlm_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t  *var, *v;

    for (v = ngx_http_vlm_vars; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    return NGX_OK;
}


/* as it would be if the whole answer could be known before its first byte */

static ngx_int_t
ngx_http_vlm_variable_status(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_http_vlm_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_vlm_module);

    if (ctx == NULL || ctx->status == 0) {
        return ngx_http_vlm_variable_none(v);
    }

    return ngx_http_vlm_variable_printf(r, v, "%03ui", ctx->status);
}


static ngx_int_t
ngx_http_vlm_variable_string(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t           *value;
    ngx_http_vlm_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_vlm_module);

    if (ctx == NULL) {
        return ngx_http_vlm_variable_none(v);
    }

    value = (data == NGX_HTTP_VLM_ENGINE) ? &ctx->engine->name : &ctx->model;

    if (value->len == 0) {
        return ngx_http_vlm_variable_none(v);
    }

    v->data = value->data;
    v->len = value->len;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}


static ngx_int_t
ngx_http_vlm_variable_number(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_uint_t           n;
    ngx_http_vlm_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_vlm_module);

    if (ctx == NULL) {
        return ngx_http_vlm_variable_none(v);
    }

    switch (data) {

    case NGX_HTTP_VLM_IMAGES:
        n = ctx->npictures;
        break;

    case NGX_HTTP_VLM_IMAGE_TOKENS:
        n = ctx->finished ? ctx->done.image_tokens : ctx->image_tokens;
        break;

    case NGX_HTTP_VLM_PROMPT_TOKENS:
        n = ctx->finished ? ctx->done.prompt_tokens : ctx->prompt_tokens;
        break;

    case NGX_HTTP_VLM_CACHED_TOKENS:
        n = ctx->done.cached_tokens;
        break;

    default: /* NGX_HTTP_VLM_COMPLETION_TOKENS */
        n = ctx->finished ? ctx->done.completion_tokens : ctx->ntokens;
        break;
    }

    return ngx_http_vlm_variable_printf(r, v, "%ui", n);
}


static ngx_int_t
ngx_http_vlm_variable_time(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    uint32_t             us;
    ngx_http_vlm_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_vlm_module);

    if (ctx == NULL || !ctx->finished) {
        return ngx_http_vlm_variable_none(v);
    }

    us = *(uint32_t *) ((u_char *) &ctx->done + data);

    return ngx_http_vlm_variable_printf(r, v, "%uD.%03uD", us / 1000000,
                                        us / 1000 % 1000);
}


static ngx_int_t
ngx_http_vlm_variable_cache(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    u_char              *p;
    ngx_str_t           *name;
    ngx_uint_t           i;
    ngx_http_vlm_ctx_t  *ctx;

    static ngx_str_t  names[] = {
        ngx_null_string,
        ngx_string("miss"),                 /* VLM_CACHE_MISS */
        ngx_string("joined"),               /* VLM_CACHE_JOINED */
        ngx_string("hit-memory"),           /* VLM_CACHE_HIT_MEMORY */
        ngx_string("hit-redis"),            /* VLM_CACHE_HIT_REDIS */
        ngx_string("prefix")                /* VLM_CACHE_PREFIX */
    };

    ctx = ngx_http_get_module_ctx(r, ngx_http_vlm_module);

    if (ctx == NULL || ctx->done.noutcomes == 0) {
        return ngx_http_vlm_variable_none(v);
    }

    p = ngx_pnalloc(r->pool,
                    ctx->done.noutcomes * (sizeof("hit-memory,") - 1));
    if (p == NULL) {
        return NGX_ERROR;
    }

    v->data = p;

    for (i = 0; i < ctx->done.noutcomes; i++) {
        name = &names[ctx->done.outcomes[i]];

        if (i) {
            *p++ = ',';
        }

        p = ngx_cpymem(p, name->data, name->len);
    }

    v->len = p - v->data;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}


static ngx_int_t
ngx_http_vlm_variable_none(ngx_http_variable_value_t *v)
{
    v->not_found = 1;

    return NGX_OK;
}


static ngx_int_t
ngx_http_vlm_variable_printf(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, const char *fmt, ...)
{
    u_char   *p;
    va_list   args;

    v->data = ngx_pnalloc(r->pool, 2 * NGX_INT64_LEN);
    if (v->data == NULL) {
        return NGX_ERROR;
    }

    va_start(args, fmt);
    p = ngx_vslprintf(v->data, v->data + 2 * NGX_INT64_LEN, fmt, args);
    va_end(args);

    v->len = p - v->data;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}
