
/* operations that work row by row: copies, norms, positions, patches */

#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/rows.h"


/* elements that are worth a task of their own */
#define ROWS_GRAIN  16384


typedef struct rows_job_s  rows_job_t;

typedef void (*row_pt)(const rows_job_t *job, int64_t row);

struct rows_job_s {
    const vlm_cpu_rows_t        *kernels;
    row_pt                       fn;
    int64_t                      rows;
    int64_t                      chunk;         /* rows of a task */
    const vlm_tensor_t          *y;
    const vlm_tensor_t          *x;
    const int32_t               *to;            /* rows of y, or NULL */
    const int32_t               *from;          /* rows of x, or NULL */
    const float                 *gain;
    const float                 *bias;
    float                        eps;
    vlm_norm_kind_t              kind;
    const int32_t               *positions;
    const vlm_rope_t            *rope;
    const uint8_t               *rgb;
    const vlm_patch_geometry_t  *geo;
    int64_t                      patch0;
    float                        levels[3][256];
};


static void run_rows(vlm_queue_t *q, rows_job_t *job, row_pt fn, int64_t rows,
    int64_t cols);
static void rows_task(void *arg, int task, int worker);
static int is_float(vlm_queue_t *q, const vlm_tensor_t *t, const char *op);
static int is_f32(vlm_queue_t *q, const vlm_tensor_t *t, const char *op);
static void copy_row(const rows_job_t *job, int64_t row);
static void norm_row(const rows_job_t *job, int64_t row);
static void rope_row(const rows_job_t *job, int64_t row);
static void patch_row(const rows_job_t *job, int64_t row);


static void
run_rows(vlm_queue_t *q, rows_job_t *job, row_pt fn, int64_t rows,
    int64_t cols)
{
    int64_t  chunk, ntasks;

    if (rows <= 0) {
        return;
    }

    chunk = cols < ROWS_GRAIN ? ROWS_GRAIN / (cols > 0 ? cols : 1) : 1;

    /* the number of tasks is an int */
    if (rows / chunk >= INT32_MAX) {
        chunk = rows / INT32_MAX + 1;
    }

    ntasks = (rows + chunk - 1) / chunk;

    job->kernels = q->dev->rows;
    job->fn = fn;
    job->rows = rows;
    job->chunk = chunk;

    vlm_pool_run(q->dev->pool, (int) ntasks, rows_task, job);
}


static void
rows_task(void *arg, int task, int worker)
{
    int64_t      row, last;
    rows_job_t  *job = arg;

    row = task * job->chunk;
    last = job->rows - row > job->chunk ? row + job->chunk : job->rows;

    for ( ; row < last; row++) {
        job->fn(job, row);
    }
}


static int
is_float(vlm_queue_t *q, const vlm_tensor_t *t, const char *op)
{
    if (t->dtype == VLM_F32 || t->dtype == VLM_BF16 || t->dtype == VLM_F16) {
        return 1;
    }

    vlm_cpu_fail(q, "%s: tensor of type %d is not of a float type", op,
                 (int) t->dtype);

    return 0;
}


static int
is_f32(vlm_queue_t *q, const vlm_tensor_t *t, const char *op)
{
    if (t->dtype == VLM_F32) {
        return 1;
    }

    vlm_cpu_fail(q, "%s: tensor of type %d is not float32", op,
                 (int) t->dtype);

    return 0;
}


static char *
row_of(const vlm_tensor_t *t, int64_t row)
{
    return (char *) t->data
           + (size_t) (row * t->stride) * vlm_dtype_size(t->dtype);
}


static void
copy_row(const rows_job_t *job, int64_t row)
{
    int64_t  to, from;

    to = job->to != NULL ? job->to[row] : row;
    from = job->from != NULL ? job->from[row] : row;

    job->kernels->convert(row_of(job->y, to), job->y->dtype,
                          row_of(job->x, from), job->x->dtype, job->x->cols);
}


static void
copy(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const int32_t *to, const int32_t *from, int64_t n, const char *op)
{
    rows_job_t  job;

    if (!is_float(q, y, op) || !is_float(q, x, op)) {
        return;
    }

    job.y = y;
    job.x = x;
    job.to = to;
    job.from = from;

    run_rows(q, &job, copy_row, n, x->cols);
}


