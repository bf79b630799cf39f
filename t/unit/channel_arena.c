
/* The arena: against a model, pages that go back, what engines may do. */

#include <sys/stat.h>

#include "t/unit/channel_pair.h"

#include <sys/mman.h>


#define PAGES  256


static void test_limits(void);
static void test_model(void);
static void test_pages(void);
static void test_seals(void);


int
main(void)
{
    int  fds;

    fds = pair_count_fds();

    test_limits();
    test_model();
    test_pages();
    test_seals();

    tap_is(pair_count_fds(), fds, "no descriptor is left");

    return tap_done();
}


static void
test_limits(void)
{
    uint64_t      a, b, c;
    const char   *what;
    vlm_arena_t   arena;

    tap_is(vlm_arena_create(&arena, 0, &what), -1, "size 0");
    tap_is(errno, EINVAL, "errno");
    tap_is(vlm_arena_create(&arena, UINT64_MAX, &what), -1, "too large");
    tap_is(vlm_arena_create(&arena, 1ull << 62, &what), -1, "larger than "
           "the address space: %s", what);
    tap_ok(arena.fd == -1 && arena.base == NULL, "nothing is left of it");
    vlm_arena_destroy(&arena);

    tap_is(vlm_arena_create(&arena, 10001, &what), 0, "create: %s", what);
    tap_is(arena.size, 12288, "rounded up to pages");
    tap_is(vlm_arena_largest(&arena), 12288, "all is free");

    tap_is(vlm_arena_reserve(&arena, 0, &a), -1, "reserve 0");
    tap_is(vlm_arena_reserve(&arena, 12289, &a), -1, "reserve too much");
    tap_is(vlm_arena_reserve(&arena, UINT64_MAX, &a), -1, "reserve 2^64-1");

    tap_is(vlm_arena_reserve(&arena, 1, &a), 0, "one byte");
    tap_is(vlm_arena_reserve(&arena, 4097, &b), 0, "two pages");
    tap_is(a, 0, "first fit");
    tap_is(b, 4096, "the next page");
    tap_is(arena.reserved, 12288, "pages are reserved");
    tap_is(vlm_arena_largest(&arena), 0, "full");
    tap_is(vlm_arena_reserve(&arena, 1, &c), -1, "no room");

    vlm_arena_shrink(&arena, b, 4096);
    tap_is(arena.reserved, 8192, "shrunk");
    tap_is(vlm_arena_reserve(&arena, 4096, &c), 0, "room again");
    tap_is(c, 8192, "behind what was kept");

    vlm_arena_release(&arena, 4095);
    vlm_arena_release(&arena, 12288);
    tap_is(arena.reserved, 12288, "what is no reservation is not released");

    vlm_arena_release(&arena, a);
    vlm_arena_release(&arena, a);
    vlm_arena_release(&arena, c);
    vlm_arena_shrink(&arena, b, 0);
    tap_is(arena.reserved, 0, "all released");
    tap_is(vlm_arena_largest(&arena), 12288, "neighbours are merged");

    vlm_arena_destroy(&arena);
    vlm_arena_destroy(&arena);
}


/* random reservations beside a map of pages */

static void
test_model(void)
{
    int           good, k, n, run, largest;
    uint8_t       map[PAGES];
    uint64_t      seed, offset, size, used;
    const char   *what;
    vlm_arena_t   arena;

    struct {
        uint64_t  offset;
        uint64_t  pages;
    } held[PAGES];

    if (vlm_arena_create(&arena, PAGES * 4096, &what) == -1) {
        pair_fatal(what, strerror(errno));
    }

    memset(map, 0, sizeof(map));
    memset(held, 0, sizeof(held));
    seed = 42;
    good = 1;

    for (n = 0; n < 20000; n++) {
        k = (int) (tap_random(&seed) % PAGES);
        size = tap_random(&seed) % 30 + 1;

        if (held[k].pages == 0) {

            /* the first run of free pages that is long enough */

            for (run = 0, offset = 0; offset < PAGES; offset++) {
                run = map[offset] ? 0 : run + 1;

                if (run == (int) size) {
                    break;
                }
            }

            if (offset == PAGES) {
                good &= (vlm_arena_reserve(&arena, size * 4096, &offset)
                         == -1);
                continue;
            }

            held[k].offset = offset + 1 - size;
            held[k].pages = size;
            memset(map + held[k].offset, 1, size);

            good &= (vlm_arena_reserve(&arena, size * 4096 - 7, &offset)
                     == 0);
            good &= (offset == held[k].offset * 4096);

        } else if (size < held[k].pages && n % 3 == 0) {
            vlm_arena_shrink(&arena, held[k].offset * 4096, size * 4096 - 9);
            memset(map + held[k].offset + size, 0, held[k].pages - size);
            held[k].pages = size;

        } else {
            vlm_arena_release(&arena, held[k].offset * 4096);
            memset(map + held[k].offset, 0, held[k].pages);
            held[k].pages = 0;
        }

        for (used = 0, run = 0, largest = 0, k = 0; k < PAGES; k++) {
            used += map[k];
            run = map[k] ? 0 : run + 1;
            largest = (run > largest) ? run : largest;
        }

        good &= (arena.reserved == used * 4096);
        good &= (vlm_arena_largest(&arena) == (uint64_t) largest * 4096);
    }

    tap_ok(good, "20000 steps as the model says");

    vlm_arena_destroy(&arena);
}


