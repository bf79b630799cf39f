
/*
 * The decoder on a device that records its steps: the same logits, bit for
 * bit, as on one that does not, in steps of all sizes with prompts between
 * them; and nothing is allocated once all sizes have been there.
 * VLM_TEST_CUDA=1: the same on the machine's first GPU.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/vlm_cuda.h"
#include "kernels/emu/emu.h"
#include "t/unit/lib/golden.h"
#include "t/unit/lib/guard.h"
#include "t/unit/lib/tap.h"


#define SEQS        20
#define WIDTH       16                  /* blocks of each */
#define BLOCK       16
#define ROWS        64
#define LONG        120                 /* first prompt of the first one */
#define PROMPT      6

#if defined(__SANITIZE_ADDRESS__)
#define STEPS       40                  /* sanitizers are slow */
#else
#define STEPS       200
#endif

#define STEADY      20

/* tables: copy, event, kernel; the graph; the logits */
#define CALLS       5


typedef struct {
    golden_rig_t        rig;            /* with a decoder that is not used */
    vlm_device_t       *dev;            /* that computes */
    vlm_decoder_t      *decoder;
    uint64_t            seed;
    int32_t             context[SEQS];
    float              *logits;         /* of all steps */
    size_t              nlogits;
    size_t              size;
} run_t;


static int
below(run_t *r, int n)
{
    return (int) (tap_random(&r->seed) % (uint64_t) n);
}


static float *
room(run_t *r, size_t n)
{
    if (r->nlogits + n > r->size) {
        r->size = 2 * (r->nlogits + n);
        r->logits = realloc(r->logits, r->size * sizeof(float));

        if (r->logits == NULL) {
            printf("Bail out! no memory\n");
            exit(1);
        }
    }

    r->nlogits += n;

    return r->logits + r->nlogits - n;
}


/* "rows" of each of n sequences from the first on; 0 or -1 */

static int
step(run_t *r, int first, int n, int rows)
{
    int                  i, k, s, at;
    char                 why[256];
    float               *to;
    int32_t              start[SEQS + 1], context[SEQS], out[SEQS];
    int32_t              ids[ROWS], positions[3 * ROWS];
    int32_t              blocks[SEQS * WIDTH];
    vlm_error_t          err;
    vlm_tensor_t         logits;
    vlm_decode_batch_t   batch;

    memset(&batch, 0, sizeof(batch));
    memset(blocks, 0xff, sizeof(blocks));

    for (i = 0; i < n; i++) {
        s = (first + i) % SEQS;
        start[i] = i * rows;
        context[i] = r->context[s];
        out[i] = start[i] + rows - 1;

        for (k = 0; k < rows; k++) {
            at = start[i] + k;
            ids[at] = below(r, 200);
            positions[at] = positions[n * rows + at] = context[i] + k;
            positions[2 * n * rows + at] = context[i] + k;
        }

        r->context[s] += rows;

        for (k = 0; k * BLOCK < r->context[s]; k++) {
            blocks[i * WIDTH + k] = k * SEQS + s;
        }
    }

    start[n] = n * rows;

    batch.step.nrows = n * rows;
    batch.step.nseqs = n;
    batch.step.row_start = start;
    batch.step.context = context;
    batch.step.blocks = blocks;
    batch.step.max_blocks = WIDTH;
    batch.step.ids = ids;
    batch.step.positions = positions;
    batch.out_rows = out;
    batch.nout = n;

    if (vlm_decoder_step(r->decoder, &batch, &logits, &err) == VLM_ERROR) {
        return tap_ok(0, "step: %s", err.message) - 1;
    }

    to = room(r, (size_t) n * (size_t) logits.cols);
    r->rig.ops->download(r->rig.queue, to, logits.data,
                         (size_t) n * (size_t) logits.cols * sizeof(float));

    if (logits.rows != n
        || r->rig.ops->sync(r->rig.queue, why, sizeof(why)) != 0)
    {
        return tap_ok(0, "step: %s", why) - 1;
    }

    return 0;
}


/* prompts, then each size of a step until it has been recorded */

static int
warm_up(run_t *r)
{
    int  s, i, k;

    static const int  sizes[] = { 20, 16, 12, 8, 4, 2, 1 };

    r->seed = 17;
    r->nlogits = 0;
    memset(r->context, 0, sizeof(r->context));

    for (i = 0; i < LONG; i += ROWS / 2) {
        if (step(r, 0, 1, ROWS / 2) < 0) {
            return -1;
        }
    }

    for (s = 1; s < SEQS; s++) {
        if (step(r, s, 1, PROMPT) < 0) {
            return -1;
        }
    }

    for (i = 0; i < 7; i++) {
        for (k = 0; k < 3; k++) {
            if (step(r, 0, sizes[i], 1) < 0) {
                return -1;
            }
        }
    }

    return 0;
}


