
#include <stdio.h>

#include "engine/cli/cli.h"


int
vlm_cmd_info(vlm_options_t *o)
{
    int                   rc;
    vlm_buf_t             out = {0};
    vlm_error_t           err;
    vlm_model_t          *m;
    vlm_model_options_t   opt;

    opt.min_pixels = o->server.engine.min_pixels;
    opt.max_pixels = o->server.engine.max_pixels;
    opt.cpu_pixels = 1;
    opt.quant = o->server.engine.quant;
    opt.vision_quant = o->server.engine.vision_quant;

    m = vlm_model_open(o->args[0], &opt, &err);
    if (m == NULL) {
        return vlm_cli_fail(VLM_EXIT_FAILED, &err);
    }

    rc = vlm_model_describe(m, o->width, o->height, o->json, &out, &err);

    if (rc == VLM_OK) {
        fwrite(out.data, 1, out.len, stdout);
    }

    vlm_buf_free(&out);
    vlm_model_free(m);

    return rc == VLM_OK ? 0 : vlm_cli_fail(VLM_EXIT_FAILED, &err);
}
