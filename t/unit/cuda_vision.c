
/*
 * The vision tower's attention of the CUDA sources, on the shim, against the
 * CPU device: pictures and windows of many sizes, any slices of their rows.
 */

#include "t/unit/cuda_rounding.h"


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


static float *
vision_rounding(const vision_t *v, const float *qkv)
{
    int           i, j, h, r, row, width;
    float        *sum;
    const float  *at, *keys[2000], *values[2000];

    width = v->heads * v->dim;
    sum = rig_memory((size_t) v->rows * width * sizeof(float));
    memset(sum, 0, (size_t) v->rows * width * sizeof(float));
    row = 0;

    for (i = 0; i < 6 && v->lengths[i] != 0; row += v->lengths[i++]) {
        for (h = 0; h < v->heads; h++) {

            for (j = 0; j < v->lengths[i]; j++) {
                at = qkv + (size_t) (row + j) * 3 * width + h * v->dim;
                keys[j] = at + width;
                values[j] = at + 2 * width;
            }

            for (j = 0; j < v->lengths[i]; j++) {
                r = row + j - v->row0;

                if (r >= 0 && r < v->rows) {
                    add_rounding(sum + (size_t) r * width + h * v->dim,
                                 keys[j] - width, keys, values,
                                 v->lengths[i], v->dim);
                }
            }
        }
    }

    return sum;
}


static void
vision_check(rigs_t *rigs, const vision_t *v, const float *qkv, int total,
    const char *name)
{
    float   *cpu, *f32, *bf16, *rounding;
    size_t   n;
    double   wide, narrow;

    n = (size_t) v->rows * v->heads * v->dim;
    rounding = vision_rounding(v, qkv);
    cpu = vision_run(&rigs->cpu, v, qkv, total);
    f32 = vision_run(&rigs->f32, v, qkv, total);
    bf16 = vision_run(&rigs->bf16, v, qkv, total);
    wide = rig_worst(f32, cpu, n, RIG_F32);
    narrow = worst_rounding(bf16, cpu, rounding, n);

    tap_ok(wide < 1 && narrow < 1.01,
           "%s: rows %d to %d of %d, %d heads of %d: %.2g, %.4f", name,
           v->row0, v->row0 + v->rows, total, v->heads, v->dim, wide,
           narrow);

    free(rounding);
    free(cpu);
    free(f32);
    free(bf16);
}


static void
test_vision(rigs_t *rigs)
{
    int       c, i, j, row, total;
    float    *qkv;
    size_t    n;
    uint64_t  seed = 4;

    static const vision_t  cases[] = {
        { 72, 2, { 729 }, 650, 79 },
        { 64, 2, { 1025 }, 0, 70 },
        { 80, 1, { 1601 }, 1530, 71 },
        { 128, 1, { 1025 }, 960, 65 },
        { 80, 2, { 64, 64, 16, 1, 63, 33 }, 0, 241 },
        { 64, 1, { 65, 200, 3 }, 50, 200 },
        { 80, 8, { 49, 64, 31, 1, 95, 2 }, 0, 242 },
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
        vision_check(rigs, &cases[c], qkv, total, "vision");

        row = 0;

        for (i = 0; i < 6; i++) {
            for (j = 0; j < cases[c].lengths[i]; j++, row++) {
                count_keys(qkv, row, j, cases[c].heads, cases[c].heads,
                           cases[c].dim);
            }
        }

        vision_check(rigs, &cases[c], qkv, total, "count");
        free(qkv);
    }
}


/* rows alone, beside any others, in tiles of few or many queries */

static void
test_slices(rigs_t *rigs)
{
    int       c, differ, total;
    float    *qkv, *all, *some;
    size_t    width;
    uint64_t  seed = 7;
    vision_t  v;

    static const int  dims[] = { 64, 72, 80, 128, 12, 200 };

    total = 330;

    for (c = 0; c < 6; c++) {
        vlm_emu_seed((uint64_t) (500 + c));
        memset(&v, 0, sizeof(v));
        v.dim = dims[c];
        v.heads = 4;
        v.lengths[0] = 287;
        v.lengths[1] = 43;
        v.rows = total;
        width = (size_t) v.heads * v.dim;

        qkv = rig_random(&seed, total * 3 * width, 2.0f);
        rig_round(qkv, total * 3 * width);
        all = vision_run(&rigs->bf16, &v, qkv, total);
        differ = 0;

        for (v.row0 = 0; v.row0 < total; v.row0 += v.rows) {
            v.rows = 1 + rig_below(&seed, 120);
            v.rows = v.rows < total - v.row0 ? v.rows : total - v.row0;
            some = vision_run(&rigs->bf16, &v, qkv, total);
            differ += memcmp(some, all + v.row0 * width,
                             v.rows * width * sizeof(float)) != 0;
            free(some);
        }

        tap_is(differ, 0, "vision in slices, heads of %d: the same bits",
               v.dim);
        free(qkv);
        free(all);
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

    test_vision(&rigs);
    test_slices(&rigs);
    test_refused(&rigs.bf16);

    rigs_close(&rigs);

    return tap_done();
}