static long long
blocks(const vlm_arena_t *arena)
{
    struct stat  st;

    return (fstat(arena->fd, &st) == -1) ? -1 : (long long) st.st_blocks;
}


static void
test_pages(void)
{
    uint64_t      a, b;
    const char   *what;
    vlm_arena_t   arena;

    if (vlm_arena_create(&arena, 64 << 20, &what) == -1) {
        pair_fatal(what, strerror(errno));
    }

    tap_is(blocks(&arena), 0, "no memory at first");

    vlm_arena_reserve(&arena, 16 << 20, &a);
    vlm_arena_reserve(&arena, 16 << 20, &b);
    tap_is(blocks(&arena), 0, "a reservation takes none");

    memset(arena.base + a, 'a', 1 << 20);
    memset(arena.base + b, 'b', 2 << 20);
    tap_is(blocks(&arena), (3 << 20) / 512, "touched pages do");

    vlm_arena_shrink(&arena, b, 1 << 20);
    tap_is(blocks(&arena), (2 << 20) / 512, "shrinking gives back");
    tap_is(arena.base[b + (1 << 20) - 1], 'b', "what is kept is kept");

    vlm_arena_release(&arena, a);
    tap_is(blocks(&arena), (1 << 20) / 512, "release gives back");
    tap_is(arena.base[b], 'b', "the neighbour is untouched");

    vlm_arena_reserve(&arena, 1 << 20, &a);
    tap_is(arena.base[a], 0, "nothing of the last user is left");

    vlm_arena_release(&arena, a);
    vlm_arena_release(&arena, b);
    tap_is(blocks(&arena), 0, "all is back");

    vlm_arena_destroy(&arena);
}


static void
test_seals(void)
{
    void         *p;
    const char   *what;
    struct stat   st;
    vlm_arena_t   arena;

    if (vlm_arena_create(&arena, 1 << 20, &what) == -1) {
        pair_fatal(what, strerror(errno));
    }

    tap_is(ftruncate(arena.fd, 0), -1, "it cannot shrink");
    tap_is(ftruncate(arena.fd, 2 << 20), -1, "nor grow");
    tap_is(fcntl(arena.fd, F_ADD_SEALS, F_SEAL_WRITE), -1,
           "nor be sealed further");

    tap_is(fstat(arena.fd, &st), 0, "fstat()");
    tap_is(st.st_mode & 07777, 0600, "mode");

    p = mmap(NULL, 1 << 20, PROT_READ|PROT_WRITE, MAP_SHARED, arena.read_fd,
             0);
    tap_ok(p == MAP_FAILED && errno == EACCES,
           "the engine's descriptor cannot be mapped for writing");

    tap_is(write(arena.read_fd, "x", 1), -1, "nor written");

    p = mmap(NULL, 1 << 20, PROT_READ, MAP_SHARED, arena.read_fd, 0);
    tap_ok(p != MAP_FAILED, "it can be mapped for reading");

    if (p != MAP_FAILED) {
        tap_is(mprotect(p, 4096, PROT_READ|PROT_WRITE), -1,
               "and stays so");
        arena.base[5] = 'x';
        tap_is(((char *) p)[5], 'x', "it is the same memory");
        munmap(p, 1 << 20);
    }

    tap_is(fcntl(arena.fd, F_GETFD), FD_CLOEXEC, "close-on-exec");
    tap_is(fcntl(arena.read_fd, F_GETFD), FD_CLOEXEC, "close-on-exec");

    vlm_arena_destroy(&arena);
}
