
/*
 * Who runs next, and how many tokens of it.  No I/O, no clock, no model: a
 * state goes in, a plan comes out.
 *
 * There are no prefill and decode modes.  A sequence has "total" tokens, of
 * which "computed" are in the KV cache; a step computes some more of several
 * sequences, within a budget of rows.  When computed reaches total the last
 * row's logits give one more token, and total grows.  "ready" bounds what can
 * be computed now: a picture that is not encoded yet stops it.
 *
 * A sequence starts when there is room for what it has, not for what it may
 * become.  When no block is left the youngest goes back to the queue's front
 * and is computed again later.  The oldest is never sent back, and all fits
 * into the cache alone, so everybody gets to the end.
 */

#ifndef VLM_SCHEDULER_H
#define VLM_SCHEDULER_H


#include "engine/runtime/queue.h"


typedef struct {
    int32_t         max_rows;       /* of one step; at least max_seqs */
    int32_t         max_seqs;       /* running at once */
    int32_t         block_size;

    vlm_blocks_t    blocks;
    vlm_seq_t     **running;        /* in order of admission */
    int32_t         nrunning;
    vlm_waiting_t   waiting;
    vlm_seq_t      *preempted;      /* by age: they start before all others */
    int32_t         npreempted;
    int32_t         overtaken;      /* times, by smaller ones */
    uint32_t        turn;           /* steps so far */
    uint64_t        preemptions;    /* since the start */
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
    int32_t             nstreams;   /* answers that go on by one token */
    int32_t             nsample;
    uint64_t            looked;     /* at sequences, while it was made */
} vlm_plan_t;


int vlm_sched_init(vlm_sched_t *s, int32_t max_rows, int32_t max_seqs,
    int32_t nblocks, int32_t block_size);
void vlm_sched_free(vlm_sched_t *s);

int vlm_plan_init(vlm_plan_t *plan, int32_t max_seqs);
void vlm_plan_free(vlm_plan_t *plan);

/* puts a new sequence into the queue; VLM_ERROR: no memory */
int vlm_sched_wait(vlm_sched_t *s, vlm_seq_t *seq);

/*
 * The next one becomes running, if there is a seat and room for what it has;
 * NULL: not now.  Blocks that hold its beginning already are its own then,
 * and counted as computed.
 */
vlm_seq_t *vlm_sched_admit(vlm_sched_t *s);

/*
 * Blocks that hold what comes next of a running sequence, as others have
 * computed it meanwhile; the number of tokens.  The last is never among them:
 * its logits are needed.
 */
int32_t vlm_sched_reuse(vlm_sched_t *s, vlm_seq_t *seq);

/* takes a sequence out, waiting or running; its blocks are free again */
void vlm_sched_remove(vlm_sched_t *s, vlm_seq_t *seq);

/*
 * The next step: one row of each sequence that only lacks its newest token,
 * and chunks of the others, which share the rest of the budget evenly.  Where
 * answers are being written, at most prompt_rows rows (at least one) are of
 * others.
 */
void vlm_sched_plan(const vlm_sched_t *s, int32_t prompt_rows,
    vlm_plan_t *plan);

/*
 * Takes the blocks that a plan needs: before the step.  VLM_AGAIN: there are
 * not enough, somebody has to be preempted, and a new plan to be made.
 */
int vlm_sched_take(vlm_sched_t *s, const vlm_plan_t *plan);

/* the youngest goes back to the queue; NULL: there is but one */
vlm_seq_t *vlm_sched_preempt(vlm_sched_t *s);

/* counts the plan's rows as computed, names full blocks: after the step */
void vlm_sched_commit(vlm_sched_t *s, const vlm_plan_t *plan);


#endif /* VLM_SCHEDULER_H */
