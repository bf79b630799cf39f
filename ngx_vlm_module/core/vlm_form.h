
/*
 * The fields of an uploaded form: what vlm_multipart.h finds, checked and
 * sorted into pictures, texts and settings.  Small values are kept here;
 * bytes of pictures, of the prompt and of the system message are handed out
 * as they arrive, to be stored by the caller.  Nothing is allocated; the
 * struct is some 19 KB and holds no pointers into the caller's memory between
 * calls.
 *
 * The caller's loop:
 *
 *     for ( ;; ) {
 *         switch (vlm_form_next(f, &pos, last, eof)) {
 *
 *         case VLM_FORM_BEGIN:    what f->field names begins (see below):
 *                                 find room; if there is none now, stop here
 *                                 and call again later with the same pos
 *         case VLM_FORM_DATA:     store f->data, f->len
 *         case VLM_FORM_END:      it is complete
 *         case VLM_FORM_AGAIN:    all input is consumed, give more
 *         case VLM_FORM_DONE:     the form is complete and valid
 *         case VLM_FORM_ERROR:    answer f->fail
 *         }
 *     }
 *
 * BEGIN comes with the first byte, so fields that are empty cause no events.
 * Fields come in any order.
 */

#ifndef VLM_FORM_H
#define VLM_FORM_H


#include "engine/channel/vlm_record.h"

#include "vlm_bias.h"
#include "vlm_multipart.h"
#include "vlm_utf8.h"


#define VLM_FORM_AGAIN          0
#define VLM_FORM_BEGIN          1
#define VLM_FORM_DATA           2
#define VLM_FORM_END            3
#define VLM_FORM_DONE           4
#define VLM_FORM_ERROR          5

/* f->field in BEGIN, DATA and END */

#define VLM_FIELD_IMAGE         1       /* number f->npictures - 1 */
#define VLM_FIELD_PROMPT        2
#define VLM_FIELD_SYSTEM        3


#define VLM_FORM_VALUE          VLM_MAX_STOP_LEN    /* of a small value */

#define VLM_STREAM_UNSET        0
#define VLM_STREAM_TRUE         1
#define VLM_STREAM_FALSE        2


typedef struct {
    unsigned            max_parts;
    unsigned            max_images;     /* at most VLM_MAX_PICTURES count */
    uint64_t            max_image_size;
    uint64_t            max_text_size;  /* of all text fields together */
} vlm_form_limits_t;


typedef struct {
    /* the event */
    unsigned            field;          /* VLM_FIELD_* */
    const uint8_t      *data;
    size_t              len;
    vlm_fail_t         *fail;           /* set with ERROR */

    /* what the form says, complete with DONE */
    unsigned            npictures;      /* begun so far */
    unsigned            has_prompt;     /* 0 or 1 */
    unsigned            has_system;
    unsigned            stream;         /* VLM_STREAM_* */
    uint32_t            detail;         /* VLM_DETAIL_* */
    vlm_sampling_t      sampling;       /* max_tokens: not yet clamped; only
                                           fields named in "set" count, beside
                                           nchoices and logprobs */
    vlm_str_t           model;          /* len 0: not given */
    vlm_str_t           stops[VLM_MAX_STOPS];   /* both point into *this */
    uint32_t            nstops;
    vlm_bias_t          logit_bias;

    /* private */
    vlm_multipart_t     multipart;
    vlm_form_limits_t   limits;
    vlm_utf8_t          utf8;
    unsigned            index;          /* of the current field's kind */
    unsigned            seen;           /* kinds with a value */
    unsigned            began;          /* 1: the current part has bytes */
    unsigned            held;           /* data that waits behind BEGIN */
    size_t              held_len;
    unsigned            failed;
    uint64_t            size;           /* of the current picture */
    uint64_t            text_size;
    size_t              value_len;
    char                value[VLM_FORM_VALUE + 1];
    char                model_name[VLM_FORM_VALUE];
    char                stop_text[VLM_MAX_STOPS][VLM_FORM_VALUE];
} vlm_form_t;


/* as vlm_multipart_init(); the struct must not be moved afterwards */
void vlm_form_init(vlm_form_t *f, const char *boundary, size_t boundary_len,
    const vlm_form_limits_t *limits);

int vlm_form_next(vlm_form_t *f, const uint8_t **pos, const uint8_t *last,
    int eof);


#endif /* VLM_FORM_H */
