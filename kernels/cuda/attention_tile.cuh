
/*
 * Attention in float32 of a tile of queries of one head, over the decoder's
 * cache or over a segment of the vision tower's rows: scores and sums stay on
 * the chip, keys and values pass through shared memory.
 *
 * A block has TILE queries and 16 threads for each 8 of them; a thread has
 * 8 queries by 4 keys of the scores, and 8 by every 16th column of the
 * result.  Keys are taken in tiles from the first on, so that a query's
 * result does not depend on the queries beside it.
 */

#ifndef VLM_CUDA_ATTENTION_TILE_H
#define VLM_CUDA_ATTENTION_TILE_H


#include "kernels/cuda/attention_keys.cuh"


#define ATTEND_KEYS     64              /* of a tile */
#define ATTEND_DEPTH    32              /* of a head, at once, for scores */
#define ATTEND_VALUES   16              /* keys at once, for values */
#define ATTEND_QUERIES  8               /* of a thread */
#define ATTEND_COLUMNS  16              /* threads beside each other */


VLM_CUDA_BEGIN


/* by columns of a thread (head_dim / 16, rounded up) and queries */

template <int COLS, int TILE>
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

template <int TILE, int PAD, int THREADS>
static __device__ __forceinline__ void
take_queries(float *to, const float *from, int64_t stride, int rows, int dim)
{
    int  i, d, r;

    for (i = (int) threadIdx.x; i < TILE * dim; i += THREADS) {
        r = i / dim;
        d = i % dim;
        to[d * PAD + r] = r < rows ? from[r * stride + d] : 0.0f;
    }
}


/* keys [key0, key0 + 64), elements [d0, d0 + 32), turned */

template <int N, int PAD, int THREADS, typename S>
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
            load_pack<float, N>(x, key_at<float>(source, key0 + key, &step)
                                + d0 + d);
        }

        VLM_UNROLL
        for (e = 0; e < N; e++) {
            to[(d + e) * PAD + key] = x[e];
        }
    }
}


/* values of 16 keys, [16][WIDTH]; beyond the keys and the head: 0 */

template <int N, int WIDTH, int THREADS, typename S>
static __device__ __forceinline__ void
take_values(float *to, const S &source, int32_t key0, int32_t keys, int dim)
{
    int           i, e, key, d;
    float         x[N];
    int64_t       step;
    const float  *k;

    enum { PARTS = WIDTH / N };

    for (i = (int) threadIdx.x; i < ATTEND_VALUES * PARTS; i += THREADS) {
        key = i / PARTS;
        d = i % PARTS * N;

        VLM_UNROLL
        for (e = 0; e < N; e++) {
            x[e] = 0.0f;
        }

        if (key0 + key < keys && d < dim) {
            k = key_at<float>(source, key0 + key, &step);
            load_pack<float, N>(x, k + step + d);
        }

        VLM_UNROLL
        for (e = 0; e < N; e++) {
            to[key * WIDTH + d + e] = x[e];
        }
    }
}


/* s += q . k over elements [0, depth) of both */

template <int Q_PAD, int K_PAD>
static __device__ __forceinline__ void
add_scores(float (*s)[4], const float *q, const float *k, int depth)
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


template <int N, int COLS, int TILE, typename S>
static __device__ __forceinline__ void
attend(const attend_t &a, const attend_tile_t &t, int head, const S &source)
{
    typedef attend_shape_t<COLS, TILE>  shape;
    typedef pack_t<float, 4>            f32_pack_t;

    int        i, j, k, d0, dim, tx, ty;
    float      acc[ATTEND_QUERIES][COLS], s[ATTEND_QUERIES][4];
    float      max[ATTEND_QUERIES], sum[ATTEND_QUERIES];
    float      c[ATTEND_QUERIES], v, *y;
    int32_t    key0, seen;

    VLM_SHARED(f32_pack_t, q_packs, (int) shape::dim * shape::q_pad / 4);
    VLM_SHARED(f32_pack_t, p_packs, ATTEND_KEYS * shape::p_pad / 4);
    VLM_SHARED(f32_pack_t, work_packs, shape::work / 4);

    float  *q = (float *) q_packs, *p = (float *) p_packs;
    float  *work = (float *) work_packs;

    dim = a.head_dim;
    tx = (int) threadIdx.x % ATTEND_COLUMNS;
    ty = (int) threadIdx.x / ATTEND_COLUMNS * ATTEND_QUERIES;

    take_queries<TILE, shape::q_pad, shape::threads>(
        q, (const float *) a.q + (int64_t) t.row * a.q_stride
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
            take_keys<N, shape::k_pad, shape::threads>(work, source, key0,
                                                       t.keys, d0, dim);
            VLM_SYNC();
            add_scores<shape::q_pad, shape::k_pad>(
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
            take_values<N, shape::dim, shape::threads>(
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

        y = (float *) a.y + (t.row + ty + i) * a.y_stride
            + (int64_t) head * dim;

        VLM_UNROLL
        for (j = 0; j < COLS; j++) {

            if (tx + j * ATTEND_COLUMNS < dim) {
                y[tx + j * ATTEND_COLUMNS] = acc[i][j] * v;
            }
        }
    }
}


VLM_CUDA_END


#endif /* VLM_CUDA_ATTENTION_TILE_H */
