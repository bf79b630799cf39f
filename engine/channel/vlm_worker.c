
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdarg.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/un.h>

#include "vlm_logprob.h"
#include "vlm_memfd.h"
#include "vlm_record.h"
#include "vlm_ring.h"
#include "vlm_worker.h"


/* vlm_worker_t.state; 0 is a struct that was never opened */

#define WORKER_CLOSED       0
#define WORKER_CONNECTED    1               /* the hello is to be sent */
#define WORKER_GREETED      2               /* the welcome is awaited */
#define WORKER_READY        3

/* how often a reader tries to get the engine's info in one piece */

#define WORKER_INFO_TRIES   16


static int worker_fail(vlm_worker_t *w, int rc, int err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static int worker_map(vlm_worker_t *w);
static int worker_connect(vlm_worker_t *w, const char *path);
static int worker_hello(vlm_worker_t *w);
static int worker_welcome(vlm_worker_t *w);
static int worker_put(vlm_worker_t *w, const vlm_submission_t *sub);
static int worker_parse(vlm_worker_t *w, const vlm_event_header_t *h,
    vlm_event_t *event);
static int worker_check_event(vlm_worker_t *w, const vlm_event_t *event);


static int
worker_fail(vlm_worker_t *w, int rc, int err, const char *fmt, ...)
{
    int      n;
    va_list  args;

    va_start(args, fmt);
    n = vsnprintf(w->why, sizeof(w->why), fmt, args);
    va_end(args);

    /* EPROTO is ours, not a system call's, and the text says it all */

    if (err != 0 && err != EPROTO && n > 0 && (size_t) n < sizeof(w->why)) {
        errno = err;
        snprintf(w->why + n, sizeof(w->why) - n, ": %m");
    }

    w->err = err;

    return rc;
}


int
vlm_worker_open(vlm_worker_t *w, const vlm_worker_conf_t *conf,
    const vlm_arena_t *arena, const char *path)
{
    int  rc;

    memset(w, 0, sizeof(vlm_worker_t));

    w->fd = -1;
    w->event_fd = -1;
    w->submit_fd = -1;
    w->ring_fd = -1;
    w->conf = *conf;
    w->arena = arena;
    w->state = WORKER_CONNECTED;

    /* first what costs little and often fails */

    rc = worker_connect(w, path);

    if (rc == VLM_CHANNEL_OK) {
        rc = worker_map(w);
    }

    if (rc == VLM_CHANNEL_OK) {
        rc = worker_hello(w);
    }

    if (rc != VLM_CHANNEL_OK && rc != VLM_CHANNEL_AGAIN) {
        vlm_worker_close(w);
    }

    return rc;
}


static int
worker_map(vlm_worker_t *w)
{
    int          rc;
    void        *p;
    uint64_t     events;
    const char  *what;

    w->ring_size = vlm_ring_layout(w->conf.nsubmissions,
                                   w->conf.event_ring_size, w->arena->page,
                                   &events);

    if (w->ring_size == 0 || w->conf.max_requests == 0
        || w->conf.max_requests > VLM_MAX_REQUESTS
        || w->conf.generation == 0)
    {
        return worker_fail(w, VLM_CHANNEL_ERROR, EINVAL,
                           "ring of %u submissions and %u bytes of events "
                           "for %u requests, generation %u",
                           w->conf.nsubmissions, w->conf.event_ring_size,
                           w->conf.max_requests, w->conf.generation);
    }

    w->ring_fd = vlm_memfd_create("vlm-ring", w->ring_size, &what);

    if (w->ring_fd == -1) {
        return worker_fail(w, VLM_CHANNEL_ERROR, errno, "%s of the ring",
                           what);
    }

    /* all pages now, so that writing to the ring cannot fail later */

    do {
        rc = fallocate(w->ring_fd, 0, 0, (off_t) w->ring_size);
    } while (rc == -1 && errno == EINTR);

    if (rc == -1) {
        return worker_fail(w, VLM_CHANNEL_ERROR, errno,
                           "fallocate() of the ring");
    }

    p = mmap(NULL, w->ring_size, PROT_READ|PROT_WRITE, MAP_SHARED,
             w->ring_fd, 0);

    if (p == MAP_FAILED) {
        return worker_fail(w, VLM_CHANNEL_ERROR, errno, "mmap() of the ring");
    }

    w->header = p;
    w->submissions = (vlm_submission_t *) ((uint8_t *) p + w->arena->page);
    w->events = (uint8_t *) p + events;

    if (madvise(p, w->ring_size, MADV_DONTDUMP) == -1) {
        return worker_fail(w, VLM_CHANNEL_ERROR, errno,
                           "madvise() of the ring");
    }

    w->submit_fd = eventfd(0, EFD_CLOEXEC|EFD_NONBLOCK);
    w->event_fd = eventfd(0, EFD_CLOEXEC|EFD_NONBLOCK);

    if (w->submit_fd == -1 || w->event_fd == -1) {
        return worker_fail(w, VLM_CHANNEL_ERROR, errno, "eventfd()");
    }

    return VLM_CHANNEL_OK;
}


static int
worker_connect(vlm_worker_t *w, const char *path)
{
    size_t              len;
    struct sockaddr_un  addr;

    len = strlen(path);

    if (len == 0 || len >= sizeof(addr.sun_path)) {
        return worker_fail(w, VLM_CHANNEL_ERROR, ENAMETOOLONG,
                           "socket path of %zu bytes, from 1 to %zu are "
                           "possible", len, sizeof(addr.sun_path) - 1);
    }

    memset(&addr, 0, sizeof(struct sockaddr_un));
    addr.sun_family = AF_UNIX;
    memcpy(addr.sun_path, path, len);

    w->fd = socket(AF_UNIX, SOCK_STREAM|SOCK_NONBLOCK|SOCK_CLOEXEC, 0);

    if (w->fd == -1) {
        return worker_fail(w, VLM_CHANNEL_ERROR, errno, "socket()");
    }

    /* a unix socket connects at once or not at all */

    if (connect(w->fd, (struct sockaddr *) &addr, sizeof(addr)) == -1) {
        return worker_fail(w, VLM_CHANNEL_ERROR, errno, "connect()");
    }

    return VLM_CHANNEL_OK;
}


int
vlm_worker_handshake(vlm_worker_t *w)
{
    int  rc;

    switch (w->state) {

    case WORKER_CONNECTED:
        rc = worker_hello(w);

        if (rc != VLM_CHANNEL_OK) {
            return rc;
        }

        return worker_welcome(w);

    case WORKER_GREETED:
        return worker_welcome(w);

    case WORKER_READY:
        return VLM_CHANNEL_OK;
    }

    return worker_fail(w, VLM_CHANNEL_CLOSED, 0, "the channel is closed");
}


static int
worker_hello(vlm_worker_t *w)
{
    int              fds[VLM_NFDS];
    ssize_t          n;
    vlm_hello_t      hello;
    struct iovec     iov;
    struct msghdr    msg;
    struct cmsghdr  *cmsg;

    union {
        char            data[CMSG_SPACE(sizeof(fds))];
        struct cmsghdr  align;
    } control;

    memset(&hello, 0, sizeof(vlm_hello_t));

    hello.magic = VLM_MAGIC;
    hello.abi = VLM_ABI;
    hello.hello_size = sizeof(vlm_hello_t);
    hello.welcome_size = sizeof(vlm_welcome_t);
    hello.header_size = sizeof(vlm_ring_header_t);
    hello.submission_size = sizeof(vlm_submission_t);
    hello.event_size = sizeof(vlm_event_header_t);
    hello.page_size = (uint32_t) w->arena->page;
    hello.nsubmissions = w->conf.nsubmissions;
    hello.event_ring_size = w->conf.event_ring_size;
    hello.ring_size = w->ring_size;
    hello.arena_size = w->arena->size;
    hello.max_requests = w->conf.max_requests;
    hello.generation = w->conf.generation;
    hello.pid = (uint32_t) getpid();

    fds[VLM_FD_RING] = w->ring_fd;
    fds[VLM_FD_ARENA] = w->arena->read_fd;
    fds[VLM_FD_SUBMIT] = w->submit_fd;
    fds[VLM_FD_EVENT] = w->event_fd;

    iov.iov_base = &hello;
    iov.iov_len = sizeof(vlm_hello_t);

    memset(&control, 0, sizeof(control));
    memset(&msg, 0, sizeof(struct msghdr));
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.data;
    msg.msg_controllen = sizeof(control.data);

    cmsg = CMSG_FIRSTHDR(&msg);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(sizeof(fds));
    memcpy(CMSG_DATA(cmsg), fds, sizeof(fds));

    do {
        n = sendmsg(w->fd, &msg, MSG_NOSIGNAL|MSG_DONTWAIT);
    } while (n == -1 && errno == EINTR);

    if (n == -1 && errno == EAGAIN) {
        return VLM_CHANNEL_AGAIN;
    }

    if (n == -1 && (errno == EPIPE || errno == ECONNRESET)) {
        return worker_fail(w, VLM_CHANNEL_CLOSED, errno,
                           "the engine closed the connection");
    }

    if (n == -1) {
        return worker_fail(w, VLM_CHANNEL_ERROR, errno, "sendmsg()");
    }

    if ((size_t) n != sizeof(vlm_hello_t)) {
        return worker_fail(w, VLM_CHANNEL_ERROR, 0,
                           "only %zd bytes of the hello could be sent", n);
    }

    vlm_memfd_close(&w->ring_fd);

    w->state = WORKER_GREETED;

    return VLM_CHANNEL_OK;
}


static int
worker_welcome(vlm_worker_t *w)
{
    ssize_t         n;
    vlm_welcome_t  *welcome;

    welcome = &w->welcome;

    while (w->welcome_pos < sizeof(vlm_welcome_t)) {

        n = recv(w->fd, (char *) welcome + w->welcome_pos,
                 sizeof(vlm_welcome_t) - w->welcome_pos, MSG_DONTWAIT);

        if (n > 0) {
            w->welcome_pos += (uint32_t) n;
            continue;
        }

        if (n == -1 && errno == EINTR) {
            continue;
        }

        if (n == -1 && errno == EAGAIN) {
            return VLM_CHANNEL_AGAIN;
        }

        return worker_fail(w, VLM_CHANNEL_CLOSED, n == 0 ? 0 : errno,
                           "the engine closed the connection before its "
                           "welcome was complete");
    }

    if (welcome->magic != VLM_MAGIC || welcome->abi != VLM_ABI
        || welcome->welcome_size != sizeof(vlm_welcome_t))
    {
        return worker_fail(w, VLM_CHANNEL_ERROR, EPROTO,
                           "the engine speaks another version: magic %08x, "
                           "ABI %u, this side speaks ABI %u",
                           welcome->magic, welcome->abi, VLM_ABI);
    }

    switch (welcome->refused) {

    case VLM_WELCOME_OK:
        break;

    case VLM_WELCOME_VERSION:
        return worker_fail(w, VLM_CHANNEL_ERROR, EPROTO,
                           "the engine refused this side's version, ABI %u",
                           VLM_ABI);

    case VLM_WELCOME_BAD_FD:
        return worker_fail(w, VLM_CHANNEL_ERROR, EPROTO,
                           "the engine refused a descriptor");

    case VLM_WELCOME_BUSY:
        return worker_fail(w, VLM_CHANNEL_ERROR, EPROTO,
                           "the engine has too many workers");

    default:
        return worker_fail(w, VLM_CHANNEL_ERROR, EPROTO,
                           "the engine refused with reason %u",
                           welcome->refused);
    }

    if (welcome->generation != w->conf.generation) {
        return worker_fail(w, VLM_CHANNEL_ERROR, EPROTO,
                           "the engine answered to generation %u, not %u",
                           welcome->generation, w->conf.generation);
    }

    w->state = WORKER_READY;

    return VLM_CHANNEL_OK;
}


void
vlm_worker_close(vlm_worker_t *w)
{
    if (w->state == WORKER_CLOSED) {
        return;
    }

    if (w->header != NULL) {
        munmap(w->header, w->ring_size);
    }

    vlm_memfd_close(&w->fd);
    vlm_memfd_close(&w->event_fd);
    vlm_memfd_close(&w->submit_fd);
    vlm_memfd_close(&w->ring_fd);

    w->header = NULL;
    w->submissions = NULL;
    w->events = NULL;
    w->state = WORKER_CLOSED;
}


int
vlm_worker_check(vlm_worker_t *w)
{
    switch (vlm_ring_socket_state(w->fd)) {

    case 0:
        return VLM_CHANNEL_OK;

    case 1:
        return worker_fail(w, VLM_CHANNEL_CLOSED, 0,
                           "the engine closed the connection");

    default:
        return worker_fail(w, VLM_CHANNEL_ERROR, EPROTO,
                           "the engine sent bytes behind its welcome");
    }
}


uint32_t
vlm_worker_state(const vlm_worker_t *w)
{
    uint32_t  state;

    state = vlm_ring_load(&w->header->state);

    return (state <= VLM_STATE_FAILED) ? state : VLM_STATE_FAILED;
}


void
vlm_worker_gauges(const vlm_worker_t *w, vlm_gauges_t *gauges)
{
    const vlm_gauges_t  *from;

    from = &w->header->gauges;

    gauges->running = vlm_ring_load(&from->running);
    gauges->queued = vlm_ring_load(&from->queued);
    gauges->kv_blocks = vlm_ring_load(&from->kv_blocks);
    gauges->kv_blocks_free = vlm_ring_load(&from->kv_blocks_free);
    gauges->first_token_ms = vlm_ring_load(&from->first_token_ms);
    gauges->retry_after = vlm_ring_load(&from->retry_after);
    gauges->heartbeat = vlm_ring_load(&from->heartbeat);
}


/*
 * Each word is read with acquire: a word of a newer copy makes the odd
 * version before it visible, so an even, unchanged version means one copy.
 */

int
vlm_worker_info(const vlm_worker_t *w, vlm_engine_info_t *info)
{
    int              try;
    size_t           i, n;
    uint32_t         version;
    uint64_t         words[sizeof(vlm_engine_info_t) / 8];
    const uint64_t  *from;

    from = (const uint64_t *) &w->header->info;
    n = sizeof(vlm_engine_info_t) / 8;

    for (try = 0; try < WORKER_INFO_TRIES; try++) {

        version = vlm_ring_load(&w->header->info_version);

        if (version == 0) {
            return VLM_CHANNEL_AGAIN;
        }

        if (version & 1) {
            continue;
        }

        for (i = 0; i < n; i++) {
            words[i] = vlm_ring_load(&from[i]);
        }

        if (vlm_ring_load(&w->header->info_version) == version) {
            break;
        }
    }

    if (try == WORKER_INFO_TRIES) {
        return VLM_CHANNEL_AGAIN;
    }

    memcpy(info, words, sizeof(vlm_engine_info_t));

    if (info->nmodels > VLM_MAX_MODELS) {
        info->nmodels = VLM_MAX_MODELS;
    }

    for (i = 0; i < VLM_MAX_MODELS; i++) {
        info->models[i][VLM_MODEL_NAME_LEN - 1] = '\0';
    }

    return VLM_CHANNEL_OK;
}


int
vlm_worker_submit(vlm_worker_t *w, uint32_t slot, uint32_t generation,
    uint64_t offset, uint32_t length)
{
    vlm_submission_t  sub;

    memset(&sub, 0, sizeof(vlm_submission_t));

    sub.type = VLM_SUBMIT_REQUEST;
    sub.slot = slot;
    sub.generation = generation;
    sub.offset = offset;
    sub.length = length;

    return worker_put(w, &sub);
}


int
vlm_worker_cancel(vlm_worker_t *w, uint32_t slot, uint32_t generation)
{
    vlm_submission_t  sub;

    memset(&sub, 0, sizeof(vlm_submission_t));

    sub.type = VLM_SUBMIT_CANCEL;
    sub.slot = slot;
    sub.generation = generation;

    return worker_put(w, &sub);
}


static int
worker_put(vlm_worker_t *w, const vlm_submission_t *sub)
{
    uint64_t  head, used;

    head = vlm_ring_load(&w->header->submit_head);
    used = w->submit_tail - head;

    if (used > w->conf.nsubmissions) {
        return worker_fail(w, VLM_CHANNEL_ERROR, EPROTO,
                           "submission ring damaged: head %llu, tail %llu, "
                           "%u entries", (unsigned long long) head,
                           (unsigned long long) w->submit_tail,
                           w->conf.nsubmissions);
    }

    if (used == w->conf.nsubmissions) {
        return VLM_CHANNEL_AGAIN;
    }

    memcpy(&w->submissions[w->submit_tail & (w->conf.nsubmissions - 1)], sub,
           sizeof(vlm_submission_t));

    w->submit_tail++;

    vlm_ring_wake(&w->header->submit_tail, w->submit_tail,
                  &w->header->submit_sleeps, w->submit_fd);

    return VLM_CHANNEL_OK;
}


int
vlm_worker_next(vlm_worker_t *w, vlm_event_t *event)
{
    int                  rc;
    uint64_t             tail, avail;
    vlm_event_header_t   h;

    tail = vlm_ring_load(&w->header->event_tail);
    avail = tail - w->event_head;

    if (avail == 0) {
        return VLM_CHANNEL_AGAIN;
    }

    if (avail > w->conf.event_ring_size || avail % 8 != 0
        || avail < sizeof(vlm_event_header_t))
    {
        return worker_fail(w, VLM_CHANNEL_ERROR, EPROTO,
                           "event ring damaged: head %llu, tail %llu, "
                           "%u bytes", (unsigned long long) w->event_head,
                           (unsigned long long) tail,
                           w->conf.event_ring_size);
    }

    vlm_ring_get(w->events, w->conf.event_ring_size, w->event_head, &h,
                 sizeof(vlm_event_header_t));

    if (h.size < sizeof(vlm_event_header_t) || h.size > VLM_MAX_EVENT_FRAME
        || h.size % 8 != 0 || h.size > avail)
    {
        return worker_fail(w, VLM_CHANNEL_ERROR, EPROTO,
                           "event frame of %u bytes, %llu are in the ring",
                           h.size, (unsigned long long) avail);
    }

    vlm_ring_get(w->events, w->conf.event_ring_size,
                 w->event_head + sizeof(vlm_event_header_t), event->buf,
                 h.size - sizeof(vlm_event_header_t));

    rc = worker_parse(w, &h, event);

    if (rc == VLM_CHANNEL_OK) {
        w->event_head += h.size;
        vlm_ring_store(&w->header->event_head, w->event_head);
    }

    return rc;
}


/* event->buf holds what follows the header, h.size is already checked */

static int
worker_parse(vlm_worker_t *w, const vlm_event_header_t *h, vlm_event_t *event)
{
    int       body;
    uint64_t  text, logprobs, size;

    body = vlm_ring_event_body(h->type);

    if (body == -1) {
        return worker_fail(w, VLM_CHANNEL_ERROR, EPROTO,
                           "event of unknown type %u", h->type);
    }

    if (h->size < sizeof(vlm_event_header_t) + body) {
        return worker_fail(w, VLM_CHANNEL_ERROR, EPROTO,
                           "event of type %u in a frame of %u bytes",
                           h->type, h->size);
    }

    event->type = h->type;
    event->choice = h->choice;
    event->slot = h->slot;
    event->generation = h->generation;
    event->text = event->buf + body;

    memcpy(&event->u, event->buf, body);

    vlm_ring_event_extra(event, &text, &logprobs);

    size = vlm_ring_align(sizeof(vlm_event_header_t) + body + text + logprobs,
                          8);

    if (h->size != size) {
        return worker_fail(w, VLM_CHANNEL_ERROR, EPROTO,
                           "event of type %u and %llu bytes in a frame of %u",
                           h->type, (unsigned long long) size, h->size);
    }

    event->logprobs = event->text + text;

    if (h->slot >= w->conf.max_requests || h->generation == 0) {
        return worker_fail(w, VLM_CHANNEL_ERROR, EPROTO,
                           "event for slot %u of %u, generation %u",
                           h->slot, w->conf.max_requests, h->generation);
    }

    return worker_check_event(w, event);
}


static int
worker_check_event(vlm_worker_t *w, const vlm_event_t *event)
{
    uint32_t  n, i;

    n = event->choice;

    if (n >= VLM_MAX_CHOICES) {
        goto bad;
    }

    switch (event->type) {

    case VLM_EVENT_PROGRESS:
        n = event->u.progress.stage;

        if (n > VLM_STAGE_GENERATE) {
            goto bad;
        }

        break;

    case VLM_EVENT_TEXT:
        n = event->u.text.length;

        if (n > VLM_MAX_EVENT_TEXT) {
            goto bad;
        }

        n = event->u.text.nlogprobs;

        if (n != 0
            && (n > VLM_MAX_EVENT_LOGPROBS
                || vlm_logprobs_count(event->logprobs, n)
                   != (int64_t) event->u.text.ntokens))
        {
            return worker_fail(w, VLM_CHANNEL_ERROR, EPROTO,
                               "event of %u tokens with malformed log "
                               "probabilities of %u bytes",
                               event->u.text.ntokens, n);
        }

        break;

    case VLM_EVENT_FINISH:
        n = event->u.finish.reason;

        if (n != VLM_FINISH_STOP && n != VLM_FINISH_LENGTH) {
            goto bad;
        }

        break;

    case VLM_EVENT_DONE:
        n = event->u.done.noutcomes;

        if (n > VLM_MAX_CACHE_OUTCOMES) {
            goto bad;
        }

        for (i = 0; i < event->u.done.noutcomes; i++) {
            n = event->u.done.outcomes[i];

            if (n < VLM_CACHE_MISS || n > VLM_CACHE_PREFIX) {
                goto bad;
            }
        }

        break;

    case VLM_EVENT_ERROR:
        n = event->u.error.status;

        if (n < 400 || n > 599) {
            goto bad;
        }

        n = event->u.error.length;

        if (n > VLM_MAX_EVENT_TEXT) {
            goto bad;
        }

        if (memchr(event->u.error.code, '\0', sizeof(event->u.error.code))
            == NULL
            || memchr(event->u.error.param, '\0',
                      sizeof(event->u.error.param)) == NULL)
        {
            return worker_fail(w, VLM_CHANNEL_ERROR, EPROTO,
                               "event of type %u with a code or param that "
                               "does not end", event->type);
        }

        break;
    }

    return VLM_CHANNEL_OK;

bad:

    return worker_fail(w, VLM_CHANNEL_ERROR, EPROTO,
                       "event of type %u with an impossible value %u",
                       event->type, n);
}


int
vlm_worker_sleep(vlm_worker_t *w)
{
    return vlm_ring_sleep(&w->header->event_tail, w->event_head,
                          &w->header->event_sleeps, w->event_fd);
}
