
/* Blocks, their names, and the order of those who wait. */

#include <stdlib.h>
#include <string.h>

#include "engine/runtime/queue.h"
#include "t/unit/lib/tap.h"


static vlm_seq_t
make_seq(uint64_t order, int32_t prompt, int32_t answer)
{
    vlm_seq_t  seq;

    memset(&seq, 0, sizeof(seq));

    seq.order = order;
    seq.prompt = prompt;
    seq.total = prompt;
    seq.max_total = prompt + answer;
    seq.cost = prompt;

    return seq;
}


/* a key that stands for (parent, number) */

static vlm_prefix_key_t
make_key(const vlm_prefix_key_t *parent, int32_t number)
{
    vlm_prefix_key_t         key;
    static vlm_prefix_key_t  none;

    vlm_prefix_next(parent != NULL ? parent : &none, &number, 0, 1, NULL, 0,
                    &key);

    return key;
}


static void
test_blocks(void)
{
    int                i, seen[5];
    int32_t            n;
    vlm_blocks_t       b;
    vlm_prefix_key_t   one, two, three;

    one = make_key(NULL, 1);
    two = make_key(NULL, 2);
    three = make_key(NULL, 3);

    tap_is(vlm_blocks_init(&b, 5), VLM_OK, "five blocks");

    memset(seen, 0, sizeof(seen));

    for (i = 0; i < 5; i++) {
        n = vlm_blocks_take(&b);
        tap_ok(n >= 0 && n < 5 && !seen[n], "block %d is new", n);
        seen[n] = 1;
    }

    tap_is(vlm_blocks_take(&b), -1, "no sixth block");
    tap_is(vlm_blocks_available(&b), 0, "none is available");

    vlm_blocks_give(&b, 3);
    tap_is(vlm_blocks_take(&b), 3, "a block given back is taken again");

    tap_is(vlm_blocks_find(&b, &one), -1, "nothing has a name");

    vlm_blocks_name(&b, 0, &one);
    vlm_blocks_name(&b, 1, &two);
    vlm_blocks_name(&b, 2, &one);
    tap_is(vlm_blocks_find(&b, &one), 0, "the first to have a name keeps it");

    vlm_blocks_share(&b, 0);
    vlm_blocks_give(&b, 0);
    tap_is(b.nidle, 0, "one of two users has left");

    vlm_blocks_give(&b, 0);
    vlm_blocks_give(&b, 2);
    tap_is(b.nidle, 1, "the other too: it is idle");
    tap_is(b.nfree, 1, "one without a name is free");

    vlm_blocks_give(&b, 1);
    vlm_blocks_share(&b, 0);
    vlm_blocks_give(&b, 0);
    tap_is(vlm_blocks_available(&b), 3, "three can be taken");

    tap_is(vlm_blocks_take(&b), 2, "a free one comes first");
    tap_is(vlm_blocks_take(&b), 1, "then the one idle for longest");
    tap_is(vlm_blocks_find(&b, &two), -1, "its name is forgotten");
    tap_is(vlm_blocks_find(&b, &one), 0, "the other one's is not");

    vlm_blocks_share(&b, 0);
    tap_is(vlm_blocks_take(&b), -1, "what is in use is not taken");

    vlm_blocks_name(&b, 1, &three);
    tap_is(vlm_blocks_find(&b, &three), 1, "a block can have a new name");

    vlm_blocks_free(&b);
}


static int
differs(const vlm_prefix_key_t *a, const vlm_prefix_key_t *b)
{
    return memcmp(a, b, sizeof(*a)) != 0;
}


/* everything that a block's contents depend on changes its name */

