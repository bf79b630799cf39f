
#include <string.h>

#include "engine/runtime/encoding.h"


#define FIRST_RATE      2000.0
#define WEIGHT_RATE     0.3

/* of the time left, tried at once: the rate differs between operations */
#define PART            0.75


static void item_insert(vlm_encoding_t *enc, vlm_encode_item_t *item);
static int lane_begin(vlm_encoding_t *enc, vlm_encode_lane_t *lane,
    int64_t most);
static void lane_end(vlm_encoding_t *enc, vlm_encode_lane_t *lane,
    const vlm_error_t *err);
static int lane_later(vlm_encoding_t *enc, vlm_encode_lane_t *lane);
static int lane_drop(vlm_encode_lane_t *lane, const vlm_encode_item_t *item);


int
vlm_encoding_init(vlm_encoding_t *enc, const vlm_encoding_conf_t *conf,
    vlm_error_t *err)
{
    int  i;

    memset(enc, 0, sizeof(*enc));

    enc->conf = *conf;
    enc->rate = FIRST_RATE;
    enc->slice = VLM_ENCODE_SLICE;
    enc->batch = conf->ops->async ? VLM_ENCODE_ROWS_ASYNC : VLM_ENCODE_ROWS;

    for (i = 0; i < VLM_ENCODE_FLIGHTS; i++) {
        enc->flights[i].fence = conf->ops->fence_create(conf->dev);

        if (enc->flights[i].fence == NULL) {
            return vlm_fail(err, 500, NULL, "no memory for a fence");
        }
    }

    enc->encoder = vlm_encoder_create(conf->model, conf->queue, err);

    return enc->encoder != NULL ? VLM_OK : VLM_ERROR;
}


/* also when init() failed, or was not called */

void
vlm_encoding_free(vlm_encoding_t *enc)
{
    int  i;

    for (i = 0; i < VLM_ENCODE_LANES; i++) {
        vlm_encode_free(enc->lanes[i].job);
    }

    if (enc->encoder != NULL) {
        vlm_encoder_free(enc->encoder);
    }

    for (i = 0; i < VLM_ENCODE_FLIGHTS; i++) {
        if (enc->flights[i].fence != NULL) {
            enc->conf.ops->fence_destroy(enc->flights[i].fence);
        }
    }

    memset(enc, 0, sizeof(*enc));
}


void
vlm_encoding_add(vlm_encoding_t *enc, vlm_encode_item_t *item,
    uint64_t now_us, double macs)
{
    item->due_us = (double) now_us + macs / enc->rate;
    item_insert(enc, item);
}


static void
item_insert(vlm_encoding_t *enc, vlm_encode_item_t *item)
{
    vlm_encode_item_t  **p;

    for (p = &enc->waiting; *p != NULL; p = &(*p)->next) {
        if ((*p)->due_us > item->due_us) {
            break;
        }
    }

    item->next = *p;
    *p = item;
}


void
vlm_encoding_remove(vlm_encoding_t *enc, vlm_encode_item_t *item)
{
    int                  i, left;
    vlm_encode_lane_t   *lane;
    vlm_encode_item_t  **p;

    for (p = &enc->waiting; *p != NULL; p = &(*p)->next) {
        if (*p == item) {
            *p = item->next;
            return;
        }
    }

    for (i = 0; i < VLM_ENCODE_LANES; i++) {
        lane = &enc->lanes[i];
        left = lane_drop(lane, item);

        if (lane->job != NULL && !left) {
            vlm_encode_free(lane->job);
            lane->job = NULL;
            lane->n = 0;
        }
    }

    for (i = 0; i < VLM_ENCODE_FLIGHTS; i++) {
        (void) lane_drop(&enc->flights[i].ended, item);
    }
}


/* whether any others are left */

static int
lane_drop(vlm_encode_lane_t *lane, const vlm_encode_item_t *item)
{
    int     left;
    size_t  k;

    left = 0;

    for (k = 0; k < lane->n; k++) {
        if (lane->items[k] == item) {
            lane->items[k] = NULL;
        }

        left |= lane->items[k] != NULL;
    }

    return left;
}


static int64_t
item_rows(const vlm_encode_item_t *item)
{
    return (int64_t) item->plan->grid_h * item->plan->grid_w;
}


/* free lanes begin with what waits */

vlm_encode_lane_t *
vlm_lane_next(vlm_encoding_t *enc)
{
    int64_t             most;
    vlm_encode_lane_t  *a, *b;

    a = &enc->lanes[0];
    b = &enc->lanes[1];

    if (a->job == NULL && b->job == NULL) {

        while (enc->waiting != NULL && a->job == NULL) {
            if (lane_begin(enc, a, INT64_MAX) == VLM_AGAIN) {
                break;
            }
        }

    } else {

        if (b->job == NULL) {
            a = &enc->lanes[1];
            b = &enc->lanes[0];
        }

        if (a->job == NULL) {
            most = b->rows / VLM_ENCODE_SMALLER;

            if (lane_begin(enc, a, most) == VLM_OK) {
                a->turn = b->turn;
            }
        }
    }

    if (a->job == NULL || b->job == NULL) {
        return a->job != NULL ? a : b->job != NULL ? b : NULL;
    }

    return a->turn <= b->turn ? a : b;
}


/*
 * Takes the picture of at most so many rows that is due first, and, if it is
 * small, others.  VLM_AGAIN: there is none, or not now.
 */

