
/*
 * Sampling on the device, in the order that kernels/cpu/sample.c documents
 * and with its random numbers.  Nothing is sorted:
 *
 *   1. blocks of 4,096 logits make them finite and find their maxima
 *   2. they count logits and sum weights in 512 classes of distance to the
 *      best one, and where nothing is cut sum the weights of each chunk
 *   3. the classes that can hold the cut, or the chunk that holds the random
 *      number, go into a list, in no order
 *   4. a block a row finds in the list what is kept, and draws: searches
 *      over the bits of values, then of ids, by sums (sample_finish.cu)
 *
 * Log probabilities take the same way before penalties and biases are
 * applied.  Weights' sums are exact integers, so a token does not depend on
 * the order of sums; the CPU's are double, which may differ where a random
 * number or a share falls within 2^-27 of a border.
 */

#include "kernels/cuda/sample.cuh"


/* bits of a sum of weights; weights up to 1 have the rest as a fraction */
#define MASS_BITS  62


VLM_CUDA_BEGIN


typedef struct {
    int                 raw;            /* a row wants log probabilities */
    int                 weighed;        /* a row is not greedy */
    int                 adjusted;
} needs_t;

typedef struct {
    sample_row_t       *rows;           /* then the adjusts */
    size_t              size;
    int32_t             nadjusts;
    needs_t             needs;
} params_t;


static int params_make(vlm_queue_t *q, const vlm_sample_t *params, int64_t n,
    params_t *p);
static void row_of(const vlm_sample_t *from, sample_row_t *r);
static double uniform(const vlm_sample_t *params);
static int work_make(vlm_queue_t *q, sample_t *s, int64_t rows,
    const params_t *p);
static size_t cleared(int64_t rows);
static size_t params_bytes(int64_t rows, int64_t adjusts);
static void run_passes(vlm_queue_t *q, sample_t *s, int64_t rows,
    const needs_t *needs);
static void run_pass(vlm_queue_t *q, const sample_t &s, int64_t rows,
    int weighed);


/* a place is kept if it is greater, or equal and in front */

static __device__ __forceinline__ void
take_greater(float *max, int32_t *id, float x, int32_t i)
{
    if (x > *max || (x == *max && i < *id)) {
        *max = x;
        *id = i;
    }
}


__global__ void __launch_bounds__(SAMPLE_THREADS)
max_kernel(sample_t s)
{
    int       mask;
    float     x, y, max, *row;
    int32_t   i, id, end;
    chunk_t  *chunk;

    VLM_SHARED(float, maxima, SAMPLE_THREADS / VLM_WARP);
    VLM_SHARED(int32_t, ids, SAMPLE_THREADS / VLM_WARP);

    row = s.logits + (int64_t) blockIdx.y * s.stride;
    i = (int32_t) blockIdx.x * SAMPLE_CHUNK;
    end = s.n - i < SAMPLE_CHUNK ? s.n : i + SAMPLE_CHUNK;
    max = -INFINITY;
    id = s.n;

    for (i += (int32_t) threadIdx.x; i < end; i += SAMPLE_THREADS) {
        x = row[i];
        y = finite(x);

        if (!(x == y)) {
            row[i] = y;
        }

        take_greater(&max, &id, y, i);
    }

    for (mask = VLM_WARP / 2; mask > 0; mask /= 2) {
        y = vlm_shfl_xor(max, mask);
        i = vlm_shfl_xor(id, mask);
        take_greater(&max, &id, y, i);
    }

    if (threadIdx.x % VLM_WARP == 0) {
        maxima[threadIdx.x / VLM_WARP] = max;
        ids[threadIdx.x / VLM_WARP] = id;
    }

    VLM_SYNC();

    if (threadIdx.x != 0) {
        return;
    }

    for (i = 1; i < SAMPLE_THREADS / VLM_WARP; i++) {
        take_greater(&max, &id, maxima[i], ids[i]);
    }

    chunk = &s.chunks[(int64_t) blockIdx.y * s.nchunks + blockIdx.x];
    chunk->max = max;
    chunk->id = id;
    chunk->mass = 0;
}


/* classes of a chunk's logits, if something is cut, and its mass */

