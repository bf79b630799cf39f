
/*
 * Queues: a stream each, failures, work memory, and small pieces of host data
 * that go through pinned memory, so that nothing waits.
 */

#include <stdarg.h>

#include "kernels/cuda/cuda.h"


/*
 * Pieces fill one half of the ring, then the other: what was in that has run
 * by then, so nothing is waited for.  It grows with the largest piece.
 */
#ifdef VLM_EMU
#define RING_SIZE   ((size_t) 4 * 1024)
#else
#define RING_SIZE   ((size_t) 256 * 1024)
#endif

/* downloads up to this size go through the ring */
#define SMALL       ((size_t) 32 * 1024)


VLM_CUDA_BEGIN


static size_t taken(size_t size);
static size_t scratch_bytes(vlm_device_t *dev, const vlm_limits_t *most);
static size_t ring_bytes(const vlm_limits_t *most);
static int ring_room(vlm_queue_t *q, size_t size, const char *op);
static int ring_make(vlm_queue_t *q, size_t size, const char *op);
static int ring_turn(vlm_queue_t *q, const char *op);
static int ring_drain(vlm_queue_t *q, const char *op, int within);
static void ring_free(vlm_queue_t *q);


vlm_queue_t *
vlm_cuda_queue_create(vlm_device_t *dev, int low_priority)
{
    vlm_queue_t  *q;

    if (cudaSetDevice(dev->index) != cudaSuccess) {
        return NULL;
    }

    q = (vlm_queue_t *) calloc(1, sizeof(vlm_queue_t));
    if (q == NULL) {
        return NULL;
    }

    q->dev = dev;
    q->number = vlm_cuda_progress_open(dev);

    if (q->number == -1) {
        free(q);
        return NULL;
    }

    if (cudaStreamCreateWithPriority(&q->stream, cudaStreamNonBlocking,
                                     low_priority ? dev->low_priority
                                                  : dev->high_priority)
        != cudaSuccess)
    {
        vlm_cuda_progress_close(dev, q->number);
        free(q);
        return NULL;
    }

    if (cudaEventCreateWithFlags(&q->turned[0], cudaEventDisableTiming)
        != cudaSuccess
        || cudaEventCreateWithFlags(&q->turned[1], cudaEventDisableTiming)
           != cudaSuccess
        || vlm_gemm_queue(q) != 0)
    {
        vlm_cuda_queue_destroy(q);
        return NULL;
    }

    return q;
}


void
vlm_cuda_queue_destroy(vlm_queue_t *q)
{
    int  i;

    if (q == NULL) {
        return;
    }

    (void) cudaSetDevice(q->dev->index);
    (void) cudaStreamSynchronize(q->stream);

    vlm_cuda_progress_close(q->dev, q->number);

    vlm_cuda_graphs_done(q);
    vlm_gemm_queue_done(q);
    vlm_cuda_step_free(q->dev, &q->spare);
    vlm_cuda_free(q->dev, q->scratch);
    ring_free(q);

    for (i = 0; i < 2; i++) {
        if (q->turned[i] != NULL) {
            (void) cudaEventDestroy(q->turned[i]);
        }
    }

    (void) cudaStreamDestroy(q->stream);
    free(q);
}


size_t
vlm_cuda_queue_bytes(vlm_device_t *dev, const vlm_limits_t *most)
{
    return taken(vlm_gemm_bytes()) + taken(scratch_bytes(dev, most))
           + taken(ring_bytes(most)) + taken(vlm_cuda_step_bytes(most));
}


static size_t
taken(size_t size)
{
    return size != 0 ? vlm_reserve_bytes(size) : 0;
}


int
vlm_cuda_queue_reserve(vlm_queue_t *q, const vlm_limits_t *most, char *err,
    size_t errlen)
{
    size_t  step, scratch;

    step = vlm_cuda_step_bytes(most);
    scratch = scratch_bytes(q->dev, most);

    if (vlm_cuda_begin(q) == 0
        && (scratch == 0 || vlm_cuda_scratch(q, scratch, "queue") != NULL)
        && (ring_bytes(most) == 0
            || ring_room(q, ring_bytes(most) / 2, "queue") == 0)
        && (step == 0 || vlm_cuda_step_reserve(q, &q->spare, step) == 0))
    {
        return 0;
    }

    return vlm_cuda_sync(q, err, errlen);
}


/* the most that an operation asks vlm_cuda_scratch() for */

static size_t
scratch_bytes(vlm_device_t *dev, const vlm_limits_t *most)
{
    size_t  size, n;

    size = vlm_cuda_linear_scratch(dev, most);

    n = vlm_cuda_attention_scratch(most);
    size = n > size ? n : size;

    n = vlm_cuda_sample_scratch(most);

    return n > size ? n : size;
}


