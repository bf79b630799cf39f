
/* attention of the vision tower: tiles of rows of a segment, all its keys */

#include "kernels/cuda/attention_launch.cuh"


VLM_CUDA_BEGIN


static int vision_check(vlm_queue_t *q, const vlm_segments_t *seg,
    const vlm_tensor_t *y, const vlm_tensor_t *qkv, int64_t row0);
static attend_tile_t *vision_tiles(const vlm_segments_t *seg, int64_t row0,
    int64_t rows, int tile, size_t *n);


template <int N, int COLS, int TILE>
__global__ void __launch_bounds__(TILE / ATTEND_QUERIES * ATTEND_COLUMNS)
vision_kernel(attend_t a, rows_t rows)
{
    attend_tile_t  t;

    t = a.tiles[blockIdx.x];

    rows.data = (const float *) rows.data + (int64_t) t.from * 2 * rows.width
                + (int64_t) blockIdx.y * a.head_dim;

    attend<N, COLS, TILE>(a, t, (int) blockIdx.y, rows);
}


template <int COLS, int ROWS>
__global__ void __launch_bounds__(MATRIX_WARPS * VLM_WARP)
vision_matrix_kernel(attend_t a, rows_t rows)
{
    attend_tile_t  t;

    t = a.tiles[blockIdx.x];

    rows.data = (const bf16_t *) rows.data + (int64_t) t.from * 2 * rows.width
                + (int64_t) blockIdx.y * a.head_dim;

    attend_matrix<COLS, ROWS>(a, t, (int) blockIdx.y, rows);
}


struct vision_launch_t {
    vlm_queue_t        *q;
    attend_t            a;
    rows_t              rows;
    dim3                grid;
    int                 queries;        /* of a tile */

    template <int N, int COLS, int TILE>
    void
    tile() const
    {
        attend_blocks(q, "vision_attention", vision_kernel<N, COLS, TILE>,
                      grid, TILE / ATTEND_QUERIES * ATTEND_COLUMNS, 0, 0, a,
                      rows);
    }

    template <int COLS, int ROWS>
    void
    matrix() const
    {
        attend_matrix_blocks<COLS, ROWS>(q, "vision_attention",
                                         vision_matrix_kernel<COLS, ROWS>,
                                         grid, queries, a, rows);
    }
};


void
vlm_cuda_vision_attention(vlm_queue_t *q, const vlm_segments_t *seg,
    const vlm_tensor_t *y, const vlm_tensor_t *qkv, int64_t row0,
    const void *kv)
{
    size_t            n;
    attend_tile_t    *tiles;
    vision_launch_t   l;

    if (vlm_cuda_begin(q) != 0 || qkv->rows == 0
        || vision_check(q, seg, y, qkv, row0) != 0)
    {
        return;
    }

    l.queries = attend_tile(q, qkv->dtype, seg->head_dim, qkv->rows,
                            seg->heads);

    tiles = vision_tiles(seg, row0, qkv->rows, l.queries, &n);
    if (tiles == NULL) {
        vlm_cuda_fail(q, "vision_attention: no memory for %zu tiles", n);
        return;
    }

    l.q = q;
    l.grid = dim3((unsigned) n, (unsigned) seg->heads);

    l.a.y = y->data;
    l.a.y_stride = y->stride;
    l.a.q = qkv->data;
    l.a.q_stride = qkv->stride;
    l.a.head_dim = seg->head_dim;
    l.a.causal = 0;
    l.a.wide = attend_wide(qkv, y, seg->head_dim);
    l.a.scale = 1.0f / sqrtf((float) seg->head_dim);
    l.a.tiles = (const attend_tile_t *)
                vlm_cuda_stage(q, tiles, n * sizeof(attend_tile_t),
                               "vision_attention");

    l.rows.data = kv;
    l.rows.width = (int64_t) seg->heads * seg->head_dim;

    free(tiles);

    if (!q->failed) {
        attend_launch(qkv->dtype, seg->head_dim, l);
    }
}


static int
vision_check(vlm_queue_t *q, const vlm_segments_t *seg, const vlm_tensor_t *y,
    const vlm_tensor_t *qkv, int64_t row0)
{
    int64_t  width;

    width = (int64_t) seg->heads * seg->head_dim;

    if (attend_dim_check(q, seg->head_dim, "vision_attention") != 0) {
        return -1;
    }

    if (qkv->dtype != q->dev->act || y->dtype != q->dev->act
        || qkv->cols != 3 * width || y->cols != width
        || y->rows != qkv->rows || row0 < 0
        || row0 + qkv->rows > seg->start[seg->nsegments])
    {
        vlm_cuda_fail(q, "vision_attention: qkv [%lld, %d] of type %d to "
                      "[%lld, %d] of type %d, rows from %lld of %d, %d heads "
                      "of %d", (long long) qkv->rows, qkv->cols,
                      (int) qkv->dtype, (long long) y->rows, y->cols,
                      (int) y->dtype, (long long) row0,
                      seg->start[seg->nsegments], seg->heads, seg->head_dim);
        return -1;
    }

    return 0;
}


/* the rows in tiles that stay inside their segments */

static attend_tile_t *
vision_tiles(const vlm_segments_t *seg, int64_t row0, int64_t rows, int tile,
    size_t *n)
{
    int32_t         s, first, last, row;
    attend_tile_t  *tiles, *t;

    *n = (size_t) (rows / tile + seg->nsegments + 1);

    tiles = (attend_tile_t *) malloc(*n * sizeof(attend_tile_t));
    if (tiles == NULL) {
        return NULL;
    }

    t = tiles;

    for (s = 0; s < seg->nsegments; s++) {
        first = seg->start[s] > row0 ? seg->start[s] : (int32_t) row0;
        last = seg->start[s + 1] < row0 + rows ? seg->start[s + 1]
                                               : (int32_t) (row0 + rows);

        for (row = first; row < last; row += tile) {
            t->row = (int32_t) (row - row0);
            t->rows = last - row < tile ? last - row : tile;
            t->keys = seg->start[s + 1] - seg->start[s];
            t->from = seg->start[s];
            t++;
        }
    }

    *n = (size_t) (t - tiles);

    return tiles;
}


VLM_CUDA_END
