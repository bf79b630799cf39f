
#include <string.h>

#include "vlm_logprob.h"


static size_t token_size(const vlm_logprob_t *token);
static uint8_t *put_token(uint8_t *p, const vlm_logprob_t *token,
    uint32_t ntop);
static size_t read_token(const uint8_t *p, size_t len, vlm_logprob_t *token,
    uint32_t *ntop);


size_t
vlm_logprobs_append(void *buf, size_t size, size_t used,
    const vlm_logprobs_t *entry)
{
    size_t    need;
    uint8_t  *p;
    uint32_t  i, ntop;

    ntop = entry->ntop;

    if (ntop > VLM_MAX_TOP_LOGPROBS) {
        ntop = VLM_MAX_TOP_LOGPROBS;
    }

    need = token_size(&entry->token);

    for (i = 0; i < ntop; i++) {
        need += token_size(&entry->top[i]);
    }

    if (used > size || need > size - used) {
        return used;
    }

    p = put_token((uint8_t *) buf + used, &entry->token, ntop);

    for (i = 0; i < ntop; i++) {
        p = put_token(p, &entry->top[i], 0);
    }

    return used + need;
}


size_t
vlm_logprobs_read(const void *p, size_t len, vlm_logprobs_t *entry)
{
    size_t    n, size;
    uint32_t  i, ntop;

    size = read_token(p, len, &entry->token, &entry->ntop);

    if (size == 0 || entry->ntop > VLM_MAX_TOP_LOGPROBS) {
        return 0;
    }

    for (i = 0; i < entry->ntop; i++) {

        n = read_token((const uint8_t *) p + size, len - size,
                       &entry->top[i], &ntop);

        if (n == 0 || ntop != 0) {
            return 0;
        }

        size += n;
    }

    return size;
}


int
vlm_logprobs_count(const void *p, size_t len)
{
    int             count;
    size_t          n, pos;
    vlm_logprobs_t  entry;

    count = 0;

    for (pos = 0; pos < len; pos += n) {

        n = vlm_logprobs_read((const uint8_t *) p + pos, len - pos, &entry);

        if (n == 0) {
            return -1;
        }

        count++;
    }

    return count;
}


static size_t
token_size(const vlm_logprob_t *token)
{
    return sizeof(vlm_event_logprob_t)
           + ((token->length < VLM_MAX_TOKEN_BYTES) ? token->length
                                                    : VLM_MAX_TOKEN_BYTES);
}


static uint8_t *
put_token(uint8_t *p, const vlm_logprob_t *token, uint32_t ntop)
{
    vlm_event_logprob_t  e;

    e.length = (uint16_t) (token_size(token) - sizeof(vlm_event_logprob_t));
    e.ntop = (uint16_t) ntop;
    e.logprob = token->logprob;

    /* what is not a number fails every comparison */

    if (!(e.logprob >= VLM_MIN_LOGPROB)) {
        e.logprob = VLM_MIN_LOGPROB;
    }

    if (e.logprob > 0) {
        e.logprob = 0;
    }

    memcpy(p, &e, sizeof(vlm_event_logprob_t));
    p += sizeof(vlm_event_logprob_t);

    if (e.length != 0) {
        memcpy(p, token->bytes, e.length);
    }

    return p + e.length;
}


/* returns the bytes of one token, 0 if it is malformed */

static size_t
read_token(const uint8_t *p, size_t len, vlm_logprob_t *token,
    uint32_t *ntop)
{
    vlm_event_logprob_t  e;

    if (len < sizeof(vlm_event_logprob_t)) {
        return 0;
    }

    memcpy(&e, p, sizeof(vlm_event_logprob_t));

    if (e.length > VLM_MAX_TOKEN_BYTES
        || e.length > len - sizeof(vlm_event_logprob_t)
        || !(e.logprob >= VLM_MIN_LOGPROB && e.logprob <= 0))
    {
        return 0;
    }

    token->bytes = (const char *) p + sizeof(vlm_event_logprob_t);
    token->length = e.length;
    token->logprob = e.logprob;

    *ntop = e.ntop;

    return sizeof(vlm_event_logprob_t) + e.length;
}
