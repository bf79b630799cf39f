
/* the tile kernels by type and size of a head */

#ifndef VLM_CUDA_ATTENTION_LAUNCH_H
#define VLM_CUDA_ATTENTION_LAUNCH_H


#include "kernels/cuda/attention_tile.cuh"


/*
 * l.template run<T, N, COLS, TILE>(l) for a head of "dim": N elements of a key
 * are loaded at once, 16 bytes if the head's size allows it; TILE is what
 * 48 KB of shared memory hold.
 */

#define ATTEND_LAUNCH(type, dim, l)                                           \
    do {                                                                      \
        if ((type) == VLM_BF16) {                                             \
            launch_by_dim<bf16_t>(dim, l);                                    \
        } else {                                                              \
            launch_by_dim<float>(dim, l);                                     \
        }                                                                     \
    } while (0)


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


template <typename T>
struct attend_tiles_t {
    enum { small = sizeof(T) == 2 ? 64 : 32, large = small / 2 };
};


/* queries of a tile, as below */

static inline int
attend_tile(int dim, vlm_dtype_t type)
{
    int  large;

    large = dim > 128 || ((size_t) dim * vlm_dtype_size(type) % 16 != 0
                          && dim > 2 * ATTEND_COLUMNS);

    if (type == VLM_BF16) {
        return large ? attend_tiles_t<bf16_t>::large
                     : attend_tiles_t<bf16_t>::small;
    }

    return large ? attend_tiles_t<float>::large
                 : attend_tiles_t<float>::small;
}


template <typename T, int N, typename L>
static void
launch_by_columns(int dim, const L &l)
{
    enum { S = attend_tiles_t<T>::small, B = attend_tiles_t<T>::large };

    switch ((dim + ATTEND_COLUMNS - 1) / ATTEND_COLUMNS) {

    case 1:
        l.template run<T, N, 1, S>();
        break;

    case 2:
        l.template run<T, N, 2, S>();
        break;

    case 3:
    case 4:
        l.template run<T, N, 4, S>();
        break;

    case 5:
        l.template run<T, N, 5, S>();
        break;

    case 6:
        l.template run<T, N, 6, S>();
        break;

    case 7:
    case 8:
        l.template run<T, N, 8, S>();
        break;

    default:
        l.template run<T, N, 16, B>();
        break;
    }
}


/* (heads of odd sizes are few and small: they take one path) */

template <typename T, typename L>
static void
launch_by_dim(int dim, const L &l)
{
    enum { N = wide_t<T>::n };

    if (dim % N == 0) {
        launch_by_columns<T, N>(dim, l);

    } else if (dim <= 2 * ATTEND_COLUMNS) {
        l.template run<T, 2, 2, attend_tiles_t<T>::small>();

    } else {
        l.template run<T, 2, 16, attend_tiles_t<T>::large>();
    }
}


VLM_CUDA_END


#endif /* VLM_CUDA_ATTENTION_LAUNCH_H */
