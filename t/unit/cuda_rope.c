
/*
 * Rotation and where keys and values go, by the shim: queries against the
 * CPU device, the cache's contents against what rotation and layout say.
 */

#include "t/unit/cuda_rig.h"


#define BLOCK   16

typedef struct {
    int32_t     heads, kv_heads, dim;
    int         gains;
    int32_t     nrows, nseqs, max_blocks, nblocks;
    int32_t     start[5], context[4];
    int32_t    *blocks, *ids, *positions;
    float      *qkv, *q_gain, *k_gain;
    vlm_rope_t  rope;
} case_t;

typedef struct {
    float      *qkv;
    float      *kv;                     /* [blocks][kv_heads][2][BLOCK][dim] */
} result_t;


static void
make_case(case_t *c, uint64_t *seed)
{
    int     i, s;
    size_t  n;

    c->nseqs = 4;
    c->max_blocks = 5;
    c->nblocks = c->nseqs * c->max_blocks;
    c->start[0] = 0;

    for (s = 0; s < c->nseqs; s++) {
        c->start[s + 1] = c->start[s] + 1 + rig_below(seed, 20);
        c->context[s] = rig_below(seed, 50);
    }

    c->nrows = c->start[c->nseqs];
    c->blocks = rig_memory(c->nblocks * sizeof(int32_t));
    c->ids = rig_memory(c->nrows * sizeof(int32_t));
    c->positions = rig_memory(3 * c->nrows * sizeof(int32_t));

    /* no two neighbours beside each other */

    for (i = 0; i < c->nblocks; i++) {
        c->blocks[i] = (i * 7 + 3) % c->nblocks;
    }

    for (i = 0; i < c->nrows; i++) {
        c->ids[i] = 0;
    }

    for (i = 0; i < 3 * c->nrows; i++) {
        c->positions[i] = rig_below(seed, 3000);
    }

    memset(&c->rope, 0, sizeof(vlm_rope_t));
    c->rope.npairs = c->dim / 2;
    c->rope.naxes = 3;

    for (i = 0; i < c->rope.npairs; i++) {
        c->rope.inv_freq[i] = powf(10000.0f, -2.0f * (float) i
                                             / (float) c->dim);
        c->rope.axis[i] = (uint8_t) (i % 3);
    }

    n = (size_t) c->nrows * (c->heads + 2 * c->kv_heads) * c->dim;
    c->qkv = rig_random(seed, n, 2.0f);
    rig_round(c->qkv, n);
    c->q_gain = rig_random(seed, c->dim, 1.0f);
    c->k_gain = rig_random(seed, c->dim, 1.0f);
}


static void
free_case(case_t *c)
{
    free(c->blocks);
    free(c->ids);
    free(c->positions);
    free(c->qkv);
    free(c->q_gain);
    free(c->k_gain);
}


static result_t
rope_on(rig_t *rig, const case_t *c)
{
    size_t           n;
    vlm_kv_t         kv;
    result_t         r;
    vlm_step_t       step;
    vlm_tensor_t     x, t, q_gain, k_gain;
    vlm_step_host_t  host;

    host.nrows = c->nrows;
    host.nseqs = c->nseqs;
    host.row_start = c->start;
    host.context = c->context;
    host.blocks = c->blocks;
    host.max_blocks = c->max_blocks;
    host.ids = c->ids;
    host.positions = c->positions;

    memset(&step, 0, sizeof(step));
    rig->ops->step_upload(rig->q, &step, &host, &c->rope);

    n = rig->ops->kv_block_bytes(rig->dev, BLOCK, c->kv_heads, c->dim);

    kv.data = rig->ops->alloc(rig->dev, n * c->nblocks);
    kv.device = rig->dev;
    kv.nblocks = c->nblocks;
    kv.block_size = BLOCK;
    kv.kv_heads = c->kv_heads;
    kv.head_dim = c->dim;

    x = rig_act(rig, c->qkv, c->nrows,
                (c->heads + 2 * c->kv_heads) * c->dim);
    q_gain = rig_tensor(rig, c->q_gain, 1, c->dim, c->dim, VLM_F32);
    k_gain = rig_tensor(rig, c->k_gain, 1, c->dim, c->dim, VLM_F32);

    rig->ops->rope_kv(rig->q, &step, &x, c->heads, &kv,
                      c->gains ? q_gain.data : NULL,
                      c->gains ? k_gain.data : NULL, 1e-6f);

    t = x;
    t.data = kv.data;
    t.rows = c->nblocks;
    t.cols = c->kv_heads * 2 * BLOCK * c->dim;
    t.stride = t.cols;

    r.qkv = rig_values(rig, &x);
    r.kv = rig_values(rig, &t);

    rig_free(rig, &x);
    rig_free(rig, &t);
    rig_free(rig, &q_gain);
    rig_free(rig, &k_gain);
    rig->ops->step_free(rig->dev, &step);

    return r;
}


