
/* the device: opened, described, closed; the table of operations */

#include "kernels/cuda/cuda.h"


/* half of the pinned memory that weights are uploaded through */
#ifdef VLM_EMU
#define STAGING  ((size_t) 64 << 10)
#else
#define STAGING  ((size_t) 16 << 20)
#endif


VLM_CUDA_BEGIN


static void open_locks(vlm_device_t *dev);
static int open_index(vlm_device_t *dev, char *err, size_t errlen);
static int open_loader(vlm_device_t *dev, char *err, size_t errlen);
static void fill_table(vlm_device_t *dev);
static vlm_device_t *device_open(int index, const vlm_cuda_options_t *opt,
    const vlm_ops_t **ops, char *err, size_t errlen);
static void device_close(vlm_device_t *dev);


static vlm_device_t *
device_open(int index, const vlm_cuda_options_t *opt, const vlm_ops_t **ops,
    char *err, size_t errlen)
{
    vlm_device_t  *dev;

    dev = (vlm_device_t *) calloc(1, sizeof(vlm_device_t));
    if (dev == NULL) {
        snprintf(err, errlen, "no memory for a device");
        return NULL;
    }

    dev->index = index;
    dev->act = opt->f32 ? VLM_F32 : VLM_BF16;
    dev->deterministic = opt->deterministic;
    dev->no_graphs = opt->no_graphs;
    open_locks(dev);

    if (open_index(dev, err, errlen) != 0
        || open_loader(dev, err, errlen) != 0
        || vlm_gemm_open(dev, err, errlen) != 0)
    {
        device_close(dev);
        return NULL;
    }

    fill_table(dev);
    *ops = &dev->ops;

    return dev;
}


/* who records and asks for memory is refused by the runtime, not stuck */

static void
open_locks(vlm_device_t *dev)
{
    pthread_mutexattr_t  attr;

    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&dev->recording, &attr);
    pthread_mutexattr_destroy(&attr);

    pthread_mutex_init(&dev->lock, NULL);
}


#ifdef VLM_EMU

static int
open_index(vlm_device_t *dev, char *err, size_t errlen)
{
    const char  *capability = getenv("VLM_EMU_CAPABILITY");

    snprintf(dev->name, sizeof(dev->name), "emu");
    dev->multiprocessors = 4;
    dev->capability = capability != NULL ? atoi(capability) : 90;

    return 0;
}

#else

/* the runtime's own words are the same for no driver and for an old one */

static int
driver_check(char *err, size_t errlen)
{
    int  driver;

    driver = 0;

    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
        snprintf(err, errlen, "CUDA: there is no NVIDIA driver (libcuda.so.1)");
        return -1;
    }

    if (driver / 1000 < CUDART_VERSION / 1000) {
        snprintf(err, errlen, "CUDA: the NVIDIA driver is for CUDA %d.%d, too "
                 "old: %d.0 is needed", driver / 1000, driver % 1000 / 10,
                 CUDART_VERSION / 1000);
        return -1;
    }

    return 0;
}


static int
open_index(vlm_device_t *dev, char *err, size_t errlen)
{
    int                    count;
    cudaError_t            rc;
    struct cudaDeviceProp  prop;

    if (driver_check(err, errlen) != 0) {
        return -1;
    }

    count = 0;
    rc = cudaGetDeviceCount(&count);

    if (rc != cudaSuccess || count == 0) {
        snprintf(err, errlen, "CUDA: %s",
                 rc != cudaSuccess ? cudaGetErrorString(rc) : "no device");
        return -1;
    }

    if (dev->index < 0 || dev->index >= count) {
        snprintf(err, errlen, "CUDA: no device %d, there %s %d", dev->index,
                 count == 1 ? "is" : "are", count);
        return -1;
    }

    rc = cudaSetDevice(dev->index);

    if (rc == cudaSuccess) {
        rc = cudaGetDeviceProperties(&prop, dev->index);
    }

    if (rc == cudaSuccess) {
        rc = cudaDeviceGetStreamPriorityRange(&dev->low_priority,
                                              &dev->high_priority);
    }

    if (rc != cudaSuccess) {
        snprintf(err, errlen, "CUDA device %d: %s", dev->index,
                 cudaGetErrorString(rc));
        return -1;
    }

    if (prop.major < 8) {
        snprintf(err, errlen, "CUDA device %d: %.64s has compute capability "
                 "%d.%d, 8.0 is needed", dev->index, prop.name, prop.major,
                 prop.minor);
        return -1;
    }

    dev->multiprocessors = prop.multiProcessorCount;
    dev->capability = 10 * prop.major + prop.minor;
    snprintf(dev->name, sizeof(dev->name), "cuda:%d (%.64s)", dev->index,
             prop.name);

    return 0;
}

#endif


