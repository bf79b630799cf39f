
/*
 * Memory, streams and events of the shim.  Work waits in its stream until
 * something waits for it; now and then a piece of any stream runs early, so
 * that neither order may be relied on.
 */

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/emu/emu_private.h"


/* what "a device" has, for code that asks how much is left */
#define MEMORY_TOTAL  ((size_t) 2 << 30)

#define MAX_STREAMS   64
#define MAX_ALLOWED   64

/* an event is asked for, on average, before it is made to happen */
#define QUERIES       8


typedef vlm_emu_work_t  work_t;

struct vlm_emu_event_s {
    vlm_emu_stream_t    stream;                 /* of the last record */
    uint64_t            recorded;
    uint64_t            done;
};

typedef struct {
    void               *to;
    const void         *from;
    size_t              size;
    int                 byte;
} copy_t;


static work_t *add(vlm_emu_stream_t s, size_t size);
static void run_one(vlm_emu_stream_t s);
static void run_all(void);
static int break_capture(vlm_emu_stream_t s);
static int break_captures(const pthread_t *thread);


pthread_mutex_t          vlm_emu_lock = PTHREAD_MUTEX_INITIALIZER;
static vlm_emu_stream_t  streams[MAX_STREAMS];
static int               nstreams;
static uint64_t          random_state;
static int               failed;                /* sticky, as on a device */
static char              failure[256];
static uint64_t          allocations;
static uint64_t          calls;

/* kernels that may have more shared memory */

static struct {
    const void          *kernel;
    size_t               size;
} allowed[MAX_ALLOWED];

static int               nallowed;


void
vlm_emu_seed(uint64_t seed)
{
    pthread_mutex_lock(&vlm_emu_lock);
    random_state = seed * 0x9e3779b97f4a7c15 + 1;
    pthread_mutex_unlock(&vlm_emu_lock);
}


unsigned
vlm_emu_below(unsigned n)
{
    const char  *seed;

    if (random_state == 0) {
        seed = getenv("VLM_EMU_SEED");
        random_state = seed != NULL ? strtoull(seed, NULL, 10) : 0;
        random_state = random_state * 0x9e3779b97f4a7c15 + 1;
    }

    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;

    return (unsigned) (((random_state >> 32) * n) >> 32);
}


void
vlm_emu_fail(int rc, const char *fmt, ...)
{
    va_list  args;

    if (failed) {
        return;
    }

    va_start(args, fmt);
    vsnprintf(failure, sizeof(failure), fmt, args);
    va_end(args);

    failed = rc;
}


const char *
vlm_emu_error(int rc)
{
    switch (rc) {

    case 0:
        return "no error";

    case VLM_EMU_MEMORY:
        return "out of memory";

    case VLM_EMU_CAPTURING:
        return "operation not permitted when stream is capturing";

    case VLM_EMU_BROKEN:
        return "operation failed due to a previous error during capture";

    default:
        return failure;
    }
}


/* fails once and for all: forgets it only for tests of the shim itself */

void
vlm_emu_reset(void)
{
    pthread_mutex_lock(&vlm_emu_lock);
    failed = 0;
    pthread_mutex_unlock(&vlm_emu_lock);
}


int
vlm_emu_failed(void)
{
    return failed;
}


vlm_emu_work_t *
vlm_emu_add(vlm_emu_work_t ***tail, size_t size)
{
    work_t  *w;

    w = calloc(1, sizeof(work_t) + size);
    if (w == NULL) {
        vlm_emu_fail(VLM_EMU_INVALID, "no memory for work of %zu bytes",
                     size);
        return NULL;
    }

    w->size = size;
    **tail = w;
    *tail = &w->next;

    return w;
}


static work_t *
add(vlm_emu_stream_t s, size_t size)
{
    calls++;

    return vlm_emu_add(s->capturing ? &s->captured_tail : &s->tail, size);
}


