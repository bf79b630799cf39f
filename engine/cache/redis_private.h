
/* Inside the Redis client. */

#ifndef VLM_CACHE_REDIS_PRIVATE_H
#define VLM_CACHE_REDIS_PRIVATE_H


#include <pthread.h>

#include <hiredis/async.h>

#include "engine/cache/redis.h"


/* a host name being resolved by a thread of its own */

#define VLM_RESOLVE_ADDRESSES   4

typedef struct vlm_resolve_s  vlm_resolve_t;

typedef struct {
    int             n;
    char            text[VLM_RESOLVE_ADDRESSES][64];
    char            why[160];           /* if n is 0 */
} vlm_addresses_t;

/* event_fd gets a 1 when it is done */
vlm_resolve_t *vlm_resolve_start(const char *host, int event_fd);

/* VLM_AGAIN: not yet */
int vlm_resolve_done(vlm_resolve_t *res, vlm_addresses_t *to);
void vlm_resolve_free(vlm_resolve_t *res);


/* a command whose reply has not come */

typedef enum {
    VLM_REDIS_HELLO = 0,
    VLM_REDIS_GET,
    VLM_REDIS_SET,
    VLM_REDIS_STRLEN,
    VLM_REDIS_DEL
} vlm_redis_kind_t;

typedef struct vlm_redis_sent_s  vlm_redis_sent_t;

struct vlm_redis_sent_s {
    vlm_redis_t        *redis;
    vlm_redis_kind_t    kind;
    vlm_redis_get_t    *get;            /* NULL: it was answered before */
    uint64_t            sent_us;
    int                 last;           /* of the hello */
    char                name[VLM_CACHE_NAME_LEN];       /* SET, STRLEN */
    vlm_redis_sent_t   *prev;
    vlm_redis_sent_t   *next;
};

/* a value to be stored, or (NULL) a name to be deleted */

typedef struct vlm_redis_store_s  vlm_redis_store_t;

struct vlm_redis_store_s {
    char                name[VLM_CACHE_NAME_LEN];
    void               *value;
    size_t              len;
    vlm_redis_store_t  *next;
};

typedef enum {
    VLM_REDIS_IDLE = 0,                 /* until retry_us */
    VLM_REDIS_RESOLVING,
    VLM_REDIS_CONNECTING,               /* and the hello */
    VLM_REDIS_READY
} vlm_redis_state_t;

struct vlm_redis_s {
    vlm_redis_conf_t    conf;
    int                 epoll;
    int                 event_fd;
    int                 timer_fd;

    /* the front's */

    vlm_redis_state_t   state;
    uint64_t            retry_us;
    uint64_t            deadline_us;    /* of RESOLVING, CONNECTING */
    uint64_t            backoff_us;
    uint64_t            seed;
    unsigned            row;            /* of reads that took too long */
    char                said[256];      /* the last failure in the log */

    vlm_resolve_t      *resolve;
    vlm_addresses_t     addresses;
    int                 address;        /* the next one to try */

    redisAsyncContext  *ac;
    redisReplyObjectFunctions  *parts;  /* hiredis' own */
    redisReplyObjectFunctions   checked;
    uint32_t            events;         /* of the socket, in the epoll */
    char                broken[256];    /* why the connection is to go */

    vlm_redis_sent_t   *head;           /* oldest first */
    vlm_redis_sent_t   *tail;
    uint64_t            unread;         /* replies that may come */
    uint32_t            ngets;
    uint32_t            nsets;          /* and what follows from them */

    /* under the lock */

    pthread_mutex_t     lock;
    int                 ready;
    vlm_redis_get_t    *gets;
    vlm_redis_get_t    *gets_tail;
    vlm_redis_store_t  *stores;
    vlm_redis_store_t  *stores_tail;
    vlm_redis_stats_t   stats;
};


/* ---- redis.c ---- */

/* before the first try to connect again; twice as much before the next */
#define VLM_REDIS_BACKOFF_US    100000

#define vlm_redis_count(r, counter, n)                                        \
    do {                                                                      \
        pthread_mutex_lock(&(r)->lock);                                       \
        (r)->stats.counter += (n);                                            \
        pthread_mutex_unlock(&(r)->lock);                                     \
    } while (0)

void vlm_redis_ready(vlm_redis_t *r);

/* asks for the connection to be closed, once hiredis is left */
void vlm_redis_break(vlm_redis_t *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));


/* ---- redis_link.c: the connection ---- */

void vlm_redis_connect(vlm_redis_t *r);
void vlm_redis_socket(vlm_redis_t *r, uint32_t events);
void vlm_redis_close(vlm_redis_t *r);

void vlm_redis_send_get(vlm_redis_t *r, vlm_redis_get_t *get);
void vlm_redis_send_store(vlm_redis_t *r, const vlm_redis_store_t *store);

/* gives a look-up back */
void vlm_redis_answer(vlm_redis_t *r, vlm_redis_get_t *get, void *value,
    size_t len);


#endif /* VLM_CACHE_REDIS_PRIVATE_H */
