
/* the guard device: memory and queues */

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "t/unit/lib/guard_private.h"


/* address space, of which only what is in use takes memory */
#define SPACE  ((size_t) 16 << 30)


void
guard_broken(const char *fmt, ...)
{
    va_list  args;

    printf("Bail out! guard: ");
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
    fflush(stdout);

    abort();
}


static void *
array_add(void *array, int n, int *max, size_t size)
{
    if (n < *max) {
        return array;
    }

    *max = *max != 0 ? *max * 2 : 64;

    array = realloc(array, *max * size);
    if (array == NULL) {
        guard_broken("no memory");
    }

    return array;
}


/* ---- memory ---- */

static void *
guard_take(vlm_device_t *dev, size_t size, int host)
{
    char     *at;
    size_t    span, start;
    guard_t  *g = (guard_t *) dev;
    range_t  *r;

    size = (size + 63) / 64 * 64;

    if (size > SPACE) {
        return NULL;
    }

    /* an empty one too has an address of its own; a page without access */
    span = (size + g->page - 1) / g->page * g->page + g->page;

    pthread_mutex_lock(&g->lock);

    if (SPACE - g->used < span) {
        pthread_mutex_unlock(&g->lock);
        return NULL;
    }

    at = g->memory + g->used;
    g->used += span;
    start = g->used - g->page - size;

    if (mprotect(at, span - g->page, PROT_READ|PROT_WRITE) != 0) {
        pthread_mutex_unlock(&g->lock);
        return NULL;
    }

    memset(g->memory + start, 0xff, size);

    g->ranges = array_add(g->ranges, g->nranges, &g->max_ranges,
                          sizeof(range_t));
    r = &g->ranges[g->nranges++];
    r->start = start;
    r->end = start + size;
    r->alive = 1;
    r->host = host;

    pthread_mutex_unlock(&g->lock);

    return host ? g->memory + start : g->token + start;
}


void *
guard_alloc(vlm_device_t *dev, size_t size)
{
    return guard_take(dev, size, 0);
}


static void *
guard_host_alloc(vlm_device_t *dev, size_t size)
{
    return guard_take(dev, size, 1);
}


/* the range that holds a pointer, and where in all memory; lock held */

static range_t *
guard_find(guard_t *g, const void *p, size_t *offset, const char *op)
{
    int      low, high, mid, host;
    size_t   at;

    host = (char *) p >= g->memory && (char *) p < g->memory + g->used;

    if (!host && ((char *) p < g->token || (char *) p >= g->token + g->used))
    {
        guard_broken("%s: %p is not a pointer of this device", op, p);
    }

    at = (char *) p - (host ? g->memory : g->token);
    *offset = at;
    low = 0;
    high = g->nranges;

    while (high - low > 1) {
        mid = (low + high) / 2;

        if (g->ranges[mid].start <= at) {
            low = mid;

        } else {
            high = mid;
        }
    }

    if (at < g->ranges[low].start || at > g->ranges[low].end) {
        guard_broken("%s: %p is in no allocation", op, p);
    }

    if (g->ranges[low].host != host) {
        guard_broken("%s: %p is not what an allocation returned", op, p);
    }

    if (!g->ranges[low].alive) {
        guard_broken("%s: %p was freed", op, p);
    }

    return &g->ranges[low];
}


/* where the real device works; NULL stays */

void *
guard_real(guard_t *g, const void *p, size_t size, const char *op)
{
    size_t    at, end;
    range_t  *r;

    if (p == NULL) {
        return NULL;
    }

    pthread_mutex_lock(&g->lock);
    r = guard_find(g, p, &at, op);
    end = r->end;
    pthread_mutex_unlock(&g->lock);

    if (size > end - at) {
        guard_broken("%s: %zu bytes, the allocation has %zu from there on", op,
                     size, end - at);
    }

    return g->memory + at;
}


