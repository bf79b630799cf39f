
#include <errno.h>
#include <float.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vlm_form.h"
#include "vlm_number.h"


/* a field that is read here as it arrives */

#define FIELD_BIAS      4

/* f->held: what waits behind a BEGIN */

#define HELD_NONE       0
#define HELD_INPUT      1           /* at *pos, of f->held_len bytes that the
                                       parser has consumed */
#define HELD_PARSER     2           /* in the parser */


typedef struct vlm_form_field_s  vlm_form_field_t;

struct vlm_form_field_s {
    const char         *name;
    unsigned            field;      /* VLM_FIELD_*, 0: a small value */
    unsigned            repeats;    /* may be given more than once */
    int               (*set)(vlm_form_t *f, const vlm_form_field_t *field);
    uint32_t            bit;        /* VLM_SET_* */
    size_t              offset;     /* in vlm_sampling_t */
    const char         *range;      /* for people */
    double              low;
    double              high;
};


static int part_begin(vlm_form_t *f);
static int part_data(vlm_form_t *f, const uint8_t **pos);
static int part_end(vlm_form_t *f);
static int first_data(vlm_form_t *f);
static int check_data(vlm_form_t *f);
static int check_text(vlm_form_t *f);
static int form_end(vlm_form_t *f);
static int release_held(vlm_form_t *f, const uint8_t **pos);
static int set_number(vlm_form_t *f, const vlm_form_field_t *field);
static int set_integer(vlm_form_t *f, const vlm_form_field_t *field);
static int set_max_tokens(vlm_form_t *f, const vlm_form_field_t *field);
static int set_top_k(vlm_form_t *f, const vlm_form_field_t *field);
static int set_seed(vlm_form_t *f, const vlm_form_field_t *field);
static int set_model(vlm_form_t *f, const vlm_form_field_t *field);
static int set_stop(vlm_form_t *f, const vlm_form_field_t *field);
static int set_stream(vlm_form_t *f, const vlm_form_field_t *field);
static int set_logprobs(vlm_form_t *f, const vlm_form_field_t *field);
static int set_detail(vlm_form_t *f, const vlm_form_field_t *field);
static int is_word(const vlm_form_t *f, const char *word);
static int is_flag(const vlm_form_t *f, unsigned *flag);
static int bad_value(vlm_form_t *f, const vlm_form_field_t *field);
static int fail(vlm_form_t *f, unsigned status, const char *code,
    const char *fmt, ...) __attribute__((format(printf, 4, 5)));


#define VALUE(n)        #n
#define TEXT(n)         VALUE(n)

#define SAMPLING(bit, member)                                                 \
    VLM_SET_ ## bit, offsetof(vlm_sampling_t, member)

