
/*
 * Elementary functions of 16 lanes, with equal bits on every instruction
 * set.  The polynomials interpolate at Chebyshev nodes; their errors are
 * below a quarter of a unit in the last place.
 */

#ifndef VLM_VMATH_H
#define VLM_VMATH_H


#include "kernels/cpu/vec.h"
#include "kernels/ops.h"


/* 2^23 * 1.5: adding it rounds to an integer, in the low bits */
#define VLM_ROUND       12582912.0f

#define VLM_LOG2E       0x1.715476p+0f
#define VLM_LN2_HI      0x1.62e430p-1f          /* times n is exact */
#define VLM_LN2_LO      -1.904654323e-9f


/*
 * e^(x - n ln 2) for the integer n nearest to x / ln 2, in [0.7, 1.42];
 * *t becomes n + VLM_ROUND
 */

VLM_VEC_INLINE v16
v16_exp_reduced(v16 x, v16 *t)
{
    v16  n, r, p;

    *t = v16_fma(x, v16_set1(VLM_LOG2E), v16_set1(VLM_ROUND));
    n = v16_sub(*t, v16_set1(VLM_ROUND));

    r = v16_fnma(n, v16_set1(VLM_LN2_HI), x);
    r = v16_fnma(n, v16_set1(VLM_LN2_LO), r);

    p = v16_fma(v16_set1(0x1.6d113cp-10f), r, v16_set1(0x1.120ba2p-7f));
    p = v16_fma(p, r, v16_set1(0x1.55551ap-5f));
    p = v16_fma(p, r, v16_set1(0x1.5554dcp-3f));
    p = v16_fma(p, r, v16_set1(0.5f));
    p = v16_fma(p, r, v16_set1(1.0f));

    return v16_fma(p, r, v16_set1(1.0f));
}


/* e^x; subnormal results too, 0 below them, infinity above FLT_MAX */

VLM_VEC_INLINE v16
v16_exp(v16 x)
{
    v16   p, t;
    v16i  n, half;

    /* NaN is the second operand and stays */
    x = v16_max(v16_set1(-104.0f), x);
    x = v16_min(v16_set1(89.0f), x);

    p = v16_exp_reduced(x, &t);

    /* 2^n in two steps, each a normal number */

    n = v16i_sub(v16i_cast(t), v16i_cast(v16_set1(VLM_ROUND)));
    half = v16i_sra(n, 1);
    n = v16i_sub(n, half);

    half = v16i_shl(v16i_add(half, v16i_set1(127)), 23);
    n = v16i_shl(v16i_add(n, v16i_set1(127)), 23);

    return v16_mul(v16_mul(p, v16_cast(half)), v16_cast(n));
}


/* e^x for x <= 0, as a softmax needs it: 0 below -87 */

VLM_VEC_INLINE v16
v16_exp_negative(v16 x)
{
    v16   p, t;
    v16i  n;
    v16m  tiny;

    tiny = v16_lt(x, v16_set1(-87.0f));

    p = v16_exp_reduced(x, &t);
    n = v16i_shl(v16i_add(v16i_cast(t), v16i_set1(127)), 23);

    return v16_select(tiny, v16_zero(), v16_mul(p, v16_cast(n)));
}


VLM_VEC_INLINE v16
v16_erf(v16 x)
{
    v16  a, s, p, q, t;

    a = v16_abs(x);
    s = v16_mul(x, x);

    /* below 1: x + x P(x^2) */

    p = v16_fma(v16_set1(0x1.4a5690p-14f), s, v16_set1(-0x1.a45088p-11f));
    p = v16_fma(p, s, v16_set1(0x1.541270p-8f));
    p = v16_fma(p, s, v16_set1(-0x1.b7fabap-6f));
    p = v16_fma(p, s, v16_set1(0x1.ce2d10p-4f));
    p = v16_fma(p, s, v16_set1(-0x1.81273ep-2f));
    p = v16_fma(p, s, v16_set1(0x1.06eba8p-3f));
    p = v16_fma(p, x, x);

    /* to 4: 1 - e^-Q(|x|); beyond it is 1 in float32 */

    t = v16_min(v16_set1(4.0f), a);

    q = v16_fma(v16_set1(-0x1.b8371ap-20f), t, v16_set1(0x1.82d2bap-15f));
    q = v16_fma(q, t, v16_set1(-0x1.39237ap-11f));
    q = v16_fma(q, t, v16_set1(0x1.38105cp-8f));
    q = v16_fma(q, t, v16_set1(-0x1.b0fb0ep-6f));
    q = v16_fma(q, t, v16_set1(0x1.c2edf0p-4f));
    q = v16_fma(q, t, v16_set1(0x1.437d58p-1f));
    q = v16_fma(q, t, v16_set1(0x1.21575cp+0f));
    q = v16_fma(q, t, v16_set1(-0x1.511638p-12f));

    q = v16_exp_negative(v16_sub(v16_zero(), q));
    q = v16_with_sign(v16_sub(v16_set1(1.0f), q), x);

    return v16_select(v16_lt(a, v16_set1(1.0f)), p, q);
}


