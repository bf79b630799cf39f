
/* One answer on stdout, by the way that a request of a worker takes. */

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cli/cli.h"


typedef struct {
    vlm_req_t      *req;
    vlm_buf_t       text;
    uint32_t        finish;
    int             result;
    int             json;
} vlm_answer_t;


static int run_check(vlm_options_t *o, vlm_error_t *err);
static int run_wait(vlm_engine_t *e, vlm_error_t *err);
static int run_ready(vlm_engine_t *e, vlm_error_t *err);
static int run_request(vlm_engine_t *e, vlm_options_t *o,
    vlm_local_request_t *local, vlm_error_t *err);
static int run_mail(vlm_answer_t *a, vlm_mail_t *mail, vlm_error_t *err);
static int run_json(const vlm_answer_t *a, int digest);


int
vlm_cmd_run(vlm_options_t *o)
{
    int                   rc;
    vlm_error_t           err;
    vlm_engine_t         *e;
    vlm_local_request_t   local;

    if (run_check(o, &err) != VLM_OK) {
        return vlm_cli_fail(VLM_EXIT_USAGE, &err);
    }

    if (vlm_local_request(o, &local, &err) != VLM_OK) {
        vlm_local_request_free(&local);
        return vlm_cli_fail(VLM_EXIT_FAILED, &err);
    }

    e = vlm_engine_create(&o->server.engine, &err);
    rc = VLM_ERROR;

    if (e != NULL) {
        rc = run_ready(e, &err);

        if (rc == VLM_OK) {
            rc = run_request(e, o, &local, &err);
        }

        vlm_engine_destroy(e);
    }

    vlm_local_request_free(&local);

    return rc == VLM_OK ? 0 : vlm_cli_fail(VLM_EXIT_FAILED, &err);
}


static int
run_check(vlm_options_t *o, vlm_error_t *err)
{
    if (o->server.engine.model == NULL) {
        return vlm_fail(err, 400, NULL, "--model is missing");
    }

    if (o->messages != NULL && (o->prompt != NULL || o->system != NULL)) {
        return vlm_fail(err, 400, NULL, "--messages does not go with "
                        "--prompt or --system");
    }

    if (o->messages == NULL && o->prompt == NULL && o->nimages == 0) {
        return vlm_fail(err, 400, NULL, "--prompt is missing");
    }

    /* it is not to wait for anybody */
    o->server.engine.queue_timeout_ms = 86400000;

    return VLM_OK;
}


static int
run_wait(vlm_engine_t *e, vlm_error_t *err)
{
    struct pollfd  pfd;

    pfd.fd = vlm_engine_fd(e);
    pfd.events = POLLIN;

    if (poll(&pfd, 1, -1) == -1 && errno != EINTR) {
        return vlm_fail(err, 500, NULL, "poll(): %s", strerror(errno));
    }

    return VLM_OK;
}


static int
run_ready(vlm_engine_t *e, vlm_error_t *err)
{
    vlm_mail_t  mail;

    for ( ;; ) {

        switch (vlm_engine_state(e, err)) {

        case VLM_STATE_READY:
            return VLM_OK;

        case VLM_STATE_FAILED:
            return VLM_ERROR;
        }

        if (run_wait(e, err) != VLM_OK) {
            return VLM_ERROR;
        }

        /* no request, no mail: this only clears the descriptor */
        (void) vlm_engine_next(e, &mail);
    }
}


