
/*
 * Operations of the CUDA sources that work row by row, on the shim, against
 * the CPU device: odd shapes, gaps between rows, in place.
 */

#include "t/unit/cuda_rig.h"


static float *
norm_on(rig_t *rig, const float *x, int rows, int cols, const float *gain,
    const float *bias, vlm_norm_kind_t kind, int in_place)
{
    float         *result;
    vlm_tensor_t   tx, ty, tg, tb;

    tx = rig_tensor(rig, x, rows, cols, cols + 8, rig->ops->act_dtype);
    ty = in_place ? tx : rig_act(rig, NULL, rows, cols);
    tg = rig_tensor(rig, gain, 1, cols, cols, VLM_F32);
    tb = rig_tensor(rig, bias, 1, cols, cols, VLM_F32);

    rig->ops->norm(rig->q, &ty, &tx, tg.data, bias != NULL ? tb.data : NULL,
                   1e-6f, kind);

    result = rig_values(rig, &ty);

    if (!in_place) {
        rig_free(rig, &ty);
    }

    rig_free(rig, &tx);
    rig_free(rig, &tg);
    rig_free(rig, &tb);

    return result;
}


static void
test_norm(rigs_t *rigs)
{
    int       c, in_place;
    float    *x, *gain, *bias, *cpu, *f32, *bf16;
    size_t    n;
    uint64_t  seed = 1;

    static const struct {
        int              rows, cols;
        vlm_norm_kind_t  kind;
    } cases[] = {
        { 1, 1, VLM_NORM_RMS },
        { 3, 33, VLM_NORM_LAYER },
        { 17, 64, VLM_NORM_RMS },
        { 5, 1152, VLM_NORM_LAYER },
        { 2, 1536, VLM_NORM_RMS }
    };

    for (c = 0; c < (int) (sizeof(cases) / sizeof(cases[0])); c++) {
        n = (size_t) cases[c].rows * cases[c].cols;

        /* a tensor's rows have 8 elements between them */
        x = rig_random(&seed, (size_t) cases[c].rows * (cases[c].cols + 8),
                       3.0f);
        rig_round(x, (size_t) cases[c].rows * (cases[c].cols + 8));
        gain = rig_random(&seed, cases[c].cols, 1.0f);
        bias = rig_random(&seed, cases[c].cols, 1.0f);

        for (in_place = 0; in_place < 2; in_place++) {
            cpu = norm_on(&rigs->cpu, x, cases[c].rows, cases[c].cols, gain,
                          cases[c].kind == VLM_NORM_LAYER ? bias : NULL,
                          cases[c].kind, in_place);
            f32 = norm_on(&rigs->f32, x, cases[c].rows, cases[c].cols, gain,
                          cases[c].kind == VLM_NORM_LAYER ? bias : NULL,
                          cases[c].kind, in_place);
            bf16 = norm_on(&rigs->bf16, x, cases[c].rows, cases[c].cols, gain,
                           cases[c].kind == VLM_NORM_LAYER ? bias : NULL,
                           cases[c].kind, in_place);

            tap_ok(rig_worst(f32, cpu, n, RIG_F32) < 1
                   && rig_worst(bf16, cpu, n, RIG_BF16) < 1,
                   "norm %d of %d x %d%s: %.2g, %.2g", cases[c].kind,
                   cases[c].rows, cases[c].cols,
                   in_place ? " in place" : "",
                   rig_worst(f32, cpu, n, RIG_F32),
                   rig_worst(bf16, cpu, n, RIG_BF16));

            free(cpu);
            free(f32);
            free(bf16);
        }

        free(x);
        free(gain);
        free(bias);
    }
}


/* bits of 16-bit floats, by the CPU and by the shim */

