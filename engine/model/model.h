
/*
 * A model: a checkpoint directory made ready to run on a device.  Forward
 * passes are written once against kernels/ops.h; a family (families/) is a
 * description.
 *
 * A vlm_model_t is read-only after vlm_model_load().  Encoders and decoders
 * (work space and state on one queue) belong to one thread each.
 */

#ifndef VLM_MODEL_H
#define VLM_MODEL_H


#include "engine/image/image.h"
#include "engine/text/chat.h"
#include "engine/text/tokenizer.h"
#include "kernels/ops.h"


typedef struct vlm_model_s  vlm_model_t;

typedef struct {
    uint64_t            min_pixels;     /* 0: the checkpoint's */
    uint64_t            max_pixels;     /* 0: the default, see below */
    int                 cpu_pixels;     /* cap the default at 1,003,520 */
    vlm_quant_t         quant;          /* of the decoder's layers */
    vlm_quant_t         vision_quant;   /* of the tower's */
} vlm_model_options_t;


/* generation_config.json; "set" has bits VLM_SET_* of the channel's record */

typedef struct {
    int                 do_sample;
    vlm_sampling_t      sampling;
    int32_t             eos[16];
    int32_t             neos;
} vlm_generation_t;


typedef struct {
    const char         *family;         /* "qwen2_vl" */
    char                name[128];      /* last part of the directory */
    int32_t             hidden;         /* text width H */
    int32_t             layers;
    int32_t             heads;
    int32_t             kv_heads;
    int32_t             head_dim;
    int32_t             intermediate;
    int32_t             vocab;          /* rows of the output head */
    int32_t             context;        /* max_position_embeddings */
    int32_t             vision_width;   /* D */
    int32_t             vision_layers;
    int32_t             vision_heads;
    int32_t             vision_intermediate;
    int32_t             patch;
    int32_t             merge;
    int32_t             frames;
    uint64_t            min_pixels;     /* in force */
    uint64_t            max_pixels;
    vlm_quant_t         quant;
    vlm_quant_t         vision_quant;
    uint64_t            weight_bytes;   /* all tensors in the files, less
                                           what is saved by quantising */
    uint64_t            vision_bytes;   /* of it, tower and connector */
    uint64_t            parameters;
    vlm_generation_t    generation;
} vlm_model_info_t;


/*
 * Opens a directory: reads all JSON, maps the safetensors files, finds every
 * tensor and checks its type and shape.  No weights are copied yet.  Errors
 * name the file, the key or tensor, what was found and what was expected.
 */
vlm_model_t *vlm_model_open(const char *dir, const vlm_model_options_t *opt,
    vlm_error_t *err);

/*
 * Packs the weights onto a device and unmaps the files.  Quantised are the
 * products of the layers (qkv, out, gate and up or fc1, down or fc2), nothing
 * else; one that the device cannot quantise is an error that names it.  progress (may be
 * NULL) is called now and then with bytes done and in all.
 */
int vlm_model_load(vlm_model_t *m, vlm_device_t *dev, const vlm_ops_t *ops,
    void (*progress)(void *data, uint64_t done, uint64_t total), void *data,
    vlm_error_t *err);
void vlm_model_free(vlm_model_t *m);

/*
 * SHA-256 of everything in a checkpoint that makes an embedding of pixels:
 * the weights of tower and connector, and their sizes.  What the files give
 * is kept in DIR/.vlm-vision-digest, or in $XDG_CACHE_HOME/ngx_vlm (or
 * ~/.cache/ngx_vlm), as long as their sizes and times are the same.  Between
 * open() and load().
 */
int vlm_model_vision_digest(vlm_model_t *m, const char *dir,
    uint8_t digest[32], vlm_error_t *err);

/* "none", "int8", "fp8" */
const char *vlm_quant_name(vlm_quant_t quant);

const vlm_model_info_t *vlm_model_info(const vlm_model_t *m);
const vlm_tokenizer_t *vlm_model_tokenizer(const vlm_model_t *m);
const vlm_chat_format_t *vlm_model_chat(const vlm_model_t *m);

/*
 * Appends what a checkpoint is and costs, as text for people or as a JSON
 * object: family, parameters, bytes of its parts, context, KV memory; with
 * width and height (not 0) tokens and multiply-adds of such a picture too.
 * The model need not be loaded.
 */
int vlm_model_describe(const vlm_model_t *m, uint32_t width, uint32_t height,
    int json, vlm_buf_t *out, vlm_error_t *err);


/*
 * The resolved preprocessing of one picture: everything that its embedding
 * depends on besides its bytes and the weights.
 */

typedef struct {
    uint32_t            width;          /* resized to */
    uint32_t            height;
    vlm_filter_t        filter;
    int32_t             grid_h;         /* patches */
    int32_t             grid_w;
    int32_t             ntokens;        /* rows after the connector */
} vlm_image_plan_t;

/* width and height after EXIF; detail is VLM_DETAIL_* */
int vlm_model_plan(const vlm_model_t *m, uint32_t width, uint32_t height,
    uint32_t detail, vlm_image_plan_t *plan, vlm_error_t *err);

/* multiply-adds to encode it */
double vlm_model_cost(const vlm_model_t *m, const vlm_image_plan_t *plan);

/* what patchify() needs to know of a picture resized to width x height */
void vlm_model_geometry(const vlm_model_t *m, uint32_t width,
    uint32_t height, vlm_patch_geometry_t *geo);

/*
 * M-RoPE positions of a prompt: positions [3][n] for n = prompt->ids.len;
 * plans[i] belongs to prompt->spans[i].picture == i.  *delta is what is added
 * to a generated token's index.
 */
