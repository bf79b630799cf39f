
/*
 * getaddrinfo() in a thread of its own: hiredis would block on it.  Whoever
 * of thread and owner is the last frees the work, so that nobody waits for a
 * name server.
 */

#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/cache/redis_private.h"


struct vlm_resolve_s {
    char                host[256];
    int                 fd;             /* its own */
    int                 refs;           /* atomic */
    int                 done;           /* atomic; then "to" is valid */
    vlm_addresses_t     to;
};


static void *resolve_main(void *data);


static void
resolve_unref(vlm_resolve_t *res)
{
    if (__atomic_sub_fetch(&res->refs, 1, __ATOMIC_ACQ_REL) == 0) {
        close(res->fd);
        free(res);
    }
}


vlm_resolve_t *
vlm_resolve_start(const char *host, int event_fd)
{
    int             rc;
    pthread_t       thread;
    vlm_resolve_t  *res;

    res = calloc(1, sizeof(vlm_resolve_t));
    if (res == NULL) {
        return NULL;
    }

    memcpy(res->host, host, strlen(host) + 1);
    res->fd = dup(event_fd);
    res->refs = 2;

    if (res->fd == -1) {
        free(res);
        return NULL;
    }

    rc = pthread_create(&thread, NULL, resolve_main, res);

    if (rc != 0) {
        close(res->fd);
        free(res);
        return NULL;
    }

    pthread_detach(thread);

    return res;
}


static void *
resolve_main(void *data)
{
    int               rc;
    ssize_t           n;
    uint64_t          one = 1;
    vlm_resolve_t    *res = data;
    vlm_addresses_t  *to = &res->to;
    struct addrinfo   hints, *list, *p;

    memset(&hints, 0, sizeof(hints));
    hints.ai_socktype = SOCK_STREAM;

    list = NULL;
    rc = getaddrinfo(res->host, NULL, &hints, &list);

    for (p = list; rc == 0 && p != NULL && to->n < VLM_RESOLVE_ADDRESSES;
         p = p->ai_next)
    {
        if (getnameinfo(p->ai_addr, p->ai_addrlen, to->text[to->n],
                        sizeof(to->text[0]), NULL, 0, NI_NUMERICHOST)
            == 0)
        {
            to->n++;
        }
    }

    if (to->n == 0) {
        snprintf(to->why, sizeof(to->why), "cannot resolve the host's name: "
                 "%s", rc != 0 ? gai_strerror(rc) : "no address");
    }

    if (list != NULL) {
        freeaddrinfo(list);
    }

    __atomic_store_n(&res->done, 1, __ATOMIC_RELEASE);

    n = write(res->fd, &one, sizeof(one));
    (void) n;

    resolve_unref(res);

    return NULL;
}


int
vlm_resolve_done(vlm_resolve_t *res, vlm_addresses_t *to)
{
    if (!__atomic_load_n(&res->done, __ATOMIC_ACQUIRE)) {
        return VLM_AGAIN;
    }

    *to = res->to;

    return VLM_OK;
}


void
vlm_resolve_free(vlm_resolve_t *res)
{
    if (res != NULL) {
        resolve_unref(res);
    }
}
