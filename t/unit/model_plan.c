
/*
 * Sizes of pictures, detail, positions, what a model tells about itself, and
 * what a decoder refuses.
 */

#include <stdlib.h>
#include <string.h>

#include "t/unit/lib/golden.h"
#include "t/unit/lib/tap.h"


#define BASE        "t/data/golden/qwen2_vl/base/model"


static vlm_model_t *
open_base(uint64_t min, uint64_t max, int cpu)
{
    vlm_error_t           err;
    vlm_model_t          *m;
    vlm_model_options_t   opt;

    memset(&opt, 0, sizeof(opt));
    opt.min_pixels = min;
    opt.max_pixels = max;
    opt.cpu_pixels = cpu;

    m = vlm_model_open(tap_path(BASE), &opt, &err);

    if (m == NULL) {
        tap_ok(0, "%s", err.message);
    }

    return m;
}


/* the last two are what the reference's arithmetic gives, in Python */

static void
test_sizes(void)
{
    size_t              i;
    vlm_error_t         err;
    vlm_model_t        *m;
    vlm_image_plan_t    plan;
    static const struct {
        uint64_t        min, max;
        uint32_t        width, height, w, h;
    } s[] = {
        { 3136, 12845056, 1, 1, 56, 56 },
        { 3136, 12845056, 1, 200, 28, 812 },
        { 3136, 12845056, 200, 1, 812, 28 },
        { 3136, 12845056, 14, 42, 56, 112 },
        { 3136, 12845056, 70, 154, 56, 168 },
        { 3136, 12845056, 126, 98, 112, 112 },
        { 3136, 12845056, 448, 448, 448, 448 },
        { 3136, 12845056, 3999, 2001, 4004, 1988 },
        { 3136, 12845056, 65535, 65535, 3584, 3584 },
        { 3136, 12845056, 65500, 400, 45836, 280 },
        { 3136, 1003520, 3999, 2001, 1400, 700 },
        { 3136, 1003520, 4032, 3024, 1148, 840 },
        { 3136, 1003520, 65500, 400, 12796, 56 },
        { 3136, 262144, 4032, 3024, 588, 420 },
        { 3136, 262144, 65500, 400, 6524, 28 },
        { 3136, 262144, 333, 777, 308, 756 },
        { 3136, 78400, 1000, 5, 812, 28 },
        { 3136, 78400, 65500, 400, 3556, 28 },
        { 200704, 1003520, 1, 200, 56, 6356 },
        { 200704, 1003520, 70, 154, 308, 672 },
        { 200704, 1003520, 126, 98, 532, 420 }
    };

    for (i = 0; i < sizeof(s) / sizeof(s[0]); i++) {
        m = open_base(s[i].min, s[i].max, 0);

        if (m == NULL) {
            continue;
        }

        memset(&plan, 0, sizeof(plan));
        vlm_model_plan(m, s[i].width, s[i].height, VLM_DETAIL_AUTO, &plan,
                       &err);

        tap_ok(plan.width == s[i].w && plan.height == s[i].h
               && plan.grid_w == (int32_t) s[i].w / 14
               && plan.grid_h == (int32_t) s[i].h / 14
               && plan.ntokens == plan.grid_w * plan.grid_h / 4
               && plan.filter == VLM_FILTER_BICUBIC,
               "%u x %u, pixels %d to %d: %u x %u", s[i].width, s[i].height,
               (int) s[i].min, (int) s[i].max, plan.width, plan.height);

        vlm_model_free(m);
    }
}


static void
test_refused(void)
{
    vlm_error_t           err;
    vlm_model_t          *m;
    vlm_image_plan_t      plan;
    vlm_model_options_t   opt = { .min_pixels = 2000000 };

    m = open_base(0, 0, 0);

    if (m != NULL) {
        tap_is(vlm_model_plan(m, 201, 1, VLM_DETAIL_AUTO, &plan, &err),
               VLM_ERROR, "too narrow");
        tap_str(err.message, "a picture of 201 x 1 pixels is too narrow: the "
                "ratio of its sides may be 200", "too narrow: message");
        tap_is(err.status, 400, "too narrow: status");
        tap_str(err.code, "invalid_image", "too narrow: code");

        tap_is(vlm_model_plan(m, 0, 7, VLM_DETAIL_AUTO, &plan, &err),
               VLM_ERROR, "empty");
        tap_str(err.message, "a picture of 0 x 7 pixels is empty",
                "empty: message");
        vlm_model_free(m);
    }

    m = vlm_model_open(tap_path(BASE), &opt, &err);
    tap_ok(m == NULL, "limits that exclude each other");
    tap_str(err.message, "--min-pixels 2000000 is over --max-pixels 78400 "
            "(what is not given, is the checkpoint's)",
            "limits that exclude each other: message");
    vlm_model_free(m);
}


