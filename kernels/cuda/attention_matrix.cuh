
/*
 * Attention of bfloat16 on tensor cores: a tile of queries of one head, over
 * the decoder's cache or over a segment of the vision tower's rows, as in
 * attention_tile.cuh.
 *
 * A warp has 32 queries (16 of heads over 128) and their sums in registers,
 * a block 2 or 4 warps that share tiles of 32 keys and then values in shared
 * memory, fetched in the background: values during the scores, the next keys
 * during the sums.  Scores pass through shared memory, where a lane finds a
 * whole row and turns it into weights in place.
 *
 * A row's result depends on its own scores alone.  Keys are taken in tiles
 * from key 0 on; rows beside it, warps of a block and tiles behind a row's
 * border add products with 0 at most, which change nothing.  The greatest
 * score follows only if it grows by RAISE powers of 2: sums are multiplied
 * then, else a weight is up to 2^RAISE, as exact as one up to 1.
 *
 * Weights are rounded to bfloat16, for the divisor too, so a result is a mean
 * of values with weights w(1 + d), |d| <= 2^-8: it is off by 2^-8 of the mean
 * distance of the values from it at worst.
 *
 * For 32 queries and 32 keys of heads of 128 a warp does 64 products of
 * 16 x 16 x 16: 2^19 operations, 256 cycles of an A100's multiprocessor (2048
 * a cycle).  It reads 8 KB of queries, 8 of keys, 8 of values, 12 KB of scores
 * and weights pass, and 4 KB are its share of what is fetched: 40 KB, 320
 * cycles at 128 bytes.  With 16 queries for each warp the same operations
 * would need 56 KB, so registers go to queries, not to more warps.
 *
 * They are about 900 instructions: 128 HMMA, 208 loads of matrices, 64 MOVM
 * that turn values, 190 for the weights.  (nvcc 13.0 loads matrices of
 * bfloat16, unlike half's, word by word from generic addresses.)
 *
 *               registers    shared memory of    blocks of 4 warps at once
 *                            4 warps, in KB      sm_80    sm_89    sm_90
 *   heads to 64     168            27.5            3        3        3
 *            80     224            29.5            2        2        2
 *            96     250            31.5            2        2        2
 *           128     243            69.5            2        1        2
 *           256     234            75.5            2        1        2
 */

#ifndef VLM_CUDA_ATTENTION_MATRIX_H
#define VLM_CUDA_ATTENTION_MATRIX_H


#include "kernels/cuda/attention_keys.cuh"
#include "kernels/cuda/matrix.cuh"


#define MATRIX_KEYS     32              /* of a tile; see weigh_row() */
#define MATRIX_PITCH    (MATRIX_KEYS + 4)       /* of a row of scores */
#define MATRIX_WARPS    4               /* at most */
#define MATRIX_RAISE    8.0f
#define LOG2_E          1.4426950408889634f


VLM_CUDA_BEGIN


/*
 * By columns of matrices of a head, and rows of them of a warp.  Memory:
 * places of two tiles' keys, scores of each warp, keys, values, and queries,
 * unless these are loaded once into registers: then they pass where scores
 * and all behind them will be.  (Matrices behind what differs by launch have
 * one address in a register, those at fixed places one each.)
 */

template <int COLS, int ROWS>
struct matrix_shape_t {
    enum {
        dim = COLS * MATRIX,
        queries = ROWS * MATRIX,
        pitch = dim + 8,                /* an odd number of 16 bytes */
        places = 2 * MATRIX_KEYS * (int) sizeof(void *),
        keys = MATRIX_KEYS * pitch * (int) sizeof(bf16_t),
        scores = queries * MATRIX_PITCH * (int) sizeof(float),
        in_registers = COLS * ROWS <= 12,
        unroll = in_registers ? COLS : 2,       /* for scores, and sums: */
        unroll_keys = COLS <= 8 ? 2 : 1,
        of_warp = scores + (in_registers ? 0 : queries * pitch
                                               * (int) sizeof(bf16_t))
    };

