
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spng.h>

#include "engine/image/internal.h"


#define SIGNATURE_LEN   8
#define CHUNK_OVERHEAD  12          /* length, type, CRC */

#define CHUNK(a, b, c, d)                                                     \
    ((uint32_t) (a) << 24 | (uint32_t) (b) << 16 | (uint32_t) (c) << 8        \
     | (uint32_t) (d))

/* besides libspng's own codes, which are small numbers of either sign */
#define CANCELLED  1000000
#define CHANGED    1000001

#define ANCILLARY  0x20000000u      /* bit 5 of the type's first letter */


/*
 * libspng is fed the critical chunks and tRNS alone: the others (profiles,
 * texts, gamma ...) must neither cost memory nor be able to make a picture
 * fail.
 */

typedef struct {
    const uint8_t  *data;
    size_t          len;
    size_t          pos;            /* of the next byte to give */
    size_t          end;            /* of the chunk that pos lies in */
} png_source_t;


static uint32_t
read_u32(const uint8_t *p)
{
    return (uint32_t) p[0] << 24 | (uint32_t) p[1] << 16
           | (uint32_t) p[2] << 8 | p[3];
}


/*
 * End of the chunk at pos, or of the file if it is cut; the type is told from
 * as little as there is, for libspng allocates what a chunk says it holds.
 */

static size_t
chunk_end(const uint8_t *data, size_t len, size_t pos, uint32_t *type)
{
    size_t  left;

    left = len - pos;
    *type = (left >= 8) ? read_u32(data + pos + 4) : 0;

    if (left < CHUNK_OVERHEAD
        || read_u32(data + pos) > left - CHUNK_OVERHEAD)
    {
        return len;
    }

    return pos + CHUNK_OVERHEAD + read_u32(data + pos);
}


static int
read_source(spng_ctx *ctx, void *user, void *dst, size_t n)
{
    size_t         take;
    uint32_t       type;
    uint8_t       *to;
    png_source_t  *s;

    to = dst;
    s = user;

    while (n > 0) {

        if (s->pos == s->end) {

            if (s->pos == s->len) {
                return SPNG_IO_EOF;
            }

            s->end = chunk_end(s->data, s->len, s->pos, &type);

            if ((type & ANCILLARY) != 0 && type != CHUNK('t', 'R', 'N', 'S')) {
                s->pos = s->end;
                continue;
            }
        }

        take = s->end - s->pos;

        if (take > n) {
            take = n;
        }

        memcpy(to, s->data + s->pos, take);
        to += take;
        n -= take;
        s->pos += take;
    }

    return 0;
}


int
vlm_png_probe(const uint8_t *data, size_t len, vlm_image_info_t *info,
    vlm_error_t *err)
{
    size_t    pos, end;
    uint32_t  type;

    if (len < SIGNATURE_LEN + CHUNK_OVERHEAD + 13
        || read_u32(data + 8) != 13
        || read_u32(data + 12) != CHUNK('I', 'H', 'D', 'R'))
    {
        return vlm_fail(err, 400, "invalid_image",
                        "PNG picture is damaged: it has no header");
    }

    info->stored_width = read_u32(data + 16);
    info->stored_height = read_u32(data + 20);
    info->orientation = 1;

    for (pos = SIGNATURE_LEN; pos < len; pos = end) {
        end = chunk_end(data, len, pos, &type);

        if (type == CHUNK('e', 'X', 'I', 'f')
            && end - pos == CHUNK_OVERHEAD + (size_t) read_u32(data + pos))
        {
            info->orientation = vlm_exif_orientation(data + pos + 8,
                                                   end - pos - CHUNK_OVERHEAD);
            break;
        }
    }

    return VLM_OK;
}


/*
 * Rows of an interlaced picture come in passes over the same place, so all of
 * it is kept; of another picture one row is enough.
 */

static int
read_rows(spng_ctx *ctx, int interlaced, const int *cancel,
    vlm_image_t *image, uint8_t *rgba)
{
    int                   rc;
    size_t                width, y;
    uint8_t              *line;
    struct spng_ihdr      head;
    struct spng_row_info  row;

    width = image->width;

    rc = spng_get_ihdr(ctx, &head);
    if (rc != 0) {
        return rc;
    }

    if (head.width != width || head.height != image->height) {
        return CHANGED;
    }

    do {
        rc = spng_get_row_info(ctx, &row);
        if (rc != 0) {
            return rc;
        }

        line = interlaced ? rgba + row.row_num * width * 4 : rgba;

        rc = spng_decode_row(ctx, line, width * 4);
        if (rc != 0 && rc != SPNG_EOI) {
            return rc;
        }

        if (!interlaced) {
            vlm_compose_row(image->data + row.row_num * width * 3, line,
                            image->width, 1);
        }

        if ((row.row_num & 63) == 0 && vlm_image_cancelled(cancel)) {
            return CANCELLED;
        }

    } while (rc == 0);

    for (y = 0; interlaced && y < image->height; y++) {
        vlm_compose_row(image->data + y * width * 3, rgba + y * width * 4,
                        image->width, 1);
    }

    return 0;
}


int
vlm_png_decode(const uint8_t *data, size_t len, const int *cancel,
    vlm_image_t *image, vlm_error_t *err)
{
    int            rc, interlaced;
    size_t         size;
    uint8_t       *rgba;
    spng_ctx      *ctx;
    png_source_t   source = { data, len, 0, SIGNATURE_LEN };

    interlaced = (data[28] != 0);           /* the header was seen by probe */
    size = vlm_mul(vlm_mul(image->width, interlaced ? image->height : 1), 4);

    /* cleared: passes leave gaps until the last one */

    rgba = (size != 0) ? calloc(1, size) : NULL;
    ctx = spng_ctx_new(0);

    if (rgba == NULL || ctx == NULL) {
        free(rgba);
        spng_ctx_free(ctx);
        return vlm_image_fail_nomem(err);
    }

    spng_set_image_limits(ctx, image->width, image->height);
    spng_set_crc_action(ctx, SPNG_CRC_ERROR, SPNG_CRC_DISCARD);

    rc = spng_set_png_stream(ctx, read_source, &source);

    if (rc == 0) {
        rc = spng_decode_image(ctx, NULL, 0, SPNG_FMT_RGBA8,
                               SPNG_DECODE_TRNS|SPNG_DECODE_PROGRESSIVE);
    }

    if (rc == 0) {
        rc = read_rows(ctx, interlaced, cancel, image, rgba);
    }

    spng_ctx_free(ctx);
    free(rgba);

    if (rc == CANCELLED) {
        return vlm_image_fail_cancelled(err);
    }

    if (rc == CHANGED) {
        return vlm_fail(err, 400, "invalid_image",
                        "PNG picture changed while it was read");
    }

    if (rc == SPNG_EMEM) {
        return vlm_image_fail_nomem(err);
    }

    if (rc != 0) {
        return vlm_fail(err, 400, "invalid_image",
                        "PNG picture is damaged: %s", spng_strerror(rc));
    }

    return VLM_OK;
}
