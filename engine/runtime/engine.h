
/*
 * The engine without its socket: requests go in, what is to be told about
 * them comes out.  The server and "vlm-engine run" are two fronts of it.
 *
 * Threads.  The front (one thread), the image pool, the compute thread.  A
 * request belongs to one of them at a time and is handed on through an inbox;
 * the front gets it back exactly once, with VLM_MAIL_FINAL.  Meanwhile what
 * the front is to know is left in the request's mail, under one lock, where
 * it is merged until the front takes it: nobody ever waits for the front.
 * The front may look at the fields marked so, and set the cancel flag.
 */

#ifndef VLM_ENGINE_H
#define VLM_ENGINE_H


#include "engine/channel/vlm_record.h"
#include "engine/channel/vlm_wire.h"
#include "engine/cache/memory.h"
#include "engine/cache/redis.h"
#include "engine/model/model.h"


#define VLM_DEFAULT_MAX_TOKENS  1024
#define VLM_MAX_TEXT_BYTES      (16u << 20)     /* of one request */
#define VLM_DEFAULT_GAP_FACTOR  1.5


typedef struct vlm_engine_s  vlm_engine_t;
typedef struct vlm_req_s     vlm_req_t;

typedef enum {
    VLM_DEVICE_AUTO = 0,                /* CUDA, else the CPU */
    VLM_DEVICE_CPU,
    VLM_DEVICE_CUDA,
    VLM_DEVICE_EMU                      /* CUDA's sources on the host */
} vlm_device_kind_t;

typedef struct {
    const char     *model;              /* directory */
    const char     *name;               /* served as; NULL: the model's */
    vlm_device_kind_t  device;
    int             device_index;       /* of CUDA */
    int             deterministic;      /* it is not by itself */
    float           gpu_utilization;    /* share of its memory */
    uint64_t        device_memory;      /* set by the engine: what may be
                                           taken, 0: the host's */
    int             threads;            /* 0: all CPUs */
    int             image_threads;
    vlm_dtype_t     embedding_dtype;
    vlm_quant_t     quant;              /* of the decoder */
    vlm_quant_t     vision_quant;       /* of the tower */
    int32_t         max_model_len;      /* 0: the model's, if it fits */
    int32_t         max_num_seqs;
    int32_t         max_rows;           /* --max-num-batched-tokens */
    int32_t         max_queue;
    uint64_t        queue_timeout_ms;
    int32_t         max_images;
    uint64_t        max_image_pixels;   /* 0: the default, by memory */
    uint64_t        min_pixels;
    uint64_t        max_pixels;
    uint64_t        kv_memory;          /* 0: the default */
    uint64_t        cache_memory;       /* of embeddings */
    const vlm_redis_url_t  *redis;      /* NULL: none */
    uint64_t        redis_ttl_ms;
    uint64_t        redis_timeout_ms;   /* 0: by the time of encoding */
    uint64_t        redis_max_value;
    int32_t         block_size;
    int             prefix_cache;       /* requests share what is equal */
    double          gap_factor;         /* --max-token-gap-factor, above 1;
                                           0: the default */
    int             digest;             /* SHA-256 of all logits, for tests */
} vlm_engine_conf_t;


/* what is to be told about a request, merged until it is taken */

#define VLM_MAIL_ADMITTED   0x01
#define VLM_MAIL_STAGE      0x02
#define VLM_MAIL_RELEASED   0x04
#define VLM_MAIL_FINAL      0x08        /* the request is the front's again */

/* a token whose log probabilities were asked for */

typedef struct {
    uint32_t        length;             /* of the text that came with it */
    vlm_sampled_t   sampled;
} vlm_token_t;

/* what has been generated of one choice, and what of it the front has sent */

typedef struct {
    vlm_buf_t       text;
    size_t          text_sent;
    uint32_t        ntokens;            /* that the rest stands for */
    uint32_t        finish;             /* VLM_FINISH_*, 0: it goes on */

    vlm_token_t    *tokens;             /* with log probabilities only; their
                                           lengths sum up to the text's */
    size_t          nlisted;
    size_t          listed_sent;
    size_t          size;
} vlm_said_t;

typedef struct {
    unsigned        flags;              /* VLM_MAIL_* */
    uint32_t        stage;              /* VLM_STAGE_* */
    uint32_t        place;              /* in the queue */
    int             result;             /* FINAL: VLM_OK, or VLM_ERROR and
                                           the request's "error" */
    vlm_said_t     *said;               /* of each choice; NULL: nothing */
    uint32_t        nsaid;
} vlm_mail_t;

/* adds a token; its text is what is appended to s->text from now on */
int vlm_said_token(vlm_said_t *s, const vlm_sampled_t *sampled);

/* moves all of "from" to the end of "to" */
int vlm_said_move(vlm_said_t *to, vlm_said_t *from);
void vlm_said_free(vlm_said_t *s);

/* what all choices of "from" say goes to "to", whose flags stay */
int vlm_mail_move(vlm_mail_t *to, vlm_mail_t *from);
void vlm_mail_free(vlm_mail_t *mail);


