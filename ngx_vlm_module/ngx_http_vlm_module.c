
/* Directives and their checks; start and end of a worker process. */


#include "ngx_http_vlm_module.h"


static void *ngx_http_vlm_create_main_conf(ngx_conf_t *cf);
static char *ngx_http_vlm_init_main_conf(ngx_conf_t *cf, void *conf);
static void *ngx_http_vlm_create_loc_conf(ngx_conf_t *cf);
static char *ngx_http_vlm_merge_loc_conf(ngx_conf_t *cf, void *parent,
    void *child);
static char *ngx_http_vlm_check_loc_conf(ngx_conf_t *cf,
    ngx_http_vlm_loc_conf_t *conf);
static ngx_int_t ngx_http_vlm_init(ngx_conf_t *cf);
static void ngx_http_vlm_exit_process(ngx_cycle_t *cycle);


static ngx_conf_num_bounds_t  ngx_http_vlm_requests_bounds = {
    ngx_conf_check_num_bounds, 1, NGX_HTTP_VLM_MAX_REQUESTS
};

static ngx_conf_num_bounds_t  ngx_http_vlm_images_bounds = {
    ngx_conf_check_num_bounds, 0, VLM_MAX_PICTURES
};

static ngx_conf_num_bounds_t  ngx_http_vlm_parts_bounds = {
    ngx_conf_check_num_bounds, 1, 65536
};

static ngx_conf_num_bounds_t  ngx_http_vlm_tokens_bounds = {
    ngx_conf_check_num_bounds, 1, 16777216
};


