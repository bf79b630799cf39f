
/* Parameters of a header's value: TYPE; name=token; name="quoted string" */

#ifndef VLM_PARAM_H
#define VLM_PARAM_H


#include "vlm_out.h"


typedef struct {
    const char         *name;
    size_t              name_len;
    const char         *value;          /* still with its backslashes */
    size_t              value_len;
    unsigned            quoted;
} vlm_param_t;


/*
 * Moves *p behind the first word of a value; returns whether that equals
 * "word", letters in any case.
 */
int vlm_param_type(const char **p, const char *last, const char *word);

/* The next parameter.  1: found; 0: there are no more; -1: malformed. */
int vlm_param_next(const char **p, const char *last, vlm_param_t *param);

/* appends a parameter's value */
void vlm_param_value(const vlm_param_t *param, vlm_out_t *to);

/* skips spaces and tabs */
const char *vlm_param_space(const char *p, const char *last);

/* whether a name equals "word", letters in any case */
int vlm_param_is(const char *name, size_t len, const char *word);


#endif /* VLM_PARAM_H */
