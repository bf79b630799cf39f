
/*
 * Products for 1 to 8 rows, which take as long as the weights take to be
 * read: each is read once, 16 bytes a lane, for all rows.  Rows of integers
 * are quantised first; their sums are exact, so they are the library's.
 *
 * A warp, or for small weights all warps of a block, sum two outputs: two
 * rows of the matrix, or a gate's and an up's.  Who sums what depends on the
 * weight alone, so a row has the same bits beside 0 to 7 others.
 */

#include "kernels/cuda/gemv.h"
#include "kernels/cuda/quant.h"
#include "kernels/cuda/vector.cuh"


#define GEMV_ROWS      8
#define GEMV_OUTPUTS   2
#define GEMV_WARPS     4
#define GEMV_THREADS   (GEMV_WARPS * VLM_WARP)

/* one lane's sums are that far apart, for the banks */
#define GEMV_PAD       (GEMV_THREADS + 1)

/* warps that a multiprocessor should have; else a block's share outputs */
#define GEMV_BUSY      16


VLM_CUDA_BEGIN


typedef struct {
    void               *y;
    const void         *x;
    const void         *w;
    const float        *x_scale;        /* of rows; of integers alone */
    const float        *w_scale;        /* of outputs */
    const float        *bias;
    const void         *add;
    int64_t             y_stride;
    int64_t             x_stride;
    int64_t             add_stride;
    int64_t             n;              /* outputs: of y */
    int64_t             k;              /* of a row of w, without a gap */
    int32_t             rows;
    int32_t             gated;
    int32_t             share;          /* a block's warps share outputs */
    int32_t             y_f32;          /* y and add, if not as x */
    vlm_act_t           act;
} gemv_t;


/*
 * What a lane makes of 16 bytes, and sums in; so many loads are under way at
 * once.  "act" is the type of y, if that is not float32.
 */

template <typename T>
struct lane_t {
    typedef float  word;
    typedef T      act;
    enum { n = wide_t<T>::n, loads = 2 };
};

template <>
struct lane_t<int8_t> {
    typedef int32_t  word;              /* of 4 */
    typedef bf16_t   act;
    enum { n = 4, loads = 4 };
};


template <typename T>
static __device__ __forceinline__ void
load_words(float *to, const T *from)
{
    load_pack<T, wide_t<T>::n>(to, from);
}


static __device__ __forceinline__ void
load_words(int32_t *to, const int8_t *from)
{
    int                 i;
    pack_t<int32_t, 4>  p;

    p = *(const pack_t<int32_t, 4> *) from;

    VLM_UNROLL
    for (i = 0; i < 4; i++) {
        to[i] = p.v[i];
    }
}


static __device__ __forceinline__ float
multiply_add(float w, float x, float sum)
{
    return sum + w * x;
}


static __device__ __forceinline__ int32_t
multiply_add(int32_t w, int32_t x, int32_t sum)
{
    return dot_bytes(w, x, sum);
}


/* rows of the matrix: the outputs of a unit; at the end some again */

static __device__ __forceinline__ void
unit_outputs(const gemv_t *g, int64_t unit, int64_t *outputs)
{
    int64_t  last;

    last = g->n - 1;

    if (g->gated) {
        outputs[0] = unit < last ? unit : last;
        outputs[1] = g->n + outputs[0];
        return;
    }

    outputs[0] = 2 * unit < last ? 2 * unit : last;
    outputs[1] = 2 * unit + 1 < last ? 2 * unit + 1 : last;
}


/* this lane's part of a unit's sums, [output][row] */

