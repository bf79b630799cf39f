
/*
 * The tokenizer against the reference: the golden checkpoints' probes, cases
 * of the demonstration model's vocabulary, and 3,000 lines of Qwen's.
 */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer_parts.h"
#include "t/unit/lib/tap.h"


static int
same_ids(const vlm_ids_t *ids, const vlm_json_t *expected)
{
    size_t             i;
    int64_t            id;
    const vlm_json_t  *v;

    if (vlm_json_type(expected) != VLM_JSON_ARRAY
        || vlm_json_count(expected) != ids->len)
    {
        return 0;
    }

    v = vlm_json_first(expected);

    for (i = 0; i < ids->len; i++, v = vlm_json_next(v)) {
        if (vlm_json_int(v, &id) == VLM_ERROR || id != ids->data[i]) {
            return 0;
        }
    }

    return 1;
}


static int
encodes(const vlm_tokenizer_t *tok, const vlm_json_t *text, int special,
    const vlm_json_t *expected)
{
    int          same;
    size_t       len;
    vlm_ids_t    ids;
    const char  *data;
    vlm_error_t  err;

    memset(&ids, 0, sizeof(ids));

    same = vlm_json_string(text, &data, &len) == VLM_OK
           && vlm_tokenizer_encode(tok, data, len, special, &ids, &err)
              == VLM_OK
           && same_ids(&ids, expected);

    vlm_ids_free(&ids);

    return same;
}


static int
decodes(const vlm_tokenizer_t *tok, const vlm_json_t *list, int skip,
    const vlm_json_t *expected)
{
    int                same;
    size_t             len;
    int64_t            id;
    vlm_buf_t          text;
    vlm_ids_t          ids;
    const char        *data;
    vlm_error_t        err;
    const vlm_json_t  *v;

    memset(&ids, 0, sizeof(ids));
    memset(&text, 0, sizeof(text));

    for (v = vlm_json_first(list); v != NULL; v = vlm_json_next(v)) {
        if (vlm_json_int(v, &id) == VLM_OK) {
            vlm_ids_append(&ids, (int32_t) id, 1);
        }
    }

    same = vlm_json_string(expected, &data, &len) == VLM_OK
           && vlm_tokenizer_decode(tok, ids.data, ids.len, skip, &text, &err)
              == VLM_OK
           && text.len == len
           && (len == 0 || memcmp(text.data, data, len) == 0);

    vlm_buf_free(&text);
    vlm_ids_free(&ids);

    return same;
}


static void
test_probes(const char *dir, const char *file)
{
    int                i, bad;
    vlm_error_t        err;
    vlm_json_doc_t    *doc;
    const vlm_json_t  *v, *text;
    vlm_tokenizer_t   *tok;

    err.message[0] = '\0';

    tok = vlm_tokenizer_load(dir, &err);
    doc = vlm_json_load(file, &err);

    if (!tap_ok(tok != NULL && doc != NULL, "%s is loaded", dir)) {
        tap_diag("%s", err.message);
        vlm_tokenizer_free(tok);
        vlm_json_free(doc);
        return;
    }

    bad = 0;
    v = vlm_json_first(vlm_json_root(doc));

    for (i = 0; v != NULL; v = vlm_json_next(v), i++) {
        text = vlm_json_get(v, "text");

        if (!encodes(tok, text, 1, vlm_json_get(v, "ids"))
            || !decodes(tok, vlm_json_get(v, "ids"), 0,
                        vlm_json_get(v, "decoded"))
            || !decodes(tok, vlm_json_get(v, "ids"), 1,
                        vlm_json_get(v, "decoded_skip")))
        {
            tap_diag("case %d differs", i);
            bad++;
        }
    }

    tap_ok(bad == 0 && i > 30, "%d probes both ways: %s", i, file);

    vlm_json_free(doc);
    vlm_tokenizer_free(tok);
}


static void
test_lines(const char *dir, const char *file, int expected)
{
    int                n, bad, special, ok;
    FILE              *f;
    char              *line;
    size_t             size;
    ssize_t            len;
    vlm_error_t        err;
    vlm_json_doc_t    *doc;
    const vlm_json_t  *v;
    vlm_tokenizer_t   *tok;

    err.message[0] = '\0';

    tok = vlm_tokenizer_load(dir, &err);
    f = fopen(file, "r");

    if (!tap_ok(tok != NULL && f != NULL, "%s is loaded (make data)", dir)) {
        tap_diag("%s", err.message);
        return;
    }

    line = NULL;
    size = 0;
    bad = 0;

    for (n = 0; (len = getline(&line, &size, f)) > 0; n++) {
        doc = vlm_json_parse(line, (size_t) len, "line", &err);
        v = vlm_json_root(doc);

        if (vlm_json_get(v, "decode") != NULL) {
            ok = decodes(tok, vlm_json_get(v, "decode"), 0,
                         vlm_json_get(v, "text"));

        } else {
            special = vlm_json_get(v, "special") != NULL;
            ok = encodes(tok, vlm_json_get(v, "text"), special,
                         vlm_json_get(v, "ids"));
        }

        if (!ok && bad++ < 5) {
            tap_diag("line %d differs", n + 1);
        }

        vlm_json_free(doc);
    }

    tap_is(n - bad, expected, "all lines of %s", file);

    free(line);
    fclose(f);
    vlm_tokenizer_free(tok);
}


