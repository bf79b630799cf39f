
/*
 * Sequences that wait for their first seat.  Scopes take turns by deficit
 * round robin; within a scope small ones come before large ones, but a large
 * one gets ahead with each sequence that starts after it came, so that what
 * overtakes it is bounded.
 */

#ifndef VLM_QUEUE_H
#define VLM_QUEUE_H


#include "engine/runtime/block.h"


#define VLM_QUEUE_QUANTUM   64          /* of cost, a scope's in a round */
#define VLM_QUEUE_AGEING    128         /* of cost, for each that starts */


typedef struct vlm_seq_s    vlm_seq_t;
typedef struct vlm_scope_s  vlm_scope_t;

struct vlm_seq_s {
    uint64_t                order;      /* of arrival */
    uint32_t                choice;     /* of one request; unique with it */
    uint64_t                scope;      /* its number */
    int32_t                 cost;       /* rows that it is worth */
    int                     pictures;   /* it may have to wait for some */

    int32_t                 max_total;  /* prompt and the longest answer */
    int32_t                 prompt;     /* tokens of it */
    int32_t                 computed;
    int32_t                 total;
    int32_t                 ready;      /* computed <= ready <= total */
    int32_t                 reused;     /* tokens found when it started */

    int32_t                *blocks;     /* the scheduler's */
    int32_t                 nblocks;
    int32_t                 nnamed;     /* the first of them have names */
    const vlm_prefix_key_t *keys;       /* names of the first blocks */
    int32_t                 nkeys;

    uint64_t                rank;       /* in its scope, the lowest first */
    vlm_seq_t              *next;       /* in a list */
};

struct vlm_scope_s {
    uint64_t                number;
    int64_t                 deficit;
    vlm_seq_t              *first;      /* by rank */
    vlm_scope_t            *next;
    vlm_seq_t              *cursor;     /* while the queue is listed */
    vlm_scope_t            *more;
};

typedef struct {
    vlm_scope_t            *scopes;     /* those with somebody, in turn */
    int32_t                 n;          /* sequences */
    uint64_t                started;    /* since the beginning */
    vlm_seq_t             **list;
    int32_t                 size;
    int                     listed;     /* the list is up to date */
} vlm_waiting_t;

/* whether a sequence may be picked now */
typedef int (*vlm_queue_pt)(const void *data, const vlm_seq_t *seq);


void vlm_queue_free(vlm_waiting_t *q);

/* VLM_ERROR: no memory */
int vlm_queue_add(vlm_waiting_t *q, vlm_seq_t *seq);

/* 1: it was in there */
int vlm_queue_remove(vlm_waiting_t *q, vlm_seq_t *seq);

/*
 * Whose turn it is among those that may; NULL: nobody's.  vlm_queue_start()
 * takes it out, and its scope pays.
 */
vlm_seq_t *vlm_queue_pick(const vlm_waiting_t *q, vlm_queue_pt may,
    const void *data);
void vlm_queue_start(vlm_waiting_t *q, vlm_seq_t *seq);

/* all of them, about in the order in which they will start */
vlm_seq_t *const *vlm_queue_list(vlm_waiting_t *q);


#endif /* VLM_QUEUE_H */
