
/*
 * What events tell besides text: log probabilities, which are the
 * reference's, and the times of stages, which fit together.
 */

#include <math.h>

#include "engine/base/vlm_json.h"
#include "engine/channel/vlm_logprob.h"
#include "t/unit/runtime_client.h"


#define TOLERANCE   1e-3
#define NTOP        5
#define MAX_LISTED  4096


typedef struct {
    vlm_logprobs_t      entries[MAX_LISTED];
    int                 n;
    vlm_buf_t           text;           /* of all tokens */
} listed_t;

static listed_t  listed;


/* entries that were heard, and the bytes of their tokens one after another */

static int
read_listed(const heard_t *h)
{
    size_t  pos, n;

    vlm_buf_free(&listed.text);
    listed.n = 0;

    for (pos = 0; pos < h->logprobs.len; pos += n) {

        if (listed.n == MAX_LISTED) {
            return -1;
        }

        n = vlm_logprobs_read(h->logprobs.data + pos, h->logprobs.len - pos,
                              &listed.entries[listed.n]);
        if (n == 0) {
            return -1;
        }

        vlm_buf_append(&listed.text, listed.entries[listed.n].token.bytes,
                       listed.entries[listed.n].token.length);
        listed.n++;
    }

    return listed.n;
}


/* ---- log probabilities ---- */

static vlm_json_doc_t *
golden(const char *name)
{
    char             *data;
    size_t            len;
    vlm_error_t       err;
    vlm_json_doc_t   *doc;

    if (vlm_read_file(tap_path("t/data/golden/qwen2_vl/base/cases/%s.json",
                               name),
                      1 << 24, &data, &len, &err)
        != VLM_OK)
    {
        die(name, err.message);
    }

    doc = vlm_json_parse(data, len, name, &err);
    free(data);

    if (doc == NULL) {
        die(name, err.message);
    }

    return doc;
}


static int
token_is(const vlm_tokenizer_t *tok, const vlm_json_t *id,
    const vlm_logprob_t *got)
{
    int          special;
    size_t       len;
    int64_t      n;
    const char  *bytes;

    len = 0;

    if (vlm_json_int(id, &n) != VLM_OK) {
        return 0;
    }

    bytes = vlm_tokenizer_bytes(tok, (int32_t) n, &len, &special);

    return got->length == len && memcmp(got->bytes, bytes, len) == 0;
}


static void
check_reference(const vlm_tokenizer_t *tok, const char *name,
    const heard_t *h)
{
    int                    i, k, wrong, values;
    double                 value, worst;
    vlm_json_doc_t        *doc;
    const vlm_json_t      *w, *top, *ids, *logprobs;
    const vlm_logprobs_t  *e;

    doc = golden(name);
    w = vlm_json_get(vlm_json_root(doc), "w_bf16");

    tap_is(read_listed(h), 24, "%s: an entry for each token", name);
    tap_is(h->ntokens, 24, "%s: tokens of the events", name);

    wrong = 0;
    values = 0;
    worst = 0;

    for (i = 0; i < listed.n; i++) {
        e = &listed.entries[i];
        top = vlm_json_at(vlm_json_get(w, "top5"), (size_t) i);
        ids = vlm_json_get(top, "ids");
        logprobs = vlm_json_get(top, "logprobs");

        wrong += !token_is(tok, vlm_json_at(vlm_json_get(w, "ids"),
                                            (size_t) i), &e->token);
        wrong += e->ntop != NTOP
                 || e->token.logprob != e->top[0].logprob;

        for (k = 0; k < NTOP && k < (int) e->ntop; k++) {
            vlm_json_double(vlm_json_at(logprobs, (size_t) k), &value);
            value = fabs(value - (double) e->top[k].logprob);
            worst = value > worst ? value : worst;
            values++;

            wrong += !token_is(tok, vlm_json_at(ids, (size_t) k),
                               &e->top[k]);
        }
    }

    tap_is(wrong, 0, "%s: the reference's tokens", name);
    tap_is(values, 24 * NTOP, "%s: all values", name);
    tap_ok(worst < TOLERANCE, "%s: log probabilities differ by %g", name,
           worst);

    vlm_json_free(doc);
}