    static_assert(!in_registers
                  || queries * pitch * (int) sizeof(bf16_t) * MATRIX_WARPS
                     <= 2 * keys + MATRIX_WARPS * scores, "queries");
};


/* rows of a tile, and where they lie */

typedef struct {
    int                  rows;
    const bf16_t *const  *table;
    int64_t              step;
} key_rows_t;


static __device__ __forceinline__ const bf16_t *
row_at(const key_rows_t &k, int i)
{
    return k.table[i] + k.step;
}


typedef struct {
    int                  rows;
    const bf16_t        *first;
    int64_t              stride;
} query_rows_t;


static __device__ __forceinline__ const bf16_t *
row_at(const query_rows_t &q, int i)
{
    return q.first + i * q.stride;
}


/*
 * "rows" rows of "dim" elements in pieces of N; 0 where there is no row, and
 * in the columns behind it.  A warp takes as many rows at once as it has
 * lanes for, or one.  (A piece of one is not for the background.)
 */

template <int DIM, int N, typename S>
static __device__ __forceinline__ void
fetch_rows(bf16_t *to, const S &source, int rows, int dim)
{
    int                r, d, lane;
    bf16_t            *p;
    pack_t<bf16_t, N>  zero = { };

    enum {
        PARTS = DIM / N,
        ONCE = PARTS < VLM_WARP ? VLM_WARP / PARTS : 1
    };

    lane = (int) threadIdx.x % VLM_WARP;

    if (lane >= ONCE * PARTS) {
        return;
    }

    VLM_UNROLL_BY(1)
    for (d = lane % PARTS * N; d < DIM; d += VLM_WARP * N) {

        for (r = (int) threadIdx.x / VLM_WARP * ONCE + lane / PARTS; r < rows;
             r += (int) blockDim.x / VLM_WARP * ONCE)
        {
            p = &to[r * (DIM + 8) + d];

            if (r >= source.rows || d >= dim) {
                *(pack_t<bf16_t, N> *) p = zero;

            } else if (N == 1) {
                *p = row_at(source, r)[d];

            } else {
                VLM_COPY_ASYNC(p, row_at(source, r) + d, N * sizeof(bf16_t));
            }
        }
    }
}


template <int DIM>
static __device__ __forceinline__ void
fetch_keys(bf16_t *to, const key_rows_t &keys, const attend_t &a)
{
    if (a.wide) {
        fetch_rows<DIM, 8>(to, keys, MATRIX_KEYS, a.head_dim);

    } else {
        fetch_rows<DIM, 2>(to, keys, MATRIX_KEYS, a.head_dim);
    }
}


/* where the keys of a tile lie; the first lanes of the block find out */

template <typename S>
static __device__ __forceinline__ void
find_keys(const bf16_t **table, const S &source, int32_t key0, int32_t keys)
{
    int32_t  key;
    int64_t  step;

    key = key0 + (int32_t) threadIdx.x;

    if (threadIdx.x < MATRIX_KEYS && key < keys) {
        table[threadIdx.x] = key_at<bf16_t>(source, key, &step);
    }
}


/* scores of a warp's queries and a tile of keys, to the warp's memory */

