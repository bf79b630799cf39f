
/* Qwen2-VL, as Qwen/Qwen2-VL-2B-Instruct is published */

#include <stddef.h>

#include "engine/model/family.h"


#define text_int(key, field, initial, min, max)                               \
    { VLM_KEY_TEXT, VLM_KEY_INT, key, NULL, offsetof(vlm_config_t, field),    \
      initial, min, max }

#define text_real(key, field, initial, min, max)                              \
    { VLM_KEY_TEXT, VLM_KEY_REAL, key, NULL, offsetof(vlm_config_t, field),   \
      initial, min, max }

#define vision_int(key, field, initial, min, max)                             \
    { VLM_KEY_VISION, VLM_KEY_INT, key, NULL, offsetof(vlm_config_t, field),  \
      initial, min, max }


static const vlm_config_key_t  keys[] = {

    text_int("hidden_size", hidden, VLM_KEY_REQUIRED, 1, 65536),
    text_int("intermediate_size", intermediate, VLM_KEY_REQUIRED, 1, 524288),
    text_int("num_hidden_layers", layers, VLM_KEY_REQUIRED, 1, 1024),
    text_int("num_attention_heads", heads, VLM_KEY_REQUIRED, 1, 1024),
    text_int("num_key_value_heads", kv_heads, 0, 1, 1024),
    text_int("vocab_size", vocab, VLM_KEY_REQUIRED, 1, 4194304),
    text_int("max_position_embeddings", context, 32768, 1, 16777216),
    text_real("rms_norm_eps", eps, 1e-6, 1e-12, 1),
    { VLM_KEY_TEXT, VLM_KEY_ACT, "hidden_act", NULL,
      offsetof(vlm_config_t, act), VLM_ACT_SILU, 0, 0 },

    vision_int("depth", v_layers, 32, 1, 1024),
    vision_int("embed_dim", v_width, 1280, 4, 65536),
    vision_int("num_heads", v_heads, 16, 1, 1024),
    vision_int("hidden_size", v_out, 3584, 1, 65536),
    { VLM_KEY_VISION, VLM_KEY_REAL, "mlp_ratio", NULL,
      offsetof(vlm_config_t, v_mlp_ratio), 4, 0.0625, 64 },
    { VLM_KEY_VISION, VLM_KEY_INT, "in_chans", "in_channels",
      offsetof(vlm_config_t, channels), 3, 3, 3 },
    vision_int("patch_size", patch, 14, 1, 256),
    vision_int("spatial_merge_size", merge, 2, 1, 8),
    vision_int("temporal_patch_size", frames, 2, 1, 8),
    { VLM_KEY_VISION, VLM_KEY_ACT, "hidden_act", NULL,
      offsetof(vlm_config_t, v_act), VLM_ACT_QUICK_GELU, 0, 0 }
};


#define top(field)      offsetof(vlm_weights_t, field)
#define layer(field)    offsetof(vlm_layer_t, field)

