
/* The files of a checkpoint's directory: one, or those of an index. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/vlm_json.h"
#include "engine/model/safetensors_private.h"


static int st_map(vlm_safetensors_t *st, const char *dir, const char *file,
    vlm_error_t *err);
static int st_index(vlm_safetensors_t *st, const char *dir, const char *path,
    vlm_error_t *err);
static int st_index_files(vlm_safetensors_t *st, const char *dir,
    const vlm_json_t *map, vlm_error_t *err);
static int st_index_tensors(vlm_safetensors_t *st, const vlm_json_t *map,
    vlm_error_t *err);
static int st_file_number(const vlm_safetensors_t *st, const char *name,
    size_t len);


vlm_safetensors_t *
vlm_st_open(const char *dir, vlm_error_t *err)
{
    int                 rc;
    char               *path;
    vlm_safetensors_t  *st;

    st = vlm_st_create(err);
    if (st == NULL) {
        return NULL;
    }

    if (asprintf(&path, "%s/model.safetensors.index.json", dir) < 0) {
        vlm_fail(err, 500, NULL, "no memory");
        vlm_st_free(st);
        return NULL;
    }

    if (access(path, F_OK) == 0) {
        rc = st_index(st, dir, path, err);

    } else {
        rc = st_map(st, dir, "model.safetensors", err);
    }

    free(path);

    if (rc == VLM_ERROR) {
        vlm_st_free(st);
        return NULL;
    }

    return st;
}


static int
st_map(vlm_safetensors_t *st, const char *dir, const char *file,
    vlm_error_t *err)
{
    int             rc;
    char           *path;
    vlm_mapping_t  *map;

    if (asprintf(&path, "%s/%s", dir, file) < 0) {
        return vlm_fail(err, 500, NULL, "no memory");
    }

    map = vlm_mapping_open(path, err);
    free(path);

    if (map == NULL) {
        return VLM_ERROR;
    }

    rc = vlm_st_add(st, file, map->data, map->len, err);

    if (rc == VLM_ERROR) {
        vlm_fail_in(err, "%s/", dir);
    }

    if (vlm_mapping_whole(map, err) != VLM_OK) {
        rc = VLM_ERROR;
    }

    if (st->nfiles > 0 && st->files[st->nfiles - 1].map == NULL
        && strcmp(st->files[st->nfiles - 1].name, file) == 0)
    {
        st->files[st->nfiles - 1].map = map;

    } else {
        vlm_mapping_close(map);
    }

    return rc;
}


static int
st_index(vlm_safetensors_t *st, const char *dir, const char *path,
    vlm_error_t *err)
{
    int                rc;
    vlm_json_doc_t    *doc;
    const vlm_json_t  *map;

    doc = vlm_json_load(path, err);
    if (doc == NULL) {
        return VLM_ERROR;
    }

    map = vlm_json_get(vlm_json_root(doc), "weight_map");

    if (vlm_json_type(map) != VLM_JSON_OBJECT || vlm_json_count(map) == 0) {
        rc = vlm_fail(err, 500, NULL, "%s: no weight_map", path);

    } else {
        rc = st_index_files(st, dir, map, err);

        if (rc == VLM_OK) {
            rc = st_index_tensors(st, map, err);

            if (rc == VLM_ERROR) {
                vlm_fail_in(err, "%s: ", path);
            }
        }
    }

    vlm_json_free(doc);

    return rc;
}


static int
st_index_files(vlm_safetensors_t *st, const char *dir, const vlm_json_t *map,
    vlm_error_t *err)
{
    char               name[256];
    size_t             n;
    const char        *file;
    const vlm_json_t  *v;

    for (v = vlm_json_first(map); v != NULL; v = vlm_json_next(v)) {

        if (vlm_json_string(v, &file, &n) == VLM_ERROR) {
            return vlm_fail(err, 500, NULL, "%s/model.safetensors.index.json"
                            ": a file name in weight_map is no string", dir);
        }

        if (st_file_number(st, file, n) >= 0) {
            continue;
        }

        /* a checkpoint must not reach for files outside its directory */

        if (n == 0 || n >= sizeof(name) || file[0] == '.'
            || memchr(file, '/', n) != NULL || memchr(file, '\0', n) != NULL)
        {
            return vlm_fail(err, 500, NULL, "%s/model.safetensors.index.json"
                            ": \"%.*s\" in weight_map is no plain file name",
                            dir, (int) (n < 100 ? n : 100), file);
        }

        if (st->nfiles == VLM_ST_MAX_FILES) {
            return vlm_fail(err, 500, NULL, "%s/model.safetensors.index.json"
                            ": more than %d files", dir, VLM_ST_MAX_FILES);
        }

        memcpy(name, file, n);
        name[n] = '\0';

        if (st_map(st, dir, name, err) == VLM_ERROR) {
            return VLM_ERROR;
        }
    }

    return VLM_OK;
}


/* what the index does not list does not exist */

static int
st_index_tensors(vlm_safetensors_t *st, const vlm_json_t *map,
    vlm_error_t *err)
{
    size_t             i, n, len;
    const char        *file, *name;
    vlm_st_tensor_t   *t;
    const vlm_json_t  *v;

    for (v = vlm_json_first(map); v != NULL; v = vlm_json_next(v)) {
        name = vlm_json_key(v, &len);
        vlm_json_string(v, &file, &n);

        t = vlm_st_lookup(st, name, len, st_file_number(st, file, n));

        if (t == NULL) {
            return vlm_fail(err, 500, NULL, "tensor \"%.*s\" is not in "
                            "\"%.*s\"", (int) (len < 200 ? len : 200), name,
                            (int) n, file);
        }

        t->listed = 1;
    }

    n = 0;

    for (i = 0; i < st->ntensors; i++) {
        if (st->tensors[i].listed) {
            st->tensors[n++] = st->tensors[i];

        } else {
            free(st->tensors[i].name);
        }
    }

    st->ntensors = n;

    return VLM_OK;
}


static int
st_file_number(const vlm_safetensors_t *st, const char *name, size_t len)
{
    int  i;

    for (i = 0; i < st->nfiles; i++) {
        if (strlen(st->files[i].name) == len
            && memcmp(st->files[i].name, name, len) == 0)
        {
            return i;
        }
    }

    return -1;
}