static void
guard_give(vlm_device_t *dev, void *data, int host)
{
    size_t    at, first, last;
    guard_t  *g = (guard_t *) dev;
    range_t  *r;

    if (data == NULL) {
        return;
    }

    pthread_mutex_lock(&g->lock);

    r = guard_find(g, data, &at, "free");

    if (r->start != at || r->host != host) {
        guard_broken("free: %p is not the start of such an allocation", data);
    }

    r->alive = 0;
    first = r->start / g->page * g->page;
    last = (r->end + g->page - 1) / g->page * g->page;

    if (last > first) {
        madvise(g->memory + first, last - first, MADV_DONTNEED);
        mprotect(g->memory + first, last - first, PROT_NONE);
    }

    pthread_mutex_unlock(&g->lock);
}


void
guard_free(vlm_device_t *dev, void *data)
{
    guard_give(dev, data, 0);
}


static void
guard_host_free(vlm_device_t *dev, void *data)
{
    guard_give(dev, data, 1);
}


/* the host's side of an object of the real device, kept behind a token */

void *
guard_object(guard_t *g, const void *token, size_t size, const char *op)
{
    if (token == NULL) {
        guard_broken("%s: not created", op);
    }

    return guard_real(g, token, size, op);
}


/* ---- queues ---- */

static uint64_t
checksum(const void *data, size_t size)
{
    size_t          i;
    uint64_t        sum = size;
    const uint8_t  *p = data;

    for (i = 0; i < size; i++) {
        sum = (sum ^ p[i]) * 0x100000001b3;
    }

    return sum;
}


static host_t *
host_add(guard_queue_t *q, const void *host, size_t size, const char *op)
{
    host_t  *h;

    q->hosts = array_add(q->hosts, q->nhosts, &q->max_hosts, sizeof(host_t));

    h = &q->hosts[q->nhosts++];
    h->host = (void *) host;
    h->size = size;
    h->op = op;
    h->sum = 0;
    h->data = NULL;
    h->number = q->number++;

    return h;
}


void
guard_host_reads(guard_queue_t *q, const void *host, size_t size,
    const char *op)
{
    host_add(q, host, size, op)->sum = checksum(host, size);
}


/* memory to write to instead */

void *
guard_host_writes(guard_queue_t *q, void *host, size_t size, const char *op)
{
    host_t  *h;

    h = host_add(q, host, size, op);

    h->data = malloc(size != 0 ? size : 1);
    if (h->data == NULL) {
        guard_broken("no memory");
    }

    memset(host, 0xee, size);

    return h->data;
}


static vlm_queue_t *
guard_queue_create(vlm_device_t *dev, int low_priority)
{
    guard_t        *g = (guard_t *) dev;
    guard_queue_t  *q;

    q = calloc(1, sizeof(guard_queue_t));
    if (q == NULL) {
        return NULL;
    }

    q->g = g;

    q->real = g->real->queue_create(g->real_dev, low_priority);
    if (q->real == NULL) {
        free(q);
        return NULL;
    }

    return (vlm_queue_t *) q;
}


static void
guard_queue_destroy(vlm_queue_t *queue)
{
    int             i;
    guard_queue_t  *q = (guard_queue_t *) queue;

    if (q == NULL) {
        return;
    }

    for (i = 0; i < q->nhosts; i++) {
        free(q->hosts[i].data);
    }

    q->g->real->queue_destroy(q->real);
    free(q->hosts);
    free(q);
}


static void
check_host(const host_t *h)
{
    if (checksum(h->host, h->size) != h->sum) {
        guard_broken("%s: its %zu bytes of host memory changed before sync()",
                     h->op, h->size);
    }
}


static int
guard_sync(vlm_queue_t *queue, char *err, size_t errlen)
{
    int             i, rc;
    host_t         *h;
    guard_queue_t  *q = (guard_queue_t *) queue;

    rc = q->g->real->sync(q->real, err, errlen);

    for (i = 0; i < q->nhosts; i++) {
        h = &q->hosts[i];

        if (h->data != NULL) {
            memcpy(h->host, h->data, h->size);
            free(h->data);

        } else {
            check_host(h);
        }
    }

    q->nhosts = 0;

    return rc;
}


