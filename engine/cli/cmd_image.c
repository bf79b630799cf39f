
/* Pictures by themselves: as decoded, and as the vision tower sees them. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cli/cli.h"


#define MAX_FILE    ((size_t) 1 << 28)


/* what patchify() needs and makes */

typedef struct {
    vlm_device_t           *dev;
    const vlm_ops_t        *ops;
    vlm_queue_t            *queue;
    vlm_patch_geometry_t    geo;
    vlm_tensor_t            patches;
    void                   *rgb;
    float                  *host;
} vlm_patches_t;


static int pixels_image(vlm_options_t *o, const vlm_model_t *m,
    vlm_image_t *image, vlm_error_t *err);
static int patches_make(const vlm_model_t *m, const vlm_image_t *image,
    vlm_patches_t *p, vlm_error_t *err);
static void patches_free(vlm_patches_t *p);
static int npy_write(const char *path, const float *data, int64_t rows,
    int64_t cols, vlm_error_t *err);


int
vlm_cli_picture(const char *path, uint64_t max_pixels, vlm_image_t *image,
    vlm_error_t *err)
{
    int      rc;
    char    *data;
    size_t   len;

    if (vlm_read_file(path, MAX_FILE, &data, &len, err) != VLM_OK) {
        return VLM_ERROR;
    }

    if (len >= 2 && data[0] == 'P' && data[1] == '6') {
        free(data);
        return vlm_image_read_ppm(path, image, err);
    }

    rc = vlm_image_decode((const uint8_t *) data, len, max_pixels, NULL,
                          image, err);
    free(data);

    return rc == VLM_OK ? VLM_OK : vlm_fail_in(err, "%s: ", path);
}


static int
need_out(const vlm_options_t *o)
{
    vlm_error_t  err;

    if (o->out != NULL) {
        return 0;
    }

    vlm_fail(&err, 400, NULL, "--out is missing");

    return vlm_cli_fail(VLM_EXIT_USAGE, &err);
}


/* one picture, and nobody else's memory to think of */

static uint64_t
most_pixels(const vlm_options_t *o)
{
    return o->server.engine.max_image_pixels != 0
           ? o->server.engine.max_image_pixels : VLM_IMAGE_PIXELS;
}


int
vlm_cmd_decode(vlm_options_t *o)
{
    int           rc;
    vlm_error_t   err;
    vlm_image_t   image = {0};

    if (need_out(o) != 0) {
        return VLM_EXIT_USAGE;
    }

    rc = vlm_cli_picture(o->args[0], most_pixels(o),
                         &image, &err);

    if (rc == VLM_OK) {
        rc = vlm_image_write_ppm(&image, o->out, &err);
    }

    vlm_image_free(&image);

    return rc == VLM_OK ? 0 : vlm_cli_fail(VLM_EXIT_FAILED, &err);
}


int
vlm_cmd_pixels(vlm_options_t *o)
{
    int                   rc;
    vlm_error_t           err;
    vlm_image_t           image = {0};
    vlm_model_t          *m;
    vlm_patches_t         p;
    vlm_model_options_t   opt;

    if (need_out(o) != 0) {
        return VLM_EXIT_USAGE;
    }

    memset(&p, 0, sizeof(p));

    memset(&opt, 0, sizeof(opt));
    opt.min_pixels = o->server.engine.min_pixels;
    opt.max_pixels = o->server.engine.max_pixels;
    opt.cpu_pixels = 1;

    m = vlm_model_open(o->args[0], &opt, &err);
    if (m == NULL) {
        return vlm_cli_fail(VLM_EXIT_FAILED, &err);
    }

    rc = pixels_image(o, m, &image, &err);

    if (rc == VLM_OK) {
        rc = patches_make(m, &image, &p, &err);
    }

    if (rc == VLM_OK) {
        rc = npy_write(o->out, p.host, p.patches.rows, p.patches.cols, &err);
    }

    patches_free(&p);
    vlm_image_free(&image);
    vlm_model_free(m);

    return rc == VLM_OK ? 0 : vlm_cli_fail(VLM_EXIT_FAILED, &err);
}


