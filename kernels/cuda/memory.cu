
/*
 * Memory of the device, and pinned memory of the host.  The driver's own
 * calls are slow, and its free() waits for the whole device: after reserve()
 * parts of one piece are handed out instead, first fit.
 *
 * A part that was freed may still be in use by what is on the queues.  Each
 * queue counts its operations; the part is reusable when every queue has got
 * past where it was at that time.  How far that is, sync() and reached() find
 * out on their way: neither alloc() nor free() asks the device.
 */

#include "kernels/cuda/cuda.h"

#if defined(__SANITIZE_ADDRESS__)
#define VLM_ASAN  1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define VLM_ASAN  1
#endif
#endif

/* on the shim, kernels that leave their part are seen */

#if defined(VLM_EMU) && defined(VLM_ASAN)

#include <sanitizer/asan_interface.h>

#define hide(data, size)  __asan_poison_memory_region(data, size)
#define show(data, size)  __asan_unpoison_memory_region(data, size)

#else

#define hide(data, size)
#define show(data, size)

#endif


VLM_CUDA_BEGIN


typedef enum {
    PART_FREE = 0,
    PART_USED,
    PART_LEFT                           /* freed, but perhaps in use */
} state_t;

typedef struct part_s  part_t;

struct part_s {
    part_t             *prev;           /* by address */
    part_t             *next;
    char               *data;
    size_t              size;
    state_t             state;
    uint64_t            after[VLM_CUDA_QUEUES];
};

struct reserve_s {
    char               *data;
    part_t             *parts;          /* of all of it */
    vlm_reserve_t       is;
};


static void *driver_alloc(vlm_device_t *dev, size_t size, int host);
static void driver_free(vlm_device_t *dev, void *data, int host);
static reserve_s *reserve_open(vlm_device_t *dev, size_t size, int host,
    char *err, size_t errlen);
static void reserve_close(vlm_device_t *dev, reserve_s *r, int host);
static void *part_take(vlm_device_t *dev, reserve_s *r, size_t size);
static int part_cut(part_t *p, size_t size);
static void part_leave(vlm_device_t *dev, reserve_s *r, void *data);
static void parts_return(vlm_device_t *dev, reserve_s *r);
static void part_join(part_t *p);
static int holds(const reserve_s *r, const void *data);
static void describe(vlm_device_t *dev, reserve_s *r, vlm_reserve_t *is);


/* ---- the operations ---- */

void *
vlm_cuda_alloc(vlm_device_t *dev, size_t size)
{
    return dev->memory != NULL ? part_take(dev, dev->memory, size)
                               : driver_alloc(dev, size, 0);
}


void
vlm_cuda_free(vlm_device_t *dev, void *data)
{
    if (holds(dev->memory, data)) {
        part_leave(dev, dev->memory, data);

    } else if (data != NULL) {
        driver_free(dev, data, 0);
    }
}


void *
vlm_cuda_host_alloc(vlm_device_t *dev, size_t size)
{
    void  *data;

    data = dev->host_memory != NULL ? part_take(dev, dev->host_memory, size)
                                    : NULL;

    return data != NULL ? data : driver_alloc(dev, size, 1);
}


void
vlm_cuda_host_free(vlm_device_t *dev, void *data)
{
    if (holds(dev->host_memory, data)) {
        part_leave(dev, dev->host_memory, data);

    } else if (data != NULL) {
        driver_free(dev, data, 1);
    }
}


int
vlm_cuda_reserve(vlm_device_t *dev, size_t size, size_t host_size, char *err,
    size_t errlen)
{
    if (dev->memory != NULL) {
        snprintf(err, errlen, "device %s: memory is reserved already",
                 dev->name);
        return -1;
    }

    dev->memory = reserve_open(dev, size, 0, err, errlen);
    if (dev->memory == NULL) {
        return -1;
    }

    if (host_size == 0) {
        return 0;
    }

    dev->host_memory = reserve_open(dev, host_size, 1, err, errlen);

    return dev->host_memory != NULL ? 0 : -1;
}


void
vlm_cuda_reserved(vlm_device_t *dev, vlm_reserve_t *memory,
    vlm_reserve_t *host)
{
    describe(dev, dev->memory, memory);
    describe(dev, dev->host_memory, host);
}


void
vlm_cuda_memory_done(vlm_device_t *dev)
{
    reserve_close(dev, dev->memory, 0);
    reserve_close(dev, dev->host_memory, 1);
}


