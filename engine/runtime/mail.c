
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/runtime/internal.h"


static void mail_put(vlm_engine_t *e, vlm_req_t *req, unsigned flags);
static void mail_ring(vlm_engine_t *e);


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
    vlm_buf_free(&req->mail.text);
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
vlm_mail_text(vlm_engine_t *e, vlm_req_t *req, const char *text, size_t len,
    uint32_t ntokens)
{
    int  rc;

    pthread_mutex_lock(&e->out_lock);

    rc = vlm_buf_append(&req->mail.text, text, len);
    req->mail.ntokens += ntokens;
    mail_put(e, req, 0);

    pthread_mutex_unlock(&e->out_lock);

    return rc;
}


void
vlm_mail_finish(vlm_engine_t *e, vlm_req_t *req, uint32_t reason)
{
    pthread_mutex_lock(&e->out_lock);

    req->mail.finish = reason;
    mail_put(e, req, VLM_MAIL_FINISH);

    pthread_mutex_unlock(&e->out_lock);
}


void
vlm_mail_final(vlm_engine_t *e, vlm_req_t *req, int result)
{
    vlm_work_free(req->work, e->ops, e->dev);
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
    return e->out_fd;
}
