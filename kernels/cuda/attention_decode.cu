
/*
 * Attention of single rows over the paged cache.  A block takes one row, up
 * to 8 heads that share keys, and 128 keys; a second kernel merges what the
 * blocks of a row have found.  The borders are absolute positions, so a row's
 * result does not depend on the batch.
 *
 * In a block a thread scores one key, whose elements pass through shared
 * memory; for the sums over values a thread has 16 bytes of a value's
 * elements and every so manieth key.
 */

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_keys.cuh"


#define SPLIT           128             /* keys, and threads */
#define DEPTH           64              /* elements of keys at once */
#define MAX_GROUP       8               /* heads of a block */
#define REDUCE_HEADS    4               /* that share memory at once */
#define MERGE_THREADS   128

/* partial results of one launch: rows are taken in pieces of about it */
#define WORK_BYTES      ((size_t) 64 << 20)


VLM_CUDA_BEGIN


typedef struct {
    void               *y;
    const void         *q;
    int64_t             y_stride;
    int64_t             q_stride;
    paged_t             paged;
    const int32_t      *blocks;
    const int32_t      *seq;
    const int32_t      *position;
    const int32_t      *rows;           /* NULL: from first on */
    int32_t             first;
    int32_t             max_blocks;
    int32_t             heads;
    int32_t             group;          /* heads that share keys */
    int32_t             part;           /* of them, of a block */
    int32_t             splits;         /* of the longest row */
    float               scale;
    float              *work;           /* [rows][heads][splits]
                                           [head_dim + 2] */
} decode_t;


/* the row that a block works for, and the heads */

typedef struct {
    int32_t             row;
    int32_t             index;          /* of the launch's rows */
    int32_t             keys;           /* of the row */
    int32_t             head;           /* the first */
    int32_t             heads;
    int32_t             key0;           /* the block's keys */
    int32_t             nkeys;
} place_t;


static __device__ __forceinline__ int32_t
decode_row(const decode_t &d, int32_t index)
{
    return d.rows != NULL ? d.rows[d.first + index] : d.first + index;
}


/* elements [d0, d0 + 64) of the block's keys */

template <typename T, int N>
static __device__ __forceinline__ void
stage_keys(T *to, const paged_t &paged, const place_t &p, int d0, int depth)
{
    int      i, key, d;
    int64_t  step;

    enum { PAD = DEPTH + N, PARTS = DEPTH / N };

    for (i = (int) threadIdx.x; i < SPLIT * PARTS; i += SPLIT) {
        key = i / PARTS;
        d = i % PARTS * N;

        if (key < p.nkeys && d < depth) {
            *(pack_t<T, N> *) (to + key * PAD + d) =
                *(const pack_t<T, N> *)
                (key_at<T>(paged, p.key0 + key, &step) + d0 + d);
        }
    }
}


/* n numbers at a multiple of their size, of 16 bytes at most */

template <int N>
static __device__ __forceinline__ void
load_numbers(float *to, const float *from)
{
    int  i;

    enum { M = N < 4 ? N : 4 };

    VLM_UNROLL
    for (i = 0; i < N; i += M) {
        load_pack<float, M>(to + i, from + i);
    }
}


/* this thread's key with the queries of all heads */

template <typename T, int N, int G>
static __device__ __forceinline__ void
score_keys(float *s, T *keys, const float *q, const decode_t &d,
    const place_t &p)
{
    int    i, e, g, d0, depth, dim;
    float  k[N], x[N];

    enum { PAD = DEPTH + N };

    dim = d.paged.head_dim;

    VLM_UNROLL
    for (g = 0; g < G; g++) {
        s[g] = 0.0f;
    }

    for (d0 = 0; d0 < dim; d0 += DEPTH) {
        depth = dim - d0 < DEPTH ? dim - d0 : DEPTH;

        VLM_SYNC();
        stage_keys<T, N>(keys, d.paged, p, d0, depth);
        VLM_SYNC();

        if ((int) threadIdx.x >= p.nkeys) {
            continue;
        }

        for (i = 0; i < depth; i += N) {
            load_pack<T, N>(k, keys + (int) threadIdx.x * PAD + i);

            VLM_UNROLL
            for (g = 0; g < G; g++) {
                load_numbers<N>(x, q + g * dim + d0 + i);

                VLM_UNROLL
                for (e = 0; e < N; e++) {
                    s[g] += k[e] * x[e];
                }
            }
        }
    }
}


