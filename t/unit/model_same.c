
/*
 * The same bits however the work is cut: prompts in chunks, sequences beside
 * each other, encoding in slices, pictures beside each other, instruction
 * sets, threads.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "t/unit/lib/golden.h"
#include "t/unit/lib/tap.h"


#define NCASES      4
#define STEPS       6           /* tokens decoded after the prompt */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DEVICE_CASES  2         /* sanitizers are slow */
#else
#define DEVICE_CASES  NCASES
#endif

static const char  *names[NCASES] = {
    "two_images", "text_only", "one_tall", "three_images"
};

typedef struct {
    golden_case_t       c;
    vlm_encode_job_t   *job;
    float              *embeddings;
    size_t              size;               /* bytes of them */
    float              *logits;             /* [STEPS][vocab], alone */
} known_t;


static const vlm_tensor_t *
result(const known_t *k)
{
    return k->job != NULL ? vlm_encode_result(k->job) : NULL;
}


/* the whole prompt, then one token after another, alone in the decoder */

static int
answer_alone(golden_rig_t *rig, known_t *k)
{
    int             step;
    size_t          vocab;
    golden_seq_t    seq;
    vlm_sampled_t   sampled;

    vocab = (size_t) vlm_model_info(rig->model)->vocab;
    k->logits = calloc(STEPS * vocab, sizeof(float));

    if (k->logits == NULL || golden_begin(&seq, &k->c, result(k), 0) < 0) {
        return -1;
    }

    for (step = 0; step < STEPS; step++) {
        if (golden_step(rig, &seq, 1, k->logits + (size_t) step * vocab,
                        &sampled)
            < 0)
        {
            return -1;
        }

        vlm_ids_append(&seq.ids, sampled.id, 1);
    }

    vlm_ids_free(&seq.ids);

    return 0;
}


static int
know(golden_rig_t *rig, known_t *known, int n)
{
    int       i;
    known_t  *k;

    for (i = 0; i < n; i++) {
        k = &known[i];

        if (golden_load(&k->c, rig->model, "base", names[i]) < 0) {
            return -1;
        }

        if (k->c.npictures > 0) {
            k->job = golden_encode(rig, &k->c, INFINITY);
            if (k->job == NULL) {
                return -1;
            }

            k->embeddings = golden_download(rig, result(k));
            k->size = (size_t) (result(k)->rows * result(k)->cols)
                      * sizeof(float);
        }

        if (answer_alone(rig, k) < 0) {
            return -1;
        }
    }

    return 0;
}


static void
forget(known_t *known)
{
    int  i;

    for (i = 0; i < NCASES; i++) {
        vlm_encode_free(known[i].job);
        golden_free(&known[i].c);
        free(known[i].embeddings);
        free(known[i].logits);
    }
}


static void
test_slices(golden_rig_t *rig, const known_t *k, double budget)
{
    float             *values;
    vlm_encode_job_t  *job;

    job = golden_encode(rig, &k->c, budget);
    if (job == NULL) {
        return;
    }

    values = golden_download(rig, vlm_encode_result(job));
    tap_ok(memcmp(values, k->embeddings, k->size) == 0,
           "%s: encoded with a budget of %g", k->c.name, budget);

    free(values);
    vlm_encode_free(job);
}


/*
 * Steps really are short: what a step takes over its budget is at most the
 * part of a slice that need not fit, or its one slice; nor is much left.
 */

static void
test_budget(golden_rig_t *rig, const known_t *k)
{
    int                rc, steps;
    double             cost, budget, spent, least, over;
    vlm_error_t        err;
    vlm_encode_job_t  *job;

    job = vlm_encode_begin(rig->encoder, k->c.resized, k->c.plans,
                           k->c.npictures, &err);
    if (job == NULL) {
        tap_ok(0, "%s: %s", k->c.name, err.message);
        return;
    }

    cost = vlm_encode_cost(job);
    budget = cost / 50;
    steps = 0;
    over = 0;

    do {
        spent = vlm_encode_spent(job);
        least = vlm_encode_least(job);

        rc = vlm_encode_step(job, budget, &err);

        spent = (vlm_encode_spent(job) - spent)
                / (least > budget ? least : budget);
        over = (spent > over) ? spent : over;
        steps++;

    } while (rc == VLM_AGAIN);

    tap_ok(over <= 2 - VLM_ENCODE_FIT, "%s: a step takes %.3f of its budget "
           "at most", k->c.name, over);

    tap_ok(rc == VLM_OK && steps >= 45 && steps <= 75,
           "%s: %d steps of a 50th of %g multiply-adds", k->c.name, steps,
           cost);
    vlm_encode_free(job);
}


