
/*
 * What the benchmarks share: the machine's name, a clock, and roofs, which
 * are measured in the same run as what is compared with them: multiply-adds
 * of float32 and of int8 from registers, and reading a buffer far larger than
 * the last cache.
 */

#ifndef BENCH_H
#define BENCH_H


#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/cpu/cpu.h"


#define BENCH_ROOF_SECONDS  0.3
#define BENCH_CHUNK         ((size_t) 256 * 1024)


typedef struct {
    double   flops;             /* of all threads, a second */
    double   int8;              /* the same with int8 weights */
    double   bytes;
} bench_roofs_t;

typedef struct {
    vlm_isa_t    isa;
    int          vnni;
    const char  *data;
    float        sink;          /* written, so that nothing is left out */
} bench_roof_task_t;


static inline double
bench_now(void)
{
    struct timespec  ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return (double) ts.tv_sec + 1e-9 * (double) ts.tv_nsec;
}


static inline void
bench_machine(char *name, size_t size)
{
    char   line[256], *p;
    FILE  *f;

    snprintf(name, size, "unknown CPU");

    f = fopen("/proc/cpuinfo", "re");
    if (f == NULL) {
        return;
    }

    while (fgets(line, sizeof(line), f) != NULL) {

        p = strchr(line, ':');

        if (p != NULL && strncmp(line, "model name", 10) == 0) {
            p[strcspn(p, "\n")] = '\0';
            snprintf(name, size, "%s", p + 2);
            break;
        }
    }

    fclose(f);
}


/* bytes that no cache keeps */

static inline size_t
bench_cold_bytes(void)
{
    long  last;

    last = sysconf(_SC_LEVEL3_CACHE_SIZE);

    return last > (64l << 20) ? (size_t) last * 4 : (size_t) 256 << 20;
}


#define BENCH_FMA_ROUNDS  200000

#if defined(__x86_64__)

#define bench_fma(name, isa, type, set1, fmadd, add, get)                     \
    __attribute__((target(isa))) static inline float                          \
    name(void)                                                                \
    {                                                                         \
        int   i, j;                                                           \
        type  a, b, sum[12];                                                  \
                                                                              \
        a = set1(0.999f);                                                     \
        b = set1(0.001f);                                                     \
                                                                              \
        for (j = 0; j < 12; j++) {                                            \
            sum[j] = b;                                                       \
        }                                                                     \
                                                                              \
        for (i = 0; i < BENCH_FMA_ROUNDS; i++) {                              \
            _Pragma("GCC unroll 12")                                          \
            for (j = 0; j < 12; j++) {                                        \
                sum[j] = fmadd(sum[j], a, b);                                 \
            }                                                                 \
        }                                                                     \
                                                                              \
        for (j = 1; j < 12; j++) {                                            \
            sum[0] = add(sum[0], sum[j]);                                     \
        }                                                                     \
                                                                              \
        return get(sum[0]);                                                   \
    }

bench_fma(bench_fma_avx2, "avx2,fma", __m256, _mm256_set1_ps,
    _mm256_fmadd_ps, _mm256_add_ps, _mm256_cvtss_f32)
bench_fma(bench_fma_avx512, "avx512f", __m512, _mm512_set1_ps,
    _mm512_fmadd_ps, _mm512_add_ps, _mm512_cvtss_f32)

/* bytes by VNNI; else pairs of int16, what they were widened to */

#define bench_ints_avx2(f)       _mm256_set1_epi32((int) ((f) * 1e6))
#define bench_ints_avx512(f)     _mm512_set1_epi32((int) ((f) * 1e6))
#define bench_pairs_avx2(s, a, b)                                             \
    _mm256_add_epi32(s, _mm256_madd_epi16(s, a))
#define bench_pairs_avx512(s, a, b)                                           \
    _mm512_add_epi32(s, _mm512_madd_epi16(s, a))
#define bench_get_avx2(s)        (float) _mm256_extract_epi32(s, 0)
#define bench_get_avx512(s)                                                   \
    (float) _mm_cvtsi128_si32(_mm512_castsi512_si128(s))

bench_fma(bench_int8_avx2, "avx2", __m256i, bench_ints_avx2,
    bench_pairs_avx2, _mm256_add_epi32, bench_get_avx2)
bench_fma(bench_int8_avx512, "avx512f,avx512bw", __m512i, bench_ints_avx512,
    bench_pairs_avx512, _mm512_add_epi32, bench_get_avx512)
