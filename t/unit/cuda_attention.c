
/*
 * The attention kernels of the CUDA sources, on the shim, against the CPU
 * device: contexts around the borders of blocks, tiles and splits, heads of
 * many sizes, batches, and the same bits in every batch where it is promised.
 */

#include "t/unit/cuda_rig.h"


#define MAX_SEQS    17
#define MAX_BLOCKS  40


typedef struct {
    int        dim;
    int        heads;
    int        kv_heads;
    int        block_size;
    int        nseqs;
    int        context[MAX_SEQS];
    int        rows[MAX_SEQS];
    int        first[MAX_SEQS];         /* row of the context in old */
    int        old_rows;
    int        new_rows;
    float     *old;                     /* qkv of contexts */
    float     *new;                     /* and of the step's rows */
    int32_t    blocks[MAX_SEQS * MAX_BLOCKS];
    vlm_rope_t rope;
} text_t;


static int
text_width(const text_t *t)
{
    return (t->heads + 2 * t->kv_heads) * t->dim;
}


/* contexts and rows are there; the rest at random */

static void
text_fill(text_t *t, uint64_t *seed)
{
    int      s, i, j, n;
    int32_t  swap;

    t->old_rows = 0;
    t->new_rows = 0;

    for (s = 0; s < t->nseqs; s++) {
        t->first[s] = t->old_rows;
        t->old_rows += t->context[s];
        t->new_rows += t->rows[s];
    }

    t->old = rig_random(seed, (size_t) t->old_rows * text_width(t), 2.0f);
    t->new = rig_random(seed, (size_t) t->new_rows * text_width(t), 2.0f);
    rig_round(t->old, (size_t) t->old_rows * text_width(t));
    rig_round(t->new, (size_t) t->new_rows * text_width(t));

    n = MAX_SEQS * MAX_BLOCKS;

    for (i = 0; i < n; i++) {
        t->blocks[i] = i;
    }

    for (i = n - 1; i > 0; i--) {
        j = rig_below(seed, i + 1);
        swap = t->blocks[i];
        t->blocks[i] = t->blocks[j];
        t->blocks[j] = swap;
    }

    /* no rotation: keys keep their bits in both types */

    memset(&t->rope, 0, sizeof(t->rope));
    t->rope.npairs = t->dim / 2;
    t->rope.naxes = 1;
}


static void
text_free(text_t *t)
{
    free(t->old);
    free(t->new);
}


static vlm_kv_t
text_cache(rig_t *rig, const text_t *t)
{
    char      *fill;
    size_t     size;
    vlm_kv_t   kv;

    kv.device = rig->dev;
    kv.nblocks = MAX_SEQS * MAX_BLOCKS;
    kv.block_size = t->block_size;
    kv.kv_heads = t->kv_heads;
    kv.head_dim = t->dim;

    size = (size_t) kv.nblocks * rig->ops->kv_block_bytes(rig->dev,
                                     t->block_size, t->kv_heads, t->dim);
    kv.data = rig->ops->alloc(rig->dev, size);
    fill = rig_memory(size);
    memset(fill, 0xff, size);
    rig->ops->upload(rig->q, kv.data, fill, size);
    rig_sync(rig);
    free(fill);

    return kv;
}


/*
 * A step of rows [from[s], from[s] + take[s]) of each sequence's rows, after
 * context; y NULL: the cache alone.  The result's rows are the step's.
 */

static float *
text_step(rig_t *rig, const text_t *t, const float *qkv, const int *at,
    const int *context, const int *take, const vlm_kv_t *kv, int attend)
{
    int              s, n, width;
    float           *rows, *y;
    int32_t          row_start[MAX_SEQS + 1], contexts[MAX_SEQS], *zeros;
    vlm_step_t       step;
    vlm_tensor_t     in, out;
    vlm_step_host_t  host;

    width = text_width(t);
    n = 0;

    for (s = 0; s < t->nseqs; s++) {
        row_start[s] = n;
        contexts[s] = context[s];
        n += take[s];
    }

    row_start[s] = n;

    if (n == 0) {
        return NULL;
    }

    rows = rig_memory((size_t) n * width * sizeof(float));
    zeros = calloc((size_t) n, sizeof(int32_t));

    for (s = 0; s < t->nseqs; s++) {
        memcpy(rows + (size_t) row_start[s] * width,
               qkv + (size_t) at[s] * width,
               (size_t) take[s] * width * sizeof(float));
    }

    memset(&step, 0, sizeof(step));
    memset(&host, 0, sizeof(host));
    host.nrows = n;
    host.nseqs = t->nseqs;
    host.row_start = row_start;
    host.context = contexts;
    host.blocks = t->blocks;
    host.max_blocks = MAX_BLOCKS;
    host.ids = zeros;
    host.positions = zeros;

    in = rig_act(rig, rows, n, width);
    out = rig_act(rig, NULL, n, t->heads * t->dim);
    y = NULL;

    if (rig->ops->step_upload(rig->q, &step, &host, &t->rope) != 0) {
        rig_sync(rig);
    }

    rig->ops->rope_kv(rig->q, &step, &in, t->heads, kv, NULL, NULL, 0.0f);

    if (attend) {
        rig->ops->attention(rig->q, &step, &out, &in, t->heads, kv);
        y = rig_values(rig, &out);
    }

    rig_sync(rig);

    rig->ops->step_free(rig->dev, &step);
    rig_free(rig, &in);
    rig_free(rig, &out);
    free(rows);
    free(zeros);

    return y;
}


