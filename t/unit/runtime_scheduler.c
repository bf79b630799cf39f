
/* Who starts, who gives way, and plans. */

#include <stdlib.h>
#include <string.h>

#include "engine/runtime/scheduler.h"
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
test_admission(void)
{
    int          i;
    vlm_seq_t    seqs[16];
    vlm_sched_t  s;

    vlm_sched_init(&s, 64, 4, 10, 16);

    /* prompts of 3, 9, 1 and 1 blocks; the first seat is free anyway */

    seqs[0] = make_seq(0, 48, 16);
    seqs[1] = make_seq(1, 140, 20);
    seqs[1].cost = 1;
    vlm_sched_wait(&s, &seqs[0]);
    tap_ok(vlm_sched_admit(&s) == &seqs[0], "the first starts");

    vlm_sched_wait(&s, &seqs[1]);
    tap_ok(vlm_sched_admit(&s) == NULL, "9 blocks beside 3 are too many");

    for (i = 2; i < 2 + 8 + 1; i++) {
        seqs[i] = make_seq((uint64_t) i, 10, 5);
        vlm_sched_wait(&s, &seqs[i]);
    }

    for (i = 2; i < 2 + 8; i++) {
        tap_ok(vlm_sched_admit(&s) == &seqs[i], "a small one overtakes");
        vlm_sched_remove(&s, &seqs[i]);
    }

    tap_ok(vlm_sched_admit(&s) == NULL, "but not without end");

    vlm_sched_remove(&s, &seqs[0]);
    tap_ok(vlm_sched_admit(&s) == &seqs[1], "the large one has its room");
    tap_ok(vlm_sched_admit(&s) == NULL, "nothing fits beside it");

    vlm_sched_remove(&s, &seqs[1]);
    tap_ok(vlm_sched_admit(&s) == &seqs[10], "the last one");

    vlm_sched_remove(&s, &seqs[10]);
    tap_is(vlm_blocks_available(&s.blocks), 10, "all is free");

    /* a seat is left for those without pictures */

    for (i = 0; i < 6; i++) {
        seqs[i] = make_seq((uint64_t) i, 10, 5);
        seqs[i].pictures = (i < 5);
        vlm_sched_wait(&s, &seqs[i]);
    }

    for (i = 0; i < 3; i++) {
        tap_ok(vlm_sched_admit(&s) == &seqs[i], "a picture, seat %d", i);
    }

    tap_ok(vlm_sched_admit(&s) == &seqs[5],
           "the last seat is for one without");
    vlm_sched_remove(&s, &seqs[5]);
    tap_ok(vlm_sched_admit(&s) == NULL, "and for nobody else");

    seqs[0].ready = seqs[0].total;
    tap_ok(vlm_sched_admit(&s) == &seqs[3], "until a picture is encoded");

    for (i = 0; i < 5; i++) {
        vlm_sched_remove(&s, &seqs[i]);
    }

    vlm_sched_free(&s);
}


/* a step of all that is ready */

static int
step(vlm_sched_t *s, vlm_plan_t *plan)
{
    int32_t  i;

    vlm_sched_plan(s, s->max_rows, plan);

    if (vlm_sched_take(s, plan) != VLM_OK) {
        return VLM_AGAIN;
    }

    vlm_sched_commit(s, plan);

    for (i = 0; i < plan->n; i++) {
        if (plan->entries[i].sample) {
            plan->entries[i].seq->total++;
            plan->entries[i].seq->ready = plan->entries[i].seq->total;
        }
    }

    return VLM_OK;
}


