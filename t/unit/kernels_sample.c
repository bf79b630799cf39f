
/*
 * Sampling: against a naive implementation that sorts, in double precision;
 * frequencies of draws; log probabilities; broken logits; the same tokens on
 * every instruction set and beside other rows.
 */

#include <float.h>
#include <math.h>

#include "kernels/cpu/sample.h"
#include "t/unit/kernels_rig.h"


typedef struct {
    double   logit;
    double   weight;
    int      id;
    int      kept;
} token_t;


static void
defaults(vlm_sample_t *p)
{
    memset(p, 0, sizeof(vlm_sample_t));
    p->temperature = 1.0f;
    p->top_p = 1.0f;
    p->repetition = 1.0f;
    p->ntop = -1;
}


/* one row on a copy of the logits */

static void
sample(rig_t *rig, const float *logits, int n, const vlm_sample_t *p,
    vlm_sampled_t *out)
{
    float        *copy;
    vlm_tensor_t  t;

    copy = rig_alloc(n * sizeof(float));
    memcpy(copy, logits, n * sizeof(float));
    t = rig_tensor(rig, copy, 1, n);

    rig->ops->sample(rig->q, &t, p, out);
    rig_sync(rig);
    free(copy);
}


static int
better(const void *a, const void *b)
{
    const token_t  *x = a, *y = b;

    if (x->logit != y->logit) {
        return x->logit > y->logit ? -1 : 1;
    }

    return x->id - y->id;
}


static int
by_id(const void *a, const void *b)
{
    return ((const token_t *) a)->id - ((const token_t *) b)->id;
}


static void
adjust_reference(token_t *t, const vlm_sample_t *p)
{
    int                  i;
    double              *x;
    const vlm_adjust_t  *a;

    for (i = 0; i < p->nadjust; i++) {
        a = &p->adjust[i];
        x = &t[a->id].logit;

        if (a->seen) {
            *x = *x > 0 ? *x / p->repetition : *x * p->repetition;
        }

        if (a->count > 0) {
            *x -= p->presence + (double) p->frequency * a->count;
        }

        *x += a->bias;
    }
}


static double
uniform_reference(const vlm_sample_t *p)
{
    uint32_t  out[4];
    uint32_t  counter[4] = { p->index, p->choice, 0, 0 };
    uint32_t  key[2] = { (uint32_t) p->seed, (uint32_t) (p->seed >> 32) };

    vlm_philox(counter, key, out);

    return ldexp((double) (((uint64_t) out[1] << 32 | out[0]) >> 11), -53);
}


static int
sample_reference(const float *logits, int n, const vlm_sample_t *p)
{
    int       i, left;
    double    total, sum;
    token_t  *t;

    t = rig_alloc(n * sizeof(token_t));

    for (i = 0; i < n; i++) {
        t[i].id = i;
        t[i].logit = logits[i];
    }

    adjust_reference(t, p);
    qsort(t, n, sizeof(token_t), better);

    if (p->temperature == 0.0f) {
        i = t[0].id;
        free(t);
        return i;
    }

    left = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    total = 0.0;
    sum = 0.0;

    for (i = 0; i < left; i++) {
        t[i].weight = exp((t[i].logit - t[0].logit) / p->temperature);
        total += t[i].weight;
    }

    for (i = 0; i < left; i++) {
        t[i].kept = sum < p->top_p * total || p->top_p >= 1.0f || i == 0;
        sum += t[i].weight;
    }

    for (i = 0; i < left; i++) {
        t[i].kept = t[i].kept && t[i].weight >= p->min_p;
    }

    qsort(t, left, sizeof(token_t), by_id);
    total = 0.0;

    for (i = 0; i < left; i++) {
        total += t[i].kept ? t[i].weight : 0.0;
    }

    total *= uniform_reference(p);

    for (i = 0; i < left - 1; i++) {
        total -= t[i].kept ? t[i].weight : 0.0;

        if (total < 0.0) {
            break;
        }
    }

    i = t[i].id;
    free(t);

    return i;
}


