
/*
 * Rules of the design's chapter on pictures that are about files as a whole:
 * extreme sizes, animated PNG, chunks about colour, several APP1 segments,
 * EXIF that loops, two pictures in a file, floods of warnings, and memory
 * bounded by the size in the header.
 */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jpeglib.h>
#include <zlib.h>

#include "engine/image/image.h"
#include "t/unit/lib/tap.h"


#define MAX_PIXELS  (1 << 24)
#define MAX_FILE    (1 << 20)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED   1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED   1
#endif
#endif


typedef struct {
    uint8_t     data[MAX_FILE];
    size_t      len;
} file_t;

typedef struct {
    uint32_t    width;
    uint32_t    height;
    int         progressive;
    int         restart;
    int         colour;             /* 0: gray */
} jpeg_t;


static file_t  file;


static void
put_u32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t) (v >> 24);
    p[1] = (uint8_t) (v >> 16);
    p[2] = (uint8_t) (v >> 8);
    p[3] = (uint8_t) v;
}


static void
put_chunk(file_t *f, const char *type, const void *data, size_t len)
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


/* signature and header of a gray PNG */

static void
png_begin(file_t *f, uint32_t width, uint32_t height, int interlaced)
{
    uint8_t  head[13] = { 0 };

    memcpy(f->data, "\x89PNG\r\n\x1a\n", 8);
    f->len = 8;

    put_u32(head, width);
    put_u32(head + 4, height);
    head[8] = 8;
    head[12] = (uint8_t) interlaced;

    put_chunk(f, "IHDR", head, sizeof(head));
}


/* compressed bytes in a chunk, behind a sequence number if there is one */

static void
png_data(file_t *f, const char *type, int64_t sequence, const uint8_t *raw,
    size_t len)
{
    uLongf    size;
    size_t    n;
    uint8_t  *z;

    size = compressBound((uLong) len);
    z = malloc(size + 4);
    n = 0;

    if (sequence >= 0) {
        put_u32(z, (uint32_t) sequence);
        n = 4;
    }

    if (compress2(z + n, &size, raw, (uLong) len, 9) != Z_OK) {
        tap_ok(0, "compress2()");
    }

    put_chunk(f, type, z, size + n);
    free(z);
}


static int
decode(const uint8_t *data, size_t len, vlm_image_t *image)
{
    vlm_error_t  err;

    if (vlm_image_decode(data, len, MAX_PIXELS, NULL, image, &err) != VLM_OK) {
        tap_diag("%s", err.message);
        return 0;
    }

    return 1;
}


static int
is_gray(const vlm_image_t *image, uint32_t width, uint32_t height, int gray)
{
    size_t  i;

    if (image->width != width || image->height != height) {
        tap_diag("%u x %u", image->width, image->height);
        return 0;
    }

    for (i = 0; i < (size_t) width * height * 3; i++) {
        if (image->data[i] != gray) {
            tap_diag("byte %zu is %d, not %d", i, image->data[i], gray);
            return 0;
        }
    }

    return 1;
}


static int
decodes_gray(const uint8_t *data, size_t len, uint32_t width, uint32_t height,
    int gray)
{
    int          ok;
    vlm_image_t  image;

    if (!decode(data, len, &image)) {
        return 0;
    }

    ok = is_gray(&image, width, height, gray);
    vlm_image_free(&image);

    return ok;
}


