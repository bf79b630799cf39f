
/* Submissions, events, doorbells: both ends in one process. */

#include "t/unit/channel_pair.h"


static void test_handshake(pair_t *pair);
static void test_submissions(pair_t *pair);
static void test_every_event(pair_t *pair);
static void test_wrap(pair_t *pair);
static void test_full_event_ring(pair_t *pair);
static void test_refused_events(pair_t *pair);
static void test_doorbells(pair_t *pair);
static void test_gauges(pair_t *pair);
static void test_ends(pair_t *pair);
static void text_event(vlm_event_t *e, uint32_t slot, const char *text,
    uint32_t len);


int
main(void)
{
    int     fds;
    pair_t  pair;

    fds = pair_count_fds();

    pair_init(&pair);

    test_handshake(&pair);
    test_submissions(&pair);
    test_every_event(&pair);
    test_wrap(&pair);
    test_full_event_ring(&pair);
    test_refused_events(&pair);
    test_doorbells(&pair);
    test_gauges(&pair);
    test_ends(&pair);

    pair_destroy(&pair);

    tap_is(pair_count_fds(), fds, "no descriptor is left");

    return tap_done();
}


static void
test_handshake(pair_t *pair)
{
    int                rc;
    vlm_engine_info_t  info;

    pair->conf.generation = 7;

    rc = vlm_worker_open(&pair->w, &pair->conf, &pair->arena, pair->path);
    tap_is(rc, VLM_CHANNEL_OK, "worker opens: %s", pair->w.why);

    rc = vlm_worker_handshake(&pair->w);
    tap_is(rc, VLM_CHANNEL_AGAIN, "no welcome yet");

    rc = vlm_peer_accept(&pair->p, pair->listen_fd);
    tap_is(rc, VLM_CHANNEL_OK, "peer accepts: %s", pair->p.why);
    tap_is(pair->p.pid, getpid(), "the worker's pid");
    tap_is(pair->p.uid, getuid(), "the worker's uid");

    memset(&info, 0, sizeof(vlm_engine_info_t));
    info.context_length = 77;

    vlm_peer_set_state(&pair->p, VLM_STATE_DRAINING);
    vlm_peer_set_info(&pair->p, &info);
    vlm_peer_set_state(&pair->p, VLM_STATE_READY);

    rc = vlm_peer_handshake(&pair->p);
    tap_is(rc, VLM_CHANNEL_OK, "peer shakes hands: %s", pair->p.why);
    tap_is(pair->p.hello.generation, 7, "generation");
    tap_is(pair->p.hello.max_requests, 16, "max_requests");

    rc = vlm_worker_handshake(&pair->w);
    tap_is(rc, VLM_CHANNEL_OK, "worker shakes hands: %s", pair->w.why);
    tap_is(pair->w.welcome.pid, getpid(), "the engine's pid");

    tap_is(vlm_worker_state(&pair->w), VLM_STATE_READY, "state as set before");
    rc = vlm_worker_info(&pair->w, &info);
    tap_is(rc == VLM_CHANNEL_OK ? info.context_length : 0, 77, "info, too");

    tap_is(vlm_worker_check(&pair->w), VLM_CHANNEL_OK, "engine is there");
    tap_is(vlm_peer_check(&pair->p), VLM_CHANNEL_OK, "worker is there");

    tap_is(vlm_peer_handshake(&pair->p), VLM_CHANNEL_OK, "again: nothing");
    tap_is(vlm_worker_handshake(&pair->w), VLM_CHANNEL_OK, "again: nothing");

    tap_is(fcntl(pair->p.submit_fd, F_GETFD), FD_CLOEXEC,
           "descriptors are close-on-exec");
    tap_ok(fcntl(pair->p.event_fd, F_GETFL) & O_NONBLOCK,
           "eventfd does not block");
}


