
/* Forms: fields, ranges, limits, and the same result at every cut. */

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ngx_vlm_module/core/vlm_form.h"
#include "t/unit/lib/tap.h"


typedef struct {
    char                buf[65536];
    size_t              len;
} text_t;

typedef struct {
    vlm_form_t          form;
    int                 rc;             /* DONE or ERROR */
    text_t              log;            /* I{...} P{...} S{...} */
} result_t;


static vlm_form_limits_t  limits = { 20, 3, 16, 32 };

static result_t  got;


static void put(text_t *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void field(text_t *t, const char *name, const char *value);
static void file(text_t *t, const char *name, const char *filename,
    const char *value);
static void end(text_t *t);
static void run(result_t *r, const char *body, size_t len, size_t cut);
static void events_is(text_t *t, const char *expected, const char *name);
static void fails(text_t *t, unsigned status, const char *code,
    const char *param, const char *name);
static void check_parts(void);
static void check_limits(void);
static void check_texts(void);
static void check_scalars(void);
static void check_choices(void);
static void check_cuts(void);
static void one(const char *name, const char *value, int good);


int
main(void)
{
    check_parts();
    check_limits();
    check_texts();
    check_scalars();
    check_choices();
    check_cuts();

    return tap_done();
}


static void
put(text_t *t, const char *fmt, ...)
{
    va_list  args;

    va_start(args, fmt);
    t->len += vsnprintf(t->buf + t->len, sizeof(t->buf) - t->len, fmt, args);
    va_end(args);
}


static void
field(text_t *t, const char *name, const char *value)
{
    put(t, "--B\r\nContent-Disposition: form-data; name=\"%s\"\r\n\r\n%s\r\n",
        name, value);
}


static void
file(text_t *t, const char *name, const char *filename, const char *value)
{
    put(t, "--B\r\nContent-Disposition: form-data; name=\"%s\"; "
        "filename=\"%s\"\r\n\r\n%s\r\n", name, filename, value);
}


static void
end(text_t *t)
{
    put(t, "--B--\r\n");
}


/*
 * The body in two pieces, cut at "cut".  At each BEGIN the caller is once
 * out of room: it comes back with the same bytes, elsewhere in memory.
 */

static void
run(result_t *r, const char *body, size_t len, size_t cut)
{
    int             rc, piece;
    char           *block, *moved;
    size_t          n, left;
    const uint8_t  *pos, *last;

    r->log.len = 0;
    r->log.buf[0] = '\0';

    vlm_form_init(&r->form, "B", 1, &limits);
    rc = VLM_FORM_AGAIN;

    for (piece = 0; piece < 2 && rc != VLM_FORM_ERROR; piece++) {
        n = (piece == 0) ? cut : len - cut;

        block = malloc(n + 1);
        memcpy(block, body + (piece == 0 ? 0 : cut), n);

        pos = (uint8_t *) block;
        last = pos + n;

        do {
            rc = vlm_form_next(&r->form, &pos, last, piece == 1);

            switch (rc) {

            case VLM_FORM_BEGIN:
                put(&r->log, "%c{", "?IPS"[r->form.field]);

                left = last - pos;
                moved = malloc(left + 1);
                memcpy(moved, pos, left);
                memset(block, '#', n);
                free(block);

                block = moved;
                n = left;
                pos = (uint8_t *) block;
                last = pos + n;
                break;

            case VLM_FORM_DATA:
                put(&r->log, "%.*s", (int) r->form.len,
                    (const char *) r->form.data);
                break;

            case VLM_FORM_END:
                put(&r->log, "}");
                break;
            }

        } while (rc != VLM_FORM_AGAIN && rc != VLM_FORM_ERROR
                 && (rc != VLM_FORM_DONE || pos < last));

        free(block);
    }

    r->rc = rc;
}


/* these two take the form in t and empty it */

static void
events_is(text_t *t, const char *expected, const char *name)
{
    run(&got, t->buf, t->len, 0);
    t->len = 0;

    if (!tap_is(got.rc, VLM_FORM_DONE, "%s: accepted", name)) {
        tap_diag("%s", got.form.fail->message);
    }

    tap_str(got.log.buf, expected, "%s", name);
}


static void
fails(text_t *t, unsigned status, const char *code, const char *param,
    const char *name)
{
    int                ok;
    const uint8_t     *pos;
    const vlm_fail_t  *f;

    run(&got, t->buf, t->len, 0);
    t->len = 0;

    f = got.form.fail;

    ok = got.rc == VLM_FORM_ERROR && f->status == status
         && strcmp(f->code, code) == 0 && strcmp(f->param, param) == 0;

    if (!tap_ok(ok, "%s: %u %s", name, status, f->message)) {
        tap_diag("got rc %d, %u, code \"%s\", param \"%s\"", got.rc,
                 f->status, f->code, f->param);
    }

    pos = (const uint8_t *) "";
    tap_is(vlm_form_next(&got.form, &pos, pos, 1), VLM_FORM_ERROR,
           "%s: stays so", name);
}


static void
check_parts(void)
{
    static text_t  t;

    file(&t, "image", "a.jpg", "one");
    field(&t, "prompt", "What?");
    file(&t, "image[]", "b.jpg", "two");
    field(&t, "image", "three");
    field(&t, "system", "Be brief");
    field(&t, "other", "ignored");
    file(&t, "file", "c.txt", "ignored");
    end(&t);
    events_is(&t, "I{one}P{What?}I{two}I{three}S{Be brief}",
              "pictures and texts");
    tap_is(got.form.npictures, 3, "three pictures");
    tap_ok(got.form.has_prompt && got.form.has_system, "both texts");
    tap_is(got.form.sampling.set, 0, "no settings");
    tap_is(got.form.sampling.nchoices, 1, "one choice");

    field(&t, "prompt", "");
    file(&t, "image", "", "");
    field(&t, "image", "");
    field(&t, "prompt", "x");
    field(&t, "prompt", "");
    field(&t, "system", "");
    field(&t, "max_tokens", "");
    field(&t, "stop", "");
    end(&t);
    events_is(&t, "P{x}", "empty values are absent");
    tap_is(got.form.npictures, 0, "no picture");
    tap_is(got.form.has_system, 0, "no system message");
    tap_is(got.form.nstops, 0, "no stop string");

    file(&t, "image", "", "x");
    end(&t);
    events_is(&t, "I{x}", "a picture without a file name");

    file(&t, "prompt", "q.txt", "x");
    end(&t);
    events_is(&t, "P{x}", "a prompt out of a file");

    end(&t);
    fails(&t, 400, "missing_input", "", "nothing");

    field(&t, "system", "x");
    field(&t, "Prompt", "x");
    end(&t);
    fails(&t, 400, "missing_input", "", "only a system message");

    file(&t, "image", "a.jpg", "x");
    file(&t, "image", "b.jpg", "");
    end(&t);
    fails(&t, 400, "invalid_image", "image[1]", "an empty file");

    field(&t, "prompt", "x");
    field(&t, "prompt", "x");
    end(&t);
    fails(&t, 400, "duplicate_field", "prompt", "two prompts");

    field(&t, "prompt", "x");
    put(&t, "--B\r\nContent-Disposition: form-data\r\n\r\nx\r\n");
    end(&t);
    fails(&t, 400, "invalid_multipart", "", "a part without a name");

    field(&t, "prompt", "x");
    fails(&t, 400, "invalid_multipart", "", "no final boundary");
}


static void
check_limits(void)
{
    unsigned       i;
    static text_t  t;

    file(&t, "image", "a.jpg", "0123456789abcdef");
    end(&t);
    events_is(&t, "I{0123456789abcdef}", "a picture of 16 bytes");

    file(&t, "image", "a.jpg", "x");
    file(&t, "image", "a.jpg", "0123456789abcdefg");
    end(&t);
    fails(&t, 413, "payload_too_large", "image[1]", "one of 17");

    for (i = 0; i < 4; i++) {
        file(&t, "image", "a.jpg", "x");
    }
    end(&t);
    fails(&t, 400, "too_many_images", "image[3]", "four pictures");

    field(&t, "prompt", "0123456789abcdef");
    field(&t, "system", "0123456789abcdef");
    end(&t);
    events_is(&t, "P{0123456789abcdef}S{0123456789abcdef}",
              "32 bytes of text");

    field(&t, "prompt", "0123456789abcdef");
    field(&t, "system", "0123456789abcdefg");
    end(&t);
    fails(&t, 413, "payload_too_large", "system", "33 bytes of text");

    for (i = 0; i < 20; i++) {
        field(&t, i == 7 ? "prompt" : "x", "x");
    }
    end(&t);
    events_is(&t, "P{x}", "20 parts");

    for (i = 0; i < 21; i++) {
        field(&t, i == 7 ? "prompt" : "x", "x");
    }
    end(&t);
    fails(&t, 400, "too_many_parts", "", "21 parts");

    put(&t, "--B\r\nContent-Disposition: form-data; name=unknown\r\n\r\n"
        "%01000d\r\n", 7);
    field(&t, "prompt", "x");
    end(&t);
    events_is(&t, "P{x}", "unknown fields may be long");
}


static void
check_texts(void)
{
    size_t         i;
    static text_t  t;

    static const char  *bad[] = {
        "a\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80"
    };

    field(&t, "prompt", "\xc3\xa4\xf0\x9f\x90\x88");
    end(&t);
    events_is(&t, "P{\xc3\xa4\xf0\x9f\x90\x88}", "UTF-8");

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        field(&t, "prompt", bad[i]);
        end(&t);
        fails(&t, 400, "invalid_utf8", "prompt", "invalid UTF-8");
    }

    field(&t, "system", "a\xe2\x82");
    end(&t);
    fails(&t, 400, "invalid_utf8", "system", "ends within a character");

    field(&t, "prompt", "x");
    field(&t, "stop", "\xe2\x82");
    end(&t);
    fails(&t, 400, "invalid_utf8", "stop", "a stop string too");

    /* an invalid picture is the engine's business */

    file(&t, "image", "a.jpg", "\xff\xd8");
    end(&t);
    events_is(&t, "I{\xff\xd8}", "a picture's bytes");

    field(&t, "prompt", "x");
    field(&t, "stop", "ab");
    field(&t, "stop", "\n");
    field(&t, "model", "m/1");
    field(&t, "stream", "false");
    field(&t, "detail", "high");
    end(&t);
    events_is(&t, "P{x}", "stop, model, stream, detail");

    tap_is(got.form.nstops, 2, "two stop strings");
    tap_ok(got.form.stops[0].len == 2
           && memcmp(got.form.stops[0].data, "ab", 2) == 0, "the first");
    tap_ok(got.form.stops[1].len == 1 && got.form.stops[1].data[0] == '\n',
           "the second");
    tap_ok(got.form.model.len == 3
           && memcmp(got.form.model.data, "m/1", 3) == 0, "model");
    tap_is(got.form.stream, VLM_STREAM_FALSE, "stream");
    tap_is(got.form.detail, VLM_DETAIL_HIGH, "detail");

    limits.max_text_size = 1000;

    put(&t, "--B\r\nContent-Disposition: form-data; name=model\r\n\r\n"
        "%0256d\r\n", 7);
    field(&t, "prompt", "x");
    end(&t);
    events_is(&t, "P{x}", "a model's name of 256 bytes");
    tap_is(got.form.model.len, 256, "all of it");

    put(&t, "--B\r\nContent-Disposition: form-data; name=model\r\n\r\n"
        "%0257d\r\n", 7);
    end(&t);
    fails(&t, 400, "invalid_value", "model", "one of 257");

    limits.max_text_size = 32;

    for (i = 0; i < VLM_MAX_STOPS; i++) {
        field(&t, "stop", "s");
    }
    field(&t, "prompt", "x");
    end(&t);
    events_is(&t, "P{x}", "16 stop strings");
    tap_is(got.form.nstops, 16, "all of them");

    for (i = 0; i < VLM_MAX_STOPS + 1; i++) {
        field(&t, "stop", "s");
    }
    end(&t);
    fails(&t, 400, "invalid_value", "stop", "17 stop strings");
}


