
/* The client's life: its queues, its timers, when it connects again. */

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "engine/cache/redis_private.h"


#define BACKOFF_LAST_US     30000000
#define STALL_US            5000000     /* for any reply */
#define ROW                 5           /* late reads that open the breaker */


static int redis_open(vlm_redis_t *r);
static void redis_ring(vlm_redis_t *r);
static void redis_events(vlm_redis_t *r);
static void redis_begin(vlm_redis_t *r);
static void redis_resolved(vlm_redis_t *r);
static void redis_failed(vlm_redis_t *r);
static void redis_late(vlm_redis_t *r, uint64_t now);
static void redis_send(vlm_redis_t *r);
static void redis_timer(vlm_redis_t *r);


vlm_redis_t *
vlm_redis_create(const vlm_redis_conf_t *conf, vlm_error_t *err)
{
    vlm_redis_t  *r;

    r = calloc(1, sizeof(vlm_redis_t));
    if (r == NULL) {
        vlm_fail(err, 500, NULL, "no memory for the Redis client");
        return NULL;
    }

    r->conf = *conf;
    r->backoff_us = VLM_REDIS_BACKOFF_US;
    r->epoll = epoll_create1(EPOLL_CLOEXEC);
    r->event_fd = eventfd(0, EFD_NONBLOCK|EFD_CLOEXEC);
    r->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK|TFD_CLOEXEC);

    if (redis_open(r) != VLM_OK
        || pthread_mutex_init(&r->lock, NULL) != 0)
    {
        vlm_fail(err, 500, NULL, "Redis client: %s", strerror(errno));
        close(r->epoll);
        close(r->event_fd);
        close(r->timer_fd);
        free(r);
        return NULL;
    }

    redis_ring(r);

    return r;
}


static int
redis_open(vlm_redis_t *r)
{
    struct epoll_event  ev;

    if (r->epoll == -1 || r->event_fd == -1 || r->timer_fd == -1
        || getrandom(&r->seed, sizeof(r->seed), 0) != sizeof(r->seed))
    {
        return VLM_ERROR;
    }

    memset(&ev, 0, sizeof(ev));
    ev.events = EPOLLIN;
    ev.data.fd = r->event_fd;

    if (epoll_ctl(r->epoll, EPOLL_CTL_ADD, r->event_fd, &ev) == -1) {
        return VLM_ERROR;
    }

    ev.data.fd = r->timer_fd;

    return epoll_ctl(r->epoll, EPOLL_CTL_ADD, r->timer_fd, &ev) == 0
           ? VLM_OK : VLM_ERROR;
}


static void
store_free(vlm_redis_store_t *store)
{
    free(store->value);
    free(store);
}


/* is there anything to store, and somewhere to store it? */

static int
redis_storing(vlm_redis_t *r)
{
    int  yes;

    pthread_mutex_lock(&r->lock);
    yes = r->ready && (r->stores != NULL || r->nsets != 0);
    pthread_mutex_unlock(&r->lock);

    return yes;
}


void
vlm_redis_destroy(vlm_redis_t *r, uint64_t flush_us)
{
    uint64_t            now, end;
    struct pollfd       pfd;
    vlm_redis_get_t    *get, *next_get;
    vlm_redis_store_t  *store, *next;

    if (r == NULL) {
        return;
    }

    end = vlm_now_us() + flush_us;
    pfd.fd = r->epoll;
    pfd.events = POLLIN;

    for ( ;; ) {
        vlm_redis_turn(r);

        now = vlm_now_us();

        if (now >= end || !redis_storing(r)) {
            break;
        }

        (void) poll(&pfd, 1, (int) ((end - now) / 1000) + 1);
    }

    vlm_redis_close(r);
    vlm_resolve_free(r->resolve);

    for (get = r->gets; get != NULL; get = next_get) {
        next_get = get->next;
        vlm_redis_answer(r, get, NULL, 0);
    }

    for (store = r->stores; store != NULL; store = next) {
        next = store->next;
        store_free(store);
    }

    close(r->epoll);
    close(r->event_fd);
    close(r->timer_fd);
    pthread_mutex_destroy(&r->lock);
    free(r);
}


