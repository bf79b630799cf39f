
/*
 * The CUDA device at the shapes of known models, random weights: decoding in
 * per cent of a measured copy, prompts and vision towers in per cent of what
 * the library does for products of the same shapes (quantised: with what is
 * around them), decoding beside an encoder.
 *
 * usage: bench_gpu [-s seconds a line] [-f text in a line]
 *        bench_gpu --dry      the shim with tiny shapes: does it run at all?
 *        bench_gpu --device   says which device there is, and nothing else
 */

#include <getopt.h>
#include <unistd.h>

#include "bench/bench_gpu.h"


#define STEPS       200             /* for percentiles */

/* the engine's VLM_ENCODE_FLIGHTS and VLM_ENCODE_SLICE */
#define FLIGHTS     2
#define SLICE       4e11


static const text_shape_t  texts[] = {
    { "Qwen2-VL-2B", 28, 1536, 12, 2, 128, 8960, 151936 },
    { "Qwen2-VL-7B", 28, 3584, 28, 4, 128, 18944, 152064 }
};

static const vision_shape_t  visions[] = {
    { "Qwen2-VL tower", 32, 1280, 16, 80, 5120, 1024, 4 },
    { "Qwen2-VL tower", 32, 1280, 16, 80, 5120, 5476, 1 },
    { "SigLIP-400M", 27, 1152, 16, 72, 4304, 729, 8 },
    { "InternViT-300M", 24, 1024, 16, 64, 4096, 1025, 8 },
    { "InternViT-6B", 45, 3200, 25, 128, 12800, 1025, 4 }
};

static const text_shape_t    tiny_text =
    { "tiny", 2, 64, 4, 2, 16, 128, 256 };
static const vision_shape_t  tiny_vision =
    { "tiny tower", 2, 64, 4, 16, 128, 36, 2 };


/* the best time of one pass */

static double
best_time(model_t *m, pass_pt pass)
{
    double  start, end, t, best;

    pass(m);
    finish(m);

    best = INFINITY;
    end = now() + m->b->seconds;

    do {
        start = now();
        pass(m);
        finish(m);
        t = now() - start;
        best = t < best ? t : best;
    } while (now() < end);

    return best;
}


static void
copy_pass(model_t *m)
{
    m->b->ops->convert(m->q, &m->h, &m->x);
}


/* a layer's products and nothing else, as the library does them */

static void
product_pass(model_t *m)
{
    vlm_weight_t      up;
    const layer_t    *l = &m->layer[0];
    const vlm_ops_t  *o = m->b->ops;

    up = l->up;
    up.layout = VLM_WEIGHT_PLAIN;

    o->linear(m->q, &m->qkv, &m->x, &l->qkv, VLM_ACT_NONE, NULL);
    o->linear(m->q, &m->x, &m->h, &l->out, VLM_ACT_NONE, NULL);
    o->linear(m->q, m->text != NULL ? &m->both : &m->wide, &m->x, &up,
              VLM_ACT_NONE, NULL);
    o->linear(m->q, &m->x, &m->wide, &l->down, VLM_ACT_NONE, NULL);
}


/* all layers' attention and nothing else */

static void
attention_pass(model_t *m)
{
    int               i;
    vlm_kv_t          kv;
    const vlm_ops_t  *o = m->b->ops;

    for (i = 0; i < m->layers; i++) {

        if (m->text != NULL) {
            kv = text_cache(m, i);
            o->attention(m->q, &m->step, &m->h, &m->qkv, m->text->heads,
                         &kv);

        } else {
            o->vision_attention(m->q, &m->seg, &m->h, &m->qkv, 0, m->kv);
        }
    }
}


/*
 * A pass over many rows beside its products: "products" are the flops of
 * them in all layers, "flops" all that the pass does.
 */

static double
report_flops(model_t *m, const char *name, double products, double flops)
{
    double  time, attention, library;

    time = best_time(m, m->text != NULL ? text_pass : vision_pass);
    attention = best_time(m, attention_pass);
    library = products / m->layers / best_time(m, product_pass);

    printf("%-30s %8.2f ms %6.1f TFLOP/s  %5.1f %% of the products' %.1f, "
           "attention %.2f ms, %.1f TFLOP/s\n", name, time * 1e3,
           flops / time / 1e12, flops / time / library * 100, library / 1e12,
           attention * 1e3, (flops - products) / attention / 1e12);

    return time;
}


