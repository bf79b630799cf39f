
/*
 * A model family: data that tells the generic readers, vision tower,
 * connector and decoder what a checkpoint of this kind is.
 */

#ifndef VLM_FAMILY_H
#define VLM_FAMILY_H


#include "engine/model/config.h"


/* sizes that shapes are made of */

typedef enum {
    VLM_DIM_END = 0,
    VLM_DIM_HIDDEN,             /* text */
    VLM_DIM_INTERMEDIATE,
    VLM_DIM_Q,                  /* heads * head_dim */
    VLM_DIM_KV,
    VLM_DIM_VOCAB,
    VLM_DIM_V_WIDTH,            /* vision */
    VLM_DIM_V_3WIDTH,
    VLM_DIM_V_INTERMEDIATE,
    VLM_DIM_V_MERGED,           /* width * merge^2 */
    VLM_DIM_CHANNELS,
    VLM_DIM_FRAMES,
    VLM_DIM_PATCH
} vlm_dim_t;


typedef enum {
    VLM_IN_TEXT = 0,            /* once, in vlm_weights_t */
    VLM_IN_HEAD,
    VLM_IN_VISION,
    VLM_IN_TEXT_LAYER,          /* in each vlm_layer_t; N: its number */
    VLM_IN_VISION_LAYER
} vlm_scope_t;


/* gain and bias of a norm, in device memory */

typedef struct {
    float              *gain;
    float              *bias;
} vlm_norm_t;

/* a transformer layer: of the decoder as well as of the vision tower */

typedef struct {
    vlm_norm_t          norm1;
    vlm_norm_t          norm2;
    vlm_norm_t          q_norm;         /* of each head, gain NULL: none */
    vlm_norm_t          k_norm;
    vlm_weight_t        qkv;
    vlm_weight_t        out;
    vlm_weight_t        up;             /* gate and up, or fc1 */
    vlm_weight_t        down;
} vlm_layer_t;

typedef struct {
    vlm_weight_t        embed;
    vlm_weight_t        head;           /* no data: tied, use embed */
    vlm_norm_t          norm;
    vlm_weight_t        patch;
    vlm_norm_t          merge_norm;
    vlm_weight_t        merge1;
    vlm_weight_t        merge2;
} vlm_weights_t;


typedef enum {
    VLM_SPEC_WEIGHT = 0,
    VLM_SPEC_BIASED,            /* NAME.weight and NAME.bias */
    VLM_SPEC_NORM,              /* a vector: NAME.weight */
    VLM_SPEC_BIASED_NORM
} vlm_spec_kind_t;

#define VLM_SPEC_PARTS      3
#define VLM_SPEC_COLS       4

typedef struct {
    vlm_scope_t         scope;
    vlm_spec_kind_t     kind;
    size_t              offset;         /* in vlm_weights_t or vlm_layer_t */
    vlm_weight_layout_t layout;
    const char         *names[VLM_SPEC_PARTS];
    uint8_t             rows[VLM_SPEC_PARTS];
    uint8_t             cols[VLM_SPEC_COLS];
} vlm_tensor_spec_t;


#define VLM_FAMILY_PREFIXES 3

struct vlm_family_s {
    const char                 *model_type;

    const vlm_config_key_t     *keys;
    size_t                      nkeys;

    /* what is no key; may be NULL */
    int                       (*resolve)(vlm_config_t *c, vlm_error_t *err);

    /* prefixes of tensor names: the first under which there is something */
    const char                 *text_prefix[VLM_FAMILY_PREFIXES];
    const char                 *head_prefix[VLM_FAMILY_PREFIXES];
    const char                 *vision_prefix[VLM_FAMILY_PREFIXES];
    const vlm_tensor_spec_t    *specs;
    size_t                      nspecs;

    vlm_norm_kind_t             v_norm;
    float                       v_eps;
    double                      v_rope_theta;

    vlm_norm_kind_t             merge_norm;
    float                       merge_eps;
    vlm_act_t                   merge_act;

    /* pictures, where preprocessor_config.json is silent */
    uint64_t                    min_pixels;
    uint64_t                    max_pixels;
    double                      max_ratio;      /* of the sides */
    vlm_filter_t                filter;
    double                      mean[3];
    double                      std[3];

    vlm_chat_format_t           chat;

    /* modules as the reference calls them, for traces; N: layer */
    const char                 *trace_patch;
    const char                 *trace_vision_layer;
    const char                 *trace_merge;
    const char                 *trace_text_layer;
};


extern const vlm_family_t  vlm_family_qwen2_vl;

/* all of them, NULL at the end */
extern const vlm_family_t *const  vlm_families[];


#endif /* VLM_FAMILY_H */
