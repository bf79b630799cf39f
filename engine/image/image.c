
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/image/internal.h"


#define ACCEPTED  "accepted are JPEG, PNG, WebP and GIF"


typedef struct {
    const char         *brand;
    vlm_image_type_t    type;
} brand_t;

typedef struct {
    int  (*probe)(const uint8_t *data, size_t len, vlm_image_info_t *info,
             vlm_error_t *err);
    int  (*decode)(const uint8_t *data, size_t len, const int *cancel,
             vlm_image_t *image, vlm_error_t *err);
} decoder_t;

/* the types that are accepted */

static const decoder_t  decoders[] = {
    [VLM_IMAGE_JPEG] = { vlm_jpeg_probe, vlm_jpeg_decode },
    [VLM_IMAGE_PNG] = { vlm_png_probe, vlm_png_decode },
    [VLM_IMAGE_WEBP] = { vlm_webp_probe, vlm_webp_decode },
    [VLM_IMAGE_GIF] = { vlm_gif_probe, vlm_gif_decode }
};

/* major brands of ISO base media files that are pictures */

static const brand_t  brands[] = {
    { "avif", VLM_IMAGE_AVIF },
    { "avis", VLM_IMAGE_AVIF },
    { "heic", VLM_IMAGE_HEIC },
    { "heix", VLM_IMAGE_HEIC },
    { "hevc", VLM_IMAGE_HEIC },
    { "hevx", VLM_IMAGE_HEIC },
    { "heim", VLM_IMAGE_HEIC },
    { "heis", VLM_IMAGE_HEIC },
    { "mif1", VLM_IMAGE_HEIC },
    { "msf1", VLM_IMAGE_HEIC }
};


static int
starts(const uint8_t *data, size_t len, const char *with, size_t n)
{
    return len >= n && memcmp(data, with, n) == 0;
}


/* text that holds an <svg element near its beginning */

static int
is_svg(const uint8_t *data, size_t len)
{
    size_t  i;

    i = starts(data, len, "\xef\xbb\xbf", 3) ? 3 : 0;

    while (i < len && (data[i] == ' ' || data[i] == '\t' || data[i] == '\r'
                       || data[i] == '\n'))
    {
        i++;
    }

    if (i == len || data[i] != '<') {
        return 0;
    }

    return memmem(data + i, (len - i > 4096) ? 4096 : len - i, "<svg", 4)
           != NULL;
}


vlm_image_type_t
vlm_image_type(const uint8_t *data, size_t len)
{
    size_t  i;

    if (starts(data, len, "\xff\xd8\xff", 3)) {
        return VLM_IMAGE_JPEG;
    }

    if (starts(data, len, "\x89PNG\r\n\x1a\n", 8)) {
        return VLM_IMAGE_PNG;
    }

    if (len >= 12 && memcmp(data, "RIFF", 4) == 0
        && memcmp(data + 8, "WEBP", 4) == 0)
    {
        return VLM_IMAGE_WEBP;
    }

    if (starts(data, len, "GIF87a", 6) || starts(data, len, "GIF89a", 6)) {
        return VLM_IMAGE_GIF;
    }

    if (len >= 12 && memcmp(data + 4, "ftyp", 4) == 0) {
        for (i = 0; i < sizeof(brands) / sizeof(brands[0]); i++) {
            if (memcmp(data + 8, brands[i].brand, 4) == 0) {
                return brands[i].type;
            }
        }
    }

    if (starts(data, len, "II*\0", 4) || starts(data, len, "MM\0*", 4)) {
        return VLM_IMAGE_TIFF;
    }

    if (starts(data, len, "BM", 2) && len >= 26 && data[6] == 0
        && data[7] == 0 && data[8] == 0 && data[9] == 0)
    {
        return VLM_IMAGE_BMP;
    }

    if (starts(data, len, "%PDF-", 5)) {
        return VLM_IMAGE_PDF;
    }

    return is_svg(data, len) ? VLM_IMAGE_SVG : VLM_IMAGE_UNKNOWN;
}


const char *
vlm_image_type_name(vlm_image_type_t type)
{
    static const char  *names[] = {
        "unknown", "JPEG", "PNG", "WebP", "GIF", "HEIC", "AVIF", "TIFF", "BMP",
        "SVG", "PDF"
    };

    return names[type];
}


int
vlm_image_cancelled(const int *cancel)
{
    return cancel != NULL && __atomic_load_n(cancel, __ATOMIC_RELAXED) != 0;
}


int
vlm_image_fail_cancelled(vlm_error_t *err)
{
    return vlm_fail(err, 499, "cancelled", "decoding was cancelled");
}


int
vlm_image_fail_nomem(vlm_error_t *err)
{
    return vlm_fail(err, 500, NULL, "no memory to decode a picture");
}


