
/* Blocks and plans: tables, and random states that keep what must hold. */

#include <stdlib.h>
#include <string.h>

#include "engine/runtime/scheduler.h"
#include "t/unit/lib/tap.h"


#define MAX_SEQS    64


static vlm_seq_t
make_seq(uint64_t order, int32_t prompt, int32_t answer)
{
    vlm_seq_t  seq;

    memset(&seq, 0, sizeof(seq));

    seq.order = order;
    seq.total = prompt;
    seq.max_total = prompt + answer;

    return seq;
}


static void
test_blocks(void)
{
    int            i, seen[5];
    int32_t        b;
    vlm_blocks_t   blocks;

    tap_is(vlm_blocks_init(&blocks, 5), VLM_OK, "five blocks");
    tap_is(vlm_blocks_reserve(&blocks, 3), VLM_OK, "3 of 5 reserved");
    tap_is(vlm_blocks_reserve(&blocks, 3), VLM_AGAIN, "3 more are too many");
    tap_is(blocks.reserved, 3, "a refusal reserves nothing");
    tap_is(vlm_blocks_reserve(&blocks, 2), VLM_OK, "2 more fit");

    memset(seen, 0, sizeof(seen));

    for (i = 0; i < 5; i++) {
        b = vlm_blocks_take(&blocks);
        tap_ok(b >= 0 && b < 5 && !seen[b], "block %d is new", b);
        seen[b] = 1;
    }

    tap_is(vlm_blocks_take(&blocks), -1, "no sixth block");

    vlm_blocks_give(&blocks, 3);
    tap_is(vlm_blocks_take(&blocks), 3, "a block given back is taken again");

    vlm_blocks_unreserve(&blocks, 5);
    tap_is(blocks.reserved, 0, "nothing is reserved");

    vlm_blocks_free(&blocks);
}


static void
test_queue(void)
{
    int          i, nomem;
    vlm_seq_t    seqs[4];
    vlm_sched_t  s;

    vlm_sched_init(&s, 64, 2, 10, 16);

    /* 4, 9, 1 and 1 blocks: the last token needs none */

    seqs[0] = make_seq(2, 49, 16);
    seqs[1] = make_seq(3, 100, 45);
    seqs[2] = make_seq(4, 10, 7);
    seqs[3] = make_seq(1, 1, 1);

    tap_is(vlm_sched_need(&s, 65), 4, "65 tokens take 4 blocks");
    tap_is(vlm_sched_need(&s, 66), 5, "66 take 5");
    tap_is(vlm_sched_need(&s, 2), 1, "2 take 1");

    for (i = 0; i < 4; i++) {
        vlm_sched_wait(&s, &seqs[i]);
    }

    tap_is(vlm_sched_place(&s, &seqs[3]), 0, "the queue is by arrival");
    tap_is(vlm_sched_place(&s, &seqs[0]), 1, "second");
    tap_is(vlm_sched_place(&s, &seqs[2]), 3, "fourth");

    tap_ok(vlm_sched_admit(&s, &nomem) == &seqs[3], "the first starts");
    tap_ok(vlm_sched_admit(&s, &nomem) == &seqs[0], "the second starts");
    tap_ok(vlm_sched_admit(&s, &nomem) == NULL, "no third seat");
    tap_is(vlm_sched_place(&s, &seqs[1]), 0, "the large one is next");

    vlm_sched_remove(&s, &seqs[3]);
    tap_ok(vlm_sched_admit(&s, &nomem) == NULL,
           "9 blocks cannot be reserved, and nobody overtakes");

    vlm_sched_remove(&s, &seqs[0]);
    tap_ok(vlm_sched_admit(&s, &nomem) == &seqs[1], "now they can");
    tap_ok(vlm_sched_admit(&s, &nomem) == &seqs[2], "the small one follows");
    tap_is(s.blocks.reserved, 10, "all is reserved");

    vlm_sched_remove(&s, &seqs[1]);
    vlm_sched_remove(&s, &seqs[2]);
    tap_is(s.blocks.reserved, 0, "all is free");

    vlm_sched_wait(&s, &seqs[0]);
    vlm_sched_wait(&s, &seqs[1]);
    vlm_sched_remove(&s, &seqs[0]);
    tap_is(s.nwaiting, 1, "a waiting one can leave");
    tap_ok(s.waiting == &seqs[1], "the other still waits");

    vlm_sched_free(&s);
}


