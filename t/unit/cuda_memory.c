
/*
 * Memory in one piece: parts that come and go in any order, what is on the
 * queues when they go, and what is said when nothing fits.  On the shim alone.
 */

#include <pthread.h>

#include "t/unit/cuda_rig.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define HIDDEN(p)   __asan_address_is_poisoned(p)
#else
#define HIDDEN(p)   1
#endif


#define SIZE        ((size_t) 1 << 20)
#define PARTS       64
#define ROUNDS      4000
#define THREADS     3
#define THREAD_ROUNDS  400


static uint32_t  state = 1;


static uint32_t
below(uint32_t n)
{
    state = state * 1664525u + 1013904223u;

    return (uint32_t) (((uint64_t) state * n) >> 32);
}


static vlm_reserve_t
reserved(const rig_t *rig)
{
    vlm_reserve_t  memory, host;

    rig->ops->reserved(rig->dev, &memory, &host);

    return memory;
}


static void
reserve(rig_t *rig, size_t size, size_t host_size)
{
    char  err[256];

    if (rig->ops->reserve(rig->dev, size, host_size, err, sizeof(err)) != 0) {
        rig_stop("reserve", err);
    }
}


static void
test_before(rig_t *rig)
{
    char      err[256];
    void     *p;
    uint64_t  n;

    n = vlm_emu_allocations();
    p = rig->ops->alloc(rig->dev, 100);
    tap_is((long long) (vlm_emu_allocations() - n), 1, "the system's memory");
    tap_is((long long) reserved(rig).size, 0, "nothing is reserved");

    reserve(rig, SIZE, SIZE / 4);
    tap_is((long long) reserved(rig).size, (long long) SIZE, "a piece");
    tap_is((long long) reserved(rig).used, 0, "is unused");

    rig->ops->free(rig->dev, p);
    tap_is((long long) reserved(rig).used, 0, "and does not get others'");

    tap_is(rig->ops->reserve(rig->dev, 1, 0, err, sizeof(err)), -1, "%s",
           err);
}


/* one size follows another; the rest is told with numbers */

static void
test_full(rig_t *rig)
{
    int             i;
    char           *p[4];
    vlm_reserve_t   is;

    is = reserved(rig);
    tap_is((long long) is.largest, (long long) SIZE - 1,
           "what can be had at most");
    tap_ok(rig->ops->alloc(rig->dev, SIZE) == NULL, "not more");
    tap_ok(rig->ops->alloc(rig->dev, SIZE_MAX - 3) == NULL,
           "far from it");

    p[0] = rig->ops->alloc(rig->dev, is.largest);
    tap_ok(p[0] != NULL, "all of it");
    tap_is((long long) reserved(rig).largest, 0, "nothing is left");
    tap_ok(rig->ops->alloc(rig->dev, 0) == NULL, "not even for no bytes");
    rig->ops->free(rig->dev, p[0]);

    for (i = 0; i < 4; i++) {
        p[i] = rig->ops->alloc(rig->dev, SIZE / 4 - 1);
    }

    tap_ok(p[0] != NULL && p[1] > p[0] && p[2] > p[1] && p[3] > p[2],
           "four quarters");
    tap_is((long long) reserved(rig).used, (long long) SIZE, "are all");

    rig->ops->free(rig->dev, p[1]);
    rig->ops->free(rig->dev, p[3]);
    is = reserved(rig);
    tap_is((long long) (is.size - is.used), (long long) SIZE / 2,
           "half is free");
    tap_is((long long) is.largest, (long long) SIZE / 4 - 1,
           "but not in one piece");

    rig->ops->free(rig->dev, p[2]);
    tap_is((long long) reserved(rig).largest, (long long) SIZE / 4 * 3 - 1,
           "neighbours join");

    rig->ops->free(rig->dev, p[0]);
    rig->ops->free(rig->dev, NULL);
    tap_is((long long) reserved(rig).used, 0, "all is free");
    tap_is((long long) reserved(rig).peak, (long long) SIZE, "the peak");
}


/* many sizes in random order, each with its own bytes to its end */

