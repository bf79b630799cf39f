
/* Header values and the writers: memory errors, and valid results. */

#include <stdlib.h>
#include <string.h>

#include "engine/channel/vlm_logprob.h"
#include "ngx_vlm_module/core/vlm_accept.h"
#include "ngx_vlm_module/core/vlm_answer.h"
#include "ngx_vlm_module/core/vlm_form.h"
#include "ngx_vlm_module/core/vlm_out.h"


int LLVMFuzzerTestOneInput(const uint8_t *p, size_t size);
static void logprobs(const uint8_t *p, size_t size);
static void check(int condition);


int
LLVMFuzzerTestOneInput(const uint8_t *p, size_t size)
{
    char         *copy, boundary[VLM_MULTIPART_BOUNDARY];
    size_t        i, n;
    vlm_out_t     o, measured;
    vlm_utf8_t    u;
    vlm_fail_t    fail;
    vlm_accept_t  a;

    copy = malloc(size + 1);
    memcpy(copy, p, size);

    memset(&a, 0, sizeof(vlm_accept_t));
    vlm_accept_add(&a, copy, size);
    check(vlm_accept_answer(&a, VLM_STREAM_UNSET) < VLM_ANSWER_TYPES);

    for (i = 0; i < VLM_ANSWER_TYPES; i++) {
        check(a.types[i].q <= 1000);
    }

    if (vlm_multipart_content_type(copy, size, boundary, &n, &fail) == 0) {
        check(n >= 1 && n <= VLM_MULTIPART_BOUNDARY);
    }

    check(vlm_fail_cut(copy, size, size / 2) <= size / 2);

    free(copy);

    vlm_out_init(&measured, NULL, 0);
    vlm_out_json(&measured, (const char *) p, size);
    check(measured.len >= size && measured.len <= 6 * size);

    copy = malloc(measured.len + 1);
    vlm_out_init(&o, copy, measured.len);
    vlm_out_json(&o, (const char *) p, size);
    check(o.len == measured.len);

    memset(&u, 0, sizeof(vlm_utf8_t));
    check(vlm_utf8_add(&u, (uint8_t *) copy, o.len) == 0);
    check(vlm_utf8_end(&u) == 0);

    for (i = 0; i < o.len; i++) {
        check((unsigned char) copy[i] >= 0x20);
    }

    free(copy);

    logprobs(p, size);

    return 0;
}


/* what is read is in its limits, and written again gives the same bytes */

static void
logprobs(const uint8_t *p, size_t size)
{
    size_t           n, pos, used;
    uint8_t         *copy, *again;
    uint32_t         i;
    vlm_out_t        o;
    vlm_logprobs_t   entry;

    copy = malloc(size + 1);
    again = malloc(size + 1);
    memcpy(copy, p, size);

    used = 0;

    for (pos = 0; pos < size; pos += n) {

        n = vlm_logprobs_read(copy + pos, size - pos, &entry);

        if (n == 0) {
            break;
        }

        check(n <= size - pos && entry.ntop <= VLM_MAX_TOP_LOGPROBS);

        for (i = 0; i < entry.ntop; i++) {
            check(entry.top[i].length <= VLM_MAX_TOKEN_BYTES
                  && entry.top[i].logprob <= 0
                  && entry.top[i].logprob >= VLM_MIN_LOGPROB);
        }

        used = vlm_logprobs_append(again, size, used, &entry);
    }

    check(used == pos && memcmp(again, copy, used) == 0);
    check((pos < size) == (vlm_logprobs_count(copy, size) == -1));

    vlm_out_init(&o, NULL, 0);
    vlm_json_finish(&o, VLM_FINISH_STOP, copy, size);
    check(o.len > 0);

    free(copy);
    free(again);
}


static void
check(int condition)
{
    if (!condition) {
        abort();
    }
}
