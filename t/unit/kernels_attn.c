
/*
 * The decoder's attention over the paged cache, and that of the vision
 * tower: against naive sums in double precision, and the same bits in every
 * way of cutting the work, on every instruction set.
 */

#include <math.h>

#include "t/unit/kernels_rig.h"


#define NSEQS      4
#define MAX_BLOCKS 40


/* sequences, their inputs, and what attention gives */

typedef struct {
    int        dim;
    int        heads;
    int        kv_heads;
    int        block_size;
    int        norms;
    int        nseqs;
    int        length[NSEQS];
    int        first[NSEQS];            /* row of all */
    int        nrows;
    int        width;                   /* of qkv */
    float     *qkv;
    int32_t   *positions;               /* [3][nrows] */
    float     *q_gain;
    float     *k_gain;
    vlm_rope_t rope;
} text_t;

/* the cache, and how the blocks are spread over it */

typedef struct {
    vlm_kv_t   kv;
    size_t     bytes;
    int32_t    blocks[NSEQS * MAX_BLOCKS];
} cache_t;


static void
text_make(text_t *t, uint64_t *seed, int dim, int heads, int kv_heads,
    int block_size, int norms, int longest)
{
    int  s, i, n;

    t->dim = dim;
    t->heads = heads;
    t->kv_heads = kv_heads;
    t->block_size = block_size;
    t->norms = norms;
    t->nseqs = 1 + rig_below(seed, NSEQS);
    t->nrows = 0;

    for (s = 0; s < t->nseqs; s++) {
        t->length[s] = 1 + longest / 2 + rig_below(seed, longest / 2);
        t->first[s] = t->nrows;
        t->nrows += t->length[s];
    }

    n = t->nrows;
    t->width = (heads + 2 * kv_heads) * dim;
    t->qkv = rig_random(seed, (size_t) n * t->width, 2.0f);
    t->q_gain = rig_random(seed, dim, 2.0f);
    t->k_gain = rig_random(seed, dim, 2.0f);
    t->positions = rig_alloc(3 * n * sizeof(int32_t));

    for (i = 0; i < 3 * n; i++) {
        t->positions[i] = rig_below(seed, 1000);
    }

    t->rope.npairs = dim / 2;
    t->rope.naxes = 3;

    for (i = 0; i < dim / 2; i++) {
        t->rope.inv_freq[i] = (float) pow(10000.0, -2.0 * i / dim);
        t->rope.axis[i] = (uint8_t) (i % 3);
    }
}


static void
text_free(text_t *t)
{
    free(t->qkv);
    free(t->q_gain);
    free(t->k_gain);
    free(t->positions);
}


/* one head's vector after norm and rotation, in double */

static void
head_reference(const text_t *t, double *to, const float *x,
    const float *gain, int row)
{
    int     i, half;
    double  sum, angle, a, b;

    half = t->dim / 2;
    sum = 0.0;

    for (i = 0; i < t->dim; i++) {
        sum += (double) x[i] * x[i];
    }

    sum = t->norms ? 1.0 / sqrt(sum / t->dim + 1e-6) : 1.0;

    for (i = 0; i < t->dim; i++) {
        to[i] = x[i] * sum * (t->norms ? gain[i] : 1.0);
    }

    for (i = 0; i < half; i++) {
        angle = (float) t->positions[t->rope.axis[i] * t->nrows + row]
                * t->rope.inv_freq[i];
        a = to[i];
        b = to[i + half];
        to[i] = a * cos(angle) - b * sin(angle);
        to[i + half] = b * cos(angle) + a * sin(angle);
    }
}


/* softmax(q . k / sqrt(dim)) . v over n keys */

