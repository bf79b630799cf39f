
/*
 * What both ends of a channel do in the same way with the ring memfd: its
 * layout, copies that may wrap, doorbells.  Private to engine/channel; the
 * file that includes it must define _GNU_SOURCE.
 */

#ifndef VLM_RING_H
#define VLM_RING_H


#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "vlm_event.h"


#define vlm_ring_align(n, a)  (((n) + ((a) - 1)) & ~((uint64_t) (a) - 1))


/* values that the other side writes are read and written by these alone */

#define vlm_ring_load(p)          __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define vlm_ring_store(p, value)  __atomic_store_n(p, value, __ATOMIC_RELEASE)


static inline int
vlm_ring_power_of_two(uint64_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}


/*
 * Offsets in the ring memfd: the submission ring begins behind the header's
 * page, the event ring at *events.  Returns the size of the memfd, or 0 if a
 * number is out of the limits.
 */

static inline uint64_t
vlm_ring_layout(uint32_t nsubmissions, uint32_t event_ring_size, size_t page,
    uint64_t *events)
{
    *events = 0;

    if (!vlm_ring_power_of_two(nsubmissions)
        || nsubmissions > VLM_MAX_SUBMISSIONS
        || !vlm_ring_power_of_two(event_ring_size)
        || event_ring_size < VLM_MIN_EVENT_RING
        || event_ring_size > VLM_MAX_EVENT_RING
        || page < sizeof(vlm_ring_header_t))
    {
        return 0;
    }

    *events = page + vlm_ring_align((uint64_t) nsubmissions
                                    * sizeof(vlm_submission_t), page);

    return vlm_ring_align(*events + event_ring_size, page);
}


/*
 * Copies out of and into the byte ring.  The barrier keeps the compiler from
 * looking at the shared bytes again instead of the copy.
 */

static inline void
vlm_ring_get(const uint8_t *ring, uint32_t size, uint64_t pos, void *to,
    size_t len)
{
    size_t  at, n;

    at = pos & (size - 1);
    n = (len < size - at) ? len : size - at;

    memcpy(to, ring + at, n);
    memcpy((uint8_t *) to + n, ring, len - n);

    __asm__ volatile ("" : : : "memory");
}


static inline void
vlm_ring_put(uint8_t *ring, uint32_t size, uint64_t pos, const void *from,
    size_t len)
{
    size_t  at, n;

    if (len == 0) {
        return;
    }

    at = pos & (size - 1);
    n = (len < size - at) ? len : size - at;

    memcpy(ring + at, from, n);
    memcpy(ring, (const uint8_t *) from + n, len - n);
}


/* bytes of the body of an event, -1 if there is no such type */

static inline int
vlm_ring_event_body(uint16_t type)
{
    switch (type) {

    case VLM_EVENT_ADMITTED:
        return sizeof(vlm_event_admitted_t);

    case VLM_EVENT_PROGRESS:
        return sizeof(vlm_event_progress_t);

    case VLM_EVENT_TEXT:
        return sizeof(vlm_event_text_t);

    case VLM_EVENT_FINISH:
        return sizeof(vlm_event_finish_t);

    case VLM_EVENT_DONE:
        return sizeof(vlm_event_done_t);

    case VLM_EVENT_ERROR:
        return sizeof(vlm_event_error_t);

    case VLM_EVENT_RELEASED:
    case VLM_EVENT_CANCELLED:
        return 0;
    }

    return -1;
}


/* bytes behind the body: of text, then of log probabilities */

static inline void
vlm_ring_event_extra(const vlm_event_t *event, uint64_t *text,
    uint64_t *logprobs)
{
    *text = 0;
    *logprobs = 0;

    switch (event->type) {

    case VLM_EVENT_TEXT:
        *text = event->u.text.length;
        *logprobs = event->u.text.nlogprobs;
        break;

    case VLM_EVENT_ERROR:
        *text = event->u.error.length;
        break;
    }
}


/*
 * Doorbells.  A producer publishes its tail, then looks whether the consumer
 * sleeps; a consumer publishes that it sleeps, then looks at the tail.  All
 * four accesses are sequentially consistent, so at least one of the two sees
 * what the other wrote and no wakeup is lost.
 */

static inline void
vlm_ring_wake(uint64_t *tail, uint64_t value, uint32_t *sleeps, int fd)
{
    ssize_t   n;
    uint64_t  one;

    __atomic_store_n(tail, value, __ATOMIC_SEQ_CST);

    if (__atomic_load_n(sleeps, __ATOMIC_SEQ_CST) == 0
        || __atomic_exchange_n(sleeps, 0, __ATOMIC_SEQ_CST) == 0)
    {
        return;
    }

    /* EAGAIN: the counter is at its end, so the descriptor is readable */

    one = 1;

    do {
        n = write(fd, &one, sizeof(one));
    } while (n == -1 && errno == EINTR);
}


/*
 * Both sides share the descriptor's file flags, so O_NONBLOCK alone is only
 * as good as the other side: RWF_NOWAIT is ours.
 */

static inline void
vlm_ring_drain(int fd)
{
    ssize_t       n;
    uint64_t      value;
    struct iovec  iov;

    iov.iov_base = &value;
    iov.iov_len = sizeof(value);

    do {
        n = preadv2(fd, &iov, 1, -1, RWF_NOWAIT);
    } while (n == -1 && errno == EINTR);

    if (n == -1 && (errno == EOPNOTSUPP || errno == ENOSYS)) {
        (void) !read(fd, &value, sizeof(value));
    }
}


/* 1: wait for fd; 0: go on taking what lies between head and tail */

static inline int
vlm_ring_sleep(const uint64_t *tail, uint64_t head, uint32_t *sleeps, int fd)
{
    vlm_ring_drain(fd);

    __atomic_store_n(sleeps, 1, __ATOMIC_SEQ_CST);

    if (__atomic_load_n(tail, __ATOMIC_SEQ_CST) == head) {
        return 1;
    }

    __atomic_store_n(sleeps, 0, __ATOMIC_RELAXED);

    return 0;
}


/* looks at a socket that should stay silent: 0 silent, 1 closed, -1 talks */

static inline int
vlm_ring_socket_state(int fd)
{
    char     c;
    ssize_t  n;

    do {
        n = recv(fd, &c, 1, MSG_DONTWAIT);
    } while (n == -1 && errno == EINTR);

    if (n > 0) {
        return -1;
    }

    if (n == -1 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        return 0;
    }

    return 1;
}


#endif /* VLM_RING_H */
