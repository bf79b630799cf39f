
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/family.h"


static int config_family(const vlm_json_t *root, const vlm_family_t **family,
    vlm_error_t *err);
static int config_read(vlm_config_t *c, const vlm_family_t *family,
    const vlm_json_t *root, vlm_error_t *err);
static int config_key(vlm_config_t *c, const vlm_config_key_t *key,
    const vlm_json_t *part, const vlm_json_t *root, vlm_error_t *err);
static int config_int(int32_t *to, const vlm_config_key_t *key,
    const vlm_json_t *v, vlm_error_t *err);
static int config_real(double *to, const char *key, const vlm_json_t *v,
    double min, double max, vlm_error_t *err);
static int config_act(vlm_act_t *to, const vlm_config_key_t *key,
    const vlm_json_t *v, vlm_error_t *err);
static int config_rope(vlm_config_t *c, const vlm_json_t *text,
    const vlm_json_t *root, vlm_error_t *err);
static int config_tokens(vlm_config_t *c, const vlm_json_t *text,
    const vlm_json_t *root, vlm_error_t *err);
static int config_check(const vlm_config_t *c, vlm_error_t *err);
static const vlm_json_t *get(const vlm_json_t *object, const char *key);
static const vlm_json_t *get_text(const vlm_json_t *text,
    const vlm_json_t *root, const char *key);


const vlm_family_t *const  vlm_families[] = {
    &vlm_family_qwen2_vl,
    NULL
};


static const struct {
    const char         *name;
    vlm_act_t           act;
} acts[] = {
    { "silu", VLM_ACT_SILU },
    { "gelu", VLM_ACT_GELU },
    { "gelu_pytorch_tanh", VLM_ACT_GELU_TANH },
    { "quick_gelu", VLM_ACT_QUICK_GELU }
};


vlm_json_doc_t *
vlm_config_open(const char *dir, const char *file, vlm_error_t *err)
{
    char            *path;
    vlm_json_doc_t  *doc;

    if (asprintf(&path, "%s/%s", dir, file) < 0) {
        vlm_fail(err, 500, NULL, "no memory");
        return NULL;
    }

    doc = vlm_json_load(path, err);

    if (doc != NULL
        && vlm_json_type(vlm_json_root(doc)) != VLM_JSON_OBJECT)
    {
        vlm_fail(err, 500, NULL, "%s: no JSON object", path);
        vlm_json_free(doc);
        doc = NULL;
    }

    free(path);

    return doc;
}


int
vlm_config_load(vlm_config_t *c, const vlm_family_t **family,
    const char *dir, vlm_error_t *err)
{
    int              rc;
    vlm_json_doc_t  *doc;

    memset(c, 0, sizeof(*c));

    doc = vlm_config_open(dir, "config.json", err);
    if (doc == NULL) {
        return VLM_ERROR;
    }

    rc = config_family(vlm_json_root(doc), family, err);

    if (rc == VLM_OK) {
        rc = config_read(c, *family, vlm_json_root(doc), err);
    }

    vlm_json_free(doc);

    if (rc == VLM_ERROR) {
        return vlm_fail_in(err, "%s/config.json: ", dir);
    }

    if (vlm_generation_load(c, dir, err) == VLM_ERROR) {
        return VLM_ERROR;
    }

    return vlm_preprocessor_load(c, *family, dir, err);
}


static int
config_family(const vlm_json_t *root, const vlm_family_t **family,
    vlm_error_t *err)
{
    size_t       i, n;
    const char  *type;
    vlm_buf_t    names;

    if (vlm_json_string(vlm_json_get(root, "model_type"), &type, &n)
        == VLM_ERROR)
    {
        return vlm_fail(err, 500, NULL, "key \"model_type\" is missing");
    }

    for (i = 0; vlm_families[i] != NULL; i++) {
        if (vlm_json_is(vlm_json_get(root, "model_type"),
                        vlm_families[i]->model_type))
        {
            *family = vlm_families[i];
            return VLM_OK;
        }
    }

    memset(&names, 0, sizeof(names));

    for (i = 0; vlm_families[i] != NULL; i++) {
        vlm_buf_printf(&names, "%s%s", i != 0 ? ", " : "",
                       vlm_families[i]->model_type);
    }

    vlm_fail(err, 500, NULL, "model_type \"%.*s\" is not supported; "
             "supported: %s", (int) (n < 100 ? n : 100), type,
             names.data != NULL ? names.data : "");
    vlm_buf_free(&names);

    return VLM_ERROR;
}


