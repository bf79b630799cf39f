
/* the CPU device: instruction set, memory, queues, the table of operations */

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/cpu/attn.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/rows.h"


/* larger allocations start on a huge page and ask for more of them */
#define HUGE_PAGE  ((size_t) 2 << 20)


static void *device_alloc(vlm_device_t *dev, size_t size);
static void device_free(vlm_device_t *dev, void *data);
static vlm_queue_t *queue_create(vlm_device_t *dev, int low_priority);
static void queue_destroy(vlm_queue_t *q);
static int device_reserve(vlm_device_t *dev, size_t size, size_t host_size,
    char *err, size_t errlen);
static void device_reserved(vlm_device_t *dev, vlm_reserve_t *memory,
    vlm_reserve_t *host);
static size_t queue_bytes(vlm_device_t *dev, const vlm_limits_t *most);
static int queue_reserve(vlm_queue_t *q, const vlm_limits_t *most, char *err,
    size_t errlen);
static int queue_sync(vlm_queue_t *q, char *err, size_t errlen);
static int queue_failed(vlm_queue_t *q);
static vlm_fence_t *fence_create(vlm_device_t *dev);
static void fence_destroy(vlm_fence_t *fence);
static void fence_order(vlm_queue_t *q, vlm_fence_t *fence);
static int fence_reached(vlm_fence_t *fence);
static void upload(vlm_queue_t *q, void *to, const void *host, size_t size);
static void download(vlm_queue_t *q, void *host, const void *from,
    size_t size);
static void *grow(vlm_queue_t *q, void **data, size_t *have, size_t size);


typedef struct {
    const char              *name;
    vlm_ops_t                ops;
    const vlm_cpu_linear_t  *linear;
    const vlm_cpu_linear_t  *linear_i8;
    const vlm_cpu_rows_t    *rows;
    const vlm_cpu_attn_t    *attn;
} isa_t;

#define cpu_ops(isa_name)                                                     \
    {                                                                         \
        .name = isa_name,                                                     \
        .act_dtype = VLM_F32,                                                 \
        .alloc = device_alloc,                                                \
        .free = device_free,                                                  \
        .host_alloc = device_alloc,                                           \
        .host_free = device_free,                                             \
        .reserve = device_reserve,                                            \
        .reserved = device_reserved,                                          \
        .queue_create = queue_create,                                         \
        .queue_destroy = queue_destroy,                                       \
        .queue_bytes = queue_bytes,                                           \
        .queue_reserve = queue_reserve,                                       \
        .sync = queue_sync,                                                   \
        .failed = queue_failed,                                               \
        .weight_create = vlm_cpu_weight_create,                               \
        .weight_destroy = vlm_cpu_weight_destroy,                             \
        .kv_block_bytes = vlm_cpu_kv_block_bytes,                             \
        .vision_kv_bytes = vlm_cpu_vision_kv_bytes,                           \
        .step_upload = vlm_cpu_step_upload,                                   \
        .step_free = vlm_cpu_step_free,                                       \
        .fence_create = fence_create,                                         \
        .fence_destroy = fence_destroy,                                       \
        .record = fence_order,                                                \
        .wait = fence_order,                                                  \
        .reached = fence_reached,                                             \
        .upload = upload,                                                     \
        .download = download,                                                 \
        .convert = vlm_cpu_convert,                                           \
        .embed = vlm_cpu_embed,                                               \
        .scatter = vlm_cpu_scatter,                                           \
        .gather = vlm_cpu_gather,                                             \
        .norm = vlm_cpu_norm,                                                 \
        .linear = vlm_cpu_linear,                                             \
        .rope_kv = vlm_cpu_rope_kv,                                           \
        .attention = vlm_cpu_attention,                                       \
        .rope_table = vlm_cpu_rope_table,                                     \
        .vision_rope = vlm_cpu_vision_rope,                                   \
        .vision_attention = vlm_cpu_vision_attention,                         \
        .patchify = vlm_cpu_patchify,                                         \
        .sample = vlm_cpu_sample                                              \
    }

/* by vlm_isa_t */

