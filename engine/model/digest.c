
/* The digest of a checkpoint's vision tower and connector, and its keeping. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model/internal.h"


#define HEAD        "vlm vision digest 1\n"
#define MAX_KEPT    (4u << 20)
#define KEPT_NAME   ".vlm-vision-digest"


static int digest_files(vlm_model_t *m, uint8_t digest[32],
    vlm_error_t *err);
static int digest_whole(const vlm_model_t *m, const uint8_t files[32],
    uint8_t digest[32], vlm_error_t *err);
static int kept_paths(const char *dir, char *paths[2]);
static int kept_read(const char *path, const vlm_buf_t *files,
    uint8_t digest[32]);
static int kept_write(const char *path, const vlm_buf_t *files,
    const uint8_t digest[32]);


int
vlm_model_vision_digest(vlm_model_t *m, const char *dir, uint8_t digest[32],
    vlm_error_t *err)
{
    int        i, rc;
    char      *paths[2];
    uint8_t    of_files[32];
    vlm_buf_t  files;

    memset(&files, 0, sizeof(files));
    memset(paths, 0, sizeof(paths));
    rc = VLM_ERROR;

    if (vlm_st_describe(m->files, &files) != VLM_OK
        || kept_paths(dir, paths) != VLM_OK)
    {
        vlm_fail(err, 500, NULL, "no memory for the weights' digest");
        goto done;
    }

    for (i = 0; i < 2 && rc != VLM_OK; i++) {
        if (paths[i] != NULL) {
            rc = kept_read(paths[i], &files, of_files);
        }
    }

    if (rc != VLM_OK) {
        rc = digest_files(m, of_files, err);

        if (rc != VLM_OK) {
            goto done;
        }

        for (i = 0; i < 2; i++) {
            if (paths[i] != NULL
                && kept_write(paths[i], &files, of_files) == VLM_OK)
            {
                break;
            }
        }

        if (i == 2) {
            vlm_log(VLM_LOG_INFO, "the digest of the vision weights cannot "
                    "be kept: it is computed at each start");
        }
    }

    rc = digest_whole(m, of_files, digest, err);

done:

    vlm_buf_free(&files);
    free(paths[0]);
    free(paths[1]);

    return rc;
}


static int
digest_files(vlm_model_t *m, uint8_t digest[32], vlm_error_t *err)
{
    int          rc;
    EVP_MD_CTX  *ctx;

    ctx = EVP_MD_CTX_new();

    if (ctx == NULL || EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(ctx);
        return vlm_fail(err, 500, NULL, "SHA-256 failed");
    }

    rc = vlm_weights_digest(m, ctx, err);

    if (rc == VLM_OK && EVP_DigestFinal_ex(ctx, digest, NULL) != 1) {
        rc = vlm_fail(err, 500, NULL, "SHA-256 failed");
    }

    EVP_MD_CTX_free(ctx);

    return rc;
}


/* what config.json and the family add: equal weights in another tower */

static int
digest_whole(const vlm_model_t *m, const uint8_t files[32],
    uint8_t digest[32], vlm_error_t *err)
{
    int                  rc;
    vlm_buf_t            buf;
    const vlm_config_t  *c;
    const vlm_family_t  *f;

    c = &m->config;
    f = m->family;
    memset(&buf, 0, sizeof(buf));

    if (vlm_buf_append(&buf, files, 32) != VLM_OK
        || vlm_buf_printf(&buf, "%s %d %d %d %d %d %d %d %d %d %d "
                          "%d %a %a %d %a %d", f->model_type, c->hidden,
                          c->v_width, c->v_layers, c->v_heads,
                          c->v_intermediate, c->channels, c->patch, c->merge,
                          c->frames, (int) c->v_act, (int) f->v_norm,
                          (double) f->v_eps, f->v_rope_theta,
                          (int) f->merge_norm, (double) f->merge_eps,
                          (int) f->merge_act)
           != VLM_OK
        || EVP_Digest(buf.data, buf.len, digest, NULL, EVP_sha256(), NULL)
           != 1)
    {
        rc = vlm_fail(err, 500, NULL, "no memory for the weights' digest");

    } else {
        rc = VLM_OK;
    }

    vlm_buf_free(&buf);

    return rc;
}