static void
attend_reference(float *y, const double *q, const double *keys,
    const float *values, size_t value_stride, int n, int dim)
{
    int     j, d;
    double  *p, max, sum, v;

    p = rig_alloc(n * sizeof(double));
    max = -INFINITY;
    sum = 0.0;

    for (j = 0; j < n; j++) {
        p[j] = 0.0;

        for (d = 0; d < dim; d++) {
            p[j] += q[d] * keys[(size_t) j * dim + d];
        }

        p[j] /= sqrt(dim);
        max = p[j] > max ? p[j] : max;
    }

    for (j = 0; j < n; j++) {
        p[j] = exp(p[j] - max);
        sum += p[j];
    }

    for (d = 0; d < dim; d++) {
        v = 0.0;

        for (j = 0; j < n; j++) {
            v += p[j] * values[j * value_stride + d];
        }

        y[d] = (float) (v / sum);
    }

    free(p);
}


static void
text_reference(const text_t *t, float *y)
{
    int           s, h, i, row, kv_head;
    double       *keys, q[512];
    const float  *x, *first;

    keys = rig_alloc((size_t) t->nrows * t->dim * sizeof(double));

    for (s = 0; s < t->nseqs; s++) {

        for (h = 0; h < t->heads; h++) {
            kv_head = h / (t->heads / t->kv_heads);
            first = t->qkv + (size_t) t->first[s] * t->width;

            for (i = 0; i < t->length[s]; i++) {
                row = t->first[s] + i;
                x = t->qkv + (size_t) row * t->width;

                head_reference(t, keys + (size_t) i * t->dim,
                               x + (t->heads + kv_head) * t->dim, t->k_gain,
                               row);
                head_reference(t, q, x + h * t->dim, t->q_gain, row);

                attend_reference(y + (size_t) row * t->heads * t->dim
                                 + h * t->dim,
                                 q, keys,
                                 first + (t->heads + t->kv_heads + kv_head)
                                         * t->dim,
                                 t->width, i + 1, t->dim);
            }
        }
    }

    free(keys);
}


/* blocks in random order, all bytes 0xff: what is not written is NaN */

static void
cache_make(cache_t *c, rig_t *rig, const text_t *t, uint64_t *seed)
{
    int      i, j;
    int32_t  swap;

    for (i = 0; i < NSEQS * MAX_BLOCKS; i++) {
        c->blocks[i] = i;
    }

    for (i = NSEQS * MAX_BLOCKS - 1; i > 0; i--) {
        j = rig_below(seed, i + 1);
        swap = c->blocks[i];
        c->blocks[i] = c->blocks[j];
        c->blocks[j] = swap;
    }

    c->kv.device = rig->dev;
    c->kv.nblocks = NSEQS * MAX_BLOCKS;
    c->kv.block_size = t->block_size;
    c->kv.kv_heads = t->kv_heads;
    c->kv.head_dim = t->dim;

    c->bytes = c->kv.nblocks
               * rig->ops->kv_block_bytes(rig->dev, t->block_size,
                                          t->kv_heads, t->dim);
    c->kv.data = rig->ops->alloc(rig->dev, c->bytes);
    memset(c->kv.data, 0xff, c->bytes);
}


/* one step: rows [done[s], done[s] + take[s]) of each sequence */

