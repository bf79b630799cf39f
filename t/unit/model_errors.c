
/*
 * Checkpoints that are broken in one place each: the exact message, and
 * nothing else happens.
 */

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model/model.h"
#include "engine/model/safetensors.h"
#include "t/unit/lib/tap.h"


static char  dir[64];           /* the broken checkpoint */


/* ---- directories ---- */

static const char *
variant_path(const char *variant, const char *file)
{
    return tap_path("t/data/golden/qwen2_vl/%s/model/%s", variant, file);
}


static void
clear(void)
{
    DIR            *d;
    char            path[512];
    struct dirent  *entry;

    d = opendir(dir);

    while (d != NULL && (entry = readdir(d)) != NULL) {
        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);

        if (entry->d_name[0] != '.') {
            unlink(path);
        }
    }

    if (d != NULL) {
        closedir(d);
    }
}


static void
put(const char *file, const char *data, size_t len)
{
    FILE  *f;
    char   path[512];

    snprintf(path, sizeof(path), "%s/%s", dir, file);
    unlink(path);
    f = fopen(path, "wb");

    if (f == NULL || fwrite(data, 1, len, f) != len || fclose(f) != 0) {
        tap_ok(0, "%s written", path);
    }
}


/* a whole checkpoint of links to a good one */

static void
reset(const char *variant)
{
    DIR            *d;
    char            from[4096], to[512];
    struct dirent  *entry;

    clear();
    d = opendir(variant_path(variant, ""));

    while (d != NULL && (entry = readdir(d)) != NULL) {
        if (entry->d_name[0] != '.'
            && realpath(variant_path(variant, entry->d_name), from) != NULL)
        {
            snprintf(to, sizeof(to), "%s/%s", dir, entry->d_name);

            if (symlink(from, to) != 0) {
                tap_ok(0, "%s linked", to);
            }
        }
    }

    if (d != NULL) {
        closedir(d);
    }
}


/* the first "from" becomes "to"; an empty "from": all of the file */

static void
edit(const char *variant, const char *file, const char *from, const char *to)
{
    char         *data, *changed, *at;
    size_t        len, n;
    vlm_error_t   err;

    if (*from == '\0') {
        put(file, to, strlen(to));
        return;
    }

    if (vlm_read_file(variant_path(variant, file), 1 << 24, &data, &len, &err)
        == VLM_ERROR)
    {
        tap_ok(0, "%s", err.message);
        return;
    }

    n = len - strlen(from) + strlen(to);
    at = memmem(data, len, from, strlen(from));
    changed = malloc(n);

    if (at != NULL && changed != NULL) {
        memcpy(changed, data, (size_t) (at - data));
        memcpy(changed + (at - data), to, strlen(to));
        memcpy(changed + (at - data) + strlen(to), at + strlen(from),
               len - (size_t) (at - data) - strlen(from));
        put(file, changed, n);

    } else {
        tap_ok(0, "%s has %s", file, from);
    }

    free(data);
    free(changed);
}


/* the message without the directory, which is a new one each time */

static const char *
open_message(void)
{
    char               *p;
    vlm_error_t         err;
    vlm_model_t        *m;
    static char         text[sizeof(err.message)];

    memset(&err, 0, sizeof(err));
    m = vlm_model_open(dir, NULL, &err);

    if (m != NULL) {
        vlm_model_free(m);
        return "opened";
    }

    p = err.message;

    if (strncmp(p, dir, strlen(dir)) == 0) {
        p += strlen(dir);
        p += *p == '/' ? 1 : 2;     /* DIR/FILE: or DIR: */
    }

    snprintf(text, sizeof(text), "%s", p);

    return text;
}


/* ---- one edit each ---- */

typedef struct {
    const char     *file;
    const char     *from;
    const char     *to;
    const char     *message;
} edit_t;

#define CONFIG          "config.json"
#define GENERATION      "generation_config.json"
#define PREPROCESSOR    "preprocessor_config.json"
#define WEIGHTS         "model.safetensors"
#define INDEX           "model.safetensors.index.json"

