
/*
 * The shim itself: blocks, barriers, shuffles, shared memory, streams,
 * graphs.
 */

#include <string.h>

#include "kernels/emu/emu.h"
#include "t/unit/lib/tap.h"


static int  out[4096];
static int  broken;             /* which rule the kernel breaks */


static int
run(vlm_emu_call_pt kernel, unsigned grid, unsigned block, size_t shared)
{
    vlm_emu_launch_t  l;

    memset(&l, 0, sizeof(l));
    l.name = "test";
    l.grid.x = grid;
    l.grid.y = 2;
    l.grid.z = 1;
    l.block.x = block;
    l.block.y = 1;
    l.block.z = 1;
    l.shared = shared;
    l.allowed = VLM_EMU_SHARED;
    l.run = kernel;

    return vlm_emu_run(&l);
}


/* every thread adds what its neighbours wrote before the barrier */

static void
neighbours(void *arg)
{
    static char  tag;
    int         *a, *d, i, n, next;

    i = (int) vlm_emu_at.thread.x;
    n = (int) vlm_emu_at.block_dim.x;
    next = (i + 1) % n;

    a = vlm_emu_shared(&tag, (size_t) n * sizeof(int));
    d = vlm_emu_dynamic();

    a[i] = i;
    d[i] = 2 * i;
    vlm_emu_barrier(__LINE__);

    i = a[next] + d[next];
    vlm_emu_barrier(__LINE__);

    a[vlm_emu_at.thread.x] = i;
    vlm_emu_barrier(__LINE__);

    out[(vlm_emu_at.block.y * vlm_emu_at.grid_dim.x + vlm_emu_at.block.x) * n
        + vlm_emu_at.thread.x] = a[vlm_emu_at.thread.x];
}


/* sums over lanes, many times, to find values that are read too late */

static void
lanes(void *arg)
{
    int       i, round, lane, mask;
    uint64_t  sum;

    i = (int) vlm_emu_at.thread.x;
    lane = i % 32;
    out[i] = 0;

    for (round = 0; round < 20; round++) {
        sum = (uint64_t) (i + round);

        for (mask = 16; mask > 0; mask /= 2) {
            sum += vlm_emu_shuffle(sum, lane ^ mask, __LINE__);
        }

        out[i] += sum == (uint64_t) (32 * (i - lane + round) + 31 * 16);
    }
}


/* copies arrive when they are waited for; until then there is nothing */

static void
copies(void *arg)
{
    int         *a, i;

    static const char  tag;
    static const int   from[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };

    i = (int) vlm_emu_at.thread.x;
    a = vlm_emu_shared(&tag, 8 * sizeof(int));

    if (i < 2) {
        a[4 * i] = 100;
        vlm_emu_copy_async(&a[4 * i], &from[4 * i], 4 * sizeof(int), 1);
        out[i] = a[4 * i];
        vlm_emu_copy_wait();
    }

    vlm_emu_barrier(__LINE__);

    if (i >= 8) {
        out[i] = a[i % 8];
    }
}


static void
votes(void *arg)
{
    int  i;

    i = (int) vlm_emu_at.thread.x;
    out[i] = vlm_emu_any(i == 40, __LINE__);
    out[i] += 2 * vlm_emu_any(0, __LINE__);
}


static void
fresh(void *arg)
{
    static char    tag;
    unsigned char *a;

    a = vlm_emu_shared(&tag, 16);
    out[vlm_emu_at.thread.x] = a[vlm_emu_at.thread.x % 16];
}


static void
wrong(void *arg)
{
    int  i;

    i = (int) vlm_emu_at.thread.x;

    switch (broken) {

    case 0:
        if (i == 7) {
            return;
        }

        vlm_emu_barrier(1);
        break;

    case 1:
        vlm_emu_barrier(i < 32 ? 1 : 2);
        break;

    case 2:
        if (i % 32 != 5) {
            vlm_emu_shuffle(1, 0, 1);
        }

        break;

    case 3:
        vlm_emu_shuffle(1, 0, i == 3 ? 2 : 1);
        break;

    case 4:
        vlm_emu_shuffle(1, 32, 1);
        break;

    case 5:
        if (i % 32 != 5) {
            vlm_emu_any(1, 1);
        }

        break;

    case 6:
        vlm_emu_copy_async(vlm_emu_shared(&broken, 16), out, 16, 1);
        break;

    case 7:
        vlm_emu_copy_async((char *) vlm_emu_shared(&broken, 32) + 8, out, 16,
                           1);
        vlm_emu_copy_wait();
        break;

    case 8:
        vlm_emu_copy_async(out, out + 4, 16, 1);
        vlm_emu_copy_wait();
        break;

    default:
        vlm_emu_shared(&broken, 300000);
        break;
    }
}