static vlm_tokenizer_t *
tokenizer(void)
{
    vlm_error_t       err;
    vlm_tokenizer_t  *tok;

    tok = vlm_tokenizer_load(tap_path("t/data/golden/qwen2_vl/base/model"),
                             &err);
    if (tok == NULL) {
        die("tokenizer", err.message);
    }

    return tok;
}


static void
test_reference(void)
{
    heard_t           *h;
    client_t          *c;
    served_t           s;
    question_t         q;
    vlm_tokenizer_t   *tok;

    c = malloc(sizeof(client_t));
    tok = tokenizer();

    served_init(&s);
    free((char *) s.conf.engine.model);
    s.conf.engine.model = strdup(tap_path("t/data/golden/qwen2_vl/base/"
                                          "model"));
    s.conf.engine.embedding_dtype = VLM_F32;
    served_start(&s);
    client_open(c, &s, 1 << 20);
    client_wait_ready(c);

    memset(&q, 0, sizeof(q));
    q.prompt = "Describe this picture.";
    q.pictures[0] = tap_path("t/data/images/a_square_224.png");
    q.flags = VLM_FLAG_IGNORE_EOS;
    q.sampling.set = VLM_SET_MAX_TOKENS | VLM_SET_TEMPERATURE;
    q.sampling.max_tokens = 24;
    q.sampling.logprobs = 1;
    q.sampling.top_logprobs = NTOP;

    client_ask(c, 0, &q);
    h = client_end(c, 0);
    tap_is(h->last, 'D', "answered: %s", h->message);
    check_reference(tok, "one_image", h);

    /* none for others */

    q.sampling.logprobs = 0;
    q.sampling.top_logprobs = 0;
    client_ask(c, 0, &q);
    h = client_end(c, 0);
    tap_is((long long) h->logprobs.len, 0, "only where they are asked for");

    client_close(c);
    served_stop(&s);
    vlm_tokenizer_free(tok);
    free(c);
}


static question_t
question(uint32_t tokens)
{
    static char  picture[256];
    question_t   q;

    snprintf(picture, sizeof(picture), "%s",
             tap_path("t/data/heldout/images/0000.png"));

    memset(&q, 0, sizeof(q));
    q.prompt = "Where is the cross?";
    q.pictures[0] = picture;
    q.sampling.logprobs = 1;

    if (tokens != 0) {
        q.flags = VLM_FLAG_IGNORE_EOS;
        q.sampling.set = VLM_SET_MAX_TOKENS | VLM_SET_SEED
                         | VLM_SET_TEMPERATURE;
        q.sampling.max_tokens = tokens;
        q.sampling.seed = 7;
        q.sampling.temperature = 1.5f;
    }

    return q;
}


/* which tokens are listed, and how the text is put together of them */

static void
test_listed(client_t *c)
{
    heard_t     *h;
    question_t   q;

    q = question(0);
    client_ask(c, 0, &q);
    h = client_end(c, 0);

    tap_is(read_listed(h), 7, "all tokens but the end");
    tap_is(h->done.completion_tokens, 8, "which is counted");
    tap_is(listed.entries[0].ntop, 0, "no alternatives unless asked for");
    vlm_buf_append(&listed.text, "", 1);
    tap_str(listed.text.data, h->text.data, "their bytes are the text");

    q.stop = "top right";
    client_ask(c, 0, &q);
    h = client_end(c, 0);
    tap_str(h->text.data, "It is at the ", "a stop string is cut");
    tap_is(read_listed(h), 5, "its tokens too, but for what was shown");

    q.stop = "is";
    client_ask(c, 0, &q);
    h = client_end(c, 0);
    tap_str(h->text.data, "It ", "a stop string within a token");
    tap_is(read_listed(h), 2, "of which a part was shown");

    q = question(0);
    q.sampling.top_logprobs = 3;
    q.sampling.logprobs = 0;
    client_ask(c, 0, &q);
    h = client_end(c, 0);
    tap_is(h->error.status, 400, "alternatives of nothing");
    tap_str(h->error.param, "top_logprobs", "param");
}


/*
 * Whoever does not read gets everything later, in fewer events: as much as
 * an event holds.
 */

