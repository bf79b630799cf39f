
/*
 * What a worker reads from shared memory: the counters of the header and the
 * event ring.  The input is a list of steps: good events by the engine's own
 * code, bytes changed, counters changed; the worker reads after each.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/channel/vlm_logprob.h"
#include "engine/channel/vlm_peer.h"
#include "engine/channel/vlm_record.h"
#include "engine/channel/vlm_worker.h"


#define RING  VLM_MIN_EVENT_RING


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);


#define MAX_FRAMES  64

static vlm_worker_t  w;
static vlm_peer_t    p;
static uint64_t      frames[MAX_FRAMES];        /* where the last ones begin */
static unsigned      nframes;


static uint32_t
take(const uint8_t **data, size_t *size, size_t n)
{
    uint32_t  value;

    for (value = 0; n > 0 && *size > 0; n--, (*data)++, (*size)--) {
        value = value << 8 | **data;
    }

    return value;
}


static void
setup(uint64_t start)
{
    static vlm_ring_header_t  header;
    static vlm_submission_t   submissions[8];

    memset(&header, 0, sizeof(header));
    memset(&w, 0, sizeof(w));
    memset(&p, 0, sizeof(p));

    w.header = &header;
    w.submissions = submissions;
    w.events = malloc(RING);
    w.conf.nsubmissions = 8;
    w.conf.event_ring_size = RING;
    w.conf.max_requests = 16;
    w.conf.generation = 1;
    w.submit_fd = -1;
    w.event_fd = -1;
    w.event_head = start;

    if (w.events == NULL) {
        abort();
    }

    memset(w.events, 0, RING);

    p.header = &header;
    p.events = w.events;
    p.event_fd = -1;
    p.event_tail = start;
    p.hello.event_ring_size = RING;

    header.event_head = start;
    header.event_tail = start;

    nframes = 0;
}


static void
put_event(const uint8_t **data, size_t *size)
{
    uint32_t        i;
    vlm_event_t     e;
    vlm_logprobs_t  entry;
    static char     text[VLM_MAX_EVENT_TEXT], logprobs[512];

    memset(&e, 0, offsetof(vlm_event_t, buf));
    e.type = (uint16_t) (take(data, size, 1) % 9);
    e.slot = 3;
    e.generation = 1;
    e.text = text;

    switch (e.type) {

    case VLM_EVENT_TEXT:
        e.u.text.length = take(data, size, 2) % (VLM_MAX_EVENT_TEXT + 1);
        e.u.text.ntokens = take(data, size, 1) % 4;
        e.logprobs = logprobs;

        memset(&entry, 0, sizeof(vlm_logprobs_t));
        entry.token.bytes = text;
        entry.token.length = e.u.text.ntokens;
        entry.ntop = take(data, size, 1) % 4;

        for (i = 0; i < e.u.text.ntokens; i++) {
            e.u.text.nlogprobs = (uint32_t)
                vlm_logprobs_append(logprobs, sizeof(logprobs),
                                    e.u.text.nlogprobs, &entry);
        }

        break;

    case VLM_EVENT_ERROR:
        e.u.error.status = 400;
        e.u.error.length = take(data, size, 1);
        break;

    case VLM_EVENT_FINISH:
        e.u.finish.reason = VLM_FINISH_STOP;
        break;

    case VLM_EVENT_DONE:
        e.u.done.noutcomes = 1;
        e.u.done.outcomes[0] = VLM_CACHE_MISS;
        break;
    }

    frames[nframes % MAX_FRAMES] = p.event_tail;

    if (vlm_peer_send(&p, &e) == VLM_CHANNEL_OK) {
        nframes++;
    }
}


/* up to four bytes of a frame's header or body */

static void
change_frame(const uint8_t **data, size_t *size)
{
    unsigned  i, n, at;

    if (nframes == 0) {
        return;
    }

    n = take(data, size, 1) % (nframes < MAX_FRAMES ? nframes : MAX_FRAMES);
    at = take(data, size, 1) % 48;

    for (i = 0; i < 4; i++) {
        w.events[(frames[n] + at + i) & (RING - 1)]
            ^= (uint8_t) take(data, size, 1);
    }
}


static void
check(const vlm_event_t *e)
{
    uint32_t       i, len;
    volatile char  sum;

    if (e->slot >= 16 || e->generation == 0 || e->choice >= VLM_MAX_CHOICES) {
        abort();
    }

    len = 0;

    switch (e->type) {

    case VLM_EVENT_TEXT:
        len = e->u.text.length + e->u.text.nlogprobs;

        if (e->u.text.nlogprobs != 0
            && (e->logprobs != e->text + e->u.text.length
                || vlm_logprobs_count(e->logprobs, e->u.text.nlogprobs)
                   != (int) e->u.text.ntokens))
        {
            abort();
        }

        break;

    case VLM_EVENT_ERROR:
        len = e->u.error.length;

        if (strlen(e->u.error.code) >= sizeof(e->u.error.code)
            || strlen(e->u.error.param) >= sizeof(e->u.error.param))
        {
            abort();
        }

        break;

    case VLM_EVENT_DONE:

        if (e->u.done.noutcomes > VLM_MAX_CACHE_OUTCOMES) {
            abort();
        }

        break;
    }

    if (len > VLM_MAX_EVENT_FRAME
        || (len != 0 && e->text + len > e->buf + sizeof(e->buf)))
    {
        abort();
    }

    for (sum = 0, i = 0; i < len; i++) {
        sum = (char) (sum + e->text[i]);
    }
}


/* reads what is there; an error ends the channel: 0 */

static int
read_events(void)
{
    int                 rc;
    vlm_event_t        *e;
    vlm_gauges_t        gauges;
    vlm_engine_info_t   info;

    e = malloc(sizeof(vlm_event_t));

    if (e == NULL) {
        abort();
    }

    while ((rc = vlm_worker_next(&w, e)) == VLM_CHANNEL_OK) {
        check(e);
    }

    free(e);

    vlm_worker_gauges(&w, &gauges);

    if (vlm_worker_state(&w) > VLM_STATE_FAILED) {
        abort();
    }

    if (vlm_worker_info(&w, &info) == VLM_CHANNEL_OK
        && (info.nmodels > VLM_MAX_MODELS
            || strlen(info.models[VLM_MAX_MODELS - 1])
               >= VLM_MODEL_NAME_LEN))
    {
        abort();
    }

    if (rc == VLM_CHANNEL_ERROR) {
        return 0;
    }

    return vlm_worker_cancel(&w, 1, 1) != VLM_CHANNEL_ERROR;
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int       step, going;
    uint32_t  at;

    setup((uint64_t) (take(&data, &size, 2) & ~7u) + (UINT64_MAX - 0xffff));

    for (going = 1; going && size > 0; /* void */ ) {
        step = (int) take(&data, &size, 1);

        switch (step % 6) {

        case 0:
        case 1:
            put_event(&data, &size);
            break;

        case 2:
            change_frame(&data, &size);
            break;

        case 3:
            at = take(&data, &size, 2);
            ((uint8_t *) w.header)[at % sizeof(vlm_ring_header_t)]
                ^= (uint8_t) take(&data, &size, 1);
            break;

        case 4:
            w.header->submit_head += take(&data, &size, 1);
            break;

        default:
            going = read_events();
        }
    }

    if (going) {
        (void) read_events();
    }

    free(w.events);

    return 0;
}
