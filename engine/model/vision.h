
/*
 * The vision tower and the connector as stages over slices of rows.  Within
 * a stage the slices are independent of each other; QKV of all rows must be
 * done before ATTN, since it writes what attention reads.
 */

#ifndef VLM_VISION_H
#define VLM_VISION_H


#include "engine/model/internal.h"


typedef enum {
    VLM_STAGE_PATCH = 0,        /* pictures to rows: patch embedding */
    VLM_STAGE_QKV,              /* in each layer: norm, q k v, rotation */
    VLM_STAGE_ATTN,             /* attention, projection, residual */
    VLM_STAGE_MLP,              /* norm, MLP, residual */
    VLM_STAGE_MERGE,            /* connector */
    VLM_STAGE_DONE
} vlm_stage_t;


/*
 * Rows of a slice at most: bounds the work space.  ASYNC: of every slice, if
 * there are so many, since such a device has to be filled.
 */

#define VLM_SLICE_ROWS          512
#define VLM_SLICE_ROWS_ASYNC    4096
#define vlm_slice_rows(ops)                                                   \
    ((ops)->async ? VLM_SLICE_ROWS_ASYNC : VLM_SLICE_ROWS)


struct vlm_encoder_s {
    const vlm_model_t  *model;
    vlm_queue_t        *queue;
    int64_t             least_rows;         /* of a slice */
    int64_t             most_rows;
    vlm_tensor_t        rows;               /* slice x width */
    vlm_tensor_t        wide;               /* slice x the widest */
};

struct vlm_encode_job_s {
    vlm_encoder_t      *encoder;
    size_t              n;                  /* pictures */
    vlm_image_plan_t   *plans;
    uint8_t           **rgb;                /* device memory */
    void               *lent;               /* host_alloc(): what follows */
    int32_t            *start;              /* [n + 1] rows */
    int32_t            *positions;          /* [2][nrows] */
    uint8_t            *pixels;             /* ASYNC: all of rgb */
    vlm_segments_t      segments;
    int64_t             nrows;

    vlm_tensor_t        x;
    vlm_tensor_t        qkv;
    vlm_tensor_t        table;
    vlm_tensor_t        result;
    void               *kv;
    double              cost;
    double              spent;

    vlm_stage_t         stage;              /* the cursor: what comes next */
    int32_t             layer;
    int64_t             row;
};


/* multiply-adds of rows [row, row + n) of the stage */
double vlm_stage_cost(const vlm_encode_job_t *job, vlm_stage_t stage,
    int64_t row, int64_t n);

/* puts a slice on the queue; PATCH: of one picture only */
void vlm_stage_run(vlm_encode_job_t *job, int64_t row, int64_t n);


#endif /* VLM_VISION_H */
