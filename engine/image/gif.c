
#include <stdlib.h>
#include <string.h>

#include <gif_lib.h>

#include "engine/image/internal.h"


typedef struct {
    const uint8_t  *data;
    size_t          len;
    size_t          pos;
} gif_source_t;


static int
read_source(GifFileType *gif, GifByteType *to, int n)
{
    size_t         take;
    gif_source_t  *s;

    s = gif->UserData;

    if (n <= 0) {
        return 0;
    }

    take = s->len - s->pos;
    take = (take > (size_t) n) ? (size_t) n : take;

    memcpy(to, s->data + s->pos, take);
    s->pos += take;

    return (int) take;
}


static int
damaged(GifFileType *gif, int code, vlm_error_t *err)
{
    const char  *text;

    code = gif != NULL ? gif->Error : code;

    if (code == D_GIF_ERR_NOT_ENOUGH_MEM) {
        return vlm_image_fail_nomem(err);
    }

    text = GifErrorString(code);

    return vlm_fail(err, 400, "invalid_image", "GIF picture is damaged: %s",
                    text != NULL ? text : "it has no frame");
}


/*
 * Goes to the first frame.  *transparent is the index of the colour that is
 * not shown, from the last graphics control block before it, or -1.
 */

static int
first_frame(GifFileType *gif, int *transparent)
{
    int             code;
    GifByteType    *block;
    GifRecordType   type;

    *transparent = -1;

    for ( ;; ) {
        if (DGifGetRecordType(gif, &type) == GIF_ERROR) {
            return VLM_ERROR;
        }

        if (type == IMAGE_DESC_RECORD_TYPE) {
            return (DGifGetImageDesc(gif) == GIF_OK) ? VLM_OK : VLM_ERROR;
        }

        if (type != EXTENSION_RECORD_TYPE) {
            return VLM_ERROR;
        }

        if (DGifGetExtension(gif, &code, &block) == GIF_ERROR) {
            return VLM_ERROR;
        }

        while (block != NULL) {

            /* length, flags, delay (2), colour */

            if (code == GRAPHICS_EXT_FUNC_CODE && block[0] == 4) {
                *transparent = (block[1] & 1) ? block[4] : -1;
            }

            if (DGifGetExtensionNext(gif, &block) == GIF_ERROR) {
                return VLM_ERROR;
            }
        }
    }
}


static GifFileType *
open_file(gif_source_t *source, int *transparent, vlm_error_t *err)
{
    int           code;
    GifFileType  *gif;

    code = 0;
    gif = DGifOpen(source, read_source, &code);

    if (gif == NULL) {
        damaged(NULL, code, err);
        return NULL;
    }

    if (first_frame(gif, transparent) != VLM_OK) {
        damaged(gif, 0, err);
        DGifCloseFile(gif, &code);
        return NULL;
    }

    return gif;
}


/* the canvas; a frame that sticks out enlarges it */

static void
canvas(const GifFileType *gif, vlm_image_info_t *info)
{
    uint32_t             right, bottom;
    const GifImageDesc  *d;

    d = &gif->Image;
    right = (uint32_t) d->Left + (uint32_t) d->Width;
    bottom = (uint32_t) d->Top + (uint32_t) d->Height;

    info->stored_width = (uint32_t) gif->SWidth;
    info->stored_height = (uint32_t) gif->SHeight;

    if (right > info->stored_width) {
        info->stored_width = right;
    }

    if (bottom > info->stored_height) {
        info->stored_height = bottom;
    }

    info->orientation = 1;
}


int
vlm_gif_probe(const uint8_t *data, size_t len, vlm_image_info_t *info,
    vlm_error_t *err)
{
    int            transparent, code;
    GifFileType   *gif;
    gif_source_t   source = { data, len, 0 };

    gif = open_file(&source, &transparent, err);
    if (gif == NULL) {
        return VLM_ERROR;
    }

    canvas(gif, info);
    DGifCloseFile(gif, &code);

    return VLM_OK;
}


/* without any colour map an index is a level of gray */

static void
make_palette(const GifFileType *gif, uint8_t palette[256][3])
{
    int                    i;
    const ColorMapObject  *map;

    map = gif->Image.ColorMap != NULL ? gif->Image.ColorMap : gif->SColorMap;

    memset(palette, 0, 256 * 3);

    for (i = 0; i < 256; i++) {
        if (map == NULL) {
            memset(palette[i], i, 3);

        } else if (i < map->ColorCount) {
            palette[i][0] = map->Colors[i].Red;
            palette[i][1] = map->Colors[i].Green;
            palette[i][2] = map->Colors[i].Blue;
        }
    }
}


static int
read_lines(GifFileType *gif, int transparent, const int *cancel,
    vlm_image_t *image, uint8_t *line, vlm_error_t *err)
{
    int                  pass, y, x, first, step;
    size_t               row;
    uint8_t             *to, palette[256][3];
    const GifImageDesc  *d;
    static const int     passes[4][2] = { { 0, 8 }, { 4, 8 }, { 2, 4 },
                                          { 1, 2 } };

    d = &gif->Image;
    make_palette(gif, palette);

    for (pass = 0; pass < (d->Interlace ? 4 : 1); pass++) {
        first = d->Interlace ? passes[pass][0] : 0;
        step = d->Interlace ? passes[pass][1] : 1;

        for (y = first; y < d->Height; y += step) {

            if (vlm_image_cancelled(cancel)) {
                return vlm_image_fail_cancelled(err);
            }

            if (DGifGetLine(gif, line, d->Width) == GIF_ERROR) {
                return damaged(gif, 0, err);
            }

            row = (size_t) d->Top + (size_t) y;
            to = image->data + (row * image->width + (size_t) d->Left) * 3;

            for (x = 0; x < d->Width; x++, to += 3) {
                if (line[x] != transparent) {
                    memcpy(to, palette[line[x]], 3);
                }
            }
        }
    }

    return VLM_OK;
}


int
vlm_gif_decode(const uint8_t *data, size_t len, const int *cancel,
    vlm_image_t *image, vlm_error_t *err)
{
    int                rc, transparent, code;
    uint8_t           *line;
    GifFileType       *gif;
    gif_source_t       source = { data, len, 0 };
    vlm_image_info_t   info;

    gif = open_file(&source, &transparent, err);
    if (gif == NULL) {
        return VLM_ERROR;
    }

    canvas(gif, &info);
    line = malloc((size_t) gif->Image.Width + 1);

    if (line == NULL) {
        rc = vlm_image_fail_nomem(err);

    } else if (info.stored_width != image->width
               || info.stored_height != image->height)
    {
        rc = vlm_fail(err, 400, "invalid_image",
                      "GIF picture changed while it was read");

    } else {
        memset(image->data, 255, (size_t) image->width * image->height * 3);
        rc = read_lines(gif, transparent, cancel, image, line, err);
    }

    free(line);
    DGifCloseFile(gif, &code);

    return rc;
}
