
/* What a checkpoint is and costs: the text and JSON of the info command. */

#include <string.h>

#include "engine/model/internal.h"


typedef struct {
    uint64_t            kv;                 /* bytes of a token */
    uint64_t            language;           /* bytes of the decoder */
    uint32_t            width;              /* 0: no picture asked for */
    uint32_t            height;
    vlm_image_plan_t    plan;
    double              cost;               /* multiply-adds */
} costs_t;


static int describe_json(const vlm_model_t *m, const costs_t *costs,
    vlm_buf_t *out);
static int describe_text(const vlm_model_t *m, const costs_t *costs,
    vlm_buf_t *out);
static int put_bytes(vlm_buf_t *out, uint64_t bytes);
static int put_quant(vlm_buf_t *out, vlm_quant_t quant);


int
vlm_model_describe(const vlm_model_t *m, uint32_t width, uint32_t height,
    int json, vlm_buf_t *out, vlm_error_t *err)
{
    int                  rc;
    costs_t              costs;
    const vlm_config_t  *c;

    c = &m->config;
    memset(&costs, 0, sizeof(costs));

    /* before loading there is no device to ask: float32, as on the CPU */

    costs.kv = m->ops != NULL
               ? vlm_decoder_block_bytes(m, m->dev, m->ops, 16) / 16
               : (uint64_t) c->layers * 2 * (uint64_t) c->kv_heads
                 * (uint64_t) c->head_dim * sizeof(float);

    costs.language = m->info.weight_bytes - m->info.vision_bytes;

    if (width != 0 && height != 0) {
        if (vlm_model_plan(m, width, height, VLM_DETAIL_AUTO, &costs.plan,
                           err)
            == VLM_ERROR)
        {
            return VLM_ERROR;
        }

        costs.width = width;
        costs.height = height;
        costs.cost = vlm_vision_cost(c, (int64_t) costs.plan.grid_h
                                        * costs.plan.grid_w);
    }

    rc = json ? describe_json(m, &costs, out) : describe_text(m, &costs, out);

    return rc == VLM_OK ? VLM_OK : vlm_fail(err, 500, NULL, "no memory");
}


static int
describe_json(const vlm_model_t *m, const costs_t *costs, vlm_buf_t *out)
{
    int                      rc;
    const vlm_model_info_t  *i;

    i = &m->info;

    rc = vlm_buf_append(out, "{\"name\":", 8);
    rc |= vlm_buf_json_string(out, i->name, strlen(i->name));

    rc |= vlm_buf_printf(out, ",\"family\":\"%s\",\"parameters\":%llu,"
                         "\"dtype\":\"%s\",\"weight_bytes\":%llu,"
                         "\"language_bytes\":%llu,\"vision_bytes\":%llu,"
                         "\"quantization\":\"%s\","
                         "\"vision_quantization\":\"%s\","
                         "\"context\":%d,\"kv_bytes_per_token\":%llu",
                         i->family, (unsigned long long) i->parameters,
                         m->type, (unsigned long long) i->weight_bytes,
                         (unsigned long long) costs->language,
                         (unsigned long long) i->vision_bytes,
                         vlm_quant_name(i->quant),
                         vlm_quant_name(i->vision_quant), i->context,
                         (unsigned long long) costs->kv);

    rc |= vlm_buf_printf(out, ",\"language\":{\"layers\":%d,\"width\":%d,"
                         "\"heads\":%d,\"kv_heads\":%d,\"head_dim\":%d,"
                         "\"intermediate\":%d,\"vocab\":%d,\"tied\":%s}",
                         i->layers, i->hidden, i->heads, i->kv_heads,
                         i->head_dim, i->intermediate, i->vocab,
                         m->tied ? "true" : "false");

    rc |= vlm_buf_printf(out, ",\"vision\":{\"layers\":%d,\"width\":%d,"
                         "\"heads\":%d,\"intermediate\":%d,\"patch\":%d,"
                         "\"merge\":%d,\"min_pixels\":%llu,"
                         "\"max_pixels\":%llu}",
                         i->vision_layers, i->vision_width, i->vision_heads,
                         i->vision_intermediate, i->patch, i->merge,
                         (unsigned long long) i->min_pixels,
                         (unsigned long long) i->max_pixels);

    if (costs->width != 0) {
        rc |= vlm_buf_printf(out, ",\"picture\":{\"width\":%u,\"height\":%u,"
                             "\"resized_width\":%u,\"resized_height\":%u,"
                             "\"grid\":[%d,%d],\"tokens\":%d,"
                             "\"encode_flops\":%.0f,\"kv_bytes\":%llu}",
                             costs->width, costs->height, costs->plan.width,
                             costs->plan.height, costs->plan.grid_h,
                             costs->plan.grid_w, costs->plan.ntokens,
                             2 * costs->cost,
                             (unsigned long long) costs->kv
                             * (unsigned long long) costs->plan.ntokens);
    }

    rc |= vlm_buf_append(out, "}\n", 2);

    return rc;
}


