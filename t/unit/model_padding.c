
/* steps of few sizes: which, and what is in them */

#include <string.h>

#include "engine/model/padding.h"
#include "t/unit/lib/tap.h"


#define ROWS    50
#define AXES    3
#define WIDTH   40                      /* blocks of a sequence, given */
#define BLOCK   16
#define SPARE   9999


static int32_t  row_start[ROWS + 1], context[ROWS], ids[ROWS];
static int32_t  out_rows[ROWS], blocks[ROWS * WIDTH], positions[AXES * ROWS];


static vlm_decode_batch_t
batch_of(int32_t n, int32_t longest)
{
    int32_t             i, axis;
    vlm_decode_batch_t  batch;

    memset(&batch, 0, sizeof(batch));

    for (i = 0; i < n; i++) {
        row_start[i] = i;
        out_rows[i] = i;
        context[i] = i == n / 2 ? longest : longest / 2;
        ids[i] = 100 + i;

        for (axis = 0; axis < AXES; axis++) {
            positions[axis * n + i] = 1000 * axis + i;
        }
    }

    row_start[n] = n;

    for (i = 0; i < n * WIDTH; i++) {
        blocks[i] = i;
    }

    batch.step.nrows = n;
    batch.step.nseqs = n;
    batch.step.row_start = row_start;
    batch.step.context = context;
    batch.step.blocks = blocks;
    batch.step.max_blocks = WIDTH;
    batch.step.ids = ids;
    batch.step.positions = positions;
    batch.out_rows = out_rows;
    batch.nout = n;

    return batch;
}


/* the number of things that are not as they must be */

static int
wrong(const vlm_step_host_t *step, int32_t n)
{
    int      bad;
    int32_t  i, k, axis, used, rows, expected;

    bad = 0;
    rows = step->nrows;

    for (i = 0; i < rows; i++) {
        bad += step->row_start[i] != i;
        bad += step->context[i] != (i < n ? context[i] : 0);
        bad += step->ids[i] != (i < n ? ids[i] : 0);

        for (axis = 0; axis < AXES; axis++) {
            bad += step->positions[axis * rows + i]
                   != (i < n ? positions[axis * n + i] : 0);
        }

        used = i < n ? context[i] / BLOCK + 1 : 0;

        for (k = 0; k < step->max_blocks; k++) {
            expected = k < used ? blocks[i * WIDTH + k] : SPARE;
            bad += step->blocks[i * step->max_blocks + k] != expected;
        }
    }

    return bad + (step->row_start[rows] != rows);
}


int
main(void)
{
    size_t              i;
    vlm_error_t         err;
    vlm_padding_t       p;
    vlm_decode_batch_t  batch, to;

    static const int32_t  sizes[][4] = {
        /* rows, context; rows, blocks */
        { 1, 0, 1, 8 }, { 1, 127, 1, 8 }, { 2, 128, 2, 12 },
        { 3, 255, 4, 16 }, { 4, 256, 4, 24 }, { 5, 511, 8, 32 },
        { 8, 512, 8, 48 }, { 9, 3, 12, 8 }, { 12, 3, 12, 8 },
        { 13, 3, 16, 8 }, { 17, 3, 24, 8 }, { 25, 3, 32, 8 },
        { 33, 3, 48, 8 }, { 48, 3, 48, 8 }, { 49, 3, 50, 8 },
        { 50, 600, 50, 48 }
    };

    memset(&p, 0, sizeof(p));
    tap_is(vlm_padding_init(&p, ROWS, AXES, SPARE, &err), VLM_OK, "made");

    for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        batch = batch_of(sizes[i][0], sizes[i][1]);

        if (vlm_padding_fill(&p, &batch, BLOCK, &to, &err) == VLM_ERROR) {
            tap_ok(0, "%s", err.message);
            continue;
        }

        tap_ok(to.step.nrows == sizes[i][2] && to.step.nseqs == sizes[i][2]
               && to.nout == sizes[i][2]
               && to.step.max_blocks == sizes[i][3],
               "%d rows, context %d: %d rows, %d blocks", sizes[i][0],
               sizes[i][1], to.step.nrows, to.step.max_blocks);
        tap_is(wrong(&to.step, sizes[i][0]), 0, "lists");
    }

    batch = batch_of(4, 0);
    tap_ok(vlm_padding_fits(&p, &batch), "a step of answers");

    batch.nout = 3;
    tap_ok(!vlm_padding_fits(&p, &batch), "a row that is not wanted");

    batch = batch_of(4, 0);
    batch.ninject = 1;
    tap_ok(!vlm_padding_fits(&p, &batch), "embeddings");

    batch = batch_of(4, 0);
    batch.step.nseqs = 3;
    tap_ok(!vlm_padding_fits(&p, &batch), "two rows of a sequence");

    batch = batch_of(4, 0);
    batch.step.nrows = batch.step.nseqs = batch.nout = ROWS + 1;
    tap_ok(!vlm_padding_fits(&p, &batch), "too many");

    vlm_padding_free(&p);

    return tap_done();
}
