
/*
 * From a record in the arena to a request that can be computed: everything
 * that is checked is checked on a private copy.  Runs on the image pool.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/runtime/internal.h"


static int intake_record(vlm_req_t *req, vlm_error_t *err);
static int intake_fields(vlm_engine_t *e, vlm_req_t *req, vlm_error_t *err);
static int intake_texts(vlm_req_t *req, vlm_error_t *err);
static int intake_pictures(vlm_engine_t *e, vlm_req_t *req,
    vlm_error_t *err);
static int intake_prompt(vlm_engine_t *e, vlm_req_t *req, vlm_error_t *err);


static int
nomem(vlm_error_t *err)
{
    return vlm_fail(err, 500, NULL, "no memory for the request");
}


uint64_t
vlm_req_deadline(const vlm_engine_t *e, const vlm_req_t *req)
{
    uint64_t  own, asked;

    own = req->submitted_us + e->conf.queue_timeout_ms * 1000;
    asked = 0;

    if (req->work != NULL) {
        asked = req->work->in.deadline_ms;
    }

    if (asked != 0 && asked < own / 1000) {
        return asked * 1000;
    }

    return own;
}


int
vlm_req_late(const vlm_engine_t *e, vlm_req_t *req, uint64_t now)
{
    if (now < vlm_req_deadline(e, req)) {
        return 0;
    }

    vlm_fail(&req->error, 503, "queue_timeout", "the request waited %llu ms "
             "in the queue, its limit",
             (unsigned long long) ((now - req->submitted_us) / 1000));

    return 1;
}


int
vlm_intake(vlm_engine_t *e, vlm_req_t *req, vlm_error_t *err)
{
    if (intake_record(req, err) != VLM_OK
        || intake_fields(e, req, err) != VLM_OK
        || intake_texts(req, err) != VLM_OK
        || intake_pictures(e, req, err) != VLM_OK
        || intake_prompt(e, req, err) != VLM_OK
        || vlm_embed_join(e, req->work, err) != VLM_OK
        || vlm_choices_create(e, req, err) != VLM_OK)
    {
        return VLM_ERROR;
    }

    if (req->work->in.npictures == 0) {
        req->work->released = 1;
        vlm_mail_released(e, req);
    }

    return VLM_OK;
}


static int
intake_record(vlm_req_t *req, vlm_error_t *err)
{
    size_t       len;
    vlm_work_t  *w;
    const char  *why;

    w = req->work;

    w->record = malloc(req->record_length);
    w->scratch = malloc(vlm_record_scratch(req->record_length) + 1);

    if (w->record == NULL || w->scratch == NULL) {
        return nomem(err);
    }

    memcpy(w->record, req->arena + req->record_offset, req->record_length);

    if (vlm_record_decode(w->record, req->record_length, req->arena_size,
                          w->scratch, &w->in, &why)
        != 0)
    {
        return vlm_fail(err, 500, "invalid_record", "the request's record "
                        "is not valid: %s", why);
    }

    len = w->in.request_id.len;
    len = len < sizeof(req->id) ? len : sizeof(req->id) - 1;
    memcpy(req->id, w->in.request_id.data, len);
    req->id[len] = '\0';

    return VLM_OK;
}


static int
intake_fields(vlm_engine_t *e, vlm_req_t *req, vlm_error_t *err)
{
    const vlm_request_t  *in;

    in = &req->work->in;

    if (in->model.len != 0
        && (in->model.len != strlen(e->name)
            || memcmp(in->model.data, e->name, in->model.len) != 0))
    {
        vlm_fail(err, 404, "model_not_found", "the model `%.*s` does not "
                 "exist, this engine serves `%s`", (int) in->model.len,
                 in->model.data, e->name);
        vlm_error_param(err, "model");
        return VLM_ERROR;
    }

    if (in->npictures > (uint32_t) e->conf.max_images) {
        vlm_fail(err, 400, "too_many_images", "the request has %u images, "
                 "at most %d are accepted (--limit-images-per-prompt)",
                 in->npictures, e->conf.max_images);
        vlm_error_param(err, "image");
        return VLM_ERROR;
    }

    if (in->sampling.logprobs == 0 && in->sampling.top_logprobs != 0) {
        vlm_fail(err, 400, "invalid_value", "top_logprobs is %u, but "
                 "logprobs are not asked for", in->sampling.top_logprobs);
        vlm_error_param(err, "top_logprobs");
        return VLM_ERROR;
    }

    return VLM_OK;
}


static int
intake_texts(vlm_req_t *req, vlm_error_t *err)
{
    char                 *p;
    size_t                len;
    uint32_t              i;
    uint64_t              total;
    vlm_work_t           *w;
    const vlm_extent_t   *x;

    w = req->work;
    total = 0;

    for (i = 0; i < w->in.nparts; i++) {
        if (w->in.parts[i].type != VLM_PART_TEXT) {
            continue;
        }

        total += w->in.parts[i].text.length;

        if (total > VLM_MAX_TEXT_BYTES) {
            vlm_fail(err, 413, "text_too_large", "the request's texts are "
                     "over %u bytes", VLM_MAX_TEXT_BYTES);
            vlm_error_param(err, "prompt");
            return VLM_ERROR;
        }
    }

    w->texts = malloc((size_t) total + 1);
    w->parts = calloc((size_t) w->in.nparts + 1, sizeof(vlm_str_t));

    if (w->texts == NULL || w->parts == NULL) {
        return nomem(err);
    }

    p = w->texts;

    for (i = 0; i < w->in.nparts; i++) {
        if (w->in.parts[i].type != VLM_PART_TEXT) {
            continue;
        }

        x = &w->in.parts[i].text;
        len = (size_t) x->length;

        memcpy(p, req->arena + x->offset, len);

        w->parts[i].data = p;
        w->parts[i].len = (uint32_t) len;

        if (vlm_utf8_valid(p, len) != len) {
            vlm_fail(err, 400, "invalid_value", "the text is not valid "
                     "UTF-8");
            vlm_error_param(err, "prompt");
            return VLM_ERROR;
        }

        p += len;
    }

    return VLM_OK;
}


static int
intake_pictures(vlm_engine_t *e, vlm_req_t *req, vlm_error_t *err)
{
    int                   rc;
    uint32_t              i;
    vlm_pic_t            *pic;
    vlm_work_t           *w;
    const vlm_picture_t  *p;

    w = req->work;

    w->pics = calloc((size_t) w->in.npictures + 1, sizeof(vlm_pic_t));
    if (w->pics == NULL) {
        return nomem(err);
    }

    for (i = 0; i < w->in.npictures; i++) {
        p = &w->in.pictures[i];
        pic = &w->pics[i];

        pic->task.req = req;
        pic->task.picture = (int32_t) i;

        if (req->given != NULL) {
            pic->info.width = req->given[i].width;
            pic->info.height = req->given[i].height;
            rc = VLM_OK;

        } else {
            rc = vlm_image_probe(req->arena + p->bytes.offset,
                                 (size_t) p->bytes.length,
                                 e->conf.max_image_pixels, &pic->info, err);
        }

        if (rc == VLM_OK) {
            rc = vlm_model_plan(e->model, pic->info.width, pic->info.height,
                                p->detail, &pic->plan, err);
        }

        if (rc != VLM_OK) {
            vlm_error_param(err, "image[%u]", i);
            return VLM_ERROR;
        }
    }

    return VLM_OK;
}


/* the prompt's ids, and whether they leave room for an answer */

