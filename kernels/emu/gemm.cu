
/*
 * The products that cuBLASLt does on a device, by plain loops: sums in
 * float32 over 16 lanes, rounded once.
 */

#include "kernels/cuda/kernel.cuh"


#define LANES  16


VLM_CUDA_BEGIN


static void product(const vlm_gemm_t *g, float *x, float *w);


int
vlm_gemm_open(vlm_device_t *dev, char *err, size_t errlen)
{
    return 0;
}


void
vlm_gemm_close(vlm_device_t *dev)
{
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


static float
value(const void *p, vlm_dtype_t type, int64_t i)
{
    return type == VLM_BF16 ? to_f32(((const bf16_t *) p)[i])
                            : ((const float *) p)[i];
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


void
vlm_gemm(vlm_queue_t *q, const vlm_gemm_t *g, const char *op)
{
    vlm_gemm_t  copy = *g;

    if (q->failed) {
        return;
    }

    (void) vlm_cuda_check(q, vlm_emu_host(q->stream, [=]() -> int {
        int     rc;
        float  *x, *w;

        x = (float *) malloc((size_t) copy.rows * copy.k * sizeof(float));
        w = (float *) malloc((size_t) copy.k * sizeof(float));
        rc = x != NULL && w != NULL ? 0 : VLM_EMU_MEMORY;

        if (rc == 0) {
            product(&copy, x, w);
        }

        free(x);
        free(w);

        return rc;
    }), op);
}


static void
product(const vlm_gemm_t *g, float *x, float *w)
{
    float    v;
    int64_t  r, i;

    for (r = 0; r < g->rows; r++) {
        widen(x + r * g->k, g->x, g->type, r * g->x_stride, g->k);
    }

    for (i = 0; i < g->n; i++) {
        widen(w, g->w, g->type, i * g->k, g->k);

        for (r = 0; r < g->rows; r++) {
            v = dot(x + r * g->k, w, g->k);

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
