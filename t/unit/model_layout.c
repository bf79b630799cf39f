
/*
 * The same checkpoint as other versions of the reference write it: newer
 * names with a text_config, float32 weights, a header that leaves the data
 * unaligned.  All must give the same bits.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "t/unit/lib/golden.h"
#include "t/unit/lib/tap.h"


#define BASE        "t/data/golden/qwen2_vl/base/model"

typedef struct {
    const char         *name;
    int                 renamed;            /* newer names, text_config */
    int                 widened;            /* F32 */
    int                 unaligned;
} layout_t;

static const char  *links[] = {
    "tokenizer.json", "generation_config.json", "preprocessor_config.json"
};


static int
put(const char *dir, const char *file, const vlm_buf_t *data)
{
    FILE    *f;
    char     path[512];
    size_t   n;

    snprintf(path, sizeof(path), "%s/%s", dir, file);
    f = fopen(path, "wb");

    if (f == NULL) {
        return -1;
    }

    n = fwrite(data->data, 1, data->len, f);

    return fclose(f) == 0 && n == data->len ? 0 : -1;
}


static void
put_name(vlm_buf_t *to, const char *name, size_t len, int renamed)
{
    vlm_buf_append(to, "\"", 1);

    if (renamed && len > 6 && memcmp(name, "model.", 6) == 0) {
        vlm_buf_append(to, "model.language_model.", 21);
        name += 6;
        len -= 6;

    } else if (renamed && len > 7 && memcmp(name, "visual.", 7) == 0) {
        vlm_buf_append(to, "model.", 6);
    }

    vlm_buf_append(to, name, len);
    vlm_buf_append(to, "\":", 2);
}


static void
put_shape(vlm_buf_t *to, const vlm_json_t *shape)
{
    int64_t            n;
    const vlm_json_t  *v;

    for (v = vlm_json_first(shape); v != NULL; v = vlm_json_next(v)) {
        vlm_json_int(v, &n);
        vlm_buf_printf(to, "%s%lld", v == vlm_json_first(shape) ? "" : ",",
                       (long long) n);
    }
}


static void
put_values(vlm_buf_t *to, const uint8_t *from, size_t size, int widened)
{
    size_t    i;
    uint32_t  bits;

    if (!widened) {
        vlm_buf_append(to, from, size);
        return;
    }

    for (i = 0; i < size; i += 2) {
        bits = (uint32_t) from[i + 1] << 24 | (uint32_t) from[i] << 16;
        vlm_buf_append(to, &bits, 4);
    }
}


static int
put_weights(const char *dir, const layout_t *layout)
{
    char              *file;
    size_t             len, n;
    int64_t            begin, end;
    uint64_t           header_len;
    vlm_buf_t          header, values, out;
    const char        *name;
    vlm_error_t        err;
    vlm_json_doc_t    *doc;
    const vlm_json_t  *v;

    memset(&header, 0, sizeof(header));
    memset(&values, 0, sizeof(values));
    memset(&out, 0, sizeof(out));

    if (vlm_read_file(tap_path(BASE "/model.safetensors"), 1 << 24, &file,
                      &len, &err)
        == VLM_ERROR)
    {
        return -1;
    }

    memcpy(&header_len, file, 8);
    doc = vlm_json_parse(file + 8, (size_t) header_len, "header", &err);

    for (v = vlm_json_first(vlm_json_root(doc)); v != NULL;
         v = vlm_json_next(v))
    {
        name = vlm_json_key(v, &n);

        if (n == 12) {
            continue;           /* __metadata__ */
        }

        vlm_json_int(vlm_json_at(vlm_json_get(v, "data_offsets"), 0), &begin);
        vlm_json_int(vlm_json_at(vlm_json_get(v, "data_offsets"), 1), &end);

        vlm_buf_append(&header, header.len == 0 ? "{" : ",", 1);
        put_name(&header, name, n, layout->renamed);

        vlm_buf_printf(&header, "{\"dtype\":\"%s\",\"data_offsets\":[%zu,",
                       layout->widened ? "F32" : "BF16", values.len);
        put_values(&values, (uint8_t *) file + 8 + header_len + begin,
                   (size_t) (end - begin), layout->widened);
        vlm_buf_printf(&header, "%zu],\"shape\":[", values.len);
        put_shape(&header, vlm_json_get(v, "shape"));
        vlm_buf_append(&header, "]}", 2);
    }

    vlm_buf_append(&header, "}", 1);

    while (header.len % 8 != (layout->unaligned ? 3 : 0)) {
        vlm_buf_append(&header, " ", 1);
    }

    header_len = header.len;
    vlm_buf_append(&out, &header_len, 8);
    vlm_buf_append(&out, header.data, header.len);
    vlm_buf_append(&out, values.data, values.len);

    n = (size_t) put(dir, "model.safetensors", &out);

    vlm_buf_free(&header);
    vlm_buf_free(&values);
    vlm_buf_free(&out);
    vlm_json_free(doc);
    free(file);

    return (int) n;
}


