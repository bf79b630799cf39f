
/* systemd's readiness protocol: one datagram. */

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/runtime/server.h"


int
vlm_notify(const char *state, vlm_error_t *err)
{
    int                  fd, rc;
    size_t               len;
    socklen_t            size;
    const char          *path;
    struct sockaddr_un   addr;

    path = getenv("NOTIFY_SOCKET");

    if (path == NULL || path[0] == '\0') {
        return VLM_OK;
    }

    len = strlen(path);

    if ((path[0] != '/' && path[0] != '@') || len >= sizeof(addr.sun_path)) {
        return vlm_fail(err, 500, NULL, "NOTIFY_SOCKET is neither a path nor "
                        "an abstract name of at most %zu bytes",
                        sizeof(addr.sun_path) - 1);
    }

    memset(&addr, 0, sizeof(addr));
    addr.sun_family = AF_UNIX;
    memcpy(addr.sun_path, path, len);

    size = (socklen_t) (offsetof(struct sockaddr_un, sun_path) + len);

    if (path[0] == '@') {
        addr.sun_path[0] = '\0';

    } else {
        size++;
    }

    fd = socket(AF_UNIX, SOCK_DGRAM|SOCK_CLOEXEC|SOCK_NONBLOCK, 0);

    if (fd == -1) {
        return vlm_fail(err, 500, NULL, "NOTIFY_SOCKET: socket(): %s",
                        strerror(errno));
    }

    rc = VLM_OK;

    if (sendto(fd, state, strlen(state), MSG_NOSIGNAL,
               (struct sockaddr *) &addr, size)
        == -1)
    {
        rc = vlm_fail(err, 500, NULL, "NOTIFY_SOCKET: sendto(): %s",
                      strerror(errno));
    }

    close(fd);

    return rc;
}
