
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

/*
 * Probes fill stored_width, stored_height and orientation.  Decoders fill
 * image->data, which the caller allocated with the stored size; they check
 * that the file still has it, since its bytes lie in shared memory.
 */

int vlm_jpeg_probe(const uint8_t *data, size_t len, vlm_image_info_t *info,
    vlm_error_t *err);
int vlm_jpeg_decode(const uint8_t *data, size_t len, const int *cancel,
    vlm_image_t *image, vlm_error_t *err);

int vlm_png_probe(const uint8_t *data, size_t len, vlm_image_info_t *info,
    vlm_error_t *err);
int vlm_png_decode(const uint8_t *data, size_t len, const int *cancel,
    vlm_image_t *image, vlm_error_t *err);

/* the first frame of an animation, on a white canvas */

int vlm_webp_probe(const uint8_t *data, size_t len, vlm_image_info_t *info,
    vlm_error_t *err);
int vlm_webp_decode(const uint8_t *data, size_t len, const int *cancel,
    vlm_image_t *image, vlm_error_t *err);

int vlm_gif_probe(const uint8_t *data, size_t len, vlm_image_info_t *info,
    vlm_error_t *err);
int vlm_gif_decode(const uint8_t *data, size_t len, const int *cancel,
    vlm_image_t *image, vlm_error_t *err);

/* RGBA to RGB, on white in 8 bits; alpha 0: it is ignored */
void vlm_compose_row(uint8_t *rgb, const uint8_t *rgba, uint32_t width,
    int alpha);

int vlm_image_cancelled(const int *cancel);
int vlm_image_fail_cancelled(vlm_error_t *err);

/* the libraries' memory too: no fault of the picture, which may come again */
int vlm_image_fail_nomem(vlm_error_t *err);


#endif /* VLM_IMAGE_INTERNAL_H */
