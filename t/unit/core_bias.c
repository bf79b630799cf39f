
/* logit_bias: what is accepted, and the same at every cut; numbers. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ngx_vlm_module/core/vlm_bias.h"
#include "ngx_vlm_module/core/vlm_number.h"
#include "t/unit/lib/tap.h"


static void good(const char *text, const char *expected);
static void bad(const char *text, const char *expected);
static int read_cut(const char *text, size_t cut, const char **why);
static const char *entries(void);
static void check_objects(void);
static void check_limits(void);
static void check_numbers(void);


static vlm_bias_t  bias;

static const char  malformed[] =
    "must be a JSON object of token ids and numbers from -100 to 100";


int
main(void)
{
    check_objects();
    check_limits();
    check_numbers();

    return tap_done();
}


static void
check_objects(void)
{
    good("{}", "");
    good(" \r\n{\t} ", "");
    good("{\"5\":1}", "5:1 ");
    good("{\"0\": -100, \"2147483647\" :100 }", "0:-100 2147483647:100 ");
    good("{\n  \"50256\": -1.5,\n  \"7\": 2e1\n}\n", "50256:-1.5 7:20 ");
    good("{\"007\":0}", "7:0 ");
    good("{\"1\":1,\"2\":2,\"1\":3}", "1:3 2:2 ");

    bad("", malformed);
    bad("  ", malformed);
    bad("{", malformed);
    bad("[]", malformed);
    bad("null", malformed);
    bad("{\"5\":1", malformed);
    bad("{\"5\":1}}", malformed);
    bad("{\"5\":1} x", malformed);
    bad("{\"5\":1,}", malformed);
    bad("{,}", malformed);
    bad("{\"5\" 1}", malformed);
    bad("{\"5\":}", malformed);
    bad("{\"5\":1 2}", malformed);
    bad("{\"5\":\"1\"}", malformed);
    bad("{\"5\":null}", malformed);
    bad("{\"5\":{}}", malformed);
    bad("{5:1}", malformed);
    bad("{'5':1}", malformed);
    bad("{\"\":1}", malformed);
    bad("{\"-5\":1}", malformed);
    bad("{\" 5\":1}", malformed);
    bad("{\"5\n\":1}", malformed);
    bad("{\"cat\":1}", malformed);
    bad("{\"2147483648\":1}", malformed);
    bad("{\"5\":100.01}", malformed);
    bad("{\"5\":-100.01}", malformed);
    bad("{\"5\":nan}", malformed);
    bad("{\"5\":1e999}", malformed);
    bad("{\"5\":0x1}", malformed);
    bad("{\"5\":+1}", malformed);
    bad("{\"5\":1\xc2\xa0}", malformed);
    bad("\xef\xbb\xbf{}", malformed);
}


static void
check_limits(void)
{
    int           i, n;
    const char   *why;
    static char   text[65536];

    good("{\"0000000000000000000000000000001\":1}", "1:1 ");
    bad("{\"00000000000000000000000000000000\":1}", malformed);
    bad("{\"1\":0.000000000000000000000000000000}", malformed);

    for (n = VLM_MAX_LOGIT_BIAS; n <= VLM_MAX_LOGIT_BIAS + 1; n++) {
        text[0] = '\0';

        for (i = 0; i < n; i++) {
            sprintf(text + strlen(text), "%c\"%d\":%d", i == 0 ? '{' : ',',
                    1000 * i, i % 100);
        }

        strcat(text, "}");

        if (n == VLM_MAX_LOGIT_BIAS) {
            tap_is(read_cut(text, 0, &why), 0, "%d entries", n);
            tap_is(bias.n, n, "all of them");
            tap_ok(bias.bias[n - 1].id == 1000 * (n - 1), "the last one");

        } else {
            tap_is(read_cut(text, 0, &why), -1, "%d entries", n);
            tap_str(why, "has more than 1024 entries", "why");
        }
    }
}


static void
check_numbers(void)
{
    float      f;
    size_t     i;
    long long  n;

    static const struct {
        const char  *text;
        int          number;
        int          integer;
    } cases[] = {
        { "0", 1, 1 }, { "-0", 1, 1 }, { "12", 1, 1 }, { "-12", 1, 1 },
        { "1.5", 1, 0 }, { ".5", 1, 0 }, { "1.", 1, 0 }, { "1e5", 1, 0 },
        { "1E-5", 1, 0 }, { "1e+5", 1, 0 },
        { "", 0, 0 }, { "-", 0, 0 }, { ".", 0, 0 }, { "e1", 0, 0 },
        { "1e", 0, 0 }, { "+1", 0, 0 }, { " 1", 0, 0 }, { "1 ", 0, 0 },
        { "0x10", 0, 0 }, { "inf", 0, 0 }, { "--1", 0, 0 }
    };

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tap_is(vlm_number_is(cases[i].text, strlen(cases[i].text), 0),
               cases[i].number, "\"%s\" is a number", cases[i].text);
        tap_is(vlm_number_is(cases[i].text, strlen(cases[i].text), 1),
               cases[i].integer, "\"%s\" is an integer", cases[i].text);
    }

    tap_is(vlm_number_is("1", 2, 1), 0, "a zero byte ends no number");

    tap_ok(vlm_number_float("-2", 2, -2, 2, &f) == 0 && f == -2, "low");
    tap_is(vlm_number_float("-2.001", 6, -2, 2, &f), -1, "below");
    tap_is(vlm_number_float("2.001", 5, -2, 2, &f), -1, "above");

    tap_ok(vlm_number_integer("64", 2, 1, 64, &n) == 0 && n == 64, "high");
    tap_is(vlm_number_integer("65", 2, 1, 64, &n), -1, "above");
    tap_is(vlm_number_integer("0", 1, 1, 64, &n), -1, "below");
    tap_is(vlm_number_integer("99999999999999999999", 20, INT64_MIN,
                              INT64_MAX, &n), -1, "beyond 64 bits");
}


static int
read_cut(const char *text, size_t cut, const char **why)
{
    memset(&bias, 0, sizeof(vlm_bias_t));

    if (vlm_bias_add(&bias, text, cut, why) != 0
        || vlm_bias_add(&bias, text + cut, strlen(text) - cut, why) != 0)
    {
        return -1;
    }

    return vlm_bias_end(&bias, why);
}


static const char *
entries(void)
{
    uint32_t     i;
    static char  buf[1024];

    buf[0] = '\0';

    for (i = 0; i < bias.n; i++) {
        sprintf(buf + strlen(buf), "%d:%g ", bias.bias[i].id,
                (double) bias.bias[i].bias);
    }

    return buf;
}


static void
good(const char *text, const char *expected)
{
    int          same;
    size_t       cut;
    const char  *why;

    same = 1;

    for (cut = 0; cut <= strlen(text); cut++) {
        same &= (read_cut(text, cut, &why) == 0
                 && strcmp(entries(), expected) == 0);
    }

    tap_ok(same, "%s at every cut", text);
    tap_str(entries(), expected, "entries");
}


static void
bad(const char *text, const char *expected)
{
    int          same;
    size_t       cut;
    const char  *why;

    same = 1;

    for (cut = 0; cut <= strlen(text); cut++) {
        same &= (read_cut(text, cut, &why) == -1
                 && strcmp(why, expected) == 0);
    }

    tap_ok(same, "refused: %s", text);
}