/* twice the largest piece that an operation asks vlm_cuda_stage() for */

static size_t
ring_bytes(const vlm_limits_t *most)
{
    size_t  size, n;

    size = vlm_cuda_attention_stage(most);

    n = vlm_cuda_sample_stage(most);
    size = n > size ? n : size;

    n = (size_t) most->patches * VLM_ROPE_MAX_AXES * sizeof(int32_t);
    size = n > size ? n : size;

    return (2 * size + RING_SIZE - 1) / RING_SIZE * RING_SIZE;
}


int
vlm_cuda_begin(vlm_queue_t *q)
{
    if (q->failed) {
        return -1;
    }

    __atomic_add_fetch(&q->dev->progress[q->number].begun, 1,
                       __ATOMIC_RELEASE);

    return vlm_cuda_check(q, cudaSetDevice(q->dev->index), "cudaSetDevice");
}


void
vlm_cuda_fail(vlm_queue_t *q, const char *fmt, ...)
{
    va_list  args;

    if (q->failed) {
        return;
    }

    va_start(args, fmt);
    vsnprintf(q->err, sizeof(q->err), fmt, args);
    va_end(args);

    q->failed = 1;
}


int
vlm_cuda_check(vlm_queue_t *q, cudaError_t rc, const char *op)
{
    if (rc == cudaSuccess) {
        return 0;
    }

    vlm_cuda_fail(q, "%s: %s", op, cudaGetErrorString(rc));

    /*
     * What is still there after it was asked for stays for good; the device
     * cannot be asked while it records, and what has run then is nothing.
     */

    (void) cudaGetLastError();

    if (q->graph != VLM_GRAPH_RECORD
        && vlm_cuda_wait_all(q->dev) != cudaSuccess)
    {
        q->dev->lost = 1;
    }

    return -1;
}


int
vlm_cuda_ungraphed(vlm_queue_t *q, const char *op)
{
    if (q->graph == VLM_GRAPH_NONE) {
        return 0;
    }

    vlm_cuda_fail(q, "%s: not between graph_begin() and graph_end()", op);

    return -1;
}


cudaError_t
vlm_cuda_wait_all(vlm_device_t *dev)
{
    cudaError_t  rc;

    pthread_mutex_lock(&dev->recording);
    rc = cudaDeviceSynchronize();
    pthread_mutex_unlock(&dev->recording);

    return rc;
}


int
vlm_cuda_sync(vlm_queue_t *q, char *err, size_t errlen)
{
    if (vlm_cuda_ungraphed(q, "sync") == 0) {
        (void) ring_drain(q, "sync", 0);
    }

    if (!q->failed) {
        return 0;
    }

    snprintf(err, errlen, "%s", q->err);
    q->failed = 0;

    return -1;
}


int
vlm_cuda_failed(vlm_queue_t *q)
{
    cudaError_t  rc;

    if (vlm_cuda_begin(q) != 0) {
        return 1;
    }

    rc = cudaStreamQuery(q->stream);

    if (rc == cudaErrorNotReady) {
        /* no error, but would be the next launch's */
        (void) cudaGetLastError();
        return 0;
    }

    return vlm_cuda_check(q, rc, "sync") != 0;
}


void *
vlm_cuda_scratch(vlm_queue_t *q, size_t size, const char *op)
{
    if (q->scratch_size >= size) {
        return q->scratch;
    }

    if (q->graph == VLM_GRAPH_RECORD) {
        vlm_cuda_fail(q, "%s: needs %zu bytes of work space, had %zu before "
                      "it was recorded", op, size, q->scratch_size);
        return NULL;
    }

    /* operations that use it are on the queue: free() minds that */

    vlm_cuda_free(q->dev, q->scratch);
    q->scratch_size = 0;

    q->scratch = vlm_cuda_alloc(q->dev, size);
    if (q->scratch == NULL) {
        vlm_cuda_fail(q, "%s: no device memory for %zu bytes of work space",
                      op, size);
        return NULL;
    }

    q->scratch_size = size;

    return q->scratch;
}


const void *
vlm_cuda_stage(vlm_queue_t *q, const void *host, size_t size, const char *op)
{
    char  *to, *from;

    if (vlm_cuda_ungraphed(q, op) != 0 || ring_room(q, size, op) != 0) {
        return NULL;
    }

    from = q->ring + q->ring_used;
    to = q->ring_device + q->ring_used;

    memcpy(from, host, size);

    if (vlm_cuda_check(q, cudaMemcpyAsync(to, from, size,
                                          cudaMemcpyHostToDevice, q->stream),
                       op)
        != 0)
    {
        return NULL;
    }

    q->ring_used += (size + 255) / 256 * 256;

    return to;
}


