
/* Header values and the writers: memory errors, and valid results. */

#include <stdlib.h>
#include <string.h>

#include "ngx_vlm_module/core/vlm_accept.h"
#include "ngx_vlm_module/core/vlm_form.h"
#include "ngx_vlm_module/core/vlm_out.h"


int LLVMFuzzerTestOneInput(const uint8_t *p, size_t size);
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

    return 0;
}


static void
check(int condition)
{
    if (!condition) {
        abort();
    }
}