static void
test_soak(rig_t *rig)
{
    int             i, n, wrong, failed;
    char           *p[PARTS];
    size_t          k, size[PARTS];
    uint64_t        allocations;
    vlm_reserve_t   is;

    memset(p, 0, sizeof(p));
    allocations = vlm_emu_allocations();
    wrong = 0;
    failed = 0;

    for (n = 0; n < ROUNDS; n++) {
        i = (int) below(PARTS);

        if (p[i] == NULL) {
            size[i] = below(4) != 0 ? below(3000) : below((uint32_t) SIZE / 4);
            p[i] = rig->ops->alloc(rig->dev, size[i]);
            failed += p[i] == NULL;

            if (p[i] != NULL) {
                wrong += (uintptr_t) p[i] % VLM_RESERVE_ALIGN != 0
                         || !HIDDEN(p[i] + size[i]);
                memset(p[i], i, size[i]);
            }

            continue;
        }

        for (k = 0; k < size[i]; k++) {
            wrong += p[i][k] != (char) i;
        }

        rig->ops->free(rig->dev, p[i]);
        (void) reserved(rig);
        wrong += size[i] != 0 && !HIDDEN(p[i]);
        p[i] = NULL;
    }

    tap_is(wrong, 0, "parts do not touch each other");
    tap_ok(failed > 0 && failed < ROUNDS / 2, "%d did not fit", failed);

    for (i = 0; i < PARTS; i++) {
        rig->ops->free(rig->dev, p[i]);
    }

    is = reserved(rig);
    tap_ok(is.used == 0 && is.largest == SIZE - 1, "one piece again");
    tap_is((long long) (vlm_emu_allocations() - allocations), 0,
           "the system was not asked");
}


/* a part whose last reader is still on a queue is not handed out */

static void
test_order(rig_t *rig, int fenced)
{
    int           i;
    char          err[256];
    void         *a, *b;
    uint8_t       ones[512], back[512];
    vlm_queue_t  *other;
    vlm_fence_t  *fence;

    memset(ones, 1, sizeof(ones));
    other = rig->ops->queue_create(rig->dev, 1);
    fence = rig->ops->fence_create(rig->dev);

    if (other == NULL || fence == NULL) {
        rig_stop("queue", "not created");
    }

    a = rig->ops->alloc(rig->dev, SIZE / 2);
    rig->ops->upload(other, a, ones, sizeof(ones));
    rig->ops->download(other, back, a, sizeof(ones));
    rig->ops->record(other, fence);
    rig->ops->free(rig->dev, a);

    b = rig->ops->alloc(rig->dev, SIZE / 2);
    tap_ok(b == NULL, "what a queue may use is not reused");

    /* that another queue is done says nothing */

    tap_is(rig->ops->sync(rig->q, err, sizeof(err)), 0, "the other's sync");
    b = rig->ops->alloc(rig->dev, SIZE / 2);
    tap_ok(b == NULL, "helps nothing");

    for (i = 0; fenced && i < 1000 && !rig->ops->reached(fence); i++) {
        /* void */
    }

    if (!fenced) {
        tap_is(rig->ops->sync(other, err, sizeof(err)), 0, "its own");
    }

    b = rig->ops->alloc(rig->dev, SIZE / 2);
    tap_ok(b != NULL && b == a, "once it is done, %s",
           fenced ? "as a fence tells" : "by sync()");

    tap_is(rig->ops->sync(other, err, sizeof(err)), 0, "all");
    tap_ok(memcmp(back, ones, sizeof(ones)) == 0, "was read in time");

    rig->ops->free(rig->dev, b);
    rig->ops->fence_destroy(fence);
    rig->ops->queue_destroy(other);
    tap_is((long long) reserved(rig).used, 0, "no queue holds it up");
}


/* pinned memory falls back to the system's */

static void
test_host(rig_t *rig)
{
    void           *p, *more;
    uint64_t        n;
    vlm_reserve_t   memory, host;

    n = vlm_emu_allocations();
    p = rig->ops->host_alloc(rig->dev, SIZE / 4 - 1);
    rig->ops->reserved(rig->dev, &memory, &host);
    tap_is((long long) host.used, (long long) SIZE / 4, "pinned memory");
    tap_is((long long) (vlm_emu_allocations() - n), 0, "of its piece");

    more = rig->ops->host_alloc(rig->dev, 100);
    tap_ok(more != NULL && vlm_emu_allocations() - n == 1,
           "and of the system");

    rig->ops->host_free(rig->dev, more);
    rig->ops->host_free(rig->dev, p);
    rig->ops->reserved(rig->dev, &memory, &host);
    tap_is((long long) host.used, 0, "all is free");
}


