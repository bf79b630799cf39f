
/*
 * vlm_pass and vlm_engine: which engine a request goes to.
 *
 * Of those that are connected, the one with the fewest requests of this
 * worker; with "affinity image", when the body is there, the one that the
 * digest of its first picture points to, so that its cache is used.  One that
 * failed max_fails times in a row is left out for fail_timeout.
 */


#include "ngx_http_vlm_module.h"


#define NGX_HTTP_VLM_MAX_SERVERS  64

/* which servers are asked, in this order */

#define NGX_HTTP_VLM_WELL         0
#define NGX_HTTP_VLM_BACKUP       1
#define NGX_HTTP_VLM_FAILED       2
#define NGX_HTTP_VLM_KINDS        3


static ngx_http_vlm_group_t *ngx_http_vlm_add_group(ngx_conf_t *cf,
    ngx_str_t *name);
static ngx_http_vlm_server_t *ngx_http_vlm_add_server(ngx_conf_t *cf,
    ngx_http_vlm_group_t *group, ngx_str_t *name);
static ngx_http_vlm_engine_t *ngx_http_vlm_add_engine(ngx_conf_t *cf,
    ngx_str_t *name);
static char *ngx_http_vlm_group_line(ngx_conf_t *cf, ngx_command_t *dummy,
    void *conf);
static char *ngx_http_vlm_server(ngx_conf_t *cf, ngx_http_vlm_group_t *group);
static char *ngx_http_vlm_affinity(ngx_conf_t *cf,
    ngx_http_vlm_group_t *group);
static ngx_int_t ngx_http_vlm_choose_kind(ngx_http_vlm_ctx_t *ctx,
    ngx_uint_t kind, vlm_fail_t *fail);
static ngx_uint_t ngx_http_vlm_server_kind(ngx_http_vlm_server_t *server);
static ngx_http_vlm_server_t *ngx_http_vlm_least(ngx_http_vlm_group_t *group,
    ngx_uint_t kind, uint64_t tried, ngx_uint_t *n);
static void ngx_http_vlm_move(ngx_http_vlm_ctx_t *ctx,
    ngx_http_vlm_engine_t *engine);
static uint64_t ngx_http_vlm_score(ngx_http_vlm_engine_t *engine,
    const uint8_t *digest);


char *
ngx_http_vlm_pass(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_vlm_loc_conf_t *vlcf = conf;

    ngx_str_t                 *value;
    ngx_http_vlm_group_t      *group;
    ngx_http_core_loc_conf_t  *clcf;

    if (vlcf->group) {
        return "is duplicate";
    }

    value = cf->args->elts;

    group = ngx_http_vlm_add_group(cf, &value[1]);
    if (group == NULL) {
        return NGX_CONF_ERROR;
    }

    if (group->servers.nelts == 0 && value[1].len >= 5
        && ngx_strncmp(value[1].data, "unix:", 5) == 0)
    {
        if (ngx_http_vlm_add_server(cf, group, &value[1]) == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    vlcf->group = group;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    clcf->handler = ngx_http_vlm_handler;

    return NGX_CONF_OK;
}


/* found, or empty if it is new */

static ngx_http_vlm_group_t *
ngx_http_vlm_add_group(ngx_conf_t *cf, ngx_str_t *name)
{
    ngx_uint_t                  i;
    ngx_http_vlm_group_t       *group, **groups;
    ngx_http_vlm_main_conf_t   *vmcf;

    vmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_vlm_module);
    groups = vmcf->groups.elts;

    for (i = 0; i < vmcf->groups.nelts; i++) {
        if (groups[i]->name.len == name->len
            && ngx_strncmp(groups[i]->name.data, name->data, name->len) == 0)
        {
            return groups[i];
        }
    }

    group = ngx_pcalloc(cf->pool, sizeof(ngx_http_vlm_group_t));
    if (group == NULL) {
        return NULL;
    }

    group->name = *name;
    group->file = cf->conf_file->file.name;
    group->line = cf->conf_file->line;

    if (ngx_array_init(&group->servers, cf->pool, 4,
                       sizeof(ngx_http_vlm_server_t))
        != NGX_OK)
    {
        return NULL;
    }

    groups = ngx_array_push(&vmcf->groups);
    if (groups == NULL) {
        return NULL;
    }

    *groups = group;

    return group;
}


static ngx_http_vlm_server_t *
ngx_http_vlm_add_server(ngx_conf_t *cf, ngx_http_vlm_group_t *group,
    ngx_str_t *name)
{
    ngx_http_vlm_engine_t  *engine;
    ngx_http_vlm_server_t  *server;

    if (group->servers.nelts == NGX_HTTP_VLM_MAX_SERVERS) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "more than %d engines in one group",
                           NGX_HTTP_VLM_MAX_SERVERS);
        return NULL;
    }

    engine = ngx_http_vlm_add_engine(cf, name);
    if (engine == NULL) {
        return NULL;
    }

    server = ngx_array_push(&group->servers);
    if (server == NULL) {
        return NULL;
    }

    ngx_memzero(server, sizeof(ngx_http_vlm_server_t));

    server->engine = engine;

    return server;
}


