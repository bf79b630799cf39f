
/*
 * Deterministic: a row's bits do not depend on the rows beside it, though the
 * library's products do (VLM_EMU_GEMM_SHAPES=1: those of the shim depend on
 * every number of the problem).  Products alone, and answers of a model, in
 * batches of any size and in whatever chunks.  Without the option the same
 * comparisons find differences: they can.
 */

#include "t/unit/cuda_rig.h"
#include "t/unit/lib/golden.h"


#define MOST      150               /* rows: more than a pinned product has */

#if defined(__SANITIZE_ADDRESS__)
#define STEPS     2
#define BATCHES   { 2, 5 }
#else
#define STEPS     3                 /* tokens of an answer */
#define BATCHES   { 2, 3, 8, GOLDEN_SEQS }
#endif

#define NCASES    3


typedef struct {
    int                  n, k;
    vlm_weight_layout_t  layout;
    vlm_act_t            act;
    int                  residual;      /* y itself */
    int                  f32_out;
    vlm_quant_t          quant;
} shape_t;

typedef struct {
    const shape_t       *s;
    vlm_weight_t         w;
    vlm_tensor_t         x, y;
    float               *add;
    float               *alone;         /* [MOST][columns of y] */
} product_t;


static void
set_device(rig_t *rig, int f32, int deterministic)
{
    vlm_cuda_options_t  opt;

    memset(&opt, 0, sizeof(opt));
    opt.f32 = f32;
    opt.deterministic = deterministic;

    setenv("VLM_EMU_GEMM_SHAPES", "1", 1);
    rig_open_as(rig, rig_cuda(), &opt);
}


/* ---- products ---- */

static void
product_open(rig_t *rig, product_t *p, const shape_t *s, uint64_t *seed)
{
    int                i, out, nparts;
    char               err[256];
    float             *w, *b, *x;
    vlm_host_matrix_t  parts[2], biases[2];

    memset(p, 0, sizeof(product_t));
    p->s = s;

    nparts = s->layout == VLM_WEIGHT_GATED ? 2 : 1;
    out = s->n / nparts;
    w = rig_random(seed, (size_t) s->n * s->k, 1.0f);
    b = rig_random(seed, (size_t) s->n, 1.0f);
    x = rig_random(seed, (size_t) MOST * s->k, 1.0f);
    p->add = rig_random(seed, (size_t) MOST * out, 1.0f);

    for (i = 0; i < nparts; i++) {
        parts[i].data = w + (size_t) i * out * s->k;
        parts[i].dtype = VLM_F32;
        parts[i].rows = out;
        parts[i].cols = s->k;
        biases[i].data = b + i * out;
        biases[i].dtype = VLM_F32;
        biases[i].rows = out;
        biases[i].cols = 1;
    }

    if (rig->ops->weight_create(rig->dev, &p->w, s->layout, s->quant, parts,
                                biases, nparts, err, sizeof(err))
        != 0)
    {
        rig_stop("weight", err);
    }

    p->x = rig_act(rig, x, MOST, s->k);
    p->y = rig_tensor(rig, NULL, MOST, out, out,
                      s->f32_out ? VLM_F32 : rig->ops->act_dtype);
    free(w);
    free(b);
    free(x);
}


static void
product_close(rig_t *rig, product_t *p)
{
    rig->ops->weight_destroy(&p->w);
    rig_free(rig, &p->x);
    rig_free(rig, &p->y);
    free(p->add);
    free(p->alone);
}


/* rows [first, first + n), n at a time, from there on */

static float *
product_run(rig_t *rig, product_t *p, int first, int n)
{
    int            i;
    float         *values;
    vlm_tensor_t   x, y, fresh;

    x = vlm_rows(&p->x, first, n);
    y = vlm_rows(&p->y, first, n);

    if (p->s->residual) {
        fresh = rig_tensor(rig, p->add + (size_t) first * y.cols, n, y.cols,
                           y.cols, y.dtype);
        rig->ops->convert(rig->q, &y, &fresh);
        rig_sync(rig);
        rig_free(rig, &fresh);
    }

    rig->ops->linear(rig->q, &y, &x, &p->w, p->s->act,
                     p->s->residual ? &y : NULL);
    values = rig_values(rig, &y);

    for (i = 0; i < n * y.cols; i++) {
        if (!isfinite(values[i])) {
            rig_stop("product", "not finite");
        }
    }

    return values;
}


