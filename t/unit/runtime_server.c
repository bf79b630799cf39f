
/* The server from a worker's side. */

#include "t/unit/runtime_client.h"


static const char  *answer = "It is at the top right.";


static question_t
good(void)
{
    static char  picture[256];
    question_t   q;

    snprintf(picture, sizeof(picture), "%s",
             tap_path("t/data/heldout/images/0000.png"));

    memset(&q, 0, sizeof(q));
    q.prompt = "Where is the cross?";
    q.pictures[0] = picture;

    return q;
}


/* an answer that goes on */

static question_t
endless(uint32_t tokens)
{
    question_t  q;

    q = good();
    q.flags = VLM_FLAG_IGNORE_EOS;
    q.sampling.set = VLM_SET_MAX_TOKENS;
    q.sampling.max_tokens = tokens;

    return q;
}


static void
check_good(client_t *c, uint32_t slot, const char *name)
{
    heard_t     *h;
    question_t   q;

    q = good();
    client_ask(c, slot, &q);
    h = client_end(c, slot);

    tap_ok(h->last == 'D' && h->text.data != NULL
           && strcmp(h->text.data, answer) == 0,
           "%s: a good request is answered", name);
}


/* until nothing runs any more: all blocks are free then */

static void
check_idle(client_t *c, const char *name)
{
    int           i;
    vlm_gauges_t  g;

    for (i = 0; i < 1000; i++) {
        vlm_worker_gauges(&c->w, &g);

        if (g.running == 0 && g.queued == 0
            && g.kv_blocks_free == g.kv_blocks)
        {
            break;
        }

        /* gauges are written when the loop turns */
        check_good(c, MAX_SLOTS - 1, name);
        usleep(1000);
    }

    tap_ok(i < 1000 && g.kv_blocks != 0, "%s: all is free again", name);
}


static void
test_answer(client_t *c)
{
    heard_t            *h;
    question_t          q;
    vlm_engine_info_t   info;

    tap_is(vlm_worker_info(&c->w, &info), 0, "the engine tells what it is");
    tap_str(info.models[0], "demo", "its model");
    tap_is(info.context_length, 2048, "its context");
    tap_is(info.max_images, 3, "its limit of images");

    q = good();
    client_ask(c, 0, &q);
    h = client_end(c, 0);

    tap_is(h->last, 'D', "answered: %s", h->message);
    tap_str(h->text.data, answer, "the answer");
    tap_is(h->finish, VLM_FINISH_STOP, "it ended by itself");
    tap_is(h->done.prompt_tokens, 42, "prompt tokens");
    tap_is(h->done.completion_tokens, 8, "completion tokens");
    tap_is(h->admitted.prompt_tokens, 42, "they were told at admission");
    tap_is(h->done.image_tokens, h->admitted.image_tokens, "image tokens");
    tap_is(h->done.noutcomes, 1, "one picture");
    tap_is(h->done.outcomes[0], VLM_CACHE_MISS, "encoded");
    tap_ok(h->order[0] == 'A' && strchr(h->order, 'R') != NULL
           && strstr(h->order, "TFD") != NULL,
           "admitted, released, text, finish, done: %s", h->order);
    tap_ok(h->done.total_us >= h->done.first_token_us
           && h->done.first_token_us > h->done.queue_us
           && h->done.encode_us > 0 && h->done.prefill_us > 0,
           "stage times");

    /* a stage is told before the text, if there is nothing newer */

    q = endless(2000);
    client_ask(c, 0, &q);
    client_text(c, 0);
    tap_is(c->slots[0].stage, VLM_STAGE_GENERATE, "the last stage");
    vlm_worker_cancel(&c->w, 0, c->slots[0].generation);
    client_end(c, 0);

    q = good();
    q.stop = "top";
    client_ask(c, 0, &q);
    h = client_end(c, 0);
    tap_str(h->text.data, "It is at the ", "a stop string ends it");
    tap_is(h->finish, VLM_FINISH_STOP, "as a stop");

    q.stop = NULL;
    q.sampling.set = VLM_SET_MAX_TOKENS;
    q.sampling.max_tokens = 3;
    client_ask(c, 0, &q);
    h = client_end(c, 0);
    tap_is(h->finish, VLM_FINISH_LENGTH, "max_tokens ends it");
    tap_is(h->done.completion_tokens, 3, "after 3 tokens");
}


