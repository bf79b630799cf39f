
/*
 * A vector of 16 float lanes: one register of AVX-512, two of AVX2, or an
 * array.  Every operation here rounds the same way on all of them, so code
 * written over v16 gives equal bits on every instruction set.  (NaNs stay
 * NaNs, but their payload may differ.)
 *
 * min and max are those of x86: the second operand if either is NaN.
 */

#ifndef VLM_VEC_H
#define VLM_VEC_H


#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) \
    && defined(__AVX512DQ__)
#define VLM_VEC_AVX512  1
#include <immintrin.h>
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define VLM_VEC_AVX2    1
#include <immintrin.h>
#endif


#define VLM_LANES       16

/* checked builds of the plain C lanes would take minutes if all was inlined */

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define VLM_VEC_CHECKED 1
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define VLM_VEC_CHECKED 1
#endif

#if defined(VLM_VEC_CHECKED) && !defined(VLM_VEC_AVX512)                      \
    && !defined(VLM_VEC_AVX2)
#define VLM_VEC_INLINE  static __attribute__((noinline, unused))
#else
#define VLM_VEC_INLINE  static inline __attribute__((always_inline, unused))
#endif


/* bfloat16 and IEEE half, rounded to nearest even, in plain integers */

static inline float
vlm_f32_from_bits(uint32_t bits)
{
    float  f;

    memcpy(&f, &bits, sizeof(f));

    return f;
}


static inline uint32_t
vlm_f32_bits(float f)
{
    uint32_t  bits;

    memcpy(&bits, &f, sizeof(bits));

    return bits;
}


static inline float
vlm_bf16_to_f32(uint16_t h)
{
    return vlm_f32_from_bits((uint32_t) h << 16);
}


static inline uint16_t
vlm_f32_to_bf16(float f)
{
    uint32_t  bits = vlm_f32_bits(f);

    if ((bits & 0x7fffffff) > 0x7f800000) {
        return (uint16_t) (bits >> 16 | 0x40);
    }

    return (uint16_t) ((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}


static inline float
vlm_f16_to_f32(uint16_t h)
{
    uint32_t  sign, exp, mant;

    sign = (uint32_t) (h & 0x8000) << 16;
    exp = h >> 10 & 0x1f;
    mant = h & 0x3ff;

    if (exp == 0x1f) {
        return vlm_f32_from_bits(sign | 0x7f800000
                                 | (mant != 0 ? 0x400000 | mant << 13 : 0));
    }

    if (exp == 0) {
        /* subnormal, or zero: mant * 2^-24 is exact */
        return vlm_f32_from_bits(sign
                                 | vlm_f32_bits((float) mant * 0x1p-24f));
    }

    return vlm_f32_from_bits(sign | (exp + 112) << 23 | mant << 13);
}


static inline uint16_t
vlm_f32_to_f16(float f)
{
    uint32_t  bits, sign, a, mant, rest, half, shift;

    bits = vlm_f32_bits(f);
    sign = bits >> 16 & 0x8000;
    a = bits & 0x7fffffff;

    if (a > 0x7f800000) {
        return (uint16_t) (sign | 0x7e00 | (a >> 13 & 0x3ff));
    }

    if (a >= 0x477ff000) {
        /* rounds to 65536 or more */
        return (uint16_t) (sign | 0x7c00);
    }

    if (a >= 0x38800000) {
        a -= 112 << 23;
        return (uint16_t) (sign | (a + 0xfff + (a >> 13 & 1)) >> 13);
    }

    if (a <= 0x33000000) {
        /* at most half of the smallest subnormal */
        return (uint16_t) sign;
    }

    /* subnormal: a whole number of 2^-24 */

    shift = 126 - (a >> 23);
    mant = (a & 0x7fffff) | 0x800000;
    half = 1u << (shift - 1);
    rest = mant & ((1u << shift) - 1);
    mant >>= shift;

    if (rest > half || (rest == half && (mant & 1) != 0)) {
        mant++;
    }

    return (uint16_t) (sign | mant);
}


#if defined(VLM_VEC_AVX512)
#include "kernels/cpu/vec_avx512.h"
#elif defined(VLM_VEC_AVX2)
#include "kernels/cpu/vec_avx2.h"
#else
#include "kernels/cpu/vec_scalar.h"
#endif


/* ---- the same for all ---- */

VLM_VEC_INLINE v16
v16_zero(void)
{
    return v16_set1(0.0f);
}


VLM_VEC_INLINE v16
v16_abs(v16 a)
{
    return v16_cast(v16i_and(v16i_cast(a), v16i_set1(0x7fffffff)));
}


/* the magnitude of a (not negative) with the sign of s */

VLM_VEC_INLINE v16
v16_with_sign(v16 a, v16 s)
{
    return v16_cast(v16i_or(v16i_cast(a),
                            v16i_and(v16i_cast(s), v16i_set1(INT32_MIN))));
}


/* loads and stores of the first n lanes, 0 to 16; the others load as 0 */

VLM_VEC_INLINE v16
v16_load_bf16_n(const uint16_t *p, int n)
{
    uint16_t  t[VLM_LANES] = { 0 };

    memcpy(t, p, (size_t) n * sizeof(uint16_t));

    return v16_load_bf16(t);
}


VLM_VEC_INLINE v16
v16_load_f16_n(const uint16_t *p, int n)
{
    uint16_t  t[VLM_LANES] = { 0 };

    memcpy(t, p, (size_t) n * sizeof(uint16_t));

    return v16_load_f16(t);
}


VLM_VEC_INLINE void
v16_store_bf16_n(uint16_t *p, v16 v, int n)
{
    uint16_t  t[VLM_LANES];

    v16_store_bf16(t, v);
    memcpy(p, t, (size_t) n * sizeof(uint16_t));
}


VLM_VEC_INLINE void
v16_store_f16_n(uint16_t *p, v16 v, int n)
{
    uint16_t  t[VLM_LANES];

    v16_store_f16(t, v);
    memcpy(p, t, (size_t) n * sizeof(uint16_t));
}


#endif /* VLM_VEC_H */
