
/* inside the guard device: guard.c memory and queues, guard_ops.c the rest */

#ifndef GUARD_PRIVATE_H
#define GUARD_PRIVATE_H


#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "t/unit/lib/guard.h"


typedef struct {
    size_t             start;           /* offsets in the space */
    size_t             end;
    int                alive;
    int                host;            /* of host_alloc(): no token */
} range_t;

typedef struct {
    vlm_ops_t          ops;
    const vlm_ops_t   *real;
    vlm_device_t      *real_dev;
    char              *token;           /* what is handed out: no access */
    char              *memory;          /* where the work is done */
    size_t             page;
    size_t             used;
    pthread_mutex_t    lock;
    range_t           *ranges;          /* ascending */
    int                nranges;
    int                max_ranges;
} guard_t;

/* host memory that a queue reads (sum) or will write (data) */

typedef struct {
    void              *host;
    size_t             size;
    uint64_t           sum;
    void              *data;
    const char        *op;
    uint64_t           number;
} host_t;

typedef struct {
    guard_t           *g;
    vlm_queue_t       *real;
    host_t            *hosts;
    int                nhosts;
    int                max_hosts;
    uint64_t           number;          /* of the next one */
} guard_queue_t;


/* ends the test */
void guard_broken(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ops->alloc() and free() */
void *guard_alloc(vlm_device_t *dev, size_t size);
void guard_free(vlm_device_t *dev, void *data);

/*
 * Where the real device works, for "size" bytes at a device pointer; op is
 * named if something is wrong.  guard_real(): NULL stays NULL.
 */
void *guard_real(guard_t *g, const void *p, size_t size, const char *op);
void *guard_object(guard_t *g, const void *p, size_t size, const char *op);

/*
 * Host memory that must not change before sync(); and the memory to write to
 * instead of "host", which gets it at sync().
 */
void guard_host_reads(guard_queue_t *q, const void *host, size_t size,
    const char *op);
void *guard_host_writes(guard_queue_t *q, void *host, size_t size,
    const char *op);

/* all that reads host memory and has a lower number has run */
void guard_reached(guard_queue_t *q, uint64_t number);

/* fills in what guard_ops.c implements */
void guard_operations(const guard_t *g, vlm_ops_t *ops);


#endif /* GUARD_PRIVATE_H */