static void
text_step(rig_t *rig, const text_t *t, cache_t *c, vlm_step_t *step,
    const int *done, const int *take, float *y)
{
    int              s, i, a, n, row, y_width;
    float           *qkv, *out;
    int32_t          row_start[NSEQS + 1], *positions;
    int32_t          context[NSEQS];
    vlm_tensor_t     in, to;
    vlm_step_host_t  host;

    n = 0;

    for (s = 0; s < t->nseqs; s++) {
        row_start[s] = n;
        context[s] = done[s];
        n += take[s];
    }

    row_start[s] = n;
    y_width = t->heads * t->dim;

    qkv = rig_alloc((size_t) n * t->width * sizeof(float));
    out = rig_alloc((size_t) n * y_width * sizeof(float));
    positions = rig_alloc(3 * n * sizeof(int32_t));

    for (s = 0; s < t->nseqs; s++) {

        for (i = 0; i < take[s]; i++) {
            row = t->first[s] + done[s] + i;
            memcpy(qkv + (size_t) (row_start[s] + i) * t->width,
                   t->qkv + (size_t) row * t->width,
                   t->width * sizeof(float));

            for (a = 0; a < 3; a++) {
                positions[a * n + row_start[s] + i] =
                                             t->positions[a * t->nrows + row];
            }
        }
    }

    host.nrows = n;
    host.nseqs = t->nseqs;
    host.row_start = row_start;
    host.context = context;
    host.blocks = c->blocks;
    host.max_blocks = MAX_BLOCKS;
    host.ids = NULL;
    host.positions = positions;

    rig->ops->step_upload(rig->q, step, &host, &t->rope);

    in = rig_tensor(rig, qkv, n, t->width);
    to = rig_tensor(rig, out, n, y_width);

    rig->ops->rope_kv(rig->q, step, &in, t->heads, &c->kv,
                      t->norms ? t->q_gain : NULL,
                      t->norms ? t->k_gain : NULL, 1e-6f);
    rig->ops->attention(rig->q, step, &to, &in, t->heads, &c->kv);
    rig_sync(rig);

    for (s = 0; s < t->nseqs; s++) {
        memcpy(y + (size_t) (t->first[s] + done[s]) * y_width,
               out + (size_t) row_start[s] * y_width,
               (size_t) take[s] * y_width * sizeof(float));
    }

    free(qkv);
    free(out);
    free(positions);
}


/* in steps of up to "most" rows a sequence, 0: all at once */

static void
text_run(rig_t *rig, const text_t *t, uint64_t *seed, int most, float *y)
{
    int         s, left, done[NSEQS], take[NSEQS];
    cache_t     cache;
    vlm_step_t  step;

    memset(&step, 0, sizeof(step));
    memset(done, 0, sizeof(done));
    cache_make(&cache, rig, t, seed);

    do {
        left = 0;

        for (s = 0; s < t->nseqs; s++) {
            take[s] = t->length[s] - done[s];

            if (most != 0 && take[s] > 0) {
                take[s] = 1 + rig_below(seed, take[s] < most ? take[s]
                                                             : most);
            }
        }

        text_step(rig, t, &cache, &step, done, take, y);

        for (s = 0; s < t->nseqs; s++) {
            done[s] += take[s];
            left += t->length[s] - done[s];
        }

    } while (left > 0);

    rig->ops->step_free(rig->dev, &step);
    rig->ops->free(rig->dev, cache.kv.data);
}


static void
test_text(rig_t *rigs, int nrigs)
{
    int       c, r;
    size_t    n, differ;
    float    *y, *first, *expected;
    double    distance;
    text_t    t;
    uint64_t  seed;

    static const struct {
        int  dim, heads, kv_heads, block_size, norms, longest;
    } cases[] = {
        { 2, 1, 1, 16, 0, 20 },
        { 12, 4, 2, 16, 0, 70 },
        { 16, 4, 1, 32, 1, 200 },
        { 24, 6, 6, 16, 0, 70 },
        { 32, 5, 1, 48, 1, 150 },
        { 64, 14, 2, 16, 0, 70 },
        { 72, 2, 1, 16, 1, 90 },
        { 128, 12, 2, 16, 0, 80 },
        { 128, 64, 1, 16, 1, 20 },
        { 512, 2, 1, 16, 0, 30 }
    };

    seed = 1;

    for (c = 0; c < (int) (sizeof(cases) / sizeof(cases[0])); c++) {
        text_make(&t, &seed, cases[c].dim, cases[c].heads, cases[c].kv_heads,
                  cases[c].block_size, cases[c].norms, cases[c].longest);

        n = (size_t) t.nrows * t.heads * t.dim;
        y = rig_alloc(n * sizeof(float));
        first = rig_alloc(n * sizeof(float));
        expected = rig_alloc(n * sizeof(float));

        text_reference(&t, expected);
        text_run(&rigs[0], &t, &seed, 0, first);
        distance = tap_distance(first, expected, n);

        tap_ok(distance < 2e-6, "text: %d rows, %d/%d heads of %d, blocks of "
               "%d: distance %.2g", t.nrows, t.heads, t.kv_heads, t.dim,
               t.block_size, distance);

        differ = 0;

        for (r = 0; r < nrigs; r++) {
            text_run(&rigs[r], &t, &seed, 0, y);
            differ += rig_differ(y, first, n);
            text_run(&rigs[r], &t, &seed, 1, y);
            differ += rig_differ(y, first, n);
            text_run(&rigs[r], &t, &seed, 40, y);
            differ += rig_differ(y, first, n);
        }

        tap_is(differ, 0, "the same bits whole, token by token and in "
               "chunks, on %d devices", nrigs);

        free(y);
        free(first);
        free(expected);
        text_free(&t);
    }
}