static uint32_t
side(const vlm_model_t *m, uint32_t detail)
{
    vlm_error_t         err;
    vlm_image_plan_t    plan;

    plan.width = 0;
    vlm_model_plan(m, 5000, 5000, detail, &plan, &err);

    return plan.width;
}


/* the side of a large square by detail: 280 is of 78,400 pixels */

static void
test_detail(void)
{
    vlm_model_t  *m;

    m = open_base(0, 0, 1);

    if (m != NULL) {
        tap_is(side(m, VLM_DETAIL_AUTO), 280, "the checkpoint's: auto");
        tap_is(side(m, VLM_DETAIL_LOW), 280, "the checkpoint's: low");
        tap_is(side(m, VLM_DETAIL_HIGH), 280, "the checkpoint's: high");
        vlm_model_free(m);
    }

    m = open_base(0, 4000000, 1);

    if (m != NULL) {
        tap_is(side(m, VLM_DETAIL_AUTO), 1988, "a given one: auto");
        tap_is(side(m, VLM_DETAIL_LOW), 504, "a given one: low");
        tap_is(side(m, VLM_DETAIL_HIGH), 1988, "a given one: high");
        tap_is((long long) vlm_model_info(m)->max_pixels, 4000000,
               "a given one: in force");
        vlm_model_free(m);
    }
}


static void
test_positions(void)
{
    int                 i, same;
    int32_t             delta, positions[3 * 11];
    vlm_span_t          spans[2];
    vlm_error_t         err;
    vlm_model_t        *m;
    vlm_prompt_t        prompt;
    vlm_image_plan_t    plans[2];
    static int32_t      ids[11];
    static const int32_t  expected[3 * 11] = {

        /* picture 1 (1 x 2), text, picture 0 (2 x 3), text, text */

        0, 0, 2, 3, 3, 3, 3, 3, 3, 6, 7,
        0, 0, 2, 3, 3, 3, 4, 4, 4, 6, 7,
        0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7
    };

    m = open_base(0, 0, 0);

    if (m == NULL) {
        return;
    }

    memset(&prompt, 0, sizeof(prompt));
    memset(plans, 0, sizeof(plans));
    prompt.ids.data = ids;
    prompt.ids.len = 11;
    prompt.spans = spans;
    prompt.nspans = 2;

    spans[0].first = 0;
    spans[0].count = 2;
    spans[0].picture = 1;
    spans[1].first = 3;
    spans[1].count = 6;
    spans[1].picture = 0;

    plans[0].grid_h = 4;
    plans[0].grid_w = 6;
    plans[1].grid_h = 2;
    plans[1].grid_w = 4;

    tap_is(vlm_model_positions(m, &prompt, plans, positions, &delta, &err),
           VLM_OK, "positions of two pictures");
    same = 0;

    for (i = 0; i < 33; i++) {
        same += positions[i] == expected[i];
    }

    tap_is(same, 33, "positions of two pictures: values");
    tap_is(delta, -3, "positions of two pictures: delta");

    plans[0].grid_w = 8;
    tap_is(vlm_model_positions(m, &prompt, plans, positions, &delta, &err),
           VLM_ERROR, "a plan of another picture");
    tap_str(err.message, "picture 0 has 6 placeholders for 2 x 4 tokens",
            "a plan of another picture: message");

    plans[0].grid_w = 6;
    spans[1].first = 1;
    tap_is(vlm_model_positions(m, &prompt, plans, positions, &delta, &err),
           VLM_ERROR, "pictures on top of each other");
    spans[1].first = 6;
    tap_is(vlm_model_positions(m, &prompt, plans, positions, &delta, &err),
           VLM_ERROR, "a picture behind the end");
    tap_str(err.message, "placeholders 6 to 12 of a picture are out of order "
            "in a prompt of 11 tokens", "a picture behind the end: message");

    vlm_model_free(m);
}


