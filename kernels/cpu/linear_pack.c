
/* weights into panels, see linear.h; a checkpoint's data may be unaligned */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/vec.h"


/* steps of a panel that are transposed at once */
#define PACK_DEPTH  64


typedef uint32_t  words_t __attribute__((vector_size(16)));
typedef uint16_t  halves_t __attribute__((vector_size(8)));

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
static void place(vlm_dtype_t dtype, char *to, uint32_t part[][PACK_DEPTH],
    int64_t depth);
static inline words_t panel_words(vlm_dtype_t dtype,
    uint32_t part[][PACK_DEPTH], int word, int64_t step);
static inline void transpose(const words_t *in, words_t *out);


int
vlm_cpu_weight_create(vlm_device_t *dev, vlm_weight_t *w,
    vlm_weight_layout_t layout, vlm_quant_t quant,
    const vlm_host_matrix_t *parts, const vlm_host_matrix_t *biases,
    int nparts, char *err, size_t errlen)
{
    int      i;
    pack_t   p;
    int64_t  npanels;

    memset(w, 0, sizeof(vlm_weight_t));

    if (quant == VLM_QUANT_FP8) {
        snprintf(err, errlen, "the CPU device has no fp8 weights");
        return -1;
    }

    if (check(layout, parts, biases, nparts, err, errlen) != 0) {
        return -1;
    }

    if (quant == VLM_QUANT_INT8 && parts[0].cols > VLM_I8_MAX_K) {
        snprintf(err, errlen, "int8 sums of %lld products may exceed 32 bits, "
                 "%d are safe", (long long) parts[0].cols, VLM_I8_MAX_K);
        return -1;
    }

    w->device = dev;
    w->dtype = quant == VLM_QUANT_INT8 ? VLM_I8 : parts[0].dtype;
    w->layout = layout;
    w->k = parts[0].cols;

    for (i = 0; i < nparts; i++) {
        w->n += parts[i].rows;
    }

    npanels = vlm_weight_panels(w);

    if ((size_t) w->k > SIZE_MAX / 1024 / (size_t) npanels) {
        snprintf(err, errlen, "a weight of %lld x %lld is too large",
                 (long long) w->n, (long long) w->k);
        return -1;
    }

    w->bytes = (size_t) npanels * vlm_panel_bytes(w);
    w->data = vlm_cpu_alloc(w->bytes);

    if (w->data == NULL || pack_bias(w, biases, parts, nparts) != 0
        || (w->dtype == VLM_I8 && vlm_cpu_pack_i8(w, parts, nparts) != 0))
    {
        snprintf(err, errlen, "no memory for a weight of %zu bytes", w->bytes);
        vlm_cpu_weight_destroy(w);
        return -1;
    }

    if (w->dtype == VLM_I8) {
        return 0;
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
    free(w->scale);
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
    size_t        line, size;
    int64_t       i, n;
    pack_t       *p = arg;
    uint32_t      part[VLM_PANEL][PACK_DEPTH];
    const char   *row[VLM_PANEL];

    line = VLM_PANEL * p->esize;
    to = (char *) p->w->data + (size_t) task * (size_t) p->w->k * line;

    for (c = 0; c < VLM_PANEL; c++) {
        row[c] = vlm_cpu_panel_row(p->w, p->parts, p->nparts, task, c);
    }

    memset(part, 0, sizeof(part));

    for (i = 0; i < p->w->k; i += n) {
        n = p->w->k - i < PACK_DEPTH ? p->w->k - i : PACK_DEPTH;
        size = (size_t) n * p->esize;

        for (c = 0; c < VLM_PANEL; c++) {

            if (row[c] != NULL) {
                memcpy(part[c], row[c], size);
                row[c] += size;
            }
        }

        place(p->w->dtype, to, part, n);
        to += (size_t) n * line;
    }
}


const char *
vlm_cpu_panel_row(const vlm_weight_t *w, const vlm_host_matrix_t *parts,
    int nparts, int64_t panel, int column)
{
    int      i;
    int64_t  r, half;

    half = w->n / 2;

    if (w->layout == VLM_WEIGHT_PLAIN) {
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

    for (i = 0; i < nparts; i++) {

        if (r < parts[i].rows) {
            return (const char *) parts[i].data
                   + (size_t) r * (size_t) parts[i].cols
                     * vlm_dtype_size(parts[i].dtype);
        }

        r -= parts[i].rows;
    }

    return NULL;
}


/* some steps of a panel, four at a time */

static void
place(vlm_dtype_t dtype, char *to, uint32_t part[][PACK_DEPTH], int64_t depth)
{
    int       c, step, words;
    size_t    line;
    words_t   in[4], out[4];
    int64_t   i;

    line = VLM_PANEL * vlm_dtype_size(dtype);
    words = (int) (line / sizeof(uint32_t));

    for (i = 0; i < depth; i += 4) {

        for (c = 0; c < words; c += 4) {

            for (step = 0; step < 4; step++) {
                in[step] = panel_words(dtype, part, c + step, i);
            }

            transpose(in, out);

            for (step = 0; step < 4 && i + step < depth; step++) {
                memcpy(to + (size_t) (i + step) * line
                       + (size_t) c * sizeof(uint32_t),
                       &out[step], sizeof(words_t));
            }
        }
    }
}


/*
 * A 32-bit word of a panel's line in four steps: a float32, or two columns of
 * a 16-bit type, which are i and i + 16 in bf16 and neighbours in f16.
 */

static inline words_t
panel_words(vlm_dtype_t dtype, uint32_t part[][PACK_DEPTH], int word,
    int64_t step)
{
    int              first, second;
    words_t          w;
    halves_t         a, b;

    if (dtype == VLM_F32) {
        memcpy(&w, &part[word][step], sizeof(words_t));
        return w;
    }

    first = dtype == VLM_BF16 ? word : 2 * word;
    second = dtype == VLM_BF16 ? word + 16 : 2 * word + 1;

    memcpy(&a, (const uint16_t *) part[first] + step, sizeof(halves_t));
    memcpy(&b, (const uint16_t *) part[second] + step, sizeof(halves_t));

    return (words_t) __builtin_shufflevector(a, b, 0, 4, 1, 5, 2, 6, 3, 7);
}


static inline void
transpose(const words_t *in, words_t *out)
{
    words_t  a, b, c, d;

    a = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
    b = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
    c = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
    d = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);

    out[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    out[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    out[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    out[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}
