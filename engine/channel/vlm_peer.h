
/*
 * The engine's end of a channel: a listening socket, and one vlm_peer_t for
 * each nginx worker.  Nothing here blocks, logs or exits.  A peer belongs to
 * one thread, except vlm_peer_arena()'s result, which any thread may read
 * until the peer is closed.
 */

#ifndef VLM_PEER_H
#define VLM_PEER_H


#include <sys/types.h>

#include "vlm_event.h"


#define VLM_CHANNEL_OK          0
#define VLM_CHANNEL_AGAIN       1
#define VLM_CHANNEL_CLOSED      2
#define VLM_CHANNEL_ERROR       3


typedef struct {
    int                  fd;                /* the socket */
    int                  submit_fd;         /* readable: submissions wait */
    int                  event_fd;
    unsigned             state;             /* private */

    vlm_ring_header_t   *header;
    vlm_submission_t    *submissions;
    uint8_t             *events;
    uint64_t             ring_size;
    const uint8_t       *arena;             /* PROT_READ mapping */
    uint64_t             arena_size;

    vlm_hello_t          hello;
    uint32_t             hello_pos;
    uint32_t             nfds;
    int                  fds[VLM_NFDS];     /* until the hello is complete */

    uint64_t             submit_head;       /* private copies */
    uint64_t             event_tail;
    uint64_t             rung_tail;         /* event_tail at the last ring */
    uint32_t             info_version;

    uint32_t             first_state;       /* until there is a header page */
    uint32_t             informed;
    vlm_engine_info_t    first_info;
    vlm_gauges_t         first_gauges;

    pid_t                pid;               /* from SO_PEERCRED */
    uid_t                uid;
    char                 why[160];
    int                  err;
} vlm_peer_t;


/*
 * Binds and listens.  A stale socket file (ECONNREFUSED) is removed; a live
 * engine behind it is an error.  group may be NULL.  Returns the descriptor,
 * non-blocking and close-on-exec, or -1 and a message in why.
 */
int vlm_listen(const char *path, mode_t mode, const char *group, char *why,
    size_t whylen);

/* Accepts one connection.  OK; AGAIN: none waits; ERROR. */
int vlm_peer_accept(vlm_peer_t *p, int listen_fd);

/*
 * Reads the hello and answers; call when the socket is readable, until OK.
 * On ERROR the refusal has been sent where it could be.
 */
int vlm_peer_handshake(vlm_peer_t *p);

/* sends a welcome with this reason (VLM_WELCOME_BUSY), not a handshake */
void vlm_peer_refuse(vlm_peer_t *p, uint32_t reason);

/* why and err survive it; it may be called twice */
void vlm_peer_close(vlm_peer_t *p);

/* the socket is readable after the handshake: CLOSED, OK or ERROR */
int vlm_peer_check(vlm_peer_t *p);

/*
 * What the worker can read in the header page.  They may be set from
 * vlm_peer_accept() on: the worker finds with its welcome what was set before.
 */
void vlm_peer_set_state(vlm_peer_t *p, uint32_t state);
void vlm_peer_set_info(vlm_peer_t *p, const vlm_engine_info_t *info);
void vlm_peer_set_gauges(vlm_peer_t *p, const vlm_gauges_t *gauges);

/*
 * The next submission, checked: type, slot below max_requests, generation
 * not 0, and for requests a record of at most VLM_MAX_RECORD bytes, 8-byte
 * aligned, inside the arena.  AGAIN: none.  ERROR: close the peer.
 */
int vlm_peer_next(vlm_peer_t *p, vlm_submission_t *sub);

/* as vlm_worker_sleep(), for submit_fd */
int vlm_peer_sleep(vlm_peer_t *p);

/* a checked place in the arena, NULL if it is not inside */
const uint8_t *vlm_peer_arena(const vlm_peer_t *p, uint64_t offset,
    uint64_t length);

/*
 * Writes one event (event->text: u.text.length or u.error.length bytes, at
 * most VLM_MAX_EVENT_TEXT; event->logprobs: u.text.nlogprobs bytes, at most
 * VLM_MAX_EVENT_LOGPROBS).  AGAIN: the ring has no room; keep the event and
 * try later: the worker does not tell when it made room.  ERROR: the event is
 * impossible or the ring is damaged.  Does not ring: call vlm_peer_ring() once
 * after a batch.
 */
int vlm_peer_send(vlm_peer_t *p, const vlm_event_t *event);

/* bytes free in the event ring; 0 if it is damaged, and send will tell */
size_t vlm_peer_room(vlm_peer_t *p);
void vlm_peer_ring(vlm_peer_t *p);


#endif /* VLM_PEER_H */
