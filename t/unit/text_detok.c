
/* Streaming: whole characters, stop strings, the same text as at once. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer_parts.h"
#include "t/unit/lib/tap.h"


static vlm_tokenizer_t  *tok;


/* the demonstration vocabulary's id of a byte */

static int32_t
byte_id(unsigned char byte)
{
    return tok->vocab.byte_id[byte];
}


/*
 * Streams bytes, one token each, "|" in expected marks where text came out;
 * a stop is shown as "#", text left at the end follows "+".
 */

static void
streamed(const char *bytes, const char *stops, const char *expected)
{
    int           rc;
    size_t        n, before;
    vlm_buf_t     out, log, name;
    const char   *p;
    vlm_stop_t    list[8];
    vlm_error_t   err;
    vlm_detok_t  *d;

    memset(&out, 0, sizeof(out));
    memset(&log, 0, sizeof(log));
    memset(&name, 0, sizeof(name));

    vlm_buf_json_string(&name, bytes, strlen(bytes));
    vlm_buf_append(&name, ", stops ", 8);
    vlm_buf_json_string(&name, stops, strlen(stops));

    for (n = 0, p = stops; *p != '\0'; n++) {
        list[n].data = p;
        list[n].len = strcspn(p, "/");
        p += list[n].len + (p[list[n].len] != '\0');
    }

    d = vlm_detok_create(tok, list, n, &err);

    for (p = bytes, rc = 0; *p != '\0' && rc == 0; p++) {
        before = out.len;
        rc = vlm_detok_add(d, byte_id((unsigned char) *p), &out);
        vlm_buf_printf(&log, "%.*s%s", (int) (out.len - before),
                       out.len > before ? out.data + before : "",
                       rc == 1 ? "#" : "|");
    }

    before = out.len;
    vlm_detok_finish(d, &out);

    if (out.len > before) {
        vlm_buf_printf(&log, "+%s", out.data + before);
    }

    tap_str(log.data, expected, "%s", name.data);

    vlm_detok_free(d);
    vlm_buf_free(&out);
    vlm_buf_free(&log);
    vlm_buf_free(&name);
}


static void
test_characters(void)
{
    streamed("ab", "", "a|b|");
    streamed("\xc3\xa9x", "", "|\xc3\xa9|x|");
    streamed("\xf0\x9f\x98\x80", "", "|||\xf0\x9f\x98\x80|");
    streamed("\xf0\x9f\x98", "", "|||+\xef\xbf\xbd");
    streamed("\xf0\x9f\x98x", "", "|||\xef\xbf\xbdx|");
    streamed("\xff\xc3", "", "\xef\xbf\xbd||+\xef\xbf\xbd");
    streamed("\xed\xa0\x80", "",
             "|\xef\xbf\xbd\xef\xbf\xbd|\xef\xbf\xbd|");
    streamed("\xe2\xe2\x82\xac", "", "|\xef\xbf\xbd||\xe2\x82\xac|");
    streamed("\xf4\x90", "", "|\xef\xbf\xbd\xef\xbf\xbd|");
}


static void
test_stops(void)
{
    streamed("abXYc", "XY", "a|b||#");
    streamed("abXc", "XY", "a|b||Xc|");
    streamed("abX", "XY", "a|b||+X");
    streamed("XXXY", "XXY", "||X|#");
    streamed("abab", "abac", "|||ab|+ab");
    streamed("ababac", "abac", "|||ab||#");
    streamed("aabaaabaaac", "aabaaac", "||||||aaba||||#");
    streamed("aXbY", "Y/X", "a|#");

    /* the first to be complete, of those the longest */

    streamed("abcd", "abcd/bc", "||a#");
    streamed("abcd", "bcd/abcd/d", "|||#");
    streamed("abce", "abcd/c", "||ab#");
    streamed("x\n\nUser:", "\n\nUser:/\nUser", "x||||||\n#");

    /* a stop string of several bytes a character */

    streamed("a\xc3\xa9\xc3\xa8z", "\xc3\xa9z/\xc3\xa8", "a||||\xc3\xa9#");
    streamed("\xc3\xa9\xc3\xaa", "\xc3\xa9z", "|||\xc3\xa9\xc3\xaa|");
    streamed("\xc3", "\xef\xbf\xbd", "|");
    streamed("a\xff" "b", "\xef\xbf\xbd", "a|#");
}