/* ---- vision ---- */

typedef struct {
    vlm_segments_t  seg;
    int32_t         start[16];
    int             rows;
    int             width;
    float          *qkv;
    float          *table;              /* NULL: no rotation */
} vision_t;


static void
vision_reference(const vision_t *v, float *y)
{
    int           s, h, i, d, dim, half, len;
    float        *turned, *x;
    double       *keys, q[512];
    const float  *angles;

    dim = v->seg.head_dim;
    half = dim / 2;
    keys = rig_alloc((size_t) v->rows * dim * sizeof(double));
    turned = rig_alloc((size_t) v->rows * v->width * sizeof(float));
    memcpy(turned, v->qkv, (size_t) v->rows * v->width * sizeof(float));

    for (i = 0; i < v->rows && v->table != NULL; i++) {
        angles = v->table + (size_t) i * dim;

        for (h = 0; h < 2 * v->seg.heads; h++) {
            x = turned + (size_t) i * v->width + h * dim;

            for (d = 0; d < half; d++) {
                q[d] = (double) x[d] * angles[d]
                       - (double) x[d + half] * angles[d + half];
                q[d + half] = (double) x[d + half] * angles[d]
                              + (double) x[d] * angles[d + half];
            }

            for (d = 0; d < dim; d++) {
                x[d] = (float) q[d];
            }
        }
    }

    for (s = 0; s < v->seg.nsegments; s++) {
        len = v->start[s + 1] - v->start[s];
        x = turned + (size_t) v->start[s] * v->width;

        for (h = 0; h < v->seg.heads; h++) {

            for (i = 0; i < len; i++) {

                for (d = 0; d < dim; d++) {
                    keys[i * dim + d] = x[(size_t) i * v->width
                                          + (v->seg.heads + h) * dim + d];
                }
            }

            for (i = 0; i < len; i++) {

                for (d = 0; d < dim; d++) {
                    q[d] = x[(size_t) i * v->width + h * dim + d];
                }

                attend_reference(y + (size_t) (v->start[s] + i)
                                     * v->seg.heads * dim + h * dim,
                                 q, keys, x + (2 * v->seg.heads + h) * dim,
                                 v->width, len, dim);
            }
        }
    }

    free(keys);
    free(turned);
}


/* both halves in views of up to "most" rows, 0: in one */