/* an event that is waited for pulls its own stream along */

static void
run_one(vlm_emu_stream_t s)
{
    int      rc;
    work_t  *w;

    w = s->head;

    if (w->run != NULL) {
        rc = failed ? 0 : w->run(w->arg);

        if (rc != 0) {
            vlm_emu_fail(rc, "work on a stream returned %d", rc);
        }

    } else if (w->source == NULL) {

        if (w->event->done < w->number) {
            w->event->done = w->number;
        }

    } else {
        while (w->event->done < w->number) {
            run_one(w->source);
        }
    }

    s->head = w->next;

    if (s->head == NULL) {
        s->tail = &s->head;
    }

    free(w);
}


void
vlm_emu_run_early(void)
{
    vlm_emu_stream_t  s;

    while (vlm_emu_below(4) == 0) {
        s = streams[vlm_emu_below((unsigned) nstreams)];

        if (s->head != NULL) {
            run_one(s);
        }
    }
}


int
vlm_emu_enqueue(vlm_emu_stream_t s, int (*run)(void *arg), const void *arg,
    size_t size)
{
    int      rc;
    work_t  *w;

    pthread_mutex_lock(&vlm_emu_lock);

    rc = s->capturing ? s->broken : 0;
    w = rc == 0 ? add(s, size) : NULL;

    if (w != NULL) {
        w->run = run;
        memcpy(w->arg, arg, size);
        vlm_emu_run_early();
    }

    rc = rc != 0 ? rc : failed;

    pthread_mutex_unlock(&vlm_emu_lock);

    return rc;
}


static int
run_copy(void *arg)
{
    copy_t  *c = arg;

    memmove(c->to, c->from, c->size);

    return 0;
}


static int
run_set(void *arg)
{
    copy_t  *c = arg;

    memset(c->to, c->byte, c->size);

    return 0;
}


int
vlm_emu_copy(void *to, const void *from, size_t size, int kind,
    vlm_emu_stream_t s)
{
    copy_t  c = { to, from, size, 0 };

    return vlm_emu_enqueue(s, run_copy, &c, sizeof(c));
}


int
vlm_emu_set(void *to, int byte, size_t size, vlm_emu_stream_t s)
{
    copy_t  c = { to, NULL, size, byte };

    return vlm_emu_enqueue(s, run_set, &c, sizeof(c));
}


int
vlm_emu_malloc(void **p, size_t size)
{
    int        rc;
    pthread_t  self = pthread_self();

    pthread_mutex_lock(&vlm_emu_lock);

    allocations++;
    rc = break_captures(&self);

    pthread_mutex_unlock(&vlm_emu_lock);

    if (rc != 0) {
        return rc;
    }

    rc = posix_memalign(p, 256, size);

    if (rc == 0) {
        memset(*p, 0xff, size);
    }

    return rc == 0 ? 0 : VLM_EMU_MEMORY;
}


uint64_t
vlm_emu_allocations(void)
{
    uint64_t  n;

    pthread_mutex_lock(&vlm_emu_lock);
    n = allocations;
    pthread_mutex_unlock(&vlm_emu_lock);

    return n;
}


uint64_t
vlm_emu_calls(void)
{
    uint64_t  n;

    pthread_mutex_lock(&vlm_emu_lock);
    n = calls;
    pthread_mutex_unlock(&vlm_emu_lock);

    return n;
}


void
vlm_emu_called(void)
{
    calls++;
}


/* waits for the whole device, as the real one does */

int
vlm_emu_free(void *p)
{
    int  rc;

    rc = vlm_emu_device_sync();

    if (rc != VLM_EMU_CAPTURING) {
        free(p);
    }

    return rc;
}


int
vlm_emu_malloc_host(void **p, size_t size)
{
    return vlm_emu_malloc(p, size);
}


int
vlm_emu_free_host(void *p)
{
    return vlm_emu_free(p);
}


