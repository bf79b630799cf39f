
/* A request that failed: what its client is told. */

#ifndef VLM_FAIL_H
#define VLM_FAIL_H


#include <stddef.h>


#define VLM_FAIL_MESSAGE        1024


typedef struct {
    unsigned            status;         /* HTTP status, 0: no failure */
    unsigned            retry_after;    /* seconds, 0: none */
    char                code[32];       /* "" is null in JSON */
    char                param[48];      /* "" is null in JSON */
    char                message[VLM_FAIL_MESSAGE];
} vlm_fail_t;


/*
 * Fills *f; too long values are cut at the end.  code and param may be NULL.
 * retry_after is set to 0.
 */
void vlm_fail(vlm_fail_t *f, unsigned status, const char *code,
    const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/*
 * Cuts [p, p + len) to at most "max" bytes without splitting a UTF-8
 * character; returns the new length.  For messages and the like.
 */
size_t vlm_fail_cut(const char *p, size_t len, size_t max);

/* the "type" of an error object with this status */
const char *vlm_fail_type(unsigned status);


#endif /* VLM_FAIL_H */