int vlm_model_positions(const vlm_model_t *m, const vlm_prompt_t *prompt,
    const vlm_image_plan_t *plans, int32_t *positions, int32_t *delta,
    vlm_error_t *err);


/*
 * Encoding: resized pictures to embeddings.  A job holds one or several
 * pictures whose rows run as one batch; attention stays inside each.  It is
 * cut at (layer, operation, rows): vlm_encode_step() runs about "budget"
 * multiply-adds and returns, so that decode steps can run in between.
 *
 * On a device that runs asynchronously they are put on the queue and not
 * waited for, and so is all of a job that is done; a job may be freed when it
 * is still at work.
 */

typedef struct vlm_encoder_s     vlm_encoder_t;     /* work space, one queue */
typedef struct vlm_encode_job_s  vlm_encode_job_t;

vlm_encoder_t *vlm_encoder_create(const vlm_model_t *m, vlm_queue_t *q,
    vlm_error_t *err);
void vlm_encoder_free(vlm_encoder_t *e);

/*
 * What has failed on the queue so far, once; on a device that runs
 * asynchronously nothing is waited for, but when something has.
 */
int vlm_encode_check(vlm_encoder_t *e, vlm_error_t *err);

/* images[i] must have the size of plans[i]; both are copied */
vlm_encode_job_t *vlm_encode_begin(vlm_encoder_t *e,
    const vlm_image_t *images, const vlm_image_plan_t *plans, size_t n,
    vlm_error_t *err);

/* multiply-adds of the whole job, and what has been done of it */
double vlm_encode_cost(const vlm_encode_job_t *job);
double vlm_encode_spent(const vlm_encode_job_t *job);

/* of the smallest slice that comes next */
double vlm_encode_least(const vlm_encode_job_t *job);

/* the part of a slice that has to fit into a budget for it to begin */
#define VLM_ENCODE_FIT  0.9

/* VLM_AGAIN: more to do.  VLM_OK: done.  VLM_ERROR. */
int vlm_encode_step(vlm_encode_job_t *job, double budget, vlm_error_t *err);

/*
 * After VLM_OK, for what comes next on the queue: [sum of ntokens, hidden] on
 * the device, owned by the job.
 */
const vlm_tensor_t *vlm_encode_result(const vlm_encode_job_t *job);
void vlm_encode_free(vlm_encode_job_t *job);


/*
 * Decoding: one step over rows of several sequences.  The KV pool is the
 * caller's size: vlm_decoder_create() allocates nblocks blocks in each layer.
 */

typedef struct vlm_decoder_s  vlm_decoder_t;

typedef struct {
    const vlm_tensor_t *embeddings;     /* [>= first + n, hidden], any float */
    int32_t             first;          /* first row of them to use */
    int32_t             row;            /* first row of the step to overwrite */
    int32_t             n;
} vlm_inject_t;

typedef struct {
    vlm_step_host_t     step;           /* positions are [3][nrows] */
    const vlm_inject_t *inject;
    int32_t             ninject;
    const int32_t      *out_rows;       /* rows whose logits are wanted */
    int32_t             nout;
} vlm_decode_batch_t;

/* bytes of KV memory of one block in all layers */
uint64_t vlm_decoder_block_bytes(const vlm_model_t *m, vlm_device_t *dev,
    const vlm_ops_t *ops, int32_t block_size);

vlm_decoder_t *vlm_decoder_create(const vlm_model_t *m, vlm_queue_t *q,
    int32_t nblocks, int32_t block_size, int32_t max_rows, int32_t max_out,
    vlm_error_t *err);
void vlm_decoder_free(vlm_decoder_t *d);

/*
 * Runs the layers over the batch and the head over out_rows.  logits is set
 * to a view [nout, vocab] F32 of the decoder's own memory, valid until the
 * next call.  Nothing is waited for: the batch's arrays must stay until the
 * caller has synced the queue, which also reports an operation's failure.
 */
int vlm_decoder_step(vlm_decoder_t *d, const vlm_decode_batch_t *batch,
    vlm_tensor_t *logits, vlm_error_t *err);


/*
 * What running a model takes of a device's memory beside its weights and the
 * keys and values: computed from the shapes before anything is loaded.
 */

typedef struct {
    int32_t             rows;           /* of a step */
    int32_t             seqs;           /* of it, and of its outputs */
    int32_t             context;        /* tokens of a sequence at most */
    int32_t             block_size;
    int32_t             biases;         /* tokens of a logit_bias at most */
    int32_t             batch_pictures; /* of small pictures in one job */
    int32_t             batch_patches;
    int                 high;           /* pictures in all detail, too */
    int32_t             smaller;        /* of two jobs at a time the second
                                           has a part of the largest's rows */
} vlm_room_conf_t;

typedef struct {
    uint64_t            decoder;        /* bytes, with its queue's */
    uint64_t            encoder;
    uint64_t            first_job;
    uint64_t            second_job;
    uint64_t            lent;           /* of the host's, for jobs */
    uint64_t            embedding;      /* too: beside a cache of them */
    uint64_t            kv_parts;       /* beside the blocks of the pool */
    vlm_limits_t        decoder_limits; /* for their queues */
    vlm_limits_t        encoder_limits;
} vlm_room_t;

void vlm_model_room(const vlm_model_t *m, vlm_device_t *dev,
    const vlm_ops_t *ops, const vlm_room_conf_t *conf, vlm_room_t *room);


/* called with each module's output during forward passes, for tests */
typedef void (*vlm_trace_pt)(void *data, const char *module,
    const vlm_tensor_t *t);
void vlm_model_trace(vlm_model_t *m, vlm_trace_pt trace, void *data);


#endif /* VLM_MODEL_H */