static ngx_http_vlm_engine_t *
ngx_http_vlm_add_engine(ngx_conf_t *cf, ngx_str_t *name)
{
    size_t                      max;
    ngx_uint_t                  i;
    ngx_http_vlm_engine_t      *engine, **engines;
    ngx_http_vlm_main_conf_t   *vmcf;

    vmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_vlm_module);
    engines = vmcf->engines.elts;

    for (i = 0; i < vmcf->engines.nelts; i++) {
        if (engines[i]->name.len == name->len
            && ngx_strncmp(engines[i]->name.data, name->data, name->len) == 0)
        {
            return engines[i];
        }
    }

    if (name->len <= 5 || ngx_strncmp(name->data, "unix:", 5) != 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid engine \"%V\", \"unix:PATH\" is expected",
                           name);
        return NULL;
    }

    max = sizeof(((struct sockaddr_un *) NULL)->sun_path) - 1;

    if (name->len - 5 > max) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "the path of engine \"%V\" is longer than "
                           "%uz bytes", name, max);
        return NULL;
    }

    engine = ngx_pcalloc(cf->pool, sizeof(ngx_http_vlm_engine_t));
    if (engine == NULL) {
        return NULL;
    }

    engine->name = *name;
    engine->path = (char *) name->data + 5;    /* zero-terminated by the
                                                  parser */
    engine->main = vmcf;
    engine->channel.fd = -1;

    ngx_queue_init(&engine->waiting);

    engines = ngx_array_push(&vmcf->engines);
    if (engines == NULL) {
        return NULL;
    }

    *engines = engine;

    return engine;
}


char *
ngx_http_vlm_engine_block(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char                  *rv;
    ngx_str_t             *value;
    ngx_conf_t             save;
    ngx_http_vlm_group_t  *group;

    value = cf->args->elts;

    if (value[1].len == 0
        || (value[1].len >= 5
            && ngx_strncmp(value[1].data, "unix:", 5) == 0))
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid name \"%V\" of a group of engines",
                           &value[1]);
        return NGX_CONF_ERROR;
    }

    group = ngx_http_vlm_add_group(cf, &value[1]);
    if (group == NULL) {
        return NGX_CONF_ERROR;
    }

    if (group->servers.nelts) {
        return "is duplicate";
    }

    save = *cf;
    cf->handler = ngx_http_vlm_group_line;
    cf->handler_conf = (char *) group;

    rv = ngx_conf_parse(cf, NULL);

    *cf = save;

    if (rv == NGX_CONF_OK && group->servers.nelts == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "no engines are in group \"%V\"", &group->name);
        return NGX_CONF_ERROR;
    }

    return rv;
}


static char *
ngx_http_vlm_group_line(ngx_conf_t *cf, ngx_command_t *dummy, void *conf)
{
    ngx_str_t             *value;
    ngx_http_vlm_group_t  *group;

    group = (ngx_http_vlm_group_t *) conf;
    value = cf->args->elts;

    if (ngx_strcmp(value[0].data, "server") == 0 && cf->args->nelts > 1) {
        return ngx_http_vlm_server(cf, group);
    }

    if (ngx_strcmp(value[0].data, "affinity") == 0 && cf->args->nelts == 2) {
        return ngx_http_vlm_affinity(cf, group);
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "unexpected \"%V\", or its number of parameters",
                       &value[0]);

    return NGX_CONF_ERROR;
}


