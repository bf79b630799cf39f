
/*
 * The arena: address space in a sealed memfd of one nginx worker, in which
 * uploads are kept.  The worker alone allocates; the bookkeeping lies in its
 * private memory, so nothing an engine does can damage it.  Engines get a
 * read-only descriptor.
 *
 * A reservation takes address space only; memory is used by the pages that
 * are touched, and goes back by hole punching in vlm_arena_release().
 * Not thread-safe: one thread owns an arena.
 */

#ifndef VLM_ARENA_H
#define VLM_ARENA_H


#include <stddef.h>
#include <stdint.h>


typedef struct vlm_arena_region_s  vlm_arena_region_t;

typedef struct {
    uint8_t             *base;          /* PROT_READ|PROT_WRITE mapping */
    uint64_t             size;
    size_t               page;
    int                  fd;            /* read-write, never handed out */
    int                  read_fd;       /* read-only, for engines */
    uint64_t             reserved;      /* bytes of all reservations */
    vlm_arena_region_t  *regions;       /* free and used, by offset */
} vlm_arena_t;


/*
 * Creates an arena of "size" bytes (rounded up to pages).  Returns 0, or -1
 * with errno set and *what naming the failed call.
 */
int vlm_arena_create(vlm_arena_t *arena, uint64_t size, const char **what);
void vlm_arena_destroy(vlm_arena_t *arena);

/* First fit, whole pages.  Returns 0 and *offset, or -1: no room. */
int vlm_arena_reserve(vlm_arena_t *arena, uint64_t size, uint64_t *offset);

/* Gives back what is past the first "keep" bytes of a reservation. */
void vlm_arena_shrink(vlm_arena_t *arena, uint64_t offset, uint64_t keep);

/* Frees a reservation and its pages. */
void vlm_arena_release(vlm_arena_t *arena, uint64_t offset);

/* The largest reservation that would succeed now. */
uint64_t vlm_arena_largest(const vlm_arena_t *arena);


#endif /* VLM_ARENA_H */
