
/*
 * Weights: converted on the host into pinned memory, a piece at a time, while
 * the piece before is on its way.  What is quantised is sent as it is, and
 * made smaller by the device.
 */

#include "kernels/cuda/kernel.cuh"
#include "kernels/cuda/quant.h"


VLM_CUDA_BEGIN


typedef struct {
    vlm_device_t   *dev;
    char           *to;             /* where the next piece goes */
    int             turn;
    size_t          used;           /* of the piece being filled */
    cudaError_t     rc;
} load_t;


static int check(vlm_weight_layout_t layout, const vlm_host_matrix_t *parts,
    const vlm_host_matrix_t *biases, int nparts, char *err, size_t errlen);
static int check_bias(const vlm_host_matrix_t *bias, int64_t rows);
static int check_quant(const vlm_device_t *dev, vlm_quant_t quant, int64_t k,
    char *err, size_t errlen);
static int alloc_weight(vlm_device_t *dev, vlm_weight_t *w, int biased);
static cudaError_t load_weight(vlm_device_t *dev, vlm_weight_t *w,
    const vlm_host_matrix_t *parts, const vlm_host_matrix_t *biases,
    int nparts);
static void load_quantised(load_t *l, vlm_weight_t *w,
    const vlm_host_matrix_t *parts, int nparts);
static void load_rows(load_t *l, vlm_weight_t *w, const vlm_host_matrix_t *m,
    int64_t first, void *raw, int64_t most);
static void load_part(load_t *l, vlm_dtype_t type, const vlm_host_matrix_t *m,
    int64_t n);
static void load_values(load_t *l, vlm_dtype_t type, const char *from,
    vlm_dtype_t from_type, int64_t n);
static void load_send(load_t *l);
static float host_value(const char *p, vlm_dtype_t type);


static size_t
bias_offset(const vlm_weight_t *w)
{
    size_t  size;

    if (is_quantised(w)) {
        size = (size_t) quant_padded(w->n) * (size_t) quant_padded(w->k);

    } else {
        size = (size_t) w->n * (size_t) w->k * vlm_dtype_size(w->dtype);
    }

    return (size + 255) / 256 * 256;
}


const void *
vlm_cuda_weight_bias(const vlm_weight_t *w)
{
    return w->bias != NULL ? (char *) w->data + bias_offset(w) : NULL;
}


int
vlm_cuda_weight_create(vlm_device_t *dev, vlm_weight_t *w,
    vlm_weight_layout_t layout, vlm_quant_t quant,
    const vlm_host_matrix_t *parts, const vlm_host_matrix_t *biases,
    int nparts, char *err, size_t errlen)
{
    int          i, biased;
    cudaError_t  rc;

    memset(w, 0, sizeof(vlm_weight_t));

    if (check(layout, parts, biases, nparts, err, errlen) != 0
        || check_quant(dev, quant, parts[0].cols, err, errlen) != 0)
    {
        return -1;
    }

    w->device = dev;
    w->dtype = quant == VLM_QUANT_INT8 ? VLM_I8
               : quant == VLM_QUANT_FP8 ? VLM_F8 : dev->act;
    w->layout = layout;
    w->k = parts[0].cols;

    biased = 0;

    for (i = 0; i < nparts; i++) {
        w->n += parts[i].rows;
        biased |= biases != NULL && biases[i].data != NULL;
    }

    if (w->k > INT64_MAX / 8 / w->n) {
        snprintf(err, errlen, "a weight of %lld x %lld is too large",
                 (long long) w->n, (long long) w->k);
        return -1;
    }

    if (alloc_weight(dev, w, biased) != 0) {
        snprintf(err, errlen, "no device memory for a weight of %zu bytes",
                 w->bytes);
        vlm_cuda_weight_destroy(w);
        return -1;
    }

    rc = load_weight(dev, w, parts, biased ? biases : NULL, nparts);

    if (rc != cudaSuccess) {
        snprintf(err, errlen, "upload of a weight of %zu bytes: %s",
                 w->bytes, cudaGetErrorString(rc));
        vlm_cuda_weight_destroy(w);
        return -1;
    }

    return 0;
}


static int
check(vlm_weight_layout_t layout, const vlm_host_matrix_t *parts,
    const vlm_host_matrix_t *biases, int nparts, char *err, size_t errlen)
{
    int      i;
    int64_t  n;

    if (nparts < 1 || (layout == VLM_WEIGHT_GATED
                       && (nparts != 2 || parts[0].rows != parts[1].rows)))
    {
        snprintf(err, errlen, "a gated weight has two equal parts, a plain "
                 "one at least one");
        return -1;
    }

    n = 0;

    for (i = 0; i < nparts; i++) {

        if (parts[i].rows < 1 || parts[i].rows > INT32_MAX - n
            || parts[i].cols < 1 || parts[i].cols > INT32_MAX
            || parts[i].cols != parts[0].cols
            || parts[i].dtype != parts[0].dtype || parts[i].dtype > VLM_F16)
        {
            snprintf(err, errlen, "part %d of a weight: %lld x %lld of "
                     "type %d, the first has %lld columns of type %d", i,
                     (long long) parts[i].rows, (long long) parts[i].cols,
                     (int) parts[i].dtype, (long long) parts[0].cols,
                     (int) parts[0].dtype);
            return -1;
        }

        n += parts[i].rows;

        if (biases != NULL && check_bias(&biases[i], parts[i].rows) != 0) {
            snprintf(err, errlen, "bias %d of a weight: %lld x %lld of "
                     "type %d for %lld outputs", i,
                     (long long) biases[i].rows, (long long) biases[i].cols,
                     (int) biases[i].dtype, (long long) parts[i].rows);
            return -1;
        }
    }

    return 0;
}


