
/*
 * Nodes lie in one array in the order of the text, so that the first child
 * of a container is the node behind it, and siblings are linked by distance.
 * Strings, keys and the text of numbers lie in one block: none of them is
 * longer than its source, closing quote or separator included, so a block of
 * the document's size always has room for them and their zero bytes.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yajl/yajl_parse.h>

#include "engine/base/vlm_json.h"


#define MAX_SIZE    (256u << 20)
#define MAX_DEPTH   64


struct vlm_json_s {
    const char         *key;            /* NULL: not a member */
    const char         *data;           /* string, text of a number */
    uint32_t            key_len;
    uint32_t            count;          /* length, elements, truth */
    uint32_t            next;           /* distance, 0: the last one */
    uint8_t             type;
};

struct vlm_json_doc_s {
    vlm_json_t         *nodes;
    size_t              nnodes;
    size_t              size;
    char               *strings;
};

typedef struct {
    size_t              node;
    size_t              last;           /* child */
} level_t;

typedef struct {
    vlm_json_doc_t     *doc;
    char               *p;              /* free space for strings */
    char               *end;
    const char         *key;
    uint32_t            key_len;
    unsigned            depth;
    const char         *failed;
    level_t             levels[MAX_DEPTH];
} parser_t;


static int parse(parser_t *ps, const char *data, size_t len,
    const char *name, vlm_error_t *err);
static int check_text(const char *data, size_t len, const char *name,
    vlm_error_t *err);
static unsigned line_of(const char *data, size_t pos);
static vlm_json_t *add_node(parser_t *ps, vlm_json_type_t type);
static const char *add_text(parser_t *ps, const void *data, size_t len);


static int
on_null(void *ctx)
{
    return add_node(ctx, VLM_JSON_NULL) != NULL;
}


static int
on_bool(void *ctx, int value)
{
    vlm_json_t  *v;

    v = add_node(ctx, VLM_JSON_BOOL);
    if (v == NULL) {
        return 0;
    }

    v->count = (value != 0);

    return 1;
}


static int
on_scalar(parser_t *ps, vlm_json_type_t type, const void *data, size_t len)
{
    vlm_json_t  *v;

    v = add_node(ps, type);
    if (v == NULL) {
        return 0;
    }

    v->data = add_text(ps, data, len);
    v->count = (uint32_t) len;

    return v->data != NULL;
}


static int
on_number(void *ctx, const char *data, size_t len)
{
    return on_scalar(ctx, VLM_JSON_NUMBER, data, len);
}


static int
on_string(void *ctx, const unsigned char *data, size_t len)
{
    return on_scalar(ctx, VLM_JSON_STRING, data, len);
}


static int
on_key(void *ctx, const unsigned char *data, size_t len)
{
    parser_t  *ps = ctx;

    ps->key = add_text(ps, data, len);
    ps->key_len = (uint32_t) len;

    return ps->key != NULL;
}


static int
on_begin(parser_t *ps, vlm_json_type_t type)
{
    if (add_node(ps, type) == NULL) {
        return 0;
    }

    if (ps->depth == MAX_DEPTH) {
        ps->failed = "nested deeper than 64 levels";
        return 0;
    }

    ps->levels[ps->depth++].node = ps->doc->nnodes - 1;

    return 1;
}


static int
on_object(void *ctx)
{
    return on_begin(ctx, VLM_JSON_OBJECT);
}


static int
on_array(void *ctx)
{
    return on_begin(ctx, VLM_JSON_ARRAY);
}


static int
on_end(void *ctx)
{
    parser_t  *ps = ctx;

    ps->depth--;

    return 1;
}


static const yajl_callbacks  callbacks = {
    .yajl_null = on_null,
    .yajl_boolean = on_bool,
    .yajl_number = on_number,
    .yajl_string = on_string,
    .yajl_start_map = on_object,
    .yajl_map_key = on_key,
    .yajl_end_map = on_end,
    .yajl_start_array = on_array,
    .yajl_end_array = on_end
};


vlm_json_doc_t *
vlm_json_parse(const char *data, size_t len, const char *name,
    vlm_error_t *err)
{
    int              rc;
    parser_t         ps;
    vlm_json_doc_t  *doc;

    if (len > MAX_SIZE) {
        vlm_fail(err, 500, NULL, "%s: is too large: %zu bytes, at most %u",
                 name, len, MAX_SIZE);
        return NULL;
    }

    if (check_text(data, len, name, err) == VLM_ERROR) {
        return NULL;
    }

    memset(&ps, 0, sizeof(ps));

    doc = calloc(1, sizeof(*doc));

    if (doc != NULL) {
        doc->strings = malloc(len + 1);
    }

    if (doc == NULL || doc->strings == NULL) {
        vlm_fail(err, 500, NULL, "%s: no memory", name);
        vlm_json_free(doc);
        return NULL;
    }

    ps.doc = doc;
    ps.p = doc->strings;
    ps.end = doc->strings + len + 1;

    rc = parse(&ps, data, len, name, err);

    if (rc == VLM_ERROR) {
        vlm_json_free(doc);
        return NULL;
    }

    return doc;
}


