
#include <string.h>

#include "engine/text/tokenizer_parts.h"


#define MAX_PATTERN  8192

#define GPT2_PATTERN                                                        \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"     \
    "|\\s+(?!\\S)|\\s+"


static int load_step(vlm_pretok_t *pretok, const vlm_json_t *v,
    int *byte_level, vlm_error_t *err);
static int load_split(vlm_pretok_t *pretok, const vlm_json_t *v,
    vlm_error_t *err);
static int load_digits(vlm_pretok_t *pretok, const vlm_json_t *v,
    vlm_error_t *err);
static int load_byte_level(vlm_pretok_t *pretok, const vlm_json_t *v,
    vlm_error_t *err);
static int add_split(vlm_pretok_t *pretok, const char *regex, size_t len,
    vlm_error_t *err);
static int split_by(vlm_splitter_t *s, unsigned step, const char *text,
    size_t len);
static int next_match(vlm_splitter_t *s, pcre2_code *code,
    const char *text, size_t len, size_t pos);
static size_t char_len(const char *p, size_t len);


int
vlm_pretok_load(vlm_pretok_t *pretok, const vlm_json_t *v, vlm_error_t *err)
{
    int                byte_level;
    const vlm_json_t  *step;

    byte_level = 0;

    if (vlm_json_is(vlm_json_get(v, "type"), "Sequence")) {
        step = vlm_json_first(vlm_json_get(v, "pretokenizers"));

        for (/* void */; step != NULL; step = vlm_json_next(step)) {
            if (load_step(pretok, step, &byte_level, err) == VLM_ERROR) {
                return VLM_ERROR;
            }
        }

    } else if (vlm_json_type(v) != VLM_JSON_NULL
               && load_step(pretok, v, &byte_level, err) == VLM_ERROR)
    {
        return VLM_ERROR;
    }

    if (!byte_level) {
        return vlm_fail(err, 500, NULL, "pre_tokenizer: there is no "
                        "ByteLevel: only byte-level BPE is supported");
    }

    return VLM_OK;
}


static int
load_step(vlm_pretok_t *pretok, const vlm_json_t *v, int *byte_level,
    vlm_error_t *err)
{
    size_t             len;
    const char        *name;
    const vlm_json_t  *type;

    type = vlm_json_get(v, "type");

    if (*byte_level) {
        return vlm_fail(err, 500, NULL, "pre_tokenizer: a step behind "
                        "ByteLevel is not supported");
    }

    if (vlm_json_is(type, "Split")) {
        return load_split(pretok, v, err);
    }

    if (vlm_json_is(type, "Digits")) {
        return load_digits(pretok, v, err);
    }

    if (vlm_json_is(type, "ByteLevel")) {
        *byte_level = 1;
        return load_byte_level(pretok, v, err);
    }

    if (vlm_json_string(type, &name, &len) == VLM_ERROR) {
        return vlm_fail(err, 500, NULL, "pre_tokenizer has no type");
    }

    return vlm_fail(err, 500, NULL, "pre_tokenizer \"%.*s\" is not "
                    "supported", len < 64 ? (int) len : 64, name);
}


static int
load_split(vlm_pretok_t *pretok, const vlm_json_t *v, vlm_error_t *err)
{
    int          invert;
    size_t       len;
    const char  *regex;

    if (vlm_json_bool(vlm_json_get(v, "invert"), &invert) == VLM_OK
        && invert != 0)
    {
        return vlm_fail(err, 500, NULL, "pre_tokenizer Split: invert is not "
                        "supported");
    }

    if (!vlm_json_is(vlm_json_get(v, "behavior"), "Isolated")) {
        return vlm_fail(err, 500, NULL, "pre_tokenizer Split: only the "
                        "behavior Isolated is supported");
    }

    if (vlm_json_string(vlm_json_get(vlm_json_get(v, "pattern"), "Regex"),
                        &regex, &len)
        == VLM_ERROR)
    {
        return vlm_fail(err, 500, NULL, "pre_tokenizer Split: only a "
                        "pattern of type Regex is supported");
    }

    return add_split(pretok, regex, len, err);
}


static int
load_digits(vlm_pretok_t *pretok, const vlm_json_t *v, vlm_error_t *err)
{
    int          individual;
    const char  *regex;

    if (vlm_json_bool(vlm_json_get(v, "individual_digits"), &individual)
        == VLM_ERROR)
    {
        individual = 0;
    }

    regex = individual != 0 ? "\\p{N}" : "\\p{N}+";

    return add_split(pretok, regex, strlen(regex), err);
}


static int
load_byte_level(vlm_pretok_t *pretok, const vlm_json_t *v, vlm_error_t *err)
{
    int  value;

    if (vlm_json_bool(vlm_json_get(v, "add_prefix_space"), &value)
        == VLM_ERROR || value != 0)
    {
        return vlm_fail(err, 500, NULL, "pre_tokenizer ByteLevel: "
                        "add_prefix_space is not supported");
    }

    if (vlm_json_bool(vlm_json_get(v, "use_regex"), &value) == VLM_OK
        && value == 0)
    {
        return VLM_OK;
    }

    return add_split(pretok, GPT2_PATTERN, sizeof(GPT2_PATTERN) - 1, err);
}


