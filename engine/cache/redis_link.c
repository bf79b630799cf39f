
/* One connection: hiredis in the front's epoll, commands and their replies. */

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "engine/cache/redis_private.h"


#define SLACK           65536       /* of the reader, over the largest value */


static int link_setup(vlm_redis_t *r);
static void link_events(vlm_redis_t *r, uint32_t events);
static void on_connect(const redisAsyncContext *ac, int status);
static void on_disconnect(const redisAsyncContext *ac, int status);
static void on_reply(redisAsyncContext *ac, void *data, void *priv);
static int link_command(vlm_redis_t *r, vlm_redis_kind_t kind,
    vlm_redis_get_t *get, int argc, const char **argv, const size_t *lens);
static void link_hello(vlm_redis_t *r);
static void reply_hello(vlm_redis_sent_t *sent, const redisReply *reply);
static void reply_get(vlm_redis_t *r, vlm_redis_get_t *get,
    redisReply *reply);
static void reply_store(vlm_redis_t *r, const vlm_redis_sent_t *sent,
    const redisReply *reply);


/* ---- hiredis' event hooks ---- */

static void
hook_add_read(void *data)
{
    vlm_redis_t  *r = data;

    link_events(r, r->events | EPOLLIN);
}


static void
hook_del_read(void *data)
{
    vlm_redis_t  *r = data;

    link_events(r, r->events & ~(uint32_t) EPOLLIN);
}


static void
hook_add_write(void *data)
{
    vlm_redis_t  *r = data;

    link_events(r, r->events | EPOLLOUT);
}


static void
hook_del_write(void *data)
{
    vlm_redis_t  *r = data;

    link_events(r, r->events & ~(uint32_t) EPOLLOUT);
}


/* the connection is being freed; its socket is still open */

static void
hook_cleanup(void *data)
{
    vlm_redis_t  *r = data;

    link_events(r, 0);
    r->ac = NULL;
}


static void
link_events(vlm_redis_t *r, uint32_t events)
{
    int                 op;
    struct epoll_event  ev;

    if (events == r->events || r->ac == NULL) {
        return;
    }

    op = r->events == 0 ? EPOLL_CTL_ADD
         : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;

    memset(&ev, 0, sizeof(ev));
    ev.events = events;
    ev.data.fd = r->ac->c.fd;

    if (epoll_ctl(r->epoll, op, r->ac->c.fd, &ev) == -1) {
        vlm_redis_break(r, "epoll_ctl() failed");
    }

    r->events = events;
}


/*
 * ---- what replies are made of ----
 *
 * hiredis takes a reply that nobody asked for as a bug of the program, and
 * makes room for as many elements as an array announces.  No command here is
 * answered by an array.
 */

static int
reply_expected(const redisReadTask *task)
{
    vlm_redis_t  *r = task->privdata;

    if (r->unread == 0) {
        vlm_redis_break(r, "a reply that nobody asked for");
        return 0;
    }

    r->unread--;

    return 1;
}


static void *
part_string(const redisReadTask *task, char *str, size_t len)
{
    vlm_redis_t  *r = task->privdata;

    return reply_expected(task) ? r->parts->createString(task, str, len)
                                : NULL;
}


static void *
part_integer(const redisReadTask *task, long long n)
{
    vlm_redis_t  *r = task->privdata;

    return reply_expected(task) ? r->parts->createInteger(task, n) : NULL;
}


static void *
part_nil(const redisReadTask *task)
{
    vlm_redis_t  *r = task->privdata;

    return reply_expected(task) ? r->parts->createNil(task) : NULL;
}


static void *
part_array(const redisReadTask *task, int n)
{
    vlm_redis_break(task->privdata, "a reply of %d elements", n);

    return NULL;
}


/* ---- connecting ---- */

void
vlm_redis_connect(vlm_redis_t *r)
{
    if (r->conf.url.port == 0) {
        r->ac = redisAsyncConnectUnix(r->conf.url.host);

    } else {
        r->ac = redisAsyncConnect(r->addresses.text[r->address],
                                  r->conf.url.port);
    }

    r->state = VLM_REDIS_CONNECTING;
    r->deadline_us = vlm_now_us() + r->conf.connect_us;
    r->unread = 0;
    r->events = 0;

    if (r->ac == NULL) {
        vlm_redis_break(r, "no memory for a connection");

    } else if (r->ac->err) {
        vlm_redis_break(r, "%s", r->ac->errstr);

    } else if (link_setup(r) != VLM_OK) {
        vlm_redis_break(r, "cannot wait for the connection");
    }
}


