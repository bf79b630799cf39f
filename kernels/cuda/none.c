
/* what a build without nvcc has instead of the CUDA device */

#include <stdio.h>

#include "kernels/cuda/vlm_cuda.h"


int
vlm_cuda_built(void)
{
    return 0;
}


vlm_device_t *
vlm_cuda_device(int index, const vlm_cuda_options_t *opt,
    const vlm_ops_t **ops, char *err, size_t errlen)
{
    snprintf(err, errlen, "this build has no CUDA kernels");

    return NULL;
}


void
vlm_cuda_device_destroy(vlm_device_t *dev)
{
}


int
vlm_cuda_memory(vlm_device_t *dev, size_t *left, size_t *total)
{
    return -1;
}


int
vlm_cuda_lost(const vlm_device_t *dev)
{
    return 0;
}
