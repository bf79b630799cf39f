
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


VLM_CUDA_END


#endif /* VLM_CUDA_MATRIX_H */
