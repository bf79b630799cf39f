
/*
 * The worker's end of a channel.  Nothing here blocks, logs or exits.  One
 * vlm_worker_t is one connection to one engine; after a failure close it and
 * open a new one, with a new generation.  Not thread-safe.
 */

#ifndef VLM_WORKER_H
#define VLM_WORKER_H


#include "vlm_arena.h"
#include "vlm_event.h"


#define VLM_CHANNEL_OK          0
#define VLM_CHANNEL_AGAIN       1       /* wait for the descriptor, or full */
#define VLM_CHANNEL_CLOSED      2       /* the other side is gone */
#define VLM_CHANNEL_ERROR       3       /* see "why" */


typedef struct {
    uint32_t             nsubmissions;      /* power of two */
    uint32_t             event_ring_size;   /* power of two, bytes */
    uint32_t             max_requests;
    uint32_t             generation;
} vlm_worker_conf_t;

typedef struct {
    int                  fd;                /* the socket, -1 if closed */
    int                  event_fd;          /* readable: events wait */
    int                  submit_fd;
    int                  ring_fd;
    unsigned             state;             /* private */

    vlm_ring_header_t   *header;
    vlm_submission_t    *submissions;
    uint8_t             *events;
    uint64_t             ring_size;

    vlm_worker_conf_t    conf;
    const vlm_arena_t   *arena;

    uint64_t             submit_tail;       /* private copies */
    uint64_t             event_head;
    uint32_t             welcome_pos;
    vlm_welcome_t        welcome;

    char                 why[160];          /* of the last failure */
    int                  err;               /* errno of it, or 0 */
} vlm_worker_t;


/*
 * Starts a non-blocking connect to the unix socket "path".
 * OK or AGAIN: w->fd is open; wait until it is writable (AGAIN) or readable,
 * then call vlm_worker_handshake() until it returns OK.  A full backlog
 * (EAGAIN) is VLM_CHANNEL_ERROR with err EAGAIN: try again later.  On CLOSED
 * and ERROR nothing is left open.
 */
int vlm_worker_open(vlm_worker_t *w, const vlm_worker_conf_t *conf,
    const vlm_arena_t *arena, const char *path);
int vlm_worker_handshake(vlm_worker_t *w);
void vlm_worker_close(vlm_worker_t *w);

/* why and err survive vlm_worker_close(), which may be called twice */

/*
 * To be called when the socket gets readable after the handshake: CLOSED when
 * the engine is gone, OK when it is still there, ERROR if it sent anything.
 */
int vlm_worker_check(vlm_worker_t *w);

/*
 * The engine's state (VLM_STATE_*; FAILED if it is none of them), gauges, and
 * a consistent copy of info: names are terminated, nmodels is in range.  OK,
 * or AGAIN if the engine has not told it yet or is just telling it.
 */
uint32_t vlm_worker_state(const vlm_worker_t *w);
void vlm_worker_gauges(const vlm_worker_t *w, vlm_gauges_t *gauges);
int vlm_worker_info(const vlm_worker_t *w, vlm_engine_info_t *info);

/* AGAIN: the submission ring is full.  Rings the doorbell if needed. */
int vlm_worker_submit(vlm_worker_t *w, uint32_t slot, uint32_t generation,
    uint64_t offset, uint32_t length);
int vlm_worker_cancel(vlm_worker_t *w, uint32_t slot, uint32_t generation);

/*
 * Takes the next event; event->text points into event itself.  AGAIN: none
 * left.  ERROR: the ring is damaged, the channel must be closed.  Types,
 * sizes and the slot's range are checked; the slot's generation is the
 * caller's to compare.
 */
int vlm_worker_next(vlm_worker_t *w, vlm_event_t *event);

/*
 * Before waiting: reads the eventfd, publishes that the worker sleeps, checks
 * once more.  1: wait for event_fd.  0: events are there, go on taking them.
 */
int vlm_worker_sleep(vlm_worker_t *w);


#endif /* VLM_WORKER_H */
