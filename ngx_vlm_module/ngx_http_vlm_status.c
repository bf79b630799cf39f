
/* vlm_status: the counters of all workers, and what the engines are at. */


#include "ngx_http_vlm_module.h"


static ngx_int_t ngx_http_vlm_status_handler(ngx_http_request_t *r);
static ngx_int_t ngx_http_vlm_status_engines(ngx_http_request_t *r,
    vlm_metrics_engine_t **engines, ngx_uint_t *n);
static ngx_uint_t ngx_http_vlm_status_json(ngx_http_request_t *r);
static ngx_int_t ngx_http_vlm_status_send(ngx_http_request_t *r,
    ngx_buf_t *b, ngx_uint_t json);


char *
ngx_http_vlm_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_vlm_main_conf_t  *vmcf;

    vmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_vlm_module);
    vmcf->status = 1;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_vlm_status_handler;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_vlm_status_handler(ngx_http_request_t *r)
{
    vlm_out_t                  o;
    ngx_int_t                  rc;
    ngx_buf_t                 *b;
    ngx_uint_t                 n, workers, json, pass;
    vlm_metrics_t              sum;
    vlm_metrics_engine_t      *engines;
    ngx_http_vlm_main_conf_t  *vmcf;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    vmcf = ngx_http_get_module_main_conf(r, ngx_http_vlm_module);

    if (ngx_http_vlm_status_engines(r, &engines, &n) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    workers = ngx_http_vlm_zone_sum(vmcf, &sum);
    json = ngx_http_vlm_status_json(r);

    vlm_out_init(&o, NULL, 0);
    b = NULL;

    /* measured first, then written */

    for (pass = 0; pass < 2; pass++) {

        if (json) {
            vlm_metrics_json(&o, &sum, workers, engines, n);

        } else {
            vlm_metrics_prometheus(&o, &sum, workers, engines, n);
        }

        if (pass == 0) {
            b = ngx_create_temp_buf(r->pool, o.len);
            if (b == NULL) {
                return NGX_HTTP_INTERNAL_SERVER_ERROR;
            }

            vlm_out_init(&o, b->start, b->end - b->start);
        }
    }

    b->last += o.len;

    return ngx_http_vlm_status_send(r, b, json);
}


static ngx_int_t
ngx_http_vlm_status_engines(ngx_http_request_t *r,
    vlm_metrics_engine_t **engines, ngx_uint_t *n)
{
    ngx_uint_t                  i;
    vlm_metrics_engine_t       *e;
    ngx_http_vlm_engine_t     **elts;
    ngx_http_vlm_main_conf_t   *vmcf;

    vmcf = ngx_http_get_module_main_conf(r, ngx_http_vlm_module);

    elts = vmcf->engines.elts;
    *n = vmcf->engines.nelts;

    e = ngx_palloc(r->pool, (*n + 1) * sizeof(vlm_metrics_engine_t));
    if (e == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < *n; i++) {

        /*
         * While this worker is being connected, for the next time, it tells
         * what others have seen.
         */

        if (ngx_http_vlm_engine_get(elts[i]) != NGX_AGAIN) {
            ngx_http_vlm_zone_set_engine(elts[i]);
        }

        ngx_http_vlm_zone_get_engine(elts[i], &e[i]);
    }

    *engines = e;

    return NGX_OK;
}


static ngx_uint_t
ngx_http_vlm_status_json(ngx_http_request_t *r)
{
    ngx_str_t  value;

    if (ngx_http_arg(r, (u_char *) "format", 6, &value) == NGX_OK) {
        return value.len == 4 && ngx_strncmp(value.data, "json", 4) == 0;
    }

    return ngx_http_vlm_accept(r, VLM_STREAM_UNSET) == VLM_ANSWER_JSON;
}


static ngx_int_t
ngx_http_vlm_status_send(ngx_http_request_t *r, ngx_buf_t *b,
    ngx_uint_t json)
{
    ngx_int_t    rc;
    ngx_str_t    value;
    ngx_chain_t  out;

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = b->last - b->pos;

    if (json) {
        ngx_str_set(&r->headers_out.content_type, "application/json");

    } else {
        ngx_str_set(&r->headers_out.content_type,
                    "text/plain; version=0.0.4");
        ngx_str_set(&r->headers_out.charset, "utf-8");
    }

    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    ngx_str_set(&value, "no-store");

    if (ngx_http_vlm_add_header(r, "Cache-Control", &value) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->last_buf = (r == r->main);
    b->last_in_chain = 1;

    out.buf = b;
    out.next = NULL;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_output_filter(r, &out);
}