/* two jobs take turns on one encoder */

static void
test_turns(golden_rig_t *rig, const known_t *a, const known_t *b)
{
    int                rc1, rc2;
    float             *v1, *v2;
    vlm_error_t        err;
    vlm_encode_job_t  *job1, *job2;

    job1 = vlm_encode_begin(rig->encoder, a->c.resized, a->c.plans,
                            a->c.npictures, &err);
    job2 = vlm_encode_begin(rig->encoder, b->c.resized, b->c.plans,
                            b->c.npictures, &err);

    if (job1 == NULL || job2 == NULL) {
        tap_ok(0, "two jobs: %s", err.message);
        return;
    }

    rc1 = VLM_AGAIN;
    rc2 = VLM_AGAIN;

    while (rc1 == VLM_AGAIN || rc2 == VLM_AGAIN) {
        rc1 = rc1 == VLM_AGAIN ? vlm_encode_step(job1, 3e6, &err) : rc1;
        rc2 = rc2 == VLM_AGAIN ? vlm_encode_step(job2, 5e6, &err) : rc2;
    }

    v1 = golden_download(rig, vlm_encode_result(job1));
    v2 = golden_download(rig, vlm_encode_result(job2));

    tap_ok(rc1 == VLM_OK && memcmp(v1, a->embeddings, a->size) == 0,
           "%s: encoded in turns", a->c.name);
    tap_ok(rc2 == VLM_OK && memcmp(v2, b->embeddings, b->size) == 0,
           "%s: encoded in turns", b->c.name);

    free(v1);
    free(v2);
    vlm_encode_free(job1);
    vlm_encode_free(job2);
}


/* the pictures of a job one by one */

static void
test_pictures(golden_rig_t *rig, const known_t *k)
{
    int                rc;
    float             *values;
    size_t             i, at, size;
    vlm_error_t        err;
    vlm_encode_job_t  *job;

    at = 0;

    for (i = 0; i < k->c.npictures; i++) {
        job = vlm_encode_begin(rig->encoder, &k->c.resized[i],
                               &k->c.plans[i], 1, &err);
        if (job == NULL) {
            tap_ok(0, "%s: %s", k->c.name, err.message);
            return;
        }

        do {
            rc = vlm_encode_step(job, 1e7, &err);
        } while (rc == VLM_AGAIN);

        values = golden_download(rig, vlm_encode_result(job));
        size = (size_t) (vlm_encode_result(job)->rows
                         * vlm_encode_result(job)->cols) * sizeof(float);

        tap_ok(rc == VLM_OK && at + size <= k->size
               && memcmp(values, (char *) k->embeddings + at, size) == 0,
               "%s: picture %d encoded alone", k->c.name, (int) i);

        at += size;
        free(values);
        vlm_encode_free(job);
    }
}


static void
test_chunks(golden_rig_t *rig, const known_t *k, uint64_t seed)
{
    int             step;
    float          *logits;
    size_t          vocab, same;
    int32_t         total, left, cut;
    golden_seq_t    seq;
    vlm_sampled_t   sampled;

    vocab = (size_t) vlm_model_info(rig->model)->vocab;
    logits = calloc(vocab, sizeof(float));
    total = (int32_t) k->c.prompt.ids.len;
    same = 0;

    if (logits == NULL
        || golden_begin(&seq, &k->c, result(k), (int) (seed % 8)) < 0)
    {
        return;
    }

    for (step = 0; step < STEPS; step++) {

        /* the prompt in chunks of 1 to 40 rows, then single tokens */

        do {
            left = total - seq.computed;
            cut = 1 + (int32_t) (tap_random(&seed) % 40);
            seq.n = left > cut ? cut : left > 0 ? left : 1;

            if (golden_step(rig, &seq, 1, logits, &sampled) < 0) {
                return;
            }

        } while (seq.computed < total);

        same += memcmp(logits, k->logits + (size_t) step * vocab,
                       vocab * sizeof(float))
                == 0;
        vlm_ids_append(&seq.ids, sampled.id, 1);
    }

    tap_is((long long) same, STEPS, "%s: logits after a prompt in chunks",
           k->c.name);

    vlm_ids_free(&seq.ids);
    free(logits);
}


/*
 * All cases at once, one after another joining: some prompts run in chunks
 * beside others that already decode.
 */

