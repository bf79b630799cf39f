
/*
 * The end of sampling: a block a row, over the list of candidates in no
 * order, or over the whole row where the list is too small.  What is kept,
 * and what is drawn, is found bit by bit from the highest, by sums over those
 * above a value or in front of an id.
 */

#include "kernels/cuda/sample.cuh"


VLM_CUDA_BEGIN


/* the best: those above a value, of its own those up to an id */

typedef struct {
    float               value;
    int32_t             last;
} cut_t;

typedef struct {
    const float        *row;
    const candidate_t  *list;           /* NULL: the row itself */
    int32_t             count;
    float               max;
    float               scale;
    cut_t               cut;
    uint64_t           *work;
} view_t;


/* what is summed of the entries that the cut keeps */

typedef enum {
    SUM_ABOVE = 0,                      /* of a key or greater */
    SUM_EQUAL,                          /* of the key, in front of an id */
    SUM_FRONT                           /* that min_p leaves, likewise */
} sum_t;

typedef struct {
    sum_t               what;
    int                 ones;           /* 1 each, not the masses */
    uint32_t            key;
    int32_t             id;
    float               min_p;
} query_t;


/* unsigned numbers in the order of the floats, never 0; -0 is 0 */

static __device__ __forceinline__ uint32_t
order_of(float x)
{
    union {
        float     f;
        uint32_t  bits;
    } u;

    u.f = x + 0.0f;

    return (u.bits >> 31) != 0 ? ~u.bits : u.bits | 0x80000000;
}


static __device__ __forceinline__ float
value_of(uint32_t key)
{
    union {
        float     f;
        uint32_t  bits;
    } u;

    u.bits = (key >> 31) != 0 ? key & 0x7fffffff : ~key;

    return u.f;
}


static __device__ __forceinline__ bool
keeps(const cut_t &cut, float x, int32_t id)
{
    return x > cut.value || (x == cut.value && id <= cut.last);
}


static __device__ __forceinline__ candidate_t
entry(const sample_t &s, const view_t &v, int32_t i)
{
    candidate_t  c;

    if (v.list != NULL) {
        return v.list[i];
    }

    c.x = v.row[i];
    c.id = i;
    c.mass = mass_of(s, weight_of(c.x, v.max, v.scale));

    return c;
}


static __device__ __forceinline__ uint64_t
sum_of(const sample_t &s, const view_t &v, const query_t &ask)
{
    bool         in;
    int32_t      i;
    uint64_t     sum;
    candidate_t  c;

    sum = 0;

    for (i = (int32_t) threadIdx.x; i < v.count; i += SAMPLE_THREADS) {
        c = entry(s, v, i);

        if (!keeps(v.cut, c.x, c.id)) {
            continue;
        }

        switch (ask.what) {

        case SUM_ABOVE:
            in = order_of(c.x) >= ask.key;
            break;

        case SUM_EQUAL:
            in = order_of(c.x) == ask.key && c.id < ask.id;
            break;

        default:
            in = c.id < ask.id
                 && weight_of(c.x, v.max, v.scale) >= ask.min_p;
            break;
        }

        if (in) {
            sum += ask.ones ? 1 : c.mass;
        }
    }

    return block_total(sum, v.work);
}


/*
 * The greatest id in front of which the sum is at most (equal: less than)
 * the target: the one with which it passes (reaches) it.
 */

static __device__ __forceinline__ int32_t
find_id(const sample_t &s, const view_t &v, query_t ask, uint64_t target)
{
    int32_t   bit, id;
    uint64_t  sum;

    id = 0;

    for (bit = 1; bit < s.n / 2 + 1; bit *= 2) { /* void */ }

    for ( ; bit > 0; bit /= 2) {

        if (id + bit >= s.n) {
            continue;
        }

        ask.id = id + bit;
        sum = sum_of(s, v, ask);

        if (ask.what == SUM_EQUAL ? sum < target : sum <= target) {
            id = ask.id;
        }
    }

    return id;
}


/* the cut at which the sum from the best one down reaches the target */

static __device__ __forceinline__ void
find_cut(const sample_t &s, view_t *v, int ones, uint64_t target)
{
    uint32_t  bit, key;
    cut_t     cut;
    query_t   ask;

    ask.what = SUM_ABOVE;
    ask.ones = ones;
    ask.id = 0;
    ask.min_p = 0.0f;
    key = 0;

    for (bit = 0x80000000; bit != 0; bit /= 2) {
        ask.key = key | bit;

        if (sum_of(s, *v, ask) >= target) {
            key = ask.key;
        }
    }

    if (key == 0) {
        /* all of them do not reach it */
        return;
    }

    ask.key = key + 1;
    target -= sum_of(s, *v, ask);

    ask.what = SUM_EQUAL;
    ask.key = key;

    cut.value = value_of(key);
    cut.last = find_id(s, *v, ask, target);
    v->cut = cut;
}


/* the token of a row that is not greedy; best: where nothing is left */

static __device__ __forceinline__ int32_t
draw(const sample_t &s, const sample_row_t &r, const row_state_t &state,
    view_t *v, int32_t best)
{
    bool      cuts;
    query_t   ask;
    uint64_t  total;

    cuts = cut_count(s, r) > 0 || r.top_p < 1.0f;
    total = state.total;

    ask.what = SUM_ABOVE;
    ask.ones = 0;
    ask.key = 0;
    ask.id = s.n;
    ask.min_p = r.min_p;

    if (cut_count(s, r) > 0) {
        find_cut(s, v, 1, (uint64_t) cut_count(s, r));
        total = sum_of(s, *v, ask);
    }

    if (r.top_p < 1.0f) {
        find_cut(s, v, 0, share_of(total, r.top_p));
    }

    ask.what = SUM_FRONT;

    if (cuts) {
        total = sum_of(s, *v, ask);
    }

    if (total == 0) {
        /* min_p above 1 */
        return best;
    }

    return find_id(s, *v, ask, drawn_mass(r, total) - state.before);
}