static void
test_sharing(void)
{
    int                i;
    vlm_seq_t          a, b, c;
    vlm_plan_t         plan;
    vlm_sched_t        s;
    vlm_prefix_key_t   keys[4], other[4];

    vlm_sched_init(&s, 64, 4, 10, 16);
    vlm_plan_init(&plan, 4);

    for (i = 0; i < 4; i++) {
        keys[i] = make_key(i > 0 ? &keys[i - 1] : NULL, i);
        other[i] = i < 2 ? keys[i] : make_key(&other[i - 1], 9);
    }

    a = make_seq(1, 50, 8);
    a.keys = keys;
    a.nkeys = 3;
    vlm_sched_wait(&s, &a);
    (void) vlm_sched_admit(&s);
    tap_is(a.computed, 0, "nothing is known at first");

    a.ready = a.total;
    step(&s, &plan);
    tap_is(a.nnamed, 3, "three full blocks have names");

    /* its last block is not full, its last token is computed again */

    b = make_seq(2, 48, 8);
    b.keys = keys;
    b.nkeys = 3;
    vlm_sched_wait(&s, &b);
    (void) vlm_sched_admit(&s);

    tap_is(b.reused, 32, "two blocks are shared, the last token never");
    tap_ok(b.blocks[0] == a.blocks[0] && b.blocks[1] == a.blocks[1],
           "they are the same blocks");
    tap_is(s.blocks.block[a.blocks[0]].refs, 2, "of two users");

    b.ready = b.total;
    step(&s, &plan);
    tap_ok(b.blocks[2] != a.blocks[2], "what it computes is its own");

    vlm_sched_remove(&s, &a);
    vlm_sched_remove(&s, &b);
    tap_is(s.blocks.nidle, 3, "all named blocks are idle");

    c = make_seq(3, 64, 8);
    c.keys = other;
    c.nkeys = 4;
    vlm_sched_wait(&s, &c);
    (void) vlm_sched_admit(&s);
    tap_is(c.reused, 32, "up to where it differs");
    tap_is(c.ready, 32, "what is reused needs no picture");

    vlm_sched_remove(&s, &c);
    tap_is(vlm_blocks_available(&s.blocks), 10, "all can be taken");

    vlm_plan_free(&plan);
    vlm_sched_free(&s);
}


/* somebody else is faster: what it has computed is taken over */

static void
test_reuse(void)
{
    int                i;
    vlm_seq_t          a, b;
    vlm_plan_t         plan;
    vlm_sched_t        s;
    vlm_prefix_key_t   keys[4];

    vlm_sched_init(&s, 64, 4, 10, 16);
    vlm_plan_init(&plan, 4);

    for (i = 0; i < 4; i++) {
        keys[i] = make_key(i > 0 ? &keys[i - 1] : NULL, i);
    }

    a = make_seq(1, 50, 8);
    b = make_seq(2, 60, 8);
    a.keys = keys;
    b.keys = keys;
    a.nkeys = 3;
    b.nkeys = 3;
    vlm_sched_wait(&s, &a);
    vlm_sched_wait(&s, &b);
    (void) vlm_sched_admit(&s);
    (void) vlm_sched_admit(&s);

    /* the other one waits for its picture */

    a.ready = a.total;
    step(&s, &plan);

    tap_is(vlm_sched_reuse(&s, &b), 48, "three blocks are taken over");
    tap_is(b.computed, 48, "as if it had computed them");
    tap_is(vlm_sched_reuse(&s, &b), 0, "once");

    b.ready = b.total;
    step(&s, &plan);
    tap_is(b.total, 61, "it goes on from there");

    vlm_sched_remove(&s, &a);
    vlm_sched_remove(&s, &b);
    vlm_plan_free(&plan);
    vlm_sched_free(&s);
}