static void
test_submissions(pair_t *pair)
{
    int               i, rc, good;
    vlm_submission_t  sub;

    tap_is(vlm_peer_next(&pair->p, &sub), VLM_CHANNEL_AGAIN, "none yet");

    /* several times around a ring of 8, never empty in between */

    good = 1;
    rc = vlm_worker_submit(&pair->w, 0, 1, 0, 8);
    good &= (rc == VLM_CHANNEL_OK);

    for (i = 1; i < 100; i++) {
        rc = vlm_worker_submit(&pair->w, i % 16, i + 1, i * 8, 100 + i);
        good &= (rc == VLM_CHANNEL_OK);

        rc = vlm_peer_next(&pair->p, &sub);
        good &= (rc == VLM_CHANNEL_OK && sub.type == VLM_SUBMIT_REQUEST
                 && sub.slot == (uint32_t) (i - 1) % 16
                 && sub.generation == (uint32_t) i
                 && sub.offset == (uint64_t) (i - 1) * 8);
    }

    tap_ok(good, "submissions arrive in order");
    tap_is(vlm_peer_next(&pair->p, &sub), VLM_CHANNEL_OK, "the last one");
    tap_is(sub.length, 199, "its length");

    for (i = 0; i < 8; i++) {
        rc = vlm_worker_cancel(&pair->w, 3, 40 + i);
    }

    tap_is(rc, VLM_CHANNEL_OK, "8 submissions fit");
    tap_is(vlm_worker_cancel(&pair->w, 3, 48), VLM_CHANNEL_AGAIN,
           "the ninth does not");

    tap_is(vlm_peer_next(&pair->p, &sub), VLM_CHANNEL_OK, "take one");
    tap_is(sub.type, VLM_SUBMIT_CANCEL, "a cancel");
    tap_is(sub.slot, 3, "slot");
    tap_is(sub.generation, 40, "generation");

    tap_is(vlm_worker_submit(&pair->w, 3, 48, 4096, 4096), VLM_CHANNEL_OK,
           "room again");

    for (i = 0; i < 8; i++) {
        rc = vlm_peer_next(&pair->p, &sub);
    }

    tap_is(rc, VLM_CHANNEL_OK, "all taken");
    tap_is(sub.offset, 4096, "offset of a record");
    tap_is(vlm_peer_next(&pair->p, &sub), VLM_CHANNEL_AGAIN, "empty");

    pair->arena.base[4096] = 'x';

    tap_ok(vlm_peer_arena(&pair->p, 4096, 4096) != NULL
           && *vlm_peer_arena(&pair->p, 4096, 4096) == 'x',
           "the record is seen by the engine");
    tap_ok(vlm_peer_arena(&pair->p, 1 << 20, 0) != NULL, "arena's end");
    tap_ok(vlm_peer_arena(&pair->p, 1 << 20, 1) == NULL, "behind the arena");
    tap_ok(vlm_peer_arena(&pair->p, 8, UINT64_MAX) == NULL, "overflow");
    tap_ok(vlm_peer_arena(&pair->p, UINT64_MAX, 8) == NULL, "overflow");
}


