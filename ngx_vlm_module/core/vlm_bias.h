
/*
 * The value of logit_bias, a JSON object {"ID": BIAS, ...}, read as it
 * arrives.  An id that is given twice keeps its last bias.
 */

#ifndef VLM_BIAS_H
#define VLM_BIAS_H


#include <stddef.h>

#include "engine/channel/vlm_record.h"


#define VLM_BIAS_NUMBER         32      /* bytes of a number */


/* zeroed memory is the initial state */

typedef struct {
    uint32_t            n;
    vlm_logit_bias_t    bias[VLM_MAX_LOGIT_BIAS];

    /* private */
    unsigned            state;
    size_t              len;
    int32_t             id;
    char                number[VLM_BIAS_NUMBER];
} vlm_bias_t;


/* 0, or -1 and a reason in *why that fits behind "logit_bias " */
int vlm_bias_add(vlm_bias_t *b, const void *data, size_t len,
    const char **why);
int vlm_bias_end(const vlm_bias_t *b, const char **why);


#endif /* VLM_BIAS_H */
