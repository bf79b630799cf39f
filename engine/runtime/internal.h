
/* Inside the runtime: the engine, and the work on one request. */

#ifndef VLM_RUNTIME_INTERNAL_H
#define VLM_RUNTIME_INTERNAL_H


#include <pthread.h>

#include <openssl/evp.h>

#include "engine/runtime/embed.h"
#include "engine/runtime/encoding.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/pace.h"
#include "engine/runtime/sampling.h"
#include "engine/runtime/scheduler.h"


/* a list of requests that wait for a thread */

typedef struct {
    pthread_mutex_t     lock;
    pthread_cond_t      cond;           /* on CLOCK_MONOTONIC */
    vlm_req_t          *head;
    vlm_req_t          *tail;
    int                 wake;           /* look around, even if it is empty */
    int                 stop;
} vlm_inbox_t;

int vlm_inbox_init(vlm_inbox_t *in);
void vlm_inbox_free(vlm_inbox_t *in);
void vlm_inbox_put(vlm_inbox_t *in, vlm_req_t *req);
void vlm_inbox_wake(vlm_inbox_t *in);
void vlm_inbox_stop(vlm_inbox_t *in);

/*
 * The whole list, oldest first.  Waits up to wait_us (0: not at all, -1: as
 * long as it takes) for anything to happen.  *stop is set when it is time to
 * end.
 */
vlm_req_t *vlm_inbox_take(vlm_inbox_t *in, int wait_us, int *stop);


/* a task of the image pool: to prepare a request, or to decode a picture */

typedef struct vlm_task_s  vlm_task_t;

struct vlm_task_s {
    vlm_task_t         *next;
    vlm_req_t          *req;
    int32_t             picture;        /* -1: prepare the request */
};

typedef struct {
    pthread_mutex_t     lock;
    pthread_cond_t      cond;
    vlm_task_t         *head[2];        /* preparing comes first */
    vlm_task_t         *tail[2];
    int                 stop;
    int                 nthreads;
    pthread_t           threads[64];
    vlm_engine_t       *engine;
} vlm_images_t;

int vlm_images_start(vlm_images_t *p, vlm_engine_t *e, int nthreads,
    vlm_error_t *err);
void vlm_images_stop(vlm_images_t *p);
void vlm_images_put(vlm_images_t *p, vlm_task_t *task);


/* one picture of a request */

struct vlm_pic_s {
    vlm_task_t          task;
    vlm_image_info_t    info;
    vlm_image_plan_t    plan;
    vlm_image_t         image;          /* resized, until it is encoded */
    vlm_error_t         error;          /* status 0: none */
    vlm_tensor_t        embedding;      /* the cache's; data NULL: not yet */
    vlm_embed_pic_t     cache;
    vlm_encode_item_t   item;
};

/* one answer of a request */

typedef struct {
    vlm_seq_t           seq;            /* first: a seq is its choice */
    vlm_work_t         *work;

    vlm_sampler_t       sampler;
    vlm_detok_t        *detok;
    vlm_said_t          said;           /* not yet in the mail */
    vlm_ids_t           generated;
    vlm_prefix_key_t   *keys;           /* its own, when the answer has some */
    int32_t             size_keys;
    EVP_MD_CTX         *digest;         /* of all logits; conf.digest */
} vlm_choice_t;

/* all that is made of a request */

struct vlm_work_s {
    vlm_req_t          *req;

    vlm_task_t          prepare;
    void               *record;         /* private copy, with scratch */
    void               *scratch;
    vlm_request_t       in;
    char               *texts;          /* private copy of all texts */
    vlm_str_t          *parts;

    vlm_pic_t          *pics;
    int32_t             undecoded;      /* atomic; of those that are out */
    int32_t             nwaiting;       /* pictures that wait for the cache */
    uint32_t            stage;          /* of them, as told */
    int                 decoding;       /* tasks are out */
    int                 ended;          /* but for them */
    int                 result;         /* then */
    int                 released;       /* its input has been */
    int                 announced;      /* its place has been told */
    uint32_t            place;

