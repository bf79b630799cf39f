
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdarg.h>
#include <stdio.h>

#include "vlm_hello.h"
#include "vlm_memfd.h"
#include "vlm_record.h"
#include "vlm_ring.h"


static int peer_used(vlm_peer_t *p, uint64_t *used);


int
vlm_peer_fail(vlm_peer_t *p, int rc, int err, const char *fmt, ...)
{
    int      n;
    va_list  args;

    va_start(args, fmt);
    n = vsnprintf(p->why, sizeof(p->why), fmt, args);
    va_end(args);

    /* EPROTO is ours, not a system call's, and the text says it all */

    if (err != 0 && err != EPROTO && n > 0 && (size_t) n < sizeof(p->why)) {
        errno = err;
        snprintf(p->why + n, sizeof(p->why) - n, ": %m");
    }

    p->err = err;

    return rc;
}


void
vlm_peer_close(vlm_peer_t *p)
{
    int  i;

    if (p->state == VLM_PEER_CLOSED) {
        return;
    }

    if (p->header != NULL) {
        munmap(p->header, p->ring_size);
    }

    if (p->arena != NULL) {
        munmap((void *) p->arena, p->arena_size);
    }

    for (i = 0; i < VLM_NFDS; i++) {
        vlm_memfd_close(&p->fds[i]);
    }

    vlm_memfd_close(&p->fd);
    vlm_memfd_close(&p->submit_fd);
    vlm_memfd_close(&p->event_fd);

    p->header = NULL;
    p->submissions = NULL;
    p->events = NULL;
    p->arena = NULL;
    p->arena_size = 0;
    p->state = VLM_PEER_CLOSED;
}


int
vlm_peer_check(vlm_peer_t *p)
{
    switch (vlm_ring_socket_state(p->fd)) {

    case 0:
        return VLM_CHANNEL_OK;

    case 1:
        return vlm_peer_fail(p, VLM_CHANNEL_CLOSED, 0,
                             "the worker closed the connection");

    default:
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, EPROTO,
                             "the worker sent bytes behind its hello");
    }
}


void
vlm_peer_set_state(vlm_peer_t *p, uint32_t state)
{
    if (p->header == NULL) {
        p->first_state = state;
        return;
    }

    vlm_ring_store(&p->header->state, state);
}


/*
 * The worker may read at any moment: an odd version tells it that the words
 * are changing.  See vlm_worker_info().
 */

void
vlm_peer_set_info(vlm_peer_t *p, const vlm_engine_info_t *info)
{
    size_t     i, n;
    uint32_t   version;
    uint64_t   words[sizeof(vlm_engine_info_t) / 8], *to;

    _Static_assert(sizeof(vlm_engine_info_t) % 8 == 0,
                   "info is copied in words");

    if (p->header == NULL) {
        p->first_info = *info;
        p->informed = 1;
        return;
    }

    to = (uint64_t *) &p->header->info;
    n = sizeof(vlm_engine_info_t) / 8;

    memcpy(words, info, sizeof(vlm_engine_info_t));

    version = p->info_version;

    vlm_ring_store(&p->header->info_version, version + 1);

    for (i = 0; i < n; i++) {
        vlm_ring_store(&to[i], words[i]);
    }

    p->info_version = version + 2;

    vlm_ring_store(&p->header->info_version, p->info_version);
}


void
vlm_peer_set_gauges(vlm_peer_t *p, const vlm_gauges_t *gauges)
{
    vlm_gauges_t  *to;

    if (p->header == NULL) {
        p->first_gauges = *gauges;
        return;
    }

    to = &p->header->gauges;

    vlm_ring_store(&to->running, gauges->running);
    vlm_ring_store(&to->queued, gauges->queued);
    vlm_ring_store(&to->kv_blocks, gauges->kv_blocks);
    vlm_ring_store(&to->kv_blocks_free, gauges->kv_blocks_free);
    vlm_ring_store(&to->first_token_ms, gauges->first_token_ms);
    vlm_ring_store(&to->retry_after, gauges->retry_after);
    vlm_ring_store(&to->heartbeat, gauges->heartbeat);
}


