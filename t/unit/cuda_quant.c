
/*
 * Quantised weights of the CUDA sources, on the shim: every code of E4M3,
 * rows of all kinds, and products against plain C and the CPU device: those
 * of integers to the last bit, in batches of any size.
 */

#include <float.h>

#include "t/unit/cuda_rig.h"


#define MANY    (1 << 16)           /* more than one piece of an upload */

/*
 * FP8, relative to 1: sums of float32 in another order; a chip's, which add
 * 32 products at a time, aligned to the greatest, with 13 bits of it.
 */
#define F8_NEAR  2e-6
#define F8_CHIP  1e-3


typedef struct {
    int                  rows, n, k;
    vlm_weight_layout_t  layout;
    vlm_act_t            act;
    int                  bias;
    int                  residual;      /* 2: y itself */
    int                  f32_out;
    vlm_dtype_t          dtype;         /* of the checkpoint */
} case_t;

/* a matrix in plain C: values of codes, [rows, k] */

typedef struct {
    float               *q;
    float               *scale;
} plain_t;


/* ---- plain C ---- */

static float
f8_value(int code)
{
    int    e = code >> 3 & 15, m = code & 7;
    float  v;

    v = e == 0 ? ldexpf((float) m, -9) : ldexpf((float) (8 + m), e - 10);

    return code & 0x80 ? -v : v;
}


/* the nearest of all codes but the NaNs, the even one of two */

static float
f8_nearest(float x)
{
    int    code, best;
    float  d, least;

    best = 0;
    least = INFINITY;

    for (code = 0; code < 0x7f; code++) {
        d = fabsf(fabsf(x) - f8_value(code));

        if (d < least || (d == least && code % 2 == 0)) {
            least = d;
            best = code;
        }
    }

    return copysignf(f8_value(best), x);
}


static plain_t
plain_quantise(const float *x, int rows, int k, vlm_quant_t quant)
{
    int      r, i, bad;
    float    m, most, factor;
    plain_t  p;

    p.q = rig_memory((size_t) rows * k * sizeof(float));
    p.scale = rig_memory(rows * sizeof(float));
    most = quant == VLM_QUANT_INT8 ? 127.0f : 448.0f;

    for (r = 0; r < rows; r++) {
        m = 0;
        bad = 0;

        for (i = 0; i < k; i++) {
            m = fmaxf(m, fabsf(x[r * k + i]));
            bad |= !isfinite(x[r * k + i]);
        }

        factor = most / m;
        p.scale[r] = bad ? NAN : m < 0x1p-100f ? 0.0f : m / most;

        for (i = 0; i < k; i++) {
            p.q[r * k + i] = bad || m < 0x1p-100f ? 0.0f
                             : quant == VLM_QUANT_INT8
                             ? rintf(x[r * k + i] * factor)
                             : f8_nearest(x[r * k + i] * factor);
        }
    }

    return p;
}


static void
plain_free(plain_t *p)
{
    free(p->q);
    free(p->scale);
}


static float
plain_activate(float x, vlm_act_t act)
{
    switch (act) {

    case VLM_ACT_SILU:
        return x / (1.0f + expf(-x));

    case VLM_ACT_GELU:
        return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));

    case VLM_ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456080286536f
                                        * (x + 0.044715f * x * x * x)));

    case VLM_ACT_QUICK_GELU:
        return x / (1.0f + expf(-1.702f * x));

    default:
        return x;
    }
}


/* exact for integers; codes of E4M3 have sums in double */

static float
plain_product(const plain_t *x, const plain_t *w, const float *bias, int r,
    int n, int k)
{
    int     i;
    double  sum;

    sum = 0;

    for (i = 0; i < k; i++) {
        sum += (double) x->q[r * k + i] * w->q[n * k + i];
    }

    return fmaf((float) sum, x->scale[r] * w->scale[n],
                bias != NULL ? bias[n] : 0.0f);
}


/* ---- weights ---- */

static float
known_f16(float x)
{
    return x == 0.0f ? 0.0f : copysignf(fabsf(x) > 0.7f ? 1.0f : 0.5f, x);
}


/* as a checkpoint holds it; x becomes what it holds */

