
/* A real redis-server on a free port, for tests. */

#ifndef CACHE_SERVER_H
#define CACHE_SERVER_H


#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <hiredis/hiredis.h>

#include "t/unit/lib/tap.h"


static char   dir[64];
static int    port;
static pid_t  server;


static inline int
free_port(void)
{
    int                 fd;
    socklen_t           len;
    struct sockaddr_in  sin;

    memset(&sin, 0, sizeof(sin));
    sin.sin_family = AF_INET;
    sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    len = sizeof(sin);

    fd = socket(AF_INET, SOCK_STREAM, 0);

    if (fd == -1 || bind(fd, (struct sockaddr *) &sin, len) == -1
        || getsockname(fd, (struct sockaddr *) &sin, &len) == -1)
    {
        exit(1);
    }

    close(fd);

    return ntohs(sin.sin_port);
}


static inline redisContext *
admin(void)
{
    int             i;
    redisContext   *c;
    struct timeval  tv = { 5, 0 };

    for (i = 0; i < 1000; i++) {
        c = redisConnectWithTimeout("127.0.0.1", port, tv);

        if (c != NULL && c->err == 0) {
            return c;
        }

        redisFree(c);
        usleep(10000);
    }

    tap_diag("redis-server does not start");
    exit(1);
}


/* runs one command; the number or the string's length, -1: an error */

static inline long long
command(const char *text)
{
    long long      n;
    redisReply    *reply;
    redisContext  *c;

    c = admin();
    reply = redisCommand(c, text);
    n = -1;

    if (reply != NULL && reply->type != REDIS_REPLY_ERROR) {
        n = reply->type == REDIS_REPLY_INTEGER ? reply->integer
                                               : (long long) reply->len;
    }

    freeReplyObject(reply);
    redisFree(c);

    return n;
}


static inline void
server_start(void)
{
    int   fd;
    char  text[16], sock[96];

    snprintf(text, sizeof(text), "%d", port);
    snprintf(sock, sizeof(sock), "%s/redis.sock", dir);

    server = fork();

    if (server == 0) {
        fd = open("/dev/null", O_WRONLY);
        dup2(fd, 1);
        dup2(fd, 2);
        execlp("redis-server", "redis-server", "--port", text, "--bind",
               "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", dir,
               "--unixsocket", sock, "--enable-debug-command", "yes", NULL);
        _exit(127);
    }

    tap_is(command("PING"), 4, "redis-server runs");
}


static inline void
server_stop(void)
{
    if (server > 0) {
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
        server = 0;
    }
}


/* 0: there is no redis-server here */

static inline int
server_begin(void)
{
    if (system("redis-server --version >/dev/null 2>&1") != 0) {
        return 0;
    }

    snprintf(dir, sizeof(dir), "/tmp/vlm-redis-XXXXXX");

    if (mkdtemp(dir) == NULL) {
        exit(1);
    }

    port = free_port();
    server_start();
    atexit(server_stop);

    return 1;
}


static inline void
server_end(void)
{
    char  path[96];

    server_stop();

    snprintf(path, sizeof(path), "%s/redis.sock", dir);
    unlink(path);
    rmdir(dir);
}


#endif /* CACHE_SERVER_H */