static void
convert_bits(rig_t *rig, const void *bits, size_t n, vlm_dtype_t from,
    vlm_dtype_t to, void *result)
{
    vlm_tensor_t  x, y;

    x = rig_tensor(rig, NULL, 1, (int32_t) n, (int32_t) n, from);
    y = rig_tensor(rig, NULL, 1, (int32_t) n, (int32_t) n, to);

    rig->ops->upload(rig->q, x.data, bits, n * vlm_dtype_size(from));
    rig->ops->convert(rig->q, &y, &x);
    rig->ops->download(rig->q, result, y.data, n * vlm_dtype_size(to));
    rig_sync(rig);

    rig_free(rig, &x);
    rig_free(rig, &y);
}


static void
test_convert(rigs_t *rigs)
{
    int        i, t;
    char      *cpu, *emu;
    size_t     n;
    float     *wide;
    uint64_t   seed = 2;
    uint16_t  *all;

    static const struct {
        vlm_dtype_t  from, to;
    } cases[] = {
        { VLM_BF16, VLM_F32 }, { VLM_F16, VLM_F32 }, { VLM_F32, VLM_BF16 },
        { VLM_F32, VLM_F16 }, { VLM_F32, VLM_F32 }, { VLM_F16, VLM_BF16 },
        { VLM_BF16, VLM_F16 }
    };

    n = 65536;
    all = rig_memory(n * sizeof(uint16_t));
    wide = rig_memory(n * sizeof(float));
    cpu = rig_memory(n * sizeof(float));
    emu = rig_memory(n * sizeof(float));

    for (i = 0; i < (int) n; i++) {
        all[i] = (uint16_t) i;

        /* exponents that float16 has, and some that it has not */
        wide[i] = ldexpf(tap_uniform(&seed), rig_below(&seed, 50) - 28);
    }

    for (t = 0; t < (int) (sizeof(cases) / sizeof(cases[0])); t++) {

        if (cases[t].from == VLM_F16) {

            /* NaNs have many forms: leave them to the next test */

            for (i = 0; i < (int) n; i++) {
                all[i] = (i & 0x7c00) == 0x7c00 && (i & 1023) != 0
                         ? 0 : (uint16_t) i;
            }

        } else {

            for (i = 0; i < (int) n; i++) {
                all[i] = (i & 0x7f80) == 0x7f80 && (i & 127) != 0
                         ? 0 : (uint16_t) i;
            }
        }

        convert_bits(&rigs->cpu, cases[t].from == VLM_F32 ? (void *) wide
                                                          : (void *) all,
                     n, cases[t].from, cases[t].to, cpu);
        convert_bits(&rigs->bf16, cases[t].from == VLM_F32 ? (void *) wide
                                                           : (void *) all,
                     n, cases[t].from, cases[t].to, emu);

        tap_ok(memcmp(cpu, emu, n * vlm_dtype_size(cases[t].to)) == 0,
               "convert type %d to %d: equal bits", (int) cases[t].from,
               (int) cases[t].to);
    }

    free(all);
    free(wide);
    free(cpu);
    free(emu);
}


/* scatter and gather by a permutation; the host's list goes at once */

