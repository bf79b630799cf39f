
/* Log probabilities behind the text of an event. */

#include <math.h>

#include "engine/channel/vlm_logprob.h"
#include "t/unit/channel_pair.h"


static void test_round_trip(void);
static void test_bounds(void);
static void test_numbers(void);
static void test_malformed(void);
static void test_channel(void);
static void entry_of(vlm_logprobs_t *e, const char *token, float logprob,
    uint32_t ntop);
static size_t raw(uint8_t *p, float logprob, uint16_t length, uint16_t ntop);


int
main(void)
{
    test_round_trip();
    test_bounds();
    test_numbers();
    test_malformed();
    test_channel();

    return tap_done();
}


static void
test_round_trip(void)
{
    size_t          used, n;
    uint8_t         buf[256];
    vlm_logprobs_t  e, got;

    used = 0;

    entry_of(&e, "\xe2\x82", -0.5f, 2);
    e.top[0].bytes = "\xe2\x82";
    e.top[0].length = 2;
    e.top[0].logprob = -0.5f;
    e.top[1].bytes = NULL;
    e.top[1].length = 0;
    e.top[1].logprob = -1.25f;
    used = vlm_logprobs_append(buf, sizeof(buf), used, &e);
    tap_is(used, 3 * 8 + 4, "one token and two alternatives");

    entry_of(&e, " cat", 0, 0);
    used = vlm_logprobs_append(buf, sizeof(buf), used, &e);
    tap_is(used, 3 * 8 + 4 + 12, "a second token");

    tap_is(vlm_logprobs_count(buf, used), 2, "two entries");
    tap_is(vlm_logprobs_count(buf, 0), 0, "none");

    n = vlm_logprobs_read(buf, used, &got);
    tap_is(n, 28, "the first one's size");
    tap_ok(got.token.length == 2 && memcmp(got.token.bytes, "\xe2\x82", 2) == 0
           && got.token.logprob == -0.5f, "its token");
    tap_is(got.ntop, 2, "its alternatives");
    tap_ok(got.top[0].length == 2 && got.top[0].logprob == -0.5f
           && got.top[1].length == 0 && got.top[1].logprob == -1.25f,
           "in their order");

    n = vlm_logprobs_read(buf + n, used - n, &got);
    tap_is(n, 12, "the second one's size");
    tap_ok(got.token.length == 4 && memcmp(got.token.bytes, " cat", 4) == 0
           && got.token.logprob == 0 && got.ntop == 0, "its token");
}


static void
test_bounds(void)
{
    char            bytes[VLM_MAX_TOKEN_BYTES + 1];
    size_t          used, i, size;
    uint8_t         buf[VLM_MAX_EVENT_LOGPROBS];
    vlm_logprobs_t  e, got;

    memset(bytes, 'b', sizeof(bytes));

    entry_of(&e, "", -1, VLM_MAX_TOP_LOGPROBS);
    e.token.bytes = bytes;
    e.token.length = sizeof(bytes);

    for (i = 0; i < VLM_MAX_TOP_LOGPROBS; i++) {
        e.top[i].bytes = bytes;
        e.top[i].length = UINT32_MAX;
        e.top[i].logprob = -1;
    }

    size = (VLM_MAX_TOP_LOGPROBS + 1) * (8 + VLM_MAX_TOKEN_BYTES);

    used = vlm_logprobs_append(buf, sizeof(buf), 0, &e);
    tap_is(used, (long long) size, "the largest entry fits");
    tap_is(vlm_logprobs_read(buf, used, &got), (long long) size, "is read");
    tap_is(got.token.length, VLM_MAX_TOKEN_BYTES, "a long token is cut");
    tap_is(got.top[19].length, VLM_MAX_TOKEN_BYTES, "an alternative too");

    tap_is(vlm_logprobs_append(buf, sizeof(buf), used, &e),
           (long long) used, "no room for a second one");
    tap_is(vlm_logprobs_append(buf, size - 1, 0, &e), 0, "a byte is missing");
    tap_is(vlm_logprobs_append(buf, size, 0, &e), (long long) size,
           "none is missing");
    tap_is(vlm_logprobs_append(buf, 8, 9, &e), 9, "used beyond the size");

    e.ntop = VLM_MAX_TOP_LOGPROBS + 1;
    tap_is(vlm_logprobs_append(buf, sizeof(buf), 0, &e), (long long) size,
           "too many alternatives are left out");
    tap_is(vlm_logprobs_count(buf, size), 1, "and it is valid");
}


static void
test_numbers(void)
{
    size_t          i, used;
    uint8_t         buf[64];
    vlm_logprobs_t  e, got;

    const struct {
        float  from;
        float  to;
    } cases[] = {
        { -0.25f, -0.25f },
        { 0, 0 },
        { 1e-7f, 0 },
        { INFINITY, 0 },
        { -INFINITY, VLM_MIN_LOGPROB },
        { NAN, VLM_MIN_LOGPROB },
        { VLM_MIN_LOGPROB, VLM_MIN_LOGPROB },
        { -1e5f, VLM_MIN_LOGPROB }
    };

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        entry_of(&e, "x", cases[i].from, 0);
        used = vlm_logprobs_append(buf, sizeof(buf), 0, &e);
        tap_ok(vlm_logprobs_read(buf, used, &got) == 9
               && got.token.logprob == cases[i].to, "%g is told as %g",
               (double) cases[i].from, (double) got.token.logprob);
    }
}


