
/* the vision tower's input: positions, and patches of pictures */

#include "kernels/cuda/kernel.cuh"


#define PATCH_THREADS  256


VLM_CUDA_BEGIN


typedef struct {
    void                  *y;
    const uint8_t         *rgb;
    int64_t                y_stride;
    int64_t                patch0;
    int32_t                cols;
    vlm_patch_geometry_t   geo;
} patches_t;


/*
 * A block makes one patch.  Patches come in blocks of merge x merge, blocks
 * row by row, and row by row inside a block.
 */

template <typename T>
__global__ void __launch_bounds__(PATCH_THREADS)
patch_kernel(patches_t p)
{
    T        *y;
    float     value;
    int64_t   at, block, per_row, px, py, row, column;
    int32_t   i, c, area;

    at = p.patch0 + blockIdx.x;
    block = at / (p.geo.merge * p.geo.merge);
    at = at % (p.geo.merge * p.geo.merge);
    per_row = p.geo.width / (p.geo.patch * p.geo.merge);

    py = (block / per_row * p.geo.merge + at / p.geo.merge) * p.geo.patch;
    px = (block % per_row * p.geo.merge + at % p.geo.merge) * p.geo.patch;

    y = (T *) p.y + (int64_t) blockIdx.x * p.y_stride;
    area = p.geo.patch * p.geo.patch;

    for (i = (int32_t) threadIdx.x; i < p.cols; i += PATCH_THREADS) {
        c = i / (area * p.geo.frames);
        row = py + i % area / p.geo.patch;
        column = px + i % p.geo.patch;

        value = (float) (p.rgb[(row * p.geo.width + column) * 3 + c] / 255.0);
        from_f32(&y[i], (value - p.geo.mean[c]) / p.geo.std[c]);
    }
}


void
vlm_cuda_patchify(vlm_queue_t *q, const vlm_tensor_t *y, const uint8_t *rgb,
    const vlm_patch_geometry_t *geo, int64_t patch0)
{
    patches_t  p;

    if (vlm_cuda_begin(q) != 0 || y->rows == 0) {
        return;
    }

    if ((y->dtype != VLM_F32 && y->dtype != VLM_BF16)
        || y->cols != 3 * geo->frames * geo->patch * geo->patch)
    {
        vlm_cuda_fail(q, "patchify: to %d columns of type %d, a patch has %d",
                      y->cols, (int) y->dtype,
                      3 * geo->frames * geo->patch * geo->patch);
        return;
    }

    p.y = y->data;
    p.rgb = rgb;
    p.y_stride = y->stride;
    p.patch0 = patch0;
    p.cols = y->cols;
    p.geo = *geo;

    VLM_BY_ACT(y->dtype, T,
               VLM_LAUNCH(q, "patchify", patch_kernel<T>, (unsigned) y->rows,
                          PATCH_THREADS, 0, p));
}


void
vlm_cuda_rope_table(vlm_queue_t *q, const vlm_tensor_t *table,
    const int32_t *positions, const vlm_rope_t *rope)
{
    size_t      size;
    const void *at;

    if (vlm_cuda_begin(q) != 0 || table->rows == 0) {
        return;
    }

    if (table->dtype != VLM_F32 || table->cols != 2 * rope->npairs
        || table->rows > INT32_MAX)
    {
        vlm_cuda_fail(q, "rope_table: %d columns of type %d for %d pairs: "
                      "must be twice as many, float32", table->cols,
                      (int) table->dtype, rope->npairs);
        return;
    }

    size = (size_t) table->rows * (size_t) rope->naxes * sizeof(int32_t);

    at = vlm_cuda_stage(q, positions, size, "rope_table");

    if (at != NULL) {
        vlm_cuda_table(q, (float *) table->data, table->stride,
                       (const int32_t *) at, (int32_t) table->rows, rope,
                       "rope_table");
    }
}


VLM_CUDA_END
