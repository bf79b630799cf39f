
#include <stdlib.h>
#include <string.h>

#include "engine/runtime/block.h"


int
vlm_blocks_init(vlm_blocks_t *b, int32_t total)
{
    int32_t  i;

    memset(b, 0, sizeof(*b));

    b->free = calloc((size_t) total + 1, sizeof(int32_t));
    if (b->free == NULL) {
        return VLM_ERROR;
    }

    /* low numbers first */

    for (i = 0; i < total; i++) {
        b->free[i] = total - 1 - i;
    }

    b->nfree = total;
    b->total = total;

    return VLM_OK;
}


void
vlm_blocks_free(vlm_blocks_t *b)
{
    free(b->free);
    memset(b, 0, sizeof(*b));
}


int
vlm_blocks_reserve(vlm_blocks_t *b, int32_t n)
{
    if (n > b->total - b->reserved) {
        return VLM_AGAIN;
    }

    b->reserved += n;

    return VLM_OK;
}


void
vlm_blocks_unreserve(vlm_blocks_t *b, int32_t n)
{
    b->reserved -= n;
}


int32_t
vlm_blocks_take(vlm_blocks_t *b)
{
    if (b->nfree == 0) {
        return -1;
    }

    return b->free[--b->nfree];
}


void
vlm_blocks_give(vlm_blocks_t *b, int32_t block)
{
    b->free[b->nfree++] = block;
}