/*
 * A request.  The front fills the first part and calls vlm_engine_submit();
 * the rest is private until it comes back.
 */

struct vlm_req_s {
    void               *owner;          /* the front's own */
    uint32_t            slot;
    uint32_t            generation;
    uint64_t            order;          /* of arrival, unique */
    uint64_t            submitted_us;

    const uint8_t      *arena;          /* readable until RELEASED or FINAL */
    uint64_t            arena_size;
    uint64_t            record_offset;
    uint32_t            record_length;
    vlm_image_t        *given;          /* pictures already decoded, or NULL;
                                           their pixels are taken over */

    int                 cancel;         /* atomic; the front sets it */

    /* with FINAL */

    vlm_error_t         error;          /* status 499: cancelled */
    uint32_t            retry_after;
    vlm_event_done_t    done;
    vlm_event_admitted_t  admitted;     /* with ADMITTED too */
    char                id[VLM_MAX_REQUEST_ID + 1];
    vlm_ids_t           answer;         /* ids as generated */
    uint8_t             digest[32];     /* conf.digest */

    /* under the lock of the mail */

    vlm_mail_t          mail;
    vlm_req_t          *mail_next;
    int                 mail_listed;

    /* of the thread that has the request */

    struct vlm_work_s  *work;
    vlm_req_t          *next;           /* in an inbox */
    int                 inbox;
};

vlm_req_t *vlm_req_create(void);
void vlm_req_free(vlm_req_t *req);


/*
 * Starts the threads; the compute thread loads the model.  The state is
 * LOADING, then READY, or FAILED with an error.
 */
vlm_engine_t *vlm_engine_create(const vlm_engine_conf_t *conf,
    vlm_error_t *err);

/* ends the threads; all requests must have come back */
void vlm_engine_destroy(vlm_engine_t *e);

/* readable when there is mail, or the state has changed */
int vlm_engine_fd(const vlm_engine_t *e);

/* VLM_STATE_LOADING, READY or FAILED (then *err is filled) */
int vlm_engine_state(vlm_engine_t *e, vlm_error_t *err);

/* valid once READY */
const vlm_model_t *vlm_engine_model(const vlm_engine_t *e);
void vlm_engine_info(const vlm_engine_t *e, vlm_engine_info_t *info);
void vlm_engine_gauges(vlm_engine_t *e, vlm_gauges_t *gauges);

/* counters of the embedding cache; any thread */

typedef struct {
    vlm_memory_stats_t  memory;
    vlm_redis_stats_t   redis;
    uint64_t            encoded;        /* pictures that the tower saw */
    uint64_t            bad_values;     /* of Redis */
    uint64_t            bad_pictures;
    uint64_t            mismatches;     /* bytes without the named digest */
} vlm_cache_stats_t;

void vlm_engine_cache_stats(vlm_engine_t *e, vlm_cache_stats_t *stats);

/* the same in the log; once the model is loaded */
void vlm_engine_cache_log(vlm_engine_t *e);

/* there is no Redis, or it is connected, or it could not be */
int vlm_engine_cache_settled(vlm_engine_t *e);

/* appends where the embeddings came from: "miss,hit-memory" */
void vlm_cache_outcomes(const vlm_event_done_t *done, vlm_buf_t *out);

/* recent mean of how long a request runs once it has left the queue */
uint32_t vlm_engine_service_ms(vlm_engine_t *e);

/* only when READY */
void vlm_engine_submit(vlm_engine_t *e, vlm_req_t *req);
void vlm_engine_cancel(vlm_engine_t *e, vlm_req_t *req);

/*
 * The next request with mail, NULL: none.  The mail is moved to *mail, which
 * must be freed.
 */
vlm_req_t *vlm_engine_next(vlm_engine_t *e, vlm_mail_t *mail);


/* bytes that a model needs in this configuration, and what can be had */

typedef struct {
    uint64_t        weights;
    uint64_t        kv;
    uint64_t        work;
    uint64_t        cache;              /* of embeddings; the host's memory */
    uint64_t        pictures;           /* being decoded, at worst */
    uint64_t        image_pixels;       /* of one, in force */
    uint64_t        available;          /* MemAvailable, cgroup; or CUDA's */
    int32_t         nblocks;
    int32_t         context;            /* in force */
} vlm_memory_t;

typedef struct {
    uint64_t        weights;
    uint64_t        work;
    uint64_t        host;               /* the host's, that operations use */
    uint64_t        block;              /* of keys and values, all layers */
    int32_t         context;            /* that the model has positions for */
} vlm_need_t;

/* VLM_ERROR with all numbers if it does not fit */
int vlm_memory_plan(const vlm_engine_conf_t *conf, const vlm_need_t *need,
    vlm_memory_t *mem, vlm_error_t *err);

/* opens the model and plans its memory, but starts nothing */
int vlm_engine_check(const vlm_engine_conf_t *conf, vlm_memory_t *mem,
    vlm_error_t *err);


#endif /* VLM_ENGINE_H */
