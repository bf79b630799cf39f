
/*
 * The decoder's attention: a step's tables, rotation and the cache, and
 * causal attention over it.
 *
 * A block of the cache holds, for each kv head, its tiles of 16 positions
 * (attn.h).
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/attn.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/rows.h"


/* rows of one task of rope_kv */
#define ROPE_CHUNK  16


/* what step->data holds: this, rows, then tables */

typedef struct {
    int32_t              seq;
    int32_t              position;      /* in the cache */
} step_row_t;

typedef struct {
    int32_t              npairs;
    step_row_t          *rows;
    float               *table;         /* [nrows][2 npairs] */
} step_data_t;

typedef struct {
    const vlm_rope_t    *rope;
    const int32_t       *positions;
    int32_t              nrows;
    step_data_t         *data;
} angles_job_t;

typedef struct {
    const vlm_cpu_rows_t    *kernels;
    const vlm_step_t        *step;
    const vlm_tensor_t      *qkv;
    const vlm_kv_t          *kv;
    int32_t                  heads;
    const float             *q_gain;
    const float             *k_gain;
    float                    eps;
} rope_job_t;

/* queries of one task: (row, head) pairs of a kv head, in this order */

typedef struct {
    int32_t              seq;
    int32_t              kv_head;
    int32_t              first;
} attn_task_t;

typedef struct {
    vlm_queue_t         *q;
    const vlm_step_t    *step;
    const vlm_tensor_t  *y;
    const vlm_tensor_t  *qkv;
    const vlm_kv_t      *kv;
    int32_t              heads;
    size_t               max_tiles;
    attn_task_t         *tasks;
} attn_job_t;


static void angles_task(void *arg, int task, int worker);
static void rope_task(void *arg, int task, int worker);
static void rope_head(const rope_job_t *job, float *x, const float *gain,
    const float *table);
static void store_kv(const rope_job_t *job, int32_t row, int32_t head,
    const float *k, const float *v);
static float *kv_tile(const vlm_step_t *step, const vlm_kv_t *kv, int32_t seq,
    int32_t head, int32_t tile);
static int list_tasks(attn_job_t *job);
static void attn_task(void *arg, int task, int worker);


size_t
vlm_cpu_kv_block_bytes(vlm_device_t *dev, int32_t block_size,
    int32_t kv_heads, int32_t head_dim)
{
    return (size_t) kv_heads * (block_size / VLM_ATTN_TILE)
           * vlm_attn_tile_floats(head_dim) * sizeof(float);
}


int
vlm_cpu_step_upload(vlm_queue_t *q, vlm_step_t *step,
    const vlm_step_host_t *host, const vlm_rope_t *rope)
{
    size_t         size, rows, nrows;
    int32_t        s, r;
    step_data_t   *data;
    angles_job_t   job;

    nrows = (size_t) host->nrows;
    rows = (nrows * sizeof(step_row_t) + 63) / 64 * 64;
    size = 64 + rows + nrows * 2 * rope->npairs * sizeof(float);

    if (step->data == NULL || step->size < size) {
        free(step->data);
        step->size = 0;

        step->data = vlm_cpu_alloc(size);
        if (step->data == NULL) {
            vlm_cpu_fail(q, "no memory for the tables of a step of %d rows",
                         (int) host->nrows);
            return -1;
        }

        step->size = size;
    }

    step->host = *host;

    data = step->data;
    data->npairs = rope->npairs;
    data->rows = (step_row_t *) ((char *) step->data + 64);
    data->table = (float *) ((char *) data->rows + rows);

    for (s = 0; s < host->nseqs; s++) {

        for (r = host->row_start[s]; r < host->row_start[s + 1]; r++) {
            data->rows[r].seq = s;
            data->rows[r].position = host->context[s] + r - host->row_start[s];
        }
    }

    job.rope = rope;
    job.positions = host->positions;
    job.nrows = host->nrows;
    job.data = data;

    vlm_pool_run(q->dev->pool, (host->nrows + ROPE_CHUNK - 1) / ROPE_CHUNK,
                 angles_task, &job);

    return 0;
}


static void
angles_task(void *arg, int task, int worker)
{
    int32_t        row, last;
    angles_job_t  *job = arg;

    row = task * ROPE_CHUNK;
    last = job->nrows - row > ROPE_CHUNK ? row + ROPE_CHUNK : job->nrows;

    for ( ; row < last; row++) {
        vlm_cpu_rope_angles(job->data->table
                            + (size_t) row * 2 * job->data->npairs,
                            job->positions, job->nrows, row, job->rope);
    }
}


void
vlm_cpu_step_free(vlm_device_t *dev, vlm_step_t *step)
{
    free(step->data);
    step->data = NULL;
    step->size = 0;
}


