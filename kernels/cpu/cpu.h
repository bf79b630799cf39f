
/*
 * Inside the CPU device: the device and queue structs, the thread pool, and
 * the table of kernels that each instruction set fills.
 *
 * An operation of vlm_ops_t (ops_*.c, compiled once) splits its work over the
 * pool and calls kernels on ranges of it.  Kernels (NAME_scalar.c,
 * NAME_avx2.c, NAME_avx512.c) are compiled once for each instruction set,
 * mostly from one NAME_impl.h over the 16 logical lanes of vec.h.
 */

#ifndef VLM_CPU_H
#define VLM_CPU_H


#include "kernels/ops.h"


typedef enum {
    VLM_CPU_SCALAR = 0,
    VLM_CPU_AVX2,               /* AVX2, FMA, F16C */
    VLM_CPU_AVX512              /* F, BW, VL, DQ */
} vlm_isa_t;


/* ---- the pool (pool.c) ---- */

typedef struct vlm_pool_s  vlm_pool_t;

typedef void (*vlm_task_pt)(void *arg, int task, int worker);

vlm_pool_t *vlm_pool_create(int nthreads, char *err, size_t errlen);
void vlm_pool_destroy(vlm_pool_t *pool);
int vlm_pool_size(const vlm_pool_t *pool);

/*
 * Runs fn(arg, task, worker) for task 0 .. ntasks - 1 and returns when all
 * are done; the caller is worker 0.  Tasks are taken dynamically: a result
 * must not depend on which worker ran it.  One caller at a time.
 */
void vlm_pool_run(vlm_pool_t *pool, int ntasks, vlm_task_pt fn, void *arg);

/* CPUs that this process may use: affinity mask and cgroup quota (cpus.c) */
int vlm_cpu_count(void);


/* ---- device and queue (device.c) ---- */

typedef struct vlm_cpu_linear_s  vlm_cpu_linear_t;      /* linear.h */
typedef struct vlm_cpu_rows_s    vlm_cpu_rows_t;        /* rows.h */
typedef struct vlm_cpu_attn_s    vlm_cpu_attn_t;        /* attn.h */

struct vlm_device_s {
    vlm_isa_t                isa;
    vlm_pool_t              *pool;
    const vlm_cpu_linear_t  *linear;
    const vlm_cpu_linear_t  *linear_i8;
    const vlm_cpu_rows_t    *rows;
    const vlm_cpu_attn_t    *attn;
};

struct vlm_queue_s {
    vlm_device_t        *dev;
    int                  failed;
    char                 err[256];
    void               **scratch;       /* [workers], grown on demand */
    size_t              *scratch_size;
    void                *shared;        /* one more, for all workers */
    size_t               shared_size;
};

/* vlm_cpu_device() with a given instruction set, for tests */
int vlm_cpu_has_isa(vlm_isa_t isa);
int vlm_cpu_has_vnni(void);
vlm_device_t *vlm_cpu_device_isa(vlm_isa_t isa, int nthreads,
    const vlm_ops_t **ops, char *err, size_t errlen);

/* ops->alloc(); of free() */
void *vlm_cpu_alloc(size_t size);

/* the first failure sticks until sync() */
void vlm_cpu_fail(vlm_queue_t *q, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/*
 * Work memory, 64-byte aligned, kept between operations, contents undefined.
 * Call before vlm_pool_run(), not from a task: worker -1 is the shared one,
 * and vlm_cpu_scratch_all() grows that of every worker.  NULL: no memory,
 * and the queue has failed.
 */
void *vlm_cpu_shared(vlm_queue_t *q, size_t size);
int vlm_cpu_scratch_all(vlm_queue_t *q, size_t size);

static inline void *
vlm_cpu_scratch(vlm_queue_t *q, int worker)
{
    return q->scratch[worker];
}


/* ---- operations, by file ---- */

/* ops_linear.c */
int vlm_cpu_weight_create(vlm_device_t *dev, vlm_weight_t *w,
    vlm_weight_layout_t layout, vlm_quant_t quant,
    const vlm_host_matrix_t *parts, const vlm_host_matrix_t *biases,
    int nparts, char *err, size_t errlen);
void vlm_cpu_weight_destroy(vlm_weight_t *w);
void vlm_cpu_linear(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const vlm_weight_t *w, vlm_act_t act,
    const vlm_tensor_t *residual);
void vlm_cpu_embed(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_weight_t *w, const vlm_step_t *step);

/* ops_rows.c */
void vlm_cpu_convert(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x);
void vlm_cpu_scatter(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const int32_t *to, int32_t n);
void vlm_cpu_gather(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const int32_t *from, int32_t n);
void vlm_cpu_norm(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const float *gain, const float *bias, float eps,
    vlm_norm_kind_t kind);
void vlm_cpu_rope_table(vlm_queue_t *q, const vlm_tensor_t *table,
    const int32_t *positions, const vlm_rope_t *rope);
void vlm_cpu_patchify(vlm_queue_t *q, const vlm_tensor_t *y,
    const uint8_t *rgb, const vlm_patch_geometry_t *geo, int64_t patch0);

/* ops_attn.c */
size_t vlm_cpu_kv_block_bytes(vlm_device_t *dev, int32_t block_size,
    int32_t kv_heads, int32_t head_dim);
size_t vlm_cpu_vision_kv_bytes(vlm_device_t *dev, const vlm_segments_t *seg);
int vlm_cpu_step_upload(vlm_queue_t *q, vlm_step_t *step,
    const vlm_step_host_t *host, const vlm_rope_t *rope);
void vlm_cpu_step_free(vlm_device_t *dev, vlm_step_t *step);
void vlm_cpu_rope_kv(vlm_queue_t *q, const vlm_step_t *step,
    const vlm_tensor_t *qkv, int32_t heads, const vlm_kv_t *kv,
    const float *q_gain, const float *k_gain, float eps);
void vlm_cpu_attention(vlm_queue_t *q, const vlm_step_t *step,
    const vlm_tensor_t *y, const vlm_tensor_t *qkv, int32_t heads,
    const vlm_kv_t *kv);
void vlm_cpu_vision_rope(vlm_queue_t *q, const vlm_segments_t *seg,
    const vlm_tensor_t *qkv, const vlm_tensor_t *table, int64_t row0,
    void *kv);
void vlm_cpu_vision_attention(vlm_queue_t *q, const vlm_segments_t *seg,
    const vlm_tensor_t *y, const vlm_tensor_t *qkv, int64_t row0,
    const void *kv);

/* ops_sample.c */
void vlm_cpu_sample(vlm_queue_t *q, const vlm_tensor_t *logits,
    const vlm_sample_t *params, vlm_sampled_t *out);


#endif /* VLM_CPU_H */
