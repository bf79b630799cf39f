
/*
 * Attention of a tile of queries of one head, over the decoder's cache or
 * over a segment of the vision tower's rows: scores and sums stay on the
 * chip, keys and values pass through shared memory.
 *
 * A block has TILE queries and 16 threads for each 8 of them; a thread has
 * 8 queries by 4 keys of the scores, and 8 by every 16th column of the
 * result.  Keys are taken in tiles from the first on, so that a query's
 * result does not depend on the queries beside it.
 */

#ifndef VLM_CUDA_ATTENTION_TILE_H
#define VLM_CUDA_ATTENTION_TILE_H


#include "kernels/cuda/vector.cuh"


#define ATTEND_KEYS     64              /* of a tile */
#define ATTEND_DEPTH    32              /* of a head, at once, for scores */
#define ATTEND_VALUES   16              /* keys at once, for values */
#define ATTEND_QUERIES  8               /* of a thread */
#define ATTEND_COLUMNS  16              /* threads beside each other */
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


/* by type, columns of a thread (head_dim / 16, rounded up), queries */

template <typename T, int COLS, int TILE>
struct attend_shape_t {
    enum {
        threads = TILE / ATTEND_QUERIES * ATTEND_COLUMNS,
        dim = COLS * ATTEND_COLUMNS,
        q_pad = TILE + 8,
        p_pad = TILE + 4,
        k_pad = ATTEND_KEYS + 4,
        k_work = ATTEND_DEPTH * k_pad,
        v_work = ATTEND_VALUES * dim,
        work = k_work > v_work ? (int) k_work : (int) v_work
    };
};


/* the tile's queries, turned: [head_dim][TILE]; rows that are none: 0 */

template <typename T, int TILE, int PAD, int THREADS>
static __device__ __forceinline__ void
take_queries(T *to, const T *from, int64_t stride, int rows, int dim)
{
    int  i, d, r;
    T    zero;

    from_f32(&zero, 0.0f);

    for (i = (int) threadIdx.x; i < TILE * dim; i += THREADS) {
        r = i / dim;
        d = i % dim;
        to[d * PAD + r] = r < rows ? from[r * stride + d] : zero;
    }
}


/* keys [key0, key0 + 64), elements [d0, d0 + 32), turned, as float32 */

template <typename T, int N, int PAD, int THREADS, typename S>
static __device__ __forceinline__ void
take_keys(float *to, const S &source, int32_t key0, int32_t keys, int d0,
    int dim)
{
    int       i, e, key, d;
    float     x[N];
    int64_t   step;

    enum { PARTS = ATTEND_DEPTH / N };

    for (i = (int) threadIdx.x; i < ATTEND_KEYS * PARTS; i += THREADS) {
        key = i / PARTS;
        d = i % PARTS * N;

        VLM_UNROLL
        for (e = 0; e < N; e++) {
            x[e] = 0.0f;
        }

        if (key0 + key < keys && d0 + d < dim) {
            load_pack<T, N>(x, key_at<T>(source, key0 + key, &step) + d0 + d);
        }

        VLM_UNROLL
        for (e = 0; e < N; e++) {
            to[(d + e) * PAD + key] = x[e];
        }
    }
}


/* values of 16 keys, [16][WIDTH]; beyond the keys and the head: 0 */

template <typename T, int N, int WIDTH, int THREADS, typename S>
static __device__ __forceinline__ void
take_values(float *to, const S &source, int32_t key0, int32_t keys, int dim)
{
    int       i, e, key, d;
    float     x[N];
    int64_t   step;
    const T  *k;

    enum { PARTS = WIDTH / N };

    for (i = (int) threadIdx.x; i < ATTEND_VALUES * PARTS; i += THREADS) {
        key = i / PARTS;
        d = i % PARTS * N;

        VLM_UNROLL
        for (e = 0; e < N; e++) {
            x[e] = 0.0f;
        }

        if (key0 + key < keys && d < dim) {
            k = key_at<T>(source, key0 + key, &step);
            load_pack<T, N>(x, k + step + d);
        }

        VLM_UNROLL
        for (e = 0; e < N; e++) {
            to[key * WIDTH + d + e] = x[e];
        }
    }
}


/* s += q . k over elements [0, depth) of both */

template <typename T, int Q_PAD, int K_PAD>
static __device__ __forceinline__ void
add_scores(float (*s)[4], const T *q, const float *k, int depth)
{
    int    d, i, j;
    float  a[ATTEND_QUERIES], b[4];

    VLM_UNROLL_BY(4)
    for (d = 0; d < depth; d++) {
        load_eight(a, q + d * Q_PAD);
        load_pack<float, 4>(b, k + d * K_PAD);

        VLM_UNROLL
        for (i = 0; i < ATTEND_QUERIES; i++) {

            VLM_UNROLL
            for (j = 0; j < 4; j++) {
                s[i][j] += a[i] * b[j];
            }
        }
    }
}


/* the greatest of the 16 threads that share queries */

static __device__ __forceinline__ float
columns_max(float v)
{
    int  mask;

    for (mask = ATTEND_COLUMNS / 2; mask > 0; mask /= 2) {
        v = fmaxf(v, vlm_shfl_xor(v, mask));
    }

    return v;
}


static __device__ __forceinline__ float
columns_sum(float v)
{
    int  mask;

    for (mask = ATTEND_COLUMNS / 2; mask > 0; mask /= 2) {
        v += vlm_shfl_xor(v, mask);
    }

    return v;
}


/*
 * Scores of a tile of keys to weights; returns in c what earlier sums must
 * be multiplied with.  Key 0 is seen by all: no maximum stays infinite.
 */