static void
test_prefix(void)
{
    int32_t             ids[4] = { 1, 2, 3, 4 };
    vlm_cache_key_t     picture;
    vlm_prefix_key_t    secret, root, a, b;
    vlm_prefix_span_t   span;

    memset(&secret, 7, sizeof(secret));

    vlm_prefix_root(&secret, "tenant", 6, 0, &root);
    vlm_prefix_root(&secret, "tenant", 6, 1, &a);
    tap_ok(differs(&root, &a), "a request of its own");
    vlm_prefix_root(&secret, "tenan", 5, 0, &a);
    tap_ok(differs(&root, &a), "scope");
    secret.bytes[31]++;
    vlm_prefix_root(&secret, "tenant", 6, 0, &a);
    tap_ok(differs(&root, &a), "secret");

    memset(&picture, 1, sizeof(picture));
    span.key = &picture;
    span.first = 2;
    span.count = 4;

    vlm_prefix_next(&root, ids, 0, 4, &span, 1, &a);
    vlm_prefix_next(&root, ids, 0, 4, &span, 1, &b);
    tap_ok(!differs(&a, &b), "the same once more");

    vlm_prefix_next(&a, ids, 0, 4, &span, 1, &b);
    tap_ok(differs(&a, &b), "what comes before");

    vlm_prefix_next(&root, ids, 0, 3, &span, 1, &b);
    tap_ok(differs(&a, &b), "length");

    ids[3]++;
    vlm_prefix_next(&root, ids, 0, 4, &span, 1, &b);
    tap_ok(differs(&a, &b), "a token");
    ids[3]--;

    vlm_prefix_next(&root, ids, 0, 4, NULL, 0, &b);
    tap_ok(differs(&a, &b), "a picture or none");

    span.first = 1;
    vlm_prefix_next(&root, ids, 0, 4, &span, 1, &b);
    tap_ok(differs(&a, &b), "its place");

    span.first = 2;
    picture.bytes[0]++;
    vlm_prefix_next(&root, ids, 0, 4, &span, 1, &b);
    tap_ok(differs(&a, &b), "its key");
    picture.bytes[0]--;

    span.first = 102;
    vlm_prefix_next(&root, ids, 100, 4, &span, 1, &b);
    tap_ok(!differs(&a, &b), "offsets are the block's");

    vlm_prefix_next(&root, ids, 0, 4, NULL, 0, &a);
    span.first = 4;
    vlm_prefix_next(&root, ids, 0, 4, &span, 1, &b);
    tap_ok(!differs(&a, &b), "a picture behind it does not count");
    span.first = 100 - 4;
    vlm_prefix_next(&root, ids, 100, 4, &span, 1, &b);
    tap_ok(!differs(&a, &b), "one before it neither: the parent has it");
}


/* ---- the queue ---- */

static int
may_all(const void *data, const vlm_seq_t *seq)
{
    return 1;
}


static int
may_small(const void *data, const vlm_seq_t *seq)
{
    return seq->cost <= *(const int32_t *) data;
}


static vlm_seq_t *
start_next(vlm_waiting_t *q)
{
    vlm_seq_t  *seq;

    seq = vlm_queue_pick(q, may_all, NULL);

    if (seq != NULL) {
        vlm_queue_start(q, seq);
    }

    return seq;
}


static void
test_queue(void)
{
    int32_t              i, most;
    vlm_seq_t            seqs[8];
    vlm_waiting_t        q;
    vlm_seq_t *const    *list;

    memset(&q, 0, sizeof(q));

    for (i = 0; i < 4; i++) {
        seqs[i] = make_seq((uint64_t) i, 100, 1);
        vlm_queue_add(&q, &seqs[i]);
    }

    tap_ok(start_next(&q) == &seqs[0], "equal ones go by arrival");

    seqs[4] = make_seq(4, 5000, 1);
    seqs[5] = make_seq(5, 10, 1);
    vlm_queue_add(&q, &seqs[4]);
    vlm_queue_add(&q, &seqs[5]);

    tap_ok(start_next(&q) == &seqs[1], "who came before a start is ahead");

    list = vlm_queue_list(&q);
    tap_ok(q.n == 4 && list[0] == &seqs[2] && list[1] == &seqs[3]
           && list[2] == &seqs[5] && list[3] == &seqs[4],
           "the queue is listed in order");

    most = 50;
    tap_ok(vlm_queue_pick(&q, may_small, &most) == &seqs[5],
           "one that may is picked");

    tap_is(vlm_queue_remove(&q, &seqs[3]), 1, "one leaves");
    tap_is(vlm_queue_remove(&q, &seqs[3]), 0, "only once");

    (void) start_next(&q);
    (void) start_next(&q);
    tap_ok(start_next(&q) == &seqs[4], "the large one comes last");
    tap_ok(start_next(&q) == NULL && q.n == 0, "the queue is empty");
    tap_ok(q.scopes == NULL, "no scope is left");

    vlm_queue_free(&q);
}


