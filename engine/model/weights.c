
/*
 * From the tables of a family to weights on a device: names are made, found
 * and checked in one place, vlm_spec_find(), for open() and for load().
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/internal.h"


/* one spec of one layer, found in the files */

typedef struct {
    const vlm_tensor_spec_t    *spec;
    int                         layer;
    int                         nparts;
    const vlm_st_tensor_t      *parts[VLM_SPEC_PARTS];
    const vlm_st_tensor_t      *biases[VLM_SPEC_PARTS];
    uint64_t                    bytes;
    uint64_t                    elements;
} found_t;

typedef struct {
    void                      (*progress)(void *data, uint64_t done,
                                          uint64_t total);
    void                       *data;
    uint64_t                    done;
    uint64_t                    total;
    vlm_queue_t                *queue;
} load_t;

typedef int (*visit_pt)(vlm_model_t *m, const found_t *found, void *data,
    vlm_error_t *err);


static void weights_prefixes(vlm_model_t *m);
static const char *weights_prefix(const vlm_model_t *m,
    const char *const *prefixes, vlm_scope_t scope);
static int weights_walk(vlm_model_t *m, visit_pt visit, void *data,
    vlm_error_t *err);
static int weights_find(const vlm_model_t *m, const vlm_tensor_spec_t *spec,
    int layer, found_t *found, vlm_error_t *err);
static int weights_tensor(const vlm_model_t *m, const char *name,
    int64_t rows, int64_t cols, found_t *found, const vlm_st_tensor_t **t,
    vlm_error_t *err);
static int64_t weights_dim(const vlm_config_t *c, uint8_t dim);
static vlm_quant_t weights_quant(const vlm_model_t *m,
    const vlm_tensor_spec_t *spec);
static uint64_t weights_saved(const vlm_model_t *m, const found_t *found);
static int weights_count(vlm_model_t *m, const found_t *found, void *data,
    vlm_error_t *err);
static int weights_digest(vlm_model_t *m, const found_t *found, void *data,
    vlm_error_t *err);
static int weights_create(vlm_model_t *m, const found_t *found, void *data,
    vlm_error_t *err);
static int weights_pack(vlm_model_t *m, const found_t *found,
    vlm_weight_t *to, vlm_error_t *err);
static int weights_matrix(const vlm_st_tensor_t *t, vlm_host_matrix_t *m,
    void **copy);
static int weights_vector(vlm_model_t *m, vlm_queue_t *q,
    const vlm_st_tensor_t *t, float **to, vlm_error_t *err);
static void *weights_place(vlm_model_t *m, const vlm_tensor_spec_t *spec,
    int layer);


int
vlm_weights_check(vlm_model_t *m, vlm_error_t *err)
{
    weights_prefixes(m);

    return weights_walk(m, weights_count, NULL, err);
}


static void
weights_prefixes(vlm_model_t *m)
{
    char                    name[128];
    const vlm_st_tensor_t  *t;

    m->prefix[0] = weights_prefix(m, m->family->text_prefix, VLM_IN_TEXT);
    m->prefix[1] = weights_prefix(m, m->family->head_prefix, VLM_IN_HEAD);
    m->prefix[2] = weights_prefix(m, m->family->vision_prefix,
                                  VLM_IN_VISION);

    snprintf(name, sizeof(name), "%s%s.weight", m->prefix[1], "lm_head");
    t = vlm_st_find(m->files, name);

    m->tied = m->config.tied || t == NULL;
}


/* the first that has the scope's first tensor; else the first of all */

static const char *
weights_prefix(const vlm_model_t *m, const char *const *prefixes,
    vlm_scope_t scope)
{
    int     i;
    char    name[256];
    size_t  n;

    for (n = 0; n < m->family->nspecs; n++) {
        if (m->family->specs[n].scope == scope) {
            break;
        }
    }

    for (i = 0; i < VLM_FAMILY_PREFIXES && prefixes[i] != NULL; i++) {
        vlm_model_name(name, sizeof(name), prefixes[i],
                       m->family->specs[n].names[0], 0, ".weight");

        if (vlm_st_find(m->files, name) != NULL) {
            return prefixes[i];
        }
    }

    return prefixes[0];
}