/* ---- from any thread ---- */

int
vlm_redis_fd(const vlm_redis_t *r)
{
    return r->epoll;
}


static void
redis_ring(vlm_redis_t *r)
{
    ssize_t   n;
    uint64_t  one = 1;

    n = write(r->event_fd, &one, sizeof(one));
    (void) n;
}


void
vlm_redis_get(vlm_redis_t *r, vlm_redis_get_t *list)
{
    int               ready;
    uint64_t          now;
    vlm_redis_get_t  *get, *next, *tail;

    now = vlm_now_us();
    tail = NULL;

    for (get = list; get != NULL; get = get->next) {
        get->deadline_us = now + get->timeout_us;
        tail = get;
    }

    if (tail == NULL) {
        return;
    }

    pthread_mutex_lock(&r->lock);

    ready = r->ready;

    if (ready) {
        if (r->gets_tail != NULL) {
            r->gets_tail->next = list;

        } else {
            r->gets = list;
        }

        r->gets_tail = tail;

    } else {
        for (get = list; get != NULL; get = get->next) {
            r->stats.skipped++;
        }
    }

    pthread_mutex_unlock(&r->lock);

    if (ready) {
        redis_ring(r);
        return;
    }

    for (get = list; get != NULL; get = next) {
        next = get->next;
        vlm_redis_answer(r, get, NULL, 0);
    }
}


int
vlm_redis_takes(vlm_redis_t *r, size_t len)
{
    int  takes;

    pthread_mutex_lock(&r->lock);

    takes = r->ready && len <= r->conf.max_value
            && len <= r->conf.max_queue - r->stats.queued;

    if (len > r->conf.max_value) {
        r->stats.too_large++;

    } else if (!takes) {
        r->stats.dropped++;
    }

    pthread_mutex_unlock(&r->lock);

    return takes;
}


static int
redis_put(vlm_redis_t *r, const char *name, void *value, size_t len)
{
    int                 ready;
    vlm_redis_store_t  *store;

    store = calloc(1, sizeof(vlm_redis_store_t));
    if (store == NULL) {
        free(value);
        vlm_redis_count(r, dropped, 1);
        return VLM_AGAIN;
    }

    snprintf(store->name, sizeof(store->name), "%s", name);
    store->value = value;
    store->len = len;

    pthread_mutex_lock(&r->lock);

    ready = r->ready && len <= r->conf.max_queue - r->stats.queued;

    if (ready) {
        if (r->stores_tail != NULL) {
            r->stores_tail->next = store;

        } else {
            r->stores = store;
        }

        r->stores_tail = store;
        r->stats.queued += len;

    } else {
        r->stats.dropped++;
    }

    pthread_mutex_unlock(&r->lock);

    if (!ready) {
        store_free(store);
        return VLM_AGAIN;
    }

    redis_ring(r);

    return VLM_OK;
}


int
vlm_redis_set(vlm_redis_t *r, const char *name, void *value, size_t len)
{
    return redis_put(r, name, value, len);
}


void
vlm_redis_del(vlm_redis_t *r, const char *name)
{
    (void) redis_put(r, name, NULL, 0);
}


void
vlm_redis_stats(vlm_redis_t *r, vlm_redis_stats_t *stats)
{
    pthread_mutex_lock(&r->lock);
    *stats = r->stats;
    stats->connected = r->ready;
    pthread_mutex_unlock(&r->lock);
}


/* ---- the front ---- */

void
vlm_redis_turn(vlm_redis_t *r)
{
    uint64_t  now;

    redis_events(r);

    now = vlm_now_us();

    switch (r->state) {

    case VLM_REDIS_IDLE:
        if (now >= r->retry_us) {
            redis_begin(r);
        }

        break;

    case VLM_REDIS_RESOLVING:
        redis_resolved(r);
        /* fall through */

    case VLM_REDIS_CONNECTING:
        if (now >= r->deadline_us) {
            vlm_redis_break(r, "no answer for %llu ms", (unsigned long long)
                            (r->conf.connect_us / 1000));
        }

        break;

    case VLM_REDIS_READY:
        redis_late(r, now);
        break;
    }

    if (r->broken[0] != '\0') {
        redis_failed(r);
    }

    redis_send(r);

    if (r->broken[0] != '\0') {
        redis_failed(r);
    }

    redis_timer(r);
}