void
vlm_cuda_deliver(vlm_queue_t *q, void *host, const void *from, size_t size,
    const char *op)
{
    vlm_delivery_t  *d;

    if (vlm_cuda_ungraphed(q, op) != 0
        || (q->ndeliveries == VLM_CUDA_DELIVERIES
            && ring_drain(q, op, 1) != 0))
    {
        return;
    }

    if (ring_room(q, size, op) != 0
        || vlm_cuda_check(q, cudaMemcpyAsync(q->ring + q->ring_used, from,
                                             size, cudaMemcpyDeviceToHost,
                                             q->stream), op)
           != 0)
    {
        return;
    }

    d = &q->deliveries[q->ndeliveries++];
    d->to = host;
    d->from = q->ring + q->ring_used;
    d->size = size;

    q->ring_used += (size + 255) / 256 * 256;
}


/* room for one more piece; waits when both halves are full */

static int
ring_room(vlm_queue_t *q, size_t size, const char *op)
{
    if (size <= q->ring_end - q->ring_used) {
        return 0;
    }

    if (q->ndeliveries == 0 && size <= q->ring_size / 2) {
        return ring_turn(q, op);
    }

    if (ring_drain(q, op, 1) != 0) {
        return -1;
    }

    if (size <= q->ring_size / 2) {
        return 0;
    }

    return ring_make(q, (2 * size + RING_SIZE - 1) / RING_SIZE * RING_SIZE,
                     op);
}


static int
ring_make(vlm_queue_t *q, size_t size, const char *op)
{
    ring_free(q);

    q->ring = (char *) vlm_cuda_pinned_alloc(q->dev, size);
    q->ring_device = (char *) vlm_cuda_alloc(q->dev, size);

    if (q->ring == NULL || q->ring_device == NULL) {
        ring_free(q);
        vlm_cuda_fail(q, "%s: no memory for %zu bytes of tables", op, size);
        return -1;
    }

    q->ring_size = size;
    q->ring_end = size / 2;

    return 0;
}


/* to the other half, which was left as many pieces ago as fit into one */

static int
ring_turn(vlm_queue_t *q, const char *op)
{
    int  half;

    half = (q->ring_end == q->ring_size);

    if (vlm_cuda_check(q, cudaEventRecord(q->turned[half], q->stream), op)
        != 0
        || vlm_cuda_check(q, cudaEventSynchronize(q->turned[!half]), op) != 0)
    {
        return -1;
    }

    q->ring_used = half ? 0 : q->ring_size / 2;
    q->ring_end = q->ring_used + q->ring_size / 2;

    return 0;
}


/*
 * Waits for all work, and delivers.  "within": the operation that has begun
 * last is not on the queue yet.
 */

static int
ring_drain(vlm_queue_t *q, const char *op, int within)
{
    int       i;
    uint64_t  begun;

    begun = vlm_cuda_begun(q->dev, q->number) - (uint64_t) within;

    if (vlm_cuda_check(q, cudaStreamSynchronize(q->stream), op) == 0) {

        for (i = 0; i < q->ndeliveries; i++) {
            memcpy(q->deliveries[i].to, q->deliveries[i].from,
                   q->deliveries[i].size);
        }
    }

    /* of a device that is lost nothing will run any more */

    vlm_cuda_progress(q->dev, q->number, begun);

    q->ndeliveries = 0;
    q->ring_used = 0;
    q->ring_end = q->ring_size / 2;

    return q->failed ? -1 : 0;
}


static void
ring_free(vlm_queue_t *q)
{
    vlm_cuda_pinned_free(q->dev, q->ring);
    vlm_cuda_free(q->dev, q->ring_device);

    q->ring = NULL;
    q->ring_device = NULL;
    q->ring_size = 0;
    q->ring_used = 0;
    q->ring_end = 0;
}


void
vlm_cuda_upload(vlm_queue_t *q, void *to, const void *host, size_t size)
{
    if (vlm_cuda_begin(q) == 0 && vlm_cuda_ungraphed(q, "upload") == 0) {
        (void) vlm_cuda_check(q, cudaMemcpyAsync(to, host, size,
                                                 cudaMemcpyHostToDevice,
                                                 q->stream), "upload");
    }
}


void
vlm_cuda_download(vlm_queue_t *q, void *host, const void *from, size_t size)
{
    if (vlm_cuda_begin(q) != 0 || vlm_cuda_ungraphed(q, "download") != 0) {
        return;
    }

    if (size <= SMALL) {
        vlm_cuda_deliver(q, host, from, size, "download");
        return;
    }

    (void) vlm_cuda_check(q, cudaMemcpyAsync(host, from, size,
                                             cudaMemcpyDeviceToHost,
                                             q->stream), "download");
}


VLM_CUDA_END
