
#include <stdlib.h>
#include <string.h>

#include "engine/runtime/scheduler.h"


/* starts of smaller ones while one waits for room */
#define MAX_OVERTAKEN   8


/* what it takes to start now */

typedef struct {
    int32_t     room;               /* blocks that nobody has or will need */
    int         pictures;           /* one more may wait for pictures */
    int         fit;                /* it has to fit into the room */
    int32_t     block_size;
} may_t;


int
vlm_sched_init(vlm_sched_t *s, int32_t max_rows, int32_t max_seqs,
    int32_t nblocks, int32_t block_size)
{
    memset(s, 0, sizeof(*s));

    s->max_rows = max_rows;
    s->max_seqs = max_seqs;
    s->block_size = block_size;

    s->running = calloc((size_t) max_seqs, sizeof(vlm_seq_t *));
    if (s->running == NULL) {
        return VLM_ERROR;
    }

    return vlm_blocks_init(&s->blocks, nblocks);
}


void
vlm_sched_free(vlm_sched_t *s)
{
    free(s->running);
    vlm_blocks_free(&s->blocks);
    vlm_queue_free(&s->waiting);
    memset(s, 0, sizeof(*s));
}


int
vlm_plan_init(vlm_plan_t *plan, int32_t max_seqs)
{
    memset(plan, 0, sizeof(*plan));

    plan->entries = calloc((size_t) max_seqs, sizeof(vlm_plan_entry_t));

    return plan->entries != NULL ? VLM_OK : VLM_ERROR;
}


void
vlm_plan_free(vlm_plan_t *plan)
{
    free(plan->entries);
    memset(plan, 0, sizeof(*plan));
}


static int32_t
blocks_of(int32_t tokens, int32_t block_size)
{
    return (tokens + block_size - 1) / block_size;
}


int
vlm_sched_wait(vlm_sched_t *s, vlm_seq_t *seq)
{
    int32_t  n;

    n = blocks_of(seq->max_total, s->block_size);

    seq->blocks = calloc((size_t) n + 1, sizeof(int32_t));
    if (seq->blocks == NULL) {
        return VLM_ERROR;
    }

    if (vlm_queue_add(&s->waiting, seq) != VLM_OK) {
        free(seq->blocks);
        seq->blocks = NULL;
        return VLM_ERROR;
    }

    return VLM_OK;
}


/* ---- admission ---- */

static int
may_start(const void *data, const vlm_seq_t *seq)
{
    const may_t  *may = data;

    if (seq->pictures && !may->pictures) {
        return 0;
    }

    return !may->fit || blocks_of(seq->total, may->block_size) <= may->room;
}


/*
 * Room is what remains when all that run have got what they lack now, and
 * one block more.  A quarter of the seats is kept for those that need not
 * wait for a picture.
 */

static void
may_init(const vlm_sched_t *s, may_t *may)
{
    int32_t           i, lack, lacking;
    const vlm_seq_t  *seq;

    lacking = 0;
    may->fit = 0;
    may->block_size = s->block_size;
    may->room = vlm_blocks_available(&s->blocks) - s->nrunning;

    for (i = 0; i < s->nrunning; i++) {
        seq = s->running[i];
        lack = blocks_of(seq->total, s->block_size) - seq->nblocks;
        may->room -= lack > 0 ? lack : 0;
        lacking += (seq->ready < seq->total);
    }

    may->pictures = lacking == 0
                    || lacking < s->max_seqs - (s->max_seqs + 3) / 4;
}


/* blocks in use that hold its beginning: they cost nothing */

static int32_t
shared_with(const vlm_sched_t *s, const vlm_seq_t *seq)
{
    int32_t  k, n, block;

    n = 0;

    for (k = 0; k < seq->nkeys && (k + 1) * s->block_size < seq->total; k++) {
        block = vlm_blocks_find(&s->blocks, &seq->keys[k]);

        if (block < 0) {
            break;
        }

        n += (s->blocks.block[block].refs > 0);
    }

    return n;
}


static int
fits(const vlm_sched_t *s, const may_t *may, const vlm_seq_t *seq)
{
    int32_t  need;

    need = blocks_of(seq->total, s->block_size);

    return s->nrunning == 0 || need <= may->room
           || need - shared_with(s, seq) <= may->room;
}


/* whose turn it is; a few smaller ones may go ahead while it finds no room */

