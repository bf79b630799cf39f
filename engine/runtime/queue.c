
#include <stdlib.h>
#include <string.h>

#include "engine/runtime/queue.h"


static vlm_scope_t *scope_get(vlm_waiting_t *q, uint64_t number);
static void scope_leave(vlm_waiting_t *q, vlm_scope_t *scope);


void
vlm_queue_free(vlm_waiting_t *q)
{
    vlm_scope_t  *scope;

    while (q->scopes != NULL) {
        scope = q->scopes;
        q->scopes = scope->next;
        free(scope);
    }

    free(q->list);
    memset(q, 0, sizeof(*q));
}


static int
before(const vlm_seq_t *a, const vlm_seq_t *b)
{
    if (a->rank != b->rank) {
        return a->rank < b->rank;
    }

    if (a->order != b->order) {
        return a->order < b->order;
    }

    return a->choice < b->choice;
}


int
vlm_queue_add(vlm_waiting_t *q, vlm_seq_t *seq)
{
    int32_t        size;
    vlm_seq_t    **p;
    vlm_scope_t   *scope;

    if (q->n == q->size) {
        size = q->size * 2 + 64;

        p = realloc(q->list, (size_t) size * sizeof(vlm_seq_t *));
        if (p == NULL) {
            return VLM_ERROR;
        }

        q->list = p;
        q->size = size;
    }

    scope = scope_get(q, seq->scope);
    if (scope == NULL) {
        return VLM_ERROR;
    }

    seq->rank = q->started * VLM_QUEUE_AGEING + (uint64_t) seq->cost;

    for (p = &scope->first; *p != NULL; p = &(*p)->next) {
        if (before(seq, *p)) {
            break;
        }
    }

    seq->next = *p;
    *p = seq;

    q->n++;
    q->listed = 0;

    return VLM_OK;
}


static vlm_scope_t *
scope_get(vlm_waiting_t *q, uint64_t number)
{
    vlm_scope_t  **p;

    for (p = &q->scopes; *p != NULL; p = &(*p)->next) {
        if ((*p)->number == number) {
            return *p;
        }
    }

    *p = calloc(1, sizeof(vlm_scope_t));

    if (*p != NULL) {
        (*p)->number = number;
    }

    return *p;
}


/* one that has nobody left is forgotten, and what it had saved up too */

static void
scope_leave(vlm_waiting_t *q, vlm_scope_t *scope)
{
    vlm_scope_t  **p;

    if (scope->first != NULL) {
        return;
    }

    for (p = &q->scopes; *p != scope; p = &(*p)->next) {
        /* void */
    }

    *p = scope->next;
    free(scope);
}


int
vlm_queue_remove(vlm_waiting_t *q, vlm_seq_t *seq)
{
    vlm_seq_t    **p;
    vlm_scope_t   *scope;

    for (scope = q->scopes; scope != NULL; scope = scope->next) {

        if (scope->number != seq->scope) {
            continue;
        }

        for (p = &scope->first; *p != NULL; p = &(*p)->next) {

            if (*p == seq) {
                *p = seq->next;
                seq->next = NULL;

                q->n--;
                q->listed = 0;
                scope_leave(q, scope);

                return 1;
            }
        }
    }

    return 0;
}


static vlm_seq_t *
scope_pick(const vlm_scope_t *scope, vlm_queue_pt may, const void *data)
{
    vlm_seq_t  *seq;

    for (seq = scope->first; seq != NULL; seq = seq->next) {
        if (may(data, seq)) {
            break;
        }
    }

    return seq;
}


/* rounds to go until a scope can pay for a sequence */

static int64_t
rounds(const vlm_scope_t *scope, const vlm_seq_t *seq)
{
    if (seq->cost <= scope->deficit) {
        return 0;
    }

    return (seq->cost - scope->deficit + VLM_QUEUE_QUANTUM - 1)
           / VLM_QUEUE_QUANTUM;
}


vlm_seq_t *
vlm_queue_pick(const vlm_waiting_t *q, vlm_queue_pt may, const void *data)
{
    int64_t             n, least;
    vlm_seq_t          *seq, *best;
    const vlm_scope_t  *scope;

    best = NULL;
    least = 0;

    for (scope = q->scopes; scope != NULL; scope = scope->next) {
        seq = scope_pick(scope, may, data);

        if (seq == NULL) {
            continue;
        }

        n = rounds(scope, seq);

        if (best == NULL || n < least) {
            best = seq;
            least = n;
        }
    }

    return best;
}


void
vlm_queue_start(vlm_waiting_t *q, vlm_seq_t *seq)
{
    int64_t       gain, most;
    vlm_scope_t  *scope;

    for (scope = q->scopes; scope->number != seq->scope; scope = scope->next)
    {
        /* void */
    }

    gain = rounds(scope, seq) * VLM_QUEUE_QUANTUM;

    scope->deficit -= seq->cost;

    for (scope = q->scopes; scope != NULL; scope = scope->next) {
        scope->deficit += gain;

        /* who must not start yet does not save up without end */

        most = (int64_t) scope->first->cost + VLM_QUEUE_QUANTUM;
        scope->deficit = scope->deficit < most ? scope->deficit : most;
    }

    q->started++;

    (void) vlm_queue_remove(q, seq);
}


vlm_seq_t *const *
vlm_queue_list(vlm_waiting_t *q)
{
    int32_t        n;
    vlm_scope_t   *scope, *more, **p;

    if (q->listed) {
        return q->list;
    }

    for (scope = q->scopes; scope != NULL; scope = scope->next) {
        scope->cursor = scope->first;
        scope->more = scope->next;
    }

    n = 0;
    more = q->scopes;

    while (more != NULL) {

        for (p = &more; *p != NULL; /* void */) {
            scope = *p;

            q->list[n++] = scope->cursor;
            scope->cursor = scope->cursor->next;

            if (scope->cursor == NULL) {
                *p = scope->more;

            } else {
                p = &scope->more;
            }
        }
    }

    q->listed = 1;

    return q->list;
}
