
/*
 * The answer as OpenAI's clients read it: server-sent events or one
 * chat.completion object, and the error object of both.  Every function
 * appends to an output of the caller (see vlm_out.h).
 *
 * A stream is, in this order:
 *     vlm_sse_role()      for each choice
 *     vlm_sse_text()      any number, pieces of whole UTF-8 characters
 *     vlm_sse_finish()    for each choice
 *     vlm_sse_usage()     if a->usage
 *     vlm_sse_done()
 * with vlm_sse_ping() anywhere between, or cut short by vlm_sse_error().
 *
 * A chat.completion is
 *     vlm_json_begin()
 *     for each choice: vlm_json_choice(), vlm_out_json() for each piece of
 *     its text, vlm_json_finish()
 *     vlm_json_end()
 *
 * Log probabilities are entries of engine/channel/vlm_logprob.h; 0 bytes of
 * them are told as null.
 */

#ifndef VLM_ANSWER_H
#define VLM_ANSWER_H


#include "vlm_fail.h"
#include "vlm_out.h"


typedef struct {
    const char         *id;             /* $request_id; "chatcmpl-" is put
                                           before it */
    size_t              id_len;
    const char         *model;
    size_t              model_len;
    uint64_t            created;        /* seconds since the epoch */
    unsigned            usage;          /* 1: chunks say "usage":null, and a
                                           usage chunk follows */
} vlm_answer_t;

typedef struct {
    uint32_t            prompt_tokens;
    uint32_t            completion_tokens;
    uint32_t            cached_tokens;
    uint32_t            image_tokens;
} vlm_usage_t;


/* "reason" is VLM_FINISH_*; anything but LENGTH is told as "stop" */

void vlm_sse_role(vlm_out_t *o, const vlm_answer_t *a, unsigned choice);
void vlm_sse_text(vlm_out_t *o, const vlm_answer_t *a, unsigned choice,
    const char *text, size_t len, const void *logprobs, size_t nlogprobs);
void vlm_sse_finish(vlm_out_t *o, const vlm_answer_t *a, unsigned choice,
    unsigned reason);
void vlm_sse_usage(vlm_out_t *o, const vlm_answer_t *a,
    const vlm_usage_t *usage);
void vlm_sse_done(vlm_out_t *o);
void vlm_sse_error(vlm_out_t *o, const vlm_fail_t *fail);
void vlm_sse_ping(vlm_out_t *o);

void vlm_json_begin(vlm_out_t *o, const vlm_answer_t *a);
void vlm_json_choice(vlm_out_t *o, unsigned choice);
void vlm_json_finish(vlm_out_t *o, unsigned reason, const void *logprobs,
    size_t nlogprobs);
void vlm_json_end(vlm_out_t *o, const vlm_usage_t *usage);

/* the body of an error answer, a newline at its end as vlm_json_end() too */
void vlm_json_error(vlm_out_t *o, const vlm_fail_t *fail);


#endif /* VLM_ANSWER_H */
