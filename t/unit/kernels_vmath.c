
/*
 * Elementary functions against the C library's in double, over dense ranges,
 * with equal bits on every instruction set; conversions of the lanes' types.
 */

#include <float.h>
#include <math.h>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec.h"
#include "t/unit/kernels_rig.h"


#define POINTS  200000


static double
sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}


static double
silu(double x)
{
    return x / (1.0 + exp(-x));
}


static double
gelu(double x)
{
    return 0.5 * x * erfc(-x / sqrt(2.0));
}


static double
gelu_tanh(double x)
{
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI)
                                 * (x + 0.044715 * x * x * x)));
}


static double
quick_gelu(double x)
{
    return x / (1.0 + exp(-1.702 * x));
}


/*
 * Error in units of the last place of the result, or of "floor" times |x| if
 * that is more: where a function has a factor x and goes to 0, its error
 * counts against x, as it does in the sum that comes next.
 */

typedef struct {
    const char  *name;
    vlm_map_t    map;
    double     (*exact)(double x);
    float        low;
    float        high;
    double       ulps;
    double       floor;
} function_t;

static const function_t  functions[] = {
    { "exp", VLM_MAP_EXP, exp, -87.0f, 88.7f, 1.0, 0 },
    { "exp, subnormal", VLM_MAP_EXP, exp, -104.0f, -87.0f, 1.0, 0 },
    { "exp of a softmax", VLM_MAP_EXP_NEGATIVE, exp, -87.0f, 0.0f, 1.0, 0 },
    { "erf", VLM_MAP_ERF, erf, -5.0f, 5.0f, 1.5, 0 },
    { "erf", VLM_MAP_ERF, erf, -1e-3f, 1e-3f, 1.5, 0 },
    { "tanh", VLM_MAP_TANH, tanh, -10.0f, 10.0f, 1.5, 0 },
    { "tanh", VLM_MAP_TANH, tanh, -1e-3f, 1e-3f, 1.5, 0 },
    { "sigmoid", VLM_MAP_SIGMOID, sigmoid, -80.0f, 80.0f, 2.5, 0 },
    { "silu", VLM_MAP_SILU, silu, -80.0f, 80.0f, 2.5, 0 },
    { "gelu", VLM_MAP_GELU, gelu, -12.0f, 12.0f, 2.0, 1.0 },
    { "gelu_tanh", VLM_MAP_GELU_TANH, gelu_tanh, -12.0f, 12.0f, 2.0, 1.0 },
    { "quick_gelu", VLM_MAP_QUICK_GELU, quick_gelu, -60.0f, 60.0f, 2.0, 1.0 }
};

#define NFUNCTIONS  ((int) (sizeof(functions) / sizeof(functions[0])))


/* the distance of two floats at this magnitude */

static double
ulp(double x)
{
    int  e;

    if (x == 0.0 || ilogb(x) < -126) {
        e = -126;

    } else {
        e = ilogb(x);
    }

    return ldexp(1.0, e - 23);
}


static void
test_functions(rig_t *rigs, int nrigs)
{
    int                f, i, r;
    float             *x, *y, *first;
    double             error, worst, expected, unit;
    size_t             differ;
    const function_t  *fn;

    x = rig_alloc(POINTS * sizeof(float));
    y = rig_alloc(POINTS * sizeof(float));
    first = rig_alloc(POINTS * sizeof(float));

    for (f = 0; f < NFUNCTIONS; f++) {
        fn = &functions[f];
        worst = 0.0;

        for (i = 0; i < POINTS; i++) {
            x[i] = fn->low + (float) i / (POINTS - 1) * (fn->high - fn->low);
        }

        rigs[0].dev->rows->map(first, x, POINTS, fn->map);

        for (i = 0; i < POINTS; i++) {
            expected = fn->exact(x[i]);
            unit = ulp(expected);

            if (fn->floor * ulp(x[i]) > unit) {
                unit = fn->floor * ulp(x[i]);
            }

            error = fabs(first[i] - expected) / unit;

            if (!(error <= worst)) {
                worst = error;
            }
        }

        tap_ok(worst <= fn->ulps, "%s, %g to %g: at most %.2f ulp", fn->name,
               fn->low, fn->high, worst);

        differ = 0;

        for (r = 1; r < nrigs; r++) {
            rigs[r].dev->rows->map(y, x, POINTS, fn->map);
            differ += rig_differ(y, first, POINTS);
        }

        tap_is(differ, 0, "equal bits on %d devices", nrigs);
    }

    free(x);
    free(y);
    free(first);
}


