
/* Hellos and welcomes that must be refused, in every field and descriptor. */

#include "t/unit/channel_pair.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>


#define RING   (4096 + 4096 + VLM_MIN_EVENT_RING)
#define ARENA  (1 << 20)
#define SEALS  (F_SEAL_SHRINK|F_SEAL_GROW|F_SEAL_SEAL)


static pair_t       pair;
static vlm_hello_t  hello;
static int          fds[12];
static int          nfds;


static void test_fields(void);
static void test_descriptors(void);
static void test_pieces(void);
static void test_busy(void);
static void test_worker_refuses(void);
static void good_hello(void);
static void drop_fds(void);
static int memfd(size_t size, int seals, int readonly);
static int client(void);
static void send_hello(int fd, size_t from, size_t to, int with_fds);
static int offer(uint32_t *refused);


int
main(void)
{
    int  open_fds;

    open_fds = pair_count_fds();
    pair_init(&pair);

    test_fields();
    test_descriptors();
    test_pieces();
    test_busy();
    test_worker_refuses();

    pair_destroy(&pair);
    tap_is(pair_count_fds(), open_fds, "no descriptor is left");

    return tap_done();
}


static void
refused(const char *name, uint32_t reason)
{
    int       rc;
    uint32_t  got;

    rc = offer(&got);
    tap_ok(rc == VLM_CHANNEL_ERROR && got == reason,
           "%s is refused with %u: %s", name, got, pair.p.why);
    vlm_peer_close(&pair.p);
}


static void
test_fields(void)
{
    uint32_t  got;

    struct {
        const char  *name;
        uint32_t    *field;
        uint32_t     value;
    } bad[] = {
        { "magic", &hello.magic, 0 },
        { "ABI", &hello.abi, VLM_ABI + 1 },
        { "hello_size", &hello.hello_size, sizeof(hello) + 8 },
        { "welcome_size", &hello.welcome_size, 0 },
        { "header_size", &hello.header_size, 64 },
        { "submission_size", &hello.submission_size, 16 },
        { "event_size", &hello.event_size, 8 },
        { "page_size", &hello.page_size, 8192 },
        { "no submissions", &hello.nsubmissions, 0 },
        { "3 submissions", &hello.nsubmissions, 3 },
        { "too many submissions", &hello.nsubmissions, 1u << 31 },
        { "small event ring", &hello.event_ring_size, 4096 },
        { "odd event ring", &hello.event_ring_size, 65537 },
        { "large event ring", &hello.event_ring_size, 1u << 31 },
        { "no requests", &hello.max_requests, 0 },
        { "too many requests", &hello.max_requests, VLM_MAX_REQUESTS + 1 },
        { "generation 0", &hello.generation, 0 }
    };

    size_t  i;

    good_hello();
    tap_is(offer(&got), VLM_CHANNEL_OK, "a good one: %s", pair.p.why);
    tap_is(got, VLM_WELCOME_OK, "the welcome says so");
    vlm_peer_close(&pair.p);

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        good_hello();
        *bad[i].field = bad[i].value;
        refused(bad[i].name, VLM_WELCOME_VERSION);
    }

    good_hello();
    hello.ring_size += 4096;
    refused("ring_size", VLM_WELCOME_VERSION);

    good_hello();
    hello.arena_size = 0;
    refused("no arena", VLM_WELCOME_VERSION);

    good_hello();
    hello.arena_size = ARENA + 1;
    refused("odd arena", VLM_WELCOME_VERSION);

    good_hello();
    hello.arena_size = 1ull << 63;
    refused("huge arena", VLM_WELCOME_VERSION);
}


static void
replace(int which, int fd)
{
    good_hello();
    close(fds[which]);
    fds[which] = fd;
}