static int
config_read(vlm_config_t *c, const vlm_family_t *family,
    const vlm_json_t *root, vlm_error_t *err)
{
    size_t             i;
    const vlm_json_t  *text, *vision;

    text = get(root, "text_config");
    vision = get(root, "vision_config");

    if (vlm_json_type(vision) != VLM_JSON_OBJECT) {
        return vlm_fail(err, 500, NULL, "key \"vision_config\" is missing");
    }

    for (i = 0; i < family->nkeys; i++) {
        if (config_key(c, &family->keys[i],
                       family->keys[i].part == VLM_KEY_VISION ? vision : text,
                       root, err)
            == VLM_ERROR)
        {
            return VLM_ERROR;
        }
    }

    if (c->kv_heads == 0) {
        c->kv_heads = c->heads;
    }

    if (config_rope(c, text, root, err) == VLM_ERROR
        || config_tokens(c, text, root, err) == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    if (family->resolve != NULL && family->resolve(c, err) == VLM_ERROR) {
        return VLM_ERROR;
    }

    return config_check(c, err);
}


/* null stands for a missing key */

static const vlm_json_t *
get(const vlm_json_t *object, const char *key)
{
    const vlm_json_t  *v;

    v = vlm_json_get(object, key);

    return vlm_json_type(v) == VLM_JSON_NULL ? NULL : v;
}


static const vlm_json_t *
get_text(const vlm_json_t *text, const vlm_json_t *root, const char *key)
{
    const vlm_json_t  *v;

    v = get(text, key);

    return v != NULL ? v : get(root, key);
}


static int
config_key(vlm_config_t *c, const vlm_config_key_t *key,
    const vlm_json_t *part, const vlm_json_t *root, vlm_error_t *err)
{
    int                rc;
    void              *to;
    const vlm_json_t  *v;

    v = get(part, key->key);

    if (v == NULL && key->alias != NULL) {
        v = get(part, key->alias);
    }

    if (v == NULL && key->part == VLM_KEY_TEXT) {
        v = get(root, key->key);
    }

    if (v == NULL && key->initial == VLM_KEY_REQUIRED) {
        return vlm_fail(err, 500, NULL, "key \"%s\" is missing", key->key);
    }

    to = (char *) c + key->offset;

    switch (key->type) {

    case VLM_KEY_INT:
        rc = config_int(to, key, v, err);
        break;

    case VLM_KEY_REAL:
        *(double *) to = key->initial;
        rc = config_real(to, key->key, v, key->min, key->max, err);
        break;

    default:
        rc = config_act(to, key, v, err);
        break;
    }

    if (rc == VLM_ERROR && key->part == VLM_KEY_VISION) {
        vlm_fail_in(err, "vision_config: ");
    }

    return rc;
}


static int
config_int(int32_t *to, const vlm_config_key_t *key, const vlm_json_t *v,
    vlm_error_t *err)
{
    int64_t  n;

    if (v == NULL) {
        *to = (int32_t) key->initial;
        return VLM_OK;
    }

    if (vlm_json_int(v, &n) == VLM_ERROR) {
        return vlm_fail(err, 500, NULL, "key \"%s\" is no integer", key->key);
    }

    if (n < (int64_t) key->min || n > (int64_t) key->max) {
        return vlm_fail(err, 500, NULL, "key \"%s\" is %lld, not in %.0f to "
                        "%.0f", key->key, (long long) n, key->min, key->max);
    }

    *to = (int32_t) n;

    return VLM_OK;
}


int
vlm_config_real(const vlm_json_t *object, const char *key, double min,
    double max, double *value, vlm_error_t *err)
{
    return config_real(value, key, get(object, key), min, max, err);
}


static int
config_real(double *to, const char *key, const vlm_json_t *v, double min,
    double max, vlm_error_t *err)
{
    double  d;

    if (v == NULL) {
        return VLM_OK;
    }

    if (vlm_json_double(v, &d) == VLM_ERROR) {
        return vlm_fail(err, 500, NULL, "key \"%s\" is no number", key);
    }

    if (!(d >= min && d <= max)) {
        return vlm_fail(err, 500, NULL, "key \"%s\" is %g, not in %g to %g",
                        key, d, min, max);
    }

    *to = d;

    return VLM_OK;
}


static int
config_act(vlm_act_t *to, const vlm_config_key_t *key, const vlm_json_t *v,
    vlm_error_t *err)
{
    size_t       i, n;
    const char  *name;

    if (v == NULL) {
        *to = (vlm_act_t) key->initial;
        return VLM_OK;
    }

    if (vlm_json_string(v, &name, &n) == VLM_ERROR) {
        return vlm_fail(err, 500, NULL, "key \"%s\" is no string", key->key);
    }

    for (i = 0; i < sizeof(acts) / sizeof(acts[0]); i++) {
        if (vlm_json_is(v, acts[i].name)) {
            *to = acts[i].act;
            return VLM_OK;
        }
    }

    return vlm_fail(err, 500, NULL, "%s \"%.*s\" is not supported", key->key,
                    (int) (n < 100 ? n : 100), name);
}


/* newer files keep all of it in "rope_parameters" */

static int
config_rope(vlm_config_t *c, const vlm_json_t *text, const vlm_json_t *root,
    vlm_error_t *err)
{
    int                i;
    size_t             len;
    int64_t            n;
    const char        *name;
    const vlm_json_t  *rope, *type, *sections;

    rope = get_text(text, root, "rope_scaling");

    if (rope == NULL) {
        rope = get_text(text, root, "rope_parameters");
    }

    type = get(rope, "rope_type");

    if (type == NULL) {
        type = get(rope, "type");
    }

    if (type != NULL && !vlm_json_is(type, "mrope")
        && !vlm_json_is(type, "default"))
    {
        name = "";
        len = 0;
        vlm_json_string(type, &name, &len);

        return vlm_fail(err, 500, NULL, "rope type \"%.*s\" is not supported",
                        (int) (len < 100 ? len : 100), name);
    }

    sections = get(rope, "mrope_section");

    if (vlm_json_count(sections) != 3) {
        return vlm_fail(err, 500, NULL, "rope_scaling.mrope_section with "
                        "three numbers is missing");
    }

    for (i = 0; i < 3; i++) {
        if (vlm_json_int(vlm_json_at(sections, (size_t) i), &n) == VLM_ERROR
            || n < 0 || n > VLM_ROPE_MAX_PAIRS)
        {
            return vlm_fail(err, 500, NULL, "rope_scaling.mrope_section has "
                            "a bad number");
        }

        c->rope_sections[i] = (int32_t) n;
    }

    c->rope_theta = 1e6;

    if (vlm_config_real(rope, "rope_theta", 1, 1e12, &c->rope_theta, err)
        == VLM_ERROR
        || vlm_config_real(root, "rope_theta", 1, 1e12, &c->rope_theta, err)
           == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    return vlm_config_real(text, "rope_theta", 1, 1e12, &c->rope_theta, err);
}


static int
config_tokens(vlm_config_t *c, const vlm_json_t *text, const vlm_json_t *root,
    vlm_error_t *err)
{
    int      sliding;
    int64_t  n;

    sliding = 0;
    vlm_json_bool(get_text(text, root, "use_sliding_window"), &sliding);

    if (sliding) {
        return vlm_fail(err, 500, NULL, "use_sliding_window is not "
                        "supported");
    }

    c->tied = 0;
    vlm_json_bool(get_text(text, root, "tie_word_embeddings"), &c->tied);

    if (vlm_json_int(get_text(text, root, "image_token_id"), &n) == VLM_ERROR
        || n < 0 || n >= c->vocab)
    {
        return vlm_fail(err, 500, NULL, "key \"image_token_id\" is missing "
                        "or no id below vocab_size %d", c->vocab);
    }

    c->image_token = (int32_t) n;

    return vlm_config_eos(c, get_text(text, root, "eos_token_id"), err);
}


/* what the arithmetic relies on, whatever the family */

static int
config_check(const vlm_config_t *c, vlm_error_t *err)
{
    int32_t  pairs;

    if (c->heads % c->kv_heads != 0) {
        return vlm_fail(err, 500, NULL, "num_attention_heads %d is no "
                        "multiple of num_key_value_heads %d", c->heads,
                        c->kv_heads);
    }

    if (c->head_dim < 2 || c->head_dim % 2 != 0
        || c->head_dim > 2 * VLM_ROPE_MAX_PAIRS)
    {
        return vlm_fail(err, 500, NULL, "heads of %d values are not "
                        "supported: an even number to %d", c->head_dim,
                        2 * VLM_ROPE_MAX_PAIRS);
    }

    pairs = c->rope_sections[0] + c->rope_sections[1] + c->rope_sections[2];

    if (pairs != c->head_dim / 2) {
        return vlm_fail(err, 500, NULL, "rope_scaling.mrope_section sums up "
                        "to %d, half a head is %d", pairs, c->head_dim / 2);
    }

    if (c->v_width % c->v_heads != 0 || c->v_width / c->v_heads % 4 != 0
        || c->v_width / c->v_heads > 2 * VLM_ROPE_MAX_PAIRS)
    {
        return vlm_fail(err, 500, NULL, "vision_config: width %d in %d heads "
                        "is not supported: multiples of 4 to %d each",
                        c->v_width, c->v_heads, 2 * VLM_ROPE_MAX_PAIRS);
    }

    if (c->v_intermediate < 1 || c->v_intermediate > 524288) {
        return vlm_fail(err, 500, NULL, "vision_config: intermediate size "
                        "%d is not in 1 to 524288", c->v_intermediate);
    }

    return VLM_OK;
}
