
/*
 * What a Redis server may answer: the first bytes of its connection are good,
 * then it says the input to two look-ups and hangs up.  Both come back, with
 * or without a value, and none is larger than allowed.
 */

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/cache/redis.h"


#define MAX_VALUE   1000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);


static int              listener = -1, answered;
static vlm_redis_url_t  url;


static void
answer(void *data, vlm_redis_get_t *get)
{
    if (get->value != NULL && (get->len == 0 || get->len > MAX_VALUE)) {
        abort();
    }

    free(get->value);
    answered++;
}


static void
bye(void)
{
    unlink(url.host);
}


static void
begin(void)
{
    struct sockaddr_un  sun;

    signal(SIGPIPE, SIG_IGN);
    vlm_log_level("error");

    snprintf(url.host, sizeof(url.host), "/tmp/vlm-fuzz-%ld.sock",
             (long) getpid());

    memset(&sun, 0, sizeof(sun));
    sun.sun_family = AF_UNIX;
    memcpy(sun.sun_path, url.host, strlen(url.host) + 1);

    listener = socket(AF_UNIX, SOCK_STREAM|SOCK_CLOEXEC, 0);

    if (listener == -1
        || bind(listener, (struct sockaddr *) &sun, sizeof(sun)) == -1
        || listen(listener, 4) == -1)
    {
        abort();
    }

    atexit(bye);
}


static void
turn(vlm_redis_t *r)
{
    struct pollfd  pfd;

    pfd.fd = vlm_redis_fd(r);
    pfd.events = POLLIN;

    if (poll(&pfd, 1, 1000) > 0) {
        vlm_redis_turn(r);
    }
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int                 fd;
    vlm_redis_t        *r;
    vlm_error_t         err;
    vlm_redis_get_t     gets[2];
    vlm_redis_conf_t    conf;
    vlm_redis_stats_t   stats;

    if (listener == -1) {
        begin();
    }

    if (size > 60000) {
        return 0;
    }

    memset(&conf, 0, sizeof(conf));
    conf.url = url;
    conf.connect_us = 60000000;
    conf.max_value = MAX_VALUE;
    conf.answer = answer;

    r = vlm_redis_create(&conf, &err);
    if (r == NULL) {
        return 0;
    }

    turn(r);
    fd = accept(listener, NULL, NULL);

    if (fd == -1 || write(fd, "+PONG\r\n", 7) != 7) {
        abort();
    }

    do {
        turn(r);
        vlm_redis_stats(r, &stats);
    } while (!stats.connected);

    answered = 0;
    memset(gets, 0, sizeof(gets));
    gets[0].next = &gets[1];
    gets[0].timeout_us = 60000000;
    gets[1].timeout_us = 60000000;

    vlm_redis_get(r, gets);
    turn(r);

    if (write(fd, data, size) != (ssize_t) size) {
        abort();
    }

    close(fd);

    while (answered < 2) {
        turn(r);
    }

    vlm_redis_destroy(r, 0);

    return 0;
}