/* ---- the driver's memory ---- */

static void *
driver_alloc(vlm_device_t *dev, size_t size, int host)
{
    void         *data;
    cudaError_t   rc;

    if (size > SIZE_MAX / 2 || cudaSetDevice(dev->index) != cudaSuccess) {
        return NULL;
    }

    size = size > 0 ? size : 1;
    rc = host ? cudaMallocHost(&data, size) : cudaMalloc(&data, size);

    if (rc != cudaSuccess) {
        /* lack of memory is no lasting error */
        (void) cudaGetLastError();
        return NULL;
    }

    return data;
}


/* waits until nothing uses it any more */

static void
driver_free(vlm_device_t *dev, void *data, int host)
{
    (void) cudaSetDevice(dev->index);

    pthread_mutex_lock(&dev->recording);
    (void) cudaDeviceSynchronize();
    (void) (host ? cudaFreeHost(data) : cudaFree(data));
    pthread_mutex_unlock(&dev->recording);
}


void *
vlm_cuda_pinned_alloc(vlm_device_t *dev, size_t size)
{
    return driver_alloc(dev, size, 1);
}


void
vlm_cuda_pinned_free(vlm_device_t *dev, void *data)
{
    if (data != NULL) {
        driver_free(dev, data, 1);
    }
}


/* ---- a piece and its parts ---- */

static reserve_s *
reserve_open(vlm_device_t *dev, size_t size, int host, char *err,
    size_t errlen)
{
    reserve_s  *r;

    size = size / VLM_RESERVE_ALIGN * VLM_RESERVE_ALIGN;
    r = (reserve_s *) calloc(1, sizeof(reserve_s));

    if (r != NULL) {
        r->data = (char *) driver_alloc(dev, size, host);
        r->parts = (part_t *) calloc(1, sizeof(part_t));
    }

    if (r == NULL || r->data == NULL || r->parts == NULL) {
        reserve_close(dev, r, host);
        snprintf(err, errlen, "device %s: no %.0f MiB of %s in one piece",
                 dev->name, (double) size / 1048576,
                 host ? "pinned memory" : "memory");
        return NULL;
    }

    r->is.size = size;
    r->parts->data = r->data;
    r->parts->size = size;
    hide(r->data, size);

    return r;
}


static void
reserve_close(vlm_device_t *dev, reserve_s *r, int host)
{
    part_t  *p;

    if (r == NULL) {
        return;
    }

    while (r->parts != NULL) {
        p = r->parts;
        r->parts = p->next;
        free(p);
    }

    if (r->data != NULL) {
        show(r->data, r->is.size);
        driver_free(dev, r->data, host);
    }

    free(r);
}


static int
holds(const reserve_s *r, const void *data)
{
    return r != NULL && (uintptr_t) data >= (uintptr_t) r->data
           && (uintptr_t) data < (uintptr_t) r->data + r->is.size;
}


/* the first that is large enough; NULL: there is none */

static void *
part_take(vlm_device_t *dev, reserve_s *r, size_t size)
{
    part_t  *p;

    if (size > SIZE_MAX / 2) {
        return NULL;
    }

    pthread_mutex_lock(&dev->lock);

    parts_return(dev, r);

    for (p = r->parts; p != NULL; p = p->next) {

        if (p->state == PART_FREE && p->size >= vlm_reserve_bytes(size)) {
            break;
        }
    }

    if (p != NULL && part_cut(p, vlm_reserve_bytes(size)) != 0) {
        p = NULL;
    }

    if (p != NULL) {
        p->state = PART_USED;
        show(p->data, size);

        r->is.used += p->size;
        r->is.peak = r->is.used > r->is.peak ? r->is.used : r->is.peak;
    }

    pthread_mutex_unlock(&dev->lock);

    if (p == NULL) {
        return NULL;
    }

#ifdef VLM_EMU
    /* as if it were fresh */
    memset(p->data, 0xff, size);
#endif

    return p->data;
}


/* leaves what is too much of it as a part of its own */

static int
part_cut(part_t *p, size_t size)
{
    part_t  *rest;

    if (p->size == size) {
        return 0;
    }

    rest = (part_t *) calloc(1, sizeof(part_t));
    if (rest == NULL) {
        return -1;
    }

    rest->prev = p;
    rest->next = p->next;
    rest->data = p->data + size;
    rest->size = p->size - size;

    if (rest->next != NULL) {
        rest->next->prev = rest;
    }

    p->next = rest;
    p->size = size;

    return 0;
}