static int
compile(pcre2_code **code, const vlm_buf_t *regex, vlm_error_t *err)
{
    int                     error;
    size_t                  pos;
    char                    text[128];
    pcre2_compile_context  *context;

    context = pcre2_compile_context_create(NULL);
    if (context == NULL) {
        return vlm_fail(err, 500, NULL, "no memory");
    }

    pcre2_set_max_pattern_length(context, MAX_PATTERN);

    *code = pcre2_compile((PCRE2_SPTR) regex->data, regex->len,
                          PCRE2_UTF|PCRE2_UCP|PCRE2_NEVER_BACKSLASH_C,
                          &error, &pos, context);

    pcre2_compile_context_free(context);

    if (*code == NULL) {
        pcre2_get_error_message(error, (PCRE2_UCHAR *) text, sizeof(text));

        return vlm_fail(err, 500, NULL, "pre_tokenizer: regular expression: "
                        "%s at %zu in \"%.128s\"", text, pos, regex->data);
    }

    /* without it matching is slower, and the same */
    (void) pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE);

    return VLM_OK;
}


static int
add_split(vlm_pretok_t *pretok, const char *regex, size_t len,
    vlm_error_t *err)
{
    int        rc;
    vlm_buf_t  out;

    if (pretok->nsplits == VLM_MAX_SPLITS) {
        return vlm_fail(err, 500, NULL, "pre_tokenizer: more than %d splits",
                        VLM_MAX_SPLITS);
    }

    memset(&out, 0, sizeof(out));

    rc = vlm_regex_translate(regex, len, &out, err);

    if (rc == VLM_ERROR) {
        vlm_fail_in(err, "pre_tokenizer: regular expression: ");

    } else if (out.len == 0) {
        rc = vlm_fail(err, 500, NULL, "pre_tokenizer: regular expression: "
                      "is empty");

    } else {
        rc = compile(&pretok->splits[pretok->nsplits], &out, err);
        pretok->nsplits += (rc == VLM_OK);
    }

    vlm_buf_free(&out);

    return rc;
}


void
vlm_pretok_free(vlm_pretok_t *pretok)
{
    unsigned  i;

    for (i = 0; i < pretok->nsplits; i++) {
        pcre2_code_free(pretok->splits[i]);
    }
}


int
vlm_splitter_init(vlm_splitter_t *s)
{
    memset(s, 0, sizeof(*s));

    s->match = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);

    return s->match != NULL && s->context != NULL ? VLM_OK : VLM_ERROR;
}


void
vlm_splitter_free(vlm_splitter_t *s)
{
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->context);
}


/*
 * Steps backwards are at most a few for each byte of a run with the patterns
 * in use; a pattern that takes far more ends with an error, not in a hang.
 */

int
vlm_split(vlm_splitter_t *s, const char *text, size_t len)
{
    uint32_t  limit;

    limit = len < UINT32_MAX / 16 ? (uint32_t) len * 8 : UINT32_MAX / 2;

    pcre2_set_match_limit(s->context, limit + 100000);

    return split_by(s, 0, text, len);
}


/* matches and what lies between them become pieces */

static int
split_by(vlm_splitter_t *s, unsigned step, const char *text, size_t len)
{
    int                rc;
    size_t             pos, done, begin, end;
    const PCRE2_SIZE  *ov;

    if (len == 0) {
        return VLM_OK;
    }

    if (step == s->pretok->nsplits) {
        return s->piece(s->data, text, len);
    }

    for (pos = 0, done = 0; pos < len; /* void */) {

        rc = next_match(s, s->pretok->splits[step], text, len, pos);

        if (rc == PCRE2_ERROR_NOMATCH) {
            break;
        }

        if (rc < 0) {
            return vlm_fail(s->err, 500, NULL, "pre_tokenizer: regular "
                            "expression: error %d of PCRE2", rc);
        }

        ov = pcre2_get_ovector_pointer(s->match);
        begin = ov[0];
        end = ov[1];

        if (split_by(s, step + 1, text + done, begin - done) == VLM_ERROR
            || split_by(s, step + 1, text + begin, end - begin) == VLM_ERROR)
        {
            return VLM_ERROR;
        }

        done = end;
        pos = end != begin ? end : end + char_len(text + end, len - end);
    }

    return split_by(s, step + 1, text + done, len - done);
}


static int
next_match(vlm_splitter_t *s, pcre2_code *code, const char *text,
    size_t len, size_t pos)
{
    int  rc;

    rc = pcre2_match(code, (PCRE2_SPTR) text, len, pos, PCRE2_NO_UTF_CHECK,
                     s->match, s->context);

    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        rc = pcre2_match(code, (PCRE2_SPTR) text, len, pos,
                         PCRE2_NO_UTF_CHECK|PCRE2_NO_JIT, s->match,
                         s->context);
    }

    return rc;
}


static size_t
char_len(const char *p, size_t len)
{
    size_t  n;

    for (n = 1; n < len && (p[n] & 0xc0) == 0x80; n++) {
        /* void */
    }

    return n;
}
