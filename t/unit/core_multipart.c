
/* The multipart parser: every way to cut a body gives the same events. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ngx_vlm_module/core/vlm_multipart.h"
#include "t/unit/lib/tap.h"


#define MAX_PARTS   8


typedef struct {
    char                log[8192];      /* NAME/FILENAME{DATA} ... */
    size_t              len;
} trace_t;

typedef struct {
    const char         *name;
    const char         *body;
    const char         *expected;       /* a trace, "!" before a message */
} case_t;


static const case_t  cases[] = {

    { "two parts",
      "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\none\r\n"
      "--B\r\nContent-Disposition: form-data; name=b; filename=\"x.jpg\"\r\n"
      "Content-Type: image/jpeg\r\n\r\ntwo\r\n--B--\r\n",
      "a/0{one}b/2{two}." },

    { "no CRLF at the end",
      "--B\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--B--",
      "a/0{1}." },

    { "CR alone at the end",
      "--B\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--B--\r",
      "a/0{1}." },

    { "zero parts", "--B--\r\n", "." },

    { "zero parts after CRLF, with padding", "\r\n--B-- \t\r\n", "." },

    { "preamble and epilogue",
      "hello\r\n--Bx\r\n--B\r\nContent-Disposition: form-data; name=a\r\n\r\n"
      "1\r\n--B--\r\n--B\r\nbye\n",
      "a/0{1}." },

    { "padding behind boundaries",
      "--B \t \r\nContent-Disposition: form-data; name=a\r\n\r\n"
      "1\r\n--B\t\r\nContent-Disposition: form-data; name=b\r\n\r\n2"
      "\r\n--B--  \r\n",
      "a/0{1}b/0{2}." },

    { "lines that begin like the boundary",
      "--B\r\nContent-Disposition: form-data; name=a\r\n\r\n"
      "\r\n--Bxyz\r\n--B-\r\n--B-x\r\n--B--x\r\n--B x\r\n--B\rx\r\n--B\nx"
      "\r\n--\r\n-\r\r\n\r\n--A\r\n--B\r\r\n--B \r\r\n--B--",
      "a/0{\r\n--Bxyz\r\n--B-\r\n--B-x\r\n--B--x\r\n--B x\r\n--B\rx\r\n--B\n"
      "x\r\n--\r\n-\r\r\n\r\n--A\r\n--B\r\r\n--B \r}." },

    { "the same directly behind the headers",
      "--B\r\nContent-Disposition: form-data; name=a\r\n\r\n--Bx\r\n--B\r\n"
      "Content-Disposition: form-data; name=b\r\n\r\n--\r\n--B--",
      "a/0{--Bx}b/0{--}." },

    { "empty part, with and without its own CRLF",
      "--B\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n--B\r\n"
      "Content-Disposition: form-data; name=b\r\n\r\n--B--\r\n",
      "a/0{}b/0{}." },

    { "names in odd forms",
      "--B\r\ncontent-disposition:FORM-DATA;filename=\"name=x;\\\"\";"
      "NAME=\"a\\\"\\\\b\\c\" ;; filename*=UTF-8''%41;\r\nX-Other: 1\r\n\r\n"
      "1\r\n--B--",
      "a\"\\b\\c/2{1}." },

    { "an empty file name",
      "--B\r\nContent-Disposition: form-data; name=a; filename=\"\"\r\n"
      "Content-Type: application/octet-stream\r\n"
      "Content-Transfer-Encoding: BINARY\r\n\r\n\r\n--B--",
      "a/1{}." },

    { "zeros in data",
      "--B\r\nContent-Disposition: form-data; name=a\r\n\r\n@@\r\n--B--",
      "a/0{@@}." },

    { "empty body", "", "!does not contain the boundary" },
    { "another boundary", "--C\r\n\r\n\r\n--C--\r\n",
      "!does not contain the boundary" },
    { "bare LF after the boundary",
      "--B\nContent-Disposition: form-data; name=a\n\n1\n--B--\n",
      "!does not contain the boundary" },
    { "bare LF in headers",
      "--B\r\nContent-Disposition: form-data; name=a\n\r\n1\r\n--B--\r\n",
      "!part 1 of the form has a header line that is not ended by CRLF" },
    { "no final boundary",
      "--B\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n",
      "a/0{1!the body ends before the final boundary" },
    { "a boundary that goes on instead of the final one",
      "--B\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--B\r\n",
      "a/0{1}!ends within the headers" },
    { "a single dash instead of the final boundary",
      "--B\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--B-\r\n",
      "a/0{1\r\n--B-!the body ends before the final boundary" },
    { "ends within headers",
      "--B\r\nContent-Disposition: form-data; na", "!ends within the headers" },
    { "no name",
      "--B\r\nContent-Disposition: form-data; filename=a\r\n\r\n1\r\n--B--",
      "!part 1 of the form has no name" },
    { "no Content-Disposition",
      "--B\r\nContent-Type: image/png\r\n\r\n1\r\n--B--",
      "!part 1 of the form has no Content-Disposition" },
    { "no headers at all", "--B\r\n\r\n1\r\n--B--",
      "!part 1 of the form has no Content-Disposition" },
    { "not form-data",
      "--B\r\nContent-Disposition: attachment; name=a\r\n\r\n1\r\n--B--",
      "!part 1 of the form is not of Content-Disposition form-data" },
    { "two names",
      "--B\r\nContent-Disposition: form-data; name=a; name=b\r\n\r\n1\r\n"
      "--B--", "!part 1 of the form has two names" },
    { "two file names",
      "--B\r\nContent-Disposition: form-data; name=a; filename=\"\"; "
      "filename=x\r\n\r\n1\r\n--B--",
      "!part 1 of the form has two file names" },
    { "two dispositions",
      "--B\r\nContent-Disposition: form-data; name=a\r\n"
      "Content-Disposition: form-data; name=b\r\n\r\n1\r\n--B--",
      "!part 1 of the form has two Content-Disposition" },
    { "an open quote",
      "--B\r\nContent-Disposition: form-data; name=\"a\\\"\r\n\r\n1\r\n--B--",
      "!part 1 of the form has a malformed Content-Disposition" },
    { "bytes behind a quoted string",
      "--B\r\nContent-Disposition: form-data; name=\"a\"b\r\n\r\n1\r\n--B--",
      "!part 1 of the form has a malformed Content-Disposition" },
    { "a parameter without a value",
      "--B\r\nContent-Disposition: form-data; name\r\n\r\n1\r\n--B--",
      "!part 1 of the form has a malformed Content-Disposition" },
    { "a folded header",
      "--B\r\nContent-Disposition: form-data; name=a;\r\n filename=b\r\n\r\n"
      "1\r\n--B--", "!part 1 of the form has a malformed header line" },
    { "no colon",
      "--B\r\nContent-Disposition form-data; name=a\r\n\r\n1\r\n--B--",
      "!part 1 of the form has a malformed header" },
    { "a space before the colon",
      "--B\r\nContent-Disposition : form-data; name=a\r\n\r\n1\r\n--B--",
      "!part 1 of the form has a malformed header" },
    { "CR within a header",
      "--B\r\nContent-Disposition: form-data; name=a\rb\r\n\r\n1\r\n--B--",
      "!part 1 of the form has a control character" },
    { "NUL within a header",
      "--B\r\nContent-Disposition: form-data; name=a@\r\n\r\n1\r\n--B--",
      "!part 1 of the form has a control character" },
    { "nested multipart",
      "--B\r\nContent-Disposition: form-data; name=a\r\n"
      "Content-Type:  Multipart/mixed; boundary=C\r\n\r\n1\r\n--B--",
      "!part 1 of the form is a multipart itself" },
    { "base64",
      "--B\r\nContent-Disposition: form-data; name=a\r\n"
      "Content-Transfer-Encoding: base64\r\n\r\n1\r\n--B--",
      "!part 1 of the form has a Content-Transfer-Encoding" }
};