    vlm_prompt_t        prompt;
    int32_t            *positions;      /* [3][prompt length] */
    int32_t             delta;
    int32_t             max_tokens;
    vlm_prefix_key_t    root;           /* of the names of blocks */
    int                 unshared;       /* blocks have no names any more */
    vlm_prefix_span_t  *spans;
    vlm_prefix_key_t   *keys;           /* of the prompt's full blocks */

    vlm_choice_t       *choices;        /* the first computes the prompt */
    uint32_t            nchoices;
    uint32_t            nended;
    int32_t             cached;         /* tokens of the prompt */

    /* the last time before the first token, 0: never */

    uint64_t            started_us;
    uint64_t            decoded_us;
    uint64_t            encoded_us;     /* by the tower, for this request */
    uint64_t            cached_us;      /* had from the cache, not at once */
    uint64_t            first_us;
};

void vlm_work_free(vlm_work_t *w);


/* tables of one step, allocated once */

typedef struct {
    int32_t            *row_start;
    int32_t            *context;
    int32_t            *blocks;         /* grown on demand */
    size_t              size_blocks;
    int32_t            *ids;
    int32_t            *positions;
    int32_t            *out_rows;
    vlm_inject_t       *inject;         /* grown on demand */
    int32_t             ninject;
    int32_t             size_inject;
    vlm_sample_t       *params;
    vlm_sampled_t      *sampled;
    vlm_choice_t      **sampling;       /* whose row it is */
    float              *logits;         /* conf.digest: a copy on the host */
} vlm_tables_t;


struct vlm_engine_s {
    vlm_engine_conf_t   conf;
    char                name[VLM_MODEL_NAME_LEN];
    vlm_prefix_key_t    secret;         /* of the prefix cache's keys */

    /* set by the compute thread before READY, read-only from then on */

    vlm_device_t       *dev;
    vlm_device_kind_t   device_kind;    /* never AUTO */
    const vlm_ops_t    *ops;
    vlm_model_t        *model;
    vlm_room_t          room;
    vlm_need_t          need;
    vlm_memory_t        mem;

    /* the compute thread's */

    vlm_queue_t        *queue;
    vlm_queue_t        *vision_queue;
    vlm_decoder_t      *decoder;
    vlm_sched_t         sched;
    vlm_plan_t          plan;
    vlm_tables_t        tables;
    vlm_encoding_t      encoding;
    vlm_pace_t          pace;
    double              encode_debt_us; /* slices were longer than allowed */
    int                 loaded_percent;

    pthread_t           thread;
    vlm_inbox_t         inbox;
    vlm_images_t        images;
    vlm_embed_t         embed;

    /* the mail, and what else threads tell the front; under out_lock */

    pthread_mutex_t     out_lock;
    int                 out_fd;         /* eventfd */
    vlm_req_t          *out_head;
    vlm_req_t          *out_tail;
    int                 state;
    vlm_error_t         error;
    vlm_gauges_t        gauges;
    uint32_t            service_ms;     /* recent mean of a running answer */
};


/* ---- the device (device.c) ---- */

/* by conf.device; sets conf.device_memory */
int vlm_device_open(vlm_engine_t *e, vlm_error_t *err);
void vlm_device_close(vlm_engine_t *e);

/* of CUDA: bytes that may be taken now */
int vlm_device_room(vlm_engine_t *e, uint64_t *room, vlm_error_t *err);

/* 1: it will never work again in this process */
int vlm_device_lost(const vlm_engine_t *e);


/* ---- memory (memory.c) ---- */

/* of the device's, what the engine allocates once the weights are loaded */
void vlm_memory_room(const vlm_engine_t *e, vlm_room_t *room);


/* ---- mail (mail.c): from any thread, about a request that it has ---- */

void vlm_mail_admitted(vlm_engine_t *e, vlm_req_t *req, uint32_t place);
void vlm_mail_stage(vlm_engine_t *e, vlm_req_t *req, uint32_t stage,
    uint32_t place);
void vlm_mail_released(vlm_engine_t *e, vlm_req_t *req);

/* moves what a choice has said into the mail; VLM_ERROR: no memory */
int vlm_mail_said(vlm_engine_t *e, vlm_req_t *req, uint32_t choice,
    vlm_said_t *said);