/* scores to weights; max and sum of each head.  A warp takes a head */

static __device__ __forceinline__ void
softmax_heads(float *weights, float *max, float *sum, int heads)
{
    int    g, i, lane;
    float  m, t, *w;

    lane = (int) threadIdx.x % VLM_WARP;

    for (g = (int) threadIdx.x / VLM_WARP; g < heads; g += SPLIT / VLM_WARP) {
        w = weights + g * SPLIT;
        m = -INFINITY;

        for (i = lane; i < SPLIT; i += VLM_WARP) {
            m = fmaxf(m, w[i]);
        }

        m = warp_max(m);
        t = 0.0f;

        for (i = lane; i < SPLIT; i += VLM_WARP) {
            w[i] = expf(w[i] - m);
            t += w[i];
        }

        t = warp_sum(t);

        if (lane == 0) {
            max[g] = m;
            sum[g] = t;
        }
    }
}


/* this thread's elements of the sums over its keys */

template <typename T, int N, int G>
static __device__ __forceinline__ void
sum_values(float (*acc)[N], const float *weights, const paged_t &paged,
    const place_t &p)
{
    int       g, e, threads, groups, j;
    float     v[N], w;
    int64_t   step;
    const T  *k;

    threads = paged.head_dim / N;
    groups = SPLIT / threads;

    VLM_UNROLL
    for (g = 0; g < G; g++) {

        VLM_UNROLL
        for (e = 0; e < N; e++) {
            acc[g][e] = 0.0f;
        }
    }

    if ((int) threadIdx.x >= threads * groups) {
        return;
    }

    VLM_UNROLL_BY(2)
    for (j = (int) threadIdx.x / threads; j < p.nkeys; j += groups) {
        k = key_at<T>(paged, p.key0 + j, &step);
        load_pack<T, N>(v, k + step + (int) threadIdx.x % threads * N);

        VLM_UNROLL
        for (g = 0; g < G; g++) {
            w = weights[g * SPLIT + j];

            VLM_UNROLL
            for (e = 0; e < N; e++) {
                acc[g][e] += w * v[e];
            }
        }
    }
}


/* the result of a head, if the row is all in this block, or a part of it */

template <typename T>
static __device__ __forceinline__ void
store_head(const decode_t &d, const place_t &p, int head, int i, float v,
    float max, float sum)
{
    T      *y;
    float  *w;

    if (d.paged.head_dim <= i) {
        return;
    }

    if (p.keys <= SPLIT) {
        y = (T *) d.y + p.row * d.y_stride
            + (int64_t) head * d.paged.head_dim;
        from_f32(&y[i], v * (1.0f / sum));
        return;
    }

    w = d.work + (((int64_t) p.index * d.heads + head) * d.splits
                  + p.key0 / SPLIT) * (d.paged.head_dim + 2);
    w[i] = v;

    if (i == 0) {
        w[d.paged.head_dim] = max;
        w[d.paged.head_dim + 1] = sum;
    }
}


/* sums over the threads that have the same elements, a few heads at once */

template <typename T, int N, int G>
static __device__ __forceinline__ void
reduce_heads(const decode_t &d, const place_t &p, float (*acc)[N],
    float *work, const float *max, const float *sum)
{
    int    g, g0, e, i, j, dim, groups;
    float  v;

    dim = d.paged.head_dim;
    groups = SPLIT / (dim / N);

    VLM_UNROLL
    for (g0 = 0; g0 < G; g0 += REDUCE_HEADS) {
        VLM_SYNC();

        VLM_UNROLL
        for (g = g0; g < g0 + REDUCE_HEADS && g < G; g++) {

            VLM_UNROLL
            for (e = 0; e < N; e++) {
                work[((g - g0) * SPLIT + (int) threadIdx.x) * N + e] =
                                                                   acc[g][e];
            }
        }

        VLM_SYNC();

        for (g = g0; g < g0 + REDUCE_HEADS && g < p.heads; g++) {

            for (i = (int) threadIdx.x; i < dim; i += SPLIT) {
                v = 0.0f;

                for (j = 0; j < groups; j++) {
                    v += work[(g - g0) * SPLIT * N + j * dim + i];
                }

                store_head<T>(d, p, p.head + g, i, v, max[g], sum[g]);
            }
        }
    }
}


/* dynamic shared memory: queries [G][head_dim], weights [G][128] */