static int
check_bias(const vlm_host_matrix_t *bias, int64_t rows)
{
    if (bias->data == NULL) {
        return 0;
    }

    if (bias->rows < 1 || bias->cols < 1 || bias->rows > INT32_MAX
        || bias->cols > INT32_MAX || bias->rows * bias->cols != rows
        || bias->dtype > VLM_F16)
    {
        return -1;
    }

    return 0;
}


static int
check_quant(const vlm_device_t *dev, vlm_quant_t quant, int64_t k, char *err,
    size_t errlen)
{
    if (quant == VLM_QUANT_INT8 && k > VLM_QUANT_MOST) {
        snprintf(err, errlen, "int8 sums of %lld products may exceed 32 "
                 "bits, %d are safe", (long long) k, VLM_QUANT_MOST);
        return -1;
    }

    if (quant == VLM_QUANT_FP8 && dev->capability < 89) {
        snprintf(err, errlen, "fp8: %s has compute capability %d.%d, 8.9 is "
                 "needed", dev->name, dev->capability / 10,
                 dev->capability % 10);
        return -1;
    }

    return 0;
}


static int
alloc_weight(vlm_device_t *dev, vlm_weight_t *w, int biased)
{
    size_t  scales;

    w->bytes = bias_offset(w);

    if (is_quantised(w)) {
        scales = (size_t) quant_padded(w->n) * sizeof(float);
        w->scale = (float *) vlm_cuda_alloc(dev, scales);

        if (w->scale == NULL) {
            return -1;
        }
    }

    if (biased) {
        w->bytes += (size_t) w->n * vlm_dtype_size(dev->act);
        w->bias = (float *) vlm_cuda_alloc(dev,
                                           (size_t) w->n * sizeof(float));
        if (w->bias == NULL) {
            return -1;
        }
    }

    w->data = vlm_cuda_alloc(dev, w->bytes);

    return w->data != NULL ? 0 : -1;
}


void
vlm_cuda_weight_destroy(vlm_weight_t *w)
{
    if (w->device != NULL) {
        vlm_cuda_free(w->device, w->data);
        vlm_cuda_free(w->device, w->bias);
        vlm_cuda_free(w->device, w->scale);
    }

    memset(w, 0, sizeof(vlm_weight_t));
}


static cudaError_t
load_weight(vlm_device_t *dev, vlm_weight_t *w,
    const vlm_host_matrix_t *parts, const vlm_host_matrix_t *biases,
    int nparts)
{
    int      i;
    load_t   l;

    memset(&l, 0, sizeof(load_t));
    l.dev = dev;
    l.to = (char *) w->data;

    if (is_quantised(w)) {
        load_quantised(&l, w, parts, nparts);

    } else {
        for (i = 0; i < nparts; i++) {
            load_part(&l, w->dtype, &parts[i], parts[i].rows * w->k);
        }

        load_send(&l);
    }

    if (biases != NULL) {
        l.to = (char *) w->data + bias_offset(w);

        for (i = 0; i < nparts; i++) {
            load_part(&l, dev->act, &biases[i], parts[i].rows);
        }

        load_send(&l);
        l.to = (char *) w->bias;

        for (i = 0; i < nparts; i++) {
            load_part(&l, VLM_F32, &biases[i], parts[i].rows);
        }

        load_send(&l);
    }

    if (l.rc == cudaSuccess) {
        l.rc = cudaStreamSynchronize(dev->loader);
    }

    return l.rc;
}


/* whole rows land in memory that the device quantises them from */

static void
load_quantised(load_t *l, vlm_weight_t *w, const vlm_host_matrix_t *parts,
    int nparts)
{
    int      i;
    void    *raw;
    size_t   row_size;
    int64_t  first, most;

    row_size = (size_t) w->k * vlm_dtype_size(parts[0].dtype);
    most = (int64_t) (l->dev->staging_size / row_size);
    most = most < 1 ? 1 : most < w->n ? most : w->n;

    raw = vlm_cuda_alloc(l->dev, (size_t) most * row_size);
    if (raw == NULL) {
        l->rc = cudaErrorMemoryAllocation;
        return;
    }

    first = 0;

    for (i = 0; i < nparts; i++) {
        load_rows(l, w, &parts[i], first, raw, most);
        first += parts[i].rows;
    }

    if (l->rc == cudaSuccess) {
        l->rc = cudaStreamSynchronize(l->dev->loader);
    }

    vlm_cuda_free(l->dev, raw);
}


