
/*
 * Qwen2-VL against the reference: pixels bit for bit, positions, embeddings,
 * logits, 24 greedy tokens of each case.
 */

#include <math.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "t/unit/lib/golden.h"
#include "t/unit/lib/tap.h"


#define TOLERANCE   1e-3        /* about 1e-6 is what float32 gives */

static const char  *base[] = {
    "text_only", "text_system", "one_image", "one_wide", "one_tall",
    "one_tiny", "one_large", "two_images", "three_images", "multi_turn",
    "two_turn_images", "unicode", NULL
};

static const char  *untied_sharded[] = {
    "text_only", "text_system", "one_image", "one_tiny", "two_images",
    "three_images", "two_turn_images", NULL
};


static void
sha256_hex(const void *data, size_t len, char *hex)
{
    int            i;
    unsigned char  md[SHA256_DIGEST_LENGTH];

    SHA256(data, len, md);

    for (i = 0; i < SHA256_DIGEST_LENGTH; i++) {
        snprintf(hex + 2 * i, 3, "%02x", md[i]);
    }
}


/* patches of pictures, one after another, as the device makes them */

static float *
patches(golden_rig_t *rig, const vlm_image_t *images,
    const vlm_image_plan_t *plans, size_t n, size_t *size)
{
    int                   i;
    float                *to;
    size_t                p, bytes;
    void                 *rgb;
    int64_t               done;
    vlm_tensor_t          t, slice;
    vlm_patch_geometry_t  geo;
    static const float    mean[3] = { 0.48145466f, 0.4578275f, 0.40821073f };
    static const float    std[3] = { 0.26862954f, 0.26130258f, 0.27577711f };

    memset(&t, 0, sizeof(t));
    t.device = rig->dev;
    t.dtype = VLM_F32;
    t.cols = 1176;
    t.stride = 1176;

    for (p = 0; p < n; p++) {
        t.rows += plans[p].grid_h * plans[p].grid_w;
    }

    *size = (size_t) t.rows * 1176 * sizeof(float);
    t.data = rig->ops->alloc(rig->dev, *size);
    done = 0;

    geo.patch = 14;
    geo.merge = 2;
    geo.frames = 2;

    for (i = 0; i < 3; i++) {
        geo.mean[i] = mean[i];
        geo.std[i] = std[i];
    }

    for (p = 0; p < n; p++) {
        geo.width = (int32_t) plans[p].width;
        geo.height = (int32_t) plans[p].height;

        bytes = (size_t) geo.width * (size_t) geo.height * 3;
        rgb = rig->ops->alloc(rig->dev, bytes);
        slice = vlm_rows(&t, done, plans[p].grid_h * plans[p].grid_w);

        rig->ops->upload(rig->queue, rgb, images[p].data, bytes);
        rig->ops->patchify(rig->queue, &slice, rgb, &geo, 0);
        done += slice.rows;

        rig->ops->free(rig->dev, rgb);
    }

    to = golden_download(rig, &t);
    rig->ops->free(rig->dev, t.data);

    return to;
}


/* every picture, most of which no case shows alone */

