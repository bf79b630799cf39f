
/* Two processes: wakeups, and the death of each side at any moment. */

#include "t/unit/channel_pair.h"

#include <signal.h>
#include <sys/wait.h>


#define ROUNDS  100000


static pair_t  pair;


static void test_ping_pong(void);
static void test_engine_dies(void);
static void test_worker_dies(void);
static void engine(int rounds);
static pid_t start_engine(int rounds);
static void open_worker(void);
static int wait_for(int fd, int socket);


int
main(void)
{
    pair_init(&pair);

    test_ping_pong();
    test_engine_dies();
    test_worker_dies();

    pair_destroy(&pair);

    return tap_done();
}


/*
 * Both sleep after each message, so a wakeup that is lost stops it all: the
 * alarm kills the test then.
 */

static void
test_ping_pong(void)
{
    int          i, rc, status, good, slept;
    pid_t        pid;
    vlm_event_t  e;

    alarm(60);

    pid = start_engine(ROUNDS);
    open_worker();

    good = 1;
    slept = 0;

    for (i = 1; good && i <= ROUNDS; i++) {
        good = (vlm_worker_cancel(&pair.w, i % 16, i) == VLM_CHANNEL_OK);

        for ( ;; ) {
            rc = vlm_worker_next(&pair.w, &e);

            if (rc != VLM_CHANNEL_AGAIN || !good) {
                break;
            }

            if (vlm_worker_sleep(&pair.w)) {
                slept++;
                good = (wait_for(pair.w.event_fd, pair.w.fd) == 0);
            }
        }

        good &= (rc == VLM_CHANNEL_OK && e.generation == (uint32_t) i);
    }

    tap_ok(good, "%d messages there and back", ROUNDS);
    tap_ok(slept > 0, "the worker slept");
    tap_diag("slept %d times", slept);

    vlm_worker_close(&pair.w);
    waitpid(pid, &status, 0);
    tap_ok(WIFEXITED(status) && WEXITSTATUS(status) == 0,
           "the engine is content");

    alarm(0);
}


static void
test_engine_dies(void)
{
    int          i, k, rc, good;
    pid_t        pid;
    vlm_event_t  e;

    good = 1;

    for (i = 0; i < 20; i++) {
        pid = start_engine(0);
        open_worker();

        for (k = 0; k < i * 50; k++) {
            vlm_worker_cancel(&pair.w, 1, k + 1);
            (void) vlm_worker_next(&pair.w, &e);
        }

        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);

        /* what it still said can be read, then the socket tells */

        while ((rc = vlm_worker_next(&pair.w, &e)) == VLM_CHANNEL_OK) {
            good &= (e.type == VLM_EVENT_CANCELLED);
        }

        good &= (rc == VLM_CHANNEL_AGAIN);
        good &= (vlm_worker_check(&pair.w) == VLM_CHANNEL_CLOSED);
        vlm_worker_close(&pair.w);
    }

    tap_ok(good, "20 engines killed");

    pid = start_engine(1);
    open_worker();
    tap_is(vlm_worker_cancel(&pair.w, 1, 1), VLM_CHANNEL_OK,
           "a new engine, a new ring");
    rc = wait_for(pair.w.event_fd, pair.w.fd);
    tap_ok(vlm_worker_next(&pair.w, &e) == VLM_CHANNEL_OK || rc == 0,
           "it answers");
    vlm_worker_close(&pair.w);
    waitpid(pid, NULL, 0);
}


