
/* A request made of the command line: what a worker would put in its arena. */

#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#include "engine/base/vlm_json.h"
#include "engine/cli/cli.h"


#define MAX_FILE    ((size_t) 1 << 28)


/* the request while it grows */

typedef struct {
    vlm_local_request_t    *r;
    vlm_message_t           messages[VLM_MAX_MESSAGES];
    vlm_part_t              parts[VLM_MAX_MESSAGE_PARTS];
    vlm_picture_t           pictures[VLM_MAX_PICTURES];
    vlm_str_t               stops[VLM_MAX_STOPS];
    vlm_request_t           req;
} vlm_draft_t;


static int draft_fill(const vlm_options_t *o, vlm_draft_t *d,
    vlm_error_t *err);
static int draft_plain(const vlm_options_t *o, vlm_draft_t *d,
    vlm_error_t *err);
static int draft_messages(const vlm_options_t *o, vlm_draft_t *d,
    vlm_error_t *err);
static int draft_encode(vlm_draft_t *d, vlm_error_t *err);


static int
nomem(vlm_error_t *err)
{
    return vlm_fail(err, 500, NULL, "no memory for the request");
}


int
vlm_local_request(const vlm_options_t *o, vlm_local_request_t *r,
    vlm_error_t *err)
{
    int           rc;
    vlm_draft_t  *d;

    memset(r, 0, sizeof(*r));

    d = calloc(1, sizeof(vlm_draft_t));
    if (d == NULL) {
        return nomem(err);
    }

    d->r = r;
    rc = draft_fill(o, d, err);

    free(d);

    return rc;
}


void
vlm_local_request_free(vlm_local_request_t *r)
{
    uint32_t  i;

    for (i = 0; r->given != NULL && i < r->npictures; i++) {
        vlm_image_free(&r->given[i]);
    }

    free(r->given);
    vlm_buf_free(&r->arena);
}


static int
put(vlm_draft_t *d, const void *data, size_t len, vlm_extent_t *x,
    vlm_error_t *err)
{
    x->offset = d->r->arena.len;
    x->length = len;

    return vlm_buf_append(&d->r->arena, data, len) == VLM_OK ? VLM_OK
                                                             : nomem(err);
}


static int
draft_part(vlm_draft_t *d, uint32_t type, const char *text, size_t len,
    vlm_error_t *err)
{
    vlm_part_t  *p;

    if (d->req.nparts == VLM_MAX_MESSAGE_PARTS) {
        return vlm_fail(err, 400, NULL, "more than %d parts of messages",
                        VLM_MAX_MESSAGE_PARTS);
    }

    p = &d->parts[d->req.nparts++];
    p->type = type;
    d->messages[d->req.nmessages - 1].nparts++;

    if (type == VLM_PART_TEXT) {
        return put(d, text, len, &p->text, err);
    }

    p->picture = d->req.npictures++;

    return VLM_OK;
}


static int
draft_message(vlm_draft_t *d, uint32_t role, vlm_error_t *err)
{
    vlm_message_t  *m;

    if (d->req.nmessages == VLM_MAX_MESSAGES) {
        return vlm_fail(err, 400, NULL, "more than %d messages",
                        VLM_MAX_MESSAGES);
    }

    m = &d->messages[d->req.nmessages++];
    m->role = role;
    m->first_part = d->req.nparts;

    return VLM_OK;
}


static int
draft_picture(vlm_draft_t *d, uint32_t i, const char *path,
    vlm_error_t *err)
{
    int             rc;
    char           *data;
    size_t          len;
    vlm_picture_t  *p;

    p = &d->pictures[i];

    if (vlm_read_file(path, MAX_FILE, &data, &len, err) != VLM_OK) {
        return VLM_ERROR;
    }

    if (len >= 2 && data[0] == 'P' && data[1] == '6') {
        rc = vlm_image_read_ppm(path, &d->r->given[i], err);

    } else {
        rc = VLM_OK;
    }

    if (rc == VLM_OK && EVP_Digest(data, len, p->sha256, NULL, EVP_sha256(),
                                   NULL)
                        != 1)
    {
        rc = vlm_fail(err, 500, NULL, "SHA-256 failed");
    }

    if (rc == VLM_OK) {
        rc = put(d, data, len, &p->bytes, err);
    }

    free(data);

    return rc;
}


/* all pictures, in the order of --image */

static int
draft_pictures(const vlm_options_t *o, vlm_draft_t *d, vlm_error_t *err)
{
    int  i, nppm;

    if ((int) d->req.npictures != o->nimages) {
        return vlm_fail(err, 400, NULL, "the messages have %u images, but "
                        "%d --image are given", d->req.npictures,
                        o->nimages);
    }

    d->r->npictures = d->req.npictures;

    if (o->nimages == 0) {
        return VLM_OK;
    }

    d->r->given = calloc((size_t) o->nimages, sizeof(vlm_image_t));
    if (d->r->given == NULL) {
        return nomem(err);
    }

    nppm = 0;

    for (i = 0; i < o->nimages; i++) {
        d->pictures[i].detail = o->detail;

        if (draft_picture(d, (uint32_t) i, o->images[i], err) != VLM_OK) {
            return VLM_ERROR;
        }

        nppm += (d->r->given[i].data != NULL);
    }

    if (nppm != 0 && nppm != o->nimages) {
        return vlm_fail(err, 400, NULL, "PPM files and others cannot be "
                        "mixed in one request");
    }

    if (nppm == 0) {
        free(d->r->given);
        d->r->given = NULL;
    }

    return VLM_OK;
}


