
/* Steps of few sizes, see padding.h. */

#include <stdlib.h>
#include <string.h>

#include "engine/model/padding.h"


/* blocks of a sequence, at least */
#define LEAST_BLOCKS  8


static int padding_blocks(vlm_padding_t *p, const vlm_step_host_t *from,
    int32_t block_size, const vlm_step_host_t *to, vlm_error_t *err);


int
vlm_padding_init(vlm_padding_t *p, int32_t most, int32_t naxes, int32_t spare,
    vlm_error_t *err)
{
    int32_t  i;

    p->most = most;
    p->naxes = naxes;
    p->spare = spare;

    p->row_start = calloc((size_t) most + 1, sizeof(int32_t));
    p->context = calloc((size_t) most, sizeof(int32_t));
    p->ids = calloc((size_t) most, sizeof(int32_t));
    p->positions = calloc((size_t) most * (size_t) naxes, sizeof(int32_t));

    if (p->row_start == NULL || p->context == NULL || p->ids == NULL
        || p->positions == NULL)
    {
        return vlm_fail(err, 500, NULL, "no memory for steps of %d rows",
                        most);
    }

    for (i = 0; i <= most; i++) {
        p->row_start[i] = i;
    }

    return VLM_OK;
}


void
vlm_padding_free(vlm_padding_t *p)
{
    free(p->row_start);
    free(p->context);
    free(p->ids);
    free(p->positions);
    free(p->blocks);
}


int
vlm_padding_fits(const vlm_padding_t *p, const vlm_decode_batch_t *batch)
{
    int32_t  n;

    n = batch->step.nrows;

    return n <= p->most && batch->step.nseqs == n && batch->nout == n
           && batch->ninject == 0;
}


/* 1, 2, 4, 8, then 12, 16, 24, 32, 48 ... */

static int32_t
padded(int32_t n)
{
    int32_t  size;

    size = 1;

    while (size < n) {
        size *= 2;
    }

    return size >= 16 && n <= size / 4 * 3 ? size / 4 * 3 : size;
}


int32_t
vlm_padding_blocks(int32_t need)
{
    return padded(need > LEAST_BLOCKS ? need : LEAST_BLOCKS);
}


/* of the longest sequence */

static int32_t
padded_blocks(const vlm_step_host_t *step, int32_t block_size)
{
    int32_t  s, need;

    need = 0;

    for (s = 0; s < step->nseqs; s++) {
        if (step->context[s] / block_size + 1 > need) {
            need = step->context[s] / block_size + 1;
        }
    }

    return vlm_padding_blocks(need);
}


int
vlm_padding_fill(vlm_padding_t *p, const vlm_decode_batch_t *batch,
    int32_t block_size, vlm_decode_batch_t *to, vlm_error_t *err)
{
    int32_t                 axis, rows, n;
    const vlm_step_host_t  *from;

    from = &batch->step;
    n = from->nrows;
    rows = padded(n) < p->most ? padded(n) : p->most;

    *to = *batch;

    to->step.nrows = rows;
    to->step.nseqs = rows;
    to->step.max_blocks = padded_blocks(from, block_size);
    to->nout = rows;

    if (padding_blocks(p, from, block_size, &to->step, err) == VLM_ERROR) {
        return VLM_ERROR;
    }

    memset(p->context, 0, (size_t) rows * sizeof(int32_t));
    memset(p->ids, 0, (size_t) rows * sizeof(int32_t));
    memset(p->positions, 0, (size_t) (rows * p->naxes) * sizeof(int32_t));

    memcpy(p->context, from->context, (size_t) n * sizeof(int32_t));
    memcpy(p->ids, from->ids, (size_t) n * sizeof(int32_t));

    for (axis = 0; axis < p->naxes; axis++) {
        memcpy(p->positions + axis * rows, from->positions + axis * n,
               (size_t) n * sizeof(int32_t));
    }

    to->step.row_start = p->row_start;
    to->step.context = p->context;
    to->step.blocks = p->blocks;
    to->step.ids = p->ids;
    to->step.positions = p->positions;

    return VLM_OK;
}


static int
padding_blocks(vlm_padding_t *p, const vlm_step_host_t *from,
    int32_t block_size, const vlm_step_host_t *to, vlm_error_t *err)
{
    size_t    size, width, i;
    int32_t   s, *blocks;

    width = (size_t) to->max_blocks;
    size = (size_t) to->nseqs * width;

    if (size > p->size_blocks) {
        blocks = realloc(p->blocks, size * sizeof(int32_t));
        if (blocks == NULL) {
            return vlm_fail(err, 500, NULL, "no memory for %d blocks of each "
                            "of %d sequences", to->max_blocks, to->nseqs);
        }

        p->blocks = blocks;
        p->size_blocks = size;
    }

    for (i = 0; i < size; i++) {
        p->blocks[i] = p->spare;
    }

    for (s = 0; s < from->nseqs; s++) {
        memcpy(p->blocks + (size_t) s * width,
               from->blocks + (size_t) s * (size_t) from->max_blocks,
               (size_t) (from->context[s] / block_size + 1)
               * sizeof(int32_t));
    }

    return VLM_OK;
}
