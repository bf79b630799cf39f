
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "engine/runtime/server_internal.h"


#define TICK_MS         250
#define RETRY_MS        5               /* a full event ring */
#define DEAF_US         1000000
#define HELLO_US        5000000
#define LINGER_US       1000000         /* for workers to read the last */
#define MAX_RETRY_AFTER 60


static int server_open(vlm_server_t *s, vlm_error_t *err);
static int server_timeout(const vlm_server_t *s);
static int server_turn(vlm_server_t *s, struct epoll_event *events, int n,
    vlm_error_t *err);
static void server_event(vlm_server_t *s, const vlm_watch_t *w);
static void server_mail(vlm_server_t *s);
static int server_loaded(vlm_server_t *s, vlm_error_t *err);
static void server_conns(vlm_server_t *s);
static void server_close(vlm_server_t *s);
static void server_signal(vlm_server_t *s);
static void server_set_state(vlm_server_t *s, uint32_t state);
static int server_drained(vlm_server_t *s);


vlm_server_t *
vlm_server_create(const vlm_server_conf_t *conf, vlm_error_t *err)
{
    vlm_server_t  *s;

    s = calloc(1, sizeof(vlm_server_t));
    if (s == NULL) {
        vlm_fail(err, 500, NULL, "no memory");
        return NULL;
    }

    s->conf = *conf;
    s->state = VLM_STATE_LOADING;
    s->epoll = -1;
    s->listen_fd = -1;
    s->signal_fd = -1;
    s->wake_fd = -1;

    if (server_open(s, err) != VLM_OK) {
        vlm_server_destroy(s);
        return NULL;
    }

    vlm_log(VLM_LOG_INFO, "listening on %s", conf->socket);

    return s;
}


static int
server_open(vlm_server_t *s, vlm_error_t *err)
{
    char      why[256];
    sigset_t  set;

    s->listen_fd = vlm_listen(s->conf.socket, s->conf.mode, s->conf.group,
                              why, sizeof(why));
    if (s->listen_fd == -1) {
        return vlm_fail(err, 500, NULL, "%s", why);
    }

    if (stat(s->conf.socket, &s->socket_stat) == -1) {
        return vlm_fail(err, 500, NULL, "%s: %s", s->conf.socket,
                        strerror(errno));
    }

    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->wake_fd = eventfd(0, EFD_NONBLOCK|EFD_CLOEXEC);

    if (s->conf.signals) {
        sigemptyset(&set);
        sigaddset(&set, SIGTERM);
        sigaddset(&set, SIGINT);
        sigaddset(&set, SIGUSR1);
        s->signal_fd = signalfd(-1, &set, SFD_NONBLOCK|SFD_CLOEXEC);
    }

    s->engine = vlm_engine_create(&s->conf.engine, err);
    if (s->engine == NULL) {
        return VLM_ERROR;
    }

    s->on_listen.kind = VLM_WATCH_LISTEN;
    s->on_engine.kind = VLM_WATCH_ENGINE;
    s->on_signal.kind = VLM_WATCH_SIGNAL;
    s->on_wake.kind = VLM_WATCH_WAKE;

    if (s->epoll == -1 || s->wake_fd == -1
        || (s->conf.signals && s->signal_fd == -1)
        || vlm_server_watch(s, s->listen_fd, &s->on_listen) != VLM_OK
        || vlm_server_watch(s, vlm_engine_fd(s->engine), &s->on_engine)
           != VLM_OK
        || vlm_server_watch(s, s->wake_fd, &s->on_wake) != VLM_OK
        || (s->conf.signals
            && vlm_server_watch(s, s->signal_fd, &s->on_signal) != VLM_OK))
    {
        return vlm_fail(err, 500, NULL, "cannot start: %s", strerror(errno));
    }

    return VLM_OK;
}


int
vlm_server_watch(vlm_server_t *s, int fd, vlm_watch_t *w)
{
    struct epoll_event  ev;

    memset(&ev, 0, sizeof(ev));
    ev.events = EPOLLIN;
    ev.data.ptr = w;

    return epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &ev) == 0 ? VLM_OK
                                                            : VLM_ERROR;
}


void
vlm_server_destroy(vlm_server_t *s)
{
    struct stat  st;

    if (s == NULL) {
        return;
    }

    server_close(s);
    vlm_engine_destroy(s->engine);

    if (s->listen_fd != -1) {

        /* unless somebody else has put another one there */

        if (stat(s->conf.socket, &st) == 0
            && st.st_dev == s->socket_stat.st_dev
            && st.st_ino == s->socket_stat.st_ino)
        {
            unlink(s->conf.socket);
        }

        close(s->listen_fd);
    }

    if (s->epoll != -1) {
        close(s->epoll);
    }

    if (s->wake_fd != -1) {
        close(s->wake_fd);
    }

    if (s->signal_fd != -1) {
        close(s->signal_fd);
    }

    free(s);
}


