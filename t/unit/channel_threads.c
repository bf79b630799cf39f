
/*
 * Both ends in two threads that use one mapping, so that ThreadSanitizer sees
 * what the two processes do to each other.
 */

#include "t/unit/channel_pair.h"

#include <pthread.h>
#include <sched.h>


#define ROUNDS  20000


static pair_t    pair;
static uint8_t  *peer_map[3];


static void *engine(void *arg);
static void share(void);
static void part(void);


int
main(void)
{
    int                rc, good, sent, got, infos;
    uint32_t           slot;
    pthread_t          thread;
    vlm_event_t        e;
    vlm_gauges_t       gauges;
    struct pollfd      pfd;
    vlm_engine_info_t  info;

    pair_init(&pair);
    pair_connect(&pair);
    share();

    if (pthread_create(&thread, NULL, engine, NULL) != 0) {
        pair_fatal("pthread_create()", "failed");
    }

    good = 1;
    infos = 0;

    for (sent = 0, got = 0; good && got < ROUNDS; ) {

        for ( /* void */ ; sent < ROUNDS; sent++) {
            slot = (uint32_t) sent % 16;
            pair.arena.base[slot * 4096] = (uint8_t) slot;
            rc = vlm_worker_submit(&pair.w, slot, (uint32_t) sent + 1,
                                   slot * 4096, 8);

            if (rc != VLM_CHANNEL_OK) {
                good &= (rc == VLM_CHANNEL_AGAIN);
                break;
            }

            if (sent - got >= 15) {
                sent++;
                break;
            }
        }

        rc = vlm_worker_next(&pair.w, &e);

        if (rc == VLM_CHANNEL_OK) {
            got++;
            good &= (e.type == VLM_EVENT_TEXT
                     && e.generation == (uint32_t) got
                     && e.u.text.length == (uint32_t) got % 1000
                     && (e.u.text.length == 0
                         || e.text[e.u.text.length - 1]
                            == (char) ((got - 1) % 16)));

        } else if (rc == VLM_CHANNEL_ERROR) {
            tap_diag("%s", pair.w.why);
            good = 0;

        } else if (got % 8 != 0) {

            /* without a doorbell only the counters order what is read */

            sched_yield();

        } else if (vlm_worker_sleep(&pair.w)) {
            pfd.fd = pair.w.event_fd;
            pfd.events = POLLIN;
            (void) poll(&pfd, 1, 1);
        }

        vlm_worker_gauges(&pair.w, &gauges);
        good &= (vlm_worker_state(&pair.w) <= VLM_STATE_READY);

        if (vlm_worker_info(&pair.w, &info) == VLM_CHANNEL_OK) {
            infos++;
            good &= (info.max_queue == info.context_length
                     && info.max_image_pixels == info.max_queue);
        }
    }

    tap_ok(good, "%d requests and answers", ROUNDS);
    tap_ok(infos > 0, "info was read in one piece, %d times", infos);

    __atomic_store_n(&pair.w.header->submit_tail, UINT64_MAX,
                     __ATOMIC_RELEASE);
    pthread_join(thread, NULL);

    tap_ok(strstr(pair.p.why, "submission ring damaged") != NULL,
           "an impossible tail ended it: %s", pair.p.why);

    part();
    pair_destroy(&pair);

    return tap_done();
}


static void *
engine(void *arg)
{
    int                rc;
    char               text[1000];
    uint32_t           n;
    vlm_event_t        e;
    vlm_gauges_t       gauges;
    const uint8_t     *record;
    vlm_submission_t   sub;
    vlm_engine_info_t  info;

    memset(&e, 0, offsetof(vlm_event_t, buf));
    memset(&gauges, 0, sizeof(gauges));
    memset(&info, 0, sizeof(info));

    e.type = VLM_EVENT_TEXT;
    e.text = text;

    for (n = 1; ; ) {
        rc = vlm_peer_next(&pair.p, &sub);

        if (rc == VLM_CHANNEL_AGAIN) {

            if (n % 8 == 0) {
                vlm_peer_ring(&pair.p);
                (void) vlm_peer_sleep(&pair.p);
            }

            sched_yield();
            continue;
        }

        if (rc != VLM_CHANNEL_OK) {
            return NULL;
        }

        record = vlm_peer_arena(&pair.p, sub.offset, sub.length);
        memset(text, record[0], sizeof(text));

        e.slot = sub.slot;
        e.generation = sub.generation;
        e.u.text.length = n % sizeof(text);

        while (vlm_peer_send(&pair.p, &e) == VLM_CHANNEL_AGAIN) {
            vlm_peer_ring(&pair.p);
            sched_yield();
        }

        info.max_queue = n;
        info.context_length = n;
        info.max_image_pixels = n;
        gauges.running = n;
        vlm_peer_set_info(&pair.p, &info);
        vlm_peer_set_gauges(&pair.p, &gauges);
        vlm_peer_set_state(&pair.p, VLM_STATE_READY);

        n++;
    }
}


static void
share(void)
{
    peer_map[0] = (uint8_t *) pair.p.header;
    peer_map[1] = (uint8_t *) pair.p.submissions;
    peer_map[2] = pair.p.events;

    pair.p.header = pair.w.header;
    pair.p.submissions = pair.w.submissions;
    pair.p.events = pair.w.events;
}


static void
part(void)
{
    pair.p.header = (vlm_ring_header_t *) peer_map[0];
    pair.p.submissions = (vlm_submission_t *) peer_map[1];
    pair.p.events = peer_map[2];
}
