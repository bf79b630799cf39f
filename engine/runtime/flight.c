
/* Slices of encoding on the queue of a device that runs asynchronously. */

#include <string.h>

#include "engine/runtime/encoding.h"


#define WEIGHT_RATE     0.3


static vlm_encode_flight_t *
flight_new(vlm_encoding_t *enc)
{
    vlm_encode_flight_t  *f;

    f = &enc->flights[(enc->first + enc->nflights++) % VLM_ENCODE_FLIGHTS];

    f->ended.n = 0;
    f->macs = 0;
    f->at_us = vlm_now_us();
    f->failed = 0;

    return f;
}


static void
flight_end(vlm_encode_flight_t *f, vlm_encode_lane_t *lane)
{
    f->ended = *lane;
    f->ended.job = NULL;

    /* its memory is not had again before it has run */

    vlm_encode_free(lane->job);
    memset(lane, 0, sizeof(*lane));
}


void
vlm_flight_failed(vlm_encoding_t *enc, vlm_encode_lane_t *lane,
    const vlm_error_t *err)
{
    vlm_encode_flight_t  *f;

    f = flight_new(enc);
    f->failed = 1;
    f->err = *err;

    flight_end(f, lane);
}


static void
flight_submit(vlm_encoding_t *enc, vlm_encode_lane_t *lane)
{
    int                   rc;
    double                spent;
    vlm_error_t           err;
    vlm_encode_flight_t  *f;

    spent = vlm_encode_spent(lane->job);
    rc = vlm_encode_step(lane->job, enc->slice, &err);
    spent = vlm_encode_spent(lane->job) - spent;

    lane->turn += spent;
    enc->spent += spent;

    if (rc == VLM_OK) {
        rc = vlm_lane_copy(enc, lane, &err);
    }

    if (rc == VLM_ERROR) {
        vlm_flight_failed(enc, lane, &err);
        return;
    }

    f = flight_new(enc);
    f->macs = spent;

    enc->conf.ops->record(enc->conf.queue, f->fence);

    if (rc == VLM_OK) {
        flight_end(f, lane);
    }
}


int
vlm_encoding_submit(vlm_encoding_t *enc)
{
    int                 before;
    vlm_encode_lane_t  *lane;

    before = enc->nflights;

    while (enc->nflights < VLM_ENCODE_FLIGHTS) {
        lane = vlm_lane_next(enc);

        if (lane == NULL) {
            break;
        }

        flight_submit(enc, lane);
    }

    return enc->nflights != before ? VLM_OK : VLM_AGAIN;
}


/* multiply-adds that have been done, seen now, since they could begin */

static void
flight_rate(vlm_encoding_t *enc, double macs, uint64_t from_us)
{
    double    us;
    uint64_t  now;

    now = vlm_now_us();
    from_us = from_us > enc->landed_us ? from_us : enc->landed_us;
    enc->landed_us = now;

    if (macs > 0) {
        us = (double) (now - from_us) + 1;

        enc->us += us;
        enc->rate += (macs / us - enc->rate) * WEIGHT_RATE;
    }
}


int
vlm_encoding_collect(vlm_encoding_t *enc)
{
    int                   n;
    double                macs;
    uint64_t              from_us;
    vlm_encode_flight_t  *f;

    macs = 0;
    from_us = enc->flights[enc->first].at_us;

    for (n = 0; enc->nflights > 0; n++) {
        f = &enc->flights[enc->first];

        if (!f->failed) {

            if (!enc->conf.ops->reached(f->fence)) {
                break;
            }

            f->failed = vlm_encode_check(enc->encoder, &f->err) != VLM_OK;
        }

        macs += f->failed ? 0 : f->macs;

        vlm_lane_tell(enc, &f->ended, f->failed ? &f->err : NULL);

        enc->first = (enc->first + 1) % VLM_ENCODE_FLIGHTS;
        enc->nflights--;
    }

    if (n == 0) {
        return VLM_AGAIN;
    }

    flight_rate(enc, macs, from_us);

    return VLM_OK;
}


void
vlm_encoding_stop(vlm_encoding_t *enc)
{
    int                 i;
    char                why[256];
    size_t              k;
    vlm_encode_lane_t  *ended;

    if (enc->nflights == 0) {
        return;
    }

    (void) enc->conf.ops->sync(enc->conf.queue, why, sizeof(why));

    for (i = 0; i < VLM_ENCODE_FLIGHTS; i++) {
        ended = &enc->flights[i].ended;

        for (k = 0; k < ended->n; k++) {
            ended->items[k] = NULL;
        }

        vlm_lane_tell(enc, ended, NULL);
    }

    enc->nflights = 0;
}
