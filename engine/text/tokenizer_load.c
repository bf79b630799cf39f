
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer_parts.h"


static int load(vlm_tokenizer_t *tok, const vlm_json_t *root,
    vlm_error_t *err);
static int load_model(vlm_tokenizer_t *tok, const vlm_json_t *model,
    const vlm_json_t *added, vlm_error_t *err);
static int load_normalizer(vlm_tokenizer_t *tok, const vlm_json_t *v,
    vlm_error_t *err);
static int check_decoder(const vlm_json_t *v, vlm_error_t *err);
static int unsupported(const char *part, const vlm_json_t *v,
    vlm_error_t *err);


vlm_tokenizer_t *
vlm_tokenizer_load(const char *dir, vlm_error_t *err)
{
    int               n;
    char              path[4096];
    vlm_json_doc_t   *doc;
    vlm_tokenizer_t  *tok;

    n = snprintf(path, sizeof(path), "%s/tokenizer.json", dir);

    if (n < 0 || (size_t) n >= sizeof(path)) {
        vlm_fail(err, 500, NULL, "the name of the directory is too long");
        return NULL;
    }

    doc = vlm_json_load(path, err);
    if (doc == NULL) {
        return NULL;
    }

    tok = vlm_tokenizer_from_json(doc, err);
    if (tok == NULL) {
        vlm_fail_in(err, "%.200s: ", path);
    }

    vlm_json_free(doc);

    return tok;
}


vlm_tokenizer_t *
vlm_tokenizer_from_json(const vlm_json_doc_t *doc, vlm_error_t *err)
{
    vlm_tokenizer_t  *tok;

    tok = calloc(1, sizeof(*tok));
    if (tok == NULL) {
        vlm_fail(err, 500, NULL, "no memory");
        return NULL;
    }

    if (load(tok, vlm_json_root(doc), err) == VLM_ERROR) {
        vlm_tokenizer_free(tok);
        return NULL;
    }

    return tok;
}


void
vlm_tokenizer_free(vlm_tokenizer_t *tok)
{
    if (tok == NULL) {
        return;
    }

    vlm_vocab_free(&tok->vocab);
    vlm_merges_free(&tok->merges);
    vlm_pretok_free(&tok->pretok);
    vlm_added_free(&tok->added);
    free(tok);
}


/*
 * The post-processor is not looked at: all that those of byte-level models
 * do is to put a token in front, which is the chat format's business.
 */

static int
load(vlm_tokenizer_t *tok, const vlm_json_t *root, vlm_error_t *err)
{
    const vlm_json_t  *added;

    if (vlm_json_type(root) != VLM_JSON_OBJECT) {
        return vlm_fail(err, 500, NULL, "is not an object");
    }

    added = vlm_json_get(root, "added_tokens");

    if (vlm_json_type(added) != VLM_JSON_ARRAY
        && vlm_json_type(added) != VLM_JSON_NULL)
    {
        return vlm_fail(err, 500, NULL, "added_tokens is not an array");
    }

    if (load_normalizer(tok, vlm_json_get(root, "normalizer"), err)
           == VLM_ERROR
        || vlm_pretok_load(&tok->pretok,
                           vlm_json_get(root, "pre_tokenizer"), err)
           == VLM_ERROR
        || check_decoder(vlm_json_get(root, "decoder"), err) == VLM_ERROR
        || load_model(tok, vlm_json_get(root, "model"), added, err)
           == VLM_ERROR
        || vlm_added_load(&tok->added, &tok->vocab, added, err) == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    vlm_merges_protect(&tok->merges, &tok->vocab);

    return VLM_OK;
}


static int
load_model(vlm_tokenizer_t *tok, const vlm_json_t *model,
    const vlm_json_t *added, vlm_error_t *err)
{
    int                value;
    size_t             i, len;
    double             dropout;
    const char        *text;
    static const char *affixes[] = { "continuing_subword_prefix",
                                     "end_of_word_suffix" };

    if (vlm_json_type(model) != VLM_JSON_OBJECT) {
        return vlm_fail(err, 500, NULL, "model is not an object");
    }

    if (vlm_json_get(model, "type") != NULL
        && !vlm_json_is(vlm_json_get(model, "type"), "BPE"))
    {
        return unsupported("model", model, err);
    }

    for (i = 0; i < sizeof(affixes) / sizeof(affixes[0]); i++) {
        if (vlm_json_string(vlm_json_get(model, affixes[i]), &text, &len)
            == VLM_OK && len != 0)
        {
            return vlm_fail(err, 500, NULL, "model.%s is not supported",
                            affixes[i]);
        }
    }

    if (vlm_json_double(vlm_json_get(model, "dropout"), &dropout) == VLM_OK
        && dropout != 0)
    {
        return vlm_fail(err, 500, NULL, "model.dropout is not supported");
    }

    if (vlm_json_bool(vlm_json_get(model, "byte_fallback"), &value) == VLM_OK
        && value != 0)
    {
        return vlm_fail(err, 500, NULL,
                        "model.byte_fallback is not supported");
    }

    if (vlm_json_bool(vlm_json_get(model, "ignore_merges"), &value)
        == VLM_OK)
    {
        tok->ignore_merges = value;
    }

    if (vlm_vocab_load(&tok->vocab, vlm_json_get(model, "vocab"), added, err)
        == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    return vlm_merges_load(&tok->merges, &tok->vocab,
                           vlm_json_get(model, "merges"), err);
}


static int
load_normalizer(vlm_tokenizer_t *tok, const vlm_json_t *v, vlm_error_t *err)
{
    const vlm_json_t  *type, *step;

    if (vlm_json_type(v) == VLM_JSON_NULL) {
        return VLM_OK;
    }

    type = vlm_json_get(v, "type");

    if (vlm_json_is(type, "NFC")) {
        tok->nfc = 1;
        return VLM_OK;
    }

    if (!vlm_json_is(type, "Sequence")) {
        return unsupported("normalizer", v, err);
    }

    step = vlm_json_first(vlm_json_get(v, "normalizers"));

    for (/* void */; step != NULL; step = vlm_json_next(step)) {

        if (!vlm_json_is(vlm_json_get(step, "type"), "NFC")) {
            return unsupported("normalizer", step, err);
        }

        tok->nfc = 1;
    }

    return VLM_OK;
}


static int
check_decoder(const vlm_json_t *v, vlm_error_t *err)
{
    const vlm_json_t  *list;

    if (vlm_json_is(vlm_json_get(v, "type"), "Sequence")) {
        list = vlm_json_get(v, "decoders");
        v = vlm_json_count(list) == 1 ? vlm_json_first(list) : v;
    }

    if (!vlm_json_is(vlm_json_get(v, "type"), "ByteLevel")) {
        return unsupported("decoder", v, err);
    }

    return VLM_OK;
}


static int
unsupported(const char *part, const vlm_json_t *v, vlm_error_t *err)
{
    size_t       len;
    const char  *name;

    if (vlm_json_string(vlm_json_get(v, "type"), &name, &len) == VLM_ERROR) {
        return vlm_fail(err, 500, NULL, "%s has no type", part);
    }

    return vlm_fail(err, 500, NULL, "%s \"%.*s\" is not supported", part,
                    len < 64 ? (int) len : 64, name);
}
