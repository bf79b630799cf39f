
/* Look-ups in Redis: what is asked, and what comes back. */

#include <stdlib.h>

#include "engine/runtime/internal.h"


/* with no --redis-timeout: a quarter of the time that encoding takes */
#define TIMEOUT_SHARE   4
#define TIMEOUT_LEAST   20000
#define TIMEOUT_MOST    500000

/* embeddings over the cache's memory that waiting requests may hold */
#define HELD_MEMORY     (256ull << 20)


struct vlm_lookup_s {
    vlm_redis_get_t     get;            /* first: a get is its look-up */
    vlm_cache_key_t     key;
    vlm_image_plan_t    plan;
    vlm_lookup_t       *next;
};


vlm_redis_get_t *
vlm_embed_lookup(vlm_engine_t *e, const vlm_pic_t *pic)
{
    double               us;
    vlm_lookup_t        *lookup;
    vlm_memory_stats_t   stats;

    if (e->embed.redis == NULL) {
        return NULL;
    }

    vlm_memory_stats(e->embed.memory, &stats);

    if (stats.alive > e->conf.cache_memory + HELD_MEMORY) {
        return NULL;
    }

    lookup = calloc(1, sizeof(vlm_lookup_t));
    if (lookup == NULL) {
        return NULL;
    }

    lookup->key = pic->cache.key;
    lookup->plan = pic->plan;
    vlm_cache_name(&lookup->key, e->embed.weights, lookup->get.name);

    lookup->get.timeout_us = e->conf.redis_timeout_ms * 1000;

    if (lookup->get.timeout_us == 0) {
        us = vlm_model_cost(e->model, &pic->plan) / TIMEOUT_SHARE
             / (double) (__atomic_load_n(&e->embed.rate, __ATOMIC_RELAXED)
                         + 1);

        lookup->get.timeout_us = us < TIMEOUT_LEAST ? TIMEOUT_LEAST
                                 : us > TIMEOUT_MOST ? TIMEOUT_MOST
                                                     : (uint64_t) us;
    }

    return &lookup->get;
}


/* values are checked by the compute thread */

void
vlm_embed_answer(void *data, vlm_redis_get_t *get)
{
    vlm_embed_t   *m;
    vlm_engine_t  *e = data;
    vlm_lookup_t  *lookup;

    m = &e->embed;
    lookup = (vlm_lookup_t *) get;

    if (get->value == NULL) {
        vlm_memory_missed(m->memory, &lookup->key);
        free(lookup);
        return;
    }

    pthread_mutex_lock(&m->lock);
    lookup->next = m->arrived;
    m->arrived = lookup;
    pthread_mutex_unlock(&m->lock);

    vlm_embed_wake(e);
}


void
vlm_embed_arrived(vlm_engine_t *e)
{
    int            valid;
    vlm_error_t    err;
    vlm_embed_t   *m;
    vlm_entry_t   *entry;
    vlm_lookup_t  *lookup, *next;

    m = &e->embed;

    pthread_mutex_lock(&m->lock);
    lookup = m->arrived;
    m->arrived = NULL;
    pthread_mutex_unlock(&m->lock);

    for ( /* void */ ; lookup != NULL; lookup = next) {
        next = lookup->next;

        entry = vlm_embed_read(e, &lookup->key, &lookup->plan,
                               lookup->get.value, lookup->get.len, &valid,
                               &err);

        if (entry != NULL) {
            vlm_memory_put(m->memory, &lookup->key, entry,
                           VLM_CACHE_HIT_REDIS);
            vlm_entry_free(m->memory, entry);

        } else {

            if (!valid) {
                __atomic_add_fetch(&m->bad_values, 1, __ATOMIC_RELAXED);
                vlm_log(VLM_LOG_WARN, "a value in Redis is not valid and "
                        "will be deleted: %s: %s", lookup->get.name,
                        err.message);
                vlm_redis_del(m->redis, lookup->get.name);
            }

            vlm_memory_missed(m->memory, &lookup->key);
        }

        free(lookup->get.value);
        free(lookup);
    }
}


void
vlm_embed_lost(vlm_engine_t *e)
{
    vlm_lookup_t  *lookup, *next;

    for (lookup = e->embed.arrived; lookup != NULL; lookup = next) {
        next = lookup->next;
        free(lookup->get.value);
        free(lookup);
    }
}
