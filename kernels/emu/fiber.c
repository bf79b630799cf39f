
/*
 * Blocks of threads as fibers.  A fiber has a stack of its own from its first
 * turn to its end; one that never waits hands its stack to the next, so a
 * kernel without barriers runs on a single one.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if !defined(__x86_64__) || defined(VLM_EMU_UCONTEXT)
#include <ucontext.h>
#endif

#include "kernels/emu/emu_private.h"

#if defined(VLM_EMU_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif


#define MAX_THREADS     1024
#define WARP            32
#define STACK           ((size_t) 128 * 1024)
#define STACK_GUARD     ((size_t) 4096)
#define SHARED_TAGS     16

/* with the gaps behind its arrays */
#define SHARED_MAX      (VLM_EMU_SHARED_MOST + SHARED_TAGS * 32)


/* one that a thread has begun and not waited for */

typedef struct {
    void               *to;
    const void         *from;
    size_t              size;
} copy_t;

typedef struct {
    void               *sp;
    char               *stack;          /* lowest address; NULL: not begun */
    size_t              stack_size;
    void               *fake_stack;     /* AddressSanitizer's */
    vlm_emu_index_t     index;
    copy_t             *copies;
    int                 ncopies;
    int                 max_copies;
} fiber_t;

typedef struct {
    uint64_t            value[2][WARP];
    int                 line;
    int                 arrived;
    int                 turn;           /* which of the two is written */
} warp_t;

typedef struct {
    const void         *tag;
    void               *data;
} shared_t;

/* the block that runs; fibers[MAIN] is who launched it */

#define MAIN  MAX_THREADS

static struct {
    const vlm_emu_launch_t  *launch;
    fiber_t                  fibers[MAX_THREADS + 1];
    warp_t                   warps[MAX_THREADS / WARP];
    int                      nthreads;
    int                      done;
    int                      ready[MAX_THREADS];
    int                      nready;
    int                      current;
    int                      waiting;       /* at the barrier */
    int                      line;          /* of the barrier */
    int                      last_line;     /* where one waited last */
    char                    *stacks[MAX_THREADS];   /* free ones */
    int                      nstacks;
    char                    *shared;
    size_t                   shared_used;   /* with gaps */
    size_t                   shared_taken;
    shared_t                 tags[SHARED_TAGS];
    int                      ntags;
    char                     failure[160];
} b;

vlm_emu_at_t  vlm_emu_at;


static int run_block(void);
static void begin_block(void);
static int draw_ready(void);
static void go(int to);
static void wait_turn(void);
static int begin_fiber(int i);
static void fiber_main(void);
static void leave(int to);
static void release_lanes(int first, int lanes);
static void give_way(void);
static void *take_shared(size_t size);
static void fail_block(const char *fmt, int first, int second)
    __attribute__((format(printf, 1, 0)));


#if defined(__x86_64__) && !defined(VLM_EMU_UCONTEXT)

/* saves what the System V ABI has callees save */
void vlm_emu_switch(void **save, void *sp);

__asm__(
    ".text\n"
    ".globl vlm_emu_switch\n"
    ".type vlm_emu_switch, @function\n"
    "vlm_emu_switch:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size vlm_emu_switch, . - vlm_emu_switch\n"
);


static void
swap(int from, int to)
{
    vlm_emu_switch(&b.fibers[from].sp, b.fibers[to].sp);
}


/* six registers, where to "return" to, and no caller above that */

static void
first_frame(int i)
{
    void  **sp;

    sp = (void **) (b.fibers[i].stack + STACK) - 8;
    memset(sp, 0, 8 * sizeof(void *));
    sp[6] = (void *) (uintptr_t) fiber_main;

    b.fibers[i].sp = sp;
}

#else

static ucontext_t  contexts[MAX_THREADS + 1];


static void
swap(int from, int to)
{
    swapcontext(&contexts[from], &contexts[to]);
}


static void
first_frame(int i)
{
    getcontext(&contexts[i]);
    contexts[i].uc_stack.ss_sp = b.fibers[i].stack;
    contexts[i].uc_stack.ss_size = STACK;
    contexts[i].uc_link = NULL;
    makecontext(&contexts[i], fiber_main, 0);
}

#endif


