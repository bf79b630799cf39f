
/* what kernels are written with: see the rules in cuda.h */

#ifndef VLM_CUDA_KERNEL_H
#define VLM_CUDA_KERNEL_H


#include <float.h>

#include "kernels/cuda/cuda.h"


#define VLM_WARP  32


#ifdef VLM_EMU

#define VLM_LAUNCH(q, op, kernel, grid, block, shared, ...)                   \
    ((void) vlm_cuda_check(q, vlm_emu_launch((q)->stream, op, dim3(grid),     \
                                             dim3(block), shared, kernel,     \
                                             __VA_ARGS__), op))

/* an array of a block; the tag's address is its name */

#define VLM_SHARED(type, name, n)                                             \
    static char name##_tag;                                                   \
    type *name = (type *) vlm_emu_shared(&name##_tag, (n) * sizeof(type))

/* the launch's dynamic part */

#define VLM_DYNAMIC(type, name)                                               \
    type *name = (type *) vlm_emu_dynamic()

#define VLM_SYNC()  vlm_emu_barrier(__LINE__)

/* the lanes of a warp wait for each other, and see what others wrote */

#define VLM_SYNC_WARP()  ((void) vlm_emu_any(0, __LINE__))

/*
 * From global to shared memory behind the thread's back: 4, 8 or 16 bytes
 * from and to multiples of them, there after the thread has waited.
 */

#define VLM_COPY_ASYNC(to, from, size)                                        \
    vlm_emu_copy_async(to, from, size, __LINE__)

#define VLM_COPY_WAIT()  vlm_emu_copy_wait()

/* the kernel's launches may have so much dynamic shared memory, over 48 KB */

#define VLM_ALLOW_SHARED(q, op, kernel, size)                                 \
    vlm_cuda_check(q, vlm_emu_allow_shared((const void *) (kernel), size), op)

#else

#define VLM_LAUNCH(q, op, kernel, grid, block, shared, ...)                   \
    do {                                                                      \
        kernel<<<grid, block, shared, (q)->stream>>>(__VA_ARGS__);            \
        (void) vlm_cuda_check(q, cudaGetLastError(), op);                     \
    } while (0)

#define VLM_SHARED(type, name, n)  __shared__ type name[n]

#define VLM_DYNAMIC(type, name)                                               \
    extern __shared__ __align__(32) char vlm_dynamic[];                       \
    type *name = (type *) vlm_dynamic

#define VLM_SYNC()  __syncthreads()

#define VLM_SYNC_WARP()  __syncwarp()

#define VLM_COPY_ASYNC(to, from, size)  __pipeline_memcpy_async(to, from, size)

#define VLM_COPY_WAIT()                                                       \
    do {                                                                      \
        __pipeline_commit();                                                  \
        __pipeline_wait_prior(0);                                             \
    } while (0)

#define VLM_ALLOW_SHARED(q, op, kernel, size)                                 \
    vlm_cuda_check(q, cudaFuncSetAttribute((const void *) (kernel),           \
                       cudaFuncAttributeMaxDynamicSharedMemorySize,           \
                       (int) (size)), op)

#endif


/* runs a statement with T as the type of elements */

#define VLM_BY_TYPE(dtype, T, ...)                                            \
    switch (dtype) {                                                          \
    case VLM_BF16: { typedef bf16_t T; __VA_ARGS__; break; }                  \
    case VLM_F16: { typedef f16_t T; __VA_ARGS__; break; }                    \
    default: { typedef float T; __VA_ARGS__; break; }                         \
    }

/* the same for activations, which are never F16 */

#define VLM_BY_ACT(dtype, T, ...)                                             \
    switch (dtype) {                                                          \
    case VLM_BF16: { typedef bf16_t T; __VA_ARGS__; break; }                  \
    default: { typedef float T; __VA_ARGS__; break; }                         \
    }


VLM_CUDA_BEGIN


/* ---- types ---- */

typedef struct { uint16_t bits; } bf16_t;
typedef struct { uint16_t bits; } f16_t;
typedef struct { uint8_t bits; } f8_t;


static __host__ __device__ __forceinline__ float
to_f32(float x)
{
    return x;
}


static __host__ __device__ __forceinline__ float
to_f32(int32_t x)
{
    return (float) x;
}


#ifdef VLM_EMU

static inline uint32_t
f32_bits(float x)
{
    uint32_t  bits;

    memcpy(&bits, &x, sizeof(bits));

    return bits;
}


static inline float
f32_from_bits(uint32_t bits)
{
    float  x;

    memcpy(&x, &bits, sizeof(x));

    return x;
}


static inline float
to_f32(bf16_t x)
{
    return f32_from_bits((uint32_t) x.bits << 16);
}


static inline float
to_f32(f16_t x)
{
    int    e = (x.bits >> 10) & 31;
    float  m = (float) (x.bits & 1023), v;

    if (e == 31) {
        v = m != 0.0f ? NAN : INFINITY;

    } else {
        v = e == 0 ? ldexpf(m, -24) : ldexpf(m + 1024.0f, e - 25);
    }

    return (x.bits >> 15) != 0 ? -v : v;
}


static inline void
from_f32(bf16_t *y, float x)
{
    uint32_t  bits = f32_bits(x);

    if (x != x) {
        y->bits = 0x7fff;
        return;
    }

    y->bits = (uint16_t) ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}


/* to the nearest multiple of the unit at its size, ties to even */

static inline void
from_f32(f16_t *y, float x)
{
    int       e;
    float     a = fabsf(x), unit;
    uint32_t  n, sign = (f32_bits(x) >> 31) << 15;

    if (x != x) {
        y->bits = 0x7fff;
        return;
    }

    if (a >= 65520.0f) {
        y->bits = (uint16_t) (sign | 0x7c00);
        return;
    }

    (void) frexpf(a, &e);
    e = a == 0.0f || e < -13 ? -13 : e;         /* a < 2^e */
    unit = ldexpf(1.0f, e - 11);
    n = (uint32_t) rintf(a / unit);

    /* n is 1024 to 2048, less for subnormals: both carry into the exponent */
    y->bits = (uint16_t) (sign + (uint32_t) (e + 13) * 1024 + n);
}


/* ---- shuffles ---- */

static inline float
shfl(float v, int lane, int line)
{
    return f32_from_bits((uint32_t) vlm_emu_shuffle(f32_bits(v), lane, line));
}


static inline int
shfl(int v, int lane, int line)
{
    return (int) vlm_emu_shuffle((uint32_t) v, lane, line);
}

#define vlm_any(v)             vlm_emu_any(v, __LINE__)
#define vlm_shfl(v, lane)      shfl(v, lane, __LINE__)
#define vlm_shfl_xor(v, mask)                                                 \
    shfl(v, (int) (threadIdx.x % VLM_WARP) ^ (mask), __LINE__)

#else

static __device__ __forceinline__ uint32_t
f32_bits(float x)
{
    return __float_as_uint(x);
}


static __device__ __forceinline__ float
f32_from_bits(uint32_t bits)
{
    return __uint_as_float(bits);
}


static __host__ __device__ __forceinline__ float
to_f32(bf16_t x)
{
    return __bfloat162float(__ushort_as_bfloat16(x.bits));
}


static __host__ __device__ __forceinline__ float
to_f32(f16_t x)
{
    return __half2float(__ushort_as_half(x.bits));
}


static __host__ __device__ __forceinline__ void
from_f32(bf16_t *y, float x)
{
    y->bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
}


static __host__ __device__ __forceinline__ void
from_f32(f16_t *y, float x)
{
    y->bits = __half_as_ushort(__float2half_rn(x));
}

#define vlm_any(v)             __any_sync(0xffffffff, v)
#define vlm_shfl(v, lane)      __shfl_sync(0xffffffff, v, lane)
#define vlm_shfl_xor(v, mask)  __shfl_xor_sync(0xffffffff, v, mask)

#endif


static __host__ __device__ __forceinline__ void
from_f32(float *y, float x)
{
    *y = x;
}


/* within +-127.5 */

static __device__ __forceinline__ void
from_f32(int8_t *y, float x)
{
    *y = (int8_t) rintf(x);
}


/* E4M3: to the nearest, ties to even; what is larger becomes +-448 */

static __device__ __forceinline__ void
from_f32(f8_t *y, float x)
{
    uint32_t  bits, sign;

    bits = f32_bits(x);
    sign = bits >> 24 & 0x80;
    bits &= 0x7fffffff;

    if (bits > 0x7f800000) {
        bits = 0x7f;                            /* a NaN */

    } else if (bits >= 0x43e00000) {
        bits = 0x7e;                            /* 448 */

    } else if (bits < 0x3c800000) {

        /* below 2^-6 in steps of 2^-9, as the sum has */
        bits = f32_bits(f32_from_bits(bits) + 16384.0f) & 0xf;

    } else {

        /* 3 bits of 23; an exponent of 7, not of 127, is that of 1 */
        bits = (bits + 0x7ffff + (bits >> 20 & 1)) >> 20;
        bits -= (127 - 7) << 3;
    }

    y->bits = (uint8_t) (sign | bits);
}


/* ---- sums over a warp or a block; all threads get the result ---- */

static __device__ __forceinline__ float
warp_sum(float v)
{
    int  mask;

    for (mask = VLM_WARP / 2; mask > 0; mask /= 2) {
        v += vlm_shfl_xor(v, mask);
    }

    return v;
}


static __device__ __forceinline__ float
warp_max(float v)
{
    int  mask;

    for (mask = VLM_WARP / 2; mask > 0; mask /= 2) {
        v = fmaxf(v, vlm_shfl_xor(v, mask));
    }

    return v;
}


/* "work" is shared memory of a float for each warp */

static __device__ __forceinline__ float
block_sum(float v, float *work)
{
    int    i, nwarps;
    float  sum;

    nwarps = (int) blockDim.x / VLM_WARP;
    v = warp_sum(v);

    /* the block's earlier sums have been read */
    VLM_SYNC();

    if (threadIdx.x % VLM_WARP == 0) {
        work[threadIdx.x / VLM_WARP] = v;
    }

    VLM_SYNC();

    sum = 0.0f;

    for (i = 0; i < nwarps; i++) {
        sum += work[i];
    }

    return sum;
}


/* ---- activations ---- */

static __device__ __forceinline__ float
activate(float x, vlm_act_t act)
{
    switch (act) {

    case VLM_ACT_SILU:
        return x / (1.0f + expf(-x));

    case VLM_ACT_GELU:
        return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));

    case VLM_ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456080286536f
                                        * (x + 0.044715f * x * x * x)));

    case VLM_ACT_QUICK_GELU:
        return x / (1.0f + expf(-1.702f * x));

    default:
        return x;
    }
}


VLM_CUDA_END


#endif /* VLM_CUDA_KERNEL_H */
