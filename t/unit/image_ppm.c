
/* PPM files: written and read, refused, and a disk that is full. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/image/image.h"
#include "t/unit/lib/tap.h"


static char  path[64];


static void
put(const char *data, size_t len)
{
    FILE  *f;

    f = fopen(path, "wb");

    if (f == NULL || fwrite(data, 1, len, f) != len || fclose(f) != 0) {
        tap_ok(0, "%s written", path);
    }
}


static void
refused(const char *data, size_t len, const char *what)
{
    vlm_error_t  err;
    vlm_image_t  image;

    put(data, len);

    tap_ok(vlm_image_read_ppm(path, &image, &err) == VLM_ERROR
           && strcmp(err.code, "invalid_image") == 0 && image.data == NULL,
           "refused: %s", what);
}


static void
test_round(void)
{
    uint8_t      bytes[18];
    size_t       i;
    vlm_error_t  err;
    vlm_image_t  image = { 3, 2, bytes }, back;

    for (i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t) (i * 14 + 10);     /* white space among them */
    }

    tap_is(vlm_image_write_ppm(&image, path, &err), VLM_OK, "written");
    tap_is(vlm_image_read_ppm(path, &back, &err), VLM_OK, "read");
    tap_ok(back.width == 3 && back.height == 2
           && memcmp(back.data, bytes, sizeof(bytes)) == 0, "the same");

    vlm_image_free(&back);

    tap_ok(vlm_image_write_ppm(&image, "/dev/full", &err) == VLM_ERROR
           && strstr(err.message, "/dev/full: No space") != NULL,
           "a full disk: %s", err.message);
    tap_ok(vlm_image_write_ppm(&image, "/nonexistent/x", &err) == VLM_ERROR
           && strstr(err.message, "No such file") != NULL,
           "no such directory: %s", err.message);
    tap_ok(vlm_image_read_ppm("/nonexistent/x", &back, &err) == VLM_ERROR
           && strstr(err.message, "No such file") != NULL,
           "no such file: %s", err.message);
}


int
main(void)
{
    snprintf(path, sizeof(path), "/tmp/vlm-ppm-%ld", (long) getpid());

    test_round();

    refused("", 0, "nothing");
    refused("P5 1 1 255\n...", 14, "gray");
    refused("P6 1 1 65535\n......", 19, "16 bits");
    refused("P6 1 1 2550...", 14, "as many as look like 8");
    refused("P6 1 1 255", 10, "no pixels, no space");
    refused("P6 1 1 255\n..", 13, "a byte too few");
    refused("P6 1 1 255\n....", 15, "a byte too many");
    refused("P6 0 1 255\n", 11, "no width");
    refused("P6 999999999 999999999 255\n...", 30, "too large to be true");

    unlink(path);

    return tap_done();
}
