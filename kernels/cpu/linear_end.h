
/* the end of a product: activation, gate, residual, and columns to y */

#include "kernels/cpu/linear.h"
#include "kernels/cpu/vmath.h"


/* 16 finished columns of a row, of which y may have fewer */

static void
finish(const vlm_product_t *p, int64_t row, int64_t column, v16 v)
{
    int           n;
    float        *y;
    const float  *r;

    if (column >= p->n) {
        return;
    }

    y = p->y + row * p->y_stride + column;
    r = p->residual == NULL
        ? NULL : p->residual + row * p->residual_stride + column;

    if (p->n - column >= 16) {
        v16_store(y, r != NULL ? v16_add(v, v16_load(r)) : v);
        return;
    }

    n = (int) (p->n - column);
    v16_store_n(y, r != NULL ? v16_add(v, v16_load_n(r, n)) : v, n);
}


/* vectors of 16 in place, "step" floats from one to the next */

static void
activate(float *c, int64_t n, int64_t step, vlm_act_t act)
{
    float  *end;

    end = c + n * step;

    switch (act) {

    case VLM_ACT_SILU:
        for (/* void */; c < end; c += step) {
            v16_store(c, v16_silu(v16_load(c)));
        }

        break;

    case VLM_ACT_GELU:
        for (/* void */; c < end; c += step) {
            v16_store(c, v16_gelu(v16_load(c)));
        }

        break;

    case VLM_ACT_GELU_TANH:
        for (/* void */; c < end; c += step) {
            v16_store(c, v16_gelu_tanh(v16_load(c)));
        }

        break;

    case VLM_ACT_QUICK_GELU:
        for (/* void */; c < end; c += step) {
            v16_store(c, v16_quick_gelu(v16_load(c)));
        }

        break;

    default:
        break;
    }
}


static void
end_tile(const vlm_product_t *p, int64_t panel, int64_t row, int64_t rows,
    float *c)
{
    v16      lo, hi;
    int64_t  i;

    if (p->gated) {
        activate(c, rows, VLM_PANEL, p->act);

    } else {
        activate(c, 2 * rows, 16, p->act);
    }

    for (i = 0; i < rows; i++) {
        lo = v16_load(c + i * VLM_PANEL);
        hi = v16_load(c + i * VLM_PANEL + 16);

        if (p->gated) {
            finish(p, row + i, panel * VLM_HALF_PANEL, v16_mul(lo, hi));

        } else {
            finish(p, row + i, panel * VLM_PANEL, lo);
            finish(p, row + i, panel * VLM_PANEL + 16, hi);
        }
    }
}