static void
test_descriptors(void)
{
    int  ends[2];

    replace(VLM_FD_RING, memfd(RING, F_SEAL_SHRINK|F_SEAL_GROW, 0));
    refused("a ring without the last seal", VLM_WELCOME_BAD_FD);

    replace(VLM_FD_RING, memfd(RING, F_SEAL_GROW|F_SEAL_SEAL, 0));
    refused("a ring that can shrink", VLM_WELCOME_BAD_FD);

    replace(VLM_FD_RING, memfd(RING - 4096, SEALS, 0));
    refused("a ring that is too small", VLM_WELCOME_BAD_FD);

    replace(VLM_FD_RING, memfd(RING, SEALS|F_SEAL_WRITE, 0));
    refused("a ring that cannot be written", VLM_WELCOME_BAD_FD);

    replace(VLM_FD_RING, memfd(RING, SEALS, 1));
    refused("a ring that is read-only", VLM_WELCOME_BAD_FD);

    replace(VLM_FD_RING, open("/dev/zero", O_RDWR));
    refused("a device as the ring", VLM_WELCOME_BAD_FD);

    replace(VLM_FD_ARENA, memfd(ARENA, SEALS, 0));
    refused("an arena that can be written", VLM_WELCOME_BAD_FD);

    replace(VLM_FD_ARENA, memfd(ARENA, F_SEAL_SHRINK|F_SEAL_GROW, 1));
    refused("an arena without the last seal", VLM_WELCOME_BAD_FD);

    replace(VLM_FD_ARENA, memfd(ARENA, F_SEAL_SEAL, 1));
    refused("an arena that can shrink", VLM_WELCOME_BAD_FD);

    replace(VLM_FD_ARENA, memfd(2 * ARENA, SEALS, 1));
    refused("an arena of another size", VLM_WELCOME_BAD_FD);

    replace(VLM_FD_ARENA, open("/proc/self/exe", O_RDONLY));
    refused("a file as the arena", VLM_WELCOME_BAD_FD);

    replace(VLM_FD_SUBMIT, memfd(4096, SEALS, 0));
    refused("a memfd as an eventfd", VLM_WELCOME_BAD_FD);

    replace(VLM_FD_EVENT, open("/dev/null", O_RDWR));
    refused("a device as an eventfd", VLM_WELCOME_BAD_FD);

    if (pipe(ends) == 0) {
        replace(VLM_FD_EVENT, ends[1]);
        refused("a pipe as an eventfd", VLM_WELCOME_BAD_FD);
        close(ends[0]);
    }

    good_hello();
    close(fds[--nfds]);
    refused("three descriptors", VLM_WELCOME_BAD_FD);

    good_hello();
    drop_fds();
    refused("none", VLM_WELCOME_BAD_FD);

    good_hello();
    fds[nfds++] = eventfd(0, 0);
    refused("five descriptors", VLM_WELCOME_BAD_FD);

    good_hello();

    while (nfds < 12) {
        fds[nfds++] = eventfd(0, 0);
    }

    refused("twelve descriptors", VLM_WELCOME_BAD_FD);
}


static void
test_pieces(void)
{
    int     fd, rc, good;
    size_t  i;

    /* one byte at a time, descriptors with the first */

    good_hello();
    fd = client();
    vlm_peer_accept(&pair.p, pair.listen_fd);

    for (good = 1, i = 0; i < sizeof(hello); i++) {
        good &= (vlm_peer_handshake(&pair.p) == VLM_CHANNEL_AGAIN);
        send_hello(fd, i, i + 1, i == 0);
    }

    tap_ok(good, "a hello in pieces is awaited");
    tap_is(vlm_peer_handshake(&pair.p), VLM_CHANNEL_OK, "and complete: %s",
           pair.p.why);
    drop_fds();
    vlm_peer_close(&pair.p);
    close(fd);

    /* descriptors twice */

    good_hello();
    fd = client();
    vlm_peer_accept(&pair.p, pair.listen_fd);
    send_hello(fd, 0, 8, 1);
    tap_is(vlm_peer_handshake(&pair.p), VLM_CHANNEL_AGAIN, "a part");
    send_hello(fd, 8, sizeof(hello), 1);
    tap_is(vlm_peer_handshake(&pair.p), VLM_CHANNEL_ERROR, "fds twice: %s",
           pair.p.why);
    drop_fds();
    vlm_peer_close(&pair.p);
    close(fd);

    /* the worker leaves in the middle of it */

    good_hello();
    fd = client();
    vlm_peer_accept(&pair.p, pair.listen_fd);
    send_hello(fd, 0, 40, 1);
    rc = vlm_peer_handshake(&pair.p);
    close(fd);
    tap_is(rc, VLM_CHANNEL_AGAIN, "half a hello");
    tap_is(vlm_peer_handshake(&pair.p), VLM_CHANNEL_CLOSED, "closed: %s",
           pair.p.why);
    drop_fds();
    vlm_peer_close(&pair.p);

    /* another version is told apart by its first 12 bytes */

    good_hello();
    hello.abi = VLM_ABI + 1;
    fd = client();
    vlm_peer_accept(&pair.p, pair.listen_fd);
    send_hello(fd, 0, 12, 1);
    tap_is(vlm_peer_handshake(&pair.p), VLM_CHANNEL_ERROR,
           "a shorter hello of another version: %s", pair.p.why);
    drop_fds();
    vlm_peer_close(&pair.p);
    close(fd);
}


