
/*
 * The products that cuBLASLt does on a device, by plain loops: sums in
 * float32 over 16 lanes, rounded once; of bytes in integers.
 *
 * With VLM_EMU_GEMM_SHAPES=1 sums are split, into how many parts depends on
 * the problem, as a library's choice of an algorithm does: rows, strides,
 * alignments.  With VLM_EMU_GEMM_BARE=1 there are no products but those that
 * add nothing and have float32 or integer results.
 */

#include "kernels/cuda/kernel.cuh"


#define LANES  16

#define PARTS  7


VLM_CUDA_BEGIN


struct gemm_library_s {
    int  shapes;
    int  bare;
};


static void product(const vlm_gemm_t *g, int parts, float *x, float *w);
static void product_of_bytes(const vlm_gemm_t *g);


static int
is_set(const char *name)
{
    const char  *value = getenv(name);

    return value != NULL && strcmp(value, "1") == 0;
}


int
vlm_gemm_open(vlm_device_t *dev, char *err, size_t errlen)
{
    dev->gemm = (gemm_library_s *) calloc(1, sizeof(gemm_library_s));
    if (dev->gemm == NULL) {
        snprintf(err, errlen, "no memory for products");
        return -1;
    }

    dev->gemm->shapes = is_set("VLM_EMU_GEMM_SHAPES");
    dev->gemm->bare = is_set("VLM_EMU_GEMM_BARE");

    return 0;
}


void
vlm_gemm_close(vlm_device_t *dev)
{
    free(dev->gemm);
    dev->gemm = NULL;
}


size_t
vlm_gemm_bytes(void)
{
    return 0;
}


int
vlm_gemm_queue(vlm_queue_t *q)
{
    return 0;
}


void
vlm_gemm_queue_done(vlm_queue_t *q)
{
}


/* E4M3 */

static float
to_f32(f8_t x)
{
    int    e = x.bits >> 3 & 15, m = x.bits & 7;
    float  v;

    v = e == 15 && m == 7 ? NAN
        : e == 0 ? ldexpf((float) m, -9) : ldexpf((float) (8 + m), e - 10);

    return (x.bits & 0x80) != 0 ? -v : v;
}


static float
value(const void *p, vlm_dtype_t type, int64_t i)
{
    switch (type) {

    case VLM_BF16:
        return to_f32(((const bf16_t *) p)[i]);

    case VLM_F8:
        return to_f32(((const f8_t *) p)[i]);

    default:
        return ((const float *) p)[i];
    }
}


static void
widen(float *to, const void *from, vlm_dtype_t type, int64_t at, int64_t n)
{
    int64_t  i;

    for (i = 0; i < n; i++) {
        to[i] = value(from, type, at + i);
    }
}


static float
dot(const float *x, const float *w, int64_t k)
{
    int      j;
    float    sum[LANES], total;
    int64_t  i;

    for (j = 0; j < LANES; j++) {
        sum[j] = 0.0f;
    }

    for (i = 0; i + LANES <= k; i += LANES) {
        for (j = 0; j < LANES; j++) {
            sum[j] += x[i + j] * w[i + j];
        }
    }

    total = 0.0f;

    for ( ; i < k; i++) {
        total += x[i] * w[i];
    }

    for (j = 0; j < LANES; j++) {
        total += sum[j];
    }

    return total;
}


/* of the rows of a matrix, up to 16 bytes */

static uint64_t
alignment(const void *p, int64_t stride, vlm_dtype_t type)
{
    uint64_t  bits;

    bits = (uintptr_t) p | (uint64_t) stride * vlm_dtype_size(type) | 16;

    return bits & -bits;
}


static int
parts_of(const vlm_device_t *dev, const vlm_gemm_t *g)
{
    uint64_t  mix;

    if (!dev->gemm->shapes) {
        return 1;
    }

    mix = (uint64_t) g->rows;
    mix = mix * 31 + (uint64_t) g->x_stride;
    mix = mix * 31 + (uint64_t) g->y_stride;
    mix = mix * 31 + (uint64_t) g->add_stride;
    mix = mix * 31 + alignment(g->x, g->x_stride, g->type);
    mix = mix * 31 + alignment(g->y, g->y_stride, g->y_type);
    mix = mix * 31 + (g->add != NULL) * 2 + (g->bias != NULL);

    return 1 + (int) (mix % PARTS);
}