static void
test_sides(void)
{
    int           ok;
    size_t        i;
    uint8_t      *raw;
    vlm_error_t   err;
    vlm_image_t   image;

    raw = calloc(2, 65536);

    for (i = 1; i < 65536; i++) {
        raw[i] = (uint8_t) (i * 7);
    }

    png_begin(&file, 65535, 1, 0);
    png_data(&file, "IDAT", -1, raw, 65536);
    put_chunk(&file, "IEND", NULL, 0);

    ok = decode(file.data, file.len, &image)
         && image.width == 65535 && image.height == 1;

    for (i = 0; ok && i < 65535; i++) {
        ok = (image.data[3 * i] == raw[i + 1]);
    }

    tap_ok(ok, "65535 x 1");
    vlm_image_free(&image);

    memset(raw, 0, 2 * 65535);

    for (i = 0; i < 65535; i++) {
        raw[2 * i + 1] = 200;
    }

    png_begin(&file, 1, 65535, 0);
    png_data(&file, "IDAT", -1, raw, 2 * 65535);
    put_chunk(&file, "IEND", NULL, 0);

    tap_ok(decodes_gray(file.data, file.len, 1, 65535, 200), "1 x 65535");
    free(raw);

    /* a few hundred bytes that ask for millions of pixels */

    png_begin(&file, 193, 31423, 1);
    png_data(&file, "IDAT", -1, (const uint8_t *) "", 1);

    tap_ok(vlm_image_decode(file.data, file.len, 6000000, NULL, &image, &err)
           != VLM_OK && strcmp(err.code, "image_too_large") == 0
           && strstr(err.message, "193 x 31423 = 6064639") != NULL,
           "193 x 31423 is refused before anything is decoded");
}


/* the control of a frame, of 4 x 4 at 0, 0 */

static void
put_frame(file_t *f, uint32_t sequence)
{
    uint8_t  control[26] = { 0 };

    put_u32(control, sequence);
    put_u32(control + 4, 4);
    put_u32(control + 8, 4);
    control[21] = 1;

    put_chunk(f, "fcTL", control, sizeof(control));
}


/* APNG: the picture of IDAT, whether it is a frame or not */

static void
test_apng(void)
{
    int       i, broken, part;
    uint8_t   first[20], second[20], control[8];

    for (i = 0; i < 20; i++) {
        first[i] = (i % 5 == 0) ? 0 : 90;
        second[i] = (i % 5 == 0) ? 0 : 10;
    }

    for (part = 0; part < 2; part++) {
        for (broken = 0; broken < 2; broken++) {
            put_u32(control, 2);
            put_u32(control + 4, 0);

            png_begin(&file, 4, 4, 0);
            put_chunk(&file, "acTL", control, 8);

            if (part) {
                put_frame(&file, 0);
            }

            png_data(&file, "IDAT", -1, first, 20);
            put_frame(&file, (uint32_t) part);

            if (broken) {
                put_chunk(&file, "fdAT", "\0\0\0\x09noise", 9);

            } else {
                png_data(&file, "fdAT", part + 1, second, 20);
            }

            put_chunk(&file, "IEND", NULL, 0);

            tap_ok(decodes_gray(file.data, file.len, 4, 4, 90),
                   "APNG: the default image%s%s",
                   part ? ", which is a frame" : "",
                   broken ? ", the next frame is broken" : "");
        }
    }
}


/* what tells about colour changes nothing */

static void
test_colour_chunks(void)
{
    int       i;
    size_t    n;
    uint8_t   raw[20];

    static const struct {
        const char  *type;
        const char  *data;
        size_t       len;
    } chunks[] = {
        { "gAMA", "\0\1\x86\xa0", 4 },
        { "gAMA", "\0\0\x11\x11", 4 },
        { "cHRM", "\0\0\x7a\x26\0\0\x80\x84\0\0\xfa\0\0\0\x80\xe8"
                  "\0\0\x75\x30\0\0\xea\x60\0\0\x3a\x98\0\0\x17\x70", 32 },
        { "sRGB", "\3", 1 },
        { "cICP", "\x09\x10\0\1", 4 },
        { "iCCP", "profile\0\0not compressed", 23 },
        { "sBIT", "\1", 1 },
        { "bKGD", "\0\xff", 2 }
    };

    for (i = 0; i < 20; i++) {
        raw[i] = (i % 5 == 0) ? 0 : 77;
    }

    for (n = 0; n < sizeof(chunks) / sizeof(chunks[0]); n++) {
        png_begin(&file, 4, 4, 0);
        put_chunk(&file, chunks[n].type, chunks[n].data, chunks[n].len);
        png_data(&file, "IDAT", -1, raw, 20);
        put_chunk(&file, "IEND", NULL, 0);

        tap_ok(decodes_gray(file.data, file.len, 4, 4, 77),
               "%s is ignored", chunks[n].type);
    }
}