static void
test_preemption(void)
{
    int                i;
    vlm_seq_t          seqs[3];
    vlm_plan_t         plan;
    vlm_sched_t        s;
    vlm_prefix_key_t   key;

    vlm_sched_init(&s, 64, 3, 6, 16);
    vlm_plan_init(&plan, 3);

    key = make_key(NULL, 1);

    for (i = 0; i < 2; i++) {
        seqs[i] = make_seq((uint64_t) i, 30, 60);
        vlm_sched_wait(&s, &seqs[i]);
        tap_ok(vlm_sched_admit(&s) == &seqs[i], "%d starts", i);
        seqs[i].ready = seqs[i].total;
    }

    seqs[1].keys = &key;
    seqs[1].nkeys = 1;

    while (step(&s, &plan) == VLM_OK) { /* void */ }

    tap_is(seqs[0].total, 49, "the fourth block cannot be had");
    tap_ok(vlm_sched_preempt(&s) == &seqs[1], "the youngest gives way");
    tap_ok(seqs[1].computed == 0 && seqs[1].nblocks == 0, "with all it has");
    tap_is(seqs[1].total, 49, "but not what it has said");
    tap_is(s.blocks.nidle, 1, "its named block is idle");
    tap_is(s.blocks.nfree, 2, "the others are free");

    tap_is(step(&s, &plan), VLM_OK, "the other one goes on");

    seqs[2] = make_seq(2, 5, 5);
    vlm_sched_wait(&s, &seqs[2]);
    tap_ok(vlm_sched_admit(&s) == NULL, "nobody starts before it");
    tap_ok(vlm_sched_preempt(&s) == NULL, "the last one cannot give way");

    vlm_sched_remove(&s, &seqs[0]);
    tap_ok(vlm_sched_admit(&s) == &seqs[1], "it is the first to start");
    tap_is(seqs[1].computed, 16, "and finds its own block again");
    tap_ok(vlm_sched_admit(&s) == &seqs[2], "then others");

    vlm_sched_remove(&s, &seqs[2]);
    tap_ok(vlm_sched_preempt(&s) == NULL, "alone again");
    vlm_sched_remove(&s, &seqs[1]);
    tap_is(vlm_blocks_available(&s.blocks), 6, "all can be taken");

    vlm_plan_free(&plan);
    vlm_sched_free(&s);
}


/* ---- plans ---- */

/* computed, ready, total of up to 4 sequences; expected rows of each */

typedef struct {
    const char     *name;
    int32_t         max_rows;
    int32_t         prompt_rows;
    int             n;
    int32_t         state[4][3];
    int32_t         rows[4];
    int             sample[4];
} plan_case_t;

static const plan_case_t  plan_cases[] = {

    { "nothing runs", 16, 100, 0, { { 0, 0, 0 } }, { 0 }, { 0 } },

    { "one decodes", 16, 100, 1, { { 9, 10, 10 } }, { 1 }, { 1 } },

    { "a prompt that fits", 16, 100, 1, { { 0, 12, 12 } }, { 12 }, { 1 } },

    { "a prompt in chunks", 16, 100, 1, { { 0, 40, 40 } }, { 16 }, { 0 } },

    { "its last chunk", 16, 100, 1, { { 32, 40, 40 } }, { 8 }, { 1 } },

    { "it stops at a picture that is not encoded", 64, 100, 1,
      { { 0, 14, 40 } }, { 14 }, { 0 } },

    { "it stands before one", 64, 100, 1, { { 14, 14, 40 } }, { 0 }, { 0 } },

    { "decoding comes first", 16, 100, 2,
      { { 0, 40, 40 }, { 9, 10, 10 } }, { 15, 1 }, { 0, 1 } },

    { "two prompts share", 16, 100, 2,
      { { 0, 40, 40 }, { 0, 40, 40 } }, { 8, 8 }, { 0, 0 } },

    { "what a short one leaves, the oldest gets", 16, 100, 3,
      { { 0, 40, 40 }, { 0, 2, 2 }, { 0, 40, 40 } }, { 9, 2, 5 },
      { 0, 1, 0 } },

    { "a row for each, even with a small budget", 4, 100, 4,
      { { 0, 9, 9 }, { 3, 4, 4 }, { 0, 9, 9 }, { 7, 8, 8 } },
      { 1, 1, 1, 1 }, { 0, 1, 0, 1 } },

    { "one row that is not the last gives no token", 16, 100, 1,
      { { 4, 5, 9 } }, { 1 }, { 0 } },

    { "beside an answer prompts have a budget", 16, 5, 3,
      { { 0, 40, 40 }, { 0, 40, 40 }, { 9, 10, 10 } }, { 3, 2, 1 },
      { 0, 0, 1 } },

    { "of at least one row", 16, 0, 2,
      { { 0, 40, 40 }, { 9, 10, 10 } }, { 1, 1 }, { 0, 1 } },

    { "they have all without one", 16, 5, 2,
      { { 0, 40, 40 }, { 0, 40, 40 } }, { 8, 8 }, { 0, 0 } },

    { NULL, 0, 0, 0, { { 0 } }, { 0 }, { 0 } }
};


static void
test_plan(const plan_case_t *c)
{
    int                 i, k, sample[4];
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
        (void) vlm_sched_admit(&s);
        seqs[i].computed = c->state[i][0];
        seqs[i].ready = c->state[i][1];

        if (seqs[i].ready - seqs[i].computed == 1) {
            seqs[i].prompt--;
        }
    }

    vlm_sched_plan(&s, c->prompt_rows, &plan);

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


