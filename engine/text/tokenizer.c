
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer_parts.h"


#define MAX_TEXT  (1u << 28)


typedef struct vlm_encode_s  vlm_encode_t;

typedef int (*part_pt)(vlm_encode_t *e, const char *text, size_t len);

struct vlm_encode_s {
    const vlm_tokenizer_t  *tok;
    vlm_ids_t              *ids;
    int                     special;
    vlm_bpe_t               bpe;
    vlm_splitter_t          splitter;
    uint64_t                nfc_operations;
    vlm_error_t            *err;
};


static int split_added(vlm_encode_t *e, const char *text, size_t len,
    int normalized, part_pt part);
static int encode_raw(vlm_encode_t *e, const char *text, size_t len);
static int encode_normal(vlm_encode_t *e, const char *text, size_t len);
static int encode_piece(void *data, const char *piece, size_t len);


int
vlm_ids_append(vlm_ids_t *ids, int32_t id, size_t times)
{
    size_t    i, size;
    int32_t  *p;

    if (times > ids->size - ids->len) {

        if (times > INT32_MAX - ids->len) {
            return VLM_ERROR;
        }

        size = (ids->len + times) * 2;
        size = size < 64 ? 64 : size;

        p = realloc(ids->data, size * sizeof(int32_t));
        if (p == NULL) {
            return VLM_ERROR;
        }

        ids->data = p;
        ids->size = size;
    }

    for (i = 0; i < times; i++) {
        ids->data[ids->len++] = id;
    }

    return VLM_OK;
}


void
vlm_ids_free(vlm_ids_t *ids)
{
    free(ids->data);
    memset(ids, 0, sizeof(*ids));
}


int32_t
vlm_tokenizer_size(const vlm_tokenizer_t *tok)
{
    return tok->vocab.ntokens;
}


int32_t
vlm_tokenizer_added(const vlm_tokenizer_t *tok, const char *content)
{
    size_t              len;
    uint32_t            i, end;
    const vlm_added_t  *token;

    len = strlen(content);

    i = tok->added.first[(unsigned char) content[0]];
    end = tok->added.first[(unsigned char) content[0] + 1];

    for (/* void */; i < end; i++) {
        token = &tok->added.tokens[i];

        if (token->len == len && memcmp(token->data, content, len) == 0) {
            return token->id;
        }
    }

    return -1;
}


int
vlm_tokenizer_encode(const vlm_tokenizer_t *tok, const char *text,
    size_t len, int special, vlm_ids_t *ids, vlm_error_t *err)
{
    return vlm_tokenizer_encode_counted(tok, text, len, special, ids, NULL,
                                        err);
}


int
vlm_tokenizer_encode_counted(const vlm_tokenizer_t *tok, const char *text,
    size_t len, int special, vlm_ids_t *ids, uint64_t *operations,
    vlm_error_t *err)
{
    int           rc;
    size_t        valid, before;
    vlm_encode_t  e;

    if (len > MAX_TEXT) {
        return vlm_fail(err, 400, "text_too_large", "text is too large: "
                        "%zu bytes, at most %u", len, MAX_TEXT);
    }

    valid = vlm_utf8_valid(text, len);

    if (valid < len) {
        return vlm_fail(err, 400, "invalid_utf8",
                        "text is not valid UTF-8 at byte %zu", valid);
    }

    memset(&e, 0, sizeof(e));

    e.tok = tok;
    e.ids = ids;
    e.special = special;
    e.err = err;

    before = ids->len;
    rc = vlm_splitter_init(&e.splitter);

    e.splitter.pretok = &tok->pretok;
    e.splitter.piece = encode_piece;
    e.splitter.data = &e;
    e.splitter.err = err;

    if (rc == VLM_ERROR) {
        vlm_fail(err, 500, NULL, "no memory");

    } else {
        rc = split_added(&e, text, len, 0, encode_raw);
    }

    if (rc == VLM_ERROR) {
        ids->len = before;
    }

    if (operations != NULL) {
        *operations = e.bpe.operations + e.nfc_operations;
    }

    vlm_splitter_free(&e.splitter);
    vlm_bpe_free(&e.bpe);

    return rc;
}


