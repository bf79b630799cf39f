
/*
 * Vocabulary: keys of tokenizer.json are written in an alphabet of symbols,
 * one for each byte, printable bytes standing for themselves.  Here they
 * become bytes at once.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer_parts.h"


static int count_keys(const vlm_json_t *keys, size_t *bytes, int64_t *max,
    vlm_error_t *err);
static int add_keys(vlm_vocab_t *vocab, const vlm_json_t *keys,
    vlm_error_t *err);
static int add_hash(vlm_vocab_t *vocab, int32_t id);
static int count_added(const vlm_json_t *added, size_t *bytes, int64_t *max,
    vlm_error_t *err);
static int check_bytes(vlm_vocab_t *vocab, vlm_error_t *err);


static uint32_t
hash_of(const char *data, size_t len)
{
    size_t    i;
    uint64_t  h;

    for (i = 0, h = 0xcbf29ce484222325u; i < len; i++) {
        h = (h ^ (unsigned char) data[i]) * 0x100000001b3u;
    }

    return (uint32_t) (h ^ (h >> 32));
}


static int
is_printable(unsigned byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172)
           || byte >= 174;
}


/* byte of a symbol, -1 if it is not one: 256, 257... are the others in order */

static int
byte_of(unsigned symbol)
{
    unsigned  n;

    if (symbol < 256) {
        return is_printable(symbol) ? (int) symbol : -1;
    }

    n = symbol - 256;

    if (n < 33) {
        return (int) n;                             /* 0 to 32 */
    }

    if (n < 67) {
        return (int) (n - 33 + 127);                /* 127 to 160 */
    }

    return n == 67 ? 173 : -1;
}


ptrdiff_t
vlm_vocab_unmap(const char *symbols, size_t len, char *bytes)
{
    int                   byte;
    size_t                i, n;
    unsigned              c;
    const unsigned char  *p;

    p = (const unsigned char *) symbols;

    for (i = 0, n = 0; i < len; i++) {
        c = p[i];

        if (c >= 0x80) {
            if (c > 0xc5 || i + 1 == len) {
                return -1;
            }

            c = (c & 0x1f) << 6 | (p[++i] & 0x3f);
        }

        byte = byte_of(c);

        if (byte == -1) {
            return -1;
        }

        bytes[n++] = (char) byte;
    }

    return (ptrdiff_t) n;
}


