
/* A server in a thread, and workers that talk to it as NGINX would. */

#ifndef RUNTIME_CLIENT_H
#define RUNTIME_CLIENT_H


#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/channel/vlm_worker.h"
#include "engine/runtime/server.h"
#include "t/unit/lib/tap.h"


#define MAX_SLOTS   32

typedef struct {
    vlm_server_conf_t   conf;
    char                dir[32];
    char                path[64];
    vlm_server_t       *server;
    pthread_t           thread;
    int                 result;
    vlm_error_t         error;
} served_t;

/* what has been heard about a request */

typedef struct {
    uint32_t            generation;
    int                 used;           /* submitted, has not ended */
    uint64_t            region;         /* in the arena */
    char                order[64];      /* a letter for each kind of event */
    vlm_buf_t           text;
    vlm_buf_t           logprobs;       /* of all events */
    uint32_t            ntokens;
    vlm_event_admitted_t  admitted;
    uint32_t            stage;
    uint32_t            finish;
    vlm_event_done_t    done;
    vlm_event_error_t   error;
    char                message[512];
    char                last;           /* 'D', 'E', 'C' */
} heard_t;

typedef struct {
    vlm_arena_t         arena;
    vlm_worker_conf_t   conf;
    vlm_worker_t        w;
    heard_t             slots[MAX_SLOTS];
    int                 closed;
    vlm_event_t         event;
} client_t;

typedef struct {
    const char         *prompt;
    size_t              prompt_len;     /* 0: of the string */
    const char         *pictures[4];
    const char         *model;
    const char         *stop;
    vlm_sampling_t      sampling;
    uint32_t            flags;
    uint64_t            deadline_ms;
    uint64_t            received_ms;
    const char         *scope;
    const uint8_t      *digests[4];     /* NULL: left to the engine */
} question_t;


static inline void
die(const char *what, const char *why)
{
    printf("Bail out! %s: %s\n", what, why);
    exit(1);
}


static inline void
served_init(served_t *s)
{
    vlm_engine_conf_t  *e;

    memset(s, 0, sizeof(*s));

    snprintf(s->dir, sizeof(s->dir), "/tmp/vlm-runtime-XXXXXX");

    if (mkdtemp(s->dir) == NULL) {
        die("mkdtemp()", strerror(errno));
    }

    snprintf(s->path, sizeof(s->path), "%s/engine.sock", s->dir);

    s->conf.socket = s->path;
    s->conf.mode = 0600;

    e = &s->conf.engine;
    e->model = strdup(tap_path("models/demo"));
    e->device = VLM_DEVICE_CPU;
    e->threads = 2;
    e->image_threads = 2;
    e->embedding_dtype = VLM_BF16;
    e->max_num_seqs = 8;
    e->max_rows = 256;
    e->max_queue = 16;
    e->queue_timeout_ms = 600000;
    e->max_images = 3;
    e->max_image_pixels = 1 << 24;
    e->block_size = 16;
    e->kv_memory = 64 << 20;
}


static inline void *
served_main(void *data)
{
    served_t  *s = data;

    s->result = vlm_server_run(s->server, &s->error);

    return NULL;
}


static inline void
served_start(served_t *s)
{
    s->server = vlm_server_create(&s->conf, &s->error);

    if (s->server == NULL) {
        die("vlm_server_create()", s->error.message);
    }

    if (pthread_create(&s->thread, NULL, served_main, s) != 0) {
        die("pthread_create()", "");
    }
}


static inline void
served_stop(served_t *s)
{
    vlm_server_drain(s->server);
    pthread_join(s->thread, NULL);
    tap_is(s->result, VLM_OK, "the server drains");

    vlm_server_destroy(s->server);
    tap_ok(access(s->path, F_OK) == -1, "and removes its socket");

    free((char *) s->conf.engine.model);
    rmdir(s->dir);
}


