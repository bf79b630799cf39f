
/*
 * Products of the CUDA sources on the shim, against the CPU device: layouts,
 * biases, activations and residuals, every float type of a checkpoint, rows
 * that do not fit in the work memory at once, embeddings.
 */

#include "t/unit/cuda_rig.h"


typedef struct {
    int                  rows, n, k;
    vlm_weight_layout_t  layout;
    vlm_act_t            act;
    int                  bias;          /* 2: of one part alone */
    int                  residual;      /* 2: y itself */
    int                  f32_out;
    vlm_dtype_t          dtype;         /* of the checkpoint */
} case_t;

typedef struct {
    float              *x;
    float              *w;              /* [n, k] */
    float              *b;
    float              *add;
    vlm_host_matrix_t   parts[2];
    vlm_host_matrix_t   biases[2];
    void               *raw[4];
} data_t;


/* as a checkpoint holds it */

static void *
stored(const float *x, size_t n, vlm_dtype_t dtype)
{
    size_t     i;
    float     *f;
    uint16_t  *h;

    if (dtype == VLM_F32) {
        f = rig_memory(n * sizeof(float));
        memcpy(f, x, n * sizeof(float));
        return f;
    }

    h = rig_memory(n * sizeof(uint16_t));

    for (i = 0; i < n; i++) {
        h[i] = dtype == VLM_BF16 ? rig_bf16(x[i])
               /* of +-1, +-0.5 and 0 alone */
               : (uint16_t) (x[i] == 0.0f ? 0
                             : (x[i] < 0.0f ? 0x8000 : 0)
                               | (fabsf(x[i]) > 0.7f ? 0x3c00 : 0x3800));
    }

    return h;
}


static void
make_data(data_t *d, const case_t *c, uint64_t *seed)
{
    int     i, out, half;
    size_t  n, size;

    memset(d, 0, sizeof(data_t));

    n = (size_t) c->n * c->k;
    out = c->layout == VLM_WEIGHT_GATED ? c->n / 2 : c->n;
    size = vlm_dtype_size(c->dtype);

    d->x = rig_random(seed, (size_t) c->rows * c->k, 1.0f);
    d->w = rig_random(seed, n, 2.0f / sqrtf((float) c->k));
    d->b = rig_random(seed, c->n, 0.5f);
    d->add = rig_random(seed, (size_t) c->rows * out, 1.0f);

    if (c->dtype == VLM_F16) {
        for (i = 0; i < (int) n; i++) {
            d->w[i] = (float) (rig_below(seed, 5) - 2) * 0.5f;
        }

        for (i = 0; i < c->n; i++) {
            d->b[i] = (float) (rig_below(seed, 5) - 2) * 0.5f;
        }
    }

    rig_round(d->x, (size_t) c->rows * c->k);
    rig_round(d->w, n);
    rig_round(d->b, c->n);
    rig_round(d->add, (size_t) c->rows * out);

    /* two parts, unequal ones if they may be */

    half = c->layout == VLM_WEIGHT_GATED ? c->n / 2 : c->n / 3;
    half = half > 0 ? half : 1;

    for (i = 0; i < 2; i++) {
        d->parts[i].rows = i == 0 ? half : c->n - half;
        d->parts[i].cols = c->k;
        d->parts[i].dtype = c->dtype;
        d->biases[i].rows = d->parts[i].rows;
        d->biases[i].cols = 1;
        d->biases[i].dtype = c->dtype;
    }

    d->raw[0] = stored(d->w, n, c->dtype);
    d->raw[1] = stored(d->b, c->n, c->dtype);

    d->parts[0].data = d->raw[0];
    d->parts[1].data = (char *) d->raw[0] + size * half * c->k;
    d->biases[1].data = (char *) d->raw[1] + size * half;
    d->biases[0].data = c->bias == 2 ? NULL : d->raw[1];
}


static void
free_data(data_t *d)
{
    free(d->x);
    free(d->w);
    free(d->b);
    free(d->add);
    free(d->raw[0]);
    free(d->raw[1]);
}


static float *
linear_on(rig_t *rig, const case_t *c, const data_t *d)
{
    int            out, nparts;
    char           err[256];
    float         *result;
    vlm_dtype_t    type;
    vlm_weight_t   w;
    vlm_tensor_t   x, y, add;

    out = c->layout == VLM_WEIGHT_GATED ? c->n / 2 : c->n;
    type = c->f32_out ? VLM_F32 : rig->ops->act_dtype;
    nparts = d->parts[1].rows > 0 ? 2 : 1;

    if (rig->ops->weight_create(rig->dev, &w, c->layout, VLM_QUANT_NONE,
                                d->parts,
                                c->bias ? d->biases : NULL, nparts, err,
                                sizeof(err))
        != 0)
    {
        rig_stop("weight", err);
    }

    x = rig_act(rig, d->x, c->rows, c->k);
    y = rig_tensor(rig, c->residual == 2 ? d->add : NULL, c->rows, out, out,
                   type);
    add = rig_tensor(rig, d->add, c->rows, out, out, type);

    rig->ops->linear(rig->q, &y, &x, &w, c->act,
                     c->residual == 0 ? NULL : c->residual == 1 ? &add : &y);

    result = rig_values(rig, &y);

    rig_free(rig, &x);
    rig_free(rig, &y);
    rig_free(rig, &add);
    rig->ops->weight_destroy(&w);

    return result;
}