static void
test_malformed(void)
{
    size_t   n;
    uint8_t  buf[1024];

    memset(buf, 0, sizeof(buf));

    n = raw(buf, -1, 3, 0);
    tap_is(vlm_logprobs_count(buf, n), 1, "a good entry");
    tap_is(vlm_logprobs_count(buf, n - 1), -1, "without its last byte");
    tap_is(vlm_logprobs_count(buf, 7), -1, "without a whole header");
    tap_is(vlm_logprobs_count(buf, n + 1), -1, "a byte behind it");

    n = raw(buf, -1, VLM_MAX_TOKEN_BYTES + 1, 0);
    tap_is(vlm_logprobs_count(buf, n), -1, "a token too long");

    n = raw(buf, -1, 65535, 0);
    tap_is(vlm_logprobs_count(buf, 1024), -1, "a token beyond the end");

    n = raw(buf, 0.5f, 0, 0);
    tap_is(vlm_logprobs_count(buf, n), -1, "a positive one");
    n = raw(buf, NAN, 0, 0);
    tap_is(vlm_logprobs_count(buf, n), -1, "not a number");
    n = raw(buf, -INFINITY, 0, 0);
    tap_is(vlm_logprobs_count(buf, n), -1, "infinite");

    n = raw(buf, -1, 0, 1);
    tap_is(vlm_logprobs_count(buf, n), -1, "no alternative where one is told");
    n += raw(buf + n, -1, 0, 0);
    tap_is(vlm_logprobs_count(buf, n), 1, "with it");

    n = raw(buf, -1, 0, 1);
    n += raw(buf + n, -1, 0, 1);
    n += raw(buf + n, -1, 0, 0);
    tap_is(vlm_logprobs_count(buf, n), -1, "an alternative with alternatives");

    memset(buf, 0, sizeof(buf));
    (void) raw(buf, -1, 0, VLM_MAX_TOP_LOGPROBS + 1);
    tap_is(vlm_logprobs_count(buf, 8 * (VLM_MAX_TOP_LOGPROBS + 2)), -1,
           "too many alternatives");
}


static void
test_channel(void)
{
    pair_t          pair;
    uint8_t         buf[VLM_MAX_EVENT_LOGPROBS + 1];
    vlm_event_t     e, got;
    vlm_logprobs_t  entry;

    static char     text[VLM_MAX_EVENT_TEXT];

    pair_init(&pair);
    pair_connect(&pair);

    memset(&e, 0, sizeof(vlm_event_t));
    memset(text, 't', sizeof(text));

    entry_of(&entry, "ab", -0.5f, 0);

    e.type = VLM_EVENT_TEXT;
    e.slot = 5;
    e.generation = 1;
    e.text = text;
    e.logprobs = (char *) buf;

    /* as much as an event can hold: 8 bytes and 2 for each entry */

    e.u.text.length = VLM_MAX_EVENT_TEXT;
    e.u.text.nlogprobs = 0;

    for (e.u.text.ntokens = 0; e.u.text.ntokens < 819; e.u.text.ntokens++) {
        e.u.text.nlogprobs = (uint32_t)
                             vlm_logprobs_append(buf, VLM_MAX_EVENT_LOGPROBS,
                                                 e.u.text.nlogprobs, &entry);
    }

    tap_is(e.u.text.nlogprobs, 8190, "819 tokens are all that fit");
    tap_is(vlm_peer_send(&pair.p, &e), VLM_CHANNEL_OK, "send");
    tap_is(vlm_worker_next(&pair.w, &got), VLM_CHANNEL_OK, "next");
    tap_ok(got.u.text.nlogprobs == 8190
           && got.logprobs == got.text + VLM_MAX_EVENT_TEXT
           && memcmp(got.logprobs, buf, 8190) == 0
           && memcmp(got.text, text, VLM_MAX_EVENT_TEXT) == 0, "as sent");

    e.u.text.nlogprobs = VLM_MAX_EVENT_LOGPROBS + 1;
    tap_is(vlm_peer_send(&pair.p, &e), VLM_CHANNEL_ERROR, "one byte more");

    e.u.text.nlogprobs = 8190;
    e.u.text.ntokens = 818;
    tap_is(vlm_peer_send(&pair.p, &e), VLM_CHANNEL_OK, "send a wrong number");
    tap_is(vlm_worker_next(&pair.w, &got), VLM_CHANNEL_ERROR,
           "the worker counts");
    tap_str(pair.w.why, "event of 818 tokens with malformed log "
            "probabilities of 8190 bytes", "why");

    pair_disconnect(&pair);
    pair_destroy(&pair);
}


static void
entry_of(vlm_logprobs_t *e, const char *token, float logprob, uint32_t ntop)
{
    memset(e, 0, sizeof(vlm_logprobs_t));

    e->token.bytes = token;
    e->token.length = (uint32_t) strlen(token);
    e->token.logprob = logprob;
    e->ntop = ntop;
}


static size_t
raw(uint8_t *p, float logprob, uint16_t length, uint16_t ntop)
{
    vlm_event_logprob_t  h;

    h.logprob = logprob;
    h.length = length;
    h.ntop = ntop;

    memcpy(p, &h, sizeof(h));

    return sizeof(h) + length;
}
