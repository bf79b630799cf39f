
/*
 * Names of full KV blocks.  What a block holds depends on every token before
 * it and in it, on the pictures behind placeholders, and on nothing else, so
 * its key is SHA-256 of all that: H(key of the block before, tokens, pictures
 * and where they lie).  Equal keys mean equal contents.
 */

#ifndef VLM_PREFIX_H
#define VLM_PREFIX_H


#include <stdint.h>

#include "engine/cache/key.h"


typedef struct {
    uint8_t             bytes[32];
} vlm_prefix_key_t;

/* a picture in the prompt */

typedef struct {
    int32_t                 first;      /* index of its first token */
    int32_t                 count;
    const vlm_cache_key_t  *key;        /* its embedding's */
} vlm_prefix_span_t;


/*
 * What comes before the first block: the secret of this process, so that
 * nobody can choose where keys lie in a table; the scope, which shares
 * nothing with another; and a number, 0 for whoever may share.
 */
int vlm_prefix_root(const vlm_prefix_key_t *secret, const char *scope,
    size_t len, uint64_t unique, vlm_prefix_key_t *key);

/*
 * The block of tokens ids[0 .. n), of which ids[0] is the first-th of all;
 * spans in order, key may be parent.  VLM_ERROR: no memory.
 */
int vlm_prefix_next(const vlm_prefix_key_t *parent, const int32_t *ids,
    int32_t first, int32_t n, const vlm_prefix_span_t *spans, size_t nspans,
    vlm_prefix_key_t *key);


#endif /* VLM_PREFIX_H */