template <int COLS, int ROWS>
static __device__ __forceinline__ void
score(float *s, left_t (*loaded)[ROWS], const bf16_t *q, const bf16_t *k)
{
    typedef matrix_shape_t<COLS, ROWS>  shape;

    int       r, d, n;
    left_t    a;
    sums_t    sums[ROWS][MATRIX_KEYS / MATRIX];
    turned_t  b[MATRIX_KEYS / MATRIX];

    VLM_UNROLL
    for (r = 0; r < ROWS; r++) {

        VLM_UNROLL
        for (n = 0; n < MATRIX_KEYS / MATRIX; n++) {
            wmma::fill_fragment(sums[r][n], 0.0f);
        }
    }

    VLM_UNROLL_BY(shape::unroll)
    for (d = 0; d < COLS; d++) {

        VLM_UNROLL
        for (n = 0; n < MATRIX_KEYS / MATRIX; n++) {
            load_matrix(b[n], k + n * MATRIX * shape::pitch + d * MATRIX,
                        shape::pitch);
        }

        VLM_UNROLL
        for (r = 0; r < ROWS; r++) {

            if (shape::in_registers) {
                a = loaded[d][r];

            } else {
                load_matrix(a, q + r * MATRIX * shape::pitch + d * MATRIX,
                            shape::pitch);
            }

            VLM_UNROLL
            for (n = 0; n < MATRIX_KEYS / MATRIX; n++) {
                wmma::mma_sync(sums[r][n], a, b[n], sums[r][n]);
            }
        }
    }

    VLM_UNROLL
    for (r = 0; r < ROWS; r++) {

        VLM_UNROLL
        for (n = 0; n < MATRIX_KEYS / MATRIX; n++) {
            wmma::store_matrix_sync(s + r * MATRIX * MATRIX_PITCH
                                    + n * MATRIX, sums[r][n], MATRIX_PITCH,
                                    wmma::mem_row_major);
        }
    }
}


/* of a row so far; "max" is a power of 2 */

typedef struct {
    float               max;
    float               sum;
} row_t;


/*
 * A row of scores to weights, in place.  The first "seen" keys count: all
 * rows see key 0, so "max" becomes finite at once.  Returns what earlier sums
 * must be multiplied with.
 */

static __device__ __forceinline__ float
weigh_row(float *row, row_t *w, float scale, int32_t seen)
{
    int                  i, j;
    float                x[MATRIX_KEYS], top, c, sum[4];
    pack_t<uint32_t, 4>  p;

    VLM_UNROLL
    for (i = 0; i < MATRIX_KEYS; i += 4) {
        load_pack<float, 4>(x + i, row + i);
    }

    if (seen < MATRIX_KEYS) {

        VLM_UNROLL
        for (i = 0; i < MATRIX_KEYS; i++) {
            x[i] = i < seen ? x[i] : -INFINITY;
        }
    }

    VLM_UNROLL
    for (j = 0; j < 4; j++) {
        sum[j] = x[j];

        VLM_UNROLL
        for (i = 4; i < MATRIX_KEYS; i += 4) {
            sum[j] = fmaxf(sum[j], x[i + j]);
        }
    }

    top = fmaxf(fmaxf(sum[0], sum[1]), fmaxf(sum[2], sum[3])) * scale;
    top = top > w->max + MATRIX_RAISE ? top : w->max;
    c = exp2f(w->max - top);
    w->max = top;

    VLM_UNROLL
    for (j = 0; j < 4; j++) {
        sum[j] = 0.0f;
    }

    VLM_UNROLL
    for (i = 0; i < MATRIX_KEYS; i++) {
        x[i] = exp2f(fmaf(x[i], scale, -top));
    }

    VLM_UNROLL
    for (i = 0; i < MATRIX_KEYS; i += 8) {

        VLM_UNROLL
        for (j = 0; j < 4; j++) {
            p.v[j] = round_two(&x[i + 2 * j], &x[i + 2 * j + 1]);
            sum[j] += x[i + 2 * j] + x[i + 2 * j + 1];
        }

        *(pack_t<uint32_t, 4> *) ((bf16_t *) row + i) = p;
    }

    w->sum = w->sum * c + ((sum[0] + sum[1]) + (sum[2] + sum[3]));

    return c;
}


/* each lane's row of sums times "c", by way of memory behind the weights */

