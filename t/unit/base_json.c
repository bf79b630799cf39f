
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/vlm_json.h"
#include "t/unit/lib/tap.h"


static vlm_json_doc_t *
parse(const char *text, vlm_error_t *err)
{
    err->message[0] = '\0';

    return vlm_json_parse(text, strlen(text), "test.json", err);
}


static void
test_values(void)
{
    int                value;
    double             d;
    size_t             len;
    int64_t            n;
    const char        *s;
    vlm_error_t        err;
    vlm_json_doc_t    *doc;
    const vlm_json_t  *root, *v;

    doc = parse("{\"a\": [1, -2.5, [], {}, \"x\\u00e9\\ud83d\\ude00\\n\"],\n"
                " \"b\": {\"c\": null, \"d\": true, \"e\": false},"
                " \"n\": 9223372036854775807, \"a\": 7, \"\": \"\"}", &err);
    root = vlm_json_root(doc);

    tap_is(vlm_json_type(root), VLM_JSON_OBJECT, "the root is an object");
    tap_is((long long) vlm_json_count(root), 5, "of five members");

    v = vlm_json_first(root);
    s = vlm_json_key(v, &len);
    tap_ok(len == 1 && *s == 'a', "key of the first member");
    tap_is((long long) vlm_json_count(v), 5, "an array of five");

    tap_ok(vlm_json_int(vlm_json_at(v, 0), &n) == VLM_OK && n == 1,
           "an integer");
    tap_ok(vlm_json_double(vlm_json_at(v, 1), &d) == VLM_OK && d == -2.5,
           "a double");
    tap_ok(vlm_json_int(vlm_json_at(v, 1), &n) == VLM_ERROR,
           "a double is no integer");
    tap_ok(vlm_json_type(vlm_json_at(v, 2)) == VLM_JSON_ARRAY
           && vlm_json_first(vlm_json_at(v, 2)) == NULL, "an empty array");
    tap_ok(vlm_json_type(vlm_json_at(v, 3)) == VLM_JSON_OBJECT
           && vlm_json_get(vlm_json_at(v, 3), "x") == NULL,
           "an empty object");
    tap_ok(vlm_json_string(vlm_json_at(v, 4), &s, &len) == VLM_OK
           && len == 8 && memcmp(s, "x\xc3\xa9\xf0\x9f\x98\x80\n", 8) == 0,
           "escapes in a string");
    tap_ok(vlm_json_at(v, 5) == NULL, "no element behind the last");
    tap_ok(vlm_json_key(vlm_json_at(v, 0), &len) == NULL && len == 0,
           "an element has no key");

    v = vlm_json_get(root, "b");
    tap_is((long long) vlm_json_count(v), 3, "a nested object");
    tap_is(vlm_json_type(vlm_json_get(v, "c")), VLM_JSON_NULL, "null");
    tap_ok(vlm_json_bool(vlm_json_get(v, "d"), &value) == VLM_OK
           && value == 1, "true");
    tap_ok(vlm_json_bool(vlm_json_get(v, "e"), &value) == VLM_OK
           && value == 0, "false");

    tap_ok(vlm_json_int(vlm_json_get(root, "n"), &n) == VLM_OK
           && n == INT64_MAX, "the largest integer is exact");
    tap_ok(vlm_json_int(vlm_json_get(root, "a"), &n) == VLM_OK && n == 7,
           "of equal keys the last counts");
    tap_ok(vlm_json_is(vlm_json_get(root, ""), ""), "an empty key");
    tap_ok(!vlm_json_is(vlm_json_get(root, "n"), "9"),
           "a number is no string");

    vlm_json_free(doc);
}


static void
test_numbers(void)
{
    double             d;
    int64_t            n;
    vlm_error_t        err;
    vlm_json_doc_t    *doc;
    const vlm_json_t  *v;

    doc = parse("[-9223372036854775808, 9223372036854775808, 1e6, 16.0, "
                "1.5e0, 1e400, 1e-400, 9007199254740994.0, -0]", &err);
    v = vlm_json_root(doc);

    tap_ok(vlm_json_int(vlm_json_at(v, 0), &n) == VLM_OK && n == INT64_MIN,
           "the smallest integer");
    tap_ok(vlm_json_int(vlm_json_at(v, 1), &n) == VLM_ERROR,
           "one too large is refused");
    tap_ok(vlm_json_double(vlm_json_at(v, 1), &d) == VLM_OK
           && d == 9223372036854775808.0, "but is a double");
    tap_ok(vlm_json_int(vlm_json_at(v, 2), &n) == VLM_OK && n == 1000000,
           "1e6 is an integer");
    tap_ok(vlm_json_int(vlm_json_at(v, 3), &n) == VLM_OK && n == 16,
           "16.0 is one");
    tap_ok(vlm_json_int(vlm_json_at(v, 4), &n) == VLM_ERROR, "1.5 is none");
    tap_ok(vlm_json_double(vlm_json_at(v, 5), &d) == VLM_ERROR,
           "1e400 is no double");
    tap_ok(vlm_json_double(vlm_json_at(v, 6), &d) == VLM_OK && d == 0,
           "1e-400 is zero");
    tap_ok(vlm_json_int(vlm_json_at(v, 7), &n) == VLM_ERROR,
           "an inexact integer is refused");
    tap_ok(vlm_json_int(vlm_json_at(v, 8), &n) == VLM_OK && n == 0, "-0");

    vlm_json_free(doc);
}