static void
test_every_event(pair_t *pair)
{
    int          rc;
    vlm_event_t  e, got;

    memset(&e, 0, sizeof(vlm_event_t));
    memset(&got, 0x55, sizeof(vlm_event_t));
    e.slot = 5;
    e.generation = 77;

    e.type = VLM_EVENT_ADMITTED;
    e.u.admitted.prompt_tokens = 1000;
    e.u.admitted.image_tokens = 900;
    e.u.admitted.queue_place = 3;
    tap_is(vlm_peer_send(&pair->p, &e), VLM_CHANNEL_OK, "send admitted");
    rc = vlm_worker_next(&pair->w, &got);
    tap_is(rc, VLM_CHANNEL_OK, "next: %s", pair->w.why);
    tap_is(got.type, VLM_EVENT_ADMITTED, "type");
    tap_is(got.slot, 5, "slot");
    tap_is(got.generation, 77, "generation");
    tap_ok(memcmp(&got.u.admitted, &e.u.admitted, sizeof(e.u.admitted)) == 0,
           "admitted");

    e.type = VLM_EVENT_PROGRESS;
    e.u.progress.stage = VLM_STAGE_GENERATE;
    e.u.progress.queue_place = 2;
    tap_is(vlm_peer_send(&pair->p, &e), VLM_CHANNEL_OK, "send progress");
    tap_is(vlm_worker_next(&pair->w, &got), VLM_CHANNEL_OK, "next");
    tap_is(got.u.progress.stage, VLM_STAGE_GENERATE, "stage");

    text_event(&e, 5, "ein Bild", 8);
    e.choice = 1;
    e.u.text.ntokens = 2;
    tap_is(vlm_peer_send(&pair->p, &e), VLM_CHANNEL_OK, "send text");
    tap_is(vlm_worker_next(&pair->w, &got), VLM_CHANNEL_OK, "next");
    tap_is(got.choice, 1, "choice");
    tap_is(got.u.text.ntokens, 2, "ntokens");
    tap_is(got.u.text.length, 8, "length");
    tap_ok(memcmp(got.text, "ein Bild", 8) == 0, "text");
    tap_ok(got.text >= got.buf && got.text < got.buf + sizeof(got.buf),
           "text lies in the event");

    text_event(&e, 5, "ab", 2);
    e.u.text.ntokens = 1;
    e.u.text.nlogprobs = 8;
    e.logprobs = "\0\0\0\0\0\0\0\0";
    tap_is(vlm_peer_send(&pair->p, &e), VLM_CHANNEL_OK, "send logprobs");
    tap_is(vlm_worker_next(&pair->w, &got), VLM_CHANNEL_OK, "next");
    tap_ok(got.u.text.length == 2 && got.u.text.nlogprobs == 8
           && memcmp(got.text, "ab\0\0\0\0\0\0\0\0", 10) == 0, "logprobs");

    e.type = VLM_EVENT_FINISH;
    e.choice = 63;
    e.u.finish.reason = VLM_FINISH_LENGTH;
    tap_is(vlm_peer_send(&pair->p, &e), VLM_CHANNEL_OK, "send finish");
    tap_is(vlm_worker_next(&pair->w, &got), VLM_CHANNEL_OK, "next");
    tap_is(got.u.finish.reason, VLM_FINISH_LENGTH, "reason");
    tap_is(got.choice, 63, "choice");

    e.type = VLM_EVENT_DONE;
    e.choice = 0;
    memset(&e.u.done, 0, sizeof(vlm_event_done_t));
    e.u.done.completion_tokens = 17;
    e.u.done.total_us = 123456;
    e.u.done.noutcomes = VLM_MAX_CACHE_OUTCOMES;
    memset(e.u.done.outcomes, VLM_CACHE_PREFIX, VLM_MAX_CACHE_OUTCOMES);
    tap_is(vlm_peer_send(&pair->p, &e), VLM_CHANNEL_OK, "send done");
    tap_is(vlm_worker_next(&pair->w, &got), VLM_CHANNEL_OK, "next");
    tap_ok(memcmp(&got.u.done, &e.u.done, sizeof(e.u.done)) == 0, "done");

    e.type = VLM_EVENT_ERROR;
    memset(&e.u.error, 0, sizeof(vlm_event_error_t));
    e.u.error.status = 400;
    e.u.error.length = 11;
    e.text = "no picture!";
    snprintf(e.u.error.code, sizeof(e.u.error.code), "invalid_image");
    snprintf(e.u.error.param, sizeof(e.u.error.param), "image[2]");
    tap_is(vlm_peer_send(&pair->p, &e), VLM_CHANNEL_OK, "send error");
    tap_is(vlm_worker_next(&pair->w, &got), VLM_CHANNEL_OK, "next");
    tap_is(got.u.error.status, 400, "status");
    tap_str(got.u.error.code, "invalid_image", "code");
    tap_str(got.u.error.param, "image[2]", "param");
    tap_ok(got.u.error.length == 11
           && memcmp(got.text, "no picture!", 11) == 0, "message");

    e.type = VLM_EVENT_RELEASED;
    tap_is(vlm_peer_send(&pair->p, &e), VLM_CHANNEL_OK, "send released");
    tap_is(vlm_worker_next(&pair->w, &got), VLM_CHANNEL_OK, "next");
    tap_is(got.type, VLM_EVENT_RELEASED, "released");

    e.type = VLM_EVENT_CANCELLED;
    tap_is(vlm_peer_send(&pair->p, &e), VLM_CHANNEL_OK, "send cancelled");
    tap_is(vlm_worker_next(&pair->w, &got), VLM_CHANNEL_OK, "next");
    tap_is(got.type, VLM_EVENT_CANCELLED, "cancelled");

    tap_is(vlm_worker_next(&pair->w, &got), VLM_CHANNEL_AGAIN, "none left");
}


