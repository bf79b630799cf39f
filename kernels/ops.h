
/*
 * The operations: all arithmetic that a model needs, behind one table that a
 * device fills.  Model code calls nothing else and never looks into a
 * tensor's data, which may be memory of another device.
 *
 * Queues.  Every operation is put on a queue and may run later; operations of
 * one queue run in order.  Operations return nothing: the first failure of a
 * queue sticks and is reported by sync().  The CPU device runs an operation
 * before it returns, on its thread pool; one queue must not be used by two
 * threads at once.
 *
 * Host memory that an operation reads (ids, positions, a step's tables, host
 * data of upload()) must stay unchanged until the queue has been synced, or a
 * fence been reached that was recorded behind the operation.
 *
 * Arithmetic.  The CPU device computes in float32.  Each output of a product
 * is a sequential sum over k, in order, by fused multiply-add, starting from
 * the bias (or 0); other sums over a row run over 16 lanes (element i in lane
 * i % 16, each lane in order, then the lanes as a balanced tree: 0+8, 1+9 ...
 * then 0+4 ..., 0+2 ..., 0+1).  Attention walks the keys in tiles of 16 whose
 * borders are absolute positions.  So a row's result has the same bits alone
 * or in a batch, in whatever chunks, on every instruction set.
 */

#ifndef VLM_OPS_H
#define VLM_OPS_H


#include <stddef.h>
#include <stdint.h>


typedef enum {
    VLM_F32 = 0,
    VLM_BF16,
    VLM_F16,
    VLM_I8,                     /* with one float32 scale a row */
    VLM_U8,
    VLM_I32,
    VLM_F8                      /* E4M3, with one float32 scale a row */
} vlm_dtype_t;

typedef struct vlm_device_s  vlm_device_t;      /* a device's own */
typedef struct vlm_queue_s   vlm_queue_t;
typedef struct vlm_fence_s   vlm_fence_t;


/*
 * A matrix [rows, cols], row-major; stride is the distance of two rows in
 * elements.  Not owned: whoever called alloc() frees data.
 */

typedef struct {
    void               *data;
    vlm_device_t       *device;
    vlm_dtype_t         dtype;
    int32_t             cols;
    int64_t             rows;
    int64_t             stride;
} vlm_tensor_t;


/* a matrix in host memory, row-major without gaps: a checkpoint's tensor */

typedef struct {
    const void         *data;
    vlm_dtype_t         dtype;              /* F32, BF16 or F16 */
    int64_t             rows;
    int64_t             cols;
} vlm_host_matrix_t;


/* how weights are laid out on the device */

typedef enum {
    VLM_WEIGHT_PLAIN = 0,       /* parts below each other: q, k, v */
    VLM_WEIGHT_GATED            /* two parts, gate and up: y = act(g) * u */
} vlm_weight_layout_t;

/*
 * How weights are made smaller.  INT8: a row of w, and at run time a row of
 * x, of greatest magnitude m becomes rint(v * (127 / m)), to even, with the
 * scale m / 127 (a row of zeros: 0; of nothing above 2^-100: zeros, too; with
 * an infinity or a NaN: NaN).  The product of the integers is exact;
 * y = fma((float) sum, scale of x * scale of w, bias), then as ever.  FP8:
 * the same with E4M3, 448 for 127, and a float32 sum.
 */

typedef enum {
    VLM_QUANT_NONE = 0,
    VLM_QUANT_INT8,
    VLM_QUANT_FP8
} vlm_quant_t;

/* a weight [n, k] on the device, in the device's own packing */

typedef struct {
    void               *data;               /* NULL: no weight */
    float              *bias;               /* device memory, n, or NULL */
    float              *scale;              /* the same, I8 and F8 */
    vlm_device_t       *device;
    vlm_dtype_t         dtype;              /* as stored */
    vlm_weight_layout_t layout;
    int64_t             n;                  /* outputs; GATED: of both parts */
    int64_t             k;                  /* inputs */
    size_t              bytes;              /* memory that it takes */
} vlm_weight_t;