static void
random_params(vlm_sample_t *p, vlm_adjust_t *adjust, int n, uint64_t *seed)
{
    int  i, id;

    defaults(p);

    p->seed = tap_random(seed);
    p->choice = (uint32_t) rig_below(seed, 4);
    p->index = (uint32_t) rig_below(seed, 1000);
    p->temperature = 0.1f + 0.3f * rig_below(seed, 8);

    if (rig_below(seed, 5) == 0) {
        p->temperature = 0.0f;
    }

    if (rig_below(seed, 2)) {
        p->top_k = 1 + rig_below(seed, 50);
    }

    if (rig_below(seed, 2)) {
        p->top_p = 0.05f + 0.1f * rig_below(seed, 10);
    }

    if (rig_below(seed, 2)) {
        p->min_p = 0.02f * rig_below(seed, 10);
    }

    if (rig_below(seed, 2)) {
        p->repetition = 1.3f;
        p->presence = 0.5f;
        p->frequency = 0.25f;
        p->adjust = adjust;

        for (id = rig_below(seed, 3); id < n && p->nadjust < 50;
             id += 1 + rig_below(seed, n / 20 + 1))
        {
            i = p->nadjust++;
            adjust[i].id = id;
            adjust[i].seen = rig_below(seed, 2);
            adjust[i].count = rig_below(seed, 3);
            adjust[i].bias = rig_below(seed, 3) == 0 ? 2.5f : 0.0f;
        }
    }
}


static void
test_against_reference(rig_t *rigs, int nrigs)
{
    int            c, i, r, n, wrong, differ;
    float         *logits;
    uint64_t       seed = 8;
    vlm_adjust_t   adjust[50];
    vlm_sample_t   p;
    vlm_sampled_t  out, first;

    static const int  sizes[] = { 1, 2, 15, 16, 17, 300, 1025, 5000 };

    enum { CASES = 800 };

    wrong = 0;
    differ = 0;

    for (c = 0; c < CASES; c++) {
        n = sizes[c % 8];
        logits = rig_random(&seed, n, 1.0f + 10.0f * (c % 3));

        /* many equal ones */
        for (i = 0; i < n && c % 5 == 0; i++) {
            logits[i] = roundf(logits[i]);
        }

        random_params(&p, adjust, n, &seed);
        p.ntop = c % 4 - 1;

        sample(&rigs[0], logits, n, &p, &first);

        if (first.id != sample_reference(logits, n, &p)) {
            wrong++;
            tap_diag("case %d: %d logits, token %d", c, n, first.id);
        }

        for (r = 1; r < nrigs; r++) {
            sample(&rigs[r], logits, n, &p, &out);
            differ += out.id != first.id || out.ntop != first.ntop
                      || memcmp(&out.logprob, &first.logprob, 4) != 0
                      || memcmp(out.top_logprob, first.top_logprob,
                                first.ntop * sizeof(float)) != 0
                      || memcmp(out.top_id, first.top_id,
                                first.ntop * sizeof(int32_t)) != 0;
        }

        free(logits);
    }

    tap_is(wrong, 0, "%d rows: the token of a naive implementation", CASES);
    tap_is(differ, 0, "the same tokens and log probabilities, %d devices",
           nrigs);
}


/* a real vocabulary's size: many digits, long sums */

static void
test_large(rig_t *rig)
{
    int            c, wrong;
    float         *logits;
    uint64_t       seed = 9;
    vlm_adjust_t   adjust[50];
    vlm_sample_t   p;
    vlm_sampled_t  out;

    enum { N = 151936, CASES = 12 };

    wrong = 0;

    for (c = 0; c < CASES; c++) {
        logits = rig_random(&seed, N, 4.0f + c);
        random_params(&p, adjust, N, &seed);

        if (c == 0) {
            p.temperature = 1.0f;
            p.top_k = 0;
            p.top_p = 0.9f;
        }

        sample(rig, logits, N, &p, &out);
        wrong += out.id != sample_reference(logits, N, &p);
        free(logits);
    }

    tap_is(wrong, 0, "%d rows of %d logits", CASES, N);
}


static void
test_frequencies(rig_t *rig)
{
    int            i, count[6] = { 0 };
    double         chi, expected, total;
    vlm_sample_t   p;
    vlm_sampled_t  out;

    static const float  logits[6] = { 1.0f, 0.0f, -1.0f, 2.0f, 0.5f, -3.0f };

    enum { DRAWS = 30000 };

    defaults(&p);
    p.temperature = 0.8f;
    p.seed = 42;

    for (i = 0; i < DRAWS; i++) {
        p.index = (uint32_t) i;
        sample(rig, logits, 6, &p, &out);
        count[out.id]++;
    }

    total = 0.0;
    chi = 0.0;

    for (i = 0; i < 6; i++) {
        total += exp(logits[i] / 0.8);
    }

    for (i = 0; i < 6; i++) {
        expected = DRAWS * exp(logits[i] / 0.8) / total;
        chi += (count[i] - expected) * (count[i] - expected) / expected;
    }

    /* 5 degrees of freedom: over 20.5 once in a thousand seeds */
    tap_ok(chi < 20.5, "frequencies of %d draws: chi squared %.1f", DRAWS,
           chi);
}


