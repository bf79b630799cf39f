
#include <stdio.h>
#include <string.h>

#include "vlm_bias.h"
#include "vlm_number.h"


#define VALUE(n)        #n
#define TEXT(n)         VALUE(n)


typedef enum {
    BIAS_START = 0,
    BIAS_OPEN,                  /* behind the brace */
    BIAS_NEXT,                  /* behind a comma */
    BIAS_ID,
    BIAS_COLON,
    BIAS_VALUE,
    BIAS_NUMBER,
    BIAS_COMMA,                 /* behind a number */
    BIAS_DONE
} bias_state_e;


static const char  malformed[] =
    "must be a JSON object of token ids and numbers from -100 to 100";
static const char  too_many[] =
    "has more than " TEXT(VLM_MAX_LOGIT_BIAS) " entries";


static int take(vlm_bias_t *b, char c, const char **why);
static int keep(vlm_bias_t *b, char c);
static int end_id(vlm_bias_t *b);
static int end_number(vlm_bias_t *b, const char **why);


int
vlm_bias_add(vlm_bias_t *b, const void *data, size_t len, const char **why)
{
    size_t       i;
    const char  *p;

    p = data;
    *why = malformed;

    for (i = 0; i < len; i++) {
        if (take(b, p[i], why) != 0) {
            return -1;
        }
    }

    return 0;
}


int
vlm_bias_end(const vlm_bias_t *b, const char **why)
{
    *why = malformed;

    return (b->state == BIAS_DONE) ? 0 : -1;
}


static int
take(vlm_bias_t *b, char c, const char **why)
{
    int  space;

    space = (c == ' ' || c == '\t' || c == '\n' || c == '\r');

    /* a number ends with what follows it */

    if (b->state == BIAS_NUMBER && (space || c == ',' || c == '}')) {

        if (end_number(b, why) != 0) {
            return -1;
        }

        b->state = BIAS_COMMA;
    }

    if (space && b->state != BIAS_ID) {
        return 0;
    }

    switch (b->state) {

    case BIAS_START:
        b->state = BIAS_OPEN;
        return (c == '{') ? 0 : -1;

    case BIAS_OPEN:
    case BIAS_NEXT:

        if (c == '}' && b->state == BIAS_OPEN) {
            b->state = BIAS_DONE;
            return 0;
        }

        b->state = BIAS_ID;
        b->len = 0;
        return (c == '"') ? 0 : -1;

    case BIAS_ID:

        if (c == '"') {
            b->state = BIAS_COLON;
            return end_id(b);
        }

        return (c >= '0' && c <= '9') ? keep(b, c) : -1;

    case BIAS_COLON:
        b->state = BIAS_VALUE;
        b->len = 0;
        return (c == ':') ? 0 : -1;

    case BIAS_VALUE:
    case BIAS_NUMBER:
        b->state = BIAS_NUMBER;
        return keep(b, c);

    case BIAS_COMMA:
        b->state = (c == ',') ? BIAS_NEXT : BIAS_DONE;
        return (c == ',' || c == '}') ? 0 : -1;

    default:    /* BIAS_DONE */
        return -1;
    }
}


/* the last byte stays free for the end of the string */

static int
keep(vlm_bias_t *b, char c)
{
    if (b->len == VLM_BIAS_NUMBER - 1) {
        return -1;
    }

    b->number[b->len++] = c;
    b->number[b->len] = '\0';

    return 0;
}


static int
end_id(vlm_bias_t *b)
{
    long long  id;

    if (b->len == 0
        || vlm_number_integer(b->number, b->len, 0, INT32_MAX, &id) != 0)
    {
        return -1;
    }

    b->id = (int32_t) id;

    return 0;
}


static int
end_number(vlm_bias_t *b, const char **why)
{
    float     bias;
    uint32_t  i;

    if (vlm_number_float(b->number, b->len, -100, 100, &bias) != 0) {
        return -1;
    }

    for (i = 0; i < b->n; i++) {
        if (b->bias[i].id == b->id) {
            b->bias[i].bias = bias;
            return 0;
        }
    }

    if (b->n == VLM_MAX_LOGIT_BIAS) {
        *why = too_many;
        return -1;
    }

    b->bias[b->n].id = b->id;
    b->bias[b->n].bias = bias;
    b->n++;

    return 0;
}
