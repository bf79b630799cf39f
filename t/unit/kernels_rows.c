
/*
 * Operations that work row by row: against naive sums in double, in place
 * and not, in odd shapes, alone and in a batch, on every instruction set.
 */

#include <math.h>

#include "kernels/cpu/rows.h"
#include "t/unit/kernels_rig.h"


static vlm_tensor_t
typed(rig_t *rig, void *data, vlm_dtype_t dtype, int64_t rows, int32_t cols,
    int64_t stride)
{
    vlm_tensor_t  t;

    t = rig_tensor(rig, data, rows, cols);
    t.dtype = dtype;
    t.stride = stride;

    return t;
}


static void
norm_reference(float *y, const float *x, int n, const float *gain,
    const float *bias, double eps, vlm_norm_kind_t kind)
{
    int     i;
    double  mean, var;

    mean = 0.0;
    var = 0.0;

    for (i = 0; i < n && kind == VLM_NORM_LAYER; i++) {
        mean += (double) x[i] / n;
    }

    for (i = 0; i < n; i++) {
        var += (x[i] - mean) * (x[i] - mean) / n;
    }

    for (i = 0; i < n; i++) {
        y[i] = (float) ((x[i] - mean) / sqrt(var + eps) * gain[i]
                        + (bias != NULL ? bias[i] : 0.0));
    }
}


static void
test_norm(rig_t *rigs, int nrigs)
{
    int           c, r, i;
    float        *x, *y, *first, *expected, *gain, *bias;
    double        distance;
    size_t        n, differ;
    uint64_t      seed = 4;
    vlm_tensor_t  tx, ty, vx, vy;

    static const struct {
        int              rows, cols, with_bias;
        vlm_norm_kind_t  kind;
        float            shift;         /* of all elements */
    } cases[] = {
        { 3, 1, 0, VLM_NORM_RMS, 0.0f },
        { 5, 15, 0, VLM_NORM_RMS, 0.0f },
        { 5, 17, 1, VLM_NORM_LAYER, 0.0f },
        { 70, 1280, 1, VLM_NORM_LAYER, 0.0f },
        { 4, 1280, 1, VLM_NORM_LAYER, 100.0f },
        { 33, 1536, 0, VLM_NORM_RMS, 1.0f },
        { 2, 8195, 0, VLM_NORM_LAYER, 0.5f },
        { 1, 40000, 0, VLM_NORM_RMS, 0.0f }
    };

    for (c = 0; c < (int) (sizeof(cases) / sizeof(cases[0])); c++) {
        n = (size_t) cases[c].rows * cases[c].cols;
        x = rig_random(&seed, n, 3.0f);
        gain = rig_random(&seed, cases[c].cols, 1.0f);
        bias = rig_random(&seed, cases[c].cols, 1.0f);
        y = rig_alloc(n * sizeof(float));
        first = rig_alloc(n * sizeof(float));
        expected = rig_alloc(n * sizeof(float));

        for (i = 0; i < (int) n; i++) {
            x[i] += cases[c].shift;
        }

        for (i = 0; i < cases[c].rows; i++) {
            norm_reference(expected + (size_t) i * cases[c].cols,
                           x + (size_t) i * cases[c].cols, cases[c].cols,
                           gain, cases[c].with_bias ? bias : NULL, 1e-6,
                           cases[c].kind);
        }

        differ = 0;

        for (r = 0; r < nrigs; r++) {
            tx = rig_tensor(&rigs[r], x, cases[c].rows, cases[c].cols);
            ty = rig_tensor(&rigs[r], r == 0 ? first : y, cases[c].rows,
                            cases[c].cols);

            rigs[r].ops->norm(rigs[r].q, &ty, &tx, gain,
                              cases[c].with_bias ? bias : NULL, 1e-6f,
                              cases[c].kind);
            rig_sync(&rigs[r]);
            differ += r == 0 ? 0 : rig_differ(y, first, n);

            /* in place, the rows one by one */

            memcpy(y, x, n * sizeof(float));
            ty.data = y;

            for (i = 0; i < cases[c].rows; i++) {
                vx = vlm_rows(&ty, i, 1);
                vy = vx;
                rigs[r].ops->norm(rigs[r].q, &vy, &vx, gain,
                                  cases[c].with_bias ? bias : NULL, 1e-6f,
                                  cases[c].kind);
            }

            rig_sync(&rigs[r]);
            differ += rig_differ(y, first, n);
        }

        distance = tap_distance(first, expected, n);

        tap_ok(distance < (cases[c].shift > 10.0f ? 1e-5 : 5e-7),
               "%s of %d x %d: distance %.2g",
               cases[c].kind == VLM_NORM_RMS ? "RMS norm" : "layer norm",
               cases[c].rows, cases[c].cols, distance);
        tap_is(differ, 0, "equal bits in place and by rows, %d devices",
               nrigs);

        free(x);
        free(y);
        free(first);
        free(expected);
        free(gain);
        free(bias);
    }
}


