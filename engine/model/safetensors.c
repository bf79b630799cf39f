
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/vlm_json.h"
#include "engine/model/safetensors_private.h"


static int st_file(vlm_safetensors_t *st, const char *file,
    vlm_error_t *err);
static int st_parse(vlm_safetensors_t *st, const char *file,
    const vlm_json_t *header, const uint8_t *data, uint64_t len,
    vlm_error_t *err);
static int st_tensor(vlm_st_tensor_t *t, const vlm_json_t *v,
    const char *file, const uint8_t *data, uint64_t len, vlm_error_t *err);
static int st_shape(vlm_st_tensor_t *t, const vlm_json_t *v,
    const char *file, vlm_error_t *err);
static int st_cover(vlm_safetensors_t *st, size_t first, const char *file,
    const uint8_t *data, uint64_t len, vlm_error_t *err);
static vlm_st_tensor_t *st_push(vlm_safetensors_t *st);
static void st_sort(vlm_safetensors_t *st);


static const struct {
    const char         *name;
    size_t              size;
    int                 usable;
    vlm_dtype_t         dtype;
} st_types[] = {
    { "BF16", 2, 1, VLM_BF16 },
    { "F16", 2, 1, VLM_F16 },
    { "F32", 4, 1, VLM_F32 },
    { "BOOL", 1, 0, 0 },
    { "U8", 1, 0, 0 },
    { "I8", 1, 0, 0 },
    { "F8_E4M3", 1, 0, 0 },
    { "F8_E5M2", 1, 0, 0 },
    { "I16", 2, 0, 0 },
    { "U16", 2, 0, 0 },
    { "I32", 4, 0, 0 },
    { "U32", 4, 0, 0 },
    { "F64", 8, 0, 0 },
    { "I64", 8, 0, 0 },
    { "U64", 8, 0, 0 }
};

#define ST_NTYPES   (sizeof(st_types) / sizeof(st_types[0]))


vlm_safetensors_t *
vlm_st_create(vlm_error_t *err)
{
    vlm_safetensors_t  *st;

    st = calloc(1, sizeof(*st));
    if (st == NULL) {
        vlm_fail(err, 500, NULL, "no memory for the list of tensors");
    }

    return st;
}


void
vlm_st_free(vlm_safetensors_t *st)
{
    int     f;
    size_t  i;

    if (st == NULL) {
        return;
    }

    for (i = 0; i < st->ntensors; i++) {
        free(st->tensors[i].name);
    }

    for (f = 0; f < st->nfiles; f++) {
        vlm_mapping_close(st->files[f].map);
        free(st->files[f].name);
    }

    free(st->tensors);
    free(st->files);
    free(st);
}


int
vlm_st_add(vlm_safetensors_t *st, const char *file, const uint8_t *data,
    size_t len, vlm_error_t *err)
{
    int              i, rc;
    char             name[300];
    uint64_t         n;
    vlm_json_doc_t  *doc;

    if (len < 8) {
        return vlm_fail(err, 500, NULL, "%s: truncated: %zu bytes, not even "
                        "the 8 of the header's length", file, len);
    }

    n = 0;

    for (i = 7; i >= 0; i--) {
        n = n << 8 | data[i];
    }

    if (n > VLM_ST_MAX_HEADER) {
        return vlm_fail(err, 500, NULL, "%s: header of %llu bytes, the limit "
                        "is %d: no safetensors file, or a pointer of Git "
                        "LFS in its place", file, (unsigned long long) n,
                        VLM_ST_MAX_HEADER);
    }

    if (n > len - 8) {
        return vlm_fail(err, 500, NULL, "%s: truncated: header of %llu "
                        "bytes in a file of %zu", file,
                        (unsigned long long) n, len);
    }

    if (st_file(st, file, err) == VLM_ERROR) {
        return VLM_ERROR;
    }

    snprintf(name, sizeof(name), "%.256s: header", file);

    doc = vlm_json_parse((const char *) data + 8, (size_t) n, name, err);
    if (doc == NULL) {
        return VLM_ERROR;
    }

    rc = st_parse(st, file, vlm_json_root(doc), data + 8 + n, len - 8 - n,
                  err);
    vlm_json_free(doc);

    return rc;
}


static int
st_file(vlm_safetensors_t *st, const char *file, vlm_error_t *err)
{
    st_file_t  *files;

    files = realloc(st->files, (size_t) (st->nfiles + 1) * sizeof(*files));
    if (files == NULL) {
        return vlm_fail(err, 500, NULL, "%s: no memory", file);
    }

    st->files = files;
    memset(&files[st->nfiles], 0, sizeof(*files));

    files[st->nfiles].name = strdup(file);
    if (files[st->nfiles].name == NULL) {
        return vlm_fail(err, 500, NULL, "%s: no memory", file);
    }

    st->nfiles++;

    return VLM_OK;
}