__global__ void __launch_bounds__(SAMPLE_THREADS)
classes_kernel(sample_t s)
{
    int           c;
    bool          cuts;
    float         max, scale, w, min_p;
    int32_t       i, id, end;
    uint64_t      mass, sum;
    chunk_t      *chunks;
    const float  *row;
    sample_row_t  r;

    VLM_SHARED(uint64_t, masses, SAMPLE_CLASSES);
    VLM_SHARED(uint32_t, counts, SAMPLE_CLASSES);
    VLM_SHARED(uint64_t, work, SAMPLE_THREADS / VLM_WARP);

    r = s.rows[blockIdx.y];

    if (!is_weighed(s, r)) {
        /* the whole block */
        return;
    }

    chunks = s.chunks + (int64_t) blockIdx.y * s.nchunks;
    row = s.logits + (int64_t) blockIdx.y * s.stride;
    row_max(s, chunks, &max, &id);

    cuts = cut_count(s, r) > 0 || cut_share(s, r) < 1.0f;
    scale = row_scale(s, r);
    min_p = s.raw ? 0.0f : r.min_p;
    sum = 0;

    for (c = (int) threadIdx.x; c < SAMPLE_CLASSES; c += SAMPLE_THREADS) {
        masses[c] = 0;
        counts[c] = 0;
    }

    VLM_SYNC();

    i = (int32_t) blockIdx.x * SAMPLE_CHUNK;
    end = s.n - i < SAMPLE_CHUNK ? s.n : i + SAMPLE_CHUNK;

    for (i += (int32_t) threadIdx.x; i < end; i += SAMPLE_THREADS) {
        w = weight_of(row[i], max, scale);
        mass = mass_of(s, w);

        if (w >= min_p) {
            sum += mass;
        }

        if (cuts) {
            c = class_of(row[i], max, scale);
            (void) atomic_add(&counts[c], (uint32_t) 1);
            atomic_add(&masses[c], mass);
        }
    }

    sum = block_total(sum, work);

    if (threadIdx.x == 0) {
        chunks[blockIdx.x].mass = sum;
    }

    for (c = (int) threadIdx.x; c < SAMPLE_CLASSES; c += SAMPLE_THREADS) {

        if (counts[c] != 0) {
            (void) atomic_add(&s.counts[(int64_t) blockIdx.y
                                        * SAMPLE_CLASSES + c], counts[c]);
            atomic_add(&s.masses[(int64_t) blockIdx.y * SAMPLE_CLASSES + c],
                       masses[c]);
        }
    }
}


/*
 * By one thread: the last class that the cut can fall into, and how many
 * logits there are up to it.
 */

static __device__ __forceinline__ int
last_class(const sample_t &s, const sample_row_t &r, const uint32_t *counts,
    const uint64_t *masses, uint64_t total, uint64_t *count)
{
    int       c;
    uint64_t  sum, target;

    target = cut_count(s, r) > 0 ? (uint64_t) cut_count(s, r)
                                 : share_of(total, cut_share(s, r));
    sum = 0;
    *count = 0;

    for (c = 0; c < SAMPLE_CLASSES - 1; c++) {
        sum += cut_count(s, r) > 0 ? counts[c] : masses[c];
        *count += counts[c];

        if (sum >= target) {
            return c;
        }
    }

    *count += counts[c];

    return c;
}


/* one thread's part of a row: what the list is to hold */

typedef struct {
    int32_t             last;           /* class */
    int32_t             chunk;          /* of which; -1: of all */
    int32_t             none;
} select_t;


static __device__ __forceinline__ void
select_classes(const sample_t &s, const sample_row_t &r,
    const uint32_t *counts, const uint64_t *masses, uint64_t total,
    select_t *to)
{
    uint64_t      count;
    row_state_t  *state;

    state = &s.states[blockIdx.y];

    to->chunk = -1;
    to->last = last_class(s, r, counts, masses, total, &count);
    to->none = count > SAMPLE_CHUNK;

    if (blockIdx.x == 0) {
        state->total = total;
        state->before = 0;
        state->whole = to->none;
    }
}


/* nothing is cut: the chunk in which the sum passes the random number */