static void *
stored(float *x, size_t n, vlm_dtype_t dtype)
{
    size_t     i;
    void      *raw;
    uint16_t  *h;

    raw = rig_memory(n * sizeof(float));

    if (dtype == VLM_F32) {
        memcpy(raw, x, n * sizeof(float));
        return raw;
    }

    h = raw;

    for (i = 0; i < n; i++) {

        if (dtype == VLM_BF16) {
            h[i] = rig_bf16(x[i]);
            x[i] = rig_from_bf16(h[i]);
            continue;
        }

        x[i] = known_f16(x[i]);
        h[i] = (uint16_t) ((x[i] < 0 ? 0x8000 : 0)
                           | (x[i] == 0 ? 0 : fabsf(x[i]) > 0.7f ? 0x3c00
                                                                 : 0x3800));
    }

    return raw;
}


/* in two parts if there is more than a row */

static vlm_weight_t
weight_make(rig_t *rig, float *w, const float *b, int n, int k,
    vlm_dtype_t dtype, vlm_weight_layout_t layout, vlm_quant_t quant)
{
    int                i, nparts;
    char               err[256];
    void              *raw;
    vlm_weight_t       weight;
    vlm_host_matrix_t  parts[2], biases[2];

    raw = stored(w, (size_t) n * k, dtype);
    nparts = n > 1 ? 2 : 1;

    for (i = 0; i < 2; i++) {
        parts[i].dtype = dtype;
        parts[i].cols = k;
        parts[i].rows = i == 1 ? n - n / 2 : nparts == 1 ? 1 : n / 2;
        parts[i].data = (char *) raw + (size_t) i * (n / 2) * k
                                       * vlm_dtype_size(dtype);
        biases[i].dtype = VLM_F32;
        biases[i].cols = 1;
        biases[i].rows = parts[i].rows;
        biases[i].data = b != NULL ? b + i * (n / 2) : NULL;
    }

    if (rig->ops->weight_create(rig->dev, &weight, layout, quant, parts,
                                b != NULL ? biases : NULL, nparts, err,
                                sizeof(err))
        != 0)
    {
        rig_stop("weight", err);
    }

    free(raw);

    return weight;
}


static int64_t
padded(int64_t n)
{
    return (n + 15) / 16 * 16;
}


/* what is on the device, all of it, against plain C */

static void
check_rows(rig_t *rig, float *x, int n, int k, vlm_dtype_t dtype,
    vlm_quant_t quant, const char *what)
{
    int            r, i, bad;
    float         *scale, v;
    size_t         size;
    plain_t        p;
    uint8_t       *codes, code;
    vlm_weight_t   w;

    w = weight_make(rig, x, NULL, n, k, dtype, VLM_WEIGHT_PLAIN, quant);
    p = plain_quantise(x, n, k, quant);

    size = (size_t) (padded(n) * padded(k));
    codes = rig_memory(size);
    scale = rig_memory((size_t) padded(n) * sizeof(float));

    rig->ops->download(rig->q, codes, w.data, size);
    rig->ops->download(rig->q, scale, w.scale,
                       (size_t) padded(n) * sizeof(float));
    rig_sync(rig);

    bad = 0;

    for (r = 0; r < padded(n); r++) {
        v = r < n ? p.scale[r] : 0.0f;
        bad += scale[r] != v && !(isnan(scale[r]) && isnan(v));

        for (i = 0; i < padded(k); i++) {
            code = codes[r * padded(k) + i];
            v = quant == VLM_QUANT_INT8 ? (float) (int8_t) code
                                        : f8_value(code);
            bad += v != (r < n && i < k ? p.q[r * k + i] : 0.0f);
        }
    }

    tap_is(bad, 0, "%s: %d x %d of type %d as %s", what, n, k, (int) dtype,
           quant == VLM_QUANT_INT8 ? "int8" : "fp8");

    free(codes);
    free(scale);
    plain_free(&p);
    rig->ops->weight_destroy(&w);
}


/* every code, what is half-way between two, and what is beside that */

static void
test_codes(rig_t *rig)
{
    int    code, n;
    float  x[2 * 127 * 4], half;

    n = 0;

    for (code = 0; code < 0x7f; code++) {
        x[n++] = f8_value(code);
        x[n++] = -f8_value(code);

        if (code < 0x7e) {
            half = (f8_value(code) + f8_value(code + 1)) / 2;
            x[n++] = half;
            x[n++] = nextafterf(half, 0);
            x[n++] = nextafterf(half, INFINITY);
            x[n++] = -half;
        }
    }

    /* 448 is among them: the factor is 1 */
    check_rows(rig, x, 1, n, VLM_F32, VLM_QUANT_FP8, "every code");

    n = 0;

    for (code = 0; code < 127; code++) {
        x[n++] = (float) code;
        x[n++] = (float) code + 0.5f;
        x[n++] = -(float) code - 0.5f;
        x[n++] = nextafterf((float) code + 0.5f, 0);
    }

    x[n++] = 127.0f;
    check_rows(rig, x, 1, n, VLM_F32, VLM_QUANT_INT8, "every code");
}