static int
describe_text(const vlm_model_t *m, const costs_t *costs, vlm_buf_t *out)
{
    int                      rc;
    const vlm_model_info_t  *i;

    i = &m->info;

    rc = vlm_buf_printf(out, "model       %s, family %s\n"
                        "parameters  %llu, %s\n"
                        "weights     ", i->name, i->family,
                        (unsigned long long) i->parameters, m->type);
    rc |= put_bytes(out, i->weight_bytes);
    rc |= vlm_buf_append(out, ": language ", 11);
    rc |= put_bytes(out, costs->language);
    rc |= put_quant(out, i->quant);
    rc |= vlm_buf_append(out, ", vision ", 9);
    rc |= put_bytes(out, i->vision_bytes);
    rc |= put_quant(out, i->vision_quant);

    rc |= vlm_buf_printf(out, "\nlanguage    %d layers of width %d, %d heads "
                         "(%d for keys) of %d, MLP %d, vocabulary %d%s\n",
                         i->layers, i->hidden, i->heads, i->kv_heads,
                         i->head_dim, i->intermediate, i->vocab,
                         m->tied ? ", tied" : "");

    rc |= vlm_buf_printf(out, "vision      %d layers of width %d, %d heads, "
                         "MLP %d, patch %d, merge %d\n"
                         "pixels      %llu to %llu\n"
                         "context     %d tokens, ",
                         i->vision_layers, i->vision_width, i->vision_heads,
                         i->vision_intermediate, i->patch, i->merge,
                         (unsigned long long) i->min_pixels,
                         (unsigned long long) i->max_pixels, i->context);

    rc |= put_bytes(out, costs->kv);
    rc |= vlm_buf_append(out, " of keys and values each, ", 26);
    rc |= put_bytes(out, costs->kv * (uint64_t) i->context);
    rc |= vlm_buf_append(out, " in all\n", 8);

    if (costs->width != 0) {
        rc |= vlm_buf_printf(out, "picture     %u x %u: resized to %u x %u, "
                             "%d tokens, %.3g GFLOP to encode, ",
                             costs->width, costs->height, costs->plan.width,
                             costs->plan.height, costs->plan.ntokens,
                             2 * costs->cost / 1e9);
        rc |= put_bytes(out, costs->kv * (uint64_t) costs->plan.ntokens);
        rc |= vlm_buf_append(out, " of keys and values\n", 20);
    }

    return rc;
}


static int
put_bytes(vlm_buf_t *out, uint64_t bytes)
{
    if (bytes >= UINT64_C(1) << 30) {
        return vlm_buf_printf(out, "%.2f GiB",
                              (double) bytes / (UINT64_C(1) << 30));
    }

    if (bytes >= UINT64_C(1) << 20) {
        return vlm_buf_printf(out, "%.1f MiB",
                              (double) bytes / (UINT64_C(1) << 20));
    }

    if (bytes >= 1 << 10) {
        return vlm_buf_printf(out, "%.1f KiB", (double) bytes / (1 << 10));
    }

    return vlm_buf_printf(out, "%llu B", (unsigned long long) bytes);
}


static int
put_quant(vlm_buf_t *out, vlm_quant_t quant)
{
    return quant == VLM_QUANT_NONE
           ? VLM_OK : vlm_buf_printf(out, " (%s)", vlm_quant_name(quant));
}