/* every pair of types, odd columns, rows with a gap between them */

static void
test_copies(rig_t *rigs, int nrigs)
{
    int           r, a, b, i, j, wrong, size;
    char         *x, *y, *one;
    float        *f;
    int32_t       list[40];
    uint64_t      seed = 5;
    vlm_tensor_t  tx, ty;

    static const vlm_dtype_t  types[] = { VLM_F32, VLM_BF16, VLM_F16 };

    enum { ROWS = 40, COLS = 531, STRIDE = 540 };

    f = rig_random(&seed, ROWS * STRIDE, 100.0f);
    x = rig_alloc(ROWS * STRIDE * 4);
    y = rig_alloc(ROWS * STRIDE * 4);
    one = rig_alloc(COLS * 4);

    for (i = 0; i < ROWS; i++) {
        list[i] = i;
    }

    for (i = ROWS - 1; i > 0; i--) {
        j = rig_below(&seed, i + 1);
        a = list[i];
        list[i] = list[j];
        list[j] = a;
    }

    for (r = 0; r < nrigs; r++) {
        wrong = 0;

        for (a = 0; a < 3; a++) {
            rigs[0].dev->rows->convert(x, types[a], f, VLM_F32,
                                       ROWS * STRIDE);
            tx = typed(&rigs[r], x, types[a], ROWS, COLS, STRIDE);

            for (b = 0; b < 9; b++) {
                size = (int) vlm_dtype_size(types[b % 3]);
                ty = typed(&rigs[r], y, types[b % 3], ROWS, COLS, STRIDE);
                memset(y, 0x5a, ROWS * STRIDE * 4);

                if (b < 3) {
                    rigs[r].ops->convert(rigs[r].q, &ty, &tx);

                } else if (b < 6) {
                    rigs[r].ops->scatter(rigs[r].q, &ty, &tx, list, ROWS);

                } else {
                    rigs[r].ops->gather(rigs[r].q, &ty, &tx, list, ROWS);
                }

                rig_sync(&rigs[r]);

                for (i = 0; i < ROWS; i++) {
                    /* row i of x is row j of y, or the other way round */
                    j = b < 3 ? i : list[i];

                    rigs[0].dev->rows->convert(one, types[b % 3],
                        x + (b < 6 ? i : j) * STRIDE
                            * vlm_dtype_size(types[a]),
                        types[a], COLS);

                    j = b < 6 ? j : i;
                    wrong += memcmp(y + j * STRIDE * size, one, COLS * size)
                             != 0;
                    wrong += y[(j * STRIDE + COLS) * size] != 0x5a;
                }
            }
        }

        tap_is(wrong, 0, "%s: convert, scatter, gather of all types",
               rigs[r].name);
    }

    free(f);
    free(x);
    free(y);
    free(one);
}


static void
test_rope_table(rig_t *rigs, int nrigs)
{
    int           i, p, r;
    float        *table, *first;
    double        error, worst, angle;
    size_t        differ;
    int32_t      *positions;
    uint64_t      seed = 6;
    vlm_rope_t    rope;
    vlm_tensor_t  t;

    enum { ROWS = 300, PAIRS = 37 };

    table = rig_alloc(ROWS * 2 * PAIRS * sizeof(float));
    first = rig_alloc(ROWS * 2 * PAIRS * sizeof(float));
    positions = rig_alloc(3 * ROWS * sizeof(int32_t));

    rope.npairs = PAIRS;
    rope.naxes = 3;

    for (i = 0; i < 3 * ROWS; i++) {
        positions[i] = rig_below(&seed, 32768);
    }

    for (p = 0; p < PAIRS; p++) {
        rope.inv_freq[p] = (float) pow(1e6, -1.0 * p / PAIRS);
        rope.axis[p] = (uint8_t) rig_below(&seed, 3);
    }

    differ = 0;

    for (r = 0; r < nrigs; r++) {
        t = rig_tensor(&rigs[r], r == 0 ? first : table, ROWS, 2 * PAIRS);
        rigs[r].ops->rope_table(rigs[r].q, &t, positions, &rope);
        rig_sync(&rigs[r]);
        differ += r == 0 ? 0 : rig_differ(table, first, ROWS * 2 * PAIRS);
    }

    worst = 0.0;

    for (i = 0; i < ROWS; i++) {

        for (p = 0; p < PAIRS; p++) {
            angle = (float) positions[rope.axis[p] * ROWS + i]
                    * rope.inv_freq[p];

            error = fabs(first[i * 2 * PAIRS + p] - cos(angle));
            worst = error > worst ? error : worst;
            error = fabs(first[i * 2 * PAIRS + PAIRS + p] - sin(angle));
            worst = error > worst ? error : worst;
        }
    }

    tap_ok(worst < 1e-7, "rope table: error at most %.2g", worst);
    tap_is(differ, 0, "equal bits on %d devices", nrigs);

    free(table);
    free(first);
    free(positions);
}


