
#include "engine/model/vision.h"


static double stage_row_cost(const vlm_config_t *c, vlm_stage_t stage);
static void stage_patch(vlm_encode_job_t *job, int64_t row, int64_t n);
static void stage_qkv(vlm_encode_job_t *job, int64_t row, int64_t n);
static void stage_attn(vlm_encode_job_t *job, int64_t row, int64_t n);
static void stage_mlp(vlm_encode_job_t *job, int64_t row, int64_t n);
static void stage_merge(vlm_encode_job_t *job, int64_t row, int64_t n);
static void stage_norm(vlm_encode_job_t *job, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const vlm_norm_t *norm);


/* products of one row, attention itself left out */

static double
stage_row_cost(const vlm_config_t *c, vlm_stage_t stage)
{
    double  d, joined;

    d = c->v_width;

    switch (stage) {

    case VLM_STAGE_PATCH:
        return d * (double) vlm_patch_values(c);

    case VLM_STAGE_QKV:
        return 3 * d * d;

    case VLM_STAGE_ATTN:
        return d * d;

    case VLM_STAGE_MLP:
        return 2 * d * c->v_intermediate;

    default:
        joined = d * c->merge * c->merge;
        return d * (joined + c->hidden);
    }
}


double
vlm_stage_cost(const vlm_encode_job_t *job, vlm_stage_t stage, int64_t row,
    int64_t n)
{
    size_t               i;
    double               cost;
    int64_t              from, to;
    const vlm_config_t  *c;

    c = &job->encoder->model->config;
    cost = stage_row_cost(c, stage) * (double) n;

    if (stage != VLM_STAGE_ATTN) {
        return cost;
    }

    for (i = 0; i < job->n; i++) {
        from = row > job->start[i] ? row : job->start[i];
        to = row + n < job->start[i + 1] ? row + n : job->start[i + 1];

        if (from < to) {
            cost += 2.0 * c->v_width * (double) (to - from)
                    * (double) (job->start[i + 1] - job->start[i]);
        }
    }

    return cost;
}


double
vlm_vision_cost(const vlm_config_t *c, int64_t npatches)
{
    double  rows, layer;

    rows = (double) npatches;

    layer = stage_row_cost(c, VLM_STAGE_QKV)
            + stage_row_cost(c, VLM_STAGE_ATTN)
            + stage_row_cost(c, VLM_STAGE_MLP) + 2 * rows * c->v_width;

    return rows * (stage_row_cost(c, VLM_STAGE_PATCH) + c->v_layers * layer
                   + stage_row_cost(c, VLM_STAGE_MERGE));
}


void
vlm_stage_run(vlm_encode_job_t *job, int64_t row, int64_t n)
{
    switch (job->stage) {

    case VLM_STAGE_PATCH:
        stage_patch(job, row, n);
        break;

    case VLM_STAGE_QKV:
        stage_qkv(job, row, n);
        break;

    case VLM_STAGE_ATTN:
        stage_attn(job, row, n);
        break;

    case VLM_STAGE_MLP:
        stage_mlp(job, row, n);
        break;

    default:
        stage_merge(job, row, n);
        break;
    }
}


static void
stage_patch(vlm_encode_job_t *job, int64_t row, int64_t n)
{
    size_t                 p;
    vlm_tensor_t           x, patches;
    const vlm_model_t     *m;
    vlm_patch_geometry_t   geo;

    m = job->encoder->model;

    for (p = 0; row >= job->start[p + 1]; p++) { /* void */ }

    vlm_model_geometry(m, job->plans[p].width, job->plans[p].height, &geo);

    patches = vlm_tensor_view(&job->encoder->wide, n,
                              vlm_patch_values(&m->config));
    x = vlm_rows(&job->x, row, n);

    m->ops->patchify(job->encoder->queue, &patches, job->rgb[p], &geo,
                     row - job->start[p]);
    m->ops->linear(job->encoder->queue, &x, &patches, &m->weights.patch,
                   VLM_ACT_NONE, NULL);
}


