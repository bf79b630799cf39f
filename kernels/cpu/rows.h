
/*
 * Kernels that work row by row; rows_impl.h has them over the lanes of
 * vec.h, rows_ISA.c compiles it.
 */

#ifndef VLM_ROWS_H
#define VLM_ROWS_H


#include "kernels/cpu/cpu.h"


/* the functions of vmath.h */

typedef enum {
    VLM_MAP_EXP = 0,
    VLM_MAP_EXP_NEGATIVE,
    VLM_MAP_ERF,
    VLM_MAP_TANH,
    VLM_MAP_SIGMOID,
    VLM_MAP_SILU,
    VLM_MAP_GELU,
    VLM_MAP_GELU_TANH,
    VLM_MAP_QUICK_GELU
} vlm_map_t;


struct vlm_cpu_rows_s {

    /* y = x, n elements, each of F32, BF16 or F16 */
    void (*convert)(void *y, vlm_dtype_t ytype, const void *x,
        vlm_dtype_t xtype, int64_t n);

    /* y = norm(x) * gain + bias; y may be x, bias may be NULL */
    void (*norm)(float *y, const float *x, int64_t n, const float *gain,
        const float *bias, float eps, vlm_norm_kind_t kind);

    /* turns a head by "table": npairs cosines, then as many sines */
    void (*rope)(float *y, const float *x, const float *table, int npairs);

    /* y = fn(x) */
    void (*map)(float *y, const float *x, int64_t n, vlm_map_t fn);

    /*
     * Makes all elements finite, NaN to -FLT_MAX and infinities to FLT_MAX
     * of their sign, and returns the greatest.
     */
    float (*clamp)(float *x, int64_t n);

    /* y = exp((x - max) * scale) for x up to max */
    void (*weights)(float *y, const float *x, int64_t n, float max,
        float scale);

    /* sum of exp(x - max): 1,024 elements each in float32 over 16 lanes,
       these sums in double */
    double (*sum_exp)(const float *x, int64_t n, float max);
};

/* one row of a rope table: "positions" is [naxes][rows] (ops_rows.c) */
void vlm_cpu_rope_angles(float *to, const int32_t *positions, int64_t rows,
    int64_t row, const vlm_rope_t *rope);

extern const vlm_cpu_rows_t  vlm_cpu_rows_scalar;
extern const vlm_cpu_rows_t  vlm_cpu_rows_avx2;
extern const vlm_cpu_rows_t  vlm_cpu_rows_avx512;


#endif /* VLM_ROWS_H */
