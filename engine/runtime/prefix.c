
#include <stddef.h>

#include <openssl/evp.h>

#include "engine/runtime/prefix.h"


/* a list of runs of bytes, whose lengths are known, to one key */

static int
digest(EVP_MD_CTX *ctx, int ok, vlm_prefix_key_t *key)
{
    ok = ok && EVP_DigestFinal_ex(ctx, key->bytes, NULL) == 1;

    EVP_MD_CTX_free(ctx);

    return ok ? VLM_OK : VLM_ERROR;
}


static EVP_MD_CTX *
start(const void *data, size_t len)
{
    EVP_MD_CTX  *ctx;

    ctx = EVP_MD_CTX_new();

    if (ctx != NULL
        && (EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1
            || EVP_DigestUpdate(ctx, data, len) != 1))
    {
        EVP_MD_CTX_free(ctx);
        ctx = NULL;
    }

    return ctx;
}


int
vlm_prefix_root(const vlm_prefix_key_t *secret, const char *scope,
    size_t len, uint64_t unique, vlm_prefix_key_t *key)
{
    int          ok;
    EVP_MD_CTX  *ctx;

    ctx = start(secret->bytes, sizeof(secret->bytes));
    if (ctx == NULL) {
        return VLM_ERROR;
    }

    ok = EVP_DigestUpdate(ctx, &unique, sizeof(unique)) == 1
         && EVP_DigestUpdate(ctx, scope, len) == 1;

    return digest(ctx, ok, key);
}


int
vlm_prefix_next(const vlm_prefix_key_t *parent, const int32_t *ids,
    int32_t first, int32_t n, const vlm_prefix_span_t *spans, size_t nspans,
    vlm_prefix_key_t *key)
{
    int          ok;
    size_t       i;
    int32_t      offset;
    EVP_MD_CTX  *ctx;

    ctx = start(parent->bytes, sizeof(parent->bytes));
    if (ctx == NULL) {
        return VLM_ERROR;
    }

    ok = EVP_DigestUpdate(ctx, &n, sizeof(n)) == 1
         && EVP_DigestUpdate(ctx, ids, (size_t) n * sizeof(int32_t)) == 1;

    for (i = 0; i < nspans; i++) {

        if (spans[i].first >= first + n
            || spans[i].first + spans[i].count <= first)
        {
            continue;
        }

        offset = spans[i].first - first;

        ok = ok && EVP_DigestUpdate(ctx, &offset, sizeof(offset)) == 1
             && EVP_DigestUpdate(ctx, &spans[i].count,
                                 sizeof(spans[i].count)) == 1
             && EVP_DigestUpdate(ctx, spans[i].key->bytes,
                                 sizeof(spans[i].key->bytes)) == 1;
    }

    return digest(ctx, ok, key);
}
