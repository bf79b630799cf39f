
/*
 * The Redis client against a real redis-server on a free port, and against
 * one that answers what no server should.
 */

#include <poll.h>
#include <pthread.h>

#include "engine/cache/redis.h"
#include "t/unit/cache_server.h"


#define PATIENCE_US     30000000
#define MAX_VALUE       100000


static int  answered;


/* ---- the client ---- */

static void
answer(void *data, vlm_redis_get_t *get)
{
    __atomic_add_fetch(&answered, 1, __ATOMIC_RELAXED);
}


static vlm_redis_t *
create(const char *url)
{
    vlm_error_t        err;
    vlm_redis_t       *r;
    vlm_redis_conf_t   conf;

    memset(&conf, 0, sizeof(conf));

    if (vlm_redis_url(url, &conf.url, &err) != VLM_OK) {
        tap_diag("%s", err.message);
        exit(1);
    }

    conf.ttl_ms = 100000;
    conf.connect_us = 2000000;
    conf.max_value = MAX_VALUE;
    conf.max_queue = 300000;
    conf.answer = answer;

    r = vlm_redis_create(&conf, &err);
    if (r == NULL) {
        tap_diag("%s", err.message);
        exit(1);
    }

    return r;
}


static vlm_redis_t *
create_local(void)
{
    char  url[64];

    snprintf(url, sizeof(url), "redis://127.0.0.1:%d", port);

    return create(url);
}


#define stat_of(r, name)  stat_value(r, offsetof(vlm_redis_stats_t, name))

static uint64_t
stat_value(vlm_redis_t *r, size_t offset)
{
    uint64_t           n;
    vlm_redis_stats_t  stats;

    vlm_redis_stats(r, &stats);

    if (offset == offsetof(vlm_redis_stats_t, connected)) {
        return (uint64_t) stats.connected;
    }

    memcpy(&n, (char *) &stats + offset, sizeof(n));

    return n;
}


static void
turn(vlm_redis_t *r)
{
    struct pollfd  pfd;

    pfd.fd = vlm_redis_fd(r);
    pfd.events = POLLIN;

    if (poll(&pfd, 1, 1000) > 0) {
        vlm_redis_turn(r);
    }
}


#define until(r, condition)                                                   \
    do {                                                                      \
        uint64_t  end = vlm_now_us() + PATIENCE_US;                           \
                                                                              \
        while (!(condition) && vlm_now_us() < end) {                          \
            turn(r);                                                          \
        }                                                                     \
    } while (0)


/* looks up several names at once */

static void
get_list(vlm_redis_t *r, vlm_redis_get_t *gets, int n)
{
    int  i;

    answered = 0;

    for (i = 0; i < n; i++) {
        gets[i].value = NULL;
        gets[i].timeout_us = PATIENCE_US;
        gets[i].next = i + 1 < n ? &gets[i + 1] : NULL;
    }

    vlm_redis_get(r, gets);
    until(r, answered == n);
}


/* 1: that value, 0: a miss, -1: another */

static int
get(vlm_redis_t *r, const char *name, const char *expected, size_t len)
{
    int              rc;
    vlm_redis_get_t  one;

    memset(&one, 0, sizeof(one));
    snprintf(one.name, sizeof(one.name), "%s", name);
    get_list(r, &one, 1);

    if (one.value == NULL) {
        return 0;
    }

    rc = one.len == len && memcmp(one.value, expected, len) == 0 ? 1 : -1;
    free(one.value);

    return rc;
}


static int
set(vlm_redis_t *r, const char *name, const char *value, size_t len)
{
    char      *copy;
    uint64_t   n;

    copy = malloc(len);
    if (copy == NULL) {
        exit(1);
    }

    memcpy(copy, value, len);
    n = stat_of(r, stored) + stat_of(r, existed) + stat_of(r, store_errors);

    if (vlm_redis_set(r, name, copy, len) != VLM_OK) {
        return 0;
    }

    until(r, stat_of(r, stored) + stat_of(r, existed)
             + stat_of(r, store_errors) > n);

    return 1;
}