static void
expect_error(client_t *c, const question_t *q, int status, const char *code,
    const char *param, const char *part, const char *name)
{
    heard_t  *h;

    client_ask(c, 1, q);
    h = client_end(c, 1);

    tap_is(h->last, 'E', "%s: an error", name);
    tap_is(h->error.status, status, "%s: status", name);
    tap_str(h->error.code, code, "%s: code", name);
    tap_str(h->error.param, param, "%s: param", name);

    if (!tap_ok(strstr(h->message, part) != NULL, "%s: says %s", name, part))
    {
        tap_diag("%s", h->message);
    }

    check_good(c, 1, name);
}


static void
test_errors(client_t *c)
{
    int          i;
    char        *text, other[256];
    question_t   q;

    q = good();
    q.model = "gpt";
    expect_error(c, &q, 404, "model_not_found", "model", "`gpt`", "model");

    q = good();
    q.sampling.top_logprobs = 3;
    expect_error(c, &q, 400, "invalid_value", "top_logprobs",
                 "top_logprobs is 3", "top_logprobs");

    q = good();
    q.prompt = "a\xff";
    expect_error(c, &q, 400, "invalid_value", "prompt", "UTF-8", "utf-8");

    q = good();
    q.stop = "\xc3";
    expect_error(c, &q, 400, "invalid_value", "stop", "UTF-8", "stop");

    q = good();
    q.pictures[1] = q.pictures[2] = q.pictures[3] = q.pictures[0];
    expect_error(c, &q, 400, "too_many_images", "image",
                 "4 images, at most 3", "images");

    snprintf(other, sizeof(other), "%s", tap_path("Makefile"));
    q = good();
    q.pictures[1] = other;
    expect_error(c, &q, 400, "invalid_image", "image[1]", "", "no image");

    text = malloc(8001);

    for (i = 0; i < 8000; i += 2) {
        memcpy(text + i, "x ", 3);
    }

    q = good();
    q.prompt = text;
    expect_error(c, &q, 400, "context_length_exceeded", "", "2048 tokens",
                 "context");
    free(text);

    q = good();
    q.deadline_ms = 1;
    expect_error(c, &q, 503, "queue_timeout", "", "waited", "deadline");
    tap_ok(c->slots[1].last == 'D', "after a deadline");
}


static void
test_together(client_t *c)
{
    int          i;
    char        *alone[4];
    heard_t     *h;
    question_t   q[4];

    for (i = 0; i < 4; i++) {
        q[i] = endless((uint32_t) (10 + 3 * i));
        q[i].sampling.set |= VLM_SET_SEED | VLM_SET_TEMPERATURE;
        q[i].sampling.seed = (uint64_t) i;
        q[i].sampling.temperature = (i == 0) ? 0 : 1.2f;

        client_ask(c, 2, &q[i]);
        h = client_end(c, 2);
        tap_is(h->last, 'D', "alone %d", i);
        tap_is(h->finish, VLM_FINISH_LENGTH, "to its length %d", i);
        alone[i] = strdup(h->text.data);
    }

    for (i = 0; i < 16; i++) {
        client_ask(c, (uint32_t) i, &q[i % 4]);
    }

    for (i = 0; i < 16; i++) {
        h = client_end(c, (uint32_t) i);
        tap_ok(h->last == 'D' && strcmp(h->text.data, alone[i % 4]) == 0,
               "together %d gives the same text", i);
        tap_is(h->done.completion_tokens, 10 + 3 * (i % 4), "tokens %d", i);
    }

    for (i = 0; i < 4; i++) {
        free(alone[i]);
    }
}


