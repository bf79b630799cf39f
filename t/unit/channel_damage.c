
/* What one side may find in shared memory that the other has broken. */

#include "t/unit/channel_pair.h"


typedef struct {
    vlm_event_header_t  h;

    union {
        vlm_event_progress_t  progress;
        vlm_event_text_t      text;
        vlm_event_finish_t    finish;
        vlm_event_done_t      done;
        vlm_event_error_t     error;
    } u;
} frame_t;


static pair_t   pair;
static frame_t  f;


static void test_frames(void);
static void test_event_counters(void);
static void test_submissions(void);
static void test_heads(void);
static void frame(uint16_t type, size_t body);
static int receive(void);


int
main(void)
{
    pair_init(&pair);

    test_frames();
    test_event_counters();
    test_submissions();
    test_heads();

    pair_destroy(&pair);

    return tap_done();
}


#define refused(new, body, change, message)                                   \
    frame(new, sizeof(f.u.body));                                             \
    change;                                                                   \
    tap_is(receive(), VLM_CHANNEL_ERROR, "%s", #change);                      \
    tap_str(pair.w.why, message, "why")


static void
test_frames(void)
{
    frame(VLM_EVENT_TEXT, sizeof(f.u.text));
    tap_is(receive(), VLM_CHANNEL_OK, "a good text: %s", pair.w.why);
    frame(VLM_EVENT_DONE, sizeof(f.u.done));
    tap_is(receive(), VLM_CHANNEL_OK, "a good end: %s", pair.w.why);
    frame(VLM_EVENT_ERROR, sizeof(f.u.error));
    f.u.error.status = 599;
    tap_is(receive(), VLM_CHANNEL_OK, "a good error: %s", pair.w.why);

    refused(VLM_EVENT_TEXT, text, f.h.size = 0,
            "event frame of 0 bytes, 1024 are in the ring");
    refused(VLM_EVENT_TEXT, text, f.h.size = 8,
            "event frame of 8 bytes, 1024 are in the ring");
    refused(VLM_EVENT_TEXT, text, f.h.size = 36,
            "event frame of 36 bytes, 1024 are in the ring");
    refused(VLM_EVENT_TEXT, text, f.h.size = 1032,
            "event frame of 1032 bytes, 1024 are in the ring");
    refused(VLM_EVENT_TEXT, text, f.h.size = 16392,
            "event frame of 16392 bytes, 1024 are in the ring");
    refused(VLM_EVENT_TEXT, text, f.h.size = 0xfffffff8u,
            "event frame of 4294967288 bytes, 1024 are in the ring");

    refused(VLM_EVENT_TEXT, text, f.h.size = 24,
            "event of type 3 in a frame of 24 bytes");
    refused(VLM_EVENT_TEXT, text, f.h.size = 40,
            "event of type 3 and 32 bytes in a frame of 40");
    refused(VLM_EVENT_TEXT, text, f.u.text.length = 1,
            "event of type 3 and 40 bytes in a frame of 32");
    refused(VLM_EVENT_TEXT, text, f.u.text.length = 0xffffffffu,
            "event of type 3 and 4294967328 bytes in a frame of 32");
    refused(VLM_EVENT_TEXT, text, f.u.text.nlogprobs = 0xffffffffu,
            "event of type 3 and 4294967328 bytes in a frame of 32");

    refused(0, text, f.h.type = 0, "event of unknown type 0");
    refused(0, text, f.h.type = 9, "event of unknown type 9");
    refused(VLM_EVENT_TEXT, text, f.h.slot = 16,
            "event for slot 16 of 16, generation 1");
    refused(VLM_EVENT_TEXT, text, f.h.generation = 0,
            "event for slot 1 of 16, generation 0");
    refused(VLM_EVENT_TEXT, text, f.h.choice = 64,
            "event of type 3 with an impossible value 64");

    refused(VLM_EVENT_PROGRESS, progress, f.u.progress.stage = 5,
            "event of type 2 with an impossible value 5");
    refused(VLM_EVENT_FINISH, finish, f.u.finish.reason = 0,
            "event of type 4 with an impossible value 0");
    refused(VLM_EVENT_FINISH, finish, f.u.finish.reason = 3,
            "event of type 4 with an impossible value 3");
    refused(VLM_EVENT_DONE, done, f.u.done.noutcomes = 65,
            "event of type 5 with an impossible value 65");
    refused(VLM_EVENT_DONE, done, f.u.done.noutcomes = 1,
            "event of type 5 with an impossible value 0");
    refused(VLM_EVENT_ERROR, error, f.u.error.status = 200,
            "event of type 6 with an impossible value 200");
    refused(VLM_EVENT_ERROR, error, f.u.error.status = 600,
            "event of type 6 with an impossible value 600");
    refused(VLM_EVENT_ERROR, error, memset(f.u.error.code, 'x', 32),
            "event of type 6 with a code or param that does not end");
    refused(VLM_EVENT_ERROR, error, memset(f.u.error.param, 'x', 48),
            "event of type 6 with a code or param that does not end");
}


static void
test_event_counters(void)
{
    size_t       i;
    uint64_t     bad[] = {
        1, 8, 12, 65544, 1ull << 32, UINT64_MAX, UINT64_MAX - 65535
    };
    vlm_event_t  e;

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        pair_connect(&pair);
        pair.p.header->event_tail = bad[i];
        tap_is(vlm_worker_next(&pair.w, &e), VLM_CHANNEL_ERROR, "%s",
               pair.w.why);
        tap_ok(strstr(pair.w.why, "event ring damaged") != NULL
               && pair.p.header->event_head == 0, "tail %llu",
               (unsigned long long) bad[i]);
        pair_disconnect(&pair);
    }
}