static int
weights_walk(vlm_model_t *m, visit_pt visit, void *data, vlm_error_t *err)
{
    int                       layer, nlayers;
    size_t                    i;
    found_t                   found;
    const vlm_tensor_spec_t  *spec;

    for (i = 0; i < m->family->nspecs; i++) {
        spec = &m->family->specs[i];

        switch (spec->scope) {

        case VLM_IN_TEXT_LAYER:
            nlayers = m->config.layers;
            break;

        case VLM_IN_VISION_LAYER:
            nlayers = m->config.v_layers;
            break;

        case VLM_IN_HEAD:
            nlayers = m->tied ? 0 : 1;
            break;

        default:
            nlayers = 1;
            break;
        }

        for (layer = 0; layer < nlayers; layer++) {
            if (weights_find(m, spec, layer, &found, err) == VLM_ERROR
                || visit(m, &found, data, err) == VLM_ERROR
                || vlm_st_whole(m->files, err) == VLM_ERROR)
            {
                return VLM_ERROR;
            }
        }
    }

    return VLM_OK;
}


static int
weights_find(const vlm_model_t *m, const vlm_tensor_spec_t *spec, int layer,
    found_t *found, vlm_error_t *err)
{
    int          i, biased;
    char         name[256];
    int64_t      rows, cols;
    const char  *prefix;

    memset(found, 0, sizeof(*found));
    found->spec = spec;
    found->layer = layer;

    cols = 1;

    for (i = 0; i < VLM_SPEC_COLS && spec->cols[i] != VLM_DIM_END; i++) {
        cols *= weights_dim(&m->config, spec->cols[i]);
    }

    if (spec->scope == VLM_IN_HEAD) {
        prefix = m->prefix[1];

    } else if (spec->scope == VLM_IN_VISION
               || spec->scope == VLM_IN_VISION_LAYER)
    {
        prefix = m->prefix[2];

    } else {
        prefix = m->prefix[0];
    }

    biased = spec->kind == VLM_SPEC_BIASED
             || spec->kind == VLM_SPEC_BIASED_NORM;

    for (i = 0; i < VLM_SPEC_PARTS && spec->names[i] != NULL; i++) {
        rows = weights_dim(&m->config, spec->rows[i]);

        vlm_model_name(name, sizeof(name), prefix, spec->names[i], layer,
                       ".weight");

        if (weights_tensor(m, name, rows, cols, found, &found->parts[i], err)
            == VLM_ERROR)
        {
            return VLM_ERROR;
        }

        if (found->parts[i]->dtype != found->parts[0]->dtype) {
            return vlm_fail(err, 500, NULL, "tensor \"%s\" is %s, its "
                            "neighbour %s", name, found->parts[i]->type,
                            found->parts[0]->type);
        }

        vlm_model_name(name, sizeof(name), prefix, spec->names[i], layer,
                       ".bias");

        if (biased
            && weights_tensor(m, name, rows, 1, found, &found->biases[i],
                              err)
               == VLM_ERROR)
        {
            return VLM_ERROR;
        }

        found->nparts++;
    }

    return VLM_OK;
}


