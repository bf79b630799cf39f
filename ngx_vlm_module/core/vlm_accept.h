
/* The form of an answer, from the Accept header and the "stream" field. */

#ifndef VLM_ACCEPT_H
#define VLM_ACCEPT_H


#include <stddef.h>


#define VLM_ANSWER_SSE          0
#define VLM_ANSWER_JSON         1
#define VLM_ANSWER_TEXT         2

#define VLM_ANSWER_TYPES        3


/* zeroed memory is the initial state: no Accept header */

typedef struct {
    unsigned            named;          /* media ranges so far */

    struct {
        unsigned        q;              /* thousandths, 0: not named */
        unsigned        order;
    } types[VLM_ANSWER_TYPES];
} vlm_accept_t;


/* Takes one Accept header; call it for each. */
void vlm_accept_add(vlm_accept_t *a, const char *value, size_t len);

/*
 * "stream" is VLM_STREAM_* of vlm_form.h.  Only types named in full count as
 * a wish; of several, the greatest q, then the first named.  Returns
 * VLM_ANSWER_*; for VLM_ANSWER_TEXT with VLM_STREAM_FALSE the text is to be
 * sent in one piece.
 */
int vlm_accept_answer(const vlm_accept_t *a, unsigned stream);


#endif /* VLM_ACCEPT_H */
