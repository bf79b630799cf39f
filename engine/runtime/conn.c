
/*
 * Connections of nginx workers.  A broken one is closed, never the process;
 * its arena stays mapped until the last of its requests has come back from
 * the threads that may be reading it.
 */

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "engine/runtime/server_internal.h"


/* submissions taken in one turn: nobody can keep the loop for itself */
#define TAKE_AT_ONCE    256


static void conn_handshake(vlm_conn_t *c);


void
vlm_conn_accept(vlm_server_t *s)
{
    int          rc;
    vlm_conn_t  *c;

    for ( ;; ) {
        c = calloc(1, sizeof(vlm_conn_t));
        if (c == NULL) {
            vlm_log(VLM_LOG_ERROR, "no memory for a connection");
            return;
        }

        rc = vlm_peer_accept(&c->peer, s->listen_fd);

        if (rc != VLM_CHANNEL_OK) {
            if (rc != VLM_CHANNEL_AGAIN) {
                vlm_log(VLM_LOG_ERROR, "cannot accept a connection: %s, "
                        "next try in a second", c->peer.why);

                /* as long as descriptors lack it would be tried for ever */
                epoll_ctl(s->epoll, EPOLL_CTL_DEL, s->listen_fd, NULL);
                s->deaf_us = vlm_now_us();
            }

            free(c);
            return;
        }

        c->server = s;
        c->accepted_us = vlm_now_us();
        c->on_peer.kind = VLM_WATCH_PEER;
        c->on_peer.conn = c;
        c->on_submit.kind = VLM_WATCH_SUBMIT;
        c->on_submit.conn = c;

        if (s->nconns == VLM_MAX_PEERS
            || vlm_server_watch(s, c->peer.fd, &c->on_peer) != VLM_OK)
        {
            vlm_log(VLM_LOG_ERROR, "worker %d refused: %d are connected",
                    (int) c->peer.pid, s->nconns);
            vlm_peer_refuse(&c->peer, VLM_WELCOME_BUSY);
            vlm_peer_close(&c->peer);
            free(c);
            continue;
        }

        vlm_conn_set_state(c);

        c->next = s->conns;

        if (s->conns != NULL) {
            s->conns->prev = c;
        }

        s->conns = c;
        s->nconns++;
    }
}


void
vlm_conn_readable(vlm_conn_t *c)
{
    if (c->dead) {
        return;
    }

    if (c->slots == NULL) {
        conn_handshake(c);
        return;
    }

    switch (vlm_peer_check(&c->peer)) {

    case VLM_CHANNEL_OK:
        break;

    case VLM_CHANNEL_CLOSED:
        vlm_conn_close(c, VLM_LOG_INFO, c->peer.why);
        break;

    default:
        vlm_conn_close(c, VLM_LOG_ERROR, c->peer.why);
    }
}


static void
conn_handshake(vlm_conn_t *c)
{
    switch (vlm_peer_handshake(&c->peer)) {

    case VLM_CHANNEL_OK:
        break;

    case VLM_CHANNEL_AGAIN:
        return;

    case VLM_CHANNEL_CLOSED:
        vlm_conn_close(c, VLM_LOG_INFO, c->peer.why);
        return;

    default:
        vlm_conn_close(c, VLM_LOG_ERROR, c->peer.why);
        return;
    }

    c->slots = calloc(c->peer.hello.max_requests, sizeof(vlm_call_t *));

    if (c->slots == NULL
        || vlm_server_watch(c->server, c->peer.submit_fd, &c->on_submit)
           != VLM_OK)
    {
        vlm_conn_close(c, VLM_LOG_ERROR, "no resources for it");
        return;
    }

    vlm_log(VLM_LOG_INFO, "worker %d (uid %d) connected: generation %u, "
            "arena %.1f MiB, %u requests", (int) c->peer.pid,
            (int) c->peer.uid, c->peer.hello.generation,
            (double) c->peer.arena_size / 1048576,
            c->peer.hello.max_requests);

    /* anything that came before the descriptor was watched */
    c->more = 1;
}


void
vlm_conn_submissions(vlm_conn_t *c)
{
    int               n;
    vlm_submission_t  sub;

    c->more = 0;

    for (n = 0; !c->dead && c->slots != NULL; n++) {

        if (n == TAKE_AT_ONCE) {
            c->more = 1;
            return;
        }

        switch (vlm_peer_next(&c->peer, &sub)) {

        case VLM_CHANNEL_OK:
            if (sub.type == VLM_SUBMIT_REQUEST) {
                vlm_call_begin(c, &sub);

            } else {
                vlm_call_cancel(c, &sub);
            }

            break;

        case VLM_CHANNEL_AGAIN:
            if (vlm_peer_sleep(&c->peer) == 1) {
                return;
            }

            break;

        default:
            vlm_conn_close(c, VLM_LOG_ERROR, c->peer.why);
        }
    }
}


void
vlm_conn_set_state(vlm_conn_t *c)
{
    vlm_engine_info_t  info;

    if (c->dead) {
        return;
    }

    if (c->server->loaded) {
        vlm_engine_info(c->server->engine, &info);
        vlm_peer_set_info(&c->peer, &info);
    }

    vlm_peer_set_state(&c->peer, c->server->state);
}


void
vlm_conn_gauges(vlm_conn_t *c, const vlm_gauges_t *gauges)
{
    if (!c->dead) {
        vlm_peer_set_gauges(&c->peer, gauges);
    }
}


void
vlm_conn_close(vlm_conn_t *c, int level, const char *why)
{
    vlm_call_t  *call;

    if (c->dead) {
        return;
    }

    c->dead = 1;

    vlm_log(level, "worker %d: %s, %u requests dropped", (int) c->peer.pid,
            why, c->ncalls);

    /* the other side sees it at once; what is mapped stays */

    epoll_ctl(c->server->epoll, EPOLL_CTL_DEL, c->peer.fd, NULL);

    if (c->slots != NULL) {
        epoll_ctl(c->server->epoll, EPOLL_CTL_DEL, c->peer.submit_fd, NULL);
    }

    shutdown(c->peer.fd, SHUT_RDWR);

    for (call = c->calls; call != NULL; call = call->next) {
        if (!call->final) {
            vlm_engine_cancel(c->server->engine, call->req);
        }
    }
}


int
vlm_conn_reap(vlm_conn_t *c)
{
    vlm_call_t  *call, *next;

    if (!c->dead) {
        return 0;
    }

    for (call = c->calls; call != NULL; call = next) {
        next = call->next;

        if (call->final) {
            vlm_call_end(call);
        }
    }

    if (c->ncalls != 0) {
        return 0;
    }

    if (c->prev != NULL) {
        c->prev->next = c->next;

    } else {
        c->server->conns = c->next;
    }

    if (c->next != NULL) {
        c->next->prev = c->prev;
    }

    c->server->nconns--;

    vlm_peer_close(&c->peer);
    free(c->slots);
    free(c);

    return 1;
}