typedef enum {
    VLM_ACT_NONE = 0,
    VLM_ACT_SILU,
    VLM_ACT_GELU,               /* exact, by erf */
    VLM_ACT_GELU_TANH,
    VLM_ACT_QUICK_GELU          /* x * sigmoid(1.702 x) */
} vlm_act_t;

typedef enum {
    VLM_NORM_RMS = 0,
    VLM_NORM_LAYER
} vlm_norm_kind_t;


/*
 * Rotary positions: pair i (elements i and i + npairs of a head) turns by
 * position[axis[i]] * inv_freq[i].
 */

#define VLM_ROPE_MAX_PAIRS      256
#define VLM_ROPE_MAX_AXES       3

typedef struct {
    int32_t             npairs;             /* head_dim / 2 */
    int32_t             naxes;              /* rows of positions: 1 to 3 */
    float               inv_freq[VLM_ROPE_MAX_PAIRS];
    uint8_t             axis[VLM_ROPE_MAX_PAIRS];
} vlm_rope_t;


/*
 * The key/value cache of one layer: nblocks blocks, each of
 * kv_block_bytes() bytes, of block_size positions (a multiple of 16) for all
 * kv heads.  The layout inside a block is the device's own.
 */

typedef struct {
    void               *data;
    vlm_device_t       *device;
    int32_t             nblocks;
    int32_t             block_size;
    int32_t             kv_heads;
    int32_t             head_dim;
} vlm_kv_t;


/*
 * One forward step over rows of several sequences, uploaded once and used by
 * all layers.  Rows of a sequence are consecutive tokens, from "context[s]"
 * (tokens already in the cache) on.  The host arrays belong to the caller.
 */

typedef struct {
    int32_t             nrows;
    int32_t             nseqs;
    const int32_t      *row_start;          /* [nseqs + 1] */
    const int32_t      *context;            /* [nseqs] */
    const int32_t      *blocks;             /* [nseqs][max_blocks] */
    int32_t             max_blocks;
    const int32_t      *ids;                /* [nrows] */
    const int32_t      *positions;          /* [naxes][nrows] */
} vlm_step_host_t;

typedef struct {
    vlm_step_host_t     host;
    void               *data;               /* the device's own */
    size_t              size;
} vlm_step_t;


/*
 * Attention of the vision tower: nsegments runs of rows that each attend to
 * themselves alone (a picture or a window of one).
 */

typedef struct {
    int32_t             nsegments;
    const int32_t      *start;              /* [nsegments + 1] rows */
    int32_t             heads;
    int32_t             head_dim;
} vlm_segments_t;


/* picture (bytes, RGB interleaved) to rows of patches */

typedef struct {
    int32_t             width;              /* multiples of patch * merge */
    int32_t             height;
    int32_t             patch;
    int32_t             merge;              /* order: merge x merge blocks */
    int32_t             frames;             /* copies of a still picture */
    float               mean[3];
    float               std[3];
} vlm_patch_geometry_t;


/* sampling of one row of logits; see kernels/cpu/sample.c for the order */

typedef struct {
    int32_t             id;
    float               bias;               /* logit_bias */
    int32_t             count;              /* times generated so far */
    int32_t             seen;               /* in prompt or answer: 1 */
} vlm_adjust_t;

#define VLM_OPS_TOP_LOGPROBS    20

typedef struct {
    float               temperature;        /* 0: greedy */
    float               top_p;              /* 1: off */
    float               min_p;              /* 0: off */
    int32_t             top_k;              /* 0: off */
    float               presence;           /* 0: off */
    float               frequency;          /* 0: off */
    float               repetition;         /* 1: off */
    uint64_t            seed;
    uint32_t            choice;
    uint32_t            index;              /* of the token in its answer */
    int32_t             ntop;               /* -1: no logprobs at all */
    int32_t             nadjust;
    const vlm_adjust_t *adjust;             /* ids ascending, unique */
} vlm_sample_t;

