
/* The memory cache: recent use, bytes, bad pictures, single flight. */

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/cache/memory.h"
#include "engine/channel/vlm_wire.h"
#include "t/unit/lib/tap.h"


#define NTHREADS    8
#define NKEYS       40
#define ROUNDS      3000


static int  nfreed, nwoken;             /* atomic */


static void
entry_freed(void *data, vlm_tensor_t *tensor)
{
    __atomic_add_fetch(&nfreed, 1, __ATOMIC_RELAXED);
    free(tensor->data);
}


static void
woken(void *data)
{
    __atomic_add_fetch(&nwoken, 1, __ATOMIC_RELAXED);
}


static vlm_memory_cache_t *
create(uint64_t limit, uint32_t max_bad, uint64_t ttl)
{
    vlm_memory_conf_t    conf;
    vlm_memory_cache_t  *m;

    memset(&conf, 0, sizeof(conf));
    conf.limit = limit;
    conf.max_bad = max_bad;
    conf.bad_ttl_us = ttl;
    conf.free = entry_freed;
    conf.wake = woken;

    nfreed = 0;
    nwoken = 0;

    m = vlm_memory_create(&conf);
    if (m == NULL) {
        exit(1);
    }

    return m;
}


static vlm_cache_key_t
key_of(int n)
{
    vlm_cache_key_t  key;

    memset(&key, 0, sizeof(key));
    memcpy(key.bytes + 20, &n, sizeof(n));

    return key;
}


static vlm_entry_t *
entry_of(vlm_memory_cache_t *m, int n, size_t bytes)
{
    vlm_tensor_t  tensor;

    memset(&tensor, 0, sizeof(tensor));
    tensor.data = malloc(sizeof(int));
    *(int *) tensor.data = n;

    return vlm_entry_create(m, &tensor, bytes);
}


static int
content(const vlm_entry_t *e)
{
    return *(int *) e->tensor.data;
}


/* puts a new entry that nobody keeps */

static void
put(vlm_memory_cache_t *m, int n, size_t bytes)
{
    vlm_entry_t      *e;
    vlm_cache_key_t   key;

    e = entry_of(m, n, bytes);
    key = key_of(n);
    vlm_memory_put(m, &key, e, VLM_CACHE_MISS);
    vlm_entry_free(m, e);
}


/* is it there? */

static int
has(vlm_memory_cache_t *m, int n)
{
    int               hit;
    vlm_join_t        rc;
    vlm_wait_t        wait;
    vlm_entry_t      *e;
    vlm_error_t       err;
    vlm_cache_key_t   key;

    key = key_of(n);
    rc = vlm_memory_join(m, &key, &wait, &e, &err);
    hit = (rc == VLM_JOIN_HIT);

    if (hit) {
        hit = content(e) == n;
        vlm_entry_free(m, e);

    } else if (rc == VLM_JOIN_FIRST) {
        vlm_memory_leave(m, &wait);
        vlm_memory_missed(m, &key);
    }

    return hit;
}


static void
test_recent(void)
{
    int                  i;
    vlm_wait_t           wait;
    vlm_entry_t         *e, *held;
    vlm_error_t          err;
    vlm_cache_key_t      key;
    vlm_memory_stats_t   stats;
    vlm_memory_cache_t  *m;

    m = create(100, 4, 1000000);

    for (i = 0; i < 4; i++) {
        put(m, i, 25);
    }

    tap_ok(has(m, 0) && has(m, 1) && has(m, 2) && has(m, 3), "four fit");

    has(m, 0);
    put(m, 4, 25);
    tap_ok(has(m, 0) && !has(m, 1) && has(m, 4),
           "the one longest unused goes");
    tap_is(nfreed, 1, "and is freed");

    key = key_of(2);
    tap_is(vlm_memory_join(m, &key, &wait, &held, &err), VLM_JOIN_HIT,
           "one is used");

    put(m, 5, 80);
    vlm_memory_stats(m, &stats);
    tap_is((long long) stats.bytes, 80, "one large for all others");
    tap_is((long long) stats.alive, 105, "one of them lives on");
    tap_is(content(held), 2, "it can be read");
    tap_ok(!has(m, 2), "but is not found any more");

    vlm_entry_free(m, held);
    vlm_memory_stats(m, &stats);
    tap_is((long long) stats.alive, 80, "until it was given back");

    put(m, 6, 101);
    tap_ok(!has(m, 6) && has(m, 5), "too large: nothing goes for it");

    e = entry_of(m, 5, 10);
    key = key_of(5);
    vlm_memory_put(m, &key, e, VLM_CACHE_MISS);
    vlm_entry_free(m, e);
    vlm_memory_stats(m, &stats);
    tap_is((long long) stats.bytes, 80, "the same again changes nothing");

    vlm_memory_destroy(m);
    tap_is(nfreed, 8, "all are freed");
}


