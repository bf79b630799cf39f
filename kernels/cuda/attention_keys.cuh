
/* where queries, keys and values of attention lie */

#ifndef VLM_CUDA_ATTENTION_KEYS_H
#define VLM_CUDA_ATTENTION_KEYS_H


#include "kernels/cuda/vector.cuh"


#define ATTEND_MAX_DIM  256


VLM_CUDA_BEGIN


/* consecutive rows of one sequence or segment; made on the host */

typedef struct {
    int32_t             row;            /* the first, of the operation's */
    int32_t             rows;
    int32_t             keys;           /* that the last row sees */
    int32_t             from;           /* sequence, or the first key's row */
} attend_tile_t;

typedef struct {
    void               *y;
    const void         *q;
    int64_t             y_stride;
    int64_t             q_stride;
    int32_t             head_dim;
    int32_t             causal;         /* each row sees one key more */
    int32_t             wide;           /* heads in pieces of 16 bytes */
    float               scale;
    const attend_tile_t  *tiles;
} attend_t;


/* keys and values of one head in the decoder's cache; see rope.cu */

typedef struct {
    const void         *data;
    const int32_t      *blocks;         /* of the sequence */
    int32_t             block_size;
    int32_t             kv_heads;
    int32_t             head;
    int32_t             head_dim;
} paged_t;


/* the key's place; the value's is *step elements behind it */

template <typename T>
static __device__ __forceinline__ const T *
key_at(const paged_t &p, int32_t j, int64_t *step)
{
    int64_t  block;

    block = p.blocks[j / p.block_size];
    *step = (int64_t) p.block_size * p.head_dim;

    return (const T *) p.data
           + (block * p.kv_heads + p.head) * 2 * *step
           + (int64_t) (j % p.block_size) * p.head_dim;
}


/* those of one head of the vision tower */

typedef struct {
    const void         *data;           /* the head's, in the first row */
    int64_t             width;          /* of all heads */
} rows_t;


template <typename T>
static __device__ __forceinline__ const T *
key_at(const rows_t &r, int32_t j, int64_t *step)
{
    *step = r.width;

    return (const T *) r.data + (int64_t) j * 2 * r.width;
}


VLM_CUDA_END


#endif /* VLM_CUDA_ATTENTION_KEYS_H */