static int
weights_tensor(const vlm_model_t *m, const char *name, int64_t rows,
    int64_t cols, found_t *found, const vlm_st_tensor_t **to,
    vlm_error_t *err)
{
    int                     i, n;
    char                    shape[128];
    const vlm_st_tensor_t  *t;

    t = vlm_st_find(m->files, name);

    if (t == NULL) {
        return vlm_fail(err, 500, NULL, "tensor \"%s\" is missing", name);
    }

    if (!t->usable) {
        return vlm_fail(err, 500, NULL, "tensor \"%s\" has type %s; "
                        "supported: BF16, F16, F32", name, t->type);
    }

    if (t->rank < 1 || t->shape[0] != rows || t->count / rows != cols
        || t->count % rows != 0)
    {
        n = 0;
        shape[0] = '\0';

        for (i = 0; i < t->rank; i++) {
            n += snprintf(shape + n, sizeof(shape) - (size_t) n, "%s%lld",
                          i != 0 ? ", " : "", (long long) t->shape[i]);
        }

        return vlm_fail(err, 500, NULL, "tensor \"%s\" has shape [%s], "
                        "config.json asks for %lld rows of %lld", name,
                        shape, (long long) rows, (long long) cols);
    }

    found->bytes += t->size;
    found->elements += (uint64_t) t->count;
    *to = t;

    return VLM_OK;
}


static int64_t
weights_dim(const vlm_config_t *c, uint8_t dim)
{
    switch (dim) {

    case VLM_DIM_HIDDEN:
        return c->hidden;

    case VLM_DIM_INTERMEDIATE:
        return c->intermediate;

    case VLM_DIM_Q:
        return (int64_t) c->heads * c->head_dim;

    case VLM_DIM_KV:
        return (int64_t) c->kv_heads * c->head_dim;

    case VLM_DIM_VOCAB:
        return c->vocab;

    case VLM_DIM_V_WIDTH:
        return c->v_width;

    case VLM_DIM_V_3WIDTH:
        return 3 * (int64_t) c->v_width;

    case VLM_DIM_V_INTERMEDIATE:
        return c->v_intermediate;

    case VLM_DIM_V_MERGED:
        return (int64_t) c->v_width * c->merge * c->merge;

    case VLM_DIM_CHANNELS:
        return c->channels;

    case VLM_DIM_FRAMES:
        return c->frames;

    default: /* VLM_DIM_PATCH */
        return c->patch;
    }
}


/* the products of layers only: most of all bytes and multiply-adds */

static vlm_quant_t
weights_quant(const vlm_model_t *m, const vlm_tensor_spec_t *spec)
{
    if (spec->kind == VLM_SPEC_NORM || spec->kind == VLM_SPEC_BIASED_NORM) {
        return VLM_QUANT_NONE;
    }

    switch (spec->scope) {

    case VLM_IN_TEXT_LAYER:
        return m->info.quant;

    case VLM_IN_VISION_LAYER:
        return m->info.vision_quant;

    default:
        return VLM_QUANT_NONE;
    }
}


/* what becomes a byte and takes two 32-bit numbers more a row; at least 0 */

static uint64_t
weights_saved(const vlm_model_t *m, const found_t *found)
{
    int                     i;
    uint64_t                before, after;
    const vlm_st_tensor_t  *t;

    if (weights_quant(m, found->spec) == VLM_QUANT_NONE) {
        return 0;
    }

    before = 0;
    after = 0;

    for (i = 0; i < found->nparts; i++) {
        t = found->parts[i];
        before += t->size;
        after += (uint64_t) t->count + 8 * (uint64_t) t->shape[0];
    }

    return before > after ? before - after : 0;
}


static int
weights_count(vlm_model_t *m, const found_t *found, void *data,
    vlm_error_t *err)
{
    uint64_t  saved;

    saved = weights_saved(m, found);

    m->saved_bytes += saved;
    m->info.parameters += found->elements;
    m->used_bytes += found->bytes;

    if (found->spec->scope == VLM_IN_VISION
        || found->spec->scope == VLM_IN_VISION_LAYER)
    {
        m->info.vision_bytes += found->bytes - saved;
    }

    if (m->type[0] == '\0') {
        memcpy(m->type, found->parts[0]->type, sizeof(m->type));
    }

    return VLM_OK;
}


int
vlm_weights_digest(vlm_model_t *m, EVP_MD_CTX *ctx, vlm_error_t *err)
{
    return weights_walk(m, weights_digest, ctx, err);
}


