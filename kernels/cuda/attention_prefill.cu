
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


/* the last tiles see most keys: they begin first */

static __device__ __forceinline__ attend_tile_t
prefill_tile(const attend_t &a, cache_t *c)
{
    attend_tile_t  t;

    t = a.tiles[gridDim.x - 1 - blockIdx.x];

    c->paged.blocks = c->blocks + (int64_t) t.from * c->max_blocks;
    c->paged.head = (int32_t) blockIdx.y / c->group;

    return t;
}


template <int N, int COLS, int TILE>
__global__ void __launch_bounds__(TILE / ATTEND_QUERIES * ATTEND_COLUMNS)
prefill_kernel(attend_t a, cache_t c)
{
    attend_tile_t  t;

    t = prefill_tile(a, &c);
    attend<N, COLS, TILE>(a, t, (int) blockIdx.y, c.paged);
}


template <int COLS, int ROWS>
__global__ void __launch_bounds__(MATRIX_WARPS * VLM_WARP)
prefill_matrix_kernel(attend_t a, cache_t c)
{
    attend_tile_t  t;

    t = prefill_tile(a, &c);
    attend_matrix<COLS, ROWS>(a, t, (int) blockIdx.y, c.paged);
}


struct prefill_launch_t {
    vlm_queue_t        *q;
    attend_t            a;
    cache_t             c;
    dim3                grid;
    int                 queries;        /* of a tile */

    template <int N, int COLS, int TILE>
    void
    tile() const
    {
        attend_blocks(q, "attention", prefill_kernel<N, COLS, TILE>, grid,
                      TILE / ATTEND_QUERIES * ATTEND_COLUMNS, 0, 0, a, c);
    }

    template <int COLS, int ROWS>
    void
    matrix() const
    {
        attend_matrix_blocks<COLS, ROWS>(q, "attention",
                                         prefill_matrix_kernel<COLS, ROWS>,
                                         grid, queries, a, c);
    }
};


int
vlm_cuda_attention_tile(const vlm_queue_t *q, const vlm_attention_t *a)
{
    return attend_tile(q, a->qkv->dtype, a->kv->head_dim, a->step->nrows,
                       a->heads);
}


void
vlm_cuda_attention_prefill(vlm_queue_t *q, const vlm_attention_t *a,
    const void *tiles, int32_t n)
{
    prefill_launch_t  l;

    l.q = q;
    l.grid = dim3((unsigned) n, (unsigned) a->heads);
    l.queries = vlm_cuda_attention_tile(q, a);

    l.a.y = a->y->data;
    l.a.y_stride = a->y->stride;
    l.a.q = a->qkv->data;
    l.a.q_stride = a->qkv->stride;
    l.a.head_dim = a->kv->head_dim;
    l.a.causal = 1;
    l.a.wide = attend_wide(a->qkv, a->y, a->kv->head_dim);
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

    attend_launch(a->qkv->dtype, a->kv->head_dim, l);
}


VLM_CUDA_END