/* computed, ready, total of up to 4 sequences; expected rows of each */

typedef struct {
    const char     *name;
    int32_t         max_rows;
    int             n;
    int32_t         state[4][3];
    int32_t         rows[4];
    int             sample[4];
} plan_case_t;

static const plan_case_t  plan_cases[] = {

    { "nothing runs", 16, 0, { { 0, 0, 0 } }, { 0 }, { 0 } },

    { "one decodes", 16, 1, { { 9, 10, 10 } }, { 1 }, { 1 } },

    { "a prompt that fits", 16, 1, { { 0, 12, 12 } }, { 12 }, { 1 } },

    { "a prompt in chunks", 16, 1, { { 0, 40, 40 } }, { 16 }, { 0 } },

    { "its last chunk", 16, 1, { { 32, 40, 40 } }, { 8 }, { 1 } },

    { "it stops at a picture that is not encoded", 64, 1,
      { { 0, 14, 40 } }, { 14 }, { 0 } },

    { "it stands before one", 64, 1, { { 14, 14, 40 } }, { 0 }, { 0 } },

    { "decoding comes first", 16, 2,
      { { 0, 40, 40 }, { 9, 10, 10 } }, { 15, 1 }, { 0, 1 } },

    { "two prompts share", 16, 2,
      { { 0, 40, 40 }, { 0, 40, 40 } }, { 8, 8 }, { 0, 0 } },

    { "what a short one leaves, the oldest gets", 16, 3,
      { { 0, 40, 40 }, { 0, 2, 2 }, { 0, 40, 40 } }, { 9, 2, 5 },
      { 0, 1, 0 } },

    { "a row for each, even with a small budget", 4, 4,
      { { 0, 9, 9 }, { 3, 4, 4 }, { 0, 9, 9 }, { 7, 8, 8 } },
      { 1, 1, 1, 1 }, { 0, 1, 0, 1 } },

    { "one row that is not the last gives no token", 16, 1,
      { { 4, 5, 9 } }, { 1 }, { 0 } },

    { NULL, 0, 0, { { 0 } }, { 0 }, { 0 } }
};


static void
test_plan(const plan_case_t *c)
{
    int                 i, k, nomem, sample[4];
    int32_t             rows[4], total;
    vlm_seq_t           seqs[4];
    vlm_plan_t          plan;
    vlm_sched_t         s;
    vlm_plan_entry_t   *e;

    vlm_sched_init(&s, c->max_rows, 4, 100, 16);
    vlm_plan_init(&plan, 4);

    for (i = 0; i < c->n; i++) {
        seqs[i] = make_seq((uint64_t) i, c->state[i][2], 20);
        vlm_sched_wait(&s, &seqs[i]);
        vlm_sched_admit(&s, &nomem);
        seqs[i].computed = c->state[i][0];
        seqs[i].ready = c->state[i][1];
    }

    vlm_sched_plan(&s, &plan);

    memset(rows, 0, sizeof(rows));
    memset(sample, 0, sizeof(sample));
    total = 0;

    for (i = 0; i < plan.n; i++) {
        e = &plan.entries[i];
        k = (int) (e->seq - seqs);
        rows[k] = e->n;
        sample[k] = e->sample;
        total += e->n;

        if (e->start != e->seq->computed) {
            tap_ok(0, "%s: starts where the sequence is", c->name);
        }
    }

    tap_ok(memcmp(rows, c->rows, sizeof(rows)) == 0,
           "%s: rows %d %d %d %d", c->name, rows[0], rows[1], rows[2],
           rows[3]);
    tap_ok(memcmp(sample, c->sample, sizeof(sample)) == 0,
           "%s: tokens", c->name);
    tap_is(plan.rows, total, "%s: rows are counted", c->name);

    for (i = 0; i < c->n; i++) {
        vlm_sched_remove(&s, &seqs[i]);
    }

    vlm_plan_free(&plan);
    vlm_sched_free(&s);
}


