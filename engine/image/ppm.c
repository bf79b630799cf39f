
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/image/image.h"


#define MAX_PPM_BYTES  (1u << 30)


int
vlm_image_write_ppm(const vlm_image_t *image, const char *path,
    vlm_error_t *err)
{
    int      failed;
    FILE    *f;
    size_t   size;

    f = fopen(path, "wb");

    if (f == NULL) {
        return vlm_fail(err, 500, NULL, "%s: %s", path, strerror(errno));
    }

    size = (size_t) image->width * image->height * 3;

    fprintf(f, "P6\n%u %u\n255\n", image->width, image->height);
    failed = (fwrite(image->data, 1, size, f) != size);

    /* a full disk may be told only here */

    if (fclose(f) != 0 || failed) {
        return vlm_fail(err, 500, NULL, "%s: %s", path, strerror(errno));
    }

    return VLM_OK;
}


int
vlm_image_read_ppm(const char *path, vlm_image_t *image, vlm_error_t *err)
{
    int        n;
    char      *data;
    size_t     len, size;
    unsigned   width, height;

    memset(image, 0, sizeof(*image));

    if (vlm_read_file(path, MAX_PPM_BYTES, &data, &len, err) != VLM_OK) {
        return VLM_ERROR;
    }

    n = 0;
    size = 0;

    if (sscanf(data, "P6 %9u %9u 255%n", &width, &height, &n) == 2 && n != 0
        && isspace((unsigned char) data[n]))
    {
        size = vlm_mul(vlm_mul(width, height), 3);
        n++;                                /* one white space */
    }

    if (size == 0 || len != size + (size_t) n) {
        free(data);
        return vlm_fail(err, 400, "invalid_image",
                        "%s: is not a binary PPM file of 8 bits", path);
    }

    memmove(data, data + n, size);

    image->width = width;
    image->height = height;
    image->data = (uint8_t *) data;

    return VLM_OK;
}
