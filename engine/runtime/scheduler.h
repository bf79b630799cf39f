
/*
 * Who runs next, and how many tokens of it.  No I/O, no clock, no model: a
 * state goes in, a plan comes out.
 *
 * There are no prefill and decode modes.  A sequence has "total" tokens, of
 * which "computed" are in the KV cache; a step computes some more of several
 * sequences, within a budget of rows.  When computed reaches total the last
 * row's logits give one more token, and total grows.  "ready" bounds what can
 * be computed now: a picture that is not encoded yet stops it.
 */

#ifndef VLM_SCHEDULER_H
#define VLM_SCHEDULER_H


#include "engine/runtime/block.h"


typedef struct vlm_seq_s  vlm_seq_t;

struct vlm_seq_s {
    uint64_t        order;          /* of arrival, unique */
    int32_t         max_total;      /* prompt and the longest answer */
    int32_t         computed;
    int32_t         total;
    int32_t         ready;          /* computed <= ready <= total */

    int32_t        *blocks;         /* the scheduler's, from admission on */
    int32_t         nblocks;
    int32_t         reserved;

    vlm_seq_t      *next;           /* in the waiting list */
};

typedef struct {
    int32_t         max_rows;       /* of one step; at least max_seqs */
    int32_t         max_seqs;       /* running at once */
    int32_t         block_size;

    vlm_blocks_t    blocks;
    vlm_seq_t     **running;        /* in order of admission */
    int32_t         nrunning;
    vlm_seq_t      *waiting;        /* in order of arrival */
    int32_t         nwaiting;
} vlm_sched_t;

typedef struct {
    vlm_seq_t      *seq;
    int32_t         start;          /* == seq->computed */
    int32_t         n;
    int             sample;         /* the last row gives a token */
} vlm_plan_entry_t;

typedef struct {
    vlm_plan_entry_t   *entries;    /* max_seqs */
    int32_t             n;
    int32_t             rows;
    int32_t             nsample;
} vlm_plan_t;


int vlm_sched_init(vlm_sched_t *s, int32_t max_rows, int32_t max_seqs,
    int32_t nblocks, int32_t block_size);
void vlm_sched_free(vlm_sched_t *s);

int vlm_plan_init(vlm_plan_t *plan, int32_t max_seqs);
void vlm_plan_free(vlm_plan_t *plan);

/* blocks that a sequence of max_total tokens needs in the end */
int32_t vlm_sched_need(const vlm_sched_t *s, int32_t max_total);

/* puts a sequence into the queue, in its place by order */
void vlm_sched_wait(vlm_sched_t *s, vlm_seq_t *seq);

/* how many wait before it; -1: it does not wait */
int32_t vlm_sched_place(const vlm_sched_t *s, const vlm_seq_t *seq);

/*
 * The first in the queue becomes running, if there is a seat and its blocks
 * can be reserved.  Strictly in order, so that nobody waits for ever behind
 * smaller ones.  NULL: not now (*nomem is set when there was no memory).
 */
vlm_seq_t *vlm_sched_admit(vlm_sched_t *s, int *nomem);

/* takes a sequence out, waiting or running; its blocks are free again */
void vlm_sched_remove(vlm_sched_t *s, vlm_seq_t *seq);

/*
 * The next step: one row of each sequence that only lacks its newest token,
 * and chunks of the others, which share the rest of the budget evenly.
 */
void vlm_sched_plan(const vlm_sched_t *s, vlm_plan_t *plan);

/* takes the blocks that a plan needs: before the step */
int vlm_sched_take(vlm_sched_t *s, const vlm_plan_t *plan);

/* counts the plan's rows as computed: after the step */
void vlm_sched_commit(vlm_sched_t *s, const vlm_plan_t *plan);


#endif /* VLM_SCHEDULER_H */