/* rows that differ from those alone, in batches of n */

static int
product_differ(rig_t *rig, product_t *p, int n)
{
    int     first, r, differ;
    size_t  size;
    float  *values;

    size = (size_t) p->y.cols * sizeof(float);
    differ = 0;

    for (first = 0; first + n <= MOST; first += MOST / 2 + 1) {
        values = product_run(rig, p, first, n);

        for (r = 0; r < n; r++) {
            differ += memcmp(values + r * p->y.cols,
                             p->alone + (first + r) * p->y.cols, size) != 0;
        }

        free(values);
    }

    return differ;
}


static int
product_check(rig_t *rig, const shape_t *s, uint64_t *seed)
{
    int        r, i, differ;
    float     *row;
    product_t  p;

    static const int  many[] = { 31, 127, 128, 129, MOST };

    product_open(rig, &p, s, seed);
    p.alone = rig_memory((size_t) MOST * p.y.cols * sizeof(float));

    for (r = 0; r < MOST; r++) {
        row = product_run(rig, &p, r, 1);
        memcpy(p.alone + r * p.y.cols, row, p.y.cols * sizeof(float));
        free(row);
    }

    differ = 0;

    for (i = 2; i <= 17; i++) {
        differ += product_differ(rig, &p, i);
    }

    for (i = 0; i < (int) (sizeof(many) / sizeof(many[0])); i++) {
        differ += product_differ(rig, &p, many[i]);
    }

    product_close(rig, &p);

    return differ;
}


static void
test_products(int f32)
{
    int       i, differ, found;
    rig_t     pinned, loose;
    uint64_t  seed = 1;

    static const shape_t  shapes[] = {
        { 24, 64, 0, VLM_ACT_NONE, 0, 0, VLM_QUANT_NONE },
        { 40, 63, 0, VLM_ACT_NONE, 1, 0, VLM_QUANT_NONE },
        { 35, 72, 0, VLM_ACT_NONE, 0, 1, VLM_QUANT_NONE },
        { 33, 40, 0, VLM_ACT_GELU_TANH, 0, 0, VLM_QUANT_NONE },
        { 24, 129, 0, VLM_ACT_QUICK_GELU, 1, 0, VLM_QUANT_NONE },
        { 34, 56, VLM_WEIGHT_GATED, VLM_ACT_SILU, 0, 0, VLM_QUANT_NONE },
        { 24, 70, 0, VLM_ACT_NONE, 1, 0, VLM_QUANT_INT8 },
        { 34, 56, VLM_WEIGHT_GATED, VLM_ACT_SILU, 0, 0, VLM_QUANT_INT8 },
        { 24, 70, 0, VLM_ACT_GELU, 1, 0, VLM_QUANT_FP8 },
        { 34, 56, VLM_WEIGHT_GATED, VLM_ACT_SILU, 0, 1, VLM_QUANT_FP8 }
    };

    set_device(&pinned, f32, 1);
    set_device(&loose, f32, 0);
    found = 0;

    for (i = 0; i < (int) (sizeof(shapes) / sizeof(shapes[0])); i++) {
        differ = product_check(&pinned, &shapes[i], &seed);

        tap_is(differ, 0, "%s: %d x %d, layout %d, act %d, residual %d, "
               "quant %d: rows alone and among 2 to %d others",
               f32 ? "f32" : "bf16", shapes[i].n, shapes[i].k,
               (int) shapes[i].layout, (int) shapes[i].act,
               shapes[i].residual, (int) shapes[i].quant, MOST);

        differ = product_check(&loose, &shapes[i], &seed);

        if (shapes[i].quant == VLM_QUANT_INT8) {
            tap_is(differ, 0, "integers are exact anyhow");

        } else if (shapes[i].quant == VLM_QUANT_NONE) {
            found += differ > 0;
        }
    }

    if (pinned.kind == RIG_EMU) {
        /* bfloat16 rounds most of it away */
        tap_ok(found >= (f32 ? 6 : 1), "of the others %d differ without the "
               "option", found);
    }

    rig_close(&pinned);
    rig_close(&loose);
}


