
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vlm_arena.h"
#include "vlm_memfd.h"


/* the arena's address space, without gaps, ordered by offset */

struct vlm_arena_region_s {
    uint64_t             offset;
    uint64_t             size;
    int                  used;
    vlm_arena_region_t  *prev;
    vlm_arena_region_t  *next;
};


static int arena_open(vlm_arena_t *arena, const char **what);
static vlm_arena_region_t *region_find(const vlm_arena_t *arena,
    uint64_t offset);
static vlm_arena_region_t *region_split(vlm_arena_region_t *r, uint64_t size);
static void region_absorb_next(vlm_arena_region_t *r);
static void arena_punch(vlm_arena_t *arena, uint64_t offset, uint64_t size);


int
vlm_arena_create(vlm_arena_t *arena, uint64_t size, const char **what)
{
    int  err;

    memset(arena, 0, sizeof(vlm_arena_t));

    arena->fd = -1;
    arena->read_fd = -1;
    arena->page = (size_t) sysconf(_SC_PAGESIZE);

    *what = "size";

    if (size == 0 || size > INT64_MAX - arena->page) {
        errno = EINVAL;
        return -1;
    }

    arena->size = (size + arena->page - 1) & ~((uint64_t) arena->page - 1);

    if (arena_open(arena, what) == -1) {
        err = errno;
        vlm_arena_destroy(arena);
        errno = err;
        return -1;
    }

    return 0;
}


static int
arena_open(vlm_arena_t *arena, const char **what)
{
    char   path[32];
    void  *base;

    arena->fd = vlm_memfd_create("vlm-arena", arena->size, what);

    if (arena->fd == -1) {
        return -1;
    }

    /* engines get a descriptor through which nothing can be written */

    snprintf(path, sizeof(path), "/proc/self/fd/%d", arena->fd);

    *what = "open(\"/proc/self/fd/N\")";
    arena->read_fd = open(path, O_RDONLY|O_CLOEXEC);

    if (arena->read_fd == -1) {
        return -1;
    }

    *what = "mmap()";
    base = mmap(NULL, arena->size, PROT_READ|PROT_WRITE,
                MAP_SHARED|MAP_NORESERVE, arena->fd, 0);

    if (base == MAP_FAILED) {
        return -1;
    }

    arena->base = base;

    *what = "madvise(MADV_DONTDUMP)";

    if (madvise(base, arena->size, MADV_DONTDUMP) == -1) {
        return -1;
    }

    *what = "malloc()";
    arena->regions = calloc(1, sizeof(vlm_arena_region_t));

    if (arena->regions == NULL) {
        return -1;
    }

    arena->regions->size = arena->size;

    return 0;
}


void
vlm_arena_destroy(vlm_arena_t *arena)
{
    vlm_arena_region_t  *r, *next;

    if (arena->page == 0) {
        return;
    }

    for (r = arena->regions; r != NULL; r = next) {
        next = r->next;
        free(r);
    }

    if (arena->base != NULL) {
        munmap(arena->base, arena->size);
    }

    if (arena->read_fd != -1) {
        close(arena->read_fd);
    }

    if (arena->fd != -1) {
        close(arena->fd);
    }

    memset(arena, 0, sizeof(vlm_arena_t));

    arena->fd = -1;
    arena->read_fd = -1;
}


int
vlm_arena_reserve(vlm_arena_t *arena, uint64_t size, uint64_t *offset)
{
    vlm_arena_region_t  *r;

    if (size == 0 || size > arena->size) {
        return -1;
    }

    /* the arena's size is whole pages, so this does not pass it */

    size = (size + arena->page - 1) & ~((uint64_t) arena->page - 1);

    for (r = arena->regions; r != NULL; r = r->next) {
        if (!r->used && r->size >= size) {
            break;
        }
    }

    if (r == NULL) {
        return -1;
    }

    if (r->size > size && region_split(r, size) == NULL) {
        return -1;
    }

    r->used = 1;
    arena->reserved += size;
    *offset = r->offset;

    return 0;
}


void
vlm_arena_shrink(vlm_arena_t *arena, uint64_t offset, uint64_t keep)
{
    uint64_t             size;
    vlm_arena_region_t  *r, *rest;

    r = region_find(arena, offset);

    if (r == NULL || keep >= r->size) {
        return;
    }

    if (keep == 0) {
        vlm_arena_release(arena, offset);
        return;
    }

    size = (keep + arena->page - 1) & ~((uint64_t) arena->page - 1);

    if (size == r->size) {
        return;
    }

    arena_punch(arena, offset + size, r->size - size);

    rest = region_split(r, size);

    if (rest == NULL) {
        /* without memory for the bookkeeping it stays reserved, unused */
        return;
    }

    arena->reserved -= rest->size;

    if (rest->next != NULL && !rest->next->used) {
        region_absorb_next(rest);
    }
}


void
vlm_arena_release(vlm_arena_t *arena, uint64_t offset)
{
    vlm_arena_region_t  *r;

    r = region_find(arena, offset);

    if (r == NULL) {
        return;
    }

    arena_punch(arena, r->offset, r->size);

    r->used = 0;
    arena->reserved -= r->size;

    if (r->next != NULL && !r->next->used) {
        region_absorb_next(r);
    }

    if (r->prev != NULL && !r->prev->used) {
        region_absorb_next(r->prev);
    }
}


uint64_t
vlm_arena_largest(const vlm_arena_t *arena)
{
    uint64_t                   largest;
    const vlm_arena_region_t  *r;

    largest = 0;

    for (r = arena->regions; r != NULL; r = r->next) {
        if (!r->used && r->size > largest) {
            largest = r->size;
        }
    }

    return largest;
}


static vlm_arena_region_t *
region_find(const vlm_arena_t *arena, uint64_t offset)
{
    vlm_arena_region_t  *r;

    for (r = arena->regions; r != NULL; r = r->next) {
        if (r->offset == offset) {
            return r->used ? r : NULL;
        }
    }

    return NULL;
}


/* leaves "size" bytes in r; returns the free region of what follows */

static vlm_arena_region_t *
region_split(vlm_arena_region_t *r, uint64_t size)
{
    vlm_arena_region_t  *rest;

    rest = calloc(1, sizeof(vlm_arena_region_t));

    if (rest == NULL) {
        return NULL;
    }

    rest->offset = r->offset + size;
    rest->size = r->size - size;
    rest->prev = r;
    rest->next = r->next;

    if (r->next != NULL) {
        r->next->prev = rest;
    }

    r->next = rest;
    r->size = size;

    return rest;
}


static void
region_absorb_next(vlm_arena_region_t *r)
{
    vlm_arena_region_t  *next;

    next = r->next;

    r->size += next->size;
    r->next = next->next;

    if (r->next != NULL) {
        r->next->prev = r;
    }

    free(next);
}


/* a failure costs memory until the place is used again, nothing else */

static void
arena_punch(vlm_arena_t *arena, uint64_t offset, uint64_t size)
{
    int  rc;

    do {
        rc = fallocate(arena->fd, FALLOC_FL_PUNCH_HOLE|FALLOC_FL_KEEP_SIZE,
                       (off_t) offset, (off_t) size);
    } while (rc == -1 && errno == EINTR);
}
