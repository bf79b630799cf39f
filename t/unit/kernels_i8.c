
/*
 * Products with int8 weights: the bits of a plain loop that does what
 * kernels/ops.h says, for every set of instructions, number of threads and
 * rows.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/vmath.h"
#include "t/unit/lib/tap.h"


#define MAX_PARTS  3

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RANDOM     5            /* sanitizers are slow */
#else
#define RANDOM     25
#endif


typedef struct {
    const char           *name;
    int                   nparts;
    int64_t               n[MAX_PARTS];
    int64_t               k;
    int64_t               rows;
    vlm_dtype_t           dtype;
    int                   biased;
    vlm_weight_layout_t   layout;
    vlm_act_t             act;
    int                   residual;         /* 1: another tensor, 2: y */
    int                   gap;              /* of rows of x and y */
} case_t;

typedef struct {
    char                 *weights[MAX_PARTS];
    vlm_host_matrix_t     parts[MAX_PARTS];
    vlm_host_matrix_t     biases[MAX_PARTS];
    float                *bias;             /* [total] */
    float                *x;
    float                *residual;
    float                *expected;         /* as y, gaps and all */
    int64_t               total;            /* rows of all parts */
    int64_t               n;                /* columns of y */
    int64_t               x_stride;
    int64_t               y_stride;
} data_t;

typedef struct {
    const char              *name;
    vlm_isa_t                isa;
    int                      vnni;
    int                      threads;
    const vlm_cpu_linear_t  *linear;
} variant_t;


static const case_t  cases[] = {

    { "one of each", 1, { 1 }, 1, 1,
      VLM_F32, 0, VLM_WEIGHT_PLAIN, VLM_ACT_NONE, 0, 0 },
    { "no rows", 1, { 40 }, 20, 0,
      VLM_BF16, 1, VLM_WEIGHT_PLAIN, VLM_ACT_NONE, 1, 0 },
    { "one row, odd k", 1, { 33 }, 19, 1,
      VLM_BF16, 1, VLM_WEIGHT_PLAIN, VLM_ACT_NONE, 1, 3 },
    { "one row, long k", 1, { 100 }, 4303, 1,
      VLM_BF16, 1, VLM_WEIGHT_PLAIN, VLM_ACT_GELU_TANH, 2, 0 },
    { "q, k, v", 3, { 48, 16, 16 }, 96, 5,
      VLM_BF16, 1, VLM_WEIGHT_PLAIN, VLM_ACT_NONE, 0, 0 },
    { "q, k, v of odd sizes", 3, { 7, 31, 2 }, 61, 14,
      VLM_F16, 0, VLM_WEIGHT_PLAIN, VLM_ACT_NONE, 0, 1 },
    { "gated", 2, { 64, 64 }, 48, 3,
      VLM_BF16, 0, VLM_WEIGHT_GATED, VLM_ACT_SILU, 0, 0 },
    { "gated, odd, biases", 2, { 37, 37 }, 129, 15,
      VLM_F32, 1, VLM_WEIGHT_GATED, VLM_ACT_GELU_TANH, 1, 5 },
    { "gated, one column", 2, { 1, 1 }, 530, 29,
      VLM_F16, 1, VLM_WEIGHT_GATED, VLM_ACT_SILU, 2, 0 },
    { "two tiles", 1, { 65 }, 1030, 16,
      VLM_BF16, 1, VLM_WEIGHT_PLAIN, VLM_ACT_QUICK_GELU, 2, 7 },
    { "seven rows", 1, { 127 }, 255, 7,
      VLM_F32, 1, VLM_WEIGHT_PLAIN, VLM_ACT_GELU, 1, 0 },
    { "blocks of rows", 1, { 144 }, 72, 181,
      VLM_BF16, 1, VLM_WEIGHT_PLAIN, VLM_ACT_GELU_TANH, 0, 0 },
    { "slices", 1, { 40 }, 2078, 77,
      VLM_F16, 1, VLM_WEIGHT_PLAIN, VLM_ACT_NONE, 2, 1 },
    { "more rows than a chunk", 2, { 20, 20 }, 19, 1031,
      VLM_BF16, 1, VLM_WEIGHT_GATED, VLM_ACT_SILU, 1, 2 },
    { "the longest k", 1, { 3 }, VLM_I8_MAX_K, 2,
      VLM_BF16, 0, VLM_WEIGHT_PLAIN, VLM_ACT_NONE, 0, 0 }
};