/* what is written comes with sync() alone */

void
guard_reached(guard_queue_t *q, uint64_t number)
{
    int      i, n;
    host_t  *h;

    n = 0;

    for (i = 0; i < q->nhosts; i++) {
        h = &q->hosts[i];

        if (h->data == NULL && h->number < number) {
            check_host(h);

        } else {
            q->hosts[n++] = *h;
        }
    }

    q->nhosts = n;
}


static int
guard_failed(vlm_queue_t *queue)
{
    guard_queue_t  *q = (guard_queue_t *) queue;

    return q->g->real->failed(q->real);
}


static void
guard_upload(vlm_queue_t *queue, void *to, const void *host, size_t size)
{
    guard_queue_t  *q = (guard_queue_t *) queue;

    guard_host_reads(q, host, size, "upload");
    q->g->real->upload(q->real, guard_real(q->g, to, size, "upload"), host,
                       size);
}


static void
guard_download(vlm_queue_t *queue, void *host, const void *from, size_t size)
{
    guard_queue_t  *q = (guard_queue_t *) queue;

    q->g->real->download(q->real, guard_host_writes(q, host, size, "download"),
                         guard_real(q->g, from, size, "download"), size);
}


/* ---- the device ---- */

static char *
reserve(void)
{
    void  *p;

    p = mmap(NULL, SPACE, PROT_NONE, MAP_PRIVATE|MAP_ANONYMOUS|MAP_NORESERVE,
             -1, 0);
    if (p == MAP_FAILED) {
        guard_broken("no address space");
    }

    return p;
}


static void
guard_reserved(vlm_device_t *dev, vlm_reserve_t *memory, vlm_reserve_t *host)
{
    memset(memory, 0, sizeof(vlm_reserve_t));
    memset(host, 0, sizeof(vlm_reserve_t));
}


vlm_device_t *
guard_create(vlm_device_t *real, const vlm_ops_t *real_ops,
    const vlm_ops_t **ops)
{
    guard_t  *g;

    g = calloc(1, sizeof(guard_t));
    if (g == NULL) {
        guard_broken("no memory");
    }

    g->ops.name = "guard";
    g->ops.reserved = guard_reserved;
    g->ops.alloc = guard_alloc;
    g->ops.free = guard_free;
    g->ops.host_alloc = guard_host_alloc;
    g->ops.host_free = guard_host_free;
    g->ops.queue_create = guard_queue_create;
    g->ops.queue_destroy = guard_queue_destroy;
    g->ops.sync = guard_sync;
    g->ops.failed = guard_failed;
    g->ops.upload = guard_upload;
    g->ops.download = guard_download;
    g->ops.act_dtype = real_ops->act_dtype;
    g->ops.async = real_ops->async;
    g->real = real_ops;
    guard_operations(g, &g->ops);
    g->real_dev = real;
    g->page = (size_t) sysconf(_SC_PAGESIZE);
    g->token = reserve();
    g->memory = reserve();
    pthread_mutex_init(&g->lock, NULL);

    *ops = &g->ops;

    return (vlm_device_t *) g;
}


void
guard_destroy(vlm_device_t *dev)
{
    guard_t  *g = (guard_t *) dev;

    munmap(g->token, SPACE);
    munmap(g->memory, SPACE);
    pthread_mutex_destroy(&g->lock);
    free(g->ranges);
    free(g);
}


int
guard_alive(vlm_device_t *dev)
{
    int       i, n;
    guard_t  *g = (guard_t *) dev;

    n = 0;

    for (i = 0; i < g->nranges; i++) {
        n += g->ranges[i].alive;
    }

    return n;
}