static void
test_rows(rig_t *rig, vlm_quant_t quant)
{
    int       i;
    float    *x;
    uint64_t  seed = 5;

    static const struct {
        int          n, k;
        vlm_dtype_t  dtype;
    }  shapes[] = {
        { 1, 1, VLM_F32 }, { 3, 17, VLM_BF16 }, { 16, 32, VLM_F16 },
        { 33, 72, VLM_BF16 }, { 5, 1176, VLM_F32 }, { 40, 64, VLM_F32 },
        { 7, MANY / 16 + 24, VLM_BF16 }, { 3, MANY / 2 + 7, VLM_BF16 },
        { 300, 136, VLM_BF16 }
    };

    for (i = 0; i < (int) (sizeof(shapes) / sizeof(shapes[0])); i++) {
        x = rig_random(&seed, (size_t) shapes[i].n * shapes[i].k, 3.0f);
        check_rows(rig, x, shapes[i].n, shapes[i].k, shapes[i].dtype, quant,
                   "random");
        free(x);
    }

    /* zeros, too small a row, a NaN, an infinity, great, just not too small */

    x = rig_random(&seed, 6 * 40, 1.0f);

    for (i = 0; i < 40; i++) {
        x[i] = 0.0f;
        x[40 + i] *= 0x0.ffffffp-100f;
        x[5 * 40 + i] *= 0x1p-100f;
        x[4 * 40 + i] *= FLT_MAX;
    }

    x[5 * 40 + 11] = 0x1p-100f;
    x[2 * 40 + 7] = NAN;
    x[3 * 40 + 39] = -INFINITY;
    check_rows(rig, x, 6, 40, VLM_F32, quant, "special");
    free(x);
}


/* ---- products ---- */

static void
reference(const case_t *c, const float *x, const float *w, const float *b,
    const float *add, vlm_quant_t quant, float *y)
{
    int      r, i, out;
    float    v;
    plain_t  px, pw;

    px = plain_quantise(x, c->rows, c->k, quant);
    pw = plain_quantise(w, c->n, c->k, quant);
    out = c->layout == VLM_WEIGHT_GATED ? c->n / 2 : c->n;
    b = c->bias ? b : NULL;

    for (r = 0; r < c->rows; r++) {

        for (i = 0; i < out; i++) {
            v = plain_activate(plain_product(&px, &pw, b, r, i, c->k),
                               c->act);

            if (c->layout == VLM_WEIGHT_GATED) {
                v *= plain_product(&px, &pw, b, r, out + i, c->k);
            }

            y[r * out + i] = c->residual ? v + add[r * out + i] : v;
        }
    }

    plain_free(&px);
    plain_free(&pw);
}


static float *
linear_on(rig_t *rig, const case_t *c, const float *x, vlm_weight_t *w,
    const float *add)
{
    int            out;
    float         *result;
    vlm_dtype_t    type;
    vlm_tensor_t   tx, ty, tadd;

    out = c->layout == VLM_WEIGHT_GATED ? c->n / 2 : c->n;
    type = c->f32_out ? VLM_F32 : rig->ops->act_dtype;

    tx = rig_act(rig, x, c->rows, c->k);
    ty = rig_tensor(rig, c->residual == 2 ? add : NULL, c->rows, out, out,
                    type);
    tadd = rig_tensor(rig, add, c->rows, out, out, type);

    rig->ops->linear(rig->q, &ty, &tx, w, c->act,
                     c->residual == 0 ? NULL : c->residual == 1 ? &tadd
                                                                : &ty);
    result = rig_values(rig, &ty);

    rig_free(rig, &tx);
    rig_free(rig, &ty);
    rig_free(rig, &tadd);

    return result;
}


/* rows that differ from the reference, as far as they may */

static double
distance(const case_t *c, const float *got, const float *expected, size_t n,
    vlm_quant_t quant, int bf16)
{
    int     exact;
    size_t  i;
    float   e;

    exact = quant == VLM_QUANT_INT8 && c->act == VLM_ACT_NONE;

    if (!exact) {
        return rig_worst(got, expected, n, bf16 ? RIG_BF16
                         : quant == VLM_QUANT_INT8 ? RIG_F32
                         : rig_cuda() == RIG_GPU ? F8_CHIP : F8_NEAR);
    }

    for (i = 0; i < n; i++) {
        e = bf16 ? rig_from_bf16(rig_bf16(expected[i])) : expected[i];

        if (memcmp(&got[i], &e, sizeof(float)) != 0) {
            return INFINITY;
        }
    }

    return 0;
}