static __device__ __forceinline__ void
weigh(float (*s)[4], float *max, float *sum, float *c, float scale,
    int32_t seen, int32_t more, int32_t last)
{
    int      i, j;
    float    m;
    int32_t  limit;

    VLM_UNROLL
    for (i = 0; i < ATTEND_QUERIES; i++) {
        limit = seen + i * more;
        limit = limit < last ? limit : last;
        m = -INFINITY;

        VLM_UNROLL
        for (j = 0; j < 4; j++) {
            s[i][j] = j < limit ? s[i][j] * scale : -INFINITY;
            m = fmaxf(m, s[i][j]);
        }

        m = fmaxf(max[i], columns_max(m));
        c[i] = expf(max[i] - m);
        max[i] = m;
        sum[i] *= c[i];

        VLM_UNROLL
        for (j = 0; j < 4; j++) {
            s[i][j] = expf(s[i][j] - m);
            sum[i] += s[i][j];
        }
    }
}


template <typename T, int N, int COLS, int TILE, typename S>
static __device__ __forceinline__ void
attend(const attend_t &a, const attend_tile_t &t, int head, const S &source)
{
    typedef attend_shape_t<T, COLS, TILE>  shape;
    typedef pack_t<T, wide_t<T>::n>        q_pack_t;
    typedef pack_t<float, 4>               f32_pack_t;

    int        i, j, k, d0, dim, tx, ty;
    float      acc[ATTEND_QUERIES][COLS], s[ATTEND_QUERIES][4];
    float      max[ATTEND_QUERIES], sum[ATTEND_QUERIES];
    float      c[ATTEND_QUERIES], v;
    T         *y;
    int32_t    key0, seen;

    VLM_SHARED(q_pack_t, q_packs,
               (int) shape::dim * shape::q_pad / wide_t<T>::n);
    VLM_SHARED(f32_pack_t, p_packs, ATTEND_KEYS * shape::p_pad / 4);
    VLM_SHARED(f32_pack_t, work_packs, shape::work / 4);

    T      *q = (T *) q_packs;
    float  *p = (float *) p_packs, *work = (float *) work_packs;

    dim = a.head_dim;
    tx = (int) threadIdx.x % ATTEND_COLUMNS;
    ty = (int) threadIdx.x / ATTEND_COLUMNS * ATTEND_QUERIES;

    take_queries<T, TILE, shape::q_pad, shape::threads>(
        q, (const T *) a.q + (int64_t) t.row * a.q_stride
           + (int64_t) head * dim, a.q_stride, t.rows, dim);

    VLM_UNROLL
    for (i = 0; i < ATTEND_QUERIES; i++) {
        max[i] = -INFINITY;
        sum[i] = 0.0f;

        VLM_UNROLL
        for (j = 0; j < COLS; j++) {
            acc[i][j] = 0.0f;
        }
    }

    /* keys that this thread's first query sees */
    seen = a.causal ? t.keys - t.rows + ty + 1 : t.keys;

    for (key0 = 0; key0 < t.keys; key0 += ATTEND_KEYS) {

        VLM_UNROLL
        for (i = 0; i < ATTEND_QUERIES; i++) {

            VLM_UNROLL
            for (j = 0; j < 4; j++) {
                s[i][j] = 0.0f;
            }
        }

        for (d0 = 0; d0 < dim; d0 += ATTEND_DEPTH) {
            VLM_SYNC();
            take_keys<T, N, shape::k_pad, shape::threads>(work, source, key0,
                                                          t.keys, d0, dim);
            VLM_SYNC();
            add_scores<T, shape::q_pad, shape::k_pad>(
                s, q + d0 * shape::q_pad + ty, work + tx * 4,
                dim - d0 < ATTEND_DEPTH ? dim - d0 : ATTEND_DEPTH);
        }

        weigh(s, max, sum, c, a.scale, seen - key0 - tx * 4, a.causal,
              t.keys - key0 - tx * 4);

        VLM_UNROLL
        for (i = 0; i < ATTEND_QUERIES; i++) {

            VLM_UNROLL
            for (j = 0; j < COLS; j++) {
                acc[i][j] *= c[i];
            }

            VLM_UNROLL
            for (j = 0; j < 4; j++) {
                p[(tx * 4 + j) * shape::p_pad + ty + i] = s[i][j];
            }
        }

        for (d0 = 0; d0 < ATTEND_KEYS && key0 + d0 < t.keys;
             d0 += ATTEND_VALUES)
        {
            VLM_SYNC();
            take_values<T, N, shape::dim, shape::threads>(
                work, source, key0 + d0, t.keys, dim);
            VLM_SYNC();

            VLM_UNROLL_BY(2)
            for (k = 0; k < ATTEND_VALUES; k++) {
                load_eight(c, p + (d0 + k) * shape::p_pad + ty);

                VLM_UNROLL
                for (j = 0; j < COLS; j++) {
                    v = work[k * shape::dim + tx + j * ATTEND_COLUMNS];

                    VLM_UNROLL
                    for (i = 0; i < ATTEND_QUERIES; i++) {
                        acc[i][j] += c[i] * v;
                    }
                }
            }
        }
    }

    VLM_UNROLL
    for (i = 0; i < ATTEND_QUERIES; i++) {
        v = 1.0f / columns_sum(sum[i]);

        if (ty + i >= t.rows) {
            continue;
        }

        y = (T *) a.y + (t.row + ty + i) * a.y_stride + (int64_t) head * dim;

        VLM_UNROLL
        for (j = 0; j < COLS; j++) {

            if (tx + j * ATTEND_COLUMNS < dim) {
                from_f32(&y[tx + j * ATTEND_COLUMNS], acc[i][j] * v);
            }
        }
    }
}


VLM_CUDA_END


#endif /* VLM_CUDA_ATTENTION_TILE_H */
