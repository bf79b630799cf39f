
/*
 * Rows as int8.  A float32 becomes a byte by an addition that leaves the
 * integer, rounded to even, in its low bits: no value, NaN neither, is ever
 * converted to an integer that cannot hold it.
 */

#ifndef VLM_CPU_LINEAR_I8_H
#define VLM_CPU_LINEAR_I8_H


#include <math.h>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/vec.h"


/* what to multiply a row by; returns the scale that turns it back */

static inline float
vlm_i8_scale(const float *x, int64_t k, float *inverse)
{
    float    m;
    int32_t  most, bits;
    int64_t  i;

    most = 0;

    for (i = 0; i < k; i++) {
        bits = (int32_t) (vlm_f32_bits(x[i]) & 0x7fffffff);
        most = bits > most ? bits : most;
    }

    *inverse = 0;

    if (most >= 0x7f800000) {
        return NAN;
    }

    m = vlm_f32_from_bits((uint32_t) most);

    if (m < VLM_I8_LEAST) {
        return 0;
    }

    *inverse = 127 / m;

    return m / 127;
}


/* to bytes in two's complement, or, by the sign's bit, plus 128 */

static inline void
vlm_i8_quantise(const float *x, int64_t n, float inverse, uint8_t sign,
    uint8_t *to)
{
    int64_t  i;

    for (i = 0; i < n; i++) {
        to[i] = (uint8_t) (vlm_f32_bits(x[i] * inverse + 0x1.8p23f) ^ sign);
    }
}


#endif /* VLM_CPU_LINEAR_I8_H */
