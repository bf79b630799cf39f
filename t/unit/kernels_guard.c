
/* the guard device: does the work of the real one, and traps what it should */

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "t/unit/kernels_rig.h"
#include "t/unit/lib/guard.h"


static vlm_device_t     *dev;
static const vlm_ops_t  *ops;
static vlm_queue_t      *queue;


/* runs fn in a child; the signal that ended it, 0 if none did */

static int
signal_of(void (*fn)(void))
{
    int    status;
    pid_t  pid;

    fflush(stdout);

    pid = fork();
    if (pid == 0) {
        /* the message must not look like the end of this test */
        if (freopen("/dev/null", "w", stdout) == NULL
            || freopen("/dev/null", "w", stderr) == NULL)
        {
            _exit(2);
        }

        signal(SIGSEGV, SIG_DFL);
        signal(SIGABRT, SIG_DFL);

        fn();
        _exit(0);
    }

    if (waitpid(pid, &status, 0) != pid) {
        return -1;
    }

    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}


static vlm_tensor_t
guarded(int rows, int cols)
{
    vlm_tensor_t  t;

    t.data = ops->alloc(dev, (size_t) rows * cols * sizeof(float));
    t.device = dev;
    t.dtype = VLM_F32;
    t.rows = rows;
    t.cols = cols;
    t.stride = cols;

    return t;
}


static void
dereference(void)
{
    vlm_tensor_t  t = guarded(2, 4);

    *(volatile float *) t.data = 1.0f;
}


static void
host_pointer(void)
{
    float         x[8];
    vlm_tensor_t  t = guarded(2, 4), bad = t;

    bad.data = x;
    ops->convert(queue, &t, &bad);
}


static void
too_long(void)
{
    vlm_tensor_t  t = guarded(2, 16), bad = t;

    bad.rows = 3;
    ops->convert(queue, &bad, &bad);
}


static void
freed(void)
{
    vlm_tensor_t  t = guarded(2, 4);

    ops->free(dev, t.data);
    ops->convert(queue, &t, &t);
}


static void
no_device(void)
{
    vlm_tensor_t  t = guarded(2, 4);

    t.device = NULL;
    ops->convert(queue, &t, &t);
}


static void
changed(void)
{
    char          err[256];
    float         x[8] = { 0 };
    vlm_tensor_t  t = guarded(2, 4);

    ops->upload(queue, t.data, x, sizeof(x));
    x[3] = 1.0f;
    ops->sync(queue, err, sizeof(err));
}


static void
beyond(void)
{
    int32_t       to[2] = { 0, 2 };
    vlm_tensor_t  t = guarded(2, 4);

    ops->scatter(queue, &t, &t, to, 2);
}


static void
allowed(void)
{
    char          err[256];
    float         x[8] = { 0 }, result[8];
    int32_t       to[2] = { 1, 0 };
    vlm_tensor_t  t = guarded(2, 4), y = guarded(2, 4);

    ops->upload(queue, t.data, x, sizeof(x));
    ops->scatter(queue, &y, &t, to, 2);
    ops->download(queue, result, y.data, sizeof(result));
    ops->sync(queue, err, sizeof(err));
}


static void
test_work(void)
{
    char               err[256];
    int                early;
    float              w[3][4] = { { 1, 2, 3, 4 }, { 0, 1, 0, 1 } };
    float              b[3] = { 10, 20, 30 };
    float              x[2][4] = { { 1, 1, 1, 1 }, { 2, 0, 0, 1 } };
    float              y[2][3] = { { 0 } };
    vlm_weight_t       weight;
    vlm_tensor_t       tx, ty;
    vlm_host_matrix_t  part = { w, VLM_F32, 3, 4 };
    vlm_host_matrix_t  bias = { b, VLM_F32, 1, 3 };

    tap_is(ops->weight_create(dev, &weight, VLM_WEIGHT_PLAIN, VLM_QUANT_NONE,
                              &part, &bias, 1, err, sizeof(err)),
           0, "a weight");

    tx = guarded(2, 4);
    ty = guarded(2, 3);

    ops->upload(queue, tx.data, x, sizeof(x));
    ops->linear(queue, &ty, &tx, &weight, VLM_ACT_NONE, NULL);
    ops->download(queue, y, ty.data, sizeof(y));
    early = y[0][0] == 20.0f;

    tap_is(ops->sync(queue, err, sizeof(err)), 0, "sync");
    tap_ok(!early, "a download shows at sync, not before");
    tap_ok(y[0][0] == 20.0f && y[0][1] == 22.0f && y[0][2] == 30.0f
           && y[1][0] == 16.0f && y[1][1] == 21.0f && y[1][2] == 30.0f,
           "a product: %g %g %g, %g %g %g", y[0][0], y[0][1], y[0][2],
           y[1][0], y[1][1], y[1][2]);

    tap_is(guard_alive(dev), 3, "three things are alive");
    ops->weight_destroy(&weight);
    ops->free(dev, tx.data);
    ops->free(dev, ty.data);
    tap_is(guard_alive(dev), 0, "none are");
}


int
main(void)
{
    int    n;
    rig_t  rigs[RIG_MAX];

    n = rigs_open(rigs);

    dev = guard_create(rigs[0].dev, rigs[0].ops, &ops);
    queue = ops->queue_create(dev, 0);

    test_work();

    tap_is(signal_of(allowed), 0, "good use ends well");
    tap_is(signal_of(dereference), SIGSEGV, "dereferencing");
    tap_is(signal_of(host_pointer), SIGABRT, "a pointer to host memory");
    tap_is(signal_of(too_long), SIGABRT, "a tensor larger than its memory");
    tap_is(signal_of(freed), SIGABRT, "freed memory");
    tap_is(signal_of(no_device), SIGABRT, "a tensor of no device");
    tap_is(signal_of(changed), SIGABRT, "host memory changed before sync");
    tap_is(signal_of(beyond), SIGABRT, "a row that is not there");

    ops->queue_destroy(queue);
    guard_destroy(dev);
    rigs_close(rigs, n);

    return tap_done();
}
