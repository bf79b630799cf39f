
/*
 * Sampling of the CUDA sources, on the shim, against the CPU device: the
 * same tokens, log probabilities within float32's rounding.
 */

#include <float.h>

#include "t/unit/cuda_rig.h"


#define ADJUSTS  50


typedef struct {
    vlm_sample_t     params;
    vlm_adjust_t     adjust[ADJUSTS];
} request_t;


static void
defaults(vlm_sample_t *p)
{
    memset(p, 0, sizeof(*p));
    p->temperature = 1.0f;
    p->top_p = 1.0f;
    p->repetition = 1.0f;
    p->ntop = -1;
}


static void
request_make(request_t *r, int n, uint64_t *seed)
{
    int            i, id;
    vlm_sample_t  *p = &r->params;

    defaults(p);

    p->seed = tap_random(seed);
    p->choice = (uint32_t) rig_below(seed, 4);
    p->index = (uint32_t) rig_below(seed, 1000);
    p->temperature = 0.1f + 0.3f * (float) rig_below(seed, 8);
    p->ntop = rig_below(seed, 4) - 1;

    if (rig_below(seed, 8) == 0) {
        p->ntop = 20;
    }

    if (rig_below(seed, 5) == 0) {
        p->temperature = 0.0f;
    }

    if (rig_below(seed, 2)) {
        p->top_k = 1 + rig_below(seed, rig_below(seed, 4) ? 50 : 2 * n);
    }

    if (rig_below(seed, 2)) {
        p->top_p = 0.05f + 0.1f * (float) rig_below(seed, 10);
    }

    if (rig_below(seed, 2)) {
        p->min_p = 0.02f * (float) rig_below(seed, 10);
    }

    if (rig_below(seed, 2)) {
        p->repetition = 1.3f;
        p->presence = 0.5f;
        p->frequency = 0.3f;
        p->adjust = r->adjust;

        for (id = rig_below(seed, 3); id < n && p->nadjust < ADJUSTS;
             id += 1 + rig_below(seed, n / 20 + 1))
        {
            i = p->nadjust++;
            r->adjust[i].id = id;
            r->adjust[i].seen = rig_below(seed, 2);
            r->adjust[i].count = rig_below(seed, 3);
            r->adjust[i].bias = rig_below(seed, 3) == 0 ? 2.5f : 0.0f;
        }
    }
}


/* rows of n logits, their parameters copied side by side */

static void
sample_on(rig_t *rig, const float *logits, int rows, int n,
    const request_t *requests, vlm_sampled_t *out)
{
    int            i;
    vlm_sample_t  *params;
    vlm_tensor_t   t;

    params = rig_memory(rows * sizeof(vlm_sample_t));

    for (i = 0; i < rows; i++) {
        params[i] = requests[i].params;

        if (params[i].adjust != NULL) {
            params[i].adjust = requests[i].adjust;
        }
    }

    t = rig_tensor(rig, logits, rows, n, n, VLM_F32);
    rig->ops->sample(rig->q, &t, params, out);
    rig_sync(rig);

    rig_free(rig, &t);
    free(params);
}


static int
differs(const vlm_sampled_t *got, const vlm_sampled_t *expected, int ntop)
{
    int  i;

    if (got->id != expected->id || got->ntop != expected->ntop) {
        return 1;
    }

    if (ntop >= 0 && !(fabs(got->logprob - expected->logprob)
                       <= 1e-5 * (1.0 + fabs(expected->logprob))))
    {
        return 1;
    }

    for (i = 0; i < expected->ntop; i++) {

        if (got->top_id[i] != expected->top_id[i]
            || !(fabs(got->top_logprob[i] - expected->top_logprob[i])
                 <= 1e-5 * (1.0 + fabs(expected->top_logprob[i]))))
        {
            return 1;
        }
    }

    return 0;
}


/* batches of 1 to 17 rows that each want something else */

