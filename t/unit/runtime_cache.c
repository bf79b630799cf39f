
/*
 * The embedding cache from a worker's side: what is encoded, what is not, and
 * that nobody can tell by the answer.
 */

#include <sys/stat.h>

#include <openssl/evp.h>

#include "engine/runtime/server_internal.h"
#include "t/unit/cache_server.h"
#include "t/unit/runtime_client.h"


#ifdef __SANITIZE_THREAD__
#define NCLIENTS    25
#define ROUNDS      5
#else
#define NCLIENTS    100
#define ROUNDS      20
#endif


static char     files[64];
static int      nfiles;
static char     answers[8][512];        /* of scenes, without a cache */

static const char  prompt[] = "Describe what you see.";


static const char *
scene(int n)
{
    return tap_path("t/data/heldout/images/%04d.png", n);
}


/* the same picture as another file: what follows its end is not looked at */

static char *
fresh(int n)
{
    char         *data, path[128];
    FILE         *f;
    size_t        len;
    vlm_error_t   err;

    if (vlm_read_file(scene(n), 1 << 18, &data, &len, &err) != VLM_OK) {
        die("picture", err.message);
    }

    snprintf(path, sizeof(path), "%s/%d", files, nfiles++);
    f = fopen(path, "w");

    if (f == NULL || fwrite(data, 1, len, f) != len
        || fprintf(f, "%d", nfiles) < 0 || fclose(f) != 0)
    {
        die(path, strerror(errno));
    }

    free(data);

    return strdup(path);
}


static void
digest_of(const char *path, uint8_t digest[32])
{
    char         *data;
    size_t        len;
    vlm_error_t   err;

    if (vlm_read_file(path, 1 << 18, &data, &len, &err) != VLM_OK
        || EVP_Digest(data, len, digest, NULL, EVP_sha256(), NULL) != 1)
    {
        die("digest", err.message);
    }

    free(data);
}


static question_t
about(const char *first, const char *second)
{
    question_t  q;

    memset(&q, 0, sizeof(q));
    q.prompt = prompt;
    q.pictures[0] = first;
    q.pictures[1] = second;

    return q;
}


static vlm_cache_stats_t
stats_of(served_t *s)
{
    vlm_cache_stats_t  stats;

    vlm_engine_cache_stats(s->server->engine, &stats);

    return stats;
}


static void
start(served_t *s, client_t *c, uint64_t memory, const char *url)
{
    vlm_error_t             err;
    static vlm_redis_url_t  redis;

    served_init(s);
    s->conf.engine.cache_memory = memory;
    s->conf.engine.redis_ttl_ms = 1000000;
    s->conf.engine.redis_max_value = 1 << 20;
    s->conf.engine.redis_timeout_ms = 2000;

    if (url != NULL) {
        if (vlm_redis_url(url, &redis, &err) != VLM_OK) {
            die(url, err.message);
        }

        s->conf.engine.redis = &redis;
    }

    served_start(s);
    client_open(c, s, 1 << 16);
    client_wait_ready(c);
}


static void
stop(served_t *s, client_t *c)
{
    client_close(c);
    served_stop(s);
}


/* one question; "MH": outcomes of its pictures, "E400": an error */

static const char *
ask(client_t *c, const question_t *q, const char *expected)
{
    uint32_t             i;
    heard_t             *h;
    static char          got[16];

    client_ask(c, 0, q);
    h = client_end(c, 0);

    if (h->last == 'E') {
        snprintf(got, sizeof(got), "E%u", h->error.status);
        return got;
    }

    for (i = 0; i < h->done.noutcomes; i++) {
        got[i] = " MJHRP"[h->done.outcomes[i]];
    }

    got[i] = '\0';

    if (expected != NULL
        && (h->text.data == NULL || strcmp(h->text.data, expected) != 0))
    {
        tap_diag("answer \"%s\", not \"%s\"", h->text.data, expected);
        return "another answer";
    }

    return got;
}


/* answers of an engine that keeps nothing */

static void
learn(void)
{
    int         i;
    client_t    c;
    served_t    s;
    question_t  q;

    start(&s, &c, 0, NULL);

    for (i = 0; i < 8; i++) {
        q = about(scene(i), NULL);
        tap_str(ask(&c, &q, NULL), "M", "scene %d without a cache", i);
        snprintf(answers[i], sizeof(answers[i]), "%s", c.slots[0].text.data);
    }

    q = about(scene(0), NULL);
    tap_str(ask(&c, &q, answers[0]), "M", "again: nothing is kept");

    stop(&s, &c);
}


