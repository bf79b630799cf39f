
/*
 * The plan of memory against what is used: the largest step and the largest
 * pictures in a piece that is as large as planned, on the shim.
 */

#include "engine/model/model.h"
#include "t/unit/cuda_rig.h"


#define ROWS        48
#define SEQS        3
#define CONTEXT     560
#define BLOCK       16
#define PICTURES    16
#define SMALLER     4
#define BLOCKS      (SEQS * CONTEXT / BLOCK)

/* 40 patches of 14 x 14; a narrow picture may have more */
#define PIXELS      (40 * 14 * 14)


typedef struct {
    const char         *name;
    int                 deterministic;
    vlm_quant_t         quant;
    vlm_quant_t         vision_quant;
} kind_t;

typedef struct {
    rig_t               rig;
    vlm_model_t        *model;
    vlm_room_t          room;
    vlm_queue_t        *vision;
    vlm_encoder_t      *encoder;
    vlm_decoder_t      *decoder;
    size_t              size;           /* as planned */
} run_t;


static void
fail(const vlm_error_t *err)
{
    rig_stop("model", err->message);
}


static vlm_reserve_t
reserved(const run_t *r)
{
    vlm_reserve_t  memory, host;

    r->rig.ops->reserved(r->rig.dev, &memory, &host);

    return memory;
}


static void
plan(run_t *r)
{
    vlm_room_conf_t  conf;

    memset(&conf, 0, sizeof(conf));
    conf.rows = ROWS;
    conf.seqs = SEQS;
    conf.context = CONTEXT;
    conf.block_size = BLOCK;
    conf.biases = 10;
    conf.batch_pictures = PICTURES;
    conf.batch_patches = 32;
    conf.smaller = SMALLER;
    conf.high = 1;

    vlm_model_room(r->model, r->rig.dev, r->rig.ops, &conf, &r->room);

    r->size = (size_t) (r->room.decoder + r->room.encoder
                        + r->room.first_job + r->room.second_job
                        + r->room.kv_parts)
              + BLOCKS * vlm_decoder_block_bytes(r->model, r->rig.dev,
                                                 r->rig.ops, BLOCK);
}


static void
run_open(run_t *r, const kind_t *kind)
{
    char                  text[256];
    vlm_error_t           err;
    vlm_cuda_options_t    device;
    vlm_model_options_t   opt;

    memset(r, 0, sizeof(*r));
    memset(&opt, 0, sizeof(opt));
    memset(&device, 0, sizeof(device));
    opt.max_pixels = PIXELS;
    opt.quant = kind->quant;
    opt.vision_quant = kind->vision_quant;
    device.deterministic = kind->deterministic;

    rig_open_as(&r->rig, RIG_EMU, &device);
    r->rig.ops->queue_destroy(r->rig.q);

    r->model = vlm_model_open(tap_path("models/demo"), &opt, &err);

    if (r->model == NULL
        || vlm_model_load(r->model, r->rig.dev, r->rig.ops, NULL, NULL, &err)
           != VLM_OK)
    {
        fail(&err);
    }

    plan(r);

    if (r->rig.ops->reserve(r->rig.dev, r->size, (size_t) r->room.lent, text,
                            sizeof(text))
        != 0)
    {
        rig_stop("reserve", text);
    }

    r->rig.q = r->rig.ops->queue_create(r->rig.dev, 0);
    r->vision = r->rig.ops->queue_create(r->rig.dev, 1);

    if (r->rig.q == NULL || r->vision == NULL
        || r->rig.ops->queue_reserve(r->rig.q, &r->room.decoder_limits, text,
                                     sizeof(text))
           != 0
        || r->rig.ops->queue_reserve(r->vision, &r->room.encoder_limits,
                                     text, sizeof(text))
           != 0)
    {
        rig_stop("queues", text);
    }

    r->encoder = vlm_encoder_create(r->model, r->vision, &err);
    r->decoder = vlm_decoder_create(r->model, r->rig.q, BLOCKS, BLOCK, ROWS,
                                    SEQS, &err);

    if (r->encoder == NULL || r->decoder == NULL) {
        fail(&err);
    }
}


static void
run_close(run_t *r)
{
    vlm_decoder_free(r->decoder);
    vlm_encoder_free(r->encoder);
    r->rig.ops->queue_destroy(r->vision);
    vlm_model_free(r->model);
    rig_close(&r->rig);
}


/* memory that was given back can be had again when its work has run */

static void
finish(run_t *r)
{
    char  text[256];

    if (r->rig.ops->sync(r->vision, text, sizeof(text)) != 0) {
        rig_stop("sync", text);
    }
}


/* a picture of about so many patches, as it is planned */

static vlm_encode_job_t *
picture(run_t *r, uint32_t width, uint32_t height)
{
    vlm_error_t        err;
    vlm_image_t        image;
    vlm_image_plan_t   plan;
    vlm_encode_job_t  *job;

    if (vlm_model_plan(r->model, width, height, VLM_DETAIL_HIGH, &plan, &err)
        != VLM_OK)
    {
        fail(&err);
    }

    memset(&image, 0, sizeof(image));
    image.width = plan.width;
    image.height = plan.height;
    image.data = calloc(1, (size_t) plan.width * plan.height * 3);

    job = image.data != NULL
          ? vlm_encode_begin(r->encoder, &image, &plan, 1, &err) : NULL;

    if (job == NULL) {
        tap_diag("%u x %u: %s", plan.width, plan.height, err.message);
    }

    free(image.data);

    return job;
}


static int
encode(vlm_encode_job_t *job)
{
    int          rc;
    vlm_error_t  err;

    do {
        rc = vlm_encode_step(job, 1e12, &err);
    } while (rc == VLM_AGAIN);

    return rc == VLM_OK;
}