static void
test_together(golden_rig_t *rig, const known_t *known)
{
    int             i, n, round, same, step[NCASES], of[NCASES];
    float          *logits;
    size_t          vocab;
    int32_t         left;
    golden_seq_t    seqs[NCASES], now[NCASES];
    vlm_sampled_t   sampled[NCASES];

    vocab = (size_t) vlm_model_info(rig->model)->vocab;
    logits = calloc(NCASES * vocab, sizeof(float));
    same = 0;

    for (i = 0; i < NCASES; i++) {
        step[i] = 0;

        if (logits == NULL
            || golden_begin(&seqs[i], &known[i].c, result(&known[i]), 7 - i)
               < 0)
        {
            return;
        }
    }

    for (round = 0; round < 40; round++) {
        n = 0;

        for (i = 0; i < NCASES; i++) {
            if (round < 2 * i || step[i] == STEPS) {
                continue;
            }

            left = (int32_t) known[i].c.prompt.ids.len - seqs[i].computed;
            seqs[i].n = left > 50 + i ? 50 + i : left > 0 ? left : 1;
            of[n] = i;
            now[n++] = seqs[i];
        }

        if (n == 0) {
            break;
        }

        if (golden_step(rig, now, n, logits, sampled) < 0) {
            return;
        }

        while (n-- > 0) {
            i = of[n];
            seqs[i] = now[n];

            if (seqs[i].computed < (int32_t) seqs[i].ids.len) {
                continue;
            }

            same += memcmp(logits + (size_t) n * vocab,
                           known[i].logits + (size_t) step[i] * vocab,
                           vocab * sizeof(float))
                    == 0;
            step[i]++;
            vlm_ids_append(&seqs[i].ids, sampled[n].id, 1);
        }
    }

    tap_is(same, NCASES * STEPS, "logits of %d sequences beside each other",
           NCASES);

    for (i = 0; i < NCASES; i++) {
        vlm_ids_free(&seqs[i].ids);
    }

    free(logits);
}


/* another instruction set, another number of threads */

static void
test_device(const known_t *known, vlm_isa_t isa, int nthreads)
{
    int               i, rc;
    char              why[256];
    size_t            vocab;
    known_t           other[NCASES];
    golden_rig_t      rig;
    vlm_device_t     *dev;
    const vlm_ops_t  *ops;

    dev = vlm_cpu_device_isa(isa, nthreads, &ops, why, sizeof(why));
    if (dev == NULL) {
        tap_skip("%s", why);
        return;
    }

    memset(other, 0, sizeof(other));
    rc = golden_open(&rig, tap_path("t/data/golden/qwen2_vl/base/model"), dev,
                     ops);

    if (rc == 0 && know(&rig, other, DEVICE_CASES) == 0) {
        vocab = (size_t) vlm_model_info(rig.model)->vocab;

        for (i = 0; i < DEVICE_CASES; i++) {
            tap_ok(memcmp(other[i].logits, known[i].logits,
                          STEPS * vocab * sizeof(float))
                   == 0
                   && other[i].size == known[i].size
                   && (known[i].size == 0
                       || memcmp(other[i].embeddings, known[i].embeddings,
                                 known[i].size) == 0),
                   "%s on %s, %d threads", known[i].c.name, ops->name,
                   nthreads);
        }
    }

    forget(other);
    golden_close(&rig);
    vlm_cpu_device_destroy(dev);
}


int
main(void)
{
    known_t       known[NCASES];
    golden_rig_t  rig;

    memset(known, 0, sizeof(known));

    if (golden_open(&rig, tap_path("t/data/golden/qwen2_vl/base/model"), NULL,
                    NULL)
        < 0
        || know(&rig, known, NCASES) < 0)
    {
        tap_ok(0, "known answers");
        return tap_done();
    }

    test_slices(&rig, &known[0], 0);
    test_slices(&rig, &known[0], 1e6);
    test_slices(&rig, &known[3], 7.7e6);
    test_budget(&rig, &known[3]);
    test_turns(&rig, &known[0], &known[3]);
    test_pictures(&rig, &known[0]);
    test_pictures(&rig, &known[3]);

    test_chunks(&rig, &known[0], 1);
    test_chunks(&rig, &known[0], 2);
    test_chunks(&rig, &known[1], 3);
    test_chunks(&rig, &known[3], 4);
    test_together(&rig, known);

    test_device(known, VLM_CPU_SCALAR, 1);
    test_device(known, VLM_CPU_AVX2, 3);
    test_device(known, VLM_CPU_AVX512, 1);

    forget(known);
    golden_close(&rig);

    return tap_done();
}
