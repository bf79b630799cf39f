
/* Forms: what is accepted is in range, whole and cut give the same. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ngx_vlm_module/core/vlm_form.h"


int LLVMFuzzerTestOneInput(const uint8_t *p, size_t size);
static int run(vlm_form_t *f, uint64_t *bytes, const uint8_t *body,
    size_t len, size_t cut);
static void check(int condition);
static void check_values(const vlm_form_t *f);


static const vlm_form_limits_t  limits = { 16, 3, 64, 600 };


/* the first two bytes place the cut, the rest is the body */

int
LLVMFuzzerTestOneInput(const uint8_t *p, size_t size)
{
    int                rc;
    size_t             cut;
    uint64_t           bytes[2];
    static vlm_form_t  whole, half;

    if (size < 2) {
        return 0;
    }

    cut = p[0] + 256 * p[1];
    p += 2;
    size -= 2;

    rc = run(&whole, &bytes[0], p, size, 0);

    check(run(&half, &bytes[1], p, size, cut % (size + 1)) == rc);

    if (rc == VLM_FORM_ERROR) {
        check(whole.fail->status == half.fail->status);
        check(whole.fail->status == 400 || whole.fail->status == 413);
        check(strcmp(whole.fail->message, half.fail->message) == 0);
        check(strcmp(whole.fail->param, half.fail->param) == 0);
        return 0;
    }

    check(bytes[0] == bytes[1]);
    check(memcmp(&whole.sampling, &half.sampling, sizeof(vlm_sampling_t))
          == 0);
    check(whole.npictures == half.npictures && whole.nstops == half.nstops);
    check(whole.logit_bias.n == half.logit_bias.n);

    check_values(&whole);

    return 0;
}


static void
check(int condition)
{
    if (!condition) {
        abort();
    }
}


/* the engine's limits on a record hold for every form that is accepted */

static void
check_values(const vlm_form_t *f)
{
    uint32_t               i;
    const vlm_sampling_t  *s;

    s = &f->sampling;

    check(f->npictures <= 3 && f->nstops <= VLM_MAX_STOPS);
    check(f->npictures != 0 || f->has_prompt);

    for (i = 0; i < f->nstops; i++) {
        check(f->stops[i].len >= 1 && f->stops[i].len <= VLM_MAX_STOP_LEN);
    }

    if (s->set & VLM_SET_TEMPERATURE) {
        check(s->temperature >= 0 && s->temperature <= 2);
    }

    if (s->set & VLM_SET_TOP_P) {
        check(s->top_p > 0 && s->top_p <= 1);
    }

    if (s->set & VLM_SET_MIN_P) {
        check(s->min_p >= 0 && s->min_p <= 1);
    }

    if (s->set & VLM_SET_TOP_K) {
        check(s->top_k >= 0);
    }

    if (s->set & VLM_SET_MAX_TOKENS) {
        check(s->max_tokens >= 1);
    }

    check(s->nchoices >= 1 && s->nchoices <= VLM_MAX_CHOICES);
    check(s->logprobs <= 1 && s->top_logprobs <= VLM_MAX_TOP_LOGPROBS);
    check(s->logprobs || s->top_logprobs == 0);
    check(f->logit_bias.n <= VLM_MAX_LOGIT_BIAS);

    for (i = 0; i < f->logit_bias.n; i++) {
        check(f->logit_bias.bias[i].id >= 0
              && f->logit_bias.bias[i].bias >= -100
              && f->logit_bias.bias[i].bias <= 100);
    }
}


/* in *bytes a checksum of what was to be stored, and where */

static int
run(vlm_form_t *f, uint64_t *bytes, const uint8_t *body, size_t len,
    size_t cut)
{
    int             rc, piece, open;
    size_t          i, n;
    uint8_t        *block;
    const uint8_t  *pos;

    vlm_form_init(f, "B", 1, &limits);

    *bytes = 0;
    open = 0;
    rc = VLM_FORM_AGAIN;

    for (piece = 0; piece < 2 && rc != VLM_FORM_ERROR; piece++) {
        n = (piece == 0) ? cut : len - cut;
        block = malloc(n + 1);
        memcpy(block, body + (piece == 0 ? 0 : cut), n);
        pos = block;

        do {
            rc = vlm_form_next(f, &pos, block + n, piece == 1);

            switch (rc) {

            case VLM_FORM_BEGIN:
                check(!open);
                open = 1;
                break;

            case VLM_FORM_DATA:
                check(open && f->len != 0);

                for (i = 0; i < f->len; i++) {
                    *bytes = (*bytes * 31 + f->data[i]) * 31 + f->field;
                }

                break;

            case VLM_FORM_END:
                check(open);
                open = 0;
                break;
            }

        } while (rc != VLM_FORM_AGAIN && rc != VLM_FORM_ERROR
                 && (rc != VLM_FORM_DONE || pos < block + n));

        free(block);
    }

    check(rc != VLM_FORM_AGAIN);

    return rc;
}