/* every length of text at every place of the ring's end */

static void
test_wrap(pair_t *pair)
{
    int          good;
    char         text[VLM_MAX_EVENT_TEXT];
    uint32_t     i, k, len;
    uint64_t     start;
    vlm_event_t  e, got;

    good = 1;
    start = pair->p.event_tail;

    for (i = 0; i < 2000; i++) {
        len = (i * 37) % (VLM_MAX_EVENT_TEXT + 1);

        for (k = 0; k < len; k++) {
            text[k] = (char) (i + k);
        }

        text_event(&e, i % 16, text, len);

        good &= (vlm_peer_send(&pair->p, &e) == VLM_CHANNEL_OK);
        good &= (vlm_worker_next(&pair->w, &got) == VLM_CHANNEL_OK);
        good &= (got.u.text.length == len && got.slot == i % 16
                 && memcmp(got.text, text, len) == 0);
    }

    tap_ok(good, "2000 texts around the ring");
    tap_ok(pair->p.event_tail - start > 10 * VLM_MIN_EVENT_RING,
           "it wrapped more than ten times");
}


static void
test_full_event_ring(pair_t *pair)
{
    int          rc;
    char         text[1000];
    uint32_t     sent, taken, last;
    vlm_event_t  e, got;

    memset(text, 'x', sizeof(text));
    text_event(&e, 1, text, sizeof(text));

    tap_is(vlm_peer_room(&pair->p), VLM_MIN_EVENT_RING, "all is room");

    for (sent = 0; ; sent++) {
        e.u.text.ntokens = sent;
        rc = vlm_peer_send(&pair->p, &e);

        if (rc != VLM_CHANNEL_OK) {
            break;
        }
    }

    tap_is(rc, VLM_CHANNEL_AGAIN, "a full ring says so");
    tap_is(sent, VLM_MIN_EVENT_RING / 1032, "as many as fit");
    tap_is(vlm_peer_room(&pair->p), VLM_MIN_EVENT_RING % 1032, "room left");

    e.type = VLM_EVENT_RELEASED;
    tap_is(vlm_peer_send(&pair->p, &e), VLM_CHANNEL_OK,
           "a small one still fits");

    tap_is(vlm_worker_next(&pair->w, &got), VLM_CHANNEL_OK, "take one");

    text_event(&e, 1, text, sizeof(text));
    e.u.text.ntokens = sent;
    tap_is(vlm_peer_send(&pair->p, &e), VLM_CHANNEL_OK, "room again");

    last = 0;

    for (taken = 1; vlm_worker_next(&pair->w, &got) == VLM_CHANNEL_OK;
         taken++)
    {
        last = (got.type == VLM_EVENT_TEXT) ? got.u.text.ntokens : last;
    }

    tap_is(taken, sent + 2, "all arrived");
    tap_is(last, sent, "in order");

    /* to the last byte: 63 frames of 1032, one of 520 */

    e.u.text.length = 1000;

    for (sent = 0; sent < 63; sent++) {
        rc = vlm_peer_send(&pair->p, &e);
    }

    e.u.text.length = 488;
    tap_is(vlm_peer_send(&pair->p, &e), VLM_CHANNEL_OK, "the last byte");
    tap_is(vlm_peer_room(&pair->p), 0, "no room");
    tap_is(vlm_peer_send(&pair->p, &e), VLM_CHANNEL_AGAIN, "full");

    for (taken = 0; vlm_worker_next(&pair->w, &got) == VLM_CHANNEL_OK;
         taken++)
    {
        /* void */
    }

    tap_is(taken, 64, "a ring full to the last byte is read");
}