static unsigned char *
write_jpeg(const jpeg_t *j, const uint8_t **app1, const unsigned *app1_len,
    int napp1, unsigned long *len)
{
    int                          i;
    JSAMPLE                     *row;
    JSAMPROW                     rows[1];
    uint32_t                     y;
    unsigned char               *data;
    struct jpeg_error_mgr        mgr;
    struct jpeg_compress_struct  cinfo;

    data = NULL;
    *len = 0;

    row = malloc((size_t) j->width * 3);
    memset(row, 128, (size_t) j->width * 3);
    rows[0] = row;

    cinfo.err = jpeg_std_error(&mgr);
    jpeg_create_compress(&cinfo);
    jpeg_mem_dest(&cinfo, &data, len);

    cinfo.image_width = j->width;
    cinfo.image_height = j->height;
    cinfo.input_components = j->colour ? 3 : 1;
    cinfo.in_color_space = j->colour ? JCS_RGB : JCS_GRAYSCALE;

    jpeg_set_defaults(&cinfo);
    cinfo.comp_info[0].h_samp_factor = 1;
    cinfo.comp_info[0].v_samp_factor = 1;
    cinfo.restart_interval = (unsigned) j->restart;
    cinfo.optimize_coding = TRUE;

    if (j->progressive) {
        jpeg_simple_progression(&cinfo);
    }

    jpeg_start_compress(&cinfo, TRUE);

    for (i = 0; i < napp1; i++) {
        jpeg_write_marker(&cinfo, JPEG_APP0 + 1, app1[i], app1_len[i]);
    }

    for (y = 0; y < j->height; y++) {
        jpeg_write_scanlines(&cinfo, rows, 1);
    }

    jpeg_finish_compress(&cinfo);
    jpeg_destroy_compress(&cinfo);
    free(row);

    return data;
}


static int
orientation(const uint8_t *data, size_t len)
{
    vlm_error_t       err;
    vlm_image_t       image;
    vlm_image_info_t  info;

    if (vlm_image_probe(data, len, MAX_PIXELS, &info, &err) != VLM_OK
        || !decode(data, len, &image))
    {
        return -1;
    }

    /* the picture is 16 x 8, decoding agrees with the header */

    if (image.width != info.width || image.height != info.height
        || info.width != (info.orientation < 5 ? 16u : 8u))
    {
        info.orientation = -2;
    }

    vlm_image_free(&image);

    return info.orientation;
}


#define SEG(s)   { s, sizeof(s) - 1 }

/* EXIF with one entry of a directory at an offset */
#define EXIF(offset, entries, entry)                                          \
    "Exif\0\0MM\0*" offset entries entry "\0\0\0\0"
#define FIRST    "\0\0\0\x08"
#define ONE      "\0\1"
#define TURN(n)  "\x01\x12\0\3\0\0\0\1\0" n "\0\0"
#define BELOW    "\x87\x69\0\4\0\0\0\1\0\0\0\x08"

#define A_EXIF6  EXIF(FIRST, ONE, TURN("\6"))
#define A_EXIF3  EXIF(FIRST, ONE, TURN("\3"))
#define A_XMP    "http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation='8'/>"

/* a directory within itself, that is followed by itself */
#define A_LOOP   "Exif\0\0MM\0*" FIRST ONE BELOW FIRST
#define A_MANY   EXIF(FIRST, "\xff\xff", BELOW)
#define A_FAR    EXIF("\xff\xff\xff\xff", ONE, TURN("\6"))
#define A_HEAD   EXIF("\0\0\0\0", ONE, TURN("\6"))
#define A_SHORT  "Exif\0\0MM"


