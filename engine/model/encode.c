
/*
 * Encoding jobs: memory of a job, and the cursor (stage, layer, row) that
 * lets a step end at any slice.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/model/vision.h"


static int encode_pictures(vlm_encode_job_t *job, const vlm_image_t *images,
    vlm_error_t *err);
static int encode_memory(vlm_encode_job_t *job, vlm_error_t *err);
static int encode_pixels(vlm_encode_job_t *job, vlm_error_t *err);
static int encode_upload(vlm_encode_job_t *job, const vlm_image_t *images,
    vlm_error_t *err);
static void encode_positions(const vlm_encode_job_t *job, int32_t *row,
    int32_t *col);
static double encode_total(const vlm_encode_job_t *job);
static int64_t encode_end(const vlm_encode_job_t *job);
static int64_t encode_unit(const vlm_encode_job_t *job);
static int64_t encode_slice(const vlm_encode_job_t *job, double budget);
static void encode_advance(vlm_encode_job_t *job);


vlm_encoder_t *
vlm_encoder_create(const vlm_model_t *m, vlm_queue_t *q, vlm_error_t *err)
{
    int64_t              widest;
    vlm_encoder_t       *e;
    const vlm_config_t  *c;

    c = &m->config;

    e = calloc(1, sizeof(*e));
    if (e == NULL) {
        vlm_fail(err, 500, NULL, "no memory for an encoder");
        return NULL;
    }

    e->model = m;
    e->queue = q;

    /* whole tiles and merged cells */

    e->least_rows = (int64_t) c->merge * c->merge * 4;
    e->most_rows = vlm_slice_rows(m->ops);

    if (m->ops->async) {
        e->least_rows = e->most_rows - e->most_rows % e->least_rows;
    }

    widest = vlm_patch_values(c);

    if (widest < c->v_intermediate) {
        widest = c->v_intermediate;
    }

    if (widest < c->v_width) {
        widest = c->v_width;
    }

    if (vlm_tensor_alloc(m, &e->rows, e->most_rows, c->v_width,
                         m->ops->act_dtype, "the encoder's rows", err)
        == VLM_ERROR
        || vlm_tensor_alloc(m, &e->wide, e->most_rows, widest,
                            m->ops->act_dtype, "the encoder's rows", err)
           == VLM_ERROR)
    {
        vlm_encoder_free(e);
        return NULL;
    }

    return e;
}


void
vlm_encoder_free(vlm_encoder_t *e)
{
    if (e == NULL) {
        return;
    }

    vlm_tensor_free(e->model, &e->rows);
    vlm_tensor_free(e->model, &e->wide);
    free(e);
}


int
vlm_encode_check(vlm_encoder_t *e, vlm_error_t *err)
{
    if (e->model->ops->async && !e->model->ops->failed(e->queue)) {
        return VLM_OK;
    }

    return vlm_model_sync(e->model, e->queue, err);
}


vlm_encode_job_t *
vlm_encode_begin(vlm_encoder_t *e, const vlm_image_t *images,
    const vlm_image_plan_t *plans, size_t n, vlm_error_t *err)
{
    vlm_encode_job_t  *job;

    job = calloc(1, sizeof(*job));
    if (job == NULL) {
        vlm_fail(err, 500, NULL, "no memory for encoding");
        return NULL;
    }

    job->encoder = e;
    job->n = n;

    /* one more than used, so that no size is 0 */

    job->plans = calloc(n + 1, sizeof(*plans));
    job->rgb = calloc(n + 1, sizeof(*job->rgb));

    if (job->plans == NULL || job->rgb == NULL) {
        vlm_fail(err, 500, NULL, "no memory to encode %zu pictures", n);
        vlm_encode_free(job);
        return NULL;
    }

    memcpy(job->plans, plans, n * sizeof(*plans));

    if (encode_pictures(job, images, err) == VLM_ERROR
        || encode_pixels(job, err) == VLM_ERROR
        || encode_memory(job, err) == VLM_ERROR
        || encode_upload(job, images, err) == VLM_ERROR)
    {
        vlm_encode_free(job);
        return NULL;
    }

    job->cost = encode_total(job);

    return job;
}


static int
encode_pictures(vlm_encode_job_t *job, const vlm_image_t *images,
    vlm_error_t *err)
{
    size_t                   i;
    int32_t                  side;
    int64_t                  rows;
    const vlm_config_t      *c;
    const vlm_image_plan_t  *plan;

    c = &job->encoder->model->config;
    side = c->patch * c->merge;
    rows = 0;

    for (i = 0; i < job->n; i++) {
        plan = &job->plans[i];

        if (images[i].width != plan->width || images[i].height != plan->height
            || plan->width == 0 || plan->height == 0
            || plan->width % (uint32_t) side != 0
            || plan->height % (uint32_t) side != 0
            || (int64_t) plan->grid_w * c->patch != plan->width
            || (int64_t) plan->grid_h * c->patch != plan->height)
        {
            return vlm_fail(err, 500, NULL, "picture of %u x %u pixels, its "
                            "plan says %u x %u", images[i].width,
                            images[i].height, plan->width, plan->height);
        }

        rows += (int64_t) plan->grid_w * plan->grid_h;

        if (rows > INT32_MAX) {
            return vlm_fail(err, 500, NULL, "more than %d patches to encode",
                            INT32_MAX);
        }

    }

    if (rows == 0) {
        return vlm_fail(err, 500, NULL, "no picture to encode");
    }

    job->nrows = rows;

    return VLM_OK;
}