static __device__ __forceinline__ void
select_chunk(const sample_t &s, const sample_row_t &r, select_t *to)
{
    int             c;
    uint64_t        total, before, target;
    row_state_t    *state;
    const chunk_t  *chunks;

    chunks = s.chunks + (int64_t) blockIdx.y * s.nchunks;
    state = &s.states[blockIdx.y];
    total = 0;

    for (c = 0; c < s.nchunks; c++) {
        total += chunks[c].mass;
    }

    target = drawn_mass(r, total);
    before = 0;

    for (c = 0; c < s.nchunks - 1; c++) {

        if (before + chunks[c].mass > target) {
            break;
        }

        before += chunks[c].mass;
    }

    to->chunk = c;
    to->last = SAMPLE_CLASSES - 1;
    to->none = s.raw;

    if (blockIdx.x == 0) {
        state->total = total;
        state->before = before;
        state->whole = 0;
    }
}


__global__ void __launch_bounds__(SAMPLE_THREADS)
gather_kernel(sample_t s)
{
    int            c;
    bool           cuts;
    float          max, scale;
    int32_t        i, id, end;
    uint32_t       at;
    uint64_t       total;
    const float   *row;
    candidate_t   *to;
    sample_row_t   r;

    VLM_SHARED(uint64_t, masses, SAMPLE_CLASSES);
    VLM_SHARED(uint32_t, counts, SAMPLE_CLASSES);
    VLM_SHARED(uint64_t, work, SAMPLE_THREADS / VLM_WARP);
    VLM_SHARED(select_t, select, 1);

    r = s.rows[blockIdx.y];

    if (!is_weighed(s, r)) {
        return;
    }

    cuts = cut_count(s, r) > 0 || cut_share(s, r) < 1.0f;

    total = 0;

    for (c = (int) threadIdx.x; cuts && c < SAMPLE_CLASSES;
         c += SAMPLE_THREADS)
    {
        masses[c] = s.masses[(int64_t) blockIdx.y * SAMPLE_CLASSES + c];
        counts[c] = s.counts[(int64_t) blockIdx.y * SAMPLE_CLASSES + c];
        total += masses[c];
    }

    /* (and all have written theirs) */
    total = block_total(total, work);

    if (threadIdx.x == 0) {

        if (cuts) {
            select_classes(s, r, counts, masses, total, select);

        } else {
            select_chunk(s, r, select);
        }
    }

    VLM_SYNC();

    if (select->none
        || (select->chunk >= 0 && select->chunk != (int32_t) blockIdx.x))
    {
        return;
    }

    row = s.logits + (int64_t) blockIdx.y * s.stride;
    row_max(s, s.chunks + (int64_t) blockIdx.y * s.nchunks, &max, &id);
    scale = row_scale(s, r);

    i = (int32_t) blockIdx.x * SAMPLE_CHUNK;
    end = s.n - i < SAMPLE_CHUNK ? s.n : i + SAMPLE_CHUNK;

    for (i += (int32_t) threadIdx.x; i < end; i += SAMPLE_THREADS) {

        if (class_of(row[i], max, scale) <= select->last) {
            at = atomic_add(&s.states[blockIdx.y].count, (uint32_t) 1);
            to = &s.list[(int64_t) blockIdx.y * SAMPLE_CHUNK + at];
            to->x = row[i];
            to->id = i;
            to->mass = mass_of(s, weight_of(row[i], max, scale));
        }
    }
}


/* penalties and biases, on finite logits, which are kept aside */

__global__ void __launch_bounds__(SAMPLE_THREADS)
adjust_kernel(sample_t s)
{
    float         x, *row;
    int32_t       i;
    vlm_adjust_t  a;
    sample_row_t  r;

    r = s.rows[blockIdx.x];
    row = s.logits + (int64_t) blockIdx.x * s.stride;

    for (i = (int32_t) threadIdx.x; i < r.nadjust; i += SAMPLE_THREADS) {
        a = s.adjust[r.adjust + i];

        if (a.id < 0 || a.id >= s.n) {
            continue;
        }

        x = finite(row[a.id]);
        s.saved[r.adjust + i] = x;

        if (a.seen && r.repetition > 0.0f) {
            x = x > 0.0f ? x / r.repetition : product(x, r.repetition);
        }

        if (a.count > 0) {
            x -= r.presence;
            x -= product(r.frequency, (float) a.count);
        }

        row[a.id] = x + a.bias;
    }
}