static void
test_info(void)
{
    vlm_buf_t                out;
    vlm_error_t              err;
    vlm_model_t             *m;
    vlm_json_doc_t          *doc;
    const vlm_model_info_t  *i;

    m = vlm_model_open(tap_path("models/demo"), NULL, &err);

    if (!tap_ok(m != NULL, "the demonstration model")) {
        return;
    }

    i = vlm_model_info(m);

    tap_str(i->name, "demo", "name");
    tap_str(i->family, "qwen2_vl", "family");
    tap_is((long long) i->parameters, 2983424, "parameters");
    tap_is((long long) i->weight_bytes, 5966848, "bytes");
    tap_is((long long) i->vision_bytes, 2610048, "bytes of the tower");
    tap_is(i->generation.do_sample, 0, "greedy");
    tap_is(i->generation.neos, 2, "two ends");
    tap_is(i->generation.eos[0], 528, "first end");
    tap_is(i->generation.eos[1], 526, "second end");

    memset(&out, 0, sizeof(out));
    tap_is(vlm_model_describe(m, 448, 448, 0, &out, &err), VLM_OK, "text");
    tap_str(out.data,
            "model       demo, family qwen2_vl\n"
            "parameters  2983424, BF16\n"
            "weights     5.7 MiB: language 3.2 MiB, vision 2.5 MiB\n"
            "language    4 layers of width 192, 6 heads (2 for keys) of 32, "
            "MLP 512, vocabulary 534, tied\n"
            "vision      4 layers of width 128, 4 heads, MLP 512, patch 14, "
            "merge 2\n"
            "pixels      7056 to 28224\n"
            "context     2048 tokens, 2.0 KiB of keys and values each, 4.0 "
            "MiB in all\n"
            "picture     448 x 448: resized to 168 x 168, 36 tokens, 0.338 "
            "GFLOP to encode, 72.0 KiB of keys and values\n", "text: lines");
    vlm_buf_free(&out);

    tap_is(vlm_model_describe(m, 448, 448, 1, &out, &err), VLM_OK, "JSON");
    doc = vlm_json_parse(out.data, out.len, "info", &err);
    tap_ok(vlm_json_is(vlm_json_get(vlm_json_root(doc), "name"), "demo"),
           "JSON: name");

    /*
     * 144 patches: 1176 * 128, in 4 layers (3 + 1 + 8) * 128^2 and attention
     * to 144 rows, 128 * (512 + 192) in the connector; twice
     */

    tap_str(strstr(out.data, "\"encode_flops\""), "\"encode_flops\":"
            "338264064,\"kv_bytes\":73728}}\n", "JSON: cost");
    vlm_json_free(doc);
    vlm_buf_free(&out);

    tap_is(vlm_model_describe(m, 1000, 4, 1, &out, &err), VLM_ERROR,
           "a picture that is refused");
    vlm_buf_free(&out);
    vlm_model_free(m);
}


/* the files are gone then, and the device tells its KV memory */

static void
test_info_loaded(void)
{
    vlm_buf_t      before, after;
    vlm_error_t    err;
    vlm_model_t   *m;
    golden_rig_t   rig;

    memset(&before, 0, sizeof(before));
    memset(&after, 0, sizeof(after));

    m = open_base(0, 0, 0);

    if (m != NULL && golden_open(&rig, tap_path(BASE), NULL, NULL) == 0) {
        vlm_model_describe(m, 100, 100, 1, &before, &err);
        vlm_model_describe(rig.model, 100, 100, 1, &after, &err);
        tap_str(after.data, before.data, "description of a loaded model");
        golden_close(&rig);
    }

    vlm_buf_free(&before);
    vlm_buf_free(&after);
    vlm_model_free(m);
}


/* the same with weights of bytes: no more than the layers' */

