
/* tokenizer.json: what is supported, and exact errors for what is not. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer_parts.h"
#include "t/unit/lib/tap.h"


typedef struct {
    const char     *normalizer;
    const char     *pre_tokenizer;
    const char     *decoder;
    const char     *model;              /* further members, ", ..." */
    const char     *vocab;              /* further members, ", ..." */
    const char     *merges;
    const char     *added;
} file_t;

#define BYTE_LEVEL  "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "  \
                    "\"use_regex\": false}"

static const file_t  plain = {
    "null", BYTE_LEVEL, "{\"type\": \"ByteLevel\"}", "", "", "", ""
};


/* a vocabulary of the 256 bytes, ids as the bytes */

static void
write_bytes(vlm_buf_t *buf)
{
    char      symbol[3];
    unsigned  byte, c, other;

    other = 256;

    for (byte = 0; byte < 256; byte++) {
        c = byte;

        if (byte < 33 || (byte > 126 && byte < 161) || byte == 173) {
            c = other++;
        }

        symbol[0] = (char) (c < 0x80 ? c : (0xc0 | c >> 6));
        symbol[1] = (char) (0x80 | (c & 0x3f));
        symbol[2] = '\0';

        if (byte > 0) {
            vlm_buf_append(buf, ",", 1);
        }

        vlm_buf_json_string(buf, symbol, c < 0x80 ? 1 : 2);
        vlm_buf_printf(buf, ":%u", byte);
    }
}


static vlm_tokenizer_t *
load(const file_t *file, vlm_error_t *err)
{
    vlm_buf_t         buf;
    vlm_json_doc_t   *doc;
    vlm_tokenizer_t  *tok;

    memset(&buf, 0, sizeof(buf));

    vlm_buf_printf(&buf, "{\"normalizer\": %s, \"pre_tokenizer\": %s, "
                   "\"decoder\": %s, \"added_tokens\": [%s], \"model\": {"
                   "\"merges\": [%s]%s, \"vocab\": {", file->normalizer,
                   file->pre_tokenizer, file->decoder, file->added,
                   file->merges, file->model);
    write_bytes(&buf);
    vlm_buf_printf(&buf, "%s}}}", file->vocab);

    err->message[0] = '\0';
    tok = NULL;
    doc = vlm_json_parse(buf.data, buf.len, "test", err);

    if (doc != NULL) {
        tok = vlm_tokenizer_from_json(doc, err);
    }

    vlm_json_free(doc);
    vlm_buf_free(&buf);

    return tok;
}


static void
refused(const file_t *file, const char *message)
{
    vlm_error_t       err;
    vlm_tokenizer_t  *tok;

    tok = load(file, &err);

    tap_ok(tok == NULL, "refused: %.60s", message);
    tap_str(err.message, message, "its message");

    vlm_tokenizer_free(tok);
}


/* ids as text, "-" if the file or the text is refused */

static void
encoded(const file_t *file, const char *text, int special,
    const char *expected)
{
    size_t            i;
    vlm_buf_t         buf;
    vlm_ids_t         ids;
    vlm_error_t       err;
    vlm_tokenizer_t  *tok;

    memset(&buf, 0, sizeof(buf));
    memset(&ids, 0, sizeof(ids));

    tok = load(file, &err);

    if (tok == NULL
        || vlm_tokenizer_encode(tok, text, strlen(text), special, &ids, &err)
           == VLM_ERROR)
    {
        vlm_buf_printf(&buf, "- %s", err.message);
    }

    for (i = 0; i < ids.len; i++) {
        vlm_buf_printf(&buf, i > 0 ? " %d" : "%d", ids.data[i]);
    }

    tap_str(buf.data, expected, "ids of \"%s\"", text);

    vlm_buf_free(&buf);
    vlm_ids_free(&ids);
    vlm_tokenizer_free(tok);
}


