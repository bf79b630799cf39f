
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "vlm_multipart.h"
#include "vlm_param.h"


/* mp->state */

enum {
    ST_PREAMBLE = 0,
    ST_HEADERS,
    ST_BODY,
    ST_EPILOGUE,
    ST_FAILED
};

/*
 * mp->match: where in a delimiter line the bytes seen so far end.
 *
 *     CRLF -- boundary [--] padding CRLF
 */

enum {
    MATCH_NONE = 0,
    MATCH_TEXT,             /* mp->matched bytes of mp->delimiter */
    MATCH_TAIL,             /* all of it */
    MATCH_DASH,
    MATCH_PADDING,
    MATCH_CR,
    MATCH_CLOSE,            /* after "--", with its padding */
    MATCH_CLOSE_CR
};

/* what match() and find() say */

enum {
    FOUND_MORE = 0,         /* undecided at the end of the input */
    FOUND_NOT,
    FOUND_NEXT,             /* another part follows */
    FOUND_CLOSE,
    FOUND_DATA,
    FOUND_BAD
};

/* mp->seen: headers of the current part */

#define SEEN_DISPOSITION    1
#define SEEN_TYPE           2
#define SEEN_ENCODING       4


static int next_in_preamble(vlm_multipart_t *mp, const uint8_t **pos,
    const uint8_t *last, int eof);
static int next_in_headers(vlm_multipart_t *mp, const uint8_t **pos,
    const uint8_t *last, int eof);
static int next_in_body(vlm_multipart_t *mp, const uint8_t **pos,
    const uint8_t *last, int eof);
static int find(vlm_multipart_t *mp, const uint8_t **pos,
    const uint8_t *last, int eof);
static int find_pending(vlm_multipart_t *mp, const uint8_t **pos,
    const uint8_t *last, int eof);
static int match(vlm_multipart_t *mp, const uint8_t **pos,
    const uint8_t *last, int eof);
static int match_tail(vlm_multipart_t *mp, uint8_t c);
static void after_line(vlm_multipart_t *mp);
static int begin_headers(vlm_multipart_t *mp);
static int end_headers(vlm_multipart_t *mp);
static int header(vlm_multipart_t *mp);
static int disposition(vlm_multipart_t *mp, const char *p, const char *last);
static int content_type(vlm_multipart_t *mp, const char *p,
    const char *last);
static int encoding(vlm_multipart_t *mp, const char *p, const char *last);
static int seen_twice(vlm_multipart_t *mp, unsigned bit);
static int bad(vlm_multipart_t *mp, const char *what);
static int bad_part(vlm_multipart_t *mp, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));


/*
 * RFC 2046 allows fewer characters in a boundary; clients use others too.
 */

int
vlm_multipart_content_type(const char *value, size_t len,
    char boundary[VLM_MULTIPART_BOUNDARY], size_t *boundary_len,
    vlm_fail_t *fail)
{
    int          rc;
    size_t       i;
    const char  *p, *last;
    unsigned     found;
    vlm_out_t    out;
    vlm_param_t  param;

    p = value;
    last = value + len;

    if (!vlm_param_type(&p, last, "multipart/form-data")) {
        vlm_fail(fail, 415, "unsupported_content_type", NULL,
                 "Content-Type must be multipart/form-data");
        return -1;
    }

    found = 0;
    vlm_out_init(&out, boundary, VLM_MULTIPART_BOUNDARY);

    for ( ;; ) {
        rc = vlm_param_next(&p, last, &param);

        if (rc != 1) {
            break;
        }

        if (vlm_param_is(param.name, param.name_len, "boundary")) {
            found++;
            vlm_param_value(&param, &out);
        }
    }

    if (rc == -1 || found > 1) {
        vlm_fail(fail, 400, "invalid_multipart", NULL,
                 "the parameters of Content-Type are malformed");
        return -1;
    }

    if (out.len == 0) {
        vlm_fail(fail, 400, "invalid_multipart", NULL,
                 "Content-Type names no boundary");
        return -1;
    }

    if (vlm_out_full(&out)) {
        vlm_fail(fail, 400, "invalid_multipart", NULL,
                 "the boundary has %zu bytes, more than %u", out.len,
                 VLM_MULTIPART_BOUNDARY);
        return -1;
    }

    for (i = 0; i < out.len; i++) {

        if (boundary[i] < 0x20 || boundary[i] >= 0x7f) {
            break;
        }
    }

    if (i < out.len || boundary[out.len - 1] == ' ') {
        vlm_fail(fail, 400, "invalid_multipart", NULL,
                 "the boundary has a character that is not allowed");
        return -1;
    }

    *boundary_len = out.len;

    return 0;
}


