
/*
 * The whole path on the guard device: model code looks into no tensor, keeps
 * what it lends until it has synced, stays inside its memory, and frees it.
 */

#include <stdlib.h>
#include <string.h>

#include "t/unit/lib/golden.h"
#include "t/unit/lib/guard.h"
#include "t/unit/lib/tap.h"


typedef struct {
    float              *embeddings;
    float              *logits;             /* two sequences, two steps */
    size_t              size;               /* bytes of the embeddings */
    size_t              vocab;
} values_t;


/* a picture's prompt in two chunks beside a text's, then a step of both */

static int
decode(golden_rig_t *rig, const golden_case_t *a, const golden_case_t *b,
    const vlm_tensor_t *embeddings, values_t *v)
{
    int             rc;
    golden_seq_t    seqs[2];
    vlm_sampled_t   sampled[2];

    if (golden_begin(&seqs[0], a, embeddings, 2) < 0
        || golden_begin(&seqs[1], b, NULL, 5) < 0)
    {
        return -1;
    }

    seqs[0].n = 100;
    rc = golden_step(rig, seqs, 1, NULL, sampled);

    if (rc == 0) {
        seqs[0].n = (int32_t) seqs[0].ids.len - 100;
        rc = golden_step(rig, seqs, 2, v->logits, sampled);
    }

    if (rc == 0) {
        vlm_ids_append(&seqs[0].ids, sampled[0].id, 1);
        vlm_ids_append(&seqs[1].ids, sampled[1].id, 1);
        rc = golden_step(rig, seqs, 2, v->logits + 2 * v->vocab, sampled);
    }

    vlm_ids_free(&seqs[0].ids);
    vlm_ids_free(&seqs[1].ids);

    return rc;
}


static int
values_of(vlm_device_t *dev, const vlm_ops_t *ops, const char *variant,
    values_t *v)
{
    int                rc;
    golden_rig_t       rig;
    golden_case_t      a, b;
    vlm_encode_job_t  *job;

    memset(v, 0, sizeof(*v));
    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    job = NULL;
    rc = -1;

    if (golden_open(&rig, tap_path("t/data/golden/qwen2_vl/%s/model",
                                   variant), dev, ops)
        == 0
        && golden_load(&a, rig.model, variant, "two_images") == 0
        && golden_load(&b, rig.model, variant, "text_only") == 0)
    {
        job = golden_encode(&rig, &a, 3e6);
    }

    if (job != NULL) {
        v->embeddings = golden_download(&rig, vlm_encode_result(job));
        v->size = (size_t) (vlm_encode_result(job)->rows
                            * vlm_encode_result(job)->cols) * sizeof(float);
        v->vocab = (size_t) vlm_model_info(rig.model)->vocab;
        v->logits = calloc(4 * v->vocab, sizeof(float));

        rc = decode(&rig, &a, &b, vlm_encode_result(job), v);
    }

    vlm_encode_free(job);
    golden_free(&a);
    golden_free(&b);
    golden_close(&rig);

    return rc;
}


static void
test_variant(const char *variant)
{
    char              why[256];
    values_t          real, guarded;
    vlm_device_t     *cpu, *guard;
    const vlm_ops_t  *cpu_ops, *ops;

    cpu = vlm_cpu_device(2, &cpu_ops, why, sizeof(why));

    if (!tap_ok(cpu != NULL, "%s: a device", variant)) {
        return;
    }

    guard = guard_create(cpu, cpu_ops, &ops);

    tap_is(values_of(cpu, cpu_ops, variant, &real), 0, "%s on the CPU",
           variant);
    tap_is(values_of(guard, ops, variant, &guarded), 0, "%s on the guard",
           variant);
    tap_is(guard_alive(guard), 0, "%s: all is freed", variant);

    tap_ok(real.size == guarded.size && real.embeddings != NULL
           && guarded.embeddings != NULL
           && memcmp(real.embeddings, guarded.embeddings, real.size) == 0,
           "%s: embeddings", variant);
    tap_ok(real.logits != NULL && guarded.logits != NULL
           && memcmp(real.logits, guarded.logits,
                     4 * real.vocab * sizeof(float))
              == 0,
           "%s: logits", variant);

    free(real.embeddings);
    free(real.logits);
    free(guarded.embeddings);
    free(guarded.logits);

    guard_destroy(guard);
    vlm_cpu_device_destroy(cpu);
}


int
main(void)
{
    test_variant("base");
    test_variant("untied_sharded");

    return tap_done();
}
