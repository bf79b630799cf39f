
/*
 * Embeddings as the device has them, as the cache keeps them, and as Redis
 * does: rounded to one type in all three, so that a hit equals a miss.  int8
 * is held as the bf16 that it stands for.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cache/value.h"
#include "engine/runtime/internal.h"


static vlm_entry_t *embed_alloc(vlm_engine_t *e, vlm_dtype_t dtype,
    int64_t rows, int32_t cols, vlm_error_t *err);
static int embed_round(vlm_engine_t *e, vlm_entry_t *entry,
    const vlm_tensor_t *result, vlm_section_t *s, vlm_error_t *err);
static int embed_sync(vlm_engine_t *e, vlm_error_t *err);
static void embed_store(vlm_engine_t *e, const vlm_cache_key_t *key,
    const vlm_image_plan_t *plan, const vlm_section_t *sections);
static size_t embed_blob_size(const vlm_cache_key_t *key,
    const vlm_image_plan_t *plan, const vlm_section_t *sections,
    vlm_value_t *v);


static int
nomem(vlm_error_t *err, size_t size)
{
    return vlm_fail(err, 500, NULL, "no memory for an embedding of %zu bytes",
                    size);
}


/*
 * What the tower gave, rounded: an entry with one reference.  "store": to
 * Redis too, if it takes it.
 */

vlm_entry_t *
vlm_embed_entry(vlm_engine_t *e, const vlm_cache_key_t *key,
    const vlm_image_plan_t *plan, const vlm_tensor_t *result, int store,
    vlm_error_t *err)
{
    int             int8, rc;
    size_t          n;
    vlm_value_t     v;
    vlm_entry_t    *entry;
    vlm_section_t   s[2];

    int8 = (e->conf.embedding_dtype == VLM_I8);
    n = (size_t) result->rows * (size_t) result->cols;

    entry = embed_alloc(e, int8 ? VLM_BF16 : e->conf.embedding_dtype,
                        result->rows, result->cols, err);
    if (entry == NULL) {
        return NULL;
    }

    memset(s, 0, sizeof(s));
    snprintf(s[0].name, sizeof(s[0].name), "%s", VLM_SECTION_EMBEDDINGS);
    s[0].dtype = e->conf.embedding_dtype;
    s[0].rows = (uint32_t) result->rows;
    s[0].cols = (uint32_t) result->cols;

    if (int8) {
        snprintf(s[1].name, sizeof(s[1].name), "%s", VLM_SECTION_SCALES);
        s[1].dtype = VLM_F32;
        s[1].rows = s[0].rows;
        s[1].cols = 1;
        s[1].data = malloc(s[1].rows * sizeof(float));
    }

    store = store && e->embed.redis != NULL
            && vlm_redis_takes(e->embed.redis,
                               embed_blob_size(key, plan, s, &v));

    rc = VLM_OK;

    if (int8 || store) {
        s[0].data = malloc(n * vlm_dtype_size(s[0].dtype));

        if (s[0].data == NULL || (int8 && s[1].data == NULL)) {
            rc = nomem(err, n);
        }
    }

    if (rc == VLM_OK) {
        rc = embed_round(e, entry, result, s, err);
    }

    if (rc == VLM_OK && store) {
        embed_store(e, key, plan, s);
    }

    free((void *) s[0].data);
    free((void *) s[1].data);

    if (rc != VLM_OK) {
        vlm_entry_free(e->embed.memory, entry);
        return NULL;
    }

    return entry;
}


static vlm_entry_t *
embed_alloc(vlm_engine_t *e, vlm_dtype_t dtype, int64_t rows, int32_t cols,
    vlm_error_t *err)
{
    size_t         size;
    vlm_entry_t   *entry;
    vlm_tensor_t   t;

    size = (size_t) rows * (size_t) cols * vlm_dtype_size(dtype);

    memset(&t, 0, sizeof(t));
    t.device = e->dev;
    t.dtype = dtype;
    t.rows = rows;
    t.cols = cols;
    t.stride = cols;
    t.data = e->ops->alloc(e->dev, size);

    if (t.data == NULL) {
        nomem(err, size);
        return NULL;
    }

    entry = vlm_entry_create(e->embed.memory, &t, size);

    if (entry == NULL) {
        e->ops->free(e->dev, t.data);
        nomem(err, size);
    }

    return entry;
}


static int
embed_sync(vlm_engine_t *e, vlm_error_t *err)
{
    char  text[256];

    if (e->ops->sync(e->vision_queue, text, sizeof(text)) != 0) {
        return vlm_fail(err, 500, NULL, "%s", text);
    }

    return VLM_OK;
}


/* int8 by way of float32 and the host, whatever the device computes in */

