
/*
 * vlm_record_decode() on arbitrary bytes, and on a good record with changes:
 * the first byte chooses; then follow places (2 bytes) and values to XOR.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/channel/vlm_record.h"


#define ARENA  65536


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);


static size_t
good_record(uint8_t *to)
{
    size_t            size;
    vlm_request_t     req;
    vlm_message_t     messages[] = {
        { VLM_ROLE_SYSTEM, 0, 1 },
        { VLM_ROLE_USER, 1, 2 }
    };
    vlm_part_t        parts[] = {
        { VLM_PART_TEXT, 0, { 100, 20 } },
        { VLM_PART_PICTURE, 1, { 0, 0 } },
        { VLM_PART_TEXT, 0, { 200, 30 } }
    };
    vlm_str_t         stops[] = { { "stop", 4 }, { "x", 1 } };
    vlm_logit_bias_t  bias[] = { { 1, -100 }, { 2, 1.5f } };
    vlm_picture_t     pictures[2];

    memset(&req, 0, sizeof(vlm_request_t));
    memset(pictures, 0, sizeof(pictures));

    pictures[0].bytes.length = 4096;
    pictures[1].bytes.offset = 8192;
    pictures[1].bytes.length = ARENA - 8192;
    pictures[1].detail = VLM_DETAIL_HIGH;

    req.request_id = (vlm_str_t) { "0123456789abcdef", 16 };
    req.scope = (vlm_str_t) { "tenant", 6 };
    req.model = (vlm_str_t) { "model", 5 };
    req.sampling.set = VLM_SET_TEMPERATURE|VLM_SET_SEED|VLM_SET_MAX_TOKENS;
    req.sampling.temperature = 1;
    req.sampling.max_tokens = 10;
    req.sampling.nchoices = 1;
    req.messages = messages;
    req.nmessages = 2;
    req.parts = parts;
    req.nparts = 3;
    req.pictures = pictures;
    req.npictures = 2;
    req.stops = stops;
    req.nstops = 2;
    req.logit_bias = bias;
    req.nlogit_bias = 2;

    size = vlm_record_size(&req);
    vlm_record_encode(&req, to, size);

    return size;
}


static void
check_str(vlm_str_t s, uint32_t max)
{
    volatile char  sum;
    uint32_t       i;

    if (s.len > max) {
        abort();
    }

    for (sum = 0, i = 0; i < s.len; i++) {
        sum = (char) (sum + s.data[i]);
    }
}


/* all that is promised about a record that was accepted */

static void
check(const vlm_request_t *req)
{
    uint32_t  i, next;

    check_str(req->request_id, VLM_MAX_REQUEST_ID);
    check_str(req->scope, VLM_MAX_SCOPE);
    check_str(req->model, VLM_MAX_MODEL);

    if (req->npictures > VLM_MAX_PICTURES || req->nstops > VLM_MAX_STOPS
        || req->nparts > VLM_MAX_MESSAGE_PARTS || req->nmessages == 0
        || !(req->sampling.temperature >= 0 && req->sampling.temperature <= 2)
        || !(req->sampling.top_p >= 0 && req->sampling.top_p <= 1))
    {
        abort();
    }

    for (next = 0, i = 0; i < req->nmessages; i++) {
        if (req->messages[i].first_part != next) {
            abort();
        }

        next += req->messages[i].nparts;
    }

    if (next != req->nparts) {
        abort();
    }

    for (i = 0; i < req->nparts; i++) {
        if (req->parts[i].type == VLM_PART_PICTURE
            ? req->parts[i].picture >= req->npictures
            : req->parts[i].text.offset > ARENA
              || req->parts[i].text.length
                 > ARENA - req->parts[i].text.offset)
        {
            abort();
        }
    }

    for (i = 0; i < req->npictures; i++) {
        if (req->pictures[i].bytes.offset > ARENA
            || req->pictures[i].bytes.length
               > ARENA - req->pictures[i].bytes.offset)
        {
            abort();
        }
    }

    for (i = 0; i < req->nstops; i++) {
        check_str(req->stops[i], VLM_MAX_STOP_LEN);
    }

    for (i = 0; i < req->nlogit_bias; i++) {
        if (req->logit_bias[i].id < 0) {
            abort();
        }
    }
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    void           *copy, *scratch;
    size_t          len, at;
    uint8_t         record[4096];
    const char     *why;
    vlm_request_t   req;

    if (size == 0 || size > sizeof(record)) {
        return 0;
    }

    if (data[0] & 1) {
        len = good_record(record);

        for (data++, size--; size >= 3; data += 3, size -= 3) {
            at = (size_t) (data[0] | data[1] << 8);
            record[at % len] ^= data[2];
        }

        if (size == 2) {
            len = len * data[0] / 256;
            record[4] = (uint8_t) len;
            record[5] = (uint8_t) (len >> 8);
        }

    } else {
        len = size - 1;
        memcpy(record, data + 1, len);
    }

    copy = malloc(len == 0 ? 1 : len);
    scratch = malloc(vlm_record_scratch(len) + 1);

    if (copy == NULL || scratch == NULL) {
        abort();
    }

    memcpy(copy, record, len);

    if (vlm_record_decode(copy, len, ARENA, scratch, &req, &why) == 0) {
        check(&req);
    }

    free(copy);
    free(scratch);

    return 0;
}
