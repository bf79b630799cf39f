
/*
 * ngx_http_vlm_module: what its files share.
 *
 *     ngx_http_vlm_module.c       directives, process start and end
 *     ngx_http_vlm_variables.c    $vlm_*
 *     ngx_http_vlm_group.c        which engine a request goes to
 *     ngx_http_vlm_engine.c       the connection to an engine
 *     ngx_http_vlm_watchdog.c     an engine that does not move any more
 *     ngx_http_vlm_slot.c         requests on it: submit, cancel, events
 *     ngx_http_vlm_room.c         room in the arena and who gives way
 *     ngx_http_vlm_request.c      handler, admission, life of a request
 *     ngx_http_vlm_client.c       whether the client is still there
 *     ngx_http_vlm_body.c         the body: pump, form fields to the arena
 *     ngx_http_vlm_record.c       the finished form as a request record
 *     ngx_http_vlm_choice.c       what is to be sent of an answer's choices
 *     ngx_http_vlm_output.c       the answer
 *     ngx_http_vlm_error.c        error answers
 *     ngx_http_vlm_zone.c         counters in shared memory
 *     ngx_http_vlm_status.c       vlm_status
 *
 * Rules of memory: a request is known elsewhere only through its context,
 * and every link to the context (slot, queues, timer, posted event) is cut
 * by ngx_http_vlm_close(), at the latest in the request's cleanup.  Events
 * that come from outside a request's connection (the engine, other requests)
 * only set fields of the context and post ctx->wake; what touches the request
 * runs in the handler of that event.
 */

#ifndef _NGX_HTTP_VLM_MODULE_H_INCLUDED_
#define _NGX_HTTP_VLM_MODULE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>

#include <openssl/evp.h>

#include "engine/channel/vlm_worker.h"
#include "engine/channel/vlm_record.h"

#include "ngx_vlm_module/core/vlm_accept.h"
#include "ngx_vlm_module/core/vlm_answer.h"
#include "ngx_vlm_module/core/vlm_fail.h"
#include "ngx_vlm_module/core/vlm_form.h"
#include "ngx_vlm_module/core/vlm_metrics.h"


#define NGX_HTTP_VLM_MAX_REQUESTS   32768
#define NGX_HTTP_VLM_EVENT_RING     (1u << 20)

/* what a request may need in the arena beside its body */
#define NGX_HTTP_VLM_RECORD_ROOM    16384

/* an upload that sent nothing for so long gives way to a newcomer */
#define NGX_HTTP_VLM_SILENT         5000

/* a slow answer is never held back in less than this */
#define NGX_HTTP_VLM_MIN_OUTPUT     8192

/* bytes of a body taken, and events of an engine, before others have a turn */
#define NGX_HTTP_VLM_BODY_TURN      (1u << 20)
#define NGX_HTTP_VLM_EVENT_TURN     512


typedef struct ngx_http_vlm_ctx_s     ngx_http_vlm_ctx_t;
typedef struct ngx_http_vlm_engine_s  ngx_http_vlm_engine_t;
typedef struct ngx_http_vlm_hold_s    ngx_http_vlm_hold_t;
typedef struct ngx_http_vlm_zone_s    ngx_http_vlm_zone_t;

typedef struct ngx_http_vlm_zone_engine_s  ngx_http_vlm_zone_engine_t;


typedef struct {
    ngx_array_t                 engines;    /* ngx_http_vlm_engine_t * */
    ngx_array_t                 groups;     /* ngx_http_vlm_group_t * */
    off_t                       arena_size;
    ngx_uint_t                  max_requests;
    off_t                       need;       /* of the largest request */
    ngx_shm_zone_t             *shm_zone;
    ngx_http_vlm_zone_t        *zone;
    ngx_uint_t                  status;     /* vlm_status is used */

    /* of a worker process, from the first request on */
    vlm_arena_t                 arena;
    ngx_queue_t                 uploads;    /* contexts, the oldest first */
    ngx_queue_t                 starved;    /* of these, paused for room */
    ngx_uint_t                  nrequests;
    ngx_uint_t                  nheld;      /* holds of complete bodies */
    ngx_uint_t                  generation; /* of the last connection */
    vlm_metrics_t              *metrics;    /* this worker's, in zone */
    uint64_t                    owner;      /* 0: they are not its own */
    unsigned                    started:1;
} ngx_http_vlm_main_conf_t;


