
/*
 * Rotation of queries and keys, and where keys and values are kept (cuda.h
 * says how).  A warp takes one head of one row.
 */

#include "kernels/cuda/kernel.cuh"


#define ROPE_WARPS    4
#define ROPE_THREADS  (ROPE_WARPS * VLM_WARP)


VLM_CUDA_BEGIN


typedef struct {
    void               *qkv;
    int64_t             stride;
    const float        *table;          /* NULL: no rotation */
    int64_t             table_stride;
    const float        *q_gain;
    const float        *k_gain;
    float               eps;
    int32_t             heads;
    int32_t             kv_heads;
    int32_t             head_dim;

    /* the decoder's cache */
    void               *kv;
    int32_t             block_size;
    int32_t             max_blocks;
    const int32_t      *blocks;
    const int32_t      *seq;
    const int32_t      *position;

    /* or the tower's rows */
    int64_t             row0;
} rope_t;


static int rope_check(vlm_queue_t *q, const vlm_tensor_t *qkv, int32_t dim,
    int32_t columns, const char *op);


size_t
vlm_cuda_kv_block_bytes(vlm_device_t *dev, int32_t block_size,
    int32_t kv_heads, int32_t head_dim)
{
    return (size_t) block_size * (size_t) kv_heads * 2 * (size_t) head_dim
           * vlm_dtype_size(dev->act);
}


size_t
vlm_cuda_vision_kv_bytes(vlm_device_t *dev, const vlm_segments_t *seg)
{
    return (size_t) seg->start[seg->nsegments] * 2 * (size_t) seg->heads
           * (size_t) seg->head_dim * vlm_dtype_size(dev->act);
}


/*
 * Turns a head's pairs (i, i + npairs), of which a lane has every 32nd; all
 * lanes of a warp come here.
 */

template <typename T>
static __device__ __forceinline__ void
turn_head(T *y, const T *x, const float *table, const float *gain, float eps,
    int32_t npairs)
{
    float    a, b, c, s, scale;
    int32_t  i, lane;

    lane = (int32_t) (threadIdx.x % VLM_WARP);
    scale = 1.0f;

    if (gain != NULL) {
        s = 0.0f;

        for (i = lane; i < 2 * npairs; i += VLM_WARP) {
            a = to_f32(x[i]);
            s += a * a;
        }

        scale = 1.0f / sqrtf(warp_sum(s) / (float) (2 * npairs) + eps);
    }

    for (i = lane; i < npairs; i += VLM_WARP) {
        a = to_f32(x[i]);
        b = to_f32(x[npairs + i]);

        if (gain != NULL) {
            a *= scale * gain[i];
            b *= scale * gain[npairs + i];
        }

        c = table != NULL ? table[i] : 1.0f;
        s = table != NULL ? table[npairs + i] : 0.0f;

        from_f32(&y[i], a * c - b * s);
        from_f32(&y[npairs + i], b * c + a * s);
    }
}


template <typename T>
static __device__ __forceinline__ void
copy_head(T *y, const T *x, int32_t dim)
{
    int32_t  i;

    for (i = (int32_t) (threadIdx.x % VLM_WARP); i < dim; i += VLM_WARP) {
        y[i] = x[i];
    }
}


/* heads of q in place, then those of k into the cache, then those of v */

template <typename T>
__global__ void __launch_bounds__(ROPE_THREADS)
rope_kv_kernel(rope_t r)
{
    T            *x, *to;
    int32_t       head, kind, at, dim, block;
    const float  *table;

    dim = r.head_dim;
    head = (int32_t) (blockIdx.y * ROPE_WARPS + threadIdx.x / VLM_WARP);

    if (head >= r.heads + 2 * r.kv_heads) {
        /* a whole warp, and there are no barriers */
        return;
    }

    x = (T *) r.qkv + (int64_t) blockIdx.x * r.stride + (int64_t) head * dim;
    table = r.table + (int64_t) blockIdx.x * r.table_stride;

    if (head < r.heads) {
        turn_head(x, x, table, r.q_gain, r.eps, dim / 2);
        return;
    }

    kind = (head - r.heads) / r.kv_heads;
    head = (head - r.heads) % r.kv_heads;

    at = r.position[blockIdx.x];
    block = r.blocks[(int64_t) r.seq[blockIdx.x] * r.max_blocks
                     + at / r.block_size];

    to = (T *) r.kv
         + ((((int64_t) block * r.kv_heads + head) * 2 + kind) * r.block_size
            + at % r.block_size) * dim;

    if (kind == 0) {
        turn_head(to, x, table, r.k_gain, r.eps, dim / 2);

    } else {
        copy_head(to, x, dim);
    }
}


