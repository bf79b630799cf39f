
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "engine/runtime/internal.h"


/* more than that may have to be asked of the system */
#define IN_USE_MOST     (256ull << 20)


static int engine_start(vlm_engine_t *e, vlm_error_t *err);
static uint64_t in_use(const vlm_engine_t *e);
static int open_model(vlm_engine_t *e, vlm_error_t *err);
static int plan_again(vlm_engine_t *e, vlm_error_t *err);
static int load_queues(vlm_engine_t *e, vlm_error_t *err);
static int load_runtime(vlm_engine_t *e, vlm_error_t *err);
static void load_progress(void *data, uint64_t done, uint64_t total);


vlm_engine_t *
vlm_engine_create(const vlm_engine_conf_t *conf, vlm_error_t *err)
{
    vlm_engine_t  *e;

    e = calloc(1, sizeof(vlm_engine_t));
    if (e == NULL) {
        vlm_fail(err, 500, NULL, "no memory");
        return NULL;
    }

    e->conf = *conf;
    e->state = VLM_STATE_LOADING;
    e->out_fd = eventfd(0, EFD_NONBLOCK|EFD_CLOEXEC);

    if (e->out_fd == -1
        || getrandom(&e->secret, sizeof(e->secret), 0) != sizeof(e->secret)
        || pthread_mutex_init(&e->out_lock, NULL) != 0
        || vlm_inbox_init(&e->inbox) != VLM_OK)
    {
        vlm_fail(err, 500, NULL, "cannot start: %s", strerror(errno));

        if (e->out_fd != -1) {
            close(e->out_fd);
        }

        free(e);
        return NULL;
    }

    if (engine_start(e, err) != VLM_OK) {
        vlm_images_stop(&e->images);
        vlm_embed_close(e);
        vlm_inbox_free(&e->inbox);
        pthread_mutex_destroy(&e->out_lock);
        close(e->out_fd);
        free(e);
        return NULL;
    }

    return e;
}


static int
engine_start(vlm_engine_t *e, vlm_error_t *err)
{
    int  rc;

    if (vlm_embed_open(e, err) != VLM_OK) {
        return VLM_ERROR;
    }

    if (vlm_images_start(&e->images, e, e->conf.image_threads, err)
        != VLM_OK)
    {
        return VLM_ERROR;
    }

    rc = pthread_create(&e->thread, NULL, vlm_compute_main, e);

    if (rc != 0) {
        return vlm_fail(err, 500, NULL, "cannot start a thread: %s",
                        strerror(rc));
    }

    return VLM_OK;
}


void
vlm_engine_destroy(vlm_engine_t *e)
{
    if (e == NULL) {
        return;
    }

    vlm_inbox_stop(&e->inbox);
    pthread_join(e->thread, NULL);
    vlm_images_stop(&e->images);

    vlm_embed_close(e);
    vlm_unload(e);
    vlm_inbox_free(&e->inbox);
    pthread_mutex_destroy(&e->out_lock);
    close(e->out_fd);
    free(e);
}


void
vlm_engine_submit(vlm_engine_t *e, vlm_req_t *req)
{
    vlm_work_t  *w;

    if (req->submitted_us == 0) {
        req->submitted_us = vlm_now_us();
    }

    w = calloc(1, sizeof(vlm_work_t));
    if (w == NULL) {
        vlm_fail(&req->error, 500, NULL, "no memory for the request");
        vlm_mail_final(e, req, VLM_ERROR);
        return;
    }

    w->req = req;
    w->prepare.req = req;
    w->prepare.picture = -1;
    req->work = w;

    vlm_images_put(&e->images, &w->prepare);
}


void
vlm_engine_cancel(vlm_engine_t *e, vlm_req_t *req)
{
    __atomic_store_n(&req->cancel, 1, __ATOMIC_RELAXED);
    vlm_inbox_wake(&e->inbox);
}


const vlm_model_t *
vlm_engine_model(const vlm_engine_t *e)
{
    return e->model;
}


void
vlm_engine_info(const vlm_engine_t *e, vlm_engine_info_t *info)
{
    memset(info, 0, sizeof(*info));

    info->nmodels = 1;
    info->context_length = (uint32_t) e->mem.context;
    info->max_images = (uint32_t) e->conf.max_images;
    info->max_queue = (uint32_t) e->conf.max_queue;
    info->max_image_pixels = e->conf.max_image_pixels;

    snprintf(info->models[0], VLM_MODEL_NAME_LEN, "%s", e->name);
}