static const isa_t  isas[] = {
    { "scalar", cpu_ops("cpu/scalar"), &vlm_cpu_linear_scalar,
      &vlm_cpu_linear_i8_scalar, &vlm_cpu_rows_scalar, &vlm_cpu_attn_scalar },
#if defined(__x86_64__)
    { "avx2", cpu_ops("cpu/avx2"), &vlm_cpu_linear_avx2,
      &vlm_cpu_linear_i8_avx2, &vlm_cpu_rows_avx2, &vlm_cpu_attn_avx2 },
    { "avx512", cpu_ops("cpu/avx512"), &vlm_cpu_linear_avx512,
      &vlm_cpu_linear_i8_avx512, &vlm_cpu_rows_avx512, &vlm_cpu_attn_avx512 },
#endif
};

#define NISAS  ((int) (sizeof(isas) / sizeof(isas[0])))


#if defined(__x86_64__)

/* clang's __builtin_cpu_supports() has no name for it */

static int
has_f16c(void)
{
    unsigned  a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

#endif


/* __builtin_cpu_supports() asks the system too (XGETBV) */

int
vlm_cpu_has_isa(vlm_isa_t isa)
{
    switch (isa) {

    case VLM_CPU_SCALAR:
        return 1;

#if defined(__x86_64__)

    case VLM_CPU_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
               && has_f16c();

    case VLM_CPU_AVX512:
        return vlm_cpu_has_isa(VLM_CPU_AVX2)
               && __builtin_cpu_supports("avx512f")
               && __builtin_cpu_supports("avx512bw")
               && __builtin_cpu_supports("avx512vl")
               && __builtin_cpu_supports("avx512dq");

#endif

    default:
        return 0;
    }
}


/* what AVX-512 has for int8, on some of its CPUs */

int
vlm_cpu_has_vnni(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512vnni") != 0;
#else
    return 0;
#endif
}


vlm_device_t *
vlm_cpu_device(int nthreads, const vlm_ops_t **ops, char *err, size_t errlen)
{
    int          i;
    const char  *forced;

    forced = getenv("VLM_CPU");

    for (i = NISAS - 1; i >= 0; i--) {

        if (forced != NULL ? strcmp(forced, isas[i].name) == 0
                           : vlm_cpu_has_isa(i))
        {
            return vlm_cpu_device_isa(i, nthreads, ops, err, errlen);
        }
    }

    snprintf(err, errlen, "VLM_CPU=%.32s: this build knows %s", forced,
             NISAS == 1 ? "scalar" : "scalar, avx2, avx512");

    return NULL;
}


vlm_device_t *
vlm_cpu_device_isa(vlm_isa_t isa, int nthreads, const vlm_ops_t **ops,
    char *err, size_t errlen)
{
    vlm_device_t  *dev;

    if (!vlm_cpu_has_isa(isa)) {
        snprintf(err, errlen, "this CPU has no %s",
                 (int) isa < NISAS ? isas[isa].name : "such instructions");
        return NULL;
    }

    dev = malloc(sizeof(vlm_device_t));
    if (dev == NULL) {
        snprintf(err, errlen, "no memory for a device");
        return NULL;
    }

    dev->isa = isa;
    dev->linear = isas[isa].linear;
    dev->linear_i8 = isas[isa].linear_i8;
    dev->rows = isas[isa].rows;
    dev->attn = isas[isa].attn;

#if defined(__x86_64__)

    if (isa == VLM_CPU_AVX512 && vlm_cpu_has_vnni()) {
        dev->linear_i8 = &vlm_cpu_linear_i8_vnni;
    }

#endif

    dev->pool = vlm_pool_create(nthreads != 0 ? nthreads : vlm_cpu_count(),
                                err, errlen);
    if (dev->pool == NULL) {
        free(dev);
        return NULL;
    }

    *ops = &isas[isa].ops;

    return dev;
}


void
vlm_cpu_device_destroy(vlm_device_t *dev)
{
    if (dev != NULL) {
        vlm_pool_destroy(dev->pool);
        free(dev);
    }
}


static void *
device_alloc(vlm_device_t *dev, size_t size)
{
    return vlm_cpu_alloc(size);
}


void *
vlm_cpu_alloc(size_t size)
{
    void    *data;
    size_t   align;

    align = size >= 2 * HUGE_PAGE ? HUGE_PAGE : 64;

    if (size > SIZE_MAX - align) {
        return NULL;
    }

    size = (size + align - 1) / align * align;

    data = aligned_alloc(align, size != 0 ? size : align);

    if (data != NULL && align == HUGE_PAGE) {
        /* a wish: without it the memory works too */
        (void) madvise(data, size, MADV_HUGEPAGE);
    }

    return data;
}


static void
device_free(vlm_device_t *dev, void *data)
{
    free(data);
}


static vlm_queue_t *
queue_create(vlm_device_t *dev, int low_priority)
{
    int           workers;
    vlm_queue_t  *q;

    workers = vlm_pool_size(dev->pool);

    q = calloc(1, sizeof(vlm_queue_t));
    if (q == NULL) {
        return NULL;
    }

    q->dev = dev;
    q->scratch = calloc(workers, sizeof(void *));
    q->scratch_size = calloc(workers, sizeof(size_t));

    if (q->scratch == NULL || q->scratch_size == NULL) {
        queue_destroy(q);
        return NULL;
    }

    return q;
}


static void
queue_destroy(vlm_queue_t *q)
{
    int  i;

    if (q == NULL) {
        return;
    }

    for (i = 0; q->scratch != NULL && i < vlm_pool_size(q->dev->pool); i++) {
        free(q->scratch[i]);
    }

    free(q->scratch);
    free(q->scratch_size);
    free(q->shared);
    free(q);
}


/* the system's own allocator does for the host */

static int
device_reserve(vlm_device_t *dev, size_t size, size_t host_size, char *err,
    size_t errlen)
{
    return 0;
}


static void
device_reserved(vlm_device_t *dev, vlm_reserve_t *memory, vlm_reserve_t *host)
{
    memset(memory, 0, sizeof(vlm_reserve_t));
    memset(host, 0, sizeof(vlm_reserve_t));
}


static size_t
queue_bytes(vlm_device_t *dev, const vlm_limits_t *most)
{
    return 0;
}


static int
queue_reserve(vlm_queue_t *q, const vlm_limits_t *most, char *err,
    size_t errlen)
{
    return 0;
}


static int
queue_sync(vlm_queue_t *q, char *err, size_t errlen)
{
    if (!q->failed) {
        return 0;
    }

    snprintf(err, errlen, "%s", q->err);
    q->failed = 0;

    return -1;
}


static int
queue_failed(vlm_queue_t *q)
{
    return q->failed;
}


void
vlm_cpu_fail(vlm_queue_t *q, const char *fmt, ...)
{
    va_list  args;

    if (q->failed) {
        return;
    }

    va_start(args, fmt);
    vsnprintf(q->err, sizeof(q->err), fmt, args);
    va_end(args);

    q->failed = 1;
}


/* an operation has run when it returns: events need no state */

static vlm_fence_t *
fence_create(vlm_device_t *dev)
{
    return malloc(1);
}


static void
fence_destroy(vlm_fence_t *fence)
{
    free(fence);
}


static void
fence_order(vlm_queue_t *q, vlm_fence_t *fence)
{
}


static int
fence_reached(vlm_fence_t *fence)
{
    return 1;
}


static void
upload(vlm_queue_t *q, void *to, const void *host, size_t size)
{
    memcpy(to, host, size);
}


static void
download(vlm_queue_t *q, void *host, const void *from, size_t size)
{
    memcpy(host, from, size);
}


void *
vlm_cpu_shared(vlm_queue_t *q, size_t size)
{
    return grow(q, &q->shared, &q->shared_size, size);
}


int
vlm_cpu_scratch_all(vlm_queue_t *q, size_t size)
{
    int  i;

    for (i = 0; i < vlm_pool_size(q->dev->pool); i++) {

        if (grow(q, &q->scratch[i], &q->scratch_size[i], size) == NULL) {
            return -1;
        }
    }

    return 0;
}


static void *
grow(vlm_queue_t *q, void **data, size_t *have, size_t size)
{
    if (*data != NULL && *have >= size) {
        return *data;
    }

    free(*data);

    *have = 0;
    *data = vlm_cpu_alloc(size);

    if (*data == NULL) {
        vlm_cpu_fail(q, "no memory for %zu bytes of work space", size);
        return NULL;
    }

    *have = size;

    return *data;
}
