
/* weights into panels, see linear.h; a checkpoint's data may be unaligned */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/vec.h"


/* steps of a panel that are transposed at once */
#define PACK_DEPTH  64


typedef struct {
    vlm_weight_t             *w;
    const vlm_host_matrix_t  *parts;
    int                       nparts;
    size_t                    esize;
} pack_t;


static int check(vlm_weight_layout_t layout, const vlm_host_matrix_t *parts,
    const vlm_host_matrix_t *biases, int nparts, char *err, size_t errlen);
static int pack_bias(vlm_weight_t *w, const vlm_host_matrix_t *biases,
    const vlm_host_matrix_t *parts, int nparts);
static float bias_at(const vlm_host_matrix_t *bias, int64_t i);
static void pack_panel(void *arg, int task, int worker);
static const char *panel_row(const pack_t *p, int64_t panel, int column);
static void place_16(uint16_t *to, const char *from, int column,
    int64_t depth, vlm_dtype_t dtype);
static void place_32(uint32_t *to, const char *from, int column,
    int64_t depth);


int
vlm_cpu_weight_create(vlm_device_t *dev, vlm_weight_t *w,
    vlm_weight_layout_t layout, const vlm_host_matrix_t *parts,
    const vlm_host_matrix_t *biases, int nparts, char *err, size_t errlen)
{
    int      i;
    size_t   size;
    pack_t   p;
    int64_t  npanels;

    memset(w, 0, sizeof(vlm_weight_t));

    if (check(layout, parts, biases, nparts, err, errlen) != 0) {
        return -1;
    }

    w->device = dev;
    w->dtype = parts[0].dtype;
    w->layout = layout;
    w->k = parts[0].cols;

    for (i = 0; i < nparts; i++) {
        w->n += parts[i].rows;
    }

    npanels = vlm_weight_panels(w);
    size = (size_t) npanels * VLM_PANEL * vlm_dtype_size(w->dtype);

    if ((size_t) w->k > SIZE_MAX / 2 / size) {
        snprintf(err, errlen, "a weight of %lld x %lld is too large",
                 (long long) w->n, (long long) w->k);
        return -1;
    }

    w->bytes = size * (size_t) w->k;
    w->data = vlm_cpu_alloc(w->bytes);

    if (w->data == NULL || pack_bias(w, biases, parts, nparts) != 0) {
        snprintf(err, errlen, "no memory for a weight of %zu bytes", w->bytes);
        vlm_cpu_weight_destroy(w);
        return -1;
    }

    p.w = w;
    p.parts = parts;
    p.nparts = nparts;
    p.esize = vlm_dtype_size(w->dtype);

    vlm_pool_run(dev->pool, (int) npanels, pack_panel, &p);

    return 0;
}


static int
check(vlm_weight_layout_t layout, const vlm_host_matrix_t *parts,
    const vlm_host_matrix_t *biases, int nparts, char *err, size_t errlen)
{
    int      i;
    int64_t  n;

    if (nparts < 1 || (layout == VLM_WEIGHT_GATED
                       && (nparts != 2 || parts[0].rows != parts[1].rows)))
    {
        snprintf(err, errlen, "a gated weight has two equal parts, a plain "
                 "one at least one");
        return -1;
    }

    n = 0;

    for (i = 0; i < nparts; i++) {

        if (parts[i].rows < 1 || parts[i].rows > INT32_MAX - n
            || parts[i].cols < 1 || parts[i].cols > INT32_MAX
            || parts[i].dtype > VLM_F16)
        {
            snprintf(err, errlen, "part %d of a weight: %lld x %lld of "
                     "type %d", i, (long long) parts[i].rows,
                     (long long) parts[i].cols, (int) parts[i].dtype);
            return -1;
        }

        n += parts[i].rows;

        if (parts[i].cols != parts[0].cols
            || parts[i].dtype != parts[0].dtype)
        {
            snprintf(err, errlen, "part %d of a weight has %lld columns of "
                     "type %d, part 0 has %lld of type %d", i,
                     (long long) parts[i].cols, (int) parts[i].dtype,
                     (long long) parts[0].cols, (int) parts[0].dtype);
            return -1;
        }

        if (biases != NULL && biases[i].data != NULL
            && (biases[i].rows < 1 || biases[i].cols < 1
                || biases[i].rows > INT32_MAX || biases[i].cols > INT32_MAX
                || biases[i].rows * biases[i].cols != parts[i].rows
                || biases[i].dtype > VLM_F16))
        {
            snprintf(err, errlen, "bias %d of a weight: %lld x %lld of "
                     "type %d for %lld outputs", i,
                     (long long) biases[i].rows, (long long) biases[i].cols,
                     (int) biases[i].dtype, (long long) parts[i].rows);
            return -1;
        }
    }

    return 0;
}


void
vlm_cpu_weight_destroy(vlm_weight_t *w)
{
    free(w->data);
    free(w->bias);
    memset(w, 0, sizeof(vlm_weight_t));
}