static int
intake_context(vlm_engine_t *e, vlm_req_t *req, vlm_error_t *err)
{
    int32_t      images, left;
    size_t       i, n;
    vlm_work_t  *w;

    w = req->work;
    n = w->prompt.ids.len;
    images = 0;

    for (i = 0; i < w->in.npictures; i++) {
        images += w->pics[i].plan.ntokens;
    }

    if (n >= (size_t) e->mem.context) {
        return vlm_fail(err, 400, "context_length_exceeded", "this model's "
                        "maximum context length is %d tokens, but the prompt "
                        "has %zu (%d of them for %u images) and needs room "
                        "for an answer", e->mem.context, n, images,
                        w->in.npictures);
    }

    left = e->mem.context - (int32_t) n;

    w->max_tokens = VLM_DEFAULT_MAX_TOKENS;

    if (w->in.sampling.set & VLM_SET_MAX_TOKENS) {
        w->max_tokens = w->in.sampling.max_tokens < (uint32_t) left
                        ? (int32_t) w->in.sampling.max_tokens : left;
    }

    w->max_tokens = w->max_tokens < left ? w->max_tokens : left;

    req->admitted.prompt_tokens = (uint32_t) n;
    req->admitted.image_tokens = (uint32_t) images;

    return VLM_OK;
}