static int
open_loader(vlm_device_t *dev, char *err, size_t errlen)
{
    int          i;
    cudaError_t  rc;

    rc = cudaStreamCreateWithPriority(&dev->loader, cudaStreamNonBlocking,
                                      dev->low_priority);

    for (i = 0; i < 2 && rc == cudaSuccess; i++) {
        rc = cudaMallocHost(&dev->staging[i], STAGING);

        if (rc == cudaSuccess) {
            rc = cudaEventCreateWithFlags(&dev->staged[i],
                                          cudaEventDisableTiming);
        }
    }

    dev->staging_size = STAGING;

    if (rc != cudaSuccess) {
        snprintf(err, errlen, "device %s: %zu bytes of pinned memory: %s",
                 dev->name, 2 * STAGING, cudaGetErrorString(rc));
        return -1;
    }

    return 0;
}


static void
device_close(vlm_device_t *dev)
{
    int  i;

    if (dev == NULL) {
        return;
    }

    (void) cudaSetDevice(dev->index);

    vlm_gemm_close(dev);

    for (i = 0; i < 2; i++) {
        if (dev->staging[i] != NULL) {
            (void) cudaFreeHost(dev->staging[i]);
        }

        if (dev->staged[i] != NULL) {
            (void) cudaEventDestroy(dev->staged[i]);
        }
    }

    if (dev->loader != NULL) {
        (void) cudaStreamDestroy(dev->loader);
    }

    vlm_cuda_memory_done(dev);
    pthread_mutex_destroy(&dev->lock);
    pthread_mutex_destroy(&dev->recording);
    free(dev);
}


static void
fill_table(vlm_device_t *dev)
{
    vlm_ops_t  *ops = &dev->ops;

    ops->name = dev->name;
    ops->act_dtype = dev->act;
    ops->async = 1;

    ops->alloc = vlm_cuda_alloc;
    ops->free = vlm_cuda_free;
    ops->host_alloc = vlm_cuda_host_alloc;
    ops->host_free = vlm_cuda_host_free;
    ops->reserve = vlm_cuda_reserve;
    ops->reserved = vlm_cuda_reserved;
    ops->queue_create = vlm_cuda_queue_create;
    ops->queue_destroy = vlm_cuda_queue_destroy;
    ops->queue_bytes = vlm_cuda_queue_bytes;
    ops->queue_reserve = vlm_cuda_queue_reserve;
    ops->sync = vlm_cuda_sync;
    ops->failed = vlm_cuda_failed;
    ops->weight_create = vlm_cuda_weight_create;
    ops->weight_destroy = vlm_cuda_weight_destroy;
    ops->kv_block_bytes = vlm_cuda_kv_block_bytes;
    ops->vision_kv_bytes = vlm_cuda_vision_kv_bytes;
    ops->step_upload = vlm_cuda_step_upload;
    ops->step_free = vlm_cuda_step_free;

    ops->fence_create = vlm_cuda_fence_create;
    ops->fence_destroy = vlm_cuda_fence_destroy;
    ops->record = vlm_cuda_record;
    ops->wait = vlm_cuda_wait;
    ops->reached = vlm_cuda_reached;

    if (!dev->no_graphs) {
        ops->graph_begin = vlm_cuda_graph_begin;
        ops->graph_end = vlm_cuda_graph_end;
    }

    ops->upload = vlm_cuda_upload;
    ops->download = vlm_cuda_download;
    ops->convert = vlm_cuda_convert;
    ops->embed = vlm_cuda_embed;
    ops->scatter = vlm_cuda_scatter;
    ops->gather = vlm_cuda_gather;
    ops->norm = vlm_cuda_norm;
    ops->linear = vlm_cuda_linear;
    ops->rope_kv = vlm_cuda_rope_kv;
    ops->attention = vlm_cuda_attention;
    ops->rope_table = vlm_cuda_rope_table;
    ops->vision_rope = vlm_cuda_vision_rope;
    ops->vision_attention = vlm_cuda_vision_attention;
    ops->patchify = vlm_cuda_patchify;
    ops->sample = vlm_cuda_sample;
}


VLM_CUDA_END


extern "C" {


#ifdef VLM_EMU

vlm_device_t *
vlm_emu_device(const vlm_cuda_options_t *opt, const vlm_ops_t **ops,
    char *err, size_t errlen)
{
    return device_open(0, opt, ops, err, errlen);
}


void
vlm_emu_device_destroy(vlm_device_t *dev)
{
    device_close(dev);
}


int
vlm_emu_lost(const vlm_device_t *dev)
{
    return dev->lost;
}

#else

int
vlm_cuda_built(void)
{
    return 1;
}


vlm_device_t *
vlm_cuda_device(int index, const vlm_cuda_options_t *opt,
    const vlm_ops_t **ops, char *err, size_t errlen)
{
    return device_open(index, opt, ops, err, errlen);
}


void
vlm_cuda_device_destroy(vlm_device_t *dev)
{
    device_close(dev);
}


int
vlm_cuda_memory(vlm_device_t *dev, size_t *left, size_t *total)
{
    if (cudaSetDevice(dev->index) != cudaSuccess) {
        return -1;
    }

    return cudaMemGetInfo(left, total) == cudaSuccess ? 0 : -1;
}


int
vlm_cuda_lost(const vlm_device_t *dev)
{
    return dev->lost;
}

#endif


}