static void
test_edges(rig_t *rig)
{
    int                    i;
    float                  y[8];
    const vlm_cpu_rows_t  *rows = rig->dev->rows;

    static const float  x[8] = {
        NAN, -NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 200.0f, -200.0f
    };

    static const float  expected[][8] = {
        { NAN, NAN, INFINITY, 0.0f, 1.0f, 1.0f, INFINITY, 0.0f },
        { NAN, NAN, 0.0f, 0.0f, 1.0f, 1.0f, 0.0f, 0.0f },
        { NAN, NAN, 1.0f, -1.0f, 0.0f, 0.0f, 1.0f, -1.0f },
        { NAN, NAN, 1.0f, -1.0f, 0.0f, 0.0f, 1.0f, -1.0f },
        { NAN, NAN, 1.0f, 0.0f, 0.5f, 0.5f, 1.0f, 0.0f }
    };

    static const vlm_map_t  maps[] = {
        VLM_MAP_EXP, VLM_MAP_EXP_NEGATIVE, VLM_MAP_ERF, VLM_MAP_TANH,
        VLM_MAP_SIGMOID
    };

    int  f, ok = 1;

    for (f = 0; f < 5; f++) {
        rows->map(y, x, 8, maps[f]);

        for (i = 0; i < 8; i++) {

            if (maps[f] == VLM_MAP_EXP_NEGATIVE && x[i] > 0.0f) {
                continue;
            }

            if (isnan(expected[f][i]) ? !isnan(y[i]) : y[i] != expected[f][i])
            {
                ok = 0;
                tap_diag("function %d of %g: %g", f, x[i], y[i]);
            }
        }
    }

    tap_ok(ok, "%s: NaN, infinities, zeros, far arguments", rig->name);
}


/* halves and bfloat16 by their definition: the nearest, ties to even */

static double
half_value(uint32_t h)
{
    int     e = h >> 10 & 0x1f;
    double  v;

    v = e == 0 ? ldexp(h & 0x3ff, -24)
               : ldexp((h & 0x3ff) + 1024, e - 25);

    return (h & 0x8000) != 0 ? -v : v;
}


/* magnitudes only; 0x7c00 has the value 65536 here, where rounding ends */

static uint16_t
half_nearest(double x)
{
    uint32_t  low, high, mid;
    double    a, b;

    low = 0;
    high = 0x7c00;

    if (x >= 65536.0) {
        return 0x7c00;
    }

    while (high - low > 1) {
        mid = (low + high) / 2;

        if (half_value(mid) <= x) {
            low = mid;

        } else {
            high = mid;
        }
    }

    a = x - half_value(low);
    b = half_value(high) - x;

    if (a == b) {
        return (uint16_t) ((low & 1) != 0 ? high : low);
    }

    return (uint16_t) (a < b ? low : high);
}


static uint16_t
bf16_nearest(float x)
{
    float     low, high;
    double    a, b;
    uint32_t  bits;

    bits = vlm_f32_bits(x) & 0xffff0000;
    low = vlm_f32_from_bits(bits);
    high = vlm_f32_from_bits(bits + 0x10000);
    a = (double) x - low;
    b = (isinf(high) ? 0x1p128 : (double) high) - x;

    if (a > b || (a == b && (bits & 0x10000) != 0)) {
        bits += 0x10000;
    }

    return (uint16_t) (bits >> 16);
}


