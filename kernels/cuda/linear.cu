
/*
 * Products with what belongs to them.  The library adds the bias, and the
 * residual or the activation where it can; a kernel does the rest.  If it has
 * no such product for a shape it does a bare one, and the kernel all the rest.
 *
 * Deterministic: every product that rounds is of PIN_ROWS rows, the last of
 * them any values if there are less, so that the library has one problem for
 * a weight, whatever it has for other numbers of rows.
 */

#include "kernels/cuda/gemv.h"
#include "kernels/cuda/quant.h"
#include "kernels/cuda/vector.cuh"


#define ACT_THREADS   256

#define PIN_ROWS      128

/*
 * Quantised products have a multiple of so many rows: by all reports the
 * library refuses some of 16 rows or less, or of a number that is no multiple
 * of 4 or 16, and for what it does such rows take no longer.
 */
#define PAD_ROWS      32

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
    const float        *x_scale;        /* of rows, and of columns; NULL: 1 */
    const float        *w_scale;
    const float        *bias;           /* not in x yet, or NULL */
    int64_t             y_stride;
    int64_t             x_stride;
    int64_t             add_stride;
    int32_t             cols;           /* of y */
    vlm_act_t           act;
    int                 gated;
} finish_t;


/* a product whose results go to work memory, a piece of its rows at a time */

typedef struct {
    vlm_gemm_t          g;              /* of a piece */
    int64_t             most;           /* rows of one */
    int                 pinned;         /* it has that many always */

    char               *data;           /* work memory: */
    size_t              x_at;           /* rows that are made for it, behind */
    size_t              y_at;           /* their scales; its results */
    size_t              size;
} work_t;


static int linear_check(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const vlm_weight_t *w,
    const vlm_tensor_t *residual);
static int linear_plain(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const vlm_weight_t *w, vlm_act_t act,
    const vlm_tensor_t *residual);
static void linear_in_two(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const vlm_weight_t *w, vlm_act_t act,
    const vlm_tensor_t *residual, int bare);
static size_t work_most(const vlm_device_t *dev, const vlm_tensor_t *x,
    const vlm_weight_t *w);
static void work_plan(const vlm_device_t *dev, work_t *work,
    const vlm_tensor_t *x, const vlm_weight_t *w, vlm_dtype_t y_type,
    int bare);
static void linear_rest(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const vlm_weight_t *w, vlm_act_t act,
    const vlm_tensor_t *residual, int64_t first);
static void work_layout(work_t *work, const vlm_tensor_t *x,
    const vlm_weight_t *w);
static void work_input(vlm_queue_t *q, work_t *work, const vlm_tensor_t *x,
    const vlm_weight_t *w);
static void finish(vlm_queue_t *q, const vlm_tensor_t *y, const work_t *work,
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

    if (!is_quantised(w) && !q->dev->deterministic
        && w->layout == VLM_WEIGHT_PLAIN
        && (act == VLM_ACT_NONE
            || (act == VLM_ACT_GELU_TANH && residual == NULL
                && y->dtype == VLM_BF16))
        && linear_plain(q, y, x, w, act, residual))
    {
        return;
    }

    linear_in_two(q, y, x, w, act, residual, 0);
}


static int
linear_check(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const vlm_weight_t *w, const vlm_tensor_t *residual)
{
    int64_t  n;

    n = w->layout == VLM_WEIGHT_GATED ? w->n / 2 : w->n;

    if (x->cols != w->k || y->cols != n || x->rows != y->rows
        || x->dtype != q->dev->act
        || (w->dtype != x->dtype && !is_quantised(w))
        || (y->dtype != x->dtype && y->dtype != VLM_F32))
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


/* 0: the library has none */

static int
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

    return vlm_gemm_try(q, &g, "linear");
}


static int64_t
padded_rows(int64_t rows)
{
    return (rows + PAD_ROWS - 1) / PAD_ROWS * PAD_ROWS;
}


/* work memory of the largest weight, whatever kind of products there are */

size_t
vlm_cuda_linear_scratch(vlm_device_t *dev, const vlm_limits_t *most)
{
    size_t        size, quantised;
    vlm_weight_t  w;
    vlm_tensor_t  x;

    if (most->outputs == 0) {
        return 0;
    }

    memset(&w, 0, sizeof(vlm_weight_t));
    memset(&x, 0, sizeof(vlm_tensor_t));

    x.dtype = dev->act;
    x.rows = padded_rows(most->rows);
    x.stride = most->outputs;

    w.dtype = dev->act;
    w.k = most->outputs;
    w.n = most->outputs;

    if (dev->deterministic && most->vocab > w.n) {
        w.n = most->vocab;
    }

    size = work_most(dev, &x, &w);

    if (most->quant == VLM_QUANT_NONE) {
        return size;
    }

    w.dtype = most->quant == VLM_QUANT_INT8 ? VLM_I8 : VLM_F8;
    w.n = most->outputs;
    quantised = work_most(dev, &x, &w);

    return quantised > size ? quantised : size;
}


