
/* generation_config.json: how its authors sample from a model */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/model/family.h"


#define NEOS    (sizeof(((vlm_generation_t *) 0)->eos) / sizeof(int32_t))


static int generation_read(vlm_config_t *c, const vlm_json_t *root,
    vlm_error_t *err);
static int generation_field(vlm_sampling_t *s, const vlm_json_t *root,
    const char *key, uint32_t bit, double min, double max, double *value,
    vlm_error_t *err);


int
vlm_generation_load(vlm_config_t *c, const char *dir, vlm_error_t *err)
{
    int              rc;
    char            *path;
    vlm_json_doc_t  *doc;

    if (asprintf(&path, "%s/generation_config.json", dir) < 0) {
        return vlm_fail(err, 500, NULL, "no memory");
    }

    rc = access(path, F_OK);
    free(path);

    if (rc == 0) {
        doc = vlm_config_open(dir, "generation_config.json", err);
        if (doc == NULL) {
            return VLM_ERROR;
        }

        rc = generation_read(c, vlm_json_root(doc), err);
        vlm_json_free(doc);

        if (rc == VLM_ERROR) {
            return vlm_fail_in(err, "%s/generation_config.json: ", dir);
        }
    }

    if (c->generation.neos == 0) {
        return vlm_fail(err, 500, NULL, "%s: neither generation_config.json "
                        "nor config.json has an eos_token_id", dir);
    }

    return VLM_OK;
}


static int
generation_read(vlm_config_t *c, const vlm_json_t *root, vlm_error_t *err)
{
    double           top_k, temperature, top_p, min_p, repetition;
    vlm_sampling_t  *s;

    s = &c->generation.sampling;

    top_k = 0;
    temperature = 0;
    top_p = 1;
    min_p = 0;
    repetition = 1;

    /* ranges as those of a request; a top_p of 0 leaves the best token */

    if (generation_field(s, root, "temperature", VLM_SET_TEMPERATURE, 0, 2,
                         &temperature, err)
        == VLM_ERROR
        || generation_field(s, root, "top_p", VLM_SET_TOP_P, 1e-6, 1, &top_p,
                            err)
           == VLM_ERROR
        || generation_field(s, root, "min_p", VLM_SET_MIN_P, 0, 1, &min_p,
                            err)
           == VLM_ERROR
        || generation_field(s, root, "top_k", VLM_SET_TOP_K, 0, INT32_MAX,
                            &top_k, err)
           == VLM_ERROR
        || generation_field(s, root, "repetition_penalty",
                            VLM_SET_REPETITION, 1e-3, 10, &repetition, err)
           == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    s->temperature = (float) temperature;
    s->top_p = (float) top_p;
    s->min_p = (float) min_p;
    s->top_k = (int32_t) top_k;
    s->repetition = (float) repetition;

    vlm_json_bool(vlm_json_get(root, "do_sample"), &c->generation.do_sample);

    return vlm_config_eos(c, vlm_json_get(root, "eos_token_id"), err);
}


static int
generation_field(vlm_sampling_t *s, const vlm_json_t *root, const char *key,
    uint32_t bit, double min, double max, double *value, vlm_error_t *err)
{
    if (vlm_json_type(vlm_json_get(root, key)) == VLM_JSON_NULL) {
        return VLM_OK;
    }

    s->set |= bit;

    return vlm_config_real(root, key, min, max, value, err);
}


int
vlm_config_eos(vlm_config_t *c, const vlm_json_t *v, vlm_error_t *err)
{
    int64_t            n;
    vlm_generation_t  *g;
    const vlm_json_t  *id;

    if (vlm_json_type(v) == VLM_JSON_NULL) {
        return VLM_OK;
    }

    g = &c->generation;
    g->neos = 0;
    id = vlm_json_type(v) == VLM_JSON_ARRAY ? vlm_json_first(v) : v;

    while (id != NULL) {

        if (vlm_json_int(id, &n) == VLM_ERROR || n < 0 || n >= c->vocab) {
            return vlm_fail(err, 500, NULL, "eos_token_id has no id below "
                            "vocab_size %d", c->vocab);
        }

        if (g->neos == (int32_t) NEOS) {
            return vlm_fail(err, 500, NULL, "eos_token_id has more than %d "
                            "ids", (int) NEOS);
        }

        g->eos[g->neos++] = (int32_t) n;
        id = id == v ? NULL : vlm_json_next(id);
    }

    return VLM_OK;
}