void
vlm_cpu_convert(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x)
{
    copy(q, y, x, NULL, NULL, x->rows, "convert");
}


void
vlm_cpu_scatter(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const int32_t *to, int32_t n)
{
    copy(q, y, x, to, NULL, n, "scatter");
}


void
vlm_cpu_gather(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const int32_t *from, int32_t n)
{
    copy(q, y, x, NULL, from, n, "gather");
}


static void
norm_row(const rows_job_t *job, int64_t row)
{
    job->kernels->norm((float *) row_of(job->y, row),
                       (float *) row_of(job->x, row), job->x->cols, job->gain,
                       job->bias, job->eps, job->kind);
}


void
vlm_cpu_norm(vlm_queue_t *q, const vlm_tensor_t *y, const vlm_tensor_t *x,
    const float *gain, const float *bias, float eps, vlm_norm_kind_t kind)
{
    rows_job_t  job;

    if (!is_f32(q, y, "norm") || !is_f32(q, x, "norm")) {
        return;
    }

    job.y = y;
    job.x = x;
    job.gain = gain;
    job.bias = bias;
    job.eps = eps;
    job.kind = kind;

    run_rows(q, &job, norm_row, x->rows, x->cols);
}


/*
 * The C library's functions, outside of the instruction sets' kernels, so
 * that all of them use the same table.
 */

void
vlm_cpu_rope_angles(float *to, const int32_t *positions, int64_t rows,
    int64_t row, const vlm_rope_t *rope)
{
    int    i;
    float  angle;

    for (i = 0; i < rope->npairs; i++) {
        angle = (float) positions[rope->axis[i] * rows + row]
                * rope->inv_freq[i];
        to[i] = cosf(angle);
        to[rope->npairs + i] = sinf(angle);
    }
}


static void
rope_row(const rows_job_t *job, int64_t row)
{
    vlm_cpu_rope_angles((float *) row_of(job->y, row), job->positions,
                        job->rows, row, job->rope);
}


void
vlm_cpu_rope_table(vlm_queue_t *q, const vlm_tensor_t *table,
    const int32_t *positions, const vlm_rope_t *rope)
{
    rows_job_t  job;

    if (!is_f32(q, table, "rope_table")) {
        return;
    }

    job.y = table;
    job.positions = positions;
    job.rope = rope;

    /* an angle costs about as much as 16 other elements */
    run_rows(q, &job, rope_row, table->rows, 16 * (int64_t) table->cols);
}


/*
 * Patches come in blocks of merge x merge, blocks row by row, and row by row
 * inside a block.
 */

static void
patch_row(const rows_job_t *job, int64_t row)
{
    int                          c, f, i, j;
    float                       *y;
    int64_t                      at, block, per_row, px, py;
    const float                 *level;
    const uint8_t               *line;
    const vlm_patch_geometry_t  *geo = job->geo;

    at = job->patch0 + row;
    block = at / (geo->merge * geo->merge);
    at = at % (geo->merge * geo->merge);
    per_row = geo->width / (geo->patch * geo->merge);

    py = (block / per_row * geo->merge + at / geo->merge) * geo->patch;
    px = (block % per_row * geo->merge + at % geo->merge) * geo->patch;

    y = (float *) row_of(job->y, row);

    for (c = 0; c < 3; c++) {
        level = job->levels[c];

        for (f = 0; f < geo->frames; f++) {

            for (i = 0; i < geo->patch; i++) {
                line = job->rgb + ((py + i) * geo->width + px) * 3 + c;

                for (j = 0; j < geo->patch; j++) {
                    *y++ = level[line[j * 3]];
                }
            }
        }
    }
}


void
vlm_cpu_patchify(vlm_queue_t *q, const vlm_tensor_t *y, const uint8_t *rgb,
    const vlm_patch_geometry_t *geo, int64_t patch0)
{
    int         c, i;
    float       value;
    rows_job_t  job;

    if (!is_f32(q, y, "patchify")) {
        return;
    }

    for (c = 0; c < 3; c++) {

        for (i = 0; i < 256; i++) {
            value = (float) (i / 255.0);
            job.levels[c][i] = (value - geo->mean[c]) / geo->std[c];
        }
    }

    job.y = y;
    job.rgb = rgb;
    job.geo = geo;
    job.patch0 = patch0;

    run_rows(q, &job, patch_row, y->rows, y->cols);
}