static void
redis_events(vlm_redis_t *r)
{
    int                 i, n;
    ssize_t             rc;
    uint64_t            count;
    struct epoll_event  events[4];

    n = epoll_wait(r->epoll, events, 4, 0);

    for (i = 0; i < n; i++) {

        if (events[i].data.fd == r->event_fd
            || events[i].data.fd == r->timer_fd)
        {
            rc = read(events[i].data.fd, &count, sizeof(count));
            (void) rc;

        } else if (r->ac != NULL) {
            vlm_redis_socket(r, events[i].events);
        }
    }
}


/* a name must be resolved first, an address or a path need not */

static void
redis_begin(vlm_redis_t *r)
{
    uint8_t      bytes[16];
    const char  *host;

    host = r->conf.url.host;

    if (r->conf.url.port != 0 && r->address < r->addresses.n) {
        vlm_redis_connect(r);
        return;
    }

    r->address = 0;
    r->addresses.n = 0;

    if (r->conf.url.port == 0 || inet_pton(AF_INET, host, bytes) == 1
        || inet_pton(AF_INET6, host, bytes) == 1)
    {
        r->addresses.n = 1;
        snprintf(r->addresses.text[0], sizeof(r->addresses.text[0]), "%.63s",
                 host);
        vlm_redis_connect(r);
        return;
    }

    r->state = VLM_REDIS_RESOLVING;
    r->deadline_us = vlm_now_us() + r->conf.connect_us;
    r->resolve = vlm_resolve_start(host, r->event_fd);

    if (r->resolve == NULL) {
        vlm_redis_break(r, "no resources to resolve the host's name");
    }
}


static void
redis_resolved(vlm_redis_t *r)
{
    if (r->resolve == NULL
        || vlm_resolve_done(r->resolve, &r->addresses) != VLM_OK)
    {
        return;
    }

    vlm_resolve_free(r->resolve);
    r->resolve = NULL;

    if (r->addresses.n == 0) {
        vlm_redis_break(r, "%s", r->addresses.why);
        return;
    }

    vlm_redis_connect(r);
}


void
vlm_redis_ready(vlm_redis_t *r)
{
    r->state = VLM_REDIS_READY;
    r->row = 0;
    r->said[0] = '\0';

    pthread_mutex_lock(&r->lock);
    r->ready = 1;
    r->stats.connections++;
    pthread_mutex_unlock(&r->lock);

    vlm_log(VLM_LOG_INFO, "Redis %s: connected", r->conf.url.host);
}


void
vlm_redis_break(vlm_redis_t *r, const char *fmt, ...)
{
    va_list  args;

    if (r->broken[0] != '\0') {
        /* the first reason */
        return;
    }

    va_start(args, fmt);
    vsnprintf(r->broken, sizeof(r->broken), fmt, args);
    va_end(args);
}


/* look-ups miss from here on; the next try is after a random part of a time */

static void
redis_failed(vlm_redis_t *r)
{
    char      why[256];
    uint64_t  wait;

    memcpy(why, r->broken, sizeof(why));

    pthread_mutex_lock(&r->lock);
    r->ready = 0;
    r->stats.failures++;
    pthread_mutex_unlock(&r->lock);

    if (r->state == VLM_REDIS_CONNECTING) {
        r->address++;
    }

    vlm_redis_close(r);
    vlm_resolve_free(r->resolve);
    r->resolve = NULL;

    r->seed = r->seed * 6364136223846793005ull + 1442695040888963407ull;
    wait = r->backoff_us / 2 + (r->seed >> 33) % (r->backoff_us / 2 + 1);

    r->retry_us = vlm_now_us() + wait;
    r->state = VLM_REDIS_IDLE;
    r->broken[0] = '\0';

    r->backoff_us *= 2;

    if (r->backoff_us > BACKOFF_LAST_US) {
        r->backoff_us = BACKOFF_LAST_US;
    }

    if (strcmp(why, r->said) != 0) {
        memcpy(r->said, why, sizeof(why));
        vlm_log(VLM_LOG_WARN, "Redis %s: %s; trying again, first in %llu ms",
                r->conf.url.host, why, (unsigned long long) (wait / 1000));
    }
}