/* an engine in a group; a "vlm_pass unix:PATH" is a group too */

typedef struct {
    ngx_http_vlm_engine_t      *engine;
    ngx_uint_t                  max_fails;  /* 0: any number */
    ngx_msec_t                  fail_timeout;
    unsigned                    backup:1;
} ngx_http_vlm_server_t;


typedef struct {
    ngx_str_t                   name;
    ngx_array_t                 servers;    /* ngx_http_vlm_server_t */
    ngx_uint_t                  next;       /* the first to look at */
    ngx_msec_t                  patience;   /* see engine->patience */
    unsigned                    image:1;    /* affinity image */
    ngx_str_t                   file;       /* where it was named first */
    ngx_uint_t                  line;
} ngx_http_vlm_group_t;


typedef struct {
    ngx_http_vlm_group_t       *group;

    size_t                      max_request_size;
    ngx_uint_t                  max_images;
    size_t                      max_image_size;
    size_t                      max_text_size;
    ngx_uint_t                  max_parts;
    ngx_uint_t                  max_tokens;

    ngx_http_complex_value_t   *system;
    ngx_http_complex_value_t   *prompt;
    ngx_http_complex_value_t   *cache_scope;

    ngx_msec_t                  connect_timeout;
    ngx_msec_t                  queue_timeout;
    ngx_msec_t                  read_timeout;
    ngx_msec_t                  ping_interval;

    size_t                      output_buffer_size;
    ngx_flag_t                  ignore_client_abort;
} ngx_http_vlm_loc_conf_t;


/* regions of the arena that one request occupies; outlives its context */

struct ngx_http_vlm_hold_s {
    ngx_http_vlm_hold_t        *next;       /* in engine->suspects */
    ngx_uint_t                  n;
    ngx_uint_t                  complete;   /* the body is */
    uint64_t                    regions[VLM_MAX_PICTURES + 8];
};


typedef enum {
    NGX_HTTP_VLM_SLOT_FREE = 0,
    NGX_HTTP_VLM_SLOT_TAKEN,            /* nothing is submitted yet */
    NGX_HTTP_VLM_SLOT_ACTIVE,
    NGX_HTTP_VLM_SLOT_CANCELLED         /* waits for the engine's word */
} ngx_http_vlm_slot_state_e;


typedef struct {
    ngx_http_vlm_ctx_t         *ctx;        /* NULL: nobody is interested */
    ngx_http_vlm_hold_t        *hold;       /* what the engine may read */
    uint32_t                    generation;
    uint32_t                    next;       /* in the list of free slots */
    ngx_http_vlm_slot_state_e   state;
    ngx_queue_t                 queue;      /* in engine->cancelled */
    ngx_msec_t                  cancelled;  /* when */
    unsigned                    overdue:1;  /* its acknowledgement was */
} ngx_http_vlm_slot_t;


typedef enum {
    NGX_HTTP_VLM_DOWN = 0,
    NGX_HTTP_VLM_CONNECTING,
    NGX_HTTP_VLM_UP
} ngx_http_vlm_engine_state_e;


/* an engine as one worker process sees it */

struct ngx_http_vlm_engine_s {
    ngx_str_t                   name;       /* as configured: unix:PATH */
    char                       *path;
    ngx_http_vlm_main_conf_t   *main;
    ngx_http_vlm_zone_engine_t *shared;     /* NULL: there is no zone */

    ngx_http_vlm_engine_state_e state;
    vlm_worker_t                channel;
    ngx_connection_t           *socket;
    ngx_connection_t           *bell;       /* of channel.event_fd */
    ngx_event_t                 timer;      /* retry, end of a handshake */
    ngx_msec_t                  delay;      /* before the next retry */
    ngx_msec_t                  tried;
    ngx_uint_t                  failures;   /* since it was last up */
    ngx_uint_t                  fails;      /* in a row, of any kind */
    ngx_msec_t                  failed;     /* when it did last */
    ngx_msec_t                  connected;  /* when */
    ngx_msec_t                  patience;   /* with one that does not move */
    ngx_msec_t                  moved;      /* seen to, last */
    uint64_t                    heartbeat;
    ngx_http_vlm_hold_t        *suspects;   /* regions it may still read */
    unsigned                    hung:1;     /* why its requests are lost */
    unsigned                    deaf:1;
    unsigned                    refused:1;  /* the last attempt failed */
    vlm_fail_t                  fail;       /* of the last attempt */

