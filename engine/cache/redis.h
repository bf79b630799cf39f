
/*
 * The cache's second level: a Redis server, asked by hiredis' asynchronous
 * interface.  Whatever happens to it is a miss and a counter, never an error
 * of a request.
 *
 * Threading.  One thread, the front, waits for vlm_redis_fd() and calls
 * vlm_redis_turn(); everything that may take time is done there.  The other
 * functions may be called from any thread: they leave work for the front.
 *
 * Names are resolved by a helper thread at each connect.  While there is no
 * connection (connecting, backing off after failures, or after a row of
 * reads that took too long) look-ups miss at once and stores are dropped.
 */

#ifndef VLM_CACHE_REDIS_H
#define VLM_CACHE_REDIS_H


#include "engine/cache/key.h"


typedef struct vlm_redis_s  vlm_redis_t;

typedef struct {
    char                host[256];      /* or the path of a socket */
    int                 port;           /* 0: a unix socket */
    int                 db;
    char                user[128];
    char                password[512];  /* "": none */
} vlm_redis_url_t;

/* redis://[[user]:password@]host[:port][/db], unix:PATH[?db=N] */
int vlm_redis_url(const char *text, vlm_redis_url_t *url, vlm_error_t *err);


/*
 * A look-up.  The caller's memory until it comes back by conf.answer(), once,
 * from any thread.  Then the value, if there is one, is the caller's to free.
 */

typedef struct vlm_redis_get_s  vlm_redis_get_t;

struct vlm_redis_get_s {
    char                name[VLM_CACHE_NAME_LEN];
    uint64_t            timeout_us;
    vlm_redis_get_t    *next;           /* of several at once */

    void               *value;          /* the answer; NULL: a miss */
    size_t              len;

    uint64_t            deadline_us;    /* private */
};

typedef struct {
    vlm_redis_url_t     url;
    uint64_t            ttl_ms;         /* of stored values */
    uint64_t            connect_us;     /* time to connect and to log in */
    size_t              max_value;      /* bytes */
    size_t              max_queue;      /* bytes that wait to be stored */

    void              (*answer)(void *data, vlm_redis_get_t *get);
    void               *data;
} vlm_redis_conf_t;

typedef struct {
    uint64_t            hits;
    uint64_t            misses;
    uint64_t            late;           /* reads that took too long */
    uint64_t            errors;         /* error replies, lost connections */
    uint64_t            skipped;        /* look-ups without a connection */
    uint64_t            too_large;      /* read or to be stored */
    uint64_t            stored;
    uint64_t            existed;        /* somebody else was faster */
    uint64_t            store_errors;
    uint64_t            dropped;        /* no room, no connection */
    uint64_t            deleted;
    uint64_t            connections;
    uint64_t            failures;       /* of connections */
    uint64_t            opened;         /* times the breaker opened */
    uint64_t            bytes_in;
    uint64_t            bytes_out;
    uint64_t            queued;         /* bytes that wait to be stored */
    int                 connected;
} vlm_redis_stats_t;


vlm_redis_t *vlm_redis_create(const vlm_redis_conf_t *conf,
    vlm_error_t *err);

/*
 * Waits up to flush_us for what is to be stored, if there is a connection;
 * look-ups that are out come back as misses.
 */
void vlm_redis_destroy(vlm_redis_t *r, uint64_t flush_us);

/* readable when vlm_redis_turn() has something to do */
int vlm_redis_fd(const vlm_redis_t *r);
void vlm_redis_turn(vlm_redis_t *r);

/* a list of look-ups: one round trip */
void vlm_redis_get(vlm_redis_t *r, vlm_redis_get_t *list);

/* would a value of this size be taken now? */
int vlm_redis_takes(vlm_redis_t *r, size_t len);

/* SET NX PX; takes the malloc()ed value over; VLM_AGAIN: it was dropped */
int vlm_redis_set(vlm_redis_t *r, const char *name, void *value, size_t len);

/* of a value that failed its check */
void vlm_redis_del(vlm_redis_t *r, const char *name);

void vlm_redis_stats(vlm_redis_t *r, vlm_redis_stats_t *stats);


#endif /* VLM_CACHE_REDIS_H */
