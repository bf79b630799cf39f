
/* weights into panels of int8, see linear.h */

#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/linear_i8.h"


typedef struct {
    vlm_weight_t             *w;
    const vlm_host_matrix_t  *parts;
    int                       nparts;
    float                    *rows;         /* [workers][k] */
    uint8_t                  *bytes;        /* [workers][groups][4] */
} pack_t;


static void pack_panel(void *arg, int task, int worker);
static void widen_row(const char *row, vlm_dtype_t dtype, int64_t k,
    float *to);
static int32_t place_column(const uint8_t *bytes, size_t groups, char *to);


int
vlm_cpu_pack_i8(vlm_weight_t *w, const vlm_host_matrix_t *parts, int nparts)
{
    int      npanels;
    size_t   workers;
    pack_t   p;

    npanels = (int) vlm_weight_panels(w);
    workers = (size_t) vlm_pool_size(w->device->pool);

    p.w = w;
    p.parts = parts;
    p.nparts = nparts;
    p.rows = vlm_cpu_alloc(workers * (size_t) w->k * sizeof(float));
    p.bytes = vlm_cpu_alloc(workers * vlm_i8_groups(w->k) * VLM_I8_STEPS);

    w->scale = vlm_cpu_alloc((size_t) npanels * VLM_PANEL * sizeof(float));

    if (p.rows == NULL || p.bytes == NULL || w->scale == NULL) {
        free(p.rows);
        free(p.bytes);
        return -1;
    }

    vlm_pool_run(w->device->pool, npanels, pack_panel, &p);

    free(p.rows);
    free(p.bytes);

    return 0;
}


static void
pack_panel(void *arg, int task, int worker)
{
    int          c;
    char        *to;
    float       *row, *scale, inverse;
    size_t       groups;
    int32_t     *head;
    int64_t      k;
    pack_t      *p = arg;
    uint8_t     *bytes;
    const char  *from;

    k = p->w->k;
    groups = vlm_i8_groups(k);
    row = p->rows + worker * k;
    bytes = p->bytes + (size_t) worker * groups * VLM_I8_STEPS;
    to = (char *) p->w->data + (size_t) task * vlm_panel_bytes(p->w);
    head = (int32_t *) to;
    scale = p->w->scale + task * VLM_PANEL;

    memset(bytes, 0, groups * VLM_I8_STEPS);

    for (c = 0; c < VLM_PANEL; c++) {
        from = vlm_cpu_panel_row(p->w, p->parts, p->nparts, task, c);

        if (from == NULL) {
            memset(row, 0, (size_t) k * sizeof(float));

        } else {
            widen_row(from, p->parts[0].dtype, k, row);
        }

        scale[c] = vlm_i8_scale(row, k, &inverse);
        vlm_i8_quantise(row, k, inverse, 0, bytes);

        head[c] = -128 * place_column(bytes, groups, to + VLM_I8_HEAD
                                                     + c * VLM_I8_STEPS);
    }
}


static void
widen_row(const char *row, vlm_dtype_t dtype, int64_t k, float *to)
{
    int64_t   i;
    uint16_t  h;

    switch (dtype) {

    case VLM_BF16:
        for (i = 0; i < k; i++) {
            memcpy(&h, row + i * sizeof(h), sizeof(h));
            to[i] = vlm_bf16_to_f32(h);
        }

        break;

    case VLM_F16:
        for (i = 0; i < k; i++) {
            memcpy(&h, row + i * sizeof(h), sizeof(h));
            to[i] = vlm_f16_to_f32(h);
        }

        break;

    default:
        memcpy(to, row, (size_t) k * sizeof(float));
        break;
    }
}


/* one column of a panel; returns its sum */

static int32_t
place_column(const uint8_t *bytes, size_t groups, char *to)
{
    size_t   i;
    int32_t  sum;

    sum = 0;

    for (i = 0; i < groups * VLM_I8_STEPS; i++) {
        sum += (int8_t) bytes[i];
    }

    for (i = 0; i < groups; i++) {
        memcpy(to + i * VLM_I8_LINE, bytes + i * VLM_I8_STEPS, VLM_I8_STEPS);
    }

    return sum;
}