void
vlm_cuda_sample(vlm_queue_t *q, const vlm_tensor_t *logits,
    const vlm_sample_t *params, vlm_sampled_t *out)
{
    int64_t   rows;
    sample_t  s;
    params_t  p;

    rows = logits->rows;

    if (vlm_cuda_begin(q) != 0 || rows == 0) {
        return;
    }

    if (logits->dtype != VLM_F32 || logits->cols <= 0 || rows > 65535) {
        vlm_cuda_fail(q, "sample: %lld rows of %d logits of type %d: must be "
                      "float32", (long long) rows, logits->cols,
                      (int) logits->dtype);
        return;
    }

    if (params_make(q, params, rows, &p) != 0) {
        return;
    }

    memset(&s, 0, sizeof(sample_t));

    s.logits = (float *) logits->data;
    s.stride = logits->stride;
    s.n = logits->cols;
    s.nchunks = (s.n - 1) / SAMPLE_CHUNK + 1;
    s.shift = MASS_BITS;

    while (s.shift > 0 && (int64_t) 1 << (MASS_BITS - s.shift) < s.n) {
        s.shift--;
    }

    s.unit = ldexpf(1.0f, s.shift);

    if (work_make(q, &s, rows, &p) == 0) {
        run_passes(q, &s, rows, &p.needs);

        if (!q->failed) {
            vlm_cuda_deliver(q, out, s.out, rows * sizeof(vlm_sampled_t),
                             "sample");
        }
    }

    free(p.rows);
}


/* one piece for the device */

static int
params_make(vlm_queue_t *q, const vlm_sample_t *params, int64_t n,
    params_t *p)
{
    int64_t        i, adjusts;
    sample_row_t  *r;
    vlm_adjust_t  *a;

    memset(p, 0, sizeof(params_t));
    adjusts = 0;

    for (i = 0; i < n; i++) {
        adjusts += params[i].nadjust;
    }

    p->size = params_bytes(n, adjusts);
    p->nadjusts = (int32_t) adjusts;
    p->rows = adjusts <= INT32_MAX ? (sample_row_t *) malloc(p->size) : NULL;

    if (p->rows == NULL) {
        vlm_cuda_fail(q, "sample: no memory for %lld adjusts",
                      (long long) adjusts);
        return -1;
    }

    a = (vlm_adjust_t *) (p->rows + n);
    adjusts = 0;

    for (i = 0; i < n; i++) {
        r = &p->rows[i];
        row_of(&params[i], r);
        r->adjust = (int32_t) adjusts;

        p->needs.raw |= r->ntop >= 0;
        p->needs.weighed |= r->scale > 0.0f;
        p->needs.adjusted |= r->nadjust > 0;

        if (r->nadjust > 0) {
            memcpy(a + adjusts, params[i].adjust,
                   r->nadjust * sizeof(vlm_adjust_t));
            adjusts += r->nadjust;
        }
    }

    return 0;
}


static void
row_of(const vlm_sample_t *from, sample_row_t *r)
{
    memset(r, 0, sizeof(sample_row_t));

    if (from->temperature > 0.0f) {
        /* finite, so that the best logit's 0 * scale stays 0 */
        r->scale = fminf(1.0f / from->temperature, FLT_MAX);
    }

    r->top_p = from->top_p;
    r->min_p = from->min_p;
    r->top_k = from->top_k;
    r->presence = from->presence;
    r->frequency = from->frequency;
    r->repetition = from->repetition;
    r->ntop = from->ntop < VLM_OPS_TOP_LOGPROBS ? from->ntop
                                                : VLM_OPS_TOP_LOGPROBS;
    r->nadjust = from->nadjust > 0 ? from->nadjust : 0;
    r->uniform = uniform(from);
}


/* Philox 4x32 of (seed, choice, index): 53 bits as a fraction */

static double
uniform(const vlm_sample_t *params)
{
    int       i;
    uint32_t  c[4], k0, k1;
    uint64_t  p0, p1;

    c[0] = params->index;
    c[1] = params->choice;
    c[2] = 0;
    c[3] = 0;

    k0 = (uint32_t) params->seed;
    k1 = (uint32_t) (params->seed >> 32);

    for (i = 0; i < 10; i++) {
        p0 = (uint64_t) c[0] * 0xd2511f53;
        p1 = (uint64_t) c[2] * 0xcd9e8d57;

        c[0] = (uint32_t) (p1 >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t) p1;
        c[2] = (uint32_t) (p0 >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t) p0;

        k0 += 0x9e3779b9;
        k1 += 0xbb67ae85;
    }

    return ldexp((double) (((uint64_t) c[1] << 32 | c[0]) >> 11), -53);
}