static void
test_url(void)
{
    size_t           i;
    vlm_error_t      err;
    vlm_redis_url_t  u;

    static const char  *bad[] = {
        "", "http://a", "redis://", "redis://:pw@", "redis://a:0",
        "redis://a:65536", "redis://a:x", "redis://a/x", "redis://a/1/2",
        "redis://user@a", "redis://[::1", "redis://[::1]x",
        "redis://:%4@a", "redis://:%00@a", "unix:", "unix:relative",
        "unix:/a?x=1", "unix:/a?db=", "redis://a:1:2"
    };

    tap_ok(vlm_redis_url("redis://cache", &u, &err) == VLM_OK
           && strcmp(u.host, "cache") == 0 && u.port == 6379 && u.db == 0
           && u.password[0] == '\0', "a host");
    tap_ok(vlm_redis_url("redis://:p%40s%3as@[::1]:7000/3", &u, &err)
           == VLM_OK && strcmp(u.host, "::1") == 0 && u.port == 7000
           && u.db == 3 && strcmp(u.password, "p@s:s") == 0
           && u.user[0] == '\0', "password, address, port, database");
    tap_ok(vlm_redis_url("redis://me:a@b@h:1/", &u, &err) == VLM_OK
           && strcmp(u.user, "me") == 0 && strcmp(u.password, "a@b") == 0
           && strcmp(u.host, "h") == 0, "a user, a stray @");
    tap_ok(vlm_redis_url("unix:/run/redis.sock", &u, &err) == VLM_OK
           && u.port == 0 && strcmp(u.host, "/run/redis.sock") == 0,
           "a socket");
    tap_ok(vlm_redis_url("unix:///run/r?db=2", &u, &err) == VLM_OK
           && u.db == 2 && strcmp(u.host, "/run/r") == 0,
           "another way, and a database");

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tap_ok(vlm_redis_url(bad[i], &u, &err) != VLM_OK
               && strstr(err.message, "pw") == NULL, "refused: \"%s\"",
               bad[i]);
    }

    tap_ok(vlm_redis_url("rediss://h", &u, &err) != VLM_OK
           && strstr(err.message, "TLS") != NULL, "no TLS: says so");
}


static void
test_values(void)
{
    int              i, n;
    char             value[5000];
    long long        ttl;
    uint64_t         seed = 1;
    vlm_redis_t     *r;
    vlm_redis_get_t  gets[5];

    for (i = 0; i < (int) sizeof(value); i++) {
        value[i] = (char) tap_random(&seed);
    }

    r = create_local();
    tap_is(get(r, "a", "", 0), 0, "without a connection: a miss at once");
    tap_is((long long) stat_of(r, skipped), 1, "counted");

    until(r, stat_of(r, connected));
    tap_is(get(r, "a", "", 0), 0, "nothing there");

    tap_ok(set(r, "a", value, sizeof(value)), "stored");
    tap_is(get(r, "a", value, sizeof(value)), 1, "and read, all bytes");

    ttl = command("PTTL a");
    tap_ok(ttl > 80000 && ttl <= 100000, "it ends some day: %lld", ttl);

    set(r, "a", "other", 5);
    tap_is((long long) stat_of(r, existed), 1, "what is there stays");
    tap_is(get(r, "a", value, sizeof(value)), 1, "as it was");

    set(r, "c", "123", 3);
    memset(gets, 0, sizeof(gets));

    for (i = 0; i < 5; i++) {
        snprintf(gets[i].name, sizeof(gets[i].name), "%c", 'a' + i);
    }

    get_list(r, gets, 5);

    for (n = 0, i = 0; i < 5; i++) {
        n += (gets[i].value != NULL) << i;
        free(gets[i].value);
    }

    tap_is(n, 5, "several at once");

    vlm_redis_del(r, "a");
    until(r, stat_of(r, deleted) == 1);
    tap_is(get(r, "a", "", 0), 0, "deleted");

    /* no look-up sees these: storing finds them */

    command("EVAL return(redis.call('SET',KEYS[1],'')) 1 a");
    tap_is(command("EXISTS a"), 1, "an empty string");
    tap_is(get(r, "a", "", 0), 0, "an empty string is a miss");
    set(r, "a", value, sizeof(value));
    until(r, stat_of(r, deleted) == 2);
    tap_is((long long) stat_of(r, deleted), 2, "but not for good");
    set(r, "a", value, sizeof(value));
    tap_is(get(r, "a", value, sizeof(value)), 1, "stored and read");

    command("DEL a");
    command("LPUSH a x");
    set(r, "a", value, sizeof(value));
    until(r, stat_of(r, deleted) == 3);
    set(r, "a", value, sizeof(value));
    tap_is(get(r, "a", value, sizeof(value)), 1, "a list in its place, too");

    command("FLUSHALL");
    tap_is(get(r, "c", "", 0), 0, "all gone");

    command("LPUSH list x");
    tap_is(get(r, "list", "", 0), 0, "a key of another type");
    tap_is((long long) stat_of(r, errors), 1, "an error, no more");

    command("SETRANGE large 100000 x");
    tap_is(get(r, "large", "", 0), 0, "too large");
    tap_is((long long) stat_of(r, too_large), 1, "counted");
    command("SETRANGE fits 99999 x");
    get(r, "fits", "", 0);
    tap_is((long long) stat_of(r, hits), 7, "the largest that is not");

    tap_ok(!vlm_redis_takes(r, MAX_VALUE + 1), "too large to be stored");
    tap_ok(vlm_redis_takes(r, MAX_VALUE), "the largest");
    tap_is((long long) stat_of(r, connections), 1, "all in one connection");

    vlm_redis_destroy(r, 0);
}


