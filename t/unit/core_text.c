
/* UTF-8, JSON output, answers, failures and the Accept header. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/channel/vlm_logprob.h"
#include "ngx_vlm_module/core/vlm_accept.h"
#include "ngx_vlm_module/core/vlm_answer.h"
#include "ngx_vlm_module/core/vlm_form.h"
#include "ngx_vlm_module/core/vlm_utf8.h"
#include "t/unit/lib/tap.h"


#define HEAD                                                                  \
    "\"created\":1700000000,\"model\":\"m\\\"1\","


static void check_utf8(void);
static int valid(const uint8_t *p, size_t len);
static void check_out(void);
static void check_answers(void);
static void check_logprobs(void);
static void check_fail(void);
static void check_accept(void);
static void text_is(vlm_out_t *o, const char *expected, const char *name);


int
main(void)
{
    check_utf8();
    check_out();
    check_answers();
    check_logprobs();
    check_fail();
    check_accept();

    return tap_done();
}


/* every code point, and every sequence of up to 3 bytes, by the definition */

static void
check_utf8(void)
{
    size_t      len, cut;
    uint8_t     b[4];
    uint32_t    c, a, bad, good;
    vlm_utf8_t  u;

    bad = 0;

    for (c = 0; c <= 0x110000; c++) {

        if (c < 0x80) {
            b[0] = c;
            len = 1;

        } else if (c < 0x800) {
            b[0] = 0xc0 | (c >> 6);
            b[1] = 0x80 | (c & 0x3f);
            len = 2;

        } else if (c < 0x10000) {
            b[0] = 0xe0 | (c >> 12);
            b[1] = 0x80 | ((c >> 6) & 0x3f);
            b[2] = 0x80 | (c & 0x3f);
            len = 3;

        } else {
            b[0] = 0xf0 | (c >> 18);
            b[1] = 0x80 | ((c >> 12) & 0x3f);
            b[2] = 0x80 | ((c >> 6) & 0x3f);
            b[3] = 0x80 | (c & 0x3f);
            len = 4;
        }

        good = (c < 0xd800 || c > 0xdfff) && c != 0x110000;

        bad += (valid(b, len) != (int) good);
        bad += (vlm_utf8_char(b, b + len) != (good ? len : 0));

        for (cut = 1; cut < len; cut++) {
            bad += valid(b, cut);
            bad += (vlm_utf8_char(b, b + cut) != 0);

            memset(&u, 0, sizeof(vlm_utf8_t));

            bad += ((vlm_utf8_add(&u, b, cut) == 0
                     && vlm_utf8_add(&u, b + cut, len - cut) == 0
                     && vlm_utf8_end(&u) == 0) != (int) good);
        }
    }

    tap_is(bad, 0, "every code point, whole and cut");

    bad = 0;

    for (a = 0x80; a < 0x100; a++) {
        b[0] = a;
        bad += valid(b, 1);
    }

    for (a = 0; a < 0x10000; a++) {
        b[0] = a >> 8;
        b[1] = a;

        good = (b[0] < 0x80 && b[1] < 0x80)
               || (b[0] >= 0xc2 && b[0] <= 0xdf
                   && b[1] >= 0x80 && b[1] <= 0xbf);
        bad += (valid(b, 2) != (int) good);
    }

    tap_is(bad, 0, "every sequence of one or two bytes");

    tap_ok(!valid((const uint8_t *) "\xe0\x9f\xbf", 3), "overlong, 3 bytes");
    tap_ok(!valid((const uint8_t *) "\xf0\x8f\xbf\xbf", 4),
           "overlong, 4 bytes");
    tap_ok(!valid((const uint8_t *) "\xf5\x80\x80\x80", 4), "F5");
}


static int
valid(const uint8_t *p, size_t len)
{
    vlm_utf8_t  u;

    memset(&u, 0, sizeof(vlm_utf8_t));

    return vlm_utf8_add(&u, p, len) == 0 && vlm_utf8_end(&u) == 0;
}


static void
text_is(vlm_out_t *o, const char *expected, const char *name)
{
    tap_ok(!vlm_out_full(o), "%s fits", name);

    o->buf[o->len] = '\0';
    tap_str(o->buf, expected, "%s", name);

    o->len = 0;
}