/* what decoding is compared with: bytes read and bytes written */

static void
measure_copy(bench_t *b)
{
    int64_t  n;
    model_t  m;

    memset(&m, 0, sizeof(model_t));
    m.b = b;
    m.q = b->ops->queue_create(b->dev, 0);

    n = b->emu ? 64 : 16384;
    m.x = tensor(b, 4 * n, n, VLM_BF16);
    m.h = tensor(b, 4 * n, n, VLM_BF16);
    b->copy = (double) (4 * n * n) * 4 / best_time(&m, copy_pass);
    b->ops->free(b->dev, m.x.data);
    b->ops->free(b->dev, m.h.data);
    b->ops->queue_destroy(m.q);

    printf("copy %.0f GB/s\n", b->copy / 1e9);
}


static int
wanted(const bench_t *b, const char *name)
{
    return strstr(name, b->filter) != NULL;
}


/* a model that is too large for the card is left out */

static int
fits(const bench_t *b, const char *name, double bytes)
{
    size_t  left, total;

    if (b->emu || vlm_cuda_memory(b->dev, &left, &total) != 0
        || bytes < (double) left)
    {
        return 1;
    }

    printf("%-30s left out: about %.1f GB are needed, %.1f of %.1f are left\n",
           name, bytes / 1e9, (double) left / 1e9, (double) total / 1e9);

    return 0;
}


/* weights, cache, rows, and a tenth */

static double
text_bytes(const text_shape_t *t, int nseqs, int rows, int context)
{
    double  all, layer, row;

    all = (double) (2 * t->heads + 2 * t->kv_heads) * t->dim;
    layer = t->hidden * (all + 3.0 * t->inter);
    row = 3.0 * t->hidden + all + 5.0 * t->inter;

    return 2.2 * (t->layers * layer + (double) t->vocab * t->hidden
                  + nseqs * (t->layers * 2.0 * t->kv_heads * t->dim
                             * (context + rows + BLOCK)
                             + rows * row + 2.0 * t->vocab));
}


static double
vision_bytes(const vision_shape_t *v)
{
    double  layer, row;

    layer = (double) v->width * (4 * v->width + 2 * v->inter);
    row = 7.0 * v->width + 3.0 * v->inter;

    return 2.2 * (v->layers * layer + (double) v->rows * v->pictures * row);
}


static const char  *quant_names[] = { "", " int8", " fp8" };


/* not every device has every kind */

static int
has_quant(bench_t *b, vlm_quant_t quant)
{
    char               err[256];
    vlm_weight_t       w;
    vlm_host_matrix_t  m;

    m.data = b->random;
    m.dtype = VLM_BF16;
    m.rows = 16;
    m.cols = 16;

    if (b->ops->weight_create(b->dev, &w, VLM_WEIGHT_PLAIN, quant, &m, NULL,
                              1, err, sizeof(err))
        != 0)
    {
        printf("%s\n", err);
        return 0;
    }

    b->ops->weight_destroy(&w);

    return 1;
}


static void
bench_decode(bench_t *b, const text_shape_t *t, vlm_quant_t quant, int batch)
{
    char     name[64];
    double   time, bytes;
    model_t  m;

    snprintf(name, sizeof(name), "%s decode %d%s", t->name, batch,
             quant_names[quant]);

    if (!wanted(b, name)
        || !fits(b, name, text_bytes(t, batch, 1, CONTEXT)))
    {
        return;
    }

    text_open(&m, b, t, quant, batch, 1, CONTEXT);
    time = best_time(&m, text_pass);
    bytes = m.weight_bytes + (double) batch * CONTEXT * t->layers
                             * t->kv_heads * t->dim * 2 * 2;

    printf("%-30s %8.2f ms %8.0f GB/s  %5.1f %% of the copy %8.0f tok/s\n",
           name, time * 1e3, bytes / time / 1e9, bytes / time / b->copy * 100,
           batch / time);

    m.eager = 1;
    printf("%-30s %8.2f ms\n", "  not recorded",
           best_time(&m, text_pass) * 1e3);
    model_close(&m);
}