/* "twin": the CPU device, for int8 */

static void
check(rig_t *rig, rig_t *twin, const case_t *c, vlm_quant_t quant,
    uint64_t *seed)
{
    int            out, bf16;
    float         *x, *w, *b, *add, *got, *expected, *cpu;
    size_t         n;
    double         worst, apart;
    vlm_weight_t   weight, weight_twin;

    out = c->layout == VLM_WEIGHT_GATED ? c->n / 2 : c->n;
    n = (size_t) c->rows * out;

    x = rig_random(seed, (size_t) c->rows * c->k, 2.0f);
    w = rig_random(seed, (size_t) c->n * c->k, 1.5f / sqrtf((float) c->k));
    b = rig_random(seed, (size_t) c->n, 1.0f);
    add = rig_random(seed, n, 1.0f);
    expected = rig_memory(n * sizeof(float));

    bf16 = rig->ops->act_dtype == VLM_BF16;
    rig_round(x, bf16 ? (size_t) c->rows * c->k : 0);
    rig_round(add, bf16 ? n : 0);

    weight = weight_make(rig, w, c->bias ? b : NULL, c->n, c->k, c->dtype,
                         c->layout, quant);

    got = linear_on(rig, c, x, &weight, add);
    reference(c, x, w, b, add, quant, expected);
    worst = distance(c, got, expected, n, quant, bf16 && !c->f32_out);
    apart = 0;

    if (quant == VLM_QUANT_INT8) {
        weight_twin = weight_make(twin, w, c->bias ? b : NULL, c->n, c->k,
                                  c->dtype, c->layout, quant);
        cpu = linear_on(twin, c, x, &weight_twin, add);
        apart = distance(c, got, cpu, n, quant, bf16 && !c->f32_out);

        twin->ops->weight_destroy(&weight_twin);
        free(cpu);
    }

    tap_ok(worst < 1 && apart < 1, "%s, %s: %d rows, %d x %d, layout %d, act "
           "%d, bias %d, residual %d%s: %.2g, %.2g",
           quant == VLM_QUANT_INT8 ? "int8" : "fp8",
           bf16 ? "bf16" : "f32", c->rows, c->n, c->k, (int) c->layout,
           (int) c->act, c->bias, c->residual, c->f32_out ? ", to f32" : "",
           worst, apart);

    rig->ops->weight_destroy(&weight);
    free(x);
    free(w);
    free(b);
    free(add);
    free(got);
    free(expected);
}


static void
test_products(rig_t *rig, rig_t *twin, vlm_quant_t quant)
{
    int       i;
    case_t    c;
    uint64_t  seed = 1;

    static const case_t  cases[] = {
        { 1, 1, 1, 0, VLM_ACT_NONE, 0, 0, 0, VLM_BF16 },
        { 3, 33, 17, 0, VLM_ACT_NONE, 1, 0, 0, VLM_BF16 },
        { 17, 64, 72, 0, VLM_ACT_NONE, 1, 1, 0, VLM_BF16 },
        { 5, 48, 1176, 0, VLM_ACT_NONE, 1, 2, 1, VLM_F32 },
        { 12, 48, 1176, 0, VLM_ACT_NONE, 1, 2, 1, VLM_F32 },
        { 129, 40, 24, 0, VLM_ACT_QUICK_GELU, 1, 2, 0, VLM_BF16 },
        { 9, 82, 63, VLM_WEIGHT_GATED, VLM_ACT_GELU_TANH, 1, 2, 0, VLM_F16 },
        { 2, 82, 63, VLM_WEIGHT_GATED, VLM_ACT_SILU, 0, 1, 1, VLM_F32 },
        { 6, 4096, 16, 0, VLM_ACT_GELU, 1, 0, 0, VLM_BF16 },
        { 300, 1040, 8, VLM_WEIGHT_GATED, VLM_ACT_NONE, 0, 0, 0, VLM_BF16 }
    };

    for (i = 0; i < (int) (sizeof(cases) / sizeof(cases[0])); i++) {
        check(rig, twin, &cases[i], quant, &seed);
    }

    for (i = 1; i <= 17; i++) {
        vlm_emu_seed((uint64_t) i);
        c.rows = i;
        c.layout = (vlm_weight_layout_t) rig_below(&seed, 2);
        c.n = (1 + c.layout) * (1 + rig_below(&seed, 100));
        c.k = 1 + rig_below(&seed, 300);
        c.act = (vlm_act_t) (rig_below(&seed, 2) * rig_below(&seed, 5));
        c.bias = rig_below(&seed, 2);
        c.residual = rig_below(&seed, 3);
        c.f32_out = rig_below(&seed, 2);
        c.dtype = (vlm_dtype_t) rig_below(&seed, 3);
        check(rig, twin, &c, quant, &seed);
    }
}