bench_fma(bench_int8_vnni, "avx512f,avx512vnni", __m512i, bench_ints_avx512,
    _mm512_dpbusd_epi32, _mm512_add_epi32, bench_get_avx512)

#endif


/* 2 flops * 12 sums * lanes * rounds */

static inline double
bench_fma_flops(vlm_isa_t isa)
{
    static const int  lanes[] = { 4, 8, 16 };

    return 24.0 * lanes[isa] * BENCH_FMA_ROUNDS;
}


static inline void
bench_fma_task(void *arg, int task, int worker)
{
    bench_roof_task_t  *t = arg;

    switch (t[task].isa) {

#if defined(__x86_64__)

    case VLM_CPU_AVX2:
        t[task].sink = bench_fma_avx2();
        break;

    case VLM_CPU_AVX512:
        t[task].sink = bench_fma_avx512();
        break;

#endif

    default:
        break;
    }
}


static inline void
bench_int8_task(void *arg, int task, int worker)
{
    bench_roof_task_t  *t = arg;

    switch (t[task].isa) {

#if defined(__x86_64__)

    case VLM_CPU_AVX2:
        t[task].sink = bench_int8_avx2();
        break;

    case VLM_CPU_AVX512:
        t[task].sink = t[task].vnni ? bench_int8_vnni()
                                    : bench_int8_avx512();
        break;

#endif

    default:
        break;
    }
}


static inline void
bench_read_task(void *arg, int task, int worker)
{
    size_t              i;
    uint64_t            sum[8] = { 0 };
    const uint64_t     *p;
    bench_roof_task_t  *t = arg;

    p = (const uint64_t *) (t->data + (size_t) task * BENCH_CHUNK);

    for (i = 0; i < BENCH_CHUNK / 8; i += 8) {
        __builtin_prefetch(p + i + 512);
        sum[0] += p[i];
        sum[1] += p[i + 1];
        sum[2] += p[i + 2];
        sum[3] += p[i + 3];
        sum[4] += p[i + 4];
        sum[5] += p[i + 5];
        sum[6] += p[i + 6];
        sum[7] += p[i + 7];
    }

    for (i = 1; i < 8; i++) {
        sum[0] += sum[i];
    }

    if (sum[0] == 1) {
        t->sink = 1;
    }
}


/* the best rate of many runs, each of "amount" */

static inline double
bench_best_rate(vlm_pool_t *pool, int ntasks, vlm_task_pt fn, void *arg,
    double amount)
{
    double  start, end, t, best;

    best = 0;
    end = bench_now() + BENCH_ROOF_SECONDS;

    do {
        start = bench_now();
        vlm_pool_run(pool, ntasks, fn, arg);
        t = bench_now() - start;

        if (amount / t > best) {
            best = amount / t;
        }

    } while (bench_now() < end);

    return best;
}


/* the scalar set's multiply-adds are a library's: no roof, 0 */

static inline int
bench_roofs(vlm_device_t *dev, bench_roofs_t *roofs)
{
    int                 i, n;
    void               *data;
    size_t              size;
    bench_roof_task_t  *tasks;

    n = vlm_pool_size(dev->pool);
    size = bench_cold_bytes() / BENCH_CHUNK * BENCH_CHUNK;
    tasks = calloc(n, sizeof(bench_roof_task_t));
    data = vlm_cpu_alloc(size);

    if (tasks == NULL || data == NULL) {
        free(tasks);
        free(data);
        return -1;
    }

    memset(data, 0, size);

    for (i = 0; i < n; i++) {
        tasks[i].isa = dev->isa;
        tasks[i].vnni = vlm_cpu_has_vnni();
        tasks[i].data = data;
    }

    roofs->flops = 0;
    roofs->int8 = 0;

    if (dev->isa != VLM_CPU_SCALAR) {
        roofs->int8 = bench_best_rate(dev->pool, n, bench_int8_task, tasks,
                                      n * bench_fma_flops(dev->isa)
                                      * (tasks[0].vnni
                                         && dev->isa == VLM_CPU_AVX512
                                         ? 4 : 2));
        roofs->flops = bench_best_rate(dev->pool, n, bench_fma_task, tasks,
                                       n * bench_fma_flops(dev->isa));
    }

    roofs->bytes = bench_best_rate(dev->pool, (int) (size / BENCH_CHUNK),
                                   bench_read_task, tasks, (double) size);

    free(data);
    free(tasks);

    return 0;
}


#endif /* BENCH_H */