/* contexts first, then the rows at once */

static float *
text_run(rig_t *rig, const text_t *t)
{
    int        s, at[MAX_SEQS], none[MAX_SEQS] = { 0 };
    float     *y;
    vlm_kv_t   kv;

    kv = text_cache(rig, t);

    (void) text_step(rig, t, t->old, t->first, none, t->context, &kv, 0);

    at[0] = 0;

    for (s = 1; s < t->nseqs; s++) {
        at[s] = at[s - 1] + t->rows[s - 1];
    }

    y = text_step(rig, t, t->new, at, t->context, t->rows, &kv, 1);

    rig->ops->free(rig->dev, kv.data);

    return y;
}


/* the worst error in units of half of bfloat16's last place (and 1e-5) */

static double
worst_rounding(const float *got, const float *expected, size_t n)
{
    size_t  i;
    double  d, worst;

    worst = 0.0;

    for (i = 0; i < n; i++) {
        d = fabs((double) got[i] - expected[i])
            / (fabs((double) expected[i]) / 256 + 1e-5);

        if (!(d <= worst)) {
            worst = d;
        }
    }

    return worst;
}


static void
text_check(rigs_t *rigs, const text_t *t, const char *name)
{
    float   *cpu, *f32, *bf16;
    size_t   n;
    double   wide, narrow;

    n = (size_t) t->new_rows * t->heads * t->dim;
    cpu = text_run(&rigs->cpu, t);
    f32 = text_run(&rigs->f32, t);
    bf16 = text_run(&rigs->bf16, t);
    wide = rig_worst(f32, cpu, n, RIG_F32);
    narrow = worst_rounding(bf16, cpu, n);

    tap_ok(wide < 1 && narrow < 1.01,
           "%s: %d sequences, %d rows after %d, %d/%d heads of %d: %.2g, "
           "%.4f", name, t->nseqs, t->new_rows, t->old_rows, t->heads,
           t->kv_heads, t->dim, wide, narrow);

    free(cpu);
    free(f32);
    free(bf16);
}


/* a sequence for each context around a border, one row each */

static void
test_decode(rigs_t *rigs)
{
    int       c, s;
    text_t    t;
    uint64_t  seed = 1;

    static const struct {
        int  dim, heads, kv_heads, block_size;
    } cases[] = {
        { 128, 12, 2, 16 }, { 128, 7, 1, 32 }, { 64, 4, 4, 16 },
        { 80, 2, 1, 48 }, { 72, 9, 1, 16 }, { 8, 4, 2, 16 },
        { 12, 3, 1, 16 }, { 36, 16, 1, 16 }, { 256, 8, 1, 16 },
        { 2, 2, 2, 16 }
    };

    static const int  contexts[] = {
        0, 1, 14, 15, 16, 17, 31, 100, 126, 127, 128, 129, 254, 255, 256,
        257, 400
    };

    for (c = 0; c < (int) (sizeof(cases) / sizeof(cases[0])); c++) {
        vlm_emu_seed((uint64_t) c);
        t.dim = cases[c].dim;
        t.heads = cases[c].heads;
        t.kv_heads = cases[c].kv_heads;
        t.block_size = cases[c].block_size;
        t.nseqs = c < 2 ? MAX_SEQS : 1 + rig_below(&seed, 5);

        for (s = 0; s < t.nseqs; s++) {
            t.context[s] = contexts[c < 2 ? s : rig_below(&seed, MAX_SEQS)];
            t.rows[s] = 1;
        }

        text_fill(&t, &seed);
        text_check(rigs, &t, "decode");
        text_free(&t);
    }
}


/* prompts, pieces of them, and rows of decoding beside them */

