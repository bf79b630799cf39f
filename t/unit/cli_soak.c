
/*
 * Requests that share beginnings, blocks and steps with others: whatever
 * happens to them, each gives the same bits as alone, and every block is free
 * in the end.
 */

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/runtime/internal.h"
#include "t/unit/lib/ask.h"
#include "t/unit/lib/tap.h"


/* a sanitizer makes the arithmetic ten times slower */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FEW         1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FEW         1
#endif
#endif

#ifndef FEW
#define FEW         0
#endif

#define NKINDS      24
#define MAX_LIVE    40


/* a kind of request, and what it gives alone */

typedef struct {
    char            images[3][256];
    vlm_options_t   o;
    int32_t         ids[256];
    size_t          n;
    uint32_t        completion;
    uint8_t         digest[32];
} kind_t;

typedef struct {
    asked_t         a;
    int             used;
    int             kind;
    int             cancelled;
} live_t;

static kind_t   kinds[NKINDS];
static live_t   live[MAX_LIVE];

static const char *const  prompts[] = {
    "What do you see?",
    "What do you see? Say it in one word.",
    "Describe the image. Be exact, please: what is where, and of which "
        "colour is it? And then the same once more.",
    "Describe the image. Be exact, please: what is where, and of which "
        "colour is it? And then something else.",
    "Describe the image. Be exact, please: what is where, and of which "
        "colour is it? And then the same once more. Describe the image. Be "
        "exact, please: what is where, and of which colour is it? And then "
        "the same once more, and again, and again, until the end."
};


static void
kind_init(int i)
{
    int             k;
    kind_t         *kind;
    vlm_options_t  *o;

    kind = &kinds[i];
    o = &kind->o;

    o->prompt = prompts[i % 5];
    o->ignore_eos = (i % 3 != 0);
    o->nimages = i % 4 == 3 ? 2 : i % 4 == 0 ? 0 : 1;

    for (k = 0; k < o->nimages; k++) {
        snprintf(kind->images[k], sizeof(kind->images[k]), "%s",
                 tap_path("t/data/heldout/images/%04d.png",
                          (i / 2 + k) % 3));
        o->images[k] = kind->images[k];
    }

    o->sampling.nchoices = i % 6 == 5 ? 3 : 1;
    o->sampling.set = VLM_SET_MAX_TOKENS | VLM_SET_SEED;
    o->sampling.max_tokens = (uint32_t) (1 + i * 11 % 60);
    o->sampling.seed = (uint64_t) i;

    if (o->nimages == 0) {
        /* short prompts that grow over each other */
        o->sampling.max_tokens += 100;
        o->ignore_eos = 1;
    }

    if (i % 2 == 1) {
        o->sampling.set |= VLM_SET_TEMPERATURE | VLM_SET_REPETITION;
        o->sampling.temperature = 1.5f;
        o->sampling.repetition = 1.1f;
    }
}


static void
kinds_alone(void)
{
    int                 i, failed;
    kind_t             *k;
    asked_t             a;
    vlm_engine_t       *e;
    vlm_engine_conf_t   conf;

    ask_conf(&conf, tap_path("models/demo"));
    conf.digest = 1;
    e = ask_start(&conf);
    failed = 0;

    for (i = 0; i < NKINDS; i++) {
        kind_init(i);
        k = &kinds[i];

        memset(&a, 0, sizeof(a));
        a.o = k->o;
        ask(e, &a, (uint64_t) i + 1);
        ask_collect(e, 1);

        failed += (a.result != VLM_OK || a.req->answer.len > 256
                   || a.req->done.cached_tokens != 0);

        k->n = a.req->answer.len;
        k->completion = a.req->done.completion_tokens;
        memcpy(k->ids, a.req->answer.data, k->n * sizeof(int32_t));
        memcpy(k->digest, a.req->digest, sizeof(k->digest));

        ask_forget(&a);
    }

    vlm_engine_destroy(e);

    tap_is(failed, 0, "all kinds of requests alone, nothing cached");
}


static int
same(const kind_t *k, const asked_t *a)
{
    return a->result == VLM_OK && a->req->answer.len == k->n
           && a->req->done.completion_tokens == k->completion
           && memcmp(k->ids, a->req->answer.data, k->n * sizeof(int32_t))
              == 0
           && memcmp(k->digest, a->req->digest, sizeof(k->digest)) == 0;
}


/* no request is in the engine: its blocks can be looked at */