/* requests that nobody waits for come back from the engine soon */

static void
server_close(vlm_server_t *s)
{
    vlm_conn_t     *c, *next;
    struct pollfd   pfd;

    for (c = s->conns; c != NULL; c = next) {
        next = c->next;
        vlm_conn_close(c, VLM_LOG_INFO, "disconnected");
        (void) vlm_conn_reap(c);
    }

    while (s->conns != NULL) {
        memset(&pfd, 0, sizeof(pfd));
        pfd.fd = vlm_engine_fd(s->engine);
        pfd.events = POLLIN;

        (void) poll(&pfd, 1, TICK_MS);
        server_mail(s);

        for (c = s->conns; c != NULL; c = next) {
            next = c->next;
            (void) vlm_conn_reap(c);
        }
    }
}


void
vlm_server_drain(vlm_server_t *s)
{
    uint64_t  one = 1;
    ssize_t   n;

    n = write(s->wake_fd, &one, sizeof(one));
    (void) n;
}


int
vlm_server_run(vlm_server_t *s, vlm_error_t *err)
{
    int                 n;
    struct epoll_event  events[64];

    for ( ;; ) {
        n = epoll_wait(s->epoll, events, 64, server_timeout(s));

        if (n == -1 && errno != EINTR) {
            return vlm_fail(err, 500, NULL, "epoll_wait(): %s",
                            strerror(errno));
        }

        if (server_turn(s, events, n, err) != VLM_OK) {
            return VLM_ERROR;
        }

        if (s->failed && server_drained(s)) {
            (void) vlm_engine_state(s->engine, err);
            return VLM_ERROR;
        }

        if (s->terminate > 1
            || (s->terminate && vlm_engine_state(s->engine, NULL)
                                == VLM_STATE_LOADING))
        {
            return VLM_AGAIN;
        }

        if (s->terminate && server_drained(s)) {
            return VLM_OK;
        }
    }
}


static int
server_timeout(const vlm_server_t *s)
{
    int                timeout;
    const vlm_conn_t  *c;

    timeout = -1;

    for (c = s->conns; c != NULL; c = c->next) {

        if (c->more) {
            return 0;
        }

        if (c->blocked) {
            timeout = RETRY_MS;

        } else if (timeout == -1 && (c->ncalls != 0 || c->slots == NULL)) {
            timeout = TICK_MS;
        }
    }

    if (s->deaf_us != 0 && timeout == -1) {
        timeout = TICK_MS;
    }

    if ((s->terminate || s->failed) && timeout == -1) {
        timeout = RETRY_MS;
    }

    return timeout;
}


static int
server_turn(vlm_server_t *s, struct epoll_event *events, int n,
    vlm_error_t *err)
{
    int  i;

    for (i = 0; i < n; i++) {
        server_event(s, events[i].data.ptr);
    }

    server_mail(s);

    if (server_loaded(s, err) != VLM_OK) {
        return VLM_ERROR;
    }

    server_conns(s);

    return VLM_OK;
}


static void
server_event(vlm_server_t *s, const vlm_watch_t *w)
{
    uint64_t  count;
    ssize_t   n;

    switch (w->kind) {

    case VLM_WATCH_LISTEN:
        vlm_conn_accept(s);
        break;

    case VLM_WATCH_ENGINE:
        /* server_mail() follows in any case */
        break;

    case VLM_WATCH_SIGNAL:
        server_signal(s);
        break;

    case VLM_WATCH_WAKE:
        n = read(s->wake_fd, &count, sizeof(count));

        if (n == sizeof(count) && s->terminate == 0) {
            s->terminate = 1;
            server_set_state(s, VLM_STATE_DRAINING);
        }

        break;

    case VLM_WATCH_PEER:
        vlm_conn_readable(w->conn);
        break;

    case VLM_WATCH_SUBMIT:
        vlm_conn_submissions(w->conn);
        break;
    }
}


