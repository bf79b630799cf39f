
/* operations that work row by row: copies, embeddings, norms */

#include "kernels/cuda/kernel.cuh"
#include "kernels/cuda/vector.cuh"


#define COPY_THREADS  256
#define NORM_THREADS  256
#define NORM_WARPS    (NORM_THREADS / VLM_WARP)

/* elements of one load */
#define WIDE          4


VLM_CUDA_BEGIN


/* a block copies one row; "to" and "from" may be NULL */

typedef struct {
    void               *y;
    const void         *x;
    const int32_t      *to;
    const int32_t      *from;
    int64_t             y_stride;
    int64_t             x_stride;
    int32_t             cols;
} copy_t;

typedef struct {
    void               *y;
    const void         *x;
    const float        *gain;
    const float        *bias;
    int64_t             y_stride;
    int64_t             x_stride;
    int32_t             cols;
    float               eps;
    int                 layer;
} norm_t;


static int is_float(vlm_queue_t *q, const vlm_tensor_t *t, const char *op);
static void copy_rows(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const int32_t *to, const int32_t *from, int64_t n,
    const char *op);


template <typename Y, typename X, int N>
__global__ void __launch_bounds__(COPY_THREADS)
copy_kernel(copy_t c)
{
    Y        *y;
    float     v[N];
    const X  *x;
    int64_t   to, from;
    int32_t   i;

    to = c.to != NULL ? c.to[blockIdx.x] : (int64_t) blockIdx.x;
    from = c.from != NULL ? c.from[blockIdx.x] : (int64_t) blockIdx.x;

    y = (Y *) c.y + to * c.y_stride;
    x = (const X *) c.x + from * c.x_stride;

    for (i = (int32_t) threadIdx.x * N; i < c.cols; i += COPY_THREADS * N) {
        load_pack<X, N>(v, x + i);
        store_pack<Y, N>(y + i, v);
    }
}


template <typename Y, typename X>
static void
launch_copy(vlm_queue_t *q, const copy_t *c, int64_t rows, const char *op)
{
    void (*kernel)(copy_t);

    kernel = copy_kernel<Y, X, 1>;

    if (c->cols % WIDE == 0 && is_packed<Y, WIDE>(c->y, c->y_stride)
        && is_packed<X, WIDE>(c->x, c->x_stride))
    {
        kernel = copy_kernel<Y, X, WIDE>;
    }

    VLM_LAUNCH(q, op, kernel, (unsigned) rows, COPY_THREADS, 0, *c);
}


template <typename Y>
static void
launch_copy_to(vlm_queue_t *q, const copy_t *c, vlm_dtype_t x_type,
    int64_t rows, const char *op)
{
    VLM_BY_TYPE(x_type, X, launch_copy<Y, X>(q, c, rows, op));
}


static void
copy_rows(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const int32_t *to, const int32_t *from, int64_t n, const char *op)
{
    copy_t  c;

    if (vlm_cuda_begin(q) != 0 || n == 0 || !is_float(q, y, op)
        || !is_float(q, x, op))
    {
        return;
    }

    c.y = y->data;
    c.x = x->data;
    c.y_stride = y->stride;
    c.x_stride = x->stride;
    c.cols = x->cols;
    c.to = NULL;
    c.from = NULL;

    if (to != NULL) {
        c.to = (const int32_t *) vlm_cuda_stage(q, to, n * sizeof(int32_t),
                                                op);
    }

    if (from != NULL) {
        c.from = (const int32_t *) vlm_cuda_stage(q, from,
                                                  n * sizeof(int32_t), op);
    }

    if (!q->failed) {
        VLM_BY_TYPE(y->dtype, Y, launch_copy_to<Y>(q, &c, x->dtype, n, op));
    }
}


static int
is_float(vlm_queue_t *q, const vlm_tensor_t *t, const char *op)
{
    if (t->dtype == VLM_F32 || t->dtype == VLM_BF16 || t->dtype == VLM_F16) {
        return 1;
    }

    vlm_cuda_fail(q, "%s: tensor of type %d is not of a float type", op,
                  (int) t->dtype);

    return 0;
}


void
vlm_cuda_convert(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x)
{
    copy_rows(q, y, x, NULL, NULL, x->rows, "convert");
}


void
vlm_cuda_scatter(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const int32_t *to, int32_t n)
{
    copy_rows(q, y, x, to, NULL, n, "scatter");
}


void
vlm_cuda_gather(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const int32_t *from, int32_t n)
{
    copy_rows(q, y, x, NULL, from, n, "gather");
}