static void
test_lists(rigs_t *rigs)
{
    int            k, i, bad, rows = 37, cols = 65;
    char           err[256];
    float         *x, *y;
    rig_t         *rig;
    int32_t       *list, at[37];
    uint64_t       seed = 3;
    vlm_tensor_t   tx, ty, tz;

    for (k = 0; k < 2; k++) {
        rig = k == 0 ? &rigs->f32 : &rigs->bf16;
        x = rig_random(&seed, (size_t) rows * cols, 1.0f);
        rig_round(x, (size_t) rows * cols);

        list = rig_memory(sizeof(at));

        for (i = 0; i < rows; i++) {
            at[i] = (i * 5 + 11) % rows;
        }

        memcpy(list, at, sizeof(at));

        tx = rig_tensor(rig, x, rows, cols, cols, VLM_F32);
        ty = rig_act(rig, NULL, rows, cols);
        tz = rig_tensor(rig, NULL, rows, cols, cols, VLM_F32);

        rig->ops->scatter(rig->q, &ty, &tx, list, rows);
        rig->ops->gather(rig->q, &tz, &ty, list, rows);
        y = rig_values(rig, &tz);

        tap_ok(memcmp(x, y, (size_t) rows * cols * sizeof(float)) == 0,
               "%s: scatter and gather undo each other", rig->ops->name);
        free(y);

        y = rig_values(rig, &ty);
        bad = 0;

        for (i = 0; i < rows; i++) {
            bad += memcmp(y + at[i] * cols, x + i * cols,
                          cols * sizeof(float)) != 0;
        }

        tap_is(bad, 0, "%s: rows are where the list says", rig->ops->name);

        tz.dtype = VLM_I32;
        rig->ops->gather(rig->q, &tz, &ty, list, rows);
        rig->ops->gather(rig->q, &ty, &tx, list, rows);
        tap_ok(rig->ops->sync(rig->q, err, sizeof(err)) == -1, "it sticks");
        tap_str(err, "gather: tensor of type 5 is not of a float type",
                "and names the operation");
        tap_ok(rig->ops->sync(rig->q, err, sizeof(err)) == 0, "it is told "
               "once");

        free(x);
        free(y);
        free(list);
        rig_free(rig, &tx);
        rig_free(rig, &ty);
        rig_free(rig, &tz);
    }
}


static float *
patches_on(rig_t *rig, const uint8_t *rgb, const vlm_patch_geometry_t *geo,
    int first, int n)
{
    float         *result;
    size_t         size;
    vlm_tensor_t   y, t;

    size = (size_t) geo->width * geo->height * 3;
    t = rig_tensor(rig, NULL, 1, (int32_t) size, (int32_t) size, VLM_U8);
    y = rig_act(rig, NULL, n, 3 * geo->frames * geo->patch * geo->patch);

    rig->ops->upload(rig->q, t.data, rgb, size);
    rig->ops->patchify(rig->q, &y, t.data, geo, first);
    result = rig_values(rig, &y);

    rig_free(rig, &t);
    rig_free(rig, &y);

    return result;
}


static void
test_patches(rigs_t *rigs)
{
    int                   c, first, n, cols, i;
    float                *cpu, *f32, *bf16;
    uint8_t              *rgb;
    uint64_t              seed = 4;
    vlm_patch_geometry_t  geo;

    static const struct {
        int  patch, merge, frames, width, height;
    } cases[] = {
        { 14, 2, 2, 84, 56 },
        { 16, 1, 1, 48, 32 },
        { 3, 3, 1, 18, 27 }
    };

    for (c = 0; c < (int) (sizeof(cases) / sizeof(cases[0])); c++) {
        geo.patch = cases[c].patch;
        geo.merge = cases[c].merge;
        geo.frames = cases[c].frames;
        geo.width = cases[c].width;
        geo.height = cases[c].height;

        for (i = 0; i < 3; i++) {
            geo.mean[i] = 0.4f + 0.05f * (float) i;
            geo.std[i] = 0.25f + 0.02f * (float) i;
        }

        n = geo.width * geo.height * 3;
        rgb = rig_memory(n);

        for (i = 0; i < n; i++) {
            rgb[i] = (uint8_t) tap_random(&seed);
        }

        first = c == 0 ? 4 : 0;
        n = geo.width / geo.patch * (geo.height / geo.patch) - first;
        cols = 3 * geo.frames * geo.patch * geo.patch;

        cpu = patches_on(&rigs->cpu, rgb, &geo, first, n);
        f32 = patches_on(&rigs->f32, rgb, &geo, first, n);
        bf16 = patches_on(&rigs->bf16, rgb, &geo, first, n);

        tap_ok(memcmp(cpu, f32, (size_t) n * cols * sizeof(float)) == 0,
               "%d patches of %d: equal bits", n, geo.patch);

        rig_round(cpu, (size_t) n * cols);
        tap_ok(memcmp(cpu, bf16, (size_t) n * cols * sizeof(float)) == 0,
               "%d patches of %d: and rounded", n, geo.patch);

        free(rgb);
        free(cpu);
        free(f32);
        free(bf16);
    }
}