/* a stream of small ones does not keep a large one out */

static void
test_ageing(void)
{
    int             n;
    vlm_seq_t       large, small[2], *seq;
    vlm_waiting_t   q;

    memset(&q, 0, sizeof(q));

    large = make_seq(0, 4000, 1);
    vlm_queue_add(&q, &large);

    small[0] = make_seq(1, 10, 1);
    vlm_queue_add(&q, &small[0]);

    for (n = 0; n < 1000; n++) {
        seq = start_next(&q);

        if (seq == &large) {
            break;
        }

        *seq = make_seq((uint64_t) n + 2, 10, 1);
        vlm_queue_add(&q, seq);
    }

    tap_ok(n > 4000 / VLM_QUEUE_AGEING - 2
           && n <= 4000 / VLM_QUEUE_AGEING + 1,
           "a large one is overtaken %d times", n);

    while (start_next(&q) != NULL) { /* void */ }
    vlm_queue_free(&q);
}


/* scopes get equal shares of cost, however many requests they send */

static void
test_scopes(void)
{
    int                  i, n, place;
    int64_t              cost[3];
    vlm_seq_t            seqs[90], *seq;
    vlm_waiting_t        q;
    vlm_seq_t *const    *list;

    memset(&q, 0, sizeof(q));
    memset(cost, 0, sizeof(cost));

    for (i = 0; i < 90; i++) {
        seqs[i] = make_seq((uint64_t) i, i < 60 ? 100 : i < 80 ? 300 : 50,
                           1);
        seqs[i].scope = i < 60 ? 0 : i < 80 ? 1 : 2;
        vlm_queue_add(&q, &seqs[i]);
    }

    for (n = 0; n < 30; n++) {
        seq = start_next(&q);
        cost[seq->scope] += seq->cost;
    }

    tap_ok(llabs(cost[0] - cost[1]) <= 300 + VLM_QUEUE_QUANTUM,
           "two busy scopes: %lld and %lld", (long long) cost[0],
           (long long) cost[1]);
    tap_is(cost[2], 500, "a modest one has got all that it wanted");

    /* who comes new does not wait for all that came before */

    seqs[80] = make_seq(1000, 100, 1);
    seqs[80].scope = 7;
    vlm_queue_add(&q, &seqs[80]);

    for (place = 0; start_next(&q) != &seqs[80]; place++) { /* void */ }
    tap_ok(place <= 3, "a new scope's turn comes after %d", place);

    while (start_next(&q) != NULL) { /* void */ }

    /* as listed: a round of all scopes, then those with more */

    for (i = 0; i < 6; i++) {
        seqs[i] = make_seq((uint64_t) i, 100, 1);
        seqs[i].scope = i == 3 ? 1 : i == 4 ? 2 : 0;
        vlm_queue_add(&q, &seqs[i]);
    }

    list = vlm_queue_list(&q);
    tap_ok(list[0] == &seqs[0] && list[1] == &seqs[3] && list[2] == &seqs[4]
           && list[3] == &seqs[1] && list[4] == &seqs[2]
           && list[5] == &seqs[5], "scopes take turns in the list");

    while (start_next(&q) != NULL) { /* void */ }
    vlm_queue_free(&q);
}


int
main(void)
{
    test_blocks();
    test_prefix();
    test_queue();
    test_ageing();
    test_scopes();

    return tap_done();
}
