
/*
 * An engine without a model: speaks the engine's side of the channel for the
 * tests of the module, with faults on demand.
 *
 *   fake_engine --socket PATH [options]
 *     --mode MODE[,MODE...]  how requests are answered and connections met
 *     --tokens N             tokens of an answer (8)
 *     --delay MS             between tokens (0)
 *     --text TEXT            the answer (default: what was asked, see below)
 *     --context N            context length (4096)
 *     --max-images N         (8)
 *     --max-queue N          (64)
 *     --models A[,B...]      (fake)
 *     --state loading|ready|draining|failed
 *     --ready-after MS       loading first, then ready
 *     --retry-after S        the gauge
 *     --log FILE             what happens, a line each
 *
 * "ready" on stdout: it listens.  SIGUSR1: draining, SIGUSR2: ready, SIGHUP:
 * from now on "slow" and "queued" do not wait, SIGTERM: removes the socket and
 * exits.  The default answer is
 * "roles=...;pictures=N;sha=XXXXXXXX,...;prompt=..." in --tokens pieces (fewer
 * if it is shorter), for "slow" it is "t0 t1 t2 ...".  max_tokens cuts it,
 * with finish "length".  Log probabilities, if asked for, are -(N % 8) / 4 for
 * token number N and 1 less for each alternative, whose bytes are the token's
 * with the alternative's number before them.  A usage of 10 prompt tokens, 64 a picture and one for
 * 4 bytes of the answer; completion tokens count the end token too; outcomes
 * of the cache are miss, joined, hit-memory, hit-redis, prefix in turn.
 *
 * Modes of a request; a last user text "!MODE ARGUMENTS" chooses one too:
 *   ok                           the answer
 *   text TEXT                    this answer
 *   slow [N [MS]]                N tokens, MS apart (8, 50)
 *   silent [N]                   nothing more after N tokens (0)
 *   progress                     no token, but progress each second
 *   queued MS                    progress says "queued" for MS, then answers
 *   error STATUS CODE PARAM TEXT "-" for no PARAM, instead of the answer
 *   busy SECONDS                 error 503 with retry_after
 *   late-error N STATUS CODE PARAM TEXT  after N tokens
 *   die [N]                      exits at once, or after N tokens
 *   close [N]                    the same, but only the connection ends
 *   garbage KIND [N]             after N tokens (1); KIND is type, size0,
 *                                small, odd, large, tail, length, choice,
 *                                slot, generation, reason, stage, status,
 *                                code, outcome, logprobs
 *   stale                        events of other generations in between
 *   wrong-slot                   events for another slot in between
 *   after-done                   one more text after DONE
 *   unfinished                   DONE without FINISH
 *   flood [N [BYTES]]            N texts (1000) of BYTES (4000), at full speed
 *   deaf MS|never [N [MS]]       a cancel is acknowledged late or never,
 *                                tokens go on as in "slow"
 *   length                       finish reason "length"
 *   choices K                    K choices
 *   turns MS                     choices one after the other, MS between them
 *   logprobs K                   log probabilities with K alternatives of 200
 *                                bytes, asked for or not
 *   hold                         input is released only with DONE
 *
 * Modes of a connection (--mode alone):
 *   no-accept hang close-on-accept close-after-hello bad-magic bad-abi
 *   short-welcome refuse-version refuse-fd refuse-busy talk
 */

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "t/engine/fake_engine.h"


conf_t                         conf;

static peer_t                  peers[MAX_PEERS];
static unsigned                npeers;          /* ids given */
static volatile sig_atomic_t   got_signal;


static void
on_signal(int signo)
{
    got_signal = signo;
}


static int
usage(const char *what, const char *value)
{
    fprintf(stderr, "fake_engine: bad option: %s %s\n", what,
            value != NULL ? value : "");

    return -1;
}


static int
parse_modes(char *list)
{
    int    meet;
    char  *mode, *save;

    for (mode = strtok_r(list, ",", &save); mode != NULL;
         mode = strtok_r(NULL, ",", &save))
    {
        meet = find_name(meet_names, mode);

        if (meet != -1) {
            conf.meet = meet;
            continue;
        }

        if (script_parse(&conf.script, mode) == -1) {
            return usage("--mode", mode);
        }
    }

    return 0;
}


static int
parse_models(char *list)
{
    char  *model, *save;

    conf.info.nmodels = 0;

    for (model = strtok_r(list, ",", &save); model != NULL;
         model = strtok_r(NULL, ",", &save))
    {
        if (conf.info.nmodels == VLM_MAX_MODELS) {
            return usage("--models", model);
        }

        snprintf(conf.info.models[conf.info.nmodels++], VLM_MODEL_NAME_LEN,
                 "%s", model);
    }

    return 0;
}