static void
bench_prefill(bench_t *b, const text_shape_t *t, int rows)
{
    char     name[64];
    double   products, attention;
    model_t  m;

    snprintf(name, sizeof(name), "%s prefill %d", t->name, rows);

    if (!wanted(b, name) || !fits(b, name, text_bytes(t, 1, rows, 0))) {
        return;
    }

    text_open(&m, b, t, VLM_QUANT_NONE, 1, rows, 0);

    /* half of all pairs of rows attend */
    products = 2 * (m.weights - (double) t->vocab * t->hidden) * rows;
    attention = 2.0 * t->layers * t->heads * t->dim * (double) rows * rows;

    (void) report_flops(&m, name, products, products + attention);
    model_close(&m);
}


static void
bench_vision(bench_t *b, const vision_shape_t *v, vlm_quant_t quant)
{
    char     name[64];
    double   time, products, attention;
    model_t  m;

    snprintf(name, sizeof(name), "%s %d x %d%s", v->name, v->pictures,
             v->rows, quant_names[quant]);

    if (!wanted(b, name) || !has_quant(b, quant)
        || !fits(b, name, vision_bytes(v)))
    {
        return;
    }

    vision_open(&m, b, v, quant);

    products = 2 * m.weights * v->rows * v->pictures;
    attention = 4.0 * v->layers * v->heads * v->dim * v->pictures
                * (double) v->rows * v->rows;

    time = report_flops(&m, name, products, products + attention);
    printf("%-30s %8.2f ms\n", "  a picture", time * 1e3 / v->pictures);
    model_close(&m);
}


/*
 * ---- decoding beside an encoder ----
 *
 * As the engine does it: while a step is at work slices are put on the
 * encoder's queue, as long as fewer than two are in flight.
 */

typedef struct {
    model_t             m;
    vlm_fence_t        *fence[FLIGHTS];
    int                 first;          /* the oldest slice in flight */
    int                 n;
    int                 slice;          /* layers */
    int                 layer;          /* the next one */
    long                layers;         /* that have been done */
} encoder_t;


static void
encoder_open(encoder_t *e, bench_t *b, const vision_shape_t *v)
{
    int     i;
    double  layer;

    memset(e, 0, sizeof(encoder_t));
    vision_open(&e->m, b, v, VLM_QUANT_NONE);

    for (i = 0; i < FLIGHTS; i++) {
        e->fence[i] = b->ops->fence_create(b->dev);

        if (e->fence[i] == NULL) {
            stop("fence", "none");
        }
    }

    layer = (double) v->pictures * v->rows * v->width
            * (4.0 * v->width + 2.0 * v->inter + 2.0 * v->rows);

    e->slice = v->layers;

    if (layer * v->layers > SLICE) {
        e->slice = layer < SLICE ? (int) (SLICE / layer) : 1;
    }
}


static void
encoder_turn(encoder_t *e)
{
    int               i;
    const vlm_ops_t  *o = e->m.b->ops;

    while (e->n > 0 && o->reached(e->fence[e->first])) {
        e->layers += e->slice;
        e->first = (e->first + 1) % FLIGHTS;
        e->n--;
    }

    while (e->n < FLIGHTS) {

        for (i = 0; i < e->slice; i++) {
            vision_layer(&e->m, e->layer);
            e->layer = (e->layer + 1) % e->m.layers;
        }

        o->record(e->m.q, e->fence[(e->first + e->n++) % FLIGHTS]);
    }
}


static void
encoder_close(encoder_t *e)
{
    int  i;

    for (i = 0; i < FLIGHTS; i++) {
        e->m.b->ops->fence_destroy(e->fence[i]);
    }

    model_close(&e->m);
}


static int
compare(const void *a, const void *b)
{
    double  x = *(const double *) a, y = *(const double *) b;

    return x < y ? -1 : x > y;
}


/* steps, beside an encoder or alone */

static void
percentiles(model_t *m, encoder_t *e, const char *name)
{
    int     i, n;
    double  start, t[STEPS];

    n = m->b->emu ? 5 : STEPS;

    for (i = 0; i < n; i++) {
        start = now();
        text_pass(m);

        if (e != NULL) {
            encoder_turn(e);
        }

        finish(m);
        t[i] = now() - start;
    }

    qsort(t, n, sizeof(double), compare);

    printf("%-30s %8.2f ms median %8.2f ms p95 %8.2f ms most\n", name,
           t[n / 2] * 1e3, t[n * 95 / 100] * 1e3, t[n - 1] * 1e3);
}