/* added tokens of one kind become ids, what lies between them parts */

static int
split_added(vlm_encode_t *e, const char *text, size_t len, int normalized,
    part_pt part)
{
    size_t              pos, done;
    const vlm_added_t  *token;

    if (!e->special) {
        return part(e, text, len);
    }

    for (pos = 0, done = 0; pos < len; /* void */) {

        token = vlm_added_match(&e->tok->added, text + pos, len - pos,
                                normalized);
        if (token == NULL) {
            pos++;
            continue;
        }

        if (part(e, text + done, pos - done) == VLM_ERROR) {
            return VLM_ERROR;
        }

        if (vlm_ids_append(e->ids, token->id, 1) == VLM_ERROR) {
            return vlm_fail(e->err, 500, NULL, "no memory");
        }

        pos += token->len;
        done = pos;
    }

    return part(e, text + done, len - done);
}


static int
encode_raw(vlm_encode_t *e, const char *text, size_t len)
{
    int        rc;
    vlm_buf_t  normal;

    if (!e->tok->nfc) {
        return split_added(e, text, len, 1, encode_normal);
    }

    memset(&normal, 0, sizeof(normal));

    rc = vlm_nfc(text, len, &normal, &e->nfc_operations);

    if (rc == VLM_ERROR) {
        vlm_fail(e->err, 500, NULL, "no memory to normalize the text");

    } else if (rc == 1) {
        rc = split_added(e, normal.data, normal.len, 1, encode_normal);

    } else {
        rc = split_added(e, text, len, 1, encode_normal);
    }

    vlm_buf_free(&normal);

    return rc;
}


static int
encode_normal(vlm_encode_t *e, const char *text, size_t len)
{
    return vlm_split(&e->splitter, text, len);
}


static int
encode_piece(void *data, const char *piece, size_t len)
{
    int                     rc;
    int32_t                 id;
    vlm_encode_t           *e = data;
    const vlm_tokenizer_t  *tok;

    tok = e->tok;
    id = -1;

    if (tok->ignore_merges) {
        id = vlm_vocab_find(&tok->vocab, piece, len);
    }

    if (id != -1 && !tok->vocab.tokens[id].special) {
        rc = vlm_ids_append(e->ids, id, 1);

    } else {
        rc = vlm_bpe_run(&e->bpe, &tok->merges, &tok->vocab, piece, len,
                         e->ids);
    }

    if (rc == VLM_ERROR) {
        return vlm_fail(e->err, 500, NULL, "no memory");
    }

    return VLM_OK;
}


const char *
vlm_tokenizer_bytes(const vlm_tokenizer_t *tok, int32_t id, size_t *len,
    int *special)
{
    const vlm_token_t  *token;

    if (id < 0 || id >= tok->vocab.ntokens
        || tok->vocab.tokens[id].data == NULL)
    {
        *len = 0;
        *special = 0;
        return NULL;
    }

    token = &tok->vocab.tokens[id];

    *len = token->len;
    *special = token->special;

    return token->data;
}


/* ids that do not exist have no text, as in the reference */

int
vlm_tokenizer_decode(const vlm_tokenizer_t *tok, const int32_t *ids,
    size_t n, int skip_special, vlm_buf_t *text, vlm_error_t *err)
{
    int           special;
    size_t        i, len;
    const char   *data;
    vlm_lossy_t   lossy;

    lossy.len = 0;

    for (i = 0; i < n; i++) {
        data = vlm_tokenizer_bytes(tok, ids[i], &len, &special);

        if (data == NULL || (special && skip_special)) {
            continue;
        }

        if (vlm_lossy_add(&lossy, data, len, text) == VLM_ERROR) {
            return vlm_fail(err, 500, NULL, "no memory");
        }
    }

    if (vlm_lossy_finish(&lossy, text) == VLM_ERROR) {
        return vlm_fail(err, 500, NULL, "no memory");
    }

    return VLM_OK;
}
