
/*
 * The request record: what a submission points to in the arena.
 *
 * The worker fills a vlm_request_t and encodes it with vlm_record_encode();
 * the engine copies the record out of the arena and decodes it with
 * vlm_record_decode(), which trusts nothing.  Large things, pictures and
 * texts, are not in the record: it holds their place in the same arena, where
 * the upload was written as it arrived.
 *
 * Format: a header (magic, total length, counts), then frames of
 * { uint32 type, uint32 length, payload, zero bytes up to a multiple of 8 }.
 * A frame of unknown type makes the record invalid: both sides speak one ABI.
 *
 * Depends on libc alone.
 */

#ifndef VLM_RECORD_H
#define VLM_RECORD_H


#include <stddef.h>
#include <stdint.h>


#define VLM_MAX_RECORD          (1u << 20)
#define VLM_MAX_MESSAGES        1024
#define VLM_MAX_MESSAGE_PARTS   4096        /* of all messages */
#define VLM_MAX_PICTURES        64
#define VLM_MAX_STOPS           16
#define VLM_MAX_STOP_LEN        256
#define VLM_MAX_LOGIT_BIAS      1024
#define VLM_MAX_SCOPE           64
#define VLM_MAX_REQUEST_ID      64
#define VLM_MAX_MODEL           256
#define VLM_MAX_CHOICES         64
#define VLM_MAX_TOP_LOGPROBS    20


/* a run of bytes in the arena */

typedef struct {
    uint64_t            offset;
    uint64_t            length;
} vlm_extent_t;


#define VLM_ROLE_SYSTEM         1
#define VLM_ROLE_USER           2
#define VLM_ROLE_ASSISTANT      3

#define VLM_PART_TEXT           1
#define VLM_PART_PICTURE        2

typedef struct {
    uint32_t            type;               /* VLM_PART_* */
    uint32_t            picture;            /* index into pictures */
    vlm_extent_t        text;               /* UTF-8 */
} vlm_part_t;

typedef struct {
    uint32_t            role;               /* VLM_ROLE_* */
    uint32_t            first_part;         /* index into parts */
    uint32_t            nparts;
} vlm_message_t;


#define VLM_DETAIL_AUTO         0
#define VLM_DETAIL_LOW          1
#define VLM_DETAIL_HIGH         2

typedef struct {
    vlm_extent_t        bytes;              /* the file as uploaded */
    uint8_t             sha256[32];
    uint32_t            detail;             /* VLM_DETAIL_* */
} vlm_picture_t;


/* each field counts only if its bit is set in "set" */

#define VLM_SET_TEMPERATURE     0x0001
#define VLM_SET_TOP_P           0x0002
#define VLM_SET_TOP_K           0x0004
#define VLM_SET_MIN_P           0x0008
#define VLM_SET_SEED            0x0010
#define VLM_SET_MAX_TOKENS      0x0020
#define VLM_SET_PRESENCE        0x0040
#define VLM_SET_FREQUENCY       0x0080
#define VLM_SET_REPETITION      0x0100

typedef struct {
    uint32_t            set;                /* VLM_SET_* */
    float               temperature;        /* 0 to 2; 0: greedy */
    float               top_p;              /* above 0, to 1 */
    float               min_p;              /* 0 to 1 */
    int32_t             top_k;              /* 0: off */
    float               presence;           /* -2 to 2 */
    float               frequency;          /* -2 to 2 */
    float               repetition;         /* above 0, to 10; 1: off */
    uint64_t            seed;
    uint32_t            max_tokens;         /* from 1 */
    uint32_t            nchoices;           /* from 1 */
    uint32_t            logprobs;           /* 0 or 1 */
    uint32_t            top_logprobs;       /* 0 to VLM_MAX_TOP_LOGPROBS */
} vlm_sampling_t;

typedef struct {
    int32_t             id;
    float               bias;               /* -100 to 100 */
} vlm_logit_bias_t;

#define VLM_FLAG_IGNORE_EOS     0x0001      /* tests only: run to max_tokens */

typedef struct {
    const char         *data;
    uint32_t            len;
} vlm_str_t;


/*
 * All pointers belong to whoever filled the struct; after a decode they point
 * into the record and the scratch given to vlm_record_decode().
 *
 * The messages share out the parts in order: the first one begins at part 0,
 * each following one where the one before ends, the last one ends at nparts.
 */

typedef struct {
    vlm_str_t           request_id;         /* printable ASCII */
    vlm_str_t           scope;              /* tenant; may be empty */
    vlm_str_t           model;              /* empty: the default one */
    uint64_t            deadline_ms;        /* CLOCK_MONOTONIC by which it
                                               must have left the queue;
                                               0: none */
    uint64_t            received_ms;        /* CLOCK_MONOTONIC, start of the
                                               request in the worker */
    uint32_t            flags;              /* VLM_FLAG_* */
    vlm_sampling_t      sampling;

    const vlm_message_t    *messages;
    uint32_t                nmessages;
    const vlm_part_t       *parts;
    uint32_t                nparts;
    const vlm_picture_t    *pictures;
    uint32_t                npictures;
    const vlm_str_t        *stops;          /* UTF-8, each 1.. bytes */
    uint32_t                nstops;
    const vlm_logit_bias_t *logit_bias;
    uint32_t                nlogit_bias;
} vlm_request_t;


/* bytes that vlm_record_encode() will need; 0 if a limit is exceeded */
size_t vlm_record_size(const vlm_request_t *req);

/* writes the record; "size" must be what vlm_record_size() said */
void vlm_record_encode(const vlm_request_t *req, void *to, size_t size);

/*
 * Decodes a record of "size" bytes (a private, 8-byte aligned copy, not the
 * arena itself) into *req.  Arrays are placed in "scratch", which must hold
 * vlm_record_scratch(size) bytes and be aligned for any type.  Checks every
 * count, length, index, role and type, numbers for being finite and in range,
 * and that each extent lies in an arena of arena_size bytes.  Fields of
 * sampling whose bit is not set become 0.  Texts may overlap, and what they
 * sum up to is not limited here.
 * Returns 0, or -1 and a reason in *why (a static string).
 */
size_t vlm_record_scratch(size_t size);
int vlm_record_decode(const void *record, size_t size, uint64_t arena_size,
    void *scratch, vlm_request_t *req, const char **why);


#endif /* VLM_RECORD_H */
