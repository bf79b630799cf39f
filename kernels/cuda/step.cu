
/*
 * A step's tables: one piece of pinned memory, one copy, and a kernel for the
 * cosines and sines.
 */

#include "kernels/cuda/kernel.cuh"


#define TABLE_THREADS  128


VLM_CUDA_BEGIN


typedef struct {
    vlm_cuda_step_t     view;           /* pointers into device */
    int32_t            *pinned;
    char               *device;
    size_t              size;           /* of both */
    cudaEvent_t         copied;
} step_data_t;


static size_t step_lists(size_t rows, size_t seqs, size_t blocks,
    size_t naxes);
static step_data_t *step_open(vlm_queue_t *q, vlm_step_t *step);
static size_t step_fill(step_data_t *d, const vlm_step_host_t *host,
    int32_t naxes, const int32_t **positions);
static int step_room(vlm_queue_t *q, step_data_t *d, size_t size);
static int step_grow(vlm_queue_t *q, step_data_t *d, size_t size);
static int32_t *step_add(step_data_t *d, size_t *used, const int32_t *from,
    size_t n, const int32_t **view);
static void step_close(vlm_device_t *dev, step_data_t *d);


/* "positions" is [naxes][rows] on the device */

__global__ void __launch_bounds__(TABLE_THREADS)
table_kernel(float *table, int64_t stride, const int32_t *positions,
    int32_t rows, vlm_rope_t rope)
{
    float    angle, *to;
    int32_t  i;

    to = table + (int64_t) blockIdx.x * stride;

    for (i = (int32_t) threadIdx.x; i < rope.npairs; i += TABLE_THREADS) {
        angle = (float) positions[(int64_t) rope.axis[i] * rows + blockIdx.x]
                * rope.inv_freq[i];
        to[i] = cosf(angle);
        to[rope.npairs + i] = sinf(angle);
    }
}


void
vlm_cuda_table(vlm_queue_t *q, float *table, int64_t stride,
    const int32_t *positions, int32_t rows, const vlm_rope_t *rope,
    const char *op)
{
    VLM_LAUNCH(q, op, table_kernel, (unsigned) rows, TABLE_THREADS, 0, table,
               stride, positions, rows, *rope);
}


const vlm_cuda_step_t *
vlm_cuda_step(const vlm_step_t *step)
{
    return &((const step_data_t *) step->data)->view;
}


int
vlm_cuda_step_upload(vlm_queue_t *q, vlm_step_t *step,
    const vlm_step_host_t *host, const vlm_rope_t *rope)
{
    size_t            rows, seqs, table, used;
    step_data_t      *d;
    const int32_t    *positions;

    if (vlm_cuda_begin(q) != 0 || vlm_cuda_ungraphed(q, "step_upload") != 0)
    {
        return -1;
    }

    d = step_open(q, step);
    if (d == NULL) {
        return -1;
    }

    rows = (size_t) host->nrows;
    seqs = (size_t) host->nseqs;

    table = step_lists(rows, seqs, (size_t) host->max_blocks,
                       (size_t) rope->naxes);

    /* the last step's copy has left the pinned memory */

    if (vlm_cuda_check(q, cudaEventSynchronize(d->copied), "step_upload") != 0
        || step_room(q, d, table + rows * 2 * (size_t) rope->npairs
                                   * sizeof(float))
           != 0)
    {
        return -1;
    }

    step->host = *host;
    step->size = d->size;

    d->view.npairs = rope->npairs;
    d->view.table = (const float *) (d->device + table);

    used = step_fill(d, host, rope->naxes, &positions);

    if (vlm_cuda_check(q, cudaMemcpyAsync(d->device, d->pinned,
                                          used * sizeof(int32_t),
                                          cudaMemcpyHostToDevice, q->stream),
                       "step_upload")
        != 0
        || vlm_cuda_check(q, cudaEventRecord(d->copied, q->stream),
                          "step_upload")
           != 0)
    {
        return -1;
    }

    vlm_cuda_table(q, (float *) d->view.table, 2 * rope->npairs, positions,
                   host->nrows, rope, "step_upload");

    return q->failed ? -1 : 0;
}


/* bytes of all lists, each up to a multiple of 64; the angles follow */

static size_t
step_lists(size_t rows, size_t seqs, size_t blocks, size_t naxes)
{
    size_t  n;

    n = (2 * seqs + 1 + seqs * blocks + rows * (3 + naxes) + 8 * 16)
        * sizeof(int32_t);

    return (n + 255) / 256 * 256;
}


