
/*
 * JPEG in the forms that the world sends, written here by libjpeg from a
 * smooth picture, so that the decoded one must come near to it: colour
 * spaces, sampling, progressive, arithmetic; damage; EXIF; other types.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "engine/image/image.h"
#include "t/unit/lib/tap.h"


#define W           96
#define H           64
#define MAX_PIXELS  100000


typedef struct {
    const char      *name;
    J_COLOR_SPACE    in;
    J_COLOR_SPACE    stored;
    int              h, v;              /* sampling of the first component */
    int              progressive;
    int              arithmetic;
    int              restart;
    int              adobe;             /* CMYK: inverted, marker written */
    int              tolerance;
} form_t;

static const form_t  forms[] = {
    { "4:4:4", JCS_RGB, JCS_YCbCr, 1, 1, 0, 0, 0, 0, 4 },
    { "4:2:0", JCS_RGB, JCS_YCbCr, 2, 2, 0, 0, 0, 0, 8 },
    { "4:2:2", JCS_RGB, JCS_YCbCr, 2, 1, 0, 0, 0, 0, 8 },
    { "4:4:0", JCS_RGB, JCS_YCbCr, 1, 2, 0, 0, 0, 0, 8 },
    { "4:1:1", JCS_RGB, JCS_YCbCr, 4, 1, 0, 0, 0, 0, 12 },
    { "4:1:0", JCS_RGB, JCS_YCbCr, 4, 2, 0, 0, 0, 0, 12 },
    { "progressive 4:2:0", JCS_RGB, JCS_YCbCr, 2, 2, 1, 0, 0, 0, 8 },
    { "arithmetic", JCS_RGB, JCS_YCbCr, 2, 2, 0, 1, 0, 0, 8 },
    { "restart markers", JCS_RGB, JCS_YCbCr, 2, 2, 0, 0, 3, 0, 8 },
    { "RGB", JCS_RGB, JCS_RGB, 1, 1, 0, 0, 0, 0, 4 },
    { "gray", JCS_GRAYSCALE, JCS_GRAYSCALE, 1, 1, 0, 0, 0, 0, 4 },
    { "CMYK, Adobe", JCS_CMYK, JCS_CMYK, 1, 1, 0, 0, 0, 1, 4 },
    { "CMYK, no marker", JCS_CMYK, JCS_CMYK, 1, 1, 0, 0, 0, 0, 4 },
    { "YCCK, Adobe", JCS_CMYK, JCS_YCCK, 2, 2, 0, 0, 0, 1, 8 },
    { "YCCK, progressive", JCS_CMYK, JCS_YCCK, 2, 1, 1, 0, 0, 1, 8 }
};


/* smooth in both directions, so that sampling loses little */

static int
value(int x, int y, int c)
{
    switch (c) {

    case 0:
        return 255 * x / (W - 1);

    case 1:
        return 255 * y / (H - 1);

    default:
        return 255 * (x + y) / (W + H - 2);
    }
}


#define BLACK  64                       /* of CMYK */


/* one sample as given to libjpeg */

static JSAMPLE
sample(const form_t *f, int x, int y, int c)
{
    int  v;

    if (f->in == JCS_GRAYSCALE) {
        return (JSAMPLE) value(x, y, 0);
    }

    if (f->in == JCS_RGB) {
        return (JSAMPLE) value(x, y, c);
    }

    v = (c == 3) ? BLACK : value(x, y, c);

    return (JSAMPLE) (f->adobe ? 255 - v : v);
}


static int
expected(const form_t *f, int x, int y, int c)
{
    if (f->in == JCS_GRAYSCALE) {
        return value(x, y, 0);
    }

    if (f->in == JCS_RGB) {
        return value(x, y, c);
    }

    return ((255 - value(x, y, c)) * (255 - BLACK) + 127) / 255;
}


static unsigned char *
write_jpeg(const form_t *f, const unsigned char *app1, unsigned app1_len,
    int napp1, unsigned long *len)
{
    int                          x, y, c, n;
    JSAMPLE                      row[W * 4];
    JSAMPROW                     rows[1] = { row };
    unsigned char               *data;
    struct jpeg_error_mgr        mgr;
    struct jpeg_compress_struct  cinfo;

    data = NULL;
    *len = 0;
    n = (f->in == JCS_GRAYSCALE) ? 1 : (f->in == JCS_RGB) ? 3 : 4;

    cinfo.err = jpeg_std_error(&mgr);
    jpeg_create_compress(&cinfo);
    jpeg_mem_dest(&cinfo, &data, len);

    cinfo.image_width = W;
    cinfo.image_height = H;
    cinfo.input_components = n;
    cinfo.in_color_space = f->in;

    jpeg_set_defaults(&cinfo);
    jpeg_set_colorspace(&cinfo, f->stored);
    jpeg_set_quality(&cinfo, 100, TRUE);

    cinfo.comp_info[0].h_samp_factor = f->h;
    cinfo.comp_info[0].v_samp_factor = f->v;

    if (n == 4 && f->stored == JCS_YCCK) {
        cinfo.comp_info[3].h_samp_factor = f->h;
        cinfo.comp_info[3].v_samp_factor = f->v;
    }

    cinfo.arith_code = f->arithmetic ? TRUE : FALSE;
    cinfo.restart_interval = (unsigned) f->restart;

    if (f->stored == JCS_CMYK) {
        cinfo.write_Adobe_marker = f->adobe ? TRUE : FALSE;
    }

    if (f->progressive) {
        jpeg_simple_progression(&cinfo);
    }

    jpeg_start_compress(&cinfo, TRUE);

    while (napp1-- > 0) {
        jpeg_write_marker(&cinfo, JPEG_APP0 + 1, app1, app1_len);
    }

    for (y = 0; y < H; y++) {
        for (x = 0; x < W; x++) {
            for (c = 0; c < n; c++) {
                row[x * n + c] = sample(f, x, y, c);
            }
        }

        jpeg_write_scanlines(&cinfo, rows, 1);
    }

    jpeg_finish_compress(&cinfo);
    jpeg_destroy_compress(&cinfo);

    return data;
}


