
/*
 * Counters in shared memory, for vlm_status.
 *
 * Each worker process has a place of its own there and adds to it without any
 * lock.  A place outlives its worker, so that nothing that was counted is
 * lost; the next worker goes on with it.  The owner of a place is a pid and a
 * number that is never used twice, so that of two workers only one can take
 * over the place of a third.
 */


#include "ngx_http_vlm_module.h"


#define NGX_HTTP_VLM_ZONE_MAGIC     0x5a4d4c56      /* "VLMZ" */
#define NGX_HTTP_VLM_ZONE_VERSION   1

#define NGX_HTTP_VLM_ZONE_ENGINES   32
#define NGX_HTTP_VLM_ZONE_PLACES    1024


typedef struct {
    _Alignas(VLM_CACHE_LINE)
    uint64_t                    owner;      /* generation, pid; 0: nobody */
    vlm_metrics_t               metrics;
} ngx_http_vlm_place_t;


/* what any worker has seen of an engine last */

struct ngx_http_vlm_zone_engine_s {
    uint32_t                    up;
    uint32_t                    state;
    vlm_gauges_t                gauges;
    u_char                      name[128];
};


struct ngx_http_vlm_zone_s {
    uint32_t                    magic;
    uint32_t                    version;
    uint32_t                    generation; /* of the last owner */
    uint32_t                    nplaces;
    uint32_t                    nengines;
    ngx_http_vlm_zone_engine_t  engines[NGX_HTTP_VLM_ZONE_ENGINES];
    ngx_http_vlm_place_t        places[];
};


static ngx_int_t ngx_http_vlm_init_zone(ngx_shm_zone_t *shm_zone, void *data);
static ngx_http_vlm_zone_t *ngx_http_vlm_create_zone(
    ngx_shm_zone_t *shm_zone);
static void ngx_http_vlm_zone_add_engines(ngx_http_vlm_main_conf_t *vmcf);
static vlm_metrics_t *ngx_http_vlm_metrics(ngx_http_vlm_main_conf_t *vmcf);
static ngx_http_vlm_place_t *ngx_http_vlm_claim(ngx_http_vlm_zone_t *zone);
static ngx_uint_t ngx_http_vlm_owner_alive(uint64_t owner);


char *
ngx_http_vlm_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_vlm_main_conf_t *vmcf = conf;

    u_char     *p;
    ssize_t     size;
    ngx_str_t  *value, name, s;

    if (vmcf->shm_zone) {
        return "is duplicate";
    }

    value = cf->args->elts;

    name = value[1];
    size = NGX_ERROR;

    p = (u_char *) ngx_strchr(name.data, ':');

    if (p) {
        s.data = p + 1;
        s.len = name.data + name.len - s.data;
        name.len = p - name.data;
        size = ngx_parse_size(&s);
    }

    if (size == NGX_ERROR || name.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid zone \"%V\", \"NAME:SIZE\" is expected",
                           &value[1]);
        return NGX_CONF_ERROR;
    }

    if (size < (ssize_t) (8 * ngx_pagesize)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" is smaller than %uz bytes",
                           &value[1], 8 * ngx_pagesize);
        return NGX_CONF_ERROR;
    }

    vmcf->shm_zone = ngx_shared_memory_add(cf, &name, size,
                                           &ngx_http_vlm_module);
    if (vmcf->shm_zone == NULL) {
        return NGX_CONF_ERROR;
    }

    vmcf->shm_zone->init = ngx_http_vlm_init_zone;
    vmcf->shm_zone->data = vmcf;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_vlm_init_zone(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_http_vlm_main_conf_t *old = data;

    ngx_slab_pool_t           *pool;
    ngx_http_vlm_main_conf_t  *vmcf;

    vmcf = shm_zone->data;
    pool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (old) {
        vmcf->zone = old->zone;

    } else if (shm_zone->shm.exists) {
        vmcf->zone = pool->data;

    } else {
        vmcf->zone = ngx_http_vlm_create_zone(shm_zone);
    }

    if (vmcf->zone == NULL) {
        return NGX_ERROR;
    }

    if (vmcf->zone->magic != NGX_HTTP_VLM_ZONE_MAGIC
        || vmcf->zone->version != NGX_HTTP_VLM_ZONE_VERSION)
    {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                      "zone \"%V\" was made by another version of the "
                      "module, give the new one another name",
                      &shm_zone->shm.name);
        return NGX_ERROR;
    }

    ngx_http_vlm_zone_add_engines(vmcf);

    return NGX_OK;
}


