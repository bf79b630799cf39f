
/* the two ways of the decoder's attention: attention_{decode,prefill}.cu */

#ifndef VLM_CUDA_ATTENTION_H
#define VLM_CUDA_ATTENTION_H


#include "kernels/cuda/cuda.h"


/* up to so many rows of a sequence are taken one by one */
#define VLM_DECODE_ROWS  4


VLM_CUDA_BEGIN


typedef struct {
    const vlm_cuda_step_t  *step;
    const vlm_tensor_t     *y;
    const vlm_tensor_t     *qkv;
    const vlm_kv_t         *kv;
    int32_t                 heads;
} vlm_attention_t;

/*
 * Rows that are few beside their context: a block for each row, group of
 * heads and 128 keys.  "rows" is device memory, NULL: rows [0, n); "keys" is
 * the most that one of them sees.
 */
void vlm_cuda_attention_decode(vlm_queue_t *q, const vlm_attention_t *a,
    const int32_t *rows, int32_t n, int32_t keys);

/* tiles of consecutive rows (attention_keys.cuh), on the device */
int vlm_cuda_attention_tile(const vlm_queue_t *q, const vlm_attention_t *a);
void vlm_cuda_attention_prefill(vlm_queue_t *q, const vlm_attention_t *a,
    const void *tiles, int32_t n);


VLM_CUDA_END


#endif /* VLM_CUDA_ATTENTION_H */
