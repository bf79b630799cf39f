
/*
 * Quantisation of rows, of weights when they are loaded and of activations
 * in front of a product: a row of greatest magnitude m becomes
 * rint(x * (most / m)), with the scale m / most, see kernels/ops.h.
 */

#include "kernels/cuda/quant.h"
#include "kernels/cuda/vector.cuh"


#define QUANT_THREADS  256
#define QUANT_WARPS    (QUANT_THREADS / VLM_WARP)

/* of 2^-100; of an infinity, which NaNs are above */
#define BITS_LEAST     0x0d800000
#define BITS_INFINITY  0x7f800000
#define BITS_NAN       0x7fc00000


VLM_CUDA_BEGIN


typedef struct {
    void               *y;
    float              *scale;
    const void         *x;
    int64_t             x_stride;
    int64_t             rows;           /* of x */
    int32_t             cols;
    int32_t             padded;
} quantise_t;


/* the magnitude that the greatest of a row becomes */

static __device__ __forceinline__ float
most_of(const int8_t *type)
{
    return 127.0f;
}


static __device__ __forceinline__ float
most_of(const f8_t *type)
{
    return 448.0f;
}


/* magnitudes compare as their bits do, and NaNs are the greatest */

static __device__ __forceinline__ int
block_most(int bits)
{
    int  i, mask, other;

    VLM_SHARED(int, work, QUANT_WARPS);

    for (mask = VLM_WARP / 2; mask > 0; mask /= 2) {
        other = vlm_shfl_xor(bits, mask);
        bits = other > bits ? other : bits;
    }

    if (threadIdx.x % VLM_WARP == 0) {
        work[threadIdx.x / VLM_WARP] = bits;
    }

    VLM_SYNC();

    for (i = 0; i < QUANT_WARPS; i++) {
        bits = work[i] > bits ? work[i] : bits;
    }

    return bits;
}


/* a block does a row */

template <typename Q, typename X, int N>
__global__ void __launch_bounds__(QUANT_THREADS)
quantise_kernel(quantise_t p)
{
    Q        *y;
    int       j, bits, other;
    float     v[N], most, m, factor, scale;
    const X  *x;
    int32_t   i, cols;

    y = (Q *) p.y + (int64_t) blockIdx.x * p.padded;
    x = (const X *) p.x + (int64_t) blockIdx.x * p.x_stride;
    cols = (int64_t) blockIdx.x < p.rows ? p.cols : 0;

    bits = 0;

    for (i = (int32_t) threadIdx.x * N; i < cols; i += QUANT_THREADS * N) {
        load_pack<X, N>(v, x + i);

        VLM_UNROLL
        for (j = 0; j < N; j++) {
            other = (int) (f32_bits(v[j]) & 0x7fffffff);
            bits = other > bits ? other : bits;
        }
    }

    bits = block_most(bits);

    most = most_of((const Q *) NULL);
    m = f32_from_bits((uint32_t) bits);
    factor = most / m;
    scale = m / most;

    if (bits >= BITS_INFINITY) {
        scale = f32_from_bits(BITS_NAN);
        cols = 0;

    } else if (bits < BITS_LEAST) {
        scale = 0.0f;
        cols = 0;
    }

    if (threadIdx.x == 0) {
        p.scale[blockIdx.x] = scale;
    }

    for (i = (int32_t) threadIdx.x * N; i < p.padded; i += QUANT_THREADS * N)
    {
        VLM_UNROLL
        for (j = 0; j < N; j++) {
            v[j] = 0.0f;
        }

        if (i < cols) {
            load_pack<X, N>(v, x + i);

            VLM_UNROLL
            for (j = 0; j < N; j++) {
                v[j] *= factor;
            }
        }

        store_pack<Q, N>(y + i, v);
    }
}


template <typename Q, typename X>
static void
launch(vlm_queue_t *q, const quantise_t *p, int64_t rows_to, const char *op)
{
    void (*kernel)(quantise_t);

    enum { N = wide_t<X>::n };

    kernel = quantise_kernel<Q, X, 1>;

    if (p->cols % N == 0 && is_packed<X, N>(p->x, p->x_stride)) {
        kernel = quantise_kernel<Q, X, N>;
    }

    VLM_LAUNCH(q, op, kernel, (unsigned) rows_to, QUANT_THREADS, 0, *p);
}


void
vlm_cuda_quantise(vlm_queue_t *q, void *y, float *scale, vlm_dtype_t type,
    int64_t rows_to, const vlm_tensor_t *x, const char *op)
{
    quantise_t  p;

    p.y = y;
    p.scale = scale;
    p.x = x->data;
    p.x_stride = x->stride;
    p.rows = x->rows;
    p.cols = x->cols;
    p.padded = (int32_t) quant_padded(x->cols);

    if (type == VLM_I8) {
        VLM_BY_TYPE(x->dtype, X, launch<int8_t, X>(q, &p, rows_to, op));

    } else {
        VLM_BY_TYPE(x->dtype, X, launch<f8_t, X>(q, &p, rows_to, op));
    }
}


VLM_CUDA_END
