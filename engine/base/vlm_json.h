
/*
 * JSON documents for files of a checkpoint: a tree in one flat array, parsed
 * by yajl, made for large files (a tokenizer.json of 11 MB in a small part of
 * a second).  Depth is limited, duplicate keys keep the last, invalid UTF-8
 * is an error.  Read-only after parsing, so any thread may use it.
 */

#ifndef VLM_JSON_H
#define VLM_JSON_H


#include "engine/base/vlm_base.h"


typedef struct vlm_json_doc_s  vlm_json_doc_t;
typedef struct vlm_json_s      vlm_json_t;      /* a value in a document */

typedef enum {
    VLM_JSON_NULL = 0,
    VLM_JSON_BOOL,
    VLM_JSON_NUMBER,
    VLM_JSON_STRING,
    VLM_JSON_ARRAY,
    VLM_JSON_OBJECT
} vlm_json_type_t;


/* name is for messages: "config.json: line 3: ..." */
vlm_json_doc_t *vlm_json_parse(const char *data, size_t len,
    const char *name, vlm_error_t *err);
vlm_json_doc_t *vlm_json_load(const char *path, vlm_error_t *err);
void vlm_json_free(vlm_json_doc_t *doc);

const vlm_json_t *vlm_json_root(const vlm_json_doc_t *doc);

/* all of these accept NULL and values of another type */

vlm_json_type_t vlm_json_type(const vlm_json_t *v);     /* NULL: VLM_JSON_NULL */
size_t vlm_json_count(const vlm_json_t *v);             /* members, elements */

/* first and next element or member; key may be NULL, is not terminated */
const vlm_json_t *vlm_json_first(const vlm_json_t *v);
const vlm_json_t *vlm_json_next(const vlm_json_t *v);
const char *vlm_json_key(const vlm_json_t *v, size_t *len);

const vlm_json_t *vlm_json_get(const vlm_json_t *object, const char *key);
const vlm_json_t *vlm_json_at(const vlm_json_t *array, size_t i);

/* VLM_OK and the value, VLM_ERROR if it is missing or of another type */
int vlm_json_string(const vlm_json_t *v, const char **data, size_t *len);
int vlm_json_int(const vlm_json_t *v, int64_t *n);
int vlm_json_double(const vlm_json_t *v, double *d);
int vlm_json_bool(const vlm_json_t *v, int *b);

/* a string equal to text? */
int vlm_json_is(const vlm_json_t *v, const char *text);


#endif /* VLM_JSON_H */