int
vlm_emu_run(const vlm_emu_launch_t *launch)
{
    unsigned                x, y, z;
    const vlm_emu_index_t  *n = &launch->block, *grid = &launch->grid;

    if (n->x == 0 || n->y == 0 || n->z == 0 || n->x > MAX_THREADS
        || n->y > MAX_THREADS || n->z > 64
        || (uint64_t) n->x * n->y * n->z > MAX_THREADS || grid->x == 0
        || grid->y == 0 || grid->z == 0 || grid->x > INT32_MAX
        || grid->y > 65535 || grid->z > 65535
        || launch->shared > launch->allowed)
    {
        vlm_emu_fail(VLM_EMU_INVALID, "kernel %s: grid %u x %u x %u, block "
                     "%u x %u x %u, %zu bytes of shared memory, %zu are "
                     "allowed", launch->name, grid->x, grid->y, grid->z,
                     n->x, n->y, n->z, launch->shared, launch->allowed);
        return VLM_EMU_INVALID;
    }

    if (b.shared == NULL) {
        b.shared = aligned_alloc(64, SHARED_MAX);
        if (b.shared == NULL) {
            vlm_emu_fail(VLM_EMU_MEMORY, "no memory for shared memory");
            return VLM_EMU_MEMORY;
        }
    }

    b.launch = launch;
    b.nthreads = (int) (n->x * n->y * n->z);
    vlm_emu_at.block_dim = *n;
    vlm_emu_at.grid_dim = *grid;

    for (z = 0; z < grid->z; z++) {
        for (y = 0; y < grid->y; y++) {
            for (x = 0; x < grid->x; x++) {
                vlm_emu_at.block.x = x;
                vlm_emu_at.block.y = y;
                vlm_emu_at.block.z = z;

                if (run_block() != 0) {
                    return VLM_EMU_FAILURE;
                }
            }
        }
    }

    return 0;
}


static int
run_block(void)
{
    int  i, first;

    begin_block();

    first = draw_ready();

    if (begin_fiber(first) == 0) {
        b.current = MAIN;
        go(first);
    }

    if (b.done == b.nthreads) {
        return 0;
    }

    if (b.failure[0] == '\0') {
        fail_block("%d threads wait at line %d for others that never come",
                   b.nthreads - b.done, b.last_line);
    }

    /* stacks of fibers that will never go on */

    for (i = 0; i < b.nthreads; i++) {
        if (b.fibers[i].stack != NULL) {
#if defined(VLM_EMU_ASAN)
            __asan_unpoison_memory_region(b.fibers[i].stack, STACK);
#endif
            b.stacks[b.nstacks++] = b.fibers[i].stack;
        }
    }

    vlm_emu_fail(VLM_EMU_FAILURE, "kernel %s, block %u, %u, %u: %s",
                 b.launch->name, vlm_emu_at.block.x, vlm_emu_at.block.y,
                 vlm_emu_at.block.z, b.failure);

    return VLM_EMU_FAILURE;
}


static void
begin_block(void)
{
    int              i;
    vlm_emu_index_t  n;

    n = vlm_emu_at.block_dim;

    b.fibers[MAIN].stack = NULL;
    b.done = 0;
    b.waiting = 0;
    b.last_line = 0;
    b.nready = b.nthreads;
    b.ntags = 0;
    b.shared_used = 0;
    b.shared_taken = 0;
    b.failure[0] = '\0';

    memset(b.warps, 0,
           sizeof(warp_t) * (size_t) ((b.nthreads + WARP - 1) / WARP));

#if defined(VLM_EMU_ASAN)
    __asan_poison_memory_region(b.shared, SHARED_MAX);
#endif

    if (b.launch->shared != 0) {
        take_shared(b.launch->shared);
    }

    for (i = 0; i < b.nthreads; i++) {
        b.fibers[i].stack = NULL;
        b.fibers[i].ncopies = 0;
        b.fibers[i].index.x = (unsigned) i % n.x;
        b.fibers[i].index.y = (unsigned) i / n.x % n.y;
        b.fibers[i].index.z = (unsigned) i / n.x / n.y;
        b.ready[i] = i;
    }
}


/* one of those that can run, -1: there is none */

static int
draw_ready(void)
{
    int       thread;
    unsigned  i;

    if (b.nready == 0) {
        return -1;
    }

    i = vlm_emu_below((unsigned) b.nready);
    thread = b.ready[i];
    b.ready[i] = b.ready[--b.nready];

    return thread;
}


static void
go(int to)
{
    int  self;

    self = b.current;
    b.current = to;

    if (to != MAIN) {
        vlm_emu_at.thread = b.fibers[to].index;
    }

#if defined(VLM_EMU_ASAN)
    __sanitizer_start_switch_fiber(&b.fibers[self].fake_stack,
                                   b.fibers[to].stack,
                                   b.fibers[to].stack_size);
#endif

    swap(self, to);

#if defined(VLM_EMU_ASAN)
    __sanitizer_finish_switch_fiber(b.fibers[self].fake_stack, NULL, NULL);
#endif
}


/* lets the others run until someone makes this one ready */

static void
wait_turn(void)
{
    int  next;

    next = draw_ready();

    if (next < 0 || b.failure[0] != '\0' || begin_fiber(next) != 0) {
        next = MAIN;
    }

    if (next != b.current) {
        go(next);
    }
}