static void
check_out(void)
{
    char       buf[256], *p;
    size_t     i;
    vlm_out_t  o;

    vlm_out_init(&o, buf, sizeof(buf) - 1);

    vlm_out_uint(&o, 0);
    vlm_out_str(&o, " ");
    vlm_out_uint(&o, UINT64_MAX);
    text_is(&o, "0 18446744073709551615", "numbers");

    vlm_out_json(&o, "a\"\\/\b\f\n\r\t\0\x1f\x7f", 12);
    text_is(&o, "a\\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\\u007f", "escapes");

    vlm_out_json(&o, "\xc3\xa4\xe2\x82\xac\xf0\x9f\x90\x88", 9);
    text_is(&o, "\xc3\xa4\xe2\x82\xac\xf0\x9f\x90\x88", "UTF-8 as it is");

    vlm_out_json(&o, "a\xffz\xc3\xed\xa0\x80\xe2\x82", 9);
    text_is(&o, "a\\ufffdz\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd",
            "invalid UTF-8 is replaced");

    /* bounded: nothing is written behind the end, all is counted */

    for (i = 0; i <= 12; i++) {
        p = malloc(i + 1);
        vlm_out_init(&o, p, i);
        vlm_out_json(&o, "ab\ncd\1", 6);

        if (o.len != 12 || vlm_out_full(&o) != (i < 12)
            || memcmp(p, "ab\\ncd\\u0001", i) != 0)
        {
            break;
        }

        free(p);
    }

    tap_is(i, 13, "every size of the buffer");

    vlm_out_init(&o, NULL, 0);
    vlm_out_str(&o, "abc");
    tap_is(o.len, 3, "measuring");
}


static void
check_answers(void)
{
    char          buf[4096];
    vlm_out_t     o;
    vlm_fail_t    fail;
    vlm_usage_t   usage;
    vlm_answer_t  a;

    a.id = "0123";
    a.id_len = 4;
    a.model = "m\"1";
    a.model_len = 3;
    a.created = 1700000000;
    a.usage = 1;

    usage.prompt_tokens = 4294967295u;
    usage.completion_tokens = 2;
    usage.cached_tokens = 3;
    usage.image_tokens = 4;

    vlm_out_init(&o, buf, sizeof(buf) - 1);

    vlm_sse_role(&o, &a, 0);
    text_is(&o, "data: {\"id\":\"chatcmpl-0123\","
            "\"object\":\"chat.completion.chunk\"," HEAD
            "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\","
            "\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}],"
            "\"usage\":null}\n\n", "role chunk");

    vlm_sse_text(&o, &a, 1, "a\nb", 3, NULL, 0);
    text_is(&o, "data: {\"id\":\"chatcmpl-0123\","
            "\"object\":\"chat.completion.chunk\"," HEAD
            "\"choices\":[{\"index\":1,\"delta\":{\"content\":\"a\\nb\"},"
            "\"logprobs\":null,\"finish_reason\":null}],"
            "\"usage\":null}\n\n", "text chunk");

    vlm_sse_finish(&o, &a, 0, VLM_FINISH_LENGTH);
    text_is(&o, "data: {\"id\":\"chatcmpl-0123\","
            "\"object\":\"chat.completion.chunk\"," HEAD
            "\"choices\":[{\"index\":0,\"delta\":{},"
            "\"logprobs\":null,\"finish_reason\":\"length\"}],"
            "\"usage\":null}\n\n", "finish chunk");

    vlm_sse_usage(&o, &a, &usage);
    text_is(&o, "data: {\"id\":\"chatcmpl-0123\","
            "\"object\":\"chat.completion.chunk\"," HEAD
            "\"choices\":[],\"usage\":{\"prompt_tokens\":4294967295,"
            "\"completion_tokens\":2,\"total_tokens\":4294967297,"
            "\"prompt_tokens_details\":{\"cached_tokens\":3,"
            "\"image_tokens\":4}}}\n\n", "usage chunk");

    a.usage = 0;
    vlm_sse_finish(&o, &a, 0, VLM_FINISH_STOP);
    text_is(&o, "data: {\"id\":\"chatcmpl-0123\","
            "\"object\":\"chat.completion.chunk\"," HEAD
            "\"choices\":[{\"index\":0,\"delta\":{},"
            "\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n",
            "finish chunk without usage");

    vlm_sse_ping(&o);
    vlm_sse_done(&o);
    text_is(&o, ": ping\n\ndata: [DONE]\n\n", "ping and done");

    vlm_json_begin(&o, &a);
    vlm_json_choice(&o, 0);
    vlm_out_json(&o, "x", 1);
    vlm_out_json(&o, "\"y", 2);
    vlm_json_finish(&o, VLM_FINISH_STOP, NULL, 0);
    vlm_json_choice(&o, 1);
    vlm_json_finish(&o, VLM_FINISH_LENGTH, NULL, 0);
    vlm_json_end(&o, &usage);
    text_is(&o, "{\"id\":\"chatcmpl-0123\",\"object\":\"chat.completion\","
            HEAD "\"choices\":[{\"index\":0,\"message\":"
            "{\"role\":\"assistant\",\"content\":\"x\\\"y\"},"
            "\"logprobs\":null,\"finish_reason\":\"stop\"},"
            "{\"index\":1,\"message\":{\"role\":\"assistant\","
            "\"content\":\"\"},\"logprobs\":null,"
            "\"finish_reason\":\"length\"}],"
            "\"usage\":{\"prompt_tokens\":4294967295,"
            "\"completion_tokens\":2,\"total_tokens\":4294967297,"
            "\"prompt_tokens_details\":{\"cached_tokens\":3,"
            "\"image_tokens\":4}}}\n", "chat.completion");

    vlm_fail(&fail, 400, "invalid_value", "top_p", "%s \"%u\"", "not", 7);
    vlm_json_error(&o, &fail);
    text_is(&o, "{\"error\":{\"message\":\"not \\\"7\\\"\","
            "\"type\":\"invalid_request_error\",\"param\":\"top_p\","
            "\"code\":\"invalid_value\"}}\n", "error object");

    vlm_fail(&fail, 503, NULL, NULL, "busy");
    vlm_sse_error(&o, &fail);
    text_is(&o, "data: {\"error\":{\"message\":\"busy\","
            "\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\n",
            "error event");
}


