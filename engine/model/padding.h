
/*
 * Steps in which each sequence has one row, made larger so that there are few
 * sizes of them: a device that records work can put the same work again.
 */

#ifndef VLM_PADDING_H
#define VLM_PADDING_H


#include "engine/model/model.h"


typedef struct {
    int32_t             most;               /* rows */
    int32_t             naxes;
    int32_t             spare;              /* block of rows that are added */
    int32_t            *row_start;
    int32_t            *context;
    int32_t            *ids;
    int32_t            *positions;
    int32_t            *blocks;
    size_t              size_blocks;
} vlm_padding_t;


/* blocks that a sequence has then, if it needs so many */
int32_t vlm_padding_blocks(int32_t need);

int vlm_padding_init(vlm_padding_t *p, int32_t most, int32_t naxes,
    int32_t spare, vlm_error_t *err);
void vlm_padding_free(vlm_padding_t *p);

/* one row of each sequence, as many wanted, no embeddings */
int vlm_padding_fits(const vlm_padding_t *p, const vlm_decode_batch_t *batch);

/*
 * "to" is the batch with rows of the token 0 behind it and more blocks of a
 * sequence; its lists are p's, until the next one.
 */
int vlm_padding_fill(vlm_padding_t *p, const vlm_decode_batch_t *batch,
    int32_t block_size, vlm_decode_batch_t *to, vlm_error_t *err);


#endif /* VLM_PADDING_H */
