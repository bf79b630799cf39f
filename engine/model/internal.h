
/* Inside the model: what open() found and load() made of it. */

#ifndef VLM_MODEL_INTERNAL_H
#define VLM_MODEL_INTERNAL_H


#include <openssl/evp.h>

#include "engine/model/family.h"
#include "engine/model/safetensors.h"


struct vlm_model_s {
    const vlm_family_t     *family;
    vlm_config_t            config;
    vlm_model_info_t        info;
    int                     tied;           /* in force */
    char                    type[12];       /* of the embeddings: "BF16" */
    uint64_t                used_bytes;     /* of tensors that are used */
    uint64_t                saved_bytes;    /* of them, by quantising */
    uint64_t                low_pixels;     /* max_pixels by detail */
    uint64_t                auto_pixels;
    uint64_t                high_pixels;

    vlm_tokenizer_t        *tokenizer;
    vlm_safetensors_t      *files;          /* NULL once loaded */
    const char             *prefix[3];      /* text, head, vision */

    vlm_device_t           *dev;            /* NULL before load() */
    const vlm_ops_t        *ops;
    vlm_weights_t           weights;
    vlm_layer_t            *text;           /* [layers] */
    vlm_layer_t            *vision;         /* [v_layers] */
    vlm_rope_t              text_rope;
    vlm_rope_t              vision_rope;

    vlm_trace_pt            trace;
    void                   *trace_data;
};


/* weights.c: the family's tensors, found and checked, or copied and freed */

int vlm_weights_check(vlm_model_t *m, vlm_error_t *err);
int vlm_weights_load(vlm_model_t *m,
    void (*progress)(void *data, uint64_t done, uint64_t total), void *data,
    vlm_error_t *err);
void vlm_weights_free(vlm_model_t *m);

/* names, types, shapes and data of the tower and the connector */
int vlm_weights_digest(vlm_model_t *m, EVP_MD_CTX *ctx, vlm_error_t *err);

/* rope.c */
void vlm_text_rope(vlm_rope_t *rope, const vlm_config_t *c);
void vlm_vision_rope(vlm_rope_t *rope, const vlm_config_t *c, double theta);

/* vision.c: multiply-adds to encode a picture of so many patches */
double vlm_vision_cost(const vlm_config_t *c, int64_t npatches);

/* model.c */

static inline int64_t
vlm_patch_values(const vlm_config_t *c)
{
    return (int64_t) c->channels * c->frames * c->patch * c->patch;
}


/* memory for activations; the caller has checked the model is loaded */
int vlm_tensor_alloc(const vlm_model_t *m, vlm_tensor_t *t, int64_t rows,
    int64_t cols, vlm_dtype_t dtype, const char *what, vlm_error_t *err);
void vlm_tensor_free(const vlm_model_t *m, vlm_tensor_t *t);

/* VLM_ERROR: 503 where others may give some back, else 500 */
int vlm_model_no_memory(const vlm_model_t *m, const char *what, size_t size,
    vlm_error_t *err);

/* a buffer's memory as rows of cols without gaps, for it is large enough */

static inline vlm_tensor_t
vlm_tensor_view(const vlm_tensor_t *t, int64_t rows, int64_t cols)
{
    vlm_tensor_t  view = *t;

    view.rows = rows;
    view.cols = (int32_t) cols;
    view.stride = cols;

    return view;
}

int vlm_model_sync(const vlm_model_t *m, vlm_queue_t *q, vlm_error_t *err);

/* "N" in a pattern becomes the number */
void vlm_model_name(char *to, size_t size, const char *prefix,
    const char *pattern, int n, const char *suffix);

static inline void
vlm_model_show(const vlm_model_t *m, const char *pattern, int n,
    const vlm_tensor_t *t)
{
    char  name[128];

    if (m->trace != NULL) {
        vlm_model_name(name, sizeof(name), "", pattern, n, "");
        m->trace(m->trace_data, name, t);
    }
}


#endif /* VLM_MODEL_INTERNAL_H */