template <int COLS, int ROWS>
static __device__ __forceinline__ void
scale_rows(sums_t (*o)[COLS], float *s, int lane, float c)
{
    int               i, r, d;
    sums_t            m;
    pack_t<float, 4>  p;

    enum { BEHIND = MATRIX_KEYS / 2 };

    p.v[0] = p.v[1] = p.v[2] = p.v[3] = c;

    if (lane < ROWS * MATRIX) {

        VLM_UNROLL
        for (i = 0; i < MATRIX; i += 4) {
            *(pack_t<float, 4> *) &s[lane * MATRIX_PITCH + BEHIND + i] = p;
        }
    }

    VLM_SYNC_WARP();

    VLM_UNROLL
    for (r = 0; r < ROWS; r++) {
        wmma::load_matrix_sync(m, s + r * MATRIX * MATRIX_PITCH + BEHIND,
                               MATRIX_PITCH, wmma::mem_row_major);

        VLM_UNROLL
        for (d = 0; d < COLS; d++) {

            VLM_UNROLL
            for (i = 0; i < (int) sums_t::num_elements; i++) {
                o[r][d].x[i] *= m.x[i];
            }
        }
    }
}


/* o += weights . values */

template <int COLS, int ROWS>
static __device__ __forceinline__ void
add_values(sums_t (*o)[COLS], const bf16_t *p, const bf16_t *v)
{
    typedef matrix_shape_t<COLS, ROWS>  shape;

    int      r, d, n;
    left_t   a[ROWS];
    right_t  b;

    VLM_UNROLL_BY(shape::unroll_keys)
    for (n = 0; n < MATRIX_KEYS; n += MATRIX) {

        VLM_UNROLL
        for (r = 0; r < ROWS; r++) {
            load_matrix(a[r], p + r * MATRIX * 2 * MATRIX_PITCH + n,
                        2 * MATRIX_PITCH);
        }

        VLM_UNROLL
        for (d = 0; d < COLS; d++) {
            load_matrix(b, v + n * shape::pitch + d * MATRIX, shape::pitch);

            VLM_UNROLL
            for (r = 0; r < ROWS; r++) {
                wmma::mma_sync(o[r][d], a[r], b, o[r][d]);
            }
        }
    }
}


/* the first "rows" rows of a warp's sums to y, by way of its memory */

template <int COLS, int ROWS>
static __device__ __forceinline__ void
store_rows(const attend_t &a, bf16_t *y, sums_t (*o)[COLS], float *s,
    int lane, int rows)
{
    int     i, j, r, d, at;
    float  *from;

    VLM_UNROLL
    for (d = 0; d < COLS; d++) {

        VLM_UNROLL
        for (r = 0; r < ROWS; r++) {
            wmma::store_matrix_sync(s + r * MATRIX * MATRIX_PITCH, o[r][d],
                                    MATRIX_PITCH, wmma::mem_row_major);
        }

        VLM_SYNC_WARP();

        VLM_UNROLL_BY(1)
        for (i = lane; i < rows * 2; i += VLM_WARP) {
            at = d * MATRIX + i % 2 * 8;
            from = s + i / 2 * MATRIX_PITCH + i % 2 * 8;

            if (a.wide && at < a.head_dim) {
                store_pack<bf16_t, 8>(y + i / 2 * a.y_stride + at, from);
                continue;
            }

            VLM_UNROLL_BY(1)
            for (j = 0; j < 8 && at + j < a.head_dim; j++) {
                from_f32(&y[i / 2 * a.y_stride + at + j], from[j]);
            }
        }

        VLM_SYNC_WARP();
    }
}


