
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <string.h>

#include "vlm_record.h"


#define RECORD_MAGIC        0x524d4c56u         /* "VLMR" */

/* frames, in this order; there are as many STOP as there are stops */

#define FRAME_REQUEST_ID    1
#define FRAME_SCOPE         2
#define FRAME_MODEL         3
#define FRAME_SAMPLING      4
#define FRAME_MESSAGES      5
#define FRAME_PARTS         6
#define FRAME_PICTURES      7
#define FRAME_LOGIT_BIAS    8
#define FRAME_STOP          9

#define FLAGS               VLM_FLAG_IGNORE_EOS
#define SET                 0x01ffu

#define align8(n)           (((n) + 7) & ~(size_t) 7)


typedef struct {
    uint32_t        magic;
    uint32_t        length;             /* of the record, frames included */
    uint32_t        flags;
    uint32_t        nmessages;
    uint32_t        nparts;
    uint32_t        npictures;
    uint32_t        nstops;
    uint32_t        nlogit_bias;
    uint64_t        deadline_ms;
    uint64_t        received_ms;
} record_header_t;

typedef struct {
    uint32_t        type;
    uint32_t        length;             /* of the payload, without padding */
} record_frame_t;

/* vlm_picture_t without bytes that nobody has set */

typedef struct {
    uint64_t        offset;
    uint64_t        length;
    uint8_t         sha256[32];
    uint32_t        detail;
    uint32_t        reserved;
} record_picture_t;

typedef struct {
    const uint8_t  *pos;
    const uint8_t  *end;
    uint8_t        *scratch;
    uint64_t        arena_size;
    const char     *why;
} record_reader_t;


static uint8_t *put(uint8_t *to, uint32_t type, const void *data, size_t len);
static uint8_t *put_pictures(uint8_t *to, const vlm_request_t *req);
static int bad(record_reader_t *r, const char *why);
static const void *take(record_reader_t *r, uint32_t type, uint32_t *len);
static int take_string(record_reader_t *r, uint32_t type, uint32_t max,
    vlm_str_t *str);
static const void *take_array(record_reader_t *r, uint32_t type,
    uint32_t count, size_t size);
static void *place(record_reader_t *r, size_t size);
static int read_header(record_reader_t *r, const record_header_t *h,
    vlm_request_t *req);
static int read_names(record_reader_t *r, vlm_request_t *req);
static int read_sampling(record_reader_t *r, vlm_request_t *req);
static int check_sampling(record_reader_t *r, vlm_sampling_t *s);
static int read_messages(record_reader_t *r, vlm_request_t *req);
static int read_parts(record_reader_t *r, vlm_request_t *req);
static int read_pictures(record_reader_t *r, vlm_request_t *req);
static int read_logit_bias(record_reader_t *r, vlm_request_t *req);
static int read_stops(record_reader_t *r, vlm_request_t *req);
static int inside(const record_reader_t *r, const vlm_extent_t *extent);


size_t
vlm_record_size(const vlm_request_t *req)
{
    size_t    size;
    uint32_t  i;

    if (req->request_id.len > VLM_MAX_REQUEST_ID
        || req->scope.len > VLM_MAX_SCOPE
        || req->model.len > VLM_MAX_MODEL
        || req->nmessages > VLM_MAX_MESSAGES
        || req->nparts > VLM_MAX_MESSAGE_PARTS
        || req->npictures > VLM_MAX_PICTURES
        || req->nstops > VLM_MAX_STOPS
        || req->nlogit_bias > VLM_MAX_LOGIT_BIAS)
    {
        return 0;
    }

    size = sizeof(record_header_t) + 8 * sizeof(record_frame_t)
           + align8(req->request_id.len)
           + align8(req->scope.len)
           + align8(req->model.len)
           + align8(sizeof(vlm_sampling_t))
           + align8(req->nmessages * sizeof(vlm_message_t))
           + align8(req->nparts * sizeof(vlm_part_t))
           + align8(req->npictures * sizeof(record_picture_t))
           + align8(req->nlogit_bias * sizeof(vlm_logit_bias_t));

    for (i = 0; i < req->nstops; i++) {

        if (req->stops[i].len == 0 || req->stops[i].len > VLM_MAX_STOP_LEN) {
            return 0;
        }

        size += sizeof(record_frame_t) + align8(req->stops[i].len);
    }

    /* the limits above keep it below VLM_MAX_RECORD */

    return size;
}


