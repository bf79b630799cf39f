
/*
 * Recorded work: what is put again has the bits of what is put one by one,
 * whatever contexts, block tables and addresses have become; what cannot be
 * recorded is put one by one, and what must not be is refused.
 * VLM_TEST_CUDA=1: the same on the machine's first GPU.
 */

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "t/unit/cuda_rig.h"


#define VOCAB       50
#define HIDDEN      64
#define HEADS       4
#define KV_HEADS    2
#define DIM         16
#define WIDTH       ((HEADS + 2 * KV_HEADS) * DIM)

#define MAX_ROWS    20
#define MAX_BLOCKS  64
#define NBLOCKS     300
#define BLOCK       16

#define WORKS       80                  /* more than a queue keeps */


/* one layer of a decoder */

typedef struct {
    rig_t           rig;
    vlm_weight_t    embed;
    vlm_weight_t    in;
    vlm_weight_t    out;
    vlm_tensor_t    gain;
    vlm_tensor_t    x;
    vlm_tensor_t    h;
    vlm_tensor_t    qkv;
    vlm_kv_t        kv;
    vlm_rope_t      rope;
    vlm_step_t      step;
    char            why[256];           /* of graph_end() */
    uint64_t        calls;              /* of graph_begin() */
} layer_t;

typedef struct {
    vlm_step_host_t host;
    int32_t         row_start[MAX_ROWS + 1];
    int32_t         context[MAX_ROWS];
    int32_t         ids[MAX_ROWS];
    int32_t         positions[MAX_ROWS];
    int32_t         blocks[MAX_ROWS * MAX_BLOCKS];
} batch_t;

/* one that records, and its twin that cannot */

typedef struct {
    layer_t         again;
    layer_t         eager;
    uint64_t        seed;
} twins_t;

typedef enum {
    FLAW_NONE = 0,
    FLAW_TYPE,                          /* an operation fails */
    FLAW_WAIT,                          /* for the whole device */
    FLAW_GATHER,                        /* of a list of the host's */
    FLAW_UPLOAD,
    FLAW_DOWNLOAD,
    FLAW_RECORD,
    FLAW_FENCE,
    FLAW_STEP,
    FLAW_BEGIN,
    FLAW_NEIGHBOUR                      /* another thread frees memory */
} flaw_t;


static void neighbour(layer_t *l);


static void
weight(layer_t *l, vlm_weight_t *w, const float *data, int64_t n, int64_t k)
{
    char               err[256];
    vlm_host_matrix_t  part;

    part.data = data;
    part.dtype = VLM_F32;
    part.rows = n;
    part.cols = k;

    if (l->rig.ops->weight_create(l->rig.dev, w, VLM_WEIGHT_PLAIN,
                                  VLM_QUANT_NONE, &part, NULL, 1, err,
                                  sizeof(err))
        != 0)
    {
        rig_stop("weight", err);
    }
}


static void
layer_open(layer_t *l, int no_graphs)
{
    int                  i;
    float               *data;
    size_t               size;
    uint64_t             seed;
    vlm_cuda_options_t   opt;

    memset(l, 0, sizeof(layer_t));
    memset(&opt, 0, sizeof(opt));
    opt.f32 = 1;
    opt.no_graphs = no_graphs;
    rig_open_as(&l->rig, rig_cuda(), &opt);

    seed = 5;
    size = VOCAB * HIDDEN;
    size = size > WIDTH * HIDDEN ? size : WIDTH * HIDDEN;
    data = rig_random(&seed, size, 0.5f);

    weight(l, &l->embed, data, VOCAB, HIDDEN);
    weight(l, &l->in, data, WIDTH, HIDDEN);
    weight(l, &l->out, data, HIDDEN, HEADS * DIM);
    l->gain = rig_tensor(&l->rig, data, 1, HIDDEN, HIDDEN, VLM_F32);
    free(data);

    l->x = rig_act(&l->rig, NULL, MAX_ROWS, HIDDEN);
    l->h = rig_act(&l->rig, NULL, MAX_ROWS, HIDDEN);
    l->qkv = rig_act(&l->rig, NULL, MAX_ROWS, WIDTH);

    l->rope.npairs = DIM / 2;
    l->rope.naxes = 1;

    for (i = 0; i < DIM / 2; i++) {
        l->rope.inv_freq[i] = powf(0.1f, (float) i);
    }

    l->kv.device = l->rig.dev;
    l->kv.nblocks = NBLOCKS;
    l->kv.block_size = BLOCK;
    l->kv.kv_heads = KV_HEADS;
    l->kv.head_dim = DIM;

    size = NBLOCKS * l->rig.ops->kv_block_bytes(l->rig.dev, BLOCK, KV_HEADS,
                                                DIM);
    data = rig_random(&seed, size / sizeof(float), 1.0f);
    l->kv.data = l->rig.ops->alloc(l->rig.dev, size);
    l->rig.ops->upload(l->rig.q, l->kv.data, data, size);
    rig_sync(&l->rig);
    free(data);
}