static float *
table_on(rig_t *rig, const int32_t *positions, int rows,
    const vlm_rope_t *rope)
{
    float         *result;
    vlm_tensor_t   t;

    t = rig_tensor(rig, NULL, rows, 2 * rope->npairs, 2 * rope->npairs,
                   VLM_F32);
    rig->ops->rope_table(rig->q, &t, positions, rope);
    result = rig_values(rig, &t);
    rig_free(rig, &t);

    return result;
}


static void
test_table(rigs_t *rigs)
{
    int         i, rows = 729;
    float      *cpu, *emu;
    int32_t    *positions;
    uint64_t    seed = 5;
    vlm_rope_t  rope;

    memset(&rope, 0, sizeof(rope));
    rope.npairs = 36;
    rope.naxes = 2;

    for (i = 0; i < rope.npairs; i++) {
        rope.inv_freq[i] = powf(10000.0f, -(float) (i % 18) / 18.0f);
        rope.axis[i] = i >= 18;
    }

    positions = rig_memory(2 * rows * sizeof(int32_t));

    for (i = 0; i < 2 * rows; i++) {
        positions[i] = rig_below(&seed, 4000);
    }

    cpu = table_on(&rigs->cpu, positions, rows, &rope);
    emu = table_on(&rigs->bf16, positions, rows, &rope);

    tap_ok(rig_worst(emu, cpu, (size_t) rows * 72, 1e-6) < 1,
           "table of %d rows", rows);

    free(positions);
    free(cpu);
    free(emu);
}


static void
split(void *arg)
{
    vlm_emu_barrier(vlm_emu_at.thread.x == 0 ? 1 : 2);
}


/* a fault in a kernel stays, whatever is asked for after it */

static void
test_lost(rig_t *rig)
{
    char              err[256];
    float             x[64] = { 0 };
    vlm_tensor_t      t;
    vlm_emu_launch_t  l;

    t = rig_act(rig, x, 1, 64);
    rig_sync(rig);

    memset(&l, 0, sizeof(l));
    l.name = "split";
    l.grid.x = l.grid.y = l.grid.z = 1;
    l.block.x = 32;
    l.block.y = l.block.z = 1;
    l.run = split;

    tap_is(vlm_emu_lost(rig->dev), 0, "the device works");

    vlm_emu_run(&l);
    rig->ops->upload(rig->q, t.data, x, sizeof(float));

    tap_ok(rig->ops->sync(rig->q, err, sizeof(err)) == -1
           && strstr(err, "kernel split, block 0, 0, 0: a barrier") != NULL,
           "a fault is told: %s", err);
    tap_is(vlm_emu_lost(rig->dev), 1, "the device is lost");

    rig->ops->upload(rig->q, t.data, x, sizeof(float));
    tap_is(rig->ops->sync(rig->q, err, sizeof(err)), -1, "it stays so");

    vlm_emu_reset();
    rig_free(rig, &t);
}


int
main(void)
{
    int     seed;
    rigs_t  rigs;

    for (seed = 0; seed < 3; seed++) {
        vlm_emu_seed((uint64_t) seed);
        rigs_open(&rigs);

        test_norm(&rigs);
        test_lists(&rigs);
        test_patches(&rigs);

        if (seed == 0) {
            test_convert(&rigs);
            test_table(&rigs);
        }

        if (seed == 2 && rigs.f32.kind == RIG_EMU) {
            test_lost(&rigs.f32);
        }

        rigs_close(&rigs);
    }

    return tap_done();
}
