
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model/mapping.h"


/*
 * A lock that a signal handler may take: nobody who holds it reads a mapping,
 * so the handler never interrupts its own thread there.
 */

static int                mappings_lock;
static vlm_mapping_t     *mappings;
static struct sigaction   old_action;


static void
lock(void)
{
    while (__atomic_exchange_n(&mappings_lock, 1, __ATOMIC_ACQUIRE) != 0) {
        /* a few instructions, in another thread */
    }
}


static void
unlock(void)
{
    __atomic_store_n(&mappings_lock, 0, __ATOMIC_RELEASE);
}


/* zeros from the page of this address on */

static int
fill(const uint8_t *address)
{
    int             rc;
    size_t          at, page;
    vlm_mapping_t  *map;

    rc = VLM_ERROR;
    page = (size_t) sysconf(_SC_PAGESIZE);

    lock();

    for (map = mappings; map != NULL; map = map->next) {

        if (address < map->data
            || (size_t) (address - map->data) >= map->len)
        {
            continue;
        }

        at = (size_t) (address - map->data) / page * page;

        if (mmap(map->data + at, map->len - at, PROT_READ,
                 MAP_PRIVATE|MAP_ANONYMOUS|MAP_FIXED, -1, 0)
            != MAP_FAILED)
        {
            __atomic_store_n(&map->cut, 1, __ATOMIC_RELEASE);
            rc = VLM_OK;
        }

        break;
    }

    unlock();

    return rc;
}


static void
on_bus_error(int signo, siginfo_t *info, void *context)
{
    int  saved;

    saved = errno;

    if (info->si_code != BUS_ADRERR || fill(info->si_addr) != VLM_OK) {

        /* not ours: it happens again on return */
        sigaction(SIGBUS, &old_action, NULL);
    }

    errno = saved;
}


static void
add(vlm_mapping_t *map)
{
    struct sigaction  action;

    memset(&action, 0, sizeof(action));
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);

    lock();

    if (mappings == NULL) {
        sigaction(SIGBUS, &action, &old_action);
    }

    map->next = mappings;
    mappings = map;

    unlock();
}


static void
drop(vlm_mapping_t *map)
{
    vlm_mapping_t  **p;

    lock();

    for (p = &mappings; *p != map; p = &(*p)->next) {
        /* void */
    }

    *p = map->next;

    if (mappings == NULL) {
        sigaction(SIGBUS, &old_action, NULL);
    }

    unlock();
}


static int
map_file(vlm_mapping_t *map, int fd, vlm_error_t *err)
{
    void         *data;
    struct stat   sb;

    if (fstat(fd, &sb) == -1 || !S_ISREG(sb.st_mode)) {
        return vlm_fail(err, 500, NULL, "%s: not a regular file", map->path);
    }

    if (sb.st_size == 0) {
        return vlm_fail(err, 500, NULL, "%s: truncated: an empty file",
                        map->path);
    }

    data = mmap(NULL, (size_t) sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);

    if (data == MAP_FAILED) {
        return vlm_fail(err, 500, NULL, "%s: cannot be mapped: %s", map->path,
                        strerror(errno));
    }

    map->data = data;
    map->len = (size_t) sb.st_size;
    map->mtime = sb.st_mtim;

    return VLM_OK;
}


vlm_mapping_t *
vlm_mapping_open(const char *path, vlm_error_t *err)
{
    int             fd, rc;
    vlm_mapping_t  *map;

    map = calloc(1, sizeof(*map));

    if (map == NULL || (map->path = strdup(path)) == NULL) {
        vlm_fail(err, 500, NULL, "%s: no memory", path);
        free(map);
        return NULL;
    }

    fd = open(path, O_RDONLY|O_CLOEXEC);

    if (fd == -1) {
        rc = vlm_fail(err, 500, NULL, "%s: %s", path, strerror(errno));

    } else {
        rc = map_file(map, fd, err);
        close(fd);
    }

    if (rc != VLM_OK) {
        free(map->path);
        free(map);
        return NULL;
    }

    add(map);

    return map;
}


void
vlm_mapping_close(vlm_mapping_t *map)
{
    if (map == NULL) {
        return;
    }

    drop(map);
    munmap(map->data, map->len);
    free(map->path);
    free(map);
}


int
vlm_mapping_whole(const vlm_mapping_t *map, vlm_error_t *err)
{
    if (__atomic_load_n(&map->cut, __ATOMIC_ACQUIRE) == 0) {
        return VLM_OK;
    }

    return vlm_fail(err, 500, NULL, "%s: could not be read to its end: it was "
                    "made shorter than its %zu bytes meanwhile, or its disk "
                    "fails", map->path, map->len);
}