static void
test_linear(rigs_t *rigs)
{
    int        i;
    float     *cpu, *f32, *bf16;
    size_t     n;
    data_t     d;
    uint64_t   seed = 1;

    static const case_t  cases[] = {
        { 1, 1, 1, 0, VLM_ACT_NONE, 0, 0, 0, VLM_BF16 },
        { 3, 33, 17, 0, VLM_ACT_NONE, 1, 0, 0, VLM_BF16 },
        { 17, 64, 72, 0, VLM_ACT_NONE, 1, 1, 0, VLM_BF16 },
        { 5, 48, 1176, 0, VLM_ACT_NONE, 1, 2, 0, VLM_F32 },
        { 2, 30, 40, 0, VLM_ACT_NONE, 2, 0, 0, VLM_BF16 },
        { 4, 96, 64, 0, VLM_ACT_GELU_TANH, 1, 0, 0, VLM_BF16 },
        { 4, 96, 64, 0, VLM_ACT_GELU_TANH, 0, 0, 0, VLM_F16 },
        { 4, 96, 64, 0, VLM_ACT_GELU_TANH, 1, 2, 0, VLM_BF16 },
        { 6, 80, 64, 0, VLM_ACT_GELU, 1, 0, 0, VLM_BF16 },
        { 6, 80, 64, 0, VLM_ACT_QUICK_GELU, 1, 2, 0, VLM_F16 },
        { 6, 80, 64, 0, VLM_ACT_SILU, 0, 1, 0, VLM_F32 },
        { 9, 80, 64, VLM_WEIGHT_GATED, VLM_ACT_SILU, 0, 0, 0, VLM_BF16 },
        { 9, 82, 63, VLM_WEIGHT_GATED, VLM_ACT_GELU_TANH, 1, 2, 0, VLM_F16 },
        { 1, 82, 64, VLM_WEIGHT_GATED, VLM_ACT_SILU, 2, 1, 0, VLM_F32 },
        { 7, 515, 64, 0, VLM_ACT_NONE, 1, 0, 1, VLM_BF16 },
        { 7, 515, 64, 0, VLM_ACT_NONE, 0, 1, 1, VLM_F16 },
        { 729, 40, 24, 0, VLM_ACT_QUICK_GELU, 1, 2, 0, VLM_BF16 }
    };

    for (i = 0; i < (int) (sizeof(cases) / sizeof(cases[0])); i++) {
        make_data(&d, &cases[i], &seed);

        n = (size_t) cases[i].rows * (cases[i].layout == VLM_WEIGHT_GATED
                                      ? cases[i].n / 2 : cases[i].n);

        cpu = linear_on(&rigs->cpu, &cases[i], &d);
        f32 = linear_on(&rigs->f32, &cases[i], &d);
        bf16 = linear_on(&rigs->bf16, &cases[i], &d);

        /* bfloat16: what is between product and result is rounded too */

        tap_ok(rig_worst(f32, cpu, n, RIG_F32) < 1
               && rig_worst(bf16, cpu, n, RIG_BF16) < 3,
               "%d rows, %d x %d, layout %d, act %d, bias %d, residual %d, "
               "type %d: %.2g, %.2g", cases[i].rows, cases[i].n, cases[i].k,
               (int) cases[i].layout, (int) cases[i].act, cases[i].bias,
               cases[i].residual, (int) cases[i].dtype,
               rig_worst(f32, cpu, n, RIG_F32),
               rig_worst(bf16, cpu, n, RIG_BF16));

        if (cases[i].f32_out) {
            tap_ok(rig_worst(bf16, cpu, n, RIG_F32) < 1,
                   "the sums are float32: %.2g",
                   rig_worst(bf16, cpu, n, RIG_F32));
        }

        free(cpu);
        free(f32);
        free(bf16);
        free_data(&d);
    }
}


/* more results than the work memory has room for */

static void
test_large(rigs_t *rigs)
{
    float     *cpu, *f32;
    size_t     n;
    data_t     d;
    uint64_t   seed = 2;

    static const case_t  c = {
        700, 1040, 8, VLM_WEIGHT_GATED, VLM_ACT_SILU, 0, 0, 0, VLM_BF16
    };

    make_data(&d, &c, &seed);

    n = (size_t) c.rows * c.n / 2;
    cpu = linear_on(&rigs->cpu, &c, &d);
    f32 = linear_on(&rigs->f32, &c, &d);

    tap_ok(rig_worst(f32, cpu, n, RIG_F32) < 1, "in pieces: %.2g",
           rig_worst(f32, cpu, n, RIG_F32));

    free(cpu);
    free(f32);
    free_data(&d);
}


/* rows of an embedding by the ids of a step; ids are checked */