static void put(trace_t *t, const char *p, size_t n);
static void event(trace_t *t, const vlm_multipart_t *mp, int rc);
static void drive(trace_t *t, const uint8_t *body, size_t len,
    const size_t *cuts, size_t ncuts);
static void check_case(const case_t *c);
static void check_large(void);
static void check_limits(void);
static void check_content_type(void);
static int try_content_type(const char *value, char *boundary, size_t *len);
static char *repeat(const char *before, const char *what, size_t n,
    const char *after);
static void body_is(char *body, const char *expected, const char *name);


int
main(void)
{
    size_t  i;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        check_case(&cases[i]);
    }

    check_large();
    check_limits();
    check_content_type();

    return tap_done();
}


/* zeros are logged as "@" */

static void
put(trace_t *t, const char *p, size_t n)
{
    for ( /* void */ ; n != 0 && t->len < sizeof(t->log) - 1; n--) {
        t->log[t->len++] = (*p != '\0') ? *p : '@';
        p++;
    }

    t->log[t->len] = '\0';
}


static void
event(trace_t *t, const vlm_multipart_t *mp, int rc)
{
    char  buf[8];

    switch (rc) {

    case VLM_MULTIPART_PART:
        put(t, mp->name, mp->name_len);
        (void) snprintf(buf, sizeof(buf), "/%u{", mp->filename);
        put(t, buf, strlen(buf));
        break;

    case VLM_MULTIPART_DATA:
        put(t, (const char *) mp->data, mp->len);
        break;

    case VLM_MULTIPART_END:
        put(t, "}", 1);
        break;

    case VLM_MULTIPART_DONE:
        put(t, ".", 1);
        break;

    case VLM_MULTIPART_ERROR:
        put(t, "!", 1);
        put(t, mp->fail.message, strlen(mp->fail.message));
        break;
    }
}