static void
test_preprocess(golden_rig_t *rig)
{
    char               file[128], hex[65];
    float             *pixels;
    size_t             n, size, len;
    int64_t            rows, cols, tokens;
    const char        *key, *sha;
    vlm_error_t        err;
    vlm_image_t        image, resized;
    tap_tensor_t       expected;
    vlm_json_doc_t    *doc;
    const vlm_json_t  *v;
    vlm_image_plan_t   plan;

    doc = vlm_json_load(tap_path("t/data/golden/qwen2_vl/base/preprocess/"
                                 "info.json"), &err);
    n = 0;

    for (v = vlm_json_first(vlm_json_root(doc)); v != NULL;
         v = vlm_json_next(v))
    {
        key = vlm_json_key(v, &len);
        snprintf(file, sizeof(file), "%.*s", (int) len, key);

        vlm_json_int(vlm_json_at(vlm_json_get(v, "grid_thw"), 1), &rows);
        vlm_json_int(vlm_json_at(vlm_json_get(v, "grid_thw"), 2), &cols);
        vlm_json_int(vlm_json_get(v, "n_tokens"), &tokens);
        vlm_json_string(vlm_json_get(v, "pixel_values_sha256"), &sha, &len);

        if (golden_picture(file, &image) < 0
            || vlm_model_plan(rig->model, image.width, image.height,
                              VLM_DETAIL_AUTO, &plan, &err)
               == VLM_ERROR
            || vlm_image_resize(&image, plan.width, plan.height, plan.filter,
                                &resized, &err)
               == VLM_ERROR)
        {
            tap_ok(0, "%s: %s", file, err.message);
            continue;
        }

        tap_ok(plan.grid_h == rows && plan.grid_w == cols
               && plan.ntokens == tokens, "%s: grid and tokens", file);

        pixels = patches(rig, &resized, &plan, 1, &size);
        sha256_hex(pixels, size, hex);
        tap_ok(len == 64 && memcmp(hex, sha, 64) == 0, "%s: pixels", file);

        if (strcmp(file, "n_half28_70x154.png") == 0
            || strcmp(file, "f_gray_301x219.png") == 0)
        {
            expected = tap_tensor(tap_path("t/data/golden/qwen2_vl/base/"
                                           "preprocess/%s.safetensors", file),
                                  "pixel_values");
            tap_ok(expected.size == size
                   && memcmp(pixels, expected.data, size) == 0,
                   "%s: pixel values", file);
            free(expected.data);
        }

        n++;
        free(pixels);
        free(image.data);
        vlm_image_free(&resized);
    }

    tap_is((long long) n, 15, "pictures");
    vlm_json_free(doc);
}


static void
test_positions(const golden_case_t *c)
{
    int            same;
    size_t         i, n;
    int64_t        delta;
    tap_tensor_t   t;

    n = c->prompt.ids.len;
    t = tap_tensor(c->tensors, "position_ids");
    same = t.data != NULL && (size_t) t.count == 3 * n;

    for (i = 0; same && i < 3 * n; i++) {
        same = ((int64_t *) t.data)[i] == c->positions[i];
    }

    tap_ok(same, "%s: positions", c->name);
    free(t.data);

    vlm_json_int(vlm_json_get(c->json, "rope_delta"), &delta);
    tap_is(c->delta, delta, "%s: rope_delta", c->name);
}


static void
test_pixels(golden_rig_t *rig, const golden_case_t *c)
{
    char         hex[65];
    float       *pixels;
    size_t       size, len;
    const char  *sha;

    pixels = patches(rig, c->resized, c->plans, c->npictures, &size);
    sha256_hex(pixels, size, hex);
    free(pixels);

    len = 0;
    vlm_json_string(vlm_json_get(c->json, "pixel_values_sha256"), &sha, &len);
    tap_ok(len == 64 && memcmp(hex, sha, 64) == 0, "%s: pixel values",
           c->name);
}


static void
test_values(const golden_case_t *c, const char *name, const float *values,
    size_t n, double tolerance)
{
    double        distance;
    tap_tensor_t  t;

    t = tap_tensor(c->tensors, name);

    if (!tap_ok(t.data != NULL && (size_t) t.count == n && values != NULL,
                "%s: size of %s", c->name, name))
    {
        return;
    }

    distance = tap_distance(values, t.data, n);
    tap_ok(distance < tolerance, "%s: %s, distance %.1e", c->name, name,
           distance);
    free(t.data);
}


static void
trace(void *data, const char *module, const vlm_tensor_t *t)
{
    char  name[160];

    snprintf(name, sizeof(name), "trace.%s", module);
    test_values(data, name, t->data, (size_t) (t->rows * t->cols),
                TOLERANCE);
}


