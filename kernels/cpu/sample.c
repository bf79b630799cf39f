
/*
 * Sampling of one token from a row of logits, in this order:
 *
 *   1. every logit is made finite: NaN counts as -FLT_MAX, infinities as
 *      FLT_MAX of their sign; log probabilities are taken of these
 *   2. penalties: repetition (for tokens seen: a positive logit is divided,
 *      a negative one multiplied), presence, frequency (for tokens generated)
 *   3. logit_bias
 *   4. temperature; 0: the greatest logit is taken, the first of equals
 *   5. top_k: of equal logits the lower ids are kept
 *   6. top_p: the fewest best tokens whose share of what top_k left reaches p
 *   7. min_p: tokens at least min_p times as probable as the best
 *   8. one of the rest is drawn, in order of their ids, by a number in [0, 1)
 *      that depends on (seed, choice, index) alone
 *
 * Weights are float32 with equal bits on every instruction set, their sums
 * double in a fixed order, so a draw is the same everywhere.
 */

#include <float.h>
#include <math.h>

#include "kernels/cpu/sample.h"


static void adjust(float *logits, int32_t n, const vlm_sample_t *params,
    float *raw);
static float raw_logit(const float *logits, int32_t id,
    const vlm_sample_t *params, const float *raw);
static int32_t best_logits(const float *logits, int32_t n, int32_t *id,
    int32_t k);
static int32_t first_equal(const float *logits, int32_t n, float value);
static int32_t draw(const vlm_cpu_rows_t *kernels, const float *logits,
    int32_t n, float max, const vlm_sample_t *params,
    vlm_sample_work_t *work);
static double uniform(const vlm_sample_t *params);


void
vlm_sample_row(const vlm_cpu_rows_t *kernels, float *logits, int32_t n,
    const vlm_sample_t *params, vlm_sample_work_t *work, vlm_sampled_t *out)
{
    float    max;
    double   log_sum;
    int32_t  i, ntop;

    max = kernels->clamp(logits, n);
    log_sum = 0.0;

    out->ntop = 0;
    out->logprob = 0.0f;

    if (params->ntop >= 0) {
        log_sum = (double) max + log(kernels->sum_exp(logits, n, max));

        ntop = params->ntop < VLM_OPS_TOP_LOGPROBS ? params->ntop
                                                   : VLM_OPS_TOP_LOGPROBS;
        out->ntop = best_logits(logits, n, out->top_id, ntop);

        for (i = 0; i < out->ntop; i++) {
            out->top_logprob[i] = (float) (logits[out->top_id[i]] - log_sum);
        }
    }

    if (params->nadjust > 0) {
        adjust(logits, n, params, work->raw);
        max = kernels->clamp(logits, n);
    }

    if (params->temperature > 0.0f) {
        out->id = draw(kernels, logits, n, max, params, work);

    } else {
        out->id = first_equal(logits, n, max);
    }

    if (params->ntop >= 0) {
        out->logprob = (float) (raw_logit(logits, out->id, params, work->raw)
                                - log_sum);
    }
}


static void
adjust(float *logits, int32_t n, const vlm_sample_t *params, float *raw)
{
    float                x;
    int32_t              i;
    const vlm_adjust_t  *a;

    for (i = 0; i < params->nadjust; i++) {
        a = &params->adjust[i];

        if (a->id < 0 || a->id >= n) {
            continue;
        }

        x = logits[a->id];
        raw[i] = x;

        if (a->seen && params->repetition > 0.0f) {
            x = x > 0.0f ? x / params->repetition : x * params->repetition;
        }

        if (a->count > 0) {
            x -= params->presence;
            x -= params->frequency * (float) a->count;
        }

        logits[a->id] = x + a->bias;
    }
}


/* a logit as it was before adjust() */

static float
raw_logit(const float *logits, int32_t id, const vlm_sample_t *params,
    const float *raw)
{
    int32_t  low, high, mid;

    low = 0;
    high = params->nadjust;

    while (low < high) {
        mid = low + (high - low) / 2;

        if (params->adjust[mid].id < id) {
            low = mid + 1;

        } else {
            high = mid;
        }
    }

    if (low < params->nadjust && params->adjust[low].id == id) {
        return raw[low];
    }

    return logits[id];
}


/* the ids of the k greatest, in order; returns how many there are */

static int32_t
best_logits(const float *logits, int32_t n, int32_t *id, int32_t k)
{
    int32_t  i, j, have;

    have = 0;

    for (i = 0; i < n && k > 0; i++) {

        if (have == k && !(logits[i] > logits[id[k - 1]])) {
            continue;
        }

        j = have < k ? have++ : k - 1;

        for ( ; j > 0 && logits[i] > logits[id[j - 1]]; j--) {
            id[j] = id[j - 1];
        }

        id[j] = i;
    }

    return have;
}


static int32_t
first_equal(const float *logits, int32_t n, float value)
{
    int32_t  i;

    for (i = 0; i < n - 1; i++) {

        if (logits[i] == value) {
            break;
        }
    }

    return i;
}


static int32_t
draw(const vlm_cpu_rows_t *kernels, const float *logits, int32_t n, float max,
    const vlm_sample_t *params, vlm_sample_work_t *work)
{
    float      scale, w;
    double     total, target;
    int32_t    i, left;
    vlm_cut_t  cut;

    /* finite, so that the best logit's 0 * scale stays 0 */
    scale = fminf(1.0f / params->temperature, FLT_MAX);
    kernels->weights(work->weight, logits, n, max, scale);

    cut.value = -FLT_MAX;
    cut.last = n;

    if (params->top_k > 0 && params->top_k < n) {
        vlm_cut_count(&cut, logits, n, params->top_k);
    }

    if (params->top_p < 1.0f) {
        vlm_cut_share(&cut, logits, work->weight, n, params->top_p);
    }

    left = 0;
    total = 0.0;

    for (i = 0; i < n; i++) {
        w = work->weight[i];

        if (w > 0.0f && w >= params->min_p
            && vlm_cut_keeps(&cut, logits[i], i))
        {
            work->weight[left] = w;
            work->id[left++] = i;
            total += w;
        }
    }

    if (left == 0) {
        /* min_p above 1 */
        return first_equal(logits, n, max);
    }

    target = uniform(params) * total;
    total = 0.0;

    for (i = 0; i < left - 1; i++) {
        total += work->weight[i];

        if (total > target) {
            break;
        }
    }

    return work->id[i];
}


/* 53 random bits as a fraction */

static double
uniform(const vlm_sample_t *params)
{
    uint32_t  counter[4], key[2], out[4];

    counter[0] = params->index;
    counter[1] = params->choice;
    counter[2] = 0;
    counter[3] = 0;

    key[0] = (uint32_t) params->seed;
    key[1] = (uint32_t) (params->seed >> 32);

    vlm_philox(counter, key, out);

    return (double) (((uint64_t) out[1] << 32 | out[0]) >> 11) * 0x1p-53;
}


void
vlm_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    int       i;
    uint32_t  c0, c1, c2, c3, k0, k1;
    uint64_t  p0, p1;

    c0 = counter[0];
    c1 = counter[1];
    c2 = counter[2];
    c3 = counter[3];
    k0 = key[0];
    k1 = key[1];

    for (i = 0; i < 10; i++) {
        p0 = (uint64_t) c0 * 0xd2511f53;
        p1 = (uint64_t) c2 * 0xcd9e8d57;

        c0 = (uint32_t) (p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t) p1;
        c2 = (uint32_t) (p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t) p0;

        k0 += 0x9e3779b9;
        k1 += 0xbb67ae85;
    }

    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}
