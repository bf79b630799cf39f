
/*
 * The cache in this process: embeddings in a list of recent use bounded in
 * bytes, pictures known to be bad, and who is waiting for what.
 *
 * Threading.  Every function may be called from any thread; one lock is held
 * for some hundred instructions, never over work on an embedding.  Entries
 * are counted: one that was evicted lives until nobody uses it.  A wait
 * belongs to its request and is touched by the thread that has the request.
 * What happens to a key is told by conf.wake(), called without the lock, by
 * whichever thread did it; then those who wait claim again.
 */

#ifndef VLM_CACHE_MEMORY_H
#define VLM_CACHE_MEMORY_H


#include "engine/cache/key.h"


typedef struct vlm_memory_cache_s  vlm_memory_cache_t;
typedef struct vlm_cache_node_s    vlm_cache_node_t;
typedef struct vlm_entry_s         vlm_entry_t;
typedef struct vlm_wait_s          vlm_wait_t;

struct vlm_entry_s {
    vlm_tensor_t            tensor;     /* read-only, on the device */
    size_t                  bytes;
    uint32_t                refs;       /* private, under the lock */
    vlm_entry_t            *dead;
};

/* one picture of one request; zeroed: waits for nothing */

struct vlm_wait_s {
    vlm_cache_node_t       *node;       /* all private */
    vlm_wait_t             *prev;
    vlm_wait_t             *next;
    int                     first;      /* it made the flight */
};

typedef struct {
    uint64_t                limit;          /* bytes of embeddings */
    uint32_t                max_bad;        /* pictures */
    uint64_t                bad_ttl_us;

    /* frees an entry's tensor; any thread */
    void                  (*free)(void *data, vlm_tensor_t *tensor);
    void                  (*wake)(void *data);
    void                   *data;
} vlm_memory_conf_t;

typedef struct {
    uint64_t                hits;           /* of join() */
    uint64_t                bad_hits;
    uint64_t                flights;        /* keys that nobody had */
    uint64_t                joined;         /* waits for another's flight */
    uint64_t                led;            /* claims that gave LEAD */
    uint64_t                insertions;
    uint64_t                evictions;
    uint64_t                too_large;
    uint64_t                bytes;          /* in the list */
    uint64_t                alive;          /* of all entries, used ones too */
    uint32_t                entries;
    uint32_t                bad;
} vlm_memory_stats_t;


vlm_memory_cache_t *vlm_memory_create(const vlm_memory_conf_t *conf);

/* all entries must have been given back, all waits left */
void vlm_memory_destroy(vlm_memory_cache_t *m);
void vlm_memory_stats(vlm_memory_cache_t *m, vlm_memory_stats_t *stats);


/* takes the tensor over; one reference; NULL: no memory, nothing taken */
vlm_entry_t *vlm_entry_create(vlm_memory_cache_t *m,
    const vlm_tensor_t *tensor, size_t bytes);
void vlm_entry_free(vlm_memory_cache_t *m, vlm_entry_t *e);


/*
 * Single flight.  A request joins for each picture.  HIT gives an entry with
 * a reference, BAD an error.  Else the picture waits; FIRST: its caller must
 * see that vlm_memory_put(), _bad() or _missed() follows the look-up in the
 * next level, even if the request is gone by then.
 *
 * A request that is running claims: HIT and BAD as above; WAIT: somebody is
 * at work, conf.wake() will tell; LEAD: it shall encode the picture, then
 * call put() or bad(), or leave.  If the leader leaves, the next one that
 * claims leads.  So whoever leads is running, and nobody waits for a request
 * that does not run.
 */

typedef enum {
    VLM_JOIN_HIT = 0,
    VLM_JOIN_BAD,
    VLM_JOIN_WAIT,
    VLM_JOIN_FIRST,
    VLM_JOIN_LEAD,
    VLM_JOIN_NOMEM                          /* does without the cache */
} vlm_join_t;

vlm_join_t vlm_memory_join(vlm_memory_cache_t *m, const vlm_cache_key_t *key,
    vlm_wait_t *wait, vlm_entry_t **entry, vlm_error_t *err);

/* *outcome of a HIT: VLM_CACHE_* of the channel */
vlm_join_t vlm_memory_claim(vlm_memory_cache_t *m, vlm_wait_t *wait,
    vlm_entry_t **entry, uint32_t *outcome, vlm_error_t *err);

/* ends a wait, whatever it was for; it may wait for nothing */
void vlm_memory_leave(vlm_memory_cache_t *m, vlm_wait_t *wait);

/*
 * Tells a key's fate to all who wait for it, and keeps it.  The entry's
 * reference stays the caller's.  outcome: what the first one's was, MISS or
 * HIT_REDIS.
 */
void vlm_memory_put(vlm_memory_cache_t *m, const vlm_cache_key_t *key,
    vlm_entry_t *entry, uint32_t outcome);
void vlm_memory_bad(vlm_memory_cache_t *m, const vlm_cache_key_t *key,
    const vlm_error_t *err);
void vlm_memory_missed(vlm_memory_cache_t *m, const vlm_cache_key_t *key);


#endif /* VLM_CACHE_MEMORY_H */
