
/*
 * Products with what belongs to them.  The library adds the bias, and the
 * residual or the activation where it can; a kernel does the rest.
 */

#include "kernels/cuda/gemv.h"
#include "kernels/cuda/kernel.cuh"
#include "kernels/cuda/vector.cuh"


#define ACT_THREADS   256

/* elements of one load */
#define WIDE          4

/* intermediate results of one launch: rows are taken in pieces of about it */
#ifdef VLM_EMU
#define WORK_BYTES    ((int64_t) 1 << 20)
#else
#define WORK_BYTES    ((int64_t) 64 << 20)
#endif


VLM_CUDA_BEGIN


typedef struct {
    void               *y;
    const void         *x;              /* gate, then up in the same row */
    const void         *add;
    int64_t             y_stride;
    int64_t             x_stride;
    int64_t             add_stride;
    int32_t             cols;           /* of y */
    vlm_act_t           act;
    int                 gated;
} finish_t;


static int linear_check(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const vlm_weight_t *w,
    const vlm_tensor_t *residual);
static void linear_plain(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const vlm_weight_t *w, vlm_act_t act,
    const vlm_tensor_t *residual);
static int64_t rows_at_once(int64_t n, vlm_dtype_t type, int64_t rows);
static void linear_in_two(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const vlm_weight_t *w, vlm_act_t act,
    const vlm_tensor_t *residual);
static void finish(vlm_queue_t *q, const vlm_tensor_t *y, const void *x,
    const vlm_weight_t *w, vlm_act_t act, const vlm_tensor_t *residual);


void
vlm_cuda_linear(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const vlm_weight_t *w, vlm_act_t act, const vlm_tensor_t *residual)
{
    if (vlm_cuda_begin(q) != 0 || x->rows == 0
        || linear_check(q, y, x, w, residual) != 0
        || vlm_cuda_gemv(q, y, x, w, act, residual))
    {
        return;
    }

    if (w->layout == VLM_WEIGHT_PLAIN
        && (act == VLM_ACT_NONE
            || (act == VLM_ACT_GELU_TANH && residual == NULL
                && y->dtype == VLM_BF16)))
    {
        linear_plain(q, y, x, w, act, residual);

    } else {
        linear_in_two(q, y, x, w, act, residual);
    }
}


static int
linear_check(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const vlm_weight_t *w, const vlm_tensor_t *residual)
{
    int64_t  n;

    n = w->layout == VLM_WEIGHT_GATED ? w->n / 2 : w->n;

    if (x->cols != w->k || y->cols != n || x->rows != y->rows
        || x->dtype != w->dtype
        || (y->dtype != w->dtype && y->dtype != VLM_F32))
    {
        vlm_cuda_fail(q, "linear: [%lld, %d] of type %d by weight "
                      "[%lld, %lld] of type %d to [%lld, %d] of type %d",
                      (long long) x->rows, x->cols, (int) x->dtype,
                      (long long) w->n, (long long) w->k, (int) w->dtype,
                      (long long) y->rows, y->cols, (int) y->dtype);
        return -1;
    }

    if (residual != NULL && (residual->dtype != y->dtype
        || residual->cols != y->cols || residual->rows != y->rows))
    {
        vlm_cuda_fail(q, "linear: residual [%lld, %d] of type %d to "
                      "[%lld, %d] of type %d", (long long) residual->rows,
                      residual->cols, (int) residual->dtype,
                      (long long) y->rows, y->cols, (int) y->dtype);
        return -1;
    }

    return 0;
}


static vlm_gemm_t
gemm_of(const vlm_tensor_t *x, const vlm_weight_t *w)
{
    vlm_gemm_t  g;

    memset(&g, 0, sizeof(vlm_gemm_t));

    g.x = x->data;
    g.x_stride = x->stride;
    g.w = w->data;
    g.rows = x->rows;
    g.n = w->n;
    g.k = w->k;
    g.type = w->dtype;

    return g;
}


/* the bias in the type of y */

static const void *
bias_of(const vlm_weight_t *w, vlm_dtype_t type)
{
    return type == VLM_F32 ? w->bias : vlm_cuda_weight_bias(w);
}


static void
linear_plain(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const vlm_weight_t *w, vlm_act_t act, const vlm_tensor_t *residual)
{
    vlm_gemm_t  g;

    g = gemm_of(x, w);

    g.y = y->data;
    g.y_stride = y->stride;
    g.y_type = y->dtype;
    g.bias = bias_of(w, y->dtype);
    g.gelu = act == VLM_ACT_GELU_TANH;

    if (residual != NULL) {
        g.add = residual->data;
        g.add_stride = residual->stride;
    }

    vlm_gemm(q, &g, "linear");
}


