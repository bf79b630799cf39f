
/*
 * Products at the shapes of Qwen2-VL-2B with random bf16 weights, in per
 * cent of what the machine could do at best; with -q each of them with int8
 * weights, too, and how much faster that is.
 *
 * usage: bench_kernels [-q] [-t threads] [-s seconds a line]
 *                      [-f text in a line]
 */

#include <math.h>

#include "bench/bench.h"


typedef struct {
    const char           *name;
    int64_t               rows;
    int64_t               n;            /* of both parts, if gated */
    int64_t               k;
    vlm_weight_layout_t   layout;
    vlm_act_t             act;
    int                   cold;         /* weights from memory each time */
} shape_t;

typedef struct {
    vlm_device_t         *dev;
    const vlm_ops_t      *ops;
    vlm_queue_t          *q;
    bench_roofs_t         roofs;
    double                seconds;
    const char           *filter;
    int                   int8;
} bench_t;


#define PLAIN  VLM_WEIGHT_PLAIN
#define GATED  VLM_WEIGHT_GATED

static const shape_t  shapes[] = {
    { "vision qkv",    1024, 3840, 1280, PLAIN, VLM_ACT_NONE, 0 },
    { "vision out",    1024, 1280, 1280, PLAIN, VLM_ACT_NONE, 0 },
    { "vision fc1",    1024, 5120, 1280, PLAIN, VLM_ACT_QUICK_GELU, 0 },
    { "vision fc2",    1024, 1280, 5120, PLAIN, VLM_ACT_NONE, 0 },
    { "vision merger",  256, 5120, 5120, PLAIN, VLM_ACT_GELU, 0 },

    { "prefill qkv",    512, 2048, 1536, PLAIN, VLM_ACT_NONE, 0 },
    { "prefill gate+up", 512, 17920, 1536, GATED, VLM_ACT_SILU, 0 },
    { "prefill down",   512, 1536, 8960, PLAIN, VLM_ACT_NONE, 0 },

    { "decode qkv",       1, 2048, 1536, PLAIN, VLM_ACT_NONE, 1 },
    { "decode gate+up",   1, 17920, 1536, GATED, VLM_ACT_SILU, 1 },
    { "decode down",      1, 1536, 8960, PLAIN, VLM_ACT_NONE, 1 },
    { "decode head",      1, 151936, 1536, PLAIN, VLM_ACT_NONE, 1 },

    { "decode gate+up",   2, 17920, 1536, GATED, VLM_ACT_SILU, 1 },
    { "decode down",      2, 1536, 8960, PLAIN, VLM_ACT_NONE, 1 },
    { "decode gate+up",   4, 17920, 1536, GATED, VLM_ACT_SILU, 1 },
    { "decode down",      4, 1536, 8960, PLAIN, VLM_ACT_NONE, 1 },
    { "decode qkv",       8, 2048, 1536, PLAIN, VLM_ACT_NONE, 1 },
    { "decode gate+up",   8, 17920, 1536, GATED, VLM_ACT_SILU, 1 },
    { "decode down",      8, 1536, 8960, PLAIN, VLM_ACT_NONE, 1 },
    { "decode head",      8, 151936, 1536, PLAIN, VLM_ACT_NONE, 1 },
    { "decode gate+up",  12, 17920, 1536, GATED, VLM_ACT_SILU, 1 },
    { "decode down",     12, 1536, 8960, PLAIN, VLM_ACT_NONE, 1 },
    { "decode qkv",      16, 2048, 1536, PLAIN, VLM_ACT_NONE, 1 },
    { "decode gate+up",  16, 17920, 1536, GATED, VLM_ACT_SILU, 1 },
    { "decode down",     16, 1536, 8960, PLAIN, VLM_ACT_NONE, 1 },
    { "decode gate+up",  24, 17920, 1536, GATED, VLM_ACT_SILU, 1 },
    { "decode gate+up",  40, 17920, 1536, GATED, VLM_ACT_SILU, 1 },
    { "decode gate+up",  32, 17920, 1536, GATED, VLM_ACT_SILU, 1 },
    { "decode down",     32, 1536, 8960, PLAIN, VLM_ACT_NONE, 1 }
};


