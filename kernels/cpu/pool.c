
/*
 * The thread pool.  A run is open while it has tasks to give: workers join an
 * open run, take tasks from a counter, and leave.  The caller closes the run
 * when no task is left and waits only for those who joined, so a worker that
 * is late (asleep, or not scheduled by an overloaded system) delays nobody.
 *
 * state: number of the run (31 bits), open (1 bit), workers inside (32 bits).
 */

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cpu.h"


#define POOL_MAX_THREADS  1024

/* a gap between two operations of a step is shorter, a wakeup is dearer */
#define POOL_SPIN_NS      50000

#define run_open          ((uint64_t) 1 << 32)
#define run_number(s)     ((s) >> 33)
#define run_inside(s)     ((uint32_t) (s))


typedef struct {
    vlm_pool_t          *pool;
    pthread_t            thread;
    int                  id;
} worker_t;

struct vlm_pool_s {
    _Alignas(64) _Atomic uint64_t  state;
    _Alignas(64) atomic_int        next;
    _Alignas(64) atomic_int        sleeping;        /* workers in cond wait */
    atomic_int                     waiting;         /* the caller */
    atomic_int                     stop;

    vlm_task_pt                    fn;
    void                          *arg;
    int                            ntasks;

    int                            size;
    int                            nworkers;        /* threads started */
    int                            spin;
    worker_t                      *workers;
    pthread_mutex_t                lock;
    pthread_cond_t                 opened;
    pthread_cond_t                 done;
};


static int pool_start(vlm_pool_t *pool);
static void *pool_worker(void *data);
static int pool_join(vlm_pool_t *pool, uint64_t *seen);
static int pool_ready(vlm_pool_t *pool, uint64_t seen);
static void pool_work(vlm_pool_t *pool, int worker);
static void pool_wait(vlm_pool_t *pool);
static uint64_t now_ns(void);


static inline void
cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile ("yield");
#endif
}


vlm_pool_t *
vlm_pool_create(int nthreads, char *err, size_t errlen)
{
    vlm_pool_t  *pool;

    if (nthreads < 1 || nthreads > POOL_MAX_THREADS) {
        snprintf(err, errlen, "%d threads: must be between 1 and %d",
                 nthreads, POOL_MAX_THREADS);
        return NULL;
    }

    pool = aligned_alloc(64, sizeof(vlm_pool_t));
    if (pool == NULL) {
        snprintf(err, errlen, "no memory for a thread pool");
        return NULL;
    }

    memset(pool, 0, sizeof(vlm_pool_t));

    pool->size = nthreads;
    pool->spin = nthreads <= vlm_cpu_count();

    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->opened, NULL);
    pthread_cond_init(&pool->done, NULL);

    if (pool_start(pool) != 0) {
        snprintf(err, errlen, "could not start thread %d of %d",
                 pool->nworkers + 1, nthreads);
        vlm_pool_destroy(pool);
        return NULL;
    }

    return pool;
}


static int
pool_start(vlm_pool_t *pool)
{
    int        i;
    worker_t  *w;

    pool->workers = calloc(pool->size, sizeof(worker_t));
    if (pool->workers == NULL) {
        return -1;
    }

    for (i = 1; i < pool->size; i++) {
        w = &pool->workers[i];
        w->pool = pool;
        w->id = i;

        if (pthread_create(&w->thread, NULL, pool_worker, w) != 0) {
            return -1;
        }

        pool->nworkers++;
    }

    return 0;
}


void
vlm_pool_destroy(vlm_pool_t *pool)
{
    int  i;

    if (pool == NULL) {
        return;
    }

    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->stop, 1);
    pthread_cond_broadcast(&pool->opened);
    pthread_mutex_unlock(&pool->lock);

    for (i = 1; i <= pool->nworkers; i++) {
        pthread_join(pool->workers[i].thread, NULL);
    }

    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->opened);
    pthread_cond_destroy(&pool->done);
    free(pool->workers);
    free(pool);
}


int
vlm_pool_size(const vlm_pool_t *pool)
{
    return pool->size;
}