static char *
ngx_http_vlm_server(ngx_conf_t *cf, ngx_http_vlm_group_t *group)
{
    ngx_int_t               n;
    ngx_str_t              *value, s;
    ngx_uint_t              i;
    ngx_http_vlm_server_t  *server;

    value = cf->args->elts;

    server = ngx_http_vlm_add_server(cf, group, &value[1]);
    if (server == NULL) {
        return NGX_CONF_ERROR;
    }

    server->max_fails = 1;
    server->fail_timeout = 10000;

    for (i = 2; i < cf->args->nelts; i++) {

        if (ngx_strcmp(value[i].data, "backup") == 0) {
            server->backup = 1;
            continue;
        }

        if (ngx_strncmp(value[i].data, "max_fails=", 10) == 0) {
            n = ngx_atoi(value[i].data + 10, value[i].len - 10);

            if (n != NGX_ERROR) {
                server->max_fails = n;
                continue;
            }
        }

        if (ngx_strncmp(value[i].data, "fail_timeout=", 13) == 0) {
            s.data = value[i].data + 13;
            s.len = value[i].len - 13;
            n = ngx_parse_time(&s, 0);

            if (n != NGX_ERROR) {
                server->fail_timeout = n;
                continue;
            }
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\"", &value[i]);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_vlm_affinity(ngx_conf_t *cf, ngx_http_vlm_group_t *group)
{
    ngx_str_t  *value;

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "image") == 0) {
        group->image = 1;
        return NGX_CONF_OK;
    }

    if (ngx_strcmp(value[1].data, "least") == 0) {
        group->image = 0;
        return NGX_CONF_OK;
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid affinity \"%V\", \"least\" or \"image\" is "
                       "expected", &value[1]);

    return NGX_CONF_ERROR;
}


/* all groups are known */

ngx_int_t
ngx_http_vlm_init_groups(ngx_conf_t *cf, ngx_http_vlm_main_conf_t *vmcf)
{
    ngx_uint_t               i, k;
    ngx_http_vlm_group_t   **groups;
    ngx_http_vlm_server_t   *servers;

    groups = vmcf->groups.elts;

    for (i = 0; i < vmcf->groups.nelts; i++) {

        if (groups[i]->servers.nelts == 0) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "invalid engine \"%V\" in %V:%ui, \"unix:PATH\" or "
                          "the name of a \"vlm_engine\" is expected",
                          &groups[i]->name, &groups[i]->file,
                          groups[i]->line);
            return NGX_ERROR;
        }

        servers = groups[i]->servers.elts;

        for (k = 0; k < groups[i]->servers.nelts; k++) {
            servers[k].engine->patience = ngx_max(servers[k].engine->patience,
                                                  groups[i]->patience);
        }
    }

    return NGX_OK;
}


/*
 * Sets ctx->engine.  NGX_OK: it can take the request; NGX_AGAIN: it is being
 * connected; NGX_ERROR: none can, ctx->fail tells why.
 */

ngx_int_t
ngx_http_vlm_choose(ngx_http_vlm_ctx_t *ctx)
{
    ngx_int_t   rc;
    ngx_uint_t  kind;
    vlm_fail_t  fail;

    ngx_memzero(&fail, sizeof(vlm_fail_t));

    for (kind = 0; kind < NGX_HTTP_VLM_KINDS; kind++) {

        rc = ngx_http_vlm_choose_kind(ctx, kind, &fail);

        if (rc != NGX_DECLINED) {
            ngx_memzero(&ctx->fail, sizeof(vlm_fail_t));
            return rc;
        }
    }

    ctx->fail = fail;

    return NGX_ERROR;
}


static ngx_int_t
ngx_http_vlm_choose_kind(ngx_http_vlm_ctx_t *ctx, ngx_uint_t kind,
    vlm_fail_t *fail)
{
    uint64_t                 tried;
    ngx_int_t                rc;
    ngx_uint_t               n;
    ngx_http_vlm_group_t    *group;
    ngx_http_vlm_server_t   *server;

    group = ctx->conf->group;
    tried = 0;
    n = 0;

    for ( ;; ) {
        server = ngx_http_vlm_least(group, kind, tried, &n);

        if (server == NULL) {
            return NGX_DECLINED;
        }

        tried |= (uint64_t) 1 << n;

        ngx_http_vlm_move(ctx, server->engine);

        rc = ngx_http_vlm_check_engine(ctx);

        if (rc != NGX_ERROR) {
            return rc;
        }

        /* that one will have room later tells more than that one is down */

        if (fail->status != NGX_HTTP_SERVICE_UNAVAILABLE) {
            *fail = ctx->fail;
        }
    }
}


static ngx_uint_t
ngx_http_vlm_server_kind(ngx_http_vlm_server_t *server)
{
    ngx_http_vlm_engine_t  *engine;

    engine = server->engine;

    if (server->max_fails && engine->fails >= server->max_fails
        && ngx_current_msec - engine->failed < server->fail_timeout)
    {
        return NGX_HTTP_VLM_FAILED;
    }

    return server->backup ? NGX_HTTP_VLM_BACKUP : NGX_HTTP_VLM_WELL;
}