/* ---- where it is kept: NULL where there is no such place ---- */

static int
kept_paths(const char *dir, char *paths[2])
{
    int          rc;
    char        *real, name[33];
    uint8_t      hash[32];
    const char  *base, *sub;

    if (asprintf(&paths[0], "%s/" KEPT_NAME, dir) < 0) {
        paths[0] = NULL;
        return VLM_ERROR;
    }

    base = getenv("XDG_CACHE_HOME");
    sub = "";

    if (base == NULL || base[0] != '/') {
        base = getenv("HOME");
        sub = "/.cache";
    }

    if (base == NULL || base[0] != '/') {
        return VLM_OK;
    }

    real = realpath(dir, NULL);

    if (real == NULL
        || EVP_Digest(real, strlen(real), hash, NULL, EVP_sha256(), NULL)
           != 1)
    {
        free(real);
        return VLM_OK;
    }

    free(real);

    for (rc = 0; rc < 16; rc++) {
        snprintf(name + 2 * rc, 3, "%02x", hash[rc]);
    }

    if (asprintf(&paths[1], "%s%s/ngx_vlm/vision-%s", base, sub, name) < 0) {
        paths[1] = NULL;
        return VLM_ERROR;
    }

    return VLM_OK;
}


static int
kept_read(const char *path, const vlm_buf_t *files, uint8_t digest[32])
{
    int           i, rc;
    char         *data;
    size_t        len, head;
    unsigned      byte;

    head = sizeof(HEAD) - 1;

    if (vlm_read_file(path, MAX_KEPT, &data, &len, NULL) != VLM_OK) {
        return VLM_ERROR;
    }

    rc = VLM_ERROR;

    if (len == head + 65 + files->len && memcmp(data, HEAD, head) == 0
        && data[head + 64] == '\n'
        && memcmp(data + head + 65, files->data, files->len) == 0
        && strspn(data + head, "0123456789abcdef") == 64)
    {
        for (i = 0; i < 32; i++) {
            (void) sscanf(data + head + 2 * i, "%2x", &byte);
            digest[i] = (uint8_t) byte;
        }

        rc = VLM_OK;
    }

    free(data);

    return rc;
}


/* the directories of the cache, not of the checkpoint */

static void
kept_mkdir(const char *path)
{
    char   copy[4096];
    char  *slash;

    if (strlen(path) >= sizeof(copy)) {
        return;
    }

    strcpy(copy, path);

    for (slash = strchr(copy + 1, '/'); slash != NULL;
         slash = strchr(slash + 1, '/'))
    {
        *slash = '\0';
        (void) mkdir(copy, 0700);
        *slash = '/';
    }
}


static int
kept_write(const char *path, const vlm_buf_t *files,
    const uint8_t digest[32])
{
    int        i, fd, rc;
    char      *temp;
    vlm_buf_t  buf;

    if (asprintf(&temp, "%s.%ld", path, (long) getpid()) < 0) {
        return VLM_ERROR;
    }

    memset(&buf, 0, sizeof(buf));
    rc = vlm_buf_printf(&buf, HEAD);

    for (i = 0; i < 32 && rc == VLM_OK; i++) {
        rc = vlm_buf_printf(&buf, "%02x", digest[i]);
    }

    if (rc != VLM_OK || vlm_buf_printf(&buf, "\n") != VLM_OK
        || vlm_buf_append(&buf, files->data, files->len) != VLM_OK)
    {
        vlm_buf_free(&buf);
        free(temp);
        return VLM_ERROR;
    }

    kept_mkdir(path);

    rc = VLM_ERROR;
    fd = open(temp, O_WRONLY|O_CREAT|O_EXCL|O_CLOEXEC|O_NOFOLLOW, 0644);

    if (fd != -1) {
        rc = write(fd, buf.data, buf.len) == (ssize_t) buf.len ? VLM_OK
                                                               : VLM_ERROR;
        (void) close(fd);

        if (rc == VLM_OK && rename(temp, path) == -1) {
            rc = VLM_ERROR;
        }

        if (rc != VLM_OK) {
            unlink(temp);
        }
    }

    vlm_buf_free(&buf);
    free(temp);

    return rc;
}