    ngx_queue_t                 waiting;    /* contexts */
    ngx_http_vlm_slot_t        *slots;
    uint32_t                    free;       /* first free slot */
    ngx_queue_t                 cancelled;  /* slots, the oldest first */
    ngx_uint_t                  nslots;     /* in use */
    vlm_engine_info_t           info;
    vlm_event_t                 event;
};


typedef enum {
    NGX_HTTP_VLM_START = 0,             /* waits for the engine, body unread */
    NGX_HTTP_VLM_BODY,
    NGX_HTTP_VLM_STARVED,               /* body paused: no room in the arena */
    NGX_HTTP_VLM_SUBMIT,                /* body read, waits for the engine */
    NGX_HTTP_VLM_ANSWER,                /* the engine has it */
    NGX_HTTP_VLM_CLOSED
} ngx_http_vlm_state_e;


/* pieces of a body's field, or of the whole body, in the arena */

typedef struct {
    uint64_t                    offset;
    uint64_t                    size;
    uint64_t                    used;
} ngx_http_vlm_room_t;


typedef struct {
    size_t                      received;
    size_t                      turn;       /* bytes taken in this turn */
    uint64_t                    start;      /* of the current field, in room */
    ngx_http_vlm_room_t         room;
    EVP_MD_CTX                 *md;         /* of the current picture */
    unsigned                    unplaced:1; /* a field waits for its room */

    /* a body that was read before: it stays as it is for others */
    unsigned                    buffered:1;
    ngx_chain_t                *chain;
    u_char                     *pos;
    off_t                       file_pos;
    ngx_buf_t                  *file_buf;

    vlm_extent_t                prompt;
    vlm_extent_t                system;
    vlm_picture_t              *pictures;
    vlm_form_t                  form;
} ngx_http_vlm_body_t;


/* one choice: what is not yet sent of it, and what is next */

typedef struct {
    u_char                     *data;
    size_t                      len;
    size_t                      size;
} ngx_http_vlm_bytes_t;


typedef struct {
    ngx_http_vlm_bytes_t        text;
    ngx_http_vlm_bytes_t        logprobs;
    size_t                      take;       /* of text, in the next piece */
    size_t                      take_logprobs;
    uint32_t                    finish;     /* VLM_FINISH_*, 0: not yet */
    ngx_msec_t                  spoke;      /* when it said something last */
    unsigned                    spoken:1;
    unsigned                    end:1;      /* the next piece tells of it */
    unsigned                    ended:1;    /* it is told */
} ngx_http_vlm_choice_t;


typedef struct {
    size_t                      take;       /* of all choices */
    unsigned                    end:1;      /* a choice ends */
    unsigned                    ping:1;
    unsigned                    error:1;    /* ends with ctx->fail */
    unsigned                    last:1;
} ngx_http_vlm_piece_t;


/* the answer */

typedef struct {
    vlm_answer_t                answer;
    ngx_http_vlm_choice_t      *choices;
    ngx_uint_t                  nchoices;
    ngx_uint_t                  first;      /* choice of the next piece */
    size_t                      len;        /* not yet sent, of all choices */
    size_t                      limit;
    ngx_buf_t                  *buf;        /* the one on its way */
    ngx_chain_t                 link;
    ngx_msec_t                  sent;       /* when something was sent last */
    off_t                       conn_sent;  /* what the client has read, */
    u_char                     *buf_pos;    /* as far as that can be told */
    unsigned                    type:2;     /* VLM_ANSWER_* */
    unsigned                    stream:1;
    unsigned                    logprobs:1;
    unsigned                    role:1;     /* the role chunks are out */
    unsigned                    ping:1;     /* one is due */
    unsigned                    reported:1; /* since the last ping */
    unsigned                    left_queue:1;
    unsigned                    busy:1;     /* buf is not yet sent */
} ngx_http_vlm_output_t;


struct ngx_http_vlm_ctx_s {
    ngx_http_request_t         *request;
    ngx_http_vlm_main_conf_t   *main;
    ngx_http_vlm_loc_conf_t    *conf;
    ngx_http_vlm_engine_t      *engine;