static int bench_all(bench_t *b);
static int bench_shape(const bench_t *b, const shape_t *s);
static double bench_product(const bench_t *b, const shape_t *s,
    vlm_quant_t quant, double bytes);
static vlm_weight_t *make_weights(const bench_t *b, const shape_t *s,
    vlm_quant_t quant, int n);
static void free_weights(const bench_t *b, vlm_weight_t *w, int n);
static uint16_t *random_bf16(size_t count);
static float *random_f32(size_t count);
static void report(const bench_t *b, const shape_t *s, const char *type,
    double t, double bytes, double roof);


int
main(int argc, char **argv)
{
    int      opt, nthreads;
    char     err[256], machine[128];
    bench_t  b;

    memset(&b, 0, sizeof(bench_t));
    b.seconds = 0.4;
    b.filter = "";
    nthreads = 0;

    while ((opt = getopt(argc, argv, "qt:s:f:")) != -1) {

        switch (opt) {

        case 'q':
            b.int8 = 1;
            break;

        case 't':
            nthreads = atoi(optarg);
            break;

        case 's':
            b.seconds = atof(optarg);
            break;

        case 'f':
            b.filter = optarg;
            break;

        default:
            fprintf(stderr, "usage: %s [-q] [-t threads] [-s seconds] "
                    "[-f text]\n", argv[0]);
            return 2;
        }
    }

    b.dev = vlm_cpu_device(nthreads, &b.ops, err, sizeof(err));
    if (b.dev == NULL) {
        fprintf(stderr, "%s\n", err);
        return 1;
    }

    bench_machine(machine, sizeof(machine));
    printf("%s, %s, %d threads of %d\n", machine, b.ops->name,
           vlm_pool_size(b.dev->pool), vlm_cpu_count());

    if (bench_all(&b) != 0) {
        fprintf(stderr, "no memory\n");
        return 1;
    }

    vlm_cpu_device_destroy(b.dev);

    return 0;
}


static int
bench_all(bench_t *b)
{
    size_t  i;

    b->q = b->ops->queue_create(b->dev, 0);

    if (b->q == NULL || bench_roofs(b->dev, &b->roofs) != 0) {
        return -1;
    }

    printf("roofs: %.1f GFLOP/s (float32 multiply-add), %.1f (int8), "
           "%.1f GB/s (read)\n\n%-16s %5s %14s %5s %9s %9s %7s %6s\n",
           b->roofs.flops * 1e-9, b->roofs.int8 * 1e-9,
           b->roofs.bytes * 1e-9, "product", "rows", "weight", "type", "ms",
           "GFLOP/s", "GB/s", "% roof");

    for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {

        if (strstr(shapes[i].name, b->filter) == NULL) {
            continue;
        }

        if (bench_shape(b, &shapes[i]) != 0) {
            return -1;
        }
    }

    b->ops->queue_destroy(b->q);

    return 0;
}


static int
bench_shape(const bench_t *b, const shape_t *s)
{
    double  t, quantised;

    t = bench_product(b, s, VLM_QUANT_NONE, 2);
    if (t < 0) {
        return -1;
    }

    report(b, s, "bf16", t, 2, b->roofs.flops);

    if (b->int8) {
        quantised = bench_product(b, s, VLM_QUANT_INT8, 1);
        if (quantised < 0) {
            return -1;
        }

        report(b, s, "int8", quantised, 1, b->roofs.int8);
        printf("  x%.2f", t / quantised);
    }

    printf("\n");
    fflush(stdout);

    return 0;
}


/*
 * The best time of one product, -1: no memory; a cold weight, of so many
 * bytes a value, takes turns with copies.
 */

