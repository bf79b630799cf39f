
/*
 * Whole models on the CUDA sources, by the shim: in float32 the reference's
 * tokens, alone and with eight requests in one batch; in bfloat16 logits near
 * the reference's, and near the CPU's when both are fed the same tokens.
 * VLM_TEST_CUDA=1: the same on the machine's first GPU.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/vlm_cuda.h"
#include "kernels/emu/emu.h"
#include "t/unit/lib/golden.h"
#include "t/unit/lib/tap.h"


#if defined(__SANITIZE_ADDRESS__)
#define TOKENS      3                   /* sanitizers are slow */
#define REQUESTS    4
#else
#define TOKENS      GOLDEN_TOKENS
#define REQUESTS    8
#endif

#define FED         4                   /* steps fed the reference's tokens */

#define F32_NEAR    1e-3
#define BF16_NEAR   2e-2


typedef struct {
    golden_rig_t         golden;
    vlm_device_t        *dev;
    int                  gpu;
} emu_t;

typedef struct {
    golden_case_t        c;
    vlm_encode_job_t    *job;
} request_t;


static int
emu_open(emu_t *emu, const char *variant, int f32)
{
    char                err[256];
    const vlm_ops_t    *ops;
    vlm_cuda_options_t  opt;

    memset(&opt, 0, sizeof(opt));
    opt.f32 = f32;

    emu->gpu = getenv("VLM_TEST_CUDA") != NULL;
    emu->dev = emu->gpu ? vlm_cuda_device(0, &opt, &ops, err, sizeof(err))
                        : vlm_emu_device(&opt, &ops, err, sizeof(err));

    if (emu->dev == NULL) {
        return tap_ok(0, "device: %s", err) - 1;
    }

    return golden_open(&emu->golden,
                       tap_path("t/data/golden/qwen2_vl/%s/model", variant),
                       emu->dev, ops);
}


static void
emu_close(emu_t *emu)
{
    golden_close(&emu->golden);

    if (emu->gpu) {
        vlm_cuda_device_destroy(emu->dev);

    } else {
        vlm_emu_device_destroy(emu->dev);
    }
}


static int
request_open(request_t *r, golden_rig_t *rig, const char *variant,
    const char *name)
{
    memset(r, 0, sizeof(request_t));

    if (golden_load(&r->c, rig->model, variant, name) < 0) {
        return tap_ok(0, "%s/%s: loaded", variant, name) - 1;
    }

    if (r->c.npictures != 0) {
        r->job = golden_encode(rig, &r->c, INFINITY);

        if (r->job == NULL) {
            return -1;
        }
    }

    return 0;
}


static void
request_close(request_t *r)
{
    vlm_encode_free(r->job);
    golden_free(&r->c);
}


static const vlm_tensor_t *
embeddings(const request_t *r)
{
    return r->job != NULL ? vlm_encode_result(r->job) : NULL;
}


static void
near_tensor(const request_t *r, const char *name, const float *values,
    double limit)
{
    double        distance;
    tap_tensor_t  t;

    t = tap_tensor(r->c.tensors, name);
    distance = t.data != NULL ? tap_distance(values, t.data, (size_t) t.count)
                              : INFINITY;
    free(t.data);

    tap_ok(distance < limit, "%s: %s, distance %.1e", r->c.name, name,
           distance);
}


static void
test_embeddings(golden_rig_t *rig, const request_t *r, double limit)
{
    float               *values;
    vlm_tensor_t         wide;
    const vlm_tensor_t  *e;

    e = embeddings(r);

    if (e == NULL) {
        return;
    }

    wide = *e;
    wide.dtype = VLM_F32;
    wide.stride = wide.cols;
    wide.data = rig->ops->alloc(rig->dev, (size_t) e->rows * e->cols
                                          * sizeof(float));

    rig->ops->convert(rig->queue, &wide, e);
    values = golden_download(rig, &wide);
    near_tensor(r, "vision_embeds.w_bf16", values, limit);

    free(values);
    rig->ops->free(rig->dev, wide.data);
}


static int32_t
known_token(const request_t *r, int step)
{
    int64_t  id;

    id = -1;
    vlm_json_int(vlm_json_at(vlm_json_get(vlm_json_get(r->c.json, "w_bf16"),
                                          "ids"), (size_t) step), &id);

    return (int32_t) id;
}


/* the reference's tokens, one request alone */

static void
test_alone(golden_rig_t *rig, const char *variant, const char *name)
{
    int            step, same;
    float         *logits;
    uint64_t       allocations;
    request_t      r;
    golden_seq_t   seq;
    vlm_sampled_t  sampled;

    if (request_open(&r, rig, variant, name) < 0
        || golden_begin(&seq, &r.c, embeddings(&r), 2) < 0)
    {
        return;
    }

    test_embeddings(rig, &r, F32_NEAR);

    logits = calloc((size_t) vlm_model_info(rig->model)->vocab,
                    sizeof(float));
    same = 0;
    allocations = 0;

    for (step = 0; step < TOKENS; step++) {

        if (golden_step(rig, &seq, 1, step == 0 ? logits : NULL, &sampled)
            < 0)
        {
            break;
        }

        if (step == 1) {
            allocations = vlm_emu_allocations();
        }

        if (step == 0) {
            near_tensor(&r, "logits_last.w_bf16", logits, F32_NEAR);
        }

        same += sampled.id == known_token(&r, step);
        vlm_ids_append(&seq.ids, sampled.id, 1);
    }

    tap_is(same, TOKENS, "%s: greedy tokens", r.c.name);
    tap_is((long long) (vlm_emu_allocations() - allocations), 0,
           "%s: no allocations from the second token on", r.c.name);

    free(logits);
    vlm_ids_free(&seq.ids);
    request_close(&r);
}