typedef struct {
    int32_t             id;
    float               logprob;            /* of the raw logits */
    int32_t             ntop;
    int32_t             top_id[VLM_OPS_TOP_LOGPROBS];
    float               top_logprob[VLM_OPS_TOP_LOGPROBS];
} vlm_sampled_t;


/*
 * The largest work that a queue is to be ready for: what it needs of its own
 * to run that without asking for more.  0: no such operations.
 */

typedef struct {
    int32_t             rows;               /* of a step, or of a product */
    int32_t             seqs;               /* of a step; rows of sample() */
    int32_t             blocks;             /* of a sequence */
    int32_t             block_size;
    int32_t             heads;              /* of attention() */
    int32_t             head_dim;
    int32_t             pairs;              /* of a step's vlm_rope_t */
    int32_t             vocab;              /* columns of sample() */
    int32_t             adjusts;            /* of one of its rows */
    int32_t             patches;            /* of rope_table() */
    int64_t             outputs;            /* n or k of a weight */
    vlm_quant_t         quant;              /* of some of them */
} vlm_limits_t;

/* one piece of memory that alloc() or host_alloc() hands parts out of */

typedef struct {
    size_t              size;               /* 0: there is no such piece */
    size_t              used;               /* with what is not yet reusable */
    size_t              peak;               /* the most that was */
    size_t              largest;            /* part that could be had */
} vlm_reserve_t;

/* what a part takes of it; never less than one byte lies between two */
#define VLM_RESERVE_ALIGN   256
#define vlm_reserve_bytes(n)                                                  \
    (((size_t) (n) / VLM_RESERVE_ALIGN + 1) * VLM_RESERVE_ALIGN)


