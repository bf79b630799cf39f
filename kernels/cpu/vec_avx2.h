
/* vec.h with two registers of AVX2; see there */

typedef struct {
    __m256   a;
    __m256   b;
} v16;

typedef struct {
    __m256i  a;
    __m256i  b;
} v16i;

typedef v16  v16m;


VLM_VEC_INLINE v16
v16_of(__m256 a, __m256 b)
{
    v16  v;

    v.a = a;
    v.b = b;

    return v;
}


VLM_VEC_INLINE v16i
v16i_of(__m256i a, __m256i b)
{
    v16i  v;

    v.a = a;
    v.b = b;

    return v;
}


#define V16_FUNCTION(name, fn)                                                \
    VLM_VEC_INLINE v16                                                        \
    name(v16 x, v16 y)                                                        \
    {                                                                         \
        return v16_of(fn(x.a, y.a), fn(x.b, y.b));                            \
    }

#define V16I_FUNCTION(name, fn)                                               \
    VLM_VEC_INLINE v16i                                                       \
    name(v16i x, v16i y)                                                      \
    {                                                                         \
        return v16i_of(fn(x.a, y.a), fn(x.b, y.b));                           \
    }


V16_FUNCTION(v16_add, _mm256_add_ps)
V16_FUNCTION(v16_sub, _mm256_sub_ps)
V16_FUNCTION(v16_mul, _mm256_mul_ps)
V16_FUNCTION(v16_div, _mm256_div_ps)
V16_FUNCTION(v16_min, _mm256_min_ps)
V16_FUNCTION(v16_max, _mm256_max_ps)

V16I_FUNCTION(v16i_add, _mm256_add_epi32)
V16I_FUNCTION(v16i_sub, _mm256_sub_epi32)
V16I_FUNCTION(v16i_and, _mm256_and_si256)
V16I_FUNCTION(v16i_or, _mm256_or_si256)


VLM_VEC_INLINE v16
v16_set1(float f)
{
    __m256  v = _mm256_set1_ps(f);

    return v16_of(v, v);
}


VLM_VEC_INLINE v16
v16_load(const float *p)
{
    return v16_of(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}


VLM_VEC_INLINE void
v16_store(float *p, v16 v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}


/* x * y + z, and z - x * y, rounded once */

VLM_VEC_INLINE v16
v16_fma(v16 x, v16 y, v16 z)
{
    return v16_of(_mm256_fmadd_ps(x.a, y.a, z.a),
                  _mm256_fmadd_ps(x.b, y.b, z.b));
}


VLM_VEC_INLINE v16
v16_fnma(v16 x, v16 y, v16 z)
{
    return v16_of(_mm256_fnmadd_ps(x.a, y.a, z.a),
                  _mm256_fnmadd_ps(x.b, y.b, z.b));
}


VLM_VEC_INLINE v16m
v16_lt(v16 x, v16 y)
{
    return v16_of(_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ),
                  _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ));
}


/* x where m is set, else y */

VLM_VEC_INLINE v16
v16_select(v16m m, v16 x, v16 y)
{
    return v16_of(_mm256_blendv_ps(y.a, x.a, m.a),
                  _mm256_blendv_ps(y.b, x.b, m.b));
}


/* the lanes below n */

VLM_VEC_INLINE v16m
v16_first(int n)
{
    __m256i  v, lane;

    v = _mm256_set1_epi32(n);
    lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);

    return v16_of(_mm256_castsi256_ps(_mm256_cmpgt_epi32(v, lane)),
                  _mm256_castsi256_ps(_mm256_cmpgt_epi32(v,
                      _mm256_add_epi32(lane, _mm256_set1_epi32(8)))));
}


VLM_VEC_INLINE v16
v16_load_n(const float *p, int n)
{
    v16m  m = v16_first(n);

    return v16_of(_mm256_maskload_ps(p, _mm256_castps_si256(m.a)),
                  _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.b)));
}


VLM_VEC_INLINE void
v16_store_n(float *p, v16 v, int n)
{
    v16m  m = v16_first(n);

    _mm256_maskstore_ps(p, _mm256_castps_si256(m.a), v.a);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.b), v.b);
}


VLM_VEC_INLINE v16i
v16i_set1(int32_t i)
{
    __m256i  v = _mm256_set1_epi32(i);

    return v16i_of(v, v);
}


VLM_VEC_INLINE v16i
v16i_cast(v16 v)
{
    return v16i_of(_mm256_castps_si256(v.a), _mm256_castps_si256(v.b));
}


VLM_VEC_INLINE v16
v16_cast(v16i v)
{
    return v16_of(_mm256_castsi256_ps(v.a), _mm256_castsi256_ps(v.b));
}


#define v16i_shl(v, n)                                                        \
    v16i_of(_mm256_slli_epi32((v).a, n), _mm256_slli_epi32((v).b, n))
#define v16i_sra(v, n)                                                        \
    v16i_of(_mm256_srai_epi32((v).a, n), _mm256_srai_epi32((v).b, n))


VLM_VEC_INLINE v16
v16_load_bf16(const uint16_t *p)
{
    __m256i  a, b;

    a = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) p));
    b = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) (p + 8)));

    return v16_of(_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
                  _mm256_castsi256_ps(_mm256_slli_epi32(b, 16)));
}


VLM_VEC_INLINE v16
v16_load_f16(const uint16_t *p)
{
    return v16_of(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)),
                  _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (p + 8))));
}


/* 8 lanes to bfloat16, in the low half of each 32 bits */

VLM_VEC_INLINE __m256i
v8_to_bf16(__m256 v)
{
    __m256   m;
    __m256i  bits, odd, nan;

    bits = _mm256_castps_si256(v);
    odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    m = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);

    bits = _mm256_add_epi32(_mm256_add_epi32(bits, odd),
                            _mm256_set1_epi32(0x7fff));
    bits = _mm256_blendv_epi8(bits, nan, _mm256_castps_si256(m));

    return _mm256_srli_epi32(bits, 16);
}


VLM_VEC_INLINE void
v16_store_bf16(uint16_t *p, v16 v)
{
    __m256i  h;

    h = _mm256_packus_epi32(v8_to_bf16(v.a), v8_to_bf16(v.b));
    h = _mm256_permute4x64_epi64(h, 0xd8);

    _mm256_storeu_si256((__m256i *) p, h);
}


VLM_VEC_INLINE void
v16_store_f16(uint16_t *p, v16 v)
{
    _mm_storeu_si128((__m128i *) p,
                     _mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *) (p + 8),
                     _mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT));
}


/* the lanes as a balanced tree: 0+8, 1+9 ..., 0+4 ..., 0+2, 1+3, 0+1 */

VLM_VEC_INLINE float
v16_sum(v16 v)
{
    __m256  a;
    __m128  b;

    a = _mm256_add_ps(v.a, v.b);
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

    a = _mm256_max_ps(v.a, v.b);
    b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    b = _mm_max_ss(b, _mm_movehdup_ps(b));

    return _mm_cvtss_f32(b);
}
