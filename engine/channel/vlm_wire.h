
/*
 * The wire: every struct that crosses between an nginx worker and an engine.
 *
 * A worker connects to the engine's unix stream socket and sends vlm_hello_t
 * with four descriptors (SCM_RIGHTS, in the order of VLM_FD_*).  The engine
 * answers with vlm_welcome_t.  From then on the socket carries nothing; its
 * end tells each side that the other one died.
 *
 * The ring memfd holds, in this order: one page of vlm_ring_header_t, the
 * submission ring (fixed entries of vlm_submission_t), the event ring (a ring
 * of bytes that holds frames, each starting with vlm_event_header_t).
 *
 * Everything here can be written by the other side at any moment: copy a
 * value to a local, check the local, use the local.  Native byte order: both
 * sides run on one machine.  Any change of a struct raises VLM_ABI.
 */

#ifndef VLM_WIRE_H
#define VLM_WIRE_H


#include <stdint.h>


#define VLM_MAGIC               0x314d4c56u         /* "VLM1" */
#define VLM_ABI                 2

#define VLM_CACHE_LINE          64

#define VLM_FD_RING             0
#define VLM_FD_ARENA            1       /* opened read-only */
#define VLM_FD_SUBMIT           2       /* eventfd: worker rings the engine */
#define VLM_FD_EVENT            3       /* eventfd: engine rings the worker */
#define VLM_NFDS                4

#define VLM_MAX_MODELS          8
#define VLM_MODEL_NAME_LEN      128     /* with the final zero */

#define VLM_MIN_EVENT_RING      65536
#define VLM_MAX_EVENT_RING      (16u << 20)
#define VLM_MAX_EVENT_FRAME     16384   /* header, body and what follows */
#define VLM_MAX_EVENT_TEXT      4096    /* of one text or error event */
#define VLM_MAX_EVENT_LOGPROBS  8192    /* bytes of one text event */
#define VLM_MAX_TOKEN_BYTES     256     /* of one token in there */
#define VLM_MIN_LOGPROB         (-9999.0f)
#define VLM_MAX_SUBMISSIONS     65536   /* entries of the submission ring */
#define VLM_MAX_REQUESTS        65536   /* slots of one worker */


/* refusal reasons in vlm_welcome_t.refused */

#define VLM_WELCOME_OK          0
#define VLM_WELCOME_VERSION     1       /* magic, ABI or a size differs */
#define VLM_WELCOME_BAD_FD      2       /* size, seals or type of an fd */
#define VLM_WELCOME_BUSY        3       /* too many workers */


typedef struct {
    uint32_t            magic;
    uint32_t            abi;
    uint32_t            hello_size;         /* sizeof(vlm_hello_t) ... */
    uint32_t            welcome_size;
    uint32_t            header_size;
    uint32_t            submission_size;
    uint32_t            event_size;         /* sizeof(vlm_event_header_t) */
    uint32_t            page_size;

    uint32_t            nsubmissions;       /* entries, a power of two */
    uint32_t            event_ring_size;    /* bytes, a power of two */
    uint64_t            ring_size;          /* bytes of the ring memfd */
    uint64_t            arena_size;         /* bytes of the arena memfd */
    uint32_t            max_requests;       /* slots are below this */
    uint32_t            generation;         /* of this connection, from 1 */
    uint32_t            pid;
    uint32_t            reserved;
} vlm_hello_t;


typedef struct {
    uint32_t            magic;
    uint32_t            abi;
    uint32_t            welcome_size;
    uint32_t            refused;            /* VLM_WELCOME_* */
    uint32_t            generation;         /* echoed */
    uint32_t            pid;
} vlm_welcome_t;


/* what an engine is, kept readable in the ring header */

#define VLM_STATE_LOADING       0
#define VLM_STATE_READY         1
#define VLM_STATE_DRAINING      2
#define VLM_STATE_FAILED        3

typedef struct {
    uint32_t            nmodels;
    uint32_t            context_length;     /* tokens, prompt and answer */
    uint32_t            max_images;         /* of one request */
    uint32_t            max_queue;
    uint64_t            max_image_pixels;
    char                models[VLM_MAX_MODELS][VLM_MODEL_NAME_LEN];
} vlm_engine_info_t;


/* gauges; each is written by the engine alone with relaxed stores */

typedef struct {
    uint32_t            running;
    uint32_t            queued;
    uint32_t            kv_blocks;
    uint32_t            kv_blocks_free;
    uint32_t            first_token_ms;     /* recent mean, 0: none yet */
    uint32_t            retry_after;        /* seconds to suggest with a 503 */
    uint64_t            heartbeat;          /* counts loop turns */
} vlm_gauges_t;


/*
 * Counters are monotonic (entries for submissions, bytes for events); the
 * place in a ring is the counter modulo its size.  The producer stores the
 * tail with release, the consumer the head.  "sleeps" is set by a consumer
 * before it waits for its eventfd; the producer rings only if it is set.
 */