static void
test_halves(rig_t *rigs, int nrigs)
{
    int                    i, r;
    float                 *x, *back, *wide;
    size_t                 wrong, differ;
    uint16_t              *h, *b, *hb, *to;
    uint32_t               bits;
    uint64_t               seed = 3;
    const vlm_cpu_rows_t  *rows;

    enum { N = 65536 + 100003 };

    x = rig_alloc(N * sizeof(float));
    back = rig_alloc(N * sizeof(float));
    wide = rig_alloc(N * sizeof(float));
    h = rig_alloc(N * sizeof(uint16_t));
    hb = rig_alloc(N * sizeof(uint16_t));
    b = rig_alloc(N * sizeof(uint16_t));
    to = rig_alloc(N * sizeof(uint16_t));

    for (i = 0; i < 65536; i++) {
        h[i] = (uint16_t) i;
    }

    rigs[0].dev->rows->convert(x, VLM_F32, h, VLM_F16, 65536);
    wrong = 0;

    for (i = 0; i < 65536; i++) {

        if ((i & 0x7c00) == 0x7c00) {
            wrong += (i & 0x3ff) != 0 ? !isnan(x[i]) : !isinf(x[i]);

        } else {
            wrong += x[i] != half_value(i);
        }
    }

    tap_is(wrong, 0, "all 65,536 halves widen");

    /* each half, and between it and the next, then any bits at all */

    for (i = 0; i < 65536; i++) {
        bits = vlm_f32_bits(x[i]) + (uint32_t) (i % 3) * 0xfff;
        x[i] = vlm_f32_from_bits(bits);
    }

    for ( ; i < N; i++) {
        x[i] = vlm_f32_from_bits((uint32_t) tap_random(&seed));
    }

    rigs[0].dev->rows->convert(h, VLM_F16, x, VLM_F32, N);
    rigs[0].dev->rows->convert(b, VLM_BF16, x, VLM_F32, N);
    wrong = 0;

    for (i = 0; i < N; i++) {

        if (isnan(x[i])) {
            wrong += (h[i] & 0x7fff) <= 0x7c00;
            wrong += (b[i] & 0x7fff) <= 0x7f80;
            continue;
        }

        wrong += (h[i] & 0x7fff) != half_nearest(fabs(x[i]));
        wrong += (b[i] & 0x7fff) != bf16_nearest(fabsf(x[i]));
        wrong += (h[i] >> 15) != (signbit(x[i]) != 0);
        wrong += (b[i] >> 15) != (signbit(x[i]) != 0);
    }

    tap_is(wrong, 0, "rounding to halves and bfloat16: nearest, ties to even");

    rigs[0].dev->rows->convert(wide, VLM_F32, h, VLM_F16, N);
    rigs[0].dev->rows->convert(hb, VLM_BF16, h, VLM_F16, N);
    differ = 0;

    for (r = 0; r < nrigs; r++) {
        rows = rigs[r].dev->rows;

        rows->convert(to, VLM_F16, x, VLM_F32, N);
        differ += memcmp(to, h, N * sizeof(uint16_t)) != 0;
        rows->convert(to, VLM_BF16, x, VLM_F32, N);
        differ += memcmp(to, b, N * sizeof(uint16_t)) != 0;

        rows->convert(back, VLM_F32, h, VLM_F16, N);
        differ += rig_differ(back, wide, N);
        rows->convert(to, VLM_BF16, h, VLM_F16, N);
        differ += memcmp(to, hb, N * sizeof(uint16_t)) != 0;

        rows->convert(back, VLM_F32, b, VLM_BF16, N);

        for (i = 0; i < N; i++) {
            differ += vlm_f32_bits(back[i]) != (uint32_t) b[i] << 16;
        }
    }

    tap_is(differ, 0, "conversions equal on %d devices, both ways", nrigs);

    free(x);
    free(back);
    free(wide);
    free(h);
    free(hb);
    free(b);
    free(to);
}


int
main(void)
{
    int    i, n;
    rig_t  rigs[RIG_MAX];

    n = rigs_open(rigs);

    test_functions(rigs, n);

    for (i = 0; i < n; i++) {
        test_edges(&rigs[i]);
    }

    test_halves(rigs, n);

    rigs_close(rigs, n);

    return tap_done();
}
