
/* Both ends of a channel in one process, over a socket in a new directory. */

#ifndef CHANNEL_PAIR_H
#define CHANNEL_PAIR_H


#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/channel/vlm_peer.h"
#include "engine/channel/vlm_record.h"
#include "engine/channel/vlm_worker.h"
#include "t/unit/lib/tap.h"


typedef struct {
    char               dir[32];
    char               path[64];
    int                listen_fd;
    vlm_arena_t        arena;
    vlm_worker_conf_t  conf;
    vlm_worker_t       w;
    vlm_peer_t         p;
} pair_t;


static inline void
pair_fatal(const char *what, const char *why)
{
    printf("Bail out! %s: %s\n", what, why);
    exit(1);
}


static inline void
pair_init(pair_t *pair)
{
    char         why[200];
    const char  *what;

    memset(pair, 0, sizeof(pair_t));

    snprintf(pair->dir, sizeof(pair->dir), "/tmp/vlm-channel-XXXXXX");

    if (mkdtemp(pair->dir) == NULL) {
        pair_fatal("mkdtemp()", strerror(errno));
    }

    snprintf(pair->path, sizeof(pair->path), "%s/engine.sock", pair->dir);

    pair->listen_fd = vlm_listen(pair->path, 0660, NULL, why, sizeof(why));

    if (pair->listen_fd == -1) {
        pair_fatal("vlm_listen()", why);
    }

    if (vlm_arena_create(&pair->arena, 1 << 20, &what) == -1) {
        pair_fatal(what, strerror(errno));
    }

    pair->conf.nsubmissions = 8;
    pair->conf.event_ring_size = VLM_MIN_EVENT_RING;
    pair->conf.max_requests = 16;
    pair->conf.generation = 1;
}


static inline void
pair_connect(pair_t *pair)
{
    int  rc;

    rc = vlm_worker_open(&pair->w, &pair->conf, &pair->arena, pair->path);

    if (rc != VLM_CHANNEL_OK) {
        pair_fatal("vlm_worker_open()", pair->w.why);
    }

    rc = vlm_peer_accept(&pair->p, pair->listen_fd);

    if (rc != VLM_CHANNEL_OK) {
        pair_fatal("vlm_peer_accept()", pair->p.why);
    }

    rc = vlm_peer_handshake(&pair->p);

    if (rc != VLM_CHANNEL_OK) {
        pair_fatal("vlm_peer_handshake()", pair->p.why);
    }

    rc = vlm_worker_handshake(&pair->w);

    if (rc != VLM_CHANNEL_OK) {
        pair_fatal("vlm_worker_handshake()", pair->w.why);
    }
}


static inline void
pair_disconnect(pair_t *pair)
{
    vlm_worker_close(&pair->w);
    vlm_peer_close(&pair->p);
}


static inline void
pair_destroy(pair_t *pair)
{
    pair_disconnect(pair);
    vlm_arena_destroy(&pair->arena);
    close(pair->listen_fd);
    unlink(pair->path);
    rmdir(pair->dir);
}


static inline int
pair_readable(int fd)
{
    struct pollfd  pfd;

    pfd.fd = fd;
    pfd.events = POLLIN;
    pfd.revents = 0;

    return poll(&pfd, 1, 0) == 1;
}


/* descriptors that this process has open */

static inline int
pair_count_fds(void)
{
    int  fd, n;

    for (n = 0, fd = 0; fd < 256; fd++) {
        if (fcntl(fd, F_GETFD) != -1) {
            n++;
        }
    }

    return n;
}


#endif /* CHANNEL_PAIR_H */