static void
test_refused_events(pair_t *pair)
{
    char         text[VLM_MAX_EVENT_TEXT + 1];
    uint64_t     tail;
    vlm_event_t  e;

    memset(text, 'x', sizeof(text));
    tail = pair->p.event_tail;

    text_event(&e, 1, text, VLM_MAX_EVENT_TEXT + 1);
    tap_is(vlm_peer_send(&pair->p, &e), VLM_CHANNEL_ERROR, "text too long");
    tap_str(pair->p.why, "event of type 3 with 4097 bytes of text and 0 of "
            "log probabilities: Invalid argument", "why");

    text_event(&e, 1, text, UINT32_MAX);
    tap_is(vlm_peer_send(&pair->p, &e), VLM_CHANNEL_ERROR, "overflow");

    e.u.text.nlogprobs = UINT32_MAX;
    tap_is(vlm_peer_send(&pair->p, &e), VLM_CHANNEL_ERROR, "overflow");

    e.type = 0;
    tap_is(vlm_peer_send(&pair->p, &e), VLM_CHANNEL_ERROR, "type 0");

    e.type = 9;
    tap_is(vlm_peer_send(&pair->p, &e), VLM_CHANNEL_ERROR, "type 9");

    tap_is(pair->p.event_tail, (long long) tail, "nothing was written");
}


static void
test_doorbells(pair_t *pair)
{
    vlm_event_t       e, got;
    vlm_submission_t  sub;

    memset(&e, 0, sizeof(vlm_event_t));
    e.type = VLM_EVENT_RELEASED;
    e.slot = 1;
    e.generation = 1;

    tap_ok(!pair_readable(pair->w.event_fd), "nobody slept, nobody rang");

    vlm_peer_send(&pair->p, &e);
    vlm_peer_ring(&pair->p);
    tap_ok(!pair_readable(pair->w.event_fd), "awake: no ring");

    tap_is(vlm_worker_sleep(&pair->w), 0, "an event waits: no sleep");
    vlm_peer_ring(&pair->p);
    tap_ok(!pair_readable(pair->w.event_fd), "awake again: no ring");

    vlm_worker_next(&pair->w, &got);
    tap_is(vlm_worker_sleep(&pair->w), 1, "none: sleep");

    vlm_peer_send(&pair->p, &e);
    tap_ok(!pair_readable(pair->w.event_fd), "send alone does not ring");
    vlm_peer_ring(&pair->p);
    tap_ok(pair_readable(pair->w.event_fd), "asleep: it rings");

    vlm_worker_next(&pair->w, &got);
    tap_is(vlm_worker_sleep(&pair->w), 1, "sleep");
    tap_ok(!pair_readable(pair->w.event_fd), "sleep reads the eventfd");

    /* the other direction */

    tap_is(vlm_peer_sleep(&pair->p), 1, "the engine sleeps");
    vlm_worker_cancel(&pair->w, 1, 1);
    tap_ok(pair_readable(pair->p.submit_fd), "a submission rings");
    tap_is(vlm_peer_sleep(&pair->p), 0, "a submission waits: no sleep");
    tap_ok(!pair_readable(pair->p.submit_fd), "the eventfd is read");

    vlm_worker_cancel(&pair->w, 1, 1);
    tap_ok(!pair_readable(pair->p.submit_fd), "awake: no ring");

    vlm_peer_next(&pair->p, &sub);
    vlm_peer_next(&pair->p, &sub);
    tap_is(vlm_peer_sleep(&pair->p), 1, "none: sleep");
}


