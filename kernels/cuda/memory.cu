
/*
 * Device memory.  The driver's own free() waits for the whole device and its
 * alloc() is slow, so freed blocks are kept for requests of about their size:
 * the encoder's jobs come and go with every picture.
 */

#include "kernels/cuda/cuda.h"


/* what is kept at most; the rest goes back to the driver */
#define CACHE_MAX   ((size_t) 1 << 30)

#define ALIGN       ((size_t) 256)


VLM_CUDA_BEGIN


struct block_s {
    block_s     *next;
    void        *data;
    size_t       size;
    int          used;
};


static block_s *find_free(vlm_device_t *dev, size_t size);
static block_s *new_block(vlm_device_t *dev, size_t size);
static void trim(vlm_device_t *dev, size_t most);


void *
vlm_cuda_alloc(vlm_device_t *dev, size_t size)
{
    block_s  *b;

    if (size > SIZE_MAX / 2 || cudaSetDevice(dev->index) != cudaSuccess) {
        return NULL;
    }

#ifndef VLM_EMU
    /* (on the host a block ends where AddressSanitizer can see it) */
    size = (size / ALIGN + 1) * ALIGN;
#endif

    pthread_mutex_lock(&dev->lock);

    b = find_free(dev, size);

    if (b == NULL) {
        b = new_block(dev, size);
    }

    if (b == NULL) {
        trim(dev, 0);
        b = new_block(dev, size);
    }

    pthread_mutex_unlock(&dev->lock);

    return b != NULL ? b->data : NULL;
}


/* the smallest that is large enough, but not by more than a quarter */

static block_s *
find_free(vlm_device_t *dev, size_t size)
{
    block_s  *b, *best;

    best = NULL;

    for (b = dev->blocks; b != NULL; b = b->next) {

        if (!b->used && b->size >= size && b->size - size <= size / 4
            && (best == NULL || b->size < best->size))
        {
            best = b;
        }
    }

    if (best != NULL) {
        best->used = 1;
        dev->cached -= best->size;
    }

    return best;
}


static block_s *
new_block(vlm_device_t *dev, size_t size)
{
    block_s  *b;

    b = (block_s *) malloc(sizeof(block_s));
    if (b == NULL) {
        return NULL;
    }

    if (cudaMalloc(&b->data, size) != cudaSuccess) {
        /* lack of memory is no lasting error */
        (void) cudaGetLastError();
        free(b);
        return NULL;
    }

    b->size = size;
    b->used = 1;
    b->next = dev->blocks;
    dev->blocks = b;

    return b;
}


void
vlm_cuda_free(vlm_device_t *dev, void *data)
{
    block_s  *b;

    if (data == NULL) {
        return;
    }

    /* operations of any queue may use it still */

    (void) cudaSetDevice(dev->index);
    (void) cudaDeviceSynchronize();

    pthread_mutex_lock(&dev->lock);

    for (b = dev->blocks; b != NULL; b = b->next) {

        if (b->data == data) {
            b->used = 0;
            dev->cached += b->size;
            break;
        }
    }

#ifdef VLM_EMU
    trim(dev, 0);
#else
    trim(dev, CACHE_MAX);
#endif

    pthread_mutex_unlock(&dev->lock);
}


/* gives free blocks back until no more than that is kept */

static void
trim(vlm_device_t *dev, size_t most)
{
    block_s  *b, **p;

    for (p = &dev->blocks; *p != NULL && dev->cached > most; ) {
        b = *p;

        if (b->used) {
            p = &b->next;
            continue;
        }

        *p = b->next;
        dev->cached -= b->size;

        (void) cudaFree(b->data);
        free(b);
    }
}


void *
vlm_cuda_host_alloc(vlm_device_t *dev, size_t size)
{
    void  *data;

    if (size > SIZE_MAX / 2 || cudaSetDevice(dev->index) != cudaSuccess) {
        return NULL;
    }

    if (cudaMallocHost(&data, size > 0 ? size : 1) != cudaSuccess) {
        /* lack of memory is no lasting error */
        (void) cudaGetLastError();
        return NULL;
    }

    return data;
}


void
vlm_cuda_host_free(vlm_device_t *dev, void *data)
{
    if (data == NULL) {
        return;
    }

    /* operations of any queue may use it still */

    (void) cudaSetDevice(dev->index);
    (void) cudaDeviceSynchronize();
    (void) cudaFreeHost(data);
}


void
vlm_cuda_memory_done(vlm_device_t *dev)
{
    trim(dev, 0);
}


VLM_CUDA_END
