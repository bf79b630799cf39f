
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#include "t/unit/lib/ask.h"
#include "t/unit/lib/tap.h"


void
ask_conf(vlm_engine_conf_t *conf, const char *model)
{
    memset(conf, 0, sizeof(*conf));

    conf->model = model;
    conf->threads = 2;
    conf->image_threads = 2;
    conf->embedding_dtype = VLM_BF16;
    conf->max_num_seqs = 16;
    conf->max_rows = 256;
    conf->max_queue = 1000;
    conf->queue_timeout_ms = 600000;
    conf->max_images = 8;
    conf->max_image_pixels = 1 << 24;
    conf->block_size = 16;
    conf->kv_memory = 64 << 20;
}


vlm_engine_t *
ask_start(const vlm_engine_conf_t *conf)
{
    vlm_mail_t      mail;
    vlm_error_t     err;
    vlm_engine_t   *e;
    struct pollfd   pfd;

    e = vlm_engine_create(conf, &err);
    if (e == NULL) {
        tap_diag("%s", err.message);
        exit(1);
    }

    pfd.fd = vlm_engine_fd(e);
    pfd.events = POLLIN;

    while (vlm_engine_state(e, &err) != VLM_STATE_READY) {
        if (vlm_engine_state(e, &err) == VLM_STATE_FAILED) {
            tap_diag("%s", err.message);
            exit(1);
        }

        poll(&pfd, 1, -1);
        (void) vlm_engine_next(e, &mail);
    }

    return e;
}


/* puts another digest of the first picture into the record */

static void
claim(asked_t *a)
{
    char         *data, *p;
    size_t        len;
    uint8_t       digest[32];
    vlm_error_t   err;

    if (vlm_read_file(a->o.images[0], 1 << 24, &data, &len, &err) != VLM_OK)
    {
        tap_diag("%s", err.message);
        exit(1);
    }

    EVP_Digest(data, len, digest, NULL, EVP_sha256(), NULL);
    free(data);

    p = memmem(a->local.arena.data, a->local.arena.len, digest,
               sizeof(digest));
    memcpy(p, a->claimed, sizeof(digest));
}


void
ask(vlm_engine_t *e, asked_t *a, uint64_t order)
{
    vlm_error_t  err;

    a->final = 0;

    if (vlm_local_request(&a->o, &a->local, &err) != VLM_OK) {
        tap_diag("%s", err.message);
        exit(1);
    }

    if (a->claimed != NULL) {
        claim(a);
    }

    a->req = vlm_req_create();
    a->req->owner = a;
    a->req->order = order;
    a->req->arena = (const uint8_t *) a->local.arena.data;
    a->req->arena_size = a->local.arena.len;
    a->req->record_offset = a->local.record_offset;
    a->req->record_length = a->local.record_length;
    a->req->given = a->local.given;

    vlm_engine_submit(e, a->req);
}


void
ask_collect(vlm_engine_t *e, int n)
{
    int             done;
    asked_t        *a;
    vlm_req_t      *req;
    vlm_mail_t      mail;
    struct pollfd   pfd;

    pfd.fd = vlm_engine_fd(e);
    pfd.events = POLLIN;

    for (done = 0; done < n; /* void */) {
        req = vlm_engine_next(e, &mail);

        if (req == NULL) {
            poll(&pfd, 1, -1);
            continue;
        }

        a = req->owner;
        vlm_mail_move(&a->mail, &mail);
        vlm_mail_free(&mail);
        a->text = a->mail.nsaid != 0 && a->mail.said[0].text.len != 0
                  ? a->mail.said[0].text.data : "";

        if (mail.flags & VLM_MAIL_FINAL) {
            a->result = mail.result;
            a->error = req->error;
            a->final = 1;
            done++;
        }
    }
}


void
ask_forget(asked_t *a)
{
    vlm_local_request_free(&a->local);
    vlm_req_free(a->req);
    vlm_mail_free(&a->mail);
    a->req = NULL;
}