static const vlm_tensor_spec_t  specs[] = {

    { .scope = VLM_IN_TEXT, .offset = top(embed),
      .names = { "embed_tokens" },
      .rows = { VLM_DIM_VOCAB }, .cols = { VLM_DIM_HIDDEN } },

    { .scope = VLM_IN_TEXT_LAYER, .kind = VLM_SPEC_NORM,
      .offset = layer(norm1), .names = { "layers.N.input_layernorm" },
      .rows = { VLM_DIM_HIDDEN } },

    { .scope = VLM_IN_TEXT_LAYER, .kind = VLM_SPEC_BIASED,
      .offset = layer(qkv),
      .names = { "layers.N.self_attn.q_proj", "layers.N.self_attn.k_proj",
                 "layers.N.self_attn.v_proj" },
      .rows = { VLM_DIM_Q, VLM_DIM_KV, VLM_DIM_KV },
      .cols = { VLM_DIM_HIDDEN } },

    { .scope = VLM_IN_TEXT_LAYER, .offset = layer(out),
      .names = { "layers.N.self_attn.o_proj" },
      .rows = { VLM_DIM_HIDDEN }, .cols = { VLM_DIM_Q } },

    { .scope = VLM_IN_TEXT_LAYER, .kind = VLM_SPEC_NORM,
      .offset = layer(norm2),
      .names = { "layers.N.post_attention_layernorm" },
      .rows = { VLM_DIM_HIDDEN } },

    { .scope = VLM_IN_TEXT_LAYER, .offset = layer(up),
      .layout = VLM_WEIGHT_GATED,
      .names = { "layers.N.mlp.gate_proj", "layers.N.mlp.up_proj" },
      .rows = { VLM_DIM_INTERMEDIATE, VLM_DIM_INTERMEDIATE },
      .cols = { VLM_DIM_HIDDEN } },

    { .scope = VLM_IN_TEXT_LAYER, .offset = layer(down),
      .names = { "layers.N.mlp.down_proj" },
      .rows = { VLM_DIM_HIDDEN }, .cols = { VLM_DIM_INTERMEDIATE } },

    { .scope = VLM_IN_TEXT, .kind = VLM_SPEC_NORM, .offset = top(norm),
      .names = { "norm" }, .rows = { VLM_DIM_HIDDEN } },

    { .scope = VLM_IN_HEAD, .offset = top(head),
      .names = { "lm_head" },
      .rows = { VLM_DIM_VOCAB }, .cols = { VLM_DIM_HIDDEN } },

    { .scope = VLM_IN_VISION, .offset = top(patch),
      .names = { "patch_embed.proj" },
      .rows = { VLM_DIM_V_WIDTH },
      .cols = { VLM_DIM_CHANNELS, VLM_DIM_FRAMES, VLM_DIM_PATCH,
                VLM_DIM_PATCH } },

    { .scope = VLM_IN_VISION_LAYER, .kind = VLM_SPEC_BIASED_NORM,
      .offset = layer(norm1), .names = { "blocks.N.norm1" },
      .rows = { VLM_DIM_V_WIDTH } },

    { .scope = VLM_IN_VISION_LAYER, .kind = VLM_SPEC_BIASED,
      .offset = layer(qkv), .names = { "blocks.N.attn.qkv" },
      .rows = { VLM_DIM_V_3WIDTH }, .cols = { VLM_DIM_V_WIDTH } },

    { .scope = VLM_IN_VISION_LAYER, .kind = VLM_SPEC_BIASED,
      .offset = layer(out), .names = { "blocks.N.attn.proj" },
      .rows = { VLM_DIM_V_WIDTH }, .cols = { VLM_DIM_V_WIDTH } },

    { .scope = VLM_IN_VISION_LAYER, .kind = VLM_SPEC_BIASED_NORM,
      .offset = layer(norm2), .names = { "blocks.N.norm2" },
      .rows = { VLM_DIM_V_WIDTH } },

    { .scope = VLM_IN_VISION_LAYER, .kind = VLM_SPEC_BIASED,
      .offset = layer(up), .names = { "blocks.N.mlp.fc1" },
      .rows = { VLM_DIM_V_INTERMEDIATE }, .cols = { VLM_DIM_V_WIDTH } },

    { .scope = VLM_IN_VISION_LAYER, .kind = VLM_SPEC_BIASED,
      .offset = layer(down), .names = { "blocks.N.mlp.fc2" },
      .rows = { VLM_DIM_V_WIDTH }, .cols = { VLM_DIM_V_INTERMEDIATE } },

    { .scope = VLM_IN_VISION, .kind = VLM_SPEC_BIASED_NORM,
      .offset = top(merge_norm), .names = { "merger.ln_q" },
      .rows = { VLM_DIM_V_WIDTH } },

    { .scope = VLM_IN_VISION, .kind = VLM_SPEC_BIASED,
      .offset = top(merge1), .names = { "merger.mlp.0" },
      .rows = { VLM_DIM_V_MERGED }, .cols = { VLM_DIM_V_MERGED } },

    { .scope = VLM_IN_VISION, .kind = VLM_SPEC_BIASED,
      .offset = top(merge2), .names = { "merger.mlp.2" },
      .rows = { VLM_DIM_HIDDEN }, .cols = { VLM_DIM_V_MERGED } }
};


static int
resolve(vlm_config_t *c, vlm_error_t *err)
{
    double  width;

    c->head_dim = c->hidden / c->heads;

    if (c->hidden % c->heads != 0) {
        return vlm_fail(err, 500, NULL, "hidden_size %d is no multiple of "
                        "num_attention_heads %d", c->hidden, c->heads);
    }

    if (c->v_out != c->hidden) {
        return vlm_fail(err, 500, NULL, "vision_config: hidden_size %d is "
                        "not the text's %d", c->v_out, c->hidden);
    }

    width = c->v_width * c->v_mlp_ratio;
    c->v_intermediate = (int32_t) width;

    return VLM_OK;
}


const vlm_family_t  vlm_family_qwen2_vl = {
    .model_type = "qwen2_vl",

    .keys = keys,
    .nkeys = sizeof(keys) / sizeof(keys[0]),
    .resolve = resolve,

    .text_prefix = { "model.", "model.language_model." },
    .head_prefix = { "" },
    .vision_prefix = { "visual.", "model.visual." },
    .specs = specs,
    .nspecs = sizeof(specs) / sizeof(specs[0]),

    .v_norm = VLM_NORM_LAYER,
    .v_eps = 1e-6f,
    .v_rope_theta = 10000,

    .merge_norm = VLM_NORM_LAYER,
    .merge_eps = 1e-6f,
    .merge_act = VLM_ACT_GELU,

    .min_pixels = 3136,
    .max_pixels = 12845056,
    .max_ratio = 200,
    .filter = VLM_FILTER_BICUBIC,
    .mean = { 0.48145466, 0.4578275, 0.40821073 },
    .std = { 0.26862954, 0.26130258, 0.27577711 },

    .chat = {
        .begin = "",
        .default_system = "You are a helpful assistant.",
        .message_begin = "\001<|im_start|>\002%ROLE%\n",
        .message_end = "\001<|im_end|>\002\n",
        .picture_begin = "\001<|vision_start|>\002",
        .picture_token = "<|image_pad|>",
        .picture_end = "\001<|vision_end|>\002",
        .answer = "\001<|im_start|>\002assistant\n"
    },

    .trace_patch = "model.visual.patch_embed",
    .trace_vision_layer = "model.visual.blocks.N",
    .trace_merge = "model.visual.merger",
    .trace_text_layer = "model.language_model.layers.N"
};
