
/*
 * Encoding on a queue of its own, beside the decoder's, on the shim, whose
 * queues run late, in parts and at random: a missing wait shows.  First the
 * queue of pictures alone, then the whole engine, which has the CPU's answers.
 */

#include <math.h>

#include "engine/runtime/internal.h"
#include "engine/runtime/server_internal.h"
#include "kernels/cuda/vlm_cuda.h"
#include "kernels/emu/emu.h"
#include "t/unit/lib/golden.h"
#include "t/unit/runtime_client.h"


#define NSIZES      5
#define NITEMS      8
#define ANSWER      400

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SEEDS       2               /* sanitizers are slow */
#define RUNS        1
#else
#define SEEDS       6
#define RUNS        2
#endif

#define LONGER      8               /* times, with VLM_LONG */

/* patches: 16, 24, 64, 256, 320 */

static const struct {
    uint32_t    width;
    uint32_t    height;
} sizes[NSIZES] = {
    { 56, 56 }, { 84, 56 }, { 112, 112 }, { 224, 224 }, { 280, 224 }
};

typedef struct {
    vlm_encode_item_t   item;
    vlm_image_t         image;
    vlm_image_plan_t    plan;
    int                 size;
    int                 removed;
    int                 ended;
    int                 failed;
    int                 same;           /* as encoded alone */
} pic_t;

static golden_rig_t      rig;
static vlm_ops_t         ops;               /* the shim's, but for a failure */
static const vlm_ops_t  *real;
static vlm_queue_t      *vision;
static vlm_encoding_t    enc;
static float            *alone[NSIZES];
static double            cost;              /* of the largest */
static pic_t             pics[NITEMS];
static uint64_t          state;             /* of random numbers */
static int               nended;
static int               ncopies;           /* not yet given back */
static int               failing;           /* calls until one fails */


static void
bail(const char *why)
{
    printf("Bail out! %s\n", why);
    exit(1);
}


/* no device does that: it fails when it is put on the queue */

static void
attention(vlm_queue_t *q, const vlm_segments_t *seg, const vlm_tensor_t *y,
    const vlm_tensor_t *qkv, int64_t row0, const void *kv)
{
    if (failing != 0 && --failing == 0) {
        row0 = -1;
    }

    real->vision_attention(q, seg, y, qkv, row0, kv);
}


static void
picture(int size, vlm_image_t *image, vlm_image_plan_t *plan)
{
    size_t       i, bytes;
    vlm_error_t  err;

    if (vlm_model_plan(rig.model, sizes[size].width, sizes[size].height,
                       VLM_DETAIL_AUTO, plan, &err)
        != VLM_OK)
    {
        bail(err.message);
    }

    image->width = plan->width;
    image->height = plan->height;

    bytes = (size_t) plan->width * plan->height * 3;
    image->data = malloc(bytes);

    for (i = 0; i < bytes; i++) {
        image->data[i] = (uint8_t) (i * 31 + i / 7 * (size_t) (size + 3));
    }
}


static size_t
bytes_of(const vlm_image_plan_t *plan)
{
    return (size_t) plan->ntokens
           * (size_t) vlm_model_info(rig.model)->hidden * sizeof(float);
}


static void
encode_alone(int size)
{
    vlm_error_t         err;
    vlm_image_t         image;
    vlm_image_plan_t    plan;
    vlm_encode_job_t   *job;

    picture(size, &image, &plan);

    job = vlm_encode_begin(rig.encoder, &image, &plan, 1, &err);

    if (job == NULL || vlm_encode_step(job, INFINITY, &err) != VLM_OK) {
        bail(err.message);
    }

    cost = vlm_encode_cost(job);
    alone[size] = golden_download(&rig, vlm_encode_result(job));

    vlm_encode_free(job);
    vlm_image_free(&image);
}


/* to memory of the host's, as the cache does */

static void *
copied(void *data, const vlm_tensor_t *rows)
{
    vlm_tensor_t  *copy;

    copy = malloc(sizeof(*copy));
    *copy = *rows;
    copy->stride = copy->cols;
    copy->data = ops.host_alloc(rig.dev, (size_t) copy->rows
                                         * (size_t) copy->cols
                                         * sizeof(float));
    ops.convert(vision, copy, rows);
    ncopies++;

    return copy;
}


static void
copy_free(vlm_tensor_t *copy)
{
    if (copy != NULL) {
        ops.host_free(rig.dev, copy->data);
        free(copy);
        ncopies--;
    }
}


/* and from there to the decoder, on its queue */