void
vlm_multipart_init(vlm_multipart_t *mp, const char *boundary,
    size_t boundary_len, unsigned max_parts)
{
    memset(mp, 0, sizeof(vlm_multipart_t));

    if (boundary_len > VLM_MULTIPART_BOUNDARY) {
        boundary_len = VLM_MULTIPART_BOUNDARY;
    }

    memcpy(mp->delimiter, "\r\n--", 4);
    memcpy(mp->delimiter + 4, boundary, boundary_len);

    mp->delimiter_len = 4 + boundary_len;
    mp->max_parts = max_parts;

    after_line(mp);
}


int
vlm_multipart_next(vlm_multipart_t *mp, const uint8_t **pos,
    const uint8_t *last, int eof)
{
    int  rc;

    do {

        switch (mp->state) {

        case ST_PREAMBLE:
            rc = next_in_preamble(mp, pos, last, eof);
            break;

        case ST_HEADERS:
            rc = next_in_headers(mp, pos, last, eof);
            break;

        case ST_BODY:
            rc = next_in_body(mp, pos, last, eof);
            break;

        case ST_EPILOGUE:
            *pos = last;
            return VLM_MULTIPART_DONE;

        default:
            return VLM_MULTIPART_ERROR;
        }

    } while (rc == VLM_MULTIPART_AGAIN && (*pos < last || eof));

    return rc;
}


/* AGAIN of these three: go on if there is input, in whatever state now is */

static int
next_in_preamble(vlm_multipart_t *mp, const uint8_t **pos,
    const uint8_t *last, int eof)
{
    switch (find(mp, pos, last, eof)) {

    case FOUND_DATA:
        mp->preamble += mp->len;

        if (mp->preamble > VLM_MULTIPART_PREAMBLE) {
            return bad(mp, "does not begin with the boundary that "
                           "Content-Type names");
        }

        return VLM_MULTIPART_AGAIN;

    case FOUND_NEXT:
        return begin_headers(mp);

    case FOUND_CLOSE:
        mp->state = ST_EPILOGUE;
        return VLM_MULTIPART_DONE;

    case FOUND_BAD:
        return bad(mp, "has too much white space behind a boundary");

    default:

        if (eof) {
            return bad(mp, "does not contain the boundary that "
                           "Content-Type names, in a line ended by CRLF");
        }

        return VLM_MULTIPART_AGAIN;
    }
}


static int
next_in_body(vlm_multipart_t *mp, const uint8_t **pos, const uint8_t *last,
    int eof)
{
    switch (find(mp, pos, last, eof)) {

    case FOUND_DATA:
        return VLM_MULTIPART_DATA;

    case FOUND_NEXT:
        if (begin_headers(mp) == VLM_MULTIPART_ERROR) {
            return VLM_MULTIPART_ERROR;
        }

        return VLM_MULTIPART_END;

    case FOUND_CLOSE:
        mp->state = ST_EPILOGUE;
        return VLM_MULTIPART_END;

    case FOUND_BAD:
        return bad(mp, "has too much white space behind a boundary");

    default:

        if (eof) {
            return bad(mp, "ends before the final boundary");
        }

        return VLM_MULTIPART_AGAIN;
    }
}


/*
 * Looks for the next delimiter line.  DATA: mp->data, mp->len come before
 * it, *pos is behind them; NEXT or CLOSE: *pos is behind the line; MORE: all
 * input is consumed.
 */