static void
check_blocks(vlm_engine_t *e, const char *name)
{
    const vlm_blocks_t  *b;

    b = &e->sched.blocks;

    tap_ok(b->nfree + b->nidle == b->total,
           "%s: %d blocks are free, %d idle, of %d", name, b->nfree,
           b->nidle, b->total);
    tap_ok(e->sched.nrunning == 0 && e->sched.waiting.n == 0
           && e->sched.npreempted == 0, "%s: nobody is left", name);
}


/* ---- random requests ---- */

typedef struct {
    const char     *name;
    int             rows;
    int             threads;
    int             seqs;
    int             blocks;         /* 0: plenty */
    int             prefix_cache;
    int             live;           /* requests at a time */
} soak_t;

static const soak_t  soaks[] = {
    { "plenty", 256, 2, 16, 0, 1, 24 },
    { "tiny KV cache", 32, 2, 16, 20, 1, 24 },
    { "tiny KV cache, nothing shared", 48, 1, 16, 24, 0, 24 },
    { NULL, 0, 0, 0, 0, 0, 0 }
};

typedef struct {
    vlm_engine_t   *e;
    uint64_t        random;
    int             left;
    int             running;
    int             wrong;
    int             cancelled;
    uint64_t        order;
    uint64_t        cached;
} world_t;


static int
pick(world_t *w, int n)
{
    return (int) (tap_random(&w->random) % (uint64_t) n);
}


static void
soak_send(world_t *w, int most)
{
    int      i;
    live_t  *l;

    for (i = 0; i < most && w->left > 0; i++) {
        l = &live[i];

        if (l->used) {
            continue;
        }

        memset(l, 0, sizeof(*l));
        l->used = 1;
        l->kind = pick(w, NKINDS);
        l->a.o = kinds[l->kind].o;

        ask(w->e, &l->a, ++w->order);

        w->left--;
        w->running++;

        /* not all at once */

        if (pick(w, 4) == 0) {
            return;
        }
    }
}


static void
soak_final(world_t *w, live_t *l)
{
    if (l->a.result == VLM_OK) {

        if (!same(&kinds[l->kind], &l->a)) {
            w->wrong++;
            tap_diag("kind %d gives something else", l->kind);
        }

        w->cached += l->a.req->done.cached_tokens;

    } else if (l->cancelled && l->a.error.status == 499) {
        w->cancelled++;

    } else {
        w->wrong++;
        tap_diag("kind %d: %s", l->kind, l->a.error.message);
    }

    ask_forget(&l->a);
    l->used = 0;
    w->running--;
}


static void
soak_mail(world_t *w, int most)
{
    int             i;
    live_t         *l;
    vlm_req_t      *req;
    vlm_mail_t      mail;
    struct pollfd   pfd;

    req = vlm_engine_next(w->e, &mail);

    if (req == NULL) {
        pfd.fd = vlm_engine_fd(w->e);
        pfd.events = POLLIN;
        poll(&pfd, 1, -1);
        return;
    }

    l = req->owner;

    if (mail.flags & VLM_MAIL_FINAL) {
        l->a.result = mail.result;
        l->a.error = req->error;
        soak_final(w, l);
    }

    vlm_mail_free(&mail);

    i = pick(w, most);

    if (live[i].used && !live[i].cancelled && pick(w, 40) == 0) {
        live[i].cancelled = 1;
        vlm_engine_cancel(w->e, live[i].a.req);
    }
}


static void
test_soak(const soak_t *s, int n)
{
    world_t             w;
    vlm_engine_conf_t   conf;

    ask_conf(&conf, tap_path("models/demo"));
    conf.digest = 1;
    conf.max_rows = s->rows;
    conf.threads = s->threads;
    conf.max_num_seqs = s->seqs;
    conf.prefix_cache = s->prefix_cache;

    if (s->blocks != 0) {
        /* the demonstration model: 2 KiB of keys and values for a token */
        conf.kv_memory = (uint64_t) s->blocks * 16 * 2048;
    }

    memset(&w, 0, sizeof(w));
    memset(live, 0, sizeof(live));
    w.e = ask_start(&conf);
    w.random = (uint64_t) s->rows;
    w.left = n;

    while (w.left > 0 || w.running > 0) {
        soak_send(&w, s->live);
        soak_mail(&w, s->live);
    }

    tap_is(w.wrong, 0, "%s: %d requests give the same bits, %d cancelled",
           s->name, n, w.cancelled);
    check_blocks(w.e, s->name);

    tap_diag("%s: %llu preemptions, %llu tokens cached", s->name,
             (unsigned long long) w.e->sched.preemptions,
             (unsigned long long) w.cached);

    if (s->blocks != 0 && !FEW) {
        tap_ok(w.e->sched.preemptions > 0, "%s: some had to give way",
               s->name);
    }

    if (!s->prefix_cache || !FEW) {
        tap_ok((w.cached > 0) == s->prefix_cache, "%s: tokens are cached or "
               "not", s->name);
    }

    vlm_engine_destroy(w.e);
}


