
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/vlm_base.h"
#include "t/unit/lib/tap.h"


static void
test_errors(void)
{
    char         longer[1000];
    vlm_error_t  err;

    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';

    vlm_error_param(NULL, "image[%d]", 1);
    tap_is(vlm_fail(NULL, 400, NULL, "no one listens"), VLM_ERROR,
           "an error nobody wants");

    vlm_fail(&err, 400, "invalid_image", "it has %d legs", 3);
    tap_is(err.status, 400, "status");
    tap_str(err.code, "invalid_image", "code");
    tap_str(err.param, "", "no param yet");
    tap_str(err.message, "it has 3 legs", "message");

    vlm_error_param(&err, "image[%d]", 2);
    tap_str(err.param, "image[2]", "param");

    vlm_fail_in(&err, "%s: ", "cat.jpg");
    tap_str(err.message, "cat.jpg: it has 3 legs", "a prefix");

    vlm_fail(&err, 500, NULL, "%s", longer);
    vlm_fail_in(&err, "%s", longer);
    tap_is((long long) strlen(err.message), sizeof(err.message) - 1,
           "long messages are cut");
    tap_str(err.code, "", "no code");
}


static void
test_buf(void)
{
    char       longer[2000];
    size_t     i;
    vlm_buf_t  buf;

    memset(&buf, 0, sizeof(buf));

    tap_ok(vlm_buf_append(&buf, NULL, 0) == VLM_OK && buf.len == 0
           && buf.data[0] == '\0', "nothing appended is an empty string");

    for (i = 0; i < 1000; i++) {
        vlm_buf_append(&buf, "abc", 3);
    }

    tap_is((long long) buf.len, 3000, "3,000 bytes");
    tap_ok(buf.data[3000] == '\0' && strlen(buf.data) == 3000,
           "with a zero behind them");

    buf.len = 0;
    vlm_buf_printf(&buf, "%d-%s", 5, "x");
    tap_str(buf.data, "5-x", "printf");

    memset(longer, 'y', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';

    buf.len = 0;
    vlm_buf_printf(&buf, "<%s>", longer);
    tap_is((long long) buf.len, 2001, "printf of a long text");
    tap_is(vlm_buf_append(&buf, "", SIZE_MAX / 2), VLM_ERROR,
           "an absurd length is refused");

    vlm_buf_free(&buf);
    tap_ok(buf.data == NULL && buf.len == 0 && buf.size == 0, "freed");
}


static void
escaped(const char *text, size_t len, const char *expected, const char *name)
{
    vlm_buf_t  buf;

    memset(&buf, 0, sizeof(buf));

    vlm_buf_json_string(&buf, text, len);
    tap_str(buf.data, expected, "JSON string: %s", name);

    vlm_buf_free(&buf);
}


static void
test_json_string(void)
{
    escaped("", 0, "\"\"", "empty");
    escaped("a\"b\\c/", 6, "\"a\\\"b\\\\c/\"", "quotes and backslashes");
    escaped("\n\r\t\b\x1f\x7f", 6, "\"\\n\\r\\t\\u0008\\u001f\\u007f\"",
            "control characters");
    escaped("a\0b", 3, "\"a\\u0000b\"", "a zero byte");
    escaped("\xc3\xa9\xf0\x9f\x98\x80", 6, "\"\xc3\xa9\xf0\x9f\x98\x80\"",
            "UTF-8 as it is");
    escaped("a\xff" "b\xe2\x82", 5, "\"a\xef\xbf\xbd" "b\xef\xbf\xbd"
            "\xef\xbf\xbd\"", "bad bytes replaced");
    escaped("\xed\xa0\x80", 3,
            "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"", "a surrogate");
}


/* the definition, code point by code point */

static int
encode(uint32_t c, char *p)
{
    if (c < 0x80) {
        p[0] = (char) c;
        return 1;
    }

    if (c < 0x800) {
        p[0] = (char) (0xc0 | c >> 6);
        p[1] = (char) (0x80 | (c & 0x3f));
        return 2;
    }

    if (c < 0x10000) {
        p[0] = (char) (0xe0 | c >> 12);
        p[1] = (char) (0x80 | (c >> 6 & 0x3f));
        p[2] = (char) (0x80 | (c & 0x3f));
        return 3;
    }

    p[0] = (char) (0xf0 | c >> 18);
    p[1] = (char) (0x80 | (c >> 12 & 0x3f));
    p[2] = (char) (0x80 | (c >> 6 & 0x3f));
    p[3] = (char) (0x80 | (c & 0x3f));

    return 4;
}


static void
test_utf8(void)
{
    int        bad;
    char       p[8];
    size_t     n, len;
    uint32_t   c, valid;
    uint64_t   sequence;

    for (c = 0, bad = 0; c < 0x110400; c++) {
        n = (size_t) encode(c, p);
        len = (c >= 0xd800 && c < 0xe000) || c >= 0x110000 ? 0 : n;

        bad += (vlm_utf8_valid(p, n) != len);
        bad += (n > 1 && vlm_utf8_valid(p, n - 1) != 0);
    }

    tap_is(bad, 0, "each code point, whole and cut");

    /* of all sequences of three bytes, these many are one character */

    for (sequence = 0, valid = 0; sequence < 0x1000000; sequence++) {
        p[0] = (char) (sequence >> 16);
        p[1] = (char) (sequence >> 8);
        p[2] = (char) sequence;

        if ((p[0] & 0xf0) == 0xe0) {
            valid += (vlm_utf8_valid(p, 3) == 3);
        }
    }

    tap_is(valid, 0x10000 - 0x800 - 0x800, "characters of three bytes");

    tap_is((long long) vlm_utf8_valid("", 0), 0, "nothing is valid");
    tap_is((long long) vlm_utf8_valid("ab\xc3\xa9\x80z", 6), 4,
           "the prefix before a stray byte");
    tap_is((long long) vlm_utf8_valid("\xf5\x80\x80\x80", 4), 0,
           "above U+10FFFF");
}


static void
size_is(const char *text, int rc, uint64_t expected)
{
    int       got;
    uint64_t  size;

    size = 0;
    got = vlm_parse_size(text, &size);

    tap_ok(got == rc && (rc == VLM_ERROR || size == expected),
           "size \"%s\"", text);
}


static void
test_sizes(void)
{
    size_is("0", VLM_OK, 0);
    size_is("4096", VLM_OK, 4096);
    size_is("1k", VLM_OK, 1024);
    size_is("64m", VLM_OK, 64u << 20);
    size_is("2G", VLM_OK, (uint64_t) 2 << 30);
    size_is("18446744073709551615", VLM_OK, UINT64_MAX);
    size_is("17179869183g", VLM_OK, (uint64_t) 17179869183u << 30);
    size_is("17179869184g", VLM_ERROR, 0);
    size_is("18446744073709551616", VLM_ERROR, 0);
    size_is("", VLM_ERROR, 0);
    size_is("-1", VLM_ERROR, 0);
    size_is("+1", VLM_ERROR, 0);
    size_is(" 1", VLM_ERROR, 0);
    size_is("1 k", VLM_ERROR, 0);
    size_is("1kb", VLM_ERROR, 0);
    size_is("1t", VLM_ERROR, 0);
    size_is("0x10", VLM_ERROR, 0);
    size_is("k", VLM_ERROR, 0);

    tap_is((long long) vlm_mul(6, 7), 42, "a product");
    tap_is((long long) vlm_mul(SIZE_MAX / 2, 3), 0, "one that does not fit");
}


static void
test_file(void)
{
    int          fd;
    char         path[] = "/tmp/vlm_base_XXXXXX";
    char        *data;
    size_t       len;
    vlm_error_t  err;

    fd = mkstemp(path);

    if (!tap_ok(fd != -1 && write(fd, "hello", 5) == 5, "a file")) {
        return;
    }

    close(fd);

    if (tap_ok(vlm_read_file(path, 5, &data, &len, &err) == VLM_OK,
               "is read"))
    {
        tap_ok(len == 5 && strcmp(data, "hello") == 0, "whole");
        free(data);
    }

    tap_ok(vlm_read_file(path, 4, &data, &len, &err) == VLM_ERROR
           && strstr(err.message, "is too large: 5 bytes, at most 4"),
           "one too large");
    tap_ok(vlm_read_file("/tmp", 4, &data, &len, &err) == VLM_ERROR
           && strstr(err.message, "/tmp: is not a regular file"),
           "a directory");

    unlink(path);

    tap_ok(vlm_read_file(path, 4, &data, &len, &err) == VLM_ERROR
           && strstr(err.message, "No such file"), "one that is gone");
}


static void
test_log(void)
{
    tap_is(vlm_log_level("loud"), VLM_ERROR, "an unknown level");
    tap_ok(vlm_log_level("error") == VLM_OK
           && vlm_log_enabled(VLM_LOG_ERROR)
           && !vlm_log_enabled(VLM_LOG_WARN), "level error");
    tap_ok(vlm_log_level("debug") == VLM_OK
           && vlm_log_enabled(VLM_LOG_DEBUG), "level debug");
}


int
main(void)
{
    test_errors();
    test_buf();
    test_json_string();
    test_utf8();
    test_sizes();
    test_file();
    test_log();

    return tap_done();
}
