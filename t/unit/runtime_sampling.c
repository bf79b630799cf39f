
/* Where sampling parameters come from, and what penalties count. */

#include <string.h>

#include "engine/runtime/sampling.h"
#include "t/unit/lib/tap.h"


static vlm_request_t     req;
static vlm_generation_t  gen;
static vlm_ids_t         prompt;


static int
init(vlm_sampler_t *s, vlm_error_t *err)
{
    memset(err, 0, sizeof(*err));

    return vlm_sampler_init(s, &req, &gen, 100, &prompt, err);
}


static void
test_resolve(void)
{
    vlm_error_t    err;
    vlm_sampler_t  s, t;

    memset(&req, 0, sizeof(req));
    memset(&gen, 0, sizeof(gen));

    init(&s, &err);
    tap_ok(s.op.temperature == 0, "do_sample false is greedy");
    tap_ok(s.op.top_p == 1 && s.op.min_p == 0 && s.op.top_k == 0
           && s.op.repetition == 1, "everything else is off");
    tap_is(s.op.ntop, -1, "no log probabilities");
    tap_ok(!s.track, "nothing is counted");
    vlm_sampler_free(&s);

    req.sampling.set = VLM_SET_TOP_P;
    req.sampling.top_p = 0.5f;
    init(&s, &err);
    tap_ok(s.op.temperature == 0 && s.op.top_p == 0.5f,
           "top_p alone does not make it sample");
    vlm_sampler_free(&s);

    req.sampling.set |= VLM_SET_TEMPERATURE;
    req.sampling.temperature = 0.7f;
    init(&s, &err);
    tap_ok(s.op.temperature == 0.7f, "the request's temperature does");
    vlm_sampler_free(&s);

    memset(&req, 0, sizeof(req));
    gen.do_sample = 1;
    init(&s, &err);
    tap_ok(s.op.temperature == 1, "do_sample true: temperature 1");
    init(&t, &err);
    tap_ok(s.op.seed != t.op.seed, "a seed that is not given is drawn");
    vlm_sampler_free(&s);
    vlm_sampler_free(&t);

    gen.sampling.set = VLM_SET_TEMPERATURE | VLM_SET_TOP_K
                       | VLM_SET_REPETITION;
    gen.sampling.temperature = 0.3f;
    gen.sampling.top_k = 7;
    gen.sampling.repetition = 1.05f;
    req.sampling.set = VLM_SET_TOP_K | VLM_SET_SEED;
    req.sampling.top_k = 0;
    req.sampling.seed = 42;
    init(&s, &err);
    tap_ok(s.op.temperature == 0.3f && s.op.repetition == 1.05f,
           "generation_config.json is the default");
    tap_is(s.op.top_k, 0, "the request can switch it off");
    tap_ok(s.op.seed == 42, "the request's seed");
    vlm_sampler_free(&s);
}


static void
test_adjust(void)
{
    size_t            i;
    int               sorted;
    vlm_error_t       err;
    vlm_sampler_t     s;
    const int32_t     ids[] = { 9, 3, 9, 50, 1000 };
    const int32_t     more[] = { 9, 4, 4, 99, 0 };
    vlm_logit_bias_t  bias[] = { { 60, 2.0f }, { 3, -1.0f } };

    memset(&req, 0, sizeof(req));
    memset(&gen, 0, sizeof(gen));
    memset(&prompt, 0, sizeof(prompt));

    for (i = 0; i < 5; i++) {
        vlm_ids_append(&prompt, ids[i], 1);
    }

    req.sampling.set = VLM_SET_REPETITION | VLM_SET_PRESENCE;
    req.sampling.repetition = 1.1f;
    req.sampling.presence = 0.5f;
    req.logit_bias = bias;
    req.nlogit_bias = 2;

    tap_is(init(&s, &err), VLM_OK, "biases and penalties");
    tap_is(s.op.nadjust, 4, "3, 9, 50 of the prompt, 60 of the biases; 1000 "
           "is no output");

    for (i = 0; i < 5; i++) {
        vlm_sampler_token(&s, more[i]);
    }

    tap_is(s.op.nadjust, 7, "0, 4 and 99 are new");
    tap_is(s.op.index, 5, "tokens are counted");

    for (i = 1, sorted = 1; i < s.nadjust; i++) {
        sorted &= s.op.adjust[i - 1].id < s.op.adjust[i].id;
    }

    tap_ok(sorted, "ids ascend");

    tap_is(s.op.adjust[1].id, 3, "token 3");
    tap_ok(s.op.adjust[1].bias == -1.0f && s.op.adjust[1].seen == 1
           && s.op.adjust[1].count == 0, "biased, seen, not generated");
    tap_is(s.op.adjust[2].id, 4, "token 4");
    tap_ok(s.op.adjust[2].count == 2 && s.op.adjust[2].seen == 1,
           "generated twice");
    tap_is(s.op.adjust[3].id, 9, "token 9");
    tap_ok(s.op.adjust[3].count == 1 && s.op.adjust[3].seen == 1,
           "seen in the prompt, generated once");
    tap_ok(s.op.adjust[5].id == 60 && s.op.adjust[5].bias == 2.0f
           && s.op.adjust[5].seen == 0, "token 60 is biased only");
    vlm_sampler_free(&s);

    /* without penalties nothing grows */

    req.sampling.set = 0;
    init(&s, &err);
    tap_is(s.op.nadjust, 2, "the biases");
    vlm_sampler_token(&s, 5);
    tap_is(s.op.nadjust, 2, "and nothing else");
    vlm_sampler_free(&s);

    bias[0].id = 100;
    tap_is(init(&s, &err), VLM_ERROR, "a bias on no token");
    tap_is(err.status, 400, "is the request's fault");
    tap_str(err.param, "logit_bias", "in logit_bias");
    tap_ok(strstr(err.message, "token 100") != NULL
           && strstr(err.message, "0 to 99") != NULL, "%s", err.message);
    vlm_sampler_free(&s);

    vlm_ids_free(&prompt);
}


int
main(void)
{
    test_resolve();
    test_adjust();

    return tap_done();
}