void
vlm_record_encode(const vlm_request_t *req, void *to, size_t size)
{
    uint8_t          *p;
    uint32_t          i;
    record_header_t   h;

    memset(&h, 0, sizeof(record_header_t));

    h.magic = RECORD_MAGIC;
    h.length = (uint32_t) size;
    h.flags = req->flags;
    h.nmessages = req->nmessages;
    h.nparts = req->nparts;
    h.npictures = req->npictures;
    h.nstops = req->nstops;
    h.nlogit_bias = req->nlogit_bias;
    h.deadline_ms = req->deadline_ms;
    h.received_ms = req->received_ms;

    p = to;
    memcpy(p, &h, sizeof(record_header_t));
    p += sizeof(record_header_t);

    p = put(p, FRAME_REQUEST_ID, req->request_id.data, req->request_id.len);
    p = put(p, FRAME_SCOPE, req->scope.data, req->scope.len);
    p = put(p, FRAME_MODEL, req->model.data, req->model.len);
    p = put(p, FRAME_SAMPLING, &req->sampling, sizeof(vlm_sampling_t));
    p = put(p, FRAME_MESSAGES, req->messages,
            req->nmessages * sizeof(vlm_message_t));
    p = put(p, FRAME_PARTS, req->parts, req->nparts * sizeof(vlm_part_t));
    p = put_pictures(p, req);
    p = put(p, FRAME_LOGIT_BIAS, req->logit_bias,
            req->nlogit_bias * sizeof(vlm_logit_bias_t));

    for (i = 0; i < req->nstops; i++) {
        p = put(p, FRAME_STOP, req->stops[i].data, req->stops[i].len);
    }
}


static uint8_t *
put(uint8_t *to, uint32_t type, const void *data, size_t len)
{
    record_frame_t  frame;

    frame.type = type;
    frame.length = (uint32_t) len;

    memcpy(to, &frame, sizeof(record_frame_t));
    to += sizeof(record_frame_t);

    if (len != 0) {
        memcpy(to, data, len);
        memset(to + len, 0, align8(len) - len);
    }

    return to + align8(len);
}


static uint8_t *
put_pictures(uint8_t *to, const vlm_request_t *req)
{
    uint32_t          i;
    record_frame_t    frame;
    record_picture_t  picture;

    frame.type = FRAME_PICTURES;
    frame.length = (uint32_t) (req->npictures * sizeof(record_picture_t));

    memcpy(to, &frame, sizeof(record_frame_t));
    to += sizeof(record_frame_t);

    for (i = 0; i < req->npictures; i++) {
        picture.offset = req->pictures[i].bytes.offset;
        picture.length = req->pictures[i].bytes.length;
        memcpy(picture.sha256, req->pictures[i].sha256, 32);
        picture.detail = req->pictures[i].detail;
        picture.reserved = 0;

        memcpy(to, &picture, sizeof(record_picture_t));
        to += sizeof(record_picture_t);
    }

    return to;
}


/*
 * Each array of a request is at most as large as its frame: a stop of one
 * byte takes 16 bytes in the record, its vlm_str_t as many.
 */

size_t
vlm_record_scratch(size_t size)
{
    return align8(size);
}


