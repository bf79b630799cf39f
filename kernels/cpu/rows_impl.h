
/* the kernels of rows.h over 16 lanes; included once by each rows_ISA.c */

#include <float.h>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vmath.h"


VLM_VEC_INLINE v16
load_type(const void *p, vlm_dtype_t type, int64_t i, int n)
{
    const uint16_t  *h = (const uint16_t *) p + i;

    switch (type) {

    case VLM_BF16:
        return n == VLM_LANES ? v16_load_bf16(h) : v16_load_bf16_n(h, n);

    case VLM_F16:
        return n == VLM_LANES ? v16_load_f16(h) : v16_load_f16_n(h, n);

    default:
        return n == VLM_LANES ? v16_load((const float *) p + i)
                              : v16_load_n((const float *) p + i, n);
    }
}


VLM_VEC_INLINE void
store_type(void *p, vlm_dtype_t type, int64_t i, v16 v, int n)
{
    uint16_t  *h = (uint16_t *) p + i;

    switch (type) {

    case VLM_BF16:
        if (n == VLM_LANES) {
            v16_store_bf16(h, v);
        } else {
            v16_store_bf16_n(h, v, n);
        }

        break;

    case VLM_F16:
        if (n == VLM_LANES) {
            v16_store_f16(h, v);
        } else {
            v16_store_f16_n(h, v, n);
        }

        break;

    default:
        if (n == VLM_LANES) {
            v16_store((float *) p + i, v);
        } else {
            v16_store_n((float *) p + i, v, n);
        }
    }
}


/* types are constants at each call, so that the loop has no branches */

VLM_VEC_INLINE void
convert_types(void *y, vlm_dtype_t ytype, const void *x, vlm_dtype_t xtype,
    int64_t n)
{
    int64_t  i;

    for (i = 0; i + VLM_LANES <= n; i += VLM_LANES) {
        store_type(y, ytype, i, load_type(x, xtype, i, VLM_LANES), VLM_LANES);
    }

    if (i < n) {
        store_type(y, ytype, i, load_type(x, xtype, i, (int) (n - i)),
                   (int) (n - i));
    }
}


VLM_VEC_INLINE void
convert_to(void *y, vlm_dtype_t ytype, const void *x, vlm_dtype_t xtype,
    int64_t n)
{
    switch (xtype) {

    case VLM_BF16:
        convert_types(y, ytype, x, VLM_BF16, n);
        break;

    case VLM_F16:
        convert_types(y, ytype, x, VLM_F16, n);
        break;

    default:
        convert_types(y, ytype, x, VLM_F32, n);
    }
}


static void
convert(void *y, vlm_dtype_t ytype, const void *x, vlm_dtype_t xtype,
    int64_t n)
{
    if (ytype == xtype) {
        memmove(y, x, (size_t) n * vlm_dtype_size(xtype));
        return;
    }

    switch (ytype) {

    case VLM_BF16:
        convert_to(y, VLM_BF16, x, xtype, n);
        break;

    case VLM_F16:
        convert_to(y, VLM_F16, x, xtype, n);
        break;

    default:
        convert_to(y, VLM_F32, x, xtype, n);
    }
}


VLM_VEC_INLINE v16
load_part(const float *x, int64_t left)
{
    return left >= VLM_LANES ? v16_load(x) : v16_load_n(x, (int) left);
}


VLM_VEC_INLINE void
store_part(float *y, v16 v, int64_t left)
{
    if (left >= VLM_LANES) {
        v16_store(y, v);
    } else {
        v16_store_n(y, v, (int) left);
    }
}


static float
sum(const float *x, int64_t n)
{
    v16      s = v16_zero();
    int64_t  i;

    for (i = 0; i < n; i += VLM_LANES) {
        s = v16_add(s, load_part(x + i, n - i));
    }

    return v16_sum(s);
}


/* the sum of (x - mean)^2 */

static float
sum_squares(const float *x, int64_t n, float mean)
{
    v16      s, v;
    int64_t  i;

    s = v16_zero();

    for (i = 0; i < n; i += VLM_LANES) {
        v = v16_sub(load_part(x + i, n - i), v16_set1(mean));

        if (n - i < VLM_LANES) {
            v = v16_select(v16_first((int) (n - i)), v, v16_zero());
        }

        s = v16_fma(v, v, s);
    }

    return v16_sum(s);
}