static int
check_heads(vlm_queue_t *q, const vlm_step_t *step, const vlm_tensor_t *qkv,
    int32_t heads, const vlm_kv_t *kv, const char *op)
{
    step_data_t  *data = step->data;

    if (kv->head_dim > VLM_ATTN_MAX_DIM || kv->head_dim != 2 * data->npairs) {
        vlm_cpu_fail(q, "%s: head_dim %d with a rope of %d pairs: must be "
                     "twice the pairs, and at most %d", op,
                     (int) kv->head_dim, (int) data->npairs,
                     VLM_ATTN_MAX_DIM);
        return 0;
    }

    if (kv->kv_heads <= 0 || heads % kv->kv_heads != 0
        || kv->block_size <= 0 || kv->block_size % VLM_ATTN_TILE != 0)
    {
        vlm_cpu_fail(q, "%s: %d heads over %d kv heads, blocks of %d: must "
                     "be multiples, of %d for blocks", op, (int) heads,
                     (int) kv->kv_heads, (int) kv->block_size,
                     VLM_ATTN_TILE);
        return 0;
    }

    if (qkv->dtype != VLM_F32) {
        vlm_cpu_fail(q, "%s: tensor of type %d is not float32", op,
                     (int) qkv->dtype);
        return 0;
    }

    return 1;
}


void
vlm_cpu_rope_kv(vlm_queue_t *q, const vlm_step_t *step,
    const vlm_tensor_t *qkv, int32_t heads, const vlm_kv_t *kv,
    const float *q_gain, const float *k_gain, float eps)
{
    rope_job_t  job;

    if (!check_heads(q, step, qkv, heads, kv, "rope_kv")) {
        return;
    }

    job.kernels = q->dev->rows;
    job.step = step;
    job.qkv = qkv;
    job.kv = kv;
    job.heads = heads;
    job.q_gain = q_gain;
    job.k_gain = k_gain;
    job.eps = eps;

    vlm_pool_run(q->dev->pool,
                 (step->host.nrows + ROPE_CHUNK - 1) / ROPE_CHUNK, rope_task,
                 &job);
}


static void
rope_task(void *arg, int task, int worker)
{
    float             *x, *k, *v;
    int32_t            row, last, h, dim;
    rope_job_t        *job = arg;
    const float       *table;
    const step_data_t *data = job->step->data;

    dim = job->kv->head_dim;
    row = task * ROPE_CHUNK;
    last = job->step->host.nrows;
    last = last - row > ROPE_CHUNK ? row + ROPE_CHUNK : last;

    for ( ; row < last; row++) {
        table = data->table + (size_t) row * 2 * data->npairs;
        x = (float *) job->qkv->data + row * job->qkv->stride;
        k = x + (size_t) job->heads * dim;
        v = k + (size_t) job->kv->kv_heads * dim;

        for (h = 0; h < job->heads; h++) {
            rope_head(job, x + h * dim, job->q_gain, table);
        }

        for (h = 0; h < job->kv->kv_heads; h++) {
            rope_head(job, k + h * dim, job->k_gain, table);
            store_kv(job, row, h, k + h * dim, v + h * dim);
        }
    }
}


static void
rope_head(const rope_job_t *job, float *x, const float *gain,
    const float *table)
{
    int  dim = job->kv->head_dim;

    if (gain != NULL) {
        job->kernels->norm(x, x, dim, gain, NULL, job->eps, VLM_NORM_RMS);
    }

    job->kernels->rope(x, x, table, dim / 2);
}


static void
store_kv(const rope_job_t *job, int32_t row, int32_t head, const float *k,
    const float *v)
{
    int                d, dim, width, lane;
    float             *tile, *to;
    const step_row_t  *at;

    dim = job->kv->head_dim;
    width = vlm_attn_width(dim);
    at = &((step_data_t *) job->step->data)->rows[row];
    lane = at->position % VLM_ATTN_TILE;
    tile = kv_tile(job->step, job->kv, at->seq, head,
                   at->position / VLM_ATTN_TILE);

    for (d = 0; d < dim; d++) {
        tile[d * VLM_ATTN_TILE + lane] = k[d];
    }

    to = tile + dim * VLM_ATTN_TILE + lane * width;
    memcpy(to, v, dim * sizeof(float));
    memset(to + dim, 0, (width - dim) * sizeof(float));
}


static float *
kv_tile(const vlm_step_t *step, const vlm_kv_t *kv, int32_t seq, int32_t head,
    int32_t tile)
{
    size_t   per_block, index;
    int32_t  block;

    per_block = kv->block_size / VLM_ATTN_TILE;
    block = step->host.blocks[(size_t) seq * step->host.max_blocks
                              + tile / per_block];

    index = ((size_t) block * kv->kv_heads + head) * per_block
            + tile % per_block;

    return (float *) kv->data + index * vlm_attn_tile_floats(kv->head_dim);
}


