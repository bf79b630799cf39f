
/* Random requests on a scheduler: what must hold does, after every step. */

#include <stdlib.h>
#include <string.h>

#include "engine/runtime/scheduler.h"
#include "t/unit/lib/tap.h"


#define MAX_SEQS    64
#define NKEYS       8
#define NTREES      3

typedef struct {
    vlm_sched_t         s;
    vlm_plan_t          plan;
    vlm_seq_t           seqs[MAX_SEQS];
    int                 used[MAX_SEQS];
    int32_t             idle[MAX_SEQS];         /* turns without a row */
    vlm_prefix_key_t    keys[NTREES][NKEYS];
    vlm_prefix_key_t    holds[4096];            /* what is in a block */
    uint64_t            random;
    uint64_t            order;
    int32_t             finished;
    int32_t             preempted;
    int32_t             reused;
    int32_t             prompt_rows;
    const char         *broken;
} world_t;


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


static int32_t
pick(world_t *w, int32_t n)
{
    return (int32_t) (tap_random(&w->random) % (uint64_t) n);
}


static void
world_arrive(world_t *w, int32_t max_total)
{
    int         i;
    int32_t     prompt;
    vlm_seq_t  *seq;

    for (i = 0; i < MAX_SEQS && w->used[i]; i++) {
        /* void */
    }

    if (i == MAX_SEQS) {
        return;
    }

    prompt = 1 + pick(w, max_total - 1);
    seq = &w->seqs[i];

    *seq = make_seq(++w->order, prompt, 1 + pick(w, max_total - prompt));
    seq->scope = (uint64_t) pick(w, 3);
    seq->pictures = pick(w, 2);
    seq->keys = w->keys[pick(w, NTREES)];
    seq->nkeys = prompt / 16;

    w->used[i] = 1;
    w->idle[i] = 0;
    vlm_sched_wait(&w->s, seq);
}


static void
world_blocks(world_t *w)
{
    int32_t     i, k, used;
    int32_t     refs[4096];
    vlm_seq_t  *seq;

    memset(refs, 0, sizeof(refs));

    for (i = 0; i < w->s.nrunning; i++) {
        seq = w->s.running[i];

        for (k = 0; k < seq->nblocks; k++) {
            refs[seq->blocks[k]]++;
        }

        for (k = 0; k < seq->nkeys && (k + 1) * 16 <= seq->computed; k++) {
            if (memcmp(&w->holds[seq->blocks[k]], &seq->keys[k],
                       sizeof(vlm_prefix_key_t))
                != 0)
            {
                w->broken = "a block does not hold what it should";
            }
        }

        if (seq->nblocks * w->s.block_size < seq->computed) {
            w->broken = "computed tokens without blocks";
        }
    }

    used = 0;

    for (i = 0; i < w->s.blocks.total; i++) {
        used += (refs[i] > 0);

        if (refs[i] != w->s.blocks.block[i].refs && refs[i] > 0) {
            w->broken = "a block's users are not counted right";
        }
    }

    if (used + w->s.blocks.nfree + w->s.blocks.nidle != w->s.blocks.total) {
        w->broken = "blocks are not conserved";
    }

    for (seq = w->s.preempted; seq != NULL; seq = seq->next) {
        if (seq->nblocks != 0 || seq->computed != 0) {
            w->broken = "a preempted sequence still has blocks";
        }
    }
}


static void
world_plan(world_t *w)
{
    int32_t             i, k, rows, prompts;
    vlm_plan_entry_t   *e;

    rows = 0;
    prompts = 0;

    for (i = 0; i < w->s.nrunning; i++) {
        w->idle[w->s.running[i] - w->seqs] +=
                        (w->s.running[i]->ready > w->s.running[i]->computed);
    }

    for (i = 0; i < w->plan.n; i++) {
        e = &w->plan.entries[i];
        rows += e->n;
        prompts += (e->n > 1 || e->seq->ready - e->seq->computed > 1)
                   ? e->n : 0;
        w->idle[e->seq - w->seqs] = 0;

        if (e->n < 1 || e->start + e->n > e->seq->ready) {
            w->broken = "a plan goes beyond what is ready";
        }

        for (k = 0; k < i; k++) {
            if (w->plan.entries[k].seq == e->seq) {
                w->broken = "a sequence is planned twice";
            }
        }
    }

    if (rows != w->plan.rows || rows > w->s.max_rows) {
        w->broken = "the budget of rows is not kept";
    }

    if (w->plan.nstreams > 0
        && prompts > (w->prompt_rows > 1 ? w->prompt_rows : 1))
    {
        w->broken = "the budget of prompts is not kept";
    }

    for (i = 0; i < w->s.nrunning; i++) {
        if (w->idle[w->s.running[i] - w->seqs] > 4 * w->s.max_seqs) {
            w->broken = "a sequence that could run gets no row";
        }
    }
}