static ngx_command_t  ngx_http_vlm_commands[] = {

    { ngx_string("vlm_pass"),
      NGX_HTTP_LOC_CONF|NGX_HTTP_LIF_CONF|NGX_HTTP_LMT_CONF|NGX_CONF_TAKE1,
      ngx_http_vlm_pass,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("vlm_engine"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_BLOCK|NGX_CONF_TAKE1,
      ngx_http_vlm_engine_block,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("vlm_arena_size"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_off_slot,
      NGX_HTTP_MAIN_CONF_OFFSET,
      offsetof(ngx_http_vlm_main_conf_t, arena_size),
      NULL },

    { ngx_string("vlm_max_requests"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_num_slot,
      NGX_HTTP_MAIN_CONF_OFFSET,
      offsetof(ngx_http_vlm_main_conf_t, max_requests),
      &ngx_http_vlm_requests_bounds },

    { ngx_string("vlm_max_request_size"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_vlm_loc_conf_t, max_request_size),
      NULL },

    { ngx_string("vlm_max_images"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_num_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_vlm_loc_conf_t, max_images),
      &ngx_http_vlm_images_bounds },

    { ngx_string("vlm_max_image_size"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_vlm_loc_conf_t, max_image_size),
      NULL },

    { ngx_string("vlm_max_text_size"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_vlm_loc_conf_t, max_text_size),
      NULL },

    { ngx_string("vlm_max_parts"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_num_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_vlm_loc_conf_t, max_parts),
      &ngx_http_vlm_parts_bounds },

    { ngx_string("vlm_system"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_set_complex_value_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_vlm_loc_conf_t, system),
      NULL },

    { ngx_string("vlm_prompt"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_set_complex_value_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_vlm_loc_conf_t, prompt),
      NULL },

    { ngx_string("vlm_max_tokens"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_num_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_vlm_loc_conf_t, max_tokens),
      &ngx_http_vlm_tokens_bounds },

    { ngx_string("vlm_connect_timeout"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_vlm_loc_conf_t, connect_timeout),
      NULL },

    { ngx_string("vlm_queue_timeout"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_vlm_loc_conf_t, queue_timeout),
      NULL },

    { ngx_string("vlm_read_timeout"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_vlm_loc_conf_t, read_timeout),
      NULL },

    { ngx_string("vlm_ping_interval"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_vlm_loc_conf_t, ping_interval),
      NULL },

    { ngx_string("vlm_output_buffer_size"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_vlm_loc_conf_t, output_buffer_size),
      NULL },

    { ngx_string("vlm_ignore_client_abort"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_vlm_loc_conf_t, ignore_client_abort),
      NULL },

    { ngx_string("vlm_cache_scope"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_set_complex_value_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_vlm_loc_conf_t, cache_scope),
      NULL },

    { ngx_string("vlm_zone"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_http_vlm_zone,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("vlm_status"),
      NGX_HTTP_LOC_CONF|NGX_HTTP_LIF_CONF|NGX_CONF_NOARGS,
      ngx_http_vlm_status,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

      ngx_null_command
};


static ngx_http_module_t  ngx_http_vlm_module_ctx = {
    ngx_http_vlm_add_variables,            /* preconfiguration */
    ngx_http_vlm_init,                     /* postconfiguration */

    ngx_http_vlm_create_main_conf,         /* create main configuration */
    ngx_http_vlm_init_main_conf,           /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_http_vlm_create_loc_conf,          /* create location configuration */
    ngx_http_vlm_merge_loc_conf            /* merge location configuration */
};


ngx_module_t  ngx_http_vlm_module = {
    NGX_MODULE_V1,
    &ngx_http_vlm_module_ctx,              /* module context */
    ngx_http_vlm_commands,                 /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    NULL,                                  /* init module */
    NULL,                                  /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_http_vlm_exit_process,             /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static void *
ngx_http_vlm_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_vlm_main_conf_t  *vmcf;

    vmcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_vlm_main_conf_t));
    if (vmcf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&vmcf->engines, cf->pool, 4,
                       sizeof(ngx_http_vlm_engine_t *))
        != NGX_OK
        || ngx_array_init(&vmcf->groups, cf->pool, 4,
                          sizeof(ngx_http_vlm_group_t *))
           != NGX_OK)
    {
        return NULL;
    }

    vmcf->arena_size = NGX_CONF_UNSET;
    vmcf->max_requests = NGX_CONF_UNSET_UINT;

    ngx_queue_init(&vmcf->uploads);
    ngx_queue_init(&vmcf->starved);

    return vmcf;
}


static char *
ngx_http_vlm_init_main_conf(ngx_conf_t *cf, void *conf)
{
    ngx_http_vlm_main_conf_t  *vmcf = conf;

    if (vmcf->arena_size == NGX_CONF_UNSET) {
        vmcf->arena_size = (off_t) 1024 * 1024 * 1024;
    }

    ngx_conf_init_uint_value(vmcf->max_requests, 4096);

    return NGX_CONF_OK;
}


static void *
ngx_http_vlm_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_vlm_loc_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_vlm_loc_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    /*
     * set by ngx_pcalloc():
     *
     *     conf->group = NULL;
     */

    conf->max_request_size = NGX_CONF_UNSET_SIZE;
    conf->max_images = NGX_CONF_UNSET_UINT;
    conf->max_image_size = NGX_CONF_UNSET_SIZE;
    conf->max_text_size = NGX_CONF_UNSET_SIZE;
    conf->max_parts = NGX_CONF_UNSET_UINT;
    conf->max_tokens = NGX_CONF_UNSET_UINT;

    conf->system = NGX_CONF_UNSET_PTR;
    conf->prompt = NGX_CONF_UNSET_PTR;
    conf->cache_scope = NGX_CONF_UNSET_PTR;

    conf->connect_timeout = NGX_CONF_UNSET_MSEC;
    conf->queue_timeout = NGX_CONF_UNSET_MSEC;
    conf->read_timeout = NGX_CONF_UNSET_MSEC;
    conf->ping_interval = NGX_CONF_UNSET_MSEC;

    conf->output_buffer_size = NGX_CONF_UNSET_SIZE;
    conf->ignore_client_abort = NGX_CONF_UNSET;

    return conf;
}


static char *
ngx_http_vlm_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_vlm_loc_conf_t *prev = parent;
    ngx_http_vlm_loc_conf_t *conf = child;

    ngx_http_core_loc_conf_t  *clcf;

    ngx_conf_merge_size_value(conf->max_request_size, prev->max_request_size,
                              32 * 1024 * 1024);
    ngx_conf_merge_uint_value(conf->max_images, prev->max_images, 8);
    ngx_conf_merge_size_value(conf->max_image_size, prev->max_image_size,
                              20 * 1024 * 1024);
    ngx_conf_merge_size_value(conf->max_text_size, prev->max_text_size,
                              256 * 1024);
    ngx_conf_merge_uint_value(conf->max_parts, prev->max_parts, 64);
    ngx_conf_merge_uint_value(conf->max_tokens, prev->max_tokens, 1024);

    ngx_conf_merge_ptr_value(conf->system, prev->system, NULL);
    ngx_conf_merge_ptr_value(conf->prompt, prev->prompt, NULL);
    ngx_conf_merge_ptr_value(conf->cache_scope, prev->cache_scope, NULL);

    ngx_conf_merge_msec_value(conf->connect_timeout, prev->connect_timeout,
                              1000);
    ngx_conf_merge_msec_value(conf->queue_timeout, prev->queue_timeout, 30000);
    ngx_conf_merge_msec_value(conf->read_timeout, prev->read_timeout, 60000);
    ngx_conf_merge_msec_value(conf->ping_interval, prev->ping_interval, 15000);

    ngx_conf_merge_size_value(conf->output_buffer_size,
                              prev->output_buffer_size, 64 * 1024);
    ngx_conf_merge_value(conf->ignore_client_abort, prev->ignore_client_abort,
                         0);

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->noname && conf->group == NULL) {
        conf->group = prev->group;
    }

    if (clcf->lmt_excpt && clcf->handler == NULL && conf->group) {
        clcf->handler = ngx_http_vlm_handler;
    }

    if (conf->group == NULL) {
        return NGX_CONF_OK;
    }

    return ngx_http_vlm_check_loc_conf(cf, conf);
}


