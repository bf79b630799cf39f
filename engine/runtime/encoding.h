
/*
 * Pictures that wait to be encoded, and the jobs that encode them, a slice at
 * a time.  It knows nothing of requests; one thread has it.
 *
 * Fairness.  A picture is due when it would be ready if its request had the
 * encoder to itself; the one due first is next.  So pictures of one request
 * do not come before those of others that arrive a little later, and nobody
 * waits for ever.  A picture that is much smaller than the one being encoded
 * does not wait for it: there are two lanes, which take turns.
 *
 * Small pictures run as one job: what reads the weights once serves them all.
 * Attention stays inside each, so that the bits are those of a job of its
 * own.
 */

#ifndef VLM_ENCODING_H
#define VLM_ENCODING_H


#include "engine/model/model.h"


#define VLM_ENCODE_LANES    2
#define VLM_ENCODE_BATCH    16      /* pictures of one job */
#define VLM_ENCODE_ROWS     256     /* patches of several pictures in a job */
#define VLM_ENCODE_SMALLER  4       /* times, to have a lane of its own */


typedef struct vlm_encode_item_s  vlm_encode_item_t;

struct vlm_encode_item_s {
    vlm_image_t             *image;     /* freed when its job begins */
    const vlm_image_plan_t  *plan;
    void                    *owner;
    double                   due_us;
    vlm_encode_item_t       *next;
};

/*
 * Called once for each item that was not removed, with its rows of the
 * result, which must be copied; NULL: *err tells why there are none.  More
 * items may be added and removed in it.
 */
typedef void (*vlm_encoded_pt)(void *data, vlm_encode_item_t *item,
    const vlm_tensor_t *rows, const vlm_error_t *err);

typedef struct {
    vlm_encode_job_t        *job;       /* NULL: free */
    vlm_encode_item_t       *items[VLM_ENCODE_BATCH];   /* NULL: dropped */
    int64_t                  first[VLM_ENCODE_BATCH];   /* of result rows */
    size_t                   n;
    int64_t                  rows;
    double                   turn;      /* multiply-adds, to take turns */
} vlm_encode_lane_t;

typedef struct {
    vlm_encoder_t           *encoder;
    vlm_encoded_pt           encoded;
    void                    *data;

    vlm_encode_item_t       *waiting;   /* by due_us */
    vlm_encode_lane_t        lanes[VLM_ENCODE_LANES];

    double                   rate;      /* multiply-adds a microsecond */
    double                   spent;     /* multiply-adds so far */
    double                   us;        /* in which they were done */
    uint64_t                 njobs;
} vlm_encoding_t;


int vlm_encoding_init(vlm_encoding_t *enc, const vlm_model_t *m,
    vlm_queue_t *q, vlm_encoded_pt encoded, void *data, vlm_error_t *err);
void vlm_encoding_free(vlm_encoding_t *enc);

/*
 * From now_us on; "macs" are those of its request's pictures up to and with
 * this one.
 */
void vlm_encoding_add(vlm_encoding_t *enc, vlm_encode_item_t *item,
    uint64_t now_us, double macs);

/* takes an item out, wherever it is; others of its job are not disturbed */
void vlm_encoding_remove(vlm_encoding_t *enc, vlm_encode_item_t *item);

/*
 * One slice of about "macs" multiply-adds, at least the smallest there is.
 * VLM_AGAIN: nothing is there to do.
 */
int vlm_encoding_slice(vlm_encoding_t *enc, double macs);

/* slices for about us; returns what it took, 0: nothing is there to do */
double vlm_encoding_run(vlm_encoding_t *enc, double us);


#endif /* VLM_ENCODING_H */