static void
test_form(const form_t *f)
{
    int             x, y, c, d, most;
    vlm_error_t     err;
    vlm_image_t     image;
    unsigned char  *data;
    unsigned long   len;

    data = write_jpeg(f, NULL, 0, 0, &len);

    if (vlm_image_decode(data, len, MAX_PIXELS, NULL, &image, &err) != VLM_OK) {
        tap_ok(0, "%s: %s", f->name, err.message);
        free(data);
        return;
    }

    most = 0;

    for (y = 0; y < H; y++) {
        for (x = 0; x < W; x++) {
            for (c = 0; c < 3; c++) {
                d = image.data[3 * (y * W + x) + c] - expected(f, x, y, c);
                d = (d < 0) ? -d : d;
                most = (d > most) ? d : most;
            }
        }
    }

    tap_ok(image.width == W && image.height == H && most <= f->tolerance,
           "%s: off by %d, at most %d", f->name, most, f->tolerance);

    vlm_image_free(&image);
    free(data);
}


static int
decode_code(const unsigned char *data, size_t len, const char *code)
{
    int             rc;
    vlm_error_t     err;
    vlm_image_t     image;
    unsigned char  *copy;

    /* exactly as long as said, for AddressSanitizer */

    copy = malloc(len + (len == 0));
    if (copy == NULL) {
        return 0;
    }

    memcpy(copy, data, len);
    rc = vlm_image_decode(copy, len, MAX_PIXELS, NULL, &image, &err);
    free(copy);

    if (rc == VLM_OK) {
        vlm_image_free(&image);
        return code == NULL;
    }

    if (code == NULL) {
        tap_diag("%s", err.message);
        return 0;
    }

    return err.status == 400 && strcmp(err.code, code) == 0;
}


/* the first marker behind the first SOS that is part of no scan */

static size_t
first_scan_end(const unsigned char *data, size_t len)
{
    int     scan;
    size_t  i;

    scan = 0;

    for (i = 0; i + 1 < len; i++) {
        if (data[i] != 0xff) {
            continue;
        }

        if (data[i + 1] == 0xda) {
            scan = 1;

        } else if (scan && data[i + 1] != 0) {
            return i;
        }
    }

    return len;
}


static void
test_damage(int progressive)
{
    int             ok;
    form_t          f;
    size_t          cut;
    const char     *name;
    unsigned char  *data, *more;
    unsigned long   len;

    f = forms[1];
    f.progressive = progressive;
    name = progressive ? "progressive" : "baseline";
    data = write_jpeg(&f, NULL, 0, 0, &len);

    ok = 1;

    /* between two scans of a progressive file only detail is missing */

    for (cut = 0; cut + 4 < first_scan_end(data, len); cut++) {
        ok = ok && decode_code(data, cut, "invalid_image");
    }

    tap_ok(ok, "%s: cut anywhere before %zu of %lu: refused", name, cut, len);

    tap_ok(decode_code(data, len - 30, "invalid_image"),
           "%s: cut 30 bytes before the end: refused", name);
    tap_ok(decode_code(data, len - 2, NULL), "%s: no EOI: accepted", name);

    more = calloc(1, len + 500);

    if (more != NULL) {
        memcpy(more, data, len);
        memset(more + len, 0x5a, 500);
        tap_ok(decode_code(more, len + 500, NULL),
               "%s: junk after EOI: accepted", name);
    }

    free(more);
    free(data);
}


static void
test_exif(void)
{
    vlm_error_t          err;
    vlm_image_info_t     info;
    unsigned char       *data;
    unsigned long        len;
    static unsigned char app1[] = {
        'E', 'x', 'i', 'f', 0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1,
        0x01, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0
    };

    data = write_jpeg(&forms[0], app1, sizeof(app1), 2, &len);
    tap_ok(vlm_image_probe(data, len, MAX_PIXELS, &info, &err) == VLM_OK
           && info.orientation == 6 && info.width == H && info.height == W
           && info.stored_width == W,
           "EXIF, big endian: turned by 90 degrees");
    free(data);

    app1[13] = 0xff;                        /* directory outside */
    data = write_jpeg(&forms[0], app1, sizeof(app1), 1, &len);
    tap_ok(vlm_image_probe(data, len, MAX_PIXELS, &info, &err) == VLM_OK
           && info.orientation == 1,
           "broken EXIF: no turn");
    free(data);
    app1[13] = 8;

    app1[25] = 0;
    data = write_jpeg(&forms[0], app1, sizeof(app1), 1, &len);
    tap_ok(vlm_image_probe(data, len, MAX_PIXELS, &info, &err) == VLM_OK
           && info.orientation == 1,
           "orientation 0: no turn");
    free(data);
}