static ngx_http_vlm_zone_t *
ngx_http_vlm_create_zone(ngx_shm_zone_t *shm_zone)
{
    size_t                size;
    ngx_uint_t            n;
    ngx_slab_pool_t      *pool;
    ngx_http_vlm_zone_t  *zone;

    pool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    /* whole pages, and some are the pool's own */

    size = (pool->end - pool->start) / 4 * 3;
    n = (size - sizeof(ngx_http_vlm_zone_t)) / sizeof(ngx_http_vlm_place_t);
    n = ngx_min(n, NGX_HTTP_VLM_ZONE_PLACES);

    zone = ngx_slab_calloc(pool, sizeof(ngx_http_vlm_zone_t)
                                 + n * sizeof(ngx_http_vlm_place_t));
    if (zone == NULL) {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                      "zone \"%V\" is too small", &shm_zone->shm.name);
        return NULL;
    }

    zone->magic = NGX_HTTP_VLM_ZONE_MAGIC;
    zone->version = NGX_HTTP_VLM_ZONE_VERSION;
    zone->nplaces = n;

    pool->data = zone;

    return zone;
}


/* old workers may be using the table: it only grows */

static void
ngx_http_vlm_zone_add_engines(ngx_http_vlm_main_conf_t *vmcf)
{
    ngx_uint_t                    i, k;
    ngx_http_vlm_zone_t          *zone;
    ngx_http_vlm_engine_t       **engines;
    ngx_http_vlm_zone_engine_t   *e;

    zone = vmcf->zone;
    engines = vmcf->engines.elts;

    for (i = 0; i < vmcf->engines.nelts; i++) {

        for (k = 0; k < zone->nengines; k++) {
            e = &zone->engines[k];

            if (ngx_strcmp(e->name, engines[i]->path) == 0) {
                engines[i]->shared = e;
                break;
            }
        }

        if (engines[i]->shared || k == NGX_HTTP_VLM_ZONE_ENGINES) {
            continue;
        }

        e = &zone->engines[zone->nengines++];
        ngx_cpystrn(e->name, (u_char *) engines[i]->path, sizeof(e->name));

        engines[i]->shared = e;
    }
}


/* NULL: nothing is counted */

static vlm_metrics_t *
ngx_http_vlm_metrics(ngx_http_vlm_main_conf_t *vmcf)
{
    ngx_http_vlm_place_t  *place;

    if (vmcf->metrics || vmcf->zone == NULL) {
        return vmcf->metrics;
    }

    place = ngx_http_vlm_claim(vmcf->zone);

    if (place) {
        vmcf->owner = place->owner;
        __atomic_store_n(&place->metrics.in_flight, 0, __ATOMIC_RELAXED);

    } else {

        /* there are more workers than places: some share one */

        place = &vmcf->zone->places[ngx_pid % vmcf->zone->nplaces];
    }

    vmcf->metrics = &place->metrics;

    return vmcf->metrics;
}


