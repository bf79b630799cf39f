
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer_parts.h"


static int add_token(vlm_added_t *token, vlm_vocab_t *vocab,
    const vlm_json_t *v, vlm_error_t *err);
static int compare(const void *one, const void *two);


int
vlm_added_load(vlm_added_list_t *list, vlm_vocab_t *vocab,
    const vlm_json_t *added, vlm_error_t *err)
{
    size_t             n;
    uint32_t           i, byte;
    const vlm_json_t  *v;

    n = vlm_json_count(added);

    list->tokens = calloc(n + 1, sizeof(vlm_added_t));
    if (list->tokens == NULL) {
        return vlm_fail(err, 500, NULL, "no memory for added tokens");
    }

    for (v = vlm_json_first(added); v != NULL; v = vlm_json_next(v)) {
        if (add_token(&list->tokens[list->ntokens++], vocab, v, err)
            == VLM_ERROR)
        {
            return VLM_ERROR;
        }
    }

    qsort(list->tokens, list->ntokens, sizeof(vlm_added_t), compare);

    for (i = 0, byte = 0; byte <= 256; byte++) {
        while (i < list->ntokens
               && (unsigned char) list->tokens[i].data[0] < byte)
        {
            i++;
        }

        list->first[byte] = i;
    }

    return VLM_OK;
}


static int
add_token(vlm_added_t *token, vlm_vocab_t *vocab, const vlm_json_t *v,
    vlm_error_t *err)
{
    int                  value, special;
    size_t               i, len;
    int64_t              id;
    const char          *content;
    static const char   *strange[] = { "lstrip", "rstrip", "single_word" };

    /* both were checked by vlm_vocab_load() */

    (void) vlm_json_string(vlm_json_get(v, "content"), &content, &len);
    (void) vlm_json_int(vlm_json_get(v, "id"), &id);

    for (i = 0; i < sizeof(strange) / sizeof(strange[0]); i++) {
        if (vlm_json_bool(vlm_json_get(v, strange[i]), &value) == VLM_OK
            && value != 0)
        {
            return vlm_fail(err, 500, NULL, "added token \"%.*s\": "
                            "%s is not supported",
                            len < 64 ? (int) len : 64, content, strange[i]);
        }
    }

    if (vocab->tokens[id].added
        || (vocab->tokens[id].data != NULL
            && vlm_vocab_find(vocab, content, len) != id))
    {
        return vlm_fail(err, 500, NULL, "added token \"%.*s\": "
                        "id %lld belongs to another token",
                        len < 64 ? (int) len : 64, content, (long long) id);
    }

    if (vlm_json_bool(vlm_json_get(v, "special"), &special) == VLM_ERROR) {
        special = 0;
    }

    if (vlm_json_bool(vlm_json_get(v, "normalized"), &token->normalized)
        == VLM_ERROR)
    {
        token->normalized = (special == 0);
    }

    token->data = vlm_vocab_add(vocab, (int32_t) id, content, len, special);
    token->len = (uint32_t) len;
    token->id = (int32_t) id;

    return VLM_OK;
}


static int
compare(const void *one, const void *two)
{
    const vlm_added_t  *a = one, *b = two;

    if (a->data[0] != b->data[0]) {
        return (unsigned char) a->data[0] < (unsigned char) b->data[0]
               ? -1 : 1;
    }

    if (a->len != b->len) {
        return a->len > b->len ? -1 : 1;
    }

    return (a->id > b->id) - (a->id < b->id);
}


const vlm_added_t *
vlm_added_match(const vlm_added_list_t *list, const char *text, size_t len,
    int normalized)
{
    uint32_t            i, end;
    const vlm_added_t  *token;

    i = list->first[(unsigned char) text[0]];
    end = list->first[(unsigned char) text[0] + 1];

    for (/* void */; i < end; i++) {
        token = &list->tokens[i];

        if (token->len <= len && token->normalized == normalized
            && memcmp(token->data, text, token->len) == 0)
        {
            return token;
        }
    }

    return NULL;
}


void
vlm_added_free(vlm_added_list_t *list)
{
    free(list->tokens);
}
