
/*
 * The attention kernels of the CUDA sources, on the shim, against the CPU
 * device: contexts around the borders of blocks, tiles and splits, heads of
 * many sizes, batches, and the same bits in every batch where it is promised.
 */

#include "t/unit/cuda_rounding.h"


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


/* the keys' rounding in all rows' results */

static float *
text_rounding(const text_t *t)
{
    int           s, r, h, j, n, row, width, keys;
    float        *sum;
    const float  *at, **k, **v;

    width = text_width(t);
    n = t->new_rows * t->heads * t->dim;
    sum = rig_memory(n * sizeof(float));
    memset(sum, 0, n * sizeof(float));
    k = rig_memory(MAX_BLOCKS * t->block_size * sizeof(float *));
    v = rig_memory(MAX_BLOCKS * t->block_size * sizeof(float *));
    row = 0;

    for (s = 0; s < t->nseqs; row += t->rows[s++]) {
        for (h = 0; h < t->heads; h++) {
            keys = t->context[s] + t->rows[s];

            for (j = 0; j < keys; j++) {
                at = j < t->context[s]
                     ? t->old + (size_t) (t->first[s] + j) * width
                     : t->new + (size_t) (row + j - t->context[s]) * width;
                k[j] = at + (t->heads + h / (t->heads / t->kv_heads))
                            * t->dim;
                v[j] = k[j] + t->kv_heads * t->dim;
            }

            for (r = row; r < row + t->rows[s]; r++) {
                add_rounding(sum + (size_t) (r * t->heads + h) * t->dim,
                             t->new + (size_t) r * width + h * t->dim, k, v,
                             t->context[s] + r - row + 1, t->dim);
            }
        }
    }

    free(k);
    free(v);

    return sum;
}


static void
text_check(rigs_t *rigs, const text_t *t, int rounds, const char *name)
{
    float   *cpu, *f32, *bf16, *rounding;
    size_t   n;
    double   wide, narrow;

    n = (size_t) t->new_rows * t->heads * t->dim;
    rounding = rounds ? text_rounding(t) : NULL;
    cpu = text_run(&rigs->cpu, t);
    f32 = text_run(&rigs->f32, t);
    bf16 = text_run(&rigs->bf16, t);
    wide = rig_worst(f32, cpu, n, RIG_F32);
    narrow = worst_rounding(bf16, cpu, rounding, n);

    tap_ok(wide < 1 && narrow < 1.01,
           "%s: %d sequences, %d rows after %d, %d/%d heads of %d: %.2g, "
           "%.4f", name, t->nseqs, t->new_rows, t->old_rows, t->heads,
           t->kv_heads, t->dim, wide, narrow);

    free(rounding);
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
        text_check(rigs, &t, 0, "decode");
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
        text_check(rigs, &t, 1, "mixed");
        text_free(&t);
    }
}


/* pieces of prompts after long contexts */

static void
test_long(rigs_t *rigs)
{
    int       c, s, i, count, row;
    text_t    t;
    uint64_t  seed = 5;

    static const int  dims[] = { 64, 72, 80, 128, 36, 136 };

    static const struct {
        int  context, rows;
    } seqs[] = {
        { 513, 97 }, { 31, 33 }, { 350, 7 }, { 64, 160 }, { 600, 40 },
        { 95, 1 }, { 0, 32 }
    };

    for (c = 0; c < 12; c++) {
        vlm_emu_seed((uint64_t) (300 + c));
        t.dim = dims[c / 2];
        t.heads = 2;
        t.kv_heads = 1;
        t.block_size = 16;
        t.nseqs = 2;
        count = c % 2;

        for (s = 0; s < t.nseqs; s++) {
            i = (c + 2 * s) % 7;
            t.context[s] = seqs[i].context;
            t.rows[s] = seqs[i].rows;
        }

        text_fill(&t, &seed);
        row = 0;

        for (s = 0; count && s < t.nseqs; row += t.rows[s++]) {

            for (i = 0; i < t.context[s]; i++) {
                count_keys(t.old, t.first[s] + i, i, t.heads, t.kv_heads,
                           t.dim);
            }

            for (i = 0; i < t.rows[s]; i++) {
                count_keys(t.new, row + i, t.context[s] + i, t.heads,
                           t.kv_heads, t.dim);
            }
        }

        text_check(rigs, &t, 1, count ? "count" : "long");
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


/* tiles of few or many queries, pieces of prompts that begin anywhere */

static void
test_pieces(rigs_t *rigs)
{
    int       c, i, differ;
    float    *first, *y;
    text_t    t;
    size_t    size;
    uint64_t  seed = 6;

    static const int  dims[] = { 64, 72, 80, 128, 12, 200 };
    static const int  pieces[] = { 64, 37 };

    for (c = 0; c < 6; c++) {
        vlm_emu_seed((uint64_t) (400 + c));
        t.dim = dims[c];
        t.heads = 4;
        t.kv_heads = 2;
        t.block_size = 16;
        t.nseqs = 2;
        memset(t.context, 0, sizeof(t.context));
        t.rows[0] = 290;
        t.rows[1] = 40;
        text_fill(&t, &seed);

        size = (size_t) t.rows[0] * t.heads * t.dim * sizeof(float);
        first = text_in_steps(&rigs->bf16, &t, 1000, 0);
        differ = 0;

        for (i = 0; i < 2; i++) {
            y = text_in_steps(&rigs->bf16, &t, pieces[i], 1);
            differ += memcmp(y, first, size) != 0;
            free(y);
        }

        tap_is(differ, 0, "prompts in pieces, heads of %d: the same bits",
               t.dim);
        free(first);
        text_free(&t);
    }
}


int
main(void)
{
    rigs_t  rigs;

    rigs_open(&rigs);

    test_decode(&rigs);
    test_mixed(&rigs);
    test_long(&rigs);
    test_same(&rigs);
    test_pieces(&rigs);

    rigs_close(&rigs);

    return tap_done();
}