static void
test_mixed(rigs_t *rigs)
{
    int       c, s;
    text_t    t;
    uint64_t  seed = 2;

    static const struct {
        int  dim, heads, kv_heads, block_size;
    } cases[] = {
        { 128, 6, 1, 16 }, { 64, 2, 2, 16 }, { 72, 4, 2, 16 },
        { 80, 7, 1, 32 }, { 16, 4, 2, 16 }, { 12, 2, 1, 16 },
        { 36, 1, 1, 16 }, { 96, 2, 1, 16 }, { 256, 1, 1, 16 },
        { 32, 5, 5, 16 }
    };

    static const int  rows[] = { 1, 2, 4, 5, 16, 31, 63, 64, 65, 90 };
    static const int  contexts[] = { 0, 0, 1, 15, 16, 47, 63, 64, 65, 130 };

    for (c = 0; c < (int) (sizeof(cases) / sizeof(cases[0])); c++) {
        vlm_emu_seed((uint64_t) (100 + c));
        t.dim = cases[c].dim;
        t.heads = cases[c].heads;
        t.kv_heads = cases[c].kv_heads;
        t.block_size = cases[c].block_size;
        t.nseqs = 2 + rig_below(&seed, 3);

        for (s = 0; s < t.nseqs; s++) {
            t.context[s] = contexts[rig_below(&seed, 10)];
            t.rows[s] = rows[rig_below(&seed, 10)];
        }

        t.rows[0] = 33 + 32 * (c % 2);

        text_fill(&t, &seed);
        text_check(rigs, &t, "mixed");
        text_free(&t);
    }
}


/* all rows of the first sequence in steps of "most", others beside it */

static float *
text_in_steps(rig_t *rig, const text_t *t, int most, int others)
{
    int        s, n, at[MAX_SEQS], done[MAX_SEQS] = { 0 }, take[MAX_SEQS];
    float     *all, *y;
    size_t     width;
    vlm_kv_t   kv;

    kv = text_cache(rig, t);
    width = (size_t) t->heads * t->dim;
    all = rig_memory((size_t) t->rows[0] * width * sizeof(float));

    while (done[0] < t->rows[0]) {
        at[0] = done[0];
        n = t->rows[0];

        for (s = 0; s < t->nseqs; s++) {
            at[s] = s == 0 ? done[0] : n + done[s];
            take[s] = t->rows[s] - done[s];
            take[s] = take[s] < most ? take[s] : most;

            if (s > 0) {
                n += t->rows[s];

                if (!others) {
                    take[s] = 0;
                }
            }
        }

        y = text_step(rig, t, t->new, at, done, take, &kv, 1);
        memcpy(all + done[0] * width, y, take[0] * width * sizeof(float));
        free(y);

        for (s = 0; s < t->nseqs; s++) {
            done[s] += take[s];
        }
    }

    rig->ops->free(rig->dev, kv.data);

    return all;
}


static void
test_same(rigs_t *rigs)
{
    int                 i, differ;
    float              *first, *y;
    rig_t               fixed;
    size_t              size;
    text_t              t;
    uint64_t            seed = 3;
    vlm_cuda_options_t  opt = { 0, 1, 0 };

    t.dim = 64;
    t.heads = 4;
    t.kv_heads = 2;
    t.block_size = 16;
    t.nseqs = 3;
    memset(t.context, 0, sizeof(t.context));
    t.rows[0] = 140;
    t.rows[1] = 3;
    t.rows[2] = 75;
    text_fill(&t, &seed);

    rig_open_as(&fixed, rig_cuda(), &opt);

    size = (size_t) t.rows[0] * t.heads * t.dim * sizeof(float);
    first = text_in_steps(&fixed, &t, 1000, 0);
    differ = 0;

    static const int  steps[] = { 1000, 70, 9, 1 };

    for (i = 0; i < 4; i++) {
        y = text_in_steps(&fixed, &t, steps[i], 1);
        differ += memcmp(y, first, size) != 0;
        free(y);
    }

    tap_is(differ, 0, "deterministic: the same bits alone and beside others, "
           "in any steps");
    free(first);

    /* otherwise too, as long as the way is the same */

    first = text_in_steps(&rigs->bf16, &t, 1000, 0);
    y = text_in_steps(&rigs->bf16, &t, 35, 1);
    tap_ok(memcmp(y, first, size) == 0, "prompts: in two steps or four");
    free(first);
    free(y);

    first = text_in_steps(&rigs->bf16, &t, 1, 0);
    y = text_in_steps(&rigs->bf16, &t, 4, 1);
    tap_ok(memcmp(y, first, size) == 0, "decoding: alone or in a batch");
    free(first);
    free(y);

    rig_close(&fixed);
    text_free(&t);
}


/* ---- vision ---- */

typedef struct {
    int       dim;
    int       heads;
    int       lengths[6];               /* up to a 0 */
    int       row0;                     /* the rows that are asked for */
    int       rows;
} vision_t;