/* gives the request back to the front: it must not be touched any more */
void vlm_mail_final(vlm_engine_t *e, vlm_req_t *req, int result);
void vlm_mail_state(vlm_engine_t *e, int state, const vlm_error_t *err);


/* ---- intake (intake.c): on the image pool ---- */

int vlm_intake(vlm_engine_t *e, vlm_req_t *req, vlm_error_t *err);

/* choices, and the names of the prompt's blocks (choice.c) */
int vlm_choices_create(vlm_engine_t *e, vlm_req_t *req, vlm_error_t *err);
void vlm_choices_free(vlm_work_t *w);

/*
 * A picture's bytes are not those that its key stands for: no block from it
 * on has a name.
 */
void vlm_work_unshare(const vlm_engine_t *e, vlm_work_t *w, int32_t picture);

/* the i-th token of prompt and answer */
int32_t vlm_choice_id(const vlm_choice_t *c, int32_t i);

/* names all blocks that are full when n tokens are computed, if it can */
void vlm_choice_name(vlm_engine_t *e, vlm_choice_t *c, int32_t n);

/* how far it can be computed with the pictures encoded so far */
void vlm_choice_ready(vlm_choice_t *c);

/* whether a picture's embedding is needed by what runs now */
int vlm_work_needs(const vlm_work_t *w, int32_t picture);

/* the picture's placeholders in the prompt */
const vlm_span_t *vlm_work_span(const vlm_work_t *w, int32_t picture);


/* decodes and resizes a picture; the error is left in it */
void vlm_intake_picture(vlm_engine_t *e, vlm_req_t *req, int32_t picture);

int vlm_req_cancelled(const vlm_req_t *req);

/* the deadline by which it must have left the queue */
uint64_t vlm_req_deadline(const vlm_engine_t *e, const vlm_req_t *req);
int vlm_req_late(const vlm_engine_t *e, vlm_req_t *req, uint64_t now);


/* ---- compute thread (compute.c, encode.c, step.c) ---- */

void *vlm_compute_main(void *data);

int vlm_load(vlm_engine_t *e, vlm_error_t *err);
void vlm_unload(vlm_engine_t *e);

/* ends a request with an error, from the compute thread */
void vlm_compute_fail(vlm_engine_t *e, vlm_work_t *w, const vlm_error_t *err);

/* a choice has come to its end, the request perhaps too */
void vlm_compute_ended(vlm_engine_t *e, vlm_choice_t *c);

/* its prompt is computed: the other choices may begin */
int vlm_compute_siblings(vlm_engine_t *e, vlm_work_t *w);

int vlm_tables_init(vlm_engine_t *e, vlm_error_t *err);
void vlm_tables_free(vlm_engine_t *e);

/* one forward pass over the plan; VLM_AGAIN: there was nothing to do */
int vlm_step(vlm_engine_t *e);

/* puts the pictures of a request that have pixels into the queue */
void vlm_encode_add(vlm_engine_t *e, vlm_work_t *w);

/* a picture's turn is over: its copy, or an error; see encoding.h */
void vlm_encode_done(void *data, vlm_encode_item_t *item, void *copy,
    const vlm_error_t *err);

/*
 * A slice of encoding, or what has been done of those on the queue; VLM_AGAIN:
 * there was nothing to do.
 */
int vlm_encode_slice(vlm_engine_t *e);

/*
 * Puts slices on the queue, where they run beside a step.  VLM_AGAIN: enough
 * are there, or none are to be, or they do not run beside it.
 */
int vlm_encode_submit(vlm_engine_t *e);

/* takes all pictures of a request out of the queue and of jobs */
void vlm_encode_drop(vlm_engine_t *e, vlm_work_t *w);

/* whether any picture is being encoded or waits for it */
int vlm_encode_busy(const vlm_engine_t *e);

/* running answers, whose next tokens are waited for */
int32_t vlm_answers(const vlm_engine_t *e);

/* a step of the plan took us */
void vlm_pace_learn(vlm_engine_t *e, uint64_t us);


#endif /* VLM_RUNTIME_INTERNAL_H */