static inline void
client_open(client_t *c, const served_t *s, uint32_t ring)
{
    int             rc;
    const char     *what;
    struct pollfd   pfd;

    memset(c, 0, sizeof(*c));

    if (vlm_arena_create(&c->arena, 16 << 20, &what) == -1) {
        die(what, strerror(errno));
    }

    c->conf.nsubmissions = 64;
    c->conf.event_ring_size = ring;
    c->conf.max_requests = MAX_SLOTS;
    c->conf.generation = 1;

    rc = vlm_worker_open(&c->w, &c->conf, &c->arena, s->path);

    if (rc == VLM_CHANNEL_ERROR) {
        die("vlm_worker_open()", c->w.why);
    }

    while ((rc = vlm_worker_handshake(&c->w)) == VLM_CHANNEL_AGAIN) {
        pfd.fd = c->w.fd;
        pfd.events = POLLIN;
        poll(&pfd, 1, 1000);
    }

    if (rc != VLM_CHANNEL_OK) {
        die("vlm_worker_handshake()", c->w.why);
    }
}


static inline void
client_wait_ready(client_t *c)
{
    while (vlm_worker_state(&c->w) == VLM_STATE_LOADING) {
        usleep(2000);
    }
}


static inline void
client_close(client_t *c)
{
    int  i;

    vlm_worker_close(&c->w);
    vlm_arena_destroy(&c->arena);

    for (i = 0; i < MAX_SLOTS; i++) {
        vlm_buf_free(&c->slots[i].text);
        vlm_buf_free(&c->slots[i].logprobs);
    }
}


static inline void
arena_put(client_t *c, uint64_t region, vlm_buf_t *buf, vlm_extent_t *x,
    const void *data, size_t len)
{
    x->offset = region + buf->len;
    x->length = len;
    vlm_buf_append(buf, data, len);
    (void) c;
}


/* writes a request into the arena and submits it in a slot */

static inline void
client_ask(client_t *c, uint32_t slot, const question_t *q)
{
    int              n;
    char            *data;
    size_t           len, size;
    heard_t         *h;
    vlm_buf_t        buf = {0};
    vlm_str_t        stop;
    vlm_part_t       parts[8];
    vlm_error_t      err;
    vlm_message_t    message;
    vlm_picture_t    pictures[4];
    vlm_request_t    req;

    h = &c->slots[slot];
    vlm_buf_free(&h->text);
    vlm_buf_free(&h->logprobs);
    n = (int) h->generation;
    memset(h, 0, sizeof(*h));
    h->generation = (uint32_t) n + 1;
    h->used = 1;

    if (vlm_arena_reserve(&c->arena, 1 << 19, &h->region) == -1) {
        die("vlm_arena_reserve()", "no room");
    }

    memset(&req, 0, sizeof(req));
    memset(parts, 0, sizeof(parts));
    memset(pictures, 0, sizeof(pictures));

    for (n = 0; n < 4 && q->pictures[n] != NULL; n++) {
        if (vlm_read_file(q->pictures[n], 1 << 18, &data, &len, &err)
            != VLM_OK)
        {
            die("picture", err.message);
        }

        arena_put(c, h->region, &buf, &pictures[n].bytes, data, len);
        free(data);

        if (q->digests[n] != NULL) {
            memcpy(pictures[n].sha256, q->digests[n], 32);
        }

        parts[n].type = VLM_PART_PICTURE;
        parts[n].picture = (uint32_t) n;
    }

    len = q->prompt_len != 0 ? q->prompt_len : strlen(q->prompt);
    parts[n].type = VLM_PART_TEXT;
    arena_put(c, h->region, &buf, &parts[n].text, q->prompt, len);

    message.role = VLM_ROLE_USER;
    message.first_part = 0;
    message.nparts = (uint32_t) n + 1;

    req.request_id.data = "test";
    req.request_id.len = 4;
    req.messages = &message;
    req.nmessages = 1;
    req.parts = parts;
    req.nparts = (uint32_t) n + 1;
    req.pictures = pictures;
    req.npictures = (uint32_t) n;
    req.sampling = q->sampling;
    req.flags = q->flags;
    req.deadline_ms = q->deadline_ms;
    req.received_ms = q->received_ms;

    if (req.sampling.nchoices == 0) {
        req.sampling.nchoices = 1;
    }

    if (q->scope != NULL) {
        req.scope.data = q->scope;
        req.scope.len = (uint32_t) strlen(q->scope);
    }

    if (q->model != NULL) {
        req.model.data = q->model;
        req.model.len = (uint32_t) strlen(q->model);
    }

    if (q->stop != NULL) {
        stop.data = q->stop;
        stop.len = (uint32_t) strlen(q->stop);
        req.stops = &stop;
        req.nstops = 1;
    }

    memcpy(c->arena.base + h->region, buf.data, buf.len);

    size = vlm_record_size(&req);
    len = (buf.len + 7) & ~(size_t) 7;
    vlm_record_encode(&req, c->arena.base + h->region + len, size);
    vlm_buf_free(&buf);

    if (vlm_worker_submit(&c->w, slot, h->generation, h->region + len,
                          (uint32_t) size)
        != VLM_CHANNEL_OK)
    {
        die("vlm_worker_submit()", c->w.why);
    }
}