static int
mixed(run_t *r)
{
    int  i, s, rc;

    static const int  sizes[] = { 1, 1, 1, 2, 2, 3, 4, 5, 9, 13, 20 };

    for (i = 0; i < STEPS; i++) {
        s = below(r, SEQS);

        if (i % 25 == 13) {
            r->context[s] = 0;
            rc = step(r, s, 1, PROMPT);

        } else {
            rc = step(r, s, sizes[below(r, 11)], 1);
        }

        if (rc < 0) {
            return -1;
        }
    }

    return 0;
}


static int
decoder(run_t *r)
{
    vlm_error_t  err;

    r->decoder = vlm_decoder_create(r->rig.model, r->rig.queue, SEQS * WIDTH,
                                    BLOCK, ROWS, SEQS, &err);

    return r->decoder != NULL ? 0 : tap_ok(0, "%s", err.message) - 1;
}


/* all of it; logits stay with r */

static int
run(run_t *r)
{
    int       i;
    uint64_t  allocations, calls;

    if (decoder(r) < 0 || warm_up(r) < 0) {
        return -1;
    }

    allocations = vlm_emu_allocations();

    if (mixed(r) < 0) {
        return -1;
    }

    tap_is((long long) (vlm_emu_allocations() - allocations), 0,
           "no allocations in %d steps", STEPS);

    calls = 0;

    for (i = -2; i < STEADY; i++) {

        if (i == 0) {
            calls = vlm_emu_calls();
        }

        if (step(r, 3, 3, 1) < 0) {
            return -1;
        }
    }

    calls = vlm_emu_calls() - calls;

    if (r->rig.ops->graph_begin == NULL) {
        tap_ok(getenv("VLM_TEST_CUDA") != NULL
               || calls > 2 * CALLS * STEADY, "%d steps, %d calls", STEADY,
               (int) calls);
    } else {
        tap_is((long long) calls,
               getenv("VLM_TEST_CUDA") == NULL ? CALLS * STEADY : 0,
               "%d steps, each by %d calls", STEADY, CALLS);
    }

    return 0;
}


static int
run_open(run_t *r, int f32, int no_graphs, int guard)
{
    char                 err[256];
    vlm_device_t        *dev;
    const vlm_ops_t     *ops;
    vlm_cuda_options_t   opt;

    memset(r, 0, sizeof(run_t));
    memset(&opt, 0, sizeof(opt));

    opt.f32 = f32;
    opt.no_graphs = no_graphs;

    /* there products of 9 and of 12 rows may be different sums */

    opt.deterministic = getenv("VLM_TEST_CUDA") != NULL;

    dev = opt.deterministic ? vlm_cuda_device(0, &opt, &ops, err, sizeof(err))
                            : vlm_emu_device(&opt, &ops, err, sizeof(err));

    if (dev == NULL) {
        return tap_ok(0, "device: %s", err) - 1;
    }

    r->dev = dev;

    if (guard) {
        dev = guard_create(dev, ops, &ops);
    }

    return golden_open(&r->rig, tap_path("t/data/golden/qwen2_vl/base/model"),
                       dev, ops);
}


static void
run_close(run_t *r)
{
    vlm_decoder_free(r->decoder);
    golden_close(&r->rig);

    if (r->rig.dev != r->dev) {
        tap_is(guard_alive(r->rig.dev), 0, "all is freed");
        guard_destroy(r->rig.dev);
    }

    if (getenv("VLM_TEST_CUDA") != NULL) {
        vlm_cuda_device_destroy(r->dev);

    } else {
        vlm_emu_device_destroy(r->dev);
    }

    free(r->logits);
}


/* nothing outside of its memory, no list that changes too early */

static void
test_guard(const run_t *eager)
{
    run_t  r;

    if (run_open(&r, 1, 0, 1) < 0 || decoder(&r) < 0 || warm_up(&r) < 0) {
        return;
    }

    tap_is(memcmp(r.logits, eager->logits, r.nlogits * sizeof(float)), 0,
           "the same on a device that is guarded");

    run_close(&r);
}


static void
test_same(int f32)
{
    run_t   graphs, eager;
    size_t  i, n;

    if (run_open(&graphs, f32, 0, 0) < 0 || run_open(&eager, f32, 1, 0) < 0
        || run(&graphs) < 0 || run(&eager) < 0)
    {
        return;
    }

    n = eager.nlogits;
    i = 0;

    while (i < n && graphs.logits[i] == eager.logits[i]) {
        i++;
    }

    tap_ok(graphs.nlogits == n && i == n, "%s: all %zu logits are the same",
           f32 ? "float32" : "bfloat16", n);

    /* another decoder of the same queue, perhaps at the same addresses */

    vlm_decoder_free(graphs.decoder);

    if (decoder(&graphs) == 0 && warm_up(&graphs) == 0) {
        tap_is(memcmp(graphs.logits, eager.logits,
                      graphs.nlogits * sizeof(float)), 0,
               "and another decoder's");
    }

    run_close(&graphs);

    if (f32 && getenv("VLM_TEST_CUDA") == NULL) {
        test_guard(&eager);
    }

    run_close(&eager);
}


int
main(void)
{
    vlm_emu_seed(4);

    test_same(1);
    test_same(0);

    return tap_done();
}