static int
welcome(const vlm_welcome_t *w, size_t len)
{
    int         fd, rc;
    vlm_peer_t  p;

    rc = vlm_worker_open(&pair.w, &pair.conf, &pair.arena, pair.path);

    if (rc != VLM_CHANNEL_OK || vlm_peer_accept(&p, pair.listen_fd)
                                != VLM_CHANNEL_OK)
    {
        pair_fatal("connect", pair.w.why);
    }

    fd = p.fd;

    if (len != 0 && write(fd, w, len) != (ssize_t) len) {
        pair_fatal("write()", strerror(errno));
    }

    rc = vlm_worker_handshake(&pair.w);

    if (rc == VLM_CHANNEL_AGAIN) {
        vlm_peer_close(&p);
        rc = vlm_worker_handshake(&pair.w);
    }

    vlm_worker_close(&pair.w);
    vlm_peer_close(&p);

    return rc;
}


static void
test_busy(void)
{
    int  rc;

    rc = vlm_worker_open(&pair.w, &pair.conf, &pair.arena, pair.path);

    if (rc != VLM_CHANNEL_OK || vlm_peer_accept(&pair.p, pair.listen_fd)
                                != VLM_CHANNEL_OK)
    {
        pair_fatal("connect", pair.w.why);
    }

    vlm_peer_refuse(&pair.p, VLM_WELCOME_BUSY);
    vlm_peer_close(&pair.p);

    tap_is(vlm_worker_handshake(&pair.w), VLM_CHANNEL_ERROR, "busy");
    tap_str(pair.w.why, "the engine has too many workers",
            "the refusal arrives though the hello was not read");

    vlm_worker_close(&pair.w);
}


static void
test_worker_refuses(void)
{
    char           path[200];
    vlm_welcome_t  good, w;

    memset(&good, 0, sizeof(good));
    good.magic = VLM_MAGIC;
    good.abi = VLM_ABI;
    good.welcome_size = sizeof(good);
    good.generation = 1;

    tap_is(welcome(&good, sizeof(good)), VLM_CHANNEL_OK, "a good welcome");

    w = good;
    w.magic++;
    tap_is(welcome(&w, sizeof(w)), VLM_CHANNEL_ERROR, "%s", pair.w.why);

    w = good;
    w.abi++;
    tap_is(welcome(&w, sizeof(w)), VLM_CHANNEL_ERROR, "%s", pair.w.why);
    tap_ok(strstr(pair.w.why, "another version") != NULL
           && strstr(pair.w.why, "ABI 3") != NULL, "it says so");

    w = good;
    w.welcome_size = 0;
    tap_is(welcome(&w, sizeof(w)), VLM_CHANNEL_ERROR, "%s", pair.w.why);

    w = good;
    w.generation = 2;
    tap_is(welcome(&w, sizeof(w)), VLM_CHANNEL_ERROR, "%s", pair.w.why);

    for (w = good, w.refused = 1; w.refused < 5; w.refused++) {
        tap_is(welcome(&w, sizeof(w)), VLM_CHANNEL_ERROR, "%s", pair.w.why);
        tap_ok(strstr(pair.w.why, "engine") != NULL, "reason %u", w.refused);
    }

    tap_is(welcome(&good, 10), VLM_CHANNEL_CLOSED, "%s", pair.w.why);
    tap_is(welcome(&good, 0), VLM_CHANNEL_CLOSED, "%s", pair.w.why);

    /* sockets where no engine is */

    memset(path, 'x', sizeof(path));
    path[199] = '\0';
    tap_is(vlm_worker_open(&pair.w, &pair.conf, &pair.arena, path),
           VLM_CHANNEL_ERROR, "%s", pair.w.why);
    tap_is(pair.w.err, ENAMETOOLONG, "errno");

    tap_is(vlm_worker_open(&pair.w, &pair.conf, &pair.arena,
                           "/nonexistent/socket"),
           VLM_CHANNEL_ERROR, "%s", pair.w.why);
    tap_is(pair.w.err, ENOENT, "errno");

    pair.conf.nsubmissions = 100;
    tap_is(vlm_worker_open(&pair.w, &pair.conf, &pair.arena, pair.path),
           VLM_CHANNEL_ERROR, "%s", pair.w.why);
    pair.conf.nsubmissions = 8;
}