static void
test_cancel(client_t *c)
{
    int          i, slot;
    heard_t     *h;
    question_t   q, one;

    /* at once, whatever stage that is */

    for (i = 0; i < 8; i++) {
        q = endless(2000);
        client_ask(c, 3, &q);
        usleep((useconds_t) (i * 1500));
        vlm_worker_cancel(&c->w, 3, c->slots[3].generation);
        h = client_end(c, 3);
        tap_is(h->last, 'C', "cancelled after %d us", i * 1500);
    }

    /* while streaming; a second cancel is no harm */

    q = endless(2000);
    client_ask(c, 3, &q);
    client_text(c, 3);
    vlm_worker_cancel(&c->w, 3, c->slots[3].generation);
    vlm_worker_cancel(&c->w, 3, c->slots[3].generation);
    h = client_end(c, 3);
    tap_is(h->last, 'C', "cancelled while streaming");

    /* while queued: all seats are taken */

    for (slot = 4; slot < 13; slot++) {

        if (slot == 12) {
            for (i = 4; i < 12; i++) {
                client_text(c, (uint32_t) i);
            }
        }

        client_ask(c, (uint32_t) slot, &q);
    }

    while (c->slots[12].order[0] == '\0') {
        client_pump(c, 1000);
    }

    tap_is(c->slots[12].admitted.queue_place, 1, "the ninth is queued");

    while (strchr(c->slots[12].order, 'P') == NULL) {
        client_pump(c, 1000);
    }

    tap_is(c->slots[12].stage, VLM_STAGE_QUEUED,
           "it hears that it still is");
    vlm_worker_cancel(&c->w, 12, c->slots[12].generation);
    h = client_end(c, 12);
    tap_is(h->last, 'C', "cancelled while queued");

    /* the next in the queue starts when one leaves */

    one = good();
    client_ask(c, 12, &one);
    vlm_worker_cancel(&c->w, 4, c->slots[4].generation);
    h = client_end(c, 12);
    tap_ok(h->last == 'D' && strcmp(h->text.data, answer) == 0,
           "a cancelled one makes room");

    for (slot = 5; slot < 12; slot++) {
        vlm_worker_cancel(&c->w, (uint32_t) slot,
                          c->slots[slot].generation);
    }

    for (slot = 4; slot < 12; slot++) {
        tap_is(client_end(c, (uint32_t) slot)->last, 'C', "cancelled %d",
               slot);
    }

    /* one that has ended: nothing is said */

    vlm_worker_cancel(&c->w, 12, c->slots[12].generation);
    check_good(c, 12, "a late cancel");

    check_idle(c, "after cancels");
}


static void
test_queue_full(client_t *c)
{
    int          i, refused, queued;
    heard_t     *h;
    question_t   q;

    q = endless(2000);

    for (i = 0; i < 26; i++) {
        client_ask(c, (uint32_t) i, &q);
    }

    h = client_end(c, 24);
    tap_is(h->last, 'E', "the 25th: 8 run, 16 wait");
    tap_is(h->error.status, 503, "it is refused");
    tap_str(h->error.code, "queue_full", "the queue is full");
    tap_ok(h->error.retry_after >= 1 && h->error.retry_after <= 60,
           "retry after %u s", h->error.retry_after);

    client_end(c, 25);

    for (i = 0; i < 24; i++) {
        vlm_worker_cancel(&c->w, (uint32_t) i, c->slots[i].generation);
    }

    refused = 0;
    queued = 0;

    for (i = 0; i < 26; i++) {
        h = client_end(c, (uint32_t) i);
        refused += (h->last == 'E');
        queued += (h->last == 'C');
    }

    tap_is(refused, 2, "two were refused");
    tap_is(queued, 24, "the others cancelled");
    check_idle(c, "after a full queue");
}


/* workers that break the rules lose their connection, nobody else */