void
vlm_cuda_rope_kv(vlm_queue_t *q, const vlm_step_t *step,
    const vlm_tensor_t *qkv, int32_t heads, const vlm_kv_t *kv,
    const float *q_gain, const float *k_gain, float eps)
{
    rope_t                  r;
    int32_t                 all;
    const vlm_cuda_step_t  *s;

    all = heads + 2 * kv->kv_heads;

    if (vlm_cuda_begin(q) != 0
        || rope_check(q, qkv, kv->head_dim, all * kv->head_dim, "rope_kv")
           != 0)
    {
        return;
    }

    s = vlm_cuda_step(step);

    if (kv->head_dim != 2 * s->npairs) {
        vlm_cuda_fail(q, "rope_kv: head_dim %d with a rope of %d pairs",
                      kv->head_dim, s->npairs);
        return;
    }

    memset(&r, 0, sizeof(rope_t));

    r.qkv = qkv->data;
    r.stride = qkv->stride;
    r.table = s->table;
    r.table_stride = 2 * s->npairs;
    r.q_gain = q_gain;
    r.k_gain = k_gain;
    r.eps = eps;
    r.heads = heads;
    r.kv_heads = kv->kv_heads;
    r.head_dim = kv->head_dim;
    r.kv = kv->data;
    r.block_size = kv->block_size;
    r.max_blocks = s->max_blocks;
    r.blocks = s->blocks;
    r.seq = s->seq;
    r.position = s->position;

    VLM_BY_ACT(qkv->dtype, T,
               VLM_LAUNCH(q, "rope_kv", rope_kv_kernel<T>,
                          dim3((unsigned) s->nrows,
                               (unsigned) (all + ROPE_WARPS - 1)
                               / ROPE_WARPS),
                          ROPE_THREADS, 0, r));
}


static int
rope_check(vlm_queue_t *q, const vlm_tensor_t *qkv, int32_t dim,
    int32_t columns, const char *op)
{
    if (qkv->dtype != q->dev->act || qkv->cols != columns || dim % 2 != 0) {
        vlm_cuda_fail(q, "%s: %d columns of type %d, must be %d of type %d, "
                      "and a head's size even: %d", op, qkv->cols,
                      (int) qkv->dtype, columns, (int) q->dev->act, dim);
        return -1;
    }

    return 0;
}


template <typename T>
__global__ void __launch_bounds__(ROPE_THREADS)
vision_rope_kernel(rope_t r)
{
    T            *x, *to;
    int32_t       head, kind, dim;
    int64_t       width;
    const float  *table;

    dim = r.head_dim;
    head = (int32_t) (blockIdx.y * ROPE_WARPS + threadIdx.x / VLM_WARP);

    if (head >= 3 * r.heads) {
        return;
    }

    x = (T *) r.qkv + (int64_t) blockIdx.x * r.stride + (int64_t) head * dim;
    table = r.table;

    if (table != NULL) {
        table += (int64_t) blockIdx.x * r.table_stride;
    }

    kind = head / r.heads;
    head = head % r.heads;

    if (kind == 0) {
        turn_head(x, x, table, NULL, 0.0f, dim / 2);
        return;
    }

    width = (int64_t) r.heads * dim;
    to = (T *) r.kv + (r.row0 + blockIdx.x) * 2 * width + (int64_t) head * dim;

    if (kind == 1) {
        turn_head(to, x, table, NULL, 0.0f, dim / 2);

    } else {
        copy_head(to + width, x, dim);
    }
}


void
vlm_cuda_vision_rope(vlm_queue_t *q, const vlm_segments_t *seg,
    const vlm_tensor_t *qkv, const vlm_tensor_t *table, int64_t row0,
    void *kv)
{
    rope_t    r;
    int32_t   all;

    all = 3 * seg->heads;

    if (vlm_cuda_begin(q) != 0 || qkv->rows == 0
        || rope_check(q, qkv, seg->head_dim, all * seg->head_dim,
                      "vision_rope")
           != 0)
    {
        return;
    }

    if ((table != NULL && table->cols != seg->head_dim) || row0 < 0
        || row0 + qkv->rows > seg->start[seg->nsegments])
    {
        vlm_cuda_fail(q, "vision_rope: rows %lld to %lld of %d, table of %d "
                      "columns for heads of %d", (long long) row0,
                      (long long) (row0 + qkv->rows),
                      seg->start[seg->nsegments],
                      table != NULL ? table->cols : 0, seg->head_dim);
        return;
    }

    memset(&r, 0, sizeof(rope_t));

    r.qkv = qkv->data;
    r.stride = qkv->stride;
    r.heads = seg->heads;
    r.head_dim = seg->head_dim;
    r.row0 = row0;
    r.kv = kv;

    if (table != NULL) {
        r.table = (const float *) table->data;
        r.table_stride = table->stride;
    }

    VLM_BY_ACT(qkv->dtype, T,
               VLM_LAUNCH(q, "vision_rope", vision_rope_kernel<T>,
                          dim3((unsigned) qkv->rows,
                               (unsigned) (all + ROPE_WARPS - 1)
                               / ROPE_WARPS),
                          ROPE_THREADS, 0, r));
}


VLM_CUDA_END
