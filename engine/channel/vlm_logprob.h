
/*
 * Log probabilities of tokens, as they stand behind the text of a text event:
 * one entry for each of its tokens, of a vlm_event_logprob_t and the token's
 * bytes, followed by the same for each alternative.  Entries are not aligned.
 */

#ifndef VLM_LOGPROB_H
#define VLM_LOGPROB_H


#include <stddef.h>

#include "vlm_event.h"
#include "vlm_record.h"


typedef struct {
    const char         *bytes;          /* of a token, maybe no whole UTF-8 */
    uint32_t            length;
    float               logprob;        /* natural */
} vlm_logprob_t;

typedef struct {
    vlm_logprob_t       token;
    uint32_t            ntop;
    vlm_logprob_t       top[VLM_MAX_TOP_LOGPROBS];
} vlm_logprobs_t;


/*
 * The engine's side: appends one token and its alternatives, best first, to
 * "used" bytes of "buf", that has "size" bytes.  Returns the bytes that are
 * used then, or "used" itself if there is no room: in a buffer of
 * VLM_MAX_EVENT_LOGPROBS bytes there always is for the first token.  What is
 * longer than VLM_MAX_TOKEN_BYTES is cut; alternatives beyond
 * VLM_MAX_TOP_LOGPROBS are left out; what is not a number from
 * VLM_MIN_LOGPROB to 0 becomes one.
 */
size_t vlm_logprobs_append(void *buf, size_t size, size_t used,
    const vlm_logprobs_t *entry);

/*
 * Reads the first of the entries in "len" bytes; pointers of *entry point
 * into them.  Returns the bytes it takes, or 0 if they are malformed.
 */
size_t vlm_logprobs_read(const void *p, size_t len, vlm_logprobs_t *entry);

/* the number of entries, -1 if they are malformed */
int vlm_logprobs_count(const void *p, size_t len);


#endif /* VLM_LOGPROB_H */