/* threads with a queue each: what one has, no other writes to */

typedef struct {
    rig_t              *rig;
    uint8_t             mark;
    int                 wrong;
    int                 failed;
} busy_t;


static void *
busy_main(void *data)
{
    int           i;
    char          err[256];
    void         *p;
    size_t        k;
    busy_t       *b = data;
    uint8_t       in[700], out[700];
    vlm_queue_t  *q;

    q = b->rig->ops->queue_create(b->rig->dev, b->mark % 2);
    memset(in, b->mark, sizeof(in));

    for (i = 0; i < THREAD_ROUNDS && q != NULL; i++) {
        k = (size_t) (i * 37 + b->mark * 11) % sizeof(in) + 1;
        p = b->rig->ops->alloc(b->rig->dev, k);

        if (p == NULL) {
            b->failed++;
            b->wrong += b->rig->ops->sync(q, err, sizeof(err)) != 0;
            continue;
        }

        memset(out, 0, sizeof(out));
        b->rig->ops->upload(q, p, in, k);
        b->rig->ops->download(q, out, p, k);
        b->rig->ops->free(b->rig->dev, p);

        if (i % 5 == 0) {
            b->wrong += b->rig->ops->sync(q, err, sizeof(err)) != 0
                        || memcmp(in, out, k) != 0;
        }
    }

    b->wrong += q == NULL || b->rig->ops->sync(q, err, sizeof(err)) != 0;
    b->rig->ops->queue_destroy(q);

    return NULL;
}


static void
test_threads(rig_t *rig)
{
    int        i, wrong, failed;
    busy_t     b[THREADS];
    pthread_t  threads[THREADS];

    wrong = 0;
    failed = 0;
    memset(b, 0, sizeof(b));

    for (i = 0; i < THREADS; i++) {
        b[i].rig = rig;
        b[i].mark = (uint8_t) (i + 1);

        if (pthread_create(&threads[i], NULL, busy_main, &b[i]) != 0) {
            rig_stop("thread", "not created");
        }
    }

    for (i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        wrong += b[i].wrong;
        failed += b[i].failed;
    }

    tap_is(wrong, 0, "threads do not disturb each other");
    tap_is(failed, 0, "all had memory");
    tap_is((long long) reserved(rig).used, 0, "and gave it back");
}


/* a queue takes what it says, and no more after that */

static void
test_queue(void)
{
    char           err[256];
    rig_t          rig;
    size_t         bytes;
    vlm_limits_t   most;

    memset(&most, 0, sizeof(most));
    most.rows = 300;
    most.seqs = 9;
    most.blocks = 40;
    most.block_size = 16;
    most.heads = 4;
    most.head_dim = 32;
    most.pairs = 16;
    most.vocab = 5000;
    most.adjusts = 700;
    most.patches = 4000;
    most.outputs = 2048;

    rig_open(&rig, RIG_EMU, 0);
    rig.ops->queue_destroy(rig.q);

    bytes = rig.ops->queue_bytes(rig.dev, &most);
    reserve(&rig, bytes, 0);

    rig.q = rig.ops->queue_create(rig.dev, 0);
    tap_is(rig.ops->queue_reserve(rig.q, &most, err, sizeof(err)), 0,
           "a queue for some work");
    tap_is((long long) (bytes - reserved(&rig).used), 0,
           "it takes what it said: %zu", bytes);

    most.rows *= 1000;
    tap_is(rig.ops->queue_reserve(rig.q, &most, err, sizeof(err)), -1, "%s",
           err);
    tap_ok(strstr(err, "no device memory for ") != NULL, "for more");

    rig_close(&rig);
}


int
main(void)
{
    rig_t  rig;

    vlm_emu_seed(7);
    rig_open(&rig, RIG_EMU, 0);

    test_before(&rig);
    test_full(&rig);
    test_soak(&rig);
    test_order(&rig, 0);
    test_order(&rig, 1);
    test_host(&rig);
    test_threads(&rig);

    rig_close(&rig);
    test_queue();

    return tap_done();
}
