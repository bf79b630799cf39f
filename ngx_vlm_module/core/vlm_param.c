
#include <string.h>
#include <strings.h>

#include "vlm_param.h"


static const char *skip_token(const char *p, const char *last);
static const char *skip_value(const char *p, const char *last);
static const char *string_end(const char *p, const char *last);


int
vlm_param_type(const char **pos, const char *last, const char *word)
{
    const char  *p, *start;

    start = vlm_param_space(*pos, last);

    for (p = start; p < last && *p != ';' && *p != ' ' && *p != '\t'; p++) {
        /* void */
    }

    *pos = p;

    return vlm_param_is(start, p - start, word);
}


int
vlm_param_next(const char **pos, const char *last, vlm_param_t *param)
{
    const char  *p;

    p = vlm_param_space(*pos, last);

    if (p < last && *p != ';') {
        return -1;
    }

    /* empty parameters are harmless: "form-data; name=x;" */

    while (p < last && *p == ';') {
        p = vlm_param_space(p + 1, last);
    }

    if (p == last) {
        *pos = p;
        return 0;
    }

    param->name = p;
    p = skip_token(p, last);
    param->name_len = p - param->name;

    if (param->name_len == 0 || p == last || *p != '=') {
        return -1;
    }

    p++;
    param->quoted = (p < last && *p == '"');

    if (param->quoted) {
        param->value = p + 1;
        p = string_end(p + 1, last);

        if (p == last) {
            return -1;
        }

        param->value_len = p - param->value;
        p++;

    } else {
        param->value = p;
        p = skip_value(p, last);
        param->value_len = p - param->value;

        if (param->value_len == 0) {
            return -1;
        }
    }

    *pos = p;

    return 1;
}


/*
 * Only \" and \\ are escapes: browsers of old sent Windows paths with single
 * backslashes.
 */

void
vlm_param_value(const vlm_param_t *param, vlm_out_t *to)
{
    const char  *p, *last;

    if (!param->quoted) {
        vlm_out_bytes(to, param->value, param->value_len);
        return;
    }

    last = param->value + param->value_len;

    for (p = param->value; p < last; p++) {

        if (*p == '\\' && last - p > 1 && (p[1] == '"' || p[1] == '\\')) {
            p++;
        }

        vlm_out_bytes(to, p, 1);
    }
}


int
vlm_param_is(const char *name, size_t len, const char *word)
{
    return len == strlen(word) && strncasecmp(name, word, len) == 0;
}


const char *
vlm_param_space(const char *p, const char *last)
{
    while (p < last && (*p == ' ' || *p == '\t')) {
        p++;
    }

    return p;
}


static const char *
skip_token(const char *p, const char *last)
{
    while (p < last && strchr("=; \t\"", *p) == NULL) {
        p++;
    }

    return p;
}


/* "=" may stand in a value: unquoted boundaries have it */

static const char *
skip_value(const char *p, const char *last)
{
    while (p < last && strchr("; \t\"", *p) == NULL) {
        p++;
    }

    return p;
}


static const char *
string_end(const char *p, const char *last)
{
    for ( /* void */ ; p < last && *p != '"'; p++) {

        if (*p == '\\' && last - p > 1 && (p[1] == '"' || p[1] == '\\')) {
            p++;
        }
    }

    return p;
}
