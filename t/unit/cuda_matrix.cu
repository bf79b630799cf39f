
/* products of matrices by the shim's warps, and how they fail */

#include <string.h>

#include "kernels/emu/wmma.h"

extern "C" {
#include "t/unit/lib/tap.h"
}


namespace wmma = nvcuda::wmma;

typedef wmma::fragment<wmma::accumulator, 16, 16, 16, float>  sums_t;


#define LDM  24                         /* of all matrices */


alignas(32) static __nv_bfloat16  a[16 * LDM], b[16 * LDM];
alignas(32) static float          c[16 * LDM], d[16 * LDM];

static int    broken;                   /* which rule the kernel breaks */
static int    sums_by_columns;
static float  seen[64];


static int
run(vlm_emu_call_pt kernel)
{
    vlm_emu_launch_t  l;

    memset(&l, 0, sizeof(l));
    l.name = "test";
    l.grid.x = l.grid.y = l.grid.z = 1;
    l.block.x = 64;
    l.block.y = l.block.z = 1;
    l.allowed = VLM_EMU_SHARED;
    l.run = kernel;

    return vlm_emu_run(&l);
}


/* d = a . b + c by the second warp, twice */

template <typename A, typename B>
static void
product(void *arg)
{
    sums_t            sums;
    wmma::layout_t    layout;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, A>  fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, B>  fb;

    if (threadIdx.x < 32) {
        return;
    }

    layout = sums_by_columns ? wmma::mem_col_major : wmma::mem_row_major;

    wmma::load_matrix_sync(fa, a, LDM);
    wmma::load_matrix_sync(fb, b, LDM);
    wmma::load_matrix_sync(sums, c, LDM, layout);
    wmma::mma_sync(sums, fa, fb, sums);
    wmma::mma_sync(sums, fa, fb, sums);
    wmma::store_matrix_sync(d, sums, LDM, layout);
}


static __nv_bfloat16
small(int v)
{
    float          x = (float) v;
    uint32_t       bits;
    __nv_bfloat16  h;

    memcpy(&bits, &x, sizeof(bits));
    h.bits = (uint16_t) (bits >> 16);

    return h;
}


/* whole numbers, so that sums are exact in any order */

static void
check_product(vlm_emu_call_pt kernel, int a_rows, int b_rows,
    const char *name)
{
    int       i, j, k, good, na[16][16], nb[16][16], nc[16][16], sum;
    uint64_t  seed = 1;

    for (sums_by_columns = 0; sums_by_columns < 2; sums_by_columns++) {
        vlm_emu_seed((uint64_t) sums_by_columns);
        memset(d, 0, sizeof(d));

        for (i = 0; i < 16; i++) {
            for (j = 0; j < 16; j++) {
                na[i][j] = (int) (tap_random(&seed) % 201) - 100;
                nb[i][j] = (int) (tap_random(&seed) % 201) - 100;
                nc[i][j] = (int) (tap_random(&seed) % 2001) - 1000;
                a[a_rows ? i * LDM + j : j * LDM + i] = small(na[i][j]);
                b[b_rows ? i * LDM + j : j * LDM + i] = small(nb[i][j]);
                c[sums_by_columns ? j * LDM + i : i * LDM + j]
                    = (float) nc[i][j];
            }
        }

        tap_is(run(kernel), 0, "%s", name);
        good = 0;

        for (i = 0; i < 16; i++) {
            for (j = 0; j < 16; j++) {
                sum = nc[i][j];

                for (k = 0; k < 16; k++) {
                    sum += 2 * na[i][k] * nb[k][j];
                }

                good += d[sums_by_columns ? j * LDM + i : i * LDM + j]
                        == (float) sum;
            }
        }

        tap_is(good, 256, "all sums");

        for (i = 0; i < 16; i++) {
            for (j = 16; j < LDM; j++) {
                good += d[i * LDM + j] == 0;
            }
        }

        tap_is(good, 16 * LDM, "and nothing between the rows");
    }
}


static void
fresh(void *arg)
{
    int     e;
    sums_t  sums;

    seen[threadIdx.x] = 0;

    for (e = 0; e < (int) sums_t::num_elements; e++) {
        seen[threadIdx.x] += sums.x[e] != sums.x[e];
    }
}


/* a lane sees what others have stored, if it waits for them */