template <typename T, int ROWS>
static __device__ __forceinline__ void
lane_sums(const gemv_t *g, int64_t unit, int first, int step,
    typename lane_t<T>::word (*sum)[ROWS])
{
    int       o, r, j;
    const T  *row[GEMV_OUTPUTS], *xr;
    int64_t   i, outputs[GEMV_OUTPUTS];

    typename lane_t<T>::word  w[GEMV_OUTPUTS][lane_t<T>::n], x[lane_t<T>::n];

    enum { N = wide_t<T>::n, WORDS = lane_t<T>::n, LOADS = lane_t<T>::loads };

    unit_outputs(g, unit, outputs);

    VLM_UNROLL
    for (o = 0; o < GEMV_OUTPUTS; o++) {
        row[o] = (const T *) g->w + outputs[o] * g->k;

        VLM_UNROLL
        for (r = 0; r < ROWS; r++) {
            sum[o][r] = 0;
        }
    }

    VLM_UNROLL_BY(LOADS)
    for (i = (int64_t) first * N; i < g->k; i += (int64_t) step * N) {

        VLM_UNROLL
        for (o = 0; o < GEMV_OUTPUTS; o++) {
            load_words(w[o], row[o] + i);
        }

        VLM_UNROLL
        for (r = 0; r < ROWS; r++) {
            xr = (const T *) g->x
                 + (r < g->rows ? r : g->rows - 1) * g->x_stride;
            load_words(x, xr + i);

            VLM_UNROLL
            for (o = 0; o < GEMV_OUTPUTS; o++) {

                VLM_UNROLL
                for (j = 0; j < WORDS; j++) {
                    sum[o][r] = multiply_add(w[o][j], x[j], sum[o][r]);
                }
            }
        }
    }
}


/* a sum of an output and its bias */

static __device__ __forceinline__ float
output_value(const gemv_t *g, int64_t output, int row, float sum)
{
    float  bias;

    bias = g->bias != NULL ? g->bias[output] : 0.0f;

    return g->w_scale == NULL ? sum + bias
           : fmaf(sum, g->x_scale[row] * g->w_scale[output], bias);
}


/* what follows the sums of an output: both of a gated one's */

template <typename T>
static __device__ __forceinline__ void
finish_output(const gemv_t *g, int64_t output, int row, float v, float up)
{
    int64_t  at;

    v = activate(output_value(g, output, row, v), g->act);

    if (g->gated) {
        v *= output_value(g, g->n + output, row, up);
    }

    at = row * g->y_stride + output;

    if (g->y_f32) {

        if (g->add != NULL) {
            v += ((const float *) g->add)[row * g->add_stride + output];
        }

        ((float *) g->y)[at] = v;

    } else {

        if (g->add != NULL) {
            v += to_f32(((const T *) g->add)[row * g->add_stride + output]);
        }

        from_f32(&((T *) g->y)[at], v);
    }
}


template <typename T, int ROWS>
__global__ void __launch_bounds__(GEMV_THREADS)
gemv_kernel(gemv_t g)
{
    typedef typename lane_t<T>::word  sum_t;

    int      i, t, warp, o, r, units;
    sum_t    sum[GEMV_OUTPUTS][ROWS], v, up;
    int64_t  unit;

    enum { SUMS = GEMV_OUTPUTS * ROWS };

    VLM_SHARED(sum_t, lanes, SUMS * GEMV_PAD);
    VLM_SHARED(sum_t, total, SUMS * GEMV_WARPS);

    t = (int) threadIdx.x;
    warp = t / VLM_WARP;
    units = g.share ? 1 : GEMV_WARPS;
    unit = (int64_t) blockIdx.x * units;

    lane_sums<T, ROWS>(&g, g.share ? unit : unit + warp,
                       g.share ? t : t % VLM_WARP,
                       g.share ? GEMV_THREADS : VLM_WARP, sum);

    VLM_UNROLL
    for (o = 0; o < GEMV_OUTPUTS; o++) {

        VLM_UNROLL
        for (r = 0; r < ROWS; r++) {
            lanes[(o * ROWS + r) * GEMV_PAD + t] = sum[o][r];
        }
    }

    VLM_SYNC();

    if (t < SUMS * GEMV_WARPS) {
        v = 0;

        for (i = 0; i < VLM_WARP; i++) {
            v += lanes[t % SUMS * GEMV_PAD + t / SUMS * VLM_WARP + i];
        }

        total[t] = v;
    }

    VLM_SYNC();

    if (t >= SUMS * units) {
        return;
    }

    r = t % ROWS;
    o = t / ROWS % GEMV_OUTPUTS;
    unit += t / SUMS;

    if (r >= g.rows || (g.gated && o != 0)
        || (g.gated ? unit : GEMV_OUTPUTS * unit + o) >= g.n)
    {
        return;
    }

    v = total[t];
    up = g.gated ? total[t + ROWS] : 0;

    for (i = 1; g.share && i < GEMV_WARPS; i++) {
        v += total[i * SUMS + t];
        up += g.gated ? total[i * SUMS + t + ROWS] : 0;
    }

    finish_output<typename lane_t<T>::act>(&g, g.gated ? unit
                                               : GEMV_OUTPUTS * unit + o,
                                           r, (float) v, (float) up);
}