static int
digest_tensor(const vlm_model_t *m, const vlm_st_tensor_t *t,
    EVP_MD_CTX *ctx)
{
    int          i;
    char         head[512];
    size_t       n;
    const char  *name;

    /* newer files differ in the prefix alone */

    name = t->name + strlen(m->prefix[2]);
    n = (size_t) snprintf(head, sizeof(head), "%.256s %s", name, t->type);

    for (i = 0; i < t->rank; i++) {
        n += (size_t) snprintf(head + n, sizeof(head) - n, " %lld",
                               (long long) t->shape[i]);
    }

    head[n++] = '\n';

    return EVP_DigestUpdate(ctx, head, n) == 1
           && EVP_DigestUpdate(ctx, t->data, (size_t) t->size) == 1;
}


static int
weights_digest(vlm_model_t *m, const found_t *found, void *data,
    vlm_error_t *err)
{
    int  i;

    if (found->spec->scope != VLM_IN_VISION
        && found->spec->scope != VLM_IN_VISION_LAYER)
    {
        return VLM_OK;
    }

    for (i = 0; i < found->nparts; i++) {
        if (!digest_tensor(m, found->parts[i], data)
            || (found->biases[i] != NULL
                && !digest_tensor(m, found->biases[i], data)))
        {
            return vlm_fail(err, 500, NULL, "SHA-256 failed");
        }
    }

    return VLM_OK;
}


int
vlm_weights_load(vlm_model_t *m,
    void (*progress)(void *data, uint64_t done, uint64_t total), void *data,
    vlm_error_t *err)
{
    int     rc;
    load_t  load;

    memset(&load, 0, sizeof(load));
    load.progress = progress;
    load.data = data;
    load.total = m->used_bytes;

    load.queue = m->ops->queue_create(m->dev, 0);
    if (load.queue == NULL) {
        return vlm_fail(err, 500, NULL, "no queue on device %s",
                        m->ops->name);
    }

    rc = weights_walk(m, weights_create, &load, err);

    m->ops->queue_destroy(load.queue);

    return rc;
}


static int
weights_create(vlm_model_t *m, const found_t *found, void *data,
    vlm_error_t *err)
{
    int          rc;
    load_t      *load = data;
    vlm_norm_t  *norm;

    if (found->spec->kind == VLM_SPEC_NORM
        || found->spec->kind == VLM_SPEC_BIASED_NORM)
    {
        norm = weights_place(m, found->spec, found->layer);

        rc = weights_vector(m, load->queue, found->parts[0], &norm->gain,
                            err);

        if (rc == VLM_OK && found->biases[0] != NULL) {
            rc = weights_vector(m, load->queue, found->biases[0],
                                &norm->bias, err);
        }

    } else {
        rc = weights_pack(m, found,
                          weights_place(m, found->spec, found->layer), err);
    }

    if (rc == VLM_ERROR) {
        return vlm_fail_in(err, "tensor \"%s\": ", found->parts[0]->name);
    }

    load->done += found->bytes;

    if (load->progress != NULL) {
        load->progress(load->data, load->done, load->total);
    }

    return VLM_OK;
}


static int
weights_pack(vlm_model_t *m, const found_t *found, vlm_weight_t *to,
    vlm_error_t *err)
{
    int                i, rc;
    char               why[256];
    void              *copies[2 * VLM_SPEC_PARTS];
    vlm_host_matrix_t  parts[VLM_SPEC_PARTS], biases[VLM_SPEC_PARTS];

    memset(copies, 0, sizeof(copies));
    memset(biases, 0, sizeof(biases));
    rc = VLM_OK;

    for (i = 0; i < found->nparts && rc == VLM_OK; i++) {
        rc = weights_matrix(found->parts[i], &parts[i], &copies[2 * i]);

        if (rc == VLM_OK && found->biases[i] != NULL) {
            rc = weights_matrix(found->biases[i], &biases[i],
                                &copies[2 * i + 1]);
        }
    }

    if (rc == VLM_ERROR) {
        vlm_fail(err, 500, NULL, "no memory for a copy");

    } else if (m->ops->weight_create(m->dev, to, found->spec->layout,
                                     weights_quant(m, found->spec), parts,
                                     found->biases[0] != NULL ? biases : NULL,
                                     found->nparts, why, sizeof(why))
               != 0)
    {
        rc = vlm_fail(err, 500, NULL, "%s", why);
    }

    for (i = 0; i < 2 * VLM_SPEC_PARTS; i++) {
        free(copies[i]);
    }

    return rc;
}


