
/* products for few rows: gemv.cu */

#ifndef VLM_CUDA_GEMV_H
#define VLM_CUDA_GEMV_H


#include "kernels/cuda/cuda.h"


VLM_CUDA_BEGIN


/*
 * Does the whole linear operation if the shape is one for it, and returns 1;
 * 0: it is another's.  The operation's tensors have been checked.
 */
int vlm_cuda_gemv(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const vlm_weight_t *w, vlm_act_t act,
    const vlm_tensor_t *residual);


VLM_CUDA_END


#endif /* VLM_CUDA_GEMV_H */
