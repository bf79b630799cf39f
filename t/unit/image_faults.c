
/*
 * What no file can bring about: memory that runs out at each allocation in
 * turn, the libraries' too, and bytes that change between the header and the
 * picture.  The files are the seeds of the fuzz targets.
 */

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/image/internal.h"
#include "t/unit/lib/tap.h"


#define MAX_PIXELS  65536

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED   1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED   1
#endif
#endif


typedef struct {
    const char     *name;
    int           (*decode)(const uint8_t *data, size_t len,
                      const int *cancel, vlm_image_t *image,
                      vlm_error_t *err);
} type_t;

static const type_t  types[] = {
    { "jpeg", vlm_jpeg_decode },
    { "png", vlm_png_decode },
    { "gif", vlm_gif_decode },
    { "webp", vlm_webp_decode }
};


/* ---- an allocator that fails ---- */

#ifndef SANITIZED

static int   counting;
static long  left;                  /* allocations until one fails */
static long  live;

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void __libc_free(void *p);


static void *
counted(void *p)
{
    live += (p != NULL);

    return p;
}


static int
fails(void)
{
    return counting && left-- == 0;
}


void *
malloc(size_t size)
{
    return fails() ? NULL : counted(__libc_malloc(size));
}


void *
calloc(size_t n, size_t size)
{
    return fails() ? NULL : counted(__libc_calloc(n, size));
}


void *
realloc(void *p, size_t size)
{
    if (fails()) {
        return NULL;
    }

    return (p != NULL) ? __libc_realloc(p, size)
                       : counted(__libc_malloc(size));
}


void
free(void *p)
{
    live -= (p != NULL);
    __libc_free(p);
}


/* ---- tests ---- */

static int
same(const vlm_image_t *a, const vlm_image_t *b)
{
    return a->width == b->width && a->height == b->height
           && memcmp(a->data, b->data, (size_t) a->width * a->height * 3) == 0;
}


/* each allocation in turn, until nothing failed */

static void
test_memory(const char *path, const uint8_t *data, size_t len,
    const vlm_image_t *whole)
{
    int          rc;
    long         n, before, wrong, told;
    vlm_error_t  err;
    vlm_image_t  image;

    wrong = 0;
    told = 0;

    for (n = 0; /* void */; n++) {
        memset(&err, 0, sizeof(err));

        before = live;
        left = n;
        counting = 1;
        rc = vlm_image_decode(data, len, MAX_PIXELS, NULL, &image, &err);
        counting = 0;

        if (rc == VLM_OK) {
            wrong += !same(&image, whole);
            vlm_image_free(&image);

        } else {
            wrong += err.message[0] == '\0' || image.data != NULL;
            told += err.status == 500;
        }

        wrong += live != before;

        if (left >= 0) {
            break;
        }
    }

    tap_ok(wrong == 0 && told > 0 && rc == VLM_OK,
           "%s: %ld allocations fail, %ld wrong, %ld times no memory", path,
           n, wrong, told);
}


static void
test_resize(const vlm_image_t *from)
{
    int          rc;
    long         n, before, wrong;
    vlm_error_t  err;
    vlm_image_t  to;

    wrong = 0;

    for (n = 0; /* void */; n++) {
        before = live;
        left = n;
        counting = 1;
        rc = vlm_image_resize(from, 40, 5, VLM_FILTER_BICUBIC, &to, &err);
        counting = 0;

        if (rc == VLM_OK) {
            vlm_image_free(&to);

        } else {
            wrong += err.status != 500 || to.data != NULL;
        }

        wrong += live != before;

        if (left >= 0) {
            break;
        }
    }

    tap_ok(wrong == 0 && n > 4 && rc == VLM_OK,
           "resize: %ld allocations fail, %ld wrong", n, wrong);
}


/*
 * libwebp 1.2.4 follows a pointer that it has not set when there is no memory
 * for the tables of a lossless picture, or of alpha.
 */

static int
is_lossless(const char *data, size_t len)
{
    return memmem(data, len, "VP8L", 4) != NULL
           || memmem(data, len, "ALPH", 4) != NULL;
}

#endif


/* as if another file lay there by now */

static void
test_change(const type_t *type, const char *path, const uint8_t *data,
    size_t len, const vlm_image_info_t *info)
{
    int          i, rc;
    vlm_error_t  err;
    vlm_image_t  image;

    for (i = 0; i < 4; i++) {
        image.width = info->stored_width + (i == 0) - (i == 1);
        image.height = info->stored_height + (i == 2) - (i == 3);
        image.data = malloc((size_t) image.width * image.height * 3 + 1);

        if (image.data == NULL) {
            tap_ok(0, "malloc()");
            return;
        }

        rc = type->decode(data, len, NULL, &image, &err);
        free(image.data);

        if (rc == VLM_OK || err.status != 400) {
            tap_ok(0, "%s: accepted as %u x %u", path, image.width,
                   image.height);
            return;
        }
    }

    tap_ok(1, "%s: another size than expected", path);
}


static void
test_file(const type_t *type, const char *path)
{
    char              *data;
    size_t             len;
    vlm_error_t        err;
    vlm_image_t        image;
    vlm_image_info_t   info;

    if (vlm_read_file(path, 1 << 20, &data, &len, &err) != VLM_OK) {
        tap_ok(0, "%s", err.message);
        return;
    }

    len--;                                  /* the target's own byte */

    if (vlm_image_probe((uint8_t *) data, len, MAX_PIXELS, &info, &err)
        == VLM_OK
        && vlm_image_decode((uint8_t *) data, len, MAX_PIXELS, NULL, &image,
                            &err)
           == VLM_OK)
    {
#ifndef SANITIZED
        if (!is_lossless(data, len)) {
            test_memory(path, (uint8_t *) data, len, &image);
            test_resize(&image);
        }
#endif
        test_change(type, path, (uint8_t *) data, len, &info);
        vlm_image_free(&image);
    }

    free(data);
}


int
main(void)
{
    char    pattern[256];
    size_t  i, k, n;
    glob_t  files;

    for (i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        snprintf(pattern, sizeof(pattern), "%s/*",
                 tap_path("t/fuzz/seeds/image_%s", types[i].name));

        if (glob(pattern, 0, NULL, &files) != 0) {
            tap_ok(0, "%s", pattern);
            continue;
        }

        for (k = 0, n = files.gl_pathc; k < n; k++) {
            test_file(&types[i], files.gl_pathv[k]);
        }

        globfree(&files);
    }

    return tap_done();
}