static int
put_config(const char *dir, int renamed)
{
    int               rc;
    char             *file;
    size_t            len;
    vlm_buf_t         out;
    vlm_error_t       err;

    memset(&out, 0, sizeof(out));

    if (!renamed) {
        if (vlm_read_file(tap_path(BASE "/config.json"), 1 << 20, &file, &len,
                          &err)
            == VLM_ERROR)
        {
            return -1;
        }

        vlm_buf_append(&out, file, len);
        free(file);

    } else {

        /* what is given twice counts in the text's part */

        vlm_buf_printf(&out, "{\"model_type\": \"qwen2_vl\", \"dtype\": "
            "\"bfloat16\", \"image_token_id\": 458, \"tie_word_embeddings\": "
            "false, \"hidden_size\": 3, \"vision_config\": {\"depth\": 3, "
            "\"embed_dim\": 48, \"num_heads\": 4, \"hidden_size\": 64, "
            "\"in_channels\": 3}, \"text_config\": {\"model_type\": "
            "\"qwen2_vl_text\", \"hidden_size\": 64, \"intermediate_size\": "
            "112, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "
            "\"num_key_value_heads\": 2, \"vocab_size\": 464, "
            "\"rms_norm_eps\": 1e-6, \"tie_word_embeddings\": true, "
            "\"rope_parameters\": {\"rope_type\": \"default\", "
            "\"rope_theta\": 1000000.0, \"mrope_section\": [2, 3, 3]}}}");
    }

    rc = put(dir, "config.json", &out);
    vlm_buf_free(&out);

    return rc;
}


/* embeddings and the prompt's logits of a case, one after another */

static float *
values_of(const char *dir, size_t *n)
{
    float             *values, *embeddings;
    size_t             vocab;
    golden_rig_t       rig;
    golden_seq_t       seq;
    golden_case_t      c;
    vlm_sampled_t      sampled;
    vlm_encode_job_t  *job;

    values = NULL;
    memset(&c, 0, sizeof(c));
    memset(&seq, 0, sizeof(seq));
    job = NULL;

    if (golden_open(&rig, dir, NULL, NULL) == 0
        && golden_load(&c, rig.model, "base", "one_tiny") == 0)
    {
        job = golden_encode(&rig, &c, INFINITY);
    }

    if (job != NULL
        && golden_begin(&seq, &c, vlm_encode_result(job), 0) == 0)
    {
        vocab = (size_t) vlm_model_info(rig.model)->vocab;
        *n = (size_t) (vlm_encode_result(job)->rows
                       * vlm_encode_result(job)->cols);

        values = calloc(*n + vocab, sizeof(float));
        embeddings = golden_download(&rig, vlm_encode_result(job));

        memcpy(values, embeddings, *n * sizeof(float));
        golden_step(&rig, &seq, 1, values + *n, &sampled);

        *n += vocab;
        free(embeddings);
    }

    vlm_ids_free(&seq.ids);
    vlm_encode_free(job);
    golden_free(&c);
    golden_close(&rig);

    return values;
}


static void
test_layout(const layout_t *layout, const float *expected, size_t n)
{
    char     dir[64], from[4096], path[512];
    float   *got;
    size_t   i, m;

    snprintf(dir, sizeof(dir), "/tmp/vlm_model_layout.XXXXXX");

    if (mkdtemp(dir) == NULL || put_weights(dir, layout) != 0
        || put_config(dir, layout->renamed) != 0)
    {
        tap_ok(0, "%s: written", layout->name);
        return;
    }

    for (i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, links[i]);

        if (realpath(tap_path(BASE "/%s", links[i]), from) == NULL
            || symlink(from, path) != 0)
        {
            tap_ok(0, "%s: linked", path);
        }
    }

    m = 0;
    got = values_of(dir, &m);
    tap_ok(got != NULL && m == n
           && memcmp(got, expected, n * sizeof(float)) == 0,
           "%s: embeddings and logits", layout->name);
    free(got);

    for (i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, links[i]);
        unlink(path);
    }

    snprintf(path, sizeof(path), "%s/config.json", dir);
    unlink(path);
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    unlink(path);
    rmdir(dir);
}


int
main(void)
{
    float                  *expected;
    size_t                  i, n;
    static const layout_t   layouts[] = {
        { "rewritten", 0, 0, 0 },
        { "newer names", 1, 0, 0 },
        { "float32 weights", 0, 1, 0 },
        { "unaligned data", 0, 0, 1 },
        { "all of it", 1, 1, 1 }
    };

    n = 0;
    expected = values_of(tap_path(BASE), &n);

    for (i = 0; expected != NULL && i < 5; i++) {
        test_layout(&layouts[i], expected, n);
    }

    free(expected);

    return tap_done();
}