static void
layer_close(layer_t *l)
{
    l->rig.ops->step_free(l->rig.dev, &l->step);
    l->rig.ops->weight_destroy(&l->embed);
    l->rig.ops->weight_destroy(&l->in);
    l->rig.ops->weight_destroy(&l->out);
    rig_free(&l->rig, &l->gain);
    rig_free(&l->rig, &l->x);
    rig_free(&l->rig, &l->h);
    rig_free(&l->rig, &l->qkv);
    l->rig.ops->free(l->rig.dev, l->kv.data);
    rig_close(&l->rig);
}


/* one row of n sequences, whose blocks no two share */

static void
batch_fill(batch_t *b, uint64_t *seed, int32_t n, int32_t max_blocks)
{
    int32_t  i, k;

    for (i = 0; i < n; i++) {
        b->row_start[i] = i;
        b->context[i] = rig_below(seed, max_blocks * BLOCK);
        b->ids[i] = rig_below(seed, VOCAB);
        b->positions[i] = b->context[i];

        for (k = 0; k < max_blocks; k++) {
            b->blocks[i * max_blocks + k] =
                i * (NBLOCKS / n) + rig_below(seed, NBLOCKS / n);
        }
    }

    b->row_start[n] = n;

    b->host.nrows = n;
    b->host.nseqs = n;
    b->host.row_start = b->row_start;
    b->host.context = b->context;
    b->host.blocks = b->blocks;
    b->host.max_blocks = max_blocks;
    b->host.ids = b->ids;
    b->host.positions = b->positions;
}


static void
flawed(layer_t *l, flaw_t flaw)
{
    vlm_tensor_t      x, y;
    vlm_fence_t      *fence;
    const vlm_ops_t  *ops = l->rig.ops;

    static vlm_step_host_t  host;
    static int32_t          list[2];
    static float            number;

    x = vlm_rows(&l->x, 0, 1);
    y = x;

    switch (flaw) {

    case FLAW_TYPE:
        y.dtype = VLM_BF16;
        ops->norm(l->rig.q, &y, &x, l->gain.data, NULL, 1e-6f, VLM_NORM_RMS);
        break;

    case FLAW_WAIT:
        vlm_emu_device_sync();
        break;

    case FLAW_GATHER:
        ops->gather(l->rig.q, &y, &x, list, 1);
        break;

    case FLAW_UPLOAD:
        ops->upload(l->rig.q, y.data, &number, sizeof(number));
        break;

    case FLAW_DOWNLOAD:
        ops->download(l->rig.q, &number, y.data, sizeof(number));
        break;

    case FLAW_RECORD:
    case FLAW_FENCE:
        fence = ops->fence_create(l->rig.dev);

        if (flaw == FLAW_RECORD) {
            ops->record(l->rig.q, fence);

        } else {
            ops->wait(l->rig.q, fence);
        }

        ops->fence_destroy(fence);
        break;

    case FLAW_STEP:
        memset(&host, 0, sizeof(host));
        (void) ops->step_upload(l->rig.q, &l->step, &host, &l->rope);
        break;

    case FLAW_BEGIN:
        (void) ops->graph_begin(l->rig.q, &l->step, 1);
        break;

    case FLAW_NEIGHBOUR:
        neighbour(l);
        break;

    default:
        break;
    }
}


/* different works are different operations */

static void
operations(layer_t *l, uint64_t work, flaw_t flaw)
{
    int32_t           n;
    vlm_queue_t      *q = l->rig.q;
    vlm_tensor_t      x, h, qkv;
    const vlm_ops_t  *ops = l->rig.ops;

    n = l->step.host.nrows;
    x = vlm_rows(&l->x, 0, n);
    h = vlm_rows(&l->h, 0, n);
    qkv = vlm_rows(&l->qkv, 0, n);

    ops->embed(q, &x, &l->embed, &l->step);
    ops->norm(q, &h, &x, l->gain.data, NULL, 1e-6f, VLM_NORM_RMS);
    ops->linear(q, &qkv, &h, &l->in, VLM_ACT_NONE, NULL);
    flawed(l, flaw);
    ops->rope_kv(q, &l->step, &qkv, HEADS, &l->kv, NULL, NULL, 1e-6f);
    ops->attention(q, &l->step, &h, &qkv, HEADS, &l->kv);
    ops->linear(q, &x, &h, &l->out, work % 2 != 0 ? VLM_ACT_SILU
                                                  : VLM_ACT_NONE, &x);
}


