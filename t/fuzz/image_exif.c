
/*
 * Any bytes as EXIF: alone, in a JPEG's APP1 and in a PNG's eXIf.  The result
 * is an orientation, the same everywhere, and a picture is never refused for
 * its EXIF.
 */

#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "engine/image/internal.h"


#define MAX_EXIF  4000


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);


static void
put_u32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t) (v >> 24);
    p[1] = (uint8_t) (v >> 16);
    p[2] = (uint8_t) (v >> 8);
    p[3] = (uint8_t) v;
}


static size_t
put_chunk(uint8_t *p, const char *type, const void *data, size_t len)
{
    put_u32(p, (uint32_t) len);
    memcpy(p + 4, type, 4);

    if (len != 0) {
        memcpy(p + 8, data, len);
    }

    put_u32(p + 8 + len, (uint32_t) crc32(0, p + 4, (uInt) len + 4));

    return len + 12;
}


/* 3 x 1, gray */

static size_t
png(uint8_t *p, const uint8_t *exif, size_t len)
{
    size_t  n;

    static const uint8_t  head[13] = { 0, 0, 0, 3, 0, 0, 0, 1, 8 };
    static const uint8_t  pixels[] = {          /* stored: 0, 1, 2, 3 */
        0x78, 0x01, 0x01, 0x04, 0x00, 0xfb, 0xff, 0x00, 0x01, 0x02, 0x03,
        0x00, 0x0e, 0x00, 0x07
    };

    memcpy(p, "\x89PNG\r\n\x1a\n", 8);
    n = 8;
    n += put_chunk(p + n, "IHDR", head, sizeof(head));
    n += put_chunk(p + n, "eXIf", exif, len);
    n += put_chunk(p + n, "IDAT", pixels, sizeof(pixels));

    return n + put_chunk(p + n, "IEND", NULL, 0);
}


/* the header of a JPEG of 3 x 1 */

static size_t
jpeg(uint8_t *p, const uint8_t *exif, size_t len)
{
    size_t  n;

    static const uint8_t  rest[] = {
        0xff, 0xc0, 0, 11, 8, 0, 1, 0, 3, 1, 1, 0x11, 0,
        0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0, 0xff, 0xd9
    };

    memcpy(p, "\xff\xd8\xff\xe1", 4);
    p[4] = (uint8_t) ((len + 8) >> 8);
    p[5] = (uint8_t) (len + 8);
    memcpy(p + 6, "Exif\0\0", 6);
    n = 12;

    if (len != 0) {
        memcpy(p + n, exif, len);
    }

    n += len;
    memcpy(p + n, rest, sizeof(rest));

    return n + sizeof(rest);
}


static void
same(const uint8_t *file, size_t len, int orientation)
{
    vlm_error_t       err;
    vlm_image_info_t  info;

    if (vlm_image_probe(file, len, 100, &info, &err) != VLM_OK
        || info.orientation != orientation
        || info.width != (orientation < 5 ? 3u : 1u))
    {
        abort();
    }
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    int           orientation;
    size_t        n;
    uint8_t      *exif;
    vlm_error_t   err;
    vlm_image_t   image;

    static uint8_t  file[MAX_EXIF + 500];

    if (len > MAX_EXIF) {
        return 0;
    }

    /* of its own size, so that a byte too many is seen */

    exif = malloc(len + (len == 0));

    if (exif == NULL) {
        return 0;
    }

    if (len != 0) {
        memcpy(exif, data, len);
    }

    orientation = vlm_exif_orientation(exif, len);

    if (orientation < 1 || orientation > 8) {
        abort();
    }

    same(file, jpeg(file, exif, len), orientation);

    n = png(file, exif, len);
    same(file, n, orientation);

    if (vlm_image_decode(file, n, 100, NULL, &image, &err) != VLM_OK) {
        abort();
    }

    vlm_image_free(&image);
    free(exif);

    return 0;
}