static void
test_app1(void)
{
    int             n;
    size_t          i;
    jpeg_t          j = { 16, 8, 0, 0, 1 };
    unsigned        lens[4];
    const uint8_t  *app1[4];
    unsigned char  *data;
    unsigned long   len;

    /* pairs: a segment as a string and its length */

    static const struct {
        const char  *name;
        int          orientation;
        struct {
            const char  *data;
            size_t       len;
        }            app1[4];
    } cases[] = {
        { "none", 1, { { NULL, 0 } } },
        { "EXIF", 6, { SEG(A_EXIF6) } },
        { "XMP, EXIF", 6, { SEG(A_XMP), SEG(A_EXIF6) } },
        { "EXIF, XMP", 6, { SEG(A_EXIF6), SEG(A_XMP) } },
        { "XMP alone", 1, { SEG(A_XMP) } },
        { "two of EXIF: the first", 3, { SEG(A_EXIF3), SEG(A_EXIF6) } },
        { "empty, XMP, XMP, EXIF", 6, { SEG(""), SEG(A_XMP), SEG(A_XMP),
                                        SEG(A_EXIF6) } },
        { "a loop", 1, { SEG(A_LOOP) } },
        { "65,535 entries", 1, { SEG(A_MANY) } },
        { "a directory far away", 1, { SEG(A_FAR) } },
        { "a directory that is the header", 1, { SEG(A_HEAD) } },
        { "a header that is cut", 1, { SEG(A_SHORT) } }
    };

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {

        for (n = 0; n < 4 && cases[i].app1[n].data != NULL; n++) {
            app1[n] = (const uint8_t *) cases[i].app1[n].data;
            lens[n] = (unsigned) cases[i].app1[n].len;
        }

        data = write_jpeg(&j, app1, lens, n, &len);
        tap_is(orientation(data, len), cases[i].orientation, "APP1: %s",
               cases[i].name);
        free(data);
    }
}


/* MPO: a second whole JPEG behind the first, which is the one */

static void
test_mpo(void)
{
    size_t          gap;
    jpeg_t          first = { 16, 8, 0, 0, 1 }, second = { 640, 480, 1, 0, 1 };
    uint8_t        *both;
    unsigned char  *a, *b;
    unsigned long   na, nb;

    a = write_jpeg(&first, NULL, NULL, 0, &na);
    b = write_jpeg(&second, NULL, NULL, 0, &nb);
    both = calloc(1, na + nb + 100);

    for (gap = 0; gap <= 100; gap += 50) {
        memset(both, 0, na + gap);
        memcpy(both, a, na);
        memcpy(both + na + gap, b, nb);

        tap_ok(decodes_gray(both, na + gap + nb, 16, 8, 128),
               "MPO: the first picture, %zu bytes between", gap);
        tap_ok(decodes_gray(both, na + gap + nb / 2, 16, 8, 128),
               "MPO: the second is cut");
    }

    free(both);
    free(b);
    free(a);
}


static long  warnings;


static void
count_warning(j_common_ptr cinfo, int level)
{
    (void) cinfo;
    warnings += (level < 0);
}


/* how often libjpeg itself warns */

static void
count_warnings(const uint8_t *data, size_t len, JSAMPROW row)
{
    struct jpeg_error_mgr          mgr;
    struct jpeg_decompress_struct  cinfo;

    warnings = 0;
    cinfo.err = jpeg_std_error(&mgr);
    mgr.emit_message = count_warning;

    jpeg_create_decompress(&cinfo);
    jpeg_mem_src(&cinfo, data, len);
    jpeg_read_header(&cinfo, TRUE);
    jpeg_start_decompress(&cinfo);

    while (cinfo.output_scanline < cinfo.output_height) {
        jpeg_read_scanlines(&cinfo, &row, 1);
    }

    jpeg_finish_decompress(&cinfo);
    jpeg_destroy_decompress(&cinfo);
}


/* a few hundred bytes, a warning for each of 32,752 blocks: not one is told */