template <int COLS, int ROWS, typename S>
static __device__ __forceinline__ void
attend_matrix(const attend_t &a, const attend_tile_t &t, int head,
    const S &source)
{
    typedef matrix_shape_t<COLS, ROWS>  shape;

    int             r, d, lane, first, rows;
    float           c;
    row_t           w = { -INFINITY, 0.0f };
    left_t          loaded[shape::in_registers ? COLS : 1][ROWS];
    sums_t          o[ROWS][COLS];
    int32_t         key0, last, seen;
    key_rows_t      keys, values;
    query_rows_t    queries;

    VLM_DYNAMIC(char, memory);

    const bf16_t  **table = (const bf16_t **) memory;
    float          *s = (float *) (memory + shape::places);
    bf16_t         *k = (bf16_t *) (s + blockDim.x / VLM_WARP * shape::queries
                                        * MATRIX_PITCH);
    bf16_t         *v = k + MATRIX_KEYS * shape::pitch;
    bf16_t         *q = shape::in_registers ? (bf16_t *) s
                                            : v + MATRIX_KEYS * shape::pitch;
    bf16_t         *y = (bf16_t *) a.y + (int64_t) head * a.head_dim;

    lane = (int) threadIdx.x % VLM_WARP;

    /* of the warp: queries, how many there are, what the last of them sees */
    first = (int) threadIdx.x / VLM_WARP * shape::queries;
    rows = t.rows - first < shape::queries ? t.rows - first : shape::queries;
    last = a.causal ? t.keys - t.rows + first + rows : t.keys;

    /* and what the lane's query sees; one that is none: anything */
    seen = a.causal && lane < rows ? last - rows + lane + 1 : t.keys;

    queries.first = (const bf16_t *) a.q + (int64_t) t.row * a.q_stride
                    + (int64_t) head * a.head_dim;
    queries.stride = a.q_stride;
    queries.rows = t.rows;

    (void) key_at<bf16_t>(source, 0, &values.step);
    keys.step = 0;
    keys.rows = t.keys;

    find_keys(table, source, 0, t.keys);

    if (a.wide) {
        fetch_rows<shape::dim, 8>(q, queries, (int) blockDim.x / VLM_WARP
                                  * shape::queries, a.head_dim);
    } else {
        fetch_rows<shape::dim, 1>(q, queries, (int) blockDim.x / VLM_WARP
                                  * shape::queries, a.head_dim);
    }

    q += first * shape::pitch;
    s += first * MATRIX_PITCH;

    VLM_UNROLL
    for (r = 0; r < ROWS; r++) {

        VLM_UNROLL
        for (d = 0; d < COLS; d++) {
            wmma::fill_fragment(o[r][d], 0.0f);
        }
    }

    VLM_COPY_WAIT();
    VLM_SYNC();

    if (shape::in_registers) {

        VLM_UNROLL
        for (d = 0; d < COLS; d++) {

            VLM_UNROLL
            for (r = 0; r < ROWS; r++) {
                load_matrix(loaded[shape::in_registers ? d : 0][r],
                            q + r * MATRIX * shape::pitch + d * MATRIX,
                            shape::pitch);
            }
        }

        VLM_SYNC();
    }

    keys.table = table;
    fetch_keys<shape::dim>(k, keys, a);

    for (key0 = 0; key0 < t.keys; key0 += MATRIX_KEYS) {

        /* keys are here, values have been used */
        VLM_COPY_WAIT();
        VLM_SYNC();

        values.table = keys.table;
        values.rows = keys.rows;
        fetch_keys<shape::dim>(v, values, a);

        keys.table = keys.table == table ? table + MATRIX_KEYS : table;
        keys.rows -= MATRIX_KEYS;
        find_keys((const bf16_t **) keys.table, source, key0 + MATRIX_KEYS,
                  t.keys);

        if (rows > 0 && key0 < last) {
            score<COLS, ROWS>(s, loaded, q, k);
            VLM_SYNC_WARP();

            c = 1.0f;

            if (lane < shape::queries) {
                c = weigh_row(s + lane * MATRIX_PITCH, &w, a.scale * LOG2_E,
                              seen - key0);
            }

            if (vlm_any(c != 1.0f)) {
                scale_rows<COLS, ROWS>(o, s, lane, c);
            }
        }

        /* values are here, keys have been used */
        VLM_COPY_WAIT();
        VLM_SYNC();

        if (key0 + MATRIX_KEYS < t.keys) {
            fetch_keys<shape::dim>(k, keys, a);
        }

        if (rows > 0 && key0 < last) {
            add_values<COLS, ROWS>(o, (const bf16_t *) s, v);
        }
    }

    if (rows > 0) {
        scale_rows<COLS, ROWS>(o, s, lane, 1.0f / w.sum);
        store_rows<COLS, ROWS>(a, y + (int64_t) (t.row + first) * a.y_stride,
                               o, s, lane, rows);
    }
}


VLM_CUDA_END


#endif /* VLM_CUDA_ATTENTION_MATRIX_H */
