
/*
 * Models with int8 weights: how far embeddings and logits are from the
 * reference's, and what is refused.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "t/unit/lib/golden.h"
#include "t/unit/lib/tap.h"


/*
 * A value is off by 1/254 of its row's greatest at most, a product of x and w
 * by about 1 % of its size; layers add up.
 */
#define EMBEDDINGS  0.03
#define LOGITS      0.08

#define BASE        "t/data/golden/qwen2_vl/base/model"


typedef struct {
    const char     *name;
    vlm_quant_t     quant;
    vlm_quant_t     vision;
} quant_t;


static double
distance(const golden_case_t *c, const char *name, const float *values,
    size_t n)
{
    double        d;
    tap_tensor_t  t;

    t = tap_tensor(c->tensors, name);

    if (t.data == NULL || (size_t) t.count != n || values == NULL) {
        free(t.data);
        return INFINITY;
    }

    d = tap_distance(values, t.data, n);
    free(t.data);

    return d;
}


static void
test_case(golden_rig_t *rig, const quant_t *quant, const char *name)
{
    float               *values;
    double               d;
    golden_seq_t         seq;
    golden_case_t        c;
    vlm_sampled_t        sampled;
    const vlm_tensor_t  *embeddings;
    vlm_encode_job_t    *job;

    if (golden_load(&c, rig->model, "base", name) < 0) {
        tap_ok(0, "%s: loaded", name);
        return;
    }

    job = NULL;
    embeddings = NULL;

    if (c.npictures > 0) {
        job = golden_encode(rig, &c, INFINITY);
        if (job == NULL) {
            golden_free(&c);
            return;
        }

        embeddings = vlm_encode_result(job);
        values = golden_download(rig, embeddings);
        d = distance(&c, "vision_embeds.w_bf16", values,
                     (size_t) (embeddings->rows * embeddings->cols));

        tap_ok(d < EMBEDDINGS && (d > 1e-4) == (quant->vision
                                               != VLM_QUANT_NONE),
               "%s, %s: embeddings, distance %.2e", quant->name, name, d);
        free(values);
    }

    values = calloc((size_t) vlm_model_info(rig->model)->vocab,
                    sizeof(float));

    if (golden_begin(&seq, &c, embeddings, 0) == 0
        && golden_step(rig, &seq, 1, values, &sampled) == 0)
    {
        d = distance(&c, "logits_last.w_bf16", values,
                     (size_t) vlm_model_info(rig->model)->vocab);
        tap_ok(d > 1e-4 && d < LOGITS, "%s, %s: logits, distance %.2e",
               quant->name, name, d);
        vlm_ids_free(&seq.ids);
    }

    free(values);
    vlm_encode_free(job);
    golden_free(&c);
}


static void
test_quant(const quant_t *quant)
{
    golden_rig_t          rig;
    vlm_model_options_t   opt;

    memset(&opt, 0, sizeof(opt));
    opt.quant = quant->quant;
    opt.vision_quant = quant->vision;

    if (golden_open_as(&rig, tap_path(BASE), &opt, NULL, NULL) < 0) {
        return;
    }

    if (quant->quant != VLM_QUANT_NONE) {
        test_case(&rig, quant, "text_only");
        test_case(&rig, quant, "text_system");
    }

    test_case(&rig, quant, "one_image");
    test_case(&rig, quant, "two_images");
    test_case(&rig, quant, "one_tiny");

    golden_close(&rig);
}


/* the device says why, the model which tensor */

static void
test_refused(void)
{
    char                  why[256];
    vlm_error_t           err;
    vlm_model_t          *m;
    vlm_device_t         *dev;
    const vlm_ops_t      *ops;
    vlm_model_options_t   opt;

    memset(&opt, 0, sizeof(opt));
    opt.vision_quant = VLM_QUANT_FP8;

    dev = vlm_cpu_device(1, &ops, why, sizeof(why));
    m = vlm_model_open(tap_path(BASE), &opt, &err);

    if (tap_ok(dev != NULL && m != NULL, "a device and a model")) {
        tap_is(vlm_model_load(m, dev, ops, NULL, NULL, &err), VLM_ERROR,
               "fp8 on the CPU");
        tap_str(err.message, "tensor \"visual.blocks.0.attn.qkv.weight\": "
                "the CPU device has no fp8 weights", "says so");
    }

    vlm_model_free(m);
    vlm_cpu_device_destroy(dev);
}


int
main(void)
{
    size_t  i;

    static const quant_t  quants[] = {
        { "decoder", VLM_QUANT_INT8, VLM_QUANT_NONE },
        { "tower", VLM_QUANT_NONE, VLM_QUANT_INT8 },
        { "both", VLM_QUANT_INT8, VLM_QUANT_INT8 }
    };

    for (i = 0; i < sizeof(quants) / sizeof(quants[0]); i++) {
        test_quant(&quants[i]);
    }

    test_refused();

    return tap_done();
}