static const vlm_form_field_t  fields[] = {
    { "image", VLM_FIELD_IMAGE, 1, NULL, 0, 0, NULL, 0, 0 },
    { "image[]", VLM_FIELD_IMAGE, 1, NULL, 0, 0, NULL, 0, 0 },
    { "prompt", VLM_FIELD_PROMPT, 0, NULL, 0, 0, NULL, 0, 0 },
    { "system", VLM_FIELD_SYSTEM, 0, NULL, 0, 0, NULL, 0, 0 },
    { "model", 0, 0, set_model, 0, 0, NULL, 0, 0 },
    { "stop", 0, 1, set_stop, 0, 0, NULL, 0, 0 },
    { "stream", 0, 0, set_stream, 0, 0, "true or false", 0, 0 },
    { "detail", 0, 0, set_detail, 0, 0, "auto, low or high", 0, 0 },
    { "max_tokens", 0, 0, set_max_tokens, SAMPLING(MAX_TOKENS, max_tokens),
      "an integer of at least 1", 0, 0 },
    { "temperature", 0, 0, set_number, SAMPLING(TEMPERATURE, temperature),
      "a number from 0 to 2", 0, 2 },
    { "top_p", 0, 0, set_number, SAMPLING(TOP_P, top_p),
      "a number above 0, at most 1", FLT_TRUE_MIN, 1 },
    { "min_p", 0, 0, set_number, SAMPLING(MIN_P, min_p),
      "a number from 0 to 1", 0, 1 },
    { "top_k", 0, 0, set_top_k, SAMPLING(TOP_K, top_k),
      "an integer from 0 to 2147483647", 0, 0 },
    { "seed", 0, 0, set_seed, SAMPLING(SEED, seed),
      "an integer of 64 bits", 0, 0 },
    { "presence_penalty", 0, 0, set_number, SAMPLING(PRESENCE, presence),
      "a number from -2 to 2", -2, 2 },
    { "frequency_penalty", 0, 0, set_number, SAMPLING(FREQUENCY, frequency),
      "a number from -2 to 2", -2, 2 },
    { "repetition_penalty", 0, 0, set_number,
      SAMPLING(REPETITION, repetition), "a number above 0, at most 10",
      FLT_TRUE_MIN, 10 },
    { "n", 0, 0, set_integer, 0, offsetof(vlm_sampling_t, nchoices),
      "an integer from 1 to " TEXT(VLM_MAX_CHOICES), 1, VLM_MAX_CHOICES },
    { "logprobs", 0, 0, set_logprobs, 0, 0, "true or false", 0, 0 },
    { "top_logprobs", 0, 0, set_integer, 0,
      offsetof(vlm_sampling_t, top_logprobs),
      "an integer from 0 to " TEXT(VLM_MAX_TOP_LOGPROBS), 0,
      VLM_MAX_TOP_LOGPROBS },
    { "logit_bias", FIELD_BIAS, 0, NULL, 0, 0, NULL, 0, 0 }
};

#define NFIELDS         (sizeof(fields) / sizeof(fields[0]))
#define UNKNOWN_FIELD   NFIELDS


void
vlm_form_init(vlm_form_t *f, const char *boundary, size_t boundary_len,
    const vlm_form_limits_t *limits)
{
    memset(f, 0, sizeof(vlm_form_t));

    f->limits = *limits;
    f->fail = &f->multipart.fail;
    f->sampling.nchoices = 1;

    if (f->limits.max_images > VLM_MAX_PICTURES) {
        f->limits.max_images = VLM_MAX_PICTURES;
    }

    vlm_multipart_init(&f->multipart, boundary, boundary_len,
                       limits->max_parts);
}


int
vlm_form_next(vlm_form_t *f, const uint8_t **pos, const uint8_t *last,
    int eof)
{
    int  rc;

    if (f->failed) {
        return VLM_FORM_ERROR;
    }

    if (f->held != HELD_NONE) {
        return release_held(f, pos);
    }

    do {

        switch (vlm_multipart_next(&f->multipart, pos, last, eof)) {

        case VLM_MULTIPART_PART:
            rc = part_begin(f);
            break;

        case VLM_MULTIPART_DATA:
            rc = part_data(f, pos);
            break;

        case VLM_MULTIPART_END:
            rc = part_end(f);
            break;

        case VLM_MULTIPART_DONE:
            rc = form_end(f);
            break;

        case VLM_MULTIPART_AGAIN:
            return VLM_FORM_AGAIN;

        default:  /* VLM_MULTIPART_ERROR */
            rc = VLM_FORM_ERROR;
            break;
        }

    } while (rc == VLM_FORM_AGAIN);

    if (rc == VLM_FORM_ERROR) {
        f->failed = 1;
    }

    return rc;
}


static int
part_begin(vlm_form_t *f)
{
    const vlm_multipart_t  *mp;

    mp = &f->multipart;

    for (f->index = 0; f->index < NFIELDS; f->index++) {

        if (strlen(fields[f->index].name) == mp->name_len
            && memcmp(fields[f->index].name, mp->name, mp->name_len) == 0)
        {
            f->field = fields[f->index].field;
            break;
        }
    }

    f->began = 0;
    f->size = 0;
    f->value_len = 0;
    memset(&f->utf8, 0, sizeof(vlm_utf8_t));

    return VLM_FORM_AGAIN;
}