int
vlm_engine_check(const vlm_engine_conf_t *conf, vlm_memory_t *mem,
    vlm_error_t *err)
{
    int            rc;
    vlm_engine_t  *e;

    e = calloc(1, sizeof(vlm_engine_t));
    if (e == NULL) {
        return vlm_fail(err, 500, NULL, "no memory");
    }

    e->conf = *conf;

    rc = open_model(e, err);
    *mem = e->mem;

    vlm_unload(e);
    free(e);

    return rc;
}


int
vlm_load(vlm_engine_t *e, vlm_error_t *err)
{
    const vlm_model_info_t  *info;

    if (open_model(e, err) != VLM_OK) {
        return VLM_ERROR;
    }

    info = vlm_model_info(e->model);

    vlm_log(VLM_LOG_INFO, "model \"%s\" (%s) on %s: weights %.1f MiB, KV "
            "cache %.1f MiB (%d blocks), work space %.1f MiB, "
            "embedding cache %.1f MiB, pictures being decoded %.1f MiB at "
            "most, available %.1f MiB", e->name,
            info->family, e->ops->name,
            (double) e->mem.weights / 1048576,
            (double) e->mem.kv / 1048576, e->mem.nblocks,
            (double) e->mem.work / 1048576,
            (double) e->mem.cache / 1048576,
            (double) e->mem.pictures / 1048576,
            (double) e->mem.available / 1048576);

    if (info->quant != VLM_QUANT_NONE || info->vision_quant != VLM_QUANT_NONE)
    {
        vlm_log(VLM_LOG_INFO, "weights are quantised: decoder %s, vision "
                "tower %s", vlm_quant_name(info->quant),
                vlm_quant_name(info->vision_quant));
    }

    if (e->mem.context < info->context) {
        vlm_log(VLM_LOG_INFO, "context is %d tokens, the model's %d%s",
                e->mem.context, info->context,
                e->conf.max_model_len == 0
                ? ": the KV cache holds no more (--kv-cache-memory)" : "");
    }

    if (vlm_embed_load(e, err) != VLM_OK) {
        return VLM_ERROR;
    }

    if (vlm_model_load(e->model, e->dev, e->ops, load_progress, e, err)
        != VLM_OK
        || plan_again(e, err) != VLM_OK)
    {
        return VLM_ERROR;
    }

    return load_runtime(e, err);
}


/* keys and values get what the weights have really left */

static int
plan_again(vlm_engine_t *e, vlm_error_t *err)
{
    int32_t   before;
    uint64_t  left;

    if (e->conf.device_memory == 0) {
        return VLM_OK;
    }

    if (vlm_device_room(e, &left, err) != VLM_OK) {
        return VLM_ERROR;
    }

    before = e->mem.nblocks;

    e->need.weights = e->conf.device_memory > left
                      ? e->conf.device_memory - left : 0;

    if (vlm_memory_plan(&e->conf, &e->need, &e->mem, err) != VLM_OK) {
        return VLM_ERROR;
    }

    if (e->mem.nblocks != before) {
        vlm_log(VLM_LOG_INFO, "weights take %.1f MiB: KV cache %.1f MiB (%d "
                "blocks), context %d tokens",
                (double) e->mem.weights / 1048576,
                (double) e->mem.kv / 1048576, e->mem.nblocks,
                e->mem.context);
    }

    return VLM_OK;
}


/* embeddings that live on, evicted, as long as requests need them */

static uint64_t
in_use(const vlm_engine_t *e)
{
    uint64_t  size;

    if (!e->ops->async) {
        return 0;
    }

    size = (uint64_t) e->conf.max_num_seqs * e->room.embedding / 4;

    return size < IN_USE_MOST ? size : IN_USE_MOST;
}


static int
open_model(vlm_engine_t *e, vlm_error_t *err)
{
    vlm_model_options_t      opt;
    const vlm_model_info_t  *info;

    if (vlm_device_open(e, err) != VLM_OK) {
        return VLM_ERROR;
    }

    opt.min_pixels = e->conf.min_pixels;
    opt.max_pixels = e->conf.max_pixels;
    opt.cpu_pixels = e->device_kind == VLM_DEVICE_CPU;
    opt.quant = e->conf.quant;
    opt.vision_quant = e->conf.vision_quant;

    e->model = vlm_model_open(e->conf.model, &opt, err);
    if (e->model == NULL) {
        return VLM_ERROR;
    }

    info = vlm_model_info(e->model);

    snprintf(e->name, sizeof(e->name), "%s",
             e->conf.name != NULL ? e->conf.name : info->name);

    vlm_memory_room(e, &e->room);

    e->need.weights = info->weight_bytes;
    e->need.work = e->room.decoder + e->room.encoder + e->room.first_job
                   + e->room.second_job + e->room.kv_parts;
    e->need.host = e->room.lent + e->room.embedding + in_use(e);
    e->need.block = vlm_decoder_block_bytes(e->model, e->dev, e->ops,
                                            e->conf.block_size);
    e->need.context = info->context;

    if (vlm_memory_plan(&e->conf, &e->need, &e->mem, err) != VLM_OK) {
        return VLM_ERROR;
    }

    if (e->mem.image_pixels < VLM_IMAGE_PIXELS
        && e->conf.max_image_pixels == 0)
    {
        vlm_log(VLM_LOG_WARN, "memory is short: pictures of %llu pixels at "
                "most are decoded (--max-image-pixels)",
                (unsigned long long) e->mem.image_pixels);
    }

    e->conf.max_image_pixels = e->mem.image_pixels;

    return VLM_OK;
}