static vlm_seq_t *
next_waiting(vlm_sched_t *s, may_t *may)
{
    vlm_seq_t  *seq;

    seq = vlm_queue_pick(&s->waiting, may_start, may);

    if (seq == NULL) {
        return NULL;
    }

    if (fits(s, may, seq)) {
        s->overtaken = 0;
        return seq;
    }

    if (s->overtaken == MAX_OVERTAKEN) {
        return NULL;
    }

    may->fit = 1;
    seq = vlm_queue_pick(&s->waiting, may_start, may);
    s->overtaken += (seq != NULL);

    return seq;
}


vlm_seq_t *
vlm_sched_admit(vlm_sched_t *s)
{
    may_t       may;
    vlm_seq_t  *seq;

    if (s->nrunning == s->max_seqs) {
        return NULL;
    }

    may_init(s, &may);

    if (s->preempted != NULL) {
        seq = s->preempted;

        if (!fits(s, &may, seq)) {
            return NULL;
        }

        s->preempted = seq->next;
        s->npreempted--;
        seq->next = NULL;

    } else {
        seq = next_waiting(s, &may);

        if (seq == NULL) {
            return NULL;
        }

        vlm_queue_start(&s->waiting, seq);
    }

    s->running[s->nrunning++] = seq;
    seq->reused = vlm_sched_reuse(s, seq);

    return seq;
}


int32_t
vlm_sched_reuse(vlm_sched_t *s, vlm_seq_t *seq)
{
    int32_t  k, block, from;

    from = seq->computed;

    for ( ;; ) {
        k = seq->nblocks;

        if (seq->computed != k * s->block_size || k >= seq->nkeys
            || seq->computed + s->block_size >= seq->total)
        {
            break;
        }

        block = vlm_blocks_find(&s->blocks, &seq->keys[k]);

        if (block < 0) {
            break;
        }

        vlm_blocks_share(&s->blocks, block);

        seq->blocks[k] = block;
        seq->nblocks++;
        seq->nnamed = seq->nblocks;
        seq->computed += s->block_size;
    }

    if (seq->ready < seq->computed) {
        seq->ready = seq->computed;
    }

    return seq->computed - from;
}


/* ---- leaving ---- */

/* the last block first, so that beginnings are kept for longest */

static void
release(vlm_sched_t *s, vlm_seq_t *seq)
{
    while (seq->nblocks > 0) {
        vlm_blocks_give(&s->blocks, seq->blocks[--seq->nblocks]);
    }

    seq->nnamed = 0;
    seq->computed = 0;
    seq->ready = 0;
}


static void
seat_free(vlm_sched_t *s, vlm_seq_t *seq)
{
    int32_t  i;

    for (i = 0; i < s->nrunning; i++) {
        if (s->running[i] == seq) {
            s->nrunning--;
            memmove(&s->running[i], &s->running[i + 1],
                    (size_t) (s->nrunning - i) * sizeof(vlm_seq_t *));
            break;
        }
    }
}


static void
preempted_remove(vlm_sched_t *s, vlm_seq_t *seq)
{
    vlm_seq_t  **p;

    for (p = &s->preempted; *p != NULL; p = &(*p)->next) {
        if (*p == seq) {
            *p = seq->next;
            seq->next = NULL;
            s->npreempted--;
            break;
        }
    }
}


void
vlm_sched_remove(vlm_sched_t *s, vlm_seq_t *seq)
{
    if (!vlm_queue_remove(&s->waiting, seq)) {
        preempted_remove(s, seq);
        seat_free(s, seq);
        release(s, seq);
    }

    free(seq->blocks);
    seq->blocks = NULL;
}


static int
younger(const vlm_seq_t *a, const vlm_seq_t *b)
{
    if (a->order != b->order) {
        return a->order > b->order;
    }

    return a->choice > b->choice;
}


vlm_seq_t *
vlm_sched_preempt(vlm_sched_t *s)
{
    int32_t      i;
    vlm_seq_t   *seq, **p;

    if (s->nrunning < 2) {
        return NULL;
    }

    seq = s->running[0];

    for (i = 1; i < s->nrunning; i++) {
        if (younger(s->running[i], seq)) {
            seq = s->running[i];
        }
    }

    seat_free(s, seq);
    release(s, seq);

    for (p = &s->preempted; *p != NULL; p = &(*p)->next) {
        if (younger(*p, seq)) {
            break;
        }
    }

    seq->next = *p;
    *p = seq;

    s->npreempted++;
    s->preemptions++;

    return seq;
}


