
/* The golden pictures: decoded bytes equal to the reference's, resize vectors
 * to be met exactly. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/image/image.h"
#include "t/unit/lib/tap.h"


#define MAX_PIXELS  (64u << 20)


/* with alpha: the reference drops it, the product composes on white */

static const char  *pictures[] = {
    "a_square_224.png", "b_wide_500x150.jpg", "c_tall_130x420.jpg",
    "d_tiny_20x33.png", "e_large_1280x960.jpg", "f_gray_301x219.png",
    "h_exif6_320x200.jpg", "i_palette_200x170.png", "j_panorama_900x60.png",
    "k_exif3_gray_180x240.jpg", "l_progressive_333x333.jpg",
    "n_half28_70x154.png", "o_half32_80x144.png"
};

typedef struct {
    const char     *name;
    vlm_filter_t    filter;
} filter_name_t;

static const filter_name_t  filters[] = {
    { "bilinear", VLM_FILTER_BILINEAR },
    { "bicubic", VLM_FILTER_BICUBIC },
    { "lanczos", VLM_FILTER_LANCZOS }
};


static void
test_picture(const char *name)
{
    int            rc;
    char          *data;
    size_t         len;
    vlm_error_t    err;
    vlm_image_t    image;
    tap_tensor_t   t;

    t = tap_tensor(tap_path("build-data/images_rgb/%s.safetensors", name),
                   "rgb");

    rc = vlm_read_file(tap_path("t/data/images/%s", name), MAX_PIXELS, &data,
                       &len, &err);

    if (!tap_ok(t.data != NULL && rc == VLM_OK, "%s: files", name)) {
        return;
    }

    rc = vlm_image_decode((uint8_t *) data, len, MAX_PIXELS, NULL, &image,
                          &err);

    if (tap_ok(rc == VLM_OK, "%s: decoded", name)) {
        tap_is(image.height, t.shape[0], "%s: height", name);
        tap_is(image.width, t.shape[1], "%s: width", name);
        tap_ok(t.size == (size_t) image.width * image.height * 3
               && memcmp(t.data, image.data, t.size) == 0,
               "%s: bytes equal the reference's", name);
        vlm_image_free(&image);

    } else {
        tap_diag("%s", err.message);
    }

    free(data);
    free(t.data);
}


static void
test_resize(const char *from, const char *to, vlm_filter_t filter)
{
    int            rc;
    const char    *path;
    vlm_error_t    err;
    vlm_image_t    image, out;
    tap_tensor_t   a, b;

    path = tap_path("t/data/resize/resize.safetensors");
    a = tap_tensor(path, from);
    b = tap_tensor(path, to);

    if (tap_ok(a.data != NULL && b.data != NULL, "%s: vectors", to)) {
        image.height = (uint32_t) a.shape[0];
        image.width = (uint32_t) a.shape[1];
        image.data = a.data;

        rc = vlm_image_resize(&image, (uint32_t) b.shape[1],
                              (uint32_t) b.shape[0], filter, &out, &err);

        tap_ok(rc == VLM_OK && memcmp(out.data, b.data, b.size) == 0,
               "%s: equal", to);
        vlm_image_free(&out);
    }

    free(a.data);
    free(b.data);
}


int
main(void)
{
    char    from[32], to[32];
    size_t  i;

    for (i = 0; i < sizeof(pictures) / sizeof(pictures[0]); i++) {
        test_picture(pictures[i]);
    }

    for (i = 0; i < 8 * sizeof(filters) / sizeof(filters[0]); i++) {
        snprintf(from, sizeof(from), "in_%zu", i / 3);
        snprintf(to, sizeof(to), "out_%zu_%s", i / 3, filters[i % 3].name);
        test_resize(from, to, filters[i % 3].filter);
    }

    return tap_done();
}