static int
find(vlm_multipart_t *mp, const uint8_t **pos, const uint8_t *last, int eof)
{
    int             rc;
    const uint8_t  *p, *q;

    if (mp->match != MATCH_NONE) {
        rc = find_pending(mp, pos, last, eof);

        if (rc != FOUND_NOT) {
            return rc;
        }
    }

    rc = FOUND_MORE;
    mp->data = *pos;

    for (p = *pos; p < last; p = q) {

        p = memchr(p, '\r', last - p);

        if (p == NULL) {
            p = last;
            break;
        }

        mp->match = MATCH_TEXT;
        mp->matched = 0;

        q = p;
        rc = match(mp, &q, last, eof);

        if (rc != FOUND_NOT) {
            break;
        }
    }

    mp->len = p - *pos;

    if (mp->len != 0 && rc != FOUND_MORE) {
        /* the data first, then the same line again */
        mp->match = MATCH_NONE;
        *pos = p;
        return FOUND_DATA;
    }

    if (rc == FOUND_NEXT || rc == FOUND_CLOSE || rc == FOUND_BAD) {
        *pos = q;
        return rc;
    }

    if (rc == FOUND_MORE) {
        memcpy(mp->pending, p, last - p);
        mp->pending_len = last - p;
    }

    *pos = last;

    return (mp->len != 0) ? FOUND_DATA : FOUND_MORE;
}


/* goes on with a line that began in earlier pieces */

static int
find_pending(vlm_multipart_t *mp, const uint8_t **pos, const uint8_t *last,
    int eof)
{
    int             rc;
    const uint8_t  *p;

    p = *pos;
    rc = match(mp, &p, last, eof);

    if (rc == FOUND_NOT) {
        /*
         * The earlier bytes were data; there is no other CR among them that
         * a delimiter could begin with.
         */
        if (mp->pending_len == 0) {
            return FOUND_NOT;
        }

        mp->data = mp->pending;
        mp->len = mp->pending_len;
        mp->pending_len = 0;

        return FOUND_DATA;
    }

    if (rc == FOUND_MORE) {
        memcpy(mp->pending + mp->pending_len, *pos, p - *pos);
        mp->pending_len += p - *pos;
    }

    *pos = p;

    return rc;
}


/* Compares on; *pos ends behind what fits.  match() leaves no match on NOT. */

static int
match(vlm_multipart_t *mp, const uint8_t **pos, const uint8_t *last, int eof)
{
    int             rc;
    const uint8_t  *p;

    rc = FOUND_MORE;

    for (p = *pos; p < last && rc == FOUND_MORE; p++) {

        if (mp->match != MATCH_TEXT) {
            rc = match_tail(mp, *p);

        } else if (*p != mp->delimiter[mp->matched]) {
            rc = FOUND_NOT;

        } else if (++mp->matched == mp->delimiter_len) {
            mp->match = MATCH_TAIL;
            mp->matched = 0;
        }

        if (rc == FOUND_NOT) {
            break;
        }
    }

    *pos = p;

    if (rc == FOUND_MORE && eof
        && (mp->match == MATCH_CLOSE || mp->match == MATCH_CLOSE_CR))
    {
        rc = FOUND_CLOSE;
    }

    if (rc != FOUND_MORE) {
        mp->match = MATCH_NONE;
    }

    return rc;
}


/* one byte behind the boundary; mp->matched counts the padding */