static uint64_t  seed = 3;


static void *
make(size_t size)
{
    void  *p;

    p = malloc(size != 0 ? size : 1);
    if (p == NULL) {
        printf("Bail out! no memory\n");
        exit(1);
    }

    return p;
}


static int64_t
below(int64_t n)
{
    return (int64_t) ((tap_uniform(&seed) + 1) / 2 * n) % n;
}


/* numbers of a float type at an odd address; a row of zeros */

static char *
random_matrix(vlm_dtype_t dtype, int64_t rows, int64_t cols)
{
    char      *data;
    float      f;
    size_t     size;
    int64_t    i;
    uint16_t   h;

    size = vlm_dtype_size(dtype);
    data = make(rows * cols * size + 1);

    for (i = 0; i < rows * cols; i++) {
        f = i / cols == 5 ? 0 : tap_uniform(&seed) * (1 + i / cols % 3);

        if (dtype == VLM_F32) {
            memcpy(data + 1 + i * size, &f, size);
            continue;
        }

        h = dtype == VLM_BF16 ? vlm_f32_to_bf16(f) : vlm_f32_to_f16(f);
        memcpy(data + 1 + i * size, &h, size);
    }

    return data;
}


static float
element(const vlm_host_matrix_t *m, int64_t i)
{
    float        f;
    uint16_t     h;
    const char  *data = m->data;

    if (m->dtype == VLM_F32) {
        memcpy(&f, data + i * 4, 4);
        return f;
    }

    memcpy(&h, data + i * 2, 2);

    return m->dtype == VLM_BF16 ? vlm_bf16_to_f32(h) : vlm_f16_to_f32(h);
}


/* what is said in kernels/ops.h */

static float
quantise(const float *v, int64_t k, int32_t *q)
{
    int      finite;
    float    m;
    int64_t  i;

    m = 0;
    finite = 1;

    for (i = 0; i < k; i++) {
        finite &= isfinite(v[i]) != 0;
        m = fabsf(v[i]) > m ? fabsf(v[i]) : m;
    }

    for (i = 0; i < k; i++) {
        q[i] = finite && m >= 0x1p-100f ? (int32_t) rintf(v[i] * (127 / m))
                                        : 0;
    }

    if (!finite) {
        return NAN;
    }

    return m >= 0x1p-100f ? m / 127 : 0;
}


static float
activate(float x, vlm_act_t act)
{
    v16    v;
    float  y[VLM_LANES];

    v = v16_set1(x);

    switch (act) {

    case VLM_ACT_SILU:
        v = v16_silu(v);
        break;

    case VLM_ACT_GELU:
        v = v16_gelu(v);
        break;

    case VLM_ACT_GELU_TANH:
        v = v16_gelu_tanh(v);
        break;

    case VLM_ACT_QUICK_GELU:
        v = v16_quick_gelu(v);
        break;

    default:
        break;
    }

    v16_store(y, v);

    return y[0];
}


static void
expect(const case_t *c, data_t *d)
{
    int       part;
    float    *row, *w_scale, *y, x_scale;
    int32_t  *w, *x;
    int64_t   i, j, r, sum, n;

    row = make(c->k * sizeof(float));
    w = make(d->total * c->k * sizeof(int32_t));
    x = make(c->k * sizeof(int32_t));
    w_scale = make(d->total * sizeof(float));
    y = make(d->total * sizeof(float));

    n = 0;

    for (part = 0; part < c->nparts; part++) {

        for (j = 0; j < c->n[part]; j++, n++) {

            for (i = 0; i < c->k; i++) {
                row[i] = element(&d->parts[part], j * c->k + i);
            }

            w_scale[n] = quantise(row, c->k, w + n * c->k);
        }
    }

    for (r = 0; r < c->rows; r++) {
        x_scale = quantise(d->x + r * d->x_stride, c->k, x);

        for (j = 0; j < d->total; j++) {
            sum = 0;

            for (i = 0; i < c->k; i++) {
                sum += x[i] * w[j * c->k + i];
            }

            y[j] = fmaf((float) sum, x_scale * w_scale[j],
                        c->biased ? d->bias[j] : 0);
        }

        for (j = 0; j < d->n; j++) {
            y[j] = activate(y[j], c->act);

            if (c->layout == VLM_WEIGHT_GATED) {
                y[j] *= y[j + d->n];
            }

            if (c->residual != 0) {
                y[j] += d->residual[r * d->y_stride + j];
            }

            d->expected[r * d->y_stride + j] = y[j];
        }
    }

    free(row);
    free(w);
    free(x);
    free(w_scale);
    free(y);
}


