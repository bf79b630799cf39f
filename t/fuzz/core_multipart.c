
/* A body cut anywhere gives the events of the whole body. */

#include <stdlib.h>
#include <string.h>

#include "ngx_vlm_module/core/vlm_multipart.h"


typedef struct {
    uint8_t            *log;
    size_t              len;
    size_t              size;
} trace_t;


int LLVMFuzzerTestOneInput(const uint8_t *p, size_t size);
static void put(trace_t *t, const void *p, size_t n);
static void run(trace_t *t, const uint8_t *body, size_t len, unsigned seed);


/* the first two bytes seed the cuts, the rest is the body */

int
LLVMFuzzerTestOneInput(const uint8_t *p, size_t size)
{
    trace_t   whole, cut;
    unsigned  seed;

    if (size < 2) {
        return 0;
    }

    seed = p[0] + 256 * p[1];
    p += 2;
    size -= 2;

    memset(&whole, 0, sizeof(trace_t));
    memset(&cut, 0, sizeof(trace_t));

    run(&whole, p, size, 0);
    run(&cut, p, size, seed + 1);

    if (whole.len != cut.len
        || (whole.len != 0 && memcmp(whole.log, cut.log, whole.len) != 0))
    {
        abort();
    }

    free(whole.log);
    free(cut.log);

    return 0;
}


static void
put(trace_t *t, const void *p, size_t n)
{
    if (n > t->size - t->len) {
        t->size = 2 * (t->len + n);
        t->log = realloc(t->log, t->size);

        if (t->log == NULL) {
            abort();
        }
    }

    memcpy(t->log + t->len, p, n);
    t->len += n;
}


/* seed 0: in one piece */

static void
run(trace_t *t, const uint8_t *body, size_t len, unsigned seed)
{
    int              rc;
    size_t           n, used;
    uint8_t         *piece;
    const uint8_t   *pos;
    vlm_multipart_t  mp;

    vlm_multipart_init(&mp, "B", 1, 8);

    for (used = 0; /* void */ ; used += n) {
        n = len - used;

        if (seed != 0) {
            seed = seed * 1103515245u + 12345u;

            if (n > (seed >> 16) % 9) {
                n = (seed >> 16) % 9;
            }
        }

        piece = malloc(n + 1);
        memcpy(piece, body + used, n);
        pos = piece;

        do {
            rc = vlm_multipart_next(&mp, &pos, piece + n, used + n == len);

            switch (rc) {

            case VLM_MULTIPART_PART:
                put(t, "P", 1);
                put(t, mp.name, mp.name_len + 1);
                put(t, &mp.filename, sizeof(mp.filename));
                break;

            case VLM_MULTIPART_DATA:

                if (mp.len == 0) {
                    abort();
                }

                put(t, mp.data, mp.len);
                break;

            case VLM_MULTIPART_END:
                put(t, "E", 1);
                break;

            case VLM_MULTIPART_ERROR:
                put(t, mp.fail.message, strlen(mp.fail.message));
                break;
            }

        } while (rc != VLM_MULTIPART_AGAIN && rc != VLM_MULTIPART_ERROR
                 && rc != VLM_MULTIPART_DONE);

        free(piece);

        if (rc == VLM_MULTIPART_ERROR || used + n == len) {
            break;
        }
    }

    if (rc == VLM_MULTIPART_AGAIN) {
        abort();
    }
}
