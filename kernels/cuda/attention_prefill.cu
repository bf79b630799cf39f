
/* many rows of a sequence: tiles of them, all keys up to the last row's */

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_launch.cuh"


VLM_CUDA_BEGIN


typedef struct {
    paged_t             paged;
    const int32_t      *blocks;         /* [nseqs][max_blocks] */
    int32_t             max_blocks;
    int32_t             group;          /* heads that share keys */
} cache_t;


template <typename T, int N, int COLS, int TILE>
__global__ void __launch_bounds__(TILE / ATTEND_QUERIES * ATTEND_COLUMNS)
prefill_kernel(attend_t a, cache_t c)
{
    attend_tile_t  t;

    t = a.tiles[blockIdx.x];

    c.paged.blocks = c.blocks + (int64_t) t.from * c.max_blocks;
    c.paged.head = (int32_t) blockIdx.y / c.group;

    attend<T, N, COLS, TILE>(a, t, (int) blockIdx.y, c.paged);
}


struct prefill_launch_t {
    vlm_queue_t        *q;
    attend_t            a;
    cache_t             c;
    unsigned            ntiles;
    unsigned            heads;

    template <typename T, int N, int COLS, int TILE>
    void
    run() const
    {
        void (*kernel)(attend_t, cache_t) = prefill_kernel<T, N, COLS, TILE>;

        VLM_LAUNCH(q, "attention", kernel, dim3(ntiles, heads),
                   TILE / ATTEND_QUERIES * ATTEND_COLUMNS, 0, a, c);
    }
};


int
vlm_cuda_attention_tile(int32_t head_dim, vlm_dtype_t type)
{
    return attend_tile(head_dim, type);
}


void
vlm_cuda_attention_prefill(vlm_queue_t *q, const vlm_attention_t *a,
    const void *tiles, int32_t n)
{
    prefill_launch_t  l;

    l.q = q;
    l.ntiles = (unsigned) n;
    l.heads = (unsigned) a->heads;

    l.a.y = a->y->data;
    l.a.y_stride = a->y->stride;
    l.a.q = a->qkv->data;
    l.a.q_stride = a->qkv->stride;
    l.a.head_dim = a->kv->head_dim;
    l.a.causal = 1;
    l.a.scale = 1.0f / sqrtf((float) a->kv->head_dim);
    l.a.tiles = (const attend_tile_t *) tiles;

    l.c.paged.data = a->kv->data;
    l.c.paged.blocks = NULL;
    l.c.paged.block_size = a->kv->block_size;
    l.c.paged.kv_heads = a->kv->kv_heads;
    l.c.paged.head = 0;
    l.c.paged.head_dim = a->kv->head_dim;
    l.c.blocks = a->step->blocks;
    l.c.max_blocks = a->step->max_blocks;
    l.c.group = a->heads / a->kv->kv_heads;

    ATTEND_LAUNCH(a->qkv->dtype, a->kv->head_dim, l);
}


VLM_CUDA_END
