
/* devices of every instruction set and pool size, for the kernels' tests */

#ifndef KERNELS_RIG_H
#define KERNELS_RIG_H


#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "t/unit/lib/tap.h"


#define RIG_MAX  5

typedef struct {
    vlm_device_t     *dev;
    const vlm_ops_t  *ops;
    vlm_queue_t      *q;
    char              name[32];
} rig_t;


/* all that this machine has; the scalar one with one thread is the first */

static inline int
rigs_open(rig_t *rigs)
{
    int   i, n;
    char  err[256];

    static const struct {
        vlm_isa_t  isa;
        int        threads;
    } kinds[RIG_MAX] = {
        { VLM_CPU_SCALAR, 1 },
        { VLM_CPU_AVX2, 1 },
        { VLM_CPU_AVX2, 3 },
        { VLM_CPU_AVX512, 1 },
        { VLM_CPU_AVX512, 2 }
    };

    n = 0;

    for (i = 0; i < RIG_MAX; i++) {

        if (!vlm_cpu_has_isa(kinds[i].isa)) {
            continue;
        }

        rigs[n].dev = vlm_cpu_device_isa(kinds[i].isa, kinds[i].threads,
                                         &rigs[n].ops, err, sizeof(err));
        if (rigs[n].dev == NULL) {
            printf("Bail out! device: %s\n", err);
            exit(1);
        }

        rigs[n].q = rigs[n].ops->queue_create(rigs[n].dev, 0);
        snprintf(rigs[n].name, sizeof(rigs[n].name), "%s x%d",
                 rigs[n].ops->name, kinds[i].threads);
        n++;
    }

    return n;
}


static inline void
rigs_close(rig_t *rigs, int n)
{
    int  i;

    for (i = 0; i < n; i++) {
        rigs[i].ops->queue_destroy(rigs[i].q);
        vlm_cpu_device_destroy(rigs[i].dev);
    }
}


/* waits; a failure of the queue ends the test */

static inline void
rig_sync(rig_t *rig)
{
    char  err[256];

    if (rig->ops->sync(rig->q, err, sizeof(err)) != 0) {
        printf("Bail out! %s: %s\n", rig->name, err);
        exit(1);
    }
}


static inline vlm_tensor_t
rig_tensor(rig_t *rig, void *data, int64_t rows, int32_t cols)
{
    vlm_tensor_t  t;

    t.data = data;
    t.device = rig->dev;
    t.dtype = VLM_F32;
    t.rows = rows;
    t.cols = cols;
    t.stride = cols;

    return t;
}


static inline void *
rig_alloc(size_t size)
{
    void  *p = malloc(size != 0 ? size : 1);

    if (p == NULL) {
        printf("Bail out! no memory\n");
        exit(1);
    }

    return p;
}


static inline float *
rig_random(uint64_t *seed, size_t n, float scale)
{
    size_t   i;
    float   *p;

    p = rig_alloc(n * sizeof(float));

    for (i = 0; i < n; i++) {
        p[i] = tap_uniform(seed) * scale;
    }

    return p;
}


/* from 0 to n - 1 */

static inline int
rig_below(uint64_t *seed, int n)
{
    return (int) (tap_random(seed) % (uint64_t) n);
}


static inline size_t
rig_differ(const void *a, const void *b, size_t n)
{
    size_t           i, count;
    const uint32_t  *x = a, *y = b;

    count = 0;

    for (i = 0; i < n; i++) {
        count += x[i] != y[i];
    }

    return count;
}


#endif /* KERNELS_RIG_H */