static void
test_blocks(void)
{
    int       i, good, n;
    uint64_t  seed;

    for (seed = 0; seed < 5; seed++) {
        vlm_emu_seed(seed);

        n = seed == 4 ? 1024 : 96;
        memset(out, 0xff, sizeof(out));

        tap_is(run(neighbours, 2, (unsigned) n, (size_t) n * sizeof(int)), 0,
               "blocks of %d with barriers", n);

        good = 0;

        for (i = 0; i < 4 * n; i++) {
            good += out[i] == 3 * ((i + 1) % n);
        }

        tap_is(good, 4 * n, "all see what others wrote");

        tap_is(run(lanes, 1, 64, 0), 0, "warps");
        good = 0;

        for (i = 0; i < 64; i++) {
            good += out[i] == 20;
        }

        tap_is(good, 64, "lanes see each other's values");
    }

    run(fresh, 1, 32, 0);
    tap_is(out[3], 255, "shared memory is full of NaNs");

    tap_is(run(copies, 1, 64, 0), 0, "copies in the background");
    good = out[0] == -1 && out[1] == -1;

    for (i = 8; i < 64; i++) {
        good += out[i] == i % 8 + 1;
    }

    tap_is(good, 57, "arrive at the wait, and destroy what was there");

    tap_is(run(votes, 1, 64, 0), 0, "votes");
    good = 0;

    for (i = 0; i < 64; i++) {
        good += out[i] == (i >= 32);
    }

    tap_is(good, 64, "of a warp");
}


static void
small_array(void *arg)
{
    vlm_emu_shared(&broken, 64);
}


static void
test_broken(void)
{
    uint64_t  seed;

    static const char  *what[] = {
        "a thread that ends before a barrier",
        "barriers at two lines at once",
        "a lane that leaves a shuffle out",
        "shuffles at two lines at once",
        "a shuffle from lane 32",
        "a lane that leaves a vote out",
        "a copy that nobody waits for",
        "a copy to the middle of its 16 bytes",
        "a copy to global memory",
        "too much shared memory"
    };

    for (seed = 0; seed < 3; seed++) {
        vlm_emu_seed(seed);

        for (broken = 0; broken < 10; broken++) {
            tap_is(run(wrong, 1, 64, 0), VLM_EMU_FAILURE, "%s",
                   what[broken]);
            tap_ok(strncmp(vlm_emu_error(VLM_EMU_FAILURE),
                           "kernel test, block 0, 0, 0: ", 28) == 0, "%s",
                   vlm_emu_error(VLM_EMU_FAILURE));
            tap_is(vlm_emu_last_error(), VLM_EMU_FAILURE, "it stays");

            vlm_emu_reset();
        }
    }

    tap_is(run(lanes, 1, 64, 0), 0, "blocks run after it");
    tap_is(run(lanes, 1, 1056, 0), VLM_EMU_INVALID, "a block too large");
    vlm_emu_reset();
    tap_is(run(lanes, 1, 64, VLM_EMU_SHARED + 1), VLM_EMU_INVALID,
           "more shared memory than a kernel has without asking");
    vlm_emu_reset();
    tap_is(run(small_array, 1, 32, VLM_EMU_SHARED - 64), 0,
           "all of it, with an array");
    tap_is(run(small_array, 1, 32, VLM_EMU_SHARED - 48), VLM_EMU_FAILURE,
           "more, with an array");
    vlm_emu_reset();

    tap_is((long long) vlm_emu_shared_allowed(out), VLM_EMU_SHARED, "48 KB");
    tap_is(vlm_emu_allow_shared(out, 100000), 0, "more for one kernel");
    tap_is((long long) vlm_emu_shared_allowed(out), 100000, "it has it");
    tap_is((long long) vlm_emu_shared_allowed(out + 1), VLM_EMU_SHARED,
           "another has not");
    tap_is(vlm_emu_allow_shared(out, VLM_EMU_SHARED_MOST + 1),
           VLM_EMU_INVALID, "more than there is");
    tap_is(vlm_emu_allow_shared(out, 99999), VLM_EMU_INVALID,
           "less than a launch may rely on");
}


static int
append(void *arg)
{
    out[1 + out[0]++] = *(int *) arg;

    return 0;
}


static void
test_streams(void)
{
    int               i, at[4], early, number;
    uint64_t          seed;
    vlm_emu_event_t   e;
    vlm_emu_stream_t  s[2];

    early = 0;

    for (seed = 0; seed < 50; seed++) {
        vlm_emu_seed(seed);
        memset(out, 0, sizeof(out));

        vlm_emu_stream_create(&s[0], 0, 0);
        vlm_emu_stream_create(&s[1], 0, 0);
        vlm_emu_event_create(&e, 0);

        /* 1 before 2 before 3; 4 whenever */

        number = 4;
        vlm_emu_enqueue(s[1], append, &number, sizeof(number));
        number = 1;
        vlm_emu_enqueue(s[0], append, &number, sizeof(number));
        vlm_emu_event_record(e, s[0]);
        vlm_emu_stream_wait(s[1], e, 0);
        number = 2;
        vlm_emu_enqueue(s[1], append, &number, sizeof(number));
        vlm_emu_event_record(e, s[1]);
        vlm_emu_stream_wait(s[0], e, 0);
        number = 3;
        vlm_emu_enqueue(s[0], append, &number, sizeof(number));

        vlm_emu_stream_sync(s[0]);

        for (i = 0; i < 4; i++) {
            at[i] = 0;
        }

        for (i = 1; i <= out[0]; i++) {
            at[out[i] - 1] = i;
        }

        if (!(at[0] != 0 && at[0] < at[1] && at[1] < at[2])) {
            break;
        }

        early += at[3] < at[0];

        vlm_emu_event_destroy(e);
        vlm_emu_stream_destroy(s[0]);
        vlm_emu_stream_destroy(s[1]);
    }

    tap_is((long long) seed, 50, "work waits for events");
    tap_ok(early > 0 && early < 50, "and for nothing else (%d of 50)", early);
}


