
/*
 * The decoder's attention over its paged cache: sequences with few rows go
 * one way, those with many another.  A device that must give the same bits
 * in every batch takes the first way alone.
 */

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_launch.cuh"


VLM_CUDA_BEGIN


/* what goes which way; lists for the device behind each other */

typedef struct {
    char               *list;           /* tiles, then rows */
    attend_tile_t      *tiles;
    int32_t            *rows;
    int32_t             ntiles;
    int32_t             nrows;
    int32_t             keys;           /* the most that a row sees */
} plan_t;


static int attention_check(vlm_queue_t *q, const vlm_attention_t *a);
static int plan_make(vlm_queue_t *q, const vlm_step_host_t *host, int tile,
    plan_t *p);
static int plan_lists(vlm_queue_t *q, const vlm_step_host_t *host, int tile,
    plan_t *p);
static void plan_run(vlm_queue_t *q, const vlm_attention_t *a,
    const plan_t *p);


void
vlm_cuda_attention(vlm_queue_t *q, const vlm_step_t *step,
    const vlm_tensor_t *y, const vlm_tensor_t *qkv, int32_t heads,
    const vlm_kv_t *kv)
{
    plan_t           p;
    vlm_attention_t  a;

    a.step = vlm_cuda_step(step);
    a.y = y;
    a.qkv = qkv;
    a.kv = kv;
    a.heads = heads;

    if (vlm_cuda_begin(q) != 0 || step->host.nrows == 0
        || attention_check(q, &a) != 0
        || plan_make(q, &step->host, vlm_cuda_attention_tile(q, &a), &p) != 0)
    {
        return;
    }

    if (q->graph != VLM_GRAPH_NONE) {
        /* what is recorded serves all contexts that the blocks hold */
        p.keys = step->host.max_blocks * kv->block_size;
    }

    plan_run(q, &a, &p);
    free(p.list);
}


static int
attention_check(vlm_queue_t *q, const vlm_attention_t *a)
{
    int32_t  dim;

    dim = a->kv->head_dim;

    if (attend_dim_check(q, dim, "attention") != 0) {
        return -1;
    }

    if (a->qkv->dtype != q->dev->act || a->y->dtype != q->dev->act
        || a->kv->kv_heads <= 0 || a->heads % a->kv->kv_heads != 0
        || a->qkv->cols != (a->heads + 2 * a->kv->kv_heads) * dim
        || a->y->cols != a->heads * dim || a->y->rows != a->step->nrows
        || a->qkv->rows != a->step->nrows)
    {
        vlm_cuda_fail(q, "attention: qkv [%lld, %d] of type %d to [%lld, %d] "
                      "of type %d, %d rows, %d heads of %d, %d of keys",
                      (long long) a->qkv->rows, a->qkv->cols,
                      (int) a->qkv->dtype, (long long) a->y->rows,
                      a->y->cols, (int) a->y->dtype, a->step->nrows,
                      a->heads, dim, a->kv->kv_heads);
        return -1;
    }

    return 0;
}


/* a sequence whose rows are taken one by one */

static int
is_few(const vlm_queue_t *q, const vlm_step_host_t *host, int32_t s)
{
    return q->dev->deterministic
           || host->row_start[s + 1] - host->row_start[s] <= VLM_DECODE_ROWS;
}


/* a step of few rows of each, which decoding is, needs no list */

static int
plan_make(vlm_queue_t *q, const vlm_step_host_t *host, int tile, plan_t *p)
{
    int32_t  s, n, many;

    memset(p, 0, sizeof(plan_t));
    many = 0;

    for (s = 0; s < host->nseqs; s++) {
        n = host->row_start[s + 1] - host->row_start[s];

        if (!is_few(q, host, s)) {
            many = 1;

        } else if (n > 0 && host->context[s] + n > p->keys) {
            p->keys = host->context[s] + n;
        }
    }

    if (!many) {
        p->nrows = host->nrows;
        return 0;
    }

    return plan_lists(q, host, tile, p);
}


/* tiles and rows in a list, if tiles are as small as any are */

size_t
vlm_cuda_attention_stage(const vlm_limits_t *most)
{
    int64_t  rows = most->rows;

    return (size_t) (rows / ATTEND_TILE_LARGE + most->seqs + 1)
           * sizeof(attend_tile_t) + (size_t) rows * sizeof(int32_t);
}


static int
plan_lists(vlm_queue_t *q, const vlm_step_host_t *host, int tile, plan_t *p)
{
    size_t          most;
    int32_t         s, first, n, row;
    attend_tile_t  *t;

    most = (size_t) (host->nrows / tile + host->nseqs + 1);

    p->list = (char *) malloc(most * sizeof(attend_tile_t)
                              + (size_t) host->nrows * sizeof(int32_t));
    if (p->list == NULL) {
        vlm_cuda_fail(q, "attention: no memory for a list of %d rows",
                      host->nrows);
        return -1;
    }

    p->tiles = (attend_tile_t *) p->list;
    p->rows = (int32_t *) (p->tiles + most);

    for (s = 0; s < host->nseqs; s++) {
        first = host->row_start[s];
        n = host->row_start[s + 1] - first;

        for (row = 0; row < n && is_few(q, host, s); row++) {
            p->rows[p->nrows++] = first + row;
        }

        for ( ; row < n; row += tile) {
            t = &p->tiles[p->ntiles++];
            t->row = first + row;
            t->rows = n - row < tile ? n - row : tile;
            t->keys = host->context[s] + row + t->rows;
            t->from = s;
        }
    }

    /* one piece for the device */
    memmove(p->tiles + p->ntiles, p->rows, p->nrows * sizeof(int32_t));

    return 0;
}


static void
plan_run(vlm_queue_t *q, const vlm_attention_t *a, const plan_t *p)
{
    const int32_t        *rows;
    const attend_tile_t  *tiles;

    rows = NULL;
    tiles = NULL;

    if (p->ntiles != 0) {
        tiles = (const attend_tile_t *)
                vlm_cuda_stage(q, p->list, p->ntiles * sizeof(attend_tile_t)
                                           + p->nrows * sizeof(int32_t),
                               "attention");
        if (tiles == NULL) {
            return;
        }

        rows = (const int32_t *) (tiles + p->ntiles);
        vlm_cuda_attention_prefill(q, a, tiles, p->ntiles);
    }

    if (p->nrows != 0 && !q->failed) {
        vlm_cuda_attention_decode(q, a, rows, p->nrows, p->keys);
    }
}


VLM_CUDA_END