static void
test_worker_dies(void)
{
    int               i, k, rc, good;
    pid_t             pid;
    const uint8_t    *p;
    vlm_submission_t  sub;

    good = 1;

    for (i = 0; i < 20; i++) {
        pid = fork();

        if (pid == 0) {
            open_worker();
            memset(pair.arena.base, 'w', 4096);

            for (k = 1; ; k++) {
                (void) vlm_worker_submit(&pair.w, 1, k, 0, 4096);
            }
        }

        while (vlm_peer_accept(&pair.p, pair.listen_fd)
               == VLM_CHANNEL_AGAIN)
        {
            wait_for(pair.listen_fd, -1);
        }

        while ((rc = vlm_peer_handshake(&pair.p)) == VLM_CHANNEL_AGAIN) {
            wait_for(pair.p.fd, -1);
        }

        good &= (rc == VLM_CHANNEL_OK);

        for (k = 0; good && k < i * 50; ) {
            rc = vlm_peer_next(&pair.p, &sub);
            good &= (rc == VLM_CHANNEL_OK || rc == VLM_CHANNEL_AGAIN);
            k += (rc == VLM_CHANNEL_OK);
        }

        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);

        good &= (vlm_peer_check(&pair.p) == VLM_CHANNEL_CLOSED);

        /* its arena lives as long as it is mapped here */

        p = vlm_peer_arena(&pair.p, 0, 4096);
        good &= (p != NULL && (i == 0 || p[4095] == 'w'));
        good &= (vlm_peer_next(&pair.p, &sub) != VLM_CHANNEL_ERROR);

        vlm_peer_close(&pair.p);
    }

    tap_ok(good, "20 workers killed");
}


/* acknowledges cancels; with no rounds until it is killed */

static void
engine(int rounds)
{
    int               rc, n;
    vlm_event_t       e;
    vlm_submission_t  sub;

    while (vlm_peer_accept(&pair.p, pair.listen_fd) == VLM_CHANNEL_AGAIN) {
        wait_for(pair.listen_fd, -1);
    }

    while ((rc = vlm_peer_handshake(&pair.p)) == VLM_CHANNEL_AGAIN) {
        wait_for(pair.p.fd, -1);
    }

    if (rc != VLM_CHANNEL_OK) {
        _exit(1);
    }

    memset(&e, 0, offsetof(vlm_event_t, buf));
    e.type = VLM_EVENT_CANCELLED;

    for (n = 0; rounds == 0 || n < rounds; ) {
        rc = vlm_peer_next(&pair.p, &sub);

        if (rc == VLM_CHANNEL_AGAIN) {
            if (vlm_peer_sleep(&pair.p)
                && wait_for(pair.p.submit_fd, pair.p.fd) == -1)
            {
                _exit(2);
            }

            continue;
        }

        e.slot = sub.slot;
        e.generation = sub.generation;
        n++;

        if (rc != VLM_CHANNEL_OK
            || vlm_peer_send(&pair.p, &e) == VLM_CHANNEL_ERROR)
        {
            _exit(3);
        }

        vlm_peer_ring(&pair.p);
    }

    _exit(0);
}


static pid_t
start_engine(int rounds)
{
    pid_t  pid;

    fflush(stdout);
    pid = fork();

    if (pid == -1) {
        pair_fatal("fork()", strerror(errno));
    }

    if (pid == 0) {
        engine(rounds);
    }

    return pid;
}


static void
open_worker(void)
{
    int  rc;

    rc = vlm_worker_open(&pair.w, &pair.conf, &pair.arena, pair.path);

    if (rc != VLM_CHANNEL_OK) {
        pair_fatal("vlm_worker_open()", pair.w.why);
    }

    while ((rc = vlm_worker_handshake(&pair.w)) == VLM_CHANNEL_AGAIN) {
        wait_for(pair.w.fd, -1);
    }

    if (rc != VLM_CHANNEL_OK) {
        pair_fatal("vlm_worker_handshake()", pair.w.why);
    }
}


/* 0: fd is readable; -1: only the socket is, the other side left */

static int
wait_for(int fd, int socket)
{
    struct pollfd  pfd[2];

    memset(pfd, 0, sizeof(pfd));
    pfd[0].fd = fd;
    pfd[0].events = POLLIN;
    pfd[1].fd = socket;
    pfd[1].events = POLLIN;

    if (poll(pfd, 2, -1) <= 0 || pfd[0].revents == 0) {
        return -1;
    }

    return 0;
}
