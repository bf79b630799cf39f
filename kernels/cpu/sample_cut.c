
/*
 * Where to cut a row so that its best elements are left: a search through
 * the digits of the values' order, highest digit first, with counts or sums
 * of weights for each value of a digit.  Time is linear in the row, whatever
 * is in it; nothing is sorted.
 */

#include <string.h>

#include "kernels/cpu/sample.h"
#include "kernels/cpu/vec.h"


#define DIGITS   3
#define BUCKETS  2048

/* bits below each digit, and bits of it */
static const int  digit_shift[DIGITS] = { 21, 10, 0 };
static const int  digit_bits[DIGITS] = { 11, 11, 10 };


/* unsigned numbers in the order of the floats; -0 is 0 */

static uint32_t
order(float x)
{
    uint32_t  bits = vlm_f32_bits(x + 0.0f);

    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000;
}


static float
unorder(uint32_t key)
{
    return vlm_f32_from_bits((key >> 31) != 0 ? key & 0x7fffffff : ~key);
}


typedef struct {
    double    mass[BUCKETS];
    int32_t   count[BUCKETS];
} histogram_t;


static void find_cut(vlm_cut_t *cut, const float *x, const float *weight,
    int32_t n, double target);
static void count_digit(histogram_t *h, const vlm_cut_t *cut, const float *x,
    const float *weight, int32_t n, int digit, uint32_t found);
static int choose_bucket(const histogram_t *h, double *target);
static void cut_equals(vlm_cut_t *cut, const float *x, const float *weight,
    int32_t n, float value, double target);


void
vlm_cut_count(vlm_cut_t *cut, const float *x, int32_t n, int32_t k)
{
    find_cut(cut, x, NULL, n, k);
}


void
vlm_cut_share(vlm_cut_t *cut, const float *x, const float *weight, int32_t n,
    double share)
{
    double   total;
    int32_t  i;

    total = 0.0;

    for (i = 0; i < n; i++) {

        if (vlm_cut_keeps(cut, x[i], i)) {
            total += weight[i];
        }
    }

    find_cut(cut, x, weight, n, share * total);
}


/*
 * The cut at which the sum of weights (NULL: 1 each) from the best element
 * down reaches target.
 */

static void
find_cut(vlm_cut_t *cut, const float *x, const float *weight, int32_t n,
    double target)
{
    int          digit;
    uint32_t     found;
    histogram_t  h;

    found = 0;

    for (digit = 0; digit < DIGITS; digit++) {
        count_digit(&h, cut, x, weight, n, digit, found);
        found |= (uint32_t) choose_bucket(&h, &target) << digit_shift[digit];
    }

    cut_equals(cut, x, weight, n, unorder(found), target);
}


/* by the digit, the elements whose higher digits are those found */

static void
count_digit(histogram_t *h, const vlm_cut_t *cut, const float *x,
    const float *weight, int32_t n, int digit, uint32_t found)
{
    int       b, shift, mask, above;
    int32_t   i;
    uint32_t  key;

    shift = digit_shift[digit];
    mask = (1 << digit_bits[digit]) - 1;
    above = shift + digit_bits[digit];

    memset(h, 0, sizeof(histogram_t));

    for (i = 0; i < n; i++) {
        key = order(x[i]);

        if ((uint64_t) key >> above == (uint64_t) found >> above
            && vlm_cut_keeps(cut, x[i], i))
        {
            b = (int) (key >> shift) & mask;
            h->mass[b] += weight != NULL ? weight[i] : 1.0;
            h->count[b]++;
        }
    }
}


/* the bucket that reaches the target; *target becomes what it must give */

static int
choose_bucket(const histogram_t *h, double *target)
{
    int  b, lowest;

    lowest = 0;

    while (lowest < BUCKETS - 1 && h->count[lowest] == 0) {
        lowest++;
    }

    /* sums are rounded: the lowest one takes whatever is missing */

    for (b = BUCKETS - 1; b > lowest; b--) {

        if (h->count[b] != 0 && h->mass[b] >= *target) {
            break;
        }

        *target -= h->mass[b];
    }

    return b;
}


/* of equal elements the first ones */

static void
cut_equals(vlm_cut_t *cut, const float *x, const float *weight, int32_t n,
    float value, double target)
{
    double   sum;
    int32_t  i, last;

    sum = 0.0;
    last = 0;

    for (i = 0; i < n; i++) {

        if (x[i] == value && vlm_cut_keeps(cut, x[i], i)) {
            last = i;
            sum += weight != NULL ? weight[i] : 1.0;

            if (sum >= target) {
                break;
            }
        }
    }

    cut->value = value;
    cut->last = last;
}
