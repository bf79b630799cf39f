
/* Lines of JSON on stdin and stdout: texts to ids, or ids to texts. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/vlm_json.h"
#include "engine/cli/cli.h"


static int line_do(const vlm_options_t *o, const vlm_tokenizer_t *tok,
    const char *line, size_t len, const char *name, vlm_buf_t *out,
    vlm_error_t *err);
static int line_encode(const vlm_tokenizer_t *tok, const vlm_json_t *v,
    int special, vlm_buf_t *out, vlm_error_t *err);
static int line_decode(const vlm_tokenizer_t *tok, const vlm_json_t *v,
    vlm_buf_t *out, vlm_error_t *err);


int
vlm_cmd_tokenize(vlm_options_t *o)
{
    int               rc;
    char             *line, name[32];
    size_t            size;
    ssize_t           n;
    unsigned long     number;
    vlm_buf_t         out = {0};
    vlm_error_t       err;
    vlm_tokenizer_t  *tok;

    tok = vlm_tokenizer_load(o->args[0], &err);
    if (tok == NULL) {
        return vlm_cli_fail(VLM_EXIT_FAILED, &err);
    }

    line = NULL;
    size = 0;
    rc = VLM_OK;

    for (number = 1; rc == VLM_OK; number++) {
        n = getline(&line, &size, stdin);

        if (n == -1) {

            if (!feof(stdin)) {
                rc = vlm_fail(&err, 500, NULL, "stdin: %s", strerror(errno));
            }

            break;
        }

        snprintf(name, sizeof(name), "line %lu", number);

        out.len = 0;
        rc = line_do(o, tok, line, (size_t) n, name, &out, &err);

        if (rc == VLM_OK
            && fwrite(out.data, 1, out.len, stdout) != out.len)
        {
            rc = vlm_fail(&err, 500, NULL, "stdout: %s", strerror(errno));
        }
    }

    free(line);
    vlm_buf_free(&out);
    vlm_tokenizer_free(tok);

    return rc == VLM_OK ? 0 : vlm_cli_fail(VLM_EXIT_FAILED, &err);
}


static int
line_do(const vlm_options_t *o, const vlm_tokenizer_t *tok, const char *line,
    size_t len, const char *name, vlm_buf_t *out, vlm_error_t *err)
{
    int                rc;
    vlm_json_doc_t    *doc;
    const vlm_json_t  *v;

    doc = vlm_json_parse(line, len, name, err);
    if (doc == NULL) {
        return VLM_ERROR;
    }

    v = vlm_json_root(doc);

    rc = o->decode ? line_decode(tok, v, out, err)
                   : line_encode(tok, v, o->special, out, err);

    if (rc == VLM_OK) {
        rc = vlm_buf_append(out, "\n", 1);

    } else {
        vlm_fail_in(err, "%s: ", name);
    }

    vlm_json_free(doc);

    return rc;
}


static int
line_encode(const vlm_tokenizer_t *tok, const vlm_json_t *v, int special,
    vlm_buf_t *out, vlm_error_t *err)
{
    int          rc;
    size_t       i, len;
    vlm_ids_t    ids = {0};
    const char  *text;

    if (vlm_json_string(v, &text, &len) != VLM_OK) {
        return vlm_fail(err, 400, NULL, "must be a JSON string");
    }

    rc = vlm_tokenizer_encode(tok, text, len, special, &ids, err);

    if (rc == VLM_OK) {
        rc |= vlm_buf_append(out, "[", 1);

        for (i = 0; i < ids.len; i++) {
            rc |= vlm_buf_printf(out, "%s%d", i != 0 ? "," : "", ids.data[i]);
        }

        rc |= vlm_buf_append(out, "]", 1);

        if (rc != VLM_OK) {
            vlm_fail(err, 500, NULL, "no memory");
        }
    }

    vlm_ids_free(&ids);

    return rc;
}


static int
line_decode(const vlm_tokenizer_t *tok, const vlm_json_t *v, vlm_buf_t *out,
    vlm_error_t *err)
{
    int                rc;
    int64_t            n;
    vlm_buf_t          text = {0};
    vlm_ids_t          ids = {0};
    const vlm_json_t  *p;

    if (vlm_json_type(v) != VLM_JSON_ARRAY) {
        return vlm_fail(err, 400, NULL, "must be a JSON array of ids");
    }

    rc = VLM_OK;

    for (p = vlm_json_first(v); p != NULL && rc == VLM_OK;
         p = vlm_json_next(p))
    {
        if (vlm_json_int(p, &n) != VLM_OK || n < 0
            || n >= vlm_tokenizer_size(tok))
        {
            rc = vlm_fail(err, 400, NULL, "an id must be a number from 0 to "
                          "%d", vlm_tokenizer_size(tok) - 1);

        } else if (vlm_ids_append(&ids, (int32_t) n, 1) != VLM_OK) {
            rc = vlm_fail(err, 500, NULL, "no memory");
        }
    }

    if (rc == VLM_OK) {
        rc = vlm_tokenizer_decode(tok, ids.data, ids.len, 0, &text, err);
    }

    if (rc == VLM_OK
        && vlm_buf_json_string(out, text.data, text.len) != VLM_OK)
    {
        rc = vlm_fail(err, 500, NULL, "no memory");
    }

    vlm_buf_free(&text);
    vlm_ids_free(&ids);

    return rc;
}