static int
link_setup(vlm_redis_t *r)
{
    redisReader        *reader;
    redisAsyncContext  *ac;

    ac = r->ac;
    ac->data = r;
    ac->ev.data = r;
    ac->ev.addRead = hook_add_read;
    ac->ev.delRead = hook_del_read;
    ac->ev.addWrite = hook_add_write;
    ac->ev.delWrite = hook_del_write;
    ac->ev.cleanup = hook_cleanup;

    reader = ac->c.reader;
    r->parts = reader->fn;
    r->checked = *reader->fn;
    r->checked.createString = part_string;
    r->checked.createArray = part_array;
    r->checked.createInteger = part_integer;
    r->checked.createNil = part_nil;
    reader->fn = &r->checked;
    reader->privdata = r;

    return redisAsyncSetDisconnectCallback(ac, on_disconnect) == REDIS_OK
           && redisAsyncSetConnectCallback(ac, on_connect) == REDIS_OK
           ? VLM_OK : VLM_ERROR;
}


static void
on_connect(const redisAsyncContext *ac, int status)
{
    vlm_redis_t  *r = ac->data;

    if (status != REDIS_OK) {
        vlm_redis_break(r, "%s", ac->errstr != NULL ? ac->errstr
                                                    : "cannot connect");
        return;
    }

    link_hello(r);
}


static void
on_disconnect(const redisAsyncContext *ac, int status)
{
    vlm_redis_t  *r = ac->data;

    if (status != REDIS_OK) {
        vlm_redis_break(r, "%s", ac->errstr != NULL ? ac->errstr
                                                    : "connection lost");
    }
}


/* AUTH and SELECT where they are needed; PING tells that commands work */

static void
link_hello(vlm_redis_t *r)
{
    int               argc;
    char              db[16];
    const char       *argv[3];
    vlm_redis_url_t  *url;

    url = &r->conf.url;

    if (url->password[0] != '\0') {
        argc = 0;
        argv[argc++] = "AUTH";

        if (url->user[0] != '\0') {
            argv[argc++] = url->user;
        }

        argv[argc++] = url->password;

        (void) link_command(r, VLM_REDIS_HELLO, NULL, argc, argv, NULL);
    }

    if (url->db != 0) {
        snprintf(db, sizeof(db), "%d", url->db);
        argv[0] = "SELECT";
        argv[1] = db;

        (void) link_command(r, VLM_REDIS_HELLO, NULL, 2, argv, NULL);
    }

    argv[0] = "PING";

    if (link_command(r, VLM_REDIS_HELLO, NULL, 1, argv, NULL) == VLM_OK) {
        r->tail->last = 1;
    }
}


void
vlm_redis_close(vlm_redis_t *r)
{
    if (r->ac != NULL) {
        redisAsyncFree(r->ac);
        r->ac = NULL;
    }
}


/* whatever happens in here, r->ac tells whether the connection is left */

void
vlm_redis_socket(vlm_redis_t *r, uint32_t events)
{
    redisReader  *reader;

    if (events & (EPOLLERR|EPOLLHUP)) {
        events |= EPOLLIN|EPOLLOUT;
    }

    if ((events & EPOLLIN) && (r->events & EPOLLIN) && r->ac != NULL) {
        redisAsyncHandleRead(r->ac);
    }

    if ((events & EPOLLOUT) && (r->events & EPOLLOUT) && r->ac != NULL) {
        redisAsyncHandleWrite(r->ac);
    }

    if (r->ac == NULL) {
        vlm_redis_break(r, "connection lost");
        return;
    }

    reader = r->ac->c.reader;

    if (reader->len - reader->pos > r->conf.max_value + SLACK) {
        vlm_redis_break(r, "a reply of more than %zu bytes",
                        r->conf.max_value + SLACK);
    }
}


