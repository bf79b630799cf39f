
/*
 * Pictures: type by content, limits from the header, decoding to RGB bytes
 * (EXIF orientation applied, transparency composed on white), resizing
 * exactly like Pillow.  The rules, one by one, are in the design's chapter on
 * pictures; docs/ has the errors.  All functions are thread-safe: no state.
 */

#ifndef VLM_IMAGE_H
#define VLM_IMAGE_H


#include "engine/base/vlm_base.h"


typedef enum {
    VLM_IMAGE_UNKNOWN = 0,
    VLM_IMAGE_JPEG,
    VLM_IMAGE_PNG,
    VLM_IMAGE_WEBP,
    VLM_IMAGE_GIF,
    VLM_IMAGE_HEIC,             /* from here on: recognised, not accepted */
    VLM_IMAGE_AVIF,
    VLM_IMAGE_TIFF,
    VLM_IMAGE_BMP,
    VLM_IMAGE_SVG,
    VLM_IMAGE_PDF
} vlm_image_type_t;


/* what the header says, before any pixel is decoded */

typedef struct {
    vlm_image_type_t    type;
    uint32_t            stored_width;       /* as in the file */
    uint32_t            stored_height;
    uint32_t            width;              /* after EXIF orientation */
    uint32_t            height;
    int                 orientation;        /* EXIF, 1 to 8 */
} vlm_image_info_t;


/*
 * What decoding holds for a pixel at most, the result included: a lossless
 * WebP with all its transforms, or a progressive CMYK JPEG.  Besides there are
 * rows, lists of a file's parts, and for a lossless WebP tables that no header
 * tells: up to 65,536 sets of 6 KiB, for files of 300 KB made to that end.
 */

#define VLM_IMAGE_PIXEL_BYTES  13

/* of one picture, by default: what cameras make, 8192 x 8192 */

#define VLM_IMAGE_PIXELS       67108864


/* RGB, interleaved, rows without gaps; owned: vlm_image_free() */

typedef struct {
    uint32_t            width;
    uint32_t            height;
    uint8_t            *data;
} vlm_image_t;


vlm_image_type_t vlm_image_type(const uint8_t *data, size_t len);
const char *vlm_image_type_name(vlm_image_type_t type);

/*
 * Reads the header.  Errors: unsupported_image (names what was recognised
 * and what is accepted), invalid_image, image_too_large when width * height
 * is over max_pixels (both numbers are named).
 */
int vlm_image_probe(const uint8_t *data, size_t len, uint64_t max_pixels,
    vlm_image_info_t *info, vlm_error_t *err);

/*
 * Probes and decodes.  Memory is bounded by the size in the header.  *cancel
 * (may be NULL) is looked at now and then with a relaxed load; once it is not
 * 0 decoding ends with VLM_ERROR and status 499.
 */
int vlm_image_decode(const uint8_t *data, size_t len, uint64_t max_pixels,
    const int *cancel, vlm_image_t *image, vlm_error_t *err);
void vlm_image_free(vlm_image_t *image);


typedef enum {
    VLM_FILTER_LANCZOS = 1,     /* Pillow's numbers, as in "resample" */
    VLM_FILTER_BILINEAR = 2,
    VLM_FILTER_BICUBIC = 3
} vlm_filter_t;

/* a new image of width x height; equal to Pillow's resize, bit for bit */
int vlm_image_resize(const vlm_image_t *from, uint32_t width,
    uint32_t height, vlm_filter_t filter, vlm_image_t *to, vlm_error_t *err);

/* binary PPM (P6) */
int vlm_image_write_ppm(const vlm_image_t *image, const char *path,
    vlm_error_t *err);
int vlm_image_read_ppm(const char *path, vlm_image_t *image,
    vlm_error_t *err);


#endif /* VLM_IMAGE_H */
