
/*
 * Answers of whole models: every held-out question of the demonstration
 * model, many at once; and the same bits alone, in company and in chunks.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/vlm_json.h"
#include "t/unit/lib/ask.h"
#include "t/unit/lib/tap.h"


#define MAX_ASKED   512

/* a sanitizer makes the arithmetic ten times slower */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FEW         1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FEW         1
#endif
#endif

#ifndef FEW
#define FEW         0
#endif

static asked_t  asked[MAX_ASKED];


static void
copy_string(const vlm_json_t *v, const char *prefix, char *to, size_t size)
{
    size_t       len;
    const char  *s;

    if (vlm_json_string(v, &s, &len) != VLM_OK) {
        s = "";
        len = 0;
    }

    snprintf(to, size, "%s%.*s", prefix, (int) len, s);
}


static int
load_questions(void)
{
    int                n;
    char              *data, *line, *next, prefix[200];
    size_t             len;
    asked_t           *a;
    vlm_error_t        err;
    vlm_json_doc_t    *doc;
    const vlm_json_t  *v;

    if (vlm_read_file(tap_path("t/data/heldout/questions.jsonl"), 1 << 24,
                      &data, &len, &err)
        != VLM_OK)
    {
        tap_diag("%s", err.message);
        exit(1);
    }

    snprintf(prefix, sizeof(prefix), "%s/", tap_path("t/data/heldout"));
    n = 0;

    for (line = data; *line != '\0' && n < MAX_ASKED; line = next) {
        next = line + strcspn(line, "\n");

        doc = vlm_json_parse(line, (size_t) (next - line), "question", &err);
        if (doc == NULL) {
            tap_diag("%s", err.message);
            exit(1);
        }

        v = vlm_json_root(doc);
        a = &asked[n++];
        memset(a, 0, sizeof(*a));

        copy_string(vlm_json_get(v, "image"), prefix, a->image,
                    sizeof(a->image));
        copy_string(vlm_json_get(v, "question"), "", a->prompt,
                    sizeof(a->prompt));
        copy_string(vlm_json_get(v, "reference"), "", a->expected,
                    sizeof(a->expected));
        copy_string(vlm_json_get(v, "truth"), "", a->truth,
                    sizeof(a->truth));
        vlm_json_double(vlm_json_get(v, "margin"), &a->margin);

        a->o.images[0] = a->image;
        a->o.nimages = 1;
        a->o.prompt = a->prompt;
        a->o.sampling.nchoices = 1;

        vlm_json_free(doc);

        if (*next == '\n') {
            next++;
        }
    }

    free(data);

    return n;
}


/*
 * Returns the number of right answers, *wrong of those with a clear margin,
 * *truth of those that are true.
 */

static int
ask_all(vlm_dtype_t dtype, vlm_quant_t quant, vlm_quant_t vision, int n,
    int *wrong, int *truth)
{
    int                 i, right;
    vlm_engine_t       *e;
    vlm_engine_conf_t   conf;

    ask_conf(&conf, tap_path("models/demo"));
    conf.embedding_dtype = dtype;
    conf.quant = quant;
    conf.vision_quant = vision;
    e = ask_start(&conf);

    for (i = 0; i < n; i++) {
        ask(e, &asked[i], (uint64_t) i + 1);
    }

    ask_collect(e, n);

    right = 0;
    *wrong = 0;
    *truth = 0;

    for (i = 0; i < n; i++) {

        if (asked[i].result == VLM_OK
            && strcmp(asked[i].text, asked[i].truth) == 0)
        {
            (*truth)++;
        }

        if (asked[i].result == VLM_OK
            && strcmp(asked[i].text, asked[i].expected) == 0)
        {
            right++;

        } else if (asked[i].margin > 1e-3) {
            tap_diag("%s: %s: \"%s\", expected \"%s\" (margin %g) %s",
                     asked[i].image, asked[i].prompt, asked[i].text,
                     asked[i].expected, asked[i].margin,
                     asked[i].result != VLM_OK ? asked[i].error.message
                                               : "");
            (*wrong)++;
        }

        ask_forget(&asked[i]);
    }

    vlm_engine_destroy(e);

    return right;
}


static void
test_questions(void)
{
    int     n, right, wrong, base, truth;
    size_t  i;

    static const struct {
        const char   *name;
        vlm_quant_t   quant;
        vlm_quant_t   vision;
    } quants[] = {
        { "int8 decoder", VLM_QUANT_INT8, VLM_QUANT_NONE },
        { "int8 vision tower", VLM_QUANT_NONE, VLM_QUANT_INT8 },
        { "int8 both", VLM_QUANT_INT8, VLM_QUANT_INT8 }
    };

    n = load_questions();

    tap_is(n, 397, "held-out questions");

    n = FEW ? 20 : n;

    right = ask_all(VLM_F32, VLM_QUANT_NONE, VLM_QUANT_NONE, n, &wrong,
                    &truth);
    tap_is(wrong, 0, "f32 embeddings: the reference's answer wherever it is "
           "clear (%d of %d equal)", right, n);

    if (FEW) {
        return;
    }

    right = ask_all(VLM_BF16, VLM_QUANT_NONE, VLM_QUANT_NONE, n, &wrong,
                    &base);
    tap_ok(right * 100 >= n * 99, "bf16 embeddings: at least 99 %% equal "
           "(%d of %d, %d true)", right, n, base);

    for (i = 0; i < sizeof(quants) / sizeof(quants[0]); i++) {
        right = ask_all(VLM_BF16, quants[i].quant, quants[i].vision, n,
                        &wrong, &truth);
        tap_ok(truth * 100 >= base * 100 - n && right * 100 >= n * 98,
               "%s: %d true, within a point, and at least 98 %% equal (%d of "
               "%d)", quants[i].name, truth, right, n);
    }
}


