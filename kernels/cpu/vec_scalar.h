
/* vec.h with an array, in plain C; see there */

typedef struct {
    float     f[VLM_LANES];
} v16;

typedef struct {
    uint32_t  i[VLM_LANES];
} v16i;

typedef uint32_t  v16m;             /* a bit a lane */


#define V16_EACH(expr)                                                        \
    do {                                                                      \
        for (int l = 0; l < VLM_LANES; l++) {                                 \
            expr;                                                             \
        }                                                                     \
    } while (0)

#define V16_FUNCTION(name, expr)                                              \
    VLM_VEC_INLINE v16                                                        \
    name(v16 a, v16 b)                                                        \
    {                                                                         \
        v16  r;                                                               \
                                                                              \
        V16_EACH(r.f[l] = expr);                                              \
                                                                              \
        return r;                                                             \
    }

#define V16I_FUNCTION(name, expr)                                             \
    VLM_VEC_INLINE v16i                                                       \
    name(v16i a, v16i b)                                                      \
    {                                                                         \
        v16i  r;                                                              \
                                                                              \
        V16_EACH(r.i[l] = expr);                                              \
                                                                              \
        return r;                                                             \
    }


V16_FUNCTION(v16_add, a.f[l] + b.f[l])
V16_FUNCTION(v16_sub, a.f[l] - b.f[l])
V16_FUNCTION(v16_mul, a.f[l] * b.f[l])
V16_FUNCTION(v16_div, a.f[l] / b.f[l])
V16_FUNCTION(v16_min, a.f[l] < b.f[l] ? a.f[l] : b.f[l])
V16_FUNCTION(v16_max, a.f[l] > b.f[l] ? a.f[l] : b.f[l])

V16I_FUNCTION(v16i_add, a.i[l] + b.i[l])
V16I_FUNCTION(v16i_sub, a.i[l] - b.i[l])
V16I_FUNCTION(v16i_and, a.i[l] & b.i[l])
V16I_FUNCTION(v16i_or, a.i[l] | b.i[l])


VLM_VEC_INLINE v16
v16_set1(float f)
{
    v16  r;

    V16_EACH(r.f[l] = f);

    return r;
}


VLM_VEC_INLINE v16
v16_load(const float *p)
{
    v16  r;

    memcpy(r.f, p, sizeof(r.f));

    return r;
}


VLM_VEC_INLINE void
v16_store(float *p, v16 v)
{
    memcpy(p, v.f, sizeof(v.f));
}


/* a * b + c, and c - a * b, rounded once */

VLM_VEC_INLINE v16
v16_fma(v16 a, v16 b, v16 c)
{
    v16  r;

    V16_EACH(r.f[l] = fmaf(a.f[l], b.f[l], c.f[l]));

    return r;
}


VLM_VEC_INLINE v16
v16_fnma(v16 a, v16 b, v16 c)
{
    v16  r;

    V16_EACH(r.f[l] = fmaf(-a.f[l], b.f[l], c.f[l]));

    return r;
}


VLM_VEC_INLINE v16m
v16_lt(v16 a, v16 b)
{
    v16m  m = 0;

    V16_EACH(m |= (uint32_t) (a.f[l] < b.f[l]) << l);

    return m;
}


/* a where m is set, else b */

VLM_VEC_INLINE v16
v16_select(v16m m, v16 a, v16 b)
{
    v16  r;

    V16_EACH(r.f[l] = (m >> l & 1) != 0 ? a.f[l] : b.f[l]);

    return r;
}


/* the lanes below n */

VLM_VEC_INLINE v16m
v16_first(int n)
{
    return (1u << n) - 1;
}


VLM_VEC_INLINE v16
v16_load_n(const float *p, int n)
{
    v16  r = { { 0 } };

    memcpy(r.f, p, (size_t) n * sizeof(float));

    return r;
}


VLM_VEC_INLINE void
v16_store_n(float *p, v16 v, int n)
{
    memcpy(p, v.f, (size_t) n * sizeof(float));
}


VLM_VEC_INLINE v16i
v16i_set1(int32_t i)
{
    v16i  r;

    V16_EACH(r.i[l] = (uint32_t) i);

    return r;
}


VLM_VEC_INLINE v16i
v16i_cast(v16 v)
{
    v16i  r;

    memcpy(&r, &v, sizeof(r));

    return r;
}


VLM_VEC_INLINE v16
v16_cast(v16i v)
{
    v16  r;

    memcpy(&r, &v, sizeof(r));

    return r;
}


VLM_VEC_INLINE v16i
v16i_shl(v16i v, int n)
{
    V16_EACH(v.i[l] <<= n);

    return v;
}


/* by division that rounds down: >> of a negative int is the compiler's */

VLM_VEC_INLINE v16i
v16i_sra(v16i v, int n)
{
    V16_EACH(v.i[l] = v.i[l] >> n | (v.i[l] >> 31 != 0 ? ~(UINT32_MAX >> n)
                                                       : 0));

    return v;
}


VLM_VEC_INLINE v16
v16_load_bf16(const uint16_t *p)
{
    v16  r;

    V16_EACH(r.f[l] = vlm_bf16_to_f32(p[l]));

    return r;
}


VLM_VEC_INLINE v16
v16_load_f16(const uint16_t *p)
{
    v16  r;

    V16_EACH(r.f[l] = vlm_f16_to_f32(p[l]));

    return r;
}


VLM_VEC_INLINE void
v16_store_bf16(uint16_t *p, v16 v)
{
    V16_EACH(p[l] = vlm_f32_to_bf16(v.f[l]));
}


VLM_VEC_INLINE void
v16_store_f16(uint16_t *p, v16 v)
{
    V16_EACH(p[l] = vlm_f32_to_f16(v.f[l]));
}


/* the lanes as a balanced tree: 0+8, 1+9 ..., 0+4 ..., 0+2, 1+3, 0+1 */

VLM_VEC_INLINE float
v16_sum(v16 v)
{
    for (int h = VLM_LANES / 2; h > 0; h /= 2) {
        for (int l = 0; l < h; l++) {
            v.f[l] = v.f[l] + v.f[l + h];
        }
    }

    return v.f[0];
}


/* the greatest lane, by the same tree */

VLM_VEC_INLINE float
v16_hmax(v16 v)
{
    for (int h = VLM_LANES / 2; h > 0; h /= 2) {
        for (int l = 0; l < h; l++) {
            v.f[l] = v.f[l] > v.f[l + h] ? v.f[l] : v.f[l + h];
        }
    }

    return v.f[0];
}