void
vlm_pool_run(vlm_pool_t *pool, int ntasks, vlm_task_pt fn, void *arg)
{
    int       i;
    uint64_t  state;

    if (pool->size == 1 || ntasks <= 1) {

        for (i = 0; i < ntasks; i++) {
            fn(arg, i, 0);
        }

        return;
    }

    /* nobody is inside: the last run was closed and left */

    pool->fn = fn;
    pool->arg = arg;
    pool->ntasks = ntasks;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);

    state = atomic_load_explicit(&pool->state, memory_order_relaxed);
    atomic_store(&pool->state, ((run_number(state) + 1) << 33) | run_open);

    if (atomic_load(&pool->sleeping) != 0) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->opened);
        pthread_mutex_unlock(&pool->lock);
    }

    pool_work(pool, 0);

    state = atomic_fetch_and(&pool->state, ~run_open);

    if (run_inside(state) != 0) {
        pool_wait(pool);
    }
}


static void
pool_work(vlm_pool_t *pool, int worker)
{
    int  task;

    for ( ;; ) {
        task = atomic_fetch_add_explicit(&pool->next, 1,
                                         memory_order_relaxed);
        if (task >= pool->ntasks) {
            return;
        }

        pool->fn(pool->arg, task, worker);
    }
}


/* the caller: until the last worker has left the closed run */

static void
pool_wait(vlm_pool_t *pool)
{
    int       i;
    uint64_t  end;

    end = pool->spin ? now_ns() + POOL_SPIN_NS : 0;

    for (i = 1; pool->spin; i++) {

        if (run_inside(atomic_load(&pool->state)) == 0) {
            return;
        }

        cpu_relax();

        if (i % 64 == 0 && now_ns() > end) {
            break;
        }
    }

    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->waiting, 1);

    while (run_inside(atomic_load(&pool->state)) != 0) {
        pthread_cond_wait(&pool->done, &pool->lock);
    }

    atomic_store(&pool->waiting, 0);
    pthread_mutex_unlock(&pool->lock);
}


static void *
pool_worker(void *data)
{
    uint64_t     state, seen;
    worker_t    *w = data;
    vlm_pool_t  *pool = w->pool;

    seen = 0;

    while (pool_join(pool, &seen) == 0) {

        pool_work(pool, w->id);

        state = atomic_fetch_sub(&pool->state, 1) - 1;

        if ((state & run_open) == 0 && run_inside(state) == 0
            && atomic_load(&pool->waiting))
        {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
    }

    return NULL;
}


/* waits for an open run after run *seen and enters it; -1: stop */

static int
pool_join(vlm_pool_t *pool, uint64_t *seen)
{
    int       i;
    uint64_t  state, end;

    for ( ;; ) {
        end = pool->spin ? now_ns() + POOL_SPIN_NS : 0;

        for (i = 1; pool->spin && !pool_ready(pool, *seen); i++) {

            cpu_relax();

            if (i % 64 == 0 && now_ns() > end) {
                break;
            }
        }

        if (!pool_ready(pool, *seen)) {
            pthread_mutex_lock(&pool->lock);
            atomic_fetch_add(&pool->sleeping, 1);

            while (!pool_ready(pool, *seen)) {
                pthread_cond_wait(&pool->opened, &pool->lock);
            }

            atomic_fetch_sub(&pool->sleeping, 1);
            pthread_mutex_unlock(&pool->lock);
        }

        if (atomic_load(&pool->stop)) {
            return -1;
        }

        state = atomic_load(&pool->state);

        if ((state & run_open) != 0
            && atomic_compare_exchange_strong(&pool->state, &state,
                                              state + 1))
        {
            *seen = run_number(state);
            return 0;
        }
    }
}


static int
pool_ready(vlm_pool_t *pool, uint64_t seen)
{
    uint64_t  state;

    if (atomic_load(&pool->stop)) {
        return 1;
    }

    state = atomic_load(&pool->state);

    return (state & run_open) != 0 && run_number(state) != seen;
}


static uint64_t
now_ns(void)
{
    struct timespec  ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}
