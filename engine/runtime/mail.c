
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/runtime/internal.h"


static void mail_put(vlm_engine_t *e, vlm_req_t *req, unsigned flags);
static void mail_ring(vlm_engine_t *e);
static int mail_choices(vlm_mail_t *mail, uint32_t n);


vlm_req_t *
vlm_req_create(void)
{
    return calloc(1, sizeof(vlm_req_t));
}


void
vlm_req_free(vlm_req_t *req)
{
    if (req == NULL) {
        return;
    }

    vlm_ids_free(&req->answer);
    vlm_mail_free(&req->mail);
    free(req);
}


int
vlm_req_cancelled(const vlm_req_t *req)
{
    return __atomic_load_n(&req->cancel, __ATOMIC_RELAXED);
}


/* puts a request on the list of those with mail; under the lock */

static void
mail_put(vlm_engine_t *e, vlm_req_t *req, unsigned flags)
{
    req->mail.flags |= flags;

    if (req->mail_listed) {
        return;
    }

    req->mail_listed = 1;
    req->mail_next = NULL;

    if (e->out_tail != NULL) {
        e->out_tail->mail_next = req;

    } else {
        e->out_head = req;
    }

    e->out_tail = req;

    mail_ring(e);
}


static void
mail_ring(vlm_engine_t *e)
{
    uint64_t  one = 1;
    ssize_t   n;

    /* an eventfd that is full is readable all the same */

    n = write(e->out_fd, &one, sizeof(one));
    (void) n;
}


void
vlm_mail_admitted(vlm_engine_t *e, vlm_req_t *req, uint32_t place)
{
    pthread_mutex_lock(&e->out_lock);

    req->mail.place = place;
    mail_put(e, req, VLM_MAIL_ADMITTED);

    pthread_mutex_unlock(&e->out_lock);
}


void
vlm_mail_stage(vlm_engine_t *e, vlm_req_t *req, uint32_t stage,
    uint32_t place)
{
    pthread_mutex_lock(&e->out_lock);

    req->mail.stage = stage;
    req->mail.place = place;
    mail_put(e, req, VLM_MAIL_STAGE);

    pthread_mutex_unlock(&e->out_lock);
}


void
vlm_mail_released(vlm_engine_t *e, vlm_req_t *req)
{
    pthread_mutex_lock(&e->out_lock);
    mail_put(e, req, VLM_MAIL_RELEASED);
    pthread_mutex_unlock(&e->out_lock);
}


int
vlm_mail_said(vlm_engine_t *e, vlm_req_t *req, uint32_t choice,
    vlm_said_t *said)
{
    int  rc;

    pthread_mutex_lock(&e->out_lock);

    rc = mail_choices(&req->mail, choice + 1);

    if (rc == VLM_OK) {
        rc = vlm_said_move(&req->mail.said[choice], said);
    }

    mail_put(e, req, 0);

    pthread_mutex_unlock(&e->out_lock);

    return rc;
}


void
vlm_mail_final(vlm_engine_t *e, vlm_req_t *req, int result)
{
    vlm_embed_leave(e, req->work);
    vlm_work_free(req->work);
    req->work = NULL;

    pthread_mutex_lock(&e->out_lock);

    req->mail.result = result;
    mail_put(e, req, VLM_MAIL_FINAL);

    pthread_mutex_unlock(&e->out_lock);
}


void
vlm_mail_state(vlm_engine_t *e, int state, const vlm_error_t *err)
{
    pthread_mutex_lock(&e->out_lock);

    e->state = state;

    if (err != NULL) {
        e->error = *err;
    }

    mail_ring(e);

    pthread_mutex_unlock(&e->out_lock);
}


vlm_req_t *
vlm_engine_next(vlm_engine_t *e, vlm_mail_t *mail)
{
    uint64_t    n;
    ssize_t     rc;
    vlm_req_t  *req;

    pthread_mutex_lock(&e->out_lock);

    req = e->out_head;

    if (req == NULL) {
        rc = read(e->out_fd, &n, sizeof(n));
        (void) rc;

    } else {
        e->out_head = req->mail_next;

        if (e->out_head == NULL) {
            e->out_tail = NULL;
        }

        req->mail_listed = 0;

        *mail = req->mail;
        memset(&req->mail, 0, sizeof(req->mail));
    }

    pthread_mutex_unlock(&e->out_lock);

    if (req == NULL) {
        vlm_embed_front(e);
    }

    return req;
}


