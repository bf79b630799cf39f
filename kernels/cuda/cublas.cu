
/*
 * Products by cuBLASLt, which is opened at run time, so that the engine
 * starts where it is missing.  What the library works out for a shape is kept
 * with the queue.
 *
 * A matrix of ours is its transpose to the library, whose matrices are kept
 * by columns: y^T [n, rows] = w^T' [n, k] . x^T [k, rows].
 */

#include <cublasLt.h>
#include <dlfcn.h>

#include "kernels/cuda/cuda.h"


#define PLANS        1024               /* a power of 2 */
#define PROBES       8

/* what NVIDIA advises for sm_90 */
#define WORKSPACE    ((size_t) 32 << 20)

/* algorithms that the library is asked for, the best first */
#define CHOICES      16

/* pointers are not more aligned than that, so that views plan alike */
#define ALIGN_MAX    16

#define TEXT(x)      #x
#define STRING(x)    TEXT(x)
#define LIBRARY      "libcublasLt.so." STRING(CUBLAS_VER_MAJOR)


VLM_CUDA_BEGIN


#define FUNCTIONS(f)                                                          \
    f(cublasLtCreate)                                                         \
    f(cublasLtDestroy)                                                        \
    f(cublasLtMatmulDescCreate)                                               \
    f(cublasLtMatmulDescDestroy)                                              \
    f(cublasLtMatmulDescSetAttribute)                                         \
    f(cublasLtMatrixLayoutCreate)                                             \
    f(cublasLtMatrixLayoutDestroy)                                            \
    f(cublasLtMatmulPreferenceCreate)                                         \
    f(cublasLtMatmulPreferenceDestroy)                                        \
    f(cublasLtMatmulPreferenceSetAttribute)                                   \
    f(cublasLtMatmulAlgoGetHeuristic)                                         \
    f(cublasLtMatmulAlgoConfigGetAttribute)                                   \
    f(cublasLtMatmul)

#define MEMBER(name)  decltype(&::name) name;

struct gemm_library_s {
    void               *handle;
    cublasLtHandle_t    lt;
    FUNCTIONS(MEMBER)
};


/* all that a plan depends on; compared as bytes */

typedef struct {
    int64_t             rows;
    int64_t             n;
    int64_t             k;
    int64_t             x_stride;
    int64_t             y_stride;
    int64_t             add_stride;
    int32_t             type;
    int32_t             y_type;
    int32_t             epilogue;
    int32_t             add;
    int32_t             align[4];       /* of w, x, add, y */
} shape_t;

typedef struct {
    shape_t                   key;
    int                       used;
    cublasLtMatmulDesc_t      desc;
    cublasLtMatrixLayout_t    w;
    cublasLtMatrixLayout_t    x;
    cublasLtMatrixLayout_t    add;
    cublasLtMatrixLayout_t    y;
    cublasLtMatmulAlgo_t      algo;
    cublasStatus_t            refused;          /* why there is none */
} plan_t;

struct gemm_state_s {
    void               *workspace;
    plan_t              plans[PLANS];
};


static int load_functions(gemm_library_s *lib, char *err, size_t errlen);
static void make_key(shape_t *key, const vlm_gemm_t *g);
static int32_t alignment(const void *p, int64_t stride, vlm_dtype_t type);
static cublasStatus_t put(vlm_queue_t *q, const vlm_gemm_t *g);
static plan_t *find_plan(vlm_queue_t *q, const shape_t *key,
    const vlm_gemm_t *g);
static cublasStatus_t make_plan(vlm_device_t *dev, plan_t *p,
    const vlm_gemm_t *g);
static cublasStatus_t set_bias(gemm_library_s *lib, plan_t *p,
    const vlm_gemm_t *g);
static cublasStatus_t make_layouts(gemm_library_s *lib, plan_t *p);
static cublasStatus_t choose(vlm_device_t *dev, plan_t *p);
static int is_whole(gemm_library_s *lib, const cublasLtMatmulAlgo_t *algo);
static void drop_plan(gemm_library_s *lib, plan_t *p);


int
vlm_gemm_open(vlm_device_t *dev, char *err, size_t errlen)
{
    gemm_library_s  *lib;

    lib = (gemm_library_s *) calloc(1, sizeof(gemm_library_s));
    if (lib == NULL) {
        snprintf(err, errlen, "no memory for %s", LIBRARY);
        return -1;
    }

    dev->gemm = lib;

    lib->handle = dlopen(LIBRARY, RTLD_NOW|RTLD_LOCAL);

    if (lib->handle == NULL) {
        lib->handle = dlopen("/usr/local/cuda/lib64/" LIBRARY,
                             RTLD_NOW|RTLD_LOCAL);
    }

    if (lib->handle == NULL) {
        snprintf(err, errlen, "cuBLASLt: %s", dlerror());
        return -1;
    }

    if (load_functions(lib, err, errlen) != 0) {
        return -1;
    }

    if (lib->cublasLtCreate(&lib->lt) != CUBLAS_STATUS_SUCCESS) {
        snprintf(err, errlen, "cublasLtCreate() failed");
        return -1;
    }

    return 0;
}