/* rows are computed: what blocks hold, and how far sequences have come */

static void
world_commit(world_t *w)
{
    int32_t             i, k;
    vlm_seq_t          *seq;
    vlm_plan_entry_t   *e;

    vlm_sched_commit(&w->s, &w->plan);

    for (i = 0; i < w->plan.n; i++) {
        e = &w->plan.entries[i];
        seq = e->seq;

        for (k = e->start / 16; (k + 1) * 16 <= seq->computed; k++) {
            memset(&w->holds[seq->blocks[k]], 0, sizeof(vlm_prefix_key_t));

            if (k < seq->nkeys) {
                w->holds[seq->blocks[k]] = seq->keys[k];
            }
        }

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
world_step(world_t *w)
{
    int         i;
    vlm_seq_t  *seq;

    for ( ;; ) {
        seq = vlm_sched_admit(&w->s);

        if (seq == NULL) {
            break;
        }

        w->reused += seq->reused;
    }

    for (i = 0; i < w->s.nrunning; i++) {
        seq = w->s.running[i];

        w->reused += vlm_sched_reuse(&w->s, seq);

        /* pictures become ready at random */

        if (!seq->pictures || seq->computed >= seq->prompt
            || pick(w, 4) == 0)
        {
            seq->ready = seq->total;

        } else if (seq->ready == seq->computed && seq->ready < seq->total) {
            seq->ready += pick(w, seq->total - seq->ready);
        }
    }

    w->prompt_rows = pick(w, 20);

    for ( ;; ) {
        vlm_sched_plan(&w->s, w->prompt_rows, &w->plan);

        if (vlm_sched_take(&w->s, &w->plan) == VLM_OK) {
            break;
        }

        if (vlm_sched_preempt(&w->s) == NULL) {
            w->broken = "one sequence alone finds no block";
            return;
        }

        w->preempted++;
    }

    world_plan(w);
    world_commit(w);
    world_blocks(w);
}


static int
world_empty(const world_t *w)
{
    return w->s.nrunning == 0 && w->s.waiting.n == 0
           && w->s.npreempted == 0;
}


static void
world_init(world_t *w, uint64_t seed)
{
    int  i, k;

    memset(w, 0, sizeof(*w));
    w->random = seed;

    for (i = 0; i < NTREES; i++) {
        for (k = 0; k < NKEYS; k++) {
            w->keys[i][k] = make_key(k > 0 ? &w->keys[i][k - 1] : NULL,
                                     k > 2 ? i : 0);
        }
    }

    /* the largest request fits exactly */

    vlm_sched_init(&w->s, 8 + pick(w, 60), 1 + pick(w, 8), 8 + pick(w, 20),
                   16);
    vlm_plan_init(&w->plan, w->s.max_seqs);
}


/* returns how often somebody was preempted */

static int32_t
test_random(uint64_t seed, int32_t *reused)
{
    int       i, steps;
    world_t  *w;

    w = malloc(sizeof(world_t));
    world_init(w, seed);

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

        if (steps >= 2000 && world_empty(w)) {
            break;
        }
    }

    tap_ok(w->broken == NULL, "seed %llu: %s", (unsigned long long) seed,
           w->broken != NULL ? w->broken : "all invariants hold");
    tap_ok(world_empty(w), "seed %llu: everybody is served in the end (%d)",
           (unsigned long long) seed, w->finished);
    tap_is(vlm_blocks_available(&w->s.blocks), w->s.blocks.total,
           "seed %llu: all blocks are free or idle in the end",
           (unsigned long long) seed);

    i = w->preempted;
    *reused += w->reused;

    vlm_plan_free(&w->plan);
    vlm_sched_free(&w->s);
    free(w);

    return i;
}


int
main(void)
{
    int32_t     preempted, reused;
    uint64_t    seed, nseeds;
    const char  *p;

    p = getenv("VLM_LONG");
    nseeds = p != NULL && *p != '\0' ? 5000 : 50;

    preempted = 0;
    reused = 0;

    for (seed = 1; seed <= nseeds; seed++) {
        preempted += test_random(seed, &reused);
    }

    tap_ok(preempted > 100, "somebody was preempted %d times", preempted);
    tap_ok(reused > 1000, "%d tokens were found in blocks", reused);

    return tap_done();
}
