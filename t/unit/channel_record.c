
/* Request records: round trip, every limit, damage of every kind. */

#include <stdlib.h>
#include <string.h>

#include "engine/channel/vlm_record.h"
#include "t/unit/lib/tap.h"


#define ARENA  (1ull << 30)


typedef struct {
    vlm_request_t       req;
    vlm_message_t       messages[VLM_MAX_MESSAGES + 1];
    vlm_part_t          parts[VLM_MAX_MESSAGE_PARTS + 1];
    vlm_picture_t       pictures[VLM_MAX_PICTURES + 1];
    vlm_str_t           stops[VLM_MAX_STOPS + 1];
    vlm_logit_bias_t    bias[VLM_MAX_LOGIT_BIAS + 1];
} request_t;


static request_t  r;
static char       letters[VLM_MAX_RECORD];


static void test_round_trip(void);
static void test_largest(void);
static void test_counts(void);
static void test_values(void);
static void test_truncation(void);
static void test_bit_flips(void);
static void build(uint32_t nmessages, uint32_t nparts, uint32_t npictures,
    uint32_t nstops, uint32_t nbias);
static int decode_copy(const void *record, size_t size, vlm_request_t *req,
    const char **why);
static const char *decode_built(void);
static int same(const vlm_request_t *a, const vlm_request_t *b);


/* the buffers of the last decode_copy() */

static void  *copy;
static void  *scratch;


int
main(void)
{
    memset(letters, 'a', sizeof(letters));

    test_round_trip();
    test_largest();
    test_counts();
    test_values();
    test_truncation();
    test_bit_flips();

    free(copy);
    free(scratch);

    return tap_done();
}


static void
test_round_trip(void)
{
    build(3, 7, 2, 3, 2);
    tap_ok(decode_built() == NULL, "a small one: %s", decode_built());

    build(1, 0, 0, 0, 0);
    tap_ok(decode_built() == NULL, "the smallest one");

    build(3, 7, 2, 2, 3);
    r.req.request_id.len = 0;
    r.req.scope.len = 0;
    r.req.model.len = 0;
    r.req.sampling.set = 0;
    r.req.sampling.temperature = 1e30f;
    r.req.sampling.max_tokens = 0;
    tap_ok(decode_built() != NULL, "a field that is not set becomes 0");
    r.req.sampling.temperature = 0;
    r.req.sampling.top_p = 0;
    r.req.sampling.min_p = 0;
    r.req.sampling.top_k = 0;
    r.req.sampling.presence = 0;
    r.req.sampling.frequency = 0;
    r.req.sampling.repetition = 0;
    r.req.sampling.seed = 0;
    tap_ok(decode_built() == NULL, "nothing that is optional: %s",
           decode_built());
}


static void
test_largest(void)
{
    size_t  size;

    build(VLM_MAX_MESSAGES, VLM_MAX_MESSAGE_PARTS, VLM_MAX_PICTURES,
          VLM_MAX_STOPS, VLM_MAX_LOGIT_BIAS);

    r.req.request_id.len = VLM_MAX_REQUEST_ID;
    r.req.scope.len = VLM_MAX_SCOPE;
    r.req.model.len = VLM_MAX_MODEL;
    r.stops[0].len = VLM_MAX_STOP_LEN;

    size = vlm_record_size(&r.req);

    tap_ok(size != 0 && size <= VLM_MAX_RECORD,
           "the largest record has %zu bytes", size);
    tap_ok(decode_built() == NULL, "and is read: %s", decode_built());
}


/* one more than the limit is not written */

static void
test_counts(void)
{
    struct {
        const char  *name;
        uint32_t    *value;
        uint32_t     limit;
    } limits[] = {
        { "request id", &r.req.request_id.len, VLM_MAX_REQUEST_ID },
        { "scope", &r.req.scope.len, VLM_MAX_SCOPE },
        { "model", &r.req.model.len, VLM_MAX_MODEL },
        { "messages", &r.req.nmessages, VLM_MAX_MESSAGES },
        { "parts", &r.req.nparts, VLM_MAX_MESSAGE_PARTS },
        { "pictures", &r.req.npictures, VLM_MAX_PICTURES },
        { "stops", &r.req.nstops, VLM_MAX_STOPS },
        { "a stop", &r.stops[1].len, VLM_MAX_STOP_LEN },
        { "logit biases", &r.req.nlogit_bias, VLM_MAX_LOGIT_BIAS }
    };

    int     k;
    size_t  i;

    for (i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        build(2, 4, 2, 2, 2);

        for (k = 0; k <= VLM_MAX_STOPS; k++) {
            r.stops[k].data = letters;
            r.stops[k].len = 1;
        }

        *limits[i].value = limits[i].limit;
        tap_ok(vlm_record_size(&r.req) != 0, "%s at the limit",
               limits[i].name);

        *limits[i].value = limits[i].limit + 1;
        tap_is(vlm_record_size(&r.req), 0, "%s over the limit",
               limits[i].name);
    }

    build(2, 4, 2, 2, 2);
    r.stops[1].len = 0;
    tap_is(vlm_record_size(&r.req), 0, "an empty stop string");
}


