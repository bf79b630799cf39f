
/*
 * PNG of every colour type, depth and interlacing, with transparency, written
 * here sample by sample, so that the expected pixels are known; damage; EXIF.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "engine/image/image.h"
#include "t/unit/lib/tap.h"


#define W           21
#define H           13
#define MAX_PIXELS  100000

#define GRAY        0
#define RGB         2
#define PALETTE     3
#define GRAY_ALPHA  4
#define RGB_ALPHA   6

#define MAX_FILE    65536


typedef struct {
    int         type;
    int         depth;
    int         interlaced;
    int         trns;               /* add a tRNS chunk */
    uint16_t    samples[H][W][4];
    uint8_t     palette[256][4];    /* RGB and alpha */
} picture_t;

typedef struct {
    uint8_t     data[MAX_FILE];
    size_t      len;
} file_t;


static const uint8_t  signature[] = "\x89PNG\r\n\x1a\n";

static uint64_t       seed = 1;


static int
channels(int type)
{
    switch (type) {

    case RGB:
        return 3;

    case GRAY_ALPHA:
        return 2;

    case RGB_ALPHA:
        return 4;

    default:
        return 1;
    }
}


static void
put_u32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t) (v >> 24);
    p[1] = (uint8_t) (v >> 16);
    p[2] = (uint8_t) (v >> 8);
    p[3] = (uint8_t) v;
}


static void
put_chunk(file_t *f, const char *type, const uint8_t *data, size_t len)
{
    uint8_t  *p = f->data + f->len;

    put_u32(p, (uint32_t) len);
    memcpy(p + 4, type, 4);

    if (len != 0) {
        memcpy(p + 8, data, len);
    }

    put_u32(p + 8 + len, (uint32_t) crc32(0, p + 4, (uInt) len + 4));
    f->len += len + 12;
}


/* one pass of rows: every dy-th from y0 on, filter 0 */

static size_t
put_pass(const picture_t *p, uint8_t *raw, int x0, int y0, int dx, int dy)
{
    int     x, y, c, n, bit;
    size_t  len, v;

    len = 0;
    n = channels(p->type);

    if (x0 >= W) {
        return 0;
    }

    for (y = y0; y < H; y += dy) {
        raw[len++] = 0;
        bit = 0;

        for (x = x0; x < W; x += dx) {
            for (c = 0; c < n; c++) {
                v = p->samples[y][x][c];

                if (p->depth == 16) {
                    raw[len++] = (uint8_t) (v >> 8);
                    raw[len++] = (uint8_t) v;
                    continue;
                }

                if (bit == 0) {
                    raw[len] = 0;
                }

                raw[len] |= (uint8_t) (v << (8 - bit - p->depth));
                bit += p->depth;

                if (bit == 8) {
                    bit = 0;
                    len++;
                }
            }
        }

        len += (bit != 0);
    }

    return len;
}


static void
put_trns(const picture_t *p, file_t *f)
{
    int      i;
    uint8_t  trns[256];

    if (p->type == PALETTE) {
        for (i = 0; i < 256; i++) {
            trns[i] = p->palette[i][3];
        }

        put_chunk(f, "tRNS", trns, (size_t) 1 << p->depth);
        return;
    }

    /* the colour of the pixel at (0, 0) */

    for (i = 0; i < channels(p->type); i++) {
        trns[2 * i] = (uint8_t) (p->samples[0][0][i] >> 8);
        trns[2 * i + 1] = (uint8_t) p->samples[0][0][i];
    }

    put_chunk(f, "tRNS", trns, 2 * (size_t) channels(p->type));
}