static void
encoded(void *data, vlm_encode_item_t *item, void *copy,
    const vlm_error_t *err)
{
    float         *got;
    int32_t        i, to[1024];
    pic_t         *p;
    vlm_tensor_t   y;

    if (item == NULL) {
        copy_free(copy);
        return;
    }

    p = item->owner;

    if (p->ended || p->removed) {
        tap_ok(0, "a picture is told once, and not when it was removed");
    }

    p->ended = ++nended;
    p->failed = (err != NULL);

    if (err == NULL) {
        y = *(vlm_tensor_t *) copy;
        y.data = ops.alloc(rig.dev, bytes_of(&p->plan));

        for (i = 0; i < p->plan.ntokens; i++) {
            to[i] = i;
        }

        ops.scatter(rig.queue, &y, copy, to, p->plan.ntokens);
        got = golden_download(&rig, &y);

        p->same = memcmp(got, alone[p->size], bytes_of(&p->plan)) == 0
                  && memcmp(((vlm_tensor_t *) copy)->data, alone[p->size],
                            bytes_of(&p->plan))
                     == 0;

        ops.free(rig.dev, y.data);
        free(got);
    }

    copy_free(copy);
}


static void
begin(uint64_t seed)
{
    vlm_error_t          err;
    vlm_encoding_conf_t  conf = {
        rig.model, rig.dev, &ops, vision, copied, encoded, NULL
    };

    vlm_emu_seed(seed);
    state = seed;
    memset(pics, 0, sizeof(pics));
    nended = 0;

    if (vlm_encoding_init(&enc, &conf, &err) != VLM_OK) {
        bail(err.message);
    }

    enc.batch = VLM_ENCODE_ROWS;
    enc.slice = cost / 9;
}


static void
end(void)
{
    int  i;

    vlm_encoding_stop(&enc);
    vlm_encoding_free(&enc);

    for (i = 0; i < NITEMS; i++) {
        vlm_image_free(&pics[i].image);
    }

    if (ncopies != 0) {
        tap_ok(0, "%d copies are still there", ncopies);
    }
}


static void
add(int i, int size)
{
    pic_t  *p;

    p = &pics[i];
    p->size = size;
    picture(size, &p->image, &p->plan);

    p->item.image = &p->image;
    p->item.plan = &p->plan;
    p->item.owner = p;

    vlm_encoding_add(&enc, &p->item, (uint64_t) i, 0);
}


static int
turn(void)
{
    int  rc;

    rc = vlm_encoding_submit(&enc);

    if (enc.nflights > VLM_ENCODE_FLIGHTS) {
        tap_ok(0, "%d slices in flight", enc.nflights);
    }

    return vlm_encoding_collect(&enc) == VLM_AGAIN
           && rc == VLM_AGAIN && enc.nflights == 0;
}


static void
drain(void)
{
    while (!turn()) { /* void */ }
}


/* pictures come at any time; some are not wanted any more, at any time */

static void
test_random(int seed)
{
    int  i, k, removed, same;

    begin((uint64_t) seed);

    for (i = 0; i < NITEMS; i++) {
        add(i, (int) (tap_random(&state) % NSIZES));

        for (k = (int) (tap_random(&state) % 6); k > 0; k--) {
            (void) turn();
        }

        k = (int) (tap_random(&state) % NITEMS);

        if (k <= i && tap_random(&state) % 4 == 0 && !pics[k].ended) {
            vlm_encoding_remove(&enc, &pics[k].item);
            pics[k].removed = 1;
        }
    }

    drain();

    removed = 0;
    same = 0;

    for (i = 0; i < NITEMS; i++) {
        removed += pics[i].removed;
        same += pics[i].ended && pics[i].same;
    }

    tap_is(same + removed, NITEMS, "seed %d: %d have the bits of each alone, "
           "%d were removed", seed, same, removed);
    end();
}


static void
test_removed(void)
{
    int  i;

    /* all of a job that is at work: no further slice of it */

    begin(1);
    add(0, 4);
    vlm_encoding_submit(&enc);
    tap_is(enc.nflights, VLM_ENCODE_FLIGHTS, "slices in flight");

    vlm_encoding_remove(&enc, &pics[0].item);
    add(1, 3);

    for (i = 0; vlm_encoding_collect(&enc) == VLM_AGAIN; i++) { /* void */ }

    drain();
    tap_ok(!pics[0].ended && pics[1].same, "another one takes its place");
    tap_ok(enc.spent < cost * 1.5, "it was left at %g of %g", enc.spent,
           cost * 2);
    end();

    /* complete, but for the wait */

    begin(2);
    enc.slice = INFINITY;
    add(0, 3);
    add(1, 4);
    vlm_encoding_submit(&enc);
    tap_is(ncopies, 2, "copies under way");
    vlm_encoding_remove(&enc, &pics[0].item);
    drain();
    tap_ok(!pics[0].ended && pics[1].same, "one of them is not wanted");
    tap_is(ncopies, 0, "and is given back");
    end();

    begin(3);
    enc.slice = INFINITY;
    add(0, 3);
    add(1, 4);
    vlm_encoding_submit(&enc);
    vlm_encoding_stop(&enc);
    tap_ok(ncopies == 0 && nended == 0, "the end in the middle");
    end();
}