static void
test_demo(void)
{
    int               special;
    size_t            len;
    vlm_buf_t         text;
    vlm_ids_t         ids;
    const char       *data;
    vlm_error_t       err;
    vlm_tokenizer_t  *tok;

    memset(&ids, 0, sizeof(ids));
    memset(&text, 0, sizeof(text));

    tok = vlm_tokenizer_load(tap_path("models/demo"), &err);

    if (!tap_ok(tok != NULL, "the demonstration vocabulary")) {
        return;
    }

    tap_is(vlm_tokenizer_size(tok), 534, "number of ids");
    tap_is(vlm_tokenizer_added(tok, "<|im_start|>"), 527, "an added token");
    tap_is(vlm_tokenizer_added(tok, "<|im_start|"), -1, "half of one");
    tap_is(vlm_tokenizer_added(tok, ""), -1, "none of it");
    tap_is(vlm_tokenizer_added(tok, "the"), -1, "a token not added");

    data = vlm_tokenizer_bytes(tok, 527, &len, &special);
    tap_ok(data != NULL && len == 12 && special == 1
           && memcmp(data, "<|im_start|>", 12) == 0, "its text");
    data = vlm_tokenizer_bytes(tok, 220, &len, &special);
    tap_ok(data != NULL && len == 1 && *data == ' ' && special == 0,
           "a space");
    tap_ok(vlm_tokenizer_bytes(tok, 534, &len, &special) == NULL
           && len == 0 && special == 0, "an id too large");
    tap_ok(vlm_tokenizer_bytes(tok, -1, &len, &special) == NULL,
           "an id below zero");

    tap_is(vlm_tokenizer_encode(tok, "a\xff", 2, 0, &ids, &err), VLM_ERROR,
           "text that is not UTF-8");
    tap_is(err.status, 400, "is the client's fault");
    tap_str(err.message, "text is not valid UTF-8 at byte 1", "its message");
    tap_is((long long) ids.len, 0, "and gives no ids");

    vlm_ids_append(&ids, 7, 3);
    vlm_tokenizer_encode(tok, "<|im_end|>", 10, 1, &ids, &err);
    tap_ok(ids.len == 4 && ids.data[2] == 7 && ids.data[3] == 528,
           "ids are appended");

    ids.data[0] = 999999;
    ids.data[1] = -5;
    ids.data[2] = 64;
    vlm_tokenizer_decode(tok, ids.data, 4, 1, &text, &err);
    tap_str(text.data, "a", "ids that do not exist have no text");

    vlm_buf_free(&text);
    vlm_ids_free(&ids);
    vlm_tokenizer_free(tok);
}


/* what a user typed never becomes an added token */

static void
test_user_text(void)
{
    int               special;
    size_t            i, len, bad;
    int32_t           id;
    vlm_buf_t         text;
    vlm_ids_t         ids;
    const char       *data;
    vlm_error_t       err;
    vlm_tokenizer_t  *tok;

    memset(&ids, 0, sizeof(ids));
    memset(&text, 0, sizeof(text));

    tok = vlm_tokenizer_load(tap_path("build-data/qwen3"), &err);

    if (!tap_ok(tok != NULL, "Qwen's vocabulary")) {
        return;
    }

    /* every added token, alone, doubled, among letters */

    for (id = 151643; id < vlm_tokenizer_size(tok); id++) {
        data = vlm_tokenizer_bytes(tok, id, &len, &special);
        vlm_buf_printf(&text, "%.*s %.*s%.*sx", (int) len, data, (int) len,
                       data, (int) len, data);
    }

    vlm_tokenizer_encode(tok, text.data, text.len, 0, &ids, &err);

    for (i = 0, bad = 0; i < ids.len; i++) {
        bad += (ids.data[i] >= 151643);
    }

    tap_ok(bad == 0 && ids.len > 26, "no added token in user text");

    ids.len = 0;
    vlm_tokenizer_encode(tok, text.data, text.len, 1, &ids, &err);

    for (i = 0, bad = 0; i < ids.len; i++) {
        bad += (ids.data[i] >= 151643);
    }

    tap_is((long long) bad, 78, "all of them where they are wanted");

    vlm_buf_free(&text);
    vlm_ids_free(&ids);
    vlm_tokenizer_free(tok);
}


/*
 * Long runs: steps are counted, not seconds.  A heap of n takes a few times
 * log2(n) steps for each symbol, so the bound is loose for any O(n log n)
 * and far below what O(n^2) needs: 5e11.
 */

