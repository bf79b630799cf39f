
#include <string.h>
#include <strings.h>

#include "vlm_accept.h"
#include "vlm_form.h"
#include "vlm_param.h"


static const char *range_end(const char *p, const char *last);
static unsigned quality(const char *p, const char *last);
static unsigned parse_q(const char *p, const char *last);


static const char *const  names[VLM_ANSWER_TYPES] = {
    "text/event-stream", "application/json", "text/plain"
};


void
vlm_accept_add(vlm_accept_t *a, const char *value, size_t len)
{
    unsigned     i, q;
    const char  *p, *end, *type, *last;

    p = value;
    last = value + len;

    for ( ;; ) {
        end = range_end(p, last);

        p = vlm_param_space(p, end);
        type = p;

        while (p < end && *p != ';' && *p != ' ' && *p != '\t') {
            p++;
        }

        a->named++;

        for (i = 0; i < VLM_ANSWER_TYPES; i++) {

            if ((size_t) (p - type) != strlen(names[i])
                || strncasecmp(type, names[i], p - type) != 0)
            {
                continue;
            }

            q = quality(p, end);

            if (q > a->types[i].q) {
                a->types[i].q = q;
                a->types[i].order = a->named;
            }
        }

        if (end == last) {
            return;
        }

        p = end + 1;
    }
}


int
vlm_accept_answer(const vlm_accept_t *a, unsigned stream)
{
    int       wish;
    unsigned  i;

    wish = -1;

    for (i = 0; i < VLM_ANSWER_TYPES; i++) {

        if (a->types[i].q == 0) {
            continue;
        }

        if (wish == -1
            || a->types[i].q > a->types[wish].q
            || (a->types[i].q == a->types[wish].q
                && a->types[i].order < a->types[wish].order))
        {
            wish = i;
        }
    }

    if (wish == VLM_ANSWER_TEXT) {
        return VLM_ANSWER_TEXT;
    }

    if (stream == VLM_STREAM_FALSE
        || (wish == VLM_ANSWER_JSON && stream != VLM_STREAM_TRUE))
    {
        return VLM_ANSWER_JSON;
    }

    return VLM_ANSWER_SSE;
}


/* the comma behind a media range; those in quoted strings do not count */

static const char *
range_end(const char *p, const char *last)
{
    int  quoted;

    quoted = 0;

    for ( /* void */ ; p < last; p++) {

        if (*p == '"') {
            quoted = !quoted;

        } else if (*p == '\\' && quoted && p + 1 < last) {
            p++;

        } else if (*p == ',' && !quoted) {
            break;
        }
    }

    return p;
}


/* the parameter q among those of a range, 1000 if there is none */

static unsigned
quality(const char *p, const char *last)
{
    int  quoted;

    quoted = 0;

    for ( /* void */ ; p < last; p++) {

        if (*p == '"') {
            quoted = !quoted;

        } else if (*p == '\\' && quoted && p + 1 < last) {
            p++;

        } else if (*p == ';' && !quoted) {
            p = vlm_param_space(p + 1, last);

            if (last - p >= 2 && (*p == 'q' || *p == 'Q') && p[1] == '=') {
                return parse_q(p + 2, last);
            }

            p--;
        }
    }

    return 1000;
}


/* 0, 1, 0.5 and so on, three digits at most; nonsense is taken as 0 */

static unsigned
parse_q(const char *p, const char *last)
{
    unsigned  q, unit;

    if (p == last || (*p != '0' && *p != '1')) {
        return 0;
    }

    q = (*p++ - '0') * 1000;

    if (p < last && *p == '.') {
        p++;

        for (unit = 100; p < last && *p >= '0' && *p <= '9'; p++) {
            q += (*p - '0') * unit;
            unit /= 10;
        }
    }

    return (q > 1000) ? 1000 : q;
}