static void
test_failures(void)
{
    int  i, at, same, failed;

    /* of three jobs at any operation: one fails, and is alone */

    for (at = 1; at <= 3 * vlm_model_info(rig.model)->vision_layers; at++) {
        begin((uint64_t) at);
        enc.batch = 1;
        add(0, 2);
        add(1, 2);
        add(2, 2);
        failing = at;
        drain();

        same = 0;
        failed = 0;

        for (i = 0; i < 3; i++) {
            same += pics[i].same;
            failed += pics[i].failed;
        }

        tap_ok(same == 2 && failed == 1 && nended == 3,
               "call %d fails: %d of 3, %d have their bits", at, failed,
               same);
        failing = 0;
        end();
    }

    begin(4);
    add(0, 4);
    add(1, 2);
    add(2, 4);
    pics[0].plan.height += 28;
    drain();
    tap_ok(pics[0].failed && pics[1].same && pics[2].same && nended == 3,
           "one that cannot begin does not stop others");
    end();
}


static void
test_queue(int seeds)
{
    int                  i;
    char                 why[256];
    vlm_device_t        *dev;
    vlm_cuda_options_t   opt;

    memset(&opt, 0, sizeof(opt));
    opt.f32 = 1;

    /* the bits of a picture alone, whatever it shares a job with */
    opt.deterministic = 1;

    dev = vlm_emu_device(&opt, &real, why, sizeof(why));
    if (dev == NULL) {
        bail(why);
    }

    ops = *real;
    ops.vision_attention = attention;

    if (golden_open(&rig, tap_path("t/data/golden/qwen2_vl/base/model"), dev,
                    &ops)
        != 0)
    {
        bail("no model");
    }

    vision = ops.queue_create(dev, 1);

    for (i = 0; i < NSIZES; i++) {
        encode_alone(i);
    }

    for (i = 0; i < seeds; i++) {
        test_random(i);
    }

    test_removed();
    test_failures();

    for (i = 0; i < NSIZES; i++) {
        free(alone[i]);
    }

    ops.queue_destroy(vision);
    golden_close(&rig);
    vlm_emu_device_destroy(dev);
}


/* ---- the engine ---- */

/* the first ones at once, then others; prefixes differ */

#define AT_ONCE     5
#define REQUESTS    8
#define LAST        7

/* memory for three of the pictures */
#define CACHE       20000

static const char *const  files[REQUESTS][2] = {
    { "0000", NULL }, { "0001", "0002" }, { "0002", "0001" }, { NULL, NULL },
    { "0003", "0000" }, { "0002", "0003" }, { "0003", "0002" },
    { "0000", "0003" }
};


static void
serve(served_t *s, client_t *c, vlm_device_kind_t device, uint64_t cache)
{
    setenv("VLM_CUDA_DTYPE", "f32", 1);

    served_init(s);
    s->conf.engine.device = device;
    s->conf.engine.cache_memory = cache;
    served_start(s);
    client_open(c, s, 1 << 16);
    client_wait_ready(c);

    /* so that a picture takes several; nobody has asked yet */
    s->server->engine->encoding.slice = 1e8;
}


static void
ask(client_t *c, uint32_t slot, int which)
{
    int         i;
    char       *paths[2] = { NULL, NULL };
    question_t  q;

    memset(&q, 0, sizeof(q));

    for (i = 0; i < 2 && files[which][i] != NULL; i++) {
        paths[i] = strdup(tap_path("t/data/heldout/images/%s.png",
                                   files[which][i]));
        q.pictures[i] = paths[i];
    }

    q.prompt = "Describe this image.";
    q.sampling.set = VLM_SET_MAX_TOKENS;
    q.sampling.max_tokens = 12;

    client_ask(c, slot, &q);
    free(paths[0]);
    free(paths[1]);
}


static void
hear(client_t *c, uint32_t slot, char text[ANSWER])
{
    heard_t  *h;

    h = client_end(c, slot);

    snprintf(text, ANSWER, "%c:%s", h->last,
             h->last == 'D' && h->text.data != NULL ? h->text.data
                                                    : h->message);
}