static void
test_memory(void)
{
    char                *path;
    heard_t             *h;
    uint8_t              wrong[32];
    client_t             c;
    served_t             s;
    question_t           q;
    vlm_cache_stats_t    stats;

    start(&s, &c, 64 << 20, NULL);

    q = about(scene(1), NULL);
    tap_str(ask(&c, &q, answers[1]), "M", "a new picture");
    tap_str(ask(&c, &q, answers[1]), "H", "the same again");

    h = &c.slots[0];
    tap_ok(h->done.decode_us == 0 && h->done.encode_us < 1000000
           && h->done.cache_us == 0, "nothing to decode");
    tap_ok(strstr(h->order, "TFD") != NULL && strchr(h->order, 'R') != NULL,
           "the same events: %s", h->order);

    q.scope = "tenant";
    tap_str(ask(&c, &q, answers[1]), "M", "new to another tenant");
    tap_str(ask(&c, &q, answers[1]), "H", "who then has it too");
    tap_is((long long) stats_of(&s).encoded, 2, "encoded twice");

    q = about(scene(0), NULL);
    ask(&c, &q, answers[0]);
    q = about(scene(1), scene(0));
    tap_str(ask(&c, &q, NULL), "HH", "two that are known");
    q = about(scene(2), scene(1));
    tap_str(ask(&c, &q, NULL), "MH", "one of two");

    path = fresh(3);
    q = about(path, path);
    tap_str(ask(&c, &q, NULL), "MJ", "a new one twice in a request");
    tap_is((long long) stats_of(&s).encoded, 5, "is encoded once");
    free(path);

    /* digests by the worker, right and wrong */

    path = fresh(4);
    digest_of(path, wrong);
    q = about(path, NULL);
    q.digests[0] = wrong;
    tap_str(ask(&c, &q, answers[4]), "M", "the worker's digest");
    q.digests[0] = NULL;
    tap_str(ask(&c, &q, answers[4]), "H", "is the engine's");

    q = about(scene(5), NULL);
    q.digests[0] = wrong;
    wrong[0] ^= 1;
    tap_str(ask(&c, &q, answers[5]), "M", "a wrong digest");
    tap_str(ask(&c, &q, answers[5]), "M", "is not kept");
    stats = stats_of(&s);
    tap_is((long long) stats.mismatches, 2, "but counted");
    free(path);

    stop(&s, &c);
}


static void
test_bad(void)
{
    int          i;
    char         path[128], *data;
    FILE        *f;
    size_t       len;
    client_t     c;
    served_t     s;
    question_t   q;
    vlm_error_t  err;

    start(&s, &c, 64 << 20, NULL);

    /* its header is fine */

    snprintf(path, sizeof(path), "%s/bad", files);

    if (vlm_read_file(scene(0), 1 << 18, &data, &len, &err) != VLM_OK) {
        die("picture", err.message);
    }

    f = fopen(path, "w");

    if (f == NULL || fwrite(data, 1, len / 2, f) != len / 2
        || fclose(f) != 0)
    {
        die(path, strerror(errno));
    }

    free(data);

    q = about(path, NULL);
    tap_str(ask(&c, &q, NULL), "E400", "half a picture");
    snprintf(answers[7], sizeof(answers[7]), "%s", c.slots[0].message);
    tap_is((long long) stats_of(&s).bad_pictures, 1, "found out by decoding");

    q = about(scene(0), path);
    tap_str(ask(&c, &q, NULL), "E400", "known to be bad");
    tap_str(c.slots[0].message, answers[7], "for the same reason");
    tap_str(c.slots[0].error.param, "image[1]", "here it is the second");
    tap_is((long long) stats_of(&s).memory.bad_hits, 1, "without decoding");

    /* at once */

    f = fopen(path, "a");

    if (f == NULL || fputc('x', f) == EOF || fclose(f) != 0) {
        die(path, strerror(errno));
    }

    q = about(path, NULL);

    for (i = 0; i < 20; i++) {
        client_ask(&c, (uint32_t) i, &q);
    }

    for (len = 0, i = 0; i < 20; i++) {
        len += client_end(&c, (uint32_t) i)->error.status == 400;
    }

    tap_is((long long) len, 20, "twenty at once");

    unlink(path);
    stop(&s, &c);
}