static void
test_gauges(pair_t *pair)
{
    uint32_t           version;
    vlm_gauges_t       gauges, got;
    vlm_engine_info_t  info, copy;

    memset(&info, 0, sizeof(vlm_engine_info_t));
    info.nmodels = 2;
    info.context_length = 32768;
    info.max_images = 8;
    info.max_queue = 256;
    info.max_image_pixels = 1ull << 33;
    strcpy(info.models[0], "qwen2-vl");
    strcpy(info.models[1], "second");

    vlm_peer_set_info(&pair->p, &info);
    vlm_peer_set_state(&pair->p, VLM_STATE_READY);

    tap_is(vlm_worker_state(&pair->w), VLM_STATE_READY, "ready");
    tap_is(vlm_worker_info(&pair->w, &copy), VLM_CHANNEL_OK, "info");
    tap_ok(memcmp(&copy, &info, sizeof(info)) == 0, "info is the same");

    info.nmodels = 1;
    vlm_peer_set_info(&pair->p, &info);
    tap_is(vlm_worker_info(&pair->w, &copy), VLM_CHANNEL_OK, "info again");
    tap_is(copy.nmodels, 1, "new info");

    memset(&gauges, 0, sizeof(vlm_gauges_t));
    gauges.running = 1;
    gauges.queued = 2;
    gauges.kv_blocks = 3;
    gauges.kv_blocks_free = 4;
    gauges.first_token_ms = 5;
    gauges.retry_after = 6;
    gauges.heartbeat = 7;
    vlm_peer_set_gauges(&pair->p, &gauges);
    vlm_worker_gauges(&pair->w, &got);
    tap_ok(memcmp(&got, &gauges, sizeof(got)) == 0, "gauges");

    /* what a broken engine may leave there */

    version = pair->p.header->info_version;
    pair->p.header->info_version = version + 1;
    tap_is(vlm_worker_info(&pair->w, &copy), VLM_CHANNEL_AGAIN,
           "an engine that died while it wrote info");

    pair->p.header->info_version = version;
    pair->p.header->info.nmodels = UINT32_MAX;
    memset(pair->p.header->info.models, 'm', sizeof(info.models));
    tap_is(vlm_worker_info(&pair->w, &copy), VLM_CHANNEL_OK, "odd info");
    tap_is(copy.nmodels, VLM_MAX_MODELS, "number of models is limited");
    tap_is(strlen(copy.models[VLM_MAX_MODELS - 1]), VLM_MODEL_NAME_LEN - 1,
           "names are terminated");

    vlm_peer_set_state(&pair->p, 4);
    tap_is(vlm_worker_state(&pair->w), VLM_STATE_FAILED,
           "an unknown state is none to use");
}


static void
test_ends(pair_t *pair)
{
    vlm_engine_info_t  info;

    vlm_peer_close(&pair->p);
    tap_is(vlm_worker_check(&pair->w), VLM_CHANNEL_CLOSED, "engine closed");
    tap_str(pair->w.why, "the engine closed the connection", "why");
    vlm_worker_close(&pair->w);
    vlm_worker_close(&pair->w);
    tap_str(pair->w.why, "the engine closed the connection", "why survives");

    pair_connect(pair);
    tap_is(vlm_worker_state(&pair->w), VLM_STATE_LOADING,
           "loading, if nothing else is said");
    tap_is(vlm_worker_info(&pair->w, &info), VLM_CHANNEL_AGAIN, "no info");
    vlm_worker_close(&pair->w);
    tap_is(vlm_peer_check(&pair->p), VLM_CHANNEL_CLOSED, "worker closed");
    vlm_peer_close(&pair->p);
    vlm_peer_close(&pair->p);

    pair_connect(pair);
    tap_ok(write(pair->w.fd, "x", 1) == 1, "a worker that talks");
    tap_is(vlm_peer_check(&pair->p), VLM_CHANNEL_ERROR, "is an error");
    tap_ok(write(pair->p.fd, "x", 1) == 1, "an engine that talks");
    tap_is(vlm_worker_check(&pair->w), VLM_CHANNEL_ERROR, "is an error");
    pair_disconnect(pair);

    tap_is(vlm_worker_handshake(&pair->w), VLM_CHANNEL_CLOSED,
           "a closed worker shakes no hands");
    tap_is(vlm_peer_handshake(&pair->p), VLM_CHANNEL_CLOSED,
           "nor does a closed peer");
}


static void
text_event(vlm_event_t *e, uint32_t slot, const char *text, uint32_t len)
{
    memset(e, 0, offsetof(vlm_event_t, buf));

    e->type = VLM_EVENT_TEXT;
    e->slot = slot;
    e->generation = 1;
    e->u.text.length = len;
    e->text = text;
}