void
vlm_cpu_attention(vlm_queue_t *q, const vlm_step_t *step,
    const vlm_tensor_t *y, const vlm_tensor_t *qkv, int32_t heads,
    const vlm_kv_t *kv)
{
    int         ntasks;
    size_t      size;
    attn_job_t  job;

    if (!check_heads(q, step, qkv, heads, kv, "attention")) {
        return;
    }

    job.q = q;
    job.step = step;
    job.y = y;
    job.qkv = qkv;
    job.kv = kv;
    job.heads = heads;

    ntasks = list_tasks(&job);
    if (ntasks <= 0) {
        return;
    }

    size = job.max_tiles * sizeof(float *)
           + vlm_attn_work_floats(kv->head_dim) * sizeof(float);

    if (vlm_cpu_scratch_all(q, size) != 0) {
        return;
    }

    vlm_pool_run(q->dev->pool, ntasks, attn_task, &job);
}


/*
 * The queries of a sequence see more keys the later they come: the last ones
 * first, so that the longest tasks do not run alone at the end.
 */

static int
list_tasks(attn_job_t *job)
{
    size_t                  n, tiles;
    int32_t                 s, h, first, rows, nqueries, group;
    const vlm_step_host_t  *host = &job->step->host;

    group = job->heads / job->kv->kv_heads;
    job->max_tiles = 0;
    n = 0;

    for (s = 0; s < host->nseqs; s++) {
        rows = host->row_start[s + 1] - host->row_start[s];
        nqueries = rows * group;
        n += (nqueries + VLM_ATTN_QUERIES - 1) / VLM_ATTN_QUERIES
             * job->kv->kv_heads;

        tiles = (host->context[s] + rows + VLM_ATTN_TILE - 1) / VLM_ATTN_TILE;

        /* the kernel's work behind the pointers stays aligned */
        tiles = (tiles + 7) / 8 * 8;

        if (tiles > job->max_tiles) {
            job->max_tiles = tiles;
        }
    }

    job->tasks = vlm_cpu_shared(job->q, n * sizeof(attn_task_t));
    if (job->tasks == NULL) {
        return -1;
    }

    n = 0;

    for (s = 0; s < host->nseqs; s++) {
        nqueries = (host->row_start[s + 1] - host->row_start[s]) * group;

        if (nqueries == 0) {
            continue;
        }

        first = (nqueries - 1) / VLM_ATTN_QUERIES * VLM_ATTN_QUERIES;

        for ( ; first >= 0; first -= VLM_ATTN_QUERIES) {

            for (h = 0; h < job->kv->kv_heads; h++) {
                job->tasks[n].seq = s;
                job->tasks[n].kv_head = h;
                job->tasks[n].first = first;
                n++;
            }
        }
    }

    return (int) n;
}


static void
attn_task(void *arg, int task, int worker)
{
    int                      i, group, head, ntiles;
    int32_t                  row, row0, n, dim;
    attn_job_t              *job = arg;
    const float            **tiles;
    vlm_attn_call_t          call;
    const attn_task_t       *t = &job->tasks[task];
    const vlm_step_host_t   *host = &job->step->host;

    dim = job->kv->head_dim;
    group = job->heads / job->kv->kv_heads;
    row0 = host->row_start[t->seq];
    n = (host->row_start[t->seq + 1] - row0) * group - t->first;
    n = n < VLM_ATTN_QUERIES ? n : VLM_ATTN_QUERIES;

    tiles = vlm_cpu_scratch(job->q, worker);

    call.head_dim = dim;
    call.scale = 1.0f / sqrtf((float) dim);
    call.nqueries = n;
    call.tiles = tiles;
    call.work = (float *) (tiles + job->max_tiles);

    for (i = 0; i < n; i++) {
        row = (t->first + i) / group;
        head = t->kv_head * group + (t->first + i) % group;

        call.nkeys[i] = host->context[t->seq] + row + 1;
        call.q[i] = (float *) job->qkv->data
                    + (row0 + row) * job->qkv->stride + head * dim;
        call.y[i] = (float *) job->y->data + (row0 + row) * job->y->stride
                    + head * dim;
    }

    ntiles = (call.nkeys[n - 1] + VLM_ATTN_TILE - 1) / VLM_ATTN_TILE;

    for (i = 0; i < ntiles; i++) {
        tiles[i] = kv_tile(job->step, job->kv, t->seq, t->kv_head, i);
    }

    job->q->dev->attn->run(&call);
}