void
vlm_cuda_embed(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_weight_t *w,
    const vlm_step_t *step)
{
    copy_t   c;
    int32_t  i, id;

    if (vlm_cuda_begin(q) != 0 || y->rows == 0 || !is_float(q, y, "embed")) {
        return;
    }

    if (y->cols != w->k || y->rows > step->host.nrows
        || w->layout != VLM_WEIGHT_PLAIN || w->scale != NULL)
    {
        vlm_cuda_fail(q, "embed: rows of weight [%lld, %lld] to [%lld, %d] "
                      "in a step of %d rows", (long long) w->n,
                      (long long) w->k, (long long) y->rows, y->cols,
                      step->host.nrows);
        return;
    }

    for (i = 0; i < y->rows; i++) {
        id = step->host.ids[i];

        if (id < 0 || id >= w->n) {
            vlm_cuda_fail(q, "embed: id %d of row %d, the embedding has %lld "
                          "rows", id, i, (long long) w->n);
            return;
        }
    }

    c.y = y->data;
    c.x = w->data;
    c.to = NULL;
    c.from = vlm_cuda_step(step)->ids;
    c.y_stride = y->stride;
    c.x_stride = w->k;
    c.cols = y->cols;

    VLM_BY_TYPE(y->dtype, Y,
                launch_copy_to<Y>(q, &c, w->dtype, y->rows, "embed"));
}


/*
 * A block norms one row, which may be its own result; N elements of a thread
 * lie beside each other.
 */

template <typename T, int N>
__global__ void __launch_bounds__(NORM_THREADS)
norm_kernel(norm_t n)
{
    T        *y;
    int       j;
    float     v[N], gain[N], bias[N], mean, scale, sum;
    int32_t   i;
    const T  *x;

    VLM_SHARED(float, work, NORM_WARPS);

    y = (T *) n.y + (int64_t) blockIdx.x * n.y_stride;
    x = (const T *) n.x + (int64_t) blockIdx.x * n.x_stride;
    mean = 0.0f;

    if (n.layer) {
        sum = 0.0f;

        for (i = (int32_t) threadIdx.x * N; i < n.cols; i += NORM_THREADS * N)
        {
            load_pack<T, N>(v, x + i);

            VLM_UNROLL
            for (j = 0; j < N; j++) {
                sum += v[j];
            }
        }

        mean = block_sum(sum, work) / (float) n.cols;
    }

    sum = 0.0f;

    for (i = (int32_t) threadIdx.x * N; i < n.cols; i += NORM_THREADS * N) {
        load_pack<T, N>(v, x + i);

        VLM_UNROLL
        for (j = 0; j < N; j++) {
            sum += (v[j] - mean) * (v[j] - mean);
        }
    }

    scale = 1.0f / sqrtf(block_sum(sum, work) / (float) n.cols + n.eps);

    for (i = (int32_t) threadIdx.x * N; i < n.cols; i += NORM_THREADS * N) {
        load_pack<T, N>(v, x + i);
        load_pack<float, N>(gain, n.gain + i);

        if (n.bias != NULL) {
            load_pack<float, N>(bias, n.bias + i);
        }

        VLM_UNROLL
        for (j = 0; j < N; j++) {
            v[j] = (v[j] - mean) * scale * gain[j];
            v[j] += n.bias != NULL ? bias[j] : 0.0f;
        }

        store_pack<T, N>(y + i, v);
    }
}


/* wide loads where all rows and tables allow them */

template <typename T>
static void
launch_norm(vlm_queue_t *q, const norm_t *n, int64_t rows)
{
    void (*kernel)(norm_t);

    kernel = norm_kernel<T, 1>;

    if (n->cols % WIDE == 0 && is_packed<T, WIDE>(n->x, n->x_stride)
        && is_packed<T, WIDE>(n->y, n->y_stride)
        && is_packed<float, WIDE>(n->gain, 0)
        && is_packed<float, WIDE>(n->bias, 0))
    {
        kernel = norm_kernel<T, WIDE>;
    }

    VLM_LAUNCH(q, "norm", kernel, (unsigned) rows, NORM_THREADS, 0, *n);
}


void
vlm_cuda_norm(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const float *gain, const float *bias, float eps, vlm_norm_kind_t kind)
{
    norm_t  n;

    if (vlm_cuda_begin(q) != 0 || x->rows == 0) {
        return;
    }

    if ((x->dtype != VLM_F32 && x->dtype != VLM_BF16)
        || y->dtype != x->dtype)
    {
        vlm_cuda_fail(q, "norm: from type %d to %d: must be equal, float32 "
                      "or bfloat16", (int) x->dtype, (int) y->dtype);
        return;
    }

    n.y = y->data;
    n.x = x->data;
    n.gain = gain;
    n.bias = bias;
    n.y_stride = y->stride;
    n.x_stride = x->stride;
    n.cols = x->cols;
    n.eps = eps;
    n.layer = kind == VLM_NORM_LAYER;

    VLM_BY_ACT(x->dtype, T, launch_norm<T>(q, &n, x->rows));
}


VLM_CUDA_END