static void
test_long(void)
{
    int                  rc;
    char                *text;
    size_t               i, j, n, len, unit;
    uint64_t             operations, half;
    vlm_ids_t            ids;
    vlm_error_t          err;
    vlm_tokenizer_t     *tok;
    static const char   *runs[] = {
        "a", " ", "\n", "!", "7", "\xf0\x9f\x98\x80", "e\xcc\x81",
        "\xcc\x81", "\xcc\x81\xcc\xa3", " \n", "\xe4\xb8\xad", "a "
    };

    n = 1 << 20;
    memset(&ids, 0, sizeof(ids));

    tok = vlm_tokenizer_load(tap_path("models/demo"), &err);
    text = malloc(n);

    if (!tap_ok(tok != NULL && text != NULL, "ready for long runs")) {
        return;
    }

    for (i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        unit = strlen(runs[i]);
        len = n / 2 / unit * unit;

        for (j = 0; j < 2 * len; j++) {
            text[j] = runs[i][j % unit];
        }

        ids.len = 0;
        rc = vlm_tokenizer_encode_counted(tok, text, len, 0, &ids, &half,
                                          &err);

        if (rc == VLM_OK) {
            ids.len = 0;
            rc = vlm_tokenizer_encode_counted(tok, text, 2 * len, 0, &ids,
                                              &operations, &err);
        }

        tap_ok(rc == VLM_OK && operations < 2 * len * 64
               && operations <= half * 9 / 4 + 1000,
               "1 MB of run %zu: %llu steps, half of it %llu", i,
               (unsigned long long) operations, (unsigned long long) half);
    }

    vlm_ids_free(&ids);
    free(text);
    vlm_tokenizer_free(tok);
}


/* one tokenizer, several threads */

typedef struct {
    const vlm_tokenizer_t  *tok;
    const vlm_ids_t        *expected;
    int                     bad;
} thread_t;

static const char  sample[] = "The 12 cats' e\xcc\xa3\xcc\x81t\xcc\x81 \n\n "
                              "<|im_end|> where?  \xf0\x9f\x98\x80";


static void *
encode_often(void *data)
{
    int          i;
    thread_t    *thread = data;
    vlm_ids_t    ids;
    vlm_error_t  err;

    memset(&ids, 0, sizeof(ids));

    for (i = 0; i < 500; i++) {
        ids.len = 0;

        if (vlm_tokenizer_encode(thread->tok, sample, sizeof(sample) - 1,
                                 i % 2, &ids, &err) == VLM_ERROR
            || (i % 2 == 0
                && (ids.len != thread->expected->len
                    || memcmp(ids.data, thread->expected->data,
                              ids.len * sizeof(int32_t)) != 0)))
        {
            thread->bad++;
        }
    }

    vlm_ids_free(&ids);

    return NULL;
}


static void
test_threads(void)
{
    int               i, bad;
    thread_t          threads[4];
    pthread_t         handles[4];
    vlm_ids_t         expected;
    vlm_error_t       err;
    vlm_tokenizer_t  *tok;

    memset(&expected, 0, sizeof(expected));

    tok = vlm_tokenizer_load(tap_path("models/demo"), &err);

    if (!tap_ok(tok != NULL
                && vlm_tokenizer_encode(tok, sample, sizeof(sample) - 1, 0,
                                        &expected, &err) == VLM_OK,
                "ready for threads"))
    {
        return;
    }

    for (i = 0; i < 4; i++) {
        threads[i].tok = tok;
        threads[i].expected = &expected;
        threads[i].bad = 0;

        if (pthread_create(&handles[i], NULL, encode_often, &threads[i])
            != 0)
        {
            break;
        }
    }

    tap_is(i, 4, "four threads");

    for (bad = 0; i > 0; i--) {
        pthread_join(handles[i - 1], NULL);
        bad += threads[i - 1].bad;
    }

    tap_is(bad, 0, "encode the same text to the same ids");

    vlm_ids_free(&expected);
    vlm_tokenizer_free(tok);
}


int
main(void)
{
    test_demo();
    test_user_text();
    test_long();
    test_threads();
    test_probes(tap_path("t/data/golden/qwen2_vl/base/model"),
                tap_path("t/data/golden/qwen2_vl/base/"
                         "tokenizer_cases.json"));
    test_probes(tap_path("t/data/golden/qwen2_vl/untied_sharded/model"),
                tap_path("t/data/golden/qwen2_vl/untied_sharded/"
                         "tokenizer_cases.json"));
    test_probes(tap_path("t/data/golden/idefics3/base/model"),
                tap_path("t/data/golden/idefics3/base/"
                         "tokenizer_cases.json"));
    test_probes(tap_path("t/data/golden/mllama/base/model"),
                tap_path("t/data/golden/mllama/base/"
                         "tokenizer_cases.json"));
    test_lines(tap_path("models/demo"), tap_path("t/data/text/demo.jsonl"),
               97);
    test_lines(tap_path("build-data/qwen3"),
               tap_path("build-data/qwen3/cases.jsonl"), 3000);
    test_lines(tap_path("build-data/llama3"),
               tap_path("build-data/llama3/cases.jsonl"), 3000);

    return tap_done();
}
