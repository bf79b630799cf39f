
/*
 * Models with quantised weights on the CUDA sources, by the shim: how far
 * embeddings and logits are from the reference's, and in float32 from those
 * of the CPU with the same weights.
 */

#include "t/unit/cuda_rig.h"
#include "t/unit/lib/golden.h"


#define BASE        "t/data/golden/qwen2_vl/base/model"

/*
 * int8: as on the CPU, see model_int8.c.  E4M3 has 4 digits of a value, so it
 * is off by 1/16 of itself at most and by 1/40 on the average, a product of
 * two by 1/28; layers add up.
 */
#define INT8_EMBEDDINGS  0.03
#define FP8_EMBEDDINGS   0.08
#define LOGITS           0.08

/*
 * In float32 the CPU's values are the same but for the last digits of what is
 * not quantised.  Where these decide between two integers, the products behind
 * them are apart by a step, and more of them, until both are as far from each
 * other as from the reference.
 */
#define TWIN        1e-5

#if defined(__SANITIZE_ADDRESS__)
#define NCASES      1
#else
#define NCASES      3
#endif

typedef struct {
    const char     *name;
    int             f32;
    vlm_quant_t     quant;
    vlm_quant_t     vision;
} quant_t;

typedef struct {
    float          *embeddings;
    float          *logits;
    size_t          nembeddings;
    size_t          nlogits;
} result_t;


static const char  *names[3] = { "one_tiny", "text_only", "two_images" };


static float *
floats(golden_rig_t *rig, const vlm_tensor_t *t)
{
    float         *values;
    vlm_tensor_t   wide;

    wide = *t;
    wide.dtype = VLM_F32;
    wide.stride = wide.cols;
    wide.data = rig->ops->alloc(rig->dev, (size_t) t->rows * t->cols
                                          * sizeof(float));

    rig->ops->convert(rig->queue, &wide, t);
    values = golden_download(rig, &wide);
    rig->ops->free(rig->dev, wide.data);

    return values;
}


static int
run_case(golden_rig_t *rig, const golden_case_t *c, result_t *r)
{
    int                  rc;
    golden_seq_t         seq;
    vlm_sampled_t        sampled;
    vlm_encode_job_t    *job;
    const vlm_tensor_t  *embeddings;

    memset(r, 0, sizeof(result_t));
    job = NULL;
    embeddings = NULL;

    if (c->npictures > 0) {
        job = golden_encode(rig, c, INFINITY);
        if (job == NULL) {
            return -1;
        }

        embeddings = vlm_encode_result(job);
        r->nembeddings = (size_t) (embeddings->rows * embeddings->cols);
        r->embeddings = floats(rig, embeddings);
    }

    r->nlogits = (size_t) vlm_model_info(rig->model)->vocab;
    r->logits = rig_memory(r->nlogits * sizeof(float));

    rc = golden_begin(&seq, c, embeddings, 0);

    if (rc == 0) {
        rc = golden_step(rig, &seq, 1, r->logits, &sampled);
        vlm_ids_free(&seq.ids);
    }

    vlm_encode_free(job);

    return rc;
}


static void
result_free(result_t *r)
{
    free(r->embeddings);
    free(r->logits);
}


static double
from_reference(const golden_case_t *c, const char *name, const float *values,
    size_t n)
{
    double        d;
    tap_tensor_t  t;

    t = tap_tensor(c->tensors, name);
    d = t.data != NULL && (size_t) t.count == n
        ? tap_distance(values, t.data, n) : INFINITY;
    free(t.data);

    return d;
}


static void
check_reference(const quant_t *q, const golden_case_t *c, const result_t *r)
{
    double  d, most;

    if (c->npictures > 0) {
        d = from_reference(c, "vision_embeds.w_bf16", r->embeddings,
                           r->nembeddings);
        most = q->vision == VLM_QUANT_FP8 ? FP8_EMBEDDINGS : INT8_EMBEDDINGS;

        tap_ok(d < most && d > 1e-4, "%s, %s: embeddings, distance %.2e",
               q->name, c->name, d);
    }

    d = from_reference(c, "logits_last.w_bf16", r->logits, r->nlogits);
    tap_ok(d < LOGITS, "%s, %s: logits, distance %.2e", q->name, c->name,
           d);
}


/* 1: the same but for last digits */

static int
check_twin(const quant_t *q, const golden_case_t *c, const result_t *r,
    golden_rig_t *cpu)
{
    double    embeddings, logits;
    result_t  twin;

    if (run_case(cpu, c, &twin) < 0) {
        return 0;
    }

    embeddings = 0;

    if (c->npictures > 0) {
        embeddings = tap_distance(r->embeddings, twin.embeddings,
                                  r->nembeddings);
    }

    logits = tap_distance(r->logits, twin.logits, r->nlogits);

    tap_ok(embeddings < INT8_EMBEDDINGS && logits < LOGITS, "%s, %s: "
           "embeddings %.2e, logits %.2e from the CPU's", q->name, c->name,
           embeddings, logits);
    result_free(&twin);

    return embeddings < TWIN && logits < TWIN;
}


static void
test_quant(const quant_t *q)
{
    int                   i, same;
    rig_t                 device;
    result_t              r;
    golden_rig_t          rig, cpu;
    golden_case_t         c;
    vlm_model_options_t   opt;

    memset(&opt, 0, sizeof(opt));
    opt.quant = q->quant;
    opt.vision_quant = q->vision;

    rig_open(&device, rig_cuda(), q->f32);

    if (golden_open_as(&rig, tap_path(BASE), &opt, device.dev, device.ops)
        < 0
        || (q->f32 && golden_open_as(&cpu, tap_path(BASE), &opt, NULL, NULL)
                      < 0))
    {
        return;
    }

    same = 0;

    for (i = 0; i < NCASES; i++) {

        if (golden_load(&c, rig.model, "base", names[i]) < 0
            || run_case(&rig, &c, &r) < 0)
        {
            return;
        }

        check_reference(q, &c, &r);

        if (q->f32) {
            same += check_twin(q, &c, &r, &cpu);
        }

        result_free(&r);
        golden_free(&c);
    }

    if (q->f32) {
        tap_ok(same > 0, "%s: %d of %d cases as on the CPU", q->name, same,
               NCASES);
        golden_close(&cpu);
    }

    golden_close(&rig);
    rig_close(&device);
}


int
main(void)
{
    size_t  i;

    static const quant_t  quants[] = {
        { "f32, all int8", 1, VLM_QUANT_INT8, VLM_QUANT_INT8 },
        { "decoder int8", 0, VLM_QUANT_INT8, VLM_QUANT_NONE },
        { "tower int8", 0, VLM_QUANT_NONE, VLM_QUANT_INT8 },
        { "all int8", 0, VLM_QUANT_INT8, VLM_QUANT_INT8 },
        { "tower fp8", 0, VLM_QUANT_NONE, VLM_QUANT_FP8 }
    };

    vlm_emu_seed(13);

    for (i = 0; i < sizeof(quants) / sizeof(quants[0]); i++) {
        test_quant(&quants[i]);
    }

    return tap_done();
}
