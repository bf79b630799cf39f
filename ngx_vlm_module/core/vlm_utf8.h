
/*
 * UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing
 * above U+10FFFF.
 */

#ifndef VLM_UTF8_H
#define VLM_UTF8_H


#include <stddef.h>
#include <stdint.h>


/* an incremental validator; zeroed memory is its initial state */

typedef struct {
    uint8_t             need;           /* bytes missing of a character */
    uint8_t             low;            /* bounds of the next one */
    uint8_t             high;
} vlm_utf8_t;


/* Takes the next bytes of a text.  Returns 0, or -1 at an invalid byte. */
int vlm_utf8_add(vlm_utf8_t *u, const uint8_t *p, size_t len);

/* Returns 0 if the text may end here, -1 within a character. */
int vlm_utf8_end(const vlm_utf8_t *u);

/* Length of the character at p, 0 if it is invalid or cut at "last". */
size_t vlm_utf8_char(const uint8_t *p, const uint8_t *last);


#endif /* VLM_UTF8_H */