/* x has rows of zeros and of what is hard to quantise */

static void
random_x(const case_t *c, data_t *d)
{
    float    *x, scale;
    int64_t   i, r;

    for (r = 0; r < c->rows; r++) {
        x = d->x + r * d->x_stride;
        scale = r % 16 == 3 ? 1e-35f : r % 16 == 7 ? 3e38f : 2;

        for (i = 0; i < d->x_stride; i++) {
            x[i] = r % 16 == 5 ? 0 : tap_uniform(&seed) * scale;
        }

        i = below(c->k);

        if (r % 16 == 9) {
            x[i] = NAN;

        } else if (r % 16 == 11) {
            x[i] = INFINITY;

        } else if (r % 16 == 12) {
            x[i] = -1e30f;

        } else if (r % 16 == 2) {
            x[i] = -127.0f;
        }
    }
}


static void
setup(const case_t *c, data_t *d)
{
    int      i;
    int64_t  j;

    memset(d, 0, sizeof(data_t));

    for (i = 0; i < c->nparts; i++) {
        d->total += c->n[i];
    }

    d->bias = make(d->total * sizeof(float));

    for (j = 0; j < d->total; j++) {
        d->bias[j] = tap_uniform(&seed);
    }

    d->total = 0;

    for (i = 0; i < c->nparts; i++) {
        d->weights[i] = random_matrix(c->dtype, c->n[i], c->k);
        d->parts[i].data = d->weights[i] + 1;
        d->parts[i].dtype = c->dtype;
        d->parts[i].rows = c->n[i];
        d->parts[i].cols = c->k;
        d->biases[i].data = d->bias + d->total;
        d->biases[i].dtype = VLM_F32;
        d->biases[i].rows = 1;
        d->biases[i].cols = c->n[i];
        d->total += c->n[i];
    }

    d->n = c->layout == VLM_WEIGHT_GATED ? d->total / 2 : d->total;
    d->x_stride = c->k + c->gap;
    d->y_stride = d->n + c->gap;

    d->x = make(c->rows * d->x_stride * sizeof(float));
    d->residual = make(c->rows * d->y_stride * sizeof(float));
    d->expected = make(c->rows * d->y_stride * sizeof(float));

    random_x(c, d);

    for (j = 0; j < c->rows * d->y_stride; j++) {
        d->residual[j] = tap_uniform(&seed);
        d->expected[j] = d->residual[j];
    }

    expect(c, d);
}


static void
teardown(data_t *d)
{
    int  i;

    for (i = 0; i < MAX_PARTS; i++) {
        free(d->weights[i]);
    }

    free(d->bias);
    free(d->x);
    free(d->residual);
    free(d->expected);
}


/* rows in batches whose size grows by "grow" from "n" on */

static void
run(const vlm_ops_t *ops, vlm_queue_t *q, const case_t *c, const data_t *d,
    const vlm_weight_t *w, float *y, int64_t n, int grow)
{
    int64_t       first;
    vlm_tensor_t  x_t, y_t, r_t, x, r, to;

    memcpy(y, d->residual, c->rows * d->y_stride * sizeof(float));

    memset(&x_t, 0, sizeof(vlm_tensor_t));
    x_t.data = d->x;
    x_t.dtype = VLM_F32;
    x_t.cols = (int32_t) c->k;
    x_t.rows = c->rows;
    x_t.stride = d->x_stride;

    y_t = x_t;
    y_t.data = y;
    y_t.cols = (int32_t) d->n;
    y_t.stride = d->y_stride;

    r_t = y_t;
    r_t.data = c->residual == 1 ? d->residual : y;

    for (first = 0; first < c->rows || first == 0; first += n, n += grow) {
        n = n < c->rows - first ? n : c->rows - first;

        x = vlm_rows(&x_t, first, n);
        to = vlm_rows(&y_t, first, n);
        r = vlm_rows(&r_t, first, n);

        ops->linear(q, &to, &x, w, c->act, c->residual != 0 ? &r : NULL);

        if (n == 0) {
            break;
        }
    }
}


