
/*
 * What an embedding depends on, as a key of 32 bytes: SHA-256 of a versioned
 * list of framed fields.  Equal keys mean equal bits.
 */

#ifndef VLM_CACHE_KEY_H
#define VLM_CACHE_KEY_H


#include "engine/model/model.h"


/* to be raised when the fields change, or the tower's arithmetic does */
#define VLM_CACHE_KEY_VERSION   1

#define VLM_CACHE_NAME_LEN      (sizeof("vlm:emb:1:") + 16 + 1 + 64)


typedef struct {
    uint8_t                      bytes[32];
} vlm_cache_key_t;

typedef struct {
    const uint8_t               *picture;   /* SHA-256 of the file's bytes */
    const uint8_t               *weights;   /* vlm_model_vision_digest() */
    const vlm_image_plan_t      *plan;
    const vlm_patch_geometry_t  *geometry;
    vlm_quant_t                  quant;     /* of the tower's weights */
    vlm_dtype_t                  dtype;     /* of the stored embedding */
    const char                  *device;    /* class: "cpu", "cuda" */
    const char                  *scope;     /* tenant, not terminated */
    size_t                       scope_len;
} vlm_cache_what_t;


int vlm_cache_key(const vlm_cache_what_t *what, vlm_cache_key_t *key);

/*
 * The key's name in Redis: "vlm:emb:1:WEIGHTS:KEY" in hex, so that what
 * belongs to one model can be found.
 */
void vlm_cache_name(const vlm_cache_key_t *key, const uint8_t *weights,
    char name[VLM_CACHE_NAME_LEN]);


#endif /* VLM_CACHE_KEY_H */
