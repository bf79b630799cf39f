
/*
 * Whole passes of a model: encoding a picture of 448 x 448, a prompt of 512
 * tokens, decoding for several sequences with 128 tokens each in the cache.
 * bench/make-checkpoint writes a checkpoint for it.  With -q the same again
 * with int8 weights, and how much faster that is.
 *
 * usage: bench_model [-q] [-t threads] [-s seconds a line] DIR
 */

#include <math.h>

#include "bench/bench.h"
#include "engine/model/model.h"


#define PICTURE     448
#define PROMPT      512
#define CONTEXT     128
#define BLOCK       16
#define MAX_SEQS    16
#define MAX_LINES   16

/* blocks of one sequence: the prompt, and one for a decoded token */
#define SEQ_BLOCKS  (PROMPT / BLOCK + 1)


typedef struct {
    vlm_device_t             *dev;
    const vlm_ops_t          *ops;
    vlm_queue_t              *q;
    bench_roofs_t             roofs;
    double                    seconds;
    vlm_quant_t               quant;
    double                    times[MAX_LINES];     /* before it */
    int                       line;
    vlm_model_t              *model;
    const vlm_model_info_t   *info;
    vlm_decoder_t            *decoder;
    int32_t                   blocks[MAX_SEQS][SEQ_BLOCKS];
    int32_t                   ids[PROMPT];
    int32_t                   positions[3 * PROMPT];
} bench_t;


static int bench_all(bench_t *b, const char *dir, vlm_error_t *err);
static int bench_load(bench_t *b, const char *dir, vlm_error_t *err);
static int bench_encode(bench_t *b, vlm_error_t *err);
static int encode_once(vlm_encoder_t *e, const vlm_image_t *image,
    const vlm_image_plan_t *plan, double *cost, vlm_error_t *err);
static int bench_prefill(bench_t *b, vlm_error_t *err);
static int bench_decode(bench_t *b, int32_t nseqs, vlm_error_t *err);
static int step(bench_t *b, int32_t first, int32_t nseqs, int32_t rows,
    int32_t context, vlm_error_t *err);
static double decoder_macs(const bench_t *b, int64_t rows, int64_t keys);
static double decoder_bytes(const bench_t *b, int64_t nseqs);
static void report(bench_t *b, const char *name, double t, double flops,
    double bytes);


int
main(int argc, char **argv)
{
    int          opt, nthreads, rc, twice;
    char         text[256], machine[128];
    bench_t     *b;
    vlm_error_t  err;

    b = calloc(1, sizeof(bench_t));
    if (b == NULL) {
        return 1;
    }

    b->seconds = 2;
    nthreads = 0;
    twice = 0;

    while ((opt = getopt(argc, argv, "qt:s:")) != -1) {

        if (opt == 't') {
            nthreads = atoi(optarg);

        } else if (opt == 's') {
            b->seconds = atof(optarg);

        } else if (opt == 'q') {
            twice = 1;

        } else {
            return 2;
        }
    }

    if (optind != argc - 1) {
        fprintf(stderr, "usage: %s [-q] [-t threads] [-s seconds] DIR\n",
                argv[0]);
        return 2;
    }

    b->dev = vlm_cpu_device(nthreads, &b->ops, text, sizeof(text));
    if (b->dev == NULL) {
        fprintf(stderr, "%s\n", text);
        return 1;
    }

    bench_machine(machine, sizeof(machine));
    printf("%s, %s, %d threads of %d\n", machine, b->ops->name,
           vlm_pool_size(b->dev->pool), vlm_cpu_count());

    rc = bench_all(b, argv[optind], &err);

    if (rc == VLM_OK && twice) {
        b->quant = VLM_QUANT_INT8;
        rc = bench_all(b, argv[optind], &err);
    }

    if (rc == VLM_ERROR) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }

    vlm_cpu_device_destroy(b->dev);
    free(b);

    return 0;
}