/*
 * Feeds the body cut at the given offsets; each piece is a heap block of its
 * own, so that sanitizers see any access outside of it.
 */

static void
drive(trace_t *t, const uint8_t *body, size_t len, const size_t *cuts,
    size_t ncuts)
{
    int              rc;
    size_t           i, from, to;
    uint8_t         *piece;
    const uint8_t   *pos;
    vlm_multipart_t  mp;

    t->len = 0;
    t->log[0] = '\0';

    vlm_multipart_init(&mp, "B", 1, MAX_PARTS);

    rc = VLM_MULTIPART_AGAIN;
    from = 0;

    for (i = 0; i <= ncuts && rc != VLM_MULTIPART_ERROR; i++) {
        to = (i < ncuts) ? cuts[i] : len;

        piece = malloc(to - from + 1);
        memcpy(piece, body + from, to - from);
        pos = piece;

        do {
            rc = vlm_multipart_next(&mp, &pos, piece + (to - from), 0);

            if (rc != VLM_MULTIPART_DONE) {
                event(t, &mp, rc);
            }

        } while (rc != VLM_MULTIPART_AGAIN && rc != VLM_MULTIPART_DONE
                 && rc != VLM_MULTIPART_ERROR);

        free(piece);
        from = to;
    }

    pos = NULL;

    while (rc != VLM_MULTIPART_ERROR) {
        rc = vlm_multipart_next(&mp, &pos, pos, 1);
        event(t, &mp, rc);

        if (rc == VLM_MULTIPART_DONE) {
            break;
        }
    }
}


static void
check_case(const case_t *c)
{
    int       good;
    size_t    i, j, n, len, cuts[2], every[1024];
    trace_t   t, whole;
    uint8_t   body[1024];

    len = strlen(c->body);

    for (i = 0; i < len; i++) {
        body[i] = (c->body[i] != '@') ? c->body[i] : '\0';
        every[i] = i;
    }

    drive(&whole, body, len, NULL, 0);

    /* of a message only the beginning is told */

    n = strcspn(c->expected, "!");

    if (c->expected[n] == '\0') {
        tap_str(whole.log, c->expected, "%s", c->name);

    } else {
        tap_ok(strncmp(whole.log, c->expected, n + 1) == 0
               && strstr(whole.log + n, c->expected + n + 1) != NULL,
               "%s: %s", c->name, whole.log + n);
    }

    good = 1;

    for (i = 0; i <= len; i++) {

        for (j = i; j <= len; j++) {
            cuts[0] = i;
            cuts[1] = j;

            drive(&t, body, len, cuts, 2);
            good &= (strcmp(t.log, whole.log) == 0);
        }
    }

    drive(&t, body, len, every, len);
    good &= (strcmp(t.log, whole.log) == 0);

    tap_ok(good, "%s: the same at every cut", c->name);
}


/* data comes in runs as long as the input allows */

