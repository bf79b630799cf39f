
/*
 * One safetensors file: whatever is accepted must lie inside the file, at a
 * place of its own, with the size that its shape needs.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/model/safetensors.h"


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int                      i;
    uint8_t                 *file;
    uint64_t                 sum;
    vlm_error_t              err;
    vlm_safetensors_t       *st;
    const vlm_st_tensor_t   *t;
    static const char       *names[] = { "a", "b", "model.norm.weight" };

    st = vlm_st_create(&err);

    /* the fuzzer cannot guess a length of 8 bytes well: it gives two */

    if (st == NULL || size < 2) {
        vlm_st_free(st);
        return 0;
    }

    file = calloc(1, size + 6);
    if (file == NULL) {
        vlm_st_free(st);
        return 0;
    }

    memcpy(file, data, 2);
    memcpy(file + 8, data + 2, size - 2);

    if (vlm_st_add(st, "f", file, size + 6, &err) == VLM_OK) {
        sum = 0;

        for (i = 0; i < 3; i++) {
            t = vlm_st_find(st, names[i]);

            if (t == NULL) {
                continue;
            }

            if (t->data < file + 8 || t->data + t->size > file + size + 6
                || (t->usable
                    && (uint64_t) t->count * vlm_dtype_size(t->dtype)
                       != t->size))
            {
                abort();
            }

            sum += t->size;
        }

        if (sum > vlm_st_bytes(st) || vlm_st_bytes(st) > size) {
            abort();
        }
    }

    vlm_st_free(st);
    free(file);

    return 0;
}