static void
check_logprobs(void)
{
    char            buf[4096];
    size_t          used;
    uint8_t         data[256];
    vlm_out_t       o;
    vlm_answer_t    a;
    vlm_logprobs_t  e;

    memset(&a, 0, sizeof(vlm_answer_t));
    memset(&e, 0, sizeof(vlm_logprobs_t));

    e.token.bytes = "\xe2\x82";
    e.token.length = 2;
    e.token.logprob = -1.25f;
    e.ntop = 2;
    e.top[0].bytes = "\"a";
    e.top[0].length = 2;
    e.top[0].logprob = 0;
    e.top[1].bytes = "";
    e.top[1].length = 0;
    e.top[1].logprob = VLM_MIN_LOGPROB;
    used = vlm_logprobs_append(data, sizeof(data), 0, &e);

    e.token.logprob = -1e-7f;
    e.ntop = 0;
    used = vlm_logprobs_append(data, sizeof(data), used, &e);

    e.token.logprob = -1e-20f;
    used = vlm_logprobs_append(data, sizeof(data), used, &e);

    vlm_out_init(&o, buf, sizeof(buf) - 1);

#define CONTENT                                                               \
    "{\"content\":[{\"token\":\"\\ufffd\\ufffd\",\"logprob\":-1.25,"            \
    "\"bytes\":[226,130],\"top_logprobs\":["                                  \
    "{\"token\":\"\\\"a\",\"logprob\":0,\"bytes\":[34,97]},"                   \
    "{\"token\":\"\",\"logprob\":-9999,\"bytes\":[]}]},"                      \
    "{\"token\":\"\\ufffd\\ufffd\",\"logprob\":-0.0000001,"                     \
    "\"bytes\":[226,130],\"top_logprobs\":[]},"                               \
    "{\"token\":\"\\ufffd\\ufffd\",\"logprob\":0,"                              \
    "\"bytes\":[226,130],\"top_logprobs\":[]}],\"refusal\":null}"

    vlm_sse_text(&o, &a, 3, "", 0, data, used);
    text_is(&o, "data: {\"id\":\"chatcmpl-\","
            "\"object\":\"chat.completion.chunk\",\"created\":0,"
            "\"model\":\"\",\"choices\":[{\"index\":3,"
            "\"delta\":{\"content\":\"\"},\"logprobs\":" CONTENT ","
            "\"finish_reason\":null}]}\n\n", "a chunk with log probabilities");

    vlm_json_finish(&o, VLM_FINISH_LENGTH, data, used);
    text_is(&o, "\"},\"logprobs\":" CONTENT ",\"finish_reason\":\"length\"}",
            "and a choice");
}