/* ---- answers ---- */

typedef struct {
    golden_case_t        c;
    vlm_encode_job_t    *job;
    float               *logits;        /* [STEPS][vocab], alone */
} known_t;


static const vlm_tensor_t *
pictures(const known_t *k)
{
    return k->job != NULL ? vlm_encode_result(k->job) : NULL;
}


/* logits of a sequence that is alone, its prompt in chunks */

static int
answer(golden_rig_t *rig, const known_t *k, int chunk, float *logits)
{
    int             step;
    size_t          vocab;
    int32_t         left;
    golden_seq_t    seq;
    vlm_sampled_t   sampled;

    vocab = (size_t) vlm_model_info(rig->model)->vocab;

    if (golden_begin(&seq, &k->c, pictures(k), chunk % GOLDEN_SEQS) < 0) {
        return -1;
    }

    for (step = 0; step < STEPS; step++) {

        do {
            left = (int32_t) seq.ids.len - seq.computed;
            seq.n = left < chunk ? left : chunk;

            if (golden_step(rig, &seq, 1, logits + step * vocab, &sampled)
                < 0)
            {
                return -1;
            }
        } while (seq.computed < (int32_t) seq.ids.len);

        vlm_ids_append(&seq.ids, sampled.id, 1);
    }

    vlm_ids_free(&seq.ids);

    return 0;
}


/* logits that differ from those alone, of "n" sequences side by side */

static int
together(golden_rig_t *rig, const known_t *known, int n)
{
    int             i, step, differ;
    float          *logits;
    size_t          vocab;
    golden_seq_t    seqs[GOLDEN_SEQS];
    vlm_sampled_t   sampled[GOLDEN_SEQS];

    vocab = (size_t) vlm_model_info(rig->model)->vocab;
    logits = rig_memory((size_t) n * vocab * sizeof(float));
    differ = 0;

    for (i = 0; i < n; i++) {
        if (golden_begin(&seqs[i], &known[i % NCASES].c,
                         pictures(&known[i % NCASES]), i)
            < 0)
        {
            return -1;
        }
    }

    for (step = 0; step < STEPS; step++) {

        /* prompts two by two, there is no room for all */

        for (i = 0; i < n && step == 0; i += 2) {
            if (golden_step(rig, seqs + i, i + 1 < n ? 2 : 1,
                            logits + i * vocab, sampled + i)
                < 0)
            {
                return -1;
            }
        }

        if (step > 0 && golden_step(rig, seqs, n, logits, sampled) < 0) {
            return -1;
        }

        for (i = 0; i < n; i++) {
            differ += memcmp(logits + i * vocab,
                             known[i % NCASES].logits + step * vocab,
                             vocab * sizeof(float)) != 0;
            vlm_ids_append(&seqs[i].ids, sampled[i].id, 1);
        }
    }

    for (i = 0; i < n; i++) {
        vlm_ids_free(&seqs[i].ids);
    }

    free(logits);

    return differ;
}


static int
know(golden_rig_t *rig, known_t *known)
{
    int      i;
    size_t   vocab;

    static const char  *names[NCASES] = {
        "text_only", "one_tiny", "text_system"
    };

    vocab = (size_t) vlm_model_info(rig->model)->vocab;

    for (i = 0; i < NCASES; i++) {

        if (golden_load(&known[i].c, rig->model, "base", names[i]) < 0) {
            return -1;
        }

        if (known[i].c.npictures != 0) {
            known[i].job = golden_encode(rig, &known[i].c, INFINITY);

            if (known[i].job == NULL) {
                return -1;
            }
        }

        known[i].logits = rig_memory(STEPS * vocab * sizeof(float));

        if (answer(rig, &known[i], GOLDEN_ROWS, known[i].logits) < 0) {
            return -1;
        }
    }

    return 0;
}


