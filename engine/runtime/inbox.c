
#include <string.h>
#include <time.h>

#include "engine/runtime/internal.h"


int
vlm_inbox_init(vlm_inbox_t *in)
{
    pthread_condattr_t  attr;

    memset(in, 0, sizeof(*in));

    if (pthread_mutex_init(&in->lock, NULL) != 0
        || pthread_condattr_init(&attr) != 0)
    {
        return VLM_ERROR;
    }

    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);

    return pthread_cond_init(&in->cond, &attr) == 0 ? VLM_OK : VLM_ERROR;
}


void
vlm_inbox_free(vlm_inbox_t *in)
{
    pthread_mutex_destroy(&in->lock);
    pthread_cond_destroy(&in->cond);
}


void
vlm_inbox_put(vlm_inbox_t *in, vlm_req_t *req)
{
    req->next = NULL;

    pthread_mutex_lock(&in->lock);

    if (in->tail != NULL) {
        in->tail->next = req;

    } else {
        in->head = req;
    }

    in->tail = req;

    pthread_cond_signal(&in->cond);
    pthread_mutex_unlock(&in->lock);
}


void
vlm_inbox_wake(vlm_inbox_t *in)
{
    pthread_mutex_lock(&in->lock);
    in->wake = 1;
    pthread_cond_signal(&in->cond);
    pthread_mutex_unlock(&in->lock);
}


void
vlm_inbox_stop(vlm_inbox_t *in)
{
    pthread_mutex_lock(&in->lock);
    in->stop = 1;
    pthread_cond_signal(&in->cond);
    pthread_mutex_unlock(&in->lock);
}


static void
deadline_after(struct timespec *ts, int us)
{
    clock_gettime(CLOCK_MONOTONIC, ts);

    ts->tv_sec += us / 1000000;
    ts->tv_nsec += (long) (us % 1000000) * 1000;

    if (ts->tv_nsec >= 1000000000) {
        ts->tv_nsec -= 1000000000;
        ts->tv_sec++;
    }
}


vlm_req_t *
vlm_inbox_take(vlm_inbox_t *in, int wait_us, int *stop)
{
    int               rc;
    vlm_req_t        *list;
    struct timespec   ts;

    if (wait_us > 0) {
        deadline_after(&ts, wait_us);
    }

    pthread_mutex_lock(&in->lock);

    rc = 0;

    while (wait_us != 0 && rc == 0 && in->head == NULL && !in->wake
           && !in->stop)
    {
        if (wait_us < 0) {
            rc = pthread_cond_wait(&in->cond, &in->lock);

        } else {
            rc = pthread_cond_timedwait(&in->cond, &in->lock, &ts);
        }
    }

    list = in->head;
    in->head = NULL;
    in->tail = NULL;
    in->wake = 0;
    *stop = in->stop;

    pthread_mutex_unlock(&in->lock);

    return list;
}
