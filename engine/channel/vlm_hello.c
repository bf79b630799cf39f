
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdio.h>
#include <sys/vfs.h>

#include "vlm_hello.h"
#include "vlm_memfd.h"
#include "vlm_ring.h"


/* of tmpfs, which memfds live in; those of huge pages do not */

#define PEER_TMPFS_MAGIC    0x01021994

/* room for more descriptors than are expected, so that they can be closed */

#define PEER_MAX_FDS        (2 * VLM_NFDS)


static int peer_receive(vlm_peer_t *p);
static int peer_take_fds(vlm_peer_t *p, struct msghdr *msg);
static int peer_check_hello(vlm_peer_t *p);
static int peer_check_memfd(vlm_peer_t *p, int fd, uint64_t size,
    const char *name);
static int peer_check_eventfd(vlm_peer_t *p, int fd, const char *name);
static int peer_map(vlm_peer_t *p);
static int peer_welcome(vlm_peer_t *p, uint32_t refused);


int
vlm_peer_accept(vlm_peer_t *p, int listen_fd)
{
    int           i;
    socklen_t     len;
    struct ucred  cred;

    memset(p, 0, sizeof(vlm_peer_t));

    p->submit_fd = -1;
    p->event_fd = -1;

    for (i = 0; i < VLM_NFDS; i++) {
        p->fds[i] = -1;
    }

    p->fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK|SOCK_CLOEXEC);

    if (p->fd == -1) {

        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR
            || errno == ECONNABORTED)
        {
            return VLM_CHANNEL_AGAIN;
        }

        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, errno, "accept4()");
    }

    p->state = VLM_PEER_ACCEPTED;

    len = sizeof(struct ucred);

    if (getsockopt(p->fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == -1) {
        vlm_peer_fail(p, VLM_CHANNEL_ERROR, errno, "getsockopt(SO_PEERCRED)");
        vlm_peer_close(p);
        return VLM_CHANNEL_ERROR;
    }

    p->pid = cred.pid;
    p->uid = cred.uid;

    return VLM_CHANNEL_OK;
}


int
vlm_peer_handshake(vlm_peer_t *p)
{
    int  rc;

    switch (p->state) {

    case VLM_PEER_ACCEPTED:
        break;

    case VLM_PEER_READY:
        return VLM_CHANNEL_OK;

    default:
        return vlm_peer_fail(p, VLM_CHANNEL_CLOSED, 0, "the channel is closed");
    }

    rc = peer_receive(p);

    if (rc != VLM_CHANNEL_OK) {
        return rc;
    }

    if (peer_check_hello(p) != VLM_CHANNEL_OK) {
        (void) peer_welcome(p, VLM_WELCOME_VERSION);
        return VLM_CHANNEL_ERROR;
    }

    if (peer_map(p) != VLM_CHANNEL_OK) {
        (void) peer_welcome(p, VLM_WELCOME_BAD_FD);
        return VLM_CHANNEL_ERROR;
    }

    if (p->informed) {
        vlm_peer_set_info(p, &p->first_info);
    }

    vlm_peer_set_gauges(p, &p->first_gauges);
    vlm_peer_set_state(p, p->first_state);

    rc = peer_welcome(p, VLM_WELCOME_OK);

    if (rc == VLM_CHANNEL_OK) {
        p->state = VLM_PEER_READY;
    }

    return rc;
}


/*
 * OK: the hello is complete, or its beginning tells another version, whose
 * hello may be shorter than ours.
 */

static int
peer_receive(vlm_peer_t *p)
{
    ssize_t        n;
    struct iovec   iov;
    struct msghdr  msg;

    union {
        char            data[CMSG_SPACE(PEER_MAX_FDS * sizeof(int))];
        struct cmsghdr  align;
    } control;

    while (p->hello_pos < sizeof(vlm_hello_t)) {

        iov.iov_base = (char *) &p->hello + p->hello_pos;
        iov.iov_len = sizeof(vlm_hello_t) - p->hello_pos;

        memset(&msg, 0, sizeof(struct msghdr));
        msg.msg_iov = &iov;
        msg.msg_iovlen = 1;
        msg.msg_control = control.data;
        msg.msg_controllen = sizeof(control.data);

        n = recvmsg(p->fd, &msg, MSG_CMSG_CLOEXEC|MSG_DONTWAIT);

        if (n == -1 && errno == EINTR) {
            continue;
        }

        if (n == -1 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return VLM_CHANNEL_AGAIN;
        }

        if (n <= 0) {
            return vlm_peer_fail(p, VLM_CHANNEL_CLOSED, n == 0 ? 0 : errno,
                                 "the worker closed the connection after %u "
                                 "bytes of its hello", p->hello_pos);
        }

        p->hello_pos += (uint32_t) n;

        if (peer_take_fds(p, &msg) != VLM_CHANNEL_OK) {
            (void) peer_welcome(p, VLM_WELCOME_BAD_FD);
            return VLM_CHANNEL_ERROR;
        }

        if (p->hello_pos >= offsetof(vlm_hello_t, welcome_size)
            && (p->hello.magic != VLM_MAGIC || p->hello.abi != VLM_ABI
                || p->hello.hello_size != sizeof(vlm_hello_t)))
        {
            return VLM_CHANNEL_OK;
        }
    }

    return VLM_CHANNEL_OK;
}