/* memory for pictures, and what operations read of the host's */

static int
encode_pixels(vlm_encode_job_t *job, vlm_error_t *err)
{
    size_t                   i, size, pixels;
    const vlm_model_t       *m;
    const vlm_config_t      *c;
    const vlm_image_plan_t  *plan;

    m = job->encoder->model;
    c = &m->config;
    pixels = 0;

    for (i = 0; i < job->n; i++) {
        plan = &job->plans[i];
        size = vlm_mul(vlm_mul(plan->width, plan->height), 3);
        pixels += size;

        job->rgb[i] = size != 0 ? m->ops->alloc(m->dev, size) : NULL;

        if (job->rgb[i] == NULL) {
            return vlm_model_no_memory(m, "a picture", size, err);
        }
    }

    size = (job->n + 1 + 2 * (size_t) job->nrows) * sizeof(int32_t);

    job->lent = m->ops->host_alloc(m->dev,
                                   size + (m->ops->async ? pixels : 0));

    if (job->lent == NULL) {
        return vlm_fail(err, 500, NULL, "no memory for positions of %lld "
                        "patches", (long long) job->nrows);
    }

    job->start = job->lent;
    job->positions = job->start + job->n + 1;
    job->pixels = (uint8_t *) job->lent + size;

    job->start[0] = 0;

    for (i = 0; i < job->n; i++) {
        plan = &job->plans[i];
        job->start[i + 1] = job->start[i] + plan->grid_w * plan->grid_h;
    }

    job->segments.nsegments = (int32_t) job->n;
    job->segments.start = job->start;
    job->segments.heads = c->v_heads;
    job->segments.head_dim = c->v_width / c->v_heads;

    return VLM_OK;
}