static int
draft_fill(const vlm_options_t *o, vlm_draft_t *d, vlm_error_t *err)
{
    int             i;
    vlm_request_t  *req;

    req = &d->req;

    if ((o->messages != NULL ? draft_messages(o, d, err)
                             : draft_plain(o, d, err))
        != VLM_OK
        || draft_pictures(o, d, err) != VLM_OK)
    {
        return VLM_ERROR;
    }

    for (i = 0; i < o->nstops; i++) {
        d->stops[i].data = o->stops[i];
        d->stops[i].len = (uint32_t) strlen(o->stops[i]);
    }

    req->request_id.data = "run";
    req->request_id.len = 3;
    req->flags = o->ignore_eos ? VLM_FLAG_IGNORE_EOS : 0;
    req->sampling = o->sampling;
    req->messages = d->messages;
    req->parts = d->parts;
    req->pictures = d->pictures;
    req->stops = d->stops;
    req->nstops = (uint32_t) o->nstops;

    return draft_encode(d, err);
}


static int
draft_encode(vlm_draft_t *d, vlm_error_t *err)
{
    size_t                size;
    vlm_extent_t          x;
    static const char     zeros[8];
    vlm_local_request_t  *r;

    r = d->r;
    size = vlm_record_size(&d->req);

    if (size == 0) {
        return vlm_fail(err, 400, NULL, "the request is too large");
    }

    if (put(d, zeros, (8 - r->arena.len % 8) % 8, &x, err) != VLM_OK) {
        return VLM_ERROR;
    }

    r->record_offset = r->arena.len;
    r->record_length = (uint32_t) size;

    while (r->arena.len < r->record_offset + size) {
        if (put(d, zeros, 8, &x, err) != VLM_OK) {
            return VLM_ERROR;
        }
    }

    vlm_record_encode(&d->req, r->arena.data + r->record_offset, size);

    return VLM_OK;
}


/* --system, then one turn of all pictures and --prompt */

static int
draft_plain(const vlm_options_t *o, vlm_draft_t *d, vlm_error_t *err)
{
    int  i;

    if (o->system != NULL
        && (draft_message(d, VLM_ROLE_SYSTEM, err) != VLM_OK
            || draft_part(d, VLM_PART_TEXT, o->system, strlen(o->system),
                          err)
               != VLM_OK))
    {
        return VLM_ERROR;
    }

    if (draft_message(d, VLM_ROLE_USER, err) != VLM_OK) {
        return VLM_ERROR;
    }

    for (i = 0; i < o->nimages; i++) {
        if (draft_part(d, VLM_PART_PICTURE, NULL, 0, err) != VLM_OK) {
            return VLM_ERROR;
        }
    }

    if (o->prompt == NULL) {
        return VLM_OK;
    }

    return draft_part(d, VLM_PART_TEXT, o->prompt, strlen(o->prompt), err);
}


static int
json_part(vlm_draft_t *d, const vlm_json_t *v, vlm_error_t *err)
{
    size_t       len;
    const char  *text;

    if (vlm_json_is(vlm_json_get(v, "type"), "image")) {
        return draft_part(d, VLM_PART_PICTURE, NULL, 0, err);
    }

    if (!vlm_json_is(vlm_json_get(v, "type"), "text")
        || vlm_json_string(vlm_json_get(v, "text"), &text, &len) != VLM_OK)
    {
        return vlm_fail(err, 400, NULL, "a part must be of type \"image\", "
                        "or \"text\" with a \"text\"");
    }

    return draft_part(d, VLM_PART_TEXT, text, len, err);
}


static int
json_message(vlm_draft_t *d, const vlm_json_t *v, vlm_error_t *err)
{
    size_t             len;
    uint32_t           role;
    const char        *text;
    const vlm_json_t  *p, *content;

    p = vlm_json_get(v, "role");
    role = vlm_json_is(p, "system") ? VLM_ROLE_SYSTEM
           : vlm_json_is(p, "user") ? VLM_ROLE_USER
           : vlm_json_is(p, "assistant") ? VLM_ROLE_ASSISTANT : 0;

    if (role == 0) {
        return vlm_fail(err, 400, NULL, "\"role\" must be \"system\", "
                        "\"user\" or \"assistant\"");
    }

    if (draft_message(d, role, err) != VLM_OK) {
        return VLM_ERROR;
    }

    content = vlm_json_get(v, "content");

    if (vlm_json_string(content, &text, &len) == VLM_OK) {
        return draft_part(d, VLM_PART_TEXT, text, len, err);
    }

    if (vlm_json_type(content) != VLM_JSON_ARRAY) {
        return vlm_fail(err, 400, NULL, "\"content\" must be a string or an "
                        "array of parts");
    }

    for (p = vlm_json_first(content); p != NULL; p = vlm_json_next(p)) {
        if (json_part(d, p, err) != VLM_OK) {
            return VLM_ERROR;
        }
    }

    return VLM_OK;
}


static int
draft_messages(const vlm_options_t *o, vlm_draft_t *d, vlm_error_t *err)
{
    int                rc;
    vlm_json_doc_t    *doc;
    const vlm_json_t  *p, *root;

    doc = vlm_json_load(o->messages, err);
    if (doc == NULL) {
        return VLM_ERROR;
    }

    rc = VLM_OK;
    root = vlm_json_root(doc);

    if (vlm_json_type(root) != VLM_JSON_ARRAY || vlm_json_count(root) == 0) {
        rc = vlm_fail(err, 400, NULL, "must be an array of messages");
    }

    for (p = vlm_json_first(root); p != NULL && rc == VLM_OK;
         p = vlm_json_next(p))
    {
        rc = json_message(d, p, err);
    }

    if (rc != VLM_OK) {
        vlm_fail_in(err, "%s: ", o->messages);
    }

    vlm_json_free(doc);

    return rc;
}