int
vlm_record_decode(const void *record, size_t size, uint64_t arena_size,
    void *scratch, vlm_request_t *req, const char **why)
{
    record_header_t  h;
    record_reader_t  r;

    memset(req, 0, sizeof(vlm_request_t));

    r.pos = record;
    r.end = r.pos + size;
    r.scratch = scratch;
    r.arena_size = arena_size;
    r.why = NULL;

    if (size < sizeof(record_header_t) || size > VLM_MAX_RECORD) {
        *why = "record: impossible size";
        return -1;
    }

    memcpy(&h, r.pos, sizeof(record_header_t));
    r.pos += sizeof(record_header_t);

    if (h.length != size) {
        *why = "record: its length differs from the submission's";
        return -1;
    }

    if (read_header(&r, &h, req) == -1
        || read_names(&r, req) == -1
        || read_sampling(&r, req) == -1
        || read_messages(&r, req) == -1
        || read_parts(&r, req) == -1
        || read_pictures(&r, req) == -1
        || read_logit_bias(&r, req) == -1
        || read_stops(&r, req) == -1)
    {
        *why = r.why;
        return -1;
    }

    if (r.pos != r.end) {
        *why = "record: bytes behind the last frame";
        return -1;
    }

    return 0;
}


static int
bad(record_reader_t *r, const char *why)
{
    r->why = why;
    return -1;
}


/* the payload of the next frame, which must be of this type */

static const void *
take(record_reader_t *r, uint32_t type, uint32_t *len)
{
    size_t           i, padded;
    const uint8_t   *payload;
    record_frame_t   frame;

    if ((size_t) (r->end - r->pos) < sizeof(record_frame_t)) {
        r->why = "record: a frame is missing";
        return NULL;
    }

    memcpy(&frame, r->pos, sizeof(record_frame_t));
    payload = r->pos + sizeof(record_frame_t);

    if (frame.type != type) {
        r->why = "record: unexpected type of a frame";
        return NULL;
    }

    padded = align8((size_t) frame.length);

    if (padded > (size_t) (r->end - payload)) {
        r->why = "record: a frame is longer than the record";
        return NULL;
    }

    for (i = frame.length; i < padded; i++) {
        if (payload[i] != 0) {
            r->why = "record: padding is not zero";
            return NULL;
        }
    }

    r->pos = payload + padded;
    *len = frame.length;

    return payload;
}


static int
take_string(record_reader_t *r, uint32_t type, uint32_t max, vlm_str_t *str)
{
    const void  *p;

    p = take(r, type, &str->len);

    if (p == NULL) {
        return -1;
    }

    if (str->len > max) {
        return bad(r, "record: a string is longer than its limit");
    }

    str->data = p;

    return 0;
}


static const void *
take_array(record_reader_t *r, uint32_t type, uint32_t count, size_t size)
{
    uint32_t     len;
    const void  *p;

    p = take(r, type, &len);

    if (p != NULL && len != count * size) {
        r->why = "record: length of an array differs from its count";
        return NULL;
    }

    return p;
}


static void *
place(record_reader_t *r, size_t size)
{
    void  *p;

    p = r->scratch;
    r->scratch += align8(size);

    return p;
}


static int
read_header(record_reader_t *r, const record_header_t *h, vlm_request_t *req)
{
    if (h->magic != RECORD_MAGIC) {
        return bad(r, "record: bad magic");
    }

    if ((h->flags & ~FLAGS) != 0) {
        return bad(r, "record: unknown flags");
    }

    if (h->nmessages == 0 || h->nmessages > VLM_MAX_MESSAGES) {
        return bad(r, "record: number of messages is out of range");
    }

    if (h->nparts > VLM_MAX_MESSAGE_PARTS) {
        return bad(r, "record: too many parts");
    }

    if (h->npictures > VLM_MAX_PICTURES) {
        return bad(r, "record: too many pictures");
    }

    if (h->nstops > VLM_MAX_STOPS) {
        return bad(r, "record: too many stop strings");
    }

    if (h->nlogit_bias > VLM_MAX_LOGIT_BIAS) {
        return bad(r, "record: too many logit biases");
    }

    req->flags = h->flags;
    req->nmessages = h->nmessages;
    req->nparts = h->nparts;
    req->npictures = h->npictures;
    req->nstops = h->nstops;
    req->nlogit_bias = h->nlogit_bias;
    req->deadline_ms = h->deadline_ms;
    req->received_ms = h->received_ms;

    return 0;
}