static void
vision_run(rig_t *rig, const vision_t *v, uint64_t *seed, int most, float *y)
{
    int            half, row, n;
    void          *kv;
    float         *qkv;
    size_t         bytes;
    vlm_tensor_t   all, out, table, view, part;

    bytes = rig->ops->vision_kv_bytes(rig->dev, &v->seg);
    kv = rig->ops->alloc(rig->dev, bytes);
    memset(kv, 0xff, bytes);

    qkv = rig_alloc((size_t) v->rows * v->width * sizeof(float));
    memcpy(qkv, v->qkv, (size_t) v->rows * v->width * sizeof(float));

    all = rig_tensor(rig, qkv, v->rows, v->width);
    out = rig_tensor(rig, y, v->rows, v->width / 3);
    table = rig_tensor(rig, v->table, v->rows, v->seg.head_dim);

    for (half = 0; half < 2; half++) {

        for (row = 0; row < v->rows; row += n) {
            n = v->rows - row;

            if (most != 0) {
                n = 1 + rig_below(seed, n < most ? n : most);
            }

            view = vlm_rows(&all, row, n);

            if (half == 0) {
                part = vlm_rows(&table, row, n);
                rig->ops->vision_rope(rig->q, &v->seg, &view,
                                      v->table != NULL ? &part : NULL, row,
                                      kv);
            } else {
                part = vlm_rows(&out, row, n);
                rig->ops->vision_attention(rig->q, &v->seg, &part, &view, row,
                                           kv);
            }
        }
    }

    rig_sync(rig);
    rig->ops->free(rig->dev, kv);
    free(qkv);
}


static void
test_vision(rig_t *rigs, int nrigs)
{
    int       c, r, s, i;
    size_t    n, differ;
    float    *y, *first, *expected;
    double    distance;
    uint64_t  seed;
    vision_t  v;

    static const struct {
        int  dim, heads, nsegments, longest, rope;
    } cases[] = {
        { 2, 1, 1, 3, 1 },
        { 12, 4, 3, 100, 1 },
        { 15, 2, 2, 60, 0 },
        { 32, 4, 12, 20, 1 },
        { 64, 2, 2, 140, 1 },
        { 72, 3, 1, 200, 0 },
        { 80, 2, 3, 150, 1 }
    };

    seed = 2;

    for (c = 0; c < (int) (sizeof(cases) / sizeof(cases[0])); c++) {
        v.seg.nsegments = cases[c].nsegments;
        v.seg.start = v.start;
        v.seg.heads = cases[c].heads;
        v.seg.head_dim = cases[c].dim;
        v.start[0] = 0;

        for (s = 0; s < v.seg.nsegments; s++) {
            v.start[s + 1] = v.start[s] + 1
                             + rig_below(&seed, cases[c].longest);
        }

        v.rows = v.start[s];
        v.width = 3 * cases[c].heads * cases[c].dim;
        v.qkv = rig_random(&seed, (size_t) v.rows * v.width, 2.0f);
        v.table = NULL;

        if (cases[c].rope) {
            v.table = rig_alloc((size_t) v.rows * cases[c].dim
                                * sizeof(float));

            for (i = 0; i < v.rows * cases[c].dim; i++) {
                v.table[i] = tap_uniform(&seed);
            }
        }

        n = (size_t) v.rows * v.width / 3;
        y = rig_alloc(n * sizeof(float));
        first = rig_alloc(n * sizeof(float));
        expected = rig_alloc(n * sizeof(float));

        vision_reference(&v, expected);
        vision_run(&rigs[0], &v, &seed, 0, first);
        distance = tap_distance(first, expected, n);

        tap_ok(distance < 2e-6, "vision: %d rows in %d segments, %d heads of "
               "%d%s: distance %.2g", v.rows, v.seg.nsegments, v.seg.heads,
               v.seg.head_dim, v.table != NULL ? ", turned" : "", distance);

        differ = 0;

        for (r = 0; r < nrigs; r++) {
            vision_run(&rigs[r], &v, &seed, 0, y);
            differ += rig_differ(y, first, n);
            vision_run(&rigs[r], &v, &seed, 7, y);
            differ += rig_differ(y, first, n);
            vision_run(&rigs[r], &v, &seed, 90, y);
            differ += rig_differ(y, first, n);
        }

        tap_is(differ, 0, "the same bits whole and in views, on %d devices",
               nrigs);

        free(y);
        free(first);
        free(expected);
        free(v.qkv);
        free(v.table);
    }
}


int
main(void)
{
    int    n;
    rig_t  rigs[RIG_MAX];

    n = rigs_open(rigs);

    test_text(rigs, n);
    test_vision(rigs, n);

    rigs_close(rigs, n);

    return tap_done();
}
