
/* the thread pool, the device's choice of instructions, queues, memory */

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "t/unit/lib/tap.h"


#define MAX_TASKS  1000


typedef struct {
    int          runs[MAX_TASKS];       /* not atomic: one worker a task */
    atomic_int   bad_worker;
    atomic_int   inside[8];             /* by worker: never twice at once */
    int          nthreads;
    int          pause;                 /* task 0 sleeps, in us */
} tasks_t;


static void
task(void *arg, int number, int worker)
{
    tasks_t  *t = arg;

    if (worker < 0 || worker >= t->nthreads
        || atomic_fetch_add(&t->inside[worker], 1) != 0)
    {
        atomic_store(&t->bad_worker, 1);
        return;
    }

    if (number == 0 && t->pause != 0) {
        usleep(t->pause);
    }

    t->runs[number]++;

    atomic_fetch_sub(&t->inside[worker], 1);
}


/* ntasks of them ran once in each of so many runs, others never */

static int
all_ran(const tasks_t *t, int ntasks, int runs)
{
    int  i;

    for (i = 0; i < MAX_TASKS; i++) {

        if (t->runs[i] != (i < ntasks ? runs : 0)) {
            tap_diag("task %d ran %d times", i, t->runs[i]);
            return 0;
        }
    }

    return !atomic_load(&t->bad_worker);
}


static void
test_pool(int nthreads)
{
    int          i, runs;
    char         err[256] = "";
    tasks_t      t;
    vlm_pool_t  *pool;

    static const int  counts[] = { 0, 1, 2, 7, 100, MAX_TASKS };

    pool = vlm_pool_create(nthreads, err, sizeof(err));
    if (!tap_ok(pool != NULL, "a pool of %d %s", nthreads, err)) {
        return;
    }

    tap_is(vlm_pool_size(pool), nthreads, "its size");

    for (i = 0; i < 6; i++) {
        memset(&t, 0, sizeof(tasks_t));
        t.nthreads = nthreads;

        for (runs = 0; runs < 50; runs++) {
            vlm_pool_run(pool, counts[i], task, &t);
        }

        tap_ok(all_ran(&t, counts[i], runs), "%d threads, %d tasks, %d runs",
               nthreads, counts[i], runs);
    }

    /* workers fall asleep between runs, and the caller in them */

    memset(&t, 0, sizeof(tasks_t));
    t.nthreads = nthreads;
    t.pause = 2000;

    for (runs = 0; runs < 10; runs++) {
        vlm_pool_run(pool, 8, task, &t);
        usleep(runs % 2 ? 1500 : 0);
    }

    tap_ok(all_ran(&t, 8, runs), "%d threads: with pauses", nthreads);

    vlm_pool_destroy(pool);
}


static void
test_errors(void)
{
    char              err[256];
    vlm_device_t     *dev;
    const vlm_ops_t  *ops;

    err[0] = '\0';
    tap_ok(vlm_pool_create(0, err, sizeof(err)) == NULL, "no thread");
    tap_str(err, "0 threads: must be between 1 and 1024", "says so");

    err[0] = '\0';
    dev = vlm_cpu_device(100000, &ops, err, sizeof(err));
    tap_ok(dev == NULL, "too many threads");
    tap_str(err, "100000 threads: must be between 1 and 1024", "says so");

    vlm_pool_destroy(NULL);
    vlm_cpu_device_destroy(NULL);
}