static int
part_data(vlm_form_t *f, const uint8_t **pos)
{
    unsigned                first;
    const vlm_multipart_t  *mp;

    if (f->index == UNKNOWN_FIELD) {
        return VLM_FORM_AGAIN;
    }

    mp = &f->multipart;
    f->data = mp->data;
    f->len = mp->len;

    first = !f->began;

    if (first && first_data(f) != VLM_FORM_AGAIN) {
        return VLM_FORM_ERROR;
    }

    if (check_data(f) != VLM_FORM_AGAIN) {
        return VLM_FORM_ERROR;
    }

    if (f->field == 0) {
        memcpy(f->value + f->value_len, f->data, f->len);
        f->value_len += f->len;
        return VLM_FORM_AGAIN;
    }

    if (f->field == FIELD_BIAS) {
        return VLM_FORM_AGAIN;
    }

    if (!first) {
        return VLM_FORM_DATA;
    }

    /* the caller may have to wait for room, so it keeps the bytes */

    if (f->data >= mp->pending
        && f->data < mp->pending + VLM_MULTIPART_PENDING)
    {
        f->held = HELD_PARSER;

    } else {
        f->held = HELD_INPUT;
        f->held_len = *pos - f->data;
        *pos = f->data;
    }

    return VLM_FORM_BEGIN;
}


static int
release_held(vlm_form_t *f, const uint8_t **pos)
{
    if (f->held == HELD_INPUT) {
        f->data = *pos;
        *pos += f->held_len;
    }

    f->held = HELD_NONE;

    return VLM_FORM_DATA;
}


static int
first_data(vlm_form_t *f)
{
    const vlm_form_field_t  *field;

    field = &fields[f->index];

    if ((f->seen & (1u << f->index)) && !field->repeats) {
        return fail(f, 400, "duplicate_field", "%s is given twice",
                    field->name);
    }

    if (f->field == VLM_FIELD_IMAGE
        && f->npictures >= f->limits.max_images)
    {
        return fail(f, 400, "too_many_images",
                    "more than %u images in one request",
                    f->limits.max_images);
    }

    f->began = 1;
    f->seen |= 1u << f->index;

    f->npictures += (f->field == VLM_FIELD_IMAGE);
    f->has_prompt |= (f->field == VLM_FIELD_PROMPT);
    f->has_system |= (f->field == VLM_FIELD_SYSTEM);

    return VLM_FORM_AGAIN;
}


static int
check_data(vlm_form_t *f)
{
    if (f->field != VLM_FIELD_IMAGE) {
        return check_text(f);
    }

    if (f->len > f->limits.max_image_size - f->size) {
        return fail(f, 413, "payload_too_large",
                    "the image is larger than %llu bytes",
                    (unsigned long long) f->limits.max_image_size);
    }

    f->size += f->len;

    return VLM_FORM_AGAIN;
}


/*
 * Of several errors the one at the earliest byte is told, so that it does
 * not depend on how the body was cut.
 */

static int
check_text(vlm_form_t *f)
{
    size_t       value_room;
    uint64_t     room;
    const char  *why;

    room = f->limits.max_text_size - f->text_size;
    value_room = (f->field == 0) ? VLM_FORM_VALUE - f->value_len : SIZE_MAX;

    if (room > value_room) {
        room = value_room;
    }

    if (room > f->len) {
        room = f->len;
    }

    if (f->field == FIELD_BIAS) {

        if (vlm_bias_add(&f->logit_bias, f->data, room, &why) != 0) {
            return fail(f, 400, "invalid_value", "logit_bias %s", why);
        }

    } else if (vlm_utf8_add(&f->utf8, f->data, room) != 0) {
        return fail(f, 400, "invalid_utf8", "%s is not valid UTF-8",
                    fields[f->index].name);
    }

    f->text_size += room;

    if (room == f->len) {
        return VLM_FORM_AGAIN;
    }

    if (room == value_room) {
        return fail(f, 400, "invalid_value", "%s is longer than %u bytes",
                    fields[f->index].name, VLM_FORM_VALUE);
    }

    return fail(f, 413, "payload_too_large",
                "the text fields are longer than %llu bytes together",
                (unsigned long long) f->limits.max_text_size);
}


