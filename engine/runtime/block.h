
/*
 * The blocks of the KV cache: who uses them, and what they hold.  A block is
 * free, used by one sequence or more, or idle: full, named by a key and kept
 * until its room is needed, the one idle for longest first.
 */

#ifndef VLM_BLOCK_H
#define VLM_BLOCK_H


#include <stdint.h>

#include "engine/runtime/prefix.h"


typedef struct {
    vlm_prefix_key_t    key;
    int32_t             refs;
    int32_t             named;          /* it is in the table */
    int32_t             chain;          /* the next in its bucket, -1: none */
    int32_t             prev;           /* among the idle, -1: none */
    int32_t             next;
} vlm_block_t;

typedef struct {
    vlm_block_t        *block;
    int32_t             total;
    int32_t            *free;           /* a stack of block numbers */
    int32_t             nfree;
    int32_t             oldest;         /* of the idle, -1: none */
    int32_t             newest;
    int32_t             nidle;
    int32_t            *buckets;
    uint32_t            mask;
} vlm_blocks_t;


int vlm_blocks_init(vlm_blocks_t *b, int32_t total);
void vlm_blocks_free(vlm_blocks_t *b);

/* how many can be taken */
int32_t vlm_blocks_available(const vlm_blocks_t *b);

/* a block for one user, -1: all are in use */
int32_t vlm_blocks_take(vlm_blocks_t *b);

/* the block of that name, -1: none; vlm_blocks_share() makes one a user */
int32_t vlm_blocks_find(const vlm_blocks_t *b, const vlm_prefix_key_t *key);
void vlm_blocks_share(vlm_blocks_t *b, int32_t block);

/* one user fewer */
void vlm_blocks_give(vlm_blocks_t *b, int32_t block);

/* it is full now and can be found, unless another one has the name */
void vlm_blocks_name(vlm_blocks_t *b, int32_t block,
    const vlm_prefix_key_t *key);


#endif /* VLM_BLOCK_H */
