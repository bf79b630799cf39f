
/*
 * Products: right within float32's error against a plain loop in double, and
 * the same bits on every instruction set, for every number of rows and
 * threads.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"
#include "t/unit/lib/tap.h"


#define MAX_PARTS  3


typedef struct {
    const char           *name;
    int                   nparts;
    int64_t               n[MAX_PARTS];
    int64_t               k;
    int64_t               rows;
    vlm_dtype_t           dtype;
    vlm_dtype_t           bias_dtype;
    int                   bias;             /* a bit for each part */
    vlm_weight_layout_t   layout;
    vlm_act_t             act;
    int                   residual;         /* 1: another tensor, 2: y */
    int                   gap;              /* of rows of x and y */
} case_t;

typedef struct {
    char                 *weights[MAX_PARTS];
    char                 *biases[MAX_PARTS];
    vlm_host_matrix_t     parts[MAX_PARTS];
    vlm_host_matrix_t     bias_parts[MAX_PARTS];
    float                *x;
    float                *residual;
    float                *first;            /* what the first device gave */
    double               *expected;
    double               *tolerance;
    int64_t               n;                /* columns of y */
    int64_t               x_stride;
    int64_t               y_stride;
} data_t;


static const case_t  cases[] = {

    { "one output", 1, { 1 }, 1, 1,
      VLM_F32, VLM_F32, 0, VLM_WEIGHT_PLAIN, VLM_ACT_NONE, 0, 0 },
    { "one row, k 17", 1, { 33 }, 17, 1,
      VLM_BF16, VLM_BF16, 1, VLM_WEIGHT_PLAIN, VLM_ACT_NONE, 1, 3 },
    { "one row, long k", 1, { 100 }, 4304, 1,
      VLM_BF16, VLM_F32, 1, VLM_WEIGHT_PLAIN, VLM_ACT_GELU_TANH, 2, 0 },
    { "q, k, v", 3, { 48, 16, 16 }, 96, 5,
      VLM_BF16, VLM_BF16, 7, VLM_WEIGHT_PLAIN, VLM_ACT_NONE, 0, 0 },
    { "q, k, v of odd sizes, one bias", 3, { 7, 31, 2 }, 61, 14,
      VLM_F16, VLM_F16, 2, VLM_WEIGHT_PLAIN, VLM_ACT_NONE, 0, 1 },
    { "gated", 2, { 64, 64 }, 48, 3,
      VLM_BF16, VLM_BF16, 0, VLM_WEIGHT_GATED, VLM_ACT_SILU, 0, 0 },
    { "gated, odd, biases", 2, { 37, 37 }, 129, 15,
      VLM_F32, VLM_F32, 3, VLM_WEIGHT_GATED, VLM_ACT_GELU_TANH, 1, 5 },
    { "gated, one column", 2, { 1, 1 }, 530, 29,
      VLM_F16, VLM_F32, 2, VLM_WEIGHT_GATED, VLM_ACT_SILU, 2, 0 },
    { "two tiles", 1, { 65 }, 1030, 16,
      VLM_BF16, VLM_F16, 1, VLM_WEIGHT_PLAIN, VLM_ACT_QUICK_GELU, 2, 7 },
    { "seven rows, float32", 1, { 127 }, 255, 7,
      VLM_F32, VLM_BF16, 1, VLM_WEIGHT_PLAIN, VLM_ACT_GELU, 1, 0 },
    { "blocks of rows", 1, { 144 }, 72, 181,
      VLM_BF16, VLM_BF16, 1, VLM_WEIGHT_PLAIN, VLM_ACT_GELU_TANH, 0, 0 },
    { "long k, some rows", 1, { 40 }, 1076, 46,
      VLM_F16, VLM_F32, 1, VLM_WEIGHT_PLAIN, VLM_ACT_NONE, 2, 1 },
    { "more rows than a chunk", 2, { 20, 20 }, 19, 1031,
      VLM_BF16, VLM_F32, 3, VLM_WEIGHT_GATED, VLM_ACT_SILU, 1, 2 },
    { "float32 in slices", 1, { 200 }, 600, 31,
      VLM_F32, VLM_F32, 0, VLM_WEIGHT_PLAIN, VLM_ACT_NONE, 1, 0 }
};