VLM_VEC_INLINE v16
v16_tanh(v16 x)
{
    v16  a, s, p, q;

    a = v16_abs(x);
    s = v16_mul(x, x);

    /* below 0.6: x + x^3 P(x^2) */

    p = v16_fma(v16_set1(0x1.36bdb2p-9f), s, v16_set1(-0x1.1394cap-7f));
    p = v16_fma(p, s, v16_set1(0x1.64fad8p-6f));
    p = v16_fma(p, s, v16_set1(-0x1.ba0d94p-5f));
    p = v16_fma(p, s, v16_set1(0x1.1110f6p-3f));
    p = v16_fma(p, s, v16_set1(-0x1.555556p-2f));
    p = v16_fma(v16_mul(p, s), x, x);

    /* else 1 - 2 / (e^2|x| + 1) */

    q = v16_add(v16_exp(v16_add(a, a)), v16_set1(1.0f));
    q = v16_sub(v16_set1(1.0f), v16_div(v16_set1(2.0f), q));
    q = v16_with_sign(q, x);

    return v16_select(v16_lt(a, v16_set1(0.6f)), p, q);
}


/* x * sigmoid(u), as x / (1 + e^-u) */

VLM_VEC_INLINE v16
v16_times_sigmoid(v16 x, v16 u)
{
    v16  e;

    e = v16_exp(v16_sub(v16_zero(), u));

    return v16_div(x, v16_add(v16_set1(1.0f), e));
}


VLM_VEC_INLINE v16
v16_sigmoid(v16 x)
{
    return v16_times_sigmoid(v16_set1(1.0f), x);
}


VLM_VEC_INLINE v16
v16_silu(v16 x)
{
    return v16_times_sigmoid(x, x);
}


/* 0.5 x (1 + erf(x / sqrt 2)) */

VLM_VEC_INLINE v16
v16_gelu(v16 x)
{
    v16  h, e;

    h = v16_mul(v16_set1(0.5f), x);
    e = v16_erf(v16_mul(x, v16_set1(0x1.6a09e6p-1f)));

    return v16_fma(h, e, h);
}


/*
 * 0.5 x (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3), which is
 * x * sigmoid(2 u)
 */

VLM_VEC_INLINE v16
v16_gelu_tanh(v16 x)
{
    v16  u;

    u = v16_fma(v16_mul(x, x), v16_set1(0.0713548163f),
                v16_set1(1.595769122f));

    return v16_times_sigmoid(x, v16_mul(u, x));
}


VLM_VEC_INLINE v16
v16_quick_gelu(v16 x)
{
    return v16_times_sigmoid(x, v16_mul(x, v16_set1(1.702f)));
}


/* act is a constant where this is called, or hoisted out of loops */

VLM_VEC_INLINE v16
v16_act(v16 x, vlm_act_t act)
{
    switch (act) {

    case VLM_ACT_SILU:
        return v16_silu(x);

    case VLM_ACT_GELU:
        return v16_gelu(x);

    case VLM_ACT_GELU_TANH:
        return v16_gelu_tanh(x);

    case VLM_ACT_QUICK_GELU:
        return v16_quick_gelu(x);

    default:
        return x;
    }
}


#endif /* VLM_VMATH_H */