/* every descriptor that came is kept in p->fds or closed */

static int
peer_take_fds(vlm_peer_t *p, struct msghdr *msg)
{
    int              fd;
    size_t           i, n;
    unsigned         extra;
    struct cmsghdr  *cmsg;

    extra = (msg->msg_flags & MSG_CTRUNC) != 0;

    for (cmsg = CMSG_FIRSTHDR(msg); cmsg != NULL;
         cmsg = CMSG_NXTHDR(msg, cmsg))
    {
        if (cmsg->cmsg_level != SOL_SOCKET
            || cmsg->cmsg_type != SCM_RIGHTS)
        {
            continue;
        }

        n = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        for (i = 0; i < n; i++) {
            memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int), sizeof(int));

            if (p->nfds < VLM_NFDS) {
                p->fds[p->nfds++] = fd;
                continue;
            }

            close(fd);
            extra = 1;
        }
    }

    if (extra) {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, 0,
                             "the worker sent more than %d descriptors",
                             VLM_NFDS);
    }

    return VLM_CHANNEL_OK;
}


static int
peer_check_hello(vlm_peer_t *p)
{
    size_t              page;
    uint64_t            size, events;
    const vlm_hello_t  *h;

    h = &p->hello;
    page = (size_t) sysconf(_SC_PAGESIZE);

    if (h->magic != VLM_MAGIC || h->abi != VLM_ABI) {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, EPROTO,
                             "the worker speaks another version: magic %08x, "
                             "ABI %u, this side speaks ABI %u", h->magic,
                             h->abi, VLM_ABI);
    }

    if (h->hello_size != sizeof(vlm_hello_t)
        || h->welcome_size != sizeof(vlm_welcome_t)
        || h->header_size != sizeof(vlm_ring_header_t)
        || h->submission_size != sizeof(vlm_submission_t)
        || h->event_size != sizeof(vlm_event_header_t)
        || h->page_size != page)
    {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, EPROTO,
                             "the worker's sizes differ: hello %u, welcome %u, "
                             "header %u, submission %u, event %u, page %u",
                             h->hello_size, h->welcome_size, h->header_size,
                             h->submission_size, h->event_size, h->page_size);
    }

    size = vlm_ring_layout(h->nsubmissions, h->event_ring_size, page, &events);

    if (size == 0 || h->ring_size != size) {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, EPROTO,
                             "impossible ring: %u submissions, %u bytes of "
                             "events, %llu bytes in all", h->nsubmissions,
                             h->event_ring_size,
                             (unsigned long long) h->ring_size);
    }

    if (h->arena_size == 0 || h->arena_size % page != 0
        || h->arena_size > INT64_MAX)
    {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, EPROTO,
                             "impossible arena of %llu bytes",
                             (unsigned long long) h->arena_size);
    }

    if (h->max_requests == 0 || h->max_requests > VLM_MAX_REQUESTS
        || h->generation == 0)
    {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, EPROTO,
                             "impossible number of requests %u or "
                             "generation %u",
                             h->max_requests, h->generation);
    }

    return VLM_CHANNEL_OK;
}


static int
peer_check_memfd(vlm_peer_t *p, int fd, uint64_t size, const char *name)
{
    int            seals;
    struct stat    st;
    struct statfs  fs;

    seals = fcntl(fd, F_GET_SEALS);

    if (seals == -1 || fstatfs(fd, &fs) == -1
        || fs.f_type != PEER_TMPFS_MAGIC)
    {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, EPROTO,
                             "the %s is not a memfd", name);
    }

    if ((seals & VLM_MEMFD_SEALS) != VLM_MEMFD_SEALS) {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, EPROTO,
                             "the %s has seals %x, %x are required", name,
                             (unsigned) seals, (unsigned) VLM_MEMFD_SEALS);
    }

    if (fstat(fd, &st) == -1 || (uint64_t) st.st_size != size) {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, EPROTO,
                             "the %s has %lld bytes, the hello says %llu", name,
                             (long long) st.st_size, (unsigned long long) size);
    }

    return VLM_CHANNEL_OK;
}


