
/*
 * WebP, written here by libwebp: lossless (exact), lossy, alpha used and
 * unused, EXIF, the first frame of an animation, damage.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <webp/encode.h>
#include <webp/mux.h>

#include "engine/image/image.h"
#include "t/unit/lib/tap.h"


#define W           40
#define H           28
#define MAX_PIXELS  100000


static uint8_t  rgba[H][W][4];


static void
make_pixels(int alpha)
{
    int  x, y;

    for (y = 0; y < H; y++) {
        for (x = 0; x < W; x++) {
            rgba[y][x][0] = (uint8_t) (255 * x / (W - 1));
            rgba[y][x][1] = (uint8_t) (255 * y / (H - 1));
            rgba[y][x][2] = (uint8_t) (255 * (x + y) / (W + H - 2));
            rgba[y][x][3] = alpha ? (uint8_t) (255 - 3 * x) : 255;
        }
    }
}


static size_t
encode(int lossless, uint8_t **data)
{
    size_t             size;
    WebPConfig         config;
    WebPPicture        picture;
    WebPMemoryWriter   writer;

    *data = NULL;

    if (!WebPConfigInit(&config) || !WebPPictureInit(&picture)) {
        return 0;
    }

    config.lossless = lossless;
    config.exact = 1;
    config.quality = 100;

    picture.use_argb = lossless;
    picture.width = W;
    picture.height = H;

    WebPMemoryWriterInit(&writer);
    picture.writer = WebPMemoryWrite;
    picture.custom_ptr = &writer;

    size = 0;

    if (WebPPictureImportRGBA(&picture, rgba[0][0], W * 4)
        && WebPEncode(&config, &picture))
    {
        *data = writer.mem;
        size = writer.size;
    }

    WebPPictureFree(&picture);

    return size;
}


/* the largest difference from what should be seen, -1: not decoded */

static int
difference(const uint8_t *data, size_t len, int alpha)
{
    int           x, y, c, d, a, most;
    vlm_error_t   err;
    vlm_image_t   image;

    if (vlm_image_decode(data, len, MAX_PIXELS, NULL, &image, &err) != VLM_OK) {
        tap_diag("%s", err.message);
        return -1;
    }

    most = (image.width == W && image.height == H) ? 0 : 1000;

    for (y = 0; y < H && most < 1000; y++) {
        for (x = 0; x < W; x++) {
            a = alpha ? rgba[y][x][3] : 255;

            for (c = 0; c < 3; c++) {
                d = (rgba[y][x][c] * a + 255 * (255 - a) + 127) / 255
                    - image.data[3 * (y * W + x) + c];
                d = (d < 0) ? -d : d;
                most = (d > most) ? d : most;
            }
        }
    }

    vlm_image_free(&image);

    return most;
}


static void
test_still(void)
{
    int        d;
    size_t     len;
    uint8_t   *data;

    make_pixels(0);
    len = encode(1, &data);
    tap_is(difference(data, len, 0), 0, "lossless: exact");
    WebPFree(data);

    len = encode(0, &data);
    d = difference(data, len, 0);
    tap_ok(d >= 0 && d <= 20, "lossy: off by %d", d);
    WebPFree(data);

    make_pixels(1);
    len = encode(1, &data);
    tap_is(difference(data, len, 1), 0, "lossless with alpha: on white");

    /* VP8L: signature, 14 + 14 bits of size, then "alpha is used" */

    data[20 + 1 + 3] &= (uint8_t) ~0x10;
    tap_is(difference(data, len, 0), 0, "alpha unused: ignored");
    WebPFree(data);

    len = encode(0, &data);
    d = difference(data, len, 1);
    tap_ok(d >= 0 && d <= 20, "lossy with alpha: off by %d", d);
    WebPFree(data);
}