static int
parse(parser_t *ps, const char *data, size_t len, const char *name,
    vlm_error_t *err)
{
    unsigned        line;
    yajl_handle     yajl;
    yajl_status     status;
    unsigned char  *text;

    yajl = yajl_alloc(&callbacks, NULL, ps);
    if (yajl == NULL) {
        return vlm_fail(err, 500, NULL, "%s: no memory", name);
    }

    status = yajl_parse(yajl, (const unsigned char *) data, len);

    if (status == yajl_status_ok) {
        status = yajl_complete_parse(yajl);
        line = line_of(data, len);

    } else {
        line = line_of(data, yajl_get_bytes_consumed(yajl));
    }

    if (status == yajl_status_ok) {
        yajl_free(yajl);
        return VLM_OK;
    }

    if (ps->failed != NULL) {
        vlm_fail(err, 500, NULL, "%s: line %u: %s", name, line, ps->failed);

    } else {
        text = yajl_get_error(yajl, 0, NULL, 0);
        vlm_fail(err, 500, NULL, "%s: line %u: %.*s", name, line,
                 text != NULL ? (int) strcspn((char *) text, "\n") : 9,
                 text != NULL ? (char *) text : "no memory");

        if (text != NULL) {
            yajl_free_error(yajl, text);
        }
    }

    yajl_free(yajl);

    return VLM_ERROR;
}


static int
hex4(const char *data, size_t len, unsigned *code)
{
    size_t    i;
    unsigned  c;

    if (len < 4) {
        return 0;
    }

    for (i = 0, *code = 0; i < 4; i++) {
        c = (unsigned char) data[i];

        if (c >= '0' && c <= '9') {
            c -= '0';

        } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
            c = (c | 0x20) - 'a' + 10;

        } else {
            return 0;
        }

        *code = *code << 4 | c;
    }

    return 1;
}


/*
 * yajl takes overlong forms and surrogates for UTF-8, and mishandles escapes
 * of lone surrogates, so both are refused before it sees them.
 */

static int
check_text(const char *data, size_t len, const char *name, vlm_error_t *err)
{
    size_t       pos;
    unsigned     code, low;
    const char  *p, *end;

    pos = vlm_utf8_valid(data, len);

    if (pos < len) {
        return vlm_fail(err, 500, NULL, "%s: line %u: invalid UTF-8", name,
                        line_of(data, pos));
    }

    end = data + len;

    for (p = data; p < end && (p = memchr(p, '\\', (size_t) (end - p)));
         p += 2)
    {
        if (end - p < 6 || p[1] != 'u'
            || !hex4(p + 2, (size_t) (end - p - 2), &code)
            || code < 0xd800 || code > 0xdfff)
        {
            continue;
        }

        if (code < 0xdc00 && end - p >= 12 && p[6] == '\\' && p[7] == 'u'
            && hex4(p + 8, (size_t) (end - p - 8), &low)
            && low >= 0xdc00 && low <= 0xdfff)
        {
            p += 10;
            continue;
        }

        return vlm_fail(err, 500, NULL,
                        "%s: line %u: \\u%04x is half a surrogate pair",
                        name, line_of(data, (size_t) (p - data)), code);
    }

    return VLM_OK;
}


static unsigned
line_of(const char *data, size_t pos)
{
    size_t    i;
    unsigned  line;

    for (i = 0, line = 1; i < pos; i++) {
        line += (data[i] == '\n');
    }

    return line;
}


static vlm_json_t *
add_node(parser_t *ps, vlm_json_type_t type)
{
    size_t           size, i;
    level_t         *level;
    vlm_json_t      *v;
    vlm_json_doc_t  *doc;

    doc = ps->doc;

    if (doc->nnodes == doc->size) {
        size = doc->size != 0 ? doc->size * 2 : 64;

        v = realloc(doc->nodes, size * sizeof(vlm_json_t));
        if (v == NULL) {
            ps->failed = "no memory";
            return NULL;
        }

        doc->nodes = v;
        doc->size = size;
    }

    i = doc->nnodes++;

    v = &doc->nodes[i];
    memset(v, 0, sizeof(*v));

    v->type = (uint8_t) type;
    v->key = ps->key;
    v->key_len = ps->key_len;

    ps->key = NULL;
    ps->key_len = 0;

    if (ps->depth > 0) {
        level = &ps->levels[ps->depth - 1];

        if (doc->nodes[level->node].count++ != 0) {
            doc->nodes[level->last].next = (uint32_t) (i - level->last);
        }

        level->last = i;
    }

    return v;
}


