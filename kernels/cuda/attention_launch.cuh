
/* the tile kernels by type and size of a head */

#ifndef VLM_CUDA_ATTENTION_LAUNCH_H
#define VLM_CUDA_ATTENTION_LAUNCH_H


#include "kernels/cuda/attention_matrix.cuh"
#include "kernels/cuda/attention_tile.cuh"


VLM_CUDA_BEGIN


static inline int
attend_dim_check(vlm_queue_t *q, int32_t dim, const char *op)
{
    if (dim > 0 && dim <= ATTEND_MAX_DIM && dim % 2 == 0) {
        return 0;
    }

    vlm_cuda_fail(q, "%s: heads of %d elements: must be even and %d at most",
                  op, dim, ATTEND_MAX_DIM);

    return -1;
}


/* may heads be moved in pieces of 16 bytes? */

static inline int
attend_wide(const vlm_tensor_t *qkv, const vlm_tensor_t *y, int dim)
{
    return (size_t) dim * vlm_dtype_size(qkv->dtype) % 16 == 0
           && is_wide(qkv->data, qkv->stride, qkv->dtype)
           && is_wide(y->data, y->stride, y->dtype);
}


/* queries of a tile in float32: what 48 KB of shared memory hold */

#define ATTEND_TILE         32
#define ATTEND_TILE_LARGE   16

/* float32 heads that are loaded by 8 bytes are few: they take two paths */

static inline int
is_large(int dim)
{
    return dim > 128 || (dim % 4 != 0 && dim > 2 * ATTEND_COLUMNS);
}


/* queries of a warp; heads over 128 have twice the sums for each */

static inline int
matrix_queries(int dim)
{
    return dim > 128 ? MATRIX : 2 * MATRIX;
}


/*
 * Queries of a tile.  Large ones read keys less often, but there must be two
 * blocks for each multiprocessor; a row's result is the same.
 */

static inline int
attend_tile(const vlm_queue_t *q, vlm_dtype_t type, int dim, int64_t rows,
    int32_t heads)
{
    int  most;

    if (type != VLM_BF16) {
        return is_large(dim) ? ATTEND_TILE_LARGE : ATTEND_TILE;
    }

    most = MATRIX_WARPS * matrix_queries(dim);

    return rows * heads < (int64_t) 2 * most * q->dev->multiprocessors
           ? most / 2 : most;
}


/* l.template tile<N, COLS, TILE>(): N elements of a key are loaded at once */

template <int N, typename L>
static void
launch_by_columns(int dim, const L &l)
{
    switch ((dim + ATTEND_COLUMNS - 1) / ATTEND_COLUMNS) {

    case 1:
        l.template tile<N, 1, ATTEND_TILE>();
        break;

    case 2:
        l.template tile<N, 2, ATTEND_TILE>();
        break;

    case 3:
    case 4:
        l.template tile<N, 4, ATTEND_TILE>();
        break;

    case 5:
        l.template tile<N, 5, ATTEND_TILE>();
        break;

    case 6:
        l.template tile<N, 6, ATTEND_TILE>();
        break;

    case 7:
    case 8:
        l.template tile<N, 8, ATTEND_TILE>();
        break;

    default:
        l.template tile<N, 16, ATTEND_TILE_LARGE>();
        break;
    }
}


/* l.template matrix<COLS, ROWS>() */

template <typename L>
static void
launch_matrix(int dim, const L &l)
{
    switch ((dim + MATRIX - 1) / MATRIX) {

    case 1:
    case 2:
    case 3:
    case 4:
        l.template matrix<4, 2>();
        break;

    case 5:
        l.template matrix<5, 2>();
        break;

    case 6:
        l.template matrix<6, 2>();
        break;

    case 7:
    case 8:
        l.template matrix<8, 2>();
        break;

    default:
        l.template matrix<16, 1>();
        break;
    }
}


template <typename L>
static void
attend_launch(vlm_dtype_t type, int dim, const L &l)
{
    if (type == VLM_BF16) {
        launch_matrix(dim, l);

    } else if (dim % 4 == 0) {
        launch_by_columns<4>(dim, l);

    } else if (!is_large(dim)) {
        l.template tile<2, 2, ATTEND_TILE>();

    } else {
        l.template tile<2, 16, ATTEND_TILE_LARGE>();
    }
}


/*
 * A block of the kernel for each tile and head; X is the second argument.  It
 * is allowed the "most" shared memory that any block has: what is allowed is
 * the kernel's, and another queue may launch it at the same time.
 */

template <typename X>
static void
attend_blocks(vlm_queue_t *q, const char *op, void (*kernel)(attend_t, X),
    dim3 grid, int threads, size_t shared, size_t most, const attend_t &a,
    const X &x)
{
    if (VLM_ALLOW_SHARED(q, op, kernel, most) == 0) {
        VLM_LAUNCH(q, op, kernel, grid, (unsigned) threads, shared, a, x);
    }
}


/* of a block of the matrix kernel with so many warps */

template <int COLS, int ROWS>
static size_t
matrix_shared(int warps)
{
    typedef matrix_shape_t<COLS, ROWS>  shape;

    return (size_t) (shape::places + 2 * shape::keys
                     + warps * shape::of_warp);
}


template <int COLS, int ROWS, typename X>
static void
attend_matrix_blocks(vlm_queue_t *q, const char *op,
    void (*kernel)(attend_t, X), dim3 grid, int queries, const attend_t &a,
    const X &x)
{
    int  warps;

    warps = queries / matrix_shape_t<COLS, ROWS>::queries;

    attend_blocks(q, op, kernel, grid, warps * VLM_WARP,
                  matrix_shared<COLS, ROWS>(warps),
                  matrix_shared<COLS, ROWS>(MATRIX_WARPS), a, x);
}


VLM_CUDA_END


#endif /* VLM_CUDA_ATTENTION_LAUNCH_H */
