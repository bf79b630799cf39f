
/*
 * The kernel of attn.h over 16 lanes; included once by each attn_ISA.c.
 *
 * Queries are taken in strips of up to STRIP, whose scores against TILES
 * tiles of keys, and then products with values, stay in registers.  A strip's
 * width changes no result: every score and every output is a chain of its
 * own, over the head's elements or the keys in order.
 */

#include "kernels/cpu/attn.h"
#include "kernels/cpu/vmath.h"

#if defined(VLM_VEC_AVX512)
#define STRIP   12
#define TILES   2
#elif defined(VLM_VEC_AVX2)
#define STRIP   6
#define TILES   1
#else
#define STRIP   4
#define TILES   1
#endif

/* so that the arrays of vectors below become registers, where there are any */

#if !defined(VLM_VEC_AVX512) && !defined(VLM_VEC_AVX2)
#define UNROLL
#elif defined(__clang__)
#define UNROLL  _Pragma("clang loop unroll(full)")
#else
#define UNROLL  _Pragma("GCC unroll 16")
#endif

#define GROUP_KEYS  (VLM_ATTN_GROUP * VLM_ATTN_TILE)


/* queries that walk over the keys together, and their state */

typedef struct {
    int       n;
    int       first;                    /* of the call's queries */
    int32_t   nkeys;                    /* greatest of theirs */
    float    *q;                        /* [head_dim][n], scaled */
    float    *out;                      /* [n][width], not yet divided */
    float    *total;                    /* [n][16 lanes] */
    float    *max;                      /* [16] */
} strip_t;


/* s[i][key] = q[i] . k[key] for "ntiles" tiles at s */

VLM_VEC_INLINE void
scores(int n, int ntiles, float *s, const float *q,
    const float *const *tiles, int dim)
{
    int           i, t, d;
    v16           acc[STRIP][TILES], k[TILES], b;
    const float  *p[TILES];

    UNROLL
    for (t = 0; t < ntiles; t++) {
        p[t] = tiles[t];

        UNROLL
        for (i = 0; i < n; i++) {
            acc[i][t] = v16_zero();
        }
    }

    for (d = 0; d < dim; d++) {

        UNROLL
        for (t = 0; t < ntiles; t++) {
            k[t] = v16_load(p[t] + d * VLM_LANES);
        }

        UNROLL
        for (i = 0; i < n; i++) {
            b = v16_set1(q[i]);

            UNROLL
            for (t = 0; t < ntiles; t++) {
                acc[i][t] = v16_fma(b, k[t], acc[i][t]);
            }
        }

        q += n;
    }

    UNROLL
    for (i = 0; i < n; i++) {

        UNROLL
        for (t = 0; t < ntiles; t++) {
            v16_store(s + i * GROUP_KEYS + t * VLM_LANES, acc[i][t]);
        }
    }
}


/* out[i] = out[i] * scale[i] + p[i] . v over nkeys, for nvec vectors */

VLM_VEC_INLINE void
values(int n, int nvec, float *out, int width, const float *scale,
    const float *p, const float *const *tiles, int offset, int nkeys)
{
    int           i, v, j, t, left;
    v16           acc[STRIP][TILES], row[TILES], b;
    const float  *value;

    UNROLL
    for (i = 0; i < n; i++) {
        b = v16_set1(scale[i]);

        UNROLL
        for (v = 0; v < nvec; v++) {
            acc[i][v] = v16_mul(b, v16_load(out + i * width + v * VLM_LANES));
        }
    }

    for (t = 0; t * VLM_ATTN_TILE < nkeys; t++) {
        value = tiles[t] + offset;
        left = nkeys - t * VLM_ATTN_TILE;
        left = left < VLM_ATTN_TILE ? left : VLM_ATTN_TILE;

        for (j = 0; j < left; j++) {

            UNROLL
            for (v = 0; v < nvec; v++) {
                row[v] = v16_load(value + v * VLM_LANES);
            }

            UNROLL
            for (i = 0; i < n; i++) {
                b = v16_set1(p[i * GROUP_KEYS]);

                UNROLL
                for (v = 0; v < nvec; v++) {
                    acc[i][v] = v16_fma(b, row[v], acc[i][v]);
                }
            }

            value += width;
            p++;
        }
    }

    UNROLL
    for (i = 0; i < n; i++) {

        UNROLL
        for (v = 0; v < nvec; v++) {
            v16_store(out + i * width + v * VLM_LANES, acc[i][v]);
        }
    }
}