int
vlm_emu_memory(size_t *left, size_t *total)
{
    *total = MEMORY_TOTAL;
    *left = MEMORY_TOTAL;

    return 0;
}


int
vlm_emu_stream_create(vlm_emu_stream_t *s, unsigned flags, int priority)
{
    int  rc;

    *s = calloc(1, sizeof(struct vlm_emu_stream_s));
    if (*s == NULL) {
        return VLM_EMU_MEMORY;
    }

    (*s)->tail = &(*s)->head;

    pthread_mutex_lock(&vlm_emu_lock);

    rc = nstreams < MAX_STREAMS ? 0 : VLM_EMU_MEMORY;

    if (rc == 0) {
        streams[nstreams++] = *s;
    }

    pthread_mutex_unlock(&vlm_emu_lock);

    if (rc != 0) {
        free(*s);
    }

    return rc;
}


int
vlm_emu_stream_destroy(vlm_emu_stream_t s)
{
    int  i;

    pthread_mutex_lock(&vlm_emu_lock);

    while (s->head != NULL) {
        run_one(s);
    }

    for (i = 0; i < nstreams; i++) {
        if (streams[i] == s) {
            streams[i] = streams[--nstreams];
            break;
        }
    }

    pthread_mutex_unlock(&vlm_emu_lock);

    vlm_emu_work_free(s->captured);
    free(s);

    return 0;
}


int
vlm_emu_stream_sync(vlm_emu_stream_t s)
{
    int  rc;

    pthread_mutex_lock(&vlm_emu_lock);

    rc = break_capture(s);

    while (rc == 0 && s->head != NULL) {
        run_one(s);
    }

    rc = rc != 0 ? rc : failed;

    pthread_mutex_unlock(&vlm_emu_lock);

    return rc;
}


static void
run_all(void)
{
    int  i;

    for (i = 0; i < nstreams; i++) {
        while (streams[i]->head != NULL) {
            run_one(streams[i]);
        }
    }
}


/* what must not be called in a capture breaks it */

static int
break_capture(vlm_emu_stream_t s)
{
    if (!s->capturing) {
        return 0;
    }

    s->broken = VLM_EMU_BROKEN;

    return VLM_EMU_CAPTURING;
}


/* a thread's, or all of them */

static int
break_captures(const pthread_t *thread)
{
    int  i, rc;

    rc = 0;

    for (i = 0; i < nstreams; i++) {

        if ((thread == NULL || pthread_equal(streams[i]->thread, *thread))
            && break_capture(streams[i]) != 0)
        {
            rc = VLM_EMU_CAPTURING;
        }
    }

    return rc;
}


int
vlm_emu_stream_query(vlm_emu_stream_t s)
{
    int  rc;

    pthread_mutex_lock(&vlm_emu_lock);

    rc = break_capture(s);

    if (rc == 0) {
        vlm_emu_run_early();
        rc = failed ? failed : s->head != NULL ? VLM_EMU_NOT_READY : 0;
    }

    pthread_mutex_unlock(&vlm_emu_lock);

    return rc;
}


int
vlm_emu_device_sync(void)
{
    int  rc;

    pthread_mutex_lock(&vlm_emu_lock);

    rc = break_captures(NULL);

    if (rc == 0) {
        run_all();
        rc = failed;
    }

    pthread_mutex_unlock(&vlm_emu_lock);

    return rc;
}


int
vlm_emu_event_create(vlm_emu_event_t *e, unsigned flags)
{
    *e = calloc(1, sizeof(struct vlm_emu_event_s));

    return *e != NULL ? 0 : VLM_EMU_MEMORY;
}


/* work may still name it */

int
vlm_emu_event_destroy(vlm_emu_event_t e)
{
    int  rc;

    pthread_mutex_lock(&vlm_emu_lock);

    run_all();
    rc = failed;

    pthread_mutex_unlock(&vlm_emu_lock);

    free(e);

    return rc;
}