static const vlm_isa_t  all_isas[] = {
    VLM_CPU_SCALAR, VLM_CPU_AVX2, VLM_CPU_AVX512
};

static const char  *isa_names[] = { "scalar", "avx2", "avx512" };


static uint64_t  seed = 1;


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


/* numbers of a float type at an odd address */

static char *
random_matrix(vlm_dtype_t dtype, int64_t count, float scale)
{
    char      *data;
    float      f;
    size_t     size;
    int64_t    i;
    uint16_t   h;

    size = vlm_dtype_size(dtype);
    data = make(count * size + 1);

    for (i = 0; i < count; i++) {
        f = tap_uniform(&seed) * scale;

        if (dtype == VLM_F32) {
            memcpy(data + 1 + i * size, &f, size);
            continue;
        }

        h = dtype == VLM_BF16 ? vlm_f32_to_bf16(f) : vlm_f32_to_f16(f);
        memcpy(data + 1 + i * size, &h, size);
    }

    return data;
}


static double
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


static double
activate(double x, vlm_act_t act)
{
    switch (act) {

    case VLM_ACT_SILU:
        return x / (1 + exp(-x));

    case VLM_ACT_GELU:
        return 0.5 * x * (1 + erf(x * M_SQRT1_2));

    case VLM_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI)
                                   * (x + 0.044715 * x * x * x)));

    case VLM_ACT_QUICK_GELU:
        return x / (1 + exp(-1.702 * x));

    default:
        return x;
    }
}


/* a product's value, and the sum of the magnitudes that went into it */

static double
product(const case_t *c, const data_t *d, int64_t row, int64_t column,
    double *magnitude)
{
    int            part;
    double         sum, term;
    int64_t        i;
    const float   *x;

    for (part = 0; column >= c->n[part]; part++) {
        column -= c->n[part];
    }

    x = d->x + row * d->x_stride;
    sum = 0;

    if (d->bias_parts[part].data != NULL) {
        sum = element(&d->bias_parts[part], column);
    }

    *magnitude = fabs(sum);

    for (i = 0; i < c->k; i++) {
        term = x[i] * element(&d->parts[part], column * c->k + i);
        sum += term;
        *magnitude += fabs(term);
    }

    return sum;
}


static void
expect(const case_t *c, data_t *d)
{
    double   v, u, m, mu, eps;
    int64_t  i, j;

    eps = (sqrt((double) c->k) + 8) * 0x1p-24;

    for (i = 0; i < c->rows; i++) {

        for (j = 0; j < d->n; j++) {
            v = product(c, d, i, j, &m);

            if (c->layout == VLM_WEIGHT_GATED) {
                u = product(c, d, i, j + d->n, &mu);
                m = 1.2 * m * fabs(u) + mu * (fabs(v) + 1);
                v = activate(v, c->act) * u;

            } else {
                v = activate(v, c->act);
                m = 1.2 * m;
            }

            if (c->residual != 0) {
                v += d->residual[i * d->y_stride + j];
                m += fabs(v);
            }

            d->expected[i * d->n + j] = v;
            d->tolerance[i * d->n + j] = m * eps;
        }
    }
}


