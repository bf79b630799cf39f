
/* sampling of one row of logits, see sample.c */

#ifndef VLM_SAMPLE_H
#define VLM_SAMPLE_H


#include "kernels/cpu/rows.h"


/* work memory: [n] each, but raw: [params->nadjust] */

typedef struct {
    float      *weight;
    int32_t    *id;
    float      *raw;
} vlm_sample_work_t;


void vlm_sample_row(const vlm_cpu_rows_t *kernels, float *logits, int32_t n,
    const vlm_sample_t *params, vlm_sample_work_t *work, vlm_sampled_t *out);

/* Philox 4x32 with 10 rounds: a block of random bits for each counter */
void vlm_philox(const uint32_t counter[4], const uint32_t key[2],
    uint32_t out[4]);


/*
 * The best elements of a row, in order of descending value, equal ones by
 * ascending index: those above a value, and of its own those up to an index.
 */

typedef struct {
    float       value;
    int32_t     last;
} vlm_cut_t;

static inline int
vlm_cut_keeps(const vlm_cut_t *cut, float x, int32_t i)
{
    return x > cut->value || (x == cut->value && i <= cut->last);
}

/*
 * Cuts what "cut" keeps further: to the k best, or to the fewest best whose
 * weights reach "share" of all of theirs.  At least one is left.
 */
void vlm_cut_count(vlm_cut_t *cut, const float *x, int32_t n, int32_t k);
void vlm_cut_share(vlm_cut_t *cut, const float *x, const float *weight,
    int32_t n, double share);


#endif /* VLM_SAMPLE_H */
