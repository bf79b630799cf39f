
/* Events of the fake engine, good ones and those that no engine sends. */

#include <string.h>

#include "engine/channel/vlm_logprob.h"
#include "t/engine/fake_engine.h"


int
send_event(job_t *job, vlm_event_t *e)
{
    int  rc;

    if (e->slot == UINT32_MAX) {
        e->slot = job->slot;
    }

    if (e->generation == 0) {
        e->generation = job->generation;
    }

    rc = vlm_peer_send(&job->peer->vlm, e);

    if (rc == VLM_CHANNEL_ERROR) {
        peer_close(job->peer, job->peer->vlm.why);
    }

    return rc;
}


void
new_event(vlm_event_t *e, uint16_t type)
{
    memset(e, 0, offsetof(vlm_event_t, buf));
    e->type = type;
    e->slot = UINT32_MAX;
}


/* the piece of the answer that token number n stands for */

static void
token_text(job_t *job, unsigned n, const char **text, uint32_t *len)
{
    size_t        from, to;
    static char   buf[VLM_MAX_EVENT_TEXT];

    if (job->script.mode == MODE_FLOOD) {
        memset(buf, 'a' + (int) (n % 26), job->script.kind);
        *text = buf;
        *len = job->script.kind;
        return;
    }

    from = job->text_len * n / job->npieces;
    to = job->text_len * (n + 1) / job->npieces;

    while (from < job->text_len && (job->text[from] & 0xc0) == 0x80) {
        from++;
    }

    while (to < job->text_len && (job->text[to] & 0xc0) == 0x80) {
        to++;
    }

    *text = job->text + from;
    *len = (uint32_t) (to - from);

    if (job->words) {
        *len = (uint32_t) snprintf(buf, sizeof(buf), n == 0 ? "t%u" : " t%u",
                                   n);
        *text = buf;
    }
}


static void
token_logprobs(job_t *job, unsigned n, vlm_event_t *e)
{
    int             i;
    size_t          len;
    char            bytes[VLM_MAX_TOP_LOGPROBS][VLM_MAX_TOKEN_BYTES];
    vlm_logprobs_t  entry;

    static char     buf[VLM_MAX_EVENT_LOGPROBS];

    entry.token.bytes = e->text;
    entry.token.length = e->u.text.length;
    entry.token.logprob = -(float) (n % 8) / 4;
    entry.ntop = (uint32_t) job->logprobs;

    for (i = 0; i < job->logprobs; i++) {
        len = (job->script.mode == MODE_LOGPROBS) ? 200 : e->u.text.length;

        memset(bytes[i], 'x', sizeof(bytes[i]));
        bytes[i][0] = (char) ('0' + i % 10);
        memcpy(bytes[i] + 1, e->text, e->u.text.length);

        entry.top[i].bytes = bytes[i];
        entry.top[i].length = (uint32_t) (len + 1);
        entry.top[i].logprob = entry.token.logprob - (float) i;
    }

    e->logprobs = buf;
    e->u.text.nlogprobs = (uint32_t)
                          vlm_logprobs_append(buf, sizeof(buf), 0, &entry);
}


int
send_token(job_t *job, unsigned choice, unsigned n)
{
    vlm_event_t  e;

    new_event(&e, VLM_EVENT_TEXT);
    e.choice = (uint16_t) choice;
    e.u.text.ntokens = 1;
    token_text(job, n, &e.text, &e.u.text.length);

    if (job->logprobs >= 0 && e.u.text.length < VLM_MAX_TOKEN_BYTES) {
        token_logprobs(job, n, &e);
    }

    return send_event(job, &e);
}


int
send_finish(job_t *job, unsigned choice)
{
    vlm_event_t  e;

    new_event(&e, VLM_EVENT_FINISH);
    e.choice = (uint16_t) choice;
    e.u.finish.reason = job->length ? VLM_FINISH_LENGTH : VLM_FINISH_STOP;

    return send_event(job, &e);
}