int
vlm_engine_state(vlm_engine_t *e, vlm_error_t *err)
{
    int  state;

    pthread_mutex_lock(&e->out_lock);

    state = e->state;

    if (state == VLM_STATE_FAILED && err != NULL) {
        *err = e->error;
    }

    pthread_mutex_unlock(&e->out_lock);

    return state;
}


void
vlm_engine_gauges(vlm_engine_t *e, vlm_gauges_t *gauges)
{
    pthread_mutex_lock(&e->out_lock);
    *gauges = e->gauges;
    pthread_mutex_unlock(&e->out_lock);
}


uint32_t
vlm_engine_service_ms(vlm_engine_t *e)
{
    uint32_t  ms;

    pthread_mutex_lock(&e->out_lock);
    ms = e->service_ms;
    pthread_mutex_unlock(&e->out_lock);

    return ms;
}


int
vlm_engine_fd(const vlm_engine_t *e)
{
    return e->embed.fd != -1 ? e->embed.fd : e->out_fd;
}


int
vlm_said_token(vlm_said_t *s, const vlm_sampled_t *sampled)
{
    size_t        size;
    vlm_token_t  *p;

    if (s->nlisted == s->size) {
        size = s->size != 0 ? s->size * 2 : 4;

        p = realloc(s->tokens, size * sizeof(vlm_token_t));
        if (p == NULL) {
            return VLM_ERROR;
        }

        s->tokens = p;
        s->size = size;
    }

    p = &s->tokens[s->nlisted++];
    p->length = 0;
    p->sampled = *sampled;

    return VLM_OK;
}


int
vlm_said_move(vlm_said_t *to, vlm_said_t *from)
{
    size_t        i;
    vlm_said_t    old;

    /* most often nothing is left there */

    if (to->text_sent == to->text.len && to->listed_sent == to->nlisted) {
        old = *to;
        *to = *from;
        to->ntokens += old.ntokens;
        to->finish = old.finish != 0 ? old.finish : to->finish;

        memset(from, 0, sizeof(*from));
        vlm_said_free(&old);

        return VLM_OK;
    }

    if (from->text.len != 0
        && vlm_buf_append(&to->text, from->text.data, from->text.len)
           != VLM_OK)
    {
        return VLM_ERROR;
    }

    for (i = 0; i < from->nlisted; i++) {
        if (vlm_said_token(to, &from->tokens[i].sampled) != VLM_OK) {
            return VLM_ERROR;
        }

        to->tokens[to->nlisted - 1].length = from->tokens[i].length;
    }

    to->ntokens += from->ntokens;
    to->finish = from->finish != 0 ? from->finish : to->finish;

    vlm_said_free(from);

    return VLM_OK;
}


void
vlm_said_free(vlm_said_t *s)
{
    vlm_buf_free(&s->text);
    free(s->tokens);
    memset(s, 0, sizeof(*s));
}


/* room for n choices */

static int
mail_choices(vlm_mail_t *mail, uint32_t n)
{
    vlm_said_t  *p;

    if (mail->nsaid >= n) {
        return VLM_OK;
    }

    p = realloc(mail->said, n * sizeof(vlm_said_t));
    if (p == NULL) {
        return VLM_ERROR;
    }

    memset(p + mail->nsaid, 0, (n - mail->nsaid) * sizeof(vlm_said_t));

    mail->said = p;
    mail->nsaid = n;

    return VLM_OK;
}


int
vlm_mail_move(vlm_mail_t *to, vlm_mail_t *from)
{
    uint32_t  i;

    if (mail_choices(to, from->nsaid) != VLM_OK) {
        return VLM_ERROR;
    }

    for (i = 0; i < from->nsaid; i++) {
        if (vlm_said_move(&to->said[i], &from->said[i]) != VLM_OK) {
            return VLM_ERROR;
        }
    }

    return VLM_OK;
}


void
vlm_mail_free(vlm_mail_t *mail)
{
    uint32_t  i;

    for (i = 0; i < mail->nsaid; i++) {
        vlm_said_free(&mail->said[i]);
    }

    free(mail->said);
    mail->said = NULL;
    mail->nsaid = 0;
}