int
vlm_vocab_load(vlm_vocab_t *vocab, const vlm_json_t *keys,
    const vlm_json_t *added, vlm_error_t *err)
{
    size_t    bytes, size;
    int64_t   max;

    if (vlm_json_type(keys) != VLM_JSON_OBJECT) {
        return vlm_fail(err, 500, NULL, "model.vocab is not an object");
    }

    bytes = 0;
    max = -1;

    if (count_keys(keys, &bytes, &max, err) == VLM_ERROR
        || count_added(added, &bytes, &max, err) == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    for (size = 64; size < 2 * vlm_json_count(keys); size *= 2) {
        /* void */
    }

    vocab->ntokens = (int32_t) (max + 1);
    vocab->mask = (uint32_t) (size - 1);
    vocab->tokens = calloc((size_t) max + 2, sizeof(vlm_token_t));
    vocab->slots = calloc(size, sizeof(uint32_t));
    vocab->bytes = malloc(bytes + 1);

    if (vocab->tokens == NULL || vocab->slots == NULL
        || vocab->bytes == NULL)
    {
        return vlm_fail(err, 500, NULL, "no memory for the vocabulary");
    }

    if (add_keys(vocab, keys, err) == VLM_ERROR) {
        return VLM_ERROR;
    }

    return check_bytes(vocab, err);
}


static int
check_id(const vlm_json_t *v, const char *key, size_t len, int64_t *id,
    vlm_error_t *err)
{
    if (vlm_json_int(v, id) == VLM_ERROR || *id < 0
        || *id >= VLM_MAX_TOKEN_ID)
    {
        return vlm_fail(err, 500, NULL,
                        "id of token \"%.*s\" is not a number from 0 to %d",
                        len < 64 ? (int) len : 64, key,
                        VLM_MAX_TOKEN_ID - 1);
    }

    return VLM_OK;
}


static int
count_keys(const vlm_json_t *keys, size_t *bytes, int64_t *max,
    vlm_error_t *err)
{
    size_t             len;
    int64_t            id;
    const char        *key;
    const vlm_json_t  *v;

    for (v = vlm_json_first(keys); v != NULL; v = vlm_json_next(v)) {
        key = vlm_json_key(v, &len);

        if (check_id(v, key, len, &id, err) == VLM_ERROR) {
            return VLM_ERROR;
        }

        *bytes += len;
        *max = id > *max ? id : *max;
    }

    return VLM_OK;
}


static int
count_added(const vlm_json_t *added, size_t *bytes, int64_t *max,
    vlm_error_t *err)
{
    size_t             len;
    int64_t            id;
    const char        *content;
    const vlm_json_t  *v;

    for (v = vlm_json_first(added); v != NULL; v = vlm_json_next(v)) {

        if (vlm_json_string(vlm_json_get(v, "content"), &content, &len)
            == VLM_ERROR || len == 0)
        {
            return vlm_fail(err, 500, NULL,
                            "an entry of added_tokens has no content");
        }

        if (check_id(vlm_json_get(v, "id"), content, len, &id, err)
            == VLM_ERROR)
        {
            return VLM_ERROR;
        }

        *bytes += len;
        *max = id > *max ? id : *max;
    }

    return VLM_OK;
}


static int
add_keys(vlm_vocab_t *vocab, const vlm_json_t *keys, vlm_error_t *err)
{
    char              *p;
    size_t             len;
    int64_t            id;
    ptrdiff_t          n;
    const char        *key;
    vlm_token_t       *token;
    const vlm_json_t  *v;

    p = vocab->bytes;

    for (v = vlm_json_first(keys); v != NULL; v = vlm_json_next(v)) {
        key = vlm_json_key(v, &len);

        (void) vlm_json_int(v, &id);

        token = &vocab->tokens[id];

        if (token->data != NULL) {
            return vlm_fail(err, 500, NULL, "id %lld has two tokens",
                            (long long) id);
        }

        n = vlm_vocab_unmap(key, len, p);

        if (n == -1) {
            memcpy(p, key, len);
        }

        token->data = p;
        token->len = (uint32_t) (n == -1 ? (ptrdiff_t) len : n);

        if (token->len > vocab->max_len) {
            vocab->max_len = token->len;
        }

        p += token->len;
        vocab->used += token->len;

        if (n != -1 && add_hash(vocab, (int32_t) id) == VLM_ERROR) {
            return vlm_fail(err, 500, NULL, "token \"%.*s\" has two ids",
                            len < 64 ? (int) len : 64, key);
        }
    }

    return VLM_OK;
}


static int
add_hash(vlm_vocab_t *vocab, int32_t id)
{
    uint32_t            i;
    const vlm_token_t  *token, *other;

    token = &vocab->tokens[id];
    i = hash_of(token->data, token->len) & vocab->mask;

    while (vocab->slots[i] != 0) {
        other = &vocab->tokens[vocab->slots[i] - 1];

        if (other->len == token->len
            && memcmp(other->data, token->data, token->len) == 0)
        {
            return VLM_ERROR;
        }

        i = (i + 1) & vocab->mask;
    }

    vocab->slots[i] = (uint32_t) id + 1;

    return VLM_OK;
}


int32_t
vlm_vocab_find(const vlm_vocab_t *vocab, const char *data, size_t len)
{
    uint32_t            i;
    const vlm_token_t  *token;

    if (len > vocab->max_len) {
        return -1;
    }

    i = hash_of(data, len) & vocab->mask;

    while (vocab->slots[i] != 0) {
        token = &vocab->tokens[vocab->slots[i] - 1];

        if (token->len == len && memcmp(token->data, data, len) == 0) {
            return (int32_t) vocab->slots[i] - 1;
        }

        i = (i + 1) & vocab->mask;
    }

    return -1;
}


/* every byte that UTF-8 has needs a token, so that any text has ids */

static int
check_bytes(vlm_vocab_t *vocab, vlm_error_t *err)
{
    char      c;
    unsigned  byte;

    for (byte = 0; byte < 256; byte++) {
        c = (char) byte;
        vocab->byte_id[byte] = vlm_vocab_find(vocab, &c, 1);

        if (vocab->byte_id[byte] == -1 && byte != 0xc0 && byte != 0xc1
            && byte < 0xf5)
        {
            return vlm_fail(err, 500, NULL,
                            "the vocabulary has no token for byte 0x%02x",
                            byte);
        }
    }

    return VLM_OK;
}


const char *
vlm_vocab_add(vlm_vocab_t *vocab, int32_t id, const char *content,
    size_t len, int special)
{
    char         *p;
    vlm_token_t  *token;

    p = vocab->bytes + vocab->used;
    vocab->used += len;

    memcpy(p, content, len);

    token = &vocab->tokens[id];

    token->data = p;
    token->len = (uint32_t) len;
    token->added = 1;
    token->special = (special != 0);

    return p;
}


void
vlm_vocab_free(vlm_vocab_t *vocab)
{
    free(vocab->tokens);
    free(vocab->slots);
    free(vocab->bytes);
}