static int
run_request(vlm_engine_t *e, vlm_options_t *o, vlm_local_request_t *local,
    vlm_error_t *err)
{
    int           rc, final;
    vlm_mail_t    mail;
    vlm_answer_t  a;

    memset(&a, 0, sizeof(a));
    a.json = o->json;

    a.req = vlm_req_create();
    if (a.req == NULL) {
        return vlm_fail(err, 500, NULL, "no memory");
    }

    a.req->order = 1;
    a.req->arena = (const uint8_t *) local->arena.data;
    a.req->arena_size = local->arena.len;
    a.req->record_offset = local->record_offset;
    a.req->record_length = local->record_length;
    a.req->given = local->given;

    vlm_engine_submit(e, a.req);

    rc = VLM_OK;
    final = 0;

    while (!final) {
        if (vlm_engine_next(e, &mail) == NULL) {

            /* the engine has the request: there is no way but to wait */
            (void) run_wait(e, err);
            continue;
        }

        final = (mail.flags & VLM_MAIL_FINAL) != 0;

        if (run_mail(&a, &mail, err) != VLM_OK && rc == VLM_OK) {
            rc = VLM_ERROR;
            vlm_engine_cancel(e, a.req);
        }
    }

    if (rc == VLM_OK && a.result != VLM_OK) {
        *err = a.req->error;
        rc = VLM_ERROR;

        if (err->param[0] != '\0') {
            vlm_fail_in(err, "%s: ", err->param);
        }
    }

    if (rc == VLM_OK && a.json) {
        rc = run_json(&a, o->server.engine.digest);

        if (rc != VLM_OK) {
            vlm_fail(err, 500, NULL, "no memory for the answer");
        }

    } else if (rc == VLM_OK) {
        printf("\n");
    }

    if (rc == VLM_OK && fflush(stdout) != 0) {
        rc = vlm_fail(err, 500, NULL, "stdout: %s", strerror(errno));
    }

    vlm_buf_free(&a.text);
    vlm_req_free(a.req);

    return rc;
}


static int
run_mail(vlm_answer_t *a, vlm_mail_t *mail, vlm_error_t *err)
{
    int  rc;

    rc = VLM_OK;

    if (mail->text.len != 0 && a->json) {
        if (vlm_buf_append(&a->text, mail->text.data, mail->text.len)
            != VLM_OK)
        {
            rc = vlm_fail(err, 500, NULL, "no memory for the answer");
        }

    } else if (mail->text.len != 0) {
        if (fwrite(mail->text.data, 1, mail->text.len, stdout)
            != mail->text.len
            || fflush(stdout) != 0)
        {
            rc = vlm_fail(err, 500, NULL, "stdout: %s", strerror(errno));
        }
    }

    if (mail->flags & VLM_MAIL_FINISH) {
        a->finish = mail->finish;
    }

    if (mail->flags & VLM_MAIL_FINAL) {
        a->result = mail->result;
    }

    vlm_buf_free(&mail->text);

    return rc;
}


static int
run_json(const vlm_answer_t *a, int digest)
{
    size_t                   i;
    vlm_buf_t                out;
    const vlm_event_done_t  *d;

    d = &a->req->done;
    memset(&out, 0, sizeof(out));

    if (vlm_buf_append(&out, "{\"text\":", 8) != VLM_OK
        || vlm_buf_json_string(&out, a->text.data, a->text.len) != VLM_OK)
    {
        vlm_buf_free(&out);
        return VLM_ERROR;
    }

    printf("%s,\"ids\":[", out.data);
    vlm_buf_free(&out);

    for (i = 0; i < a->req->answer.len; i++) {
        printf("%s%d", i != 0 ? "," : "", a->req->answer.data[i]);
    }

    printf("],\"finish_reason\":\"%s\",\"usage\":{\"prompt_tokens\":%u,"
           "\"completion_tokens\":%u,\"total_tokens\":%u,"
           "\"image_tokens\":%u,\"cached_tokens\":%u},\"times_us\":{"
           "\"queue\":%u,\"decode\":%u,\"encode\":%u,\"prefill\":%u,"
           "\"first_token\":%u,\"total\":%u}",
           a->finish == VLM_FINISH_LENGTH ? "length" : "stop",
           d->prompt_tokens, d->completion_tokens,
           d->prompt_tokens + d->completion_tokens, d->image_tokens,
           d->cached_tokens, d->queue_us, d->decode_us, d->encode_us,
           d->prefill_us, d->first_token_us, d->total_us);

    if (digest) {
        printf(",\"logits_sha256\":\"");

        for (i = 0; i < sizeof(a->req->digest); i++) {
            printf("%02x", a->req->digest[i]);
        }

        printf("\"");
    }

    printf("}\n");

    return VLM_OK;
}