static int
bench_all(bench_t *b, const char *dir, vlm_error_t *err)
{
    int32_t  n;

    b->line = 0;

    if (bench_load(b, dir, err) == VLM_ERROR
        || bench_encode(b, err) == VLM_ERROR
        || bench_prefill(b, err) == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    for (n = 1; n <= MAX_SEQS; n *= 2) {

        if (bench_decode(b, n, err) == VLM_ERROR) {
            return VLM_ERROR;
        }
    }

    vlm_decoder_free(b->decoder);
    vlm_model_free(b->model);
    b->ops->queue_destroy(b->q);

    return VLM_OK;
}


static int
bench_load(bench_t *b, const char *dir, vlm_error_t *err)
{
    int                  i;
    double               start;
    vlm_model_options_t  options;

    memset(&options, 0, sizeof(vlm_model_options_t));
    options.quant = b->quant;
    options.vision_quant = b->quant;

    b->q = b->ops->queue_create(b->dev, 0);

    if (b->q == NULL || bench_roofs(b->dev, &b->roofs) != 0) {
        return vlm_fail(err, 500, "", "no memory");
    }

    start = bench_now();

    b->model = vlm_model_open(dir, &options, err);

    if (b->model == NULL
        || vlm_model_load(b->model, b->dev, b->ops, NULL, NULL, err)
           == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    b->info = vlm_model_info(b->model);

    printf("\n%s: %.1f GFLOP/s, int8 %.1f, %.1f GB/s\n"
           "%d vision and %d decoder layers, %.0f MB, loaded in %.2f s\n\n"
           "%-28s %10s %9s %7s %7s\n",
           b->quant == VLM_QUANT_NONE ? "roofs" : "int8 weights; roofs",
           b->roofs.flops * 1e-9, b->roofs.int8 * 1e-9,
           b->roofs.bytes * 1e-9, b->info->vision_layers, b->info->layers,
           (double) b->info->weight_bytes * 1e-6, bench_now() - start,
           "", "ms", "GFLOP/s", "GB/s", "% roof");
    fflush(stdout);

    b->decoder = vlm_decoder_create(b->model, b->q, MAX_SEQS * SEQ_BLOCKS,
                                    BLOCK, PROMPT, MAX_SEQS, err);
    if (b->decoder == NULL) {
        return VLM_ERROR;
    }

    for (i = 0; i < MAX_SEQS * SEQ_BLOCKS; i++) {
        b->blocks[i / SEQ_BLOCKS][i % SEQ_BLOCKS] = i;
    }

    for (i = 0; i < PROMPT; i++) {
        b->ids[i] = i * 31 % 256;
    }

    for (i = 0; i < MAX_SEQS; i += PROMPT / CONTEXT) {

        if (step(b, i, PROMPT / CONTEXT, CONTEXT, 0, err) == VLM_ERROR) {
            return VLM_ERROR;
        }
    }

    return VLM_OK;
}


static int
bench_encode(bench_t *b, vlm_error_t *err)
{
    int                i;
    char               name[64];
    double             start, end, t, best, cost;
    vlm_image_t        image;
    vlm_encoder_t     *e;
    vlm_image_plan_t   plan;

    if (vlm_model_plan(b->model, PICTURE, PICTURE, 0, &plan, err)
        == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    image.width = plan.width;
    image.height = plan.height;
    image.data = malloc((size_t) plan.width * plan.height * 3);
    e = vlm_encoder_create(b->model, b->q, err);

    if (image.data == NULL || e == NULL) {
        free(image.data);
        return vlm_fail(err, 500, "", "no encoder");
    }

    for (i = 0; i < (int) (plan.width * plan.height * 3); i++) {
        image.data[i] = (uint8_t) (i * 7);
    }

    best = INFINITY;
    end = bench_now() + b->seconds;

    do {
        start = bench_now();

        if (encode_once(e, &image, &plan, &cost, err) == VLM_ERROR) {
            return VLM_ERROR;
        }

        t = bench_now() - start;
        best = t < best ? t : best;

    } while (bench_now() < end);

    snprintf(name, sizeof(name), "encode %ux%u", plan.width, plan.height);
    report(b, name, best, 2 * cost, (double) b->info->vision_bytes);

    vlm_encoder_free(e);
    free(image.data);

    return VLM_OK;
}


static int
encode_once(vlm_encoder_t *e, const vlm_image_t *image,
    const vlm_image_plan_t *plan, double *cost, vlm_error_t *err)
{
    int                rc;
    vlm_encode_job_t  *job;

    job = vlm_encode_begin(e, image, plan, 1, err);
    if (job == NULL) {
        return VLM_ERROR;
    }

    *cost = vlm_encode_cost(job);
    rc = vlm_encode_step(job, INFINITY, err);
    vlm_encode_free(job);

    return rc;
}


static int
bench_prefill(bench_t *b, vlm_error_t *err)
{
    char    name[64];
    double  start, end, t, best;

    best = INFINITY;
    end = bench_now() + b->seconds;

    do {
        start = bench_now();

        if (step(b, 0, 1, PROMPT, 0, err) == VLM_ERROR) {
            return VLM_ERROR;
        }

        t = bench_now() - start;
        best = t < best ? t : best;

    } while (bench_now() < end);

    snprintf(name, sizeof(name), "prefill %d", PROMPT);
    report(b, name, best,
           2 * (decoder_macs(b, PROMPT, PROMPT / 2)
                + (double) b->info->vocab * b->info->hidden),
           decoder_bytes(b, 1));

    return VLM_OK;
}


static int
bench_decode(bench_t *b, int32_t nseqs, vlm_error_t *err)
{
    char    name[64];
    double  start, end, t, best;

    best = INFINITY;
    end = bench_now() + b->seconds;

    do {
        start = bench_now();

        if (step(b, 0, nseqs, 1, CONTEXT, err) == VLM_ERROR) {
            return VLM_ERROR;
        }

        t = bench_now() - start;
        best = t < best ? t : best;

    } while (bench_now() < end);

    snprintf(name, sizeof(name), "decode %d, %.1f tokens/s", nseqs,
             nseqs / best);
    report(b, name, best,
           2 * (decoder_macs(b, nseqs, CONTEXT)
                + (double) nseqs * b->info->vocab * b->info->hidden),
           decoder_bytes(b, nseqs));

    return VLM_OK;
}


/* one step of some sequences, logits of each one's last row */

static int
step(bench_t *b, int32_t first, int32_t nseqs, int32_t rows, int32_t context,
    vlm_error_t *err)
{
    int32_t              i;
    int32_t              start[MAX_SEQS + 1], contexts[MAX_SEQS];
    int32_t              out[MAX_SEQS];
    vlm_tensor_t         logits;
    vlm_decode_batch_t   batch;

    memset(&batch, 0, sizeof(vlm_decode_batch_t));

    for (i = 0; i < nseqs; i++) {
        start[i] = i * rows;
        contexts[i] = context;
        out[i] = (i + 1) * rows - 1;
    }

    start[nseqs] = nseqs * rows;

    /* [3][nrows], without gaps */

    for (i = 0; i < 3 * nseqs * rows; i++) {
        b->positions[i] = context + i % rows;
    }

    batch.step.nrows = nseqs * rows;
    batch.step.nseqs = nseqs;
    batch.step.row_start = start;
    batch.step.context = contexts;
    batch.step.blocks = b->blocks[first];
    batch.step.max_blocks = SEQ_BLOCKS;
    batch.step.ids = b->ids;
    batch.step.positions = b->positions;
    batch.out_rows = out;
    batch.nout = nseqs;

    return vlm_decoder_step(b->decoder, &batch, &logits, err);
}


/* multiply-adds of all layers; each row sees so many keys */

static double
decoder_macs(const bench_t *b, int64_t rows, int64_t keys)
{
    double                    qkv, h, layer;
    const vlm_model_info_t   *i = b->info;

    h = i->hidden;
    qkv = (double) (i->heads + 2 * i->kv_heads) * i->head_dim;

    layer = qkv * h + (double) i->heads * i->head_dim * h
            + 3 * h * i->intermediate
            + 2.0 * i->heads * i->head_dim * (double) keys;

    return layer * (double) rows * i->layers;
}


/* the weights of the layers and the head, the cache of each sequence */

static double
decoder_bytes(const bench_t *b, int64_t nseqs)
{
    double  cache;

    cache = 2.0 * b->info->kv_heads * b->info->head_dim * CONTEXT
            * b->info->layers * sizeof(float);

    return (double) (b->info->weight_bytes - b->info->vision_bytes)
           + (double) nseqs * cache;
}


/* (with int8 attention and the head are float32 still, and less than that) */

static void
report(bench_t *b, const char *name, double t, double flops, double bytes)
{
    double  least, by_bytes, roof;

    roof = b->quant == VLM_QUANT_NONE ? b->roofs.flops : b->roofs.int8;
    least = roof > 0 ? flops / roof : 0;
    by_bytes = bytes / b->roofs.bytes;

    if (by_bytes > least) {
        least = by_bytes;
    }

    printf("%-28s %10.2f %9.1f %7.2f %6.1f%%", name, t * 1e3,
           flops / t * 1e-9, bytes / t * 1e-9, 100 * least / t);

    if (b->quant == VLM_QUANT_NONE) {
        b->times[b->line++] = t;

    } else {
        printf("  x%.2f", b->times[b->line++] / t);
    }

    printf("\n");
    fflush(stdout);
}
