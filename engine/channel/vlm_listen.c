
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "vlm_peer.h"


#define LISTEN_BACKLOG      511
#define LISTEN_MAX_GROUP    (1u << 20)      /* bytes of one group's entry */


static int listen_group(const char *name, gid_t *gid, char *why,
    size_t whylen);
static int listen_clear(const struct sockaddr_un *addr, char *why,
    size_t whylen);
static int listen_bind(int fd, const struct sockaddr_un *addr, mode_t mode,
    gid_t gid, char *why, size_t whylen);


int
vlm_listen(const char *path, mode_t mode, const char *group, char *why,
    size_t whylen)
{
    int                 fd;
    gid_t               gid;
    size_t              len;
    struct sockaddr_un  addr;

    len = strlen(path);

    if (len == 0 || len >= sizeof(addr.sun_path)) {
        snprintf(why, whylen, "socket path \"%s\" has %zu bytes, from 1 to "
                 "%zu are possible", path, len, sizeof(addr.sun_path) - 1);
        return -1;
    }

    memset(&addr, 0, sizeof(struct sockaddr_un));
    addr.sun_family = AF_UNIX;
    memcpy(addr.sun_path, path, len);

    gid = (gid_t) -1;

    if (group != NULL && listen_group(group, &gid, why, whylen) == -1) {
        return -1;
    }

    if (listen_clear(&addr, why, whylen) == -1) {
        return -1;
    }

    fd = socket(AF_UNIX, SOCK_STREAM|SOCK_NONBLOCK|SOCK_CLOEXEC, 0);

    if (fd == -1) {
        snprintf(why, whylen, "socket(): %m");
        return -1;
    }

    if (listen_bind(fd, &addr, mode, gid, why, whylen) == -1) {
        close(fd);
        return -1;
    }

    return fd;
}


static int
listen_group(const char *name, gid_t *gid, char *why, size_t whylen)
{
    int            rc;
    char          *buf, *p;
    size_t         size;
    struct group   entry, *found;

    buf = NULL;
    size = 1024;

    do {
        size *= 2;
        p = realloc(buf, size);

        if (p == NULL) {
            free(buf);
            snprintf(why, whylen, "no memory for group \"%s\"", name);
            return -1;
        }

        buf = p;
        rc = getgrnam_r(name, &entry, buf, size, &found);

    } while (rc == EINTR || (rc == ERANGE && size < LISTEN_MAX_GROUP));

    if (rc == 0 && found != NULL) {
        *gid = found->gr_gid;
        free(buf);
        return 0;
    }

    free(buf);

    if (rc != 0) {
        errno = rc;
        snprintf(why, whylen, "getgrnam_r(\"%s\"): %m", name);

    } else {
        snprintf(why, whylen, "no group \"%s\"", name);
    }

    return -1;
}


/* makes the path free, unless something lives there */

static int
listen_clear(const struct sockaddr_un *addr, char *why, size_t whylen)
{
    int          fd, rc, err;
    struct stat  st;

    if (lstat(addr->sun_path, &st) == -1) {

        if (errno == ENOENT) {
            return 0;
        }

        snprintf(why, whylen, "lstat(\"%s\"): %m", addr->sun_path);
        return -1;
    }

    if (!S_ISSOCK(st.st_mode)) {
        snprintf(why, whylen, "\"%s\" exists and is not a socket",
                 addr->sun_path);
        return -1;
    }

    fd = socket(AF_UNIX, SOCK_STREAM|SOCK_NONBLOCK|SOCK_CLOEXEC, 0);

    if (fd == -1) {
        snprintf(why, whylen, "socket(): %m");
        return -1;
    }

    rc = connect(fd, (const struct sockaddr *) addr,
                 sizeof(struct sockaddr_un));
    err = errno;
    close(fd);
    errno = err;

    if (rc == 0 || err == EAGAIN) {
        snprintf(why, whylen, "another engine is listening on \"%s\"",
                 addr->sun_path);
        return -1;
    }

    if (err == ENOENT) {
        return 0;
    }

    if (err != ECONNREFUSED) {
        snprintf(why, whylen, "socket \"%s\" exists, and it cannot be told "
                 "whether an engine listens on it: connect(): %m",
                 addr->sun_path);
        return -1;
    }

    if (unlink(addr->sun_path) == -1 && errno != ENOENT) {
        snprintf(why, whylen, "unlink(\"%s\"): %m", addr->sun_path);
        return -1;
    }

    return 0;
}


/*
 * Nobody can connect before listen(), so nobody can be let in by the wrong
 * mode.  The socket's own mode is what bind() gives the file, if the umask
 * lets it.
 */

static int
listen_bind(int fd, const struct sockaddr_un *addr, mode_t mode, gid_t gid,
    char *why, size_t whylen)
{
    const char  *path, *what;

    path = addr->sun_path;

    if (fchmod(fd, 0600) == -1
        || bind(fd, (const struct sockaddr *) addr,
                sizeof(struct sockaddr_un)) == -1)
    {
        snprintf(why, whylen, "bind(\"%s\"): %m", path);
        return -1;
    }

    what = "lchown";

    if (gid != (gid_t) -1 && lchown(path, (uid_t) -1, gid) == -1) {
        goto failed;
    }

    what = "chmod";

    if (chmod(path, mode) == -1) {
        goto failed;
    }

    what = "listen";

    if (listen(fd, LISTEN_BACKLOG) == -1) {
        goto failed;
    }

    return 0;

failed:

    snprintf(why, whylen, "%s(\"%s\"): %m", what, path);
    unlink(path);

    return -1;
}