/* of this weight, and of smaller ones, which may have more rows at once */

static size_t
work_most(const vlm_device_t *dev, const vlm_tensor_t *x,
    const vlm_weight_t *w)
{
    size_t  size;
    work_t  work;

    work_plan(dev, &work, x, w, VLM_F32, 0);
    size = work.size;

    if (!work.pinned && work.most < x->rows) {
        size += PAD_ROWS * (size_t) work.g.n * vlm_dtype_size(work.g.y_type);
        size += is_quantised(w) ? (size_t) ((x->rows - work.most) * work.g.k)
                                : 0;
    }

    return size;
}


/* does the kernel do the rest? */

static int
is_bare(const work_t *work)
{
    return work->g.bias == NULL && work->g.y_type != VLM_BF16;
}


/* product to work memory, the rest from there */

static void
linear_in_two(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const vlm_weight_t *w, vlm_act_t act, const vlm_tensor_t *residual,
    int bare)
{
    work_t        work;
    int64_t       row, rows;
    vlm_tensor_t  part_x, part_y, part_add;

    work_plan(q->dev, &work, x, w, y->dtype, bare);

    work.data = (char *) vlm_cuda_scratch(q, work.size, "linear");
    if (work.data == NULL) {
        return;
    }

    work.g.y = work.data + work.y_at;

    for (row = 0; row < x->rows; row += rows) {
        rows = x->rows - row < work.most ? x->rows - row : work.most;

        part_x = vlm_rows(x, row, rows);
        part_y = vlm_rows(y, row, rows);

        work_input(q, &work, &part_x, w);

        if (is_bare(&work)) {
            vlm_gemm(q, &work.g, "linear");

        } else if (vlm_gemm_try(q, &work.g, "linear") == 0) {
            linear_rest(q, y, x, w, act, residual, row);
            return;
        }

        if (residual != NULL) {
            part_add = vlm_rows(residual, row, rows);
        }

        finish(q, &part_y, &work, w, act,
               residual != NULL ? &part_add : NULL);
    }
}


/* the rows from "first" on, by a product that any library has */

static void
linear_rest(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const vlm_weight_t *w, vlm_act_t act, const vlm_tensor_t *residual,
    int64_t first)
{
    vlm_tensor_t  rest_x, rest_y, rest_add;

    rest_x = vlm_rows(x, first, x->rows - first);
    rest_y = vlm_rows(y, first, x->rows - first);

    if (residual != NULL) {
        rest_add = vlm_rows(residual, first, x->rows - first);
    }

    linear_in_two(q, &rest_y, &rest_x, w, act,
                  residual != NULL ? &rest_add : NULL, 1);
}


static void
work_plan(const vlm_device_t *dev, work_t *work, const vlm_tensor_t *x,
    const vlm_weight_t *w, vlm_dtype_t y_type, int bare)
{
    vlm_gemm_t  *g;

    memset(work, 0, sizeof(work_t));

    g = &work->g;
    *g = gemm_of(x, w);

    /* (sums of integers are exact in any order) */

    work->pinned = dev->deterministic && w->dtype != VLM_I8;

    if (is_quantised(w)) {
        g->n = quant_padded(w->n);
        g->k = quant_padded(w->k);
        g->x_stride = g->k;
        g->y_type = w->dtype == VLM_I8 ? VLM_I32 : VLM_F32;

    } else if (work->pinned || bare) {
        g->y_type = VLM_F32;

    } else {
        g->y_type = y_type;
        g->bias = bias_of(w, y_type);
    }

    g->y_stride = g->n;

    if (work->pinned) {
        work->most = PIN_ROWS;

    } else {
        work->most = WORK_BYTES / (g->n * (int64_t) vlm_dtype_size(g->y_type));
        work->most = work->most / PAD_ROWS * PAD_ROWS;
        work->most = work->most < PAD_ROWS ? PAD_ROWS : work->most;
        work->most = work->most < x->rows ? work->most
                     : is_quantised(w) ? padded_rows(x->rows) : x->rows;
    }

    work_layout(work, x, w);
}


static size_t
rounded(size_t size)
{
    return (size + 255) / 256 * 256;
}


static void
work_layout(work_t *work, const vlm_tensor_t *x, const vlm_weight_t *w)
{
    size_t  rows;

    rows = (size_t) work->most;

    if (is_quantised(w)) {
        work->x_at = rounded(rows * sizeof(float));
        work->y_at = work->x_at + rounded(rows * (size_t) work->g.k);

    } else if (work->pinned) {
        work->y_at = rounded(rows * (size_t) x->stride
                             * vlm_dtype_size(x->dtype) + 16);
    }

    work->size = work->y_at + rows * (size_t) work->g.n
                              * vlm_dtype_size(work->g.y_type);
}


/* a piece's rows as the library gets them */

