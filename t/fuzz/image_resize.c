
/*
 * Sizes, filters and pixels for resizing: no byte is read or written outside
 * of either picture, the same size changes nothing, one colour stays itself.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/image/image.h"


#define HEAD      10
#define MAX_SIDE  3000
#define MAX_AREA  10000


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);


static uint32_t
side(const uint8_t *p)
{
    return 1 + (uint32_t) (p[0] << 8 | p[1]) % MAX_SIDE;
}


/* the bytes again and again; each buffer has exactly the picture's size */

static int
make(vlm_image_t *image, uint32_t width, uint32_t height,
    const uint8_t *data, size_t len)
{
    size_t  i, n;

    n = (size_t) width * height * 3;

    image->width = width;
    image->height = height;
    image->data = malloc(n);

    if (image->data == NULL) {
        return 0;
    }

    for (i = 0; i < n; i++) {
        image->data[i] = (len != 0) ? data[i % len] : 0x5a;
    }

    return 1;
}


static int
one_colour(const vlm_image_t *image, uint8_t v)
{
    size_t  i;

    for (i = 0; i < (size_t) image->width * image->height * 3; i++) {
        if (image->data[i] != v) {
            return 0;
        }
    }

    return 1;
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    uint32_t      w, h, to_w, to_h;
    vlm_error_t   err;
    vlm_image_t   from, to;
    vlm_filter_t  filter;

    if (len < HEAD) {
        return 0;
    }

    w = side(data);
    h = side(data + 2);
    to_w = side(data + 4);
    to_h = side(data + 6);
    filter = (vlm_filter_t) (VLM_FILTER_LANCZOS + data[8] % 3);

    /* what lies between the two passes has to_w x h pixels */

    if (w * h > MAX_AREA || to_w * to_h > MAX_AREA || to_w * h > 4 * MAX_AREA
        || !make(&from, w, h, data + HEAD, len - HEAD))
    {
        return 0;
    }

    if (vlm_image_resize(&from, to_w, to_h, filter, &to, &err) == VLM_OK) {

        if (to.width != to_w || to.height != to_h
            || (w == to_w && h == to_h
                && memcmp(from.data, to.data, (size_t) w * h * 3) != 0)
            || (len - HEAD <= 1
                && !one_colour(&to, (len == HEAD) ? 0x5a : data[HEAD])))
        {
            abort();
        }

        vlm_image_free(&to);

    } else if (err.message[0] == '\0') {
        abort();
    }

    vlm_image_free(&from);

    return 0;
}