/* ---- commands ---- */

static int
link_command(vlm_redis_t *r, vlm_redis_kind_t kind, vlm_redis_get_t *get,
    int argc, const char **argv, const size_t *lens)
{
    vlm_redis_sent_t  *sent;

    sent = calloc(1, sizeof(vlm_redis_sent_t));
    if (sent == NULL) {
        return VLM_ERROR;
    }

    sent->redis = r;
    sent->kind = kind;
    sent->get = get;
    sent->sent_us = vlm_now_us();

    if (redisAsyncCommandArgv(r->ac, on_reply, sent, argc, argv, lens)
        != REDIS_OK)
    {
        free(sent);
        vlm_redis_break(r, "a command was not taken");
        return VLM_ERROR;
    }

    sent->prev = r->tail;

    if (r->tail != NULL) {
        r->tail->next = sent;

    } else {
        r->head = sent;
    }

    r->tail = sent;
    r->unread++;

    return VLM_OK;
}


static int
link_name(vlm_redis_t *r, vlm_redis_kind_t kind, const char *command,
    const char *name)
{
    const char  *argv[2];

    argv[0] = command;
    argv[1] = name;

    if (link_command(r, kind, NULL, 2, argv, NULL) != VLM_OK) {
        return VLM_ERROR;
    }

    snprintf(r->tail->name, sizeof(r->tail->name), "%s", name);
    r->nsets++;

    return VLM_OK;
}


/* one byte more than allowed tells a value that is too large */

void
vlm_redis_send_get(vlm_redis_t *r, vlm_redis_get_t *get)
{
    char         end[24];
    const char  *argv[4];

    snprintf(end, sizeof(end), "%zu", r->conf.max_value);

    argv[0] = "GETRANGE";
    argv[1] = get->name;
    argv[2] = "0";
    argv[3] = end;

    if (link_command(r, VLM_REDIS_GET, get, 4, argv, NULL) != VLM_OK) {
        vlm_redis_count(r, errors, 1);
        vlm_redis_answer(r, get, NULL, 0);
        return;
    }

    r->ngets++;
}


void
vlm_redis_send_store(vlm_redis_t *r, const vlm_redis_store_t *store)
{
    int          rc;
    char         ttl[24];
    size_t       lens[6];
    uint64_t     ms;
    const char  *argv[6];

    if (store->value == NULL) {
        (void) link_name(r, VLM_REDIS_DEL, "DEL", store->name);
        return;
    }

    /* not all that was stored at once is to end at once */

    r->seed = r->seed * 6364136223846793005ull + 1442695040888963407ull;
    ms = r->conf.ttl_ms;
    ms = ms - ms / 10 + (r->seed >> 33) % (ms / 10 + 1);

    argv[0] = "SET";
    lens[0] = 3;
    argv[1] = store->name;
    lens[1] = strlen(store->name);
    argv[2] = store->value;
    lens[2] = store->len;
    argv[3] = "PX";
    lens[3] = 2;
    argv[4] = ttl;
    lens[4] = (size_t) snprintf(ttl, sizeof(ttl), "%llu",
                                (unsigned long long) ms);
    argv[5] = "NX";
    lens[5] = 2;

    rc = link_command(r, VLM_REDIS_SET, NULL, 6, argv, lens);

    if (rc != VLM_OK) {
        vlm_redis_count(r, dropped, 1);
        return;
    }

    snprintf(r->tail->name, sizeof(r->tail->name), "%s", store->name);
    r->nsets++;
    vlm_redis_count(r, bytes_out, store->len);
}


/* ---- replies ---- */

void
vlm_redis_answer(vlm_redis_t *r, vlm_redis_get_t *get, void *value,
    size_t len)
{
    get->value = value;
    get->len = len;

    r->conf.answer(r->conf.data, get);
}


/* data is NULL when the connection is lost */