/*
 * One that is up goes first, then one that is being connected.  All that
 * could be asked are connected, so that they can be chosen the next time.
 */

static ngx_http_vlm_server_t *
ngx_http_vlm_least(ngx_http_vlm_group_t *group, ngx_uint_t kind,
    uint64_t tried, ngx_uint_t *n)
{
    ngx_uint_t              i, k;
    ngx_http_vlm_engine_t  *engine, *best;
    ngx_http_vlm_server_t  *servers, *server;

    servers = group->servers.elts;
    server = NULL;
    best = NULL;

    for (i = 0; i < group->servers.nelts; i++) {

        /* of equals another one each time */

        k = (group->next + i) % group->servers.nelts;

        if ((tried & (uint64_t) 1 << k)
            || ngx_http_vlm_server_kind(&servers[k]) != kind)
        {
            continue;
        }

        engine = servers[k].engine;

        if (engine->state == NGX_HTTP_VLM_DOWN && group->servers.nelts > 1) {
            (void) ngx_http_vlm_engine_get(engine);
        }

        if (best == NULL || engine->state > best->state
            || (engine->state == best->state
                && engine->nslots < best->nslots))
        {
            best = engine;
            server = &servers[k];
            *n = k;
        }
    }

    if (server) {
        group->next = (*n + 1) % group->servers.nelts;
    }

    return server;
}


static void
ngx_http_vlm_move(ngx_http_vlm_ctx_t *ctx, ngx_http_vlm_engine_t *engine)
{
    if (ctx->engine != engine) {
        ngx_http_vlm_slot_leave(ctx);
        ctx->engine = engine;
    }
}


/*
 * The body is there: goes to the engine whose cache should have the picture,
 * if that one can take the request.  The highest of scores wins, so pictures
 * of the others stay where they are when an engine comes or goes.
 */

void
ngx_http_vlm_place(ngx_http_vlm_ctx_t *ctx)
{
    uint64_t                score, highest;
    ngx_uint_t              i;
    ngx_http_vlm_group_t   *group;
    ngx_http_vlm_engine_t  *engine, *best, *old;
    ngx_http_vlm_server_t  *servers;

    group = ctx->conf->group;

    if (!group->image || ctx->npictures == 0 || group->servers.nelts == 1) {
        return;
    }

    servers = group->servers.elts;
    highest = 0;
    best = NULL;

    for (i = 0; i < group->servers.nelts; i++) {
        engine = servers[i].engine;

        if (ngx_http_vlm_server_kind(&servers[i]) != NGX_HTTP_VLM_WELL
            || engine->state != NGX_HTTP_VLM_UP
            || engine->nslots == ctx->main->max_requests)
        {
            continue;
        }

        score = ngx_http_vlm_score(engine, ctx->body->pictures[0].sha256);

        if (best == NULL || score > highest) {
            best = engine;
            highest = score;
        }
    }

    old = ctx->engine;

    if (best == NULL || best == old) {
        return;
    }

    ctx->engine = best;

    if (ngx_http_vlm_check_engine(ctx) == NGX_OK) {
        ctx->engine = old;
        ngx_http_vlm_move(ctx, best);
        return;
    }

    ctx->engine = old;
    ngx_memzero(&ctx->fail, sizeof(vlm_fail_t));
}


/* the engine has failed since the request was admitted to it */

ngx_uint_t
ngx_http_vlm_left_out(ngx_http_vlm_ctx_t *ctx)
{
    ngx_uint_t              i;
    ngx_http_vlm_group_t   *group;
    ngx_http_vlm_server_t  *servers;

    group = ctx->conf->group;
    servers = group->servers.elts;

    for (i = 0; i < group->servers.nelts; i++) {

        if (servers[i].engine == ctx->engine) {
            return group->servers.nelts > 1
                   && ngx_http_vlm_server_kind(&servers[i])
                      == NGX_HTTP_VLM_FAILED;
        }
    }

    return 0;
}


static uint64_t
ngx_http_vlm_score(ngx_http_vlm_engine_t *engine, const uint8_t *digest)
{
    uint64_t  score;

    ngx_memcpy(&score, digest, sizeof(uint64_t));

    score ^= ngx_crc32_long(engine->name.data, engine->name.len)
             * 0x9e3779b97f4a7c15;

    score ^= score >> 32;
    score *= 0xd6e8feb86659fd93;
    score ^= score >> 32;
    score *= 0xd6e8feb86659fd93;
    score ^= score >> 32;

    return score;
}


void
ngx_http_vlm_engine_failed(ngx_http_vlm_engine_t *engine)
{
    engine->fails++;
    engine->failed = ngx_current_msec;
}
