
/* Between the files of engine/image: decoders give RGB as stored in the file,
 * before orientation; image.c does the rest. */

#ifndef VLM_IMAGE_INTERNAL_H
#define VLM_IMAGE_INTERNAL_H


#include "engine/image/image.h"


/*
 * Orientation, 1 to 8, from a TIFF structure (EXIF without its "Exif\0\0"
 * prefix), either byte order.  1 for whatever is broken or out of range.
 */
int vlm_exif_orientation(const uint8_t *data, size_t len);

/* fill stored_width, stored_height and orientation */
int vlm_jpeg_probe(const uint8_t *data, size_t len, vlm_image_info_t *info,
    vlm_error_t *err);
int vlm_png_probe(const uint8_t *data, size_t len, vlm_image_info_t *info,
    vlm_error_t *err);

/* fill image->data, allocated with the stored size by the caller */
int vlm_jpeg_decode(const uint8_t *data, size_t len, const int *cancel,
    vlm_image_t *image, vlm_error_t *err);
int vlm_png_decode(const uint8_t *data, size_t len, const int *cancel,
    vlm_image_t *image, vlm_error_t *err);

int vlm_image_cancelled(const int *cancel);
int vlm_image_fail_cancelled(vlm_error_t *err);


#endif /* VLM_IMAGE_INTERNAL_H */