static int
match_tail(vlm_multipart_t *mp, uint8_t c)
{
    switch (mp->match) {

    case MATCH_CR:
        return (c == '\n') ? FOUND_NEXT : FOUND_NOT;

    case MATCH_CLOSE_CR:
        return (c == '\n') ? FOUND_CLOSE : FOUND_NOT;

    case MATCH_DASH:

        if (c != '-') {
            return FOUND_NOT;
        }

        mp->match = MATCH_CLOSE;
        return FOUND_MORE;

    default:  /* MATCH_TAIL, MATCH_PADDING, MATCH_CLOSE */
        break;
    }

    if (c == ' ' || c == '\t') {

        if (mp->match == MATCH_TAIL) {
            mp->match = MATCH_PADDING;
        }

        return (++mp->matched > VLM_MULTIPART_PADDING) ? FOUND_BAD
                                                       : FOUND_MORE;
    }

    if (c == '\r') {
        mp->match = (mp->match == MATCH_CLOSE) ? MATCH_CLOSE_CR : MATCH_CR;
        return FOUND_MORE;
    }

    if (c == '-' && mp->match == MATCH_TAIL) {
        mp->match = MATCH_DASH;
        return FOUND_MORE;
    }

    return FOUND_NOT;
}


/*
 * At the start of the body, and right behind a part's headers, the CRLF of a
 * delimiter has been read already.
 */

static void
after_line(vlm_multipart_t *mp)
{
    mp->match = MATCH_TEXT;
    mp->matched = 2;
    mp->pending_len = 0;
}


static int
begin_headers(vlm_multipart_t *mp)
{
    if (mp->nparts >= mp->max_parts) {
        mp->state = ST_FAILED;
        vlm_fail(&mp->fail, 400, "too_many_parts", NULL,
                 "the form has more than %u parts", mp->max_parts);
        return VLM_MULTIPART_ERROR;
    }

    mp->nparts++;

    mp->state = ST_HEADERS;
    mp->nheaders = 0;
    mp->seen = 0;
    mp->line_len = 0;

    return VLM_MULTIPART_AGAIN;
}


static int
next_in_headers(vlm_multipart_t *mp, const uint8_t **pos,
    const uint8_t *last, int eof)
{
    size_t          n;
    const uint8_t  *p, *lf;

    p = *pos;
    lf = (p < last) ? memchr(p, '\n', last - p) : NULL;
    n = ((lf != NULL) ? lf : last) - p;

    if (n > VLM_MULTIPART_LINE - mp->line_len) {
        return bad_part(mp, "has a header line longer than %u bytes",
                        VLM_MULTIPART_LINE);
    }

    memcpy(mp->line + mp->line_len, p, n);
    mp->line_len += n;
    *pos = p + n;

    if (lf == NULL) {
        return eof ? bad(mp, "ends within the headers of a part")
                   : VLM_MULTIPART_AGAIN;
    }

    *pos += 1;

    if (mp->line_len == 0 || mp->line[mp->line_len - 1] != '\r') {
        return bad_part(mp, "has a header line that is not ended by CRLF");
    }

    mp->line_len--;

    if (mp->line_len == 0) {
        return end_headers(mp);
    }

    return header(mp);
}


static int
end_headers(vlm_multipart_t *mp)
{
    if ((mp->seen & SEEN_DISPOSITION) == 0) {
        return bad_part(mp, "has no Content-Disposition header");
    }

    mp->state = ST_BODY;
    after_line(mp);

    return VLM_MULTIPART_PART;
}


static int
header(vlm_multipart_t *mp)
{
    size_t       i, n;
    const char  *p, *last, *colon;

    p = mp->line;
    last = p + mp->line_len;

    for (i = 0; i < mp->line_len; i++) {

        if (((unsigned char) p[i] < 0x20 && p[i] != '\t') || p[i] == 0x7f) {
            return bad_part(mp, "has a control character in its headers");
        }
    }

    if (++mp->nheaders > VLM_MULTIPART_HEADERS) {
        return bad_part(mp, "has more than %u headers",
                        VLM_MULTIPART_HEADERS);
    }

    colon = memchr(p, ':', mp->line_len);
    mp->line_len = 0;

    if (colon == NULL || colon == p
        || memchr(p, ' ', colon - p) != NULL
        || memchr(p, '\t', colon - p) != NULL)
    {
        return bad_part(mp, "has a malformed header line");
    }

    n = colon - p;
    p = colon + 1;

    if (vlm_param_is(mp->line, n, "content-disposition")) {
        return disposition(mp, p, last);
    }

    if (vlm_param_is(mp->line, n, "content-type")) {
        return content_type(mp, p, last);
    }

    if (vlm_param_is(mp->line, n, "content-transfer-encoding")) {
        return encoding(mp, p, last);
    }

    return VLM_MULTIPART_AGAIN;
}