static void
test_embed(rig_t *rig)
{
    int                 i, bad;
    char                err[256];
    float              *w, *y;
    int32_t             ids[5] = { 4, 0, 51, 4, 7 };
    int32_t             start[3] = { 0, 2, 5 }, context[2] = { 0, 9 };
    int32_t             blocks[4] = { 0, 1, 2, 3 }, positions[5] = { 0 };
    uint64_t            seed = 3;
    vlm_step_t          step;
    vlm_rope_t          rope;
    vlm_weight_t        weight;
    vlm_tensor_t        t;
    vlm_step_host_t     host;
    vlm_host_matrix_t   m;

    w = rig_random(&seed, 52 * 70, 1.0f);
    rig_round(w, 52 * 70);

    m.data = w;
    m.dtype = VLM_F32;
    m.rows = 52;
    m.cols = 70;

    if (rig->ops->weight_create(rig->dev, &weight, VLM_WEIGHT_PLAIN,
                                VLM_QUANT_NONE, &m, NULL, 1, err, sizeof(err))
        != 0)
    {
        rig_stop("weight", err);
    }

    memset(&rope, 0, sizeof(rope));
    rope.npairs = 4;
    rope.naxes = 1;

    host.nrows = 5;
    host.nseqs = 2;
    host.row_start = start;
    host.context = context;
    host.blocks = blocks;
    host.max_blocks = 2;
    host.ids = ids;
    host.positions = positions;

    memset(&step, 0, sizeof(step));
    rig->ops->step_upload(rig->q, &step, &host, &rope);

    t = rig_act(rig, NULL, 5, 70);
    rig->ops->embed(rig->q, &t, &weight, &step);
    y = rig_values(rig, &t);

    bad = 0;

    for (i = 0; i < 5; i++) {
        bad += memcmp(y + i * 70, w + ids[i] * 70, 70 * sizeof(float)) != 0;
    }

    tap_is(bad, 0, "%s: rows of an embedding", rig->ops->name);

    ids[3] = 52;
    rig->ops->step_upload(rig->q, &step, &host, &rope);
    rig->ops->embed(rig->q, &t, &weight, &step);
    tap_ok(rig->ops->sync(rig->q, err, sizeof(err)) == -1, "%s: an id that "
           "is too large", rig->ops->name);
    tap_str(err, "embed: id 52 of row 3, the embedding has 52 rows", "and "
            "its message");

    free(w);
    free(y);
    rig_free(rig, &t);
    rig->ops->step_free(rig->dev, &step);
    rig->ops->weight_destroy(&weight);
}


static void
test_refused(rig_t *rig)
{
    char               err[256];
    float              w[6] = { 0 };
    vlm_weight_t       weight;
    vlm_tensor_t       x, y;
    vlm_host_matrix_t  parts[2];

    parts[0].data = w;
    parts[0].dtype = VLM_F32;
    parts[0].rows = 2;
    parts[0].cols = 3;
    parts[1] = parts[0];
    parts[1].cols = 2;

    tap_ok(rig->ops->weight_create(rig->dev, &weight, VLM_WEIGHT_GATED,
                                   VLM_QUANT_NONE, parts,
                                   NULL, 1, err, sizeof(err)) == -1,
           "a gate without its twin");
    tap_ok(rig->ops->weight_create(rig->dev, &weight, VLM_WEIGHT_PLAIN,
                                   VLM_QUANT_NONE, parts,
                                   NULL, 2, err, sizeof(err)) == -1,
           "parts of unequal columns");
    tap_str(err, "part 1 of a weight: 2 x 2 of type 0, the first has 3 "
            "columns of type 0", "and its message");
    tap_ok(rig->ops->weight_create(rig->dev, &weight, VLM_WEIGHT_PLAIN,
                                   VLM_QUANT_NONE, parts,
                                   NULL, 1, err, sizeof(err)) == 0,
           "one part");

    x = rig_act(rig, NULL, 4, 5);
    y = rig_act(rig, NULL, 4, 2);
    rig->ops->linear(rig->q, &y, &x, &weight, VLM_ACT_NONE, NULL);
    tap_ok(rig->ops->sync(rig->q, err, sizeof(err)) == -1, "a shape that "
           "does not fit");
    tap_str(err, "linear: [4, 5] of type 0 by weight [2, 3] of type 0 to "
            "[4, 2] of type 0", "and its message");

    rig_free(rig, &x);
    rig_free(rig, &y);
    rig->ops->weight_destroy(&weight);
}


int
main(void)
{
    rigs_t  rigs;

    vlm_emu_seed(7);
    rigs_open(&rigs);

    test_linear(&rigs);
    test_large(&rigs);
    test_embed(&rigs.f32);
    test_embed(&rigs.bf16);
    test_refused(&rigs.f32);

    rigs_close(&rigs);

    /* a library that has little: kernels do the rest */

    if (rig_cuda() == RIG_EMU) {
        setenv("VLM_EMU_GEMM_BARE", "1", 1);
        rigs_open(&rigs);

        test_linear(&rigs);
        test_large(&rigs);

        rigs_close(&rigs);
    }

    return tap_done();
}
