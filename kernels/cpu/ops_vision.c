
/*
 * Attention of the vision tower: every row sees all rows of its segment.
 *
 * Packed keys and values: for each head the tiles of all segments (attn.h);
 * a segment starts at a tile of its own.
 */

#include <math.h>
#include <string.h>

#include "kernels/cpu/attn.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/rows.h"


/* rows of a view that lie in one segment, not over a border of their size */

typedef struct {
    int64_t                  row;           /* in the view */
    int64_t                  tile;          /* first one of the segment */
    int32_t                  at;            /* of the row in its segment */
    int32_t                  rows;
    int32_t                  length;        /* of the segment */
} block_t;

typedef struct {
    vlm_queue_t             *q;
    const vlm_segments_t    *seg;
    const vlm_tensor_t      *y;
    const vlm_tensor_t      *qkv;
    const vlm_tensor_t      *table;
    float                   *kv;
    size_t                   tile_floats;
    int64_t                  head_tiles;
    size_t                   max_tiles;     /* of one segment */
    const block_t           *blocks;
    int32_t                  nblocks;
} vision_job_t;


static int vision_begin(vision_job_t *job, int64_t row0, int32_t block_rows,
    const char *op);
static void list_blocks(vision_job_t *job, block_t *blocks, int64_t row0,
    int32_t block_rows);
static void rope_task(void *arg, int task, int worker);
static void pack_block(const vision_job_t *job, const block_t *b, float *tile,
    const float *k, int64_t k_stride, const float *v, int64_t v_stride);
static void attn_task(void *arg, int task, int worker);


static int64_t
tiles_of(const vlm_segments_t *seg, int32_t s)
{
    int64_t  rows = (int64_t) seg->start[s + 1] - seg->start[s];

    return (rows + VLM_ATTN_TILE - 1) / VLM_ATTN_TILE;
}


static int64_t
count_tiles(const vlm_segments_t *seg)
{
    int32_t  s;
    int64_t  n;

    n = 0;

    for (s = 0; s < seg->nsegments; s++) {
        n += tiles_of(seg, s);
    }

    return n;
}


size_t
vlm_cpu_vision_kv_bytes(vlm_device_t *dev, const vlm_segments_t *seg)
{
    return (size_t) count_tiles(seg) * seg->heads
           * vlm_attn_tile_floats(seg->head_dim) * sizeof(float);
}


/* checks, and lists the blocks of the view; 0 if there is nothing to do */

static int
vision_begin(vision_job_t *job, int64_t row0, int32_t block_rows,
    const char *op)
{
    size_t                 n;
    block_t               *blocks;
    const vlm_segments_t  *seg = job->seg;

    if (seg->head_dim > VLM_ATTN_MAX_DIM
        || (job->table != NULL && job->table->cols != seg->head_dim))
    {
        vlm_cpu_fail(job->q, "%s: head_dim %d, table of %d columns: must be "
                     "equal, and at most %d", op, (int) seg->head_dim,
                     (int) (job->table != NULL ? job->table->cols : 0),
                     VLM_ATTN_MAX_DIM);
        return 0;
    }

    if (job->qkv->dtype != VLM_F32) {
        vlm_cpu_fail(job->q, "%s: tensor of type %d is not float32", op,
                     (int) job->qkv->dtype);
        return 0;
    }

    n = (size_t) (job->qkv->rows / block_rows) + 2 * (size_t) seg->nsegments;

    blocks = vlm_cpu_shared(job->q, n * sizeof(block_t));
    if (blocks == NULL) {
        return 0;
    }

    job->tile_floats = vlm_attn_tile_floats(seg->head_dim);
    list_blocks(job, blocks, row0, block_rows);

    return job->nblocks > 0;
}


static void
list_blocks(vision_job_t *job, block_t *blocks, int64_t row0,
    int32_t block_rows)
{
    int32_t                s, at, end, length;
    int64_t                first, last, tile;
    const vlm_segments_t  *seg = job->seg;

    tile = 0;
    job->blocks = blocks;
    job->nblocks = 0;
    job->max_tiles = 0;

    for (s = 0; s < seg->nsegments; s++) {
        length = seg->start[s + 1] - seg->start[s];

        /* the view's part of the segment */
        first = row0 - seg->start[s];
        first = first > 0 ? first : 0;
        last = row0 + job->qkv->rows - seg->start[s];
        last = last < length ? last : length;

        for (at = (int32_t) first; at < last; at = end) {
            end = (at / block_rows + 1) * block_rows;
            end = end < last ? end : (int32_t) last;

            blocks->row = seg->start[s] + at - row0;
            blocks->tile = tile;
            blocks->at = at;
            blocks->rows = end - at;
            blocks->length = length;
            blocks++;
            job->nblocks++;
        }

        if ((size_t) tiles_of(seg, s) > job->max_tiles) {
            job->max_tiles = tiles_of(seg, s);
        }

        tile += tiles_of(seg, s);
    }

    job->head_tiles = tile;
}