/* the rows of a part are the weight's from "first" on */

static void
load_rows(load_t *l, vlm_weight_t *w, const vlm_host_matrix_t *m,
    int64_t first, void *raw, int64_t most)
{
    size_t             size;
    int64_t            row, rows_to;
    vlm_queue_t        q;
    vlm_tensor_t       x;
    vlm_host_matrix_t  piece;

    memset(&q, 0, sizeof(vlm_queue_t));
    q.dev = l->dev;
    q.stream = l->dev->loader;

    x.data = raw;
    x.device = l->dev;
    x.dtype = m->dtype;
    x.cols = (int32_t) w->k;
    x.stride = w->k;

    size = vlm_dtype_size(m->dtype);
    piece = *m;

    for (row = 0; row < m->rows && l->rc == cudaSuccess; row += x.rows) {
        x.rows = m->rows - row < most ? m->rows - row : most;
        piece.data = (const char *) m->data + (size_t) (row * w->k) * size;

        l->to = (char *) raw;
        load_part(l, m->dtype, &piece, x.rows * w->k);
        load_send(l);

        if (l->rc != cudaSuccess) {
            return;
        }

        /* zeros behind the last one */

        rows_to = first + row + x.rows < w->n ? x.rows
                  : quant_padded(w->n) - first - row;

        vlm_cuda_quantise(&q, (char *) w->data + (size_t) (first + row)
                                                 * quant_padded(w->k),
                          w->scale + first + row, w->dtype, rows_to, &x,
                          "quantise");

        if (q.failed) {
            l->rc = cudaErrorLaunchFailure;
        }
    }
}


/* n values of a part, zeros where it has no data */

static void
load_part(load_t *l, vlm_dtype_t type, const vlm_host_matrix_t *m, int64_t n)
{
    size_t       size, room;
    int64_t      i, count;
    const char  *from;

    size = vlm_dtype_size(type);
    from = (const char *) m->data;

    for (i = 0; i < n && l->rc == cudaSuccess; i += count) {
        room = (l->dev->staging_size - l->used) / size;

        if (room == 0) {
            load_send(l);
            count = 0;
            continue;
        }

        count = n - i < (int64_t) room ? n - i : (int64_t) room;

        load_values(l, type, from, m->dtype, count);

        if (from != NULL) {
            from += count * vlm_dtype_size(m->dtype);
        }
    }
}


static void
load_values(load_t *l, vlm_dtype_t type, const char *from,
    vlm_dtype_t from_type, int64_t n)
{
    char     *to;
    float     v;
    size_t    size, from_size;
    bf16_t    b;
    int64_t   i;

    size = vlm_dtype_size(type);
    from_size = vlm_dtype_size(from_type);
    to = (char *) l->dev->staging[l->turn] + l->used;

    l->used += (size_t) n * size;

    if (from == NULL) {
        memset(to, 0, (size_t) n * size);
        return;
    }

    if (type == from_type) {
        memcpy(to, from, (size_t) n * size);
        return;
    }

    for (i = 0; i < n; i++) {
        v = host_value(from + (size_t) i * from_size, from_type);

        if (type == VLM_F32) {
            memcpy(to + i * sizeof(float), &v, sizeof(float));

        } else {
            from_f32(&b, v);
            memcpy(to + i * sizeof(bf16_t), &b, sizeof(bf16_t));
        }
    }
}


/* sends what is filled, and waits until the other half may be filled */

static void
load_send(load_t *l)
{
    vlm_device_t  *dev = l->dev;

    if (l->used == 0 || l->rc != cudaSuccess) {
        return;
    }

    l->rc = cudaMemcpyAsync(l->to, dev->staging[l->turn], l->used,
                            cudaMemcpyHostToDevice, dev->loader);

    if (l->rc == cudaSuccess) {
        l->rc = cudaEventRecord(dev->staged[l->turn], dev->loader);
    }

    l->to += l->used;
    l->used = 0;
    l->turn = !l->turn;

    /* an event that was never recorded is no reason to wait */

    if (l->rc == cudaSuccess) {
        l->rc = cudaEventSynchronize(dev->staged[l->turn]);
    }
}


static float
host_value(const char *p, vlm_dtype_t type)
{
    float   f;
    f16_t   h;
    bf16_t  b;

    switch (type) {

    case VLM_BF16:
        memcpy(&b, p, sizeof(bf16_t));
        return to_f32(b);

    case VLM_F16:
        memcpy(&h, p, sizeof(f16_t));
        return to_f32(h);

    default:
        memcpy(&f, p, sizeof(float));
        return f;
    }
}


VLM_CUDA_END
