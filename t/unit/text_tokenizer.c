
/*
 * The tokenizer against the reference: the golden checkpoints' probes, cases
 * of the demonstration model's vocabulary, and 3,000 lines of Qwen's.
 */

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


int
main(void)
{
    test_probes(tap_path("t/data/golden/qwen2_vl/base/model"),
                tap_path("t/data/golden/qwen2_vl/base/"
                         "tokenizer_cases.json"));
    test_probes(tap_path("t/data/golden/qwen2_vl/untied_sharded/model"),
                tap_path("t/data/golden/qwen2_vl/untied_sharded/"
                         "tokenizer_cases.json"));
    test_lines(tap_path("build-data/qwen3"),
               tap_path("build-data/qwen3/cases.jsonl"), 3000);

    return tap_done();
}