static void
test_merged(client_t *c, const served_t *s)
{
    int            i, seen;
    uint32_t       used;
    client_t      *slow;
    heard_t       *h;
    vlm_buf_t      text, logprobs;
    question_t     q;
    vlm_gauges_t   g;

    q = question(300);
    q.sampling.top_logprobs = 20;

    client_ask(c, 0, &q);
    h = client_end(c, 0);
    tap_is(h->last, 'D', "read at once: %s", h->message);
    tap_is(read_listed(h), 300, "all tokens");

    text = h->text;
    logprobs = h->logprobs;
    memset(&h->text, 0, sizeof(vlm_buf_t));
    memset(&h->logprobs, 0, sizeof(vlm_buf_t));

    slow = malloc(sizeof(client_t));
    client_open(slow, s, VLM_MIN_EVENT_RING);
    client_ask(slow, 0, &q);

    /* until it has been computed, though nobody has read a byte */

    q = question(0);
    seen = 0;

    for (i = 0; i < 300; i++) {
        client_ask(c, 1, &q);
        client_end(c, 1);
        vlm_worker_gauges(&c->w, &g);

        /* 3 of the short one, 3 to 22 of the long one */

        used = g.kv_blocks - g.kv_blocks_free;
        seen |= (used > 4);

        if (seen && used <= 4) {
            break;
        }

        usleep(1000);
    }

    h = client_end(slow, 0);
    tap_is(h->last, 'D', "read late");
    tap_is(read_listed(h), 300, "all tokens");
    tap_ok(h->text.len == text.len
           && memcmp(h->text.data, text.data, text.len) == 0,
           "the same text");
    tap_ok(h->logprobs.len == logprobs.len
           && memcmp(h->logprobs.data, logprobs.data, logprobs.len) == 0,
           "the same log probabilities (%zu bytes)", logprobs.len);

    vlm_buf_free(&text);
    vlm_buf_free(&logprobs);
    client_close(slow);
    free(slow);
}


/* ---- times ---- */

static void
check_times(const heard_t *h, const char *name)
{
    const vlm_event_done_t  *d;

    d = &h->done;

    tap_is(h->last, 'D', "%s: answered %s", name, h->message);
    tap_is((long long) d->queue_us + d->decode_us + d->encode_us
           + d->cache_us + d->prefill_us, d->first_token_us,
           "%s: stages sum up to the first token", name);
    tap_ok(d->first_token_us <= d->total_us,
           "%s: which is not after the last", name);
    tap_ok(d->prefill_us > 0, "%s: a prompt takes time", name);
}


static void
test_times(client_t *c)
{
    int          i;
    heard_t     *h;
    uint64_t     now;
    question_t   q;

    q = question(0);
    q.pictures[1] = tap_path("t/data/heldout/images/0002.png");
    now = vlm_now_us() / 1000;
    q.received_ms = now - 50;

    client_ask(c, 2, &q);
    h = client_end(c, 2);
    check_times(h, "pictures");
    tap_ok(h->done.decode_us > 0 && h->done.encode_us > 0,
           "pictures are decoded and encoded");
    tap_ok(h->done.receive_us >= 49000
           && h->done.receive_us
              <= vlm_now_us() - q.received_ms * 1000 - h->done.total_us,
           "receiving ends where the rest begins");

    q = question(0);
    q.pictures[0] = NULL;
    client_ask(c, 2, &q);
    h = client_end(c, 2);
    check_times(h, "text");
    tap_ok(h->done.decode_us == 0 && h->done.encode_us == 0
           && h->done.cache_us == 0 && h->done.receive_us == 0,
           "text has no stages of pictures");

    /* many at once: seats for eight, new pictures and the same ones */

    q = question(20);

    for (i = 0; i < 16; i++) {
        q.pictures[0] = tap_path("t/data/heldout/images/%04d.png",
                                 3 + i / 2 % 4);
        client_ask(c, (uint32_t) i, &q);
    }

    for (i = 0; i < 16; i++) {
        check_times(client_end(c, (uint32_t) i), "one of many");
    }
}


int
main(void)
{
    served_t   s;
    client_t  *c;

    vlm_log_level(getenv("VLM_TEST_LOG") != NULL ? "debug" : "error");

    test_reference();

    c = malloc(sizeof(client_t));

    served_init(&s);
    served_start(&s);
    client_open(c, &s, 1 << 20);
    client_wait_ready(c);

    test_listed(c);
    test_merged(c, &s);
    test_times(c);

    client_close(c);
    served_stop(&s);
    vlm_buf_free(&listed.text);
    free(c);

    return tap_done();
}