/* where each value of each patch comes from, by the text of the rule */

static void
patch_reference(float *y, const uint8_t *rgb, const vlm_patch_geometry_t *g)
{
    int    by, bx, iy, ix, c, f, i, j, py, px;
    float  v;

    for (by = 0; by < g->height / (g->patch * g->merge); by++) {
        for (bx = 0; bx < g->width / (g->patch * g->merge); bx++) {
            for (iy = 0; iy < g->merge; iy++) {
                for (ix = 0; ix < g->merge; ix++) {
                    for (c = 0; c < 3; c++) {
                        for (f = 0; f < g->frames; f++) {
                            for (i = 0; i < g->patch; i++) {
                                for (j = 0; j < g->patch; j++) {
                                    py = (by * g->merge + iy) * g->patch + i;
                                    px = (bx * g->merge + ix) * g->patch + j;
                                    v = (float) (rgb[(py * g->width + px) * 3
                                                     + c] * (1.0 / 255.0));
                                    *y++ = (v - g->mean[c]) / g->std[c];
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}


static void
test_patchify(rig_t *rigs, int nrigs)
{
    int                   c, i, r, cols, rows, first;
    float                *y, *expected;
    size_t                n, differ;
    uint8_t              *rgb;
    uint64_t              seed = 7;
    vlm_tensor_t          t, view;
    vlm_patch_geometry_t  g;

    static const struct {
        int  across, down, patch, merge, frames;
    } cases[] = {
        { 1, 1, 14, 2, 2 },
        { 5, 3, 14, 2, 2 },
        { 7, 2, 16, 1, 1 },
        { 2, 3, 4, 3, 1 }
    };

    for (c = 0; c < (int) (sizeof(cases) / sizeof(cases[0])); c++) {
        g.patch = cases[c].patch;
        g.merge = cases[c].merge;
        g.frames = cases[c].frames;
        g.width = cases[c].across * g.patch * g.merge;
        g.height = cases[c].down * g.patch * g.merge;
        g.mean[0] = 0.48145466f;
        g.mean[1] = 0.4578275f;
        g.mean[2] = 0.40821073f;
        g.std[0] = 0.26862954f;
        g.std[1] = 0.26130258f;
        g.std[2] = 0.27577711f;

        cols = 3 * g.frames * g.patch * g.patch;
        rows = g.width * g.height / (g.patch * g.patch);
        n = (size_t) rows * cols;

        rgb = rig_alloc((size_t) g.width * g.height * 3);
        y = rig_alloc(n * sizeof(float));
        expected = rig_alloc(n * sizeof(float));

        for (i = 0; i < g.width * g.height * 3; i++) {
            rgb[i] = (uint8_t) tap_random(&seed);
        }

        patch_reference(expected, rgb, &g);
        differ = 0;

        for (r = 0; r < nrigs; r++) {
            t = rig_tensor(&rigs[r], y, rows, cols);
            memset(y, 0xff, n * sizeof(float));

            first = rig_below(&seed, rows);
            view = vlm_rows(&t, 0, first);
            rigs[r].ops->patchify(rigs[r].q, &view, rgb, &g, 0);
            view = vlm_rows(&t, first, rows - first);
            rigs[r].ops->patchify(rigs[r].q, &view, rgb, &g, first);
            rig_sync(&rigs[r]);

            differ += rig_differ(y, expected, n);
        }

        tap_is(differ, 0, "patches of %d x %d, %d pixels, merged by %d, %d "
               "frames", g.width, g.height, g.patch, g.merge, g.frames);

        free(rgb);
        free(y);
        free(expected);
    }
}


static void
test_wrong_types(rig_t *rig)
{
    char          err[256];
    float         x[4] = { 0 };
    vlm_tensor_t  t, bytes;

    t = rig_tensor(rig, x, 1, 4);
    bytes = t;
    bytes.dtype = VLM_U8;

    rig->ops->convert(rig->q, &t, &bytes);
    tap_is(rig->ops->sync(rig->q, err, sizeof(err)), -1, "convert from bytes: "
           "%s", err);

    bytes.dtype = VLM_F16;
    rig->ops->norm(rig->q, &t, &bytes, x, NULL, 1e-6f, VLM_NORM_RMS);
    tap_is(rig->ops->sync(rig->q, err, sizeof(err)), -1, "norm of halves: %s",
           err);
    tap_is(rig->ops->sync(rig->q, err, sizeof(err)), 0, "and told once");
}


int
main(void)
{
    int    n;
    rig_t  rigs[RIG_MAX];

    n = rigs_open(rigs);

    test_norm(rigs, n);
    test_copies(rigs, n);
    test_rope_table(rigs, n);
    test_patchify(rigs, n);
    test_wrong_types(&rigs[0]);

    rigs_close(rigs, n);

    return tap_done();
}