/* a stack for a fiber that has none yet; 0, or -1: no memory */

static int
begin_fiber(int i)
{
    char  *p;

    if (b.fibers[i].stack != NULL) {
        return 0;
    }

    if (b.nstacks == 0) {
        p = mmap(NULL, STACK + STACK_GUARD, PROT_READ|PROT_WRITE,
                 MAP_PRIVATE|MAP_ANONYMOUS|MAP_NORESERVE, -1, 0);

        if (p == MAP_FAILED || mprotect(p, STACK_GUARD, PROT_NONE) != 0) {
            fail_block("no memory for stack %d of %d bytes", i, (int) STACK);
            return -1;
        }

        b.stacks[b.nstacks++] = p + STACK_GUARD;
    }

    b.fibers[i].stack = b.stacks[--b.nstacks];
    b.fibers[i].stack_size = STACK;
    b.fibers[i].fake_stack = NULL;
    first_frame(i);

    return 0;
}


/*
 * Runs threads one after another on its stack, as long as the next one has
 * not begun elsewhere.
 */

static void
fiber_main(void)
{
    int  next;

#if defined(VLM_EMU_ASAN)
    const void  *bottom;
    size_t       size;

    __sanitizer_finish_switch_fiber(NULL, &bottom, &size);

    if (b.fibers[MAIN].stack == NULL) {
        /* the block's first: called by the launcher */
        b.fibers[MAIN].stack = (char *) bottom;
        b.fibers[MAIN].stack_size = size;
    }
#endif

    for ( ;; ) {
        b.launch->run(b.launch->arg);
        b.done++;

        if (b.fibers[b.current].ncopies != 0) {
            fail_block("thread %d has ended with %d copies in flight",
                       b.current, b.fibers[b.current].ncopies);
        }

        next = b.failure[0] == '\0' ? draw_ready() : -1;

        if (next < 0 || b.fibers[next].stack != NULL) {
            break;
        }

        b.fibers[next].stack = b.fibers[b.current].stack;
        b.fibers[next].stack_size = STACK;
        b.fibers[b.current].stack = NULL;
        b.current = next;
        vlm_emu_at.thread = b.fibers[next].index;
    }

    leave(next < 0 ? MAIN : next);
}


/* the end of a fiber, whose stack is free as soon as it is left */

static void
leave(int to)
{
    int  self;

    self = b.current;
    b.stacks[b.nstacks++] = b.fibers[self].stack;
    b.fibers[self].stack = NULL;
    b.current = to;

    if (to != MAIN) {
        vlm_emu_at.thread = b.fibers[to].index;
    }

#if defined(VLM_EMU_ASAN)
    __sanitizer_start_switch_fiber(NULL, b.fibers[to].stack,
                                   b.fibers[to].stack_size);
#endif

    swap(self, to);
}


void
vlm_emu_barrier(int line)
{
    int  i;

    if (b.waiting != 0 && line != b.line) {
        fail_block("a barrier at line %d and one at line %d at once", b.line,
                   line);
    }

    b.line = line;
    b.last_line = line;

    if (b.done != 0) {
        fail_block("%d threads have ended before the barrier at line %d",
                   b.done, line);
    }

    if (++b.waiting < b.nthreads || b.failure[0] != '\0') {
        wait_turn();
        return;
    }

    b.waiting = 0;

    for (i = 0; i < b.nthreads; i++) {
        if (i != b.current) {
            b.ready[b.nready++] = i;
        }
    }

    give_way();
}


/*
 * Hands in a lane's value and waits for the other lanes; the result is all
 * values.  The last to come does the common work, if there is any.  A lane
 * cannot come to the next but one meeting before all others have read this
 * one's values: two sets are enough.
 */

static const uint64_t *
meet(uint64_t value, vlm_emu_together_pt together, int line)
{
    int      turn, lanes, first;
    warp_t  *w;

    first = b.current / WARP * WARP;
    lanes = b.nthreads - first < WARP ? b.nthreads - first : WARP;
    w = &b.warps[b.current / WARP];
    turn = w->turn;

    if (w->arrived != 0 && w->line != line) {
        fail_block("lanes of a warp meet at line %d and at line %d", w->line,
                   line);
    }

    if (together != NULL && lanes != WARP) {
        fail_block("a matrix in a warp of %d lanes at line %d", lanes, line);
    }

    w->value[turn][b.current - first] = value;
    w->line = line;
    b.last_line = line;

    if (++w->arrived < lanes || b.failure[0] != '\0') {
        wait_turn();

    } else {
        w->arrived = 0;
        w->turn = !turn;

        if (together != NULL) {
            together(w->value[turn], line);
        }

        release_lanes(first, lanes);
        give_way();
    }

    return w->value[turn];
}