static void
test_bad(void)
{
    int                  i;
    vlm_wait_t           wait, other;
    vlm_entry_t         *e;
    vlm_error_t          err, got;
    vlm_cache_key_t      key;
    vlm_memory_stats_t   stats;
    vlm_memory_cache_t  *m;

    m = create(100, 2, 50000);
    vlm_fail(&err, 400, "invalid_image", "no picture");

    for (i = 0; i < 3; i++) {
        key = key_of(i);
        vlm_memory_bad(m, &key, &err);
    }

    vlm_memory_stats(m, &stats);
    tap_is(stats.bad, 2, "two are kept");

    memset(&got, 0, sizeof(got));
    key = key_of(2);
    tap_is(vlm_memory_join(m, &key, &wait, &e, &got), VLM_JOIN_BAD,
           "a bad picture is known");
    tap_str(got.message, "no picture", "and why");

    usleep(60000);
    tap_is(vlm_memory_join(m, &key, &wait, &e, &got), VLM_JOIN_FIRST,
           "for some time");

    tap_is(vlm_memory_join(m, &key, &other, &e, &got), VLM_JOIN_WAIT,
           "another waits for it");
    vlm_memory_bad(m, &key, &err);

    memset(&got, 0, sizeof(got));
    tap_is(vlm_memory_claim(m, &other, &e, NULL, &got), VLM_JOIN_BAD,
           "and is told");
    tap_is(got.status, 400, "with its status");
    tap_is(vlm_memory_claim(m, &wait, &e, NULL, &got), VLM_JOIN_BAD,
           "as is the first");

    vlm_memory_destroy(m);
}


static void
test_flight(void)
{
    uint32_t             outcome;
    vlm_wait_t           a, b, c;
    vlm_entry_t         *e, *got;
    vlm_error_t          err;
    vlm_cache_key_t      key;
    vlm_memory_stats_t   stats;
    vlm_memory_cache_t  *m;

    m = create(0, 4, 1000000);
    key = key_of(7);

    tap_is(vlm_memory_join(m, &key, &a, &got, &err), VLM_JOIN_FIRST,
           "the first");
    tap_is(vlm_memory_join(m, &key, &b, &got, &err), VLM_JOIN_WAIT,
           "the second waits");
    tap_is(vlm_memory_claim(m, &b, &got, &outcome, &err), VLM_JOIN_WAIT,
           "while Redis is asked");

    vlm_memory_missed(m, &key);
    tap_is(nwoken, 1, "all are woken");
    tap_is(vlm_memory_claim(m, &b, &got, &outcome, &err), VLM_JOIN_LEAD,
           "whoever claims leads");
    tap_is(vlm_memory_claim(m, &a, &got, &outcome, &err), VLM_JOIN_WAIT,
           "the other waits");

    vlm_memory_leave(m, &b);
    tap_is(nwoken, 2, "a leader that leaves wakes");
    tap_is(vlm_memory_claim(m, &a, &got, &outcome, &err), VLM_JOIN_LEAD,
           "the next one leads");
    tap_is(vlm_memory_join(m, &key, &c, &got, &err), VLM_JOIN_WAIT,
           "a third waits");

    e = entry_of(m, 7, 10);
    vlm_memory_put(m, &key, e, VLM_CACHE_MISS);
    vlm_memory_leave(m, &a);
    vlm_entry_free(m, e);
    tap_is(nfreed, 0, "it is kept for the third");
    tap_is(vlm_memory_join(m, &key, &b, &got, &err), VLM_JOIN_WAIT,
           "a fourth comes late");

    got = NULL;
    tap_is(vlm_memory_claim(m, &c, &got, &outcome, &err), VLM_JOIN_HIT,
           "the third has it");
    tap_ok(got != NULL && content(got) == 7 && outcome == VLM_CACHE_JOINED,
           "joined");
    vlm_entry_free(m, got);

    tap_is(vlm_memory_claim(m, &b, &got, &outcome, &err), VLM_JOIN_HIT,
           "so has the fourth");
    vlm_entry_free(m, got);
    tap_is(nfreed, 1, "nothing is kept: there is no room");

    /* from Redis, the first being gone or not */

    tap_is(vlm_memory_join(m, &key, &a, &got, &err), VLM_JOIN_FIRST,
           "asked again");
    tap_is(vlm_memory_join(m, &key, &b, &got, &err), VLM_JOIN_WAIT, "twice");
    e = entry_of(m, 7, 10);
    vlm_memory_put(m, &key, e, VLM_CACHE_HIT_REDIS);
    vlm_entry_free(m, e);

    vlm_memory_claim(m, &a, &got, &outcome, &err);
    tap_is(outcome, VLM_CACHE_HIT_REDIS, "the first's outcome");
    vlm_entry_free(m, got);
    vlm_memory_claim(m, &b, &got, &outcome, &err);
    tap_is(outcome, VLM_CACHE_JOINED, "the second's");
    vlm_entry_free(m, got);

    vlm_memory_join(m, &key, &a, &got, &err);
    vlm_memory_leave(m, &a);
    vlm_memory_leave(m, &a);
    tap_is(vlm_memory_join(m, &key, &b, &got, &err), VLM_JOIN_WAIT,
           "a look-up goes on when its request has left");
    vlm_memory_missed(m, &key);
    tap_is(vlm_memory_claim(m, &b, &got, &outcome, &err), VLM_JOIN_LEAD,
           "and is of use");
    vlm_memory_leave(m, &b);

    vlm_memory_stats(m, &stats);
    tap_ok(stats.alive == 0 && stats.entries == 0, "nothing is left");

    vlm_memory_destroy(m);
}