static void
test_top(const golden_case_t *c, int step, const vlm_sampled_t *got,
    double *worst)
{
    int                i;
    double             logprob;
    int64_t            id;
    const vlm_json_t  *top;

    top = vlm_json_at(vlm_json_get(vlm_json_get(c->json, "w_bf16"), "top5"),
                      (size_t) step);

    for (i = 0; i < 5; i++) {
        if (vlm_json_int(vlm_json_at(vlm_json_get(top, "ids"), (size_t) i),
                         &id)
            == VLM_ERROR
            || vlm_json_double(vlm_json_at(vlm_json_get(top, "logprobs"),
                                           (size_t) i), &logprob)
               == VLM_ERROR)
        {
            *worst = INFINITY;
            return;
        }

        *worst = fmax(*worst, fabs(got->top_logprob[i] - logprob));
    }
}


static void
test_answer(golden_rig_t *rig, const golden_case_t *c,
    const vlm_tensor_t *embeddings)
{
    int                step, same;
    float             *logits;
    double             worst;
    int64_t            id;
    golden_seq_t       seq;
    vlm_sampled_t      sampled;
    const vlm_json_t  *ids;

    logits = calloc((size_t) vlm_model_info(rig->model)->vocab,
                    sizeof(float));
    ids = vlm_json_get(vlm_json_get(c->json, "w_bf16"), "ids");
    same = 0;
    worst = 0;

    if (golden_begin(&seq, c, embeddings, 3) < 0) {
        return;
    }

    for (step = 0; step < GOLDEN_TOKENS; step++) {

        if (golden_step(rig, &seq, 1, step == 0 ? logits : NULL, &sampled)
            < 0)
        {
            break;
        }

        if (step == 0) {
            vlm_model_trace(rig->model, NULL, NULL);    /* of the prompt */
            test_values(c, "logits_last.w_bf16", logits,
                        (size_t) vlm_model_info(rig->model)->vocab,
                        TOLERANCE);
        }

        id = -1;
        vlm_json_int(vlm_json_at(ids, (size_t) step), &id);
        same += sampled.id == id;
        test_top(c, step, &sampled, &worst);
        vlm_ids_append(&seq.ids, sampled.id, 1);
    }

    tap_is(same, GOLDEN_TOKENS, "%s: greedy tokens", c->name);
    tap_ok(worst < TOLERANCE, "%s: log probabilities, worst %.1e", c->name,
           worst);

    vlm_ids_free(&seq.ids);
    free(logits);
}


static void
test_case(golden_rig_t *rig, const char *variant, const char *name)
{
    float             *values;
    golden_case_t      c;
    vlm_encode_job_t  *job;

    if (golden_load(&c, rig->model, variant, name) < 0) {
        tap_ok(0, "%s/%s: loaded", variant, name);
        return;
    }

    test_positions(&c);

    job = NULL;

    /* this case has the outputs of all modules */

    if (strcmp(name, "two_images") == 0 && strcmp(variant, "base") == 0) {
        vlm_model_trace(rig->model, trace, &c);
    }

    if (c.npictures > 0) {
        test_pixels(rig, &c);
        job = golden_encode(rig, &c, INFINITY);

        if (job != NULL) {
            values = golden_download(rig, vlm_encode_result(job));
            test_values(&c, "vision_embeds.w_bf16", values,
                        (size_t) (vlm_encode_result(job)->rows
                                  * vlm_encode_result(job)->cols),
                        TOLERANCE);
            free(values);
        }
    }

    if (c.npictures == 0 || job != NULL) {
        test_answer(rig, &c, job != NULL ? vlm_encode_result(job) : NULL);
    }

    vlm_model_trace(rig->model, NULL, NULL);
    vlm_encode_free(job);
    golden_free(&c);
}


static void
test_variant(const char *variant, const char **cases)
{
    int           i;
    golden_rig_t  rig;

    if (golden_open(&rig, tap_path("t/data/golden/qwen2_vl/%s/model",
                                   variant), NULL, NULL)
        == 0)
    {
        tap_diag("%s on %s", variant, rig.ops->name);

        if (cases == base) {
            test_preprocess(&rig);
        }

        for (i = 0; cases[i] != NULL; i++) {
            test_case(&rig, variant, cases[i]);
        }
    }

    golden_close(&rig);
}


int
main(void)
{
    test_variant("base", base);
    test_variant("untied_sharded", untied_sharded);

    return tap_done();
}