static ngx_http_vlm_place_t *
ngx_http_vlm_claim(ngx_http_vlm_zone_t *zone)
{
    uint64_t               owner, old;
    ngx_uint_t             i;
    ngx_http_vlm_place_t  *place;

    owner = __atomic_add_fetch(&zone->generation, 1, __ATOMIC_RELAXED);
    owner = owner << 32 | (uint32_t) ngx_pid;

    for (i = 0; i < zone->nplaces; i++) {
        place = &zone->places[i];
        old = __atomic_load_n(&place->owner, __ATOMIC_RELAXED);

        /* one with our own pid is left from a worker that was killed */

        if (ngx_http_vlm_owner_alive(old)
            && (uint32_t) old != (uint32_t) ngx_pid)
        {
            continue;
        }

        if (__atomic_compare_exchange_n(&place->owner, &old, owner, 0,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        {
            return place;
        }
    }

    return NULL;
}


static ngx_uint_t
ngx_http_vlm_owner_alive(uint64_t owner)
{
    ngx_pid_t  pid;

    pid = (ngx_pid_t) (uint32_t) owner;

    return pid != 0 && (kill(pid, 0) == 0 || ngx_errno != ESRCH);
}


/* the process ends: what it has counted stays, it counts no more */

void
ngx_http_vlm_zone_leave(ngx_http_vlm_main_conf_t *vmcf)
{
    ngx_http_vlm_place_t  *place;

    vmcf->zone = NULL;

    if (vmcf->owner == 0) {
        vmcf->metrics = NULL;
        return;
    }

    place = (ngx_http_vlm_place_t *)
            ((u_char *) vmcf->metrics
             - offsetof(ngx_http_vlm_place_t, metrics));

    vmcf->owner = 0;
    vmcf->metrics = NULL;

    __atomic_store_n(&place->metrics.in_flight, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&place->owner, 0, __ATOMIC_RELEASE);
}


/* the sum of all places; returns the number of workers that have one */

ngx_uint_t
ngx_http_vlm_zone_sum(ngx_http_vlm_main_conf_t *vmcf, vlm_metrics_t *sum)
{
    uint64_t               in_flight, owner;
    ngx_uint_t             i, n;
    ngx_http_vlm_place_t  *place;

    ngx_memzero(sum, sizeof(vlm_metrics_t));

    (void) ngx_http_vlm_metrics(vmcf);

    n = 0;

    for (i = 0; i < vmcf->zone->nplaces; i++) {
        place = &vmcf->zone->places[i];
        in_flight = sum->in_flight;

        vlm_metrics_sum(sum, &place->metrics);

        owner = __atomic_load_n(&place->owner, __ATOMIC_RELAXED);

        if (ngx_http_vlm_owner_alive(owner)) {
            n++;

        } else {
            sum->in_flight = in_flight;
        }
    }

    /* a worker that shared the place of one that died */

    if ((int64_t) sum->in_flight < 0) {
        sum->in_flight = 0;
    }

    return n;
}


void
ngx_http_vlm_zone_set_engine(ngx_http_vlm_engine_t *engine)
{
    ngx_uint_t                   up;
    vlm_gauges_t                 gauges;
    ngx_http_vlm_zone_engine_t  *e;

    e = engine->shared;

    if (e == NULL) {
        return;
    }

    up = (engine->state == NGX_HTTP_VLM_UP);

    if (up) {
        vlm_worker_gauges(&engine->channel, &gauges);

        __atomic_store_n(&e->state, vlm_worker_state(&engine->channel),
                         __ATOMIC_RELAXED);
        __atomic_store_n(&e->gauges.running, gauges.running,
                         __ATOMIC_RELAXED);
        __atomic_store_n(&e->gauges.queued, gauges.queued, __ATOMIC_RELAXED);
        __atomic_store_n(&e->gauges.kv_blocks, gauges.kv_blocks,
                         __ATOMIC_RELAXED);
        __atomic_store_n(&e->gauges.kv_blocks_free, gauges.kv_blocks_free,
                         __ATOMIC_RELAXED);
        __atomic_store_n(&e->gauges.first_token_ms, gauges.first_token_ms,
                         __ATOMIC_RELAXED);
    }

    __atomic_store_n(&e->up, up, __ATOMIC_RELAXED);
}


void
ngx_http_vlm_zone_get_engine(ngx_http_vlm_engine_t *engine,
    vlm_metrics_engine_t *to)
{
    ngx_http_vlm_zone_engine_t  *e;

    ngx_memzero(to, sizeof(vlm_metrics_engine_t));

    to->name = (char *) engine->name.data;
    to->name_len = engine->name.len;

    e = engine->shared;

    if (e == NULL) {
        return;
    }

    to->up = __atomic_load_n(&e->up, __ATOMIC_RELAXED);
    to->state = __atomic_load_n(&e->state, __ATOMIC_RELAXED);
    to->gauges.running = __atomic_load_n(&e->gauges.running,
                                         __ATOMIC_RELAXED);
    to->gauges.queued = __atomic_load_n(&e->gauges.queued, __ATOMIC_RELAXED);
    to->gauges.kv_blocks = __atomic_load_n(&e->gauges.kv_blocks,
                                           __ATOMIC_RELAXED);
    to->gauges.kv_blocks_free = __atomic_load_n(&e->gauges.kv_blocks_free,
                                                __ATOMIC_RELAXED);
    to->gauges.first_token_ms = __atomic_load_n(&e->gauges.first_token_ms,
                                                __ATOMIC_RELAXED);
}


void
ngx_http_vlm_count_start(ngx_http_vlm_ctx_t *ctx)
{
    vlm_metrics_t  *m;

    m = ngx_http_vlm_metrics(ctx->main);

    if (m) {
        vlm_metrics_add(&m->in_flight, 1);
    }
}


/* newly generated tokens of one choice */

void
ngx_http_vlm_count_tokens(ngx_http_vlm_ctx_t *ctx, const vlm_event_t *event)
{
    uint32_t                n;
    ngx_msec_t              now;
    vlm_metrics_t          *m;
    ngx_http_vlm_choice_t  *choice;

    m = ngx_http_vlm_metrics(ctx->main);
    n = event->u.text.ntokens;

    if (m == NULL || n == 0) {
        return;
    }

    now = ngx_current_msec;

    if (ctx->ntokens == 0) {
        vlm_metrics_observe(&m->first_token, now - ctx->received, 1);
    }

    if (event->choice >= ctx->output.nchoices) {
        return;
    }

    choice = &ctx->output.choices[event->choice];

    if (choice->spoken) {
        vlm_metrics_observe(&m->token_gap, (now - choice->spoke) / n, n);
    }

    choice->spoken = 1;
    choice->spoke = now;
}


void
ngx_http_vlm_count_end(ngx_http_vlm_ctx_t *ctx)
{
    uint32_t           i, reason;
    vlm_metrics_t     *m;
    vlm_event_done_t  *done;

    m = ngx_http_vlm_metrics(ctx->main);

    if (m == NULL) {
        return;
    }

    done = &ctx->done;

    vlm_metrics_add(&m->in_flight, (uint64_t) -1);
    vlm_metrics_status(m, ctx->status ? ctx->status
                                      : NGX_HTTP_CLIENT_CLOSED_REQUEST);

    if (ctx->body) {
        vlm_metrics_add(&m->received_bytes, ctx->body->received);
        vlm_metrics_add(&m->images, ctx->body->form.npictures);
    }

    if (!ctx->finished) {
        vlm_metrics_add(&m->prompt_tokens, ctx->prompt_tokens);
        vlm_metrics_add(&m->image_tokens, ctx->image_tokens);
        vlm_metrics_add(&m->completion_tokens, ctx->ntokens);
        return;
    }

    vlm_metrics_add(&m->prompt_tokens, done->prompt_tokens);
    vlm_metrics_add(&m->cached_tokens, done->cached_tokens);
    vlm_metrics_add(&m->image_tokens, done->image_tokens);
    vlm_metrics_add(&m->completion_tokens, done->completion_tokens);

    for (i = 0; i < done->noutcomes; i++) {
        vlm_metrics_add(&m->outcomes[done->outcomes[i] - VLM_CACHE_MISS], 1);
    }

    if (ctx->status != NGX_HTTP_OK) {
        return;
    }

    reason = ctx->output.choices[0].finish;

    vlm_metrics_add(&m->finishes[(reason == VLM_FINISH_LENGTH) ? 1 : 0], 1);
    vlm_metrics_observe(&m->total, ngx_current_msec - ctx->received, 1);
}