static const edit_t  edits[] = {

    /* fine: what older and newer files look like */

    { CONFIG, "\"hidden_size\": 64", "\"hidden_size\": 64", "opened" },
    { CONFIG, "\"in_chans\"", "\"in_channels\"", "opened" },
    { CONFIG, "\"type\": \"mrope\"", "\"rope_type\": \"default\"", "opened" },
    { CONFIG, "\"tie_word_embeddings\": true", "\"x\": 0", "opened" },
    { CONFIG, "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": null", "opened" },
    { GENERATION, "[448, 446]", "448", "opened" },
    { GENERATION, "[448, 446]", "null", "opened" },
    { CONFIG, "\"eos_token_id\": 448", "\"eos_token_id\": [448, 446]",
      "opened" },
    { PREPROCESSOR, "\"min_pixels\": 3136", "\"resample\": 3", "opened" },

    /* config.json */

    { CONFIG, "qwen2_vl", "llama",
      "config.json: model_type \"llama\" is not supported; supported: "
      "qwen2_vl" },
    { CONFIG, "model_type", "model_kind",
      "config.json: key \"model_type\" is missing" },
    { CONFIG, "vision_config", "vision_configs",
      "config.json: key \"vision_config\" is missing" },
    { CONFIG, "\"hidden_size\": 64,\n \"init", "\"init",
      "config.json: key \"hidden_size\" is missing" },
    { CONFIG, "\"intermediate_size\": 112", "\"intermediate_size\": \"112\"",
      "config.json: key \"intermediate_size\" is no integer" },
    { CONFIG, "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 0",
      "config.json: key \"num_hidden_layers\" is 0, not in 1 to 1024" },
    { CONFIG, "\"num_hidden_layers\": 3",
      "\"num_hidden_layers\": 99999999999",
      "config.json: key \"num_hidden_layers\" is 99999999999, not in 1 to "
      "1024" },
    { CONFIG, "\"num_attention_heads\": 4", "\"num_attention_heads\": 5",
      "config.json: hidden_size 64 is no multiple of num_attention_heads 5" },
    { CONFIG, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3",
      "config.json: num_attention_heads 4 is no multiple of "
      "num_key_value_heads 3" },
    { CONFIG, "1e-06", "-1",
      "config.json: key \"rms_norm_eps\" is -1, not in 1e-12 to 1" },
    { CONFIG, "1000000.0", "\"big\"",
      "config.json: key \"rope_theta\" is no number" },
    { CONFIG, "\"silu\"", "\"relu\"",
      "config.json: hidden_act \"relu\" is not supported" },
    { CONFIG, "\"mrope\"", "\"yarn\"",
      "config.json: rope type \"yarn\" is not supported" },
    { CONFIG, "[2, 3, 3]", "[2, 3, 4]",
      "config.json: rope_scaling.mrope_section sums up to 9, half a head "
      "is 8" },
    { CONFIG, "[2, 3, 3]", "[2, 6]",
      "config.json: rope_scaling.mrope_section with three numbers is "
      "missing" },
    { CONFIG, "[2, 3, 3]", "[-2, 5, 5]",
      "config.json: rope_scaling.mrope_section has a bad number" },
    { CONFIG, "\"use_sliding_window\": false", "\"use_sliding_window\": true",
      "config.json: use_sliding_window is not supported" },
    { CONFIG, "\"image_token_id\": 458", "\"image_token_id\": 464",
      "config.json: key \"image_token_id\" is missing or no id below "
      "vocab_size 464" },
    { CONFIG, "\"image_token_id\": 458", "\"image_token_id\": 457",
      "tokenizer.json: \"<|image_pad|>\" is 458, config.json's "
      "image_token_id 457" },
    { CONFIG, "\"eos_token_id\": 448", "\"eos_token_id\": 464",
      "config.json: eos_token_id has no id below vocab_size 464" },
    { CONFIG, "\"num_heads\": 4", "\"num_heads\": 5",
      "config.json: vision_config: width 48 in 5 heads is not supported: "
      "multiples of 4 to 512 each" },
    { CONFIG, "\"num_heads\": 4", "\"num_heads\": -4",
      "config.json: vision_config: key \"num_heads\" is -4, not in 1 to "
      "1024" },
    { CONFIG, "\"hidden_size\": 64,\n  \"patch",
      "\"hidden_size\": 65,\n  \"patch",
      "config.json: vision_config: hidden_size 65 is not the text's 64" },
    { CONFIG, "\"vocab_size\": 464", "\"vocab_size\": 463",
      "tensor \"model.embed_tokens.weight\" has shape [464, 64], "
      "config.json asks for 463 rows of 64" },
    { CONFIG, "", "[]", "config.json: no JSON object" },

    /* generation_config.json */

    { GENERATION, "[448, 446]", "[448, 464]",
      "generation_config.json: eos_token_id has no id below vocab_size "
      "464" },
    { GENERATION, "[448, 446]", "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]",
      "generation_config.json: eos_token_id has more than 16 ids" },
    { GENERATION, "0.01", "3",
      "generation_config.json: key \"temperature\" is 3, not in 0 to 2" },
    { GENERATION, "0.001", "\"x\"",
      "generation_config.json: key \"top_p\" is no number" },

    /* preprocessor_config.json */

    { PREPROCESSOR, "\"patch_size\": 14", "\"patch_size\": 16",
      "preprocessor_config.json: patch_size 16 is not config.json's 14" },
    { PREPROCESSOR, "3136", "78401",
      "preprocessor_config.json: min_pixels 78401 is over max_pixels "
      "78400" },
    { PREPROCESSOR, "3136", "0",
      "preprocessor_config.json: key \"min_pixels\" is 0, not in 1 to "
      "1e+12" },
    { PREPROCESSOR, "0.26862954", "0",
      "preprocessor_config.json: \"image_std\" is no list of three numbers "
      "in 1e-06 to 1" },
    { PREPROCESSOR, "\"min_pixels\": 3136", "\"do_resize\": false",
      "preprocessor_config.json: \"do_resize\" false is not supported" },
    { PREPROCESSOR, "\"min_pixels\": 3136", "\"resample\": 0",
      "preprocessor_config.json: resample 0 is not supported: 1 (lanczos), "
      "2 (bilinear) or 3 (bicubic)" },
    { PREPROCESSOR, "\"min_pixels\": 3136", "\"rescale_factor\": 1",
      "preprocessor_config.json: rescale_factor 1 is not supported: 1/255" },

    /* model.safetensors */

    { WEIGHTS, "model.norm.weight", "model.nOrm.weight",
      "tensor \"model.norm.weight\" is missing" },
    { WEIGHTS, "visual.merger.mlp.2.bias", "visual.merger.mlp.2.bjas",
      "tensor \"visual.merger.mlp.2.bias\" is missing" },
    { WEIGHTS, "[464,64]", "[232,128]",
      "model.safetensors: 1 bytes after the last tensor" },
    { WEIGHTS, "\"BF16\",\"shape\":[48,48]", "\"BF16\",\"shape\":[24,96]",
      "tensor \"visual.blocks.0.attn.proj.weight\" has shape [24, 96], "
      "config.json asks for 48 rows of 48" },
    { WEIGHTS, "\"BF16\",\"shape\":[464", "\"I16\" ,\"shape\":[464",
      "tensor \"model.embed_tokens.weight\" has type I16; supported: BF16, "
      "F16, F32" },
    { WEIGHTS, "\"BF16\",\"shape\":[464", "\"F32\" ,\"shape\":[464",
      "model.safetensors: tensor \"model.embed_tokens.weight\" has 59392 "
      "bytes, its shape needs 29696 elements of 4" },
    { WEIGHTS, "[0,59392]", "[9,59392]",
      "model.safetensors: tensor \"model.embed_tokens.weight\" has 59383 "
      "bytes, its shape needs 29696 elements of 2" }
};


static void
test_edits(void)
{
    size_t         i;
    const edit_t  *e;

    for (i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
        e = &edits[i];

        reset("base");
        edit("base", e->file, e->from, e->to);

        tap_str(open_message(), e->message, "%s: edit %d", e->file, (int) i);
    }
}


static void
test_missing(void)
{
    size_t              i;
    char                path[512], expected[512];
    static const char  *files[] = { CONFIG, PREPROCESSOR, WEIGHTS,
                                    "tokenizer.json" };

    for (i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        reset("base");
        snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
        unlink(path);

        snprintf(expected, sizeof(expected), "%s: No such file or directory",
                 files[i]);
        tap_str(open_message(), expected, "%s missing", files[i]);
    }

    reset("base");
    snprintf(path, sizeof(path), "%s/%s", dir, GENERATION);
    unlink(path);
    tap_str(open_message(), "opened", "%s missing", GENERATION);

    edit("base", CONFIG, "\"eos_token_id\": 448", "\"x\": 0");
    tap_str(open_message(), "neither generation_config.json nor "
            "config.json has an eos_token_id", "no eos at all");
}


/* ---- the weights' files ---- */

static void
test_truncated(void)
{
    int           bad;
    char         *data;
    size_t        len, n, step;
    vlm_error_t   err;

    if (vlm_read_file(variant_path("base", WEIGHTS), 1 << 24, &data, &len,
                      &err)
        == VLM_ERROR)
    {
        tap_ok(0, "%s", err.message);
        return;
    }

    reset("base");
    bad = 0;

    for (n = 0; n < len; n += step) {
        put(WEIGHTS, data, n);

        if (strncmp(open_message(), WEIGHTS ": truncated: ", 30) != 0) {
            tap_diag("%zu bytes: %s", n, open_message());
            bad++;
        }

        step = n < 16 ? 1 : n + 30000 < len ? 17011 : (len - n + 1) / 2;
    }

    tap_is(bad, 0, "a truncated file is told so, wherever it ends");

    put(WEIGHTS, data, 100);
    tap_str(open_message(), "model.safetensors: truncated: header of 7952 "
            "bytes in a file of 100", "truncated in the header");

    put(WEIGHTS, data, len - 2);
    tap_str(open_message(), "model.safetensors: truncated: tensor "
            "\"visual.patch_embed.proj.weight\" ends at byte 645344 of the "
            "data, the file has 645342", "truncated in the data");

    put(WEIGHTS, data, 5);
    tap_str(open_message(), "model.safetensors: truncated: 5 bytes, not even "
            "the 8 of the header's length", "truncated at once");

    free(data);
}


static void
test_index(void)
{
    size_t               i;
    static const edit_t  e[] = {
        { INDEX, "{", "{", "opened" },
        { INDEX, "model-00001-of-00003.safetensors",
          "../model.safetensors",
          "model.safetensors.index.json: \"../model.safetensors\" in "
          "weight_map is no plain file name" },
        { INDEX, "model-00001-of-00003.safetensors", "/etc/passwd",
          "model.safetensors.index.json: \"/etc/passwd\" in weight_map is no "
          "plain file name" },
        { INDEX, "model-00001-of-00003.safetensors", "..",
          "model.safetensors.index.json: \"..\" in weight_map is no plain "
          "file name" },
        { INDEX, "model-00001-of-00003.safetensors", "",
          "model.safetensors.index.json: \"\" in weight_map is no plain file "
          "name" },
        { INDEX, "model-00001-of-00003.safetensors", "other.safetensors",
          "other.safetensors: No such file or directory" },
        { INDEX, "model-00001-of-00003.safetensors",
          "model-00002-of-00003.safetensors",
          "model.safetensors.index.json: tensor "
          "\"visual.patch_embed.proj.weight\" is not in "
          "\"model-00002-of-00003.safetensors\"" },
        { INDEX, "weight_map", "weight_maps",
          "model.safetensors.index.json: no weight_map" },
        { INDEX, "visual.blocks.0.norm1.weight",
          "visual.blocks.0.n\\u0000m1.weight",
          "model.safetensors.index.json: tensor \"visual.blocks.0.n" },
        { INDEX, "", "{\"weight_map\": {\"a\": 1}}",
          "model.safetensors.index.json: a file name in weight_map is no "
          "string" }
    };

    for (i = 0; i < sizeof(e) / sizeof(e[0]); i++) {
        reset("untied_sharded");
        edit("untied_sharded", e[i].file, e[i].from, e[i].to);

        if (i == 8) {
            tap_ok(strncmp(open_message(), e[i].message,
                           strlen(e[i].message))
                   == 0, "%s: a zero byte in a name", e[i].file);
            continue;
        }

        tap_str(open_message(), e[i].message, "%s: %s", e[i].file, e[i].to);
    }

    /* the index counts, whatever else lies there */

    reset("untied_sharded");
    edit("untied_sharded", INDEX, "\"lm_head.weight\"", "\"lm_hexd.weight\"");
    tap_str(open_message(), "model.safetensors.index.json: tensor "
            "\"lm_hexd.weight\" is not in "
            "\"model-00003-of-00003.safetensors\"", "listed but not there");
}


static const char *
header_message(const char *header, size_t data)
{
    int                  i;
    size_t               n;
    uint8_t             *file;
    vlm_error_t          err;
    vlm_safetensors_t   *st;
    static char          text[sizeof(err.message)];

    n = strlen(header);
    file = calloc(1, 8 + n + data);
    st = vlm_st_create(&err);

    for (i = 0; i < 8; i++) {
        file[i] = (uint8_t) (n >> 8 * i);
    }

    memcpy(file + 8, header, n);

    snprintf(text, sizeof(text), "%s",
             vlm_st_add(st, "f", file, 8 + n + data, &err) == VLM_OK
             ? "fine" : err.message);

    vlm_st_free(st);
    free(file);

    return text;
}


#define A(rest)     "{\"a\":{\"dtype\":\"F32\"," rest "}}"

static void
test_headers(void)
{
    size_t               i;
    static const struct {
        const char  *header;
        size_t       data;
        const char  *message;
    } h[] = {
        { "{}", 0, "fine" },
        { "{\"__metadata__\":{\"format\":\"pt\"}}   ", 0, "fine" },
        { A("\"shape\":[2],\"data_offsets\":[0,8]"), 8, "fine" },
        { A("\"shape\":[],\"data_offsets\":[0,4]"), 4, "fine" },
        { A("\"shape\":[0,5],\"data_offsets\":[0,0]"), 0, "fine" },
        { "[]", 0, "f: header is no JSON object" },
        { "{}", 1, "f: 1 bytes of data but no tensor" },
        { "{\"a\":1}", 0, "f: tensor \"a\" has no dtype" },
        { A("\"data_offsets\":[0,8]"), 8,
          "f: tensor \"a\" has no shape of at most 8 numbers" },
        { A("\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]"), 8,
          "f: tensor \"a\" has no shape of at most 8 numbers" },
        { A("\"shape\":[-2],\"data_offsets\":[0,8]"), 8,
          "f: tensor \"a\" has a bad number in its shape" },
        { A("\"shape\":[2.5],\"data_offsets\":[0,8]"), 8,
          "f: tensor \"a\" has a bad number in its shape" },
        { A("\"shape\":[2147483647,2147483647,2147483647],"
            "\"data_offsets\":[0,8]"), 8,
          "f: tensor \"a\" has a bad number in its shape" },
        { A("\"shape\":[2]"), 8, "f: tensor \"a\" has bad data_offsets" },
        { A("\"shape\":[2],\"data_offsets\":[0]"), 8,
          "f: tensor \"a\" has bad data_offsets" },
        { A("\"shape\":[2],\"data_offsets\":[8,0]"), 8,
          "f: tensor \"a\" has bad data_offsets" },
        { A("\"shape\":[2],\"data_offsets\":[-8,0]"), 8,
          "f: tensor \"a\" has bad data_offsets" },
        { A("\"shape\":[2],\"data_offsets\":[0,8]"), 7,
          "f: truncated: tensor \"a\" ends at byte 8 of the data, the file "
          "has 7" },
        { A("\"shape\":[2],\"data_offsets\":[0,8]"), 9,
          "f: 1 bytes after the last tensor" },
        { A("\"shape\":[2],\"data_offsets\":[4,12]"), 12,
          "f: 4 bytes before tensor \"a\" belong to none" },
        { A("\"shape\":[2],\"data_offsets\":[0,9]"), 9,
          "f: tensor \"a\" has 9 bytes, no multiple of 4" },
        { A("\"shape\":[3],\"data_offsets\":[0,8]"), 8,
          "f: tensor \"a\" has 8 bytes, its shape needs 3 elements of 4" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
          "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
          12, "f: tensor \"b\" overlaps \"a\"" },
        { "{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[2],"
          "\"data_offsets\":[0,8]}}", 8,
          "f: a tensor's name has a zero byte" }
    };

    for (i = 0; i < sizeof(h) / sizeof(h[0]); i++) {
        tap_str(header_message(h[i].header, h[i].data), h[i].message,
                "header %s", h[i].header);
    }
}


int
main(void)
{
    uint8_t             huge[16];
    vlm_error_t         err;
    vlm_safetensors_t  *st;

    snprintf(dir, sizeof(dir), "/tmp/vlm_model_errors.XXXXXX");

    if (mkdtemp(dir) == NULL) {
        tap_ok(0, "a directory");
        return tap_done();
    }

    test_edits();
    test_missing();
    test_truncated();
    test_index();
    test_headers();

    memset(huge, 0xff, sizeof(huge));
    st = vlm_st_create(&err);
    vlm_st_add(st, "f", huge, sizeof(huge), &err);
    tap_str(err.message, "f: header of 18446744073709551615 bytes, the limit "
            "is 100000000: no safetensors file, or a pointer of Git LFS in "
            "its place", "a length that cannot be");
    vlm_st_free(st);

    clear();
    rmdir(dir);

    return tap_done();
}