static void
test_hostile(client_t *c, const served_t *s)
{
    client_t    *bad;
    question_t   q;

    bad = malloc(sizeof(client_t));
    q = endless(2000);

    client_open(bad, s, VLM_MIN_EVENT_RING);
    client_ask(bad, 0, &q);
    client_text(bad, 0);
    vlm_worker_submit(&bad->w, 0, 2, 0, 64);

    while (!bad->closed) {
        client_pump(bad, 1000);
    }

    tap_ok(bad->closed, "a slot used twice: closed");
    client_close(bad);
    check_good(c, 0, "after a slot used twice");

    client_open(bad, s, VLM_MIN_EVENT_RING);
    tap_is(vlm_worker_submit(&bad->w, 1, 1, 8ull << 40, 64), VLM_CHANNEL_OK,
           "a record outside of the arena");

    while (!bad->closed) {
        client_pump(bad, 1000);
    }

    tap_ok(bad->closed, "closed");
    client_close(bad);
    check_good(c, 0, "after a record outside of the arena");

    /* nonsense inside of it is an error of the request */

    client_open(bad, s, VLM_MIN_EVENT_RING);
    bad->slots[1].used = 1;
    bad->slots[1].generation = 1;
    vlm_arena_reserve(&bad->arena, 4096, &bad->slots[1].region);
    memset(bad->arena.base + bad->slots[1].region, 0xa5, 4096);
    vlm_worker_submit(&bad->w, 1, 1, bad->slots[1].region, 4096);
    client_end(bad, 1);
    tap_is(bad->slots[1].error.status, 500, "a record of nonsense");
    check_good(bad, 1, "after nonsense");

    /* gone in the middle of everything */

    client_ask(bad, 0, &q);
    client_ask(bad, 1, &q);
    client_text(bad, 0);
    client_ask(bad, 2, &q);
    client_close(bad);

    check_good(c, 0, "after a worker's death");
    check_idle(c, "after a worker's death");

    free(bad);
}


/* a worker that does not read: its text waits, others are served */

static void
test_full_ring(client_t *c, const served_t *s)
{
    int          i, differ;
    client_t    *slow;
    question_t   q;

    slow = malloc(sizeof(client_t));
    client_open(slow, s, VLM_MIN_EVENT_RING);

    q = endless(700);
    q.sampling.set |= VLM_SET_SEED;

    for (i = 0; i < 4; i++) {
        client_ask(slow, (uint32_t) i, &q);
    }

    client_ask(c, 0, &q);
    client_end(c, 0);

    check_good(c, 1, "beside a full ring");

    for (i = 0; i < 500 && vlm_worker_state(&c->w) == VLM_STATE_READY; i++) {
        vlm_gauges_t  g;

        /* the four have been computed, though nobody has read a byte */

        vlm_worker_gauges(&c->w, &g);

        if (g.kv_blocks_free == g.kv_blocks) {
            break;
        }

        usleep(10000);
        check_good(c, 1, "meanwhile");
    }

    differ = 0;

    for (i = 0; i < 4; i++) {
        client_end(slow, (uint32_t) i);
        tap_is(slow->slots[i].last, 'D', "slow %d is done", i);
        tap_is(slow->slots[i].done.completion_tokens, 700, "all tokens");
        differ += strcmp(slow->slots[i].text.data, c->slots[0].text.data)
                  != 0;
    }

    tap_is(differ, 0, "no byte is lost in a full ring");

    client_close(slow);
    free(slow);
}


static void
test_drain(client_t *c, served_t *s)
{
    heard_t     *h;
    question_t   q;

    q = endless(300);
    client_ask(c, 0, &q);
    client_text(c, 0);

    vlm_server_drain(s->server);

    while (vlm_worker_state(&c->w) != VLM_STATE_DRAINING) {
        usleep(1000);
    }

    client_ask(c, 1, &q);
    h = client_end(c, 1);
    tap_is(h->error.status, 503, "a new request is refused");
    tap_str(h->error.code, "engine_draining", "because it drains");

    h = client_end(c, 0);
    tap_is(h->last, 'D', "the running one is finished");
    tap_is(h->done.completion_tokens, 300, "to its end");

    served_stop(s);

    while (!c->closed) {
        client_pump(c, 1000);
    }

    tap_ok(c->closed, "the connection ends");
}


int
main(void)
{
    served_t   s;
    client_t  *c;

    vlm_log_level(getenv("VLM_TEST_LOG") != NULL ? "debug" : "error");

    c = malloc(sizeof(client_t));

    served_init(&s);
    served_start(&s);
    client_open(c, &s, 1 << 20);
    client_wait_ready(c);

    test_answer(c);
    test_errors(c);
    test_together(c);
    test_cancel(c);
    test_queue_full(c);
    test_hostile(c, &s);
    test_full_ring(c, &s);
    test_drain(c, &s);

    client_close(c);
    free(c);

    return tap_done();
}