template <typename T, int N, int G>
__global__ void __launch_bounds__(SPLIT, 4)
decode_kernel(decode_t d)
{
    typedef pack_t<float, 4>  f32_pack_t;

    int      g, i, dim, parts;
    float    s[G], acc[G][N];
    place_t  p;

    enum {
        KEYS = SPLIT * (DEPTH + N) * sizeof(T),
        REDUCE = (G < REDUCE_HEADS ? G : REDUCE_HEADS) * SPLIT * N
                 * sizeof(float),
        STAGE = KEYS > REDUCE ? (int) KEYS : (int) REDUCE
    };

    VLM_DYNAMIC(float, q);
    VLM_SHARED(f32_pack_t, stage, STAGE / 16);
    VLM_SHARED(float, max, G);
    VLM_SHARED(float, sum, G);

    float  *weights = q + G * d.paged.head_dim;

    p.index = (int32_t) blockIdx.x;
    p.row = decode_row(d, p.index);
    p.keys = d.position[p.row] + 1;
    p.key0 = (int32_t) blockIdx.z * SPLIT;

    if (p.key0 >= p.keys) {
        /* the whole block */
        return;
    }

    parts = (d.group + d.part - 1) / d.part;
    d.paged.head = (int32_t) blockIdx.y / parts;
    i = (int) blockIdx.y % parts * d.part;
    p.heads = d.group - i < d.part ? d.group - i : d.part;
    p.head = d.paged.head * d.group + i;
    p.nkeys = p.keys - p.key0 < SPLIT ? p.keys - p.key0 : SPLIT;

    d.paged.blocks = d.blocks + (int64_t) d.seq[p.row] * d.max_blocks;
    dim = d.paged.head_dim;

    for (i = (int) threadIdx.x; i < G * dim; i += SPLIT) {
        q[i] = i < p.heads * dim
               ? to_f32(((const T *) d.q)[p.row * d.q_stride
                                          + (int64_t) p.head * dim + i])
               : 0.0f;
    }

    score_keys<T, N, G>(s, (T *) stage, q, d, p);

    VLM_UNROLL
    for (g = 0; g < G; g++) {
        weights[g * SPLIT + (int) threadIdx.x] =
            (int) threadIdx.x < p.nkeys ? s[g] * d.scale : -INFINITY;
    }

    VLM_SYNC();
    softmax_heads(weights, max, sum, G);
    VLM_SYNC();

    sum_values<T, N, G>(acc, weights, d.paged, p);
    reduce_heads<T, N, G>(d, p, acc, (float *) stage, max, sum);
}


/* a block merges one head of one row */

template <typename T>
__global__ void __launch_bounds__(MERGE_THREADS)
merge_kernel(decode_t d)
{
    T            *y;
    int           i, s, n, dim;
    float         max, sum, v, c;
    int32_t       row;
    const float  *w;

    row = decode_row(d, (int32_t) blockIdx.x);
    n = (d.position[row] + SPLIT) / SPLIT;
    dim = d.paged.head_dim;

    if (n == 1) {
        return;
    }

    w = d.work + ((int64_t) blockIdx.x * d.heads + blockIdx.y) * d.splits
                 * (dim + 2);
    y = (T *) d.y + row * d.y_stride + (int64_t) blockIdx.y * dim;
    max = -INFINITY;

    for (s = 0; s < n; s++) {
        max = fmaxf(max, w[s * (dim + 2) + dim]);
    }

    for (i = (int) threadIdx.x; i < dim; i += MERGE_THREADS) {
        v = 0.0f;
        sum = 0.0f;

        for (s = 0; s < n; s++) {
            c = expf(w[s * (dim + 2) + dim] - max);
            v += c * w[s * (dim + 2) + i];
            sum += c * w[s * (dim + 2) + dim + 1];
        }

        from_f32(&y[i], v * (1.0f / sum));
    }
}


template <typename T, int N, int G>
static void
launch_decode(vlm_queue_t *q, const decode_t &d, unsigned rows)
{
    unsigned  parts;

    void (*kernel)(decode_t) = decode_kernel<T, N, G>;

    parts = (unsigned) ((d.group + d.part - 1) / d.part);

    VLM_LAUNCH(q, "attention", kernel,
               dim3(rows, (unsigned) d.paged.kv_heads * parts,
                    (unsigned) d.splits),
               SPLIT, (size_t) G * (d.paged.head_dim + SPLIT)
                      * sizeof(float), d);
}