/* the part that each pass begins with zeros in */

static size_t
cleared(int64_t rows)
{
    return rows * (SAMPLE_CLASSES * (sizeof(uint64_t) + sizeof(uint32_t))
                   + sizeof(row_state_t));
}


static size_t
work_bytes(int64_t rows, int64_t nchunks, int64_t adjusts)
{
    return cleared(rows) + rows * (SAMPLE_CHUNK * sizeof(candidate_t)
                                   + nchunks * sizeof(chunk_t)
                                   + sizeof(double)
                                   + sizeof(vlm_sampled_t))
           + adjusts * sizeof(float);
}


static size_t
params_bytes(int64_t rows, int64_t adjusts)
{
    return rows * sizeof(sample_row_t) + adjusts * sizeof(vlm_adjust_t);
}


size_t
vlm_cuda_sample_scratch(const vlm_limits_t *most)
{
    if (most->vocab == 0) {
        return 0;
    }

    return work_bytes(most->seqs, (most->vocab - 1) / SAMPLE_CHUNK + 1,
                      (int64_t) most->seqs * most->adjusts);
}


/* the parameters, or the results */

size_t
vlm_cuda_sample_stage(const vlm_limits_t *most)
{
    size_t  in, out;

    in = params_bytes(most->seqs, (int64_t) most->seqs * most->adjusts);
    out = most->seqs * sizeof(vlm_sampled_t);

    return most->vocab == 0 ? 0 : in > out ? in : out;
}


static int
work_make(vlm_queue_t *q, sample_t *s, int64_t rows, const params_t *p)
{
    char    *work;
    size_t   size;

    size = work_bytes(rows, s->nchunks, p->nadjusts);

    work = (char *) vlm_cuda_scratch(q, size, "sample");
    s->rows = (const sample_row_t *) vlm_cuda_stage(q, p->rows, p->size,
                                                    "sample");

    if (work == NULL || s->rows == NULL) {
        return -1;
    }

    s->adjust = (const vlm_adjust_t *) (s->rows + rows);

    s->masses = (uint64_t *) work;
    s->states = (row_state_t *) (s->masses + rows * SAMPLE_CLASSES);
    s->counts = (uint32_t *) (s->states + rows);
    s->list = (candidate_t *) (s->counts + rows * SAMPLE_CLASSES);
    s->chunks = (chunk_t *) (s->list + rows * SAMPLE_CHUNK);
    s->log_sums = (double *) (s->chunks + rows * s->nchunks);
    s->out = (vlm_sampled_t *) (s->log_sums + rows);
    s->saved = (float *) (s->out + rows);

    return 0;
}


static void
run_passes(vlm_queue_t *q, sample_t *s, int64_t rows, const needs_t *needs)
{
    if (needs->raw) {
        s->raw = 1;
        run_pass(q, *s, rows, 1);
        s->raw = 0;
    }

    if (needs->adjusted && !q->failed) {
        VLM_LAUNCH(q, "sample", adjust_kernel, (unsigned) rows,
                   SAMPLE_THREADS, 0, *s);
    }

    if (!q->failed) {
        run_pass(q, *s, rows, needs->weighed);
    }
}


static void
run_pass(vlm_queue_t *q, const sample_t &s, int64_t rows, int weighed)
{
    dim3  grid((unsigned) s.nchunks, (unsigned) rows);

    VLM_LAUNCH(q, "sample", max_kernel, grid, SAMPLE_THREADS, 0, s);

    if (weighed && !q->failed
        && vlm_cuda_check(q, cudaMemsetAsync(s.masses, 0, cleared(rows),
                                             q->stream), "sample")
           == 0)
    {
        VLM_LAUNCH(q, "sample", classes_kernel, grid, SAMPLE_THREADS, 0, s);
    }

    if (weighed && !q->failed) {
        VLM_LAUNCH(q, "sample", gather_kernel, grid, SAMPLE_THREADS, 0, s);
    }

    if (!q->failed) {
        vlm_cuda_sample_finish(q, s, rows);
    }
}


VLM_CUDA_END