static void
test_pressure(void)
{
    int           i, n;
    char         *value;
    vlm_redis_t  *r;

    r = create_local();
    until(r, stat_of(r, connected));

    for (n = 0, i = 0; i < 5; i++) {
        value = calloc(1, MAX_VALUE);
        n += vlm_redis_set(r, "p", value, MAX_VALUE) == VLM_OK;
    }

    tap_is(n, 3, "values that wait have room for three");
    tap_is((long long) stat_of(r, dropped), 2, "two are dropped");

    until(r, stat_of(r, queued) == 0);
    tap_ok(vlm_redis_takes(r, MAX_VALUE), "then there is room again");

    /* full */

    command("CONFIG SET maxmemory 1");
    tap_ok(set(r, "q", "12345", 5) && stat_of(r, store_errors) == 1,
           "a server that is full");
    tap_ok(get(r, "p", "", 0) != 0, "can still be read");
    command("CONFIG SET maxmemory 0");

    command("FLUSHALL");
    value = calloc(1, 10);
    vlm_redis_set(r, "last", value, 10);
    vlm_redis_destroy(r, PATIENCE_US);
    tap_is(command("EXISTS last"), 1, "the last one is stored at the end");
}


static void
test_faults(void)
{
    int              i, n;
    vlm_redis_t     *r;
    vlm_redis_get_t  gets[6];

    r = create_local();
    until(r, stat_of(r, connected));
    set(r, "k", "v", 1);

    kill(server, SIGSTOP);

    memset(gets, 0, sizeof(gets));
    answered = 0;

    for (i = 0; i < 4; i++) {
        gets[i].timeout_us = 20000;
        gets[i].next = i < 3 ? &gets[i + 1] : NULL;
        snprintf(gets[i].name, sizeof(gets[i].name), "k");
    }

    vlm_redis_get(r, gets);
    until(r, answered == 4);
    tap_is((long long) stat_of(r, late), 4, "a server that sleeps is late");
    tap_ok(stat_of(r, connected), "four times are forgiven");

    gets[3].next = NULL;
    vlm_redis_get(r, &gets[3]);
    until(r, answered == 5);
    tap_ok(!stat_of(r, connected) && stat_of(r, opened) == 1,
           "five open the breaker");

    answered = 0;
    vlm_redis_get(r, &gets[3]);
    tap_is(answered, 1, "then it misses at once");
    tap_ok(vlm_redis_set(r, "x", strdup("y"), 1) == VLM_AGAIN,
           "and stores are dropped");

    kill(server, SIGCONT);
    until(r, stat_of(r, connected));
    tap_is(get(r, "k", "v", 1), 1, "awake again, it is used again");

    /* late ones, forgiven since others came in time */

    for (n = 0, i = 0; i < 6; i++) {
        kill(server, SIGSTOP);
        answered = 0;
        vlm_redis_get(r, &gets[3]);
        until(r, answered == 1);
        kill(server, SIGCONT);
        n += get(r, "k", "v", 1);
    }

    tap_ok(n == 6 && stat_of(r, opened) == 1, "not in a row: no breaker");

    server_stop();
    until(r, !stat_of(r, connected));
    tap_is(get(r, "k", "v", 1), 0, "killed");

    server_start();
    until(r, stat_of(r, connected));
    tap_is(get(r, "k", "v", 1), 0, "started again, empty");
    set(r, "k", "w", 1);
    tap_is(get(r, "k", "w", 1), 1, "and in use");

    /* killed with a look-up on its way */

    kill(server, SIGSTOP);
    answered = 0;
    gets[3].timeout_us = PATIENCE_US;
    vlm_redis_get(r, &gets[3]);
    turn(r);
    server_stop();
    until(r, answered == 1);
    tap_ok(answered == 1 && gets[3].value == NULL, "in mid-flight: a miss");

    /* destroyed with a look-up on its way */

    server_start();
    until(r, stat_of(r, connected));
    kill(server, SIGSTOP);
    answered = 0;
    gets[3].next = NULL;
    gets[2].next = NULL;
    vlm_redis_get(r, &gets[3]);
    turn(r);
    vlm_redis_get(r, &gets[2]);
    vlm_redis_destroy(r, 0);
    tap_is(answered, 2, "at the end all come back");
    kill(server, SIGCONT);
}