static void
refused(const char *data, size_t len)
{
    vlm_stop_t    stop;
    vlm_error_t   err;
    vlm_detok_t  *d;

    stop.data = data;
    stop.len = len;
    d = vlm_detok_create(tok, &stop, 1, &err);

    tap_ok(d == NULL && err.status == 400 && strcmp(err.param, "stop") == 0,
           "a stop string of %zu bad bytes", len);
    vlm_detok_free(d);
}


static void
test_special(void)
{
    vlm_buf_t     out;
    vlm_stop_t    stop;
    vlm_error_t   err;
    vlm_detok_t  *d;

    refused("", 0);
    refused("\xc3", 1);
    refused("a\xed\xa0\x80", 4);

    memset(&out, 0, sizeof(out));

    stop.data = "ab";
    stop.len = 2;
    d = vlm_detok_create(tok, &stop, 1, &err);

    tap_is(vlm_detok_add(d, byte_id('a'), &out), 0, "half a stop");
    tap_is(vlm_detok_add(d, vlm_tokenizer_added(tok, "<|im_end|>"), &out), 0,
           "a special token in between");
    tap_is(vlm_detok_add(d, vlm_tokenizer_size(tok), &out), 0,
           "an id that does not exist");
    tap_is(vlm_detok_add(d, -1, &out), 0, "nor this one");
    tap_is(vlm_detok_add(d, byte_id('b'), &out), 1, "the other half");
    tap_is((long long) out.len, 0, "nothing was shown");
    tap_is(vlm_detok_add(d, byte_id('c'), &out), 1, "it is over");
    tap_ok(vlm_detok_finish(d, &out) == VLM_OK && out.len == 0,
           "and stays so");

    vlm_detok_free(d);
    vlm_detok_free(NULL);
    vlm_buf_free(&out);
}


/* random ids: streaming gives what decoding gives, up to the stop string */

static void
test_random(void)
{
    int           rc, bad, stopped;
    size_t        i, n, round;
    int32_t       ids[64];
    uint64_t      state;
    vlm_buf_t     out, whole;
    vlm_stop_t    stop;
    const char   *end;
    vlm_error_t   err;
    vlm_detok_t  *d;

    memset(&out, 0, sizeof(out));
    memset(&whole, 0, sizeof(whole));

    state = 11;
    bad = 0;
    stopped = 0;

    for (round = 0; round < 20000; round++) {
        n = tap_random(&state) % 64;

        for (i = 0; i < n; i++) {
            ids[i] = (int32_t) (tap_random(&state)
                                % (round % 2 != 0 ? 540 : 90));
        }

        out.len = 0;
        whole.len = 0;
        vlm_buf_append(&out, "", 0);
        vlm_buf_append(&whole, "", 0);
        vlm_tokenizer_decode(tok, ids, n, 1, &whole, &err);

        stop.data = round % 3 == 0 ? "a" : round % 3 == 1 ? "he" : "\xef\xbf"
                    "\xbd\xef\xbf\xbd";
        stop.len = strlen(stop.data);

        d = vlm_detok_create(tok, &stop, round % 4 != 0, &err);

        for (i = 0, rc = 0; i < n && rc == 0; i++) {
            rc = vlm_detok_add(d, ids[i], &out);
            bad += (vlm_utf8_valid(out.data, out.len) != out.len);
        }

        vlm_detok_finish(d, &out);
        vlm_detok_free(d);

        end = round % 4 != 0 ? memmem(whole.data, whole.len, stop.data,
                                      stop.len) : NULL;
        n = end != NULL ? (size_t) (end - whole.data) : whole.len;

        stopped += (end != NULL);
        bad += (out.len != n || memcmp(out.data, whole.data, n) != 0);
    }

    tap_is(bad, 0, "20,000 random answers");
    tap_ok(stopped > 1000 && stopped < 19000, "%d with a stop", stopped);

    vlm_buf_free(&out);
    vlm_buf_free(&whole);
}


int
main(void)
{
    vlm_error_t  err;

    tok = vlm_tokenizer_load(tap_path("models/demo"), &err);

    if (tap_ok(tok != NULL, "the demonstration vocabulary")) {
        test_characters();
        test_stops();
        test_special();
        test_random();
    }

    vlm_tokenizer_free(tok);

    return tap_done();
}