    ngx_http_vlm_state_e        state;
    ngx_http_vlm_slot_t        *slot;
    ngx_http_vlm_hold_t        *hold;       /* until submitted */
    ngx_queue_t                 uploads;    /* in main->uploads */
    ngx_queue_t                 queue;      /* engine->waiting or
                                               main->starved */
    ngx_event_t                 wake;
    ngx_event_t                 timer;
    ngx_msec_t                  deadline;   /* of waiting for something */
    ngx_msec_t                  received;   /* when the request began */
    ngx_msec_t                  heard;      /* of the client, or engine */

    off_t                       length;     /* of the body, -1: not known */
    ngx_str_t                   request_id;
    ngx_http_log_handler_pt     log_handler;    /* nginx's own */
    u_char                      boundary[VLM_MULTIPART_BOUNDARY];
    size_t                      boundary_len;

    ngx_http_vlm_body_t        *body;
    ngx_http_vlm_output_t       output;
    vlm_fail_t                  fail;       /* status 0: none */
    vlm_event_done_t            done;

    /* for variables too */
    ngx_uint_t                  status;
    ngx_str_t                   model;
    u_char                      model_name[VLM_MODEL_NAME_LEN];
    ngx_uint_t                  npictures;
    uint32_t                    prompt_tokens;
    uint32_t                    image_tokens;
    uint32_t                    ntokens;

    unsigned                    uploading:1;
    unsigned                    queued:1;   /* "queue" is linked */
    unsigned                    counted:1;  /* in main->nrequests */
    unsigned                    admitted:1;
    unsigned                    finished:1; /* DONE has come */
};


/* ngx_http_vlm_group.c */