static void
test_parts(void)
{
    file_t  f;

    f = plain;
    encoded(&f, "ab c", 0, "97 98 32 99");

    f.normalizer = "{\"type\": \"Lowercase\"}";
    refused(&f, "normalizer \"Lowercase\" is not supported");
    f.normalizer = "{\"type\": \"Sequence\", \"normalizers\": "
                   "[{\"type\": \"NFC\"}, {\"type\": \"Strip\"}]}";
    refused(&f, "normalizer \"Strip\" is not supported");
    f.normalizer = "{}";
    refused(&f, "normalizer has no type");
    f.normalizer = "{\"type\": \"Sequence\", \"normalizers\": "
                   "[{\"type\": \"NFC\"}]}";
    encoded(&f, "e\xcc\x81", 0, "195 169");

    f = plain;
    f.decoder = "{\"type\": \"WordPiece\"}";
    refused(&f, "decoder \"WordPiece\" is not supported");
    f.decoder = "null";
    refused(&f, "decoder has no type");
    f.decoder = "{\"type\": \"Sequence\", \"decoders\": "
                "[{\"type\": \"ByteLevel\"}]}";
    encoded(&f, "a", 0, "97");

    f = plain;
    f.model = ", \"type\": \"Unigram\"";
    refused(&f, "model \"Unigram\" is not supported");
    f.model = ", \"byte_fallback\": true";
    refused(&f, "model.byte_fallback is not supported");
    f.model = ", \"dropout\": 0.1";
    refused(&f, "model.dropout is not supported");
    f.model = ", \"end_of_word_suffix\": \"</w>\"";
    refused(&f, "model.end_of_word_suffix is not supported");
    f.model = ", \"continuing_subword_prefix\": \"##\"";
    refused(&f, "model.continuing_subword_prefix is not supported");
    f.model = ", \"type\": \"BPE\", \"dropout\": null, "
              "\"continuing_subword_prefix\": \"\"";
    encoded(&f, "a", 0, "97");
}


static void
test_pre_tokenizer(void)
{
    file_t  f;

    f = plain;
    f.pre_tokenizer = "null";
    refused(&f, "pre_tokenizer: there is no ByteLevel: only byte-level BPE "
            "is supported");
    f.pre_tokenizer = "{\"type\": \"Metaspace\"}";
    refused(&f, "pre_tokenizer \"Metaspace\" is not supported");
    f.pre_tokenizer = "{\"type\": \"ByteLevel\", "
                      "\"add_prefix_space\": true}";
    refused(&f, "pre_tokenizer ByteLevel: add_prefix_space is not "
            "supported");
    f.pre_tokenizer = "{\"type\": \"Sequence\", \"pretokenizers\": ["
                      BYTE_LEVEL ", {\"type\": \"Digits\"}]}";
    refused(&f, "pre_tokenizer: a step behind ByteLevel is not supported");
    f.pre_tokenizer = "{\"type\": \"Split\", \"behavior\": \"Removed\", "
                      "\"pattern\": {\"Regex\": \"a\"}}";
    refused(&f, "pre_tokenizer Split: only the behavior Isolated is "
            "supported");
    f.pre_tokenizer = "{\"type\": \"Split\", \"behavior\": \"Isolated\", "
                      "\"invert\": true, \"pattern\": {\"Regex\": \"a\"}}";
    refused(&f, "pre_tokenizer Split: invert is not supported");
    f.pre_tokenizer = "{\"type\": \"Split\", \"behavior\": \"Isolated\", "
                      "\"pattern\": {\"String\": \"a\"}}";
    refused(&f, "pre_tokenizer Split: only a pattern of type Regex is "
            "supported");

    /* a merge shows where pieces end */

    f = plain;
    f.vocab = ", \"11\": 256, \"1\\u0120\": 257";
    f.merges = "\"1 1\", \"1 \\u0120\"";
    encoded(&f, "1111", 0, "256 256");

    f.pre_tokenizer = "{\"type\": \"Sequence\", \"pretokenizers\": ["
                      "{\"type\": \"Digits\", \"individual_digits\": true},"
                      BYTE_LEVEL "]}";
    encoded(&f, "111 ", 0, "49 49 49 32");

    f.pre_tokenizer = "{\"type\": \"Sequence\", \"pretokenizers\": ["
                      "{\"type\": \"Digits\"}," BYTE_LEVEL "]}";
    encoded(&f, "111 ", 0, "256 49 32");

    f.pre_tokenizer = "{\"type\": \"ByteLevel\", "
                      "\"add_prefix_space\": false}";
    encoded(&f, "11 1", 0, "256 32 49");
}