/* as rows of all the rest; copied where the file's alignment is too poor */

static int
weights_matrix(const vlm_st_tensor_t *t, vlm_host_matrix_t *m, void **copy)
{
    m->data = t->data;
    m->dtype = t->dtype;
    m->rows = t->shape[0];
    m->cols = t->count / t->shape[0];

    if ((uintptr_t) t->data % vlm_dtype_size(t->dtype) != 0) {
        *copy = malloc((size_t) t->size);
        if (*copy == NULL) {
            return VLM_ERROR;
        }

        memcpy(*copy, t->data, (size_t) t->size);
        m->data = *copy;
    }

    return VLM_OK;
}


/* norms stay float32: converted by the device, from its own copy */

static int
weights_vector(vlm_model_t *m, vlm_queue_t *q, const vlm_st_tensor_t *t,
    float **to, vlm_error_t *err)
{
    int           rc;
    vlm_tensor_t  x, y;

    rc = vlm_tensor_alloc(m, &x, 1, t->count, t->dtype, "a vector", err);

    if (rc == VLM_ERROR) {
        return VLM_ERROR;
    }

    rc = vlm_tensor_alloc(m, &y, 1, t->count, VLM_F32, "a vector", err);

    if (rc == VLM_OK) {
        *to = y.data;
        m->ops->upload(q, x.data, t->data, (size_t) t->size);
        m->ops->convert(q, &y, &x);
        rc = vlm_model_sync(m, q, err);
    }

    vlm_tensor_free(m, &x);

    return rc;
}


static void *
weights_place(vlm_model_t *m, const vlm_tensor_spec_t *spec, int layer)
{
    char  *base;

    if (spec->scope == VLM_IN_TEXT_LAYER) {
        base = (char *) &m->text[layer];

    } else if (spec->scope == VLM_IN_VISION_LAYER) {
        base = (char *) &m->vision[layer];

    } else {
        base = (char *) &m->weights;
    }

    return base + spec->offset;
}


void
vlm_weights_free(vlm_model_t *m)
{
    int                       layer, nlayers;
    size_t                    i;
    vlm_norm_t               *norm;
    vlm_weight_t             *w;
    const vlm_tensor_spec_t  *spec;

    for (i = 0; i < m->family->nspecs; i++) {
        spec = &m->family->specs[i];
        nlayers = 1;

        if (spec->scope == VLM_IN_TEXT_LAYER) {
            nlayers = m->text != NULL ? m->config.layers : 0;

        } else if (spec->scope == VLM_IN_VISION_LAYER) {
            nlayers = m->vision != NULL ? m->config.v_layers : 0;
        }

        for (layer = 0; layer < nlayers; layer++) {

            if (spec->kind == VLM_SPEC_NORM
                || spec->kind == VLM_SPEC_BIASED_NORM)
            {
                norm = weights_place(m, spec, layer);

                if (norm->gain != NULL) {
                    m->ops->free(m->dev, norm->gain);
                }

                if (norm->bias != NULL) {
                    m->ops->free(m->dev, norm->bias);
                }

                continue;
            }

            w = weights_place(m, spec, layer);

            if (w->data != NULL) {
                m->ops->weight_destroy(w);
            }
        }
    }
}