static void
write_png(const picture_t *p, file_t *f, const uint8_t *exif, size_t exif_len)
{
    int                i;
    size_t             len;
    uLongf             zlen;
    static uint8_t     raw[MAX_FILE], packed[MAX_FILE];
    uint8_t            ihdr[13], plte[768];
    static const int   adam7[7][4] = {
        { 0, 0, 8, 8 }, { 4, 0, 8, 8 }, { 0, 4, 4, 8 }, { 2, 0, 4, 4 },
        { 0, 2, 2, 4 }, { 1, 0, 2, 2 }, { 0, 1, 1, 2 }
    };

    memcpy(f->data, signature, 8);
    f->len = 8;

    put_u32(ihdr, W);
    put_u32(ihdr + 4, H);
    ihdr[8] = (uint8_t) p->depth;
    ihdr[9] = (uint8_t) p->type;
    ihdr[10] = 0;
    ihdr[11] = 0;
    ihdr[12] = (uint8_t) p->interlaced;
    put_chunk(f, "IHDR", ihdr, 13);

    if (exif != NULL) {
        put_chunk(f, "eXIf", exif, exif_len);
    }

    if (p->type == PALETTE) {
        for (i = 0; i < 256; i++) {
            memcpy(plte + 3 * i, p->palette[i], 3);
        }

        put_chunk(f, "PLTE", plte, (size_t) 3 << p->depth);
    }

    if (p->trns) {
        put_trns(p, f);
    }

    len = 0;

    if (p->interlaced) {
        for (i = 0; i < 7; i++) {
            len += put_pass(p, raw + len, adam7[i][0], adam7[i][1],
                            adam7[i][2], adam7[i][3]);
        }

    } else {
        len = put_pass(p, raw, 0, 0, 1, 1);
    }

    zlen = sizeof(packed);
    compress(packed, &zlen, raw, len);

    /* in two parts: a picture may be cut anywhere */

    put_chunk(f, "IDAT", packed, 7);
    put_chunk(f, "IDAT", packed + 7, zlen - 7);
    put_chunk(f, "IEND", NULL, 0);
}


static void
make_picture(picture_t *p, int type, int depth, int interlaced, int trns)
{
    int  x, y, c;

    memset(p, 0, sizeof(*p));

    p->type = type;
    p->depth = depth;
    p->interlaced = interlaced;
    p->trns = trns;

    for (y = 0; y < H; y++) {
        for (x = 0; x < W; x++) {
            for (c = 0; c < channels(type); c++) {
                p->samples[y][x][c] = (uint16_t) (tap_random(&seed)
                                                  & ((1u << depth) - 1));
            }
        }
    }

    for (x = 0; x < 256; x++) {
        for (c = 0; c < 4; c++) {
            p->palette[x][c] = (uint8_t) tap_random(&seed);
        }
    }

    /* equal to the transparent colour in the high bytes only */

    if (depth == 16) {
        memcpy(p->samples[1][1], p->samples[0][0], sizeof(p->samples[0][0]));
        p->samples[1][1][0] ^= 1;
    }

    memcpy(p->samples[2][2], p->samples[0][0], sizeof(p->samples[0][0]));
}


static uint8_t
to_byte(unsigned v, int depth)
{
    return (uint8_t) (depth == 16 ? v >> 8 : v * 255 / ((1u << depth) - 1));
}


/* what a pixel should be, on white */

static void
expected(const picture_t *p, int x, int y, uint8_t rgb[3])
{
    int              c;
    unsigned         alpha;
    const uint16_t  *s;

    s = p->samples[y][x];
    alpha = 255;

    for (c = 0; c < 3; c++) {
        if (p->type == PALETTE) {
            rgb[c] = p->palette[s[0]][c];

        } else {
            rgb[c] = to_byte(s[channels(p->type) < 3 ? 0 : c], p->depth);
        }
    }

    if (p->type == GRAY_ALPHA || p->type == RGB_ALPHA) {
        alpha = to_byte(s[channels(p->type) - 1], p->depth);

    } else if (p->trns && p->type == PALETTE) {
        alpha = p->palette[s[0]][3];

    } else if (p->trns) {
        alpha = (memcmp(s, p->samples[0][0],
                        2 * (size_t) channels(p->type)) == 0) ? 0 : 255;
    }

    for (c = 0; c < 3; c++) {
        rgb[c] = (uint8_t) ((rgb[c] * alpha + 255 * (255 - alpha) + 127)
                            / 255);
    }
}


static void
test_type(int type, int depth, int interlaced, int trns)
{
    int                x, y, same;
    uint8_t            rgb[3];
    vlm_error_t        err;
    vlm_image_t        image;
    static file_t      file;
    static picture_t   p;

    make_picture(&p, type, depth, interlaced, trns);
    write_png(&p, &file, NULL, 0);

    if (vlm_image_decode(file.data, file.len, MAX_PIXELS, NULL, &image, &err)
        != VLM_OK)
    {
        tap_ok(0, "type %d depth %d: %s", type, depth, err.message);
        return;
    }

    same = (image.width == W && image.height == H);

    for (y = 0; y < H && same; y++) {
        for (x = 0; x < W && same; x++) {
            expected(&p, x, y, rgb);
            same = (memcmp(image.data + 3 * (y * W + x), rgb, 3) == 0);
        }
    }

    tap_ok(same, "type %d, depth %d%s%s", type, depth,
           interlaced ? ", interlaced" : "", trns ? ", tRNS" : "");

    vlm_image_free(&image);
}