void
vlm_cpu_vision_rope(vlm_queue_t *q, const vlm_segments_t *seg,
    const vlm_tensor_t *qkv, const vlm_tensor_t *table, int64_t row0,
    void *kv)
{
    vision_job_t  job;

    job.q = q;
    job.seg = seg;
    job.qkv = qkv;
    job.table = table;
    job.kv = kv;

    if (vision_begin(&job, row0, VLM_ATTN_TILE, "vision_rope")) {
        vlm_pool_run(q->dev->pool, job.nblocks, rope_task, &job);
    }
}


static void
rope_task(void *arg, int task, int worker)
{
    int                    i, h, dim;
    float                 *x, *k, *tile;
    float                  turned[VLM_ATTN_TILE * VLM_ATTN_MAX_DIM];
    int64_t                stride, row;
    const float           *angles;
    vision_job_t          *job = arg;
    const block_t         *b = &job->blocks[task];
    const vlm_cpu_rows_t  *kernels = job->q->dev->rows;

    dim = job->seg->head_dim;
    stride = job->qkv->stride;

    for (h = 0; h < job->seg->heads; h++) {
        x = (float *) job->qkv->data + b->row * stride + h * dim;
        k = x + (size_t) job->seg->heads * dim;

        tile = job->kv + job->tile_floats
                         * (h * job->head_tiles + b->tile
                            + b->at / VLM_ATTN_TILE);

        if (job->table == NULL) {
            pack_block(job, b, tile, k, stride,
                       k + (size_t) job->seg->heads * dim, stride);
            continue;
        }

        for (i = 0; i < b->rows; i++) {
            row = b->row + i;
            angles = (float *) job->table->data + row * job->table->stride;

            kernels->rope(x + i * stride, x + i * stride, angles, dim / 2);
            kernels->rope(turned + i * dim, k + i * stride, angles, dim / 2);
        }

        pack_block(job, b, tile, turned, dim,
                   k + (size_t) job->seg->heads * dim, stride);
    }
}


/* lanes of one tile: K transposed, a cache line of 16 keys at a time */

static void
pack_block(const vision_job_t *job, const block_t *b, float *tile,
    const float *k, int64_t k_stride, const float *v, int64_t v_stride)
{
    int     i, d, dim, width;
    float  *to;

    dim = job->seg->head_dim;
    width = vlm_attn_width(dim);
    to = tile + b->at % VLM_ATTN_TILE;

    for (d = 0; d < dim; d++) {

        for (i = 0; i < b->rows; i++) {
            to[d * VLM_ATTN_TILE + i] = k[i * k_stride + d];
        }
    }

    to = tile + dim * VLM_ATTN_TILE + b->at % VLM_ATTN_TILE * width;

    for (i = 0; i < b->rows; i++) {
        memcpy(to, v + i * v_stride, dim * sizeof(float));
        memset(to + dim, 0, (width - dim) * sizeof(float));
        to += width;
    }
}


void
vlm_cpu_vision_attention(vlm_queue_t *q, const vlm_segments_t *seg,
    const vlm_tensor_t *y, const vlm_tensor_t *qkv, int64_t row0,
    const void *kv)
{
    size_t        size;
    vision_job_t  job;

    job.q = q;
    job.seg = seg;
    job.y = y;
    job.qkv = qkv;
    job.table = NULL;
    job.kv = (float *) kv;

    if (!vision_begin(&job, row0, VLM_ATTN_QUERIES, "vision_attention")) {
        return;
    }

    /* the kernel's work behind the pointers stays aligned */
    job.max_tiles = (job.max_tiles + 7) / 8 * 8;

    size = job.max_tiles * sizeof(float *)
           + vlm_attn_work_floats(seg->head_dim) * sizeof(float);

    if (vlm_cpu_scratch_all(q, size) != 0) {
        return;
    }

    /* blocks of one head after each other: its keys stay in the cache */

    vlm_pool_run(q->dev->pool, job.nblocks * seg->heads, attn_task, &job);
}


static void
attn_task(void *arg, int task, int worker)
{
    int               i, head, dim;
    int64_t           t, ntiles;
    const float      *first, **tiles;
    vision_job_t     *job = arg;
    const block_t    *b = &job->blocks[task % job->nblocks];
    vlm_attn_call_t   call;

    head = task / job->nblocks;
    dim = job->seg->head_dim;
    tiles = vlm_cpu_scratch(job->q, worker);

    call.head_dim = dim;
    call.scale = 1.0f / sqrtf((float) dim);
    call.nqueries = b->rows;
    call.tiles = tiles;
    call.work = (float *) (tiles + job->max_tiles);

    for (i = 0; i < b->rows; i++) {
        call.nkeys[i] = b->length;
        call.q[i] = (float *) job->qkv->data
                    + (b->row + i) * job->qkv->stride + head * dim;
        call.y[i] = (float *) job->y->data + (b->row + i) * job->y->stride
                    + head * dim;
    }

    ntiles = (b->length + VLM_ATTN_TILE - 1) / VLM_ATTN_TILE;
    first = job->kv + job->tile_floats * (head * job->head_tiles + b->tile);

    for (t = 0; t < ntiles; t++) {
        tiles[t] = first + t * job->tile_floats;
    }

    job->q->dev->attn->run(&call);
}