/* one field with a value, beside a prompt */

static void
one(const char *name, const char *value, int good)
{
    static text_t  t;

    field(&t, name, value);
    field(&t, "prompt", "x");
    end(&t);

    if (!good) {
        fails(&t, 400, "invalid_value", name, value);
        return;
    }

    run(&got, t.buf, t.len, 0);
    t.len = 0;

    if (!tap_is(got.rc, VLM_FORM_DONE, "%s=%s", name, value)) {
        tap_diag("%s", got.form.fail->message);
    }
}


static void
check_scalars(void)
{
    size_t          i;
    vlm_sampling_t  *s;

    static const char  *names[] = {
        "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed"
    };
    static const char  *nonsense[] = {
        "abc", "1x", " 1", "1 ", "+1", "0x1", "nan", "inf", "-inf", "-", ".",
        "1e", "e1", "1.1.1", "1,5", "--1", "\t1", "1\xc2\xa0"
    };

    s = &got.form.sampling;

    for (i = 0; i < 6 * sizeof(nonsense) / sizeof(nonsense[0]); i++) {
        one(names[i % 6], nonsense[i / 6], 0);
    }

    one("max_tokens", "1", 1);
    tap_is(s->max_tokens, 1, "max_tokens");
    tap_is(s->set, VLM_SET_MAX_TOKENS, "its bit");
    one("max_tokens", "4294967295", 1);
    tap_is(s->max_tokens, UINT32_MAX, "the largest");
    one("max_tokens", "4294967296", 1);
    tap_is(s->max_tokens, UINT32_MAX, "more is the same");
    one("max_tokens", "99999999999999999999999", 1);
    tap_is(s->max_tokens, UINT32_MAX, "much more too");
    one("max_tokens", "0", 0);
    tap_str(got.form.fail->message,
            "max_tokens must be an integer of at least 1", "its message");
    one("max_tokens", "-1", 0);
    one("max_tokens", "1.5", 0);
    one("max_tokens", "1e3", 0);

    one("temperature", "0", 1);
    tap_ok(s->temperature == 0 && s->set == VLM_SET_TEMPERATURE, "0");
    one("temperature", "2", 1);
    one("temperature", "0.25", 1);
    tap_ok(s->temperature == 0.25f, "0.25");
    one("temperature", ".5", 1);
    one("temperature", "1.", 1);
    one("temperature", "5e-1", 1);
    tap_ok(s->temperature == 0.5f, "5e-1");
    one("temperature", "2.1", 0);
    one("temperature", "-0.1", 0);
    one("temperature", "1e400", 0);

    one("top_p", "1", 1);
    tap_ok(s->top_p == 1 && s->set == VLM_SET_TOP_P, "top_p");
    one("top_p", "0.001", 1);
    one("top_p", "0", 0);
    one("top_p", "1e-400", 0);
    one("top_p", "1.01", 0);

    one("min_p", "0", 1);
    tap_ok(s->min_p == 0 && s->set == VLM_SET_MIN_P, "min_p");
    one("min_p", "1", 1);
    one("min_p", "1.5", 0);

    one("top_k", "0", 1);
    one("top_k", "2147483647", 1);
    tap_is(s->top_k, INT32_MAX, "top_k");
    tap_is(s->set, VLM_SET_TOP_K, "its bit");
    one("top_k", "-1", 1);
    tap_is(s->top_k, 0, "top_k off");
    one("top_k", "-2", 0);
    one("top_k", "2147483648", 0);
    one("top_k", "99999999999999999999999", 0);

    one("seed", "18446744073709551615", 1);
    tap_ok(s->seed == UINT64_MAX && s->set == VLM_SET_SEED, "seed");
    one("seed", "-1", 1);
    one("seed", "-9223372036854775808", 1);
    one("seed", "-9223372036854775809", 0);
    one("seed", "18446744073709551616", 0);

    one("stream", "true", 1);
    tap_is(got.form.stream, VLM_STREAM_TRUE, "stream");
    one("stream", "0", 1);
    tap_is(got.form.stream, VLM_STREAM_FALSE, "stream off");
    one("stream", "yes", 0);
    one("stream", "True", 0);
    one("detail", "low", 1);
    tap_is(got.form.detail, VLM_DETAIL_LOW, "detail");
    one("detail", "auto", 1);
    one("detail", "lowest", 0);
}


