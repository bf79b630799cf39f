
/* One answer on stdout, by the way that a request of a worker takes. */

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cli/cli.h"


typedef struct {
    vlm_req_t      *req;
    vlm_mail_t      all;                /* with --json: what was said */
    int             result;
    int             json;
} vlm_answer_t;


static int run_check(vlm_options_t *o, vlm_error_t *err);
static int run_wait(vlm_engine_t *e, vlm_error_t *err);
static int run_ready(vlm_engine_t *e, vlm_error_t *err);
static int run_request(vlm_engine_t *e, vlm_options_t *o,
    vlm_local_request_t *local, vlm_error_t *err);
static int run_mail(vlm_answer_t *a, vlm_mail_t *mail, vlm_error_t *err);
static int run_json(const vlm_answer_t *a, const vlm_tokenizer_t *tok,
    int digest);
static int json_said(vlm_buf_t *out, const vlm_said_t *said,
    const vlm_tokenizer_t *tok);


int
vlm_cmd_run(vlm_options_t *o)
{
    int                   rc;
    vlm_error_t           err;
    vlm_engine_t         *e;
    vlm_local_request_t   local;

    if (run_check(o, &err) != VLM_OK || vlm_cli_redis(o, &err) != VLM_OK) {
        return vlm_cli_fail(VLM_EXIT_USAGE, &err);
    }

    if (vlm_local_request(o, &local, &err) != VLM_OK) {
        vlm_local_request_free(&local);
        return vlm_cli_fail(VLM_EXIT_FAILED, &err);
    }

    if (o->server.engine.redis != NULL) {
        signal(SIGPIPE, SIG_IGN);
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

    /* empty is absent, as in a form */

    if (o->messages == NULL && o->nimages == 0
        && (o->prompt == NULL || o->prompt[0] == '\0'))
    {
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

            if (vlm_engine_cache_settled(e)) {
                return VLM_OK;
            }

            break;

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
        rc = run_json(&a, vlm_model_tokenizer(vlm_engine_model(e)),
                      o->server.engine.digest);

        if (rc != VLM_OK) {
            vlm_fail(err, 500, NULL, "no memory for the answer");
        }

    } else if (rc == VLM_OK) {
        printf("\n");
    }

    if (rc == VLM_OK && fflush(stdout) != 0) {
        rc = vlm_fail(err, 500, NULL, "stdout: %s", strerror(errno));
    }

    vlm_mail_free(&a.all);
    vlm_req_free(a.req);

    return rc;
}


static int
run_mail(vlm_answer_t *a, vlm_mail_t *mail, vlm_error_t *err)
{
    int         rc;
    vlm_buf_t  *text;

    rc = VLM_OK;

    if (a->json) {
        if (vlm_mail_move(&a->all, mail) != VLM_OK) {
            rc = vlm_fail(err, 500, NULL, "no memory for the answer");
        }

    } else if (mail->nsaid != 0 && mail->said[0].text.len != 0) {
        text = &mail->said[0].text;

        if (fwrite(text->data, 1, text->len, stdout) != text->len
            || fflush(stdout) != 0)
        {
            rc = vlm_fail(err, 500, NULL, "stdout: %s", strerror(errno));
        }
    }

    if (mail->flags & VLM_MAIL_FINAL) {
        a->result = mail->result;
    }

    vlm_mail_free(mail);

    return rc;
}


static int
run_json(const vlm_answer_t *a, const vlm_tokenizer_t *tok, int digest)
{
    size_t                   i;
    vlm_buf_t                out;
    const vlm_ids_t         *ids;
    const vlm_event_done_t  *d;

    d = &a->req->done;
    ids = &a->req->answer;
    memset(&out, 0, sizeof(out));

    if (a->all.nsaid == 0 || json_said(&out, &a->all.said[0], tok) != VLM_OK)
    {
        vlm_buf_free(&out);
        return VLM_ERROR;
    }

    printf("{%s,\"ids\":[", out.data);
    vlm_buf_free(&out);
    memset(&out, 0, sizeof(out));

    for (i = 0; i < ids->len; i++) {
        printf("%s%d", i != 0 ? "," : "", ids->data[i]);
    }

    printf("],\"usage\":{\"prompt_tokens\":%u,"
           "\"completion_tokens\":%u,\"total_tokens\":%u,"
           "\"image_tokens\":%u,\"cached_tokens\":%u},\"times_us\":{"
           "\"queue\":%u,\"decode\":%u,\"cache\":%u,\"encode\":%u,"
           "\"prefill\":%u,\"first_token\":%u,\"total\":%u}",
           d->prompt_tokens, d->completion_tokens,
           d->prompt_tokens + d->completion_tokens, d->image_tokens,
           d->cached_tokens, d->queue_us, d->decode_us, d->cache_us,
           d->encode_us, d->prefill_us, d->first_token_us, d->total_us);

    vlm_cache_outcomes(d, &out);
    printf(",\"image_cache\":\"%s\"", out.data != NULL ? out.data : "");
    vlm_buf_free(&out);

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


static int
json_token(vlm_buf_t *out, const vlm_tokenizer_t *tok, int32_t id,
    float logprob)
{
    int          special;
    size_t       len;
    const char  *bytes;

    len = 0;
    bytes = vlm_tokenizer_bytes(tok, id, &len, &special);

    if (vlm_buf_printf(out, "{\"id\":%d,\"token\":", id) != VLM_OK
        || vlm_buf_json_string(out, bytes != NULL ? bytes : "", len)
           != VLM_OK)
    {
        return VLM_ERROR;
    }

    return vlm_buf_printf(out, ",\"logprob\":%.6f", (double) logprob);
}


/* tokens with their alternatives, if they were asked for */

static int
json_tokens(vlm_buf_t *out, const vlm_said_t *said,
    const vlm_tokenizer_t *tok)
{
    int                   rc;
    size_t                i;
    int32_t               k;
    const vlm_sampled_t  *t;

    rc = vlm_buf_printf(out, ",\"logprobs\":[");

    for (i = 0; i < said->nlisted && rc == VLM_OK; i++) {
        t = &said->tokens[i].sampled;

        if (vlm_buf_append(out, ",", i != 0) != VLM_OK
            || json_token(out, tok, t->id, t->logprob) != VLM_OK
            || vlm_buf_printf(out, ",\"top\":[") != VLM_OK)
        {
            return VLM_ERROR;
        }

        for (k = 0; k < t->ntop && rc == VLM_OK; k++) {

            if (vlm_buf_append(out, ",", k != 0) != VLM_OK
                || json_token(out, tok, t->top_id[k], t->top_logprob[k])
                   != VLM_OK)
            {
                return VLM_ERROR;
            }

            rc = vlm_buf_append(out, "}", 1);
        }

        if (rc == VLM_OK) {
            rc = vlm_buf_append(out, "]}", 2);
        }
    }

    return rc == VLM_OK ? vlm_buf_append(out, "]", 1) : VLM_ERROR;
}


static int
json_said(vlm_buf_t *out, const vlm_said_t *said,
    const vlm_tokenizer_t *tok)
{
    if (vlm_buf_append(out, "\"text\":", 7) != VLM_OK
        || vlm_buf_json_string(out, said->text.data, said->text.len)
           != VLM_OK
        || (said->nlisted != 0 && json_tokens(out, said, tok) != VLM_OK))
    {
        return VLM_ERROR;
    }

    return vlm_buf_printf(out, ",\"finish_reason\":\"%s\"",
                          said->finish == VLM_FINISH_LENGTH ? "length"
                                                            : "stop");
}
