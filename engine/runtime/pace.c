
#include <stdlib.h>
#include <string.h>

#include "engine/base/vlm_base.h"
#include "engine/runtime/pace.h"


/*
 * A step that others on the machine held up is not to make room for more:
 * the mean follows it slowly, and not far.
 */
#define WEIGHT_DOWN     0.2
#define WEIGHT_UP       0.1
#define MOST_UP         2
#define WEIGHT_ROW      0.2

#define UNKNOWN_US      5000.0


int
vlm_pace_init(vlm_pace_t *p, double factor, int32_t max)
{
    p->factor = factor;
    p->max = max;
    p->row_us = 0;
    p->quiet_us = calloc((size_t) max + 1, sizeof(double));

    return p->quiet_us != NULL ? VLM_OK : VLM_ERROR;
}


void
vlm_pace_free(vlm_pace_t *p)
{
    free(p->quiet_us);
    memset(p, 0, sizeof(*p));
}


void
vlm_pace_step(vlm_pace_t *p, int32_t answers, int32_t prompts, uint64_t us)
{
    double  *quiet, took, row;

    if (answers > p->max) {
        return;
    }

    if (prompts == 0) {
        took = (double) us;
        quiet = &p->quiet_us[answers];

        if (*quiet == 0) {
            *quiet = took;
        }

        if (took > *quiet * MOST_UP) {
            took = *quiet * MOST_UP;
        }

        *quiet += (took - *quiet)
                  * (took < *quiet ? WEIGHT_DOWN : WEIGHT_UP);
        return;
    }

    row = ((double) us - vlm_pace_quiet(p, answers)) / prompts;

    if (row <= 0) {
        return;
    }

    p->row_us = p->row_us == 0 ? row
                               : p->row_us + (row - p->row_us) * WEIGHT_ROW;
}


double
vlm_pace_quiet(const vlm_pace_t *p, int32_t answers)
{
    int32_t  n;

    if (answers > p->max) {
        answers = p->max;
    }

    /* fewer answers are a lower bound, more of them the next best */

    for (n = answers; n > 0; n--) {
        if (p->quiet_us[n] != 0) {
            return p->quiet_us[n];
        }
    }

    for (n = answers + 1; answers > 0 && n <= p->max; n++) {
        if (p->quiet_us[n] != 0) {
            return p->quiet_us[n];
        }
    }

    return 0;
}


double
vlm_pace_allowance(const vlm_pace_t *p, int32_t answers)
{
    double  quiet;

    if (answers == 0) {
        return -1;
    }

    quiet = vlm_pace_quiet(p, answers);

    return (p->factor - 1) * (quiet != 0 ? quiet : UNKNOWN_US);
}


int32_t
vlm_pace_rows(const vlm_pace_t *p, double us, int32_t most)
{
    double  rows;

    if (us < 0 || p->row_us == 0) {
        return most;
    }

    rows = us / p->row_us;

    return rows < 1 ? 1 : rows < most ? (int32_t) rows : most;
}
