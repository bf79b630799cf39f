
/* A tokenizer.json of any bytes; one that is accepted encodes a text. */

#include <string.h>

#include "engine/text/tokenizer_parts.h"


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t              i;
    vlm_buf_t           text;
    vlm_ids_t           ids;
    vlm_error_t         err;
    vlm_json_doc_t     *doc;
    vlm_tokenizer_t    *tok;
    static const char   sample[] = "The 12 cats' \xc3\xa9t\xc3\xa9\n <x> "
                                   "<|im_end|> e\xcc\x81  !!\xf0\x9f\x98\x80";

    doc = vlm_json_parse((const char *) data, size, "fuzz", &err);
    if (doc == NULL) {
        return 0;
    }

    tok = vlm_tokenizer_from_json(doc, &err);
    vlm_json_free(doc);

    if (tok == NULL) {
        return 0;
    }

    memset(&ids, 0, sizeof(ids));
    memset(&text, 0, sizeof(text));

    if (vlm_tokenizer_encode(tok, sample, sizeof(sample) - 1, 0, &ids, &err)
        == VLM_OK)
    {
        for (i = 0; i < ids.len; i++) {
            if (ids.data[i] < 0 || ids.data[i] >= vlm_tokenizer_size(tok)) {
                __builtin_trap();
            }
        }
    }

    (void) vlm_tokenizer_encode(tok, sample, sizeof(sample) - 1, 1, &ids,
                                &err);
    (void) vlm_tokenizer_decode(tok, ids.data, ids.len, 0, &text, &err);

    if (vlm_utf8_valid(text.data, text.len) != text.len) {
        __builtin_trap();
    }

    vlm_ids_free(&ids);
    vlm_buf_free(&text);
    vlm_tokenizer_free(tok);

    return 0;
}
