
/*
 * Byte-level BPE from a checkpoint's tokenizer.json.  Read-only after
 * loading: any number of threads may encode and decode at once.
 */

#ifndef VLM_TOKENIZER_H
#define VLM_TOKENIZER_H


#include "engine/base/vlm_base.h"


typedef struct vlm_tokenizer_s  vlm_tokenizer_t;

/* growing list of ids; {0} is an empty one */

typedef struct {
    int32_t    *data;
    size_t      len;
    size_t      size;
} vlm_ids_t;

int vlm_ids_append(vlm_ids_t *ids, int32_t id, size_t times);
void vlm_ids_free(vlm_ids_t *ids);


/* dir/tokenizer.json; an exact error for whatever is not supported */
vlm_tokenizer_t *vlm_tokenizer_load(const char *dir, vlm_error_t *err);
void vlm_tokenizer_free(vlm_tokenizer_t *tok);

/* number of ids: one more than the largest */
int32_t vlm_tokenizer_size(const vlm_tokenizer_t *tok);

/* id of an added token by its exact text, -1 if there is none */
int32_t vlm_tokenizer_added(const vlm_tokenizer_t *tok, const char *content);

/*
 * Appends the ids of text (valid UTF-8, or VLM_ERROR with 400).  With
 * special == 0 nothing in it is taken for an added token (what a user typed);
 * with 1 added tokens are recognised (the product's own templates, tests).
 */
int vlm_tokenizer_encode(const vlm_tokenizer_t *tok, const char *text,
    size_t len, int special, vlm_ids_t *ids, vlm_error_t *err);

/*
 * The bytes that one id stands for; added tokens give their text.  NULL for
 * an id that does not exist.  *special tells a special added token.
 */
const char *vlm_tokenizer_bytes(const vlm_tokenizer_t *tok, int32_t id,
    size_t *len, int *special);

/* whole text; bad UTF-8 becomes U+FFFD as the reference does */
int vlm_tokenizer_decode(const vlm_tokenizer_t *tok, const int32_t *ids,
    size_t n, int skip_special, vlm_buf_t *text, vlm_error_t *err);


/*
 * Incremental detokenizer with stop strings: gives out whole UTF-8
 * characters only, and holds back what could become a stop string.  Special
 * added tokens are not shown.  One for each running answer.
 */

typedef struct vlm_detok_s  vlm_detok_t;

typedef struct {
    const char *data;
    size_t      len;
} vlm_stop_t;

vlm_detok_t *vlm_detok_create(const vlm_tokenizer_t *tok,
    const vlm_stop_t *stops, size_t nstops, vlm_error_t *err);
void vlm_detok_free(vlm_detok_t *d);

/*
 * Adds one id; text that may be shown is appended to out.  Returns 1 if a
 * stop string is complete (it and all behind it are not shown; nothing more
 * may be added), 0 otherwise, VLM_ERROR without memory.
 */
int vlm_detok_add(vlm_detok_t *d, int32_t id, vlm_buf_t *out);

/* the answer ended without a stop string: what was held back */
int vlm_detok_finish(vlm_detok_t *d, vlm_buf_t *out);


#endif /* VLM_TOKENIZER_H */