/* the worst of the cache; the CPU leaves the rotated k in its qkv */

static double
compare_kv(const case_t *c, const float *kv, const float *qkv, double unit)
{
    int           s, r, h, what, at;
    double        worst, w;
    int64_t       width, block;
    const float  *x, *y;

    width = (int64_t) (c->heads + 2 * c->kv_heads) * c->dim;
    worst = 0.0;

    for (s = 0; s < c->nseqs; s++) {

        for (r = c->start[s]; r < c->start[s + 1]; r++) {
            at = c->context[s] + r - c->start[s];
            block = c->blocks[s * c->max_blocks + at / BLOCK];

            for (h = 0; h < c->kv_heads; h++) {

                for (what = 0; what < 2; what++) {
                    x = qkv + r * width
                        + (c->heads + what * c->kv_heads + h) * c->dim;
                    y = kv + (((block * c->kv_heads + h) * 2 + what) * BLOCK
                              + at % BLOCK) * c->dim;
                    w = rig_worst(y, x, c->dim, unit);
                    worst = w > worst || isnan(w) ? w : worst;
                }
            }
        }
    }

    return worst;
}


static void
compare(const case_t *c, const result_t *got, const result_t *cpu,
    double unit, const char *name)
{
    int      r;
    double   q, w;
    int64_t  width;

    width = (int64_t) (c->heads + 2 * c->kv_heads) * c->dim;
    q = 0.0;

    for (r = 0; r < c->nrows; r++) {
        w = rig_worst(got->qkv + r * width, cpu->qkv + r * width,
                      (size_t) c->heads * c->dim, unit);
        q = w > q || isnan(w) ? w : q;
    }

    w = compare_kv(c, got->kv, cpu->qkv, unit);

    tap_ok(q < 1 && w < 1, "%s: %d of %d heads of %d%s: q %.2g, cache %.2g",
           name, c->heads, c->kv_heads, c->dim, c->gains ? ", normed" : "",
           q, w);
}


static void
test_rope_kv(rigs_t *rigs)
{
    int        i;
    uint64_t   seed = 1;
    case_t     c;
    result_t   cpu, f32, bf16;

    static const int  shapes[][4] = {
        { 4, 2, 16, 0 }, { 12, 2, 128, 0 }, { 3, 3, 64, 1 }, { 5, 1, 80, 1 },
        { 2, 1, 72, 0 }
    };

    for (i = 0; i < (int) (sizeof(shapes) / sizeof(shapes[0])); i++) {
        c.heads = shapes[i][0];
        c.kv_heads = shapes[i][1];
        c.dim = shapes[i][2];
        c.gains = shapes[i][3];

        make_case(&c, &seed);

        cpu = rope_on(&rigs->cpu, &c);
        f32 = rope_on(&rigs->f32, &c);
        bf16 = rope_on(&rigs->bf16, &c);

        compare(&c, &f32, &cpu, RIG_F32, "float32");
        compare(&c, &bf16, &cpu, RIG_BF16, "bfloat16");

        free(cpu.qkv);
        free(cpu.kv);
        free(f32.qkv);
        free(f32.kv);
        free(bf16.qkv);
        free(bf16.kv);
        free_case(&c);
    }
}


