
#include <stdlib.h>
#include <string.h>

#include "engine/runtime/scheduler.h"


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


int32_t
vlm_sched_need(const vlm_sched_t *s, int32_t max_total)
{
    /* the last token is given out, but never computed */

    return (max_total - 1 + s->block_size - 1) / s->block_size;
}


void
vlm_sched_wait(vlm_sched_t *s, vlm_seq_t *seq)
{
    vlm_seq_t  **p;

    for (p = &s->waiting; *p != NULL; p = &(*p)->next) {
        if ((*p)->order > seq->order) {
            break;
        }
    }

    seq->next = *p;
    *p = seq;
    s->nwaiting++;
}


int32_t
vlm_sched_place(const vlm_sched_t *s, const vlm_seq_t *seq)
{
    int32_t           n;
    const vlm_seq_t  *p;

    for (p = s->waiting, n = 0; p != NULL; p = p->next, n++) {
        if (p == seq) {
            return n;
        }
    }

    return -1;
}


vlm_seq_t *
vlm_sched_admit(vlm_sched_t *s, int *nomem)
{
    int32_t     need;
    vlm_seq_t  *seq;

    *nomem = 0;
    seq = s->waiting;

    if (seq == NULL || s->nrunning == s->max_seqs) {
        return NULL;
    }

    need = vlm_sched_need(s, seq->max_total);

    if (vlm_blocks_reserve(&s->blocks, need) != VLM_OK) {
        return NULL;
    }

    seq->blocks = calloc((size_t) need + 1, sizeof(int32_t));
    if (seq->blocks == NULL) {
        vlm_blocks_unreserve(&s->blocks, need);
        *nomem = 1;
        return NULL;
    }

    s->waiting = seq->next;
    s->nwaiting--;

    seq->next = NULL;
    seq->nblocks = 0;
    seq->reserved = need;

    s->running[s->nrunning++] = seq;

    return seq;
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


void
vlm_sched_remove(vlm_sched_t *s, vlm_seq_t *seq)
{
    vlm_seq_t  **p;

    for (p = &s->waiting; *p != NULL; p = &(*p)->next) {
        if (*p == seq) {
            *p = seq->next;
            seq->next = NULL;
            s->nwaiting--;
            return;
        }
    }

    seat_free(s, seq);

    while (seq->nblocks > 0) {
        vlm_blocks_give(&s->blocks, seq->blocks[--seq->nblocks]);
    }

    vlm_blocks_unreserve(&s->blocks, seq->reserved);
    seq->reserved = 0;

    free(seq->blocks);
    seq->blocks = NULL;
}


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


/* rows that a sequence could use; 1 is a step of a running answer */

static int32_t
wanted(const vlm_seq_t *seq)
{
    return seq->ready - seq->computed;
}


void
vlm_sched_plan(const vlm_sched_t *s, vlm_plan_t *plan)
{
    int32_t            i, n, left, share, nlong;
    vlm_plan_entry_t  *e;

    plan->n = 0;
    plan->rows = 0;
    plan->nsample = 0;

    nlong = 0;

    for (i = 0; i < s->nrunning; i++) {
        n = wanted(s->running[i]);

        if (n == 1) {
            plan_add(plan, s->running[i], 1);

        } else if (n > 1) {
            nlong++;
        }
    }

    /* max_rows >= max_seqs: at least one row is left for each */

    left = s->max_rows - plan->rows;
    share = nlong > 0 ? left / nlong : 0;

    for (i = 0; i < s->nrunning; i++) {
        n = wanted(s->running[i]);

        if (n > 1) {
            n = n < share ? n : share;
            plan_add(plan, s->running[i], n);
            left -= n;
        }
    }

    /* what short ones did not need goes to the oldest */

    for (i = 0; i < plan->n; i++) {
        e = &plan->entries[i];

        if (wanted(e->seq) > e->n && left > 0) {
            n = wanted(e->seq) - e->n;
            n = n < left ? n : left;
            e->n += n;
            plan->rows += n;
            left -= n;
        }

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
        n = (plan->entries[i].start + plan->entries[i].n + s->block_size - 1)
            / s->block_size;

        while (seq->nblocks < n) {
            block = vlm_blocks_take(&s->blocks);

            if (block < 0 || seq->nblocks == seq->reserved) {
                return VLM_ERROR;
            }

            seq->blocks[seq->nblocks++] = block;
        }
    }

    return VLM_OK;
}


void
vlm_sched_commit(vlm_sched_t *s, const vlm_plan_t *plan)
{
    int32_t  i;

    for (i = 0; i < plan->n; i++) {
        plan->entries[i].seq->computed += plan->entries[i].n;
    }
}