size_t
vlm_cuda_linear_scratch(vlm_device_t *dev, const vlm_limits_t *most)
{
    if (most->outputs == 0) {
        return 0;
    }

    return (size_t) (rows_at_once(most->outputs, dev->act, most->rows)
                     * most->outputs) * vlm_dtype_size(dev->act);
}


/* rows whose intermediate results are in work memory */

static int64_t
rows_at_once(int64_t n, vlm_dtype_t type, int64_t rows)
{
    int64_t  most;

    most = WORK_BYTES / (n * (int64_t) vlm_dtype_size(type));
    most = most < 16 ? 16 : most;

    return most < rows ? most : rows;
}


/* product and bias to work memory, the rest from there */

static void
linear_in_two(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const vlm_weight_t *w, vlm_act_t act, const vlm_tensor_t *residual)
{
    void          *work;
    int64_t        row, rows, most;
    vlm_gemm_t     g;
    vlm_tensor_t   part_x, part_y, part_add;

    most = rows_at_once(w->n, y->dtype, x->rows);

    work = vlm_cuda_scratch(q, (size_t) (most * w->n)
                               * vlm_dtype_size(y->dtype), "linear");
    if (work == NULL) {
        return;
    }

    for (row = 0; row < x->rows; row += rows) {
        rows = x->rows - row < most ? x->rows - row : most;

        part_x = vlm_rows(x, row, rows);
        part_y = vlm_rows(y, row, rows);

        g = gemm_of(&part_x, w);
        g.y = work;
        g.y_stride = w->n;
        g.y_type = y->dtype;
        g.bias = bias_of(w, y->dtype);

        vlm_gemm(q, &g, "linear");

        if (residual != NULL) {
            part_add = vlm_rows(residual, row, rows);
        }

        finish(q, &part_y, work, w, act,
               residual != NULL ? &part_add : NULL);
    }
}


/* y = act(x), times the second half of x if gated, + add */

template <typename T, int N>
__global__ void __launch_bounds__(ACT_THREADS)
finish_kernel(finish_t f)
{
    int       j;
    float     v[N], up[N], add[N];
    int32_t   i;
    const T  *x;

    i = (int32_t) (blockIdx.y * ACT_THREADS + threadIdx.x) * N;

    if (i >= f.cols) {
        return;
    }

    x = (const T *) f.x + (int64_t) blockIdx.x * f.x_stride;
    load_pack<T, N>(v, x + i);

    if (f.gated) {
        load_pack<T, N>(up, x + f.cols + i);
    }

    if (f.add != NULL) {
        load_pack<T, N>(add, (const T *) f.add
                             + (int64_t) blockIdx.x * f.add_stride + i);
    }

    VLM_UNROLL
    for (j = 0; j < N; j++) {
        v[j] = activate(v[j], f.act);
        v[j] *= f.gated ? up[j] : 1.0f;
        v[j] += f.add != NULL ? add[j] : 0.0f;
    }

    store_pack<T, N>((T *) f.y + (int64_t) blockIdx.x * f.y_stride + i, v);
}


template <typename T>
static void
launch_finish(vlm_queue_t *q, const finish_t *f, int64_t rows)
{
    int32_t  n;
    void   (*kernel)(finish_t);

    n = 1;
    kernel = finish_kernel<T, 1>;

    if (f->cols % WIDE == 0 && is_packed<T, WIDE>(f->y, f->y_stride)
        && is_packed<T, WIDE>(f->x, f->x_stride)
        && is_packed<T, WIDE>(f->add, f->add_stride))
    {
        n = WIDE;
        kernel = finish_kernel<T, WIDE>;
    }

    VLM_LAUNCH(q, "linear", kernel,
               dim3((unsigned) rows, (unsigned) (f->cols + ACT_THREADS * n - 1)
                                     / (unsigned) (ACT_THREADS * n)),
               ACT_THREADS, 0, *f);
}


static void
finish(vlm_queue_t *q, const vlm_tensor_t *y, const void *x,
    const vlm_weight_t *w, vlm_act_t act, const vlm_tensor_t *residual)
{
    finish_t  f;

    f.y = y->data;
    f.x = x;
    f.add = residual != NULL ? residual->data : NULL;
    f.y_stride = y->stride;
    f.x_stride = w->n;
    f.add_stride = residual != NULL ? residual->stride : 0;
    f.cols = y->cols;
    f.act = act;
    f.gated = w->layout == VLM_WEIGHT_GATED;

    if (q->failed) {
        return;
    }

    VLM_BY_ACT(y->dtype, T, launch_finish<T>(q, &f, y->rows));
}


VLM_CUDA_END