int
send_intruder(job_t *job)
{
    vlm_event_t  e;

    new_event(&e, VLM_EVENT_TEXT);
    e.text = "INTRUDER";
    e.u.text.length = 8;
    e.u.text.ntokens = 1;

    if (job->script.mode == MODE_STALE) {
        e.generation = job->generation + ((job->extra & 1) ? 1 : UINT32_MAX);

        if (e.generation == 0) {
            e.generation = job->generation + 1;
        }

    } else {
        e.slot = (job->slot + 1) % job->peer->vlm.hello.max_requests;
        e.generation = job->generation + 1000;
    }

    return send_event(job, &e);
}


static void
raw_frame(peer_t *peer, const void *frame, size_t len, uint64_t advance)
{
    size_t       i;
    uint32_t     mask;
    vlm_peer_t  *vlm;

    vlm = &peer->vlm;
    mask = vlm->hello.event_ring_size - 1;

    for (i = 0; i < len; i++) {
        vlm->events[(vlm->event_tail + i) & mask]
            = ((const uint8_t *) frame)[i];
    }

    vlm->event_tail += advance;
    __atomic_store_n(&vlm->header->event_tail, vlm->event_tail,
                     __ATOMIC_RELEASE);
}


/* a text event that is right but for one field */

static void
garbage_text(job_t *job)
{
    struct {
        vlm_event_header_t  h;
        vlm_event_text_t    body;
        char                text[8];
    } f;

    memset(&f, 0, sizeof(f));
    memcpy(f.text, "GARBAGE!", 8);
    f.h.size = sizeof(f);
    f.h.type = VLM_EVENT_TEXT;
    f.h.slot = job->slot;
    f.h.generation = job->generation;
    f.body.length = 8;

    switch (job->script.kind) {

    case GARBAGE_TYPE:
        f.h.type = 4711;
        break;

    case GARBAGE_SIZE0:
        f.h.size = 0;
        break;

    case GARBAGE_SMALL:
        f.h.size = 24;
        break;

    case GARBAGE_ODD:
        f.h.size = sizeof(f) - 3;
        break;

    case GARBAGE_LARGE:
        f.h.size = 1 << 30;
        break;

    case GARBAGE_LENGTH:
        f.body.length = 0xfffffff0u;
        break;

    case GARBAGE_CHOICE:
        f.h.choice = 65535;
        break;

    case GARBAGE_SLOT:
        f.h.slot = 0xffffff00u;
        break;

    default:    /* GARBAGE_GENERATION */
        f.h.generation = 0;
    }

    raw_frame(job->peer, &f, sizeof(f), sizeof(f));
}


/* events that the channel's own writer lets pass, but no reader may */

static void
garbage_event(job_t *job)
{
    vlm_event_t  e;

    switch (job->script.kind) {

    case GARBAGE_REASON:
        new_event(&e, VLM_EVENT_FINISH);
        e.u.finish.reason = 77;
        break;

    case GARBAGE_STAGE:
        new_event(&e, VLM_EVENT_PROGRESS);
        e.u.progress.stage = 77;
        break;

    case GARBAGE_LOGPROBS:
        new_event(&e, VLM_EVENT_TEXT);
        e.u.text.ntokens = 1;
        e.u.text.nlogprobs = 8;
        e.logprobs = "\0\0\0\0\x01\0\0\0";
        break;

    case GARBAGE_OUTCOME:
        new_event(&e, VLM_EVENT_DONE);
        e.u.done.noutcomes = 1u << 31;
        break;

    default:    /* GARBAGE_STATUS, GARBAGE_CODE */
        new_event(&e, VLM_EVENT_ERROR);
        e.u.error.status = 200;

        if (job->script.kind == GARBAGE_CODE) {
            e.u.error.status = 400;
            memset(e.u.error.code, 'c', sizeof(e.u.error.code));
        }
    }

    (void) send_event(job, &e);
}


void
send_garbage(job_t *job)
{
    switch (job->script.kind) {

    case GARBAGE_TAIL:
        raw_frame(job->peer, "", 0, 1ull << 40);
        break;

    case GARBAGE_REASON:
    case GARBAGE_STAGE:
    case GARBAGE_STATUS:
    case GARBAGE_CODE:
    case GARBAGE_OUTCOME:
    case GARBAGE_LOGPROBS:
        garbage_event(job);
        break;

    default:
        garbage_text(job);
    }

    if (job->peer->ready) {
        vlm_peer_ring(&job->peer->vlm);
    }
}