/* ---- one after the other ---- */

static uint32_t
cached(vlm_engine_t *e, asked_t *a)
{
    static uint64_t  order;

    ask(e, a, ++order);
    ask_collect(e, 1);

    tap_is(a->result, VLM_OK, "an answer");

    return a->req->done.cached_tokens;
}


static void
test_cached(vlm_engine_t *e)
{
    asked_t   a, b, c;
    uint32_t  n;

    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    memset(&c, 0, sizeof(c));

    /* kinds 2 and 3: one picture and two; 6: another question */

    a.o = kinds[2].o;
    tap_is(cached(e, &a), 0, "a new picture");
    tap_is(a.req->done.outcomes[0], VLM_CACHE_MISS, "is encoded");
    tap_ok(same(&kinds[2], &a), "the same bits");

    n = a.req->done.prompt_tokens;

    b.o = kinds[2].o;
    tap_is(cached(e, &b), (n - 1) / 16 * 16, "again: all full blocks but "
           "the last token's");
    tap_is(b.req->done.outcomes[0], VLM_CACHE_PREFIX, "is not encoded");
    tap_is(b.req->done.decode_us, 0, "nor decoded");
    tap_ok(same(&kinds[2], &b), "the same bits");

    c.o = kinds[2].o;
    c.o.prompt = "Something else?";
    n = cached(e, &c);
    tap_ok(n >= a.req->done.image_tokens && n % 16 == 0
           && n < b.req->done.cached_tokens,
           "another question: the picture's blocks, %u tokens", n);
    tap_is(c.req->done.outcomes[0], VLM_CACHE_PREFIX, "is not encoded");
    ask_forget(&c);

    memset(&c, 0, sizeof(c));
    c.o = kinds[2].o;
    c.o.detail = VLM_DETAIL_LOW;
    c.o.images[0] = tap_path("t/data/heldout/images/0009.png");
    n = cached(e, &c);
    tap_ok(n < c.req->done.image_tokens, "another picture: %u tokens", n);
    tap_is(c.req->done.outcomes[0], VLM_CACHE_MISS, "is encoded");

    ask_forget(&a);
    ask_forget(&b);
    ask_forget(&c);
}


/* pictures whose digest the worker did not tell, or got wrong */

static void
test_digests(vlm_engine_t *e)
{
    uint8_t   zeros[32], z[32];
    char     *data, path[3][256];
    size_t    len;
    asked_t   a;
    kind_t    x, y;

    memset(zeros, 0, sizeof(zeros));
    memset(&x, 0, sizeof(x));
    memset(&y, 0, sizeof(y));

    snprintf(path[0], 256, "%s", tap_path("t/data/heldout/images/0030.png"));
    snprintf(path[1], 256, "%s", tap_path("t/data/heldout/images/0031.png"));
    snprintf(path[2], 256, "%s", tap_path("t/data/heldout/images/0033.png"));

    memset(&a, 0, sizeof(a));
    a.o = kinds[2].o;
    a.o.images[0] = path[0];
    a.claimed = zeros;
    (void) cached(e, &a);
    memcpy(x.digest, a.req->digest, 32);
    ask_forget(&a);

    memset(&a, 0, sizeof(a));
    a.o = kinds[2].o;
    a.o.images[0] = path[1];
    a.claimed = zeros;
    tap_ok(cached(e, &a) < a.req->done.image_tokens,
           "another picture without a digest is another one");
    memcpy(y.digest, a.req->digest, 32);
    tap_ok(memcmp(x.digest, y.digest, 32) != 0, "it gives something else");
    ask_forget(&a);

    memset(&a, 0, sizeof(a));
    a.o = kinds[2].o;
    a.o.images[0] = path[0];
    tap_ok(cached(e, &a) >= a.req->done.image_tokens,
           "with its digest it is known already");
    tap_ok(memcmp(x.digest, a.req->digest, 32) == 0, "the same bits");
    ask_forget(&a);

    /* under a name that is another picture's nothing is kept */

    if (vlm_read_file(path[2], 1 << 24, &data, &len, NULL) != VLM_OK) {
        exit(1);
    }

    EVP_Digest(data, len, z, NULL, EVP_sha256(), NULL);
    free(data);

    memset(&a, 0, sizeof(a));
    a.o = kinds[2].o;
    a.o.images[0] = path[1];
    a.claimed = z;
    (void) cached(e, &a);
    tap_ok(memcmp(y.digest, a.req->digest, 32) == 0,
           "a wrong digest does not change the answer");
    ask_forget(&a);

    memset(&a, 0, sizeof(a));
    a.o = kinds[2].o;
    a.o.images[0] = path[2];
    tap_ok(cached(e, &a) < a.req->done.image_tokens,
           "the digest's own picture is not taken for it");
    tap_ok(memcmp(y.digest, a.req->digest, 32) != 0,
           "and gives its own answer");
    ask_forget(&a);
}


