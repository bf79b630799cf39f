
/*
 * What a checkpoint's JSON files say, checked: config.json by the table of
 * keys of its family, generation_config.json, preprocessor_config.json.
 */

#ifndef VLM_MODEL_CONFIG_H
#define VLM_MODEL_CONFIG_H


#include "engine/base/vlm_json.h"
#include "engine/model/model.h"


typedef struct vlm_family_s  vlm_family_t;


typedef struct {

    /* text; INT keys are int32_t, REAL keys double */

    int32_t             hidden;
    int32_t             intermediate;
    int32_t             layers;
    int32_t             heads;
    int32_t             kv_heads;
    int32_t             head_dim;
    int32_t             vocab;
    int32_t             context;
    double              eps;
    double              rope_theta;
    int32_t             rope_sections[3];
    vlm_act_t           act;
    int                 tied;           /* as the key says */
    int32_t             image_token;

    /* vision */

    int32_t             v_width;
    int32_t             v_layers;
    int32_t             v_heads;
    int32_t             v_out;          /* must be the text's width */
    double              v_mlp_ratio;
    int32_t             v_intermediate;
    int32_t             channels;
    int32_t             patch;
    int32_t             merge;
    int32_t             frames;
    vlm_act_t           v_act;

    /* pictures */

    uint64_t            min_pixels;
    uint64_t            max_pixels;
    vlm_filter_t        filter;
    float               mean[3];
    float               std[3];

    vlm_generation_t    generation;

} vlm_config_t;


typedef enum {
    VLM_KEY_INT = 0,
    VLM_KEY_REAL,
    VLM_KEY_ACT                 /* name of an activation */
} vlm_key_type_t;

typedef enum {
    VLM_KEY_TEXT = 0,           /* text_config, else the top level */
    VLM_KEY_VISION              /* vision_config */
} vlm_key_part_t;

#define VLM_KEY_REQUIRED    -1

/* one key of config.json; a default of VLM_KEY_REQUIRED: there is none */

typedef struct {
    vlm_key_part_t      part;
    vlm_key_type_t      type;
    const char         *key;
    const char         *alias;  /* an older or newer name, or NULL */
    size_t              offset; /* in vlm_config_t */
    double              initial;
    double              min;
    double              max;
} vlm_config_key_t;


/*
 * Reads config.json and finds the family by its model_type; then the other
 * files.  Errors begin with the file's path.
 */
int vlm_config_load(vlm_config_t *c, const vlm_family_t **family,
    const char *dir, vlm_error_t *err);

/* the other files; generation_config.json may be missing */
int vlm_generation_load(vlm_config_t *c, const char *dir, vlm_error_t *err);
int vlm_preprocessor_load(vlm_config_t *c, const vlm_family_t *family,
    const char *dir, vlm_error_t *err);


/* eos_token_id, one id or a list, if it is not null; replaces older ones */
int vlm_config_eos(vlm_config_t *c, const vlm_json_t *v, vlm_error_t *err);

/* shared by the readers: a number, if the key is there and not null */
int vlm_config_real(const vlm_json_t *object, const char *key, double min,
    double max, double *value, vlm_error_t *err);
vlm_json_doc_t *vlm_config_open(const char *dir, const char *file,
    vlm_error_t *err);


#endif /* VLM_MODEL_CONFIG_H */