static void
on_reply(redisAsyncContext *ac, void *data, void *priv)
{
    redisReply        *reply = data;
    vlm_redis_t       *r;
    vlm_redis_sent_t  *sent = priv;

    r = sent->redis;

    if (sent->prev != NULL) {
        sent->prev->next = sent->next;

    } else {
        r->head = sent->next;
    }

    if (sent->next != NULL) {
        sent->next->prev = sent->prev;

    } else {
        r->tail = sent->prev;
    }

    switch (sent->kind) {

    case VLM_REDIS_HELLO:
        reply_hello(sent, reply);
        break;

    case VLM_REDIS_GET:
        r->ngets--;
        reply_get(r, sent->get, reply);
        break;

    default: /* VLM_REDIS_SET, VLM_REDIS_STRLEN, VLM_REDIS_DEL */
        r->nsets--;
        reply_store(r, sent, reply);
        break;
    }

    free(sent);
}


static void
reply_hello(vlm_redis_sent_t *sent, const redisReply *reply)
{
    vlm_redis_t  *r;

    r = sent->redis;

    if (reply == NULL) {
        return;
    }

    if (reply->type == REDIS_REPLY_ERROR) {
        vlm_redis_break(r, "refused: %.100s", reply->str);

    } else if (reply->type != REDIS_REPLY_STATUS) {
        vlm_redis_break(r, "not a Redis server");

    } else if (sent->last && r->broken[0] == '\0') {
        vlm_redis_ready(r);
    }
}


static void
reply_get(vlm_redis_t *r, vlm_redis_get_t *get, redisReply *reply)
{
    void    *value;
    size_t   len;

    value = NULL;
    len = 0;

    if (reply == NULL || reply->type == REDIS_REPLY_ERROR) {

        if (get != NULL) {
            vlm_redis_count(r, errors, 1);
        }

    } else if (reply->type != REDIS_REPLY_STRING) {
        vlm_redis_count(r, errors, 1);
        vlm_redis_break(r, "an unexpected reply");

    } else {
        len = (size_t) reply->len;
        vlm_redis_count(r, bytes_in, len);

        if (get == NULL) {
            /* too late: it was counted then */
            return;
        }

        r->row = 0;
        r->backoff_us = VLM_REDIS_BACKOFF_US;

        if (len == 0) {
            vlm_redis_count(r, misses, 1);

        } else if (len > r->conf.max_value) {
            vlm_redis_count(r, too_large, 1);

        } else {
            vlm_redis_count(r, hits, 1);
            value = reply->str;
            reply->str = NULL;
        }
    }

    if (get != NULL) {
        vlm_redis_answer(r, get, value, value != NULL ? len : 0);
    }
}


/* of a name that cannot be stored: nothing that could ever be read */

static int
useless(const redisReply *strlen_reply)
{
    return (strlen_reply->type == REDIS_REPLY_INTEGER
            && strlen_reply->integer == 0)
           || (strlen_reply->type == REDIS_REPLY_ERROR
               && strncmp(strlen_reply->str, "WRONGTYPE", 9) == 0);
}


/*
 * A name that exists though a look-up gave nothing: somebody was faster, or
 * what lies there is an empty string, which no look-up tells from nothing, or
 * no string at all.
 */

static void
reply_store(vlm_redis_t *r, const vlm_redis_sent_t *sent,
    const redisReply *reply)
{
    if (sent->kind == VLM_REDIS_STRLEN && reply != NULL && useless(reply)) {
        (void) link_name(r, VLM_REDIS_DEL, "DEL", sent->name);

    } else if (reply == NULL || reply->type == REDIS_REPLY_ERROR) {
        vlm_redis_count(r, store_errors, 1);

    } else if (sent->kind == VLM_REDIS_STRLEN) {
        /* a value that somebody else has stored */

    } else if (sent->kind == VLM_REDIS_DEL) {
        if (reply->type == REDIS_REPLY_INTEGER && reply->integer == 1) {
            vlm_redis_count(r, deleted, 1);
        }

    } else if (reply->type == REDIS_REPLY_NIL) {
        vlm_redis_count(r, existed, 1);
        (void) link_name(r, VLM_REDIS_STRLEN, "STRLEN", sent->name);

    } else if (reply->type == REDIS_REPLY_STATUS) {
        vlm_redis_count(r, stored, 1);
        r->backoff_us = VLM_REDIS_BACKOFF_US;

    } else {
        vlm_redis_break(r, "an unexpected reply");
    }
}
