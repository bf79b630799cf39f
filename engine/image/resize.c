
/*
 * Resizing with an antialiasing kernel, in the fixed-point arithmetic of
 * Pillow's Resample.c for 8-bit pictures: two passes, horizontal first, each
 * rounding to bytes.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/image/image.h"


#define PRECISION  22           /* bits behind the point of a weight */


/* weights of one axis: output i sums "count[i]" inputs from "first[i]" on */

typedef struct {
    uint32_t   *first;
    uint32_t   *count;
    int32_t    *weights;        /* [outputs][size] */
    size_t      size;
} axis_t;


static double
sinc(double x)
{
    if (x == 0.0) {
        return 1.0;
    }

    x *= M_PI;

    return sin(x) / x;
}


static double
filter_value(vlm_filter_t filter, double x)
{
    if (filter == VLM_FILTER_LANCZOS) {
        return (x >= -3.0 && x < 3.0) ? sinc(x) * sinc(x / 3) : 0.0;
    }

    x = fabs(x);

    if (filter == VLM_FILTER_BILINEAR) {
        return (x < 1.0) ? 1.0 - x : 0.0;
    }

    if (x < 1.0) {
        return (1.5 * x - 2.5) * x * x + 1;
    }

    if (x < 2.0) {
        return -0.5 * (((x - 5) * x + 8) * x - 4);
    }

    return 0.0;
}


static double
filter_radius(vlm_filter_t filter)
{
    switch (filter) {

    case VLM_FILTER_LANCZOS:
        return 3.0;

    case VLM_FILTER_BILINEAR:
        return 1.0;

    default:
        return 2.0;
    }
}


static void
axis_free(axis_t *axis)
{
    free(axis->first);
    free(axis->count);
    free(axis->weights);
}


static void
axis_weights(axis_t *axis, uint32_t o, double *w, vlm_filter_t filter,
    double center, double scale)
{
    double     sum, v;
    int32_t   *q;
    uint32_t   i, n;

    n = axis->count[o];
    q = axis->weights + o * axis->size;
    sum = 0.0;

    for (i = 0; i < n; i++) {
        w[i] = filter_value(filter, ((double) i + axis->first[o] - center
                                     + 0.5) * scale);
        sum += w[i];
    }

    for (i = 0; i < n; i++) {
        v = (sum != 0.0) ? w[i] / sum : w[i];
        v *= 1 << PRECISION;
        q[i] = (int32_t) (v < 0 ? v - 0.5 : v + 0.5);
    }
}


static int
axis_create(axis_t *axis, uint32_t in, uint32_t out, vlm_filter_t filter)
{
    double     scale, fscale, support, center, lo, hi, *w;
    size_t     bytes;
    uint32_t   o;

    scale = (double) in / out;
    fscale = (scale < 1.0) ? 1.0 : scale;
    support = filter_radius(filter) * fscale;

    memset(axis, 0, sizeof(*axis));

    axis->size = (size_t) ceil(support) * 2 + 1;
    bytes = vlm_mul(vlm_mul(out, axis->size), sizeof(int32_t));

    axis->first = malloc((size_t) out * sizeof(uint32_t));
    axis->count = malloc((size_t) out * sizeof(uint32_t));
    axis->weights = (bytes != 0) ? calloc(1, bytes) : NULL;
    w = malloc(axis->size * sizeof(double));

    if (axis->first == NULL || axis->count == NULL || axis->weights == NULL
        || w == NULL)
    {
        axis_free(axis);
        free(w);
        return VLM_ERROR;
    }

    for (o = 0; o < out; o++) {
        center = (o + 0.5) * scale;

        lo = trunc(center - support + 0.5);
        hi = trunc(center + support + 0.5);

        axis->first[o] = (lo < 0) ? 0 : (uint32_t) lo;
        axis->count[o] = ((hi > in) ? in : (uint32_t) hi) - axis->first[o];

        axis_weights(axis, o, w, filter, center, 1.0 / fscale);
    }

    free(w);

    return VLM_OK;
}


static inline uint8_t
clip(int32_t sum)
{
    sum >>= PRECISION;

    return (uint8_t) (sum < 0 ? 0 : sum > 255 ? 255 : sum);
}