static void
bench_beside(bench_t *b, const text_shape_t *t, const vision_shape_t *v)
{
    double      start, time;
    model_t     m;
    encoder_t   e;

    if (!wanted(b, "beside")) {
        return;
    }

    text_open(&m, b, t, VLM_QUANT_NONE, 8, 1, CONTEXT);
    encoder_open(&e, b, v);

    /* the second step is recorded */

    text_pass(&m);
    text_pass(&m);
    finish(&m);
    percentiles(&m, NULL, "decode 8 alone");

    start = now();
    percentiles(&m, &e, "decode 8 beside encoding");
    time = now() - start;

    printf("%-30s %8.1f pictures/s meanwhile\n", v->name,
           (double) e.layers / v->layers * v->pictures / time);

    finish(&e.m);
    encoder_close(&e);
    model_close(&m);
}


static void
bench_tiny(bench_t *b)
{
    fill_random(b, 64 * 1024);
    measure_copy(b);
    bench_decode(b, &tiny_text, VLM_QUANT_NONE, 1);
    bench_decode(b, &tiny_text, VLM_QUANT_NONE, 3);
    bench_decode(b, &tiny_text, VLM_QUANT_INT8, 3);
    bench_prefill(b, &tiny_text, 33);
    bench_vision(b, &tiny_vision, VLM_QUANT_NONE);
    bench_vision(b, &tiny_vision, VLM_QUANT_INT8);
    bench_vision(b, &tiny_vision, VLM_QUANT_FP8);
    bench_beside(b, &tiny_text, &tiny_vision);
}


static void
bench_all(bench_t *b)
{
    size_t  i;

    /* the greatest: the head of the 7B */
    fill_random(b, (size_t) texts[1].vocab * texts[1].hidden);
    measure_copy(b);

    for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        bench_decode(b, &texts[i], VLM_QUANT_NONE, 1);
        bench_decode(b, &texts[i], VLM_QUANT_INT8, 1);
        bench_decode(b, &texts[i], VLM_QUANT_NONE, 8);
        bench_decode(b, &texts[i], VLM_QUANT_INT8, 8);
        bench_decode(b, &texts[i], VLM_QUANT_NONE, 64);
        bench_prefill(b, &texts[i], 512);
        bench_prefill(b, &texts[i], 2048);
    }

    for (i = 0; i < sizeof(visions) / sizeof(visions[0]); i++) {
        bench_vision(b, &visions[i], VLM_QUANT_NONE);
        bench_vision(b, &visions[i], VLM_QUANT_INT8);
        bench_vision(b, &visions[i], VLM_QUANT_FP8);
    }

    bench_beside(b, &texts[0], &visions[0]);
}


static void
describe(const bench_t *b)
{
    size_t  left, total;

    if (b->emu || vlm_cuda_memory(b->dev, &left, &total) != 0) {
        printf("%s\n", b->ops->name);
        return;
    }

    printf("%s, %.1f GB, %.1f of them free\n", b->ops->name,
           (double) total / 1e9, (double) left / 1e9);
}


int
main(int argc, char **argv)
{
    int                 opt, device;
    char                err[256];
    bench_t             b;
    vlm_cuda_options_t  options;

    static const struct option  names[] = {
        { "dry", no_argument, NULL, 'n' },
        { "device", no_argument, NULL, 'd' }, { NULL, 0, NULL, 0 }
    };

    memset(&b, 0, sizeof(bench_t));
    memset(&options, 0, sizeof(options));
    b.seconds = 1.0;
    b.filter = "";
    device = 0;

    while ((opt = getopt_long(argc, argv, "s:f:", names, NULL)) != -1) {

        switch (opt) {

        case 's':
            b.seconds = atof(optarg);
            break;

        case 'f':
            b.filter = optarg;
            break;

        case 'n':
            b.emu = 1;
            b.seconds = 0;
            break;

        case 'd':
            device = 1;
            break;

        default:
            fprintf(stderr, "usage: %s [-s seconds] [-f text] | --dry | "
                    "--device\n", argv[0]);
            return 2;
        }
    }

    setvbuf(stdout, NULL, _IOLBF, 0);

    b.dev = b.emu ? vlm_emu_device(&options, &b.ops, err, sizeof(err))
                  : vlm_cuda_device(0, &options, &b.ops, err, sizeof(err));

    if (b.dev == NULL) {
        stop("device", err);
    }

    describe(&b);

    if (!device) {
        b.emu ? bench_tiny(&b) : bench_all(&b);
    }

    b.emu ? vlm_emu_device_destroy(b.dev) : vlm_cuda_device_destroy(b.dev);

    free(b.random);

    return 0;
}
