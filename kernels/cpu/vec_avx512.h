
/* vec.h with one register of AVX-512; see there */

typedef __m512     v16;
typedef __m512i    v16i;
typedef __mmask16  v16m;


VLM_VEC_INLINE v16 v16_set1(float f) { return _mm512_set1_ps(f); }
VLM_VEC_INLINE v16 v16_load(const float *p) { return _mm512_loadu_ps(p); }
VLM_VEC_INLINE void v16_store(float *p, v16 v) { _mm512_storeu_ps(p, v); }

VLM_VEC_INLINE v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
VLM_VEC_INLINE v16 v16_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
VLM_VEC_INLINE v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
VLM_VEC_INLINE v16 v16_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
VLM_VEC_INLINE v16 v16_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
VLM_VEC_INLINE v16 v16_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }

/* a * b + c, and c - a * b, rounded once */
VLM_VEC_INLINE v16
v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}


VLM_VEC_INLINE v16
v16_fnma(v16 a, v16 b, v16 c)
{
    return _mm512_fnmadd_ps(a, b, c);
}


VLM_VEC_INLINE v16m
v16_lt(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}


/* a where m is set, else b */

VLM_VEC_INLINE v16
v16_select(v16m m, v16 a, v16 b)
{
    return _mm512_mask_blend_ps(m, b, a);
}


/* the lanes below n */

VLM_VEC_INLINE v16m
v16_first(int n)
{
    return (v16m) ((1u << n) - 1);
}


VLM_VEC_INLINE v16
v16_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(v16_first(n), p);
}


VLM_VEC_INLINE void
v16_store_n(float *p, v16 v, int n)
{
    _mm512_mask_storeu_ps(p, v16_first(n), v);
}


VLM_VEC_INLINE v16i v16i_set1(int32_t i) { return _mm512_set1_epi32(i); }
VLM_VEC_INLINE v16i v16i_cast(v16 v) { return _mm512_castps_si512(v); }
VLM_VEC_INLINE v16 v16_cast(v16i v) { return _mm512_castsi512_ps(v); }
VLM_VEC_INLINE v16i v16i_add(v16i a, v16i b) { return _mm512_add_epi32(a, b); }
VLM_VEC_INLINE v16i v16i_sub(v16i a, v16i b) { return _mm512_sub_epi32(a, b); }
VLM_VEC_INLINE v16i v16i_and(v16i a, v16i b) { return _mm512_and_si512(a, b); }
VLM_VEC_INLINE v16i v16i_or(v16i a, v16i b) { return _mm512_or_si512(a, b); }

#define v16i_shl(v, n)  _mm512_slli_epi32(v, n)
#define v16i_sra(v, n)  _mm512_srai_epi32(v, n)


VLM_VEC_INLINE v16
v16_load_bf16(const uint16_t *p)
{
    __m256i  h = _mm256_loadu_si256((const __m256i *) p);

    return v16_cast(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}


VLM_VEC_INLINE v16
v16_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p));
}


VLM_VEC_INLINE void
v16_store_bf16(uint16_t *p, v16 v)
{
    __m512i    bits, odd, nan;
    __mmask16  m;

    bits = _mm512_castps_si512(v);
    odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    nan = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    m = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);

    bits = _mm512_add_epi32(_mm512_add_epi32(bits, odd),
                            _mm512_set1_epi32(0x7fff));
    bits = _mm512_srli_epi32(_mm512_mask_blend_epi32(m, bits, nan), 16);

    _mm256_storeu_si256((__m256i *) p, _mm512_cvtepi32_epi16(bits));
}


VLM_VEC_INLINE void
v16_store_f16(uint16_t *p, v16 v)
{
    _mm256_storeu_si256((__m256i *) p,
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT
                                           |_MM_FROUND_NO_EXC));
}


/* the lanes as a balanced tree: 0+8, 1+9 ..., 0+4 ..., 0+2, 1+3, 0+1 */

VLM_VEC_INLINE float
v16_sum(v16 v)
{
    __m256  a;
    __m128  b;

    a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    b = _mm_add_ss(b, _mm_movehdup_ps(b));

    return _mm_cvtss_f32(b);
}


/* the greatest lane, by the same tree */

VLM_VEC_INLINE float
v16_hmax(v16 v)
{
    __m256  a;
    __m128  b;

    a = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    b = _mm_max_ss(b, _mm_movehdup_ps(b));

    return _mm_cvtss_f32(b);
}
