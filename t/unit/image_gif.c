
/* GIF, written here by giflib: palettes, transparency, interlacing, frames
 * smaller and larger than the canvas, animations, damage. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gif_lib.h>

#include "engine/image/image.h"
#include "t/unit/lib/tap.h"


#define MAX_PIXELS  100000
#define COLORS      16


typedef struct {
    const char     *name;
    int             width, height;          /* canvas */
    int             left, top, w, h;        /* first frame */
    int             interlaced;
    int             transparent;            /* index, or -1 */
    int             local;                  /* the palette is the frame's */
    int             frames;
} form_t;

static const form_t  forms[] = {
    { "plain", 30, 20, 0, 0, 30, 20, 0, -1, 0, 1 },
    { "interlaced", 30, 21, 0, 0, 30, 21, 1, -1, 0, 1 },
    { "interlaced, 1 row", 30, 1, 0, 0, 30, 1, 1, -1, 0, 1 },
    { "transparent", 30, 20, 0, 0, 30, 20, 0, 3, 0, 1 },
    { "local palette", 30, 20, 0, 0, 30, 20, 0, -1, 1, 1 },
    { "smaller than the canvas", 30, 20, 5, 7, 11, 9, 0, -1, 0, 1 },
    { "sticks out", 30, 20, 25, 15, 10, 9, 1, 2, 0, 1 },
    { "animation", 30, 20, 0, 0, 30, 20, 0, -1, 0, 3 },
    { "canvas of no size", 0, 0, 0, 0, 8, 8, 0, -1, 0, 1 }
};


typedef struct {
    uint8_t     data[65536];
    size_t      len;
} file_t;


static int
write_file(GifFileType *gif, const GifByteType *data, int n)
{
    file_t  *f = gif->UserData;

    if (n < 0 || (size_t) n > sizeof(f->data) - f->len) {
        return 0;
    }

    memcpy(f->data + f->len, data, (size_t) n);
    f->len += (size_t) n;

    return n;
}


static int
color(int i, int c)
{
    return (i * 37 + c * 91 + 11) & 255;
}


static int
pixel(int frame, int x, int y)
{
    return (x * 3 + y * 5 + frame) % COLORS;
}


static void
put_frame(GifFileType *gif, const form_t *f, ColorMapObject *map, int n)
{
    int                x, y, pass;
    GifPixelType       line[64];
    GifByteType        control[4];
    static const int   passes[4][2] = { { 0, 8 }, { 4, 8 }, { 2, 4 },
                                        { 1, 2 } };

    control[0] = (f->transparent >= 0) ? 1 : 0;
    control[1] = 10;
    control[2] = 0;
    control[3] = (f->transparent >= 0) ? (GifByteType) f->transparent : 0;

    EGifPutExtension(gif, COMMENT_EXT_FUNC_CODE, 5, "hello");
    EGifPutExtension(gif, GRAPHICS_EXT_FUNC_CODE, 4, control);
    EGifPutImageDesc(gif, f->left, f->top, f->w, f->h, f->interlaced,
                     f->local ? map : NULL);

    for (pass = 0; pass < (f->interlaced ? 4 : 1); pass++) {
        for (y = f->interlaced ? passes[pass][0] : 0; y < f->h;
             y += f->interlaced ? passes[pass][1] : 1)
        {
            for (x = 0; x < f->w; x++) {
                line[x] = (GifPixelType) pixel(n, x, y);
            }

            EGifPutLine(gif, line, f->w);
        }
    }
}


static void
write_gif(const form_t *f, file_t *file)
{
    int               i, code;
    GifFileType      *gif;
    ColorMapObject   *map;

    file->len = 0;
    gif = EGifOpen(file, write_file, &code);
    map = GifMakeMapObject(COLORS, NULL);

    if (gif == NULL || map == NULL) {
        return;
    }

    for (i = 0; i < COLORS; i++) {
        map->Colors[i].Red = (GifByteType) color(i, 0);
        map->Colors[i].Green = (GifByteType) color(i, 1);
        map->Colors[i].Blue = (GifByteType) color(i, 2);
    }

    EGifSetGifVersion(gif, 1);
    EGifPutScreenDesc(gif, f->width, f->height, 8, 0, f->local ? NULL : map);

    for (i = 0; i < f->frames; i++) {
        put_frame(gif, f, map, i);
    }

    EGifCloseFile(gif, &code);
    GifFreeMapObject(map);
}


static int
expected(const form_t *f, int x, int y, int c)
{
    int  i;

    x -= f->left;
    y -= f->top;

    if (x < 0 || y < 0 || x >= f->w || y >= f->h) {
        return 255;
    }

    i = pixel(0, x, y);

    return (i == f->transparent) ? 255 : color(i, c);
}


static void
test_form(const form_t *f)
{
    int             x, y, c, w, h, same;
    vlm_error_t     err;
    vlm_image_t     image;
    static file_t   file;

    write_gif(f, &file);

    w = (f->left + f->w > f->width) ? f->left + f->w : f->width;
    h = (f->top + f->h > f->height) ? f->top + f->h : f->height;

    if (vlm_image_decode(file.data, file.len, MAX_PIXELS, NULL, &image, &err)
        != VLM_OK)
    {
        tap_ok(0, "%s: %s", f->name, err.message);
        return;
    }

    same = ((int) image.width == w && (int) image.height == h);

    for (y = 0; y < h && same; y++) {
        for (x = 0; x < w && same; x++) {
            for (c = 0; c < 3 && same; c++) {
                same = (image.data[3 * (y * w + x) + c]
                        == expected(f, x, y, c));
            }
        }
    }

    tap_ok(same, "%s", f->name);
    vlm_image_free(&image);
}


static int
refused(const uint8_t *data, size_t len)
{
    int           rc;
    uint8_t      *copy;
    vlm_error_t   err;
    vlm_image_t   image;

    copy = malloc(len + (len == 0));
    if (copy == NULL) {
        return 0;
    }

    memcpy(copy, data, len);
    rc = vlm_image_decode(copy, len, MAX_PIXELS, NULL, &image, &err);
    free(copy);

    if (rc == VLM_OK) {
        vlm_image_free(&image);
        return 0;
    }

    return err.status == 400 && strcmp(err.code, "invalid_image") == 0;
}


static void
test_damage(void)
{
    int                ok;
    size_t             cut, end;
    vlm_error_t        err;
    vlm_image_t        image;
    static file_t      file;
    static const int   cancel = 1;

    write_gif(&forms[0], &file);

    /* terminator of the data, trailer; the end code may lie in the byte
     * before them */

    end = file.len - 2;
    ok = 1;

    for (cut = 0; cut < end - 2; cut++) {
        ok = ok && refused(file.data, cut);
    }

    tap_ok(ok, "cut anywhere: refused");

    tap_ok(vlm_image_decode(file.data, file.len - 1, MAX_PIXELS, NULL, &image,
                            &err) == VLM_OK,
           "no trailer: accepted");
    vlm_image_free(&image);

    tap_ok(vlm_image_decode(file.data, file.len, MAX_PIXELS, &cancel, &image,
                            &err) == VLM_ERROR && err.status == 499,
           "cancelled");

    tap_ok(vlm_image_decode(file.data, file.len, 599, NULL, &image, &err)
           == VLM_ERROR && strcmp(err.code, "image_too_large") == 0,
           "over the limit: %s", err.message);
}


int
main(void)
{
    size_t  i;

    for (i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        test_form(&forms[i]);
    }

    test_damage();

    return tap_done();
}
