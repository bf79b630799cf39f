
/*
 * The CUDA device on the host's shim beside the CPU's, for its tests.  With
 * VLM_TEST_CUDA=1 it is the machine's first GPU instead: the same checks.
 */

#ifndef CUDA_RIG_H
#define CUDA_RIG_H


#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/vlm_cuda.h"
#include "kernels/emu/emu.h"
#include "t/unit/lib/tap.h"


typedef enum {
    RIG_CPU = 0,
    RIG_EMU,
    RIG_GPU
} rig_kind_t;

typedef struct {
    vlm_device_t     *dev;
    const vlm_ops_t  *ops;
    vlm_queue_t      *q;
    rig_kind_t        kind;
} rig_t;

/*
 * One operation on three devices: the CPU, the shim in float32, and the shim
 * in bfloat16, whose CPU twin gets rounded inputs.
 */

typedef struct {
    rig_t             cpu;
    rig_t             f32;
    rig_t             bf16;
} rigs_t;


static inline void
rig_stop(const char *what, const char *err)
{
    printf("Bail out! %s: %s\n", what, err);
    exit(1);
}


/* the shim, or the GPU in its place */

static inline rig_kind_t
rig_cuda(void)
{
    return getenv("VLM_TEST_CUDA") != NULL ? RIG_GPU : RIG_EMU;
}


static inline void
rig_open_as(rig_t *rig, rig_kind_t kind, const vlm_cuda_options_t *opt)
{
    char  err[256];

    rig->kind = kind;

    switch (kind) {

    case RIG_CPU:
        rig->dev = vlm_cpu_device(1, &rig->ops, err, sizeof(err));
        break;

    case RIG_EMU:
        rig->dev = vlm_emu_device(opt, &rig->ops, err, sizeof(err));
        break;

    default:
        rig->dev = vlm_cuda_device(0, opt, &rig->ops, err, sizeof(err));
        break;
    }

    if (rig->dev == NULL) {
        rig_stop("device", err);
    }

    rig->q = rig->ops->queue_create(rig->dev, 0);

    if (rig->q == NULL) {
        rig_stop("queue", "not created");
    }
}


static inline void
rig_open(rig_t *rig, rig_kind_t kind, int f32)
{
    vlm_cuda_options_t  opt;

    memset(&opt, 0, sizeof(opt));
    opt.f32 = f32;

    rig_open_as(rig, kind, &opt);
}


static inline void
rig_close(rig_t *rig)
{
    rig->ops->queue_destroy(rig->q);

    switch (rig->kind) {

    case RIG_CPU:
        vlm_cpu_device_destroy(rig->dev);
        break;

    case RIG_EMU:
        vlm_emu_device_destroy(rig->dev);
        break;

    default:
        vlm_cuda_device_destroy(rig->dev);
        break;
    }
}


static inline void
rigs_open(rigs_t *rigs)
{
    rig_open(&rigs->cpu, RIG_CPU, 1);
    rig_open(&rigs->f32, rig_cuda(), 1);
    rig_open(&rigs->bf16, rig_cuda(), 0);
}


static inline void
rigs_close(rigs_t *rigs)
{
    rig_close(&rigs->cpu);
    rig_close(&rigs->f32);
    rig_close(&rigs->bf16);
}


static inline void
rig_sync(rig_t *rig)
{
    char  err[256];

    if (rig->ops->sync(rig->q, err, sizeof(err)) != 0) {
        rig_stop(rig->ops->name, err);
    }
}


static inline void *
rig_memory(size_t size)
{
    void  *p = malloc(size != 0 ? size : 1);

    if (p == NULL) {
        rig_stop("memory", "none");
    }

    return p;
}


static inline float *
rig_random(uint64_t *seed, size_t n, float scale)
{
    size_t   i;
    float   *p;

    p = rig_memory(n * sizeof(float));

    for (i = 0; i < n; i++) {
        p[i] = tap_uniform(seed) * scale;
    }

    return p;
}


static inline int
rig_below(uint64_t *seed, int n)
{
    return (int) (tap_random(seed) % (uint64_t) n);
}