static int
encode_memory(vlm_encode_job_t *job, vlm_error_t *err)
{
    size_t               size;
    vlm_dtype_t          dtype;
    const vlm_model_t   *m;
    const vlm_config_t  *c;

    m = job->encoder->model;
    c = &m->config;
    dtype = m->ops->act_dtype;

    if (vlm_tensor_alloc(m, &job->x, job->nrows, c->v_width, dtype,
                         "patches", err)
        == VLM_ERROR
        || vlm_tensor_alloc(m, &job->qkv, job->nrows,
                            3 * (int64_t) c->v_width, dtype,
                            "the tower's attention", err)
           == VLM_ERROR
        || vlm_tensor_alloc(m, &job->table, job->nrows,
                            2 * m->vision_rope.npairs, VLM_F32,
                            "angles of patches", err)
           == VLM_ERROR
        || vlm_tensor_alloc(m, &job->result,
                            job->nrows / (c->merge * c->merge), c->hidden,
                            dtype, "embeddings", err)
           == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    size = m->ops->vision_kv_bytes(m->dev, &job->segments);
    job->kv = m->ops->alloc(m->dev, size);

    if (job->kv == NULL) {
        return vlm_model_no_memory(m, "keys and values of patches", size,
                                   err);
    }

    return VLM_OK;
}


/* the images are the caller's: read at once, or copied to be read later */

static int
encode_upload(vlm_encode_job_t *job, const vlm_image_t *images,
    vlm_error_t *err)
{
    size_t              i, size;
    uint8_t            *pixels;
    const uint8_t      *from;
    const vlm_model_t  *m;

    m = job->encoder->model;
    pixels = job->pixels;

    for (i = 0; i < job->n; i++) {
        size = (size_t) images[i].width * images[i].height * 3;
        from = images[i].data;

        if (m->ops->async) {
            memcpy(pixels, from, size);
            from = pixels;
            pixels += size;
        }

        m->ops->upload(job->encoder->queue, job->rgb[i], from, size);
    }

    encode_positions(job, job->positions, job->positions + job->nrows);
    m->ops->rope_table(job->encoder->queue, &job->table, job->positions,
                       &m->vision_rope);

    return vlm_encode_check(job->encoder, err);
}


/* row and column of each patch, in the order that patchify() gives them */

static void
encode_positions(const vlm_encode_job_t *job, int32_t *row, int32_t *col)
{
    size_t                   i, k;
    int32_t                  r, c, y, x, merge;
    const vlm_image_plan_t  *plan;

    merge = job->encoder->model->config.merge;
    k = 0;

    for (i = 0; i < job->n; i++) {
        plan = &job->plans[i];

        for (r = 0; r < plan->grid_h; r += merge) {
            for (c = 0; c < plan->grid_w; c += merge) {
                for (y = r; y < r + merge; y++) {
                    for (x = c; x < c + merge; x++) {
                        row[k] = y;
                        col[k++] = x;
                    }
                }
            }
        }
    }
}


static double
encode_total(const vlm_encode_job_t *job)
{
    double  layer;

    layer = vlm_stage_cost(job, VLM_STAGE_QKV, 0, job->nrows)
            + vlm_stage_cost(job, VLM_STAGE_ATTN, 0, job->nrows)
            + vlm_stage_cost(job, VLM_STAGE_MLP, 0, job->nrows);

    return vlm_stage_cost(job, VLM_STAGE_PATCH, 0, job->nrows)
           + layer * job->encoder->model->config.v_layers
           + vlm_stage_cost(job, VLM_STAGE_MERGE, 0, job->nrows);
}


double
vlm_encode_cost(const vlm_encode_job_t *job)
{
    return job->cost;
}


double
vlm_encode_spent(const vlm_encode_job_t *job)
{
    return job->spent;
}


double
vlm_encode_least(const vlm_encode_job_t *job)
{
    if (job->stage == VLM_STAGE_DONE) {
        return 0;
    }

    return vlm_stage_cost(job, job->stage, job->row, encode_unit(job));
}


int
vlm_encode_step(vlm_encode_job_t *job, double budget, vlm_error_t *err)
{
    double   cost;
    int64_t  n;

    if (job->stage == VLM_STAGE_DONE) {
        return VLM_OK;
    }

    /* at least one slice, so that any budget makes progress */

    do {
        n = encode_slice(job, budget);
        cost = vlm_stage_cost(job, job->stage, job->row, n);

        vlm_stage_run(job, job->row, n);

        budget -= cost;
        job->spent += cost;
        job->row += n;

        if (job->row == job->nrows) {
            encode_advance(job);
        }

        /* another one if most of it fits */

    } while (job->stage != VLM_STAGE_DONE
             && budget >= vlm_encode_least(job) * VLM_ENCODE_FIT);

    if (vlm_encode_check(job->encoder, err) == VLM_ERROR) {
        return VLM_ERROR;
    }

    return job->stage == VLM_STAGE_DONE ? VLM_OK : VLM_AGAIN;
}


/* where slices of the stage end: the first stage's in each picture */

static int64_t
encode_end(const vlm_encode_job_t *job)
{
    size_t  p;

    if (job->stage != VLM_STAGE_PATCH) {
        return job->nrows;
    }

    for (p = 0; job->row >= job->start[p + 1]; p++) { /* void */ }

    return job->start[p + 1];
}


/* rows of the smallest slice */

static int64_t
encode_unit(const vlm_encode_job_t *job)
{
    int64_t  left, unit;

    unit = job->encoder->least_rows;
    left = encode_end(job) - job->row;

    return unit < left ? unit : left;
}


/* rows of the next slice: what the budget allows, in whole units */

static int64_t
encode_slice(const vlm_encode_job_t *job, double budget)
{
    double   rows;
    int64_t  n, left, most, unit;

    most = job->encoder->most_rows;
    unit = encode_unit(job);
    left = encode_end(job) - job->row;

    rows = budget * (double) unit / vlm_encode_least(job);
    n = unit;

    if (rows > (double) unit) {
        n = rows < (double) most ? (int64_t) rows : most;
        n -= n % unit;
    }

    return n < left ? n : left;
}


static void
encode_advance(vlm_encode_job_t *job)
{
    const vlm_model_t   *m;
    const vlm_family_t  *family;

    m = job->encoder->model;
    family = m->family;
    job->row = 0;

    switch (job->stage) {

    case VLM_STAGE_PATCH:
        vlm_model_show(m, family->trace_patch, 0, &job->x);
        job->stage = VLM_STAGE_QKV;
        break;

    case VLM_STAGE_QKV:
        job->stage = VLM_STAGE_ATTN;
        break;

    case VLM_STAGE_ATTN:
        job->stage = VLM_STAGE_MLP;
        break;

    case VLM_STAGE_MLP:
        vlm_model_show(m, family->trace_vision_layer, job->layer, &job->x);
        job->layer++;
        job->stage = job->layer < m->config.v_layers ? VLM_STAGE_QKV
                                                     : VLM_STAGE_MERGE;
        break;

    default:
        vlm_model_show(m, family->trace_merge, 0, &job->result);
        job->stage = VLM_STAGE_DONE;
        break;
    }
}


const vlm_tensor_t *
vlm_encode_result(const vlm_encode_job_t *job)
{
    return &job->result;
}


void
vlm_encode_free(vlm_encode_job_t *job)
{
    size_t              i;
    const vlm_model_t  *m;

    if (job == NULL) {
        return;
    }

    m = job->encoder->model;

    vlm_tensor_free(m, &job->x);
    vlm_tensor_free(m, &job->qkv);
    vlm_tensor_free(m, &job->table);
    vlm_tensor_free(m, &job->result);

    if (job->kv != NULL) {
        m->ops->free(m->dev, job->kv);
    }

    for (i = 0; job->rgb != NULL && i < job->n; i++) {
        if (job->rgb[i] != NULL) {
            m->ops->free(m->dev, job->rgb[i]);
        }
    }

    if (job->lent != NULL) {
        m->ops->host_free(m->dev, job->lent);
    }

    free(job->rgb);
    free(job->plans);
    free(job);
}
