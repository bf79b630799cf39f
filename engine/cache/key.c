
#include <stdio.h>
#include <string.h>

#include <openssl/evp.h>

#include "engine/cache/key.h"


enum {
    FIELD_PICTURE = 1,
    FIELD_WEIGHTS,
    FIELD_PLAN,
    FIELD_GEOMETRY,
    FIELD_DTYPE,
    FIELD_DEVICE,
    FIELD_SCOPE,
    FIELD_QUANT                 /* not there: none */
};


static void
put32(uint8_t *p, uint32_t n)
{
    p[0] = (uint8_t) n;
    p[1] = (uint8_t) (n >> 8);
    p[2] = (uint8_t) (n >> 16);
    p[3] = (uint8_t) (n >> 24);
}


/* { tag, length, bytes } */

static int
field(EVP_MD_CTX *ctx, uint32_t tag, const void *data, size_t len)
{
    uint8_t  head[8];

    put32(head, tag);
    put32(head + 4, (uint32_t) len);

    return EVP_DigestUpdate(ctx, head, sizeof(head)) == 1
           && EVP_DigestUpdate(ctx, data, len) == 1;
}


static int
field_numbers(EVP_MD_CTX *ctx, uint32_t tag, const uint32_t *numbers,
    size_t n)
{
    size_t   i;
    uint8_t  bytes[64];

    for (i = 0; i < n; i++) {
        put32(bytes + 4 * i, numbers[i]);
    }

    return field(ctx, tag, bytes, 4 * n);
}


static uint32_t
float_bits(float f)
{
    uint32_t  bits;

    memcpy(&bits, &f, sizeof(bits));

    return bits;
}


static int
field_geometry(EVP_MD_CTX *ctx, const vlm_patch_geometry_t *g)
{
    uint32_t  n[11];

    n[0] = (uint32_t) g->width;
    n[1] = (uint32_t) g->height;
    n[2] = (uint32_t) g->patch;
    n[3] = (uint32_t) g->merge;
    n[4] = (uint32_t) g->frames;
    n[5] = float_bits(g->mean[0]);
    n[6] = float_bits(g->mean[1]);
    n[7] = float_bits(g->mean[2]);
    n[8] = float_bits(g->std[0]);
    n[9] = float_bits(g->std[1]);
    n[10] = float_bits(g->std[2]);

    return field_numbers(ctx, FIELD_GEOMETRY, n, 11);
}


static int
field_plan(EVP_MD_CTX *ctx, const vlm_image_plan_t *plan)
{
    uint32_t  n[6];

    n[0] = plan->width;
    n[1] = plan->height;
    n[2] = (uint32_t) plan->filter;
    n[3] = (uint32_t) plan->grid_h;
    n[4] = (uint32_t) plan->grid_w;
    n[5] = (uint32_t) plan->ntokens;

    return field_numbers(ctx, FIELD_PLAN, n, 6);
}


int
vlm_cache_key(const vlm_cache_what_t *what, vlm_cache_key_t *key)
{
    int          ok;
    uint32_t     dtype, quant;
    uint8_t      version[4];
    EVP_MD_CTX  *ctx;

    ctx = EVP_MD_CTX_new();
    if (ctx == NULL) {
        return VLM_ERROR;
    }

    put32(version, VLM_CACHE_KEY_VERSION);
    dtype = (uint32_t) what->dtype;
    quant = (uint32_t) what->quant;

    ok = EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1
         && EVP_DigestUpdate(ctx, "vlm embedding", 13) == 1
         && EVP_DigestUpdate(ctx, version, sizeof(version)) == 1
         && field(ctx, FIELD_PICTURE, what->picture, 32)
         && field(ctx, FIELD_WEIGHTS, what->weights, 32)
         && field_plan(ctx, what->plan)
         && field_geometry(ctx, what->geometry)
         && field_numbers(ctx, FIELD_DTYPE, &dtype, 1)
         && field(ctx, FIELD_DEVICE, what->device, strlen(what->device))
         && field(ctx, FIELD_SCOPE, what->scope, what->scope_len)
         && (what->quant == VLM_QUANT_NONE
             || field_numbers(ctx, FIELD_QUANT, &quant, 1))
         && EVP_DigestFinal_ex(ctx, key->bytes, NULL) == 1;

    EVP_MD_CTX_free(ctx);

    return ok ? VLM_OK : VLM_ERROR;
}


void
vlm_cache_name(const vlm_cache_key_t *key, const uint8_t *weights,
    char name[VLM_CACHE_NAME_LEN])
{
    int  i, n;

    n = snprintf(name, VLM_CACHE_NAME_LEN, "vlm:emb:%d:",
                 VLM_CACHE_KEY_VERSION);

    for (i = 0; i < 8; i++) {
        n += snprintf(name + n, VLM_CACHE_NAME_LEN - (size_t) n, "%02x",
                      weights[i]);
    }

    name[n++] = ':';

    for (i = 0; i < 32; i++) {
        n += snprintf(name + n, VLM_CACHE_NAME_LEN - (size_t) n, "%02x",
                      key->bytes[i]);
    }
}