static int
round_int8(vlm_engine_t *e, vlm_entry_t *entry, const vlm_tensor_t *result,
    vlm_section_t *s, vlm_error_t *err)
{
    int            rc;
    size_t         n;
    float         *host;
    uint16_t      *bf16;
    vlm_entry_t   *f32;

    n = (size_t) s->rows * s->cols;
    host = malloc(n * sizeof(float));
    bf16 = malloc(n * sizeof(uint16_t));
    f32 = embed_alloc(e, VLM_F32, result->rows, result->cols, err);

    if (host == NULL || bf16 == NULL || f32 == NULL) {
        rc = nomem(err, n * sizeof(float));
        goto done;
    }

    e->ops->convert(e->vision_queue, &f32->tensor, result);
    e->ops->download(e->vision_queue, host, f32->tensor.data,
                     n * sizeof(float));

    rc = embed_sync(e, err);

    if (rc == VLM_OK) {
        vlm_quantize(host, s->rows, s->cols, (int8_t *) s[0].data,
                     (float *) s[1].data);
        vlm_dequantize(s[0].data, s[1].data, s->rows, s->cols, bf16);

        e->ops->upload(e->vision_queue, entry->tensor.data, bf16,
                       n * sizeof(uint16_t));
        rc = embed_sync(e, err);
    }

done:

    if (f32 != NULL) {
        vlm_entry_free(e->embed.memory, f32);
    }

    free(host);
    free(bf16);

    return rc;
}


/* fills the entry, and s->data where there is such */

static int
embed_round(vlm_engine_t *e, vlm_entry_t *entry, const vlm_tensor_t *result,
    vlm_section_t *s, vlm_error_t *err)
{
    if (s->dtype == VLM_I8) {
        return round_int8(e, entry, result, s, err);
    }

    e->ops->convert(e->vision_queue, &entry->tensor, result);

    if (s->data != NULL) {
        e->ops->download(e->vision_queue, (void *) s->data,
                         entry->tensor.data, entry->bytes);
    }

    return embed_sync(e, err);
}


static size_t
embed_blob_size(const vlm_cache_key_t *key, const vlm_image_plan_t *plan,
    const vlm_section_t *sections, vlm_value_t *v)
{
    memset(v, 0, sizeof(*v));
    v->key = *key;
    v->sections[0] = sections[0];
    v->sections[0].grid_h = (uint32_t) plan->grid_h;
    v->sections[0].grid_w = (uint32_t) plan->grid_w;
    v->nsections = 1;

    if (sections[0].dtype == VLM_I8) {
        v->sections[1] = sections[1];
        v->nsections = 2;
    }

    return vlm_value_size(v);
}


/* it is no error of anybody if this fails */

static void
embed_store(vlm_engine_t *e, const vlm_cache_key_t *key,
    const vlm_image_plan_t *plan, const vlm_section_t *sections)
{
    char          name[VLM_CACHE_NAME_LEN];
    void         *blob;
    size_t        size;
    vlm_value_t   v;

    size = embed_blob_size(key, plan, sections, &v);

    blob = size != 0 ? malloc(size) : NULL;
    if (blob == NULL) {
        return;
    }

    vlm_value_write(&v, blob);
    vlm_cache_name(key, e->embed.weights, name);

    (void) vlm_redis_set(e->embed.redis, name, blob, size);
}


/* a value of Redis as an entry with one reference; NULL: it is not valid */

vlm_entry_t *
vlm_embed_read(vlm_engine_t *e, const vlm_cache_key_t *key,
    const vlm_image_plan_t *plan, const void *value, size_t len, int *valid,
    vlm_error_t *err)
{
    int                   rc, int8;
    uint16_t             *bf16;
    const void           *data;
    vlm_entry_t          *entry;
    vlm_value_t           v;
    const vlm_section_t  *s, *scales;

    int8 = (e->conf.embedding_dtype == VLM_I8);

    if (vlm_value_read(value, len, &v, err) != VLM_OK
        || vlm_value_embedding(&v, key, plan, e->conf.embedding_dtype,
                               vlm_model_info(e->model)->hidden, &s, &scales,
                               err)
           != VLM_OK)
    {
        *valid = 0;
        return NULL;
    }

    *valid = 1;

    entry = embed_alloc(e, int8 ? VLM_BF16 : s->dtype, s->rows,
                        (int32_t) s->cols, err);
    if (entry == NULL) {
        return NULL;
    }

    data = s->data;
    bf16 = NULL;

    if (int8) {
        bf16 = malloc(entry->bytes);

        if (bf16 == NULL) {
            nomem(err, entry->bytes);
            vlm_entry_free(e->embed.memory, entry);
            return NULL;
        }

        vlm_dequantize(s->data, scales->data, s->rows, s->cols, bf16);
        data = bf16;
    }

    e->ops->upload(e->vision_queue, entry->tensor.data, data, entry->bytes);
    rc = embed_sync(e, err);

    free(bf16);

    if (rc != VLM_OK) {
        vlm_entry_free(e->embed.memory, entry);
        return NULL;
    }

    return entry;
}