static void
test_limits(void)
{
    size_t          i;
    vlm_error_t     err;
    vlm_image_t     image;
    unsigned char  *data;
    unsigned long   len;
    static const int  cancel = 1;

    data = write_jpeg(&forms[6], NULL, 0, 0, &len);

    tap_ok(vlm_image_decode(data, len, W * H, NULL, &image, &err) == VLM_OK,
           "as many pixels as allowed");
    vlm_image_free(&image);

    tap_ok(vlm_image_decode(data, len, W * H - 1, NULL, &image, &err)
           == VLM_ERROR && strcmp(err.code, "image_too_large") == 0,
           "one more than allowed: %s", err.message);

    tap_ok(vlm_image_decode(data, len, W * H, &cancel, &image, &err)
           == VLM_ERROR && err.status == 499,
           "cancelled");

    /* 12 bits a sample, in the SOF marker */

    for (i = 0; i + 4 < len; i++) {
        if (data[i] == 0xff && data[i + 1] == 0xc2) {
            data[i + 4] = 12;
            break;
        }
    }

    tap_ok(decode_code(data, len, "invalid_image"), "12 bits: refused");
    free(data);
}


typedef struct {
    const char     *data;
    size_t          len;
    const char     *code;
    const char     *named;
} other_t;


static void
test_other_types(void)
{
    size_t                i;
    vlm_error_t           err;
    vlm_image_info_t      info;
    unsigned char         noise[3000];
    uint64_t              seed;
    static const other_t  others[] = {
        { "GIF89a\1\0\1\0\0\0\0", 13, "invalid_image", "GIF" },
        { "RIFF\0\0\0\0WEBPVP8 ", 16, "invalid_image", "WebP" },
        { "\0\0\0\x18" "ftypheic\0\0\0\0", 16, "unsupported_image", "HEIC" },
        { "\0\0\0\x18" "ftypavif\0\0\0\0", 16, "unsupported_image", "AVIF" },
        { "II*\0\x08\0\0\0", 8, "unsupported_image", "TIFF" },
        { "%PDF-1.7\n", 9, "unsupported_image", "PDF" },
        { " <?xml version='1.0'?><svg></svg>", 33, "unsupported_image",
          "SVG" },
        { "BM\x9a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\1\0\0\0\1\0\0\0", 26,
          "unsupported_image", "BMP" },
        { "hello, world, this is text", 26, "invalid_image", "accepted are JPEG" },
        { "\xff\xd8\xff", 3, "invalid_image", "JPEG" },
        { "\x89PNG\r\n\x1a\n", 8, "invalid_image", "PNG" },
        { "", 0, "invalid_image", "accepted are JPEG" }
    };

    for (i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        tap_ok(vlm_image_probe((const uint8_t *) others[i].data,
                               others[i].len, MAX_PIXELS, &info, &err)
               == VLM_ERROR && err.status == 400
               && strcmp(err.code, others[i].code) == 0
               && strstr(err.message, others[i].named) != NULL,
               "%s: %s", others[i].named, err.message);
    }

    for (i = 0, seed = 7; i < sizeof(noise); i++) {
        noise[i] = (unsigned char) tap_random(&seed);
    }

    tap_ok(decode_code(noise, sizeof(noise), "invalid_image"), "noise");
}


/* the first scan of a progressive file again and again */

static void
test_scans(int n, const char *code)
{
    int             i;
    form_t          f;
    size_t          begin, end, at;
    unsigned char  *data, *more;
    unsigned long   len;

    f = forms[1];
    f.progressive = 1;
    data = write_jpeg(&f, NULL, 0, 0, &len);

    end = first_scan_end(data, len);
    begin = (size_t) ((unsigned char *) memmem(data, len, "\xff\xda", 2)
                      - data);

    at = begin;
    more = malloc(begin + (size_t) n * (end - begin) + 2);

    if (more != NULL) {
        memcpy(more, data, begin);

        for (i = 0; i < n; i++, at += end - begin) {
            memcpy(more + at, data + begin, end - begin);
        }

        memcpy(more + at, "\xff\xd9", 2);
        tap_ok(decode_code(more, at + 2, code), "%d scans", n);
    }

    free(more);
    free(data);
}


int
main(void)
{
    size_t  i;

    for (i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        test_form(&forms[i]);
    }

    test_damage(0);
    test_damage(1);
    test_scans(500, NULL);
    test_scans(501, "invalid_image");
    test_exif();
    test_limits();
    test_other_types();

    return tap_done();
}