/* look-ups whose time is over; replies may still come, and are let go */

static void
redis_late(vlm_redis_t *r, uint64_t now)
{
    vlm_redis_get_t   *get;
    vlm_redis_sent_t  *sent;

    for (sent = r->head; sent != NULL; sent = sent->next) {

        get = sent->get;

        if (get == NULL || get->deadline_us > now) {
            continue;
        }

        sent->get = NULL;
        r->row++;

        vlm_redis_count(r, late, 1);
        vlm_redis_answer(r, get, NULL, 0);
    }

    if (r->row >= ROW) {
        vlm_redis_count(r, opened, 1);
        vlm_redis_break(r, "%d reads in a row took too long", ROW);

    } else if (r->head != NULL && now - r->head->sent_us > STALL_US) {
        vlm_redis_break(r, "no reply for %d ms", STALL_US / 1000);
    }
}


static vlm_redis_store_t *
redis_next_store(vlm_redis_t *r)
{
    vlm_redis_store_t  *store;

    pthread_mutex_lock(&r->lock);

    store = r->stores;

    if (store != NULL) {
        r->stores = store->next;

        if (r->stores == NULL) {
            r->stores_tail = NULL;
        }

        r->stats.queued -= store->len;
    }

    pthread_mutex_unlock(&r->lock);

    return store;
}


/* all look-ups; values one by one, and not before look-ups */

static void
redis_send(vlm_redis_t *r)
{
    vlm_redis_get_t    *get, *next;
    vlm_redis_store_t  *store;

    pthread_mutex_lock(&r->lock);
    get = r->gets;
    r->gets = NULL;
    r->gets_tail = NULL;
    pthread_mutex_unlock(&r->lock);

    for ( /* void */ ; get != NULL; get = next) {
        next = get->next;

        if (r->state == VLM_REDIS_READY && r->broken[0] == '\0') {
            vlm_redis_send_get(r, get);

        } else {
            vlm_redis_count(r, skipped, 1);
            vlm_redis_answer(r, get, NULL, 0);
        }
    }

    while (r->state == VLM_REDIS_READY && r->broken[0] == '\0'
           && r->nsets == 0 && r->ngets == 0)
    {
        store = redis_next_store(r);

        if (store == NULL) {
            break;
        }

        vlm_redis_send_store(r, store);
        store_free(store);
    }
}


static void
redis_timer(vlm_redis_t *r)
{
    uint64_t                 at;
    vlm_redis_sent_t        *sent;
    struct itimerspec        its;

    at = UINT64_MAX;

    switch (r->state) {

    case VLM_REDIS_IDLE:
        at = r->retry_us;
        break;

    case VLM_REDIS_RESOLVING:
    case VLM_REDIS_CONNECTING:
        at = r->deadline_us;
        break;

    case VLM_REDIS_READY:
        for (sent = r->head; sent != NULL; sent = sent->next) {
            if (sent->get != NULL && sent->get->deadline_us < at) {
                at = sent->get->deadline_us;
            }
        }

        if (r->head != NULL && r->head->sent_us + STALL_US < at) {
            at = r->head->sent_us + STALL_US + 1000;
        }

        break;
    }

    /* an absolute time of 0 would disarm it */

    memset(&its, 0, sizeof(its));

    if (at != UINT64_MAX) {
        its.it_value.tv_sec = (time_t) (at / 1000000);
        its.it_value.tv_nsec = (long) (at % 1000000) * 1000 + 1;
    }

    (void) timerfd_settime(r->timer_fd, TFD_TIMER_ABSTIME, &its, NULL);
}
