
/* What becomes of a picture before the vision tower: size and tokens. */

#include <math.h>
#include <string.h>

#include "engine/model/internal.h"


static void plan_size(double h, double w, double factor, double min,
    double max, double *hb, double *wb);


int
vlm_model_plan(const vlm_model_t *m, uint32_t width, uint32_t height,
    uint32_t detail, vlm_image_plan_t *plan, vlm_error_t *err)
{
    double               hb, wb, min, max, longer, shorter;
    const vlm_config_t  *c;

    c = &m->config;

    if (width == 0 || height == 0) {
        return vlm_fail(err, 400, "invalid_image", "a picture of %u x %u "
                        "pixels is empty", width, height);
    }

    longer = width > height ? width : height;
    shorter = width > height ? height : width;

    if (longer / shorter > m->family->max_ratio) {
        return vlm_fail(err, 400, "invalid_image", "a picture of %u x %u "
                        "pixels is too narrow: the ratio of its sides may "
                        "be %g", width, height, m->family->max_ratio);
    }

    max = (double) (detail == VLM_DETAIL_LOW ? m->low_pixels
                    : detail == VLM_DETAIL_HIGH ? m->high_pixels
                    : m->auto_pixels);
    min = (double) c->min_pixels;

    if (min > max) {
        min = max;
    }

    plan_size(height, width, (double) c->patch * c->merge, min, max, &hb,
              &wb);

    if (hb < 1 || wb < 1 || hb > INT32_MAX || wb > INT32_MAX
        || hb * wb > 1e12)
    {
        return vlm_fail(err, 400, "invalid_image", "a picture of %u x %u "
                        "pixels cannot be resized to %.0f x %.0f", width,
                        height, wb, hb);
    }

    memset(plan, 0, sizeof(*plan));
    plan->width = (uint32_t) wb;
    plan->height = (uint32_t) hb;
    plan->filter = c->filter;
    plan->grid_h = (int32_t) hb / c->patch;
    plan->grid_w = (int32_t) wb / c->patch;
    plan->ntokens = plan->grid_h / c->merge * (plan->grid_w / c->merge);

    return VLM_OK;
}


/*
 * The order of the operations is the reference's: another one may end in
 * another multiple of the factor.
 */

static void
plan_size(double h, double w, double factor, double min, double max,
    double *hb, double *wb)
{
    double  beta;

    *hb = rint(h / factor) * factor;
    *wb = rint(w / factor) * factor;

    if (*hb * *wb > max) {
        beta = sqrt(h * w / max);
        *hb = fmax(factor, floor(h / beta / factor) * factor);
        *wb = fmax(factor, floor(w / beta / factor) * factor);

    } else if (*hb * *wb < min) {
        beta = sqrt(min / (h * w));
        *hb = ceil(h * beta / factor) * factor;
        *wb = ceil(w * beta / factor) * factor;
    }
}


double
vlm_model_cost(const vlm_model_t *m, const vlm_image_plan_t *plan)
{
    return vlm_vision_cost(&m->config,
                           (int64_t) plan->grid_h * plan->grid_w);
}


void
vlm_model_geometry(const vlm_model_t *m, uint32_t width, uint32_t height,
    vlm_patch_geometry_t *geo)
{
    int                  i;
    const vlm_config_t  *c;

    c = &m->config;

    geo->width = (int32_t) width;
    geo->height = (int32_t) height;
    geo->patch = c->patch;
    geo->merge = c->merge;
    geo->frames = c->frames;

    for (i = 0; i < 3; i++) {
        geo->mean[i] = c->mean[i];
        geo->std[i] = c->std[i];
    }
}
