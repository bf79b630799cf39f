
/*
 * A value as Redis may give it: what is accepted must lie inside the blob.
 * The checksum, which no fuzzer can guess, is put right, or left as it is.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/cache/value.h"


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);


static void
check_section(const vlm_section_t *s, const uint8_t *blob, size_t size)
{
    uint64_t        n;
    const uint8_t  *data = s->data;

    n = (uint64_t) s->rows * s->cols * vlm_dtype_size(s->dtype);

    if (n == 0 || data < blob + 64 || n > size
        || data > blob + size - n
        || memchr(s->name, '\0', sizeof(s->name)) == NULL)
    {
        abort();
    }
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t              *blob;
    uint32_t              i, crc;
    uint64_t              n;
    vlm_error_t           err;
    vlm_value_t           v;
    vlm_image_plan_t      plan;
    const vlm_section_t  *embedding, *scales;

    blob = malloc(size + 1);
    if (blob == NULL || size == 0) {
        free(blob);
        return 0;
    }

    /* the last byte says what is put right */

    size--;
    memcpy(blob, data, size);

    if (size >= 64 && (data[size] & 1)) {
        n = size;
        memcpy(blob + 16, &n, 8);
        memset(blob + 60, 0, 4);
        crc = vlm_crc32c(0, blob, size);
        memcpy(blob + 60, &crc, 4);
    }

    if (vlm_value_read(blob, size, &v, &err) == VLM_OK) {

        for (i = 0; i < v.nsections; i++) {
            check_section(&v.sections[i], blob, size);
        }

        if (v.nsections > 0) {
            memset(&plan, 0, sizeof(plan));
            plan.ntokens = (int32_t) v.sections[0].rows;
            plan.grid_h = (int32_t) v.sections[0].grid_h;
            plan.grid_w = (int32_t) v.sections[0].grid_w;

            (void) vlm_value_embedding(&v, &v.key, &plan,
                                       v.sections[0].dtype,
                                       (int32_t) v.sections[0].cols,
                                       &embedding, &scales, &err);
        }

        /* it is written as it was read */

        if (vlm_value_size(&v) != size) {
            abort();
        }
    }

    free(blob);

    return 0;
}
