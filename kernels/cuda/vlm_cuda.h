
/*
 * The CUDA device, and the same sources on the host by kernels/emu, which is
 * for tests: slow, and strict.
 */

#ifndef VLM_CUDA_H
#define VLM_CUDA_H


#include "kernels/ops.h"


#ifdef __cplusplus
extern "C" {
#endif


typedef struct {
    int                 f32;            /* activations, weights and keys in
                                           float32, not bfloat16 */
    int                 deterministic;  /* a row's result does not depend on
                                           the rows beside it */
    int                 no_graphs;      /* each operation by its own calls */
} vlm_cuda_options_t;


/* 1: this build has CUDA kernels */
int vlm_cuda_built(void);

/*
 * Number "index" of the devices that the driver shows.  NULL and a message:
 * built without CUDA, no driver, no such device, no cuBLASLt library.
 */
vlm_device_t *vlm_cuda_device(int index, const vlm_cuda_options_t *opt,
    const vlm_ops_t **ops, char *err, size_t errlen);
void vlm_cuda_device_destroy(vlm_device_t *dev);

/* device memory that is left, and all of it; 0 or -1 */
int vlm_cuda_memory(vlm_device_t *dev, size_t *left, size_t *total);

/* 1: an error that stays; nothing works any more in this process */
int vlm_cuda_lost(const vlm_device_t *dev);


vlm_device_t *vlm_emu_device(const vlm_cuda_options_t *opt,
    const vlm_ops_t **ops, char *err, size_t errlen);
void vlm_emu_device_destroy(vlm_device_t *dev);
int vlm_emu_lost(const vlm_device_t *dev);


#ifdef __cplusplus
}
#endif


#endif /* VLM_CUDA_H */