static void
test_random(rigs_t *rigs)
{
    int             c, i, n, rows, wrong, all;
    float          *logits;
    size_t          count, j;
    uint64_t        seed = 1;
    request_t       requests[17];
    vlm_sampled_t   got[17], expected[17];

    static const int  sizes[] = {
        1, 2, 15, 16, 17, 300, 1025, 4095, 4096, 4097, 9000
    };

    enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

    wrong = 0;
    all = 0;

    for (c = 0; c < 4 * SIZES; c++) {
        vlm_emu_seed((uint64_t) c);
        n = sizes[c % SIZES];
        rows = c % 5 == 0 ? 17 : 1 + rig_below(&seed, 8);
        count = (size_t) rows * n;
        logits = rig_random(&seed, count, 1.0f + 10.0f * (float) (c % 3));

        /* many equal ones */

        for (j = 0; j < count && c % 4 == 0; j++) {
            logits[j] = roundf(logits[j]);
        }

        for (i = 0; i < rows; i++) {
            request_make(&requests[i], n, &seed);
        }

        sample_on(&rigs->cpu, logits, rows, n, requests, expected);
        sample_on(&rigs->bf16, logits, rows, n, requests, got);

        for (i = 0; i < rows; i++) {
            all++;

            if (differs(&got[i], &expected[i], requests[i].params.ntop)) {
                wrong++;
                tap_diag("case %d, row %d of %d: token %d, not %d", c, i, n,
                         got[i].id, expected[i].id);
            }
        }

        free(logits);
    }

    tap_is(wrong, 0, "%d rows: the CPU's tokens and log probabilities", all);
}


/* a real vocabulary's size */

static void
test_large(rigs_t *rigs)
{
    int             i, wrong;
    float          *logits;
    uint64_t        seed = 2;
    request_t       requests[6];
    vlm_sampled_t   got[6], expected[6];

    enum { N = 151936 };

    vlm_emu_seed(3);
    logits = rig_random(&seed, 6 * N, 12.0f);
    wrong = 0;

    for (i = 0; i < 6; i++) {
        request_make(&requests[i], N, &seed);
        requests[i].params.temperature = 0.6f;
    }

    /* nothing cut; a share of what is nearly flat; all at once; greedy */

    defaults(&requests[0].params);
    defaults(&requests[1].params);
    requests[1].params.top_p = 0.9f;
    requests[1].params.temperature = 1.5f;
    defaults(&requests[2].params);
    requests[2].params.top_k = 40;
    requests[2].params.top_p = 0.95f;
    requests[2].params.ntop = 20;
    requests[3].params.temperature = 0.0f;

    sample_on(&rigs->cpu, logits, 6, N, requests, expected);
    sample_on(&rigs->bf16, logits, 6, N, requests, got);

    for (i = 0; i < 6; i++) {

        if (differs(&got[i], &expected[i], requests[i].params.ntop)) {
            wrong++;
            tap_diag("row %d: token %d, not %d", i, got[i].id,
                     expected[i].id);
        }
    }

    tap_is(wrong, 0, "6 rows of %d logits", N);
    free(logits);
}


/* many draws of few tokens: every token at its time */

static void
test_draws(rigs_t *rigs)
{
    int            i, k, wrong;
    float          logits[64 * 6];
    request_t      requests[64];
    vlm_sampled_t  got[64], expected[64];

    static const float  row[6] = { 1.0f, 0.0f, -1.0f, 2.0f, 0.5f, -3.0f };

    wrong = 0;

    for (k = 0; k < 8; k++) {

        for (i = 0; i < 64; i++) {
            memcpy(logits + i * 6, row, sizeof(row));
            defaults(&requests[i].params);
            requests[i].params.index = (uint32_t) (k * 64 + i);
            requests[i].params.seed = 42;
            requests[i].params.top_k = k % 4;
        }

        sample_on(&rigs->cpu, logits, 64, 6, requests, expected);
        sample_on(&rigs->f32, logits, 64, 6, requests, got);

        for (i = 0; i < 64; i++) {
            wrong += differs(&got[i], &expected[i], -1);
        }
    }

    tap_is(wrong, 0, "512 draws, 64 at once");
}