/* ---- random invariants ---- */

typedef struct {
    vlm_sched_t     s;
    vlm_plan_t      plan;
    vlm_seq_t       seqs[MAX_SEQS];
    int             used[MAX_SEQS];
    uint64_t        random;
    uint64_t        order;
    int32_t         finished;
    const char     *broken;
} world_t;


static int32_t
pick(world_t *w, int32_t n)
{
    return (int32_t) (tap_random(&w->random) % (uint64_t) n);
}


static void
world_arrive(world_t *w, int32_t max_total)
{
    int      i;
    int32_t  prompt;

    for (i = 0; i < MAX_SEQS; i++) {
        if (!w->used[i]) {
            prompt = 1 + pick(w, max_total - 1);
            w->seqs[i] = make_seq(++w->order, prompt,
                                  1 + pick(w, max_total - prompt));
            w->used[i] = 1;
            vlm_sched_wait(&w->s, &w->seqs[i]);
            return;
        }
    }
}


static void
world_check(world_t *w)
{
    int32_t             i, k, held, reserved, rows;
    uint8_t             taken[4096];
    vlm_seq_t          *seq;
    vlm_plan_entry_t   *e;

    held = 0;
    reserved = 0;
    rows = 0;
    memset(taken, 0, sizeof(taken));

    for (i = 0; i < w->s.nrunning; i++) {
        seq = w->s.running[i];
        held += seq->nblocks;
        reserved += seq->reserved;

        for (k = 0; k < seq->nblocks; k++) {
            if (taken[seq->blocks[k]]++) {
                w->broken = "a block has two owners";
            }
        }

        if (seq->nblocks * w->s.block_size < seq->computed) {
            w->broken = "computed tokens without blocks";
        }
    }

    if (held + w->s.blocks.nfree != w->s.blocks.total) {
        w->broken = "blocks are not conserved";
    }

    if (reserved != w->s.blocks.reserved
        || reserved > w->s.blocks.total || held > reserved)
    {
        w->broken = "reservations do not add up";
    }

    for (i = 0; i < w->plan.n; i++) {
        e = &w->plan.entries[i];
        rows += e->n;

        if (e->n < 1 || e->start + e->n > e->seq->ready) {
            w->broken = "a plan goes beyond what is ready";
        }
    }

    if (rows != w->plan.rows || rows > w->s.max_rows) {
        w->broken = "the budget of rows is not kept";
    }
}


static void
world_step(world_t *w)
{
    int                 i, nomem;
    int32_t             progress[MAX_SEQS];
    vlm_seq_t          *seq;
    vlm_plan_entry_t   *e;

    while (vlm_sched_admit(&w->s, &nomem) != NULL) {
        /* void */
    }

    for (i = 0; i < w->s.nrunning; i++) {
        seq = w->s.running[i];

        /* now and then a picture is not ready; at last it is */

        if (seq->ready < seq->computed) {
            seq->ready = seq->computed;
        }

        if (pick(w, 4) != 0) {
            seq->ready = seq->total;
        }
    }

    vlm_sched_plan(&w->s, &w->plan);

    if (vlm_sched_take(&w->s, &w->plan) != VLM_OK) {
        w->broken = "a reserved block could not be taken";
    }

    world_check(w);

    memset(progress, 0, sizeof(progress));

    for (i = 0; i < w->plan.n; i++) {
        progress[w->plan.entries[i].seq - w->seqs] = 1;
    }

    for (i = 0; i < w->s.nrunning; i++) {
        seq = w->s.running[i];

        if (seq->ready > seq->computed && !progress[seq - w->seqs]) {
            w->broken = "a sequence that could run got no row";
        }
    }

    vlm_sched_commit(&w->s, &w->plan);

    for (i = 0; i < w->plan.n; i++) {
        e = &w->plan.entries[i];
        seq = e->seq;

        if (!e->sample) {
            continue;
        }

        seq->total++;

        if (seq->total == seq->max_total || pick(w, 50) == 0) {
            vlm_sched_remove(&w->s, seq);
            w->used[seq - w->seqs] = 0;
            w->finished++;

        } else {
            seq->ready = seq->total;
        }
    }
}


