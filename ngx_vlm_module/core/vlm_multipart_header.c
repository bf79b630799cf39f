
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "vlm_multipart_header.h"
#include "vlm_param.h"


static int disposition(vlm_multipart_t *mp, const char *p, const char *last);
static int part_name(vlm_multipart_t *mp, const vlm_param_t *param);
static int content_type(vlm_multipart_t *mp, const char *p,
    const char *last);
static int encoding(vlm_multipart_t *mp, const char *p, const char *last);
static int seen_twice(vlm_multipart_t *mp, unsigned bit);


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


int
vlm_multipart_header(vlm_multipart_t *mp)
{
    size_t       i, n;
    const char  *p, *last, *colon;

    p = mp->line;
    last = p + mp->line_len;

    for (i = 0; i < mp->line_len; i++) {

        if (((unsigned char) p[i] < 0x20 && p[i] != '\t') || p[i] == 0x7f) {
            return vlm_bad_part(mp, "has a control character in its headers");
        }
    }

    if (++mp->nheaders > VLM_MULTIPART_HEADERS) {
        return vlm_bad_part(mp, "has more than %u headers",
                            VLM_MULTIPART_HEADERS);
    }

    colon = memchr(p, ':', mp->line_len);
    mp->line_len = 0;

    if (colon == NULL || colon == p
        || memchr(p, ' ', colon - p) != NULL
        || memchr(p, '\t', colon - p) != NULL)
    {
        return vlm_bad_part(mp, "has a malformed header line");
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
    vlm_param_t  param;

    if (seen_twice(mp, VLM_MULTIPART_DISPOSITION)) {
        return vlm_bad_part(mp, "has two Content-Disposition headers");
    }

    if (!vlm_param_type(&p, last, "form-data")) {
        return vlm_bad_part(mp, "is not of Content-Disposition form-data");
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
                return vlm_bad_part(mp, "has two names");
            }

            if (part_name(mp, &param) != 0) {
                return vlm_bad_part(mp, "has a name longer than %u bytes",
                                    VLM_MULTIPART_NAME);
            }

        } else if (vlm_param_is(param.name, param.name_len, "filename")) {

            if (mp->filename != VLM_FILENAME_NONE) {
                return vlm_bad_part(mp, "has two file names");
            }

            mp->filename = (param.value_len != 0) ? VLM_FILENAME_GIVEN
                                                  : VLM_FILENAME_EMPTY;
        }
    }

    if (rc == -1) {
        return vlm_bad_part(mp, "has a malformed Content-Disposition header");
    }

    if (!named) {
        return vlm_bad_part(mp, "has no name");
    }

    return VLM_MULTIPART_AGAIN;
}


static int
part_name(vlm_multipart_t *mp, const vlm_param_t *param)
{
    vlm_out_t  name;

    vlm_out_init(&name, mp->name, VLM_MULTIPART_NAME);
    vlm_param_value(param, &name);

    if (vlm_out_full(&name)) {
        return -1;
    }

    mp->name_len = name.len;
    mp->name[name.len] = '\0';

    return 0;
}


static int
content_type(vlm_multipart_t *mp, const char *p, const char *last)
{
    if (seen_twice(mp, VLM_MULTIPART_TYPE)) {
        return vlm_bad_part(mp, "has two Content-Type headers");
    }

    p = vlm_param_space(p, last);

    if (last - p >= 10 && strncasecmp(p, "multipart/", 10) == 0) {
        return vlm_bad_part(mp, "is a multipart itself: send each file as a "
                                "part of its own");
    }

    return VLM_MULTIPART_AGAIN;
}


static int
encoding(vlm_multipart_t *mp, const char *p, const char *last)
{
    size_t       i;
    const char  *start;

    static const char *const  plain[] = { "7bit", "8bit", "binary" };

    if (seen_twice(mp, VLM_MULTIPART_ENCODING)) {
        return vlm_bad_part(mp, "has two Content-Transfer-Encoding headers");
    }

    for (i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        start = p;

        if (vlm_param_type(&start, last, plain[i])) {
            return VLM_MULTIPART_AGAIN;
        }
    }

    return vlm_bad_part(mp, "has a Content-Transfer-Encoding other than 7bit, "
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


int
vlm_bad_part(vlm_multipart_t *mp, const char *fmt, ...)
{
    char     what[128];
    va_list  args;

    va_start(args, fmt);
    (void) vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);

    vlm_fail(&mp->fail, 400, "invalid_multipart", NULL,
             "part %u of the form %s", mp->nparts, what);

    return VLM_MULTIPART_ERROR;
}
