
/*
 * What an engine reads from a worker: its hello, then the counters and the
 * submission ring in shared memory.  The first bytes change the hello and the
 * choice of descriptors, the rest are steps on the rings.
 */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/channel/vlm_peer.h"
#include "engine/channel/vlm_record.h"


#define PAGE    4096
#define RING    (2 * PAGE + VLM_MIN_EVENT_RING)
#define ARENA   65536
#define SEALS   (F_SEAL_SHRINK|F_SEAL_GROW|F_SEAL_SEAL)


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);


static int                  listen_fd;
static int                  fds[VLM_NFDS];
static uint8_t             *ring;
static struct sockaddr_un   addr;
static socklen_t            addr_len;


static uint32_t
take(const uint8_t **data, size_t *size, size_t n)
{
    uint32_t  value;

    for (value = 0; n > 0 && *size > 0; n--, (*data)++, (*size)--) {
        value = value << 8 | **data;
    }

    return value;
}


static int
memfd(size_t size)
{
    int  fd;

    fd = memfd_create("fuzz", MFD_CLOEXEC|MFD_ALLOW_SEALING);

    if (fd == -1 || ftruncate(fd, (off_t) size) == -1
        || fcntl(fd, F_ADD_SEALS, SEALS) == -1)
    {
        abort();
    }

    return fd;
}


static void
setup(void)
{
    int   arena;
    char  path[32];

    arena = memfd(ARENA);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", arena);

    fds[VLM_FD_RING] = memfd(RING);
    fds[VLM_FD_ARENA] = open(path, O_RDONLY|O_CLOEXEC);
    fds[VLM_FD_SUBMIT] = eventfd(0, EFD_CLOEXEC|EFD_NONBLOCK);
    fds[VLM_FD_EVENT] = eventfd(0, EFD_CLOEXEC|EFD_NONBLOCK);

    ring = mmap(NULL, RING, PROT_READ|PROT_WRITE, MAP_SHARED,
                fds[VLM_FD_RING], 0);

    /* an address without a file, chosen by the kernel */

    addr.sun_family = AF_UNIX;
    addr_len = sizeof(addr);
    listen_fd = socket(AF_UNIX, SOCK_STREAM|SOCK_NONBLOCK|SOCK_CLOEXEC, 0);

    if (fds[VLM_FD_ARENA] == -1 || ring == MAP_FAILED || listen_fd == -1
        || bind(listen_fd, (struct sockaddr *) &addr, sizeof(sa_family_t))
           == -1
        || getsockname(listen_fd, (struct sockaddr *) &addr, &addr_len) == -1
        || listen(listen_fd, 8) == -1)
    {
        abort();
    }
}


static void
send_hello(int fd, vlm_hello_t *hello, size_t len, unsigned choice)
{
    int              i, chosen[2 * VLM_NFDS];
    size_t           n;
    struct iovec     iov;
    struct msghdr    msg;
    struct cmsghdr  *cmsg;

    union {
        char            data[CMSG_SPACE(sizeof(chosen))];
        struct cmsghdr  align;
    } control;

    /* most often the right ones, else by two bits each */

    for (i = 0; i < 2 * VLM_NFDS; i++) {
        chosen[i] = fds[(choice & 0x8000) ? (choice >> i) & 3 : i % 4];
    }

    n = (choice & 0x8000) ? choice & 7 : VLM_NFDS;

    memset(&msg, 0, sizeof(msg));
    memset(&control, 0, sizeof(control));
    iov.iov_base = hello;
    iov.iov_len = len;
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;

    if (n != 0) {
        msg.msg_control = control.data;
        msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
        cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(n * sizeof(int));
        memcpy(CMSG_DATA(cmsg), chosen, n * sizeof(int));
    }

    (void) !sendmsg(fd, &msg, MSG_NOSIGNAL);
}


static void
good_hello(vlm_hello_t *hello)
{
    memset(hello, 0, sizeof(vlm_hello_t));
    hello->magic = VLM_MAGIC;
    hello->abi = VLM_ABI;
    hello->hello_size = sizeof(vlm_hello_t);
    hello->welcome_size = sizeof(vlm_welcome_t);
    hello->header_size = sizeof(vlm_ring_header_t);
    hello->submission_size = sizeof(vlm_submission_t);
    hello->event_size = sizeof(vlm_event_header_t);
    hello->page_size = PAGE;
    hello->nsubmissions = 8;
    hello->event_ring_size = VLM_MIN_EVENT_RING;
    hello->ring_size = RING;
    hello->arena_size = ARENA;
    hello->max_requests = 16;
    hello->generation = 1;
}