/* rows of nonsense beside good ones, alone and among more */

static void
test_special(rig_t *rig, vlm_quant_t quant, int rows)
{
    int            r, i, bad;
    float         *x, *w, *y;
    uint64_t       seed = 9;
    vlm_weight_t   weight;

    enum { N = 24, K = 40 };

    const case_t  c = {
        rows, N, K, VLM_WEIGHT_PLAIN, VLM_ACT_NONE, 0, 0, 1, VLM_F32
    };

    x = rig_random(&seed, (size_t) rows * K, 1.0f);
    w = rig_random(&seed, N * K, 1.0f);

    for (i = 0; i < K; i++) {
        x[i] = 0.0f;
    }

    x[K + 3] = NAN;
    x[2 * K + K - 1] = INFINITY;
    x[3 * K] = rig_from_bf16(0x7f7f);

    weight = weight_make(rig, w, NULL, N, K, VLM_F32, VLM_WEIGHT_PLAIN,
                         quant);
    y = linear_on(rig, &c, x, &weight, w);
    bad = 0;

    for (r = 0; r < rows; r++) {

        for (i = 0; i < N; i++) {
            bad += r == 0 ? y[i] != 0.0f
                   : (r < 3) != isnan(y[r * N + i]);
        }
    }

    tap_is(bad, 0, "%d rows as %s: of zeros, with a NaN, an infinity, the "
           "greatest number", rows, quant == VLM_QUANT_INT8 ? "int8" : "fp8");

    free(x);
    free(w);
    free(y);
    rig->ops->weight_destroy(&weight);
}


static void
test_refused(void)
{
    char               err[256];
    float             *row;
    rig_t              rig;
    vlm_weight_t       w;
    vlm_host_matrix_t  m;

    if (rig_cuda() == RIG_GPU) {
        return;
    }

    row = calloc(200000, sizeof(float));
    m.data = row;
    m.dtype = VLM_F32;
    m.rows = 1;
    m.cols = 200000;

    setenv("VLM_EMU_CAPABILITY", "86", 1);
    rig_open(&rig, RIG_EMU, 0);
    unsetenv("VLM_EMU_CAPABILITY");

    tap_is(rig.ops->weight_create(rig.dev, &w, VLM_WEIGHT_PLAIN,
                                  VLM_QUANT_FP8, &m, NULL, 1, err,
                                  sizeof(err)), -1, "fp8 on an old device");
    tap_str(err, "fp8: emu has compute capability 8.6, 8.9 is needed",
            "and its message");
    tap_is(rig.ops->weight_create(rig.dev, &w, VLM_WEIGHT_PLAIN,
                                  VLM_QUANT_INT8, &m, NULL, 1, err,
                                  sizeof(err)), -1, "a row that is too long");
    tap_str(err, "int8 sums of 200000 products may exceed 32 bits, 133144 "
            "are safe", "and its message");

    rig_close(&rig);
    free(row);
}


int
main(void)
{
    int          i;
    rig_t        cpu, f32, bf16;
    vlm_quant_t  quant;

    vlm_emu_seed(3);
    rig_open(&cpu, RIG_CPU, 1);
    rig_open(&f32, rig_cuda(), 1);
    rig_open(&bf16, rig_cuda(), 0);

    test_codes(&bf16);

    for (i = 0; i < 2; i++) {
        quant = i == 0 ? VLM_QUANT_INT8 : VLM_QUANT_FP8;
        test_rows(&bf16, quant);
        test_products(&f32, &cpu, quant);
        test_products(&bf16, &cpu, quant);
        test_special(&bf16, quant, 5);
        test_special(&f32, quant, 11);
    }

    test_refused();

    rig_close(&cpu);
    rig_close(&f32);
    rig_close(&bf16);

    return tap_done();
}