static void
test_quantised(void)
{
    vlm_buf_t                out;
    vlm_error_t              err;
    vlm_model_t             *m;
    vlm_model_options_t      opt;
    const vlm_model_info_t  *i;

    memset(&opt, 0, sizeof(opt));
    opt.quant = VLM_QUANT_INT8;
    opt.vision_quant = VLM_QUANT_INT8;

    m = vlm_model_open(tap_path("models/demo"), &opt, &err);

    if (!tap_ok(m != NULL, "quantised")) {
        return;
    }

    /* less the elements of 4 layers' products, more 8 bytes a row */

    i = vlm_model_info(m);
    tap_is((long long) i->weight_bytes,
           5966848 - 4 * (393216 - 8 * 1728) - 4 * (196608 - 8 * 1152),
           "bytes");
    tap_is((long long) i->vision_bytes, 2610048 - 4 * (196608 - 8 * 1152),
           "bytes of the tower");

    memset(&out, 0, sizeof(out));
    tap_is(vlm_model_describe(m, 0, 0, 0, &out, &err), VLM_OK, "text");
    tap_ok(strstr(out.data, "\nweights     3.5 MiB: language 1.8 MiB (int8), "
                  "vision 1.8 MiB (int8)\n") != NULL, "says so");
    vlm_buf_free(&out);

    tap_is(vlm_model_describe(m, 0, 0, 1, &out, &err), VLM_OK, "JSON");
    tap_ok(strstr(out.data, "\"quantization\":\"int8\","
                  "\"vision_quantization\":\"int8\"") != NULL, "says so");
    vlm_buf_free(&out);
    vlm_model_free(m);
}


static void
test_progress(void *data, uint64_t done, uint64_t total)
{
    uint64_t  *last = data;

    /* 0 once it went backwards or beyond the end */

    *last = done >= *last && done <= total ? done : 0;
}


static void
test_loading(void)
{
    char                why[256];
    uint64_t            done;
    vlm_error_t         err;
    vlm_model_t        *m;
    vlm_device_t       *dev;
    const vlm_ops_t    *ops;

    dev = vlm_cpu_device(1, &ops, why, sizeof(why));
    m = open_base(0, 0, 0);
    done = 0;

    if (dev != NULL && m != NULL) {
        tap_is(vlm_model_load(m, dev, ops, test_progress, &done, &err),
               VLM_OK, "loading");
        tap_is((long long) done, (long long) vlm_model_info(m)->weight_bytes,
               "loading ends at the bytes of all tensors");
    }

    vlm_model_free(m);

    if (dev != NULL) {
        vlm_cpu_device_destroy(dev);
    }
}


static void
test_sampling(void)
{
    vlm_model_t             *m;
    const vlm_generation_t  *g;

    m = open_base(0, 0, 0);

    if (m == NULL) {
        return;
    }

    g = &vlm_model_info(m)->generation;

    tap_ok(g->do_sample == 1 && g->neos == 2 && g->eos[0] == 448
           && g->eos[1] == 446, "generation_config.json: ends");
    tap_is(g->sampling.set, VLM_SET_TEMPERATURE|VLM_SET_TOP_P|VLM_SET_TOP_K,
           "generation_config.json: what is set");
    tap_ok(g->sampling.temperature == 0.01f && g->sampling.top_p == 0.001f
           && g->sampling.top_k == 1 && g->sampling.repetition == 1,
           "generation_config.json: values");
    vlm_model_free(m);
}


/* a good step of two sequences, whose numbers a test makes bad */

typedef struct {
    int32_t             start[3];
    int32_t             context[2];
    int32_t             blocks[4];
    int32_t             ids[5];
    int32_t             positions[15];
    int32_t             out[2];
    vlm_inject_t        inject;
    vlm_tensor_t        embeddings;
    vlm_decode_batch_t  batch;
} good_step_t;