char *ngx_http_vlm_pass(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_vlm_engine_block(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
ngx_int_t ngx_http_vlm_init_groups(ngx_conf_t *cf,
    ngx_http_vlm_main_conf_t *vmcf);
ngx_int_t ngx_http_vlm_choose(ngx_http_vlm_ctx_t *ctx);
void ngx_http_vlm_place(ngx_http_vlm_ctx_t *ctx);
ngx_uint_t ngx_http_vlm_left_out(ngx_http_vlm_ctx_t *ctx);
void ngx_http_vlm_engine_failed(ngx_http_vlm_engine_t *engine);

/* ngx_http_vlm_engine.c */

/*
 * NGX_OK: it is up; NGX_AGAIN: a connect is under way, queue the context in
 * engine->waiting; NGX_ERROR: engine->fail says why not.
 */
ngx_int_t ngx_http_vlm_engine_get(ngx_http_vlm_engine_t *engine);
void ngx_http_vlm_engine_broken(ngx_http_vlm_engine_t *engine,
    const char *what);
void ngx_http_vlm_engine_exit(ngx_http_vlm_engine_t *engine);

/* ngx_http_vlm_watchdog.c */

void ngx_http_vlm_watchdog_start(ngx_http_vlm_engine_t *engine);
void ngx_http_vlm_watchdog(ngx_http_vlm_engine_t *engine);
void ngx_http_vlm_suspect(ngx_http_vlm_engine_t *engine,
    ngx_http_vlm_hold_t **hold);
void ngx_http_vlm_suspects_free(ngx_http_vlm_engine_t *engine);

/* ngx_http_vlm_slot.c */

ngx_int_t ngx_http_vlm_slots_init(ngx_http_vlm_engine_t *engine);
ngx_http_vlm_slot_t *ngx_http_vlm_slot_take(ngx_http_vlm_ctx_t *ctx);
ngx_int_t ngx_http_vlm_slot_submit(ngx_http_vlm_ctx_t *ctx, uint64_t offset,
    uint32_t length);
void ngx_http_vlm_slot_leave(ngx_http_vlm_ctx_t *ctx);
void ngx_http_vlm_slots_lost(ngx_http_vlm_engine_t *engine);
void ngx_http_vlm_slots_drain(ngx_http_vlm_engine_t *engine);
void ngx_http_vlm_slot_events(ngx_event_t *ev);

/* ngx_http_vlm_room.c */

ngx_int_t ngx_http_vlm_room_admit(ngx_http_vlm_ctx_t *ctx);
ngx_int_t ngx_http_vlm_room_begin(ngx_http_vlm_ctx_t *ctx, size_t max);
void ngx_http_vlm_room_end(ngx_http_vlm_ctx_t *ctx);
ngx_int_t ngx_http_vlm_room_add(ngx_http_vlm_ctx_t *ctx, size_t size,
    uint64_t *offset);
void ngx_http_vlm_hold_free(ngx_http_vlm_main_conf_t *vmcf,
    ngx_http_vlm_hold_t **hold);
void ngx_http_vlm_upload_start(ngx_http_vlm_ctx_t *ctx);
void ngx_http_vlm_upload_end(ngx_http_vlm_ctx_t *ctx);

/* ngx_http_vlm_request.c */

ngx_int_t ngx_http_vlm_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_vlm_check_engine(ngx_http_vlm_ctx_t *ctx);
void ngx_http_vlm_wake(ngx_http_vlm_ctx_t *ctx);
void ngx_http_vlm_timer(ngx_http_vlm_ctx_t *ctx);
void ngx_http_vlm_submit(ngx_http_vlm_ctx_t *ctx);
void ngx_http_vlm_unqueue(ngx_http_vlm_ctx_t *ctx);
void ngx_http_vlm_finalize(ngx_http_vlm_ctx_t *ctx, ngx_int_t rc);
void ngx_http_vlm_close(ngx_http_vlm_ctx_t *ctx);

/* ngx_http_vlm_client.c */

void ngx_http_vlm_watch_client(ngx_http_vlm_ctx_t *ctx);

/* ngx_http_vlm_body.c */

ngx_int_t ngx_http_vlm_body_init(ngx_http_vlm_ctx_t *ctx);
void ngx_http_vlm_body_start(ngx_http_request_t *r);
void ngx_http_vlm_body_pump(ngx_http_vlm_ctx_t *ctx);
void ngx_http_vlm_body_free(ngx_http_vlm_ctx_t *ctx);

/* ngx_http_vlm_record.c */

ngx_int_t ngx_http_vlm_record(ngx_http_vlm_ctx_t *ctx, uint64_t *offset,
    uint32_t *length);

/* ngx_http_vlm_choice.c */

ngx_int_t ngx_http_vlm_choices_init(ngx_http_vlm_ctx_t *ctx);
void ngx_http_vlm_output_text(ngx_http_vlm_ctx_t *ctx,
    const vlm_event_t *event);
void ngx_http_vlm_choices_take(ngx_http_vlm_ctx_t *ctx,
    ngx_http_vlm_piece_t *piece);
void ngx_http_vlm_choices_taken(ngx_http_vlm_ctx_t *ctx);

/* ngx_http_vlm_output.c */

unsigned ngx_http_vlm_accept(ngx_http_request_t *r, unsigned stream);
ngx_int_t ngx_http_vlm_output_init(ngx_http_vlm_ctx_t *ctx);
ngx_uint_t ngx_http_vlm_output_due(ngx_http_vlm_ctx_t *ctx);
void ngx_http_vlm_output(ngx_http_vlm_ctx_t *ctx);
ngx_int_t ngx_http_vlm_add_header(ngx_http_request_t *r, const char *key,
    ngx_str_t *value);

/* ngx_http_vlm_error.c */

ngx_int_t ngx_http_vlm_error(ngx_http_vlm_ctx_t *ctx);
void ngx_http_vlm_fail_from_event(vlm_fail_t *fail,
    const vlm_event_t *event);

/* ngx_http_vlm_zone.c */

char *ngx_http_vlm_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
void ngx_http_vlm_zone_leave(ngx_http_vlm_main_conf_t *vmcf);
ngx_uint_t ngx_http_vlm_zone_sum(ngx_http_vlm_main_conf_t *vmcf,
    vlm_metrics_t *sum);
void ngx_http_vlm_zone_set_engine(ngx_http_vlm_engine_t *engine);
void ngx_http_vlm_zone_get_engine(ngx_http_vlm_engine_t *engine,
    vlm_metrics_engine_t *to);
void ngx_http_vlm_count_start(ngx_http_vlm_ctx_t *ctx);
void ngx_http_vlm_count_tokens(ngx_http_vlm_ctx_t *ctx,
    const vlm_event_t *event);
void ngx_http_vlm_count_end(ngx_http_vlm_ctx_t *ctx);

/* ngx_http_vlm_status.c */

char *ngx_http_vlm_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);

/* ngx_http_vlm_variables.c */

ngx_int_t ngx_http_vlm_add_variables(ngx_conf_t *cf);


extern ngx_module_t  ngx_http_vlm_module;


#endif /* _NGX_HTTP_VLM_MODULE_H_INCLUDED_ */
