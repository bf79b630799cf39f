
/* The image pool: a few threads that prepare requests and decode pictures. */

#include <string.h>

#include "engine/runtime/internal.h"


static void *images_main(void *data);
static void task_prepare(vlm_engine_t *e, vlm_req_t *req);
static void task_picture(vlm_engine_t *e, vlm_req_t *req, int32_t picture);


int
vlm_images_start(vlm_images_t *p, vlm_engine_t *e, int nthreads,
    vlm_error_t *err)
{
    int  rc;

    p->engine = e;

    if (pthread_mutex_init(&p->lock, NULL) != 0
        || pthread_cond_init(&p->cond, NULL) != 0)
    {
        return vlm_fail(err, 500, NULL, "image pool: no resources");
    }

    while (p->nthreads < nthreads) {
        rc = pthread_create(&p->threads[p->nthreads], NULL, images_main, p);

        if (rc != 0) {
            return vlm_fail(err, 500, NULL, "image pool: cannot start a "
                            "thread: %s", strerror(rc));
        }

        p->nthreads++;
    }

    return VLM_OK;
}


void
vlm_images_stop(vlm_images_t *p)
{
    int  i;

    if (p->engine == NULL) {
        return;
    }

    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    pthread_cond_broadcast(&p->cond);
    pthread_mutex_unlock(&p->lock);

    for (i = 0; i < p->nthreads; i++) {
        pthread_join(p->threads[i], NULL);
    }

    pthread_cond_destroy(&p->cond);
    pthread_mutex_destroy(&p->lock);
}


void
vlm_images_put(vlm_images_t *p, vlm_task_t *task)
{
    int  list;

    list = task->picture < 0 ? 0 : 1;
    task->next = NULL;

    pthread_mutex_lock(&p->lock);

    if (p->tail[list] != NULL) {
        p->tail[list]->next = task;

    } else {
        p->head[list] = task;
    }

    p->tail[list] = task;

    pthread_cond_signal(&p->cond);
    pthread_mutex_unlock(&p->lock);
}


/* the next task, NULL: it is time to end; under the lock */

static vlm_task_t *
task_take(vlm_images_t *p)
{
    int          list;
    vlm_task_t  *task;

    for ( ;; ) {

        for (list = 0; list < 2; list++) {
            task = p->head[list];

            if (task == NULL) {
                continue;
            }

            p->head[list] = task->next;

            if (task->next == NULL) {
                p->tail[list] = NULL;
            }

            return task;
        }

        if (p->stop) {
            return NULL;
        }

        pthread_cond_wait(&p->cond, &p->lock);
    }
}


static void *
images_main(void *data)
{
    vlm_task_t    *task;
    vlm_images_t  *p = data;

    pthread_setname_np(pthread_self(), "vlm-image");

    for ( ;; ) {
        pthread_mutex_lock(&p->lock);
        task = task_take(p);
        pthread_mutex_unlock(&p->lock);

        if (task == NULL) {
            return NULL;
        }

        if (task->picture < 0) {
            task_prepare(p->engine, task->req);

        } else {
            task_picture(p->engine, task->req, task->picture);
        }
    }
}


static void
task_prepare(vlm_engine_t *e, vlm_req_t *req)
{
    vlm_error_t  err;

    if (vlm_req_cancelled(req)) {
        vlm_fail(&req->error, 499, "cancelled", "cancelled");
        vlm_mail_final(e, req, VLM_ERROR);
        return;
    }

    if (vlm_intake(e, req, &err) != VLM_OK) {
        req->error = err;
        vlm_mail_final(e, req, VLM_ERROR);
        return;
    }

    vlm_inbox_put(&e->inbox, req);
}


static void
task_picture(vlm_engine_t *e, vlm_req_t *req, int32_t picture)
{
    vlm_error_t  *err;

    if (vlm_req_cancelled(req)) {
        err = &req->work->pics[picture].error;
        vlm_fail(err, 499, "cancelled", "cancelled");

    } else {
        vlm_intake_picture(e, req, picture);
        vlm_embed_decoded(e, req->work, picture);
    }

    /* whoever does the last one hands the request on */

    if (__atomic_sub_fetch(&req->work->undecoded, 1, __ATOMIC_ACQ_REL) == 0)
    {
        vlm_inbox_put(&e->inbox, req);
    }
}