/* chunks of a prompt: those whose logits differ */

static int
in_chunks(golden_rig_t *rig, const known_t *k)
{
    int     i, differ;
    float  *logits;
    size_t  size;

    static const int  chunks[] = { 5, 13, 40 };

    size = STEPS * (size_t) vlm_model_info(rig->model)->vocab * sizeof(float);
    logits = rig_memory(size);
    differ = 0;

    for (i = 0; i < (int) (sizeof(chunks) / sizeof(chunks[0])); i++) {
        if (answer(rig, k, chunks[i], logits) < 0) {
            return -1;
        }

        differ += memcmp(logits, k->logits, size) != 0;
    }

    free(logits);

    return differ;
}


/* a picture in slices of another size; rows that differ */

static int
in_slices(golden_rig_t *rig, const known_t *k)
{
    int                  r, differ;
    char                *a, *b;
    size_t               row;
    vlm_encode_job_t    *job;
    const vlm_tensor_t  *one, *other;

    job = golden_encode(rig, &k->c, 0);
    if (job == NULL) {
        return -1;
    }

    one = vlm_encode_result(k->job);
    other = vlm_encode_result(job);

    row = (size_t) one->cols * vlm_dtype_size(one->dtype);
    a = rig_memory((size_t) one->rows * row);
    b = rig_memory((size_t) one->rows * row);

    rig->ops->download(rig->queue, a, one->data, (size_t) one->rows * row);
    rig->ops->download(rig->queue, b, other->data, (size_t) one->rows * row);
    rig->ops->sync(rig->queue, (char[64]) { 0 }, 64);

    differ = 0;

    for (r = 0; r < one->rows; r++) {
        differ += memcmp(a + r * row, b + r * row, row) != 0;
    }

    free(a);
    free(b);
    vlm_encode_free(job);

    return differ;
}


static void
test_answers(int deterministic)
{
    int           i, j, n, chunks, batches;
    rig_t         device;
    known_t       known[NCASES];
    golden_rig_t  rig;

    static const int  sizes[] = BATCHES;

    memset(known, 0, sizeof(known));
    set_device(&device, 0, deterministic);

    if (golden_open(&rig, tap_path("t/data/golden/qwen2_vl/base/model"),
                    device.dev, device.ops)
        < 0
        || know(&rig, known) < 0)
    {
        return;
    }

    chunks = 0;
    batches = 0;

    for (i = 0; i < NCASES; i++) {
        n = in_chunks(&rig, &known[i]);
        chunks += n;

        if (deterministic) {
            tap_is(n, 0, "%s: the prompt in chunks", known[i].c.name);
        }
    }

    for (j = 0; j < (int) (sizeof(sizes) / sizeof(sizes[0])); j++) {
        n = sizes[j];
        i = together(&rig, known, n);
        batches += i;

        if (deterministic) {
            tap_is(i, 0, "%d answers side by side", n);
        }
    }

    if (deterministic) {
        tap_is(in_slices(&rig, &known[1]), 0, "a picture in slices");

    } else if (device.kind == RIG_EMU) {
        tap_ok(chunks > 0 && batches > 0, "without the option %d and %d "
               "differ", chunks, batches);
    }

    for (i = 0; i < NCASES; i++) {
        vlm_encode_free(known[i].job);
        golden_free(&known[i].c);
        free(known[i].logits);
    }

    golden_close(&rig);
    rig_close(&device);
}


int
main(void)
{
    vlm_emu_seed(5);

    test_products(0);
    test_products(1);
    test_answers(1);
    test_answers(0);

    return tap_done();
}