/* 0: the channel is damaged */

static int
read_submissions(vlm_peer_t *p)
{
    int                rc;
    vlm_event_t        e;
    const uint8_t     *record;
    volatile uint8_t   byte;
    vlm_submission_t   sub;

    while ((rc = vlm_peer_next(p, &sub)) == VLM_CHANNEL_OK) {

        if (sub.slot >= p->hello.max_requests || sub.generation == 0) {
            abort();
        }

        if (sub.type == VLM_SUBMIT_REQUEST) {
            record = vlm_peer_arena(p, sub.offset, sub.length);

            if (record == NULL || sub.length > VLM_MAX_RECORD
                || sub.offset > ARENA || sub.length > ARENA - sub.offset)
            {
                abort();
            }

            byte = record[0];
            byte = record[sub.length - 1];
            (void) byte;
        }
    }

    memset(&e, 0, offsetof(vlm_event_t, buf));
    e.type = VLM_EVENT_RELEASED;

    if (rc == VLM_CHANNEL_ERROR
        || vlm_peer_send(p, &e) == VLM_CHANNEL_ERROR
        || vlm_peer_room(p) > VLM_MIN_EVENT_RING)
    {
        return 0;
    }

    vlm_peer_ring(p);
    (void) vlm_peer_sleep(p);

    return 1;
}


static void
fuzz_rings(vlm_peer_t *p, const uint8_t *data, size_t size)
{
    uint32_t            at, i;
    vlm_submission_t   *sub;
    vlm_ring_header_t  *h;

    h = (vlm_ring_header_t *) ring;

    while (size > 0) {

        switch (take(&data, &size, 1) % 6) {

        case 0:
        case 1:
            i = (uint32_t) h->submit_tail & 7;
            sub = (vlm_submission_t *) (ring + PAGE) + i;
            sub->type = 1 + (take(&data, &size, 1) & 1);
            sub->slot = 5;
            sub->generation = 1;
            sub->offset = 8 * take(&data, &size, 2);
            sub->length = take(&data, &size, 2);
            h->submit_tail++;
            break;

        case 2:
            at = take(&data, &size, 2) % (8 * sizeof(vlm_submission_t));
            ring[PAGE + at] ^= (uint8_t) take(&data, &size, 1);
            break;

        case 3:
            at = take(&data, &size, 2) % sizeof(vlm_ring_header_t);
            ring[at] ^= (uint8_t) take(&data, &size, 1);
            break;

        case 4:
            h->event_head += take(&data, &size, 1);
            break;

        default:

            if (!read_submissions(p)) {
                return;
            }
        }
    }

    (void) read_submissions(p);
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int          fd;
    size_t       n, len;
    uint32_t     at;
    unsigned     choice;
    vlm_peer_t   p;
    vlm_hello_t  hello;

    if (ring == NULL) {
        setup();
    }

    memset(ring, 0, PAGE);
    good_hello(&hello);

    n = take(&data, &size, 1) % 4;
    choice = take(&data, &size, 2);
    len = sizeof(hello);

    while (n-- > 0) {
        at = take(&data, &size, 1);

        if (at > 200) {
            len = at % sizeof(hello);
            continue;
        }

        ((uint8_t *) &hello)[at % sizeof(hello)]
            ^= (uint8_t) take(&data, &size, 1);
    }

    fd = socket(AF_UNIX, SOCK_STREAM|SOCK_CLOEXEC, 0);

    if (fd == -1 || connect(fd, (struct sockaddr *) &addr, addr_len) == -1
        || vlm_peer_accept(&p, listen_fd) != VLM_CHANNEL_OK)
    {
        abort();
    }

    send_hello(fd, &hello, len, choice);

    if (vlm_peer_handshake(&p) == VLM_CHANNEL_OK) {
        fuzz_rings(&p, data, size);
    }

    vlm_peer_close(&p);
    close(fd);

    return 0;
}
