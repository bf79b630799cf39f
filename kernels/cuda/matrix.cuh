
/* matrices of 16 x 16 on tensor cores: see the rules in cuda.h */

#ifndef VLM_CUDA_MATRIX_H
#define VLM_CUDA_MATRIX_H


#include "kernels/cuda/vector.cuh"

#ifdef VLM_EMU
#include "kernels/emu/wmma.h"
#else
#include <mma.h>
#endif


#define MATRIX  16


VLM_CUDA_BEGIN


namespace wmma = nvcuda::wmma;

typedef wmma::fragment<wmma::matrix_a, MATRIX, MATRIX, MATRIX, __nv_bfloat16,
                       wmma::row_major>  left_t;
typedef wmma::fragment<wmma::matrix_b, MATRIX, MATRIX, MATRIX, __nv_bfloat16,
                       wmma::row_major>  right_t;
typedef wmma::fragment<wmma::matrix_b, MATRIX, MATRIX, MATRIX, __nv_bfloat16,
                       wmma::col_major>  turned_t;
typedef wmma::fragment<wmma::accumulator, MATRIX, MATRIX, MATRIX,
                       float>  sums_t;


/* from rows that are "pitch" elements apart */

template <typename F>
static __device__ __forceinline__ void
load_matrix(F &f, const bf16_t *p, int pitch)
{
    wmma::load_matrix_sync(f, (const __nv_bfloat16 *) p, (unsigned) pitch);
}


/* two elements as they lie in memory; the numbers become what is left */

static __device__ __forceinline__ uint32_t
round_two(float *first, float *second)
{
    uint32_t  bits;

#ifdef VLM_EMU

    bf16_t  h[2];

    from_f32(&h[0], *first);
    from_f32(&h[1], *second);
    *first = to_f32(h[0]);
    *second = to_f32(h[1]);

#else

    __nv_bfloat162  h;

    h = __floats2bfloat162_rn(*first, *second);
    *first = __low2float(h);
    *second = __high2float(h);

#endif

    memcpy(&bits, &h, sizeof(bits));

    return bits;
}


VLM_CUDA_END


#endif /* VLM_CUDA_MATRIX_H */