static void
part_leave(vlm_device_t *dev, reserve_s *r, void *data)
{
    int      i;
    part_t  *p;

    pthread_mutex_lock(&dev->lock);

    for (p = r->parts; p != NULL && p->data != data; p = p->next) {
        /* void */
    }

    if (p != NULL && p->state == PART_USED) {
        p->state = PART_LEFT;

        for (i = 0; i < VLM_CUDA_QUEUES; i++) {
            p->after[i] = __atomic_load_n(&dev->progress[i].begun,
                                          __ATOMIC_ACQUIRE);
        }
    }

    pthread_mutex_unlock(&dev->lock);
}


/* what all queues have got past is free */

static void
parts_return(vlm_device_t *dev, reserve_s *r)
{
    int       i;
    part_t   *p;
    uint64_t  done[VLM_CUDA_QUEUES];

    for (i = 0; i < VLM_CUDA_QUEUES; i++) {
        done[i] = __atomic_load_n(&dev->progress[i].done, __ATOMIC_ACQUIRE);
    }

    for (p = r->parts; p != NULL; p = p->next) {

        if (p->state != PART_LEFT) {
            continue;
        }

        for (i = 0; i < VLM_CUDA_QUEUES && done[i] >= p->after[i]; i++) {
            /* void */
        }

        if (i < VLM_CUDA_QUEUES) {
            continue;
        }

        p->state = PART_FREE;
        r->is.used -= p->size;
        hide(p->data, p->size);

        part_join(p);

        if (p->prev != NULL && p->prev->state == PART_FREE) {
            p = p->prev;
            part_join(p);
        }
    }
}


/* with the next one, if that is free too */

static void
part_join(part_t *p)
{
    part_t  *next = p->next;

    if (next == NULL || next->state != PART_FREE) {
        return;
    }

    p->size += next->size;
    p->next = next->next;

    if (p->next != NULL) {
        p->next->prev = p;
    }

    free(next);
}


static void
describe(vlm_device_t *dev, reserve_s *r, vlm_reserve_t *is)
{
    part_t  *p;

    memset(is, 0, sizeof(vlm_reserve_t));

    if (r == NULL) {
        return;
    }

    pthread_mutex_lock(&dev->lock);

    parts_return(dev, r);
    *is = r->is;

    for (p = r->parts; p != NULL; p = p->next) {

        if (p->state == PART_FREE && p->size > is->largest) {
            is->largest = p->size;
        }
    }

    pthread_mutex_unlock(&dev->lock);

    /* as vlm_reserve_bytes() of it is to fit */
    is->largest -= is->largest != 0;
}


/* ---- how far the queues are ---- */

int
vlm_cuda_progress_open(vlm_device_t *dev)
{
    int  i;

    pthread_mutex_lock(&dev->lock);

    for (i = 0; i < VLM_CUDA_QUEUES && dev->progress[i].taken; i++) {
        /* void */
    }

    if (i < VLM_CUDA_QUEUES) {
        dev->progress[i].taken = 1;
    }

    pthread_mutex_unlock(&dev->lock);

    return i < VLM_CUDA_QUEUES ? i : -1;
}


/* the queue has come to its end */

void
vlm_cuda_progress_close(vlm_device_t *dev, int number)
{
    vlm_cuda_progress(dev, number, vlm_cuda_begun(dev, number));

    pthread_mutex_lock(&dev->lock);
    dev->progress[number].taken = 0;
    pthread_mutex_unlock(&dev->lock);
}


uint64_t
vlm_cuda_begun(vlm_device_t *dev, int number)
{
    return __atomic_load_n(&dev->progress[number].begun, __ATOMIC_ACQUIRE);
}


/* all that had begun at "count" has run; of several threads the most tells */

void
vlm_cuda_progress(vlm_device_t *dev, int number, uint64_t count)
{
    uint64_t  done, *p = &dev->progress[number].done;

    done = __atomic_load_n(p, __ATOMIC_ACQUIRE);

    while (done < count
           && !__atomic_compare_exchange_n(p, &done, count, 0,
                                           __ATOMIC_ACQ_REL,
                                           __ATOMIC_ACQUIRE))
    {
        /* void */
    }
}


VLM_CUDA_END
