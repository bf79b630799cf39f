
/* rows of integers or of FP8 with a scale each: quant.cu */

#ifndef VLM_CUDA_QUANT_H
#define VLM_CUDA_QUANT_H


#include "kernels/cuda/cuda.h"


/*
 * A quantised matrix is padded by zeros to a multiple of it in both
 * directions: 16-byte loads, and what the library asks for.
 */
#define VLM_QUANT_PAD   16

/* columns whose sum of products of two bytes always fits in 32 bits */
#define VLM_QUANT_MOST  (INT32_MAX / (127 * 127))


VLM_CUDA_BEGIN


static inline int64_t
quant_padded(int64_t n)
{
    return (n + VLM_QUANT_PAD - 1) / VLM_QUANT_PAD * VLM_QUANT_PAD;
}


static inline int
is_quantised(const vlm_weight_t *w)
{
    return w->dtype == VLM_I8 || w->dtype == VLM_F8;
}


/*
 * Rows [rows, cols] of x, any float type, to y [rows_to, quant_padded(cols)]
 * of I8 or F8 without gaps, with their scales; rows behind those of x become
 * zeros.  The scale of a row that has a NaN or an infinity is a NaN.
 */
void vlm_cuda_quantise(vlm_queue_t *q, void *y, float *scale,
    vlm_dtype_t type, int64_t rows_to, const vlm_tensor_t *x, const char *op);


VLM_CUDA_END


#endif /* VLM_CUDA_QUANT_H */