/* rows in two views, with and without a table */

static void
test_vision(rig_t *rig, int with_table, double unit)
{
    int              r, i, rows = 37, heads = 3, dim = 72, first = 20;
    float           *x, *table, *got, *kv, *expected, a, b;
    double           q, k, v, w;
    int32_t          start[3] = { 0, 29, 37 };
    uint64_t         seed = 2;
    vlm_tensor_t     tx, tt, part, part_t, tkv;
    vlm_segments_t   seg;

    seg.nsegments = 2;
    seg.start = start;
    seg.heads = heads;
    seg.head_dim = dim;

    x = rig_random(&seed, (size_t) rows * 3 * heads * dim, 2.0f);
    rig_round(x, (size_t) rows * 3 * heads * dim);
    table = rig_random(&seed, (size_t) rows * dim, 1.0f);
    expected = rig_memory((size_t) 2 * heads * dim * sizeof(float));

    tx = rig_act(rig, x, rows, 3 * heads * dim);
    tt = rig_tensor(rig, table, rows, dim, dim, VLM_F32);
    tkv = rig_act(rig, NULL, rows, 2 * heads * dim);

    tap_is((long long) rig->ops->vision_kv_bytes(rig->dev, &seg),
           rows * 2 * heads * dim
           * (int) vlm_dtype_size(rig->ops->act_dtype), "%s: bytes of keys "
           "and values", rig->ops->name);

    part = vlm_rows(&tx, 0, first);
    part_t = vlm_rows(&tt, 0, first);
    rig->ops->vision_rope(rig->q, &seg, &part, with_table ? &part_t : NULL, 0,
                          tkv.data);

    part = vlm_rows(&tx, first, rows - first);
    part_t = vlm_rows(&tt, first, rows - first);
    rig->ops->vision_rope(rig->q, &seg, &part, with_table ? &part_t : NULL,
                          first, tkv.data);

    got = rig_values(rig, &tx);
    kv = rig_values(rig, &tkv);
    q = k = v = 0.0;

    for (r = 0; r < rows; r++) {

        for (i = 0; i < 2 * heads * dim; i++) {
            a = x[r * 3 * heads * dim + i];
            b = x[r * 3 * heads * dim + i / dim * dim
                  + (i % dim + dim / 2) % dim];

            expected[i] = !with_table ? a
                : a * table[r * dim + i % (dim / 2)]
                  + (i % dim < dim / 2 ? -b : b)
                    * table[r * dim + dim / 2 + i % (dim / 2)];
        }

        w = rig_worst(got + r * 3 * heads * dim, expected, heads * dim, unit);
        q = w > q || isnan(w) ? w : q;
        w = rig_worst(kv + r * 2 * heads * dim, expected + heads * dim,
                      heads * dim, unit);
        k = w > k || isnan(w) ? w : k;
        w = rig_worst(kv + r * 2 * heads * dim + heads * dim,
                      x + r * 3 * heads * dim + 2 * heads * dim, heads * dim,
                      unit);
        v = w > v || isnan(w) ? w : v;
    }

    tap_ok(q < 1 && k < 1 && v == 0, "%s: vision, %s: %.2g, %.2g, %.2g",
           rig->ops->name, with_table ? "rotated" : "not rotated", q, k, v);

    free(x);
    free(table);
    free(got);
    free(kv);
    free(expected);
    rig_free(rig, &tx);
    rig_free(rig, &tt);
    rig_free(rig, &tkv);
}


int
main(void)
{
    rigs_t  rigs;

    vlm_emu_seed(3);
    rigs_open(&rigs);

    test_rope_kv(&rigs);
    test_vision(&rigs.f32, 1, RIG_F32);
    test_vision(&rigs.f32, 0, RIG_F32);
    test_vision(&rigs.bf16, 1, RIG_BF16);
    test_vision(&rigs.bf16, 0, RIG_BF16);

    rigs_close(&rigs);

    return tap_done();
}
