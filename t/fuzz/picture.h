
/*
 * What the targets of the decoders share: one decoder is called past the
 * check of the type, twice, into a buffer of zeros and one of ones: where the
 * results differ a pixel was left out.  What is held while it decodes is
 * counted and stays below what the size in the header allows.
 *
 * The last byte of the input is no part of the file: it says which pictures
 * are too large, and when decoding is cancelled.
 */

#ifndef VLM_FUZZ_PICTURE_H
#define VLM_FUZZ_PICTURE_H


#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sanitizer/allocator_interface.h>

#include "engine/image/internal.h"


typedef struct {
    int       (*probe)(const uint8_t *data, size_t len,
                  vlm_image_info_t *info, vlm_error_t *err);
    int       (*decode)(const uint8_t *data, size_t len, const int *cancel,
                  vlm_image_t *image, vlm_error_t *err);

    /* for a picture of up to 64 x 1024 pixels, besides the result */
    uint64_t  (*bound)(const vlm_image_info_t *info, size_t len);
} fuzz_decoder_t;


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);


static size_t    held, most;
static unsigned  allocations;
static unsigned  cancel_at;
static int       cancelled;


static void
on_malloc(const volatile void *p, size_t size)
{
    held += size;
    most = held > most ? held : most;

    if (++allocations == cancel_at) {
        cancelled = 1;
    }
}


static void
on_free(const volatile void *p)
{
    size_t  size;

    size = (p != NULL) ? __sanitizer_get_allocated_size(p) : 0;

    /* what was allocated before the count began may go too */
    held -= size < held ? size : held;
}


static int
decode_once(const fuzz_decoder_t *d, const uint8_t *file, size_t len,
    const vlm_image_info_t *info, int fill, vlm_image_t *image)
{
    int          rc;
    size_t       size;
    vlm_error_t  err;

    size = (size_t) info->stored_width * info->stored_height * 3;

    image->width = info->stored_width;
    image->height = info->stored_height;
    image->data = malloc(size);

    if (image->data == NULL) {
        abort();
    }

    memset(image->data, fill, size);
    memset(&err, 0, sizeof(err));
    held = most = allocations = 0;
    cancelled = 0;

    rc = d->decode(file, len, &cancelled, image, &err);

    if (most > d->bound(info, len)) {
        fprintf(stderr, "%u x %u pixels: %zu bytes held, not %llu\n",
                image->width, image->height, most,
                (unsigned long long) d->bound(info, len));
        abort();
    }

    if (rc != VLM_OK && (err.message[0] == '\0' || err.status < 400)) {
        abort();
    }

    return rc;
}


/* file: of its own size, so that a byte too many is seen */

static void
fuzz_picture(const fuzz_decoder_t *d, const uint8_t *file, size_t len,
    unsigned options)
{
    int               rc;
    uint64_t          pixels, max;
    vlm_error_t       err;
    vlm_image_t       a, b;
    vlm_image_info_t  info;

    static int  installed;

    if (!installed) {
        installed = __sanitizer_install_malloc_and_free_hooks(on_malloc,
                                                              on_free);
    }

    memset(&info, 0, sizeof(info));
    max = (options & 1) ? 65536 : 1024;
    cancel_at = (options >> 1) & 63;

    if (d->probe(file, len, &info, &err) != VLM_OK) {
        return;
    }

    pixels = (uint64_t) info.stored_width * info.stored_height;

    if (info.orientation < 1 || info.orientation > 8) {
        abort();
    }

    if (pixels == 0 || pixels > max) {
        return;
    }

    rc = decode_once(d, file, len, &info, 0, &a);

    if (decode_once(d, file, len, &info, 255, &b) != rc
        || (rc == VLM_OK && memcmp(a.data, b.data, pixels * 3) != 0))
    {
        abort();
    }

    vlm_image_free(&a);
    vlm_image_free(&b);
}


/* the input without its last byte, with the beginning that a type needs */

static uint8_t *
fuzz_file(const uint8_t *data, size_t len, const char *magic, size_t n)
{
    uint8_t  *file;

    if (len < n) {
        return NULL;
    }

    file = malloc(len);

    if (file != NULL) {
        memcpy(file, data, len);
        memcpy(file, magic, n);
    }

    return file;
}


#endif /* VLM_FUZZ_PICTURE_H */