static void
through_memory(void *arg)
{
    static char  tag;
    int          i, lane;
    float       *s;
    sums_t       sums;

    lane = (int) threadIdx.x % 32;
    s = (float *) vlm_emu_shared(&tag, 2 * 16 * LDM * sizeof(float))
        + threadIdx.x / 32 * 16 * LDM;

    wmma::fill_fragment(sums, 3.0f);
    wmma::store_matrix_sync(s, sums, LDM, wmma::mem_row_major);

    if (!broken) {
        (void) vlm_emu_any(0, 1);
    }

    seen[threadIdx.x] = 0;

    for (i = 0; i < 16; i++) {
        seen[threadIdx.x] += s[lane / 2 * LDM + i];
    }
}


static void
wrong(void *arg)
{
    int     lane;
    sums_t  sums;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16,
                   wmma::row_major>  fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16,
                   wmma::row_major>  fb;

    lane = (int) threadIdx.x % 32;
    wmma::fill_fragment(sums, 0.0f);
    wmma::load_matrix_sync(fa, a, LDM);
    wmma::load_matrix_sync(fb, b, LDM);

    switch (broken) {

    case 0:
        if (lane != 7) {
            wmma::mma_sync(sums, fa, fb, sums);
        }

        break;

    case 1:
        if (lane < 16) {
            wmma::mma_sync(sums, fa, fb, sums);
        } else {
            wmma::mma_sync(sums, fa, fb, sums);
        }

        break;

    case 2:
        wmma::load_matrix_sync(fa, lane == 3 ? b : a, LDM);
        wmma::mma_sync(sums, fa, fb, sums);
        break;

    case 3:
        wmma::load_matrix_sync(fa, a + 8, LDM);
        (void) vlm_emu_any(0, 1);
        break;

    case 4:
        wmma::load_matrix_sync(fb, b, 20);
        (void) vlm_emu_any(0, 1);
        break;

    case 5:
        wmma::store_matrix_sync(d + 4, sums, LDM, wmma::mem_row_major);
        (void) vlm_emu_any(0, 1);
        break;

    default:
        wmma::store_matrix_sync(d, sums, 18, wmma::mem_row_major);
        (void) vlm_emu_any(0, 1);
        break;
    }
}


static void
test_wrong(void)
{
    uint64_t  seed;

    static const char  *const errors[] = {
        " threads wait at line",
        "lanes of a warp meet at line",
        "multiplies another matrix at line",
        "a matrix 16 bytes after a multiple of 32 at line",
        "a matrix with rows 20 elements apart at line",
        "a matrix 16 bytes after a multiple of 32 at line",
        "a matrix with rows 18 elements apart at line"
    };

    for (seed = 0; seed < 3; seed++) {
        vlm_emu_seed(seed);

        for (broken = 0; broken < 7; broken++) {
            tap_is(run(wrong), VLM_EMU_FAILURE, "rule %d", broken);
            tap_ok(strstr(vlm_emu_error(VLM_EMU_FAILURE), errors[broken])
                   != NULL, "%s", vlm_emu_error(VLM_EMU_FAILURE));
            vlm_emu_reset();
        }
    }
}


int
main(void)
{
    int       i, good;
    uint64_t  seed, late;

    check_product(product<wmma::row_major, wmma::row_major>, 1, 1,
                  "rows by rows");
    check_product(product<wmma::row_major, wmma::col_major>, 1, 0,
                  "rows by columns");
    check_product(product<wmma::col_major, wmma::row_major>, 0, 1,
                  "columns by rows");
    check_product(product<wmma::col_major, wmma::col_major>, 0, 0,
                  "columns by columns");

    tap_is(run(fresh), 0, "fragments");
    good = 0;

    for (i = 0; i < 64; i++) {
        good += seen[i] == 8;
    }

    tap_is(good, 64, "are full of NaNs at first");

    late = 0;

    for (seed = 0; seed < 20; seed++) {
        vlm_emu_seed(seed);

        broken = 0;
        (void) run(through_memory);

        for (i = 0, good = 0; i < 64; i++) {
            good += seen[i] == 48;
        }

        if (good != 64) {
            break;
        }

        broken = 1;
        (void) run(through_memory);

        for (i = 0, good = 0; i < 64; i++) {
            good += seen[i] == 48;
        }

        late += good != 64;
    }

    tap_is((long long) seed, 20, "sums that lanes wait for");
    tap_is((long long) late, 20, "and that they do not");

    test_wrong();

    return tap_done();
}