uint64_t
vlm_emu_shuffle(uint64_t value, int from, int line)
{
    int  lanes;

    lanes = b.nthreads - b.current / WARP * WARP;

    if (from < 0 || from >= WARP || from >= lanes) {
        fail_block("a shuffle from lane %d at line %d", from, line);
        from = 0;
    }

    return meet(value, NULL, line)[from];
}


int
vlm_emu_any(int value, int line)
{
    int              i, any;
    const uint64_t  *all;

    all = meet(value != 0, NULL, line);
    any = 0;

    for (i = 0; i < WARP && i < b.nthreads - b.current / WARP * WARP; i++) {
        any |= all[i] != 0;
    }

    return any;
}


void
vlm_emu_meet(void *mine, vlm_emu_together_pt together, int line)
{
    (void) meet((uintptr_t) mine, together, line);
}


/*
 * What was there is lost at once, and what comes is read when it is waited
 * for: whoever needs the one or changes the other too early sees it.
 */

void
vlm_emu_copy_async(void *to, const void *from, size_t size, int line)
{
    int       n;
    copy_t   *p;
    fiber_t  *f;

    f = &b.fibers[b.current];

    if ((size != 4 && size != 8 && size != 16) || (uintptr_t) to % size != 0
        || (uintptr_t) from % size != 0)
    {
        fail_block("a copy of %d bytes, or not between multiples of it, at "
                   "line %d", (int) size, line);
        return;
    }

    if ((char *) to < b.shared || (char *) to >= b.shared + b.shared_used) {
        fail_block("a copy of %d bytes not to shared memory, at line %d",
                   (int) size, line);
        return;
    }

    if (f->ncopies == f->max_copies) {
        n = f->max_copies != 0 ? 2 * f->max_copies : 16;
        p = realloc(f->copies, (size_t) n * sizeof(copy_t));

        if (p == NULL) {
            fail_block("no memory for %d copies at line %d", n, line);
            return;
        }

        f->copies = p;
        f->max_copies = n;
    }

    memset(to, 0xff, size);
    f->copies[f->ncopies].to = to;
    f->copies[f->ncopies].from = from;
    f->copies[f->ncopies++].size = size;
}


void
vlm_emu_copy_wait(void)
{
    int       i;
    fiber_t  *f;

    f = &b.fibers[b.current];

    for (i = 0; i < f->ncopies; i++) {
        memcpy(f->copies[i].to, f->copies[i].from, f->copies[i].size);
    }

    f->ncopies = 0;
}


void
vlm_emu_wrong(const char *what, int number, int line)
{
    fail_block(what, number, line);
}


static void
release_lanes(int first, int lanes)
{
    int  i;

    for (i = first; i < first + lanes; i++) {
        if (i != b.current) {
            b.ready[b.nready++] = i;
        }
    }
}


/* the last to arrive is not the first to go on */

static void
give_way(void)
{
    if (b.nready != 0) {
        b.ready[b.nready++] = b.current;
        wait_turn();
    }
}


void *
vlm_emu_dynamic(void)
{
    return b.shared;
}


void *
vlm_emu_shared(const void *tag, size_t size)
{
    int  i;

    for (i = 0; i < b.ntags; i++) {
        if (b.tags[i].tag == tag) {
            return b.tags[i].data;
        }
    }

    if (b.ntags == SHARED_TAGS) {
        fail_block("more than %d arrays of shared memory, at line %d",
                   SHARED_TAGS, b.last_line);
        return b.shared;
    }

    b.tags[b.ntags].tag = tag;
    b.tags[b.ntags].data = take_shared(size);

    return b.tags[b.ntags++].data;
}


/* from a block's memory, with NaNs in it and a gap behind that traps */

static void *
take_shared(size_t size)
{
    char    *p;
    size_t   most;

    p = b.shared + b.shared_used;

    most = b.launch->allowed > VLM_EMU_SHARED ? VLM_EMU_SHARED_MOST
                                              : VLM_EMU_SHARED;

    if (size > most - b.shared_taken) {
        fail_block("%d bytes of shared memory after %d", (int) size,
                   (int) b.shared_taken);
        return b.shared;
    }

    b.shared_taken += (size + 15) / 16 * 16;

#if defined(VLM_EMU_ASAN)
    __asan_unpoison_memory_region(p, size);
#endif

    memset(p, 0xff, size);
    b.shared_used += (size + 31) / 16 * 16;

    return p;
}


static void
fail_block(const char *fmt, int first, int second)
{
    if (b.failure[0] == '\0') {
        snprintf(b.failure, sizeof(b.failure), fmt, first, second);
    }
}