static void
test_logins(void)
{
    char          url[200];
    vlm_redis_t  *r;

    snprintf(url, sizeof(url), "unix:%s/redis.sock?db=3", dir);
    r = create(url);
    until(r, stat_of(r, connected));
    set(r, "u", "3", 1);
    tap_is(get(r, "u", "3", 1), 1, "by a unix socket");
    vlm_redis_destroy(r, 0);
    tap_is(command("EXISTS u"), 0, "in another database");

    snprintf(url, sizeof(url), "redis://localhost:%d/3", port);
    r = create(url);
    until(r, stat_of(r, connected));
    tap_is(get(r, "u", "3", 1), 1, "by a name");
    vlm_redis_destroy(r, 0);

    snprintf(url, sizeof(url), "redis://no-such-host.invalid:%d", port);
    r = create(url);
    until(r, stat_of(r, failures) == 1);
    tap_ok(!stat_of(r, connected), "a name that is none");
    vlm_redis_destroy(r, 0);

    snprintf(url, sizeof(url), "redis://127.0.0.1:%d/77", port);
    r = create(url);
    until(r, stat_of(r, failures) == 1);
    tap_ok(!stat_of(r, connected), "a database that is none");
    vlm_redis_destroy(r, 0);

    snprintf(url, sizeof(url), "redis://:right@127.0.0.1:%d", port);
    command("CONFIG SET requirepass right");

    r = create(url);
    until(r, stat_of(r, connected));
    tap_is((long long) stat_of(r, failures), 0, "the right password");
    vlm_redis_destroy(r, 0);

    memcpy(strstr(url, "right"), "wrong", 5);
    r = create(url);
    until(r, stat_of(r, failures) == 2);
    tap_ok(!stat_of(r, connected), "a wrong one");
    tap_is(get(r, "u", "3", 1), 0, "is a miss");
    vlm_redis_destroy(r, 0);

    r = create_local();
    until(r, stat_of(r, failures) == 1);
    tap_ok(!stat_of(r, connected), "none");
    vlm_redis_destroy(r, 0);
}


/* ---- a server that answers PING, and anything else with a script ---- */

typedef struct {
    int             fd;
    const char     *script;
    size_t          len;
    int             endless;            /* goes on writing */
} fake_t;


