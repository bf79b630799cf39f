
/*
 * What a decoder, an encoder and its jobs allocate, to the byte: the tensors
 * here are those of decoder.c and encode.c.
 */

#include <math.h>
#include <string.h>

#include "engine/model/padding.h"
#include "engine/model/vision.h"


static size_t room_tensor(int64_t rows, int64_t cols, vlm_dtype_t dtype);
static int32_t room_patches(const vlm_model_t *m, uint64_t pixels);
static int64_t room_encoder_width(const vlm_config_t *c);
static void room_limits(const vlm_model_t *m, const vlm_ops_t *ops,
    const vlm_room_conf_t *conf, int32_t patches, vlm_room_t *room);
static uint64_t room_decoder(const vlm_model_t *m, vlm_device_t *dev,
    const vlm_ops_t *ops, const vlm_room_conf_t *conf);
static uint64_t room_encoder(const vlm_model_t *m, const vlm_ops_t *ops);
static uint64_t room_job(const vlm_model_t *m, vlm_device_t *dev,
    const vlm_ops_t *ops, int32_t patches, int32_t pictures);
static uint64_t room_lent(const vlm_model_t *m, const vlm_ops_t *ops,
    int32_t patches, int32_t pictures);


#define most(a, b)  ((a) > (b) ? (a) : (b))


void
vlm_model_room(const vlm_model_t *m, vlm_device_t *dev, const vlm_ops_t *ops,
    const vlm_room_conf_t *conf, vlm_room_t *room)
{
    int32_t   patches;
    uint64_t  small, batch;

    memset(room, 0, sizeof(*room));

    patches = room_patches(m, conf->high ? m->high_pixels : m->auto_pixels);
    room_limits(m, ops, conf, patches, room);

    room->decoder = room_decoder(m, dev, ops, conf)
                    + ops->queue_bytes(dev, &room->decoder_limits);
    room->encoder = room_encoder(m, ops)
                    + ops->queue_bytes(dev, &room->encoder_limits);

    batch = room_job(m, dev, ops, conf->batch_patches, conf->batch_pictures);
    room->first_job = most(room_job(m, dev, ops, patches, 1), batch);

    small = room_job(m, dev, ops, patches / conf->smaller, 1);
    room->second_job = most(small, batch);

    /* a job's host memory: of one that is made while another is at work */

    batch = room_lent(m, ops, conf->batch_patches, conf->batch_pictures);
    room->lent = 2 * most(room_lent(m, ops, patches, 1), batch);

    /* one that is made, and what it is made from */

    room->embedding = 2 * room_tensor(patches / (m->config.merge
                                                 * m->config.merge),
                                      m->config.hidden, VLM_F32);
    room->kv_parts = (uint64_t) m->config.layers * VLM_RESERVE_ALIGN;
}


/* a tensor as it is allocated */

static size_t
room_tensor(int64_t rows, int64_t cols, vlm_dtype_t dtype)
{
    return vlm_reserve_bytes(vlm_mul(vlm_mul((size_t) rows, (size_t) cols),
                                     vlm_dtype_size(dtype)));
}


static void
room_limits(const vlm_model_t *m, const vlm_ops_t *ops,
    const vlm_room_conf_t *conf, int32_t patches, vlm_room_t *room)
{
    int64_t              adjusts;
    vlm_limits_t        *l;
    const vlm_config_t  *c;

    c = &m->config;

    /* any token of a context may be adjusted, and those of logit_bias */

    adjusts = (int64_t) conf->context + conf->biases;

    l = &room->decoder_limits;
    l->rows = conf->rows;
    l->seqs = conf->seqs;
    l->blocks = (conf->context + conf->block_size - 1) / conf->block_size;

    if (ops->graph_begin != NULL) {
        l->blocks = vlm_padding_blocks(l->blocks);
    }

    l->block_size = conf->block_size;
    l->heads = c->heads;
    l->head_dim = c->head_dim;
    l->pairs = m->text_rope.npairs;
    l->vocab = c->vocab;
    l->adjusts = adjusts < c->vocab ? (int32_t) adjusts : c->vocab;
    l->outputs = most(2 * (int64_t) c->intermediate,
                      (int64_t) (c->heads + 2 * c->kv_heads) * c->head_dim);
    l->outputs = most(l->outputs, c->hidden);
    l->quant = m->info.quant;

    l = &room->encoder_limits;
    l->rows = vlm_slice_rows(ops);
    l->seqs = conf->batch_pictures;
    l->patches = patches;
    l->outputs = most(c->v_intermediate, (int64_t) c->v_width * c->merge
                                         * c->merge);
    l->outputs = most(l->outputs, 3 * (int64_t) c->v_width);
    l->outputs = most(l->outputs, vlm_patch_values(c));
    l->quant = m->info.vision_quant;
}


