
#include <stdlib.h>
#include <string.h>

#include "engine/runtime/block.h"


static void idle_unlink(vlm_blocks_t *b, int32_t n);
static void name_drop(vlm_blocks_t *b, int32_t n);


int
vlm_blocks_init(vlm_blocks_t *b, int32_t total)
{
    int32_t   i;
    uint32_t  size;

    memset(b, 0, sizeof(*b));

    for (size = 16; size < (uint32_t) total; size *= 2) {
        /* void */
    }

    b->block = calloc((size_t) total + 1, sizeof(vlm_block_t));
    b->free = calloc((size_t) total + 1, sizeof(int32_t));
    b->buckets = calloc(size, sizeof(int32_t));

    if (b->block == NULL || b->free == NULL || b->buckets == NULL) {
        vlm_blocks_free(b);
        return VLM_ERROR;
    }

    memset(b->buckets, 0xff, size * sizeof(int32_t));
    b->mask = size - 1;

    /* low numbers first */

    for (i = 0; i < total; i++) {
        b->free[i] = total - 1 - i;
    }

    b->nfree = total;
    b->total = total;
    b->oldest = -1;
    b->newest = -1;

    return VLM_OK;
}


void
vlm_blocks_free(vlm_blocks_t *b)
{
    free(b->block);
    free(b->free);
    free(b->buckets);
    memset(b, 0, sizeof(*b));
}


int32_t
vlm_blocks_available(const vlm_blocks_t *b)
{
    return b->nfree + b->nidle;
}


int32_t
vlm_blocks_take(vlm_blocks_t *b)
{
    int32_t  n;

    if (b->nfree > 0) {
        n = b->free[--b->nfree];

    } else if (b->oldest >= 0) {
        n = b->oldest;
        idle_unlink(b, n);
        name_drop(b, n);

    } else {
        return -1;
    }

    b->block[n].refs = 1;

    return n;
}


/* keys are digests: any of their bits will do */

static int32_t *
bucket_of(const vlm_blocks_t *b, const vlm_prefix_key_t *key)
{
    uint32_t  hash;

    memcpy(&hash, key->bytes, sizeof(hash));

    return &b->buckets[hash & b->mask];
}


int32_t
vlm_blocks_find(const vlm_blocks_t *b, const vlm_prefix_key_t *key)
{
    int32_t  n;

    for (n = *bucket_of(b, key); n >= 0; n = b->block[n].chain) {
        if (memcmp(&b->block[n].key, key, sizeof(*key)) == 0) {
            break;
        }
    }

    return n;
}


void
vlm_blocks_share(vlm_blocks_t *b, int32_t n)
{
    if (b->block[n].refs == 0) {
        idle_unlink(b, n);
    }

    b->block[n].refs++;
}


void
vlm_blocks_give(vlm_blocks_t *b, int32_t n)
{
    vlm_block_t  *p;

    p = &b->block[n];

    if (--p->refs > 0) {
        return;
    }

    if (!p->named) {
        b->free[b->nfree++] = n;
        return;
    }

    p->prev = b->newest;
    p->next = -1;

    if (b->newest >= 0) {
        b->block[b->newest].next = n;

    } else {
        b->oldest = n;
    }

    b->newest = n;
    b->nidle++;
}


void
vlm_blocks_name(vlm_blocks_t *b, int32_t n, const vlm_prefix_key_t *key)
{
    int32_t      *bucket;
    vlm_block_t  *p;

    p = &b->block[n];

    if (p->named || vlm_blocks_find(b, key) >= 0) {
        return;
    }

    bucket = bucket_of(b, key);

    p->key = *key;
    p->named = 1;
    p->chain = *bucket;
    *bucket = n;
}


static void
idle_unlink(vlm_blocks_t *b, int32_t n)
{
    vlm_block_t  *p;

    p = &b->block[n];

    if (p->prev >= 0) {
        b->block[p->prev].next = p->next;

    } else {
        b->oldest = p->next;
    }

    if (p->next >= 0) {
        b->block[p->next].prev = p->prev;

    } else {
        b->newest = p->prev;
    }

    b->nidle--;
}


static void
name_drop(vlm_blocks_t *b, int32_t n)
{
    int32_t  *p;

    for (p = bucket_of(b, &b->block[n].key); *p != n;
         p = &b->block[*p].chain)
    {
        /* void */
    }

    *p = b->block[n].chain;
    b->block[n].named = 0;
}