static void
setup(const case_t *c, data_t *d)
{
    int      i;
    int64_t  j, total;

    memset(d, 0, sizeof(data_t));

    total = 0;

    for (i = 0; i < c->nparts; i++) {
        total += c->n[i];
        d->weights[i] = random_matrix(c->dtype, c->n[i] * c->k,
                                      2 / sqrtf((float) c->k));
        d->parts[i].data = d->weights[i] + 1;
        d->parts[i].dtype = c->dtype;
        d->parts[i].rows = c->n[i];
        d->parts[i].cols = c->k;

        if (c->bias >> i & 1) {
            d->biases[i] = random_matrix(c->bias_dtype, c->n[i], 1);
            d->bias_parts[i].data = d->biases[i] + 1;
            d->bias_parts[i].dtype = c->bias_dtype;
            d->bias_parts[i].rows = 1;
            d->bias_parts[i].cols = c->n[i];
        }
    }

    d->n = c->layout == VLM_WEIGHT_GATED ? total / 2 : total;
    d->x_stride = c->k + c->gap;
    d->y_stride = d->n + c->gap;

    d->x = make(c->rows * d->x_stride * sizeof(float));
    d->residual = make(c->rows * d->y_stride * sizeof(float));
    d->first = make(c->rows * d->y_stride * sizeof(float));
    d->expected = make(c->rows * d->n * sizeof(double));
    d->tolerance = make(c->rows * d->n * sizeof(double));

    for (j = 0; j < c->rows * d->x_stride; j++) {
        d->x[j] = tap_uniform(&seed) * 2;
    }

    for (j = 0; j < c->rows * d->y_stride; j++) {
        d->residual[j] = tap_uniform(&seed);
    }

    expect(c, d);
}


static void
teardown(data_t *d)
{
    int  i;

    for (i = 0; i < MAX_PARTS; i++) {
        free(d->weights[i]);
        free(d->biases[i]);
    }

    free(d->x);
    free(d->residual);
    free(d->first);
    free(d->expected);
    free(d->tolerance);
}


/* y of rows [first, first + n), the gaps between its rows kept */

static void
run_rows(const vlm_ops_t *ops, vlm_queue_t *q, const case_t *c,
    const data_t *d, const vlm_weight_t *w, float *y, int64_t first,
    int64_t n)
{
    vlm_tensor_t  x_t, y_t, r_t;

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

    if (c->residual == 1) {
        r_t.data = d->residual;
    }

    x_t = vlm_rows(&x_t, first, n);
    y_t = vlm_rows(&y_t, first, n);
    r_t = vlm_rows(&r_t, first, n);

    ops->linear(q, &y_t, &x_t, w, c->act, c->residual != 0 ? &r_t : NULL);
}


static void
start(const case_t *c, const data_t *d, float *y)
{
    memcpy(y, d->residual, c->rows * d->y_stride * sizeof(float));
}


static int
near(const case_t *c, const data_t *d, const float *y)
{
    double   error;
    int64_t  i, j;

    for (i = 0; i < c->rows; i++) {

        for (j = 0; j < d->n; j++) {
            error = fabs(y[i * d->y_stride + j] - d->expected[i * d->n + j]);

            if (!(error <= d->tolerance[i * d->n + j])) {
                tap_diag("row %d, column %d: %.9g, expected %.9g +- %.2g",
                         (int) i, (int) j, y[i * d->y_stride + j],
                         d->expected[i * d->n + j],
                         d->tolerance[i * d->n + j]);
                return 0;
            }
        }

        for (j = d->n; j < d->y_stride; j++) {

            if (y[i * d->y_stride + j] != d->residual[i * d->y_stride + j]) {
                tap_diag("row %d: wrote beyond its end", (int) i);
                return 0;
            }
        }
    }

    return 1;
}


static int
same(const case_t *c, const data_t *d, const float *y)
{
    return memcmp(y, d->first, c->rows * d->y_stride * sizeof(float)) == 0;
}


/* the rows again: one by one, and in batches of growing size */

static void
run_batches(const vlm_ops_t *ops, vlm_queue_t *q, const case_t *c,
    const data_t *d, const vlm_weight_t *w, float *y, int grow)
{
    int64_t  first, n;

    start(c, d, y);
    n = 1;

    for (first = 0; first < c->rows; first += n, n += grow) {

        if (n > c->rows - first) {
            n = c->rows - first;
        }

        run_rows(ops, q, c, d, w, y, first, n);
    }
}


