
/*
 * Inside the CUDA device.  The sources are compiled twice: by nvcc, and with
 * VLM_EMU by the host's C++ compiler against kernels/emu.  Rules for kernels:
 *
 * - launched by VLM_LAUNCH, shared memory by VLM_SHARED and VLM_DYNAMIC (more
 *   than 48 KB: VLM_ALLOW_SHARED before the launch), barriers by VLM_SYNC and
 *   VLM_SYNC_WARP, shuffles by vlm_shfl_xor() and vlm_shfl(), votes by
 *   vlm_any(), copies in the background by VLM_COPY_ASYNC;
 * - tensor cores by nvcuda::wmma in 16 x 16 x 16 of bfloat16 (matrix.cuh):
 *   which element of a fragment is where is nobody's to know; fragments of
 *   one type may be combined element by element, and that is all;
 * - blocks have one dimension, a multiple of 32; every thread of a block
 *   reaches every barrier, and every lane of a warp every shuffle, vote and
 *   operation on fragments (no early return in front of them);
 * - no inline PTX, nothing that needs lanes to keep step or blocks to meet.
 *
 * The host's part of an operation: vlm_cuda_begin(), checks, launches.  It
 * never waits, and allocates only when a shape is larger than all before it.
 */

#ifndef VLM_CUDA_INTERNAL_H
#define VLM_CUDA_INTERNAL_H


#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/vlm_cuda.h"

#ifdef VLM_EMU

#include "kernels/emu/emu.h"

#define VLM_CUDA_BEGIN  namespace vlm_emu_device_ns {
#define VLM_CUDA_END    }

#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline_primitives.h>
#include <cuda_runtime_api.h>

#define VLM_CUDA_BEGIN  namespace vlm_cuda_device_ns {
#define VLM_CUDA_END    }

#endif


VLM_CUDA_BEGIN
struct gemm_state_s;
struct gemm_library_s;
struct reserve_s;
struct graphs_s;
VLM_CUDA_END

#ifdef VLM_EMU
#define vlm_cuda_ns  vlm_emu_device_ns
#else
#define vlm_cuda_ns  vlm_cuda_device_ns
#endif


/* queues of a device at a time */
#define VLM_CUDA_QUEUES  8

typedef struct {
    uint64_t                      begun;            /* operations, atomic */
    uint64_t                      done;             /* seen so far, atomic */
    int                           taken;
} vlm_progress_t;

struct vlm_device_s {
    int                           index;
    vlm_dtype_t                   act;
    int                           deterministic;
    int                           no_graphs;
    vlm_ops_t                     ops;
    char                          name[96];
    int                           low_priority;
    int                           high_priority;
    int                           multiprocessors;
    int                           capability;       /* 89: 8.9 */
    int                           lost;             /* an error that stays */

    vlm_cuda_ns::gemm_library_s  *gemm;

    pthread_mutex_t               recording;        /* held while a queue
                                                       records, and to wait
                                                       for the device */

    pthread_mutex_t               lock;             /* of parts, "taken" */
    vlm_cuda_ns::reserve_s       *memory;           /* NULL: the driver's */
    vlm_cuda_ns::reserve_s       *host_memory;
    vlm_progress_t                progress[VLM_CUDA_QUEUES];

    cudaStream_t                  loader;           /* weights */
    void                         *staging[2];       /* pinned */
    size_t                        staging_size;
    cudaEvent_t                   staged[2];
};


/* host memory that is filled at sync() */

#define VLM_CUDA_DELIVERIES  64

typedef struct {
    void                         *to;
    const void                   *from;             /* pinned */
    size_t                        size;
} vlm_delivery_t;

typedef enum {
    VLM_GRAPH_NONE = 0,
    VLM_GRAPH_EAGER,            /* operations run one by one */
    VLM_GRAPH_RECORD
} vlm_graph_mode_t;

struct vlm_queue_s {
    vlm_device_t                 *dev;
    int                           number;           /* of its progress */
    cudaStream_t                  stream;
    int                           failed;
    char                          err[256];