static int
intake_prompt(vlm_engine_t *e, vlm_req_t *req, vlm_error_t *err)
{
    int                rc;
    int32_t           *counts;
    uint32_t           i;
    uint64_t           images;
    vlm_work_t        *w;
    vlm_image_plan_t  *plans;

    w = req->work;

    counts = calloc((size_t) w->in.npictures + 1, sizeof(int32_t));
    plans = calloc((size_t) w->in.npictures + 1, sizeof(vlm_image_plan_t));

    if (counts == NULL || plans == NULL) {
        free(counts);
        free(plans);
        return nomem(err);
    }

    images = 0;

    for (i = 0; i < w->in.npictures; i++) {
        plans[i] = w->pics[i].plan;
        counts[i] = plans[i].ntokens;
        images += (uint64_t) counts[i];
    }

    if (images >= (uint64_t) e->mem.context) {
        /* before room is made for all of them */
        rc = vlm_fail(err, 400, "context_length_exceeded", "this model's "
                      "maximum context length is %d tokens, but %u images "
                      "alone take %llu", e->mem.context, w->in.npictures,
                      (unsigned long long) images);

    } else {
        rc = vlm_chat_build(vlm_model_tokenizer(e->model),
                            vlm_model_chat(e->model), w->in.messages,
                            w->in.nmessages, w->in.parts, w->parts, counts,
                            w->in.npictures, &w->prompt, err);
    }

    if (rc == VLM_OK) {
        rc = intake_context(e, req, err);
    }

    if (rc == VLM_OK) {
        w->positions = calloc(w->prompt.ids.len * 3, sizeof(int32_t));

        rc = w->positions == NULL ? nomem(err)
             : vlm_model_positions(e->model, &w->prompt, plans, w->positions,
                                   &w->delta, err);
    }

    free(counts);
    free(plans);

    return rc;
}


/* decodes into *image, at the size that the plan was made for */

static int
picture_decode(vlm_engine_t *e, vlm_req_t *req, int32_t n,
    vlm_image_t *image, vlm_error_t *err)
{
    vlm_pic_t            *pic;
    const vlm_picture_t  *p;

    pic = &req->work->pics[n];
    p = &req->work->in.pictures[n];

    if (req->given != NULL) {
        *image = req->given[n];
        req->given[n].data = NULL;
        return VLM_OK;
    }

    if (vlm_image_decode(req->arena + p->bytes.offset,
                         (size_t) p->bytes.length, e->conf.max_image_pixels,
                         &req->cancel, image, err)
        != VLM_OK)
    {
        return VLM_ERROR;
    }

    if (image->width != pic->info.width || image->height != pic->info.height)
    {
        return vlm_fail(err, 400, "invalid_image", "the picture is %ux%u, "
                        "but its header said %ux%u", image->width,
                        image->height, pic->info.width, pic->info.height);
    }

    return VLM_OK;
}


void
vlm_intake_picture(vlm_engine_t *e, vlm_req_t *req, int32_t n)
{
    vlm_pic_t    *pic;
    vlm_image_t   image;

    pic = &req->work->pics[n];
    memset(&image, 0, sizeof(image));

    if (picture_decode(e, req, n, &image, &pic->error) == VLM_OK) {

        if (image.width == pic->plan.width
            && image.height == pic->plan.height)
        {
            pic->image = image;
            return;
        }

        if (vlm_image_resize(&image, pic->plan.width, pic->plan.height,
                             pic->plan.filter, &pic->image, &pic->error)
            == VLM_OK)
        {
            vlm_image_free(&image);
            return;
        }
    }

    vlm_image_free(&image);
    vlm_error_param(&pic->error, "image[%d]", n);
}


void
vlm_work_free(vlm_work_t *w)
{
    uint32_t  i;

    if (w == NULL) {
        return;
    }

    for (i = 0; w->pics != NULL && i < w->in.npictures; i++) {
        vlm_image_free(&w->pics[i].image);
    }

    vlm_prompt_free(&w->prompt);
    vlm_choices_free(w);

    free(w->keys);
    free(w->spans);
    free(w->positions);
    free(w->pics);
    free(w->parts);
    free(w->texts);
    free(w->scratch);
    free(w->record);
    free(w);
}