static void
stage_qkv(vlm_encode_job_t *job, int64_t row, int64_t n)
{
    vlm_tensor_t        x, h, qkv, table;
    const vlm_model_t  *m;
    const vlm_layer_t  *layer;

    m = job->encoder->model;
    layer = &m->vision[job->layer];

    x = vlm_rows(&job->x, row, n);
    h = vlm_rows(&job->encoder->rows, 0, n);
    qkv = vlm_rows(&job->qkv, row, n);
    table = vlm_rows(&job->table, row, n);

    stage_norm(job, &h, &x, &layer->norm1);
    m->ops->linear(job->encoder->queue, &qkv, &h, &layer->qkv, VLM_ACT_NONE,
                   NULL);
    m->ops->vision_rope(job->encoder->queue, &job->segments, &qkv, &table,
                        row, job->kv);
}


static void
stage_attn(vlm_encode_job_t *job, int64_t row, int64_t n)
{
    vlm_tensor_t        x, h, qkv;
    const vlm_model_t  *m;

    m = job->encoder->model;

    x = vlm_rows(&job->x, row, n);
    h = vlm_rows(&job->encoder->rows, 0, n);
    qkv = vlm_rows(&job->qkv, row, n);

    m->ops->vision_attention(job->encoder->queue, &job->segments, &h, &qkv,
                             row, job->kv);
    m->ops->linear(job->encoder->queue, &x, &h, &m->vision[job->layer].out,
                   VLM_ACT_NONE, &x);
}


static void
stage_mlp(vlm_encode_job_t *job, int64_t row, int64_t n)
{
    vlm_tensor_t        x, h, wide;
    const vlm_model_t  *m;
    const vlm_layer_t  *layer;

    m = job->encoder->model;
    layer = &m->vision[job->layer];

    x = vlm_rows(&job->x, row, n);
    h = vlm_rows(&job->encoder->rows, 0, n);
    wide = vlm_tensor_view(&job->encoder->wide, n, m->config.v_intermediate);

    stage_norm(job, &h, &x, &layer->norm2);
    m->ops->linear(job->encoder->queue, &wide, &h, &layer->up,
                   m->config.v_act, NULL);
    m->ops->linear(job->encoder->queue, &x, &wide, &layer->down,
                   VLM_ACT_NONE, &x);
}


/* patches of a block are neighbours: together they are one row */

static void
stage_merge(vlm_encode_job_t *job, int64_t row, int64_t n)
{
    int64_t              cells, width;
    vlm_tensor_t         x, h, joined, wide, y;
    const vlm_model_t   *m;

    m = job->encoder->model;
    cells = (int64_t) m->config.merge * m->config.merge;
    width = m->config.v_width * cells;

    x = vlm_rows(&job->x, row, n);
    h = vlm_rows(&job->encoder->rows, 0, n);
    joined = vlm_tensor_view(&h, n / cells, width);
    wide = vlm_tensor_view(&job->encoder->wide, n / cells, width);
    y = vlm_rows(&job->result, row / cells, n / cells);

    m->ops->norm(job->encoder->queue, &h, &x, m->weights.merge_norm.gain,
                 m->weights.merge_norm.bias, m->family->merge_eps,
                 m->family->merge_norm);
    m->ops->linear(job->encoder->queue, &wide, &joined, &m->weights.merge1,
                   m->family->merge_act, NULL);
    m->ops->linear(job->encoder->queue, &y, &wide, &m->weights.merge2,
                   VLM_ACT_NONE, NULL);
}


static void
stage_norm(vlm_encode_job_t *job, const vlm_tensor_t *y,
    const vlm_tensor_t *x, const vlm_norm_t *norm)
{
    const vlm_model_t  *m;

    m = job->encoder->model;

    m->ops->norm(job->encoder->queue, y, x, norm->gain, norm->bias,
                 m->family->v_eps, m->family->v_norm);
}