static int
same(const case_t *c, const data_t *d, const float *y)
{
    int64_t  i;

    for (i = 0; i < c->rows * d->y_stride; i++) {

        if (vlm_f32_bits(y[i]) != vlm_f32_bits(d->expected[i])
            && !(isnan(y[i]) && isnan(d->expected[i])))
        {
            tap_diag("row %d, column %d: %.9g, expected %.9g",
                     (int) (i / d->y_stride), (int) (i % d->y_stride), y[i],
                     d->expected[i]);
            return 0;
        }
    }

    return 1;
}


static void
check_variant(const case_t *c, const data_t *d, const variant_t *v)
{
    int               rc;
    char              err[256] = "";
    float            *y;
    vlm_queue_t      *q;
    vlm_device_t     *dev;
    vlm_weight_t      w;
    const vlm_ops_t  *ops;

    dev = vlm_cpu_device_isa(v->isa, v->threads, &ops, err, sizeof(err));
    if (!tap_ok(dev != NULL, "%s: a device %s", v->name, err)) {
        return;
    }

    dev->linear_i8 = v->linear;

    q = ops->queue_create(dev, 0);
    y = make(c->rows * d->y_stride * sizeof(float));

    rc = ops->weight_create(dev, &w, c->layout, VLM_QUANT_INT8, d->parts,
                            c->biased ? d->biases : NULL, c->nparts, err,
                            sizeof(err));
    tap_is(rc, 0, "%s: weight %s", c->name, err);
    tap_ok(w.dtype == VLM_I8 && w.scale != NULL && w.bytes != 0,
           "%s: int8", c->name);

    run(ops, q, c, d, &w, y, c->rows, 0);
    tap_ok(same(c, d, y), "%s: %s, %d threads", c->name, v->name, v->threads);

    run(ops, q, c, d, &w, y, 1, 0);
    tap_ok(same(c, d, y), "%s: row by row", c->name);

    run(ops, q, c, d, &w, y, 1, 1);
    tap_ok(same(c, d, y), "%s: in batches", c->name);

    tap_is(ops->sync(q, err, sizeof(err)), 0, "%s: no failure", c->name);

    ops->weight_destroy(&w);
    tap_ok(w.data == NULL && w.bias == NULL && w.scale == NULL,
           "%s: destroyed", c->name);

    ops->queue_destroy(q);
    vlm_cpu_device_destroy(dev);
    free(y);
}