static void
good_step(good_step_t *g, const golden_rig_t *rig)
{
    int                   i;
    vlm_step_host_t      *step;
    static const float    zeros[4 * 64];
    static const int32_t  start[3] = { 0, 3, 5 };

    memset(g, 0, sizeof(*g));
    memcpy(g->start, start, sizeof(start));

    for (i = 0; i < 4; i++) {
        g->blocks[i] = i;
    }

    g->out[0] = 2;
    g->out[1] = 4;

    g->embeddings.device = rig->dev;
    g->embeddings.dtype = VLM_F32;
    g->embeddings.rows = 4;
    g->embeddings.cols = 64;
    g->embeddings.stride = 64;
    g->embeddings.data = rig->ops->alloc(rig->dev, sizeof(zeros));
    rig->ops->upload(rig->queue, g->embeddings.data, zeros, sizeof(zeros));

    g->inject.embeddings = &g->embeddings;
    g->inject.first = 2;
    g->inject.row = 1;
    g->inject.n = 2;

    step = &g->batch.step;
    step->nrows = 5;
    step->nseqs = 2;
    step->row_start = g->start;
    step->context = g->context;
    step->blocks = g->blocks;
    step->max_blocks = 2;
    step->ids = g->ids;
    step->positions = g->positions;

    g->batch.inject = &g->inject;
    g->batch.ninject = 1;
    g->batch.out_rows = g->out;
    g->batch.nout = 2;
}


static void
run_good(golden_rig_t *rig, const good_step_t *g, const char *name)
{
    char          why[256];
    vlm_error_t   err;
    vlm_tensor_t  logits;

    tap_is(vlm_decoder_step(rig->decoder, &g->batch, &logits, &err), VLM_OK,
           "%s", name);
    tap_is(rig->ops->sync(rig->queue, why, sizeof(why)), 0, "%s: synced",
           name);
    tap_is(logits.rows, 2, "%s: rows of logits", name);
}


static void
test_refused_steps(void)
{
    size_t         i;
    int32_t        n;
    vlm_error_t    err;
    good_step_t    g;
    vlm_tensor_t   logits;
    golden_rig_t   rig;

    const struct {
        int32_t     *at;
        int32_t      bad;
        const char  *message;
    } b[] = {
        { &g.batch.step.nrows, 0,
          "a step of 0 rows in 2 sequences, the decoder has 512 rows" },
        { &g.batch.step.nrows, 513,
          "a step of 513 rows in 2 sequences, the decoder has 512 rows" },
        { &g.start[2], 4,
          "a step of 5 rows in 2 sequences, the decoder has 512 rows" },
        { &g.start[1], 6,
          "sequence 1: -1 rows after 0 do not fit in 2 blocks" },
        { &g.context[0], -1,
          "sequence 0: 3 rows after -1 do not fit in 2 blocks" },
        { &g.context[1], 31,
          "sequence 1: 2 rows after 31 do not fit in 2 blocks" },
        { &g.blocks[2], 544, "sequence 1: no block 544" },
        { &g.blocks[0], -1, "sequence 0: no block -1" },
        { &g.ids[4], 464, "row 4: no token 464" },
        { &g.ids[0], -1, "row 0: no token -1" },
        { &g.out[1], 5, "logits of row 5 of 5" },
        { &g.batch.nout, 18, "logits of 18 rows, the decoder has 17" },
        { &g.inject.first, 3,
          "2 embeddings from row 3 of 4 do not fit at row 1 of 5" },
        { &g.inject.row, 4,
          "2 embeddings from row 2 of 4 do not fit at row 4 of 5" }
    };

    if (golden_open(&rig, tap_path(BASE), NULL, NULL) == 0) {
        good_step(&g, &rig);
        run_good(&rig, &g, "a good step");

        for (i = 0; i < sizeof(b) / sizeof(b[0]); i++) {
            n = *b[i].at;
            *b[i].at = b[i].bad;

            tap_is(vlm_decoder_step(rig.decoder, &g.batch, &logits, &err),
                   VLM_ERROR, "a bad step");
            tap_str(err.message, b[i].message, "a bad step: message");
            *b[i].at = n;
        }

        run_good(&rig, &g, "a good step again");
        rig.ops->free(rig.dev, g.embeddings.data);
    }

    golden_close(&rig);
}


int
main(void)
{
    test_sizes();
    test_refused();
    test_detail();
    test_positions();
    test_info();
    test_quantised();
    test_info_loaded();
    test_loading();
    test_sampling();
    test_refused_steps();

    return tap_done();
}
