
/*
 * The queue of pictures to encode: budgets counted in multiply-adds, small
 * pictures in one job, turns, pictures taken out; and always the bits of a
 * picture encoded alone.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/runtime/encoding.h"
#include "engine/runtime/pace.h"
#include "t/unit/lib/golden.h"
#include "t/unit/lib/tap.h"


#define NSIZES      6
#define MAX_ITEMS   24

/* patches: 16, 24, 64, 256, 320, 1280 */

static const struct {
    uint32_t    width;
    uint32_t    height;
} sizes[NSIZES] = {
    { 56, 56 }, { 84, 56 }, { 112, 112 }, { 224, 224 }, { 280, 224 },
    { 560, 448 }
};

typedef struct {
    vlm_encode_item_t   item;
    vlm_image_t         image;
    vlm_image_plan_t    plan;
    int                 size;
    int                 ended;          /* in this place, from 1; 0: not */
    int                 failed;
    int                 same;           /* as encoded alone */
} pic_t;

static golden_rig_t      rig;
static vlm_encoding_t    enc;
static float            *alone[NSIZES];
static double            costs[NSIZES];
static double            least_max;     /* the largest of smallest slices */
static pic_t             pics[MAX_ITEMS];
static int               nended;


static void
bail(const char *why)
{
    printf("Bail out! %s\n", why);
    exit(1);
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


/* each size in a job of its own, in one go and in small slices */

static void
encode_alone(int size)
{
    int                 rc;
    float              *again;
    double              spent, least;
    vlm_error_t         err;
    vlm_image_t         image;
    vlm_image_plan_t    plan;
    vlm_encode_job_t   *job;

    picture(size, &image, &plan);

    job = vlm_encode_begin(rig.encoder, &image, &plan, 1, &err);
    rc = vlm_encode_step(job, INFINITY, &err);

    tap_is(rc, VLM_OK, "%ux%u alone", plan.width, plan.height);
    tap_ok(vlm_encode_spent(job) == vlm_encode_cost(job),
           "what it has spent is its cost");
    tap_is(vlm_encode_step(job, 1, &err), VLM_OK, "done stays done");
    tap_ok(vlm_encode_least(job) == 0, "nothing is left to do");

    costs[size] = vlm_encode_cost(job);
    alone[size] = golden_download(&rig, vlm_encode_result(job));
    vlm_encode_free(job);

    job = vlm_encode_begin(rig.encoder, &image, &plan, 1, &err);

    do {
        least = vlm_encode_least(job);
        spent = vlm_encode_spent(job);
        least_max = least > least_max ? least : least_max;

        rc = vlm_encode_step(job, 1, &err);

        if (vlm_encode_spent(job) - spent != least) {
            tap_ok(0, "the smallest slice takes %g, not %g", least,
                   vlm_encode_spent(job) - spent);
        }

    } while (rc == VLM_AGAIN);

    again = golden_download(&rig, vlm_encode_result(job));
    tap_ok(memcmp(again, alone[size], (size_t) plan.ntokens
                  * (size_t) vlm_encode_result(job)->cols * sizeof(float))
           == 0,
           "in the smallest slices: the same bits");

    free(again);
    vlm_encode_free(job);
    vlm_image_free(&image);
}


static void *
copied(void *data, const vlm_tensor_t *rows)
{
    return golden_download(&rig, rows);
}


static void
encoded(void *data, vlm_encode_item_t *item, void *copy,
    const vlm_error_t *err)
{
    pic_t  *p = item->owner;

    tap_ok(data == &nended && p->ended == 0, "told once");

    p->ended = ++nended;
    p->failed = (err != NULL);

    if (err != NULL) {
        tap_ok(copy == NULL && err->message[0] != '\0',
               "an error tells why: %s", err->message);
        return;
    }

    p->same = memcmp(copy, alone[p->size], (size_t) p->plan.ntokens
                     * (size_t) vlm_model_info(rig.model)->hidden
                     * sizeof(float))
              == 0;
    free(copy);
}


static void
begin(void)
{
    vlm_error_t          err;
    vlm_encoding_conf_t  conf = {
        rig.model, rig.dev, rig.ops, rig.queue, copied, encoded, &nended
    };

    memset(pics, 0, sizeof(pics));
    nended = 0;

    if (vlm_encoding_init(&enc, &conf, &err) != VLM_OK) {
        bail(err.message);
    }

    /* so that a microsecond is worth a thousand */
    enc.rate = 1000;
}


static void
end(void)
{
    int  i;

    vlm_encoding_free(&enc);

    for (i = 0; i < MAX_ITEMS; i++) {
        vlm_image_free(&pics[i].image);
    }
}


static void
add(int i, int size, uint64_t now_us, double macs)
{
    pic_t  *p;

    p = &pics[i];
    p->size = size;
    picture(size, &p->image, &p->plan);

    p->item.image = &p->image;
    p->item.plan = &p->plan;
    p->item.owner = p;

    vlm_encoding_add(&enc, &p->item, now_us, macs);
}


/* until all have ended that are still in it */

static void
drain(double macs)
{
    while (vlm_encoding_slice(&enc, macs) != VLM_AGAIN) { /* void */ }
}


static void
test_budget(void)
{
    int     i, over, under;
    double  spent, macs, took, total, budgets[3];

    budgets[0] = least_max;
    budgets[1] = least_max * 3.3;
    budgets[2] = costs[NSIZES - 1] / 7;

    for (i = 0; i < 3; i++) {
        begin();
        add(0, NSIZES - 1, 0, costs[NSIZES - 1]);

        macs = budgets[i];
        total = 0;
        over = 0;
        under = 0;

        do {
            spent = enc.spent;
            vlm_encoding_slice(&enc, macs);
            took = enc.spent - spent;
            total += took;

            over += took > macs + least_max / 2;
            under += nended == 0 && took < macs - least_max / 2;

        } while (nended == 0);

        tap_is(over, 0, "budget %d: no slice is over by more than half of "
               "the smallest one", i);
        tap_is(under, 0, "budget %d: nor under it", i);
        tap_ok(fabs(total - costs[NSIZES - 1]) < 1e-6 * total,
               "budget %d: all of the cost is counted", i);
        tap_ok(pics[0].same, "budget %d: the bits of one go", i);
        tap_is(vlm_encoding_slice(&enc, macs), VLM_AGAIN, "nothing is left");

        end();
    }

    begin();
    add(0, 3, 0, costs[3]);
    tap_ok(vlm_encoding_run(&enc, 1) > 0 && enc.spent > 0,
           "a run without time makes progress too");

    while (vlm_encoding_run(&enc, 1000) > 0) { /* void */ }

    tap_ok(pics[0].same && enc.us > 0 && enc.rate > 0, "runs by the clock");
    tap_ok(fabs(enc.spent - costs[3]) < 1e-6 * costs[3], "cost of the runs");
    end();
}


static void
test_batch(void)
{
    int  i, same;

    /* 16 + 24 + 64 + 24 + 16 = 144 patches of several requests */

    begin();
    add(0, 0, 10, costs[0]);
    add(1, 1, 10, costs[1]);
    add(2, 2, 11, costs[2]);
    add(3, 1, 12, costs[1]);
    add(4, 0, 12, costs[0]);
    drain(least_max);

    same = 0;

    for (i = 0; i < 5; i++) {
        same += pics[i].same;
        tap_ok(pics[i].image.data == NULL, "pixels are freed: %d", i);
    }

    tap_is(same, 5, "small ones together have the bits of each alone");
    tap_is((long long) enc.njobs, 1, "in one job");
    tap_is(nended, 5, "all at once");
    end();

    /* what does not fit together any more is the next job */

    begin();
    add(0, 3, 10, costs[3]);
    add(1, 0, 10, costs[0]);
    add(2, 2, 10, costs[2]);
    drain(INFINITY);
    tap_is((long long) enc.njobs, 2, "256 patches are a job");
    tap_ok(pics[0].same && pics[1].same && pics[2].same, "their bits");
    end();

    begin();
    add(0, 4, 10, 0);
    add(1, 0, 10, costs[0]);
    add(2, 4, 20, costs[4]);
    drain(INFINITY);
    tap_is((long long) enc.njobs, 3, "large ones are alone");
    tap_ok(pics[0].same && pics[1].same && pics[2].same, "their bits");
    end();

    begin();

    for (i = 0; i < 20; i++) {
        add(i, 0, 10, costs[0]);
    }

    /* 16 of 16 patches */

    drain(INFINITY);
    tap_is((long long) enc.njobs, 2, "a job has room for %d",
           VLM_ENCODE_BATCH);
    tap_is(nended, 20, "none is lost");
    end();
}


static void
test_remove(void)
{
    int  i, k, slices;

    /* one of a job, at many moments */

    for (slices = 0; slices < 60; slices += 6) {
        begin();

        for (i = 0; i < 4; i++) {
            add(i, i % 3, 10, 0);
        }

        for (k = 0; k < slices && vlm_encoding_slice(&enc, 1) == VLM_OK; k++)
        {
            /* void */
        }

        vlm_encoding_remove(&enc, &pics[1].item);
        k = pics[1].ended;
        drain(least_max * 4);

        tap_ok(pics[0].same && pics[2].same && pics[3].same,
               "others keep their bits, after %d slices", slices);
        tap_is(pics[1].ended, k, "who was taken out hears nothing");
        tap_is((long long) enc.njobs, 1, "they stay one job");
        end();
    }

    /* all of a job: it ends, and the next one begins */

    begin();
    add(0, 0, 10, 0);
    add(1, 1, 10, 0);
    vlm_encoding_slice(&enc, 1);
    add(2, 2, 20, costs[2]);
    vlm_encoding_remove(&enc, &pics[1].item);
    vlm_encoding_remove(&enc, &pics[0].item);
    vlm_encoding_remove(&enc, &pics[0].item);
    tap_ok(enc.lanes[0].job == NULL, "without its last picture a job ends");
    drain(INFINITY);
    tap_ok(pics[2].same && nended == 1, "the next one is encoded");
    end();

    /* one that waits */

    begin();
    add(0, 4, 10, 0);
    add(1, 4, 20, costs[4]);
    add(2, 4, 30, costs[4]);
    vlm_encoding_slice(&enc, 1);
    vlm_encoding_remove(&enc, &pics[1].item);
    drain(INFINITY);
    tap_ok(pics[0].same && pics[2].same && !pics[1].ended && nended == 2,
           "one that waits is taken out");
    end();
}


static void
test_turns(void)
{
    double  spent;

    /* four pictures of one request, one of another that came a bit later */

    begin();
    add(0, 4, 100, costs[4]);
    add(1, 4, 100, costs[4] * 2);
    add(2, 4, 100, costs[4] * 3);
    add(3, 4, 100, costs[4] * 4);
    add(4, 4, 101, costs[4]);
    drain(INFINITY);
    tap_is(pics[0].ended, 1, "the first of the first request");
    tap_is(pics[4].ended, 2, "then the other request's");
    tap_is(pics[1].ended, 3, "then the second");
    tap_is(pics[3].ended, 5, "and so on");
    end();

    /* who has waited long enough is not overtaken any more */

    begin();
    add(0, 4, 100, costs[4] * 2);
    add(1, 4, 101 + (uint64_t) (costs[4] / enc.rate), costs[4]);
    drain(INFINITY);
    tap_is(pics[0].ended, 1, "later ones do not push others back for ever");
    end();

    /* a small one beside a large one */

    begin();
    add(0, 5, 100, costs[5]);
    vlm_encoding_slice(&enc, least_max);
    add(1, 2, 200, costs[2]);
    spent = enc.spent;

    while (pics[1].ended == 0) {
        vlm_encoding_slice(&enc, least_max);
    }

    spent = enc.spent - spent;
    tap_is(pics[0].ended, 0, "a small one does not wait for a large one");
    tap_ok(spent <= 2 * costs[2] + 4 * least_max,
           "they take turns: %g for %g", spent, costs[2]);
    drain(INFINITY);
    tap_ok(pics[0].same && pics[1].same, "both have their bits");
    end();

    /* one that is not much smaller waits */

    begin();
    add(0, 4, 100, costs[4]);
    vlm_encoding_slice(&enc, 1);
    add(1, 3, 101, costs[3]);
    vlm_encoding_slice(&enc, 1);
    tap_is((long long) enc.njobs, 1, "one that is not much smaller waits");
    drain(INFINITY);
    tap_ok(pics[0].ended == 1 && pics[1].ended == 2, "for its turn");
    end();
}


static void
test_errors(void)
{
    begin();
    add(0, 4, 100, 0);
    add(1, 4, 101, 0);
    pics[0].plan.height += 28;
    drain(INFINITY);
    tap_ok(pics[0].failed && pics[0].ended == 1, "one that cannot begin");
    tap_ok(pics[1].same && pics[1].ended == 2, "does not stop others");
    end();
}


static void
test_pace(void)
{
    int         i;
    double      q;
    vlm_pace_t  p;

    tap_is(vlm_pace_init(&p, 1.5, 4), VLM_OK, "a pace");
    tap_ok(vlm_pace_allowance(&p, 0) < 0, "without answers no limit");
    tap_ok(vlm_pace_allowance(&p, 1) > 0, "a little before any step");
    tap_is(vlm_pace_rows(&p, 100, 77), 77, "nothing is known of rows");

    vlm_pace_step(&p, 2, 0, 1000);
    tap_ok(vlm_pace_quiet(&p, 2) == 1000, "the first step is believed");
    tap_ok(vlm_pace_quiet(&p, 4) == 1000, "fewer answers take as long");
    tap_ok(vlm_pace_quiet(&p, 1) == 1000, "or more, if that is all");
    tap_ok(vlm_pace_quiet(&p, 9) == 1000, "more than there can be");
    tap_ok(fabs(vlm_pace_allowance(&p, 2) - 500) < 1e-9, "(g - 1) of it");

    vlm_pace_step(&p, 2, 0, 100000);
    q = vlm_pace_quiet(&p, 2);
    tap_ok(q > 1000 && q < 1200, "one slow step is not a rule: %g", q);

    for (i = 0; i < 30; i++) {
        vlm_pace_step(&p, 2, 0, 1000);
    }

    tap_ok(fabs(vlm_pace_quiet(&p, 2) - 1000) < 10, "it comes back");

    for (i = 0; i < 200; i++) {
        vlm_pace_step(&p, 2, 0, 3000);
    }

    tap_ok(fabs(vlm_pace_quiet(&p, 2) - 3000) < 10, "and follows upwards");

    vlm_pace_step(&p, 2, 10, 4000);
    tap_is(vlm_pace_rows(&p, 550, 77), 5, "rows of 100 us");
    tap_is(vlm_pace_rows(&p, 50, 77), 1, "always one");
    tap_is(vlm_pace_rows(&p, 1e9, 77), 77, "at most so many");
    tap_is(vlm_pace_rows(&p, -1, 77), 77, "without a limit");

    vlm_pace_step(&p, 5, 0, 1);
    tap_ok(vlm_pace_quiet(&p, 4) > 2000, "no place for that many answers");

    vlm_pace_free(&p);
}


int
main(void)
{
    int  i;

    if (golden_open(&rig, tap_path("t/data/golden/qwen2_vl/base/model"),
                    NULL, NULL)
        != 0)
    {
        bail("no model");
    }

    for (i = 0; i < NSIZES; i++) {
        encode_alone(i);
    }

    test_budget();
    test_batch();
    test_remove();
    test_turns();
    test_errors();
    test_pace();

    for (i = 0; i < NSIZES; i++) {
        free(alone[i]);
    }

    golden_close(&rig);

    return tap_done();
}