static void
check_device(const case_t *c, data_t *d, vlm_isa_t isa, int nthreads,
    int *first)
{
    int               rc;
    char              err[256] = "";
    float            *y;
    vlm_queue_t      *q;
    vlm_device_t     *dev;
    vlm_weight_t      w;
    const vlm_ops_t  *ops;

    dev = vlm_cpu_device_isa(isa, nthreads, &ops, err, sizeof(err));
    if (!tap_ok(dev != NULL, "%s: a device of %d threads %s",
                isa_names[isa], nthreads, err))
    {
        return;
    }

    q = ops->queue_create(dev, 0);
    y = make(c->rows * d->y_stride * sizeof(float));

    rc = ops->weight_create(dev, &w, c->layout, VLM_QUANT_NONE, d->parts,
                            c->bias ? d->bias_parts : NULL, c->nparts, err,
                            sizeof(err));
    tap_is(rc, 0, "%s: weight %s", c->name, err);

    start(c, d, y);
    run_rows(ops, q, c, d, &w, y, 0, c->rows);
    rc = ops->sync(q, err, sizeof(err));
    tap_is(rc, 0, "%s: %s, %d threads %s", c->name, ops->name, nthreads, err);

    if (*first) {
        tap_ok(near(c, d, y), "%s: right", c->name);
        memcpy(d->first, y, c->rows * d->y_stride * sizeof(float));
        *first = 0;

    } else {
        tap_ok(same(c, d, y), "%s: the same bits", c->name);
    }

    if (isa != VLM_CPU_SCALAR || c->rows < 100) {
        run_batches(ops, q, c, d, &w, y, 0);
        tap_ok(same(c, d, y), "%s: the same bits row by row", c->name);
    }

    run_batches(ops, q, c, d, &w, y, 1);
    tap_ok(same(c, d, y), "%s: the same bits in batches", c->name);

    ops->weight_destroy(&w);
    tap_ok(w.data == NULL && w.bias == NULL, "%s: destroyed", c->name);

    ops->queue_destroy(q);
    vlm_cpu_device_destroy(dev);
    free(y);
}


static void
check_case(const case_t *c)
{
    int     i, first, nthreads;
    data_t  d;

    setup(c, &d);
    first = 1;

    for (i = 0; i < 3; i++) {

        if (!vlm_cpu_has_isa(all_isas[i])) {
            tap_skip("%s: no %s here", c->name, isa_names[i]);
            continue;
        }

        for (nthreads = 1; nthreads <= 3; nthreads++) {

            if (all_isas[i] == VLM_CPU_SCALAR && nthreads == 2) {
                continue;
            }

            check_device(c, &d, all_isas[i], nthreads, &first);
        }
    }

    teardown(&d);
}


/* rows of an embedding are exact; an id that it has not is refused */