static int
parse_option(const char *name, char *value)
{
    int                 n;
    static const char  *states[] = {
        "loading", "ready", "draining", "failed", NULL
    };

    if (value == NULL) {
        return usage(name, value);
    }

    if (strcmp(name, "--socket") == 0) {
        conf.socket = value;

    } else if (strcmp(name, "--mode") == 0) {
        return parse_modes(value);

    } else if (strcmp(name, "--models") == 0) {
        return parse_models(value);

    } else if (strcmp(name, "--tokens") == 0) {
        conf.tokens = (unsigned) atoi(value);

    } else if (strcmp(name, "--delay") == 0) {
        conf.delay = atoi(value);

    } else if (strcmp(name, "--text") == 0) {
        conf.text = value;

    } else if (strcmp(name, "--context") == 0) {
        conf.info.context_length = (uint32_t) atoi(value);

    } else if (strcmp(name, "--max-images") == 0) {
        conf.info.max_images = (uint32_t) atoi(value);

    } else if (strcmp(name, "--max-queue") == 0) {
        conf.info.max_queue = (uint32_t) atoi(value);

    } else if (strcmp(name, "--ready-after") == 0) {
        conf.state = VLM_STATE_LOADING;
        conf.ready_at = now_ms() + atoi(value);

    } else if (strcmp(name, "--retry-after") == 0) {
        conf.retry_after = (uint32_t) atoi(value);

    } else if (strcmp(name, "--log") == 0) {
        conf.log = fopen(value, "ae");
        return (conf.log == NULL) ? usage(name, strerror(errno)) : 0;

    } else if (strcmp(name, "--state") == 0) {
        n = find_name(states, value);
        conf.state = (uint32_t) n;
        return (n == -1) ? usage(name, value) : 0;

    } else {
        return usage(name, value);
    }

    return 0;
}


static int
parse_options(int argc, char **argv)
{
    int  i;

    conf.tokens = 8;
    conf.state = VLM_STATE_READY;
    conf.ready_at = NEVER;
    conf.info.nmodels = 1;
    conf.info.context_length = 4096;
    conf.info.max_images = 8;
    conf.info.max_queue = 64;
    conf.info.max_image_pixels = 1u << 26;
    strcpy(conf.info.models[0], "fake");

    for (i = 1; i < argc; i += 2) {
        if (parse_option(argv[i], argv[i + 1]) == -1) {
            return -1;
        }
    }

    return (conf.socket == NULL) ? usage("--socket", "is missing") : 0;
}


/* answers a hello without reading it */

static void
meet_badly(peer_t *peer)
{
    size_t         len;
    vlm_welcome_t  w;

    memset(&w, 0, sizeof(vlm_welcome_t));
    w.magic = VLM_MAGIC;
    w.abi = VLM_ABI;
    w.welcome_size = sizeof(vlm_welcome_t);
    w.generation = 1;
    len = sizeof(vlm_welcome_t);

    switch (conf.meet) {

    case MEET_BAD_MAGIC:
        w.magic = 0x4d4c5600u;
        break;

    case MEET_BAD_ABI:
        w.abi = VLM_ABI + 41;
        break;

    case MEET_REFUSE_VERSION:
        w.refused = VLM_WELCOME_VERSION;
        break;

    case MEET_REFUSE_FD:
        w.refused = VLM_WELCOME_BAD_FD;
        break;

    case MEET_REFUSE_BUSY:
        w.refused = VLM_WELCOME_BUSY;
        break;

    case MEET_SHORT:
        len = sizeof(vlm_welcome_t) / 2;
        break;

    default:
        return;
    }

    if (send(peer->vlm.fd, &w, len, MSG_NOSIGNAL) != (ssize_t) len) {
        peer_close(peer, "send() failed");
    }
}


static void
peer_accept(int listen_fd)
{
    unsigned  i;
    peer_t   *peer;

    for (i = 0; i < MAX_PEERS - 1 && peers[i].open; i++) {
        /* void */
    }

    peer = &peers[i];

    if (peer->open || vlm_peer_accept(&peer->vlm, listen_fd)
                      != VLM_CHANNEL_OK)
    {
        return;
    }

    peer->open = 1;
    peer->ready = 0;
    peer->id = ++npeers;

    vlm_peer_set_info(&peer->vlm, &conf.info);
    vlm_peer_set_state(&peer->vlm, conf.state);

    say("peer open id=%u pid=%d", peer->id, (int) peer->vlm.pid);
    say_end();

    if (conf.meet == MEET_CLOSE_ON_ACCEPT) {
        peer_close(peer, "told to");
        return;
    }

    meet_badly(peer);
}


static void
peer_handshake(peer_t *peer)
{
    int  rc;

    rc = vlm_peer_handshake(&peer->vlm);

    if (rc == VLM_CHANNEL_AGAIN) {
        return;
    }

    if (rc != VLM_CHANNEL_OK) {
        peer_close(peer, peer->vlm.why);
        return;
    }

    if (conf.meet == MEET_CLOSE_AFTER_HELLO) {
        peer_close(peer, "told to");
        return;
    }

    say("peer ready id=%u arena=%llu requests=%u generation=%u", peer->id,
        (unsigned long long) peer->vlm.arena_size,
        peer->vlm.hello.max_requests, peer->vlm.hello.generation);
    say_end();

    peer->ready = 1;

    if (conf.meet == MEET_TALK) {
        (void) !send(peer->vlm.fd, "talk", 4, MSG_NOSIGNAL);
    }
}