static int
decode_fails(const file_t *file, const char *code)
{
    vlm_error_t  err;
    vlm_image_t  image;

    if (vlm_image_decode(file->data, file->len, MAX_PIXELS, NULL, &image,
                         &err)
        == VLM_OK)
    {
        vlm_image_free(&image);
        return 0;
    }

    return err.status == 400 && strcmp(err.code, code) == 0;
}


static int
decodes(const file_t *file)
{
    vlm_error_t  err;
    vlm_image_t  image;

    if (vlm_image_decode(file->data, file->len, MAX_PIXELS, NULL, &image,
                         &err)
        != VLM_OK)
    {
        tap_diag("%s", err.message);
        return 0;
    }

    vlm_image_free(&image);

    return 1;
}


static void
test_damage(int interlaced)
{
    int                refused;
    size_t             len, end;
    file_t            *cut;
    static file_t      file;
    static picture_t   p;

    make_picture(&p, RGB, 8, interlaced, 0);
    write_png(&p, &file, NULL, 0);

    /* IEND is 12 bytes, the last IDAT's CRC 4: without any of these all pixels
     * are there; a byte less of the data is too little */

    end = file.len - 12 - 4;
    refused = 1;

    for (len = 1; len < end - 4; len++) {
        cut = malloc(sizeof(file_t));

        if (cut == NULL) {
            break;
        }

        memcpy(cut->data, file.data, len);
        cut->len = len;
        refused = refused && decode_fails(cut, "invalid_image");
        free(cut);
    }

    tap_ok(refused, "cut at any place before the end of the data: refused");

    file.len -= 12;
    tap_ok(decodes(&file), "no IEND: accepted");
    file.len += 12;

    file.data[end - 1] ^= 1;
    tap_ok(decode_fails(&file, "invalid_image"),
           "damage in the data: refused");
    file.data[end - 1] ^= 1;

    file.data[29 + 3] ^= 1;
    tap_ok(decode_fails(&file, "invalid_image"), "IHDR's CRC: refused");
    file.data[29 + 3] ^= 1;

    tap_ok(decodes(&file), "undamaged again: accepted");
}


static void
test_ancillary(void)
{
    file_t            *big;
    static file_t      file;
    static picture_t   p;

    make_picture(&p, RGB, 8, 0, 0);
    write_png(&p, &file, NULL, 0);

    big = calloc(1, sizeof(file_t));

    if (big == NULL) {
        return;
    }

    /* after IHDR: a profile that is none, a text with a bad CRC */

    memcpy(big->data, file.data, 33);
    big->len = 33;
    put_chunk(big, "iCCP", (const uint8_t *) "x", 1);
    put_chunk(big, "gAMA", (const uint8_t *) "\0\0\0\0", 4);
    put_chunk(big, "tEXt", (const uint8_t *) "broken", 6);
    big->data[big->len - 1] ^= 0x55;
    memcpy(big->data + big->len, file.data + 33, file.len - 33);
    big->len += file.len - 33;

    tap_ok(decodes(big), "broken ancillary chunks: accepted");

    /* a chunk of type 0x00000000 is critical and unknown */

    memcpy(big->data, file.data, 33);
    big->len = 33;
    put_chunk(big, "ABCD", (const uint8_t *) "x", 1);
    memcpy(big->data + big->len, file.data + 33, file.len - 33);
    big->len += file.len - 33;

    tap_ok(decode_fails(big, "invalid_image"),
           "unknown critical chunk: refused");

    free(big);
}


static void
test_header(void)
{
    vlm_error_t        err;
    vlm_image_info_t   info;
    static file_t      file;
    static picture_t   p;

    make_picture(&p, RGB, 8, 0, 0);
    write_png(&p, &file, NULL, 0);

    put_u32(file.data + 16, 65500);
    put_u32(file.data + 20, 65500);
    put_u32(file.data + 29, (uint32_t) crc32(0, file.data + 12, 17));

    tap_ok(vlm_image_probe(file.data, file.len, MAX_PIXELS, &info, &err)
           == VLM_ERROR && err.status == 400
           && strcmp(err.code, "image_too_large") == 0,
           "65500 x 65500: refused from the header");
    tap_ok(strstr(err.message, "65500 x 65500 = 4290250000") != NULL
           && strstr(err.message, "100000") != NULL,
           "the message has both numbers: %s", err.message);
    tap_ok(decode_fails(&file, "image_too_large"), "and by decode");

    put_u32(file.data + 16, 0);
    tap_ok(decode_fails(&file, "invalid_image"), "width 0: refused");

    put_u32(file.data + 16, 0x80000001);
    put_u32(file.data + 20, 1);
    tap_ok(decode_fails(&file, "image_too_large"), "width 2^31 + 1: refused");
}