static int
lane_begin(vlm_encoding_t *enc, vlm_encode_lane_t *lane, int64_t most)
{
    size_t               i, n;
    int64_t              rows, first;
    vlm_error_t          err;
    vlm_image_t          images[VLM_ENCODE_BATCH];
    vlm_image_plan_t     plans[VLM_ENCODE_BATCH];
    vlm_encode_item_t   *item, **p;

    n = 0;
    rows = 0;
    first = 0;

    for (p = &enc->waiting; *p != NULL && n < VLM_ENCODE_BATCH; /* void */) {
        item = *p;

        if (item_rows(item) > most) {
            p = &item->next;
            continue;
        }

        *p = item->next;

        images[n] = *item->image;
        plans[n] = *item->plan;
        lane->items[n] = item;
        lane->first[n++] = first;

        first += item->plan->ntokens;
        rows += item_rows(item);
        most = enc->batch - rows;
    }

    if (n == 0) {
        return VLM_AGAIN;
    }

    lane->n = n;
    lane->rows = rows;
    lane->turn = 0;
    lane->job = vlm_encode_begin(enc->encoder, images, plans, n, &err);
    enc->njobs++;

    if (lane->job == NULL && lane_later(enc, lane)) {
        return VLM_AGAIN;
    }

    /* the job has its own copy */

    for (i = 0; i < n; i++) {
        vlm_image_free(lane->items[i]->image);
    }

    if (lane->job != NULL) {
        return VLM_OK;
    }

    if (enc->conf.ops->async) {
        vlm_flight_failed(enc, lane, &err);

    } else {
        lane_end(enc, lane, &err);
    }

    return VLM_ERROR;
}


/* memory that it lacks may come back from what is under way */

static int
lane_later(vlm_encoding_t *enc, vlm_encode_lane_t *lane)
{
    size_t  i;

    if (!enc->conf.ops->async
        || (enc->nflights == 0 && enc->lanes[0].job == NULL
            && enc->lanes[1].job == NULL))
    {
        return 0;
    }

    for (i = 0; i < lane->n; i++) {
        item_insert(enc, lane->items[i]);
    }

    lane->n = 0;

    return 1;
}


int
vlm_lane_copy(vlm_encoding_t *enc, vlm_encode_lane_t *lane, vlm_error_t *err)
{
    size_t               i;
    vlm_tensor_t         rows;
    const vlm_tensor_t  *result;

    result = vlm_encode_result(lane->job);

    for (i = 0; i < lane->n; i++) {

        if (lane->items[i] != NULL) {
            rows = vlm_rows(result, lane->first[i],
                            lane->items[i]->plan->ntokens);
            lane->copies[i] = enc->conf.copy(enc->conf.data, &rows);
        }
    }

    return vlm_encode_check(enc->encoder, err);
}


void
vlm_lane_tell(vlm_encoding_t *enc, vlm_encode_lane_t *lane,
    const vlm_error_t *err)
{
    void               *copy;
    size_t              i;
    vlm_encode_item_t  *item;

    for (i = 0; i < lane->n; i++) {
        item = lane->items[i];
        copy = lane->copies[i];

        lane->items[i] = NULL;
        lane->copies[i] = NULL;

        if (item != NULL || copy != NULL) {
            enc->conf.encoded(enc->conf.data, item, copy, err);
        }
    }

    lane->n = 0;
}


/* all its items are done, or, with an error, have failed */

static void
lane_end(vlm_encoding_t *enc, vlm_encode_lane_t *lane, const vlm_error_t *err)
{
    vlm_encode_job_t  *job;

    /* who is told may remove other items, but not end the job by that */

    job = lane->job;
    lane->job = NULL;

    vlm_lane_tell(enc, lane, err);
    vlm_encode_free(job);
}


/* the least that can be done now, 0: nothing has begun */

static double
encoding_least(vlm_encoding_t *enc)
{
    const vlm_encode_lane_t  *lane;

    lane = vlm_lane_next(enc);

    return lane != NULL ? vlm_encode_least(lane->job) : 0;
}


int
vlm_encoding_slice(vlm_encoding_t *enc, double macs)
{
    int                 rc;
    double              spent;
    vlm_error_t         err;
    vlm_encode_lane_t  *lane;

    lane = vlm_lane_next(enc);

    if (lane == NULL) {
        return VLM_AGAIN;
    }

    spent = vlm_encode_spent(lane->job);
    rc = vlm_encode_step(lane->job, macs, &err);
    spent = vlm_encode_spent(lane->job) - spent;

    lane->turn += spent;
    enc->spent += spent;

    if (rc == VLM_OK) {
        rc = vlm_lane_copy(enc, lane, &err);
    }

    if (rc != VLM_AGAIN) {
        lane_end(enc, lane, rc == VLM_OK ? NULL : &err);
    }

    return VLM_OK;
}


double
vlm_encoding_run(vlm_encoding_t *enc, double us)
{
    double    spent, took, last, left, least;
    uint64_t  start;

    start = vlm_now_us();
    took = 0;
    last = 0;

    for ( ;; ) {
        left = (us - took) * enc->rate;
        least = encoding_least(enc);

        /* once it has begun, only what fits, by most of it */

        if (took > 0 && left < least * VLM_ENCODE_FIT) {
            break;
        }

        left *= left * (1 - PART) > least ? PART : 1;
        spent = enc->spent;

        if (vlm_encoding_slice(enc, left) == VLM_AGAIN) {
            break;
        }

        took = (double) (vlm_now_us() - start) + 1;
        spent = enc->spent - spent;

        if (spent > 0) {
            enc->rate += (spent / (took - last) - enc->rate) * WEIGHT_RATE;
        }

        last = took;
    }

    enc->us += took;

    return took;
}
