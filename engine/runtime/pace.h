
/*
 * How long other work may hold up the answers that are being written.  A
 * step with one row of each of n answers and nothing else is quiet; encoding
 * and rows of prompts may make it "factor" times as long, no more.  No clock:
 * what was measured goes in, microseconds come out.
 */

#ifndef VLM_PACE_H
#define VLM_PACE_H


#include <stdint.h>


typedef struct {
    double      factor;             /* above 1 */
    double     *quiet_us;           /* [max + 1], 0: not known */
    int32_t     max;
    double      row_us;             /* of a prompt's row, 0: not known */
} vlm_pace_t;


int vlm_pace_init(vlm_pace_t *p, double factor, int32_t max);
void vlm_pace_free(vlm_pace_t *p);

/* a step with rows of "answers" and of prompts took us */
void vlm_pace_step(vlm_pace_t *p, int32_t answers, int32_t prompts,
    uint64_t us);

/* what a quiet step of so many answers takes; 0: nothing is known yet */
double vlm_pace_quiet(const vlm_pace_t *p, int32_t answers);

/* by how much other work may lengthen it; without any answer, -1: no limit */
double vlm_pace_allowance(const vlm_pace_t *p, int32_t answers);

/* rows of prompts that take so long, at least 1; "most" if it is not known */
int32_t vlm_pace_rows(const vlm_pace_t *p, double us, int32_t most);


#endif /* VLM_PACE_H */