/* eight requests of all kinds: two by two in, then one token each a step */

static void
test_batch(golden_rig_t *rig)
{
    int            s, step, same[REQUESTS];
    request_t      r[REQUESTS];
    golden_seq_t   seqs[REQUESTS];
    vlm_sampled_t  sampled[REQUESTS];

    static const char  *names[8] = {
        "text_only", "one_tiny", "text_system", "two_images", "unicode",
        "one_tall", "multi_turn", "one_image"
    };

    for (s = 0; s < REQUESTS; s++) {
        same[s] = 0;

        if (request_open(&r[s], rig, "base", names[s]) < 0
            || golden_begin(&seqs[s], &r[s].c, embeddings(&r[s]), s) < 0)
        {
            return;
        }
    }

    for (step = 0; step < TOKENS; step++) {

        for (s = 0; s < REQUESTS; s += step == 0 ? 2 : REQUESTS) {

            if (golden_step(rig, seqs + s, step == 0 ? 2 : REQUESTS, NULL,
                            sampled + s)
                < 0)
            {
                return;
            }
        }

        for (s = 0; s < REQUESTS; s++) {
            same[s] += sampled[s].id == known_token(&r[s], step);
            vlm_ids_append(&seqs[s].ids, sampled[s].id, 1);
        }
    }

    for (s = 0; s < REQUESTS; s++) {
        tap_is(same[s], TOKENS, "%s: greedy tokens, among %d",
               r[s].c.name, REQUESTS);

        vlm_ids_free(&seqs[s].ids);
        request_close(&r[s]);
    }
}


/* logits of FED steps, fed the reference's tokens: [FED][vocab] */

static float *
fed_logits(golden_rig_t *rig, const request_t *r)
{
    int            step;
    size_t         vocab;
    float         *logits;
    golden_seq_t   seq;
    vlm_sampled_t  sampled;

    vocab = (size_t) vlm_model_info(rig->model)->vocab;
    logits = calloc(FED * vocab, sizeof(float));

    if (golden_begin(&seq, &r->c, embeddings(r), 1) < 0) {
        return logits;
    }

    for (step = 0; step < FED; step++) {

        if (golden_step(rig, &seq, 1, logits + (size_t) step * vocab,
                        &sampled)
            < 0)
        {
            break;
        }

        vlm_ids_append(&seq.ids, known_token(r, step), 1);
    }

    vlm_ids_free(&seq.ids);

    return logits;
}


static void
test_bf16(const char *name)
{
    int            step;
    emu_t          emu;
    float         *got, *cpu;
    double         distance;
    size_t         vocab;
    request_t      r, r_cpu;
    golden_rig_t   rig;

    if (emu_open(&emu, "base", 0) < 0
        || golden_open(&rig, tap_path("t/data/golden/qwen2_vl/base/model"),
                       NULL, NULL)
           < 0)
    {
        return;
    }

    if (request_open(&r, &emu.golden, "base", name) < 0
        || request_open(&r_cpu, &rig, "base", name) < 0)
    {
        return;
    }

    test_embeddings(&emu.golden, &r, BF16_NEAR);

    vocab = (size_t) vlm_model_info(rig.model)->vocab;
    got = fed_logits(&emu.golden, &r);
    cpu = fed_logits(&rig, &r_cpu);

    near_tensor(&r, "logits_last.w_bf16", got, BF16_NEAR);

    for (step = 1; step < FED; step++) {
        distance = tap_distance(got + step * vocab, cpu + step * vocab,
                                vocab);
        tap_ok(distance < BF16_NEAR, "%s: logits of step %d, distance %.1e",
               r.c.name, step, distance);
    }

    free(got);
    free(cpu);
    request_close(&r);
    request_close(&r_cpu);
    golden_close(&rig);
    emu_close(&emu);
}


int
main(void)
{
    emu_t  emu;

    vlm_emu_seed(11);

    if (emu_open(&emu, "base", 1) == 0) {
        test_alone(&emu.golden, "base", "text_only");
        test_alone(&emu.golden, "base", "two_images");
        test_batch(&emu.golden);
    }

    emu_close(&emu);

    if (emu_open(&emu, "untied_sharded", 1) == 0) {
        test_alone(&emu.golden, "untied_sharded", "one_tiny");
    }

    emu_close(&emu);

    if (TOKENS == GOLDEN_TOKENS) {
        test_bf16("text_only");
    }

    test_bf16("one_image");

    return tap_done();
}