static void
server_signal(vlm_server_t *s)
{
    struct signalfd_siginfo  info;

    while (read(s->signal_fd, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGUSR1) {
            vlm_log(VLM_LOG_INFO, "requests: %u running, %u queued",
                    s->nrunning, s->nqueued);

            if (s->loaded) {
                vlm_engine_cache_log(s->engine);
            }

            continue;
        }

        s->terminate++;

        if (s->terminate == 1) {
            vlm_log(VLM_LOG_INFO, "signal %u: %u requests will be finished",
                    info.ssi_signo, s->nqueued + s->nrunning);
            server_set_state(s, VLM_STATE_DRAINING);

        } else {
            vlm_log(VLM_LOG_INFO, "signal %u again: ending at once",
                    info.ssi_signo);
        }
    }
}


static void
server_set_state(vlm_server_t *s, uint32_t state)
{
    vlm_conn_t   *c;
    vlm_error_t   err;

    if (s->state == VLM_STATE_DRAINING) {
        return;
    }

    if (vlm_notify(state == VLM_STATE_READY ? "READY=1" : "STOPPING=1", &err)
        != VLM_OK)
    {
        vlm_log(VLM_LOG_WARN, "%s", err.message);
    }

    s->state = state;
    s->drained_us = vlm_now_us();

    for (c = s->conns; c != NULL; c = c->next) {
        vlm_conn_set_state(c);
    }
}


static int
server_loaded(vlm_server_t *s, vlm_error_t *err)
{
    int  state;

    state = vlm_engine_state(s->engine, err);

    if (state == VLM_STATE_FAILED && !s->loaded) {
        return VLM_ERROR;
    }

    /* later it fails all requests: their errors are told before the end */

    if (state == VLM_STATE_FAILED && !s->failed) {
        s->failed = 1;
        server_set_state(s, VLM_STATE_DRAINING);
    }

    if (state == VLM_STATE_READY && s->state == VLM_STATE_LOADING) {
        vlm_log(VLM_LOG_INFO, "ready");
        s->loaded = 1;
        server_set_state(s, VLM_STATE_READY);
    }

    return VLM_OK;
}


static void
server_mail(vlm_server_t *s)
{
    vlm_req_t   *req;
    vlm_mail_t   mail;

    for ( ;; ) {
        req = vlm_engine_next(s->engine, &mail);

        if (req == NULL) {
            return;
        }

        vlm_call_mail(req->owner, &mail);
    }
}


/* what is due on every connection; doorbells are rung once a turn */

static void
server_conns(vlm_server_t *s)
{
    uint64_t      now;
    vlm_conn_t   *c, *next;
    vlm_call_t   *call, *next_call;
    vlm_gauges_t  gauges;

    now = vlm_now_us();

    if (s->deaf_us != 0 && now - s->deaf_us > DEAF_US
        && vlm_server_watch(s, s->listen_fd, &s->on_listen) == VLM_OK)
    {
        s->deaf_us = 0;
    }

    vlm_engine_gauges(s->engine, &gauges);
    gauges.queued = s->nqueued;
    gauges.running = s->nrunning;
    gauges.retry_after = vlm_server_retry_after(s);
    gauges.heartbeat = ++s->heartbeat;

    for (c = s->conns; c != NULL; c = next) {
        next = c->next;

        if (c->more) {
            vlm_conn_submissions(c);
        }

        if (c->slots == NULL && !c->dead && now - c->accepted_us > HELLO_US)
        {
            vlm_conn_close(c, VLM_LOG_ERROR, "sent no hello");
        }

        c->blocked = 0;

        for (call = c->calls; call != NULL && !c->dead; call = next_call) {
            next_call = call->next;
            vlm_call_tick(call, now);
        }

        if (c->slots != NULL && !c->dead) {
            vlm_conn_gauges(c, &gauges);
            vlm_peer_ring(&c->peer);
        }

        (void) vlm_conn_reap(c);
    }
}


uint32_t
vlm_server_retry_after(vlm_server_t *s)
{
    uint64_t  ms;

    ms = (uint64_t) vlm_engine_service_ms(s->engine) * (s->nqueued + 1)
         / (uint64_t) s->conf.engine.max_num_seqs;

    ms = (ms + 999) / 1000;

    return ms < 1 ? 1 : ms > MAX_RETRY_AFTER ? MAX_RETRY_AFTER
                                             : (uint32_t) ms;
}


/* nothing is left to do, and the workers have read what was said */

static int
server_drained(vlm_server_t *s)
{
    vlm_conn_t  *c;

    if (s->nqueued + s->nrunning != 0) {
        return 0;
    }

    if (vlm_now_us() - s->drained_us > LINGER_US) {
        return 1;
    }

    for (c = s->conns; c != NULL; c = c->next) {
        if (c->slots != NULL && !c->dead
            && vlm_peer_room(&c->peer) < c->peer.hello.event_ring_size)
        {
            return 0;
        }
    }

    return 1;
}