/* the end of the whole context, all sequences; every token is adjusted */

static int
step(run_t *r, int32_t rows)
{
    int                  k;
    char                 text[256];
    int32_t              s, i, vocab, start[SEQS + 1], context[SEQS],
                         blocks[BLOCKS], ids[ROWS], positions[3 * ROWS],
                         out[SEQS];
    vlm_error_t          err;
    vlm_adjust_t        *adjust;
    vlm_sample_t         params[SEQS];
    vlm_tensor_t         logits;
    vlm_sampled_t        sampled[SEQS];
    vlm_decode_batch_t   batch;

    vocab = vlm_model_info(r->model)->vocab;
    adjust = calloc((size_t) vocab, sizeof(*adjust));

    if (adjust == NULL) {
        rig_stop("adjusts", "no memory");
    }

    memset(&batch, 0, sizeof(batch));
    memset(params, 0, sizeof(params));
    memset(ids, 0, sizeof(ids));
    memset(positions, 0, sizeof(positions));

    for (i = 0; i < vocab; i++) {
        adjust[i].id = i;
        adjust[i].seen = 1;
    }

    for (s = 0; s < SEQS; s++) {
        start[s] = s * (rows / SEQS);
        context[s] = CONTEXT - rows / SEQS;
        out[s] = start[s];

        params[s].temperature = 0.7f;
        params[s].top_p = 0.9f;
        params[s].repetition = 1.1f;
        params[s].ntop = 5;
        params[s].adjust = adjust;
        params[s].nadjust = r->room.decoder_limits.adjusts;
    }

    start[SEQS] = rows;

    for (i = 0; i < BLOCKS; i++) {
        blocks[i] = i;
    }

    batch.step.nrows = rows;
    batch.step.nseqs = SEQS;
    batch.step.row_start = start;
    batch.step.context = context;
    batch.step.blocks = blocks;
    batch.step.max_blocks = BLOCKS / SEQS;
    batch.step.ids = ids;
    batch.step.positions = positions;
    batch.out_rows = out;
    batch.nout = SEQS;

    k = vlm_decoder_step(r->decoder, &batch, &logits, &err);

    if (k == VLM_OK) {
        r->rig.ops->sample(r->rig.q, &logits, params, sampled);
        k = r->rig.ops->sync(r->rig.q, text, sizeof(text));

        if (k != 0) {
            tap_diag("%s", text);
        }

    } else {
        tap_diag("%s", err.message);
    }

    free(adjust);

    return k == 0;
}


static void
test_kind(const kind_t *kind)
{
    int                i;
    run_t              r;
    uint64_t           allocations;
    vlm_error_t        err;
    vlm_image_t        image;
    vlm_reserve_t      is;
    vlm_image_plan_t   what;
    vlm_encode_job_t  *large, *small;

    run_open(&r, kind);
    allocations = vlm_emu_allocations();

    is = reserved(&r);
    tap_ok(is.used <= r.size - r.room.first_job - r.room.second_job,
           "%s: %zu bytes before any work", kind->name, is.used);

    tap_ok(step(&r, ROWS), "the largest step");

    for (i = 0; i < 3; i++) {
        tap_ok(step(&r, SEQS), "answers' last step");
    }

    large = picture(&r, 4000, 20);
    small = picture(&r, 84, 84);
    tap_ok(large != NULL && small != NULL, "two pictures at a time");
    tap_ok(small != NULL && encode(small), "the small one");
    tap_ok(large != NULL && encode(large), "the largest, a narrow one");
    tap_ok(step(&r, ROWS), "a step beside them");

    vlm_encode_free(large);
    vlm_encode_free(small);
    finish(&r);

    /* others of any size */

    for (i = 0; i < 2; i++) {
        large = i == 0 ? picture(&r, 1000, 1000) : picture(&r, 1, 100);
        tap_ok(large != NULL && encode(large), "%s",
               i == 0 ? "a square" : "a tiny one");
        vlm_encode_free(large);
        finish(&r);
    }

    is = reserved(&r);
    tap_ok(is.size <= r.size && is.peak <= is.size,
           "used at most %zu of %zu bytes", is.peak, is.size);
    tap_ok((double) is.peak > 0.9 * (double) r.size, "not many are left");
    tap_is((long long) (vlm_emu_allocations() - allocations), 0,
           "nothing else was allocated");

    /* one that the plan does not know of */

    memset(&what, 0, sizeof(what));
    what.width = what.height = 28 * 20;
    what.grid_w = what.grid_h = 2 * 20;
    what.ntokens = 400;

    memset(&image, 0, sizeof(image));
    image.width = image.height = 28 * 20;
    image.data = calloc(3, 28 * 20 * 28 * 20);

    large = vlm_encode_begin(r.encoder, &image, &what, 1, &err);
    tap_ok(large == NULL && err.status == 503, "what does not fit: %s",
           large == NULL ? err.message : "it does");
    tap_ok(large == NULL && strstr(err.message, " bytes are free, ") != NULL,
           "numbers are told");

    vlm_encode_free(large);
    free(image.data);
    run_close(&r);
}


int
main(void)
{
    size_t  i;

    static const kind_t  kinds[] = {
        { "plain", 0, VLM_QUANT_NONE, VLM_QUANT_NONE },
        { "quantised", 0, VLM_QUANT_INT8, VLM_QUANT_FP8 },
        { "deterministic", 1, VLM_QUANT_NONE, VLM_QUANT_INT8 }
    };

    for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        test_kind(&kinds[i]);
    }

    return tap_done();
}