static float *
vision_run(rig_t *rig, const vision_t *v, const float *qkv, int total)
{
    int              i, width;
    void            *kv;
    float           *y;
    int32_t          start[7];
    vlm_tensor_t     in, part, out;
    vlm_segments_t   seg;

    start[0] = 0;

    for (i = 0; i < 6 && v->lengths[i] != 0; i++) {
        start[i + 1] = start[i] + v->lengths[i];
    }

    seg.nsegments = i;
    seg.start = start;
    seg.heads = v->heads;
    seg.head_dim = v->dim;
    width = 3 * v->heads * v->dim;

    kv = rig->ops->alloc(rig->dev, rig->ops->vision_kv_bytes(rig->dev, &seg));
    in = rig_act(rig, qkv, total, width);
    out = rig_act(rig, NULL, v->rows, v->heads * v->dim);
    part = vlm_rows(&in, v->row0, v->rows);

    rig->ops->vision_rope(rig->q, &seg, &in, NULL, 0, kv);
    rig->ops->vision_attention(rig->q, &seg, &out, &part, v->row0, kv);
    y = rig_values(rig, &out);

    rig->ops->free(rig->dev, kv);
    rig_free(rig, &in);
    rig_free(rig, &out);

    return y;
}


static void
test_vision(rigs_t *rigs)
{
    int       c, i, total;
    float    *qkv, *cpu, *f32, *bf16;
    size_t    n;
    double    wide, narrow;
    uint64_t  seed = 4;

    static const vision_t  cases[] = {
        { 72, 2, { 729 }, 650, 79 },
        { 64, 2, { 1025 }, 0, 70 },
        { 80, 1, { 1601 }, 1530, 71 },
        { 128, 1, { 1025 }, 960, 65 },
        { 80, 2, { 64, 64, 16, 1, 63, 33 }, 0, 241 },
        { 64, 1, { 65, 200, 3 }, 50, 200 },
        { 16, 2, { 20, 36, 5 }, 3, 55 },
        { 12, 2, { 30, 1 }, 0, 31 },
        { 256, 1, { 40, 17 }, 10, 40 },
        { 100, 1, { 17, 40 }, 0, 57 }
    };

    for (c = 0; c < (int) (sizeof(cases) / sizeof(cases[0])); c++) {
        vlm_emu_seed((uint64_t) (200 + c));
        total = 0;

        for (i = 0; i < 6 && cases[c].lengths[i] != 0; i++) {
            total += cases[c].lengths[i];
        }

        n = (size_t) total * 3 * cases[c].heads * cases[c].dim;
        qkv = rig_random(&seed, n, 2.0f);
        rig_round(qkv, n);

        cpu = vision_run(&rigs->cpu, &cases[c], qkv, total);
        f32 = vision_run(&rigs->f32, &cases[c], qkv, total);
        bf16 = vision_run(&rigs->bf16, &cases[c], qkv, total);

        n = (size_t) cases[c].rows * cases[c].heads * cases[c].dim;
        wide = rig_worst(f32, cpu, n, RIG_F32);
        narrow = worst_rounding(bf16, cpu, n);

        tap_ok(wide < 1 && narrow < 1.01,
               "vision: rows %d to %d of %d, %d heads of %d: %.2g, %.4f",
               cases[c].row0, cases[c].row0 + cases[c].rows, total,
               cases[c].heads, cases[c].dim, wide, narrow);

        free(qkv);
        free(cpu);
        free(f32);
        free(bf16);
    }
}


static void
test_refused(rig_t *rig)
{
    char            err[256];
    int32_t         start[2] = { 0, 4 };
    vlm_tensor_t    in, out;
    vlm_segments_t  seg = { 1, start, 1, 258 };

    in = rig_act(rig, NULL, 4, 3 * 258);
    out = rig_act(rig, NULL, 4, 258);

    rig->ops->vision_attention(rig->q, &seg, &out, &in, 0, in.data);
    tap_ok(rig->ops->sync(rig->q, err, sizeof(err)) == -1, "too large");
    tap_str(err, "vision_attention: heads of 258 elements: must be even and "
            "256 at most", "and says so");

    seg.head_dim = 256;
    rig->ops->vision_attention(rig->q, &seg, &out, &in, 1, in.data);
    tap_ok(rig->ops->sync(rig->q, err, sizeof(err)) == -1
           && strncmp(err, "vision_attention: qkv [4, 774] of type 1", 40)
              == 0, "%s", err);

    rig_free(rig, &in);
    rig_free(rig, &out);
}


int
main(void)
{
    rigs_t  rigs;

    rigs_open(&rigs);

    test_decode(&rigs);
    test_mixed(&rigs);
    test_same(&rigs);
    test_vision(&rigs);
    test_refused(&rigs.bf16);

    rigs_close(&rigs);

    return tap_done();
}