static void
good_hello(void)
{
    memset(&hello, 0, sizeof(hello));

    hello.magic = VLM_MAGIC;
    hello.abi = VLM_ABI;
    hello.hello_size = sizeof(vlm_hello_t);
    hello.welcome_size = sizeof(vlm_welcome_t);
    hello.header_size = sizeof(vlm_ring_header_t);
    hello.submission_size = sizeof(vlm_submission_t);
    hello.event_size = sizeof(vlm_event_header_t);
    hello.page_size = 4096;
    hello.nsubmissions = 8;
    hello.event_ring_size = VLM_MIN_EVENT_RING;
    hello.ring_size = RING;
    hello.arena_size = ARENA;
    hello.max_requests = 16;
    hello.generation = 1;

    fds[VLM_FD_RING] = memfd(RING, SEALS, 0);
    fds[VLM_FD_ARENA] = memfd(ARENA, SEALS, 1);
    fds[VLM_FD_SUBMIT] = eventfd(0, 0);
    fds[VLM_FD_EVENT] = eventfd(0, 0);
    nfds = VLM_NFDS;
}


static void
drop_fds(void)
{
    while (nfds > 0) {
        close(fds[--nfds]);
    }
}


static int
memfd(size_t size, int seals, int readonly)
{
    int   fd, copy;
    char  path[32];

    fd = memfd_create("test", MFD_CLOEXEC|MFD_ALLOW_SEALING);

    if (fd == -1 || ftruncate(fd, (off_t) size) == -1
        || fcntl(fd, F_ADD_SEALS, seals) == -1)
    {
        pair_fatal("memfd", strerror(errno));
    }

    if (!readonly) {
        return fd;
    }

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    copy = open(path, O_RDONLY);
    close(fd);

    return copy;
}


static int
client(void)
{
    int                 fd;
    struct sockaddr_un  addr;

    memset(&addr, 0, sizeof(addr));
    addr.sun_family = AF_UNIX;
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", pair.path);

    fd = socket(AF_UNIX, SOCK_STREAM|SOCK_CLOEXEC, 0);

    if (fd == -1
        || connect(fd, (struct sockaddr *) &addr, sizeof(addr)) == -1)
    {
        pair_fatal("connect()", strerror(errno));
    }

    return fd;
}


static void
send_hello(int fd, size_t from, size_t to, int with_fds)
{
    struct iovec     iov;
    struct msghdr    msg;
    struct cmsghdr  *cmsg;

    union {
        char            data[CMSG_SPACE(sizeof(fds))];
        struct cmsghdr  align;
    } control;

    iov.iov_base = (char *) &hello + from;
    iov.iov_len = to - from;

    memset(&msg, 0, sizeof(msg));
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;

    if (with_fds && nfds != 0) {
        memset(&control, 0, sizeof(control));
        msg.msg_control = control.data;
        msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));

        cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(cmsg), fds, nfds * sizeof(int));
    }

    if (sendmsg(fd, &msg, MSG_NOSIGNAL) != (ssize_t) (to - from)) {
        pair_fatal("sendmsg()", strerror(errno));
    }
}


/* the hello as it is now; the engine's answer */

static int
offer(uint32_t *refused)
{
    int            fd, rc;
    vlm_welcome_t  w;

    fd = client();
    send_hello(fd, 0, sizeof(hello), 1);
    drop_fds();

    if (vlm_peer_accept(&pair.p, pair.listen_fd) != VLM_CHANNEL_OK) {
        pair_fatal("vlm_peer_accept()", pair.p.why);
    }

    rc = vlm_peer_handshake(&pair.p);

    *refused = UINT32_MAX;

    if (recv(fd, &w, sizeof(w), MSG_DONTWAIT) == (ssize_t) sizeof(w)
        && w.magic == VLM_MAGIC && w.abi == VLM_ABI)
    {
        *refused = w.refused;
    }

    close(fd);

    return rc;
}
