
/* The parts of a tokenizer: private to engine/text. */

#ifndef VLM_TOKENIZER_PARTS_H
#define VLM_TOKENIZER_PARTS_H


#define PCRE2_CODE_UNIT_WIDTH  8

#include <pcre2.h>

#include "engine/base/vlm_json.h"
#include "engine/text/tokenizer.h"


#define VLM_MAX_TOKEN_ID    (1 << 22)
#define VLM_MAX_SPLITS      16


/*
 * Vocabulary.  data holds the bytes that a token stands for; NULL: there is
 * no such id.  Tokens which no text can produce (their key has symbols
 * outside of the byte alphabet) are not in the hash table.
 */

typedef struct {
    const char         *data;
    uint32_t            len;
    uint8_t             added;
    uint8_t             special;
} vlm_token_t;

typedef struct {
    vlm_token_t        *tokens;
    int32_t             ntokens;        /* one more than the largest id */
    uint32_t            max_len;
    uint32_t           *slots;          /* id + 1, 0: free */
    uint32_t            mask;
    char               *bytes;
    size_t              used;           /* of bytes */
    int32_t             byte_id[256];
} vlm_vocab_t;

int vlm_vocab_load(vlm_vocab_t *vocab, const vlm_json_t *keys,
    const vlm_json_t *added, vlm_error_t *err);
void vlm_vocab_free(vlm_vocab_t *vocab);

/* text of an added token; vlm_vocab_load() has left room for all of them */
const char *vlm_vocab_add(vlm_vocab_t *vocab, int32_t id,
    const char *content, size_t len, int special);

/* -1: there is none */
int32_t vlm_vocab_find(const vlm_vocab_t *vocab, const char *data,
    size_t len);

/* symbols of the byte alphabet to bytes; -1: there is another symbol */
ptrdiff_t vlm_vocab_unmap(const char *symbols, size_t len, char *bytes);


/* Merges: pair of ids to rank and id of the whole */

#define VLM_NO_RANK     UINT32_MAX

typedef struct {
    uint32_t            left;
    uint32_t            right;
    uint32_t            rank;           /* VLM_NO_RANK: free */
    uint32_t            id;
} vlm_merge_t;

typedef struct {
    vlm_merge_t        *slots;
    uint32_t            mask;
} vlm_merges_t;

int vlm_merges_load(vlm_merges_t *merges, const vlm_vocab_t *vocab,
    const vlm_json_t *list, vlm_error_t *err);
void vlm_merges_free(vlm_merges_t *merges);

/* takes out merges that would make special tokens of ordinary text */
void vlm_merges_protect(vlm_merges_t *merges, const vlm_vocab_t *vocab);


/* work space of one call; operations are counted for the tests */

typedef struct vlm_symbol_s  vlm_symbol_t;

typedef struct {
    vlm_symbol_t       *symbols;
    uint64_t           *heap;
    size_t              nheap;
    size_t              size;
    uint64_t            operations;
} vlm_bpe_t;

/* appends the ids of one piece */
int vlm_bpe_run(vlm_bpe_t *bpe, const vlm_merges_t *merges,
    const vlm_vocab_t *vocab, const char *piece, size_t len, vlm_ids_t *ids);
void vlm_bpe_free(vlm_bpe_t *bpe);


/*
 * NFC.  Text that is known to be normal already is not copied: out stays
 * empty and the result is 0; 1: the normal form is in out.
 */

int vlm_nfc(const char *text, size_t len, vlm_buf_t *out,
    uint64_t *operations);

/* never changes, nor does anything composed with it, by NFC */
int vlm_nfc_inert(int32_t c);


/* Pre-tokenizer: splits applied one after the other, each inside pieces */

typedef int (*vlm_piece_pt)(void *data, const char *piece, size_t len);

typedef struct {
    pcre2_code         *splits[VLM_MAX_SPLITS];
    unsigned            nsplits;
} vlm_pretok_t;

typedef struct {
    const vlm_pretok_t     *pretok;
    pcre2_match_data       *match;
    pcre2_match_context    *context;
    vlm_piece_pt            piece;
    void                   *data;
    vlm_error_t            *err;
} vlm_splitter_t;

int vlm_pretok_load(vlm_pretok_t *pretok, const vlm_json_t *v,
    vlm_error_t *err);
void vlm_pretok_free(vlm_pretok_t *pretok);

/* the rest of s is set by the caller */
int vlm_splitter_init(vlm_splitter_t *s);
int vlm_split(vlm_splitter_t *s, const char *text, size_t len);
void vlm_splitter_free(vlm_splitter_t *s);

/*
 * A regular expression of a tokenizer.json in PCRE2's terms; what means
 * something else there is an error.
 */
int vlm_regex_translate(const char *regex, size_t len, vlm_buf_t *out,
    vlm_error_t *err);


/*
 * Decoding of bytes that may not be UTF-8: a bad sequence's longest valid
 * beginning becomes one U+FFFD.  A sequence that ends too early waits in
 * tail for the next bytes.
 */

typedef struct {
    char                tail[4];
    size_t              len;
} vlm_lossy_t;

int vlm_lossy_add(vlm_lossy_t *lossy, const char *data, size_t len,
    vlm_buf_t *out);
int vlm_lossy_finish(vlm_lossy_t *lossy, vlm_buf_t *out);


/*
 * Added tokens, ordered by first byte, then the longest first.  Those with
 * "normalized" are looked for in the normal form of the text.
 */

typedef struct {
    const char         *data;
    uint32_t            len;
    int32_t             id;
    int                 normalized;
} vlm_added_t;

typedef struct {
    vlm_added_t        *tokens;
    uint32_t            ntokens;
    uint32_t            first[257];     /* by first byte */
} vlm_added_list_t;

int vlm_added_load(vlm_added_list_t *list, vlm_vocab_t *vocab,
    const vlm_json_t *added, vlm_error_t *err);
void vlm_added_free(vlm_added_list_t *list);

/* the longest one that text begins with, NULL if none */
const vlm_added_t *vlm_added_match(const vlm_added_list_t *list,
    const char *text, size_t len, int normalized);


struct vlm_tokenizer_s {
    vlm_vocab_t         vocab;
    vlm_merges_t        merges;
    vlm_pretok_t        pretok;
    vlm_added_list_t    added;
    int                 nfc;
    int                 ignore_merges;
};

vlm_tokenizer_t *vlm_tokenizer_from_json(const vlm_json_doc_t *doc,
    vlm_error_t *err);

/* tells how many elementary steps it took, for the tests */
int vlm_tokenizer_encode_counted(const vlm_tokenizer_t *tok,
    const char *text, size_t len, int special, vlm_ids_t *ids,
    uint64_t *operations, vlm_error_t *err);


#endif /* VLM_TOKENIZER_PARTS_H */