/* (a real device can capture events, too: nobody here does) */

int
vlm_emu_event_record(vlm_emu_event_t e, vlm_emu_stream_t s)
{
    int      rc;
    work_t  *w;

    pthread_mutex_lock(&vlm_emu_lock);

    rc = break_capture(s);
    w = rc == 0 ? add(s, 0) : NULL;

    if (w != NULL) {
        w->event = e;
        w->number = ++e->recorded;
        e->stream = s;
    }

    rc = rc != 0 ? rc : failed;

    pthread_mutex_unlock(&vlm_emu_lock);

    return rc;
}


int
vlm_emu_stream_wait(vlm_emu_stream_t s, vlm_emu_event_t e, unsigned flags)
{
    int      rc;
    work_t  *w;

    pthread_mutex_lock(&vlm_emu_lock);

    /* one that was never recorded is no reason to wait */

    rc = break_capture(s);
    w = rc == 0 && e->recorded != 0 ? add(s, 0) : NULL;

    if (w != NULL) {
        w->event = e;
        w->number = e->recorded;
        w->source = e->stream;
    }

    rc = rc != 0 ? rc : failed;

    pthread_mutex_unlock(&vlm_emu_lock);

    return rc;
}


int
vlm_emu_event_sync(vlm_emu_event_t e)
{
    int        rc;
    pthread_t  self = pthread_self();

    pthread_mutex_lock(&vlm_emu_lock);

    rc = break_captures(&self);

    while (rc == 0 && e->done < e->recorded) {
        run_one(e->stream);
    }

    rc = rc != 0 ? rc : failed;

    pthread_mutex_unlock(&vlm_emu_lock);

    return rc;
}


/* asking again and again gets there, sometimes at a stroke */

int
vlm_emu_event_query(vlm_emu_event_t e)
{
    int        rc;
    pthread_t  self = pthread_self();

    pthread_mutex_lock(&vlm_emu_lock);

    rc = break_captures(&self);

    if (rc != 0) {
        pthread_mutex_unlock(&vlm_emu_lock);
        return rc;
    }

    if (nstreams > 0) {
        vlm_emu_run_early();
    }

    if (vlm_emu_below(QUERIES) == 0) {
        while (e->done < e->recorded) {
            run_one(e->stream);
        }
    }

    rc = failed ? failed : e->done < e->recorded ? VLM_EMU_NOT_READY : 0;

    pthread_mutex_unlock(&vlm_emu_lock);

    return rc;
}


int
vlm_emu_last_error(void)
{
    int  rc;

    pthread_mutex_lock(&vlm_emu_lock);
    rc = failed;
    pthread_mutex_unlock(&vlm_emu_lock);

    return rc;
}


int
vlm_emu_allow_shared(const void *kernel, size_t size)
{
    int  i, rc;

    pthread_mutex_lock(&vlm_emu_lock);

    for (i = 0; i < nallowed && allowed[i].kernel != kernel; i++) {
        /* void */
    }

    if (size > VLM_EMU_SHARED_MOST || i == MAX_ALLOWED
        || (i < nallowed && size < allowed[i].size))
    {
        rc = VLM_EMU_INVALID;

    } else {
        allowed[i].kernel = kernel;
        allowed[i].size = size;
        nallowed = i < nallowed ? nallowed : i + 1;
        rc = 0;
    }

    pthread_mutex_unlock(&vlm_emu_lock);

    return rc;
}


size_t
vlm_emu_shared_allowed(const void *kernel)
{
    int     i;
    size_t  size;

    size = VLM_EMU_SHARED;

    pthread_mutex_lock(&vlm_emu_lock);

    for (i = 0; i < nallowed; i++) {
        if (allowed[i].kernel == kernel) {
            size = allowed[i].size;
        }
    }

    pthread_mutex_unlock(&vlm_emu_lock);

    return size;
}