static void
check_choices(void)
{
    static text_t    t;
    vlm_sampling_t  *s;

    s = &got.form.sampling;

    one("n", "1", 1);
    one("n", "64", 1);
    tap_is(s->nchoices, 64, "n");
    tap_is(s->set, 0, "it has no bit");
    one("n", "0", 0);
    one("n", "65", 0);
    tap_str(got.form.fail->message, "n must be an integer from 1 to 64",
            "its message");
    one("n", "2.0", 0);
    one("n", "-1", 0);

    one("logprobs", "true", 1);
    tap_ok(s->logprobs == 1 && s->top_logprobs == 0, "logprobs");
    one("logprobs", "0", 1);
    tap_is(s->logprobs, 0, "no logprobs");
    one("logprobs", "5", 0);

    one("top_logprobs", "0", 1);
    one("top_logprobs", "1", 0);
    tap_str(got.form.fail->message,
            "top_logprobs needs logprobs to be true", "its message");
    one("top_logprobs", "21", 0);

    field(&t, "top_logprobs", "20");
    field(&t, "prompt", "x");
    field(&t, "logprobs", "1");
    end(&t);
    events_is(&t, "P{x}", "in any order");
    tap_ok(s->logprobs == 1 && s->top_logprobs == 20, "both");

    one("presence_penalty", "-2", 1);
    tap_ok(s->presence == -2 && s->set == VLM_SET_PRESENCE, "presence");
    one("presence_penalty", "2.01", 0);
    one("frequency_penalty", "2", 1);
    tap_ok(s->frequency == 2 && s->set == VLM_SET_FREQUENCY, "frequency");
    one("frequency_penalty", "-2.01", 0);
    one("repetition_penalty", "10", 1);
    tap_ok(s->repetition == 10 && s->set == VLM_SET_REPETITION,
           "repetition");
    one("repetition_penalty", "0", 0);
    one("repetition_penalty", "10.1", 0);

    one("logit_bias", "{\"7\":-100,\"9\":.5}", 1);
    tap_ok(got.form.logit_bias.n == 2 && got.form.logit_bias.bias[0].id == 7
           && got.form.logit_bias.bias[1].bias == 0.5f, "logit_bias");
    one("logit_bias", "{\"7\":-100", 0);
    one("logit_bias", "{\"7\":\xff", 0);
    tap_str(got.form.fail->message, "logit_bias must be a JSON object of "
            "token ids and numbers from -100 to 100", "its message");

    field(&t, "logit_bias", "{}");
    field(&t, "logit_bias", "{}");
    end(&t);
    fails(&t, 400, "duplicate_field", "logit_bias", "two biases");

    put(&t, "--B\r\nContent-Disposition: form-data; name=logit_bias\r\n\r\n"
        "{%31s}\r\n", "");
    end(&t);
    fails(&t, 413, "payload_too_large", "logit_bias", "33 bytes of it");
}