/* a logit as it was before adjusts */

static __device__ __forceinline__ float
raw_logit(const sample_t &s, const sample_row_t &r, const float *row,
    int32_t id)
{
    int32_t  low, high, mid;

    low = r.adjust;
    high = r.adjust + r.nadjust;

    while (low < high) {
        mid = low + (high - low) / 2;

        if (s.adjust[mid].id < id) {
            low = mid + 1;

        } else {
            high = mid;
        }
    }

    if (low < r.adjust + r.nadjust && s.adjust[low].id == id) {
        return s.saved[low];
    }

    return row[id];
}


/* the best ones in order, by their ranks, and their log probabilities */

static __device__ __forceinline__ void
top_logprobs(const sample_t &s, const sample_row_t &r, view_t *v,
    double log_sum, float *x, int32_t *id, uint32_t *n, vlm_sampled_t *out)
{
    int32_t      i, j, rank, k;
    uint32_t     at;
    candidate_t  c;

    k = r.ntop < s.n ? r.ntop : s.n;

    if (k > 0) {
        find_cut(s, v, 1, (uint64_t) k);
    }

    if (threadIdx.x == 0) {
        *n = 0;
    }

    VLM_SYNC();

    for (i = (int32_t) threadIdx.x; k > 0 && i < v->count;
         i += SAMPLE_THREADS)
    {
        c = entry(s, *v, i);

        if (keeps(v->cut, c.x, c.id)) {
            at = atomic_add(n, (uint32_t) 1);
            x[at] = c.x;
            id[at] = c.id;
        }
    }

    VLM_SYNC();

    i = (int32_t) threadIdx.x;

    if (i < k) {
        rank = 0;

        for (j = 0; j < k; j++) {
            rank += x[j] > x[i] || (x[j] == x[i] && id[j] < id[i]);
        }

        out->top_id[rank] = id[i];
        out->top_logprob[rank] = (float) (x[i] - log_sum);
    }

    if (i == 0) {
        out->ntop = k;
    }
}


__global__ void __launch_bounds__(SAMPLE_THREADS)
finish_sample_kernel(sample_t s)
{
    int32_t         id;
    view_t          v;
    row_state_t     state;
    sample_row_t    r;
    vlm_sampled_t  *out;

    VLM_SHARED(uint64_t, work, SAMPLE_THREADS / VLM_WARP);

    r = s.rows[blockIdx.x];
    state = s.states[blockIdx.x];
    out = &s.out[blockIdx.x];

    v.row = s.logits + (int64_t) blockIdx.x * s.stride;
    v.list = state.whole ? NULL
                         : s.list + (int64_t) blockIdx.x * SAMPLE_CHUNK;
    v.count = state.whole ? s.n : (int32_t) state.count;
    v.scale = r.scale;
    v.cut.value = -FLT_MAX;
    v.cut.last = s.n;
    v.work = work;

    row_max(s, s.chunks + (int64_t) blockIdx.x * s.nchunks, &v.max, &id);

    if (r.scale > 0.0f) {
        id = draw(s, r, state, &v, id);
    }

    if (threadIdx.x == 0) {
        out->id = id;

        if (r.ntop >= 0) {
            out->logprob = (float) (raw_logit(s, r, v.row, id)
                                    - s.log_sums[blockIdx.x]);

        } else {
            out->logprob = 0.0f;
            out->ntop = 0;
        }
    }
}


__global__ void __launch_bounds__(SAMPLE_THREADS)
finish_raw_kernel(sample_t s)
{
    double          log_sum;
    int32_t         id;
    view_t          v;
    row_state_t     state;
    sample_row_t    r;

    VLM_SHARED(uint64_t, work, SAMPLE_THREADS / VLM_WARP);
    VLM_SHARED(float, x, VLM_OPS_TOP_LOGPROBS);
    VLM_SHARED(int32_t, ids, VLM_OPS_TOP_LOGPROBS);
    VLM_SHARED(uint32_t, n, 1);

    r = s.rows[blockIdx.x];

    if (!is_weighed(s, r)) {
        /* the whole block */
        return;
    }

    state = s.states[blockIdx.x];

    v.row = s.logits + (int64_t) blockIdx.x * s.stride;
    v.list = state.whole ? NULL
                         : s.list + (int64_t) blockIdx.x * SAMPLE_CHUNK;
    v.count = state.whole ? s.n : (int32_t) state.count;
    v.scale = 1.0f;
    v.cut.value = -FLT_MAX;
    v.cut.last = s.n;
    v.work = work;

    row_max(s, s.chunks + (int64_t) blockIdx.x * s.nchunks, &v.max, &id);

    log_sum = (double) v.max + log(ldexp((double) state.total, -s.shift));

    if (threadIdx.x == 0) {
        s.log_sums[blockIdx.x] = log_sum;
    }

    top_logprobs(s, r, &v, log_sum, x, ids, n, &s.out[blockIdx.x]);
}


void
vlm_cuda_sample_finish(vlm_queue_t *q, const sample_t &s, int64_t rows)
{
    if (s.raw) {
        VLM_LAUNCH(q, "sample", finish_raw_kernel, (unsigned) rows,
                   SAMPLE_THREADS, 0, s);

    } else {
        VLM_LAUNCH(q, "sample", finish_sample_kernel, (unsigned) rows,
                   SAMPLE_THREADS, 0, s);
    }
}


VLM_CUDA_END