/* 1 and 2 are captured and run with every launch, 3 runs once */

static void
test_graphs(void)
{
    int               i, number, good;
    uint64_t          seed, calls;
    vlm_emu_graph_t   g, exec;
    vlm_emu_stream_t  s;

    static const int  expected[] = { 3, 1, 2, 1, 2 };

    good = 0;

    for (seed = 0; seed < 20; seed++) {
        vlm_emu_seed(seed);
        memset(out, 0, sizeof(out));
        vlm_emu_stream_create(&s, 0, 0);

        number = 3;
        vlm_emu_enqueue(s, append, &number, sizeof(number));

        vlm_emu_capture_begin(s, 0);

        for (number = 1; number <= 2; number++) {
            vlm_emu_enqueue(s, append, &number, sizeof(number));
        }

        good += vlm_emu_capture_end(s, &g) == 0;
        good += vlm_emu_graph_instantiate(&exec, g, 0) == 0;
        vlm_emu_graph_destroy(g);

        calls = vlm_emu_calls();
        vlm_emu_graph_launch(exec, s);
        vlm_emu_graph_launch(exec, s);
        good += vlm_emu_calls() - calls == 2;

        vlm_emu_graph_destroy(exec);
        vlm_emu_stream_sync(s);
        good += out[0] == 5;

        for (i = 0; i < 5; i++) {
            good += out[1 + i] == expected[i];
        }

        vlm_emu_stream_destroy(s);
    }

    tap_is(good, 20 * 9, "graphs run again, in order");
}


/* what breaks a capture, and what does not */

static void
test_captures(void)
{
    int               i, rc, number;
    void             *p;
    vlm_emu_event_t   e;
    vlm_emu_graph_t   g;
    vlm_emu_stream_t  s, other;

    static const char  *what[] = {
        "waiting for the stream", "waiting for the device", "memory",
        "pinned memory", "an event", "waiting for an event",
        "asking for an event", "the host's waiting for it", "a capture in it"
    };

    vlm_emu_stream_create(&s, 0, 0);
    vlm_emu_stream_create(&other, 0, 0);
    vlm_emu_event_create(&e, 0);
    number = 1;

    for (i = 0; i < 9; i++) {
        vlm_emu_capture_begin(s, 0);

        rc = i == 0 ? vlm_emu_stream_sync(s)
             : i == 1 ? vlm_emu_device_sync()
             : i == 2 ? vlm_emu_malloc(&p, 16)
             : i == 3 ? vlm_emu_malloc_host(&p, 16)
             : i == 4 ? vlm_emu_event_record(e, s)
             : i == 5 ? vlm_emu_stream_wait(s, e, 0)
             : i == 6 ? vlm_emu_event_query(e)
             : i == 7 ? vlm_emu_event_sync(e)
             : vlm_emu_capture_begin(s, 0);

        tap_is(rc, VLM_EMU_CAPTURING, "%s is refused", what[i]);

        if (i == 8) {
            tap_is(vlm_emu_capture_end(s, &g), 0, "the first goes on");
            vlm_emu_graph_destroy(g);
            break;
        }

        tap_is(vlm_emu_enqueue(s, append, &number, sizeof(number)),
               VLM_EMU_BROKEN, "and breaks the capture");
        tap_is(vlm_emu_capture_end(s, &g), VLM_EMU_BROKEN, "and its end");
        tap_ok(g == NULL, "without a graph");
    }

    vlm_emu_capture_begin(s, 0);
    vlm_emu_enqueue(other, append, &number, sizeof(number));
    tap_is(vlm_emu_stream_sync(other), 0, "another stream is waited for");
    tap_is(vlm_emu_capture_end(s, &g), 0, "beside a capture");
    vlm_emu_graph_destroy(g);

    tap_is(vlm_emu_capture_end(s, &g), VLM_EMU_INVALID, "no capture to end");
    tap_is(vlm_emu_last_error(), 0, "nothing of it stays");

    vlm_emu_event_destroy(e);
    vlm_emu_stream_destroy(s);
    vlm_emu_stream_destroy(other);
}


int
main(void)
{
    test_blocks();
    test_broken();
    test_streams();
    test_graphs();
    test_captures();

    return tap_done();
}