static void
test_edges(rigs_t *rigs)
{
    int            c, i, wrong;
    float         *x;
    request_t      r;
    vlm_sampled_t  got, expected;

    enum { N = 5000, CASES = 10 };

    x = rig_memory(N * sizeof(float));
    wrong = 0;

    for (c = 0; c < CASES; c++) {
        defaults(&r.params);
        r.params.index = (uint32_t) c;
        r.params.ntop = 2;

        for (i = 0; i < N; i++) {
            x[i] = c < 5 ? 1.5f : -1.0f - (float) i;
        }

        if (c >= 5) {
            x[4998] = -0.0f;
            x[4999] = 0.0f;
        }

        switch (c) {
        case 0: r.params.temperature = 0.0f; break;
        case 1: r.params.top_p = 0.25f; break;
        case 2: r.params.top_k = 10; break;
        case 3: r.params.top_p = 0.0f; break;
        case 4: r.params.min_p = 1.5f; break;
        case 5: r.params.top_k = 1; break;
        case 6: r.params.temperature = 1e-38f; break;
        case 7: r.params.temperature = FLT_MAX; break;
        case 8: r.params.top_k = N; r.params.top_p = 1e-9f; break;
        default: r.params.top_k = 4999; r.params.top_p = 0.999f; break;
        }

        sample_on(&rigs->cpu, x, 1, N, &r, &expected);
        sample_on(&rigs->bf16, x, 1, N, &r, &got);

        if (differs(&got, &expected, 2)) {
            wrong++;
            tap_diag("case %d: token %d, not %d", c, got.id, expected.id);
        }
    }

    tap_is(wrong, 0, "equal logits, zeros of both signs, extremes");
    free(x);
}


static void
test_broken(rigs_t *rigs)
{
    int            c, i, k, wrong, bad;
    float          x[17 * 100];
    uint64_t       seed = 4;
    request_t      r[17];
    vlm_sampled_t  got[17], expected[17];

    static const float  values[] = {
        NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 0.0f, 1.0f
    };

    wrong = 0;
    bad = 0;

    for (c = 0; c < 6; c++) {

        for (i = 0; i < 17 * 100; i++) {
            x[i] = i < 700 && c == 0 ? values[i / 100]
                                     : values[rig_below(&seed, 7)];
        }

        for (i = 0; i < 17; i++) {
            request_make(&r[i], 100, &seed);

            /* without log probabilities nothing is made finite before */

            if (c % 2 != 0) {
                r[i].params.ntop = -1;
            }
        }

        sample_on(&rigs->cpu, x, 17, 100, r, expected);
        sample_on(&rigs->bf16, x, 17, 100, r, got);

        for (i = 0; i < 17; i++) {
            wrong += got[i].id != expected[i].id;
            bad += !isfinite(got[i].logprob);

            for (k = 0; k < got[i].ntop; k++) {
                bad += !isfinite(got[i].top_logprob[k]);
            }
        }
    }

    tap_is(wrong, 0, "NaNs and infinities: the CPU's tokens");
    tap_is(bad, 0, "and finite numbers");
}


static void
test_refused(rig_t *rig)
{
    char           err[256];
    request_t      r;
    vlm_sampled_t  out;
    vlm_tensor_t   t;

    defaults(&r.params);
    t = rig_tensor(rig, NULL, 1, 10, 10, VLM_BF16);
    rig->ops->sample(rig->q, &t, &r.params, &out);

    tap_ok(rig->ops->sync(rig->q, err, sizeof(err)) == -1, "type");
    tap_str(err, "sample: 1 rows of 10 logits of type 1: must be float32",
            "is named");
    rig_free(rig, &t);
}


int
main(void)
{
    rigs_t  rigs;

    rigs_open(&rigs);

    test_random(&rigs);
    test_large(&rigs);
    test_draws(&rigs);
    test_edges(&rigs);
    test_broken(&rigs);
    test_refused(&rigs.f32);

    rigs_close(&rigs);

    return tap_done();
}