/* the panel and the column in it of an output */

static int64_t
panel_place(const vlm_weight_t *w, int64_t i, int *column)
{
    int64_t  half;

    if (w->layout == VLM_WEIGHT_PLAIN) {
        *column = (int) (i % VLM_PANEL);
        return i / VLM_PANEL;
    }

    half = w->n / 2;
    *column = (int) (i % half % VLM_HALF_PANEL)
              + (i < half ? 0 : VLM_HALF_PANEL);

    return i % half / VLM_HALF_PANEL;
}


static int
pack_bias(vlm_weight_t *w, const vlm_host_matrix_t *biases,
    const vlm_host_matrix_t *parts, int nparts)
{
    int      i, any, column;
    size_t   size;
    int64_t  r, n, panel;

    any = 0;

    for (i = 0; biases != NULL && i < nparts; i++) {
        any |= biases[i].data != NULL;
    }

    if (!any) {
        return 0;
    }

    size = (size_t) vlm_weight_panels(w) * VLM_PANEL * sizeof(float);

    w->bias = vlm_cpu_alloc(size);
    if (w->bias == NULL) {
        return -1;
    }

    memset(w->bias, 0, size);
    n = 0;

    for (i = 0; i < nparts; i++) {

        for (r = 0; biases[i].data != NULL && r < parts[i].rows; r++) {
            panel = panel_place(w, n + r, &column);
            w->bias[panel * VLM_PANEL + column] = bias_at(&biases[i], r);
        }

        n += parts[i].rows;
    }

    return 0;
}


static float
bias_at(const vlm_host_matrix_t *bias, int64_t i)
{
    float        f;
    uint16_t     h;
    const char  *data = bias->data;

    if (bias->dtype == VLM_F32) {
        memcpy(&f, data + i * sizeof(float), sizeof(float));
        return f;
    }

    memcpy(&h, data + i * sizeof(uint16_t), sizeof(uint16_t));

    return bias->dtype == VLM_BF16 ? vlm_bf16_to_f32(h) : vlm_f16_to_f32(h);
}


static void
pack_panel(void *arg, int task, int worker)
{
    int           c;
    char         *to;
    size_t        line;
    int64_t       i, n;
    pack_t       *p = arg;
    const char   *row[VLM_PANEL];

    line = VLM_PANEL * p->esize;
    to = (char *) p->w->data + (size_t) task * (size_t) p->w->k * line;

    for (c = 0; c < VLM_PANEL; c++) {
        row[c] = panel_row(p, task, c);
    }

    for (i = 0; i < p->w->k; i += n) {
        n = p->w->k - i < PACK_DEPTH ? p->w->k - i : PACK_DEPTH;

        for (c = 0; c < VLM_PANEL; c++) {

            if (p->esize == sizeof(uint32_t)) {
                place_32((uint32_t *) to, row[c], c, n);

            } else {
                place_16((uint16_t *) to, row[c], c, n, p->w->dtype);
            }

            if (row[c] != NULL) {
                row[c] += (size_t) n * p->esize;
            }
        }

        to += (size_t) n * line;
    }
}


/* a column's source, NULL: beyond the last */

static const char *
panel_row(const pack_t *p, int64_t panel, int column)
{
    int      i;
    int64_t  r, half;

    half = p->w->n / 2;

    if (p->w->layout == VLM_WEIGHT_PLAIN) {
        r = panel * VLM_PANEL + column;

    } else {
        r = panel * VLM_HALF_PANEL + column % VLM_HALF_PANEL;

        if (r >= half) {
            return NULL;
        }

        if (column >= VLM_HALF_PANEL) {
            r += half;
        }
    }

    for (i = 0; i < p->nparts; i++) {

        if (r < p->parts[i].rows) {
            return (const char *) p->parts[i].data
                   + (size_t) r * (size_t) p->parts[i].cols * p->esize;
        }

        r -= p->parts[i].rows;
    }

    return NULL;
}


static void
place_16(uint16_t *to, const char *from, int column, int64_t depth,
    vlm_dtype_t dtype)
{
    int64_t   i;
    uint16_t  t[PACK_DEPTH] = { 0 };

    if (from != NULL) {
        memcpy(t, from, (size_t) depth * sizeof(uint16_t));
    }

    to += dtype == VLM_BF16 ? vlm_bf16_place(column) : column;

    for (i = 0; i < depth; i++) {
        to[i * VLM_PANEL] = t[i];
    }
}


static void
place_32(uint32_t *to, const char *from, int column, int64_t depth)
{
    int64_t   i;
    uint32_t  t[PACK_DEPTH] = { 0 };

    if (from != NULL) {
        memcpy(t, from, (size_t) depth * sizeof(uint32_t));
    }

    to += column;

    for (i = 0; i < depth; i++) {
        to[i * VLM_PANEL] = t[i];
    }
}