/* 1: again; 0: put; -1: put once more */

static int
layer_put(layer_t *l, const batch_t *b, uint64_t work, flaw_t flaw)
{
    int               rc;
    const vlm_ops_t  *ops = l->rig.ops;

    if (ops->step_upload(l->rig.q, &l->step, &b->host, &l->rope) != 0) {
        rig_sync(&l->rig);
    }

    if (ops->graph_begin == NULL) {
        operations(l, work, flaw);
        return 0;
    }

    l->calls = vlm_emu_calls();
    rc = ops->graph_begin(l->rig.q, &l->step, work);
    l->calls = vlm_emu_calls() - l->calls;

    if (rc == 1) {
        return 1;
    }

    operations(l, work, flaw);

    rc = ops->graph_end(l->rig.q, l->why, sizeof(l->why));

    if (rc != 0) {
        operations(l, work, FLAW_NONE);
    }

    return rc;
}


static float *
layer_result(layer_t *l)
{
    vlm_tensor_t  x;

    x = vlm_rows(&l->x, 0, l->step.host.nrows);

    return rig_values(&l->rig, &x);
}


/* the same batch both ways; what layer_put() said, or -2: other bits */

static int
both(twins_t *t, const batch_t *b, uint64_t work, flaw_t flaw)
{
    int     rc;
    float  *again, *eager;

    rc = layer_put(&t->again, b, work, flaw);
    again = layer_result(&t->again);

    layer_put(&t->eager, b, work, FLAW_NONE);
    eager = layer_result(&t->eager);

    if (memcmp(again, eager, (size_t) b->host.nrows * HIDDEN * sizeof(float))
        != 0)
    {
        rc = -2;
    }

    free(again);
    free(eager);

    return rc;
}


/* runs, is recorded, comes again: with other contexts and tables each time */

static void
test_again(twins_t *t)
{
    int       i, round, rc, wrong;
    batch_t   b;
    uint64_t  calls;

    static const int32_t  sizes[][2] = {
        { 1, 8 }, { 3, 8 }, { 8, 16 }, { 3, 16 }, { 11, 5 }
    };

    for (i = 0; i < 5; i++) {
        wrong = 0;
        calls = 0;

        for (round = 0; round < 6; round++) {
            batch_fill(&b, &t->seed, sizes[i][0], sizes[i][1]);

            if (round < 2) {
                /* what comes later is longer */
                memset(b.context, 0, sizeof(b.context));
            }

            rc = both(t, &b, 1, FLAW_NONE);
            wrong += rc != (round > 1);
            calls += rc == 1 ? t->again.calls : 0;
        }

        tap_is(wrong, 0, "%d rows, %d blocks: put, recorded, again",
               sizes[i][0], sizes[i][1]);

        if (rig_cuda() == RIG_EMU) {
            tap_is((long long) calls, 4, "by one call");
        }
    }
}


/* larger tables and more work space elsewhere: recorded again */

static void
test_addresses(twins_t *t)
{
    int      round, rc, wrong, again;
    batch_t  b;

    wrong = 0;
    again = 0;

    for (round = 0; round < 6; round++) {

        if (round == 3) {
            batch_fill(&b, &t->seed, MAX_ROWS, MAX_BLOCKS);
            wrong += both(t, &b, 2, FLAW_NONE) != 0;
        }

        batch_fill(&b, &t->seed, 4, 16);
        rc = both(t, &b, 2, FLAW_NONE);

        wrong += rc < 0;
        again += rc == 1;
    }

    tap_is(wrong, 0, "tables and work space at other addresses");
    tap_ok(again > 1, "and again there (%d)", again);
}


static void
test_many(twins_t *t)
{
    int      i, round, wrong, again;
    batch_t  b;

    wrong = 0;

    for (round = 0; round < 3; round++) {

        for (i = 0; i < WORKS; i++) {
            batch_fill(&b, &t->seed, 2, 8);
            wrong += both(t, &b, (uint64_t) (100 + i), FLAW_NONE) != 0;
        }
    }

    tap_is(wrong, 0, "%d works by turns are put one by one", WORKS);

    again = 0;

    for (i = 0; i < 12; i++) {
        batch_fill(&b, &t->seed, 2, 8);
        again += both(t, &b, (uint64_t) (100 + i % 3), FLAW_NONE) == 1;
    }

    tap_is(again, 12 - 2 * 3, "three by turns come again");
}


