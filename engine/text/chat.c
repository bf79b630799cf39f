
#include <stdlib.h>
#include <string.h>

#include "engine/text/chat.h"


#define MAX_NAME  128


typedef struct {
    const vlm_tokenizer_t      *tok;
    const vlm_chat_format_t    *fmt;
    vlm_buf_t                   text;       /* since the last control token */
    vlm_prompt_t               *prompt;
    const int32_t              *counts;
    size_t                      npictures;
    uint8_t                    *used;       /* pictures */
    vlm_error_t                *err;
} builder_t;


static int build(builder_t *b, const vlm_message_t *messages,
    size_t nmessages, const vlm_part_t *parts, const vlm_str_t *texts);
static int add_message(builder_t *b, const vlm_message_t *message,
    const vlm_part_t *parts, const vlm_str_t *texts);
static int add_user_text(builder_t *b, const vlm_str_t *text);
static int add_picture(builder_t *b, uint32_t picture);
static int add_template(builder_t *b, const char *p, const char *role);
static int add_control(builder_t *b, const char *name, size_t times);
static int add_text(builder_t *b, const char *data, size_t len);
static int flush(builder_t *b);
static const char *next_part(const char **p, size_t *len, int *control);
static int control_name(char *buf, const char *name, size_t len);


static const char  *roles[] = { NULL, "system", "user", "assistant" };


int
vlm_chat_build(const vlm_tokenizer_t *tok, const vlm_chat_format_t *fmt,
    const vlm_message_t *messages, size_t nmessages, const vlm_part_t *parts,
    const vlm_str_t *texts, const int32_t *counts, size_t npictures,
    vlm_prompt_t *prompt, vlm_error_t *err)
{
    int        rc;
    builder_t  b;

    memset(prompt, 0, sizeof(*prompt));
    memset(&b, 0, sizeof(b));

    b.tok = tok;
    b.fmt = fmt;
    b.prompt = prompt;
    b.counts = counts;
    b.npictures = npictures;
    b.err = err;

    b.used = calloc(npictures + 1, 1);
    prompt->spans = calloc(npictures + 1, sizeof(vlm_span_t));

    if (b.used == NULL || prompt->spans == NULL) {
        rc = vlm_fail(err, 500, NULL, "no memory for the prompt");

    } else {
        rc = build(&b, messages, nmessages, parts, texts);
    }

    free(b.used);
    vlm_buf_free(&b.text);

    if (rc == VLM_ERROR) {
        vlm_prompt_free(prompt);
    }

    return rc;
}


void
vlm_prompt_free(vlm_prompt_t *prompt)
{
    vlm_ids_free(&prompt->ids);
    free(prompt->spans);
    memset(prompt, 0, sizeof(*prompt));
}


