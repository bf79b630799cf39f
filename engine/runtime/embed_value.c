
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


/* what the tower gave, on its way to an entry */

typedef struct {
    vlm_entry_t        *entry;
    vlm_tensor_t        f32;        /* int8: of the host, to be rounded */
} embed_copy_t;


static vlm_entry_t *embed_alloc(vlm_engine_t *e, vlm_dtype_t dtype,
    int64_t rows, int32_t cols);
static int embed_tensor(vlm_engine_t *e, vlm_tensor_t *t, vlm_dtype_t dtype,
    int64_t rows, int32_t cols);
static int embed_int8(embed_copy_t *copy, vlm_section_t *s, vlm_error_t *err);
static void embed_store(vlm_engine_t *e, const vlm_cache_key_t *key,
    const vlm_image_plan_t *plan, const vlm_section_t *sections);
static size_t embed_blob_size(const vlm_cache_key_t *key,
    const vlm_image_plan_t *plan, const vlm_section_t *sections,
    vlm_value_t *v);


static int
nomem(vlm_error_t *err)
{
    return vlm_fail(err, 500, NULL, "no memory for an embedding");
}


/* of rows, as the cache keeps them: int8 as the bf16 that it stands for */

static vlm_dtype_t
embed_dtype(const vlm_engine_t *e)
{
    return e->conf.embedding_dtype == VLM_I8 ? VLM_BF16
                                             : e->conf.embedding_dtype;
}


/* rounding is a conversion to the type; int8 is left to the host */

void *
vlm_embed_copy(void *data, const vlm_tensor_t *result)
{
    int            int8;
    embed_copy_t  *copy;
    vlm_engine_t  *e = data;

    int8 = (e->conf.embedding_dtype == VLM_I8);

    copy = calloc(1, sizeof(embed_copy_t));
    if (copy == NULL) {
        return NULL;
    }

    copy->entry = embed_alloc(e, embed_dtype(e), result->rows, result->cols);

    if (copy->entry == NULL
        || (int8 && embed_tensor(e, &copy->f32, VLM_F32, result->rows,
                                 result->cols)
                    != VLM_OK))
    {
        vlm_embed_copy_free(e, copy);
        return NULL;
    }

    e->ops->convert(e->vision_queue,
                    int8 ? &copy->f32 : &copy->entry->tensor, result);

    return copy;
}


void
vlm_embed_copy_free(vlm_engine_t *e, void *data)
{
    embed_copy_t  *copy = data;

    if (copy == NULL) {
        return;
    }

    if (copy->entry != NULL) {
        vlm_entry_free(e->embed.memory, copy->entry);
    }

    if (copy->f32.data != NULL) {
        e->ops->host_free(e->dev, copy->f32.data);
    }

    free(copy);
}


/* "store": to Redis too, if it takes it */

vlm_entry_t *
vlm_embed_entry(vlm_engine_t *e, const vlm_cache_key_t *key,
    const vlm_image_plan_t *plan, void *data, int store, vlm_error_t *err)
{
    int             rc, int8;
    vlm_value_t     v;
    vlm_entry_t    *entry;
    embed_copy_t   *copy = data;
    vlm_section_t   s[2];

    if (copy == NULL) {
        nomem(err);
        return NULL;
    }

    entry = copy->entry;
    int8 = (e->conf.embedding_dtype == VLM_I8);

    memset(s, 0, sizeof(s));
    snprintf(s[0].name, sizeof(s[0].name), "%s", VLM_SECTION_EMBEDDINGS);
    s[0].dtype = e->conf.embedding_dtype;
    s[0].rows = (uint32_t) entry->tensor.rows;
    s[0].cols = (uint32_t) entry->tensor.cols;
    s[0].data = entry->tensor.data;

    rc = int8 ? embed_int8(copy, s, err) : VLM_OK;

    if (rc == VLM_OK && store && e->embed.redis != NULL
        && vlm_redis_takes(e->embed.redis,
                           embed_blob_size(key, plan, s, &v)))
    {
        embed_store(e, key, plan, s);
    }

    if (int8) {
        free((void *) s[0].data);
        free((void *) s[1].data);
    }

    if (rc == VLM_OK) {
        copy->entry = NULL;

    } else {
        entry = NULL;
    }

    vlm_embed_copy_free(e, copy);

    return entry;
}


/* memory of the host that operations read and write */

static int
embed_tensor(vlm_engine_t *e, vlm_tensor_t *t, vlm_dtype_t dtype,
    int64_t rows, int32_t cols)
{
    size_t  size;

    size = vlm_mul(vlm_mul((size_t) rows, (size_t) cols),
                   vlm_dtype_size(dtype));

    memset(t, 0, sizeof(*t));
    t->device = e->dev;
    t->dtype = dtype;
    t->rows = rows;
    t->cols = cols;
    t->stride = cols;
    t->data = size != 0 ? e->ops->host_alloc(e->dev, size) : NULL;

    return t->data != NULL ? VLM_OK : VLM_ERROR;
}


static vlm_entry_t *
embed_alloc(vlm_engine_t *e, vlm_dtype_t dtype, int64_t rows, int32_t cols)
{
    vlm_entry_t   *entry;
    vlm_tensor_t   t;

    if (embed_tensor(e, &t, dtype, rows, cols) != VLM_OK) {
        return NULL;
    }

    entry = vlm_entry_create(e->embed.memory, &t,
                             (size_t) rows * (size_t) cols
                             * vlm_dtype_size(dtype));

    if (entry == NULL) {
        e->ops->host_free(e->dev, t.data);
    }

    return entry;
}


/* sections for Redis, of memory to be freed; and what they stand for */

static int
embed_int8(embed_copy_t *copy, vlm_section_t *s, vlm_error_t *err)
{
    s[0].data = malloc((size_t) s[0].rows * s[0].cols);

    snprintf(s[1].name, sizeof(s[1].name), "%s", VLM_SECTION_SCALES);
    s[1].dtype = VLM_F32;
    s[1].rows = s[0].rows;
    s[1].cols = 1;
    s[1].data = malloc(s[1].rows * sizeof(float));

    if (s[0].data == NULL || s[1].data == NULL) {
        return nomem(err);
    }

    vlm_quantize(copy->f32.data, s[0].rows, s[0].cols, (int8_t *) s[0].data,
                 (float *) s[1].data);
    vlm_dequantize(s[0].data, s[1].data, s[0].rows, s[0].cols,
                   copy->entry->tensor.data);

    return VLM_OK;
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
    vlm_entry_t          *entry;
    vlm_value_t           v;
    const vlm_section_t  *s, *scales;

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

    entry = embed_alloc(e, embed_dtype(e), s->rows, (int32_t) s->cols);
    if (entry == NULL) {
        nomem(err);
        return NULL;
    }

    if (s->dtype == VLM_I8) {
        vlm_dequantize(s->data, scales->data, s->rows, s->cols,
                       entry->tensor.data);

    } else {
        memcpy(entry->tensor.data, s->data, entry->bytes);
    }

    return entry;
}