/*
 * Scores of a group to weights exp(s - max) with the new maximum, in place;
 * the lanes of keys that a query does not see become 0.  scale[i] is what
 * its sums so far must be multiplied with.
 */

VLM_VEC_INLINE void
softmax(strip_t *strip, int ntiles, float *s, const int32_t *nkeys,
    int32_t key0, float *scale)
{
    int      i, t;
    v16      v[VLM_ATTN_GROUP], m, total;
    float    old[VLM_LANES];
    int32_t  seen;

    v16_store(old, v16_load(strip->max));

    for (i = 0; i < strip->n; i++) {
        m = v16_set1(-INFINITY);

        for (t = 0; t < ntiles; t++) {
            v[t] = v16_load(s + i * GROUP_KEYS + t * VLM_LANES);
            seen = nkeys[i] - key0 - t * VLM_ATTN_TILE;

            if (seen < VLM_ATTN_TILE) {
                v[t] = v16_select(v16_first(seen > 0 ? seen : 0), v[t],
                                  v16_set1(-INFINITY));
                v16_store(s + i * GROUP_KEYS + t * VLM_LANES, v[t]);
            }

            m = v16_max(m, v[t]);
        }

        m = v16_max(m, v16_set1(old[i]));
        strip->max[i] = v16_hmax(m);
    }

    v16_store(scale, v16_exp_negative(v16_sub(v16_load(old),
                                              v16_load(strip->max))));

    for (i = 0; i < strip->n; i++) {
        m = v16_set1(strip->max[i]);
        total = v16_mul(v16_load(strip->total + i * VLM_LANES),
                        v16_set1(scale[i]));

        for (t = 0; t < ntiles; t++) {
            v[0] = v16_load(s + i * GROUP_KEYS + t * VLM_LANES);
            v[0] = v16_exp_negative(v16_sub(v[0], m));
            v16_store(s + i * GROUP_KEYS + t * VLM_LANES, v[0]);
            total = v16_add(total, v[0]);
        }

        v16_store(strip->total + i * VLM_LANES, total);
    }
}


/* one group of tiles, n is a constant */

VLM_VEC_INLINE void
group(int n, strip_t *strip, const vlm_attn_call_t *call, int32_t key0)
{
    int                  t, ntiles, nkeys, width, d;
    float                s[STRIP * GROUP_KEYS], scale[VLM_LANES];
    const float *const  *tiles;

    width = vlm_attn_width(call->head_dim);
    tiles = call->tiles + key0 / VLM_ATTN_TILE;

    nkeys = strip->nkeys - key0;
    nkeys = nkeys < GROUP_KEYS ? nkeys : GROUP_KEYS;
    ntiles = (nkeys + VLM_ATTN_TILE - 1) / VLM_ATTN_TILE;

    for (t = 0; t + TILES <= ntiles; t += TILES) {
        scores(n, TILES, s + t * VLM_ATTN_TILE, strip->q, tiles + t,
               call->head_dim);
    }

    for ( ; t < ntiles; t++) {
        scores(n, 1, s + t * VLM_ATTN_TILE, strip->q, tiles + t,
               call->head_dim);
    }

    softmax(strip, ntiles, s, call->nkeys + strip->first, key0, scale);

    for (d = 0; d + TILES * VLM_LANES <= width; d += TILES * VLM_LANES) {
        values(n, TILES, strip->out + d, width, scale, s, tiles,
               call->head_dim * VLM_ATTN_TILE + d, nkeys);
    }

    for ( ; d < width; d += VLM_LANES) {
        values(n, 1, strip->out + d, width, scale, s, tiles,
               call->head_dim * VLM_ATTN_TILE + d, nkeys);
    }
}