static void
test_random(uint64_t seed)
{
    int       i, steps;
    world_t  *w;

    w = calloc(1, sizeof(world_t));
    w->random = seed;

    /* the largest request fits exactly */

    vlm_sched_init(&w->s, 8 + pick(w, 60), 1 + pick(w, 8), 8 + pick(w, 20),
                   16);
    vlm_plan_init(&w->plan, w->s.max_seqs);

    for (steps = 0; steps < 20000 && w->broken == NULL; steps++) {

        if (steps < 2000 && pick(w, 6) == 0) {
            world_arrive(w, 8 * 16);
        }

        /* someone leaves, waiting or running */

        i = pick(w, MAX_SEQS);

        if (w->used[i] && pick(w, 40) == 0) {
            vlm_sched_remove(&w->s, &w->seqs[i]);
            w->used[i] = 0;
        }

        world_step(w);

        if (steps >= 2000 && w->s.nrunning == 0 && w->s.nwaiting == 0) {
            break;
        }
    }

    tap_ok(w->broken == NULL, "seed %llu: %s", (unsigned long long) seed,
           w->broken != NULL ? w->broken : "all invariants hold");
    tap_ok(w->s.nrunning == 0 && w->s.nwaiting == 0,
           "seed %llu: everybody is served in the end (%d)",
           (unsigned long long) seed, w->finished);
    tap_ok(w->s.blocks.nfree == w->s.blocks.total
           && w->s.blocks.reserved == 0,
           "seed %llu: all blocks are free in the end",
           (unsigned long long) seed);

    vlm_plan_free(&w->plan);
    vlm_sched_free(&w->s);
    free(w);
}


/* equal requests never differ by more than one token */

static void
test_equal(void)
{
    int           i, k, nomem, uneven;
    vlm_seq_t     seqs[8];
    vlm_plan_t    plan;
    vlm_sched_t   s;

    vlm_sched_init(&s, 16, 8, 200, 16);
    vlm_plan_init(&plan, 8);

    for (i = 0; i < 8; i++) {
        seqs[i] = make_seq((uint64_t) i, 32, 100);
        vlm_sched_wait(&s, &seqs[i]);
        vlm_sched_admit(&s, &nomem);
        seqs[i].ready = seqs[i].total;
    }

    uneven = 0;

    for (k = 0; k < 100; k++) {
        vlm_sched_plan(&s, &plan);
        vlm_sched_take(&s, &plan);
        vlm_sched_commit(&s, &plan);

        for (i = 0; i < plan.n; i++) {
            if (plan.entries[i].sample) {
                plan.entries[i].seq->total++;
                plan.entries[i].seq->ready++;
            }
        }

        for (i = 1; i < 8; i++) {
            uneven += abs(seqs[i].total - seqs[0].total) > 1;
        }
    }

    tap_is(uneven, 0, "equal requests keep together");
    tap_ok(seqs[0].total > 100, "and they advance: %d", seqs[0].total);

    for (i = 0; i < 8; i++) {
        vlm_sched_remove(&s, &seqs[i]);
    }

    vlm_plan_free(&plan);
    vlm_sched_free(&s);
}


int
main(void)
{
    uint64_t            seed;
    const plan_case_t  *c;

    test_blocks();
    test_queue();

    for (c = plan_cases; c->name != NULL; c++) {
        test_plan(c);
    }

    test_equal();

    for (seed = 1; seed <= 20; seed++) {
        test_random(seed);
    }

    return tap_done();
}
