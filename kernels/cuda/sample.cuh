
/*
 * Inside sampling on the device, see sample.cu: what its kernels share.
 *
 * Weights are float32 with the CPU's bits.  Their sums are integers, of
 * weights in fixed point: in whatever order they are summed, the result is
 * the same.
 */

#ifndef VLM_CUDA_SAMPLE_H
#define VLM_CUDA_SAMPLE_H


#include "kernels/cuda/vector.cuh"


#define SAMPLE_THREADS   256

/* a chunk of a row; also the candidates that are kept in a list */
#define SAMPLE_CHUNK     4096

/* classes of distance to the best logit, 1/16 apart */
#define SAMPLE_CLASSES   512
#define SAMPLE_PER_CLASS  16.0f


VLM_CUDA_BEGIN


#ifdef VLM_EMU

static inline uint64_t
shfl(uint64_t v, int lane, int line)
{
    return vlm_emu_shuffle(v, lane, line);
}

#define product(a, b)  ((a) * (b))

#else

/* rounded, not fused with the sum it goes into */
#define product(a, b)  __fmul_rn(a, b)

#endif


/* what a row of logits is to give */

typedef struct {
    float               scale;          /* 1 / temperature; 0: greedy */
    float               top_p;
    float               min_p;
    int32_t             top_k;
    float               presence;
    float               frequency;
    float               repetition;
    int32_t             ntop;
    int32_t             nadjust;
    int32_t             adjust;         /* the first of its adjusts */
    double              uniform;        /* the random number */
} sample_row_t;

typedef struct {
    float               x;
    int32_t             id;
    uint64_t            mass;
} candidate_t;

/* of a chunk */

typedef struct {
    float               max;
    int32_t             id;             /* the first that has it */
    uint64_t            mass;           /* of weights that min_p leaves */
} chunk_t;

/* of a row, between the kernels */

typedef struct {
    uint64_t            before;         /* mass in front of the list's */
    uint64_t            total;          /* mass of all, if nothing is cut */
    uint32_t            count;          /* in the list */
    int32_t             whole;          /* the list is too small: the row */
} row_state_t;


typedef struct {
    float              *logits;
    int64_t             stride;
    int32_t             n;
    int32_t             shift;          /* bits of a weight's fraction */
    float               unit;           /* 2^shift */
    int32_t             nchunks;
    int32_t             raw;            /* for log probabilities */
    const sample_row_t *rows;
    const vlm_adjust_t *adjust;
    float              *saved;          /* raw logits of adjusted ones */
    chunk_t            *chunks;         /* [rows][nchunks] */
    uint64_t           *masses;         /* [rows][SAMPLE_CLASSES] */
    uint32_t           *counts;         /* [rows][SAMPLE_CLASSES] */
    row_state_t        *states;         /* [rows] */
    double             *log_sums;       /* [rows], of the raw logits */
    candidate_t        *list;           /* [rows][SAMPLE_CHUNK] */
    vlm_sampled_t      *out;            /* [rows] */
} sample_t;


/* what cuts a row in this pass: the sample's, or log probabilities' */

static __device__ __forceinline__ int32_t
cut_count(const sample_t &s, const sample_row_t &r)
{
    if (s.raw) {
        return r.ntop;
    }

    return r.top_k > 0 && r.top_k < s.n ? r.top_k : 0;
}


static __device__ __forceinline__ float
cut_share(const sample_t &s, const sample_row_t &r)
{
    return s.raw ? 1.0f : r.top_p;
}


/* the threshold of a share of a mass: at least the best one is kept */

static __device__ __forceinline__ uint64_t
share_of(uint64_t total, float share)
{
    double  part;

    part = ceil((double) share * (double) total);

    if (!(part >= 1.0)) {
        return 1;
    }

    return part < (double) total ? (uint64_t) part : total;
}


/* the sum that the drawn token's passes: below the total */

static __device__ __forceinline__ uint64_t
drawn_mass(const sample_row_t &r, uint64_t total)
{
    uint64_t  mass;

    mass = (uint64_t) (r.uniform * (double) total);

    return mass < total || total == 0 ? mass : total - 1;
}


static __device__ __forceinline__ float
row_scale(const sample_t &s, const sample_row_t &r)
{
    return s.raw ? 1.0f : r.scale;
}


/* does the row take part in what follows the maximum? */

static __device__ __forceinline__ bool
is_weighed(const sample_t &s, const sample_row_t &r)
{
    return s.raw ? r.ntop >= 0 : r.scale > 0.0f;
}


static __device__ __forceinline__ float
finite(float x)
{
    if (!(x > -FLT_MAX)) {
        /* NaN too */
        return -FLT_MAX;
    }

    return x < FLT_MAX ? x : FLT_MAX;
}


/*
 * exp((x - max) * scale) with the bits of the CPU's vmath.h: e^r of a
 * reduced r by the same polynomial, 0 below -87.
 */

static __device__ __forceinline__ float
weight_of(float x, float max, float scale)
{
    float  v, t, n, r, p;

    v = (x - max) * scale;

    if (v < -87.0f) {
        return 0.0f;
    }

    t = fmaf(v, 1.44269502f, 12582912.0f);
    n = t - 12582912.0f;

    r = fmaf(-n, 0.693147182f, v);
    r = fmaf(-n, -1.904654323e-9f, r);

    p = fmaf(0.00139262131f, r, 0.00836320315f);
    p = fmaf(p, r, 0.0416665561f);
    p = fmaf(p, r, 0.166665763f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);

    return ldexpf(p, (int) n);
}


static __device__ __forceinline__ uint64_t
mass_of(const sample_t &s, float weight)
{
    return (uint64_t) (weight * s.unit);
}


/* 0: the best logit's; the last class has all that are far away */

static __device__ __forceinline__ int
class_of(float x, float max, float scale)
{
    float  d;

    d = (max - x) * scale * SAMPLE_PER_CLASS;

    return d < (float) (SAMPLE_CLASSES - 1) ? (int) d : SAMPLE_CLASSES - 1;
}


/* the greatest logit of a row and its first place, by all threads */

static __device__ __forceinline__ void
row_max(const sample_t &s, const chunk_t *chunks, float *max, int32_t *id)
{
    int  i;

    *max = chunks[0].max;
    *id = chunks[0].id;

    for (i = 1; i < s.nchunks; i++) {

        if (chunks[i].max > *max) {
            *max = chunks[i].max;
            *id = chunks[i].id;
        }
    }
}


/* a sum over the block, the same in all threads; work: a number a warp */

static __device__ __forceinline__ uint64_t
block_total(uint64_t v, uint64_t *work)
{
    int       i, mask;
    uint64_t  sum;

    for (mask = VLM_WARP / 2; mask > 0; mask /= 2) {
        v += vlm_shfl_xor(v, mask);
    }

    VLM_SYNC();

    if (threadIdx.x % VLM_WARP == 0) {
        work[threadIdx.x / VLM_WARP] = v;
    }

    VLM_SYNC();

    sum = 0;

    for (i = 0; i < (int) blockDim.x / VLM_WARP; i++) {
        sum += work[i];
    }

    return sum;
}


/* sample_finish.cu */
void vlm_cuda_sample_finish(vlm_queue_t *q, const sample_t &s, int64_t rows);


VLM_CUDA_END


#endif /* VLM_CUDA_SAMPLE_H */