/* with too few rows for all, prompts take turns */

static void
test_turns(void)
{
    int          i, k;
    vlm_seq_t    seqs[4];
    vlm_plan_t   plan;
    vlm_sched_t  s;

    vlm_sched_init(&s, 64, 4, 100, 16);
    vlm_plan_init(&plan, 4);

    for (i = 0; i < 4; i++) {
        seqs[i] = make_seq((uint64_t) i, 20, 100);
        vlm_sched_wait(&s, &seqs[i]);
        (void) vlm_sched_admit(&s);
        seqs[i].ready = seqs[i].total;
    }

    seqs[0].computed = 19;
    seqs[0].prompt = 19;

    for (k = 0; k < 12; k++) {
        vlm_sched_plan(&s, 1, &plan);
        vlm_sched_take(&s, &plan);
        vlm_sched_commit(&s, &plan);
        seqs[0].ready = ++seqs[0].total;

        if (plan.rows != 2) {
            tap_ok(0, "one row beside the answer");
        }
    }

    for (i = 1; i < 4; i++) {
        tap_ok(seqs[i].computed >= 3, "prompt %d: %d of 12 turns", i,
               seqs[i].computed);
    }

    for (i = 0; i < 4; i++) {
        vlm_sched_remove(&s, &seqs[i]);
    }

    vlm_plan_free(&plan);
    vlm_sched_free(&s);
}


/* looks at sequences for each row of n answers, prompts among them or not */

static double
plan_cost(int32_t n, int32_t nprompts)
{
    int32_t       i;
    double        cost;
    vlm_seq_t    *seqs;
    vlm_plan_t    plan;
    vlm_sched_t   s;

    seqs = calloc((size_t) n, sizeof(vlm_seq_t));
    vlm_sched_init(&s, 2 * n, n, 100 * n, 16);
    vlm_plan_init(&plan, n);

    for (i = 0; i < n; i++) {
        seqs[i] = make_seq((uint64_t) i, 100, 100);
        vlm_sched_wait(&s, &seqs[i]);
        (void) vlm_sched_admit(&s);
        seqs[i].ready = seqs[i].total;
        seqs[i].computed = i < nprompts ? 0 : 99;
        seqs[i].prompt -= i < nprompts ? 0 : 1;
    }

    vlm_sched_plan(&s, s.max_rows, &plan);
    cost = (double) plan.looked / n;

    for (i = 0; i < n; i++) {
        vlm_sched_remove(&s, &seqs[i]);
    }

    vlm_plan_free(&plan);
    vlm_sched_free(&s);
    free(seqs);

    return cost;
}


static void
test_cost(void)
{
    double  few, many;

    few = plan_cost(32, 0);
    many = plan_cost(256, 0);
    tap_ok(many <= few, "256 answers: %g looks at each, 32: %g", many, few);

    few = plan_cost(32, 8);
    many = plan_cost(256, 64);
    tap_ok(many <= few, "a quarter are prompts: %g, %g", many, few);
    tap_ok(many < 4, "and they are few");
}


/* equal requests never differ by more than one token */

static void
test_equal(void)
{
    int           i, k, uneven;
    vlm_seq_t     seqs[8];
    vlm_plan_t    plan;
    vlm_sched_t   s;

    vlm_sched_init(&s, 16, 8, 200, 16);
    vlm_plan_init(&plan, 8);

    for (i = 0; i < 8; i++) {
        seqs[i] = make_seq((uint64_t) i, 32, 100);
        vlm_sched_wait(&s, &seqs[i]);
        (void) vlm_sched_admit(&s);
        seqs[i].ready = seqs[i].total;
    }

    uneven = 0;

    for (k = 0; k < 100; k++) {
        vlm_sched_plan(&s, 16, &plan);
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
    const plan_case_t  *c;

    test_admission();
    test_sharing();
    test_reuse();
    test_preemption();

    for (c = plan_cases; c->name != NULL; c++) {
        test_plan(c);
    }

    test_turns();
    test_cost();
    test_equal();

    return tap_done();
}