/* ---- the same bits in any company ---- */

#define NSAME   6

typedef struct {
    int32_t     ids[64];
    size_t      n;
    uint8_t     digest[32];
} kept_t;


static void
same_options(asked_t *a, int i)
{
    vlm_options_t  *o;

    o = &a->o;
    memset(o, 0, sizeof(*o));

    o->sampling.nchoices = 1;
    o->sampling.max_tokens = 12;
    o->sampling.set = VLM_SET_MAX_TOKENS | VLM_SET_SEED;
    o->sampling.seed = (uint64_t) (i * 7 + 1);
    o->ignore_eos = 1;

    if (i != 3) {
        snprintf(a->image, sizeof(a->image), "%s",
                 tap_path("t/data/heldout/images/%04d.png", i));
        o->images[0] = a->image;
        o->images[1] = a->image;
        o->nimages = (i == 4) ? 2 : 1;
    }

    if (i % 2 == 1) {
        o->sampling.set |= VLM_SET_TEMPERATURE | VLM_SET_TOP_P
                           | VLM_SET_REPETITION | VLM_SET_FREQUENCY;
        o->sampling.temperature = 2.0f;
        o->sampling.top_p = 0.95f;
        o->sampling.repetition = 1.1f;
        o->sampling.frequency = 0.3f;
    }

    o->prompt = (i == 2) ? "Describe the image. Be exact, please: what is "
                           "where, and of which colour is it? And then the "
                           "same once more." : "What do you see?";
}


static void
keep(kept_t *k, const asked_t *a)
{
    k->n = a->req->answer.len;
    memcpy(k->ids, a->req->answer.data, k->n * sizeof(int32_t));
    memcpy(k->digest, a->req->digest, sizeof(k->digest));
}


static int
same(const kept_t *k, const asked_t *a)
{
    return a->result == VLM_OK && a->req->answer.len == k->n
           && memcmp(k->ids, a->req->answer.data, k->n * sizeof(int32_t))
              == 0
           && memcmp(k->digest, a->req->digest, sizeof(k->digest)) == 0;
}


static void
test_company(kept_t *alone, const char *name, vlm_quant_t quant, int rows,
    int threads, int seqs, int blocks)
{
    int                 i, n, round;
    vlm_engine_t       *e;
    vlm_engine_conf_t   conf;

    ask_conf(&conf, tap_path("models/demo"));
    conf.digest = 1;
    conf.quant = quant;
    conf.vision_quant = quant;
    conf.max_rows = rows;
    conf.threads = threads;
    conf.max_num_seqs = seqs;

    if (blocks != 0) {
        /* the demonstration model: 2 KiB of keys and values for a token */
        conf.kv_memory = (uint64_t) blocks * 16 * 2048;
    }

    e = ask_start(&conf);
    n = 0;

    for (round = 0; round < 2; round++) {

        for (i = 0; i < NSAME; i++) {
            same_options(&asked[i], round == 0 ? i : NSAME - 1 - i);
            ask(e, &asked[i], (uint64_t) (++n));
        }

        ask_collect(e, NSAME);

        for (i = 0; i < NSAME; i++) {
            tap_ok(same(&alone[round == 0 ? i : NSAME - 1 - i], &asked[i]),
                   "%s, round %d: request %d gives the same bits", name,
                   round, i);
            ask_forget(&asked[i]);
        }
    }

    vlm_engine_destroy(e);
}


static void
test_alone(kept_t *alone, vlm_quant_t quant)
{
    int                 i;
    vlm_engine_t       *e;
    vlm_engine_conf_t   conf;

    ask_conf(&conf, tap_path("models/demo"));
    conf.digest = 1;
    conf.quant = quant;
    conf.vision_quant = quant;
    e = ask_start(&conf);

    for (i = 0; i < NSAME; i++) {
        same_options(&asked[i], i);
        ask(e, &asked[i], (uint64_t) i + 1);
        ask_collect(e, 1);

        tap_is(asked[i].result, VLM_OK, "alone: request %d", i);
        tap_is((long long) asked[i].req->answer.len, 12,
               "alone: request %d runs to max_tokens", i);

        keep(&alone[i], &asked[i]);
        ask_forget(&asked[i]);
    }

    vlm_engine_destroy(e);

    tap_ok(memcmp(alone[0].digest, alone[1].digest, 32) != 0,
           "different requests differ");
}


static void
test_same(void)
{
    kept_t  alone[NSAME], quantised[NSAME];

    test_alone(alone, VLM_QUANT_NONE);
    test_company(alone, "together", VLM_QUANT_NONE, 256, 2, 16, 0);
    test_company(alone, "chunks of 7 rows", VLM_QUANT_NONE, 7, 2, 6, 0);

    if (FEW) {
        return;
    }

    test_company(alone, "one thread, two seats", VLM_QUANT_NONE, 16, 1, 2, 0);
    test_company(alone, "few blocks", VLM_QUANT_NONE, 64, 2, 16, 18);

    test_alone(quantised, VLM_QUANT_INT8);
    tap_ok(memcmp(alone[0].digest, quantised[0].digest, 32) != 0,
           "int8 weights differ");
    test_company(quantised, "int8, together", VLM_QUANT_INT8, 256, 2, 16, 0);
    test_company(quantised, "int8, chunks of 7 rows, one thread",
                 VLM_QUANT_INT8, 7, 1, 6, 0);
}


int
main(void)
{
    vlm_log_level("error");

    test_same();
    test_questions();

    return tap_done();
}
