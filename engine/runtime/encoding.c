
#include <string.h>

#include "engine/runtime/encoding.h"


#define FIRST_RATE      2000.0
#define WEIGHT_RATE     0.3

/* of the time left, tried at once: the rate differs between operations */
#define PART            0.75


static vlm_encode_lane_t *lane_next(vlm_encoding_t *enc);
static int lane_begin(vlm_encoding_t *enc, vlm_encode_lane_t *lane,
    int64_t most);
static void lane_end(vlm_encoding_t *enc, vlm_encode_lane_t *lane,
    const vlm_error_t *err);


int
vlm_encoding_init(vlm_encoding_t *enc, const vlm_model_t *m,
    vlm_queue_t *q, vlm_encoded_pt encoded, void *data, vlm_error_t *err)
{
    memset(enc, 0, sizeof(*enc));

    enc->encoded = encoded;
    enc->data = data;
    enc->rate = FIRST_RATE;

    enc->encoder = vlm_encoder_create(m, q, err);

    return enc->encoder != NULL ? VLM_OK : VLM_ERROR;
}


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

    memset(enc, 0, sizeof(*enc));
}


void
vlm_encoding_add(vlm_encoding_t *enc, vlm_encode_item_t *item,
    uint64_t now_us, double macs)
{
    vlm_encode_item_t  **p;

    item->due_us = (double) now_us + macs / enc->rate;

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
    size_t               k;
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
        left = 0;

        for (k = 0; k < lane->n; k++) {
            if (lane->items[k] == item) {
                lane->items[k] = NULL;
            }

            left |= lane->items[k] != NULL;
        }

        if (lane->job != NULL && !left) {
            vlm_encode_free(lane->job);
            lane->job = NULL;
            lane->n = 0;
        }
    }
}


static int64_t
item_rows(const vlm_encode_item_t *item)
{
    return (int64_t) item->plan->grid_h * item->plan->grid_w;
}


/* whose turn it is; free lanes begin with what waits */

static vlm_encode_lane_t *
lane_next(vlm_encoding_t *enc)
{
    int64_t             most;
    vlm_encode_lane_t  *a, *b;

    a = &enc->lanes[0];
    b = &enc->lanes[1];

    if (a->job == NULL && b->job == NULL) {

        while (enc->waiting != NULL && a->job == NULL) {
            (void) lane_begin(enc, a, INT64_MAX);
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
 * small, others.  VLM_AGAIN: there is none.
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
        most = VLM_ENCODE_ROWS - rows;
    }

    if (n == 0) {
        return VLM_AGAIN;
    }

    lane->n = n;
    lane->rows = rows;
    lane->turn = 0;
    lane->job = vlm_encode_begin(enc->encoder, images, plans, n, &err);
    enc->njobs++;

    /* the job has its own copy */

    for (i = 0; i < n; i++) {
        vlm_image_free(lane->items[i]->image);
    }

    if (lane->job == NULL) {
        lane_end(enc, lane, &err);
        return VLM_ERROR;
    }

    return VLM_OK;
}


/* all its items are done, or, with an error, have failed */

static void
lane_end(vlm_encoding_t *enc, vlm_encode_lane_t *lane, const vlm_error_t *err)
{
    size_t              i;
    vlm_tensor_t        rows;
    vlm_encode_job_t   *job;
    vlm_encode_item_t  *item;

    /* who is told may remove other items, but not end the job by that */

    job = lane->job;
    lane->job = NULL;

    for (i = 0; i < lane->n; i++) {
        item = lane->items[i];

        if (item == NULL) {
            continue;
        }

        lane->items[i] = NULL;

        if (err != NULL) {
            enc->encoded(enc->data, item, NULL, err);
            continue;
        }

        rows = vlm_rows(vlm_encode_result(job), lane->first[i],
                        item->plan->ntokens);
        enc->encoded(enc->data, item, &rows, NULL);
    }

    vlm_encode_free(job);
    lane->n = 0;
}


/* the least that can be done now, 0: nothing has begun */

static double
encoding_least(vlm_encoding_t *enc)
{
    const vlm_encode_lane_t  *lane;

    lane = lane_next(enc);

    return lane != NULL ? vlm_encode_least(lane->job) : 0;
}


int
vlm_encoding_slice(vlm_encoding_t *enc, double macs)
{
    int                 rc;
    double              spent;
    vlm_error_t         err;
    vlm_encode_lane_t  *lane;

    lane = lane_next(enc);

    if (lane == NULL) {
        return VLM_AGAIN;
    }

    spent = vlm_encode_spent(lane->job);
    rc = vlm_encode_step(lane->job, macs, &err);
    spent = vlm_encode_spent(lane->job) - spent;

    lane->turn += spent;
    enc->spent += spent;

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