static void
test_logprobs(rig_t *rig)
{
    int            i, n, wrong;
    float         *logits;
    double         sum, worst, error, last;
    uint64_t       seed = 10;
    vlm_adjust_t   adjust[2] = { { 5, -100.0f, 1, 1 }, { 7, 50.0f, 0, 0 } };
    vlm_sample_t   p;
    vlm_sampled_t  out;

    n = 30000;
    logits = rig_random(&seed, n, 12.0f);
    logits[100] = logits[200];
    sum = 0.0;

    for (i = 0; i < n; i++) {
        sum += exp(logits[i]);
    }

    /* bias makes 7 the token, but its log probability is the model's */

    defaults(&p);
    p.temperature = 0.0f;
    p.ntop = 20;
    p.nadjust = 2;
    p.adjust = adjust;
    sample(rig, logits, n, &p, &out);

    tap_is(out.id, 7, "bias decides");
    tap_is(out.ntop, 20, "20 best");
    worst = fabs(out.logprob - (logits[7] - log(sum)));
    last = INFINITY;
    wrong = 0;

    for (i = 0; i < 20; i++) {
        error = fabs(out.top_logprob[i]
                     - (logits[out.top_id[i]] - log(sum)));
        worst = error > worst ? error : worst;
        wrong += logits[out.top_id[i]] > last;
        last = logits[out.top_id[i]];
    }

    tap_is(wrong, 0, "in descending order");
    tap_ok(worst < 2e-6, "log probabilities: error at most %.2g", worst);

    for (i = 0; i < n; i++) {
        wrong += logits[i] > last;
    }

    tap_is(wrong, 19, "no other one is greater than the last of them");

    p.ntop = 0;
    sample(rig, logits, n, &p, &out);
    tap_is(out.ntop, 0, "log probability of the token alone");
    tap_ok(out.logprob < 0.0f, "it is %g", out.logprob);

    p.ntop = 5;
    p.nadjust = 0;
    sample(rig, logits, 3, &p, &out);
    tap_is(out.ntop, 3, "no more than there are");

    free(logits);
}


static void
test_cuts(rig_t *rig)
{
    int            i, bad;
    float          flat[1000];
    vlm_sample_t   p;
    vlm_sampled_t  out;

    for (i = 0; i < 1000; i++) {
        flat[i] = 1.5f;
    }

    defaults(&p);
    p.temperature = 0.0f;
    sample(rig, flat, 1000, &p, &out);
    tap_is(out.id, 0, "greedy: the first of equals");

    p.temperature = 1.0f;
    p.top_p = 0.25f;
    bad = 0;

    for (i = 0; i < 300; i++) {
        p.index = (uint32_t) i;
        sample(rig, flat, 1000, &p, &out);
        bad += out.id >= 250;
    }

    tap_is(bad, 0, "top_p 0.25 of 1,000 equals: the first 250");

    p.top_p = 1.0f;
    p.top_k = 10;

    for (i = 0; i < 300; i++) {
        p.index = (uint32_t) i;
        sample(rig, flat, 1000, &p, &out);
        bad += out.id >= 10;
    }

    tap_is(bad, 0, "top_k 10 of 1,000 equals: the first 10");

    /* -0 and 0 are equal */

    flat[998] = -0.0f;
    flat[999] = 0.0f;

    for (i = 0; i < 998; i++) {
        flat[i] = -1.0f - (float) i;
    }

    p.top_k = 1;
    sample(rig, flat, 1000, &p, &out);
    tap_is(out.id, 998, "-0 equals 0");

    p.top_k = 0;
    p.top_p = 0.0f;
    sample(rig, flat, 1000, &p, &out);
    tap_is(out.id, 998, "top_p 0 keeps the best");

    p.top_p = 1.0f;
    p.min_p = 1.0f;
    p.temperature = 1e-38f;
    sample(rig, flat, 1000, &p, &out);
    tap_ok(out.id == 998 || out.id == 999, "hardly any temperature");

    p.temperature = FLT_MAX;
    p.min_p = 0.0f;
    sample(rig, flat, 1000, &p, &out);
    tap_ok(out.id >= 0 && out.id < 1000, "an immense one");
}