typedef struct {
    _Alignas(VLM_CACHE_LINE)
    uint64_t            submit_tail;        /* worker writes */
    uint32_t            event_sleeps;       /* worker sets, engine clears */

    _Alignas(VLM_CACHE_LINE)
    uint64_t            submit_head;        /* engine writes */
    uint32_t            submit_sleeps;      /* engine sets, worker clears */

    _Alignas(VLM_CACHE_LINE)
    uint64_t            event_tail;         /* engine writes */

    _Alignas(VLM_CACHE_LINE)
    uint64_t            event_head;         /* worker writes */

    _Alignas(VLM_CACHE_LINE)
    uint32_t            state;              /* VLM_STATE_*, engine writes */
    uint32_t            info_version;       /* odd while info is written */
    vlm_gauges_t        gauges;

    _Alignas(VLM_CACHE_LINE)
    vlm_engine_info_t   info;
} vlm_ring_header_t;


/* submissions, worker to engine */

#define VLM_SUBMIT_REQUEST      1
#define VLM_SUBMIT_CANCEL       2

typedef struct {
    uint32_t            type;               /* VLM_SUBMIT_* */
    uint32_t            slot;
    uint32_t            generation;         /* of the slot, from 1 */
    uint32_t            length;             /* bytes of the record */
    uint64_t            offset;             /* of the record in the arena */
    uint64_t            reserved;
} vlm_submission_t;


/*
 * Events, engine to worker.  A frame is vlm_event_header_t, then the body of
 * its type (vlm_event_*_t below), then the text where the type has one; size
 * counts all of it rounded up to a multiple of 8.
 */

#define VLM_EVENT_ADMITTED      1
#define VLM_EVENT_PROGRESS      2
#define VLM_EVENT_TEXT          3
#define VLM_EVENT_FINISH        4       /* of one choice */
#define VLM_EVENT_DONE          5       /* of the request: the last event */
#define VLM_EVENT_ERROR         6       /* the last event too */
#define VLM_EVENT_RELEASED      7       /* the request's input is not needed */
#define VLM_EVENT_CANCELLED     8       /* a cancel is acknowledged: the last */

typedef struct {
    uint32_t            size;
    uint16_t            type;               /* VLM_EVENT_* */
    uint16_t            choice;             /* of TEXT and FINISH, from 0 */
    uint32_t            slot;
    uint32_t            generation;
} vlm_event_header_t;

typedef struct {
    uint32_t            prompt_tokens;      /* image tokens included */
    uint32_t            image_tokens;
    uint32_t            queue_place;        /* 0: runs at once */
    uint32_t            reserved;
} vlm_event_admitted_t;

/* stages, in this order; a request with no picture skips some */

#define VLM_STAGE_QUEUED        0
#define VLM_STAGE_DECODE        1       /* pictures to pixels */
#define VLM_STAGE_ENCODE        2       /* pixels to embeddings */
#define VLM_STAGE_PREFILL       3
#define VLM_STAGE_GENERATE      4

typedef struct {
    uint32_t            stage;              /* VLM_STAGE_* */
    uint32_t            queue_place;
} vlm_event_progress_t;

/*
 * Text is whole UTF-8 characters of one choice; ntokens tells how many newly
 * generated tokens it stands for (0 is possible: text held back earlier).
 * Log probabilities, where asked for, are ntokens entries behind the text,
 * see vlm_logprob.h.
 */

typedef struct {
    uint32_t            length;             /* bytes of text behind this */
    uint32_t            ntokens;
    uint32_t            nlogprobs;          /* bytes of logprob data behind */
    uint32_t            reserved;
} vlm_event_text_t;

typedef struct {
    float               logprob;            /* VLM_MIN_LOGPROB to 0 */
    uint16_t            length;             /* bytes of the token behind this */
    uint16_t            ntop;               /* alternatives behind them; of an
                                               alternative 0 */
} vlm_event_logprob_t;

#define VLM_FINISH_STOP         1       /* end token or stop string */
#define VLM_FINISH_LENGTH       2       /* max_tokens or the context's end */

typedef struct {
    uint32_t            reason;             /* VLM_FINISH_* */
    uint32_t            reserved;
} vlm_event_finish_t;

#define VLM_CACHE_MISS          1       /* where a picture's embedding came */
#define VLM_CACHE_JOINED        2       /* from; one byte for a picture */
#define VLM_CACHE_HIT_MEMORY    3
#define VLM_CACHE_HIT_REDIS     4
#define VLM_CACHE_PREFIX        5

#define VLM_MAX_CACHE_OUTCOMES  64

typedef struct {
    uint32_t            prompt_tokens;
    uint32_t            cached_tokens;
    uint32_t            image_tokens;
    uint32_t            completion_tokens;
    uint32_t            receive_us;         /* stage times, microseconds */
    uint32_t            queue_us;
    uint32_t            decode_us;
    uint32_t            cache_us;
    uint32_t            encode_us;
    uint32_t            prefill_us;
    uint32_t            first_token_us;     /* from submission */
    uint32_t            total_us;
    uint32_t            noutcomes;          /* pictures, capped */
    uint32_t            reserved;
    uint8_t             outcomes[VLM_MAX_CACHE_OUTCOMES];
} vlm_event_done_t;

typedef struct {
    uint32_t            status;             /* HTTP status */
    uint32_t            retry_after;        /* seconds, 0: none */
    uint32_t            length;             /* of the message behind this */
    uint32_t            reserved;
    char                code[32];           /* zero-terminated, may be "" */
    char                param[48];          /* "" for null */
} vlm_event_error_t;


#endif /* VLM_WIRE_H */
