
/*
 * Where the embeddings of a request's pictures come from: this process's
 * memory, Redis, another request that is at work on the same picture, or the
 * tower.
 *
 * A picture is joined to the cache at intake (image pool), claimed when its
 * request starts and whenever something has happened to the keys (compute
 * thread), and left when the request ends.  Values arrive from Redis on the
 * front and are checked and taken by the compute thread.
 */

#ifndef VLM_EMBED_H
#define VLM_EMBED_H


#include <pthread.h>

#include "engine/cache/memory.h"
#include "engine/cache/redis.h"
#include "engine/runtime/engine.h"


typedef enum {
    VLM_PIC_IDLE = 0,           /* not needed, so far */
    VLM_PIC_WAIT,               /* for the cache, if it has a key */
    VLM_PIC_LEAD,               /* is to be decoded */
    VLM_PIC_DECODE,             /* is with the image pool */
    VLM_PIC_PIXELS,             /* is to be encoded */
    VLM_PIC_READY               /* has its embedding */
} vlm_pic_state_t;

typedef struct {
    vlm_pic_state_t     state;
    int                 keyed;
    int                 verified;       /* the bytes have the key's digest */
    vlm_cache_key_t     key;
    vlm_wait_t          wait;
    vlm_entry_t        *entry;
    uint32_t            outcome;        /* VLM_CACHE_* */
} vlm_embed_pic_t;

typedef struct vlm_lookup_s  vlm_lookup_t;

typedef struct {
    vlm_memory_cache_t *memory;
    vlm_redis_t        *redis;          /* NULL: none */
    uint8_t             weights[32];
    char                device[16];     /* its class */
    int                 fd;             /* epoll: the mail and Redis; or -1 */
    uint64_t            news;           /* atomic: counts what happened */
    uint64_t            seen;           /* the compute thread's */
    uint64_t            rate;           /* atomic: multiply-adds a us */

    pthread_mutex_t     lock;
    vlm_lookup_t       *arrived;        /* values, not yet checked */

    uint64_t            encoded;        /* atomic counters */
    uint64_t            bad_values;
    uint64_t            mismatches;
    uint64_t            bad_pictures;
} vlm_embed_t;

typedef struct vlm_work_s  vlm_work_t;
typedef struct vlm_pic_s   vlm_pic_t;


/* before the threads; vlm_embed_load() once the model is open */
int vlm_embed_open(vlm_engine_t *e, vlm_error_t *err);
int vlm_embed_load(vlm_engine_t *e, vlm_error_t *err);

/* after the threads, before the device goes; prints the counters */
void vlm_embed_close(vlm_engine_t *e);

/* intake: begins all look-ups.  VLM_ERROR: a bad picture */
int vlm_embed_join(vlm_engine_t *e, vlm_work_t *w, vlm_error_t *err);

/* image pool: a picture has been decoded, or its error is set */
void vlm_embed_decoded(vlm_engine_t *e, vlm_work_t *w, int32_t picture);

/* VLM_CACHE_* */
uint32_t vlm_embed_outcome(const vlm_embed_pic_t *p);

/*
 * Compute thread: the request has a seat, for the first time or again, and
 * perhaps needs more pictures now; its pictures have come back; whatever
 * has happened meanwhile.  The request may end with an error in all of them.
 */
void vlm_embed_start(vlm_engine_t *e, vlm_work_t *w);
void vlm_embed_pixels(vlm_engine_t *e, vlm_work_t *w);
void vlm_embed_turn(vlm_engine_t *e);

/* takes a copy of what the tower gave, and tells it to all who wait */
int vlm_embed_encoded(vlm_engine_t *e, vlm_work_t *w, int32_t picture,
    void *copy, vlm_error_t *err);

/* the request ends: any thread that has it */
void vlm_embed_leave(vlm_engine_t *e, vlm_work_t *w);

/* the front: Redis may have something to say */
void vlm_embed_front(vlm_engine_t *e);


/* ---- embed_lookup.c: Redis ---- */

/* NULL: it is not to be asked */
vlm_redis_get_t *vlm_embed_lookup(vlm_engine_t *e, const vlm_pic_t *pic);

/* any thread: an answer; something has happened to a key */
void vlm_embed_answer(void *data, vlm_redis_get_t *get);
void vlm_embed_wake(void *data);

/* compute thread: takes the values that have come; or frees them, at the end */
void vlm_embed_arrived(vlm_engine_t *e);
void vlm_embed_lost(vlm_engine_t *e);


/* ---- embed_value.c: entries and values of Redis ---- */


/*
 * What the tower gave, on its way from there: put on the encoder's queue,
 * complete when that has run.  NULL: no memory.
 */
void *vlm_embed_copy(void *data, const vlm_tensor_t *result);
void vlm_embed_copy_free(vlm_engine_t *e, void *copy);

/* takes a complete copy over; NULL: so do errors, one of which is no copy */
vlm_entry_t *vlm_embed_entry(vlm_engine_t *e, const vlm_cache_key_t *key,
    const vlm_image_plan_t *plan, void *copy, int store, vlm_error_t *err);
vlm_entry_t *vlm_embed_read(vlm_engine_t *e, const vlm_cache_key_t *key,
    const vlm_image_plan_t *plan, const void *value, size_t len, int *valid,
    vlm_error_t *err);


#endif /* VLM_EMBED_H */