static void
test_exif(int prefix)
{
    size_t               len;
    uint8_t             *data;
    WebPMux             *mux;
    WebPData             out, in, chunk;
    vlm_error_t          err;
    vlm_image_info_t     info;
    static const uint8_t exif[] = {
        'E', 'x', 'i', 'f', 0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1,
        0x01, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0
    };

    make_pixels(0);
    len = encode(1, &data);

    in.bytes = data;
    in.size = len;
    chunk.bytes = exif + (prefix ? 0 : 6);
    chunk.size = sizeof(exif) - (prefix ? 0 : 6);

    mux = WebPMuxCreate(&in, 1);
    WebPMuxSetChunk(mux, "EXIF", &chunk, 1);
    WebPMuxAssemble(mux, &out);

    tap_ok(vlm_image_probe(out.bytes, out.size, MAX_PIXELS, &info, &err)
           == VLM_OK && info.orientation == 6 && info.width == H
           && info.stored_width == W,
           "EXIF%s: turned by 90 degrees", prefix ? " with a prefix" : "");

    WebPDataClear(&out);
    WebPMuxDelete(mux);
    WebPFree(data);
}


/* frames of W x H at (6, 4) of a canvas that is larger */

static void
test_animation(void)
{
    int                  x, y, c, want, same;
    size_t               len;
    uint8_t             *data;
    WebPMux             *mux;
    WebPData             out;
    vlm_error_t          err;
    vlm_image_t          image;
    WebPMuxFrameInfo     frame;
    WebPMuxAnimParams    params = { 0xff000000, 0 };

    make_pixels(0);
    len = encode(1, &data);

    memset(&frame, 0, sizeof(frame));
    frame.bitstream.bytes = data;
    frame.bitstream.size = len;
    frame.x_offset = 6;
    frame.y_offset = 4;
    frame.duration = 50;
    frame.id = WEBP_CHUNK_ANMF;

    mux = WebPMuxNew();
    WebPMuxSetCanvasSize(mux, W + 10, H + 10);
    WebPMuxSetAnimationParams(mux, &params);
    WebPMuxPushFrame(mux, &frame, 1);
    frame.x_offset = 0;
    WebPMuxPushFrame(mux, &frame, 1);
    WebPMuxAssemble(mux, &out);

    same = (vlm_image_decode(out.bytes, out.size, MAX_PIXELS, NULL, &image,
                             &err) == VLM_OK
            && image.width == W + 10 && image.height == H + 10);

    for (y = 0; y < H + 10 && same; y++) {
        for (x = 0; x < W + 10 && same; x++) {
            for (c = 0; c < 3 && same; c++) {
                want = (x < 6 || x >= W + 6 || y < 4 || y >= H + 4)
                       ? 255 : rgba[y - 4][x - 6][c];
                same = (image.data[3 * (y * (W + 10) + x) + c] == want);
            }
        }
    }

    tap_ok(same, "animation: the first frame, on white");

    vlm_image_free(&image);
    WebPDataClear(&out);
    WebPMuxDelete(mux);
    WebPFree(data);
}


static void
test_damage(int lossless)
{
    int                rc, ok;
    size_t             len, cut;
    uint8_t           *data, *copy;
    vlm_error_t        err;
    vlm_image_t        image;
    static const int   cancel = 1;

    make_pixels(1);
    len = encode(lossless, &data);
    ok = 1;

    for (cut = 0; cut < len; cut++) {
        copy = malloc(cut + (cut == 0));

        if (copy == NULL) {
            break;
        }

        memcpy(copy, data, cut);
        rc = vlm_image_decode(copy, cut, MAX_PIXELS, NULL, &image, &err);
        ok = ok && rc == VLM_ERROR && err.status == 400;
        free(copy);

        if (rc == VLM_OK) {
            vlm_image_free(&image);
        }
    }

    tap_ok(ok, "%s: cut anywhere: refused", lossless ? "lossless" : "lossy");

    tap_ok(vlm_image_decode(data, len, MAX_PIXELS, &cancel, &image, &err)
           == VLM_ERROR && err.status == 499,
           "cancelled");
    tap_ok(vlm_image_decode(data, len, W * H - 1, NULL, &image, &err)
           == VLM_ERROR && strcmp(err.code, "image_too_large") == 0,
           "over the limit");

    WebPFree(data);
}


int
main(void)
{
    test_still();
    test_exif(0);
    test_exif(1);
    test_animation();
    test_damage(0);
    test_damage(1);

    return tap_done();
}