static inline uint16_t
rig_bf16(float x)
{
    uint32_t  bits;

    memcpy(&bits, &x, sizeof(bits));

    return (uint16_t) ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}


static inline float
rig_from_bf16(uint16_t h)
{
    float     x;
    uint32_t  bits = (uint32_t) h << 16;

    memcpy(&x, &bits, sizeof(x));

    return x;
}


/* to the values that bfloat16 has */

static inline void
rig_round(float *x, size_t n)
{
    size_t  i;

    for (i = 0; i < n; i++) {
        x[i] = rig_from_bf16(rig_bf16(x[i]));
    }
}


/* device memory with these values, of the type; NULL: rows of nothing yet */

static inline vlm_tensor_t
rig_tensor(rig_t *rig, const float *x, int64_t rows, int32_t cols,
    int32_t stride, vlm_dtype_t type)
{
    size_t        size, i, n;
    uint16_t     *h;
    vlm_tensor_t  t;

    n = rows == 0 ? 0 : (size_t) ((rows - 1) * stride + cols);
    size = n * vlm_dtype_size(type);

    t.device = rig->dev;
    t.dtype = type;
    t.rows = rows;
    t.cols = cols;
    t.stride = stride;
    t.data = rig->ops->alloc(rig->dev, size);

    if (t.data == NULL) {
        rig_stop("memory", rig->ops->name);
    }

    if (x == NULL) {
        return t;
    }

    if (type == VLM_F32) {
        rig->ops->upload(rig->q, t.data, x, size);
        rig_sync(rig);
        return t;
    }

    h = rig_memory(size);

    for (i = 0; i < n; i++) {
        h[i] = rig_bf16(x[i]);
    }

    rig->ops->upload(rig->q, t.data, h, size);
    rig_sync(rig);
    free(h);

    return t;
}


/* an activation */

static inline vlm_tensor_t
rig_act(rig_t *rig, const float *x, int64_t rows, int32_t cols)
{
    return rig_tensor(rig, x, rows, cols, cols, rig->ops->act_dtype);
}


static inline void
rig_free(rig_t *rig, vlm_tensor_t *t)
{
    rig->ops->free(rig->dev, t->data);
}


/* the rows without gaps, as float32, to be freed */

static inline float *
rig_values(rig_t *rig, const vlm_tensor_t *t)
{
    char     *raw;
    float    *x;
    size_t    size, es;
    int64_t   r, i;
    uint16_t  h;

    es = vlm_dtype_size(t->dtype);
    size = t->rows == 0 ? 0
           : (size_t) ((t->rows - 1) * t->stride + t->cols) * es;
    raw = rig_memory(size);
    x = rig_memory((size_t) t->rows * t->cols * sizeof(float));

    rig->ops->download(rig->q, raw, t->data, size);
    rig_sync(rig);

    for (r = 0; r < t->rows; r++) {

        for (i = 0; i < t->cols; i++) {

            if (t->dtype == VLM_F32) {
                memcpy(&x[r * t->cols + i],
                       raw + (size_t) (r * t->stride + i) * es, es);

            } else {
                memcpy(&h, raw + (size_t) (r * t->stride + i) * es, es);
                x[r * t->cols + i] = rig_from_bf16(h);
            }
        }
    }

    free(raw);

    return x;
}


/*
 * The greatest difference, in units of "unit": a part of the value, and of
 * 1 near zero.
 */

static inline double
rig_worst(const float *got, const float *expected, size_t n, double unit)
{
    size_t  i;
    double  d, worst;

    worst = 0.0;

    for (i = 0; i < n; i++) {
        d = fabs((double) got[i] - expected[i])
            / (unit * (fabs((double) expected[i]) + 1.0));

        if (!(d <= worst)) {
            worst = d;
        }
    }

    return worst;
}

/* half of a unit in bfloat16's last place, and float32's allowance */
#define RIG_BF16  (1.0 / 256)
#define RIG_F32   1e-5


#endif /* CUDA_RIG_H */