#define refused(statement, why)                                               \
    build(2, 4, 2, 2, 2);                                                     \
    statement;                                                                \
    tap_str(decode_built(), "record: " why, "%s", #statement)

#define accepted(statement)                                                   \
    build(2, 4, 2, 2, 2);                                                     \
    statement;                                                                \
    tap_ok(decode_built() == NULL, "%s: %s", #statement, decode_built())


static void
test_values(void)
{
    static float  zero;

    refused(r.req.nmessages = 0, "number of messages is out of range");
    refused(r.req.flags = 2, "unknown flags");
    refused(r.req.request_id.data = "id\n", "request id is not printable "
            "ASCII");
    refused(r.req.sampling.set = 0x200, "unknown sampling fields");
    refused(r.req.sampling.temperature = 2.01f, "temperature is out of range");
    refused(r.req.sampling.temperature = -0.1f, "temperature is out of range");
    refused(r.req.sampling.temperature = zero / zero,
            "temperature is out of range");
    refused(r.req.sampling.top_p = 0, "top_p is out of range");
    refused(r.req.sampling.top_p = 1.01f, "top_p is out of range");
    refused(r.req.sampling.min_p = -1, "min_p is out of range");
    refused(r.req.sampling.min_p = 1 / zero, "min_p is out of range");
    refused(r.req.sampling.top_k = -1, "top_k is out of range");
    refused(r.req.sampling.max_tokens = 0, "max_tokens is out of range");
    refused(r.req.sampling.presence = 2.5f, "presence is out of range");
    refused(r.req.sampling.frequency = -2.5f, "frequency is out of range");
    refused(r.req.sampling.repetition = 0, "repetition is out of range");
    refused(r.req.sampling.repetition = 10.5f, "repetition is out of range");
    refused(r.req.sampling.nchoices = 0, "number of choices is out of range");
    refused(r.req.sampling.nchoices = 65, "number of choices is out of range");
    refused(r.req.sampling.logprobs = 2, "logprobs are out of range");
    refused(r.req.sampling.top_logprobs = 21, "logprobs are out of range");

    accepted(r.req.sampling.temperature = 0);
    accepted(r.req.sampling.temperature = 2);
    accepted(r.req.sampling.top_p = 1);
    accepted(r.req.sampling.max_tokens = UINT32_MAX);
    accepted(r.req.sampling.nchoices = VLM_MAX_CHOICES);
    accepted(r.req.sampling.top_logprobs = VLM_MAX_TOP_LOGPROBS);
    accepted(r.req.flags = VLM_FLAG_IGNORE_EOS);

    refused(r.messages[0].role = 0, "unknown role");
    refused(r.messages[1].role = 4, "unknown role");
    refused(r.messages[1].first_part = 1, "parts of a message are out of "
            "order");
    refused(r.messages[1].nparts = UINT32_MAX, "parts of a message are out "
            "of order");
    refused(r.messages[1].nparts = 1, "parts that belong to no message");

    refused(r.parts[0].type = 0, "unknown type of a part");
    refused(r.parts[3].type = 3, "unknown type of a part");
    refused(r.parts[1].picture = 2, "a part's picture does not exist");
    refused(r.parts[0].text.offset = ARENA + 1,
            "a text lies outside the arena");
    refused(r.parts[2].text.length = ARENA, "a text lies outside the arena");
    refused(r.parts[0].text.length = UINT64_MAX,
            "a text lies outside the arena");
    accepted(r.parts[2].text.length = ARENA - r.parts[2].text.offset);
    accepted(r.parts[0].text.length = ARENA);

    refused(r.pictures[1].bytes.offset = UINT64_MAX,
            "a picture lies outside the arena");
    refused(r.pictures[1].bytes.length = UINT64_MAX - 10,
            "a picture lies outside the arena");
    refused(r.pictures[0].detail = 3, "unknown detail of a picture");

    refused(r.bias[0].id = -1, "a logit bias is out of range");
    refused(r.bias[1].bias = 100.5f, "a logit bias is out of range");
    refused(r.bias[1].bias = zero / zero, "a logit bias is out of range");
}


static void
test_truncation(void)
{
    int             good;
    size_t          size, n;
    uint8_t        *record;
    const char     *why;
    vlm_request_t   req;

    build(3, 7, 2, 3, 2);

    size = vlm_record_size(&r.req);
    record = calloc(1, size + 16);

    if (record == NULL) {
        tap_ok(0, "calloc()");
        return;
    }

    vlm_record_encode(&r.req, record, size);

    tap_is(decode_copy(record, size, &req, &why), 0, "the whole record");

    for (good = 1, n = 0; n < size; n++) {
        good &= (decode_copy(record, n, &req, &why) == -1 && why != NULL);
    }

    tap_ok(good, "every shorter length is refused");

    /* the same with a header that agrees */

    for (good = 1, n = 64; n < size; n++) {
        memcpy(record + 4, &(uint32_t) { (uint32_t) n }, 4);
        good &= (decode_copy(record, n, &req, &why) == -1);
    }

    tap_ok(good, "every truncated record is refused");

    memcpy(record + 4, &(uint32_t) { (uint32_t) size + 8 }, 4);
    tap_is(decode_copy(record, size + 8, &req, &why), -1, "a longer one");
    tap_str(why, "record: bytes behind the last frame", "why");

    free(record);
}


/* the sanitizers watch; what is accepted must still keep the limits */

static void
test_bit_flips(void)
{
    int             i, k, good, accepted_n;
    size_t          size, bit;
    uint8_t        *record;
    uint32_t        m;
    uint64_t        seed;
    const char     *why;
    vlm_request_t   req;

    build(3, 7, 2, 3, 2);

    size = vlm_record_size(&r.req);
    record = malloc(size);

    if (record == NULL) {
        tap_ok(0, "malloc()");
        return;
    }

    seed = 1;
    good = 1;
    accepted_n = 0;

    for (i = 0; i < 20000; i++) {
        vlm_record_encode(&r.req, record, size);

        for (k = 0; k <= i % 4; k++) {
            bit = tap_random(&seed) % (size * 8);
            record[bit / 8] ^= (uint8_t) (1u << bit % 8);
        }

        if (decode_copy(record, size, &req, &why) == -1) {
            continue;
        }

        accepted_n++;

        for (m = 0; m < req.nparts; m++) {
            good &= (req.parts[m].type == VLM_PART_PICTURE
                     ? req.parts[m].picture < req.npictures
                     : req.parts[m].text.offset + req.parts[m].text.length
                       <= ARENA);
        }

        good &= (req.nstops <= VLM_MAX_STOPS
                 && req.sampling.temperature <= 2);
    }

    tap_ok(good, "20000 damaged records");
    tap_ok(accepted_n > 0 && accepted_n < 20000,
           "some were accepted, some refused: %d", accepted_n);

    free(record);
}


/* a request with something in every field */

static void
build(uint32_t nmessages, uint32_t nparts, uint32_t npictures,
    uint32_t nstops, uint32_t nbias)
{
    uint32_t  i, left;

    memset(&r, 0, sizeof(r));

    r.req.request_id.data = letters;
    r.req.request_id.len = 3;
    r.req.scope.data = letters;
    r.req.scope.len = 17;
    r.req.model.data = letters;
    r.req.model.len = 8;
    r.req.deadline_ms = 123456789;
    r.req.received_ms = 123456000;

    r.req.sampling.set = 0x1ff;
    r.req.sampling.temperature = 0.7f;
    r.req.sampling.top_p = 0.9f;
    r.req.sampling.min_p = 0.1f;
    r.req.sampling.top_k = 40;
    r.req.sampling.presence = -1.5f;
    r.req.sampling.frequency = 1.5f;
    r.req.sampling.repetition = 1.1f;
    r.req.sampling.seed = UINT64_MAX;
    r.req.sampling.max_tokens = 100;
    r.req.sampling.nchoices = 1;

    r.req.messages = r.messages;
    r.req.nmessages = nmessages;
    r.req.parts = r.parts;
    r.req.nparts = nparts;
    r.req.pictures = r.pictures;
    r.req.npictures = npictures;
    r.req.stops = r.stops;
    r.req.nstops = nstops;
    r.req.logit_bias = r.bias;
    r.req.nlogit_bias = nbias;

    for (left = nparts, i = 0; i < nmessages; i++) {
        r.messages[i].role = 1 + i % 3;
        r.messages[i].first_part = nparts - left;
        r.messages[i].nparts = (i == nmessages - 1) ? left
                                                    : left / (nmessages - i);
        left -= r.messages[i].nparts;
    }

    for (i = 0; i < nparts; i++) {

        if (i % 2 == 1 && npictures != 0) {
            r.parts[i].type = VLM_PART_PICTURE;
            r.parts[i].picture = i % npictures;
            continue;
        }

        r.parts[i].type = VLM_PART_TEXT;
        r.parts[i].text.offset = 100 * i;
        r.parts[i].text.length = i;
    }

    for (i = 0; i < npictures; i++) {
        r.pictures[i].bytes.offset = 4096 * i;
        r.pictures[i].bytes.length = 1000 + i;
        r.pictures[i].detail = i % 3;
        memset(r.pictures[i].sha256, (int) i, 32);
    }

    for (i = 0; i < nstops; i++) {
        r.stops[i].data = letters;
        r.stops[i].len = 1 + i;
    }

    for (i = 0; i < nbias; i++) {
        r.bias[i].id = (int32_t) i;
        r.bias[i].bias = -100 + (float) (i % 200);
    }
}


/* exactly as much memory as was promised */

static int
decode_copy(const void *record, size_t size, vlm_request_t *req,
    const char **why)
{
    free(copy);
    free(scratch);

    copy = malloc(size == 0 ? 1 : size);
    scratch = malloc(vlm_record_scratch(size) + 1);

    if (copy == NULL || scratch == NULL) {
        *why = "malloc()";
        return -1;
    }

    memcpy(copy, record, size);

    return vlm_record_decode(copy, size, ARENA, scratch, req, why);
}


/* NULL: r.req came back as it was */

static const char *
decode_built(void)
{
    int             rc;
    void           *record;
    size_t          size;
    const char     *why;
    vlm_request_t   req;

    size = vlm_record_size(&r.req);

    if (size == 0) {
        return "size";
    }

    record = malloc(size);

    if (record == NULL) {
        return "malloc()";
    }

    vlm_record_encode(&r.req, record, size);
    rc = decode_copy(record, size, &req, &why);
    free(record);

    if (rc == -1) {
        return why;
    }

    return same(&r.req, &req) ? NULL : "differs";
}


static int
same_str(vlm_str_t a, vlm_str_t b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len)
                                            == 0);
}