static void
test_clients(int seats)
{
    int         i, n, right;
    int         outcomes[8];
    char       *path;
    heard_t    *h;
    client_t   *clients, first;
    served_t    s;
    question_t  q;

    served_init(&s);
    s.conf.engine.cache_memory = 64 << 20;
    s.conf.engine.max_num_seqs = seats;
    s.conf.engine.max_queue = 200;
    served_start(&s);
    client_open(&first, &s, 1 << 16);
    client_wait_ready(&first);

    clients = calloc(NCLIENTS, sizeof(client_t));

    if (clients == NULL) {
        die("clients", "no memory");
    }

    for (i = 0; i < NCLIENTS; i++) {
        client_open(&clients[i], &s, 1 << 16);
    }

    path = fresh(3);
    q = about(path, NULL);
    q.sampling.set = VLM_SET_MAX_TOKENS;
    q.sampling.max_tokens = 4;
    memset(outcomes, 0, sizeof(outcomes));

    for (i = 0; i < NCLIENTS; i++) {
        client_ask(&clients[i], 0, &q);
    }

    for (right = 0, i = 0; i < NCLIENTS; i++) {
        h = client_end(&clients[i], 0);
        n = h->done.outcomes[0];

        if (h->last == 'D' && n < 8) {
            outcomes[n]++;
            right += strncmp(h->text.data, answers[3], h->text.len) == 0
                     && h->text.len != 0;
        }

        client_close(&clients[i]);
    }

    tap_is(right, NCLIENTS, "%d clients and %d seats: all are answered",
           NCLIENTS, seats);
    tap_is(outcomes[VLM_CACHE_MISS], 1, "one of them by the encoder");
    tap_is(outcomes[VLM_CACHE_JOINED] + outcomes[VLM_CACHE_HIT_MEMORY],
           NCLIENTS - 1, "the others joined, or came later");
    tap_is((long long) stats_of(&s).encoded, 1, "encoded once");

    free(path);
    free(clients);
    stop(&s, &first);
}


/* whoever is at work leaves: another one goes on */

static void
test_cancel(void)
{
    int                  i, n, round;
    char                *path;
    heard_t             *h;
    client_t             c;
    served_t             s;
    question_t           q;
    vlm_memory_stats_t   m;

    start(&s, &c, 64 << 20, NULL);

    for (n = 0, round = 0; round < ROUNDS; round++) {
        path = fresh(round % 7);
        q = about(path, NULL);

        for (i = 0; i < 4; i++) {
            client_ask(&c, (uint32_t) i, &q);
        }

        usleep((useconds_t) (round * 500));
        vlm_worker_cancel(&c.w, 0, c.slots[0].generation);
        vlm_worker_cancel(&c.w, 1, c.slots[1].generation);

        for (i = 0; i < 4; i++) {
            h = client_end(&c, (uint32_t) i);
            n += i >= 2 && h->last == 'D'
                 && strcmp(h->text.data, answers[round % 7]) == 0;
        }

        free(path);
    }

    tap_is(n, 2 * ROUNDS, "those who stay are answered");

    m = stats_of(&s).memory;
    tap_ok(m.alive == m.bytes, "and nothing is held by those who left");

    stop(&s, &c);
}


/* ---- Redis ---- */

static void
wait_for(served_t *s, int what)
{
    int                i;
    vlm_cache_stats_t  stats;

    for (i = 0; i < 10000; i++) {
        stats = stats_of(s);

        if (what == 'c' ? stats.redis.connected
            : what == 'd' ? !stats.redis.connected
            : what == 'x' ? stats.redis.existed != 0
                          : stats.redis.stored >= (uint64_t) what)
        {
            return;
        }

        usleep(1000);
    }

    tap_ok(0, "waiting for Redis");
}