static int
build(builder_t *b, const vlm_message_t *messages, size_t nmessages,
    const vlm_part_t *parts, const vlm_str_t *texts)
{
    int                       rc;
    size_t                    i;
    const char               *text;
    const vlm_chat_format_t  *fmt;

    fmt = b->fmt;

    if (nmessages == 0) {
        return vlm_fail(b->err, 400, "invalid_messages",
                        "there are no messages");
    }

    rc = add_template(b, fmt->begin, "");

    if (rc == VLM_OK && fmt->default_system != NULL
        && messages[0].role != VLM_ROLE_SYSTEM)
    {
        text = fmt->default_system;

        if (add_template(b, fmt->message_begin, roles[VLM_ROLE_SYSTEM])
               == VLM_ERROR
            || add_text(b, text, strlen(text)) == VLM_ERROR
            || add_template(b, fmt->message_end, roles[VLM_ROLE_SYSTEM])
               == VLM_ERROR)
        {
            return VLM_ERROR;
        }
    }

    for (i = 0; i < nmessages && rc == VLM_OK; i++) {
        rc = add_message(b, &messages[i], parts, texts);
    }

    if (rc == VLM_ERROR
        || add_template(b, fmt->answer, roles[VLM_ROLE_ASSISTANT])
           == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    for (i = 0; i < b->npictures; i++) {
        if (!b->used[i]) {
            vlm_fail(b->err, 400, "invalid_messages",
                     "picture %zu is in no message", i);
            vlm_error_param(b->err, "image[%zu]", i);
            return VLM_ERROR;
        }
    }

    return flush(b);
}


static int
add_message(builder_t *b, const vlm_message_t *message,
    const vlm_part_t *parts, const vlm_str_t *texts)
{
    int          rc;
    uint32_t     i, part;
    const char  *role;

    if (message->role < VLM_ROLE_SYSTEM
        || message->role > VLM_ROLE_ASSISTANT)
    {
        return vlm_fail(b->err, 400, "invalid_messages",
                        "unknown role %u of a message", message->role);
    }

    role = roles[message->role];
    rc = add_template(b, b->fmt->message_begin, role);

    for (i = 0; i < message->nparts && rc == VLM_OK; i++) {
        part = message->first_part + i;

        if (parts[part].type == VLM_PART_PICTURE) {
            rc = add_picture(b, parts[part].picture);

        } else {
            rc = add_user_text(b, &texts[part]);
        }
    }

    if (rc == VLM_OK) {
        rc = add_template(b, b->fmt->message_end, role);
    }

    return rc;
}


/* each part for itself, so that two halves cannot make a character */

static int
add_user_text(builder_t *b, const vlm_str_t *text)
{
    size_t  valid;

    valid = vlm_utf8_valid(text->data, text->len);

    if (valid < text->len) {
        return vlm_fail(b->err, 400, "invalid_utf8", "text of a message is "
                        "not valid UTF-8 at byte %zu", valid);
    }

    return add_text(b, text->data, text->len);
}


static int
add_picture(builder_t *b, uint32_t picture)
{
    vlm_span_t    *span;
    vlm_prompt_t  *prompt;

    if (picture >= b->npictures) {
        return vlm_fail(b->err, 400, "invalid_messages",
                        "a message shows picture %u of %zu", picture,
                        b->npictures);
    }

    if (b->used[picture] || b->counts[picture] <= 0) {
        vlm_fail(b->err, 400, "invalid_messages", b->used[picture]
                 ? "picture %u is shown twice" : "picture %u has no tokens",
                 picture);
        vlm_error_param(b->err, "image[%u]", picture);
        return VLM_ERROR;
    }

    b->used[picture] = 1;
    prompt = b->prompt;

    if (add_template(b, b->fmt->picture_begin, "") == VLM_ERROR
        || flush(b) == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    span = &prompt->spans[prompt->nspans++];

    span->first = (int32_t) prompt->ids.len;
    span->count = b->counts[picture];
    span->picture = (int32_t) picture;

    if (add_control(b, b->fmt->picture_token, (size_t) b->counts[picture])
        == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    return add_template(b, b->fmt->picture_end, "");
}


static int
add_template(builder_t *b, const char *p, const char *role)
{
    int          rc, control;
    char         name[MAX_NAME];
    size_t       len;
    const char  *part, *mark;

    while ((part = next_part(&p, &len, &control)) != NULL) {

        if (control) {
            rc = control_name(name, part, len);

            if (rc == VLM_OK) {
                rc = add_control(b, name, 1);

            } else {
                vlm_fail(b->err, 500, NULL, "chat format: the name of a "
                         "token is too long");
            }

        } else {
            mark = memmem(part, len, "%ROLE%", 6);

            if (mark == NULL) {
                rc = add_text(b, part, len);

            } else if (add_text(b, part, (size_t) (mark - part)) == VLM_ERROR
                       || add_text(b, role, strlen(role)) == VLM_ERROR)
            {
                rc = VLM_ERROR;

            } else {
                p = mark + 6;
                rc = VLM_OK;
            }
        }

        if (rc == VLM_ERROR) {
            return VLM_ERROR;
        }
    }

    return VLM_OK;
}


/* the next control token or run of text of a template, NULL at its end */

static const char *
next_part(const char **p, size_t *len, int *control)
{
    const char  *part;

    part = *p;

    if (part == NULL || *part == '\0') {
        return NULL;
    }

    *control = (*part == '\001');

    if (*control) {
        part++;
        *len = strcspn(part, "\002");
        *p = part + *len + (part[*len] != '\0');

    } else {
        *len = strcspn(part, "\001");
        *p = part + *len;
    }

    return part;
}


static int
control_name(char *buf, const char *name, size_t len)
{
    if (len >= MAX_NAME) {
        return VLM_ERROR;
    }

    memcpy(buf, name, len);
    buf[len] = '\0';

    return VLM_OK;
}


static int
add_control(builder_t *b, const char *name, size_t times)
{
    int32_t  id;

    if (flush(b) == VLM_ERROR) {
        return VLM_ERROR;
    }

    id = vlm_tokenizer_added(b->tok, name);

    if (id == -1) {
        return vlm_fail(b->err, 500, NULL, "chat format: there is no token "
                        "\"%s\" in the tokenizer", name);
    }

    if (vlm_ids_append(&b->prompt->ids, id, times) == VLM_ERROR) {
        return vlm_fail(b->err, 500, NULL, "no memory for the prompt");
    }

    return VLM_OK;
}


static int
add_text(builder_t *b, const char *data, size_t len)
{
    if (vlm_buf_append(&b->text, data, len) == VLM_ERROR) {
        return vlm_fail(b->err, 500, NULL, "no memory for the prompt");
    }

    return VLM_OK;
}


static int
flush(builder_t *b)
{
    int  rc;

    rc = vlm_tokenizer_encode(b->tok, b->text.data, b->text.len, 0,
                              &b->prompt->ids, b->err);
    b->text.len = 0;

    return rc;
}


int
vlm_chat_check(const vlm_tokenizer_t *tok, const vlm_chat_format_t *fmt,
    vlm_error_t *err)
{
    int          control;
    char         name[MAX_NAME];
    size_t       i, len;
    const char  *p, *part, *templates[6];

    templates[0] = fmt->begin;
    templates[1] = fmt->message_begin;
    templates[2] = fmt->message_end;
    templates[3] = fmt->picture_begin;
    templates[4] = fmt->picture_end;
    templates[5] = fmt->answer;

    for (i = 0; i < 6; i++) {
        p = templates[i];

        while ((part = next_part(&p, &len, &control)) != NULL) {

            if (control
                && (part[len] != '\002'
                    || control_name(name, part, len) == VLM_ERROR
                    || vlm_tokenizer_added(tok, name) == -1))
            {
                return vlm_fail(err, 500, NULL, "chat format: there is no "
                                "token \"%.*s\" in the tokenizer",
                                len < 64 ? (int) len : 64, part);
            }
        }
    }

    if (vlm_tokenizer_added(tok, fmt->picture_token) == -1) {
        return vlm_fail(err, 500, NULL, "chat format: there is no token "
                        "\"%s\" in the tokenizer", fmt->picture_token);
    }

    return VLM_OK;
}
