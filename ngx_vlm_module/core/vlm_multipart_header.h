
/* The headers of a part; private to the parser of vlm_multipart.h. */

#ifndef VLM_MULTIPART_HEADER_H
#define VLM_MULTIPART_HEADER_H


#include "vlm_multipart.h"


/* mp->seen: headers of the current part */

#define VLM_MULTIPART_DISPOSITION   1
#define VLM_MULTIPART_TYPE          2
#define VLM_MULTIPART_ENCODING      4


/*
 * Takes the header in mp->line, mp->line_len (no CRLF).  Returns
 * VLM_MULTIPART_AGAIN or VLM_MULTIPART_ERROR.
 */
int vlm_multipart_header(vlm_multipart_t *mp);

/* What is wrong with the current part; returns VLM_MULTIPART_ERROR. */
int vlm_bad_part(vlm_multipart_t *mp, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));


#endif /* VLM_MULTIPART_HEADER_H */
