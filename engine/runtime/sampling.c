
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/runtime/sampling.h"


/* the entry of an id, made if there is none; NULL: no memory */

static vlm_adjust_t *
adjust_entry(vlm_sampler_t *s, int32_t id)
{
    size_t         lo, hi, mid, size;
    vlm_adjust_t  *p;

    lo = 0;
    hi = s->nadjust;

    while (lo < hi) {
        mid = (lo + hi) / 2;

        if (s->adjust[mid].id < id) {
            lo = mid + 1;

        } else {
            hi = mid;
        }
    }

    if (lo < s->nadjust && s->adjust[lo].id == id) {
        return &s->adjust[lo];
    }

    if (s->nadjust == s->size) {
        size = s->size != 0 ? s->size * 2 : 64;

        p = realloc(s->adjust, size * sizeof(vlm_adjust_t));
        if (p == NULL) {
            return NULL;
        }

        s->adjust = p;
        s->size = size;
    }

    p = &s->adjust[lo];
    memmove(p + 1, p, (s->nadjust - lo) * sizeof(vlm_adjust_t));
    s->nadjust++;

    memset(p, 0, sizeof(*p));
    p->id = id;

    s->op.adjust = s->adjust;
    s->op.nadjust = (int32_t) s->nadjust;

    return p;
}


static int
nomem(vlm_error_t *err)
{
    return vlm_fail(err, 500, NULL, "no memory for sampling");
}


static void
resolve(vlm_sample_t *op, const vlm_sampling_t *req,
    const vlm_generation_t *gen)
{
    uint32_t               set;
    const vlm_sampling_t  *g;

    g = &gen->sampling;
    set = req->set;

#define pick(bit, name, dflt)                                                 \
    op->name = (set & (bit)) ? req->name : (g->set & (bit)) ? g->name : (dflt)

    pick(VLM_SET_TEMPERATURE, temperature, 1.0f);
    pick(VLM_SET_TOP_P, top_p, 1.0f);
    pick(VLM_SET_MIN_P, min_p, 0.0f);
    pick(VLM_SET_TOP_K, top_k, 0);
    pick(VLM_SET_PRESENCE, presence, 0.0f);
    pick(VLM_SET_FREQUENCY, frequency, 0.0f);
    pick(VLM_SET_REPETITION, repetition, 1.0f);

#undef pick

    if (!gen->do_sample && (set & VLM_SET_TEMPERATURE) == 0) {
        op->temperature = 0.0f;
    }

    op->ntop = req->logprobs != 0 ? (int32_t) req->top_logprobs : -1;
}


static int
add_biases(vlm_sampler_t *s, const vlm_request_t *req, int32_t vocab,
    vlm_error_t *err)
{
    uint32_t       i;
    vlm_adjust_t  *a;

    for (i = 0; i < req->nlogit_bias; i++) {

        if (req->logit_bias[i].id < 0 || req->logit_bias[i].id >= vocab) {
            vlm_fail(err, 400, "invalid_value", "logit_bias names token %d, "
                     "but the model has tokens 0 to %d",
                     req->logit_bias[i].id, vocab - 1);
            vlm_error_param(err, "logit_bias");
            return VLM_ERROR;
        }

        a = adjust_entry(s, req->logit_bias[i].id);
        if (a == NULL) {
            return nomem(err);
        }

        a->bias = req->logit_bias[i].bias;
    }

    return VLM_OK;
}


int
vlm_sampler_init(vlm_sampler_t *s, const vlm_request_t *req,
    const vlm_generation_t *gen, int32_t vocab, const vlm_ids_t *prompt,
    vlm_error_t *err)
{
    size_t         i;
    vlm_adjust_t  *a;

    memset(s, 0, sizeof(*s));

    resolve(&s->op, &req->sampling, gen);

    if (req->sampling.set & VLM_SET_SEED) {
        s->op.seed = req->sampling.seed;

    } else if (getrandom(&s->op.seed, sizeof(s->op.seed), 0)
               != sizeof(s->op.seed))
    {
        return vlm_fail(err, 500, NULL, "getrandom() failed");
    }

    if (add_biases(s, req, vocab, err) != VLM_OK) {
        return VLM_ERROR;
    }

    s->track = s->op.presence != 0.0f || s->op.frequency != 0.0f
               || s->op.repetition != 1.0f;

    if (s->op.repetition == 1.0f) {
        return VLM_OK;
    }

    for (i = 0; i < prompt->len; i++) {

        if (prompt->data[i] >= vocab) {
            continue;
        }

        a = adjust_entry(s, prompt->data[i]);
        if (a == NULL) {
            return nomem(err);
        }

        a->seen = 1;
    }

    return VLM_OK;
}


void
vlm_sampler_free(vlm_sampler_t *s)
{
    free(s->adjust);
    memset(s, 0, sizeof(*s));
}


int
vlm_sampler_token(vlm_sampler_t *s, int32_t id)
{
    vlm_adjust_t  *a;

    s->op.index++;

    if (!s->track) {
        return VLM_OK;
    }

    a = adjust_entry(s, id);
    if (a == NULL) {
        return VLM_ERROR;
    }

    a->count++;
    a->seen = 1;

    return VLM_OK;
}
