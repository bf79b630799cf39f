
/*
 * Chat formats: messages to token ids.  A format is data in a family's
 * description.  Control tokens are put in by id; text between two of them,
 * with whatever role names and line breaks the format adds, is tokenized as
 * one piece, as the reference does, and never parsed for added tokens.
 */

#ifndef VLM_CHAT_H
#define VLM_CHAT_H


#include "engine/channel/vlm_record.h"
#include "engine/text/tokenizer.h"


/*
 * Templates are strings in which \001 NAME \002 stands for the added token
 * NAME; everything else is plain text.  %ROLE% is the role.
 */

typedef struct {
    const char     *begin;              /* once, in front */
    const char     *default_system;     /* NULL: none is put in */
    const char     *message_begin;
    const char     *message_end;
    const char     *picture_begin;
    const char     *picture_token;      /* an added token, repeated */
    const char     *picture_end;
    const char     *answer;             /* generation prompt */
} vlm_chat_format_t;


/* placeholders of one picture in the prompt */

typedef struct {
    int32_t         first;              /* index of its first id */
    int32_t         count;
    int32_t         picture;            /* index into the request's */
} vlm_span_t;

typedef struct {
    vlm_ids_t       ids;
    vlm_span_t     *spans;              /* in prompt order */
    size_t          nspans;
} vlm_prompt_t;


/*
 * texts[i] is the text of parts[i] (NULL data for pictures), counts[p] the
 * number of placeholders of picture p.  Every picture must be used exactly
 * once.  Errors are the request's: 400.
 */
int vlm_chat_build(const vlm_tokenizer_t *tok, const vlm_chat_format_t *fmt,
    const vlm_message_t *messages, size_t nmessages, const vlm_part_t *parts,
    const vlm_str_t *texts, const int32_t *counts, size_t npictures,
    vlm_prompt_t *prompt, vlm_error_t *err);
void vlm_prompt_free(vlm_prompt_t *prompt);

/* checks at load time that all control tokens of a format exist */
int vlm_chat_check(const vlm_tokenizer_t *tok, const vlm_chat_format_t *fmt,
    vlm_error_t *err);


#endif /* VLM_CHAT_H */