static void
resize_rows(const vlm_image_t *from, vlm_image_t *to, const axis_t *axis)
{
    int32_t         r, g, b;
    uint8_t        *out;
    uint32_t        i, n, x, y;
    const uint8_t  *in, *row;
    const int32_t  *w;

    out = to->data;

    for (y = 0; y < to->height; y++) {
        row = from->data + (size_t) y * from->width * 3;

        for (x = 0; x < to->width; x++, out += 3) {
            in = row + (size_t) axis->first[x] * 3;
            w = axis->weights + x * axis->size;
            n = axis->count[x];
            r = g = b = 1 << (PRECISION - 1);

            for (i = 0; i < n; i++, in += 3) {
                r += in[0] * w[i];
                g += in[1] * w[i];
                b += in[2] * w[i];
            }

            out[0] = clip(r);
            out[1] = clip(g);
            out[2] = clip(b);
        }
    }
}


/* by whole rows, so that the compiler can use vectors */

static void
resize_columns(const vlm_image_t *from, vlm_image_t *to, const axis_t *axis,
    int32_t *sums)
{
    int32_t         w;
    size_t          stride, k;
    uint8_t        *out;
    uint32_t        i, y;
    const uint8_t  *in;

    stride = (size_t) from->width * 3;

    for (y = 0; y < to->height; y++) {
        for (k = 0; k < stride; k++) {
            sums[k] = 1 << (PRECISION - 1);
        }

        for (i = 0; i < axis->count[y]; i++) {
            in = from->data + (axis->first[y] + i) * stride;
            w = axis->weights[y * axis->size + i];

            for (k = 0; k < stride; k++) {
                sums[k] += in[k] * w;
            }
        }

        out = to->data + y * stride;

        for (k = 0; k < stride; k++) {
            out[k] = clip(sums[k]);
        }
    }
}


static int
make(vlm_image_t *image, uint32_t width, uint32_t height)
{
    size_t  size;

    size = vlm_mul(vlm_mul(width, height), 3);

    image->width = width;
    image->height = height;
    image->data = (size != 0) ? malloc(size) : NULL;

    return (image->data != NULL) ? VLM_OK : VLM_ERROR;
}


/* one pass; "to" is made here */

static int
pass(const vlm_image_t *from, uint32_t width, uint32_t height,
    vlm_filter_t filter, vlm_image_t *to)
{
    int       rc, horizontal;
    axis_t    axis;
    int32_t  *sums;

    horizontal = (width != from->width);
    rc = VLM_ERROR;
    sums = NULL;

    if (axis_create(&axis, horizontal ? from->width : from->height,
                    horizontal ? width : height, filter)
        != VLM_OK)
    {
        return VLM_ERROR;
    }

    if (make(to, width, height) == VLM_OK) {

        if (horizontal) {
            resize_rows(from, to, &axis);
            rc = VLM_OK;

        } else {
            sums = malloc((size_t) width * 3 * sizeof(int32_t));

            if (sums != NULL) {
                resize_columns(from, to, &axis, sums);
                rc = VLM_OK;
            }
        }
    }

    if (rc != VLM_OK) {
        vlm_image_free(to);
    }

    free(sums);
    axis_free(&axis);

    return rc;
}


int
vlm_image_resize(const vlm_image_t *from, uint32_t width, uint32_t height,
    vlm_filter_t filter, vlm_image_t *to, vlm_error_t *err)
{
    int          rc;
    vlm_image_t  middle;

    memset(to, 0, sizeof(*to));
    memset(&middle, 0, sizeof(middle));

    if (width == 0 || height == 0) {
        return vlm_fail(err, 500, NULL, "cannot resize to %u x %u pixels",
                        width, height);
    }

    if (width == from->width && height == from->height) {
        rc = make(to, width, height);

        if (rc == VLM_OK) {
            memcpy(to->data, from->data, (size_t) width * height * 3);
        }

    } else if (width == from->width || height == from->height) {
        rc = pass(from, width, height, filter, to);

    } else {
        rc = pass(from, width, from->height, filter, &middle);

        if (rc == VLM_OK) {
            rc = pass(&middle, width, height, filter, to);
            vlm_image_free(&middle);
        }
    }

    if (rc != VLM_OK) {
        return vlm_fail(err, 500, NULL, "no memory to resize a picture to "
                        "%u x %u pixels", width, height);
    }

    return VLM_OK;
}