static int
submit(uint32_t type, uint32_t slot, uint32_t generation, uint64_t offset,
    uint32_t length)
{
    int                rc;
    vlm_submission_t   sub, *to;

    pair_connect(&pair);

    to = pair.w.submissions;
    to->type = type;
    to->slot = slot;
    to->generation = generation;
    to->offset = offset;
    to->length = length;
    to->reserved = UINT64_MAX;
    pair.w.header->submit_tail = 1;

    rc = vlm_peer_next(&pair.p, &sub);

    pair_disconnect(&pair);

    return rc;
}


static void
test_submissions(void)
{
    int  good;

    tap_is(submit(1, 15, 1, 0, 1 << 20), VLM_CHANNEL_OK, "the whole arena");
    tap_is(submit(2, 0, 1, 3, UINT32_MAX), VLM_CHANNEL_OK,
           "a cancel has no record");

    good = (submit(0, 0, 1, 0, 64) == VLM_CHANNEL_ERROR);
    tap_str(pair.p.why, "submission of unknown type 0", "type 0");
    good &= (submit(3, 0, 1, 0, 64) == VLM_CHANNEL_ERROR);
    tap_str(pair.p.why, "submission of unknown type 3", "type 3");
    good &= (submit(1, 16, 1, 0, 64) == VLM_CHANNEL_ERROR);
    tap_str(pair.p.why, "submission for slot 16 of 16, generation 1", "slot");
    good &= (submit(2, 0, 0, 0, 0) == VLM_CHANNEL_ERROR);
    tap_str(pair.p.why, "submission for slot 0 of 16, generation 0",
            "generation");
    good &= (submit(1, 0, 1, 0, 0) == VLM_CHANNEL_ERROR);
    tap_str(pair.p.why, "submission with a record at 0 of 0 bytes, the arena "
            "has 1048576", "empty record");
    good &= (submit(1, 0, 1, 0, (1 << 20) + 1) == VLM_CHANNEL_ERROR);
    tap_str(pair.p.why, "submission with a record at 0 of 1048577 bytes, the "
            "arena has 1048576", "too long");
    good &= (submit(1, 0, 1, 4, 64) == VLM_CHANNEL_ERROR);
    tap_str(pair.p.why, "submission with a record at 4 of 64 bytes, the "
            "arena has 1048576", "not aligned");
    good &= (submit(1, 0, 1, 1 << 20, 8) == VLM_CHANNEL_ERROR);
    tap_str(pair.p.why, "submission with a record at 1048576 of 8 bytes, the "
            "arena has 1048576", "behind the arena");
    good &= (submit(1, 0, 1, UINT64_MAX - 7, 16) == VLM_CHANNEL_ERROR);
    tap_str(pair.p.why, "submission with a record at 18446744073709551608 of "
            "16 bytes, the arena has 1048576", "overflow");

    tap_ok(good, "all of them are errors");
}


/* counters of consumers, which producers read */

static void
test_heads(void)
{
    size_t            i;
    uint64_t          bad[] = { 1, 9, 1ull << 40, UINT64_MAX - 65536 };
    vlm_event_t       e;
    vlm_submission_t  sub;

    memset(&e, 0, sizeof(e));
    e.type = VLM_EVENT_RELEASED;

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        pair_connect(&pair);

        pair.w.header->event_head = bad[i];
        tap_is(vlm_peer_room(&pair.p), 0, "no room");
        tap_is(vlm_peer_send(&pair.p, &e), VLM_CHANNEL_ERROR, "%s",
               pair.p.why);

        pair.p.header->submit_head = bad[i];
        tap_is(vlm_worker_cancel(&pair.w, 1, 1), VLM_CHANNEL_ERROR, "%s",
               pair.w.why);

        pair.w.header->submit_tail = bad[i] + 9;
        tap_is(vlm_peer_next(&pair.p, &sub), VLM_CHANNEL_ERROR, "%s",
               pair.p.why);

        pair_disconnect(&pair);
    }
}


/* 1024 bytes of ring, of which the first are a frame */

static void
frame(uint16_t type, size_t body)
{
    memset(&f, 0, sizeof(f));

    f.h.size = (uint32_t) (sizeof(vlm_event_header_t) + body);
    f.h.type = type;
    f.h.slot = 1;
    f.h.generation = 1;

    if (type == VLM_EVENT_ERROR) {
        f.u.error.status = 400;
    }
}


static int
receive(void)
{
    int          rc;
    vlm_event_t  e;

    pair_connect(&pair);

    memcpy(pair.p.events, &f, sizeof(f));
    pair.p.header->event_tail = 1024;

    rc = vlm_worker_next(&pair.w, &e);

    if (rc == VLM_CHANNEL_ERROR && pair.w.header->event_head != 0) {
        tap_ok(0, "the head must not move");
    }

    pair_disconnect(&pair);

    return rc;
}