static void
check_embed(vlm_dtype_t dtype)
{
    int                 i, j, bad;
    char                err[256], *data;
    float               y[5][70];
    int32_t             ids[5] = { 0, 99, 31, 32, 16 };
    vlm_step_t          step;
    vlm_queue_t        *q;
    vlm_weight_t        w;
    vlm_device_t       *dev;
    vlm_tensor_t        t;
    const vlm_ops_t    *ops;
    vlm_host_matrix_t   m;

    data = random_matrix(dtype, 100 * 70, 1);

    memset(&m, 0, sizeof(vlm_host_matrix_t));
    m.data = data + 1;
    m.dtype = dtype;
    m.rows = 100;
    m.cols = 70;

    memset(&step, 0, sizeof(vlm_step_t));
    step.host.nrows = 5;
    step.host.ids = ids;

    memset(&t, 0, sizeof(vlm_tensor_t));
    t.data = y;
    t.dtype = VLM_F32;
    t.rows = 5;
    t.cols = 70;
    t.stride = 70;

    dev = vlm_cpu_device_isa(VLM_CPU_SCALAR, 2, &ops, err, sizeof(err));
    q = ops->queue_create(dev, 0);
    tap_is(ops->weight_create(dev, &w, VLM_WEIGHT_PLAIN, VLM_QUANT_NONE,
                              &m, NULL, 1, err,
                              sizeof(err)), 0, "embedding of type %d", dtype);

    ops->embed(q, &t, &w, &step);
    tap_is(ops->sync(q, err, sizeof(err)), 0, "rows of it");

    bad = 0;

    for (i = 0; i < 5; i++) {

        for (j = 0; j < 70; j++) {
            bad += y[i][j] != element(&m, ids[i] * 70 + j);
        }
    }

    tap_is(bad, 0, "are exact");

    ids[3] = 100;
    ops->embed(q, &t, &w, &step);
    tap_is(ops->sync(q, err, sizeof(err)), -1, "an id too large");
    tap_str(err, "embed: id 100 of row 3, the embedding has 100 rows",
            "says so");

    ids[3] = -1;
    ops->embed(q, &t, &w, &step);
    tap_is(ops->sync(q, err, sizeof(err)), -1, "a negative one");

    t.cols = 69;
    ops->linear(q, &t, &t, &w, VLM_ACT_NONE, NULL);
    tap_is(ops->sync(q, err, sizeof(err)), -1, "shapes that differ");
    tap_str(err, "linear: [5, 69] by weight [100, 70] to [5, 69]", "says so");

    ops->weight_destroy(&w);
    ops->queue_destroy(q);
    vlm_cpu_device_destroy(dev);
    free(data);
}


static void
check_refused(void)
{
    char                err[256];
    uint16_t            data[64] = { 0 };
    vlm_device_t       *dev;
    vlm_weight_t        w;
    const vlm_ops_t    *ops;
    vlm_host_matrix_t   parts[2];

    dev = vlm_cpu_device_isa(VLM_CPU_SCALAR, 1, &ops, err, sizeof(err));

    parts[0].data = data;
    parts[0].dtype = VLM_BF16;
    parts[0].rows = 8;
    parts[0].cols = 4;
    parts[1] = parts[0];
    parts[1].rows = 7;

    tap_is(ops->weight_create(dev, &w, VLM_WEIGHT_GATED, VLM_QUANT_NONE,
                              parts, NULL, 2, err,
                              sizeof(err)), -1, "refused: %s", "gate, up");
    tap_is(ops->weight_create(dev, &w, VLM_WEIGHT_GATED, VLM_QUANT_NONE,
                              parts, NULL, 1, err,
                              sizeof(err)), -1, "refused: one part");

    parts[1].cols = 5;
    tap_is(ops->weight_create(dev, &w, VLM_WEIGHT_PLAIN, VLM_QUANT_NONE,
                              parts, NULL, 2, err,
                              sizeof(err)), -1, "refused: columns");
    tap_str(err, "part 1 of a weight has 5 columns of type 1, part 0 has 4 of "
            "type 1", "says so");

    parts[1] = parts[0];
    tap_is(ops->weight_create(dev, &w, VLM_WEIGHT_PLAIN, VLM_QUANT_NONE,
                              parts, parts, 2, err,
                              sizeof(err)), -1, "refused: %s", "a bias");
    tap_str(err, "bias 0 of a weight: 8 x 4 of type 1 for 8 outputs",
            "says so");

    parts[0].rows = 0;
    tap_is(ops->weight_create(dev, &w, VLM_WEIGHT_PLAIN, VLM_QUANT_NONE,
                              parts, NULL, 1, err,
                              sizeof(err)), -1, "refused: no rows");

    vlm_cpu_device_destroy(dev);
}


int
main(void)
{
    size_t  i;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        check_case(&cases[i]);
    }

    check_embed(VLM_F32);
    check_embed(VLM_BF16);
    check_embed(VLM_F16);
    check_refused();

    return tap_done();
}