static double
bench_product(const bench_t *b, const shape_t *s, vlm_quant_t quant,
    double bytes)
{
    int            i, n;
    double         t, best, start, end;
    vlm_tensor_t   x, y;
    vlm_weight_t  *w;

    n = s->cold ? (int) (bench_cold_bytes() / (s->n * s->k * bytes)) + 1 : 1;

    memset(&x, 0, sizeof(vlm_tensor_t));
    x.dtype = VLM_F32;
    x.rows = s->rows;
    x.stride = s->k;
    x.cols = (int32_t) s->k;
    x.data = random_f32(s->rows * s->k);

    y = x;
    y.stride = s->layout == VLM_WEIGHT_GATED ? s->n / 2 : s->n;
    y.cols = (int32_t) y.stride;
    y.data = b->ops->alloc(b->dev, s->rows * y.stride * sizeof(float));

    w = make_weights(b, s, quant, n);

    if (x.data == NULL || y.data == NULL || w == NULL) {
        return -1;
    }

    best = INFINITY;
    end = bench_now() + b->seconds;

    for (i = 0; i <= n || bench_now() < end; i++) {
        start = bench_now();
        b->ops->linear(b->q, &y, &x, &w[i % n], s->act, NULL);
        t = bench_now() - start;

        if (i > 0 && t < best) {
            best = t;
        }
    }

    free_weights(b, w, n);
    b->ops->free(b->dev, y.data);
    free(x.data);

    return best;
}


static void
report(const bench_t *b, const shape_t *s, const char *type, double t,
    double bytes, double roof)
{
    char    weight[32];
    double  flops, least;

    flops = 2.0 * s->rows * s->n * s->k;
    bytes *= s->n * s->k;

    least = roof > 0 ? flops / roof : 0;
    least = fmax(least, bytes / b->roofs.bytes);

    snprintf(weight, sizeof(weight), "%dx%d", (int) s->n, (int) s->k);

    printf("%s%-16s %5d %14s %5s %9.3f %9.1f %7.2f %5.1f%%",
           strcmp(type, "bf16") == 0 ? "" : "\n", s->name, (int) s->rows,
           weight, type, t * 1e3, flops / t * 1e-9, bytes / t * 1e-9,
           100 * least / t);
}


static vlm_weight_t *
make_weights(const bench_t *b, const shape_t *s, vlm_quant_t quant, int n)
{
    int                 i, rc;
    char                err[256];
    uint16_t           *data;
    vlm_weight_t       *w;
    vlm_host_matrix_t   parts[2];

    w = calloc(n, sizeof(vlm_weight_t));
    data = random_bf16(s->n * s->k);

    if (w == NULL || data == NULL) {
        free(w);
        free(data);
        return NULL;
    }

    parts[0].data = data;
    parts[0].dtype = VLM_BF16;
    parts[0].rows = s->layout == VLM_WEIGHT_GATED ? s->n / 2 : s->n;
    parts[0].cols = s->k;
    parts[1] = parts[0];
    parts[1].data = data + parts[0].rows * s->k;

    rc = 0;

    for (i = 0; i < n && rc == 0; i++) {
        rc = b->ops->weight_create(b->dev, &w[i], s->layout, quant, parts,
                                   NULL,
                                   s->layout == VLM_WEIGHT_GATED ? 2 : 1, err,
                                   sizeof(err));
    }

    free(data);

    if (rc != 0) {
        free_weights(b, w, n);
        return NULL;
    }

    return w;
}


static void
free_weights(const bench_t *b, vlm_weight_t *w, int n)
{
    int  i;

    for (i = 0; i < n; i++) {
        b->ops->weight_destroy(&w[i]);
    }

    free(w);
}


/* small numbers of either sign */

static uint16_t *
random_bf16(size_t count)
{
    size_t     i;
    uint32_t   state;
    uint16_t  *data;

    data = malloc(count * sizeof(uint16_t));
    if (data == NULL) {
        return NULL;
    }

    state = 1;

    for (i = 0; i < count; i++) {
        state = state * 1664525 + 1013904223;
        data[i] = (uint16_t) ((state >> 16 & 0x807f) | 0x3c80);
    }

    return data;
}


static float *
random_f32(size_t count)
{
    float     *data;
    size_t     i;
    uint32_t   state;

    data = malloc(count * sizeof(float));
    if (data == NULL) {
        return NULL;
    }

    state = 1;

    for (i = 0; i < count; i++) {
        state = state * 1664525 + 1013904223;
        data[i] = (float) (int32_t) state * 0x1p-31f;
    }

    return data;
}