static void
check_fail(void)
{
    size_t      i;
    vlm_fail_t  fail;

    static char        text[2000];
    static const char  cats[] = "\xf0\x9f\x90\x88\xf0\x9f\x90\x88";

    static const size_t  expected[] = { 0, 0, 0, 0, 4, 4, 4, 4, 8 };

    for (i = 0; i <= 8; i++) {
        tap_is(vlm_fail_cut(cats, 8, i), expected[i], "cut at %zu", i);
    }

    tap_is(vlm_fail_cut("\x80\x80\x80\x80\x80", 5, 4), 4, "cut in nonsense");
    tap_is(vlm_fail_cut("\xc3\xa4\xc3", 3, 9), 2, "cut what came cut");

    for (i = 0; i + 2 < sizeof(text); i += 2) {
        memcpy(text + i, "\xc3\xa4", 2);
    }

    vlm_fail(&fail, 400, text, text, "x%s", text);
    tap_is(strlen(fail.code), 30, "a long code is cut");
    tap_is(strlen(fail.param), 46, "a long param is cut");
    tap_is(strlen(fail.message), 1023, "a long message is cut");

    vlm_fail(&fail, 400, NULL, NULL, "%s", text);
    tap_is(strlen(fail.message), 1022, "between characters");
}


static void
check_accept(void)
{
    size_t        i;
    vlm_accept_t  a;

#define NONE   VLM_STREAM_UNSET
#define TRUE   VLM_STREAM_TRUE
#define FALSE  VLM_STREAM_FALSE

    static const struct {
        const char  *accept;
        unsigned     stream;
        int          answer;
    } cases[] = {
        { "", NONE, VLM_ANSWER_SSE },
        { "", TRUE, VLM_ANSWER_SSE },
        { "", FALSE, VLM_ANSWER_JSON },
        { "*/*", NONE, VLM_ANSWER_SSE },
        { "*/*", FALSE, VLM_ANSWER_JSON },
        { "text/*", NONE, VLM_ANSWER_SSE },
        { "text/plain", NONE, VLM_ANSWER_TEXT },
        { "text/plain", TRUE, VLM_ANSWER_TEXT },
        { "text/plain", FALSE, VLM_ANSWER_TEXT },
        { " TEXT/Plain ; charset=utf-8", NONE, VLM_ANSWER_TEXT },
        { "application/json", NONE, VLM_ANSWER_JSON },
        { "application/json", TRUE, VLM_ANSWER_SSE },
        { "application/json", FALSE, VLM_ANSWER_JSON },
        { "text/event-stream", NONE, VLM_ANSWER_SSE },
        { "text/event-stream", FALSE, VLM_ANSWER_JSON },
        { "application/json, text/plain, */*", NONE, VLM_ANSWER_JSON },
        { "text/plain, application/json", NONE, VLM_ANSWER_TEXT },
        { "text/event-stream, application/json", NONE, VLM_ANSWER_SSE },
        { "application/json, text/event-stream", NONE, VLM_ANSWER_JSON },
        { "text/plain;q=0.5, application/json;q=0.6", NONE,
          VLM_ANSWER_JSON },
        { "text/plain;q=0.51,application/json;q=0.509", NONE,
          VLM_ANSWER_TEXT },
        { "text/plain;q=0, application/json;q=0.001", NONE,
          VLM_ANSWER_JSON },
        { "text/plain;q=0", NONE, VLM_ANSWER_SSE },
        { "text/plain;q=x", NONE, VLM_ANSWER_SSE },
        { "text/plain;q=1.000", NONE, VLM_ANSWER_TEXT },
        { "text/plain;a=\"x;q=0,\";Q=0.3,application/json;q=0.2", NONE,
          VLM_ANSWER_TEXT },
        { "text/html,application/xhtml+xml,*/*;q=0.8", NONE,
          VLM_ANSWER_SSE },
        { "text/plainx, application/jsonp", NONE, VLM_ANSWER_SSE },
        { ",,text/plain,", NONE, VLM_ANSWER_TEXT },
        { "a=\"", NONE, VLM_ANSWER_SSE }
    };

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        memset(&a, 0, sizeof(vlm_accept_t));
        vlm_accept_add(&a, cases[i].accept, strlen(cases[i].accept));

        tap_is(vlm_accept_answer(&a, cases[i].stream), cases[i].answer,
               "Accept: %s, stream %u", cases[i].accept, cases[i].stream);
    }

    memset(&a, 0, sizeof(vlm_accept_t));
    tap_is(vlm_accept_answer(&a, NONE), VLM_ANSWER_SSE, "no Accept");

    vlm_accept_add(&a, "application/json;q=0.5", 22);
    vlm_accept_add(&a, "text/plain;q=0.7", 16);
    tap_is(vlm_accept_answer(&a, NONE), VLM_ANSWER_TEXT, "two headers");
}