static inline void
client_hear(client_t *c, const vlm_event_t *ev)
{
    char      letter;
    heard_t  *h;

    h = &c->slots[ev->slot];

    if (!h->used || h->generation != ev->generation) {
        tap_ok(0, "an event of type %u for a request that has ended",
               ev->type);
        return;
    }

    letter = " APTFDERC"[ev->type];

    switch (ev->type) {

    case VLM_EVENT_ADMITTED:
        h->admitted = ev->u.admitted;
        break;

    case VLM_EVENT_PROGRESS:
        h->stage = ev->u.progress.stage;
        break;

    case VLM_EVENT_TEXT:
        vlm_buf_append(&h->text, ev->text, ev->u.text.length);
        vlm_buf_append(&h->logprobs, ev->logprobs, ev->u.text.nlogprobs);
        h->ntokens += ev->u.text.ntokens;
        break;

    case VLM_EVENT_FINISH:
        h->finish = ev->u.finish.reason;
        break;

    case VLM_EVENT_DONE:
        h->done = ev->u.done;
        break;

    case VLM_EVENT_ERROR:
        h->error = ev->u.error;
        snprintf(h->message, sizeof(h->message), "%.*s",
                 (int) ev->u.error.length, ev->text);
        break;
    }

    if (strlen(h->order) < sizeof(h->order) - 1
        && (h->order[0] == '\0'
            || h->order[strlen(h->order) - 1] != letter))
    {
        h->order[strlen(h->order)] = letter;
    }

    if (letter == 'D' || letter == 'E' || letter == 'C') {
        h->last = letter;
        h->used = 0;
        vlm_arena_release(&c->arena, h->region);
    }
}


/* reads what is there, waiting up to ms for something */

static inline void
client_pump(client_t *c, int ms)
{
    int             rc;
    struct pollfd   pfd[2];

    if (vlm_worker_sleep(&c->w) == 1) {
        pfd[0].fd = c->w.event_fd;
        pfd[0].events = POLLIN;
        pfd[1].fd = c->w.fd;
        pfd[1].events = POLLIN;
        pfd[1].revents = 0;
        poll(pfd, 2, ms);

        if (pfd[1].revents != 0
            && vlm_worker_check(&c->w) != VLM_CHANNEL_OK)
        {
            c->closed = 1;
        }
    }

    while ((rc = vlm_worker_next(&c->w, &c->event)) == VLM_CHANNEL_OK) {
        client_hear(c, &c->event);
    }

    if (rc == VLM_CHANNEL_ERROR) {
        die("vlm_worker_next()", c->w.why);
    }
}


/* until a request has ended, or the connection */

static inline heard_t *
client_end(client_t *c, uint32_t slot)
{
    while (c->slots[slot].used && !c->closed) {
        client_pump(c, 1000);
    }

    return &c->slots[slot];
}


/* until its text has begun */

static inline void
client_text(client_t *c, uint32_t slot)
{
    while (c->slots[slot].text.len == 0 && c->slots[slot].used
           && !c->closed)
    {
        client_pump(c, 1000);
    }
}


#endif /* RUNTIME_CLIENT_H */