/* ---- steps ---- */

static void
plan_add(vlm_plan_t *plan, vlm_seq_t *seq, int32_t n)
{
    vlm_plan_entry_t  *e;

    e = &plan->entries[plan->n++];

    e->seq = seq;
    e->start = seq->computed;
    e->n = n;

    plan->rows += n;
}


/* rows that a sequence could use */

static int32_t
wanted(const vlm_seq_t *seq)
{
    return seq->ready - seq->computed;
}


/* those that need one row; how many need more is returned */

static int32_t
plan_ones(const vlm_sched_t *s, vlm_plan_t *plan)
{
    int32_t     i, n, nlong;
    vlm_seq_t  *seq;

    nlong = 0;

    for (i = 0; i < s->nrunning; i++) {
        seq = s->running[i];
        n = wanted(seq);
        plan->looked++;

        if (n == 1) {
            plan_add(plan, seq, 1);
            plan->nstreams += (seq->total > seq->prompt);

        } else if (n > 1) {
            nlong++;
        }
    }

    return nlong;
}


/* even shares for the others; if they are too many, they take turns */

static void
plan_shares(const vlm_sched_t *s, vlm_plan_t *plan, int32_t nlong,
    int32_t left)
{
    int32_t     i, k, n, share, first;
    vlm_seq_t  *seq;

    share = left / nlong;
    first = 0;

    if (share == 0) {
        share = 1;
        first = (int32_t) (s->turn % (uint32_t) s->nrunning);
    }

    for (i = 0; i < s->nrunning && left > 0; i++) {
        k = first + i < s->nrunning ? first + i : first + i - s->nrunning;
        seq = s->running[k];
        n = wanted(seq);
        plan->looked++;

        if (n > 1) {
            n = n < share ? n : share;
            plan_add(plan, seq, n);
            left -= n;
        }
    }

    /* what short ones did not need goes to the oldest */

    for (i = 0; i < plan->n && left > 0; i++) {
        n = wanted(plan->entries[i].seq) - plan->entries[i].n;
        n = n < left ? n : left;
        plan->looked++;

        plan->entries[i].n += n;
        plan->rows += n;
        left -= n;
    }
}


void
vlm_sched_plan(const vlm_sched_t *s, int32_t prompt_rows, vlm_plan_t *plan)
{
    int32_t            i, left, nlong;
    vlm_plan_entry_t  *e;

    plan->n = 0;
    plan->rows = 0;
    plan->nstreams = 0;
    plan->nsample = 0;
    plan->looked = 0;

    nlong = plan_ones(s, plan);
    left = s->max_rows - plan->rows;

    if (plan->nstreams > 0 && left > prompt_rows) {
        left = prompt_rows > 1 ? prompt_rows : 1;
    }

    if (nlong > 0 && left > 0) {
        plan_shares(s, plan, nlong, left);
    }

    for (i = 0; i < plan->n; i++) {
        e = &plan->entries[i];
        e->sample = (e->start + e->n == e->seq->total);
        plan->nsample += e->sample;
    }
}


int
vlm_sched_take(vlm_sched_t *s, const vlm_plan_t *plan)
{
    int32_t     i, n, block;
    vlm_seq_t  *seq;

    for (i = 0; i < plan->n; i++) {
        seq = plan->entries[i].seq;
        n = blocks_of(plan->entries[i].start + plan->entries[i].n,
                      s->block_size);

        while (seq->nblocks < n) {
            block = vlm_blocks_take(&s->blocks);

            if (block < 0) {
                return VLM_AGAIN;
            }

            seq->blocks[seq->nblocks++] = block;
        }
    }

    return VLM_OK;
}


void
vlm_sched_commit(vlm_sched_t *s, const vlm_plan_t *plan)
{
    int32_t     i;
    vlm_seq_t  *seq;

    s->turn++;

    for (i = 0; i < plan->n; i++) {
        seq = plan->entries[i].seq;
        seq->computed += plan->entries[i].n;

        while (seq->nnamed < seq->nkeys
               && (seq->nnamed + 1) * s->block_size <= seq->computed)
        {
            vlm_blocks_name(&s->blocks, seq->blocks[seq->nnamed],
                            &seq->keys[seq->nnamed]);
            seq->nnamed++;
        }
    }
}