static char *
ngx_http_vlm_check_loc_conf(ngx_conf_t *cf, ngx_http_vlm_loc_conf_t *conf)
{
    off_t                      need;
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_vlm_main_conf_t  *vmcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->client_max_body_size == 1024 * 1024) {

        /* NGINX's default is no limit of ours: vlm_max_request_size is */

        clcf->client_max_body_size = 0;

    } else if (clcf->client_max_body_size
               && clcf->client_max_body_size < (off_t) conf->max_request_size)
    {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "\"client_max_body_size\" of %O bytes is smaller "
                           "than \"vlm_max_request_size\" of %uz bytes in "
                           "location \"%V\"", clcf->client_max_body_size,
                           conf->max_request_size, &clcf->name);
    }

    if (conf->max_request_size == 0 || conf->max_image_size == 0
        || conf->max_text_size == 0)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"vlm_max_request_size\", \"vlm_max_image_size\" "
                           "and \"vlm_max_text_size\" must not be 0 in "
                           "location \"%V\"", &clcf->name);
        return NGX_CONF_ERROR;
    }

    if (conf->output_buffer_size < NGX_HTTP_VLM_MIN_OUTPUT) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"vlm_output_buffer_size\" of %uz bytes is "
                           "smaller than %d bytes in location \"%V\"",
                           conf->output_buffer_size, NGX_HTTP_VLM_MIN_OUTPUT,
                           &clcf->name);
        return NGX_CONF_ERROR;
    }

    if (conf->connect_timeout == 0 || conf->queue_timeout == 0
        || conf->read_timeout == 0 || conf->ping_interval == 0)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"vlm_connect_timeout\", \"vlm_queue_timeout\", "
                           "\"vlm_read_timeout\" and \"vlm_ping_interval\" "
                           "must not be 0 in location \"%V\"", &clcf->name);
        return NGX_CONF_ERROR;
    }

    /* after all its requests have timed out */

    conf->group->patience = ngx_max(conf->group->patience,
                                    2 * conf->read_timeout);

    /* the body, the record, and what rounding up to pages may take */

    need = (off_t) ngx_min(conf->max_request_size, NGX_MAX_OFF_T_VALUE / 2)
           + NGX_HTTP_VLM_RECORD_ROOM
           + (off_t) ngx_pagesize * (conf->max_images + 4);

    vmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_vlm_module);

    if (vmcf->need < need) {
        vmcf->need = need;
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_vlm_init(ngx_conf_t *cf)
{
    ngx_http_vlm_main_conf_t  *vmcf;

    vmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_vlm_module);

    if (vmcf->arena_size < vmcf->need) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"vlm_arena_size\" of %O bytes is smaller than "
                           "the %O bytes that one request may need by "
                           "\"vlm_max_request_size\"",
                           vmcf->arena_size, vmcf->need);
        return NGX_ERROR;
    }

    if (vmcf->status && vmcf->shm_zone == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"vlm_status\" needs a \"vlm_zone\"");
        return NGX_ERROR;
    }

    return ngx_http_vlm_init_groups(cf, vmcf);
}


static void
ngx_http_vlm_exit_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                  i;
    ngx_http_vlm_engine_t     **engines;
    ngx_http_vlm_main_conf_t   *vmcf;

    vmcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_vlm_module);

    if (vmcf == NULL) {
        return;
    }

    ngx_http_vlm_zone_leave(vmcf);

    if (!vmcf->started) {
        return;
    }

    engines = vmcf->engines.elts;

    for (i = 0; i < vmcf->engines.nelts; i++) {
        ngx_http_vlm_engine_exit(engines[i]);
    }

    if (vmcf->nrequests == 0) {
        vlm_arena_destroy(&vmcf->arena);
    }
}