static void
norm(float *y, const float *x, int64_t n, const float *gain,
    const float *bias, float eps, vlm_norm_kind_t kind)
{
    v16      v;
    float    mean, scale;
    int64_t  i;

    mean = 0.0f;

    if (kind == VLM_NORM_LAYER) {
        mean = sum(x, n) / (float) n;
    }

    scale = 1.0f / sqrtf(sum_squares(x, n, mean) / (float) n + eps);

    for (i = 0; i < n; i += VLM_LANES) {
        v = v16_sub(load_part(x + i, n - i), v16_set1(mean));
        v = v16_mul(v, v16_set1(scale));

        if (bias != NULL) {
            v = v16_fma(v, load_part(gain + i, n - i),
                        load_part(bias + i, n - i));
        } else {
            v = v16_mul(v, load_part(gain + i, n - i));
        }

        store_part(y + i, v, n - i);
    }
}


static void
rope(float *y, const float *x, const float *table, int npairs)
{
    int  i, left;
    v16  a, b, c, s;

    for (i = 0; i < npairs; i += VLM_LANES) {
        left = npairs - i;

        a = load_part(x + i, left);
        b = load_part(x + npairs + i, left);
        c = load_part(table + i, left);
        s = load_part(table + npairs + i, left);

        store_part(y + i, v16_fnma(b, s, v16_mul(a, c)), left);
        store_part(y + npairs + i, v16_fma(a, s, v16_mul(b, c)), left);
    }
}


VLM_VEC_INLINE v16
map_one(v16 v, vlm_map_t fn)
{
    switch (fn) {

    case VLM_MAP_EXP:
        return v16_exp(v);

    case VLM_MAP_EXP_NEGATIVE:
        return v16_exp_negative(v);

    case VLM_MAP_ERF:
        return v16_erf(v);

    case VLM_MAP_TANH:
        return v16_tanh(v);

    case VLM_MAP_SIGMOID:
        return v16_sigmoid(v);

    case VLM_MAP_SILU:
        return v16_silu(v);

    case VLM_MAP_GELU:
        return v16_gelu(v);

    case VLM_MAP_GELU_TANH:
        return v16_gelu_tanh(v);

    default:
        return v16_quick_gelu(v);
    }
}


static void
map(float *y, const float *x, int64_t n, vlm_map_t fn)
{
    int64_t  i;

    for (i = 0; i < n; i += VLM_LANES) {
        store_part(y + i, map_one(load_part(x + i, n - i), fn), n - i);
    }
}


static float
clamp(float *x, int64_t n)
{
    v16      v, m, low;
    int64_t  i;

    low = v16_set1(-FLT_MAX);
    m = low;

    for (i = 0; i < n; i += VLM_LANES) {
        /* of a NaN in front, max returns what stands behind */
        v = v16_max(load_part(x + i, n - i), low);
        v = v16_min(v, v16_set1(FLT_MAX));

        store_part(x + i, v, n - i);

        if (n - i < VLM_LANES) {
            v = v16_select(v16_first((int) (n - i)), v, low);
        }

        m = v16_max(v, m);
    }

    return v16_hmax(m);
}


static void
weights(float *y, const float *x, int64_t n, float max, float scale)
{
    v16      v;
    int64_t  i;

    for (i = 0; i < n; i += VLM_LANES) {
        v = v16_sub(load_part(x + i, n - i), v16_set1(max));
        v = v16_exp_negative(v16_mul(v, v16_set1(scale)));

        store_part(y + i, v, n - i);
    }
}


static double
sum_exp(const float *x, int64_t n, float max)
{
    v16      s, v;
    double   total;
    int64_t  i, end;

    total = 0.0;

    for (i = 0; i < n; /* void */ ) {
        s = v16_zero();
        end = n - i > 1024 ? i + 1024 : n;

        for ( ; i < end; i += VLM_LANES) {
            v = v16_sub(load_part(x + i, end - i), v16_set1(max));

            if (end - i < VLM_LANES) {
                v = v16_select(v16_first((int) (end - i)), v,
                               v16_set1(-INFINITY));
            }

            s = v16_add(s, v16_exp_negative(v));
        }

        total += (double) v16_sum(s);
    }

    return total;
}


#define VLM_ROWS_TABLE                                                        \
    {                                                                         \
        .convert = convert,                                                   \
        .norm = norm,                                                         \
        .rope = rope,                                                         \
        .map = map,                                                           \
        .clamp = clamp,                                                       \
        .weights = weights,                                                   \
        .sum_exp = sum_exp                                                    \
    }