static int
part_end(vlm_form_t *f)
{
    const char              *why;
    const vlm_form_field_t  *field;

    if (f->index == UNKNOWN_FIELD) {
        return VLM_FORM_AGAIN;
    }

    field = &fields[f->index];

    if (!f->began) {

        if (f->field == VLM_FIELD_IMAGE
            && f->multipart.filename == VLM_FILENAME_GIVEN)
        {
            return fail(f, 400, "invalid_image", "the image file is empty");
        }

        return VLM_FORM_AGAIN;
    }

    if (vlm_utf8_end(&f->utf8) != 0) {
        return fail(f, 400, "invalid_utf8",
                    "%s is not valid UTF-8: it ends within a character",
                    field->name);
    }

    if (f->field == 0) {
        f->value[f->value_len] = '\0';
        return field->set(f, field);
    }

    if (f->field == FIELD_BIAS) {

        if (vlm_bias_end(&f->logit_bias, &why) != 0) {
            return fail(f, 400, "invalid_value", "logit_bias %s", why);
        }

        return VLM_FORM_AGAIN;
    }

    return VLM_FORM_END;
}


static int
form_end(vlm_form_t *f)
{
    if (f->npictures == 0 && !f->has_prompt) {
        f->index = UNKNOWN_FIELD;
        return fail(f, 400, "missing_input",
                    "the form has neither an image nor a prompt");
    }

    if (f->sampling.top_logprobs && !f->sampling.logprobs) {
        f->index = UNKNOWN_FIELD;
        vlm_fail(f->fail, 400, "invalid_value", "top_logprobs",
                 "top_logprobs needs logprobs to be true");
        return VLM_FORM_ERROR;
    }

    return VLM_FORM_DONE;
}


static int
set_number(vlm_form_t *f, const vlm_form_field_t *field)
{
    float  v;

    if (vlm_number_float(f->value, f->value_len, field->low, field->high, &v)
        != 0)
    {
        return bad_value(f, field);
    }

    *(float *) ((char *) &f->sampling + field->offset) = v;
    f->sampling.set |= field->bit;

    return VLM_FORM_AGAIN;
}


static int
set_integer(vlm_form_t *f, const vlm_form_field_t *field)
{
    long long  n;

    if (vlm_number_integer(f->value, f->value_len, (long long) field->low,
                           (long long) field->high, &n)
        != 0)
    {
        return bad_value(f, field);
    }

    *(uint32_t *) ((char *) &f->sampling + field->offset) = (uint32_t) n;

    return VLM_FORM_AGAIN;
}


/* any large number will do: it is lowered to what is possible later */

static int
set_max_tokens(vlm_form_t *f, const vlm_form_field_t *field)
{
    unsigned long long  n;

    if (!vlm_number_is(f->value, f->value_len, 1) || f->value[0] == '-') {
        return bad_value(f, field);
    }

    n = strtoull(f->value, NULL, 10);

    if (n == 0) {
        return bad_value(f, field);
    }

    f->sampling.max_tokens = (n > UINT32_MAX) ? UINT32_MAX : n;
    f->sampling.set |= field->bit;

    return VLM_FORM_AGAIN;
}


/* -1 is another way to say 0, off */

static int
set_top_k(vlm_form_t *f, const vlm_form_field_t *field)
{
    long long  n;

    if (vlm_number_integer(f->value, f->value_len, -1, INT32_MAX, &n) != 0) {
        return bad_value(f, field);
    }

    f->sampling.top_k = (n == -1) ? 0 : n;
    f->sampling.set |= field->bit;

    return VLM_FORM_AGAIN;
}