/* a flaw while it is recorded: put one by one, then and later */

static void
test_not_recorded(twins_t *t, flaw_t flaw, uint64_t work, const char *why)
{
    int      round, rc, wrong;
    batch_t  b;

    wrong = 0;

    for (round = 0; round < 4; round++) {
        batch_fill(&b, &t->seed, 2, 8);
        rc = both(t, &b, work, round == 1 ? flaw : FLAW_NONE);
        wrong += rc != (round == 1 ? -1 : 0);
    }

    tap_is(wrong, 0, "flaw %d: not recorded, the same bits", flaw);
    tap_ok(strncmp(t->again.why, why, strlen(why)) == 0, "why: \"%s\"",
           t->again.why);
}


/* refused at once, so that no recording has it */

static void
test_refused(twins_t *t, flaw_t flaw, uint64_t work, const char *op)
{
    char     err[256], expected[256];
    batch_t  b;

    batch_fill(&b, &t->seed, 2, 8);
    tap_is(layer_put(&t->again, &b, work, flaw), 0, "flaw %d", flaw);

    strcpy(err, "nothing");
    tap_is(t->again.rig.ops->sync(t->again.rig.q, err, sizeof(err)), -1,
           "fails");

    snprintf(expected, sizeof(expected),
             "%s: not between graph_begin() and graph_end()", op);
    tap_str(err, expected, "says why");

    /* as it would have been, but for the other's cache */

    layer_put(&t->eager, &b, work, FLAW_NONE);
    layer_put(&t->again, &b, work, FLAW_NONE);
    rig_sync(&t->again.rig);
    rig_sync(&t->eager.rig);
}


/* memory that another thread gives back, which waits for the device */

static pthread_t   thread;
static atomic_int  begun;
static void       *given;


static void *
give_back(void *arg)
{
    layer_t  *l = arg;

    begun = 1;
    l->rig.ops->free(l->rig.dev, given);

    return NULL;
}


static void
neighbour(layer_t *l)
{
    if (pthread_create(&thread, NULL, give_back, l) != 0) {
        rig_stop("thread", "not created");
    }

    while (!begun) {
        sched_yield();
    }

    /* it may get that far */
    usleep(1000);
}


static void
test_neighbour(twins_t *t)
{
    int      i, round, wrong;
    batch_t  b;

    wrong = 0;

    for (i = 0; i < 5; i++) {
        begun = 0;
        given = t->again.rig.ops->alloc(t->again.rig.dev, 1000);

        for (round = 0; round < 3; round++) {
            batch_fill(&b, &t->seed, 3, 8);
            wrong += both(t, &b, (uint64_t) (1000 + i),
                          round == 1 ? FLAW_NEIGHBOUR : FLAW_NONE)
                     != (round == 2);
        }

        pthread_join(thread, NULL);
    }

    tap_is(wrong, 0, "recorded beside a thread that frees memory");
}


int
main(void)
{
    twins_t  t;

    vlm_emu_seed(3);

    t.seed = 21;
    layer_open(&t.again, 0);
    layer_open(&t.eager, 1);

    tap_ok(t.again.rig.ops->graph_begin != NULL, "records");
    tap_ok(t.eager.rig.ops->graph_begin == NULL, "does not");

    test_again(&t);
    test_addresses(&t);
    test_many(&t);

    test_not_recorded(&t, FLAW_TYPE, 300, "norm: from type 0 to 1");
    test_not_recorded(&t, FLAW_GATHER, 301, "gather: not between");

    if (rig_cuda() == RIG_EMU) {
        test_not_recorded(&t, FLAW_WAIT, 302, "rope_kv: operation failed due "
                          "to a previous error during capture");
    }

    test_refused(&t, FLAW_GATHER, 400, "gather");
    test_refused(&t, FLAW_UPLOAD, 401, "upload");
    test_refused(&t, FLAW_DOWNLOAD, 402, "download");
    test_refused(&t, FLAW_RECORD, 403, "record");
    test_refused(&t, FLAW_FENCE, 404, "wait");
    test_refused(&t, FLAW_STEP, 405, "step_upload");
    test_refused(&t, FLAW_BEGIN, 406, "graph_begin");

    test_neighbour(&t);

    layer_close(&t.again);
    layer_close(&t.eager);

    return tap_done();
}
