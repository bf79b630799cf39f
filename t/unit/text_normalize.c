
/* NFC: against utf8proc's own, which is right but slow in long runs. */

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/text/tokenizer_parts.h"
#include "t/unit/lib/tap.h"


static int
same_as_library(const char *text, size_t len)
{
    int                rc, same;
    char              *copy;
    size_t             n;
    uint64_t           operations;
    vlm_buf_t          out;
    utf8proc_uint8_t  *expected;

    memset(&out, 0, sizeof(out));

    copy = strndup(text, len);
    expected = utf8proc_NFC((const utf8proc_uint8_t *) copy);
    n = strlen((char *) expected);

    operations = 0;
    rc = vlm_nfc(text, len, &out, &operations);

    if (rc == 0) {
        same = (n == len && memcmp(expected, text, n) == 0);

    } else {
        same = (rc == 1 && n == out.len
                && memcmp(expected, out.data, n) == 0);
    }

    free(copy);
    free(expected);
    vlm_buf_free(&out);

    return same;
}


static size_t
put(int32_t c, char *p)
{
    return (size_t) utf8proc_encode_char(c, (utf8proc_uint8_t *) p);
}


/* each code point alone, before and behind letters and marks */

static void
test_code_points(void)
{
    int      bad;
    char     text[64];
    size_t   len;
    int32_t  c;

    for (c = 1, bad = 0; c < 0x110000; c++) {

        if ((c >= 0xd800 && c < 0xe000)
            || (c >= 0x40000 && c < 0xe0000) || c > 0xe1000)
        {
            continue;
        }

        len = 0;
        text[len++] = 'e';
        len += put(c, text + len);
        len += put(0x323, text + len);
        len += put(c, text + len);
        len += put(0x301, text + len);
        len += put(0x5b0, text + len);

        if (!same_as_library(text, len) && bad++ < 5) {
            tap_diag("U+%04X", (unsigned) c);
        }
    }

    tap_is(bad, 0, "code points in context");
}


/* what is said to be inert must be a starter that nothing ends with */

static void
test_inert(void)
{
    int                          bad, class;
    int32_t                      c, codes[8], n;
    const utf8proc_property_t   *property;

    for (c = 1, bad = 0; c < 0x110000; c++) {
        property = utf8proc_get_property(c);

        if (vlm_nfc_inert(c) && property->combining_class != 0) {
            tap_diag("U+%04X has a class", (unsigned) c);
            bad++;
        }

        class = 0;
        n = (int32_t) utf8proc_decompose_char(c, codes, 8,
                                              UTF8PROC_DECOMPOSE
                                              |UTF8PROC_STABLE, &class);

        if (n < 2 && (n != 1 || codes[0] != c) && vlm_nfc_inert(c)) {
            tap_diag("U+%04X changes", (unsigned) c);
            bad++;
        }

        for (/* void */; n > 1; n--) {
            if (vlm_nfc_inert(codes[n - 1])) {
                tap_diag("U+%04X ends U+%04X", (unsigned) codes[n - 1],
                         (unsigned) c);
                bad++;
            }
        }
    }

    tap_is(bad, 0, "inert code points");
}


static void
test_random(void)
{
    int                     i, bad;
    char                    text[512];
    size_t                  j, len, n;
    uint64_t                state, r;
    static const int32_t    some[] = {
        'a', 'e', 0xe9, 0x212b, 0x1100, 0x1161, 0x11a8, 0xac00, 0x3b1,
        0x1f71, 0x958, 0x1d15e, 0x4e00, 0xfb2c, 0x344, 0x340, 0x300, 0x301,
        0x323, 0x307, 0x5b0, 0x5b4, 0xf71, 0xf72, 0xf80, 0x3099, 0x345,
        0x338, 0x20dd, 0x1d165, 0x302, 0x327
    };

    state = 7;

    for (i = 0, bad = 0; i < 20000; i++) {
        n = tap_random(&state) % 40;

        for (j = 0, len = 0; j < n; j++) {
            r = tap_random(&state);
            len += put(some[r % (sizeof(some) / sizeof(some[0]))],
                       text + len);
        }

        bad += !same_as_library(text, len);
    }

    tap_is(bad, 0, "random sequences of marks and letters");
}


static void
test_long(void)
{
    char       *text;
    size_t      i, n;
    uint64_t    operations;
    vlm_buf_t   out;

    n = 1 << 20;
    memset(&out, 0, sizeof(out));

    text = malloc(n);

    if (!tap_ok(text != NULL, "a megabyte of marks")) {
        return;
    }

    for (i = 0; i < n; i += 4) {
        memcpy(text + i, "\xcc\x81\xcc\xa3", 4);
    }

    operations = 0;
    tap_is(vlm_nfc(text, n, &out, &operations), 1, "is put in order");
    tap_ok(operations < 2 * n, "in linear time: %llu steps",
           (unsigned long long) operations);
    tap_ok(out.len == n && memcmp(out.data, "\xcc\xa3\xcc\xa3", 4) == 0
           && memcmp(out.data + n - 4, "\xcc\x81\xcc\x81", 4) == 0,
           "the lower marks first");

    vlm_buf_free(&out);
    free(text);
}


int
main(void)
{
    test_code_points();
    test_inert();
    test_random();
    test_long();

    return tap_done();
}