static int
read_names(record_reader_t *r, vlm_request_t *req)
{
    uint32_t  i;

    if (take_string(r, FRAME_REQUEST_ID, VLM_MAX_REQUEST_ID,
                    &req->request_id) == -1
        || take_string(r, FRAME_SCOPE, VLM_MAX_SCOPE, &req->scope) == -1
        || take_string(r, FRAME_MODEL, VLM_MAX_MODEL, &req->model) == -1)
    {
        return -1;
    }

    for (i = 0; i < req->request_id.len; i++) {
        if (req->request_id.data[i] < 0x20 || req->request_id.data[i] > 0x7e) {
            return bad(r, "record: request id is not printable ASCII");
        }
    }

    return 0;
}


static int
read_sampling(record_reader_t *r, vlm_request_t *req)
{
    const void  *p;

    p = take_array(r, FRAME_SAMPLING, 1, sizeof(vlm_sampling_t));

    if (p == NULL) {
        return -1;
    }

    memcpy(&req->sampling, p, sizeof(vlm_sampling_t));

    return check_sampling(r, &req->sampling);
}


/* comparisons are written so that a NaN fails them */

#define check_field(bit, field, condition)                                    \
    if ((s->set & bit) == 0) {                                                \
        s->field = 0;                                                         \
                                                                              \
    } else if (!(condition)) {                                                \
        return bad(r, "record: " #field " is out of range");                  \
    }


static int
check_sampling(record_reader_t *r, vlm_sampling_t *s)
{
    if ((s->set & ~SET) != 0) {
        return bad(r, "record: unknown sampling fields");
    }

    check_field(VLM_SET_TEMPERATURE, temperature,
                s->temperature >= 0 && s->temperature <= 2);
    check_field(VLM_SET_TOP_P, top_p, s->top_p > 0 && s->top_p <= 1);
    check_field(VLM_SET_TOP_K, top_k, s->top_k >= 0);
    check_field(VLM_SET_MIN_P, min_p, s->min_p >= 0 && s->min_p <= 1);
    check_field(VLM_SET_SEED, seed, 1);
    check_field(VLM_SET_MAX_TOKENS, max_tokens, s->max_tokens >= 1);
    check_field(VLM_SET_PRESENCE, presence,
                s->presence >= -2 && s->presence <= 2);
    check_field(VLM_SET_FREQUENCY, frequency,
                s->frequency >= -2 && s->frequency <= 2);
    check_field(VLM_SET_REPETITION, repetition,
                s->repetition > 0 && s->repetition <= 10);

    if (s->nchoices < 1 || s->nchoices > VLM_MAX_CHOICES) {
        return bad(r, "record: number of choices is out of range");
    }

    if (s->logprobs > 1 || s->top_logprobs > VLM_MAX_TOP_LOGPROBS) {
        return bad(r, "record: logprobs are out of range");
    }

    return 0;
}


/* the messages must share out the parts, each part to one message */

static int
read_messages(record_reader_t *r, vlm_request_t *req)
{
    uint32_t        i, next;
    const void     *p;
    vlm_message_t  *messages;

    p = take_array(r, FRAME_MESSAGES, req->nmessages, sizeof(vlm_message_t));

    if (p == NULL) {
        return -1;
    }

    messages = place(r, req->nmessages * sizeof(vlm_message_t));
    memcpy(messages, p, req->nmessages * sizeof(vlm_message_t));

    next = 0;

    for (i = 0; i < req->nmessages; i++) {

        if (messages[i].role < VLM_ROLE_SYSTEM
            || messages[i].role > VLM_ROLE_ASSISTANT)
        {
            return bad(r, "record: unknown role");
        }

        if (messages[i].first_part != next
            || messages[i].nparts > req->nparts - next)
        {
            return bad(r, "record: parts of a message are out of order");
        }

        next += messages[i].nparts;
    }

    if (next != req->nparts) {
        return bad(r, "record: parts that belong to no message");
    }

    req->messages = messages;

    return 0;
}


static int
read_parts(record_reader_t *r, vlm_request_t *req)
{
    uint32_t     i;
    const void  *p;
    vlm_part_t  *parts;

    p = take_array(r, FRAME_PARTS, req->nparts, sizeof(vlm_part_t));

    if (p == NULL) {
        return -1;
    }

    parts = place(r, req->nparts * sizeof(vlm_part_t));
    memcpy(parts, p, req->nparts * sizeof(vlm_part_t));

    for (i = 0; i < req->nparts; i++) {

        switch (parts[i].type) {

        case VLM_PART_TEXT:

            if (!inside(r, &parts[i].text)) {
                return bad(r, "record: a text lies outside the arena");
            }

            parts[i].picture = 0;
            break;

        case VLM_PART_PICTURE:

            if (parts[i].picture >= req->npictures) {
                return bad(r, "record: a part's picture does not exist");
            }

            memset(&parts[i].text, 0, sizeof(vlm_extent_t));
            break;

        default:
            return bad(r, "record: unknown type of a part");
        }
    }

    req->parts = parts;

    return 0;
}


static int
read_pictures(record_reader_t *r, vlm_request_t *req)
{
    uint32_t           i;
    const uint8_t     *p;
    vlm_picture_t     *pictures;
    record_picture_t   picture;

    p = take_array(r, FRAME_PICTURES, req->npictures,
                   sizeof(record_picture_t));

    if (p == NULL) {
        return -1;
    }

    pictures = place(r, req->npictures * sizeof(vlm_picture_t));

    for (i = 0; i < req->npictures; i++) {

        memcpy(&picture, p, sizeof(record_picture_t));
        p += sizeof(record_picture_t);

        pictures[i].bytes.offset = picture.offset;
        pictures[i].bytes.length = picture.length;
        memcpy(pictures[i].sha256, picture.sha256, 32);
        pictures[i].detail = picture.detail;

        if (!inside(r, &pictures[i].bytes)) {
            return bad(r, "record: a picture lies outside the arena");
        }

        if (picture.detail > VLM_DETAIL_HIGH || picture.reserved != 0) {
            return bad(r, "record: unknown detail of a picture");
        }
    }

    req->pictures = pictures;

    return 0;
}


static int
read_logit_bias(record_reader_t *r, vlm_request_t *req)
{
    uint32_t           i;
    const void        *p;
    vlm_logit_bias_t  *bias;

    p = take_array(r, FRAME_LOGIT_BIAS, req->nlogit_bias,
                   sizeof(vlm_logit_bias_t));

    if (p == NULL) {
        return -1;
    }

    bias = place(r, req->nlogit_bias * sizeof(vlm_logit_bias_t));
    memcpy(bias, p, req->nlogit_bias * sizeof(vlm_logit_bias_t));

    for (i = 0; i < req->nlogit_bias; i++) {
        if (bias[i].id < 0 || !(bias[i].bias >= -100 && bias[i].bias <= 100)) {
            return bad(r, "record: a logit bias is out of range");
        }
    }

    req->logit_bias = bias;

    return 0;
}


static int
read_stops(record_reader_t *r, vlm_request_t *req)
{
    uint32_t    i;
    vlm_str_t  *stops;

    /* frames are not counted yet: the scratch is only as large as they are */

    if (req->nstops > (size_t) (r->end - r->pos) / sizeof(vlm_str_t)) {
        return bad(r, "record: a frame is missing");
    }

    stops = place(r, req->nstops * sizeof(vlm_str_t));

    for (i = 0; i < req->nstops; i++) {

        if (take_string(r, FRAME_STOP, VLM_MAX_STOP_LEN, &stops[i]) == -1) {
            return -1;
        }

        if (stops[i].len == 0) {
            return bad(r, "record: an empty stop string");
        }
    }

    req->stops = stops;

    return 0;
}


static int
inside(const record_reader_t *r, const vlm_extent_t *extent)
{
    return extent->offset <= r->arena_size
           && extent->length <= r->arena_size - extent->offset;
}