static void
regex_is(const char *regex, const char *expected)
{
    vlm_buf_t    out;
    vlm_error_t  err;

    memset(&out, 0, sizeof(out));

    if (vlm_regex_translate(regex, strlen(regex), &out, &err) == VLM_ERROR) {
        tap_str(err.message, expected, "regular expression %s", regex);

    } else {
        tap_str(out.data, expected, "regular expression %s", regex);
    }

    vlm_buf_free(&out);
}


static void
test_regex(void)
{
    file_t  f;

    regex_is("\\s+(?!\\S)", "[\\t-\\r \\x{85}\\p{Z}]+"
             "(?![^\\t-\\r \\x{85}\\p{Z}])");
    regex_is("[^\\s\\p{L}]", "[^\\t-\\r \\x{85}\\p{Z}\\p{L}]");
    regex_is("\\\\s", "\\\\s");
    regex_is("(?i:'s)|\\[|[[]", "a class inside of a class is not "
             "supported");
    regex_is("[a-z&&[aeiou]]", "&& in a class is not supported");
    regex_is("[]a]", "an empty class is not supported");
    regex_is("[\\S]", "\\S in a class is not supported");
    regex_is("\\w+", "\\w is not supported");
    regex_is("\\b", "\\b is not supported");
    regex_is("\\s+$", "$ is not supported");
    regex_is("^a", "^ is not supported");
    regex_is("[^a^$]", "[^a^$]");
    regex_is("(a)\\1", "\\1 is not supported");
    regex_is("(?R)", "the group \"(?R)\" is not supported");
    regex_is("(*LIMIT_MATCH=1)", "the group \"(*LI\" is not supported");
    regex_is("a\\", "it ends with a backslash");

    f = plain;
    f.pre_tokenizer = "{\"type\": \"Split\", \"behavior\": \"Isolated\", "
                      "\"pattern\": {\"Regex\": \"(a\"}}";
    refused(&f, "pre_tokenizer: regular expression: missing closing "
            "parenthesis at 2 in \"(a\"");
    f.pre_tokenizer = "{\"type\": \"Split\", \"behavior\": \"Isolated\", "
                      "\"pattern\": {\"Regex\": \"\"}}";
    refused(&f, "pre_tokenizer: regular expression: is empty");

    /* empty matches end a piece; matches that take forever are an error */

    f.vocab = ", \"aa\": 256";
    f.merges = "[\"a\", \"a\"]";
    f.pre_tokenizer = "{\"type\": \"Sequence\", \"pretokenizers\": ["
                      "{\"type\": \"Split\", \"behavior\": \"Isolated\", "
                      "\"pattern\": {\"Regex\": \"b*\"}}," BYTE_LEVEL "]}";
    encoded(&f, "aabaa", 0, "97 97 98 97 97");
    f.pre_tokenizer = "{\"type\": \"Sequence\", \"pretokenizers\": ["
                      "{\"type\": \"Split\", \"behavior\": \"Isolated\", "
                      "\"pattern\": {\"Regex\": \"(a+)+[bd]\"}}," BYTE_LEVEL
                      "]}";
    encoded(&f, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", 0,
            "- pre_tokenizer: regular expression: error -47 of PCRE2");
}