static uint64_t
room_decoder(const vlm_model_t *m, vlm_device_t *dev, const vlm_ops_t *ops,
    const vlm_room_conf_t *conf)
{
    int64_t              q;
    uint64_t             spare;
    const vlm_config_t  *c;

    c = &m->config;
    q = (int64_t) c->heads * c->head_dim;

    /* a block of its own */

    spare = ops->graph_begin != NULL
            ? vlm_decoder_block_bytes(m, dev, ops, conf->block_size) : 0;

    return spare + room_tensor(conf->rows, c->hidden, ops->act_dtype)
           + room_tensor(conf->rows, most(c->hidden, q), ops->act_dtype)
           + room_tensor(conf->rows, q + 2 * (int64_t) c->kv_heads
                                         * c->head_dim, ops->act_dtype)
           + room_tensor(conf->rows, c->intermediate, ops->act_dtype)
           + room_tensor(conf->seqs, c->hidden, ops->act_dtype)
           + room_tensor(conf->seqs, c->vocab, VLM_F32);
}


static uint64_t
room_encoder(const vlm_model_t *m, const vlm_ops_t *ops)
{
    return room_tensor(vlm_slice_rows(ops), m->config.v_width, ops->act_dtype)
           + room_tensor(vlm_slice_rows(ops), room_encoder_width(&m->config),
                         ops->act_dtype);
}


static int64_t
room_encoder_width(const vlm_config_t *c)
{
    int64_t  width;

    width = most(vlm_patch_values(c), c->v_intermediate);

    return most(width, c->v_width);
}


static uint64_t
room_job(const vlm_model_t *m, vlm_device_t *dev, const vlm_ops_t *ops,
    int32_t patches, int32_t pictures)
{
    int32_t              start[2];
    uint64_t             rgb;
    vlm_segments_t       seg;
    const vlm_config_t  *c;

    c = &m->config;

    start[0] = 0;
    start[1] = patches;

    seg.nsegments = 1;
    seg.start = start;
    seg.heads = c->v_heads;
    seg.head_dim = c->v_width / c->v_heads;

    rgb = (uint64_t) patches * (uint64_t) (c->patch * c->patch * 3)
          + (uint64_t) pictures * VLM_RESERVE_ALIGN;

    return room_tensor(patches, c->v_width, ops->act_dtype)
           + room_tensor(patches, 3 * (int64_t) c->v_width, ops->act_dtype)
           + room_tensor(patches, 2 * m->vision_rope.npairs, VLM_F32)
           + room_tensor(patches / (c->merge * c->merge), c->hidden,
                         ops->act_dtype)
           + vlm_reserve_bytes(ops->vision_kv_bytes(dev, &seg)) + rgb;
}


/* lists, and copies of pictures */

static uint64_t
room_lent(const vlm_model_t *m, const vlm_ops_t *ops, int32_t patches,
    int32_t pictures)
{
    uint64_t  size;

    size = (uint64_t) (pictures + 1 + 2 * (int64_t) patches)
           * sizeof(int32_t);

    if (ops->async) {
        size += (uint64_t) patches
                * (uint64_t) (m->config.patch * m->config.patch * 3);
    }

    return vlm_reserve_bytes(size);
}


/*
 * Patches of the largest picture.  Its area is at most max_pixels, but for
 * narrow ones, whose short side is at least one step of the grid, and for
 * those that are made larger, each side by less than such a step.
 */

static int32_t
room_patches(const vlm_model_t *m, uint64_t pixels)
{
    double               side, area, max, min, ratio;
    const vlm_config_t  *c;

    c = &m->config;

    side = (double) c->patch * c->merge;
    ratio = m->family->max_ratio;
    max = (double) pixels;
    area = floor(max / (side * side)) * side * side;

    if (max < side * side * ratio) {
        area = most(area, side * (sqrt(max * ratio) + side));
    }

    min = (double) c->min_pixels < max ? (double) c->min_pixels : max;
    min += side * sqrt(min) * (sqrt(ratio) + 1 / sqrt(ratio)) + side * side;

    area = most(area, min) / ((double) c->patch * c->patch);

    return area < INT32_MAX ? (int32_t) area : INT32_MAX;
}