static void
test_missing(void)
{
    int          b;
    double       d;
    size_t       len;
    int64_t      n;
    const char  *s;

    tap_ok(vlm_json_root(NULL) == NULL
           && vlm_json_type(NULL) == VLM_JSON_NULL
           && vlm_json_count(NULL) == 0
           && vlm_json_first(NULL) == NULL
           && vlm_json_next(NULL) == NULL
           && vlm_json_get(NULL, "a") == NULL
           && vlm_json_at(NULL, 0) == NULL
           && vlm_json_key(NULL, &len) == NULL
           && vlm_json_string(NULL, &s, &len) == VLM_ERROR
           && vlm_json_int(NULL, &n) == VLM_ERROR
           && vlm_json_double(NULL, &d) == VLM_ERROR
           && vlm_json_bool(NULL, &b) == VLM_ERROR
           && !vlm_json_is(NULL, ""), "everything takes NULL");

    vlm_json_free(NULL);
}


static void
refused(const char *text, size_t len, const char *message)
{
    vlm_error_t      err;
    vlm_json_doc_t  *doc;

    err.message[0] = '\0';
    doc = vlm_json_parse(text, len, "f", &err);

    if (!tap_ok(doc == NULL && strstr(err.message, message) != NULL,
                "refused: %s", message))
    {
        tap_diag("got \"%s\"", err.message);
    }

    vlm_json_free(doc);
}


static void
test_errors(void)
{
    char             deep[256];
    int64_t          n;
    vlm_error_t      err;
    vlm_json_doc_t  *doc;

    refused("", 0, "f: line 1: ");
    refused("{", 1, "premature EOF");
    refused("[1,\n2,\n3 4]", 11, "f: line 3: ");
    refused("[1] x", 5, "f: line 1: ");
    refused("[1] [2]", 7, "f: line 1: ");
    refused("{\"a\" 1}", 7, "f: line 1: ");
    refused("[01]", 4, "f: line 1: ");
    refused("[\"a\nb\"]", 7, "f: line ");
    refused("[/* */1]", 8, "f: line 1: ");
    refused("[1,]", 4, "f: line 1: ");
    refused("[NaN]", 5, "f: line 1: ");
    refused("[\"\\x\"]", 6, "f: line 1: ");
    refused("[\n\"\xff\"]", 6, "f: line 2: invalid UTF-8");
    refused("[\"\xed\xa0\x80\"]", 7, "f: line 1: invalid UTF-8");
    refused("[\"\xc0\x80\"]", 6, "f: line 1: invalid UTF-8");
    refused("[\"\\ud800\"]", 10, "\\ud800 is half a surrogate pair");
    refused("[\n\"\\udc00\"]", 11, "f: line 2: \\udc00 is half");
    refused("[\"\\ud800\\u0041\"]", 16, "\\ud800 is half");
    refused("[\"\\ud800x\"]", 11, "\\ud800 is half");
    refused("\"\\", 2, "f: line 1: ");
    refused("\"\\ud8", 5, "f: line 1: ");

    memset(deep, '[', 128);
    memset(deep + 128, ']', 128);
    refused(deep, 256, "nested deeper than 64 levels");

    doc = vlm_json_parse(deep + 64, 128, "f", &err);
    tap_ok(doc != NULL, "64 levels are parsed");
    vlm_json_free(doc);

    doc = parse("\"\\\\ud800 \\u0000.\"", &err);
    tap_ok(doc != NULL, "an escaped backslash before ud800");
    vlm_json_free(doc);

    doc = parse("12", &err);
    tap_ok(vlm_json_int(vlm_json_root(doc), &n) == VLM_OK && n == 12,
           "a number alone");
    vlm_json_free(doc);

    doc = vlm_json_load(tap_path("t/data/nowhere.json"), &err);
    tap_ok(doc == NULL && strstr(err.message, "nowhere.json: No such file"),
           "a missing file");
}


static void
test_large(void)
{
    size_t             i;
    int64_t            n, sum;
    vlm_buf_t          buf;
    vlm_error_t        err;
    vlm_json_doc_t    *doc;
    const vlm_json_t  *v;

    memset(&buf, 0, sizeof(buf));
    vlm_buf_append(&buf, "{\"list\": [", 10);

    for (i = 0; i < 100000; i++) {
        vlm_buf_printf(&buf, "%s[%zu, \"%zu\"]", i ? "," : "", i, i);
    }

    vlm_buf_append(&buf, "], \"end\": 1}", 12);

    doc = vlm_json_parse(buf.data, buf.len, "large", &err);
    v = vlm_json_first(vlm_json_get(vlm_json_root(doc), "list"));

    for (i = 0, sum = 0; v != NULL; v = vlm_json_next(v), i++) {
        if (vlm_json_int(vlm_json_first(v), &n) == VLM_OK) {
            sum += n;
        }
    }

    tap_is((long long) i, 100000, "100,000 elements");
    tap_is(sum, 4999950000, "and their sum");
    tap_ok(vlm_json_get(vlm_json_root(doc), "end") != NULL,
           "the member behind them");

    vlm_json_free(doc);
    vlm_buf_free(&buf);
}


int
main(void)
{
    test_values();
    test_numbers();
    test_missing();
    test_errors();
    test_large();

    return tap_done();
}