int
vlm_image_probe(const uint8_t *data, size_t len, uint64_t max_pixels,
    vlm_image_info_t *info, vlm_error_t *err)
{
    memset(info, 0, sizeof(*info));

    info->type = vlm_image_type(data, len);

    if (info->type == VLM_IMAGE_UNKNOWN) {
        return vlm_fail(err, 400, "invalid_image",
                        "not a picture of a known type, " ACCEPTED);
    }

    if (info->type > VLM_IMAGE_GIF) {
        return vlm_fail(err, 400, "unsupported_image",
                        "%s pictures are not supported, " ACCEPTED,
                        vlm_image_type_name(info->type));
    }

    if (decoders[info->type].probe(data, len, info, err) != VLM_OK) {
        return VLM_ERROR;
    }

    if (info->stored_width == 0 || info->stored_height == 0) {
        return vlm_fail(err, 400, "invalid_image",
                        "%s picture is damaged: its size is %u x %u pixels",
                        vlm_image_type_name(info->type), info->stored_width,
                        info->stored_height);
    }

    if ((uint64_t) info->stored_width * info->stored_height > max_pixels) {
        return vlm_fail(err, 400, "image_too_large",
                        "picture has %u x %u = %llu pixels, at most %llu "
                        "are allowed (--max-image-pixels)",
                        info->stored_width, info->stored_height,
                        (unsigned long long) info->stored_width
                        * info->stored_height,
                        (unsigned long long) max_pixels);
    }

    /* orientations from 5 on swap rows and columns */

    info->width = (info->orientation < 5) ? info->stored_width
                                          : info->stored_height;
    info->height = (info->orientation < 5) ? info->stored_height
                                           : info->stored_width;

    return VLM_OK;
}


void
vlm_compose_row(uint8_t *rgb, const uint8_t *rgba, uint32_t width, int alpha)
{
    int        c;
    unsigned   a;
    uint32_t   x;

    for (x = 0; x < width; x++, rgba += 4, rgb += 3) {
        a = alpha ? rgba[3] : 255;

        for (c = 0; c < 3; c++) {
            rgb[c] = (uint8_t) ((rgba[c] * a + 255 * (255 - a) + 127) / 255);
        }
    }
}


static int
image_alloc(vlm_image_t *image, uint32_t width, uint32_t height,
    vlm_error_t *err)
{
    size_t  size;

    size = vlm_mul(vlm_mul(width, height), 3);

    image->width = width;
    image->height = height;
    image->data = (size != 0) ? malloc(size) : NULL;

    if (image->data == NULL) {
        return vlm_fail(err, 500, NULL,
                        "no memory for a picture of %u x %u pixels", width,
                        height);
    }

    return VLM_OK;
}


void
vlm_image_free(vlm_image_t *image)
{
    free(image->data);
    memset(image, 0, sizeof(*image));
}


/*
 * Where the pixel (x, y) of the turned picture lies in the stored one is
 * start + x * dx + y * dy.
 */

static int
orient(vlm_image_t *image, int orientation, vlm_error_t *err)
{
    int64_t         w, h, dx, dy, start;
    uint8_t        *to;
    uint32_t        x, y;
    vlm_image_t     turned;
    const uint8_t  *from;

    w = image->width;
    h = image->height;

    switch (orientation) {

    case 2:                                 /* mirrored left to right */
        start = w - 1, dx = -1, dy = w;
        break;

    case 3:                                 /* by 180 degrees */
        start = w * h - 1, dx = -1, dy = -w;
        break;

    case 4:                                 /* mirrored top to bottom */
        start = w * (h - 1), dx = 1, dy = -w;
        break;

    case 5:                                 /* rows become columns */
        start = 0, dx = w, dy = 1;
        break;

    case 6:                                 /* 90 degrees clockwise */
        start = w * (h - 1), dx = -w, dy = 1;
        break;

    case 7:                                 /* the other diagonal */
        start = w * h - 1, dx = -w, dy = -1;
        break;

    case 8:                                 /* 90 degrees anticlockwise */
        start = w - 1, dx = w, dy = -1;
        break;

    default:
        return VLM_OK;
    }

    if (image_alloc(&turned, (uint32_t) (orientation < 5 ? w : h),
                    (uint32_t) (orientation < 5 ? h : w), err)
        != VLM_OK)
    {
        return VLM_ERROR;
    }

    to = turned.data;

    for (y = 0; y < turned.height; y++) {
        for (x = 0; x < turned.width; x++, to += 3) {
            from = image->data + 3 * (start + x * dx + y * dy);
            to[0] = from[0];
            to[1] = from[1];
            to[2] = from[2];
        }
    }

    vlm_image_free(image);
    *image = turned;

    return VLM_OK;
}


int
vlm_image_decode(const uint8_t *data, size_t len, uint64_t max_pixels,
    const int *cancel, vlm_image_t *image, vlm_error_t *err)
{
    int               rc;
    vlm_image_info_t  info;

    memset(image, 0, sizeof(*image));

    if (vlm_image_probe(data, len, max_pixels, &info, err) != VLM_OK) {
        return VLM_ERROR;
    }

    if (image_alloc(image, info.stored_width, info.stored_height, err)
        != VLM_OK)
    {
        return VLM_ERROR;
    }

    rc = decoders[info.type].decode(data, len, cancel, image, err);

    if (rc == VLM_OK) {
        rc = orient(image, info.orientation, err);
    }

    if (rc != VLM_OK) {
        vlm_image_free(image);
    }

    return rc;
}