template <typename T, int N>
static void
launch_group(vlm_queue_t *q, const decode_t &d, unsigned rows)
{
    switch (d.part) {

    case 1:
        launch_decode<T, N, 1>(q, d, rows);
        break;

    case 2:
        launch_decode<T, N, 2>(q, d, rows);
        break;

    case 3:
    case 4:
        launch_decode<T, N, 4>(q, d, rows);
        break;

    case 5:
    case 6:
        launch_decode<T, N, 6>(q, d, rows);
        break;

    case 7:
        launch_decode<T, N, 7>(q, d, rows);
        break;

    default:
        launch_decode<T, N, 8>(q, d, rows);
        break;
    }
}


template <typename T>
static void
launch_all(vlm_queue_t *q, const decode_t &d, unsigned rows)
{
    void (*merge)(decode_t) = merge_kernel<T>;

    if (d.paged.head_dim % wide_t<T>::n == 0) {
        launch_group<T, wide_t<T>::n>(q, d, rows);

    } else {
        launch_group<T, 2>(q, d, rows);
    }

    if (d.splits > 1 && !q->failed) {
        VLM_LAUNCH(q, "attention", merge, dim3(rows, (unsigned) d.heads),
                   MERGE_THREADS, 0, d);
    }
}


static decode_t
decode_of(const vlm_attention_t *a, const int32_t *rows, int32_t keys)
{
    int32_t   parts;
    decode_t  d;

    memset(&d, 0, sizeof(decode_t));

    d.y = a->y->data;
    d.y_stride = a->y->stride;
    d.q = a->qkv->data;
    d.q_stride = a->qkv->stride;
    d.paged.data = a->kv->data;
    d.paged.block_size = a->kv->block_size;
    d.paged.kv_heads = a->kv->kv_heads;
    d.paged.head_dim = a->kv->head_dim;
    d.blocks = a->step->blocks;
    d.seq = a->step->seq;
    d.position = a->step->position;
    d.rows = rows;
    d.max_blocks = a->step->max_blocks;
    d.heads = a->heads;
    d.group = a->heads / a->kv->kv_heads;

    parts = (d.group + MAX_GROUP - 1) / MAX_GROUP;
    d.part = (d.group + parts - 1) / parts;
    d.splits = (keys + SPLIT - 1) / SPLIT;
    d.scale = 1.0f / sqrtf((float) a->kv->head_dim);

    return d;
}


/* of results of parts of the context, for one row */

static size_t
work_row(int32_t heads, int32_t splits, int32_t head_dim)
{
    return (size_t) heads * (size_t) splits * (size_t) (head_dim + 2)
           * sizeof(float);
}


static int32_t
rows_at_once(size_t row_bytes, int32_t rows)
{
    int32_t  most;

    most = row_bytes < WORK_BYTES ? (int32_t) (WORK_BYTES / row_bytes) : 1;

    return most < rows ? most : rows;
}


size_t
vlm_cuda_attention_scratch(const vlm_limits_t *most)
{
    size_t   row_bytes;
    int64_t  keys;

    keys = (int64_t) most->blocks * most->block_size;

    if (keys <= SPLIT) {
        return 0;
    }

    row_bytes = work_row(most->heads, (int32_t) ((keys + SPLIT - 1) / SPLIT),
                         most->head_dim);

    return (size_t) rows_at_once(row_bytes, most->rows) * row_bytes;
}


void
vlm_cuda_attention_decode(vlm_queue_t *q, const vlm_attention_t *a,
    const int32_t *rows, int32_t n, int32_t keys)
{
    size_t    row_bytes;
    int32_t   most, piece;
    decode_t  d;

    d = decode_of(a, rows, keys);
    row_bytes = work_row(a->heads, d.splits, a->kv->head_dim);
    most = rows_at_once(row_bytes, n);

    if (d.splits > 1) {
        d.work = (float *) vlm_cuda_scratch(q, most * row_bytes,
                                            "attention");
        if (d.work == NULL) {
            return;
        }
    }

    for (d.first = 0; d.first < n && !q->failed; d.first += piece) {
        piece = n - d.first < most ? n - d.first : most;

        VLM_BY_ACT(a->qkv->dtype, T, launch_all<T>(q, d, (unsigned) piece));
    }
}


VLM_CUDA_END