template <typename T>
static void
launch(vlm_queue_t *q, const gemv_t *g, unsigned blocks)
{
    void (*kernel)(gemv_t);

    static void (*const  kernels[GEMV_ROWS])(gemv_t) = {
        gemv_kernel<T, 1>, gemv_kernel<T, 2>, gemv_kernel<T, 3>,
        gemv_kernel<T, 4>, gemv_kernel<T, 6>, gemv_kernel<T, 6>,
        gemv_kernel<T, 8>, gemv_kernel<T, 8>
    };

    kernel = kernels[g->rows - 1];

    VLM_LAUNCH(q, "linear", kernel, blocks, GEMV_THREADS, 0, *g);
}


/* may it be done here? */

static int
is_gemv(const vlm_queue_t *q, const vlm_tensor_t *x, const vlm_weight_t *w)
{
    if (x->rows > GEMV_ROWS) {
        return 0;
    }

    if (w->dtype == VLM_I8) {
        return 1;
    }

    /* (the library's products are the same for any number of rows) */

    return !q->dev->deterministic && w->dtype == x->dtype
           && is_wide(x->data, x->stride, x->dtype)
           && is_wide(w->data, w->k, w->dtype);
}


/* rows of integers in place of x */

static void
quantise(vlm_queue_t *q, gemv_t *g, const vlm_tensor_t *x)
{
    char    *work;
    size_t   size;

    size = (size_t) (x->rows * g->k);
    work = (char *) vlm_cuda_scratch(q, size + x->rows * sizeof(float),
                                     "linear");
    if (work == NULL) {
        return;
    }

    g->x = work;
    g->x_stride = g->k;
    g->x_scale = (float *) (work + size);

    vlm_cuda_quantise(q, work, (float *) (work + size), VLM_I8, x->rows, x,
                      "linear");
}


int
vlm_cuda_gemv(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const vlm_weight_t *w, vlm_act_t act, const vlm_tensor_t *residual)
{
    gemv_t    g;
    int64_t   units, blocks;
    unsigned  grid;

    if (!is_gemv(q, x, w)) {
        return 0;
    }

    memset(&g, 0, sizeof(gemv_t));

    g.y = y->data;
    g.y_stride = y->stride;
    g.y_f32 = y->dtype == VLM_F32;
    g.x = x->data;
    g.x_stride = x->stride;
    g.w = w->data;
    g.w_scale = w->scale;
    g.bias = w->bias;
    g.k = w->dtype == VLM_I8 ? quant_padded(w->k) : w->k;
    g.rows = (int32_t) x->rows;
    g.gated = w->layout == VLM_WEIGHT_GATED;
    g.n = y->cols;
    g.act = act;

    if (residual != NULL) {
        g.add = residual->data;
        g.add_stride = residual->stride;
    }

    units = g.gated ? g.n : (g.n + GEMV_OUTPUTS - 1) / GEMV_OUTPUTS;
    g.share = units < (int64_t) GEMV_BUSY * q->dev->multiprocessors;
    blocks = g.share ? units : (units + GEMV_WARPS - 1) / GEMV_WARPS;

    if (blocks > INT32_MAX) {
        return 0;
    }

    grid = (unsigned) blocks;

    if (w->dtype == VLM_I8) {
        quantise(q, &g, x);

        if (!q->failed) {
            launch<int8_t>(q, &g, grid);
        }

        return 1;
    }

    VLM_BY_ACT(w->dtype, T, launch<T>(q, &g, grid));

    return 1;
}


VLM_CUDA_END