static void
check_case(const case_t *c)
{
    size_t                  i;
    data_t                  d;
    static const variant_t  variants[] = {
        { "scalar", VLM_CPU_SCALAR, 0, 2, &vlm_cpu_linear_i8_scalar },
#if defined(__x86_64__)
        { "avx2", VLM_CPU_AVX2, 0, 1, &vlm_cpu_linear_i8_avx2 },
        { "avx2", VLM_CPU_AVX2, 0, 3, &vlm_cpu_linear_i8_avx2 },
        { "avx512", VLM_CPU_AVX512, 0, 1, &vlm_cpu_linear_i8_avx512 },
        { "avx512", VLM_CPU_AVX512, 0, 3, &vlm_cpu_linear_i8_avx512 },
        { "vnni", VLM_CPU_AVX512, 1, 1, &vlm_cpu_linear_i8_vnni },
        { "vnni", VLM_CPU_AVX512, 1, 3, &vlm_cpu_linear_i8_vnni },
#endif
    };

    setup(c, &d);

    for (i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {

        if (!vlm_cpu_has_isa(variants[i].isa)
            || (variants[i].vnni && !vlm_cpu_has_vnni()))
        {
            tap_skip("%s: no %s here", c->name, variants[i].name);
            continue;
        }

        check_variant(c, &d, &variants[i]);
    }

    teardown(&d);
}


static void
check_random(int n)
{
    char                      name[32];
    case_t                    c;
    static const vlm_dtype_t  dtypes[] = { VLM_F32, VLM_BF16, VLM_F16 };

    snprintf(name, sizeof(name), "random %d", n);
    memset(&c, 0, sizeof(case_t));

    c.name = name;
    c.layout = below(2) == 0 ? VLM_WEIGHT_PLAIN : VLM_WEIGHT_GATED;
    c.nparts = c.layout == VLM_WEIGHT_GATED ? 2 : 1 + (int) below(3);
    c.n[0] = 1 + below(70);
    c.n[1] = c.layout == VLM_WEIGHT_GATED ? c.n[0] : 1 + below(40);
    c.n[2] = 1 + below(40);
    c.k = 1 + below(below(2) == 0 ? 40 : 1500);
    c.rows = 1 + below(below(3) == 0 ? 300 : 40);
    c.dtype = dtypes[below(3)];
    c.biased = (int) below(2);
    c.act = (vlm_act_t) below(5);
    c.residual = (int) below(3);
    c.gap = (int) below(4);

    check_case(&c);
}


/* sums at their limits: all of one sign, by the longest k there may be */

static void
check_limits(void)
{
    char               *data, err[256];
    float              *x, y[2][2], sum;
    int64_t             i;
    uint16_t            h;
    vlm_queue_t        *q;
    vlm_weight_t        w;
    vlm_tensor_t        x_t, y_t;
    vlm_device_t       *dev;
    const vlm_ops_t    *ops;
    vlm_host_matrix_t   m;

    data = make((VLM_I8_MAX_K + 1) * 2 * sizeof(h));
    x = make(VLM_I8_MAX_K * 2 * sizeof(float));

    for (i = 0; i < VLM_I8_MAX_K; i++) {
        h = vlm_f32_to_bf16(1);
        memcpy(data + i * 2, &h, 2);
        h = vlm_f32_to_bf16(-1);
        memcpy(data + (i + VLM_I8_MAX_K) * 2, &h, 2);
        x[i] = 1;
        x[i + VLM_I8_MAX_K] = -1;
    }

    memset(&m, 0, sizeof(m));
    m.data = data;
    m.dtype = VLM_BF16;
    m.rows = 2;
    m.cols = VLM_I8_MAX_K;

    memset(&x_t, 0, sizeof(x_t));
    x_t.data = x;
    x_t.dtype = VLM_F32;
    x_t.rows = 2;
    x_t.cols = VLM_I8_MAX_K;
    x_t.stride = VLM_I8_MAX_K;

    y_t = x_t;
    y_t.data = y;
    y_t.cols = 2;
    y_t.stride = 2;

    sum = (float) (127 * 127 * VLM_I8_MAX_K) * ((1.0f / 127) * (1.0f / 127));

    dev = vlm_cpu_device(1, &ops, err, sizeof(err));
    q = ops->queue_create(dev, 0);

    tap_is(ops->weight_create(dev, &w, VLM_WEIGHT_PLAIN, VLM_QUANT_INT8, &m,
                              NULL, 1, err, sizeof(err)), 0, "the longest k");
    ops->linear(q, &y_t, &x_t, &w, VLM_ACT_NONE, NULL);
    tap_is(ops->sync(q, err, sizeof(err)), 0, "a product of it");
    tap_ok(y[0][0] == sum && y[0][1] == -sum && y[1][0] == -sum
           && y[1][1] == sum, "is exact");
    ops->weight_destroy(&w);

    m.rows = 1;
    m.cols = VLM_I8_MAX_K + 1;
    tap_is(ops->weight_create(dev, &w, VLM_WEIGHT_PLAIN, VLM_QUANT_INT8, &m,
                              NULL, 1, err, sizeof(err)), -1, "one more");
    tap_str(err, "int8 sums of 66312 products may exceed 32 bits, 66311 are "
            "safe", "says so");

    m.cols = 4;
    tap_is(ops->weight_create(dev, &w, VLM_WEIGHT_PLAIN, VLM_QUANT_FP8, &m,
                              NULL, 1, err, sizeof(err)), -1, "fp8");
    tap_str(err, "the CPU device has no fp8 weights", "says so");

    ops->queue_destroy(q);
    vlm_cpu_device_destroy(dev);
    free(data);
    free(x);
}


int
main(void)
{
    int     n;
    size_t  i;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        check_case(&cases[i]);
    }

    for (n = 0; n < RANDOM; n++) {
        check_random(n);
    }

    check_limits();

    return tap_done();
}