typedef struct vlm_ops_s {

    const char         *name;               /* "cpu/avx512" */

    /* the element type of activations: F32 on the CPU */
    vlm_dtype_t         act_dtype;

    /*
     * 1: queues run beside the host and each other, so work is better put on
     * one ahead of time, in large pieces; 0 on the CPU, which does it at once
     */
    int                 async;

    /* ---- resources: may fail, with a message; not on a queue ---- */

    /* 64-byte aligned device memory, not cleared; NULL: out of memory */
    void *(*alloc)(vlm_device_t *dev, size_t size);
    void (*free)(vlm_device_t *dev, void *data);

    /*
     * The same in the host's memory: read and written by the host, and by
     * operations as if it were the device's (pinned and mapped there).
     */
    void *(*host_alloc)(vlm_device_t *dev, size_t size);
    void (*host_free)(vlm_device_t *dev, void *data);

    /*
     * From now on alloc() takes parts of one piece of "size" bytes, and
     * host_alloc(), as long as they fit, of another one (0: of none), so that
     * neither asks the system.  0, or -1 and a message; a device whose memory
     * is the host's may leave it at that.
     *
     * free() does not wait then: what is freed can be had again when all that
     * was on any queue at that time has run, as far as a later sync() of that
     * queue, or reached() of a fence on it, has seen.  Without reserve() it
     * waits for that.
     */
    int (*reserve)(vlm_device_t *dev, size_t size, size_t host_size,
        char *err, size_t errlen);
    void (*reserved)(vlm_device_t *dev, vlm_reserve_t *memory,
        vlm_reserve_t *host);

    vlm_queue_t *(*queue_create)(vlm_device_t *dev, int low_priority);
    void (*queue_destroy)(vlm_queue_t *q);

    /* what a queue for such work takes of alloc(), and makes it ready */
    size_t (*queue_bytes)(vlm_device_t *dev, const vlm_limits_t *most);
    int (*queue_reserve)(vlm_queue_t *q, const vlm_limits_t *most, char *err,
        size_t errlen);

    /* waits for all of it; 0, or -1 and the first error since the last call */
    int (*sync)(vlm_queue_t *q, char *err, size_t errlen);

    /* 1: sync() will tell of a failure, as is known so far; does not wait */
    int (*failed)(vlm_queue_t *q);

    /*
     * Packs a weight from one or more parts of equal cols and dtype, with an
     * optional bias of the same parts (NULL entries: zeros), any float type.
     * 0, or -1 and a message; what the device cannot quantise is refused.
     */
    int (*weight_create)(vlm_device_t *dev, vlm_weight_t *w,
        vlm_weight_layout_t layout, vlm_quant_t quant,
        const vlm_host_matrix_t *parts, const vlm_host_matrix_t *biases,
        int nparts, char *err, size_t errlen);
    void (*weight_destroy)(vlm_weight_t *w);

    size_t (*kv_block_bytes)(vlm_device_t *dev, int32_t block_size,
        int32_t kv_heads, int32_t head_dim);

    /* bytes of the packed keys and values that vision_rope() writes */
    size_t (*vision_kv_bytes)(vlm_device_t *dev, const vlm_segments_t *seg);

    /* makes a step usable; step->data is reused if it is large enough */
    int (*step_upload)(vlm_queue_t *q, vlm_step_t *step,
        const vlm_step_host_t *host, const vlm_rope_t *rope);
    void (*step_free)(vlm_device_t *dev, vlm_step_t *step);

    /* ---- order between queues, whatever threads they belong to ---- */

    /* NULL: out of memory */
    vlm_fence_t *(*fence_create)(vlm_device_t *dev);
    void (*fence_destroy)(vlm_fence_t *fence);

    /* the fence is reached when all that is on the queue now has run */
    void (*record)(vlm_queue_t *q, vlm_fence_t *fence);

    /* what comes next on this queue runs after that */
    void (*wait)(vlm_queue_t *q, vlm_fence_t *fence);

    /* 0: not yet; 1: reached, or never recorded, or the device has failed */
    int (*reached)(vlm_fence_t *fence);

    /*
     * ---- work that comes again in every step ----
     *
     * NULL: the device does not record.  What is put between begin and end
     * must depend on "work", a number of the caller's, and on how many rows,
     * sequences and blocks of a sequence the step has; all else is in the
     * step's tables.  Nothing there may wait, take or give host data, or use
     * fences, and a sequence has few enough rows to be an answer's.
     *
     * begin: 1: the same has been put again, go on behind the end; 0: put it.
     * end: 0, or -1 and why it cannot be recorded: nothing of it has run, put
     * it once more, without begin and end.
     */
    int (*graph_begin)(vlm_queue_t *q, const vlm_step_t *step, uint64_t work);
    int (*graph_end)(vlm_queue_t *q, char *err, size_t errlen);

    /* ---- operations ---- */

    void (*upload)(vlm_queue_t *q, void *to, const void *host, size_t size);
    void (*download)(vlm_queue_t *q, void *host, const void *from,
        size_t size);

    /* y = x with y's type (F32, BF16, F16); shapes equal */
    void (*convert)(vlm_queue_t *q, const vlm_tensor_t *y,
        const vlm_tensor_t *x);

    /* y[r] = w[ids[r]]: rows of an embedding; ids from the step's */
    void (*embed)(vlm_queue_t *q, const vlm_tensor_t *y,
        const vlm_weight_t *w, const vlm_step_t *step);

    /* y[to[i]] = x[i]; "to" is host memory, n rows; x of any float type */
    void (*scatter)(vlm_queue_t *q, const vlm_tensor_t *y,
        const vlm_tensor_t *x, const int32_t *to, int32_t n);

    /* y[i] = x[from[i]] */
    void (*gather)(vlm_queue_t *q, const vlm_tensor_t *y,
        const vlm_tensor_t *x, const int32_t *from, int32_t n);

    /* each row: y = norm(x) * gain + bias (bias NULL for RMS); y may be x */
    void (*norm)(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
        const float *gain, const float *bias, float eps,
        vlm_norm_kind_t kind);

    /*
     * y = act(x . W^T + bias) + residual.  PLAIN: y has n columns; GATED:
     * n / 2, y = act(gate) * up + residual.  residual may be NULL or y.
     */
    void (*linear)(vlm_queue_t *q, const vlm_tensor_t *y,
        const vlm_tensor_t *x, const vlm_weight_t *w, vlm_act_t act,
        const vlm_tensor_t *residual);

    /*
     * The decoder's attention, first half: qkv [nrows, (heads + 2 kv_heads)
     * * head_dim] holds q, k, v.  Optional RMS norm of each q and k head
     * (gains NULL: none), rotation of q in place and of k, then k and v into
     * the cache at their positions.
     */
    void (*rope_kv)(vlm_queue_t *q, const vlm_step_t *step,
        const vlm_tensor_t *qkv, int32_t heads, const vlm_kv_t *kv,
        const float *q_gain, const float *k_gain, float eps);

    /* second half: y [nrows, heads * head_dim], causal over the cache */
    void (*attention)(vlm_queue_t *q, const vlm_step_t *step,
        const vlm_tensor_t *y, const vlm_tensor_t *qkv, int32_t heads,
        const vlm_kv_t *kv);

    /*
     * table [rows, 2 * npairs] F32: cos, then sin, of each row's pairs;
     * positions [naxes][rows] is host memory.
     */
    void (*rope_table)(vlm_queue_t *q, const vlm_tensor_t *table,
        const int32_t *positions, const vlm_rope_t *rope);

    /*
     * Vision attention, first half, for rows [row0, row0 + qkv->rows) of all
     * rows: qkv [rows, 3 * heads * head_dim] and table are views of those
     * rows.  Rotates q in place (table NULL: no rotation), writes the rotated
     * k and v packed into kv (vision_kv_bytes()).
     */
    void (*vision_rope)(vlm_queue_t *q, const vlm_segments_t *seg,
        const vlm_tensor_t *qkv, const vlm_tensor_t *table, int64_t row0,
        void *kv);

    /* second half, for the same kind of view; needs all rows' k and v */
    void (*vision_attention)(vlm_queue_t *q, const vlm_segments_t *seg,
        const vlm_tensor_t *y, const vlm_tensor_t *qkv, int64_t row0,
        const void *kv);

    /*
     * Patches [patch0, patch0 + y->rows) of a picture: row = channel, frame,
     * row, column; value = (float(double(byte) / 255) - mean) / std.
     * rgb is device memory.
     */
    void (*patchify)(vlm_queue_t *q, const vlm_tensor_t *y,
        const uint8_t *rgb, const vlm_patch_geometry_t *geo, int64_t patch0);

    /*
     * Draws a token for each row of logits (F32; may be overwritten).
     * "out" is host memory, valid after sync().
     */
    void (*sample)(vlm_queue_t *q, const vlm_tensor_t *logits,
        const vlm_sample_t *params, vlm_sampled_t *out);

} vlm_ops_t;


/* the rows [first, first + n) of a tensor; pointer arithmetic only */

static inline size_t
vlm_dtype_size(vlm_dtype_t dtype)
{
    switch (dtype) {

    case VLM_F32:
    case VLM_I32:
        return 4;

    case VLM_BF16:
    case VLM_F16:
        return 2;

    default:
        return 1;
    }
}


static inline vlm_tensor_t
vlm_rows(const vlm_tensor_t *t, int64_t first, int64_t n)
{
    vlm_tensor_t  view = *t;

    view.data = (char *) t->data
                + (size_t) (first * t->stride) * vlm_dtype_size(t->dtype);
    view.rows = n;

    return view;
}


/*
 * Devices.  vlm_cpu_device() makes a CPU device with a pool of nthreads
 * (0: CPUs of the affinity mask and cgroup) and chooses the instruction set
 * by cpuid, or by VLM_CPU=scalar|avx2|avx512 in the environment.
 * Returns NULL and a message on failure.
 */

vlm_device_t *vlm_cpu_device(int nthreads, const vlm_ops_t **ops, char *err,
    size_t errlen);
void vlm_cpu_device_destroy(vlm_device_t *dev);


#endif /* VLM_OPS_H */
