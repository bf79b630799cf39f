
/* preprocessor_config.json: how a picture is shown to the model */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/family.h"


#define MAX_PIXELS      1e12


static int preprocessor_read(vlm_config_t *c, const vlm_json_t *root,
    vlm_error_t *err);
static int preprocessor_pixels(vlm_config_t *c, const vlm_json_t *root,
    vlm_error_t *err);
static int preprocessor_colours(float *to, const vlm_json_t *root,
    const char *key, double min, vlm_error_t *err);
static int preprocessor_same(const vlm_json_t *root, const char *key,
    int32_t value, vlm_error_t *err);


int
vlm_preprocessor_load(vlm_config_t *c, const vlm_family_t *family,
    const char *dir, vlm_error_t *err)
{
    int              i, rc;
    vlm_json_doc_t  *doc;

    c->min_pixels = family->min_pixels;
    c->max_pixels = family->max_pixels;
    c->filter = family->filter;

    for (i = 0; i < 3; i++) {
        c->mean[i] = (float) family->mean[i];
        c->std[i] = (float) family->std[i];
    }

    doc = vlm_config_open(dir, "preprocessor_config.json", err);
    if (doc == NULL) {
        return VLM_ERROR;
    }

    rc = preprocessor_read(c, vlm_json_root(doc), err);
    vlm_json_free(doc);

    if (rc == VLM_ERROR) {
        return vlm_fail_in(err, "%s/preprocessor_config.json: ", dir);
    }

    return VLM_OK;
}


static int
preprocessor_read(vlm_config_t *c, const vlm_json_t *root, vlm_error_t *err)
{
    int                 on;
    size_t              i;
    double              d;
    static const char  *steps[] = { "do_resize", "do_rescale",
                                    "do_normalize", "do_convert_rgb" };

    for (i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        if (vlm_json_bool(vlm_json_get(root, steps[i]), &on) == VLM_OK
            && !on)
        {
            return vlm_fail(err, 500, NULL, "\"%s\" false is not supported",
                            steps[i]);
        }
    }

    d = 1.0 / 255;

    if (vlm_config_real(root, "rescale_factor", 0, 1, &d, err) == VLM_ERROR) {
        return VLM_ERROR;
    }

    if (fabs(d * 255 - 1) > 1e-9) {
        return vlm_fail(err, 500, NULL, "rescale_factor %g is not supported: "
                        "1/255", d);
    }

    d = c->filter;

    if (vlm_config_real(root, "resample", 0, 10, &d, err) == VLM_ERROR) {
        return VLM_ERROR;
    }

    if (d != VLM_FILTER_LANCZOS && d != VLM_FILTER_BILINEAR
        && d != VLM_FILTER_BICUBIC)
    {
        return vlm_fail(err, 500, NULL, "resample %g is not supported: 1 "
                        "(lanczos), 2 (bilinear) or 3 (bicubic)", d);
    }

    c->filter = (vlm_filter_t) d;

    if (preprocessor_same(root, "patch_size", c->patch, err) == VLM_ERROR
        || preprocessor_same(root, "merge_size", c->merge, err) == VLM_ERROR
        || preprocessor_same(root, "temporal_patch_size", c->frames, err)
           == VLM_ERROR
        || preprocessor_colours(c->mean, root, "image_mean", 0, err)
           == VLM_ERROR
        || preprocessor_colours(c->std, root, "image_std", 1e-6, err)
           == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    return preprocessor_pixels(c, root, err);
}


/* "edges" of "size" are counts of pixels too, whatever their names say */

static int
preprocessor_pixels(vlm_config_t *c, const vlm_json_t *root,
    vlm_error_t *err)
{
    double             min, max;
    const vlm_json_t  *size;

    min = (double) c->min_pixels;
    max = (double) c->max_pixels;
    size = vlm_json_get(root, "size");

    if (vlm_config_real(size, "shortest_edge", 1, MAX_PIXELS, &min, err)
        == VLM_ERROR
        || vlm_config_real(size, "longest_edge", 1, MAX_PIXELS, &max, err)
           == VLM_ERROR)
    {
        return vlm_fail_in(err, "size: ");
    }

    if (vlm_config_real(root, "min_pixels", 1, MAX_PIXELS, &min, err)
        == VLM_ERROR
        || vlm_config_real(root, "max_pixels", 1, MAX_PIXELS, &max, err)
           == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    if (min > max) {
        return vlm_fail(err, 500, NULL, "min_pixels %.0f is over max_pixels "
                        "%.0f", min, max);
    }

    c->min_pixels = (uint64_t) min;
    c->max_pixels = (uint64_t) max;

    return VLM_OK;
}


static int
preprocessor_colours(float *to, const vlm_json_t *root, const char *key,
    double min, vlm_error_t *err)
{
    int                i;
    double             d;
    const vlm_json_t  *list;

    list = vlm_json_get(root, key);

    if (vlm_json_type(list) == VLM_JSON_NULL) {
        return VLM_OK;
    }

    for (i = 0; i < 3; i++) {
        if (vlm_json_count(list) != 3
            || vlm_json_double(vlm_json_at(list, (size_t) i), &d)
               == VLM_ERROR
            || !(d >= min && d <= 1))
        {
            return vlm_fail(err, 500, NULL, "\"%s\" is no list of three "
                            "numbers in %g to 1", key, min);
        }

        to[i] = (float) d;
    }

    return VLM_OK;
}


static int
preprocessor_same(const vlm_json_t *root, const char *key, int32_t value,
    vlm_error_t *err)
{
    double  d;

    d = value;

    if (vlm_config_real(root, key, 0, 1e6, &d, err) == VLM_ERROR) {
        return VLM_ERROR;
    }

    if (d != value) {
        return vlm_fail(err, 500, NULL, "%s %g is not config.json's %d", key,
                        d, value);
    }

    return VLM_OK;
}