static void
test_redis(void)
{
    char                url[64], *path, *other;
    client_t            a, b;
    served_t            sa, sb;
    question_t          q;
    vlm_cache_stats_t   stats;

    snprintf(url, sizeof(url), "redis://127.0.0.1:%d/1", port);
    start(&sa, &a, 64 << 20, url);
    start(&sb, &b, 0, url);
    wait_for(&sa, 'c');
    wait_for(&sb, 'c');

    path = fresh(1);
    other = fresh(2);
    q = about(path, NULL);
    tap_str(ask(&a, &q, answers[1]), "M", "new to the first engine");
    wait_for(&sa, 1);

    tap_str(ask(&b, &q, answers[1]), "R", "known to the second");
    tap_ok(b.slots[0].done.decode_us == 0, "who does not decode it");
    tap_str(ask(&b, &q, answers[1]), "R", "again, as it keeps nothing");
    tap_str(ask(&a, &q, answers[1]), "H", "the first asks its memory");

    q = about(other, path);
    tap_str(ask(&b, &q, NULL), "MR", "one of two");
    wait_for(&sb, 1);
    tap_str(ask(&a, &q, NULL), "RH", "the other way");

    q.scope = "tenant";
    tap_str(ask(&b, &q, NULL), "MM", "not of another tenant");

    /* only misses: asleep, gone, started again */

    wait_for(&sb, 3);
    kill(server, SIGSTOP);
    q = about(path, NULL);
    tap_str(ask(&b, &q, answers[1]), "M", "Redis sleeps");
    kill(server, SIGCONT);
    wait_for(&sb, 'x');

    server_stop();
    wait_for(&sb, 'd');
    tap_str(ask(&b, &q, answers[1]), "M", "Redis is gone");
    server_start();
    wait_for(&sb, 'c');
    tap_str(ask(&b, &q, answers[1]), "M", "Redis has forgotten");
    wait_for(&sb, 4);
    tap_str(ask(&b, &q, answers[1]), "R", "but learns again");

    command("FLUSHALL");
    tap_str(ask(&b, &q, answers[1]), "M", "all is deleted");

    stats = stats_of(&sb);
    tap_ok(stats.bad_values == 0 && stats.redis.errors == 0,
           "no value was bad");

    stop(&sa, &a);
    stop(&sb, &b);
    free(path);
    free(other);
}


/* the only key that there is; what its value is made of is changed */

static void
test_values(void)
{
    int            i, n;
    char           url[128], *path;
    client_t       c;
    served_t       s;
    question_t     q;
    redisReply    *keys, *value, *reply;
    redisContext  *r;

    command("FLUSHALL");
    snprintf(url, sizeof(url), "unix:%s/redis.sock", dir);
    start(&s, &c, 0, url);
    wait_for(&s, 'c');

    path = fresh(6);
    q = about(path, NULL);
    ask(&c, &q, NULL);
    wait_for(&s, 1);
    tap_str(ask(&c, &q, answers[6]), "R", "a value");

    r = admin();
    keys = redisCommand(r, "KEYS vlm:emb:1:*");

    if (keys == NULL || keys->elements != 1) {
        die("keys", "not one");
    }

    value = redisCommand(r, "GET %s", keys->element[0]->str);

    for (n = 0, i = 0; i < 8; i++) {
        value->str[i * value->len / 8] ^= 1;
        reply = redisCommand(r, "SET %s %b", keys->element[0]->str,
                             value->str, (size_t) value->len - (i == 0));
        freeReplyObject(reply);
        value->str[i * value->len / 8] ^= 1;

        n += strcmp(ask(&c, &q, answers[6]), "M") == 0;
        wait_for(&s, 2 + i);
        n += strcmp(ask(&c, &q, answers[6]), "R") == 0;
    }

    tap_is(n, 16, "a damaged value is a miss, and replaced");
    tap_is((long long) stats_of(&s).bad_values, 8, "each was seen");

    freeReplyObject(keys);
    freeReplyObject(value);
    redisFree(r);
    free(path);
    stop(&s, &c);
}


int
main(void)
{
    signal(SIGPIPE, SIG_IGN);
    vlm_log_level("error");

    snprintf(files, sizeof(files), "/tmp/vlm-pictures-XXXXXX");

    if (mkdtemp(files) == NULL) {
        return 1;
    }

    learn();
    test_memory();
    test_clients(8);
    test_clients(1);
    test_cancel();

    if (server_begin()) {
        test_redis();
        test_values();
        server_end();

    } else {
        tap_skip("no redis-server");
    }

    test_bad();

    while (nfiles-- > 0) {
        snprintf(answers[0], sizeof(answers[0]), "%s/%d", files, nfiles);
        unlink(answers[0]);
    }

    rmdir(files);

    return tap_done();
}