static int
st_parse(vlm_safetensors_t *st, const char *file, const vlm_json_t *header,
    const uint8_t *data, uint64_t len, vlm_error_t *err)
{
    size_t             n, first;
    const char        *key;
    vlm_st_tensor_t   *t;
    const vlm_json_t  *v;

    if (vlm_json_type(header) != VLM_JSON_OBJECT) {
        return vlm_fail(err, 500, NULL, "%s: header is no JSON object", file);
    }

    first = st->ntensors;

    for (v = vlm_json_first(header); v != NULL; v = vlm_json_next(v)) {
        key = vlm_json_key(v, &n);

        if (n == 12 && memcmp(key, "__metadata__", 12) == 0) {
            continue;
        }

        if (memchr(key, '\0', n) != NULL) {
            return vlm_fail(err, 500, NULL, "%s: a tensor's name has a zero "
                            "byte", file);
        }

        t = st_push(st);
        if (t == NULL) {
            return vlm_fail(err, 500, NULL, "%s: no memory", file);
        }

        t->name = strndup(key, n);
        if (t->name == NULL) {
            return vlm_fail(err, 500, NULL, "%s: no memory", file);
        }

        t->file = st->nfiles - 1;

        if (st_tensor(t, v, file, data, len, err) == VLM_ERROR) {
            return VLM_ERROR;
        }
    }

    if (st_cover(st, first, file, data, len, err) == VLM_ERROR) {
        return VLM_ERROR;
    }

    st_sort(st);

    return VLM_OK;
}


static int
st_tensor(vlm_st_tensor_t *t, const vlm_json_t *v, const char *file,
    const uint8_t *data, uint64_t len, vlm_error_t *err)
{
    size_t             i, n, elt;
    int64_t            begin, end;
    const char        *type;
    const vlm_json_t  *offsets;

    if (vlm_json_string(vlm_json_get(v, "dtype"), &type, &n) == VLM_ERROR) {
        return vlm_fail(err, 500, NULL, "%s: tensor \"%s\" has no dtype",
                        file, t->name);
    }

    snprintf(t->type, sizeof(t->type), "%.*s", (int) (n < 64 ? n : 64), type);
    elt = 0;

    for (i = 0; i < ST_NTYPES; i++) {
        if (vlm_json_is(vlm_json_get(v, "dtype"), st_types[i].name)) {
            elt = st_types[i].size;
            t->usable = st_types[i].usable;
            t->dtype = st_types[i].dtype;
        }
    }

    if (st_shape(t, v, file, err) == VLM_ERROR) {
        return VLM_ERROR;
    }

    offsets = vlm_json_get(v, "data_offsets");

    if (vlm_json_count(offsets) != 2
        || vlm_json_int(vlm_json_at(offsets, 0), &begin) == VLM_ERROR
        || vlm_json_int(vlm_json_at(offsets, 1), &end) == VLM_ERROR
        || begin < 0 || end < begin)
    {
        return vlm_fail(err, 500, NULL, "%s: tensor \"%s\" has bad "
                        "data_offsets", file, t->name);
    }

    if ((uint64_t) end > len) {
        return vlm_fail(err, 500, NULL, "%s: truncated: tensor \"%s\" ends "
                        "at byte %lld of the data, the file has %llu", file,
                        t->name, (long long) end, (unsigned long long) len);
    }

    t->data = data + begin;
    t->size = (uint64_t) (end - begin);

    /* a type that is not known may be stored in any way, but not used */

    if (elt != 0 && t->size / elt != (uint64_t) t->count) {
        return vlm_fail(err, 500, NULL, "%s: tensor \"%s\" has %llu bytes, "
                        "its shape needs %lld elements of %zu", file,
                        t->name, (unsigned long long) t->size,
                        (long long) t->count, elt);
    }

    if (elt != 0 && t->size % elt != 0) {
        return vlm_fail(err, 500, NULL, "%s: tensor \"%s\" has %llu bytes, "
                        "no multiple of %zu", file, t->name,
                        (unsigned long long) t->size, elt);
    }

    return VLM_OK;
}


static int
st_shape(vlm_st_tensor_t *t, const vlm_json_t *v, const char *file,
    vlm_error_t *err)
{
    int64_t            n;
    const vlm_json_t  *shape, *d;

    shape = vlm_json_get(v, "shape");

    if (vlm_json_type(shape) != VLM_JSON_ARRAY
        || vlm_json_count(shape) > VLM_ST_MAX_RANK)
    {
        return vlm_fail(err, 500, NULL, "%s: tensor \"%s\" has no shape of "
                        "at most %d numbers", file, t->name,
                        VLM_ST_MAX_RANK);
    }

    t->count = 1;

    for (d = vlm_json_first(shape); d != NULL; d = vlm_json_next(d)) {

        /* so bounded, bytes of 8 an element cannot overflow either */

        if (vlm_json_int(d, &n) == VLM_ERROR || n < 0 || n > INT32_MAX
            || (n != 0 && t->count > (INT64_C(1) << 56) / n))
        {
            return vlm_fail(err, 500, NULL, "%s: tensor \"%s\" has a bad "
                            "number in its shape", file, t->name);
        }

        t->shape[t->rank++] = n;
        t->count *= n;
    }

    return VLM_OK;
}