static void
peer_submissions(peer_t *peer)
{
    int               rc;
    vlm_submission_t  sub;

    for ( ;; ) {
        rc = vlm_peer_next(&peer->vlm, &sub);

        if (rc == VLM_CHANNEL_AGAIN) {
            return;
        }

        if (rc != VLM_CHANNEL_OK) {
            peer_close(peer, peer->vlm.why);
            return;
        }

        job_submit(peer, &sub);
    }
}


static void
peer_socket(peer_t *peer)
{
    if (!peer->ready) {
        peer_handshake(peer);
        return;
    }

    if (vlm_peer_check(&peer->vlm) != VLM_CHANNEL_OK) {
        peer_close(peer, peer->vlm.why);
    }
}


/* state and gauges for the workers, doorbells for what was said */

static void
tell_workers(int64_t now)
{
    unsigned      i;
    job_t        *job;
    vlm_gauges_t  gauges;

    static uint64_t  turns;

    if (got_signal == SIGUSR1) {
        conf.state = VLM_STATE_DRAINING;
        got_signal = 0;
    }

    if (got_signal == SIGHUP) {
        conf.hurry = 1;
        got_signal = 0;
    }

    if (got_signal == SIGUSR2 || now >= conf.ready_at) {
        conf.state = VLM_STATE_READY;
        conf.ready_at = NEVER;
        got_signal = (got_signal == SIGUSR2) ? 0 : got_signal;
    }

    memset(&gauges, 0, sizeof(vlm_gauges_t));
    gauges.kv_blocks = 1000;
    gauges.kv_blocks_free = 900;
    gauges.first_token_ms = 15;
    gauges.retry_after = conf.retry_after;
    gauges.heartbeat = ++turns;

    for (job = jobs; job != NULL; job = job->next) {
        if (job->step == STEP_QUEUED) {
            gauges.queued++;

        } else {
            gauges.running++;
        }
    }

    for (i = 0; i < MAX_PEERS; i++) {
        if (peers[i].open) {
            vlm_peer_set_state(&peers[i].vlm, conf.state);
            vlm_peer_set_gauges(&peers[i].vlm, &gauges);
        }

        if (peers[i].ready) {
            vlm_peer_ring(&peers[i].vlm);
        }
    }
}


static void
wait_events(int listen_fd, int64_t next)
{
    int            n, timeout;
    int64_t        now;
    unsigned       i;
    struct pollfd  pfd[1 + 2 * MAX_PEERS];

    now = now_ms();
    next = (conf.ready_at < next) ? conf.ready_at : next;

    /* its heart beats */

    timeout = (next <= now) ? 0 : (next - now > 100) ? 100
                                                    : (int) (next - now);

    for (i = 0; i < 1 + 2 * MAX_PEERS; i++) {
        pfd[i].fd = -1;
        pfd[i].events = POLLIN;
        pfd[i].revents = 0;
    }

    if (conf.meet != MEET_NO_ACCEPT) {
        pfd[0].fd = listen_fd;
    }

    for (i = 0; i < MAX_PEERS; i++) {

        if (!peers[i].open) {
            continue;
        }

        if (conf.meet != MEET_HANG && conf.meet != MEET_SHORT) {
            pfd[1 + 2 * i].fd = peers[i].vlm.fd;
        }

        if (peers[i].ready) {
            pfd[2 + 2 * i].fd = peers[i].vlm.submit_fd;

            if (vlm_peer_sleep(&peers[i].vlm) == 0) {
                timeout = 0;
            }
        }
    }

    n = poll(pfd, 1 + 2 * MAX_PEERS, timeout);

    for (i = 0; n >= 0 && i < MAX_PEERS; i++) {

        if (peers[i].ready) {
            peer_submissions(&peers[i]);
        }

        if (peers[i].open && pfd[1 + 2 * i].revents != 0) {
            peer_socket(&peers[i]);
        }
    }

    if (n > 0 && pfd[0].revents != 0) {
        peer_accept(listen_fd);
    }
}


int
main(int argc, char **argv)
{
    int               fd;
    char              why[200];
    int64_t           next;
    struct sigaction  sa;

    if (parse_options(argc, argv) == -1) {
        return 2;
    }

    memset(&sa, 0, sizeof(struct sigaction));
    sa.sa_handler = on_signal;
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGHUP, &sa, NULL);
    sigaction(SIGUSR1, &sa, NULL);
    sigaction(SIGUSR2, &sa, NULL);

    fd = vlm_listen(conf.socket, 0666, NULL, why, sizeof(why));

    if (fd == -1) {
        fprintf(stderr, "fake_engine: %s\n", why);
        return 1;
    }

    printf("ready\n");
    fflush(stdout);

    while (got_signal != SIGTERM && got_signal != SIGINT) {
        next = jobs_run(now_ms());
        tell_workers(now_ms());
        wait_events(fd, next);
    }

    unlink(conf.socket);

    return 0;
}