static void
work_input(vlm_queue_t *q, work_t *work, const vlm_tensor_t *x,
    const vlm_weight_t *w)
{
    vlm_gemm_t    *g = &work->g;
    vlm_tensor_t   copy;

    g->rows = work->pinned ? PIN_ROWS
              : is_quantised(w) ? padded_rows(x->rows) : x->rows;
    g->x = x->data;

    if (is_quantised(w)) {
        g->x = work->data + work->x_at;
        vlm_cuda_quantise(q, work->data + work->x_at,
                          (float *) (work->data),
                          w->dtype, g->rows, x, "linear");

    } else if (x->rows < g->rows) {

        /* as far apart and as aligned as they are: the same problem */

        copy = *x;
        copy.data = work->data + work->x_at + (uintptr_t) x->data % 16;
        g->x = copy.data;
        vlm_cuda_convert(q, &copy, x);
    }
}


/* the products of columns from i on, scaled, with their bias */

template <typename X, int N>
static __device__ __forceinline__ void
load_products(float *v, const finish_t *f, int64_t i)
{
    int    j;
    float  scale, w_scale[N], bias[N];

    load_pack<X, N>(v, (const X *) f->x + (int64_t) blockIdx.x * f->x_stride
                       + i);

    VLM_UNROLL
    for (j = 0; j < N; j++) {
        w_scale[j] = 1.0f;
        bias[j] = 0.0f;
    }

    scale = 1.0f;

    if (f->w_scale != NULL) {
        scale = f->x_scale[blockIdx.x];
        load_pack<float, N>(w_scale, f->w_scale + i);
    }

    if (f->bias != NULL) {
        load_pack<float, N>(bias, f->bias + i);
    }

    VLM_UNROLL
    for (j = 0; j < N; j++) {
        v[j] = fmaf(v[j], scale * w_scale[j], bias[j]);
    }
}


/* y = act(x), times the second half of x if gated, + add */

template <typename X, typename T, int N>
__global__ void __launch_bounds__(ACT_THREADS)
finish_kernel(finish_t f)
{
    int      j;
    float    v[N], up[N], add[N];
    int32_t  i;

    i = (int32_t) (blockIdx.y * ACT_THREADS + threadIdx.x) * N;

    if (i >= f.cols) {
        return;
    }

    VLM_UNROLL
    for (j = 0; j < N; j++) {
        up[j] = 1.0f;
        add[j] = 0.0f;
    }

    load_products<X, N>(v, &f, i);

    if (f.gated) {
        load_products<X, N>(up, &f, f.cols + i);
    }

    if (f.add != NULL) {
        load_pack<T, N>(add, (const T *) f.add
                             + (int64_t) blockIdx.x * f.add_stride + i);
    }

    VLM_UNROLL
    for (j = 0; j < N; j++) {
        v[j] = activate(v[j], f.act);
        v[j] *= up[j];

        if (f.add != NULL) {
            v[j] += add[j];
        }
    }

    store_pack<T, N>((T *) f.y + (int64_t) blockIdx.x * f.y_stride + i, v);
}


template <typename X, typename T>
static void
launch_finish(vlm_queue_t *q, const finish_t *f, int64_t rows)
{
    int32_t  n;
    void   (*kernel)(finish_t);

    n = 1;
    kernel = finish_kernel<X, T, 1>;

    if (f->cols % WIDE == 0 && is_packed<T, WIDE>(f->y, f->y_stride)
        && is_packed<X, WIDE>(f->x, f->x_stride)
        && is_packed<T, WIDE>(f->add, f->add_stride))
    {
        n = WIDE;
        kernel = finish_kernel<X, T, WIDE>;
    }

    VLM_LAUNCH(q, "linear", kernel,
               dim3((unsigned) rows, (unsigned) (f->cols + ACT_THREADS * n - 1)
                                     / (unsigned) (ACT_THREADS * n)),
               ACT_THREADS, 0, *f);
}


static void
finish(vlm_queue_t *q, const vlm_tensor_t *y, const work_t *work,
    const vlm_weight_t *w, vlm_act_t act, const vlm_tensor_t *residual)
{
    finish_t  f;

    f.y = y->data;
    f.x = work->data + work->y_at;
    f.add = residual != NULL ? residual->data : NULL;
    f.x_scale = (const float *) (work->data);
    f.w_scale = w->scale;
    f.bias = work->g.bias == NULL ? w->bias : NULL;
    f.y_stride = y->stride;
    f.x_stride = work->g.y_stride;
    f.add_stride = residual != NULL ? residual->stride : 0;
    f.cols = y->cols;
    f.act = act;
    f.gated = w->layout == VLM_WEIGHT_GATED;

    if (q->failed) {
        return;
    }

    switch (work->g.y_type) {

    case VLM_I32:
        VLM_BY_ACT(y->dtype, T, launch_finish<int32_t, T>(q, &f, y->rows));
        break;

    case VLM_F32:
        VLM_BY_ACT(y->dtype, T, launch_finish<float, T>(q, &f, y->rows));
        break;

    default:
        launch_finish<bf16_t, bf16_t>(q, &f, y->rows);
        break;
    }
}


VLM_CUDA_END
