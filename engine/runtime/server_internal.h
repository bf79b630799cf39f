
/* Inside the server: its connections and the requests in flight. */

#ifndef VLM_SERVER_INTERNAL_H
#define VLM_SERVER_INTERNAL_H


#include <sys/stat.h>

#include "engine/channel/vlm_peer.h"
#include "engine/runtime/server.h"


#define VLM_MAX_PEERS       1024

typedef struct vlm_conn_s  vlm_conn_t;
typedef struct vlm_call_s  vlm_call_t;


/* what an epoll event is about */

typedef enum {
    VLM_WATCH_LISTEN = 0,
    VLM_WATCH_ENGINE,
    VLM_WATCH_SIGNAL,
    VLM_WATCH_WAKE,
    VLM_WATCH_PEER,
    VLM_WATCH_SUBMIT
} vlm_watch_kind_t;

typedef struct {
    vlm_watch_kind_t    kind;
    vlm_conn_t         *conn;
} vlm_watch_t;


/* one request of a worker, from its submission to its last event */

struct vlm_call_s {
    vlm_req_t          *req;            /* the engine's until "final" */
    vlm_conn_t         *conn;
    vlm_call_t         *prev;
    vlm_call_t         *next;

    vlm_mail_t          out;            /* not yet in the event ring */
    int                 progress;       /* to be sent */
    uint32_t            stage;
    uint32_t            place;
    uint64_t            said_us;        /* of the last event */

    int                 started;        /* has left the queue */
    int                 final;
    int                 cancelled;      /* by the worker: to be acknowledged */
    uint32_t            finish;         /* for the log */
};

struct vlm_conn_s {
    vlm_server_t       *server;
    vlm_peer_t          peer;
    vlm_conn_t         *prev;
    vlm_conn_t         *next;
    vlm_watch_t         on_peer;
    vlm_watch_t         on_submit;

    vlm_call_t        **slots;          /* by slot; NULL before the hello */
    vlm_call_t         *calls;
    uint32_t            ncalls;

    int                 dead;           /* waits for its requests */
    int                 more;           /* submissions are left to take */
    int                 blocked;        /* events wait for room */
    uint64_t            accepted_us;
};

struct vlm_server_s {
    vlm_server_conf_t   conf;
    vlm_engine_t       *engine;

    int                 epoll;
    int                 listen_fd;
    int                 signal_fd;
    int                 wake_fd;        /* eventfd: drain */
    vlm_watch_t         on_listen;
    vlm_watch_t         on_engine;
    vlm_watch_t         on_signal;
    vlm_watch_t         on_wake;
    struct stat         socket_stat;
    uint64_t            deaf_us;        /* since when nothing is accepted */

    vlm_conn_t         *conns;
    int                 nconns;

    uint32_t            state;          /* VLM_STATE_* */
    int                 loaded;         /* the engine can be asked */
    int                 failed;         /* it has since, and must end */
    int                 terminate;      /* signals so far */
    uint64_t            order;
    uint64_t            heartbeat;
    uint32_t            nqueued;        /* calls that have not started */
    uint32_t            nrunning;       /* calls that have */
    uint64_t            drained_us;     /* when the last one ended */

    vlm_event_t         event;
    char                logprobs[VLM_MAX_EVENT_LOGPROBS];
};


/* ---- server.c ---- */

int vlm_server_watch(vlm_server_t *s, int fd, vlm_watch_t *w);

/* seconds after which another try may do better */
uint32_t vlm_server_retry_after(vlm_server_t *s);


/* ---- conn.c: connections ---- */

void vlm_conn_accept(vlm_server_t *s);
void vlm_conn_readable(vlm_conn_t *c);
void vlm_conn_submissions(vlm_conn_t *c);
void vlm_conn_close(vlm_conn_t *c, int level, const char *why);
void vlm_conn_set_state(vlm_conn_t *c);
void vlm_conn_gauges(vlm_conn_t *c, const vlm_gauges_t *gauges);

/* frees a connection that is dead and has no requests any more */
int vlm_conn_reap(vlm_conn_t *c);


/* ---- call.c: requests ---- */

void vlm_call_begin(vlm_conn_t *c, const vlm_submission_t *sub);
void vlm_call_cancel(vlm_conn_t *c, const vlm_submission_t *sub);
void vlm_call_mail(vlm_call_t *call, vlm_mail_t *mail);

/* puts what waits into the event ring, as far as there is room */
void vlm_call_flush(vlm_call_t *call);

/* logs and frees a request that is final: its last event has been sent */
void vlm_call_end(vlm_call_t *call);

/* a sign of life, if nothing has been said for a second */
void vlm_call_tick(vlm_call_t *call, uint64_t now);


#endif /* VLM_SERVER_INTERNAL_H */
