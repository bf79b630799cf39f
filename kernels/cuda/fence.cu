
/* Order between queues: events of the runtime. */

#include "kernels/cuda/cuda.h"


struct vlm_fence_s {
    vlm_device_t       *dev;
    cudaEvent_t         event;
    int                 number;             /* of the queue, and how far it */
    uint64_t            begun;              /* was; 0: never recorded */
};


VLM_CUDA_BEGIN


vlm_fence_t *
vlm_cuda_fence_create(vlm_device_t *dev)
{
    vlm_fence_t  *fence;

    if (cudaSetDevice(dev->index) != cudaSuccess) {
        return NULL;
    }

    fence = (vlm_fence_t *) calloc(1, sizeof(vlm_fence_t));
    if (fence == NULL) {
        return NULL;
    }

    fence->dev = dev;

    if (cudaEventCreateWithFlags(&fence->event, cudaEventDisableTiming)
        != cudaSuccess)
    {
        (void) cudaGetLastError();
        free(fence);
        return NULL;
    }

    return fence;
}


void
vlm_cuda_fence_destroy(vlm_fence_t *fence)
{
    if (fence == NULL) {
        return;
    }

    (void) cudaSetDevice(fence->dev->index);
    (void) cudaEventDestroy(fence->event);
    free(fence);
}


void
vlm_cuda_record(vlm_queue_t *q, vlm_fence_t *fence)
{
    if (vlm_cuda_begin(q) != 0 || vlm_cuda_ungraphed(q, "record") != 0) {
        return;
    }

    fence->number = q->number;
    fence->begun = vlm_cuda_begun(q->dev, q->number);

    (void) vlm_cuda_check(q, cudaEventRecord(fence->event, q->stream),
                          "record");
}


void
vlm_cuda_wait(vlm_queue_t *q, vlm_fence_t *fence)
{
    if (vlm_cuda_begin(q) != 0 || vlm_cuda_ungraphed(q, "wait") != 0) {
        return;
    }

    (void) vlm_cuda_check(q, cudaStreamWaitEvent(q->stream, fence->event, 0),
                          "wait");
}


int
vlm_cuda_reached(vlm_fence_t *fence)
{
    if (cudaSetDevice(fence->dev->index) != cudaSuccess) {
        return 1;
    }

    if (cudaEventQuery(fence->event) == cudaErrorNotReady) {
        /* no error, but would be the next launch's */
        (void) cudaGetLastError();
        return 0;
    }

    vlm_cuda_progress(fence->dev, fence->number, fence->begun);

    return 1;
}


VLM_CUDA_END
