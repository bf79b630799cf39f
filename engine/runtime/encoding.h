
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
 *
 * On a device that runs asynchronously slices are put on the queue while
 * others are at work, large ones, no more than two at a time, so that a
 * picture that nobody wants any more is soon left (flight.c).
 */

#ifndef VLM_ENCODING_H
#define VLM_ENCODING_H


#include "engine/model/model.h"


#define VLM_ENCODE_LANES    2
#define VLM_ENCODE_BATCH    16      /* pictures of one job */
#define VLM_ENCODE_ROWS     256     /* patches of several pictures in a job */
#define VLM_ENCODE_ROWS_ASYNC   4096
#define VLM_ENCODE_SMALLER  4       /* times, to have a lane of its own */
#define VLM_ENCODE_FLIGHTS  2       /* slices on the queue */

/* multiply-adds of such a slice: 2 to 4 ms of a large GPU */
#define VLM_ENCODE_SLICE    4e11


typedef struct vlm_encode_item_s  vlm_encode_item_t;

struct vlm_encode_item_s {
    vlm_image_t             *image;     /* freed when its job begins */
    const vlm_image_plan_t  *plan;
    void                    *owner;
    double                   due_us;
    vlm_encode_item_t       *next;
};

typedef struct {
    const vlm_model_t       *model;
    vlm_device_t            *dev;
    const vlm_ops_t         *ops;
    vlm_queue_t             *queue;

    /* puts a copy of an item's rows of the result on the queue; NULL: none */
    void                  *(*copy)(void *data, const vlm_tensor_t *rows);

    /*
     * Called once for each item with its copy, which is complete; or "err"
     * tells why there are no rows, and there may be a copy or not.  "item" is
     * NULL if it was removed since it was copied.  More items may be added
     * and removed in it.
     */
    void                   (*encoded)(void *data, vlm_encode_item_t *item,
                                      void *copy, const vlm_error_t *err);
    void                    *data;
} vlm_encoding_conf_t;

typedef struct {
    vlm_encode_job_t        *job;       /* NULL: free */
    vlm_encode_item_t       *items[VLM_ENCODE_BATCH];   /* NULL: dropped */
    void                    *copies[VLM_ENCODE_BATCH];  /* once it is done */
    int64_t                  first[VLM_ENCODE_BATCH];   /* of result rows */
    size_t                   n;
    int64_t                  rows;
    double                   turn;      /* multiply-adds, to take turns */
} vlm_encode_lane_t;

/* a slice on the queue, or an error that is to be told */

typedef struct {
    vlm_fence_t             *fence;
    vlm_encode_lane_t        ended;     /* with this slice; n 0: none */
    double                   macs;
    uint64_t                 at_us;
    int                      failed;
    vlm_error_t              err;
} vlm_encode_flight_t;

typedef struct {
    vlm_encoding_conf_t      conf;
    vlm_encoder_t           *encoder;

    vlm_encode_item_t       *waiting;   /* by due_us */
    vlm_encode_lane_t        lanes[VLM_ENCODE_LANES];
    int64_t                  batch;     /* patches of several pictures */

    vlm_encode_flight_t      flights[VLM_ENCODE_FLIGHTS];
    int                      first;     /* the oldest of them */
    int                      nflights;
    uint64_t                 landed_us; /* the last one */
    double                   slice;     /* multiply-adds */

    double                   rate;      /* multiply-adds a microsecond */
    double                   spent;     /* multiply-adds so far */
    double                   us;        /* in which they were done */
    uint64_t                 njobs;
} vlm_encoding_t;


int vlm_encoding_init(vlm_encoding_t *enc, const vlm_encoding_conf_t *conf,
    vlm_error_t *err);

/* waits for what is in flight, and gives its copies back */
void vlm_encoding_stop(vlm_encoding_t *enc);
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

/*
 * Instead, where the device runs asynchronously: fills the queue, without a
 * call of conf.encoded(); and takes what has been done, with them.  VLM_AGAIN:
 * there was nothing to do.
 */
int vlm_encoding_submit(vlm_encoding_t *enc);
int vlm_encoding_collect(vlm_encoding_t *enc);


/* ---- for flight.c ---- */

/* whose turn it is; NULL: nobody's */
vlm_encode_lane_t *vlm_lane_next(vlm_encoding_t *enc);

/* puts copies of its job's results on the queue */
int vlm_lane_copy(vlm_encoding_t *enc, vlm_encode_lane_t *lane,
    vlm_error_t *err);

/* tells the fate of all its items */
void vlm_lane_tell(vlm_encoding_t *enc, vlm_encode_lane_t *lane,
    const vlm_error_t *err);

/* keeps an error for collect(), in place of a slice */
void vlm_flight_failed(vlm_encoding_t *enc, vlm_encode_lane_t *lane,
    const vlm_error_t *err);


#endif /* VLM_ENCODING_H */