static void
test_vocab(void)
{
    file_t  f;

    f = plain;
    f.vocab = ", \"ab\": 3";
    refused(&f, "id 3 has two tokens");
    f.vocab = ", \"a\": 300";
    refused(&f, "token \"a\" has two ids");
    f.vocab = ", \"ab\": -1";
    refused(&f, "id of token \"ab\" is not a number from 0 to 4194303");
    f.vocab = ", \"ab\": 4194304";
    refused(&f, "id of token \"ab\" is not a number from 0 to 4194303");
    f.vocab = ", \"ab\": \"x\"";
    refused(&f, "id of token \"ab\" is not a number from 0 to 4194303");

    f = plain;
    f.vocab = ", \"ab\": 256";
    f.merges = "\"a c\"";
    refused(&f, "model.merges[0] is not two tokens that make a third one");
    f.merges = "\"a b\", \"ab\"";
    refused(&f, "model.merges[1] is not two tokens that make a third one");
    f.merges = "[\"a\"]";
    refused(&f, "model.merges[0] is not two tokens that make a third one");
    f.merges = "[\"aaaaaaaaaaaaaaaaaaaaaaaaa\", \"b\"]";
    refused(&f, "model.merges[0] is not two tokens that make a third one");
    f.merges = "[\"a\", \"bbbbbbbbbbbbbbbbbbbbbbbbb\"]";
    refused(&f, "model.merges[0] is not two tokens that make a third one");

    /* as long as any token and then twice that, from one byte a symbol */
    f.vocab = ", \"abababababababab\": 256";
    f.merges = "[\"abababababababab\", \"abababababababababababababababab\"]";
    refused(&f, "model.merges[0] is not two tokens that make a third one");
    f.vocab = ", \"ab\": 256";

    f.merges = "\"a b c\"";
    refused(&f, "model.merges[0] is not two tokens that make a third one");
    f.merges = "\"a b\"";
    encoded(&f, "abab", 0, "256 256");

    /* lowest rank first, then leftmost; a whole piece if so told */

    f.vocab = ", \"ab\": 256, \"bc\": 257, \"abc\": 258, \"aa\": 259";
    f.merges = "\"b c\", \"a b\", \"a a\"";
    encoded(&f, "abc", 0, "97 257");
    encoded(&f, "aaab", 0, "259 256");
    f.model = ", \"ignore_merges\": true";
    encoded(&f, "abc", 0, "258");
    encoded(&f, "abcb", 0, "97 257 98");
}


static void
test_added(void)
{
    file_t  f;

    f = plain;
    f.added = "{\"id\": 300}";
    refused(&f, "an entry of added_tokens has no content");
    f.added = "{\"id\": 300, \"content\": \"\"}";
    refused(&f, "an entry of added_tokens has no content");
    f.added = "{\"id\": 97, \"content\": \"<x>\"}";
    refused(&f, "added token \"<x>\": id 97 belongs to another token");
    f.added = "{\"id\": 300, \"content\": \"<x>\", \"lstrip\": true}";
    refused(&f, "added token \"<x>\": lstrip is not supported");
    f.added = "{\"id\": 300, \"content\": \"<x>\"}, "
              "{\"id\": 300, \"content\": \"<y>\"}";
    refused(&f, "added token \"<y>\": id 300 belongs to another token");

    /* the longest at the leftmost place */

    f.added = "{\"id\": 300, \"content\": \"<x\", \"special\": true}, "
              "{\"id\": 301, \"content\": \"<x>\", \"special\": true}, "
              "{\"id\": 302, \"content\": \"x>>\", \"special\": true}";
    encoded(&f, "<x>><xx>>", 1, "301 62 300 302");
    encoded(&f, "<x>", 0, "60 120 62");

    /* "normalized": found in the normal form only */

    f.normalizer = "{\"type\": \"NFC\"}";
    f.added = "{\"id\": 300, \"content\": \"\\u00e9\", "
              "\"normalized\": true}";
    encoded(&f, "ae\xcc\x81", 1, "97 300");
    f.added = "{\"id\": 300, \"content\": \"\\u00e9\", "
              "\"normalized\": false}";
    encoded(&f, "ae\xcc\x81", 1, "97 195 169");

    /* neither merges nor whole pieces make special tokens of plain text */

    f = plain;
    f.vocab = ", \"<x\": 256, \"<x>\": 257";
    f.merges = "\"< x\", \"<x >\"";
    f.added = "{\"id\": 257, \"content\": \"<x>\", \"special\": false}";
    encoded(&f, "<x>", 0, "257");
    f.added = "{\"id\": 257, \"content\": \"<x>\", \"special\": true}";
    encoded(&f, "<x>", 0, "256 62");
    f.model = ", \"ignore_merges\": true";
    encoded(&f, "<x>", 0, "256 62");
    encoded(&f, "<x>", 1, "257");
}


int
main(void)
{
    test_parts();
    test_pre_tokenizer();
    test_regex();
    test_vocab();
    test_added();

    return tap_done();
}