/* many threads, few keys; each new picture is made once */

static vlm_memory_cache_t  *shared;
static int                  made[NKEYS];        /* atomic */
static int                  wrong;


static void
one_request(int n, uint64_t *seed)
{
    uint32_t          outcome;
    vlm_join_t        rc;
    vlm_wait_t        wait;
    vlm_entry_t      *e;
    vlm_error_t       err;
    vlm_cache_key_t   key;

    key = key_of(n);
    rc = vlm_memory_join(shared, &key, &wait, &e, &err);

    if (rc == VLM_JOIN_FIRST) {
        vlm_memory_missed(shared, &key);
    }

    while (rc == VLM_JOIN_FIRST || rc == VLM_JOIN_WAIT) {
        rc = vlm_memory_claim(shared, &wait, &e, &outcome, &err);

        if (rc == VLM_JOIN_WAIT && tap_random(seed) % 64 == 0) {
            break;
        }

        if (rc == VLM_JOIN_LEAD && tap_random(seed) % 4 == 0) {
            break;
        }
    }

    if (rc == VLM_JOIN_LEAD && tap_random(seed) % 4 != 0) {
        e = entry_of(shared, n, 10);
        __atomic_add_fetch(&made[n], 1, __ATOMIC_RELAXED);
        vlm_memory_put(shared, &key, e, VLM_CACHE_MISS);
        rc = VLM_JOIN_HIT;
    }

    vlm_memory_leave(shared, &wait);

    if (rc == VLM_JOIN_HIT) {
        if (content(e) != n) {
            __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
        }

        vlm_entry_free(shared, e);
    }
}


static void *
thread_main(void *data)
{
    int       i;
    uint64_t  seed = (uint64_t) (uintptr_t) data;

    for (i = 0; i < ROUNDS; i++) {
        one_request((int) (tap_random(&seed) % NKEYS), &seed);
    }

    return NULL;
}


static void
test_threads(uint64_t limit, int once)
{
    int                  i, n;
    pthread_t            threads[NTHREADS];
    vlm_memory_stats_t   stats;

    shared = create(limit, 4, 1000000);
    memset(made, 0, sizeof(made));
    wrong = 0;

    for (i = 0; i < NTHREADS; i++) {
        if (pthread_create(&threads[i], NULL, thread_main,
                           (void *) (uintptr_t) (i + 1))
            != 0)
        {
            exit(1);
        }
    }

    for (i = 0; i < NTHREADS; i++) {
        pthread_join(threads[i], NULL);
    }

    for (n = 0, i = 0; i < NKEYS; i++) {
        n += made[i];
    }

    vlm_memory_stats(shared, &stats);
    tap_is(wrong, 0, "%d threads: everybody has the right one", NTHREADS);

    if (once) {
        tap_is(n, NKEYS, "each was made once");

    } else {
        tap_ok(n > NKEYS, "those that went were made again: %d", n);
    }

    tap_ok(stats.bytes <= limit && stats.alive == stats.bytes,
           "within the limit");

    vlm_memory_destroy(shared);
    tap_is(nfreed, n, "all are freed");
}


int
main(void)
{
    test_recent();
    test_bad();
    test_flight();
    test_threads(NKEYS * 10, 1);
    test_threads(70, 0);

    return tap_done();
}
