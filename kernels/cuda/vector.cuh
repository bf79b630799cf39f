
/*
 * Several elements by one load, products of packed bytes, and atomic sums in
 * global and in shared memory.  A pack's address is a multiple of its size.
 */

#ifndef VLM_CUDA_VECTOR_H
#define VLM_CUDA_VECTOR_H


#include "kernels/cuda/kernel.cuh"


/* the loop's bounds are constants and its arrays become registers */

#ifdef VLM_EMU
#define VLM_UNROLL
#define VLM_UNROLL_BY(n)
#else
#define VLM_UNROLL        _Pragma("unroll")
#define VLM_UNROLL_BY(n)  _Pragma(VLM_STRING(unroll n))
#define VLM_STRING(x)     #x
#endif


VLM_CUDA_BEGIN


template <typename T, int N>
struct alignas(N * sizeof(T)) pack_t {
    T  v[N];
};


/* elements of 16 bytes */

template <typename T>
struct wide_t {
    enum { n = 16 / sizeof(T) };
};


template <typename T, int N>
static __device__ __forceinline__ void
load_pack(float *to, const T *from)
{
    int           i;
    pack_t<T, N>  p;

    p = *(const pack_t<T, N> *) from;

    VLM_UNROLL
    for (i = 0; i < N; i++) {
        to[i] = to_f32(p.v[i]);
    }
}


template <typename T, int N>
static __device__ __forceinline__ void
store_pack(T *to, const float *from)
{
    int           i;
    pack_t<T, N>  p;

    VLM_UNROLL
    for (i = 0; i < N; i++) {
        from_f32(&p.v[i], from[i]);
    }

    *(pack_t<T, N> *) to = p;
}


/* 8 elements at a multiple of 16 bytes */

static __device__ __forceinline__ void
load_eight(float *to, const bf16_t *from)
{
    load_pack<bf16_t, 8>(to, from);
}


static __device__ __forceinline__ void
load_eight(float *to, const float *from)
{
    load_pack<float, 4>(to, from);
    load_pack<float, 4>(to + 4, from + 4);
}


/* may packs of N elements be loaded from rows that begin there? */

template <typename T, int N>
static inline int
is_packed(const void *data, int64_t stride)
{
    return (uintptr_t) data % (N * sizeof(T)) == 0 && stride % N == 0;
}


/* and packs of 16 bytes? */

static inline int
is_wide(const void *data, int64_t stride, vlm_dtype_t type)
{
    return (uintptr_t) data % 16 == 0
           && (size_t) stride * vlm_dtype_size(type) % 16 == 0;
}


#ifdef VLM_EMU

static inline uint32_t
atomic_add(uint32_t *p, uint32_t v)
{
    uint32_t  old = *p;

    *p += v;

    return old;
}


static inline void
atomic_add(uint64_t *p, uint64_t v)
{
    *p += v;
}


/* sum + 4 products of signed bytes */

static inline int32_t
dot_bytes(int32_t a, int32_t b, int32_t sum)
{
    int     i;
    int8_t  x[4], y[4];

    memcpy(x, &a, sizeof(x));
    memcpy(y, &b, sizeof(y));

    for (i = 0; i < 4; i++) {
        sum += x[i] * y[i];
    }

    return sum;
}

#else

static __device__ __forceinline__ uint32_t
atomic_add(uint32_t *p, uint32_t v)
{
    return atomicAdd(p, v);
}


static __device__ __forceinline__ void
atomic_add(uint64_t *p, uint64_t v)
{
    (void) atomicAdd((unsigned long long *) p, (unsigned long long) v);
}


static __device__ __forceinline__ int32_t
dot_bytes(int32_t a, int32_t b, int32_t sum)
{
    return __dp4a(a, b, sum);
}

#endif


VLM_CUDA_END


#endif /* VLM_CUDA_VECTOR_H */