static int
peer_check_eventfd(vlm_peer_t *p, int fd, const char *name)
{
    int      flags;
    char     path[32], target[32];
    ssize_t  n;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);

    n = readlink(path, target, sizeof(target) - 1);

    if (n == -1) {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, errno, "readlink(\"%s\")",
                             path);
    }

    target[n] = '\0';

    if (strcmp(target, "anon_inode:[eventfd]") != 0) {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, EPROTO,
                             "the %s descriptor is not an eventfd", name);
    }

    flags = fcntl(fd, F_GETFL);

    if (flags == -1 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) == -1) {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, errno, "fcntl(F_SETFL)");
    }

    return VLM_CHANNEL_OK;
}


static int
peer_map(vlm_peer_t *p)
{
    void      *m;
    uint64_t   events;

    if (p->nfds != VLM_NFDS) {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, EPROTO,
                             "the worker sent %u descriptors, not %d", p->nfds,
                             VLM_NFDS);
    }

    if (peer_check_memfd(p, p->fds[VLM_FD_RING], p->hello.ring_size, "ring")
        != VLM_CHANNEL_OK
        || peer_check_memfd(p, p->fds[VLM_FD_ARENA], p->hello.arena_size,
                            "arena") != VLM_CHANNEL_OK
        || peer_check_eventfd(p, p->fds[VLM_FD_SUBMIT], "submission")
           != VLM_CHANNEL_OK
        || peer_check_eventfd(p, p->fds[VLM_FD_EVENT], "event")
           != VLM_CHANNEL_OK)
    {
        return VLM_CHANNEL_ERROR;
    }

    if ((fcntl(p->fds[VLM_FD_ARENA], F_GETFL) & O_ACCMODE) != O_RDONLY) {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, EPROTO,
                             "the arena's descriptor is not read-only");
    }

    p->ring_size = p->hello.ring_size;

    m = mmap(NULL, p->ring_size, PROT_READ|PROT_WRITE, MAP_SHARED,
             p->fds[VLM_FD_RING], 0);

    if (m == MAP_FAILED) {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, errno, "mmap() of the ring");
    }

    (void) vlm_ring_layout(p->hello.nsubmissions, p->hello.event_ring_size,
                           p->hello.page_size, &events);

    p->header = m;
    p->submissions = (vlm_submission_t *) ((uint8_t *) m
                                           + p->hello.page_size);
    p->events = (uint8_t *) m + events;

    m = mmap(NULL, p->hello.arena_size, PROT_READ, MAP_SHARED,
             p->fds[VLM_FD_ARENA], 0);

    if (m == MAP_FAILED) {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, errno,
                             "mmap() of the arena, %llu bytes",
                             (unsigned long long) p->hello.arena_size);
    }

    p->arena = m;
    p->arena_size = p->hello.arena_size;

    if (madvise(p->header, p->ring_size, MADV_DONTDUMP) == -1
        || madvise(m, p->arena_size, MADV_DONTDUMP) == -1)
    {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, errno,
                             "madvise(MADV_DONTDUMP)");
    }

    p->submit_fd = p->fds[VLM_FD_SUBMIT];
    p->event_fd = p->fds[VLM_FD_EVENT];
    p->fds[VLM_FD_SUBMIT] = -1;
    p->fds[VLM_FD_EVENT] = -1;

    vlm_memfd_close(&p->fds[VLM_FD_RING]);
    vlm_memfd_close(&p->fds[VLM_FD_ARENA]);

    return VLM_CHANNEL_OK;
}


/* an empty socket takes a message as small as this one whole */

static int
peer_welcome(vlm_peer_t *p, uint32_t refused)
{
    ssize_t        n;
    vlm_welcome_t  welcome;

    memset(&welcome, 0, sizeof(vlm_welcome_t));

    welcome.magic = VLM_MAGIC;
    welcome.abi = VLM_ABI;
    welcome.welcome_size = sizeof(vlm_welcome_t);
    welcome.refused = refused;
    welcome.generation = p->hello.generation;
    welcome.pid = (uint32_t) getpid();

    do {
        n = send(p->fd, &welcome, sizeof(vlm_welcome_t),
                 MSG_NOSIGNAL|MSG_DONTWAIT);
    } while (n == -1 && errno == EINTR);

    if (n == (ssize_t) sizeof(vlm_welcome_t) || refused != VLM_WELCOME_OK) {
        return VLM_CHANNEL_OK;
    }

    return vlm_peer_fail(p, VLM_CHANNEL_CLOSED, n == -1 ? errno : 0,
                         "the welcome could not be sent");
}


void
vlm_peer_refuse(vlm_peer_t *p, uint32_t reason)
{
    if (p->state == VLM_PEER_ACCEPTED) {
        (void) peer_welcome(p, reason);
    }
}
