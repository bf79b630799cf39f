
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/internal.h"


static int model_read(vlm_model_t *m, const char *dir,
    const vlm_model_options_t *opt, vlm_error_t *err);
static int model_pixels(vlm_model_t *m, const vlm_model_options_t *opt,
    vlm_error_t *err);
static int model_tokens(vlm_model_t *m, const char *dir, vlm_error_t *err);
static int model_describe(vlm_model_t *m, const char *dir, vlm_error_t *err);


vlm_model_t *
vlm_model_open(const char *dir, const vlm_model_options_t *opt,
    vlm_error_t *err)
{
    vlm_model_t          *m;
    vlm_model_options_t   none;

    m = calloc(1, sizeof(*m));
    if (m == NULL) {
        vlm_fail(err, 500, NULL, "no memory for a model");
        return NULL;
    }

    if (opt == NULL) {
        memset(&none, 0, sizeof(none));
        opt = &none;
    }

    m->info.quant = opt->quant;
    m->info.vision_quant = opt->vision_quant;

    if (model_read(m, dir, opt, err) == VLM_ERROR) {
        vlm_model_free(m);
        return NULL;
    }

    return m;
}


static int
model_read(vlm_model_t *m, const char *dir, const vlm_model_options_t *opt,
    vlm_error_t *err)
{
    if (vlm_config_load(&m->config, &m->family, dir, err) == VLM_ERROR
        || model_pixels(m, opt, err) == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    m->files = vlm_st_open(dir, err);
    if (m->files == NULL) {
        return VLM_ERROR;
    }

    if (vlm_weights_check(m, err) == VLM_ERROR) {
        return vlm_fail_in(err, "%s: ", dir);
    }

    vlm_text_rope(&m->text_rope, &m->config);
    vlm_vision_rope(&m->vision_rope, &m->config, m->family->v_rope_theta);

    if (model_tokens(m, dir, err) == VLM_ERROR) {
        return VLM_ERROR;
    }

    return model_describe(m, dir, err);
}


#define LOW_PIXELS      262144
#define CPU_PIXELS      1003520

static int
model_pixels(vlm_model_t *m, const vlm_model_options_t *opt,
    vlm_error_t *err)
{
    uint64_t  max;

    if (opt->min_pixels != 0) {
        m->config.min_pixels = opt->min_pixels;
    }

    max = m->config.max_pixels;
    m->high_pixels = max;

    if (opt->cpu_pixels && max > CPU_PIXELS) {
        max = CPU_PIXELS;
    }

    if (opt->max_pixels != 0) {
        max = opt->max_pixels;
        m->high_pixels = max;
    }

    m->auto_pixels = max;
    m->low_pixels = max < LOW_PIXELS ? max : LOW_PIXELS;

    if (m->config.min_pixels > max) {
        return vlm_fail(err, 500, NULL, "--min-pixels %llu is over "
                        "--max-pixels %llu (what is not given, is the "
                        "checkpoint's)",
                        (unsigned long long) m->config.min_pixels,
                        (unsigned long long) max);
    }

    return VLM_OK;
}


static int
model_tokens(vlm_model_t *m, const char *dir, vlm_error_t *err)
{
    int32_t  id;

    m->tokenizer = vlm_tokenizer_load(dir, err);
    if (m->tokenizer == NULL) {
        return VLM_ERROR;
    }

    if (vlm_chat_check(m->tokenizer, &m->family->chat, err) == VLM_ERROR) {
        return vlm_fail_in(err, "%s/tokenizer.json: ", dir);
    }

    if (vlm_tokenizer_size(m->tokenizer) > m->config.vocab) {
        return vlm_fail(err, 500, NULL, "%s/tokenizer.json: %d ids, the "
                        "model's vocab_size is %d", dir,
                        vlm_tokenizer_size(m->tokenizer), m->config.vocab);
    }

    id = vlm_tokenizer_added(m->tokenizer, m->family->chat.picture_token);

    if (id != m->config.image_token) {
        return vlm_fail(err, 500, NULL, "%s/tokenizer.json: \"%s\" is %d, "
                        "config.json's image_token_id %d", dir,
                        m->family->chat.picture_token, id,
                        m->config.image_token);
    }

    return VLM_OK;
}


static int
model_describe(vlm_model_t *m, const char *dir, vlm_error_t *err)
{
    char                *path;
    const char          *name;
    vlm_model_info_t    *info;
    const vlm_config_t  *c;

    path = realpath(dir, NULL);
    if (path == NULL) {
        return vlm_fail(err, 500, NULL, "%s: no such directory", dir);
    }

    info = &m->info;
    c = &m->config;

    name = strrchr(path, '/');
    snprintf(info->name, sizeof(info->name), "%s",
             name != NULL ? name + 1 : path);
    free(path);

    info->family = m->family->model_type;
    info->hidden = c->hidden;
    info->layers = c->layers;
    info->heads = c->heads;
    info->kv_heads = c->kv_heads;
    info->head_dim = c->head_dim;
    info->intermediate = c->intermediate;
    info->vocab = c->vocab;
    info->context = c->context;
    info->vision_width = c->v_width;
    info->vision_layers = c->v_layers;
    info->vision_heads = c->v_heads;
    info->vision_intermediate = c->v_intermediate;
    info->patch = c->patch;
    info->merge = c->merge;
    info->frames = c->frames;
    info->min_pixels = c->min_pixels;
    info->max_pixels = m->auto_pixels;
    info->weight_bytes = vlm_st_bytes(m->files) - m->saved_bytes;
    info->generation = c->generation;

    return VLM_OK;
}


int
vlm_model_load(vlm_model_t *m, vlm_device_t *dev, const vlm_ops_t *ops,
    void (*progress)(void *data, uint64_t done, uint64_t total), void *data,
    vlm_error_t *err)
{
    m->dev = dev;
    m->ops = ops;

    m->text = calloc((size_t) m->config.layers, sizeof(vlm_layer_t));
    m->vision = calloc((size_t) m->config.v_layers, sizeof(vlm_layer_t));

    if (m->text == NULL || m->vision == NULL) {
        return vlm_fail(err, 500, NULL, "no memory for %d layers",
                        m->config.layers + m->config.v_layers);
    }

    if (vlm_weights_load(m, progress, data, err) == VLM_ERROR) {
        return VLM_ERROR;
    }

    vlm_st_free(m->files);
    m->files = NULL;

    return VLM_OK;
}


void
vlm_model_free(vlm_model_t *m)
{
    if (m == NULL) {
        return;
    }

    if (m->ops != NULL) {
        vlm_weights_free(m);
    }

    free(m->text);
    free(m->vision);
    vlm_st_free(m->files);
    vlm_tokenizer_free(m->tokenizer);
    free(m);
}


const char *
vlm_quant_name(vlm_quant_t quant)
{
    static const char *const  names[] = { "none", "int8", "fp8" };

    return names[quant];
}


const vlm_model_info_t *
vlm_model_info(const vlm_model_t *m)
{
    return &m->info;
}


const vlm_tokenizer_t *
vlm_model_tokenizer(const vlm_model_t *m)
{
    return m->tokenizer;
}


const vlm_chat_format_t *
vlm_model_chat(const vlm_model_t *m)
{
    return &m->family->chat;
}


void
vlm_model_trace(vlm_model_t *m, vlm_trace_pt trace, void *data)
{
    m->trace = trace;
    m->trace_data = data;
}


void
vlm_model_name(char *to, size_t size, const char *prefix,
    const char *pattern, int n, const char *suffix)
{
    const char  *p;

    p = strstr(pattern, "N.");

    if (p == NULL && *pattern != '\0') {
        p = pattern + strlen(pattern) - 1;
        p = *p == 'N' ? p : NULL;
    }

    if (p == NULL) {
        snprintf(to, size, "%s%s%s", prefix, pattern, suffix);
        return;
    }

    snprintf(to, size, "%s%.*s%d%s%s", prefix, (int) (p - pattern), pattern,
             n, p + 1, suffix);
}


int
vlm_tensor_alloc(const vlm_model_t *m, vlm_tensor_t *t, int64_t rows,
    int64_t cols, vlm_dtype_t dtype, const char *what, vlm_error_t *err)
{
    size_t  size;

    memset(t, 0, sizeof(*t));
    t->device = m->dev;
    t->dtype = dtype;
    t->rows = rows;
    t->cols = (int32_t) cols;
    t->stride = cols;

    size = cols > INT32_MAX || rows < 1
           ? 0 : vlm_mul(vlm_mul((size_t) rows, (size_t) cols),
                         vlm_dtype_size(dtype));

    t->data = size != 0 ? m->ops->alloc(m->dev, size) : NULL;

    if (t->data == NULL) {
        return vlm_model_no_memory(m, what, size, err);
    }

    return VLM_OK;
}


int
vlm_model_no_memory(const vlm_model_t *m, const char *what, size_t size,
    vlm_error_t *err)
{
    vlm_reserve_t  memory, host;

    m->ops->reserved(m->dev, &memory, &host);

    if (memory.size == 0) {
        return vlm_fail(err, 500, NULL, "no memory for %s: %zu bytes", what,
                        size);
    }

    /* some may be given back: it is worth another try */

    return vlm_fail(err, 503, NULL, "no memory on the device for %s of %zu "
                    "bytes: %zu of %zu bytes are free, %zu in one piece",
                    what, size, memory.size - memory.used, memory.size,
                    memory.largest);
}


void
vlm_tensor_free(const vlm_model_t *m, vlm_tensor_t *t)
{
    if (t->data != NULL) {
        m->ops->free(m->dev, t->data);
        t->data = NULL;
    }
}


int
vlm_model_sync(const vlm_model_t *m, vlm_queue_t *q, vlm_error_t *err)
{
    char  why[256];

    why[0] = '\0';

    if (m->ops->sync(q, why, sizeof(why)) != 0) {
        return vlm_fail(err, 500, NULL, "device %s: %s", m->ops->name, why);
    }

    return VLM_OK;
}