static void
answers(client_t *c, char text[REQUESTS][ANSWER])
{
    int  i;

    for (i = 0; i < AT_ONCE; i++) {
        ask(c, (uint32_t) i, i);
    }

    for (i = 0; i < AT_ONCE; i++) {
        hear(c, (uint32_t) i, text[i]);
    }

    for (i = AT_ONCE; i < REQUESTS; i++) {
        ask(c, (uint32_t) i, i);
        hear(c, (uint32_t) i, text[i]);
    }
}


static int
equal(char a[REQUESTS][ANSWER], char b[REQUESTS][ANSWER])
{
    int  i, n;

    n = 0;

    for (i = 0; i < REQUESTS; i++) {
        n += a[i][0] == 'D' && strcmp(a[i], b[i]) == 0;

        if (strcmp(a[i], b[i]) != 0) {
            tap_diag("%d: \"%s\", the CPU: \"%s\"", i, a[i], b[i]);
        }
    }

    return n;
}


/* a cancelled one leaves the answers of others as they are */

static void
test_cancel(client_t *c, char cpu[REQUESTS][ANSWER], int run)
{
    int       i;
    char      text[ANSWER];
    heard_t  *h;

    for (i = 0; i < 6; i++) {
        ask(c, 8, i);
        ask(c, 9, (i + 2) % REQUESTS);

        usleep((useconds_t) (i * 3000 + run * 1000));
        vlm_worker_cancel(&c->w, 8, c->slots[8].generation);

        h = client_end(c, 8);
        hear(c, 9, text);

        tap_ok(h->last == 'C' && strcmp(text, cpu[(i + 2) % REQUESTS]) == 0,
               "run %d: one is cancelled after %d ms, the other has its "
               "answer", run, i * 3 + run);
    }
}


static void
test_engine(char cpu[REQUESTS][ANSWER], int run)
{
    char                 text[REQUESTS][ANSWER];
    client_t             c;
    served_t             s;
    vlm_memory_stats_t   stats;

    vlm_emu_seed((uint64_t) run + 77);
    serve(&s, &c, VLM_DEVICE_EMU, CACHE);

    test_cancel(&c, cpu, run);

    answers(&c, text);
    tap_is(equal(text, cpu), REQUESTS, "run %d: the CPU's answers", run);

    vlm_memory_stats(s.server->engine->embed.memory, &stats);
    tap_ok(stats.evictions > 0, "run %d: %llu pictures had to go", run,
           (unsigned long long) stats.evictions);
    tap_is(c.slots[LAST].done.outcomes[1], VLM_CACHE_HIT_MEMORY,
           "run %d: one was still there", run);

    client_close(&c);
    served_stop(&s);
}


/* an operation of a picture fails: that request, and no other */

static void
test_failed(char cpu[REQUESTS][ANSWER])
{
    char        text[2][ANSWER];
    client_t    c;
    served_t    s;
    vlm_ops_t  *table;

    serve(&s, &c, VLM_DEVICE_EMU, 0);

    /* (the table is the device's own, and nobody computes yet) */

    table = (vlm_ops_t *) s.server->engine->ops;
    ops = *table;
    real = &ops;
    table->vision_attention = attention;
    failing = 2;

    ask(&c, 0, 0);
    ask(&c, 1, 3);
    hear(&c, 0, text[0]);
    hear(&c, 1, text[1]);

    tap_ok(text[0][0] == 'E' && strstr(text[0], "vision_attention") != NULL,
           "a failure: \"%s\"", text[0]);
    tap_str(text[1], cpu[3], "another request has its answer");

    ask(&c, 0, 0);
    hear(&c, 0, text[0]);
    tap_str(text[0], cpu[0], "and so has the next one");

    client_close(&c);
    served_stop(&s);
}


int
main(void)
{
    int       i, times;
    char      cpu[REQUESTS][ANSWER];
    client_t  c;
    served_t  s;

    times = getenv("VLM_LONG") != NULL && *getenv("VLM_LONG") ? LONGER : 1;

    vlm_log_level(getenv("VLM_TEST_LOG") != NULL ? "debug" : "error");

    test_queue(SEEDS * times);

    serve(&s, &c, VLM_DEVICE_CPU, 0);
    answers(&c, cpu);
    client_close(&c);
    served_stop(&s);

    for (i = 0; i < RUNS * times; i++) {
        test_engine(cpu, i);
    }

    test_failed(cpu);

    return tap_done();
}
