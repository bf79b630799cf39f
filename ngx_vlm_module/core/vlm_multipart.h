
/*
 * A streaming parser of multipart/form-data.
 *
 * Input comes in pieces of any size; the sequence of parts, their names and
 * their bytes do not depend on how it is cut.  Nothing is allocated and no
 * byte of a part is copied: a DATA event points into the input, except for
 * the few bytes at the end of a piece that might have been a boundary and
 * turned out not to be, which point into the parser.
 *
 *     rc = vlm_multipart_content_type(value, len, boundary, &n, &fail);
 *     vlm_multipart_init(mp, boundary, n, max_parts);
 *     for ( ;; ) {
 *         switch (vlm_multipart_next(mp, &pos, last, eof)) { ... }
 *     }
 */

#ifndef VLM_MULTIPART_H
#define VLM_MULTIPART_H


#include <stddef.h>
#include <stdint.h>

#include "vlm_fail.h"


#define VLM_MULTIPART_BOUNDARY      70      /* RFC 2046 */
#define VLM_MULTIPART_PADDING       128     /* behind a boundary */
#define VLM_MULTIPART_PREAMBLE      4096
#define VLM_MULTIPART_LINE          4096    /* one header of a part */
#define VLM_MULTIPART_HEADERS       16      /* of one part */
#define VLM_MULTIPART_NAME          128

#define VLM_MULTIPART_PENDING                                                 \
    (4 + VLM_MULTIPART_BOUNDARY + 2 + VLM_MULTIPART_PADDING + 2)


#define VLM_MULTIPART_AGAIN     0       /* all input is consumed */
#define VLM_MULTIPART_PART      1       /* name, filename are set */
#define VLM_MULTIPART_DATA      2       /* data, len (never 0) are set */
#define VLM_MULTIPART_END       3       /* of the part */
#define VLM_MULTIPART_DONE      4       /* of the whole body, again and again */
#define VLM_MULTIPART_ERROR     5       /* fail is set, again and again */


#define VLM_FILENAME_NONE       0       /* no filename parameter */
#define VLM_FILENAME_EMPTY      1       /* filename="" */
#define VLM_FILENAME_GIVEN      2

typedef struct {
    /* of the last PART, until the next call after its END */
    char                name[VLM_MULTIPART_NAME + 1];
    size_t              name_len;
    unsigned            filename;       /* VLM_FILENAME_* */

    /* of the last DATA, until the next call */
    const uint8_t      *data;
    size_t              len;

    unsigned            nparts;         /* begun so far */
    vlm_fail_t          fail;

    /* private */
    unsigned            state;
    unsigned            max_parts;

    /* "\r\n--" and the boundary */
    uint8_t             delimiter[4 + VLM_MULTIPART_BOUNDARY];
    size_t              delimiter_len;

    /* a delimiter line begun in earlier pieces, and those bytes of it */
    unsigned            match;
    size_t              matched;
    uint8_t             pending[VLM_MULTIPART_PENDING];
    size_t              pending_len;

    size_t              preamble;
    unsigned            nheaders;
    unsigned            seen;
    size_t              line_len;
    char                line[VLM_MULTIPART_LINE];
} vlm_multipart_t;


/*
 * Takes the boundary out of a Content-Type value.  Returns 0, or -1 with
 * *fail set: 415 if it is not multipart/form-data, 400 if the boundary is
 * missing, malformed or longer than 70 bytes.
 */
int vlm_multipart_content_type(const char *value, size_t len,
    char boundary[VLM_MULTIPART_BOUNDARY], size_t *boundary_len,
    vlm_fail_t *fail);

/* "boundary" must come from vlm_multipart_content_type() */
void vlm_multipart_init(vlm_multipart_t *mp, const char *boundary,
    size_t boundary_len, unsigned max_parts);

/*
 * The next event in [*pos, last); *pos is moved behind what was consumed.
 * "eof": nothing follows "last"; then the result is never AGAIN, call until
 * DONE or ERROR.  After DONE everything else (the epilogue) is consumed.
 */
int vlm_multipart_next(vlm_multipart_t *mp, const uint8_t **pos,
    const uint8_t *last, int eof);


#endif /* VLM_MULTIPART_H */
