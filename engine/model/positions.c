
/* Three position numbers for each token of a prompt (M-RoPE). */

#include "engine/model/internal.h"


static int positions_picture(const vlm_span_t *span,
    const vlm_image_plan_t *plan, int32_t merge, size_t n,
    int32_t *positions, int32_t *p, vlm_error_t *err);
static void positions_text(size_t from, size_t to, size_t n,
    int32_t *positions, int32_t *p);


int
vlm_model_positions(const vlm_model_t *m, const vlm_prompt_t *prompt,
    const vlm_image_plan_t *plans, int32_t *positions, int32_t *delta,
    vlm_error_t *err)
{
    size_t             i, n, at;
    int32_t            p;
    const vlm_span_t  *span;

    n = prompt->ids.len;

    if (n > INT32_MAX / 2) {
        return vlm_fail(err, 400, NULL, "a prompt of %zu tokens is too long",
                        n);
    }

    at = 0;
    p = 0;

    for (i = 0; i < prompt->nspans; i++) {
        span = &prompt->spans[i];

        if (span->first < 0 || span->count < 1 || (size_t) span->first < at
            || (size_t) span->first > n
            || (size_t) span->count > n - (size_t) span->first)
        {
            return vlm_fail(err, 500, NULL, "placeholders %d to %d of a "
                            "picture are out of order in a prompt of %zu "
                            "tokens", span->first,
                            span->first + span->count, n);
        }

        positions_text(at, (size_t) span->first, n, positions, &p);

        if (positions_picture(span, &plans[span->picture], m->config.merge,
                              n, positions, &p, err)
            == VLM_ERROR)
        {
            return VLM_ERROR;
        }

        at = (size_t) span->first + (size_t) span->count;
    }

    positions_text(at, n, n, positions, &p);
    *delta = p - (int32_t) n;

    return VLM_OK;
}


static void
positions_text(size_t from, size_t to, size_t n, int32_t *positions,
    int32_t *p)
{
    size_t  i;

    for (i = from; i < to; i++) {
        positions[i] = *p;
        positions[n + i] = *p;
        positions[2 * n + i] = *p;
        (*p)++;
    }
}


static int
positions_picture(const vlm_span_t *span, const vlm_image_plan_t *plan,
    int32_t merge, size_t n, int32_t *positions, int32_t *p,
    vlm_error_t *err)
{
    size_t   i;
    int32_t  row, col, rows, cols;

    rows = plan->grid_h / merge;
    cols = plan->grid_w / merge;

    if (rows < 1 || cols < 1 || span->count / cols != rows
        || span->count % cols != 0)
    {
        return vlm_fail(err, 500, NULL, "picture %d has %d placeholders for "
                        "%d x %d tokens", span->picture, span->count, rows,
                        cols);
    }

    i = (size_t) span->first;

    for (row = 0; row < rows; row++) {
        for (col = 0; col < cols; col++) {
            positions[i] = *p;
            positions[n + i] = *p + row;
            positions[2 * n + i] = *p + col;
            i++;
        }
    }

    *p += rows > cols ? rows : cols;

    return VLM_OK;
}