int
vlm_peer_next(vlm_peer_t *p, vlm_submission_t *sub)
{
    uint64_t  tail, avail;

    tail = vlm_ring_load(&p->header->submit_tail);
    avail = tail - p->submit_head;

    if (avail == 0) {
        return VLM_CHANNEL_AGAIN;
    }

    if (avail > p->hello.nsubmissions) {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, EPROTO,
                             "submission ring damaged: head %llu, tail %llu, "
                             "%u entries", (unsigned long long) p->submit_head,
                             (unsigned long long) tail, p->hello.nsubmissions);
    }

    vlm_ring_get((const uint8_t *) p->submissions,
                 p->hello.nsubmissions * (uint32_t) sizeof(vlm_submission_t),
                 p->submit_head * sizeof(vlm_submission_t), sub,
                 sizeof(vlm_submission_t));

    if (sub->type != VLM_SUBMIT_REQUEST && sub->type != VLM_SUBMIT_CANCEL) {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, EPROTO,
                             "submission of unknown type %u", sub->type);
    }

    if (sub->slot >= p->hello.max_requests || sub->generation == 0) {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, EPROTO,
                             "submission for slot %u of %u, generation %u",
                             sub->slot, p->hello.max_requests, sub->generation);
    }

    if (sub->type == VLM_SUBMIT_REQUEST
        && (sub->length == 0 || sub->length > VLM_MAX_RECORD
            || sub->offset % 8 != 0
            || vlm_peer_arena(p, sub->offset, sub->length) == NULL))
    {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, EPROTO,
                             "submission with a record at %llu of %u bytes, "
                             "the arena has %llu",
                             (unsigned long long) sub->offset, sub->length,
                             (unsigned long long) p->arena_size);
    }

    p->submit_head++;
    vlm_ring_store(&p->header->submit_head, p->submit_head);

    return VLM_CHANNEL_OK;
}


int
vlm_peer_sleep(vlm_peer_t *p)
{
    return vlm_ring_sleep(&p->header->submit_tail, p->submit_head,
                          &p->header->submit_sleeps, p->submit_fd);
}


const uint8_t *
vlm_peer_arena(const vlm_peer_t *p, uint64_t offset, uint64_t length)
{
    if (offset > p->arena_size || length > p->arena_size - offset) {
        return NULL;
    }

    return p->arena + offset;
}


static int
peer_used(vlm_peer_t *p, uint64_t *used)
{
    uint64_t  head;

    head = vlm_ring_load(&p->header->event_head);
    *used = p->event_tail - head;

    if (*used > p->hello.event_ring_size) {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, EPROTO,
                             "event ring damaged: head %llu, tail %llu, "
                             "%u bytes", (unsigned long long) head,
                             (unsigned long long) p->event_tail,
                             p->hello.event_ring_size);
    }

    return VLM_CHANNEL_OK;
}


int
vlm_peer_send(vlm_peer_t *p, const vlm_event_t *event)
{
    int                  body;
    uint32_t             ring;
    uint64_t             used, text, logprobs, size, pos;
    vlm_event_header_t   h;

    body = vlm_ring_event_body(event->type);
    vlm_ring_event_extra(event, &text, &logprobs);

    if (body == -1 || text > VLM_MAX_EVENT_TEXT
        || logprobs > VLM_MAX_EVENT_LOGPROBS)
    {
        return vlm_peer_fail(p, VLM_CHANNEL_ERROR, EINVAL,
                             "event of type %u with %llu bytes of text and "
                             "%llu of log probabilities", event->type,
                             (unsigned long long) text,
                             (unsigned long long) logprobs);
    }

    size = vlm_ring_align(sizeof(vlm_event_header_t) + body + text + logprobs,
                          8);

    if (peer_used(p, &used) != VLM_CHANNEL_OK) {
        return VLM_CHANNEL_ERROR;
    }

    ring = p->hello.event_ring_size;

    if (size > ring - used) {
        return VLM_CHANNEL_AGAIN;
    }

    h.size = (uint32_t) size;
    h.type = event->type;
    h.choice = event->choice;
    h.slot = event->slot;
    h.generation = event->generation;

    pos = p->event_tail;

    vlm_ring_put(p->events, ring, pos, &h, sizeof(vlm_event_header_t));
    pos += sizeof(vlm_event_header_t);

    vlm_ring_put(p->events, ring, pos, &event->u, (size_t) body);
    pos += (uint64_t) body;

    vlm_ring_put(p->events, ring, pos, event->text, (size_t) text);
    pos += text;

    vlm_ring_put(p->events, ring, pos, event->logprobs, (size_t) logprobs);

    p->event_tail += size;
    vlm_ring_store(&p->header->event_tail, p->event_tail);

    return VLM_CHANNEL_OK;
}


size_t
vlm_peer_room(vlm_peer_t *p)
{
    uint64_t  used;

    if (peer_used(p, &used) != VLM_CHANNEL_OK) {
        return 0;
    }

    return (size_t) (p->hello.event_ring_size - used);
}


void
vlm_peer_ring(vlm_peer_t *p)
{
    if (p->event_tail == p->rung_tail) {
        return;
    }

    p->rung_tail = p->event_tail;

    vlm_ring_wake(&p->header->event_tail, p->event_tail,
                  &p->header->event_sleeps, p->event_fd);
}