static void
test_warnings(void)
{
    int             fd, saved;
    off_t           said;
    char            name[] = "/tmp/vlm-image-rules-XXXXXX";
    size_t          i;
    jpeg_t          j = { 32, 8, 0, 1, 0 };
    JSAMPLE         row[32 * 3];
    vlm_error_t     err;
    vlm_image_t     image;
    unsigned char  *data;
    unsigned long   len;

    data = write_jpeg(&j, NULL, NULL, 0, &len);

    for (i = 0; i + 6 < len; i++) {
        if (data[i] == 0xff && data[i + 1] == 0xc0) {
            data[i + 5] = 65500 >> 8;
            data[i + 6] = 65500 & 255;
        }
    }

    count_warnings(data, len, row);
    tap_ok(len < 700 && warnings > 30000, "%lu bytes, %ld warnings", len,
           warnings);

    fd = mkstemp(name);
    unlink(name);
    saved = dup(STDERR_FILENO);
    fflush(stderr);
    dup2(fd, STDERR_FILENO);

    memset(&image, 0, sizeof(image));

    if (vlm_image_decode(data, len, MAX_PIXELS, NULL, &image, &err) == VLM_OK) {
        tap_ok(image.width == 32 && image.height == 65500, "decoded");

    } else {
        tap_str(err.code, "invalid_image", "refused");
    }

    fflush(stderr);
    said = lseek(fd, 0, SEEK_END);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(fd);

    tap_is(said, 0, "nothing on stderr");
    vlm_image_free(&image);
    free(data);
}


#ifndef SANITIZED

/* address space in use, in bytes */

static rlim_t
address_space(void)
{
    FILE           *f;
    unsigned long   pages;

    f = fopen("/proc/self/statm", "r");

    if (f == NULL || fscanf(f, "%lu", &pages) != 1) {
        pages = 0;
    }

    if (f != NULL) {
        fclose(f);
    }

    return (rlim_t) pages * (rlim_t) sysconf(_SC_PAGESIZE);
}


/* in a child with so much more: 0 decoded, 1 an error, -1 it died */

static int
decode_within(const uint8_t *data, size_t len, size_t more)
{
    int            rc, status;
    pid_t          pid;
    vlm_error_t    err;
    vlm_image_t    image;
    struct rlimit  limit;

    pid = fork();

    if (pid == 0) {
        limit.rlim_cur = address_space() + more;
        limit.rlim_max = limit.rlim_cur;
        setrlimit(RLIMIT_AS, &limit);

        rc = vlm_image_decode(data, len, MAX_PIXELS, NULL, &image, &err);
        _exit(rc == VLM_OK ? 0 : 1);
    }

    if (pid == -1 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) {
        return -1;
    }

    return WEXITSTATUS(status);
}


/*
 * Bytes for a pixel: 3 of the picture, and what a decoder keeps of all of it:
 * 6 of coefficients in JPEG.  A megabyte for the rest.
 */

static void
test_memory(void)
{
    size_t          pixels;
    jpeg_t          j = { 2000, 2000, 1, 0, 1 };
    uint8_t        *raw;
    unsigned char  *data;
    unsigned long   len;

    pixels = (size_t) j.width * j.height;
    data = write_jpeg(&j, NULL, NULL, 0, &len);

    tap_diag("a progressive JPEG of %lu bytes has %zu pixels", len, pixels);
    tap_is(decode_within(data, len, 10 * pixels + (1 << 20)), 0,
           "progressive JPEG: 10 bytes for a pixel are enough");
    tap_is(decode_within(data, len, 5 * pixels), 1,
           "progressive JPEG: 5 are not, which is an error");
    free(data);

    raw = calloc(1, 2 * pixels);
    png_begin(&file, j.width, j.height, 1);
    png_data(&file, "IDAT", -1, raw, pixels + 7 * 2000);
    put_chunk(&file, "IEND", NULL, 0);
    free(raw);

    tap_diag("an interlaced PNG of %zu bytes", file.len);
    tap_is(decode_within(file.data, file.len, 8 * pixels + (1 << 20)), 0,
           "interlaced PNG: 8 bytes for a pixel are enough");
    tap_is(decode_within(file.data, file.len, 2 * pixels), 1,
           "interlaced PNG: 2 are not, which is an error");
}

#endif


int
main(void)
{
    test_sides();
    test_apng();
    test_colour_chunks();
    test_app1();
    test_mpo();
    test_warnings();

#ifndef SANITIZED
    test_memory();
#else
    tap_skip("memory: address space cannot be limited with a sanitizer");
#endif

    return tap_done();
}