/* every cut, with a value of each kind on both sides of it */

static void
check_cuts(void)
{
    int              good;
    size_t           i;
    static text_t    t;
    static result_t  whole;

    file(&t, "image", "a.jpg", "\r\n--B\r-\r\n--\xff");
    field(&t, "prompt", "\xe2\x82\xac\r\n");
    field(&t, "temperature", "0.75");
    file(&t, "image", "", "");
    field(&t, "stop", "\r\n--C");
    field(&t, "logit_bias", "{\"12\":-3}");
    file(&t, "image", "c.jpg", "\r\n");
    end(&t);

    run(&whole, t.buf, t.len, 0);
    tap_str(whole.log.buf, "I{\r\n--B\r-\r\n--\xff}P{\xe2\x82\xac\r\n}I{\r\n}",
            "the whole form");

    good = 1;

    for (i = 1; i <= t.len; i++) {
        run(&got, t.buf, t.len, i);

        if (got.rc != VLM_FORM_DONE
            || strcmp(got.log.buf, whole.log.buf) != 0
            || got.form.npictures != 2
            || got.form.sampling.temperature != 0.75f
            || got.form.logit_bias.n != 1
            || got.form.logit_bias.bias[0].id != 12
            || got.form.logit_bias.bias[0].bias != -3
            || got.form.nstops != 1 || got.form.stops[0].len != 5
            || memcmp(got.form.stops[0].data, "\r\n--C", 5) != 0)
        {
            tap_diag("cut at %zu: %s", i, got.log.buf);
            good = 0;
        }
    }

    tap_ok(good, "the same at every cut");
}