static void
load_progress(void *data, uint64_t done, uint64_t total)
{
    int            percent;
    vlm_engine_t  *e = data;

    percent = total != 0 ? (int) (done * 100 / total) : 100;

    if (percent >= e->loaded_percent + 10 || percent == 100) {
        if (percent != e->loaded_percent) {
            vlm_log(VLM_LOG_INFO, "loading: %d %%", percent);
        }

        e->loaded_percent = percent;
    }
}


/* all memory that is needed from now on, and what queues need of it */

static int
load_queues(vlm_engine_t *e, vlm_error_t *err)
{
    char    text[256];
    size_t  size, host;

    size = (size_t) (e->need.work + e->mem.kv);
    host = (size_t) (e->need.host + e->mem.cache);

    if (e->ops->reserve(e->dev, size, host, text, sizeof(text)) != 0) {
        return vlm_fail(err, 500, NULL, "%s: lower --gpu-memory-utilization, "
                        "--kv-cache-memory or --embedding-cache-memory",
                        text);
    }

    e->queue = e->ops->queue_create(e->dev, 0);
    e->vision_queue = e->ops->queue_create(e->dev, 1);

    if (e->queue == NULL || e->vision_queue == NULL) {
        return vlm_fail(err, 500, NULL, "cannot create a queue on %s",
                        e->ops->name);
    }

    if (e->ops->queue_reserve(e->queue, &e->room.decoder_limits, text,
                              sizeof(text))
        != 0
        || e->ops->queue_reserve(e->vision_queue, &e->room.encoder_limits,
                                 text, sizeof(text))
           != 0)
    {
        return vlm_fail(err, 500, NULL, "device %s: %s", e->ops->name, text);
    }

    return VLM_OK;
}


static int
load_runtime(vlm_engine_t *e, vlm_error_t *err)
{
    vlm_encoding_conf_t  conf;

    if (load_queues(e, err) != VLM_OK) {
        return VLM_ERROR;
    }

    conf.model = e->model;
    conf.dev = e->dev;
    conf.ops = e->ops;
    conf.queue = e->vision_queue;
    conf.copy = vlm_embed_copy;
    conf.encoded = vlm_encode_done;
    conf.data = e;

    if (vlm_encoding_init(&e->encoding, &conf, err) != VLM_OK) {
        return VLM_ERROR;
    }

    e->decoder = vlm_decoder_create(e->model, e->queue, e->mem.nblocks,
                                    e->conf.block_size, e->conf.max_rows,
                                    e->conf.max_num_seqs, err);
    if (e->decoder == NULL) {
        return VLM_ERROR;
    }

    if (vlm_sched_init(&e->sched, e->conf.max_rows, e->conf.max_num_seqs,
                       e->mem.nblocks, e->conf.block_size)
        != VLM_OK
        || vlm_plan_init(&e->plan, e->conf.max_num_seqs) != VLM_OK
        || vlm_pace_init(&e->pace, e->conf.gap_factor > 1
                                   ? e->conf.gap_factor
                                   : VLM_DEFAULT_GAP_FACTOR,
                         e->conf.max_num_seqs)
           != VLM_OK)
    {
        return vlm_fail(err, 500, NULL, "no memory for the scheduler");
    }

    return vlm_tables_init(e, err);
}


/* also after a load that failed half-way */

void
vlm_unload(vlm_engine_t *e)
{
    vlm_tables_free(e);
    vlm_pace_free(&e->pace);
    vlm_plan_free(&e->plan);
    vlm_sched_free(&e->sched);

    if (e->decoder != NULL) {
        vlm_decoder_free(e->decoder);
    }

    vlm_encoding_free(&e->encoding);

    if (e->vision_queue != NULL) {
        e->ops->queue_destroy(e->vision_queue);
    }

    if (e->queue != NULL) {
        e->ops->queue_destroy(e->queue);
    }

    if (e->model != NULL) {
        vlm_model_free(e->model);
    }

    vlm_device_close(e);
}
