
/*
 * What the tests of attention share: how far results of bfloat16 may be from
 * the CPU's, and rows by which results count keys.
 */

#ifndef CUDA_ROUNDING_H
#define CUDA_ROUNDING_H


#include "t/unit/cuda_rig.h"


/*
 * What weights that are rounded to bfloat16 do to a row's result, in units of
 * half of its last place: weight w of value v becomes w (1 + d), |d| at most
 * one unit and 0.4 at the mean, and the result moves by the sum of
 * w d (v - y).  Twice the root of the squares' sum is 5 standard deviations,
 * and more than any sum of up to 4 terms.
 */

static void
add_rounding(float *to, const float *q, const float **keys,
    const float **values, int n, int dim)
{
    int     i, j;
    double  *w, max, sum, y, d, e;

    w = rig_memory(n * sizeof(double));
    max = -INFINITY;
    sum = 0;

    for (j = 0; j < n; j++) {
        w[j] = 0;

        for (i = 0; i < dim; i++) {
            w[j] += (double) q[i] * keys[j][i];
        }

        w[j] /= sqrt(dim);
        max = fmax(max, w[j]);
    }

    for (j = 0; j < n; j++) {
        w[j] = exp(w[j] - max);
        sum += w[j];
    }

    for (j = 0; j < n; j++) {
        w[j] /= sum;
    }

    for (i = 0; i < dim; i++) {
        y = 0;
        d = 0;

        /* the sum of w^2 (v - y)^2 */

        for (j = 0; j < n; j++) {
            y += w[j] * values[j][i];
        }

        for (j = 0; j < n; j++) {
            e = w[j] * (values[j][i] - y);
            d += e * e;
        }

        to[i] += 2 * sqrt(d);
    }

    free(w);
}


/*
 * The worst error in units of half of bfloat16's last place (and 1e-5), of
 * the result and of what its weights' rounding may be, NULL: they have none.
 */

static double
worst_rounding(const float *got, const float *expected,
    const float *rounding, size_t n)
{
    size_t  i;
    double  d, worst;

    worst = 0.0;

    for (i = 0; i < n; i++) {
        d = fabs((double) got[i] - expected[i])
            / ((fabs((double) expected[i])
                + (rounding != NULL ? rounding[i] : 0)) / 256 + 1e-5);

        if (!(d <= worst)) {
            worst = d;
        }
    }

    return worst;
}


/*
 * Rows of one key each in one column: a result is a count of keys, and one
 * too many or too few shows, however many there are.
 */

static void
count_keys(float *qkv, int row, int key, int heads, int kv_heads,
    int dim)
{
    int     i, width;
    float  *p;

    width = (heads + 2 * kv_heads) * dim;
    p = qkv + (size_t) row * width;

    for (i = 0; i < width; i++) {

        if (i >= (heads + kv_heads) * dim) {
            p[i] = i % dim == key % dim;

        } else {
            p[i] *= i >= heads * dim;
        }
    }
}


#endif /* CUDA_ROUNDING_H */
