
/* Which angle turns which pair of a head: text and vision tower. */

#include <math.h>
#include <string.h>

#include "engine/model/internal.h"


/* the sections are chunks: so many pairs temporal, then height, then width */

void
vlm_text_rope(vlm_rope_t *rope, const vlm_config_t *c)
{
    int32_t  i, axis, left;

    memset(rope, 0, sizeof(*rope));
    rope->npairs = c->head_dim / 2;
    rope->naxes = 3;

    axis = 0;
    left = c->rope_sections[0];

    for (i = 0; i < rope->npairs; i++) {
        rope->inv_freq[i] = (float) pow(c->rope_theta,
                                        -2.0 * i / c->head_dim);

        while (left == 0 && axis < 2) {
            left = c->rope_sections[++axis];
        }

        rope->axis[i] = (uint8_t) axis;
        left--;
    }
}


/* the first half of the pairs by row, the second by column */

void
vlm_vision_rope(vlm_rope_t *rope, const vlm_config_t *c, double theta)
{
    int32_t  i, n;

    memset(rope, 0, sizeof(*rope));
    rope->npairs = c->v_width / c->v_heads / 2;
    rope->naxes = 2;
    n = rope->npairs / 2;

    for (i = 0; i < n; i++) {
        rope->inv_freq[i] = (float) pow(theta, -2.0 * i / rope->npairs);
        rope->inv_freq[n + i] = rope->inv_freq[i];
        rope->axis[n + i] = 1;
    }
}