/* every way of sampling from NaNs and infinities gives a token and numbers */

static void
test_broken(rig_t *rigs, int nrigs)
{
    int            c, i, k, r, bad;
    float          x[100];
    uint64_t       seed = 11;
    vlm_adjust_t   adjust[50];
    vlm_sample_t   p;
    vlm_sampled_t  out;

    static const float  values[] = {
        NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 0.0f, 1.0f
    };

    bad = 0;

    for (c = 0; c < 600; c++) {

        for (i = 0; i < 100; i++) {
            x[i] = c < 7 ? values[c] : values[rig_below(&seed, 7)];
        }

        random_params(&p, adjust, 100, &seed);
        p.ntop = 3;

        for (r = 0; r < nrigs; r++) {
            sample(&rigs[r], x, 100, &p, &out);
            bad += out.id < 0 || out.id >= 100 || !isfinite(out.logprob);

            for (k = 0; k < out.ntop; k++) {
                bad += !isfinite(out.top_logprob[k]);
            }
        }
    }

    tap_is(bad, 0, "NaNs and infinities: a token, finite numbers");

    for (i = 0; i < 100; i++) {
        x[i] = NAN;
    }

    x[50] = -5.0f;
    x[60] = -INFINITY;
    defaults(&p);
    sample(&rigs[0], x, 100, &p, &out);
    tap_is(out.id, 50, "NaN counts as the least");
}


static void
test_batch(rig_t *rig)
{
    int            i, differ;
    float         *logits, *copy;
    uint64_t       seed = 12;
    vlm_adjust_t   adjust[20][50];
    vlm_sample_t   p[20];
    vlm_tensor_t   t;
    vlm_sampled_t  out[20], one;

    enum { N = 777 };

    logits = rig_random(&seed, 20 * N, 8.0f);
    copy = rig_alloc(20 * N * sizeof(float));
    memcpy(copy, logits, 20 * N * sizeof(float));
    differ = 0;

    for (i = 0; i < 20; i++) {
        random_params(&p[i], adjust[i], N, &seed);
        p[i].ntop = 0;
    }

    t = rig_tensor(rig, copy, 20, N);
    rig->ops->sample(rig->q, &t, p, out);
    rig_sync(rig);

    for (i = 0; i < 20; i++) {
        sample(rig, logits + i * N, N, &p[i], &one);
        differ += one.id != out[i].id || one.logprob != out[i].logprob;
    }

    tap_is(differ, 0, "%s: 20 rows at once, and one by one", rig->name);

    free(logits);
    free(copy);
}


/* the known answers published with the generator */

static void
test_philox(void)
{
    uint32_t  out[4];

    static const uint32_t  zero[4] = { 0 };
    static const uint32_t  ones[4] = { ~0u, ~0u, ~0u, ~0u };
    static const uint32_t  pi[4] = {
        0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344
    };
    static const uint32_t  pi_key[2] = { 0xa4093822, 0x299f31d0 };

    vlm_philox(zero, zero, out);
    tap_ok(out[0] == 0x6627e8d5 && out[1] == 0xe169c58d
           && out[2] == 0xbc57ac4c && out[3] == 0x9b00dbd8,
           "Philox of zeros: %08x %08x %08x %08x", out[0], out[1], out[2],
           out[3]);

    vlm_philox(ones, ones, out);
    tap_ok(out[0] == 0x408f276d && out[1] == 0x41c83b0e
           && out[2] == 0xa20bc7c6 && out[3] == 0x6d5451fd,
           "Philox of ones: %08x %08x %08x %08x", out[0], out[1], out[2],
           out[3]);

    vlm_philox(pi, pi_key, out);
    tap_ok(out[0] == 0xd16cfe09 && out[1] == 0x94fdcceb
           && out[2] == 0x5001e420 && out[3] == 0x24126ea1,
           "Philox of pi: %08x %08x %08x %08x", out[0], out[1], out[2],
           out[3]);
}


int
main(void)
{
    int    i, n;
    rig_t  rigs[RIG_MAX];

    n = rigs_open(rigs);

    test_philox();
    test_against_reference(rigs, n);
    test_large(&rigs[n - 1]);
    test_frequencies(&rigs[n - 1]);
    test_logprobs(&rigs[n - 1]);
    test_cuts(&rigs[n - 1]);
    test_broken(rigs, n);

    for (i = 0; i < n; i++) {
        test_batch(&rigs[i]);
    }

    rigs_close(rigs, n);

    return tap_done();
}