static const char *
add_text(parser_t *ps, const void *data, size_t len)
{
    char  *text;

    if (len >= (size_t) (ps->end - ps->p)) {
        ps->failed = "no room for a string";
        return NULL;
    }

    text = ps->p;

    if (len != 0) {
        memcpy(text, data, len);
    }

    text[len] = '\0';
    ps->p += len + 1;

    return text;
}


vlm_json_doc_t *
vlm_json_load(const char *path, vlm_error_t *err)
{
    char            *data;
    size_t           len;
    vlm_json_doc_t  *doc;

    if (vlm_read_file(path, MAX_SIZE, &data, &len, err) == VLM_ERROR) {
        return NULL;
    }

    doc = vlm_json_parse(data, len, path, err);
    free(data);

    return doc;
}


void
vlm_json_free(vlm_json_doc_t *doc)
{
    if (doc == NULL) {
        return;
    }

    free(doc->nodes);
    free(doc->strings);
    free(doc);
}


const vlm_json_t *
vlm_json_root(const vlm_json_doc_t *doc)
{
    return doc != NULL ? doc->nodes : NULL;
}


vlm_json_type_t
vlm_json_type(const vlm_json_t *v)
{
    return v != NULL ? (vlm_json_type_t) v->type : VLM_JSON_NULL;
}


static int
is_container(const vlm_json_t *v)
{
    return v != NULL
           && (v->type == VLM_JSON_ARRAY || v->type == VLM_JSON_OBJECT);
}


size_t
vlm_json_count(const vlm_json_t *v)
{
    return is_container(v) ? v->count : 0;
}


const vlm_json_t *
vlm_json_first(const vlm_json_t *v)
{
    return vlm_json_count(v) != 0 ? v + 1 : NULL;
}


const vlm_json_t *
vlm_json_next(const vlm_json_t *v)
{
    return v != NULL && v->next != 0 ? v + v->next : NULL;
}


const char *
vlm_json_key(const vlm_json_t *v, size_t *len)
{
    *len = v != NULL ? v->key_len : 0;

    return v != NULL ? v->key : NULL;
}


/* equal keys: the last one, while vlm_json_next() shows all of them */

const vlm_json_t *
vlm_json_get(const vlm_json_t *object, const char *key)
{
    size_t             len;
    const vlm_json_t  *v, *found;

    if (vlm_json_type(object) != VLM_JSON_OBJECT) {
        return NULL;
    }

    len = strlen(key);
    found = NULL;

    for (v = vlm_json_first(object); v != NULL; v = vlm_json_next(v)) {
        if (v->key_len == len && memcmp(v->key, key, len) == 0) {
            found = v;
        }
    }

    return found;
}


const vlm_json_t *
vlm_json_at(const vlm_json_t *array, size_t i)
{
    const vlm_json_t  *v;

    if (vlm_json_type(array) != VLM_JSON_ARRAY) {
        return NULL;
    }

    for (v = vlm_json_first(array); v != NULL && i > 0; i--) {
        v = vlm_json_next(v);
    }

    return v;
}


int
vlm_json_string(const vlm_json_t *v, const char **data, size_t *len)
{
    if (vlm_json_type(v) != VLM_JSON_STRING) {
        return VLM_ERROR;
    }

    *data = v->data;
    *len = v->count;

    return VLM_OK;
}


/* also 1e6 and 16.0, which some programs write for integers */

int
vlm_json_int(const vlm_json_t *v, int64_t *n)
{
    char       *end;
    double      d;
    long long   value;

    if (vlm_json_type(v) != VLM_JSON_NUMBER) {
        return VLM_ERROR;
    }

    errno = 0;
    value = strtoll(v->data, &end, 10);

    if (errno != 0) {
        return VLM_ERROR;
    }

    if (*end != '\0') {
        d = strtod(v->data, NULL);

        if (!(d >= -9007199254740992.0 && d <= 9007199254740992.0)
            || d != (double) (int64_t) d)
        {
            return VLM_ERROR;
        }

        value = (long long) d;
    }

    *n = value;

    return VLM_OK;
}


/* too large for a double: VLM_ERROR, never an infinity */

int
vlm_json_double(const vlm_json_t *v, double *d)
{
    double  value;

    if (vlm_json_type(v) != VLM_JSON_NUMBER) {
        return VLM_ERROR;
    }

    value = strtod(v->data, NULL);

    if (!(value - value == 0)) {
        return VLM_ERROR;
    }

    *d = value;

    return VLM_OK;
}


int
vlm_json_bool(const vlm_json_t *v, int *b)
{
    if (vlm_json_type(v) != VLM_JSON_BOOL) {
        return VLM_ERROR;
    }

    *b = (int) v->count;

    return VLM_OK;
}


int
vlm_json_is(const vlm_json_t *v, const char *text)
{
    size_t  len;

    len = strlen(text);

    return vlm_json_type(v) == VLM_JSON_STRING && v->count == len
           && memcmp(v->data, text, len) == 0;
}