static void *
fake_main(void *data)
{
    int      fd;
    char     buf[4096];
    ssize_t  n;
    fake_t  *fake = data;

    fd = accept(fake->fd, NULL, NULL);

    while ((n = read(fd, buf, sizeof(buf))) > 0) {

        if (memmem(buf, (size_t) n, "PING", 4) != NULL) {
            n = write(fd, "+PONG\r\n", 7);
            continue;
        }

        n = write(fd, fake->script, fake->len);

        if (fake->endless) {
            memset(buf, 'x', sizeof(buf));

            while (write(fd, buf, sizeof(buf)) > 0) {
                /* void */
            }
        }

        break;
    }

    close(fd);

    return NULL;
}


static void
try_fake(const char *script, size_t len, int endless, int expected,
    const char *name)
{
    int                 got;
    char                url[64];
    fake_t              fake;
    socklen_t           size;
    pthread_t           thread;
    vlm_redis_t        *r;
    struct sockaddr_in  sin;

    memset(&sin, 0, sizeof(sin));
    sin.sin_family = AF_INET;
    sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    size = sizeof(sin);

    fake.fd = socket(AF_INET, SOCK_STREAM, 0);
    fake.script = script;
    fake.len = len;
    fake.endless = endless;

    if (fake.fd == -1 || bind(fake.fd, (struct sockaddr *) &sin, size) == -1
        || listen(fake.fd, 1) == -1
        || getsockname(fake.fd, (struct sockaddr *) &sin, &size) == -1
        || pthread_create(&thread, NULL, fake_main, &fake) != 0)
    {
        exit(1);
    }

    snprintf(url, sizeof(url), "redis://127.0.0.1:%d", ntohs(sin.sin_port));
    r = create(url);

    until(r, stat_of(r, connected));
    got = get(r, "k", "hello", 5);
    tap_is(got, expected, "%s", name);

    if (expected != 1) {
        until(r, !stat_of(r, connected));
        tap_ok(!stat_of(r, connected), "and the connection goes");
    }

    vlm_redis_destroy(r, 0);
    close(fake.fd);
    pthread_join(thread, NULL);
}


static void
test_garbage(void)
{
    size_t  i;
    char    name[64];

    static const char  good[] = "$5\r\nhello\r\n";

    try_fake(good, sizeof(good) - 1, 0, 1, "a fake server works");

    for (i = 1; i < sizeof(good) - 1; i++) {
        snprintf(name, sizeof(name), "cut after %zu bytes", i);
        try_fake(good, i, 0, 0, name);
    }

#define fake(script, name)  try_fake(script, sizeof(script) - 1, 0, 0, name)

    fake("HTTP/1.1 400 Bad Request\r\n\r\n", "another protocol");
    fake("$-5\r\n", "a negative length");
    fake("$99999999999999999999\r\n", "an endless length");
    fake("$5x\r\nhello\r\n", "a length that is none");
    fake("*1000000000\r\n", "a reply of many");
    fake("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
         "a deep one");
    fake(":5\r\n", "a number");
    fake("+hello\r\n", "a status");
    fake("$-1\r\n", "nil, which GETRANGE never says");
    fake("-ERR no\r\n+more\r\n", "more replies than commands");
    fake("\0\0\0\0\r\n", "zeros");
    try_fake("$1000000000\r\n", 13, 1, 0, "a value that never ends");
    try_fake("$100\r\n", 6, 1, -1, "a value that does not end there");
    try_fake("+", 1, 1, 0, "a line that never ends");
}


static void
test_many(void)
{
    vlm_redis_t  *r;

    command("DEBUG POPULATE 1000000 key 200");

    r = create_local();
    until(r, stat_of(r, connected));
    tap_is(get(r, "vlm", "", 0), 0, "a million other keys");
    tap_ok(set(r, "vlm", "v", 1) && get(r, "vlm", "v", 1) == 1,
           "do not matter");
    vlm_redis_destroy(r, 0);
}


int
main(void)
{
    signal(SIGPIPE, SIG_IGN);
    vlm_log_level("error");

    test_url();
    test_garbage();

    if (!server_begin()) {
        tap_skip("no redis-server");
        return tap_done();
    }

    test_values();
    test_pressure();
    test_faults();

    if (getenv("VLM_LONG") != NULL) {
        test_many();
    }

    test_logins();
    server_end();

    return tap_done();
}
