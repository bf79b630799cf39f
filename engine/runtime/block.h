
/*
 * The blocks of the KV cache: which are free.  A sequence reserves at
 * admission as many as it can ever need, and takes them one by one as it
 * grows, so taking within a reservation never fails.
 */

#ifndef VLM_BLOCK_H
#define VLM_BLOCK_H


#include <stdint.h>

#include "engine/base/vlm_base.h"


typedef struct {
    int32_t    *free;               /* a stack of block numbers */
    int32_t     nfree;
    int32_t     total;
    int32_t     reserved;           /* of all sequences, taken or not */
} vlm_blocks_t;


int vlm_blocks_init(vlm_blocks_t *b, int32_t total);
void vlm_blocks_free(vlm_blocks_t *b);

/* VLM_AGAIN: not now */
int vlm_blocks_reserve(vlm_blocks_t *b, int32_t n);
void vlm_blocks_unreserve(vlm_blocks_t *b, int32_t n);

/* a block's number, -1: none is free */
int32_t vlm_blocks_take(vlm_blocks_t *b);
void vlm_blocks_give(vlm_blocks_t *b, int32_t block);


#endif /* VLM_BLOCK_H */