static int
set_seed(vlm_form_t *f, const vlm_form_field_t *field)
{
    uint64_t  n;

    if (!vlm_number_is(f->value, f->value_len, 1)) {
        return bad_value(f, field);
    }

    errno = 0;
    n = (f->value[0] == '-') ? (uint64_t) strtoll(f->value, NULL, 10)
                             : strtoull(f->value, NULL, 10);

    if (errno == ERANGE) {
        return bad_value(f, field);
    }

    f->sampling.seed = n;
    f->sampling.set |= field->bit;

    return VLM_FORM_AGAIN;
}


static int
set_model(vlm_form_t *f, const vlm_form_field_t *field)
{
    memcpy(f->model_name, f->value, f->value_len);

    f->model.data = f->model_name;
    f->model.len = f->value_len;

    return VLM_FORM_AGAIN;
}


static int
set_stop(vlm_form_t *f, const vlm_form_field_t *field)
{
    char  *p;

    if (f->nstops == VLM_MAX_STOPS) {
        return fail(f, 400, "invalid_value",
                    "more than %u stop strings in one request",
                    VLM_MAX_STOPS);
    }

    p = f->stop_text[f->nstops];
    memcpy(p, f->value, f->value_len);

    f->stops[f->nstops].data = p;
    f->stops[f->nstops].len = f->value_len;
    f->nstops++;

    return VLM_FORM_AGAIN;
}


static int
set_stream(vlm_form_t *f, const vlm_form_field_t *field)
{
    unsigned  flag;

    if (is_flag(f, &flag) != 0) {
        return bad_value(f, field);
    }

    f->stream = flag ? VLM_STREAM_TRUE : VLM_STREAM_FALSE;

    return VLM_FORM_AGAIN;
}


static int
set_logprobs(vlm_form_t *f, const vlm_form_field_t *field)
{
    unsigned  flag;

    if (is_flag(f, &flag) != 0) {
        return bad_value(f, field);
    }

    f->sampling.logprobs = flag;

    return VLM_FORM_AGAIN;
}


static int
set_detail(vlm_form_t *f, const vlm_form_field_t *field)
{
    if (is_word(f, "auto")) {
        f->detail = VLM_DETAIL_AUTO;

    } else if (is_word(f, "low")) {
        f->detail = VLM_DETAIL_LOW;

    } else if (is_word(f, "high")) {
        f->detail = VLM_DETAIL_HIGH;

    } else {
        return bad_value(f, field);
    }

    return VLM_FORM_AGAIN;
}


static int
is_word(const vlm_form_t *f, const char *word)
{
    return f->value_len == strlen(word)
           && memcmp(f->value, word, f->value_len) == 0;
}


static int
is_flag(const vlm_form_t *f, unsigned *flag)
{
    *flag = (is_word(f, "true") || is_word(f, "1"));

    return (*flag || is_word(f, "false") || is_word(f, "0")) ? 0 : -1;
}


static int
bad_value(vlm_form_t *f, const vlm_form_field_t *field)
{
    return fail(f, 400, "invalid_value", "%s must be %s", field->name,
                field->range);
}


/* param is the current field */

static int
fail(vlm_form_t *f, unsigned status, const char *code, const char *fmt, ...)
{
    char         image[32], message[256];
    va_list      args;
    const char  *param;

    va_start(args, fmt);
    (void) vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);

    param = (f->index == UNKNOWN_FIELD) ? NULL : fields[f->index].name;

    if (param != NULL && f->field == VLM_FIELD_IMAGE) {
        (void) snprintf(image, sizeof(image), "image[%u]",
                        f->npictures - f->began);
        param = image;
    }

    vlm_fail(f->fail, status, code, param, "%s", message);

    return VLM_FORM_ERROR;
}