/* the second turn of a chat starts behind the first */

static void
test_turns(vlm_engine_t *e)
{
    int        fd, n;
    char       path[] = "/tmp/vlm-soak-XXXXXX", text[8192];
    asked_t    a, b;
    vlm_buf_t  answer;

    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    memset(&answer, 0, sizeof(answer));

    a.o = kinds[1].o;
    a.o.sampling.temperature = 0;
    a.o.ignore_eos = 0;
    a.o.sampling.max_tokens = 30;
    (void) cached(e, &a);

    vlm_buf_json_string(&answer, a.text, strlen(a.text));

    n = snprintf(text, sizeof(text), "[{\"role\":\"user\",\"content\":["
                 "{\"type\":\"image\"},{\"type\":\"text\",\"text\":\"%s\"}]},"
                 "{\"role\":\"assistant\",\"content\":%s},"
                 "{\"role\":\"user\",\"content\":\"And then?\"}]",
                 a.o.prompt, answer.data);

    fd = mkstemp(path);
    tap_is(write(fd, text, (size_t) n), n, "a chat of two turns");
    close(fd);

    b.o = a.o;
    b.o.prompt = NULL;
    b.o.messages = path;

    n = (int) cached(e, &b);
    tap_ok(n >= (int) a.req->done.prompt_tokens / 16 * 16,
           "%d tokens are cached, the first turn had %u", n,
           a.req->done.prompt_tokens);

    unlink(path);
    vlm_buf_free(&answer);
    ask_forget(&a);
    ask_forget(&b);
}


static void
test_choices(vlm_engine_t *e)
{
    uint32_t     i, other;
    asked_t      a;
    vlm_said_t  *said;

    memset(&a, 0, sizeof(a));
    a.o = kinds[1].o;
    a.o.ignore_eos = 1;
    a.o.sampling.temperature = 2;
    a.o.sampling.nchoices = 5;
    a.o.sampling.max_tokens = 12;
    (void) cached(e, &a);

    tap_is(a.mail.nsaid, 5, "five choices");
    tap_is(a.req->done.completion_tokens, 60, "all their tokens count");

    other = 0;

    for (i = 0; i < a.mail.nsaid; i++) {
        said = &a.mail.said[i];
        tap_is(said->finish, VLM_FINISH_LENGTH, "choice %u has an end", i);

        other += said->text.len != a.mail.said[0].text.len
                 || memcmp(said->text.data, a.mail.said[0].text.data,
                           said->text.len)
                    != 0;
    }

    tap_ok(other > 0, "they are different");

    ask_forget(&a);
}


static void
test_one_by_one(void)
{
    vlm_engine_t       *e;
    vlm_engine_conf_t   conf;

    ask_conf(&conf, tap_path("models/demo"));
    conf.digest = 1;
    conf.prefix_cache = 1;
    e = ask_start(&conf);

    test_cached(e);
    test_digests(e);
    test_turns(e);
    test_choices(e);
    check_blocks(e, "one by one");

    vlm_engine_destroy(e);
}


int
main(void)
{
    int            n;
    const char    *p;
    const soak_t  *s;

    vlm_log_level("error");

    p = getenv("VLM_LONG");
    n = p != NULL && *p != '\0' ? 10000 : 300;
    n = FEW ? n / 6 : n;

    kinds_alone();
    test_one_by_one();

    for (s = soaks; s->name != NULL; s++) {
        test_soak(s, n / 3);
    }

    return tap_done();
}