size_t
vlm_cuda_step_bytes(const vlm_limits_t *most)
{
    if (most->pairs == 0) {
        return 0;
    }

    return step_lists((size_t) most->rows, (size_t) most->seqs,
                      (size_t) most->blocks, 3)
           + (size_t) most->rows * 2 * (size_t) most->pairs * sizeof(float);
}


int
vlm_cuda_step_reserve(vlm_queue_t *q, vlm_step_t *step, size_t size)
{
    step_data_t  *d;

    d = step_open(q, step);

    return d != NULL && step_grow(q, d, size) == 0 ? 0 : -1;
}


/* the lists in pinned memory, and where they will be; returns their length */

static size_t
step_fill(step_data_t *d, const vlm_step_host_t *host, int32_t naxes,
    const int32_t **positions)
{
    size_t            used, rows, seqs;
    int32_t           s, r, *seq, *position;
    vlm_cuda_step_t  *v = &d->view;

    rows = (size_t) host->nrows;
    seqs = (size_t) host->nseqs;

    v->nrows = host->nrows;
    v->nseqs = host->nseqs;
    v->max_blocks = host->max_blocks;

    used = 0;
    step_add(d, &used, host->row_start, seqs + 1, &v->row_start);
    step_add(d, &used, host->context, seqs, &v->context);
    step_add(d, &used, host->blocks, seqs * (size_t) host->max_blocks,
             &v->blocks);
    step_add(d, &used, host->ids, rows, &v->ids);
    step_add(d, &used, host->positions, rows * (size_t) naxes, positions);
    seq = step_add(d, &used, NULL, rows, &v->seq);
    position = step_add(d, &used, NULL, rows, &v->position);

    for (s = 0; s < host->nseqs; s++) {

        for (r = host->row_start[s]; r < host->row_start[s + 1]; r++) {
            seq[r] = s;
            position[r] = host->context[s] + r - host->row_start[s];
        }
    }

    return used;
}


/* n numbers in the piece, each list at a multiple of 64 bytes */

static int32_t *
step_add(step_data_t *d, size_t *used, const int32_t *from, size_t n,
    const int32_t **view)
{
    int32_t  *to;

    to = d->pinned + *used;
    *view = (const int32_t *) d->device + *used;
    *used += (n + 15) / 16 * 16;

    if (from != NULL) {
        memcpy(to, from, n * sizeof(int32_t));
    }

    return to;
}


static step_data_t *
step_open(vlm_queue_t *q, vlm_step_t *step)
{
    step_data_t  *d;

    if (step->data == NULL && step != &q->spare) {
        step->data = q->spare.data;
        q->spare.data = NULL;
    }

    if (step->data != NULL) {
        return (step_data_t *) step->data;
    }

    d = (step_data_t *) calloc(1, sizeof(step_data_t));
    if (d == NULL) {
        vlm_cuda_fail(q, "step_upload: no memory for a step");
        return NULL;
    }

    if (vlm_cuda_check(q, cudaEventCreateWithFlags(&d->copied,
                                                   cudaEventDisableTiming),
                       "step_upload")
        != 0)
    {
        free(d);
        return NULL;
    }

    step->data = d;

    return d;
}


/* with some to spare: contexts and batches grow a little at a time */

static int
step_room(vlm_queue_t *q, step_data_t *d, size_t size)
{
    return size <= d->size ? 0 : step_grow(q, d, size + size / 2);
}


static int
step_grow(vlm_queue_t *q, step_data_t *d, size_t size)
{
    vlm_cuda_pinned_free(q->dev, d->pinned);
    vlm_cuda_free(q->dev, d->device);

    d->size = 0;
    d->pinned = (int32_t *) vlm_cuda_pinned_alloc(q->dev, size);
    d->device = (char *) vlm_cuda_alloc(q->dev, size);

    if (d->device == NULL || d->pinned == NULL) {
        vlm_cuda_fail(q, "step_upload: no memory for %zu bytes of tables",
                      size);
        return -1;
    }

    d->size = size;

    return 0;
}


void
vlm_cuda_step_free(vlm_device_t *dev, vlm_step_t *step)
{
    if (step->data != NULL) {
        step_close(dev, (step_data_t *) step->data);
    }

    step->data = NULL;
    step->size = 0;
}


static void
step_close(vlm_device_t *dev, step_data_t *d)
{
    vlm_cuda_free(dev, d->device);
    vlm_cuda_pinned_free(dev, d->pinned);

    (void) cudaEventDestroy(d->copied);
    free(d);
}


VLM_CUDA_END
