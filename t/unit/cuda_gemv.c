
/*
 * Products for few rows of the CUDA sources, on the shim, against the CPU
 * device: through linear(), which takes that way up to 8 rows.
 */

#include "t/unit/cuda_rig.h"


typedef struct {
    int                  rows;
    int                  n;             /* of y */
    int                  k;
    int                  gated;
    int                  bias;
    vlm_act_t            act;
    int                  residual;      /* 2: y itself */
    int                  wide;          /* y is float32 */
} shape_t;

typedef struct {
    float               *x;
    float               *w;
    float               *b;
    float               *add;
    uint16_t            *w16;
} data_t;


static int
outputs(const shape_t *s)
{
    return s->gated ? 2 * s->n : s->n;
}


static data_t
data_make(const shape_t *s, uint64_t *seed)
{
    size_t  i, n;
    data_t  d;

    n = (size_t) outputs(s) * s->k;

    d.x = rig_random(seed, (size_t) s->rows * s->k, 1.0f);
    d.w = rig_random(seed, n, 2.0f / sqrtf((float) s->k));
    d.b = rig_random(seed, (size_t) outputs(s), 1.0f);
    d.add = rig_random(seed, (size_t) s->rows * s->n, 1.0f);
    d.w16 = rig_memory(n * sizeof(uint16_t));

    rig_round(d.x, (size_t) s->rows * s->k);
    rig_round(d.add, (size_t) s->rows * s->n);

    for (i = 0; i < n; i++) {
        d.w16[i] = rig_bf16(d.w[i]);
    }

    return d;
}


static void
data_free(data_t *d)
{
    free(d->x);
    free(d->w);
    free(d->b);
    free(d->add);
    free(d->w16);
}


static vlm_weight_t
weight_make(rig_t *rig, const shape_t *s, const data_t *d)
{
    int                i, parts, n;
    char               err[256];
    vlm_weight_t       w;
    vlm_host_matrix_t  m[2], b[2];

    parts = s->gated ? 2 : 1;
    n = s->n;

    for (i = 0; i < parts; i++) {
        m[i].data = d->w16 + (size_t) i * n * s->k;
        m[i].dtype = VLM_BF16;
        m[i].rows = n;
        m[i].cols = s->k;
        b[i].data = d->b + i * n;
        b[i].dtype = VLM_F32;
        b[i].rows = n;
        b[i].cols = 1;
    }

    if (rig->ops->weight_create(rig->dev, &w, s->gated ? VLM_WEIGHT_GATED
                                                       : VLM_WEIGHT_PLAIN,
                                VLM_QUANT_NONE,
                                m, s->bias ? b : NULL, parts, err,
                                sizeof(err))
        != 0)
    {
        rig_stop("weight", err);
    }

    return w;
}


/* rows [first, first + n) of the case */

static float *
linear_on(rig_t *rig, const shape_t *s, const data_t *d, int first, int n)
{
    float         *result;
    vlm_dtype_t    type;
    vlm_weight_t   w;
    vlm_tensor_t   x, y, add;

    type = s->wide ? VLM_F32 : rig->ops->act_dtype;

    w = weight_make(rig, s, d);
    x = rig_act(rig, d->x + (size_t) first * s->k, n, s->k);
    add = rig_tensor(rig, d->add + (size_t) first * s->n, n, s->n, s->n,
                     type);
    y = s->residual == 2 ? add : rig_tensor(rig, NULL, n, s->n, s->n, type);

    rig->ops->linear(rig->q, &y, &x, &w, s->act,
                     s->residual != 0 ? &add : NULL);
    result = rig_values(rig, &y);

    rig->ops->weight_destroy(&w);
    rig_free(rig, &x);
    rig_free(rig, &add);

    if (s->residual != 2) {
        rig_free(rig, &y);
    }

    return result;
}


static void
check(rigs_t *rigs, const shape_t *s, uint64_t *seed)
{
    int      r, differ;
    float   *cpu, *f32, *bf16, *one;
    size_t   n;
    double   wide, narrow;
    data_t   d;

    d = data_make(s, seed);
    n = (size_t) s->rows * s->n;

    cpu = linear_on(&rigs->cpu, s, &d, 0, s->rows);
    f32 = linear_on(&rigs->f32, s, &d, 0, s->rows);
    bf16 = linear_on(&rigs->bf16, s, &d, 0, s->rows);

    wide = rig_worst(f32, cpu, n, RIG_F32);
    narrow = rig_worst(bf16, cpu, n, s->wide ? RIG_F32 : RIG_BF16);

    tap_ok(wide < 1 && narrow < 1, "%d x %d by %d%s%s, activation %d, "
           "residual %d%s: %.2g, %.3f", s->rows, s->k, s->n,
           s->gated ? " gated" : "", s->bias ? " + bias" : "", (int) s->act,
           s->residual, s->wide ? ", to float32" : "", wide, narrow);

    differ = 0;

    for (r = 0; r < s->rows && s->k % 8 == 0; r++) {
        one = linear_on(&rigs->bf16, s, &d, r, 1);
        differ += memcmp(one, bf16 + (size_t) r * s->n,
                         (size_t) s->n * sizeof(float)) != 0;
        free(one);
    }

    if (s->rows > 1 && s->rows <= 8 && s->k % 8 == 0) {
        tap_is(differ, 0, "each row alone: the same bits");
    }

    free(cpu);
    free(f32);
    free(bf16);
    data_free(&d);
}


int
main(void)
{
    int       c;
    rigs_t    rigs;
    shape_t   s;
    uint64_t  seed = 1;

    static const shape_t  cases[] = {
        { 1, 96, 1536, 0, 1, VLM_ACT_NONE, 0, 0 },
        { 2, 33, 64, 0, 1, VLM_ACT_GELU, 1, 0 },
        { 3, 257, 80, 0, 0, VLM_ACT_NONE, 2, 0 },
        { 4, 40, 8960, 0, 0, VLM_ACT_NONE, 2, 0 },
        { 5, 67, 256, 1, 0, VLM_ACT_SILU, 0, 0 },
        { 6, 300, 8, 1, 1, VLM_ACT_GELU_TANH, 1, 0 },
        { 7, 501, 72, 0, 0, VLM_ACT_NONE, 0, 1 },
        { 8, 130, 1288, 1, 1, VLM_ACT_SILU, 2, 0 },
        { 8, 1, 24, 0, 1, VLM_ACT_QUICK_GELU, 1, 1 },
        { 1, 1, 8, 1, 0, VLM_ACT_SILU, 0, 0 },

        /* the library's: rows that begin anywhere, and more of them */
        { 3, 31, 63, 0, 1, VLM_ACT_NONE, 1, 0 },
        { 9, 31, 64, 1, 1, VLM_ACT_SILU, 1, 0 }
    };

    rigs_open(&rigs);

    for (c = 0; c < (int) (sizeof(cases) / sizeof(cases[0])); c++) {
        vlm_emu_seed((uint64_t) c);
        check(&rigs, &cases[c], &seed);
    }

    for (c = 0; c < 24; c++) {
        vlm_emu_seed((uint64_t) (100 + c));
        s.rows = 1 + c % 8;
        s.n = 1 + rig_below(&seed, 200);
        s.k = 8 * (1 + rig_below(&seed, 60));
        s.gated = rig_below(&seed, 2);
        s.bias = rig_below(&seed, 2);
        s.act = (vlm_act_t) rig_below(&seed, 5);
        s.residual = rig_below(&seed, 3);
        s.wide = rig_below(&seed, 4) == 0;
        check(&rigs, &s, &seed);
    }

    rigs_close(&rigs);

    return tap_done();
}