void
vlm_gemm(vlm_queue_t *q, const vlm_gemm_t *g, const char *op)
{
    if (vlm_gemm_try(q, g, op) == 0) {
        vlm_cuda_fail(q, "%s: no such product", op);
    }
}


int
vlm_gemm_try(vlm_queue_t *q, const vlm_gemm_t *g, const char *op)
{
    int         parts;
    vlm_gemm_t  copy = *g;

    if (q->failed) {
        return 1;
    }

    /* what the library asks for, or is known to refuse */

    if ((g->type == VLM_I8 || g->type == VLM_F8)
        && (g->n % 16 != 0 || g->k % 16 != 0 || g->rows % 32 != 0
            || alignment(g->x, g->x_stride, g->type) < 16
            || alignment(g->w, g->k, g->type) < 16
            || alignment(g->y, g->y_stride, g->y_type) < 16
            || g->add != NULL || g->bias != NULL || g->gelu))
    {
        return 0;
    }

    if (q->dev->gemm->bare && (g->bias != NULL || g->gelu || g->add != NULL
                               || g->y_type == VLM_BF16))
    {
        return 0;
    }

    parts = parts_of(q->dev, g);

    (void) vlm_cuda_check(q, vlm_emu_host(q->stream, [=]() -> int {
        int     rc;
        float  *x, *w;

        if (copy.type == VLM_I8) {
            product_of_bytes(&copy);
            return 0;
        }

        x = (float *) malloc((size_t) copy.rows * copy.k * sizeof(float));
        w = (float *) malloc((size_t) copy.k * sizeof(float));
        rc = x != NULL && w != NULL ? 0 : VLM_EMU_MEMORY;

        if (rc == 0) {
            product(&copy, parts, x, w);
        }

        free(x);
        free(w);

        return rc;
    }), op);

    return 1;
}


/* k is a multiple of 16 */

static int32_t
dot_of_bytes(const int8_t *x, const int8_t *w, int64_t k)
{
    int      j;
    int32_t  sum[LANES], total;
    int64_t  i;

    memset(sum, 0, sizeof(sum));

    for (i = 0; i < k; i += LANES) {
        for (j = 0; j < LANES; j++) {
            sum[j] += x[i + j] * w[i + j];
        }
    }

    total = 0;

    for (j = 0; j < LANES; j++) {
        total += sum[j];
    }

    return total;
}


static void
product_of_bytes(const vlm_gemm_t *g)
{
    int64_t        r, i;
    const int8_t  *x;

    for (r = 0; r < g->rows; r++) {
        x = (const int8_t *) g->x + r * g->x_stride;

        for (i = 0; i < g->n; i++) {
            ((int32_t *) g->y)[r * g->y_stride + i] =
                dot_of_bytes(x, (const int8_t *) g->w + i * g->k, g->k);
        }
    }
}


static void
product(const vlm_gemm_t *g, int parts, float *x, float *w)
{
    float    v;
    int64_t  r, i, j, part;

    part = (g->k + parts - 1) / parts;

    for (r = 0; r < g->rows; r++) {
        widen(x + r * g->k, g->x, g->type, r * g->x_stride, g->k);
    }

    for (i = 0; i < g->n; i++) {
        widen(w, g->w, g->type, i * g->k, g->k);

        for (r = 0; r < g->rows; r++) {
            v = 0.0f;

            for (j = 0; j < g->k; j += part) {
                v += dot(x + r * g->k + j, w + j,
                         g->k - j < part ? g->k - j : part);
            }

            if (g->bias != NULL) {
                v += value(g->bias, g->y_type, i);
            }

            if (g->gelu) {
                v = activate(v, VLM_ACT_GELU_TANH);
            }

            if (g->add != NULL) {
                v += value(g->add, g->y_type, r * g->add_stride + i);
            }

            if (g->y_type == VLM_BF16) {
                from_f32((bf16_t *) g->y + r * g->y_stride + i, v);

            } else {
                ((float *) g->y)[r * g->y_stride + i] = v;
            }
        }
    }
}


VLM_CUDA_END