static void
check_large(void)
{
    int              rc;
    char            *body;
    size_t           i, n, len, events, bytes;
    const uint8_t   *pos, *last;
    vlm_multipart_t  mp;

    static const char  *fills[] = { "x", "\r", "\r\n--", "\r\n--B x", "\r\n" };

    for (i = 0; i < sizeof(fills) / sizeof(fills[0]); i++) {
        n = 100000;
        body = repeat("--B\r\nContent-Disposition: form-data; name=a\r\n\r\n",
                      fills[i], n, "\r\n--B--\r\n");
        len = strlen(body);
        pos = (uint8_t *) body;
        last = pos + len;

        vlm_multipart_init(&mp, "B", 1, MAX_PARTS);
        events = 0;
        bytes = 0;

        do {
            rc = vlm_multipart_next(&mp, &pos, last, 1);

            if (rc == VLM_MULTIPART_DATA) {
                events++;
                bytes += mp.len;
            }

        } while (rc != VLM_MULTIPART_DONE && rc != VLM_MULTIPART_ERROR);

        tap_is(rc, VLM_MULTIPART_DONE, "large body %zu: done", i);
        tap_is(bytes, n * strlen(fills[i]), "large body %zu: bytes", i);
        tap_is(events, 1, "large body %zu: one run", i);

        free(body);
    }
}


static void
check_limits(void)
{
    char  *s;

#define PART  "--B\r\nContent-Disposition: form-data; name=a\r\n"

    body_is(repeat("", PART "\r\n1\r\n", MAX_PARTS, "--B--"),
            "a/0{1}a/0{1}a/0{1}a/0{1}a/0{1}a/0{1}a/0{1}a/0{1}.",
            "as many parts as allowed");
    body_is(repeat("", PART "\r\n1\r\n", MAX_PARTS + 1, "--B--"),
            "a/0{1}a/0{1}a/0{1}a/0{1}a/0{1}a/0{1}a/0{1}a/0{1"
            "!the form has more than 8 parts", "one part more");

    body_is(repeat(PART, "X: 1\r\n", VLM_MULTIPART_HEADERS - 1,
                   "\r\n1\r\n--B--"), "a/0{1}.", "16 headers");
    body_is(repeat(PART, "X: 1\r\n", VLM_MULTIPART_HEADERS,
                   "\r\n1\r\n--B--"),
            "!part 1 of the form has more than 16 headers", "17 headers");

    body_is(repeat(PART "X:", "x", VLM_MULTIPART_LINE - 3,
                   "\r\n\r\n1\r\n--B--"), "a/0{1}.", "a line of 4096 bytes");
    body_is(repeat(PART "X:", "x", VLM_MULTIPART_LINE - 2,
                   "\r\n\r\n1\r\n--B--"),
            "!part 1 of the form has a header line longer than 4096 bytes",
            "a line of 4097 bytes");
    body_is(repeat(PART "X:", "x", 1 << 20, "\r\n\r\n1\r\n--B--"),
            "!part 1 of the form has a header line longer than 4096 bytes",
            "a line of 1 MB");

    body_is(repeat("--B\r\nContent-Disposition: form-data; name=\"", "n",
                   VLM_MULTIPART_NAME + 1, "\"\r\n\r\n1\r\n--B--"),
            "!part 1 of the form has a name longer than 128 bytes",
            "a name of 129 bytes");

    body_is(repeat("", "x", VLM_MULTIPART_PREAMBLE,
                   "\r\n" PART "\r\n1\r\n--B--"), "a/0{1}.",
            "a preamble of 4096 bytes");
    body_is(repeat("", "x", VLM_MULTIPART_PREAMBLE + 1,
                   "\r\n" PART "\r\n1\r\n--B--"),
            "!the body does not begin with the boundary that Content-Type "
            "names", "a preamble of 4097 bytes");

    body_is(repeat(PART "\r\n1\r\n--B", " ", VLM_MULTIPART_PADDING,
                   "\r\nContent-Disposition: form-data; name=b\r\n\r\n"
                   "2\r\n--B--"), "a/0{1}b/0{2}.", "128 bytes of padding");
    body_is(repeat(PART "\r\n1\r\n--B", " ", VLM_MULTIPART_PADDING + 1,
                   "\r\nContent-Disposition: form-data; name=b\r\n\r\n"
                   "2\r\n--B--"),
            "a/0{1!the body has too much white space behind a boundary",
            "129 bytes of padding");

    s = repeat("", "n", VLM_MULTIPART_NAME, "/0{1}.");
    body_is(repeat("--B\r\nContent-Disposition: form-data; name=\"", "n",
                   VLM_MULTIPART_NAME, "\"\r\n\r\n1\r\n--B--"), s,
            "a name of 128 bytes");
    free(s);
}