/* little endian; an entry of another tag stands in front */

static size_t
make_exif(uint8_t *e, int type, int value)
{
    static const uint8_t  head[] = {
        'I', 'I', 42, 0, 8, 0, 0, 0, 2, 0,
        0x0f, 0x01, 2, 0, 1, 0, 0, 0, 'x', 0, 0, 0,
        0x12, 0x01, 3, 0, 1, 0, 0, 0, 1, 0, 0, 0,
        0, 0, 0, 0
    };

    memcpy(e, head, sizeof(head));
    e[24] = (uint8_t) type;
    e[30] = (uint8_t) value;

    return sizeof(head);
}


/* the picture's pixel that is shown at (x, y) of the turned one */

static void
turned(int orientation, int x, int y, int *sx, int *sy)
{
    static const int  swap[9] = { 0, 0, 0, 0, 0, 1, 1, 1, 1 };
    static const int  flip_x[9] = { 0, 0, 1, 1, 0, 0, 0, 1, 1 };
    static const int  flip_y[9] = { 0, 0, 0, 1, 1, 0, 1, 1, 0 };

    *sx = swap[orientation] ? y : x;
    *sy = swap[orientation] ? x : y;

    if (flip_x[orientation]) {
        *sx = W - 1 - *sx;
    }

    if (flip_y[orientation]) {
        *sy = H - 1 - *sy;
    }
}


static void
test_orientation(int o, int type)
{
    int                x, y, sx, sy, same, w, h;
    size_t             len;
    uint8_t            exif[64], rgb[3];
    vlm_error_t        err;
    vlm_image_t        image;
    static file_t      file;
    static picture_t   p;

    make_picture(&p, RGB, 8, 0, 0);
    len = make_exif(exif, type, o);
    write_png(&p, &file, exif, len);

    if (o < 1 || o > 8 || (type != 3 && type != 4)) {
        o = 1;
    }

    w = (o < 5) ? W : H;
    h = (o < 5) ? H : W;

    if (vlm_image_decode(file.data, file.len, MAX_PIXELS, NULL, &image, &err)
        != VLM_OK)
    {
        tap_ok(0, "orientation %d: %s", o, err.message);
        return;
    }

    same = ((int) image.width == w && (int) image.height == h);

    for (y = 0; y < h && same; y++) {
        for (x = 0; x < w && same; x++) {
            turned(o, x, y, &sx, &sy);
            expected(&p, sx, sy, rgb);
            same = (memcmp(image.data + 3 * (y * w + x), rgb, 3) == 0);
        }
    }

    tap_ok(same, "orientation %d of type %d", exif[30], type);
    vlm_image_free(&image);
}


int
main(void)
{
    int               i, o;
    size_t            t;
    static const int  types[][2] = {
        { GRAY, 1 }, { GRAY, 2 }, { GRAY, 4 }, { GRAY, 8 }, { GRAY, 16 },
        { RGB, 8 }, { RGB, 16 }, { PALETTE, 1 }, { PALETTE, 2 },
        { PALETTE, 4 }, { PALETTE, 8 }, { GRAY_ALPHA, 8 }, { GRAY_ALPHA, 16 },
        { RGB_ALPHA, 8 }, { RGB_ALPHA, 16 }
    };

    for (t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        for (i = 0; i < 4; i++) {
            if ((i & 2) && types[t][0] > PALETTE) {
                continue;                   /* has alpha, so no tRNS */
            }

            test_type(types[t][0], types[t][1], i & 1, (i & 2) >> 1);
        }
    }

    test_damage(0);
    test_damage(1);
    test_ancillary();
    test_header();

    for (o = 0; o <= 9; o++) {
        test_orientation(o, 3);
    }

    test_orientation(6, 4);
    test_orientation(6, 1);

    return tap_done();
}