static int
st_by_place(const void *a, const void *b)
{
    const vlm_st_tensor_t  *x = a, *y = b;

    if (x->data != y->data) {
        return x->data < y->data ? -1 : 1;
    }

    return x->size < y->size ? -1 : x->size > y->size;
}


/* no holes and no overlaps: a shifted header would give plausible numbers */

static int
st_cover(vlm_safetensors_t *st, size_t first, const char *file,
    const uint8_t *data, uint64_t len, vlm_error_t *err)
{
    size_t            i;
    uint64_t          at, begin;
    vlm_st_tensor_t  *t;

    if (st->ntensors == first) {
        return len == 0 ? VLM_OK
                        : vlm_fail(err, 500, NULL, "%s: %llu bytes of data "
                                   "but no tensor", file,
                                   (unsigned long long) len);
    }

    qsort(st->tensors + first, st->ntensors - first, sizeof(*t),
          st_by_place);

    at = 0;

    for (i = first; i < st->ntensors; i++) {
        t = &st->tensors[i];
        begin = (uint64_t) (t->data - data);

        if (begin < at) {
            return vlm_fail(err, 500, NULL, "%s: tensor \"%s\" overlaps "
                            "\"%s\"", file, t->name, t[-1].name);
        }

        if (begin > at) {
            return vlm_fail(err, 500, NULL, "%s: %llu bytes before tensor "
                            "\"%s\" belong to none", file,
                            (unsigned long long) (begin - at), t->name);
        }

        at = begin + t->size;
    }

    if (at < len) {
        return vlm_fail(err, 500, NULL, "%s: %llu bytes after the last "
                        "tensor", file, (unsigned long long) (len - at));
    }

    return VLM_OK;
}


static vlm_st_tensor_t *
st_push(vlm_safetensors_t *st)
{
    size_t            size;
    vlm_st_tensor_t  *t;

    if (st->ntensors == st->size) {
        size = st->size != 0 ? st->size * 2 : 256;

        t = realloc(st->tensors, size * sizeof(*t));
        if (t == NULL) {
            return NULL;
        }

        st->tensors = t;
        st->size = size;
    }

    t = &st->tensors[st->ntensors++];
    memset(t, 0, sizeof(*t));

    return t;
}


static int
st_by_name(const void *a, const void *b)
{
    int                     rc;
    const vlm_st_tensor_t  *x = a, *y = b;

    rc = strcmp(x->name, y->name);

    return rc != 0 ? rc : x->file - y->file;
}


static void
st_sort(vlm_safetensors_t *st)
{
    if (st->ntensors > 1) {
        qsort(st->tensors, st->ntensors, sizeof(vlm_st_tensor_t),
              st_by_name);
    }
}


vlm_st_tensor_t *
vlm_st_lookup(const vlm_safetensors_t *st, const char *name, size_t len,
    int file)
{
    int               rc;
    size_t            low, high, mid;
    vlm_st_tensor_t  *t;

    if (memchr(name, '\0', len) != NULL) {
        return NULL;
    }

    low = 0;
    high = st->ntensors;

    while (low < high) {
        mid = low + (high - low) / 2;
        t = &st->tensors[mid];

        rc = strncmp(t->name, name, len);

        if (rc == 0 && t->name[len] != '\0') {
            rc = 1;
        }

        if (rc == 0 && file >= 0) {
            rc = t->file - file;
        }

        if (rc == 0) {
            return t;
        }

        if (rc < 0) {
            low = mid + 1;

        } else {
            high = mid;
        }
    }

    return NULL;
}


const vlm_st_tensor_t *
vlm_st_find(const vlm_safetensors_t *st, const char *name)
{
    return vlm_st_lookup(st, name, strlen(name), -1);
}


size_t
vlm_st_count(const vlm_safetensors_t *st)
{
    return st->ntensors;
}


int
vlm_st_describe(const vlm_safetensors_t *st, vlm_buf_t *out)
{
    int               i, rc;
    const st_file_t  *f;

    rc = VLM_OK;

    for (i = 0; i < st->nfiles && rc == VLM_OK; i++) {
        f = &st->files[i];

        if (f->map != NULL) {
            rc = vlm_buf_printf(out, "%s %zu %lld.%09ld\n", f->name,
                                f->map->len, (long long) f->map->mtime.tv_sec,
                                f->map->mtime.tv_nsec);
        }
    }

    return rc;
}


int
vlm_st_whole(const vlm_safetensors_t *st, vlm_error_t *err)
{
    int  i;

    for (i = 0; i < st->nfiles; i++) {
        if (st->files[i].map != NULL
            && vlm_mapping_whole(st->files[i].map, err) != VLM_OK)
        {
            return VLM_ERROR;
        }
    }

    return VLM_OK;
}


uint64_t
vlm_st_bytes(const vlm_safetensors_t *st)
{
    size_t    i;
    uint64_t  sum;

    sum = 0;

    for (i = 0; i < st->ntensors; i++) {
        sum += st->tensors[i].size;
    }

    return sum;
}
