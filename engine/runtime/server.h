
/* The engine behind its unix socket: one epoll loop. */

#ifndef VLM_SERVER_H
#define VLM_SERVER_H


#include <sys/types.h>

#include "engine/runtime/engine.h"


typedef struct vlm_server_s  vlm_server_t;

typedef struct {
    vlm_engine_conf_t   engine;
    const char         *socket;
    mode_t              mode;
    const char         *group;          /* NULL: unchanged */
    int                 signals;        /* SIGTERM and SIGINT, which every
                                           thread must have blocked */
} vlm_server_conf_t;


/* listens at once; the model is loaded meanwhile */
vlm_server_t *vlm_server_create(const vlm_server_conf_t *conf,
    vlm_error_t *err);

/*
 * Serves until it is drained: VLM_OK.  VLM_AGAIN: it was told to end at once
 * while threads were busy, the process must leave with _exit().  VLM_ERROR:
 * the model could not be loaded, or the loop failed.
 */
int vlm_server_run(vlm_server_t *s, vlm_error_t *err);

/* the socket is removed; not after VLM_AGAIN */
void vlm_server_destroy(vlm_server_t *s);

/* as the first SIGTERM does; from any thread */
void vlm_server_drain(vlm_server_t *s);


/* one line for systemd, if $NOTIFY_SOCKET is set; VLM_ERROR: it is wrong */
int vlm_notify(const char *state, vlm_error_t *err);


#endif /* VLM_SERVER_H */