/* decoded and resized as planned */

static int
pixels_image(vlm_options_t *o, const vlm_model_t *m, vlm_image_t *image,
    vlm_error_t *err)
{
    int                rc;
    vlm_image_t        from = {0};
    vlm_image_plan_t   plan;

    rc = vlm_cli_picture(o->args[1], most_pixels(o),
                         &from, err);

    if (rc == VLM_OK) {
        rc = vlm_model_plan(m, from.width, from.height, o->detail, &plan,
                            err);
    }

    if (rc == VLM_OK) {
        rc = vlm_image_resize(&from, plan.width, plan.height, plan.filter,
                              image, err);
    }

    vlm_image_free(&from);

    return rc;
}


static int
patches_make(const vlm_model_t *m, const vlm_image_t *image,
    vlm_patches_t *p, vlm_error_t *err)
{
    char    text[256];
    size_t  rgb, size;

    p->dev = vlm_cpu_device(1, &p->ops, text, sizeof(text));
    if (p->dev == NULL) {
        return vlm_fail(err, 500, NULL, "%s", text);
    }

    vlm_model_geometry(m, image->width, image->height, &p->geo);

    p->patches.device = p->dev;
    p->patches.dtype = VLM_F32;
    p->patches.rows = (int64_t) (p->geo.height / p->geo.patch)
                      * (p->geo.width / p->geo.patch);
    p->patches.cols = 3 * p->geo.frames * p->geo.patch * p->geo.patch;
    p->patches.stride = p->patches.cols;

    rgb = (size_t) image->width * image->height * 3;
    size = (size_t) p->patches.rows * (size_t) p->patches.cols
           * sizeof(float);

    p->queue = p->ops->queue_create(p->dev, 0);
    p->rgb = p->ops->alloc(p->dev, rgb);
    p->patches.data = p->ops->alloc(p->dev, size);
    p->host = malloc(size);

    if (p->queue == NULL || p->rgb == NULL || p->patches.data == NULL
        || p->host == NULL)
    {
        return vlm_fail(err, 500, NULL, "no memory for %zu bytes of patches",
                        size);
    }

    p->ops->upload(p->queue, p->rgb, image->data, rgb);
    p->ops->patchify(p->queue, &p->patches, p->rgb, &p->geo, 0);
    p->ops->download(p->queue, p->host, p->patches.data, size);

    if (p->ops->sync(p->queue, text, sizeof(text)) != 0) {
        return vlm_fail(err, 500, NULL, "%s", text);
    }

    return VLM_OK;
}


static void
patches_free(vlm_patches_t *p)
{
    if (p->dev == NULL) {
        return;
    }

    free(p->host);
    p->ops->free(p->dev, p->patches.data);
    p->ops->free(p->dev, p->rgb);

    if (p->queue != NULL) {
        p->ops->queue_destroy(p->queue);
    }

    vlm_cpu_device_destroy(p->dev);
}


/* NumPy's format 1.0: the header is padded to a multiple of 64 */

static int
npy_write(const char *path, const float *data, int64_t rows, int64_t cols,
    vlm_error_t *err)
{
    int      n, ok;
    char     text[128], header[128];
    FILE    *f;

    n = snprintf(text, sizeof(text), "{'descr': '<f4', 'fortran_order': "
                 "False, 'shape': (%lld, %lld), }", (long long) rows,
                 (long long) cols);

    memset(header, ' ', sizeof(header));
    memcpy(header, "\x93NUMPY\x01\x00\x76\x00", 10);
    memcpy(header + 10, text, (size_t) n);
    header[127] = '\n';

    f = fopen(path, "wb");
    if (f == NULL) {
        return vlm_fail(err, 500, NULL, "%s: %s", path, strerror(errno));
    }

    ok = fwrite(header, 1, sizeof(header), f) == sizeof(header)
         && fwrite(data, sizeof(float) * (size_t) cols, (size_t) rows, f)
            == (size_t) rows;

    if (fclose(f) != 0 || !ok) {
        return vlm_fail(err, 500, NULL, "%s: cannot be written: %s", path,
                        strerror(errno));
    }

    return VLM_OK;
}