static void
test_choice(void)
{
    int               i, best;
    char              err[256], name[32];
    vlm_device_t     *dev;
    const vlm_ops_t  *ops;

    static const char  *names[] = { "scalar", "avx2", "avx512" };

    best = 0;

    for (i = 0; i < 3; i++) {
        err[0] = '\0';
        ops = NULL;
        setenv("VLM_CPU", names[i], 1);
        dev = vlm_cpu_device(1, &ops, err, sizeof(err));

        if (!vlm_cpu_has_isa(i)) {
            snprintf(name, sizeof(name), "this CPU has no %s", names[i]);
            tap_ok(dev == NULL, "VLM_CPU=%s: not here", names[i]);
            tap_str(err, name, "says so");
            continue;
        }

        best = i;
        snprintf(name, sizeof(name), "cpu/%s", names[i]);
        tap_ok(dev != NULL, "VLM_CPU=%s %s", names[i], err);
        tap_str(ops != NULL ? ops->name : "none", name, "its name");
        vlm_cpu_device_destroy(dev);
    }

    setenv("VLM_CPU", "sse9", 1);
    dev = vlm_cpu_device(1, &ops, err, sizeof(err));
    tap_ok(dev == NULL && strstr(err, "VLM_CPU=sse9") != NULL,
           "an unknown set: %s", err);

    unsetenv("VLM_CPU");
    err[0] = '\0';
    dev = vlm_cpu_device(0, &ops, err, sizeof(err));

    if (tap_ok(dev != NULL, "the default device %s", err)) {
        tap_is(dev->isa, best, "has the best set");
        tap_is(vlm_pool_size(dev->pool), vlm_cpu_count(), "and all CPUs");
    }

    tap_ok(vlm_cpu_count() >= 1
           && vlm_cpu_count() <= sysconf(_SC_NPROCESSORS_CONF),
           "CPUs: %d", vlm_cpu_count());

    vlm_cpu_device_destroy(dev);
}


static void
test_queue(void)
{
    int               i, rc;
    char              err[256] = "", data[64];
    float            *p;
    vlm_queue_t      *q;
    vlm_device_t     *dev;
    const vlm_ops_t  *ops;

    dev = vlm_cpu_device(3, &ops, err, sizeof(err));
    q = ops->queue_create(dev, 1);

    if (!tap_ok(q != NULL, "a queue")) {
        return;
    }

    tap_is(ops->sync(q, err, sizeof(err)), 0, "an idle queue");

    vlm_cpu_fail(q, "first %d", 1);
    vlm_cpu_fail(q, "second");
    rc = ops->sync(q, err, sizeof(err));
    tap_is(rc, -1, "a failed queue");
    tap_str(err, "first 1", "the first failure");
    tap_is(ops->sync(q, err, sizeof(err)), 0, "once");

    p = ops->alloc(dev, 100);
    tap_ok(p != NULL && (uintptr_t) p % 64 == 0, "aligned");
    ops->upload(q, p, "0123456789", 11);
    ops->download(q, data, p, 11);
    tap_str(data, "0123456789", "there and back");
    ops->free(dev, p);

    p = ops->alloc(dev, 0);
    tap_ok(p != NULL, "no bytes");
    ops->free(dev, p);

    p = ops->alloc(dev, (size_t) 5 << 20);
    tap_ok(p != NULL && (uintptr_t) p % ((size_t) 2 << 20) == 0,
           "a large one on a huge page");
    memset(p, 1, (size_t) 5 << 20);
    ops->free(dev, p);

    tap_ok(ops->alloc(dev, SIZE_MAX - 3) == NULL, "more than there is");

    tap_is(vlm_cpu_scratch_all(q, 1000), 0, "work space");
    p = vlm_cpu_scratch(q, 2);
    tap_is(vlm_cpu_scratch_all(q, 500), 0, "less");
    tap_ok(vlm_cpu_scratch(q, 2) == p, "is the same");
    tap_is(vlm_cpu_scratch_all(q, 100000), 0, "more");

    for (i = 0; i < 3; i++) {
        memset(vlm_cpu_scratch(q, i), i, 100000);
    }

    tap_ok(vlm_cpu_shared(q, 200) != NULL, "shared");
    tap_ok(vlm_cpu_shared(q, SIZE_MAX - 3) == NULL, "too much");
    rc = ops->sync(q, err, sizeof(err));
    tap_ok(rc == -1 && strstr(err, "no memory") != NULL, "%s", err);

    ops->queue_destroy(q);
    ops->queue_destroy(NULL);
    vlm_cpu_device_destroy(dev);
}


int
main(void)
{
    test_pool(1);
    test_pool(2);
    test_pool(3);
    test_pool(8);
    test_errors();
    test_choice();
    test_queue();

    return tap_done();
}