static char *
repeat(const char *before, const char *what, size_t n, const char *after)
{
    char    *s, *p;
    size_t   len;

    len = strlen(what);
    s = malloc(strlen(before) + n * len + strlen(after) + 1);

    p = stpcpy(s, before);

    for ( /* void */ ; n != 0; n--) {
        memcpy(p, what, len);
        p += len;
    }

    strcpy(p, after);

    return s;
}


/* in one piece, and cut into pieces of 1 and 100 bytes; frees body */

static void
body_is(char *body, const char *expected, const char *name)
{
    size_t   i, n, len, step, *cuts;
    trace_t  t;

    len = strlen(body);
    cuts = malloc((len + 1) * sizeof(size_t));

    drive(&t, (uint8_t *) body, len, NULL, 0);
    tap_str(t.log, expected, "%s", name);

    for (step = 1; step <= 100; step += 99) {

        for (i = step, n = 0; i < len; i += step) {
            cuts[n++] = i;
        }

        drive(&t, (uint8_t *) body, len, cuts, n);

        tap_str(t.log, expected, "%s, cut every %zu bytes", name, step);
    }

    free(cuts);
    free(body);
}


static int
try_content_type(const char *value, char *boundary, size_t *len)
{
    vlm_fail_t  fail;

    memset(&fail, 0, sizeof(vlm_fail_t));

    if (vlm_multipart_content_type(value, strlen(value), boundary, len, &fail)
        == 0)
    {
        return 0;
    }

    tap_diag("%s: %s", value, fail.message);

    return fail.status;
}


static void
check_content_type(void)
{
    int     rc;
    char    boundary[VLM_MULTIPART_BOUNDARY], *value;
    size_t  i, len;

    static const struct {
        const char  *value;
        const char  *boundary;          /* NULL: refused */
        int          status;
    } types[] = {
        { "multipart/form-data; boundary=x", "x", 0 },
        { "multipart/form-data;boundary=x", "x", 0 },
        { "Multipart/Form-Data; BOUNDARY=x", "x", 0 },
        { "multipart/form-data; boundary=x;", "x", 0 },
        { "multipart/form-data; boundary=x ; charset=utf-8", "x", 0 },
        { "multipart/form-data; charset=utf-8; boundary=\"a b\"", "a b", 0 },
        { "multipart/form-data; boundary=\"a\\\"b;c\"", "a\"b;c", 0 },
        { "multipart/form-data; boundary=a=b'()+_,-./:?", "a=b'()+_,-./:?",
          0 },
        { "multipart/form-data", NULL, 400 },
        { "multipart/form-data; boundary=", NULL, 400 },
        { "multipart/form-data; boundary=\"\"", NULL, 400 },
        { "multipart/form-data; boundary=\"x", NULL, 400 },
        { "multipart/form-data; boundary=x; boundary=y", NULL, 400 },
        { "multipart/form-data; boundary=\"x \"", NULL, 400 },
        { "multipart/form-data; boundary=x\001", NULL, 400 },
        { "multipart/form-data; boundary=\303\244", NULL, 400 },
        { "multipart/form-data; boundary", NULL, 400 },
        { "multipart/form-data boundary=x", NULL, 400 },
        { "multipart/mixed; boundary=x", NULL, 415 },
        { "multipart/form-data2; boundary=x", NULL, 415 },
        { "application/x-www-form-urlencoded", NULL, 415 },
        { "image/jpeg", NULL, 415 },
        { "", NULL, 415 }
    };

    for (i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        rc = try_content_type(types[i].value, boundary, &len);

        if (tap_is(rc, types[i].status, "\"%s\"", types[i].value)
            && rc == 0)
        {
            tap_ok(len == strlen(types[i].boundary)
                   && memcmp(boundary, types[i].boundary, len) == 0,
                   "boundary of \"%s\"", types[i].value);
        }
    }

    value = repeat("multipart/form-data; boundary=", "b",
                   VLM_MULTIPART_BOUNDARY, "");
    tap_is(try_content_type(value, boundary, &len), 0, "boundary of 70");
    tap_is(len, VLM_MULTIPART_BOUNDARY, "all of it");
    free(value);

    value = repeat("multipart/form-data; boundary=", "b",
                   VLM_MULTIPART_BOUNDARY + 1, "");
    tap_is(try_content_type(value, boundary, &len), 400, "boundary of 71");
    free(value);
}
