
/* Text to ids and back is the normal form of the text. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/text/tokenizer_parts.h"


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static vlm_tokenizer_t  *tok;


static void
check(const char *text, size_t len, int special)
{
    ssize_t             n;
    vlm_buf_t           back;
    vlm_ids_t           ids;
    vlm_error_t         err;
    utf8proc_uint8_t   *expected;

    memset(&ids, 0, sizeof(ids));
    memset(&back, 0, sizeof(back));

    if (vlm_tokenizer_encode(tok, text, len, special, &ids, &err)
           == VLM_ERROR
        || vlm_tokenizer_decode(tok, ids.data, ids.len, 0, &back, &err)
           == VLM_ERROR)
    {
        __builtin_trap();
    }

    /* an added token in the text keeps its neighbours from composing */

    if (!special) {
        expected = NULL;
        n = utf8proc_map((const utf8proc_uint8_t *) text, (ssize_t) len,
                         &expected, UTF8PROC_COMPOSE|UTF8PROC_STABLE);

        if (n < 0 || back.len != (size_t) n
            || (n > 0 && memcmp(back.data, expected, (size_t) n) != 0))
        {
            __builtin_trap();
        }

        free(expected);
    }

    vlm_ids_free(&ids);
    vlm_buf_free(&back);
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    vlm_ids_t    ids;
    const char  *text;
    vlm_error_t  err;

    if (tok == NULL) {
        tok = vlm_tokenizer_load("models/demo", &err);

        if (tok == NULL) {
            fprintf(stderr, "%s (start in the root)\n", err.message);
            exit(1);
        }
    }

    text = (const char *) data;

    if (vlm_utf8_valid(text, size) == size) {
        check(text, size, 0);
        check(text, size, 1);
        return 0;
    }

    memset(&ids, 0, sizeof(ids));

    if (vlm_tokenizer_encode(tok, text, size, 0, &ids, &err) != VLM_ERROR
        || ids.len != 0)
    {
        __builtin_trap();
    }

    return 0;
}