    void                         *scratch;          /* device memory */
    size_t                        scratch_size;

    char                         *ring;             /* pinned, and its twin */
    char                         *ring_device;
    size_t                        ring_size;        /* of both halves */
    size_t                        ring_used;
    size_t                        ring_end;         /* of the half in use */
    cudaEvent_t                   turned[2];        /* a half was left */
    vlm_step_t                    spare;            /* for the first step */
    vlm_delivery_t                deliveries[VLM_CUDA_DELIVERIES];
    int                           ndeliveries;

    vlm_cuda_ns::gemm_state_s    *gemm;

    vlm_graph_mode_t              graph;            /* begun, not ended */
    vlm_cuda_ns::graphs_s        *graphs;
};


VLM_CUDA_BEGIN


/* ---- queue.cu ---- */

/* 0: the queue works, and its device is the thread's; -1: it has failed */
int vlm_cuda_begin(vlm_queue_t *q);

/* memory that a queue takes, and takes it at once */
size_t vlm_cuda_queue_bytes(vlm_device_t *dev, const vlm_limits_t *most);
int vlm_cuda_queue_reserve(vlm_queue_t *q, const vlm_limits_t *most,
    char *err, size_t errlen);

/* the first failure sticks until sync() */
void vlm_cuda_fail(vlm_queue_t *q, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* 0, or -1: the queue has failed with the operation's name and the error's */
int vlm_cuda_check(vlm_queue_t *q, cudaError_t rc, const char *op);

/* 0, or -1: the queue has failed, for the operation is not for graphs */
int vlm_cuda_ungraphed(vlm_queue_t *q, const char *op);

/* all queues' work; never while one of them records */
cudaError_t vlm_cuda_wait_all(vlm_device_t *dev);

/*
 * Device memory for one operation's intermediate results, until the next
 * operation of the queue asks.  NULL: the queue has failed.
 */
void *vlm_cuda_scratch(vlm_queue_t *q, size_t size, const char *op);

/*
 * Small host data on the device, until the queue is synced; the host's may
 * change at once.  NULL: the queue has failed.
 */
const void *vlm_cuda_stage(vlm_queue_t *q, const void *host, size_t size,
    const char *op);

/* small device data to host memory, there after sync() */
void vlm_cuda_deliver(vlm_queue_t *q, void *host, const void *from,
    size_t size, const char *op);

vlm_queue_t *vlm_cuda_queue_create(vlm_device_t *dev, int low_priority);
void vlm_cuda_queue_destroy(vlm_queue_t *q);
int vlm_cuda_sync(vlm_queue_t *q, char *err, size_t errlen);
int vlm_cuda_failed(vlm_queue_t *q);
void vlm_cuda_upload(vlm_queue_t *q, void *to, const void *host, size_t size);
void vlm_cuda_download(vlm_queue_t *q, void *host, const void *from,
    size_t size);


/* ---- graph.cu ---- */

int vlm_cuda_graph_begin(vlm_queue_t *q, const vlm_step_t *step,
    uint64_t work);
int vlm_cuda_graph_end(vlm_queue_t *q, char *err, size_t errlen);
void vlm_cuda_graphs_done(vlm_queue_t *q);


/* ---- memory.cu ---- */

void *vlm_cuda_alloc(vlm_device_t *dev, size_t size);
void vlm_cuda_free(vlm_device_t *dev, void *data);
void vlm_cuda_memory_done(vlm_device_t *dev);
void *vlm_cuda_host_alloc(vlm_device_t *dev, size_t size);
void vlm_cuda_host_free(vlm_device_t *dev, void *data);

/* the driver's own, for queues and steps */
void *vlm_cuda_pinned_alloc(vlm_device_t *dev, size_t size);
void vlm_cuda_pinned_free(vlm_device_t *dev, void *data);
int vlm_cuda_reserve(vlm_device_t *dev, size_t size, size_t host_size,
    char *err, size_t errlen);
void vlm_cuda_reserved(vlm_device_t *dev, vlm_reserve_t *memory,
    vlm_reserve_t *host);

/* a queue's number, -1: there are too many */
int vlm_cuda_progress_open(vlm_device_t *dev);
void vlm_cuda_progress_close(vlm_device_t *dev, int number);

/* operations of a queue so far, and: so many have been seen to be done */
uint64_t vlm_cuda_begun(vlm_device_t *dev, int number);
void vlm_cuda_progress(vlm_device_t *dev, int number, uint64_t count);


/* ---- fence.cu ---- */

vlm_fence_t *vlm_cuda_fence_create(vlm_device_t *dev);
void vlm_cuda_fence_destroy(vlm_fence_t *fence);
void vlm_cuda_record(vlm_queue_t *q, vlm_fence_t *fence);
void vlm_cuda_wait(vlm_queue_t *q, vlm_fence_t *fence);
int vlm_cuda_reached(vlm_fence_t *fence);


/* ---- cublas.cu, and kernels/emu/gemm.cu: y = x . w^T ---- */

typedef struct {
    const void         *x;              /* [rows, k] */
    const void         *w;              /* [n, k] without gaps */
    void               *y;              /* [rows, n] */
    const void         *bias;           /* n of y's type, or NULL */
    const void         *add;            /* [rows, n] of y's type, may be y,
                                           or NULL */
    int64_t             rows;
    int64_t             n;
    int64_t             k;
    int64_t             x_stride;
    int64_t             y_stride;
    int64_t             add_stride;
    vlm_dtype_t         type;           /* of x and w */
    vlm_dtype_t         y_type;         /* the same or F32; of I8 it is I32,
                                           of F8 it is F32; n and k are then
                                           multiples of 16, rows of 32 */
    int                 gelu;           /* tanh form, after the bias; not
                                           with add */
} vlm_gemm_t;

size_t vlm_gemm_bytes(void);            /* that a queue takes */
int vlm_gemm_open(vlm_device_t *dev, char *err, size_t errlen);
void vlm_gemm_close(vlm_device_t *dev);
int vlm_gemm_queue(vlm_queue_t *q);
void vlm_gemm_queue_done(vlm_queue_t *q);
void vlm_gemm(vlm_queue_t *q, const vlm_gemm_t *g, const char *op);

/* 0: the library has no such product, and nothing was done; else vlm_gemm() */
int vlm_gemm_try(vlm_queue_t *q, const vlm_gemm_t *g, const char *op);


/*
 * ---- weights.cu ----
 *
 * A weight is [n, k] of the device's activation type without gaps; GATED:
 * the gate's rows, then the up's; quantised: see quant.h.  Its bias is
 * float32, and once more in the activation type behind the matrix.
 */

int vlm_cuda_weight_create(vlm_device_t *dev, vlm_weight_t *w,
    vlm_weight_layout_t layout, vlm_quant_t quant,
    const vlm_host_matrix_t *parts, const vlm_host_matrix_t *biases,
    int nparts, char *err, size_t errlen);
void vlm_cuda_weight_destroy(vlm_weight_t *w);

/* the bias in the activation type, or NULL */
const void *vlm_cuda_weight_bias(const vlm_weight_t *w);


/*
 * ---- step.cu ----
 *
 * A step on the device: row r belongs to sequence seq[r] and is at
 * position[r] in the cache.
 */

typedef struct {
    int32_t             nrows;
    int32_t             nseqs;
    int32_t             max_blocks;
    int32_t             npairs;
    const int32_t      *row_start;      /* [nseqs + 1] */
    const int32_t      *context;        /* [nseqs] */
    const int32_t      *blocks;         /* [nseqs][max_blocks] */
    const int32_t      *ids;            /* [nrows] */
    const int32_t      *seq;            /* [nrows] */
    const int32_t      *position;       /* [nrows] */
    const float        *table;          /* [nrows][2 npairs] cos, sin */
} vlm_cuda_step_t;

const vlm_cuda_step_t *vlm_cuda_step(const vlm_step_t *step);

int vlm_cuda_step_upload(vlm_queue_t *q, vlm_step_t *step,
    const vlm_step_host_t *host, const vlm_rope_t *rope);
void vlm_cuda_step_free(vlm_device_t *dev, vlm_step_t *step);

/* memory of the largest step, and a step that has it */
size_t vlm_cuda_step_bytes(const vlm_limits_t *most);
int vlm_cuda_step_reserve(vlm_queue_t *q, vlm_step_t *step, size_t size);

/* cosines and sines; positions [naxes][rows] are the device's */
void vlm_cuda_table(vlm_queue_t *q, float *table, int64_t stride,
    const int32_t *positions, int32_t rows, const vlm_rope_t *rope,
    const char *op);


/*
 * ---- rope.cu ----
 *
 * The cache in the activation type: a block is [kv_heads][2: k, v]
 * [block_size][head_dim].  Vision keys and values: [rows][2: k, v]
 * [heads * head_dim].
 */

size_t vlm_cuda_kv_block_bytes(vlm_device_t *dev, int32_t block_size,
    int32_t kv_heads, int32_t head_dim);
size_t vlm_cuda_vision_kv_bytes(vlm_device_t *dev, const vlm_segments_t *seg);
void vlm_cuda_rope_kv(vlm_queue_t *q, const vlm_step_t *step,
    const vlm_tensor_t *qkv, int32_t heads, const vlm_kv_t *kv,
    const float *q_gain, const float *k_gain, float eps);
void vlm_cuda_vision_rope(vlm_queue_t *q, const vlm_segments_t *seg,
    const vlm_tensor_t *qkv, const vlm_tensor_t *table, int64_t row0,
    void *kv);


/* ---- operations, by file ---- */

/* rows.cu */
void vlm_cuda_convert(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x);
void vlm_cuda_scatter(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const int32_t *to, int32_t n);
void vlm_cuda_gather(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const int32_t *from, int32_t n);
void vlm_cuda_embed(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_weight_t *w, const vlm_step_t *step);
void vlm_cuda_norm(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const float *gain, const float *bias, float eps,
    vlm_norm_kind_t kind);

/* pixels.cu */
void vlm_cuda_rope_table(vlm_queue_t *q, const vlm_tensor_t *table,
    const int32_t *positions, const vlm_rope_t *rope);
void vlm_cuda_patchify(vlm_queue_t *q, const vlm_tensor_t *y,
    const uint8_t *rgb, const vlm_patch_geometry_t *geo, int64_t patch0);

/*
 * With some: what they take of vlm_cuda_scratch() and vlm_cuda_stage() for
 * the largest work; here and where it is asked for must be the same.
 */

/* linear.cu */
size_t vlm_cuda_linear_scratch(vlm_device_t *dev, const vlm_limits_t *most);
void vlm_cuda_linear(vlm_queue_t *q, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const vlm_weight_t *w, vlm_act_t act,
    const vlm_tensor_t *residual);

/* attention.cu, attention_decode.cu */
size_t vlm_cuda_attention_stage(const vlm_limits_t *most);
size_t vlm_cuda_attention_scratch(const vlm_limits_t *most);
void vlm_cuda_attention(vlm_queue_t *q, const vlm_step_t *step,
    const vlm_tensor_t *y, const vlm_tensor_t *qkv, int32_t heads,
    const vlm_kv_t *kv);

/* vision_attention.cu */
void vlm_cuda_vision_attention(vlm_queue_t *q, const vlm_segments_t *seg,
    const vlm_tensor_t *y, const vlm_tensor_t *qkv, int64_t row0,
    const void *kv);

/* sample.cu */
size_t vlm_cuda_sample_stage(const vlm_limits_t *most);
size_t vlm_cuda_sample_scratch(const vlm_limits_t *most);
void vlm_cuda_sample(vlm_queue_t *q, const vlm_tensor_t *logits,
    const vlm_sample_t *params, vlm_sampled_t *out);


VLM_CUDA_END

using namespace vlm_cuda_ns;


#endif /* VLM_CUDA_INTERNAL_H */