#define GROUP_OF(n)                                                           \
    static __attribute__((noinline)) void                                     \
    group_##n(strip_t *strip, const vlm_attn_call_t *call, int32_t key0)      \
    {                                                                         \
        group(n, strip, call, key0);                                          \
    }

GROUP_OF(1)
GROUP_OF(2)
GROUP_OF(3)
GROUP_OF(4)
#if STRIP >= 6
GROUP_OF(6)
#endif
#if STRIP >= 12
GROUP_OF(8)
GROUP_OF(12)
#endif

typedef void (*group_pt)(strip_t *strip, const vlm_attn_call_t *call,
    int32_t key0);

static const struct {
    int       n;
    group_pt  run;
} widths[] = {
#if STRIP >= 12
    { 12, group_12 },
    { 8, group_8 },
#endif
#if STRIP >= 6
    { 6, group_6 },
#endif
    { 4, group_4 },
    { 3, group_3 },
    { 2, group_2 },
    { 1, group_1 }
};


/* fills a strip's state; returns the end of the memory taken */

static float *
strip_begin(strip_t *strip, const vlm_attn_call_t *call, float *work)
{
    int  i, d, width;

    width = vlm_attn_width(call->head_dim);

    strip->out = work;
    strip->total = strip->out + strip->n * width;
    strip->max = strip->total + strip->n * VLM_LANES;
    strip->q = strip->max + VLM_LANES;

    memset(work, 0, (size_t) (strip->max - work) * sizeof(float));
    v16_store(strip->max, v16_set1(-INFINITY));

    strip->nkeys = 0;

    for (i = 0; i < strip->n; i++) {

        for (d = 0; d < call->head_dim; d++) {
            strip->q[d * strip->n + i] = call->q[strip->first + i][d]
                                         * call->scale;
        }

        if (call->nkeys[strip->first + i] > strip->nkeys) {
            strip->nkeys = call->nkeys[strip->first + i];
        }
    }

    d = strip->n * call->head_dim;

    return strip->q + (d + VLM_LANES - 1) / VLM_LANES * VLM_LANES;
}


/* +0 makes -0, which masked keys may turn into 0, equal in all strips */

static void
strip_end(const strip_t *strip, const vlm_attn_call_t *call)
{
    int           i, d, left;
    v16           v, inverse;
    float        *y;
    const float  *out;

    for (i = 0; i < strip->n; i++) {
        y = call->y[strip->first + i];
        out = strip->out + i * vlm_attn_width(call->head_dim);

        inverse = v16_set1(1.0f / v16_sum(v16_load(strip->total
                                                   + i * VLM_LANES)));

        for (d = 0; d < call->head_dim; d += VLM_LANES) {
            left = call->head_dim - d;
            v = v16_add(v16_mul(v16_load(out + d), inverse), v16_zero());

            if (left >= VLM_LANES) {
                v16_store(y + d, v);
            } else {
                v16_store_n(y + d, v, left);
            }
        }
    }
}


static void
run(const vlm_attn_call_t *call)
{
    int        i, n, w, first;
    float     *work;
    int32_t    key0, nkeys;
    strip_t    strips[VLM_ATTN_QUERIES];
    group_pt   fn[VLM_ATTN_QUERIES];

    n = 0;
    w = 0;
    nkeys = 0;
    work = call->work;

    for (first = 0; first < call->nqueries; first += strips[n++].n) {

        while (widths[w].n > call->nqueries - first) {
            w++;
        }

        fn[n] = widths[w].run;
        strips[n].n = widths[w].n;
        strips[n].first = first;
        work = strip_begin(&strips[n], call, work);

        if (strips[n].nkeys > nkeys) {
            nkeys = strips[n].nkeys;
        }
    }

    for (key0 = 0; key0 < nkeys; key0 += GROUP_KEYS) {

        for (i = 0; i < n; i++) {

            if (strips[i].nkeys > key0) {
                fn[i](&strips[i], call, key0);
            }
        }
    }

    for (i = 0; i < n; i++) {
        strip_end(&strips[i], call);
    }
}


#define VLM_ATTN_TABLE  { .run = run }
