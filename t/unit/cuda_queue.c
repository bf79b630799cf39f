
/*
 * Queues beside each other: order by fences, lists that keep coming without a
 * sync, memory of the host's that operations use, failures.
 */

#include "t/unit/cuda_rig.h"


#define ROWS    64
#define COLS    32
#define SIZE    (ROWS * COLS * sizeof(float))

/* more lists than a queue has room for at a time */
#define LISTS_EMU   300
#define LISTS_GPU   3000
#define SMALL       200


static rig_t         rig;
static vlm_queue_t  *low;
static vlm_fence_t  *fence;
static uint64_t      state;


static vlm_tensor_t
tensor(int host)
{
    vlm_tensor_t  t;

    t.device = rig.dev;
    t.dtype = VLM_F32;
    t.rows = ROWS;
    t.cols = COLS;
    t.stride = COLS;
    t.data = host ? rig.ops->host_alloc(rig.dev, SIZE)
                  : rig.ops->alloc(rig.dev, SIZE);

    if (t.data == NULL) {
        rig_stop("memory", "none");
    }

    return t;
}


/* rows go round by one queue's lists; the other takes them from there */

static void
test_order(int seed)
{
    int            i, k, r, n, at, same;
    int32_t       *lists;
    vlm_tensor_t   x, a[2], y, z;

    n = rig.kind == RIG_GPU ? LISTS_GPU : LISTS_EMU;
    lists = rig_memory((size_t) n * ROWS * sizeof(int32_t));

    vlm_emu_seed((uint64_t) seed);
    x = tensor(1);
    y = tensor(1);
    z = tensor(1);
    a[0] = tensor(0);
    a[1] = tensor(0);

    for (i = 0; i < ROWS * COLS; i++) {
        ((float *) x.data)[i] = (float) i;
        ((float *) y.data)[i] = -1;
        ((float *) z.data)[i] = -1;
    }

    rig.ops->convert(low, &a[0], &x);
    at = 0;

    for (i = 0; i < n; i++) {
        k = rig_below(&state, ROWS);
        at += k;

        for (r = 0; r < ROWS; r++) {
            lists[i * ROWS + r] = (r + k) % ROWS;
        }

        rig.ops->gather(low, &a[(i + 1) % 2], &a[i % 2], lists + i * ROWS,
                        ROWS);
    }

    rig.ops->convert(low, &y, &a[n % 2]);
    rig.ops->record(low, fence);

    rig.ops->wait(rig.q, fence);
    rig.ops->convert(rig.q, &z, &y);
    rig_sync(&rig);

    same = 0;

    for (i = 0; i < ROWS * COLS; i++) {
        same += ((float *) z.data)[i]
                == (float) ((i / COLS + at) % ROWS * COLS + i % COLS);
    }

    tap_is(same, ROWS * COLS, "seed %d: %d lists, then the other queue", seed,
           n);
    tap_is(rig.ops->reached(fence), 1, "the fence is reached by then");

    rig.ops->host_free(rig.dev, x.data);
    rig.ops->host_free(rig.dev, y.data);
    rig.ops->host_free(rig.dev, z.data);
    rig.ops->free(rig.dev, a[0].data);
    rig.ops->free(rig.dev, a[1].data);
    free(lists);
}


/* asked again and again, it is reached without a sync */

static void
test_reached(void)
{
    int            i, same;
    vlm_fence_t   *other;
    vlm_tensor_t   x, y;

    other = rig.ops->fence_create(rig.dev);
    tap_is(rig.ops->reached(other), 1, "one that was never recorded");
    rig.ops->wait(rig.q, other);
    rig_sync(&rig);

    x = tensor(1);
    y = tensor(1);

    for (i = 0; i < ROWS * COLS; i++) {
        ((float *) x.data)[i] = (float) i;
    }

    rig.ops->convert(low, &y, &x);
    rig.ops->record(low, other);

    while (!rig.ops->reached(other)) { /* void */ }

    same = memcmp(x.data, y.data, SIZE) == 0;
    tap_ok(same, "what was in front of it is there");

    rig.ops->host_free(rig.dev, x.data);
    rig.ops->host_free(rig.dev, y.data);
    rig.ops->fence_destroy(other);
}


/* rows that are downloaded beside lists that are uploaded */

static void
test_small(void)
{
    int            i, same;
    float         *got;
    int32_t       *lists;
    vlm_tensor_t   x, y;

    got = rig_memory(SMALL * COLS * sizeof(float));
    lists = rig_memory(SMALL * ROWS * sizeof(int32_t));
    x = tensor(1);
    y = tensor(0);

    for (i = 0; i < ROWS * COLS; i++) {
        ((float *) x.data)[i] = (float) i;
    }

    for (i = 0; i < SMALL * ROWS; i++) {
        lists[i] = (i / ROWS + i % ROWS) % ROWS;
    }

    for (i = 0; i < SMALL; i++) {
        rig.ops->gather(rig.q, &y, &x, lists + i * ROWS, ROWS);
        rig.ops->download(rig.q, got + i * COLS, y.data,
                          COLS * sizeof(float));
    }

    rig_sync(&rig);

    for (i = 0, same = 0; i < SMALL * COLS; i++) {
        same += got[i] == (float) (i / COLS % ROWS * COLS + i % COLS);
    }

    tap_is(same, SMALL * COLS, "%d small downloads", SMALL);

    rig.ops->host_free(rig.dev, x.data);
    rig.ops->free(rig.dev, y.data);
    free(lists);
    free(got);
}


static void
test_failed(void)
{
    char          why[256];
    vlm_tensor_t  x, bad;

    x = tensor(0);
    bad = x;
    bad.dtype = VLM_I32;

    tap_is(rig.ops->failed(low), 0, "nothing has failed");
    rig.ops->convert(low, &bad, &x);
    tap_is(rig.ops->failed(low), 1, "an operation has");
    tap_is(rig.ops->failed(low), 1, "until it is told");
    tap_is(rig.ops->failed(rig.q), 0, "of this queue, not of others");

    why[0] = '\0';
    tap_ok(rig.ops->sync(low, why, sizeof(why)) != 0
           && strstr(why, "convert") != NULL, "%s", why);
    tap_is(rig.ops->failed(low), 0, "then it goes on");

    rig.ops->free(rig.dev, x.data);
}


int
main(void)
{
    int  i;

    rig_open(&rig, rig_cuda(), 1);
    tap_is(rig.ops->async, 1, "queues run beside the host");

    low = rig.ops->queue_create(rig.dev, 1);
    fence = rig.ops->fence_create(rig.dev);

    for (i = 0; i < 5; i++) {
        test_order(i);
    }

    test_reached();
    test_small();
    test_failed();

    rig.ops->fence_destroy(fence);
    rig.ops->queue_destroy(low);
    rig_close(&rig);

    return tap_done();
}