static int
disposition(vlm_multipart_t *mp, const char *p, const char *last)
{
    int          rc;
    unsigned     named;
    vlm_out_t    name;
    vlm_param_t  param;

    if (seen_twice(mp, SEEN_DISPOSITION)) {
        return bad_part(mp, "has two Content-Disposition headers");
    }

    if (!vlm_param_type(&p, last, "form-data")) {
        return bad_part(mp, "is not of Content-Disposition form-data");
    }

    named = 0;
    mp->filename = VLM_FILENAME_NONE;

    for ( ;; ) {
        rc = vlm_param_next(&p, last, &param);

        if (rc != 1) {
            break;
        }

        if (vlm_param_is(param.name, param.name_len, "name")) {

            if (named++) {
                return bad_part(mp, "has two names");
            }

            vlm_out_init(&name, mp->name, VLM_MULTIPART_NAME);
            vlm_param_value(&param, &name);

            if (vlm_out_full(&name)) {
                return bad_part(mp, "has a name longer than %u bytes",
                                VLM_MULTIPART_NAME);
            }

            mp->name_len = name.len;
            mp->name[name.len] = '\0';

        } else if (vlm_param_is(param.name, param.name_len, "filename")) {

            if (mp->filename != VLM_FILENAME_NONE) {
                return bad_part(mp, "has two file names");
            }

            mp->filename = (param.value_len != 0) ? VLM_FILENAME_GIVEN
                                                  : VLM_FILENAME_EMPTY;
        }
    }

    if (rc == -1) {
        return bad_part(mp, "has a malformed Content-Disposition header");
    }

    if (!named) {
        return bad_part(mp, "has no name");
    }

    return VLM_MULTIPART_AGAIN;
}


static int
content_type(vlm_multipart_t *mp, const char *p, const char *last)
{
    if (seen_twice(mp, SEEN_TYPE)) {
        return bad_part(mp, "has two Content-Type headers");
    }

    p = vlm_param_space(p, last);

    if (last - p >= 10 && strncasecmp(p, "multipart/", 10) == 0) {
        return bad_part(mp, "is a multipart itself: send each file as a part "
                            "of its own");
    }

    return VLM_MULTIPART_AGAIN;
}


static int
encoding(vlm_multipart_t *mp, const char *p, const char *last)
{
    size_t       i;
    const char  *start;

    static const char *const  plain[] = { "7bit", "8bit", "binary" };

    if (seen_twice(mp, SEEN_ENCODING)) {
        return bad_part(mp, "has two Content-Transfer-Encoding headers");
    }

    for (i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        start = p;

        if (vlm_param_type(&start, last, plain[i])) {
            return VLM_MULTIPART_AGAIN;
        }
    }

    return bad_part(mp, "has a Content-Transfer-Encoding other than 7bit, "
                        "8bit and binary");
}


static int
seen_twice(vlm_multipart_t *mp, unsigned bit)
{
    unsigned  seen;

    seen = mp->seen & bit;
    mp->seen |= bit;

    return seen != 0;
}


static int
bad(vlm_multipart_t *mp, const char *what)
{
    mp->state = ST_FAILED;
    vlm_fail(&mp->fail, 400, "invalid_multipart", NULL, "the body %s", what);

    return VLM_MULTIPART_ERROR;
}


static int
bad_part(vlm_multipart_t *mp, const char *fmt, ...)
{
    char     what[128];
    va_list  args;

    va_start(args, fmt);
    (void) vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);

    mp->state = ST_FAILED;
    vlm_fail(&mp->fail, 400, "invalid_multipart", NULL,
             "part %u of the form %s", mp->nparts, what);

    return VLM_MULTIPART_ERROR;
}