static int
same(const vlm_request_t *a, const vlm_request_t *b)
{
    uint32_t  i;

    if (!same_str(a->request_id, b->request_id)
        || !same_str(a->scope, b->scope)
        || !same_str(a->model, b->model)
        || a->deadline_ms != b->deadline_ms
        || a->received_ms != b->received_ms
        || a->flags != b->flags
        || memcmp(&a->sampling, &b->sampling, sizeof(vlm_sampling_t)) != 0
        || a->nmessages != b->nmessages
        || a->nparts != b->nparts
        || a->npictures != b->npictures
        || a->nstops != b->nstops
        || a->nlogit_bias != b->nlogit_bias
        || memcmp(a->messages, b->messages,
                  a->nmessages * sizeof(vlm_message_t)) != 0
        || memcmp(a->parts, b->parts, a->nparts * sizeof(vlm_part_t)) != 0
        || memcmp(a->logit_bias, b->logit_bias,
                  a->nlogit_bias * sizeof(vlm_logit_bias_t)) != 0)
    {
        return 0;
    }

    for (i = 0; i < a->npictures; i++) {
        if (a->pictures[i].bytes.offset != b->pictures[i].bytes.offset
            || a->pictures[i].bytes.length != b->pictures[i].bytes.length
            || a->pictures[i].detail != b->pictures[i].detail
            || memcmp(a->pictures[i].sha256, b->pictures[i].sha256, 32) != 0)
        {
            return 0;
        }
    }

    for (i = 0; i < a->nstops; i++) {
        if (!same_str(a->stops[i], b->stops[i])) {
            return 0;
        }
    }

    return 1;
}
