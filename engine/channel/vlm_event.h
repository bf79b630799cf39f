
/* An event in memory: as written by the engine, as read by the worker. */

#ifndef VLM_EVENT_H
#define VLM_EVENT_H


#include "vlm_wire.h"


typedef struct {
    uint16_t                    type;       /* VLM_EVENT_* */
    uint16_t                    choice;
    uint32_t                    slot;
    uint32_t                    generation;

    union {
        vlm_event_admitted_t    admitted;
        vlm_event_progress_t    progress;
        vlm_event_text_t        text;
        vlm_event_finish_t      finish;
        vlm_event_done_t        done;
        vlm_event_error_t       error;
    } u;

    /* behind the body: u.text.length or u.error.length bytes */
    const char                 *text;

    /* behind the text: u.text.nlogprobs bytes, see vlm_logprob.h */
    const char                 *logprobs;

    /* where a reader puts them; a writer leaves it alone */
    char                        buf[VLM_MAX_EVENT_FRAME];
} vlm_event_t;


#endif /* VLM_EVENT_H */
