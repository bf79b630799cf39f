
/* What the embedding cache has done so far. */

#include <stdio.h>
#include <string.h>

#include "engine/runtime/internal.h"


#define u(n)  ((unsigned long long) (n))


void
vlm_engine_cache_stats(vlm_engine_t *e, vlm_cache_stats_t *stats)
{
    vlm_embed_t  *m;

    m = &e->embed;
    memset(stats, 0, sizeof(*stats));

    vlm_memory_stats(m->memory, &stats->memory);

    if (m->redis != NULL) {
        vlm_redis_stats(m->redis, &stats->redis);
    }

    stats->encoded = __atomic_load_n(&m->encoded, __ATOMIC_RELAXED);
    stats->bad_values = __atomic_load_n(&m->bad_values, __ATOMIC_RELAXED);
    stats->bad_pictures = __atomic_load_n(&m->bad_pictures,
                                          __ATOMIC_RELAXED);
    stats->mismatches = __atomic_load_n(&m->mismatches, __ATOMIC_RELAXED);
}


int
vlm_engine_cache_settled(vlm_engine_t *e)
{
    vlm_redis_stats_t  stats;

    if (e->embed.redis == NULL) {
        return 1;
    }

    vlm_redis_stats(e->embed.redis, &stats);

    return stats.connected || stats.failures != 0;
}


void
vlm_engine_cache_log(vlm_engine_t *e)
{
    vlm_cache_stats_t          s;
    const vlm_redis_stats_t   *r;
    const vlm_memory_stats_t  *m;

    vlm_engine_cache_stats(e, &s);
    m = &s.memory;
    r = &s.redis;

    vlm_log(VLM_LOG_INFO, "embedding cache: encoded %llu, memory hits %llu, "
            "joined %llu, evicted %llu, bad pictures %llu known %llu times, "
            "wrong digests %llu, %u entries of %.1f MiB", u(s.encoded),
            u(m->hits), u(m->joined), u(m->evictions), u(s.bad_pictures),
            u(m->bad_hits), u(s.mismatches), m->entries,
            (double) m->bytes / 1048576);

    if (e->embed.redis == NULL) {
        return;
    }

    vlm_log(VLM_LOG_INFO, "Redis: hits %llu, misses %llu, late %llu, errors "
            "%llu, skipped %llu, too large %llu, invalid %llu, stored %llu, "
            "existed %llu, store errors %llu, dropped %llu, deleted %llu, "
            "connections %llu, failures %llu, breaker %llu", u(r->hits),
            u(r->misses), u(r->late), u(r->errors), u(r->skipped),
            u(r->too_large), u(s.bad_values), u(r->stored), u(r->existed),
            u(r->store_errors), u(r->dropped), u(r->deleted),
            u(r->connections), u(r->failures), u(r->opened));
}


void
vlm_cache_outcomes(const vlm_event_done_t *done, vlm_buf_t *out)
{
    uint32_t  i, n;

    static const char  *names[] = {
        "", "miss", "joined", "hit-memory", "hit-redis", "prefix"
    };

    for (i = 0; i < done->noutcomes; i++) {
        n = done->outcomes[i];

        (void) vlm_buf_printf(out, "%s%s", i != 0 ? "," : "",
                              n <= VLM_CACHE_PREFIX ? names[n] : "");
    }
}