#define LOAD(name)                                                            \
    lib->name = (decltype(&::name)) dlsym(lib->handle, #name);                \
    if (lib->name == NULL) {                                                  \
        snprintf(err, errlen, "%s has no %s()", LIBRARY, #name);              \
        return -1;                                                            \
    }

static int
load_functions(gemm_library_s *lib, char *err, size_t errlen)
{
    FUNCTIONS(LOAD)

    return 0;
}


void
vlm_gemm_close(vlm_device_t *dev)
{
    gemm_library_s  *lib = dev->gemm;

    if (lib == NULL) {
        return;
    }

    if (lib->lt != NULL) {
        (void) lib->cublasLtDestroy(lib->lt);
    }

    /* the library stays: its threads may not be gone yet */

    free(lib);
    dev->gemm = NULL;
}


size_t
vlm_gemm_bytes(void)
{
    return WORKSPACE;
}


int
vlm_gemm_queue(vlm_queue_t *q)
{
    q->gemm = (gemm_state_s *) calloc(1, sizeof(gemm_state_s));
    if (q->gemm == NULL) {
        return -1;
    }

    q->gemm->workspace = vlm_cuda_alloc(q->dev, WORKSPACE);

    return q->gemm->workspace != NULL ? 0 : -1;
}


void
vlm_gemm_queue_done(vlm_queue_t *q)
{
    int  i;

    if (q->gemm == NULL) {
        return;
    }

    for (i = 0; i < PLANS; i++) {
        drop_plan(q->dev->gemm, &q->gemm->plans[i]);
    }

    vlm_cuda_free(q->dev, q->gemm->workspace);
    free(q->gemm);
    q->gemm = NULL;
}


void
vlm_gemm(vlm_queue_t *q, const vlm_gemm_t *g, const char *op)
{
    if (vlm_gemm_try(q, g, op) == 0) {
        vlm_cuda_fail(q, "%s: cuBLASLt has no product of [%lld, %lld] by "
                      "[%lld, %lld], types %d to %d", op, (long long) g->rows,
                      (long long) g->k, (long long) g->n, (long long) g->k,
                      (int) g->type, (int) g->y_type);
    }
}


int
vlm_gemm_try(vlm_queue_t *q, const vlm_gemm_t *g, const char *op)
{
    cublasStatus_t  rc;

    if (q->failed) {
        return 1;
    }

    rc = put(q, g);

    if (rc == CUBLAS_STATUS_NOT_SUPPORTED || rc == CUBLAS_STATUS_INVALID_VALUE
        || rc == CUBLAS_STATUS_ARCH_MISMATCH)
    {
        return 0;
    }

    if (rc != CUBLAS_STATUS_SUCCESS) {
        vlm_cuda_fail(q, "%s: cublasLtMatmul() of [%lld, %lld] by [%lld, "
                      "%lld] returned %d", op, (long long) g->rows,
                      (long long) g->k, (long long) g->n, (long long) g->k,
                      (int) rc);
    }

    return 1;
}


static cublasStatus_t
put(vlm_queue_t *q, const vlm_gemm_t *g)
{
    int              integers;
    float            one, beta;
    plan_t          *p;
    int32_t          int_one, int_zero;
    shape_t          key;
    gemm_library_s  *lib = q->dev->gemm;
    cublasStatus_t   rc;

    make_key(&key, g);
    p = find_plan(q, &key, g);

    if (p->refused != CUBLAS_STATUS_SUCCESS) {
        return p->refused;
    }

    rc = set_bias(lib, p, g);

    one = 1.0f;
    beta = g->add != NULL ? 1.0f : 0.0f;
    int_one = 1;
    int_zero = 0;
    integers = g->type == VLM_I8;

    if (rc == CUBLAS_STATUS_SUCCESS) {
        rc = lib->cublasLtMatmul(lib->lt, p->desc,
                                 integers ? (void *) &int_one : &one, g->w,
                                 p->w, g->x, p->x,
                                 integers ? (void *) &int_zero : &beta,
                                 g->add != NULL ? g->add : g->y, p->add,
                                 g->y, p->y, &p->algo, q->gemm->workspace,
                                 WORKSPACE, q->stream);
    }

    p->refused = rc;

    return rc;
}


static void
make_key(shape_t *key, const vlm_gemm_t *g)
{
    memset(key, 0, sizeof(shape_t));

    key->rows = g->rows;
    key->n = g->n;
    key->k = g->k;
    key->x_stride = g->x_stride;
    key->y_stride = g->y_stride;
    key->add_stride = g->add != NULL ? g->add_stride : g->y_stride;
    key->type = g->type;
    key->y_type = g->y_type;
    key->add = g->add != NULL;

    if (g->gelu) {
        key->epilogue = g->bias != NULL ? CUBLASLT_EPILOGUE_GELU_BIAS
                                        : CUBLASLT_EPILOGUE_GELU;
    } else {
        key->epilogue = g->bias != NULL ? CUBLASLT_EPILOGUE_BIAS
                                        : CUBLASLT_EPILOGUE_DEFAULT;
    }

    key->align[0] = alignment(g->w, g->k, g->type);
    key->align[1] = alignment(g->x, g->x_stride, g->type);
    key->align[2] = alignment(g->add != NULL ? g->add : g->y,
                              key->add_stride, g->y_type);
    key->align[3] = alignment(g->y, g->y_stride, g->y_type);
}


static int32_t
alignment(const void *p, int64_t stride, vlm_dtype_t type)
{
    uintptr_t  bits;

    bits = (uintptr_t) p | (uintptr_t) (stride * vlm_dtype_size(type))
           | ALIGN_MAX;

    return (int32_t) (bits & -bits);
}


static cublasStatus_t
set_bias(gemm_library_s *lib, plan_t *p, const vlm_gemm_t *g)
{
    if (g->bias == NULL) {
        return CUBLAS_STATUS_SUCCESS;
    }

    return lib->cublasLtMatmulDescSetAttribute(p->desc,
                                           CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                           &g->bias, sizeof(g->bias));
}


/* what is refused is kept, too: asking takes long */

static plan_t *
find_plan(vlm_queue_t *q, const shape_t *key, const vlm_gemm_t *g)
{
    size_t                i;
    uint32_t              hash, at;
    plan_t               *p, *place;
    const unsigned char  *bytes = (const unsigned char *) key;
    cublasStatus_t        rc;

    hash = 2166136261u;

    for (i = 0; i < sizeof(shape_t); i++) {
        hash = (hash ^ bytes[i]) * 16777619u;
    }

    place = &q->gemm->plans[hash % PLANS];

    for (at = 0; at < PROBES; at++) {
        p = &q->gemm->plans[(hash + at) % PLANS];

        if (p->used && memcmp(&p->key, key, sizeof(shape_t)) == 0) {
            return p;
        }

        if (!p->used) {
            place = p;
            break;
        }
    }

    drop_plan(q->dev->gemm, place);
    place->key = *key;
    place->used = 1;

    rc = make_plan(q->dev, place, g);

    if (rc != CUBLAS_STATUS_SUCCESS) {
        drop_plan(q->dev->gemm, place);
        place->key = *key;
        place->used = 1;
        place->refused = rc;
    }

    return place;
}


static cudaDataType_t
data_type(int32_t type)
{
    switch (type) {

    case VLM_BF16:
        return CUDA_R_16BF;

    case VLM_I8:
        return CUDA_R_8I;

    case VLM_I32:
        return CUDA_R_32I;

    case VLM_F8:
        return CUDA_R_8F_E4M3;

    default:
        return CUDA_R_32F;
    }
}


/* (FP8: sums of full accuracy and scales of 1 are what is set at first) */

static cublasStatus_t
make_plan(vlm_device_t *dev, plan_t *p, const vlm_gemm_t *g)
{
    int                  integers;
    cudaDataType_t       type;
    cublasStatus_t       rc;
    gemm_library_s      *lib = dev->gemm;
    cublasOperation_t    transposed = CUBLAS_OP_T;
    cublasLtEpilogue_t   epilogue;

    epilogue = (cublasLtEpilogue_t) p->key.epilogue;
    type = data_type(p->key.y_type);
    integers = p->key.type == VLM_I8;

    rc = lib->cublasLtMatmulDescCreate(&p->desc,
                                       integers ? CUBLAS_COMPUTE_32I
                                                : CUBLAS_COMPUTE_32F,
                                       integers ? CUDA_R_32I : CUDA_R_32F);

    if (rc == CUBLAS_STATUS_SUCCESS) {
        rc = lib->cublasLtMatmulDescSetAttribute(p->desc,
                             CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                             sizeof(transposed));
    }

    if (rc == CUBLAS_STATUS_SUCCESS) {
        rc = lib->cublasLtMatmulDescSetAttribute(p->desc,
                             CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                             sizeof(epilogue));
    }

    if (rc == CUBLAS_STATUS_SUCCESS && g->bias != NULL) {
        rc = lib->cublasLtMatmulDescSetAttribute(p->desc,
                             CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
                             sizeof(type));
    }

    if (rc == CUBLAS_STATUS_SUCCESS) {
        rc = set_bias(lib, p, g);
    }

    if (rc == CUBLAS_STATUS_SUCCESS) {
        rc = make_layouts(lib, p);
    }

    return rc == CUBLAS_STATUS_SUCCESS ? choose(dev, p) : rc;
}


static cublasStatus_t
make_layouts(gemm_library_s *lib, plan_t *p)
{
    shape_t         *k = &p->key;
    cudaDataType_t   type, y_type;
    cublasStatus_t   rc;

    type = data_type(k->type);
    y_type = data_type(k->y_type);

    rc = lib->cublasLtMatrixLayoutCreate(&p->w, type, k->k, k->n, k->k);

    if (rc == CUBLAS_STATUS_SUCCESS) {
        rc = lib->cublasLtMatrixLayoutCreate(&p->x, type, k->k, k->rows,
                                             k->x_stride);
    }

    if (rc == CUBLAS_STATUS_SUCCESS) {
        rc = lib->cublasLtMatrixLayoutCreate(&p->add, y_type, k->n, k->rows,
                                             k->add_stride);
    }

    if (rc == CUBLAS_STATUS_SUCCESS) {
        rc = lib->cublasLtMatrixLayoutCreate(&p->y, y_type, k->n, k->rows,
                                             k->y_stride);
    }

    return rc;
}


static cublasStatus_t
choose(vlm_device_t *dev, plan_t *p)
{
    int                              i, found;
    size_t                           workspace = WORKSPACE;
    uint32_t                         align, reduction;
    cublasStatus_t                   rc;
    gemm_library_s                  *lib = dev->gemm;
    cublasLtMatmulPreference_t       pref;
    cublasLtMatmulHeuristicResult_t  results[CHOICES];

    static const cublasLtMatmulPreferenceAttributes_t  aligns[4] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
    };

    rc = lib->cublasLtMatmulPreferenceCreate(&pref);

    if (rc != CUBLAS_STATUS_SUCCESS) {
        return rc;
    }

    rc = lib->cublasLtMatmulPreferenceSetAttribute(pref,
                             CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                             &workspace, sizeof(workspace));

    for (i = 0; i < 4 && rc == CUBLAS_STATUS_SUCCESS; i++) {
        align = (uint32_t) p->key.align[i];
        rc = lib->cublasLtMatmulPreferenceSetAttribute(pref, aligns[i],
                                                       &align, sizeof(align));
    }

    /* parts of a sum are float32, too, not of y's type */

    reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

    if (dev->deterministic) {
        reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    }

    if (rc == CUBLAS_STATUS_SUCCESS) {
        rc = lib->cublasLtMatmulPreferenceSetAttribute(pref,
                             CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                             &reduction, sizeof(reduction));
    }

    found = 0;

    if (rc == CUBLAS_STATUS_SUCCESS) {
        rc = lib->cublasLtMatmulAlgoGetHeuristic(lib->lt, p->desc, p->w, p->x,
                                                 p->add, p->y, pref,
                                                 CHOICES, results, &found);
    }

    (void) lib->cublasLtMatmulPreferenceDestroy(pref);

    if (rc != CUBLAS_STATUS_SUCCESS) {
        return rc;
    }

    for (i = 0; i < found; i++) {

        if (results[i].state == CUBLAS_STATUS_SUCCESS
            && (!dev->deterministic || is_whole(lib, &results[i].algo)))
        {
            p->algo = results[i].algo;
            return CUBLAS_STATUS_SUCCESS;
        }
    }

    return CUBLAS_STATUS_NOT_SUPPORTED;
}


/* each sum in one piece?  Else its place in y may decide on the pieces. */

static int
is_whole(gemm_library_s *lib, const cublasLtMatmulAlgo_t *algo)
{
    size_t    size;
    int32_t   split;
    uint32_t  reduction;

    return lib->cublasLtMatmulAlgoConfigGetAttribute(algo,
                                      CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                      &split, sizeof(split), &size)
           == CUBLAS_STATUS_SUCCESS
           && lib->cublasLtMatmulAlgoConfigGetAttribute(algo,
                                      CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                      &reduction, sizeof(reduction), &size)
              == CUBLAS_STATUS_SUCCESS
           && (split == 0 || split == 1)
           && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}


static void
drop_plan(gemm_library_s *lib, plan_t *p)
{
    int                      i;
    cublasLtMatrixLayout_t  *all[4] = { &p->w, &p->x, &p->add, &p->y };

    if (!p->used) {
        return;
    }

    for (i = 0; i < 4; i++) {

        if (*all[i] != NULL) {
            (void) lib->cublasLtMatrixLayoutDestroy(*all[i]);
        }
    }

    if (p->desc != NULL) {
        (void) lib->cublasLtMatmulDescDestroy(p->desc);
    }

    memset(p, 0, sizeof(plan_t));
}


VLM_CUDA_END
