
#include <string.h>

#include "vlm_multipart_header.h"


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
static int bad(vlm_multipart_t *mp, const char *what);


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

    if (rc == VLM_MULTIPART_ERROR) {
        mp->state = ST_FAILED;
    }

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
    q = *pos;
    mp->data = q;

    for (p = q; p < last; p = q) {

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

    mp->pending_len = last - p;

    if (mp->pending_len != 0) {
        memcpy(mp->pending, p, mp->pending_len);
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

    if (rc == FOUND_MORE && p > *pos) {
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

    if (p == last) {
        return eof ? bad(mp, "ends within the headers of a part")
                   : VLM_MULTIPART_AGAIN;
    }

    lf = memchr(p, '\n', last - p);
    n = ((lf != NULL) ? lf : last) - p;

    if (n > VLM_MULTIPART_LINE - mp->line_len) {
        return vlm_bad_part(mp, "has a header line longer than %u bytes",
                            VLM_MULTIPART_LINE);
    }

    memcpy(mp->line + mp->line_len, p, n);
    mp->line_len += n;
    *pos = p + n;

    if (lf == NULL) {
        return VLM_MULTIPART_AGAIN;
    }

    *pos += 1;

    if (mp->line_len == 0 || mp->line[mp->line_len - 1] != '\r') {
        return vlm_bad_part(mp, "has a header line that is not ended by CRLF");
    }

    mp->line_len--;

    if (mp->line_len == 0) {
        return end_headers(mp);
    }

    return vlm_multipart_header(mp);
}


static int
end_headers(vlm_multipart_t *mp)
{
    if ((mp->seen & VLM_MULTIPART_DISPOSITION) == 0) {
        return vlm_bad_part(mp, "has no Content-Disposition header");
    }

    mp->state = ST_BODY;
    after_line(mp);

    return VLM_MULTIPART_PART;
}


static int
bad(vlm_multipart_t *mp, const char *what)
{
    vlm_fail(&mp->fail, 400, "invalid_multipart", NULL, "the body %s", what);

    return VLM_MULTIPART_ERROR;
}
