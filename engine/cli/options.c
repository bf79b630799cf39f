
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cli/cli.h"


typedef struct vlm_option_s  vlm_option_t;

typedef int (*vlm_option_pt)(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);

struct vlm_option_s {
    const char         *name;
    const char         *value;          /* its name in the help, NULL: none */
    unsigned            commands;
    vlm_option_pt       set;
    size_t              offset;
    double              min;
    double              max;
    uint32_t            bit;            /* of sampling.set */
    const char         *help;           /* NULL: not shown */
};


static int set_flag(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_string(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_int(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_u64(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_float(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_bytes(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_seconds(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_mode(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_block(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_name(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_device(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_dtype(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_detail(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_on(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_quant(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_log(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_logprobs(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_max_tokens(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_top_k(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_seed(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_factor(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_image(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_stop(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
static int set_size(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);


#define S           VLM_CMD_SERVE
#define R           VLM_CMD_RUN
#define I           VLM_CMD_INFO
#define D           VLM_CMD_DECODE
#define P           VLM_CMD_PIXELS
#define T           VLM_CMD_TOKENIZE
#define ALL         (S|R|I|D|P|T)
#define OFF(field)  offsetof(vlm_options_t, field)
#define ENG(field)  offsetof(vlm_options_t, server.engine.field)
#define SAM(field)  offsetof(vlm_options_t, sampling.field)

static const vlm_option_t  options[] = {

    { "model", "DIR", S|R, set_string, ENG(model), 0, 0, 0,
      "checkpoint directory" },
    { "socket", "PATH", S, set_string, OFF(server.socket), 0, 0, 0,
      "unix socket to listen on" },
    { "socket-mode", "MODE", S, set_mode, OFF(server.mode), 0, 0, 0,
      "its permissions (0660)" },
    { "socket-group", "NAME", S, set_string, OFF(server.group), 0, 0, 0,
      "its group" },
    { "served-model-name", "NAME", S, set_name, ENG(name), 0, 0, 0,
      "the model's name in requests (name of DIR)" },
    { "check", NULL, S, set_flag, OFF(check), 0, 0, 0,
      "check the model and the memory it needs, then exit" },

    { "image", "FILE", R, set_image, 0, 0, 0, 0,
      "a picture: JPEG, PNG, WebP, GIF or PPM; repeatable" },
    { "prompt", "TEXT", R, set_string, OFF(prompt), 0, 0, 0, "the question" },
    { "system", "TEXT", R, set_string, OFF(system), 0, 0, 0,
      "the system message" },
    { "messages", "FILE", R, set_string, OFF(messages), 0, 0, 0,
      "a chat as JSON instead" },
    { "max-tokens", "N", R, set_max_tokens, 0, 0, 0, VLM_SET_MAX_TOKENS,
      "length of the answer at most (1024)" },
    { "temperature", "T", R, set_float, SAM(temperature), 0, 2,
      VLM_SET_TEMPERATURE, "0 is greedy" },
    { "top-p", "P", R, set_float, SAM(top_p), FLT_TRUE_MIN, 1,
      VLM_SET_TOP_P,
      "the most likely tokens that have this share; 1 is off" },
    { "top-k", "K", R, set_top_k, SAM(top_k), -1, INT32_MAX, VLM_SET_TOP_K,
      "0 is off" },
    { "min-p", "P", R, set_float, SAM(min_p), 0, 1, VLM_SET_MIN_P,
      "tokens this likely beside the likeliest; 0 is off" },
    { "presence-penalty", "X", R, set_float, SAM(presence), -2, 2,
      VLM_SET_PRESENCE, "on tokens that were used; 0 is off" },
    { "frequency-penalty", "X", R, set_float, SAM(frequency), -2, 2,
      VLM_SET_FREQUENCY, "for each time they were; 0 is off" },
    { "repetition-penalty", "X", R, set_float, SAM(repetition),
      FLT_TRUE_MIN, 10, VLM_SET_REPETITION, "1 is off" },
    { "seed", "N", R, set_seed, 0, 0, 0, VLM_SET_SEED,
      "the same one gives the same answer" },
    { "logprobs", "N", R, set_logprobs, SAM(top_logprobs), 0,
      VLM_MAX_TOP_LOGPROBS, 0,
      "log probabilities of tokens and of N others, in JSON" },
    { "stop", "TEXT", R, set_stop, 0, 0, 0, 0,
      "ends the answer; repeatable" },
    { "detail", "auto|low|high", R|P, set_detail, OFF(detail), 0, 0, 0,
      "size at which pictures are looked at" },
    { "ignore-eos", NULL, R, set_flag, OFF(ignore_eos), 0, 0, 0,
      "go on to --max-tokens" },
    { "json", NULL, R|I, set_flag, OFF(json), 0, 0, 0, "answer in JSON" },
    { "logits-digest", NULL, R, set_flag, ENG(digest), 0, 0, 0, NULL },

    { "size", "WxH", I, set_size, 0, 0, 0, 0,
      "what a picture of this size costs" },
    { "out", "FILE", D|P, set_string, OFF(out), 0, 0, 0, "the result" },
    { "special", NULL, T, set_flag, OFF(special), 0, 0, 0,
      "recognise added tokens in the text" },
    { "decode", NULL, T, set_flag, OFF(decode), 0, 0, 0,
      "from ids to text" },

    { "device", "auto|cpu|cuda[:N]|emu", S|R, set_device, 0, 0, 0, 0,
      "where to compute; emu is for tests" },
    { "gpu-memory-utilization", "X", S|R, set_float, ENG(gpu_utilization),
      0.01, 1, 0, "share of a GPU's memory to take (0.9)" },
    { "threads", "N", S|R, set_int, ENG(threads), 1, 1024, 0,
      "threads that compute (all CPUs)" },
    { "image-threads", "N", S|R, set_int, ENG(image_threads), 1, 64, 0,
      "threads that decode pictures (2)" },
    { "deterministic", NULL, S|R, set_flag, ENG(deterministic), 0, 0, 0,
      "same bits every time: always so on the CPU" },
    { "embedding-dtype", "bf16|f16|f32|int8", S|R, set_dtype, 0, 0, 0, 0,
      "type to which pictures' embeddings are rounded (bf16)" },
    { "quantization", "none|int8", S|R|I, set_quant, ENG(quant), 0, 0, 0,
      "smaller weights of the decoder, nearly the same answers (none)" },
    { "vision-quantization", "none|int8|fp8", S|R|I, set_quant,
      ENG(vision_quant), 0, 0, 0, "the same of the vision tower (none)" },
    { "max-model-len", "N", S|R, set_int, ENG(max_model_len), 16, 1e9, 0,
      "tokens of prompt and answer (the model's, if memory allows)" },
    { "max-num-seqs", "N", S|R, set_int, ENG(max_num_seqs), 1, 1024, 0,
      "requests that run at once (16)" },
    { "max-num-batched-tokens", "N", S|R, set_int, ENG(max_rows), 1, 65536,
      0, "tokens of one step (256)" },
    { "max-token-gap-factor", "G", S|R, set_factor, ENG(gap_factor), 1.01,
      100, 0, "how much longer other work may make a step (1.5)" },
    { "max-queue", "N", S, set_int, ENG(max_queue), 1, 1e6, 0,
      "requests that wait (64)" },
    { "queue-timeout", "S", S, set_seconds, ENG(queue_timeout_ms), 0.001,
      86400, 0, "how long they wait (30)" },
    { "limit-images-per-prompt", "N", S|R, set_int, ENG(max_images), 0,
      VLM_MAX_PICTURES, 0, "pictures of one request (16)" },
    { "max-image-pixels", "N", S|R|D|P, set_u64, ENG(max_image_pixels), 1,
      4294836225.0, 0, "pixels of one picture before resizing (67108864)" },
    { "min-pixels", "N", S|R|I|P, set_u64, ENG(min_pixels), 1, 1e12, 0,
      "pixels of one picture after resizing" },
    { "max-pixels", "N", S|R|I|P, set_u64, ENG(max_pixels), 1, 1e12, 0,
      "the same, at most (the checkpoint's, capped at 1003520)" },
    { "kv-cache-memory", "SIZE", S|R, set_bytes, ENG(kv_memory), 1, 1e18, 0,
      "memory of the KV cache (1g or one context, if there is)" },
    { "block-size", "N", S|R, set_block, ENG(block_size), 16, 256, 0,
      "tokens of one block of it (16)" },
    { "prefix-cache", "on|off", S|R, set_on, ENG(prefix_cache), 0, 0, 0,
      "keep what prompts begin with (on)" },
    { "embedding-cache-memory", "SIZE", S|R, set_bytes, ENG(cache_memory), 0,
      1e18, 0, "memory for embeddings of pictures seen before (256m)" },
    { "redis", "URL", S|R, set_string, OFF(redis), 0, 0, 0,
      "redis://HOST[:PORT][/DB] or unix:PATH, shared with other engines" },
    { "redis-password-file", "FILE", S|R, set_string, OFF(redis_password), 0,
      0, 0, "its password; or put the URL with it into VLM_REDIS_URL" },
    { "redis-ttl", "S", S|R, set_seconds, ENG(redis_ttl_ms), 1, 3e8, 0,
      "how long an embedding is kept there (604800, a week)" },
    { "redis-timeout", "MS", S|R, set_u64, ENG(redis_timeout_ms), 1, 60000,
      0, "time for a look-up (a quarter of that of encoding, 20 to 500)" },
    { "redis-max-value", "SIZE", S|R, set_bytes, ENG(redis_max_value), 1024,
      536870912, 0, "larger embeddings are not kept there (16m)" },
    { "log-level", "LEVEL", ALL, set_log, 0, 0, 0, 0,
      "error, warn, info or debug" },

    { "help", NULL, ALL, set_flag, OFF(help), 0, 0, 0, "this text" },
    { "version", NULL, ALL, set_flag, OFF(version), 0, 0, 0,
      "the version" },
    { NULL, NULL, 0, NULL, 0, 0, 0, 0, NULL }
};


static int
bad(vlm_error_t *err, const vlm_option_t *opt, const char *value,
    const char *why)
{
    return vlm_fail(err, 400, NULL, "--%s \"%.100s\": %s", opt->name, value,
                    why);
}


#define field(o, opt, type)  ((type *) (void *) ((char *) (o) + (opt)->offset))


static int
set_flag(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    *field(o, opt, int) = 1;

    return VLM_OK;
}


static int
set_string(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    if (value[0] == '\0' && opt->offset != OFF(prompt)
        && opt->offset != OFF(system))
    {
        return bad(err, opt, value, "must not be empty");
    }

    *field(o, opt, const char *) = value;

    return VLM_OK;
}


/* as in a form: no white space, no hexadecimal digits */

static int
any_number(const vlm_option_t *opt, const char *value, int whole, double *d,
    vlm_error_t *err)
{
    char  *end;

    if (whole && value[strspn(value, "-0123456789")] != '\0') {
        return bad(err, opt, value, "must be a whole number");
    }

    *d = strtod(value, &end);

    if (end == value || *end != '\0' || !isfinite(*d)
        || value[strspn(value, "-+.eE0123456789")] != '\0')
    {
        return bad(err, opt, value, "must be a number");
    }

    return VLM_OK;
}


static int
in_range(const vlm_option_t *opt, const char *value, double d,
    vlm_error_t *err)
{
    if (d >= opt->min && d <= opt->max) {
        return VLM_OK;
    }

    if (opt->min == FLT_TRUE_MIN) {
        return vlm_fail(err, 400, NULL, "--%s %.40s is out of range: above 0, "
                        "at most %.15g", opt->name, value, opt->max);
    }

    return vlm_fail(err, 400, NULL, "--%s %.40s is out of range: %.15g to "
                    "%.15g", opt->name, value, opt->min, opt->max);
}


/* a number within the option's limits */

static int
number(const vlm_option_t *opt, const char *value, int whole, double *d,
    vlm_error_t *err)
{
    if (any_number(opt, value, whole, d, err) != VLM_OK) {
        return VLM_ERROR;
    }

    return in_range(opt, value, *d, err);
}


static int
set_int(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    double  d;

    if (number(opt, value, 1, &d, err) != VLM_OK) {
        return VLM_ERROR;
    }

    *field(o, opt, int32_t) = (int32_t) d;
    o->sampling.set |= opt->bit;

    return VLM_OK;
}


static int
set_u64(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    char      *end;
    double     d;
    uint64_t   n;

    if (number(opt, value, 1, &d, err) != VLM_OK) {
        return VLM_ERROR;
    }

    errno = 0;
    n = strtoull(value, &end, 10);

    if (errno != 0 || *end != '\0') {
        return bad(err, opt, value, "is too large");
    }

    *field(o, opt, uint64_t) = n;
    o->sampling.set |= opt->bit;

    return VLM_OK;
}


static int
set_float(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    double  d;

    /* what counts is the rounded number */

    if (any_number(opt, value, 0, &d, err) != VLM_OK
        || in_range(opt, value, (float) d, err) != VLM_OK)
    {
        return VLM_ERROR;
    }

    *field(o, opt, float) = (float) d;
    o->sampling.set |= opt->bit;

    return VLM_OK;
}


/* any large number will do: it is lowered to what is possible later */

static int
set_max_tokens(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    double  d;

    if (any_number(opt, value, 1, &d, err) != VLM_OK) {
        return VLM_ERROR;
    }

    if (d < 1) {
        return bad(err, opt, value, "must be at least 1");
    }

    o->sampling.max_tokens = (d > UINT32_MAX) ? UINT32_MAX : (uint32_t) d;
    o->sampling.set |= opt->bit;

    return VLM_OK;
}


/* -1 is another way to say 0, off */

static int
set_top_k(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    if (set_int(o, opt, value, err) != VLM_OK) {
        return VLM_ERROR;
    }

    if (o->sampling.top_k == -1) {
        o->sampling.top_k = 0;
    }

    return VLM_OK;
}


/* 64 bits with or without a sign */

static int
set_seed(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    double  d;

    if (any_number(opt, value, 1, &d, err) != VLM_OK) {
        return VLM_ERROR;
    }

    errno = 0;
    o->sampling.seed = (value[0] == '-')
                       ? (uint64_t) strtoll(value, NULL, 10)
                       : strtoull(value, NULL, 10);

    if (errno != 0) {
        return bad(err, opt, value, "must be an integer of 64 bits");
    }

    o->sampling.set |= opt->bit;

    return VLM_OK;
}


static int
set_factor(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    return number(opt, value, 0, field(o, opt, double), err);
}


static int
set_logprobs(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    o->sampling.logprobs = 1;

    return set_int(o, opt, value, err);
}


static int
set_bytes(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    uint64_t  n;

    if (vlm_parse_size(value, &n) != VLM_OK || (n == 0 && opt->min > 0)) {
        return bad(err, opt, value, "must be a size, as 4096, 64m or 2g");
    }

    if ((double) n < opt->min || (double) n > opt->max) {
        return vlm_fail(err, 400, NULL, "--%s %.40s is out of range: %.15g "
                        "to %.15g", opt->name, value, opt->min, opt->max);
    }

    *field(o, opt, uint64_t) = n;

    return VLM_OK;
}


static int
set_seconds(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    double  d;

    if (number(opt, value, 0, &d, err) != VLM_OK) {
        return VLM_ERROR;
    }

    *field(o, opt, uint64_t) = (uint64_t) (d * 1000 + 0.5);

    return VLM_OK;
}


static int
set_mode(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    char           *end;
    unsigned long   mode;

    mode = strtoul(value, &end, 8);

    if (value[0] < '0' || value[0] > '7' || *end != '\0' || mode > 0777) {
        return bad(err, opt, value, "must be octal, 0 to 0777");
    }

    o->server.mode = (mode_t) mode;

    return VLM_OK;
}


static int
set_block(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    if (set_int(o, opt, value, err) != VLM_OK) {
        return VLM_ERROR;
    }

    if (o->server.engine.block_size % 16 != 0) {
        return bad(err, opt, value, "must be a multiple of 16");
    }

    return VLM_OK;
}


static int
set_name(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    if (strlen(value) >= VLM_MODEL_NAME_LEN) {
        return bad(err, opt, value, "is longer than 127 bytes");
    }

    return set_string(o, opt, value, err);
}


static int
set_device(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    int                 n, index;
    vlm_engine_conf_t  *e;

    e = &o->server.engine;
    n = 0;

    if (strcmp(value, "auto") == 0) {
        e->device = VLM_DEVICE_AUTO;

    } else if (strcmp(value, "cpu") == 0) {
        e->device = VLM_DEVICE_CPU;

    } else if (strcmp(value, "emu") == 0) {
        e->device = VLM_DEVICE_EMU;

    } else if (strcmp(value, "cuda") == 0) {
        e->device = VLM_DEVICE_CUDA;
        e->device_index = 0;

    } else if (sscanf(value, "cuda:%2d%n", &index, &n) == 1
               && value[n] == '\0' && index >= 0)
    {
        e->device = VLM_DEVICE_CUDA;
        e->device_index = index;

    } else {
        return bad(err, opt, value, "must be auto, cpu, cuda, cuda:N or emu");
    }

    return VLM_OK;
}


static int
set_dtype(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    vlm_dtype_t  *dtype;

    dtype = &o->server.engine.embedding_dtype;

    if (strcmp(value, "bf16") == 0) {
        *dtype = VLM_BF16;

    } else if (strcmp(value, "f16") == 0) {
        *dtype = VLM_F16;

    } else if (strcmp(value, "f32") == 0) {
        *dtype = VLM_F32;

    } else if (strcmp(value, "int8") == 0) {
        *dtype = VLM_I8;

    } else {
        return bad(err, opt, value, "must be bf16, f16, f32 or int8");
    }

    return VLM_OK;
}


static int
set_detail(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    if (strcmp(value, "auto") == 0) {
        o->detail = VLM_DETAIL_AUTO;

    } else if (strcmp(value, "low") == 0) {
        o->detail = VLM_DETAIL_LOW;

    } else if (strcmp(value, "high") == 0) {
        o->detail = VLM_DETAIL_HIGH;

    } else {
        return bad(err, opt, value, "must be auto, low or high");
    }

    return VLM_OK;
}


static int
set_on(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    if (strcmp(value, "on") == 0) {
        *field(o, opt, int) = 1;

    } else if (strcmp(value, "off") == 0) {
        *field(o, opt, int) = 0;

    } else {
        return bad(err, opt, value, "must be on or off");
    }

    return VLM_OK;
}


static int
set_quant(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    vlm_quant_t  *quant;

    quant = field(o, opt, vlm_quant_t);

    if (strcmp(value, "none") == 0) {
        *quant = VLM_QUANT_NONE;

    } else if (strcmp(value, "int8") == 0) {
        *quant = VLM_QUANT_INT8;

    } else if (strcmp(value, "fp8") == 0
               && opt->offset == ENG(vision_quant))
    {
        *quant = VLM_QUANT_FP8;

    } else {
        return bad(err, opt, value, opt->offset == ENG(vision_quant)
                                    ? "must be none, int8 or fp8"
                                    : "must be none or int8");
    }

    return VLM_OK;
}


static int
set_log(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    if (vlm_log_level(value) != VLM_OK) {
        return bad(err, opt, value, "must be error, warn, info or debug");
    }

    return VLM_OK;
}


static int
set_image(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    if (o->nimages == VLM_MAX_PICTURES) {
        return vlm_fail(err, 400, NULL, "more than %d --image",
                        VLM_MAX_PICTURES);
    }

    o->images[o->nimages++] = value;

    return VLM_OK;
}


static int
set_stop(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    size_t  len;

    len = strlen(value);

    if (len == 0 || len > VLM_MAX_STOP_LEN || o->nstops == VLM_MAX_STOPS) {
        return vlm_fail(err, 400, NULL, "--stop: at most %d, each of 1 to %d "
                        "bytes", VLM_MAX_STOPS, VLM_MAX_STOP_LEN);
    }

    o->stops[o->nstops++] = value;

    return VLM_OK;
}


static int
set_size(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    int  n;

    n = 0;

    if (value[strspn(value, "0123456789x")] != '\0'
        || sscanf(value, "%6ux%6u%n", &o->width, &o->height, &n) != 2
        || value[n] != '\0' || o->width == 0 || o->height == 0)
    {
        return bad(err, opt, value, "must be WIDTHxHEIGHT, as 640x480");
    }

    return VLM_OK;
}


static void
set_defaults(vlm_options_t *o)
{
    vlm_engine_conf_t  *e;

    memset(o, 0, sizeof(*o));

    o->server.mode = 0660;
    o->server.signals = 1;
    o->sampling.nchoices = 1;

    e = &o->server.engine;
    e->image_threads = 2;
    e->gpu_utilization = 0.9f;
    e->embedding_dtype = VLM_BF16;
    e->max_num_seqs = 16;
    e->max_rows = 256;
    e->max_queue = 64;
    e->queue_timeout_ms = 30000;
    e->max_images = 16;
    e->max_image_pixels = 67108864;
    e->block_size = 16;
    e->prefix_cache = 1;
    e->cache_memory = 256u << 20;
    e->redis_ttl_ms = 604800000;
    e->redis_max_value = 16u << 20;
    e->gap_factor = VLM_DEFAULT_GAP_FACTOR;
}


static const vlm_option_t *
find(const char *name, size_t len)
{
    const vlm_option_t  *opt;

    for (opt = options; opt->name != NULL; opt++) {
        if (strncmp(opt->name, name, len) == 0 && opt->name[len] == '\0') {
            return opt;
        }
    }

    return NULL;
}


int
vlm_options_parse(vlm_options_t *o, const vlm_command_t *cmd, int argc,
    char **argv, vlm_error_t *err)
{
    int                  i;
    size_t               len;
    const char          *arg, *value;
    const vlm_option_t  *opt;

    set_defaults(o);

    /* an answer on the terminal is not to be mixed with progress */
    (void) vlm_log_level(cmd->bit == VLM_CMD_SERVE ? "info" : "warn");

    for (i = 0; i < argc; i++) {
        arg = argv[i];

        if (arg[0] != '-' || arg[1] == '\0') {

            if (o->nargs == cmd->nargs) {
                return vlm_fail(err, 400, NULL, "unexpected argument "
                                "\"%.100s\"", arg);
            }

            o->args[o->nargs++] = arg;
            continue;
        }

        len = strcspn(arg, "=");
        opt = (arg[1] == '-') ? find(arg + 2, len - 2) : NULL;

        if (opt == NULL) {
            return vlm_fail(err, 400, NULL, "unknown option \"%.100s\"", arg);
        }

        if ((opt->commands & cmd->bit) == 0) {
            return vlm_fail(err, 400, NULL, "option --%s is not one of "
                            "\"vlm-engine%s%s\"", opt->name,
                            cmd->name[0] ? " " : "", cmd->name);
        }

        value = NULL;

        if (opt->value == NULL) {
            if (arg[len] == '=') {
                return vlm_fail(err, 400, NULL, "--%s takes no value",
                                opt->name);
            }

        } else if (arg[len] == '=') {
            value = arg + len + 1;

        } else if (i + 1 < argc) {
            value = argv[++i];

        } else {
            return vlm_fail(err, 400, NULL, "--%s needs a value", opt->name);
        }

        if (opt->set(o, opt, value, err) != VLM_OK) {
            return VLM_ERROR;
        }
    }

    return VLM_OK;
}


void
vlm_options_help(const vlm_command_t *cmd)
{
    int                  n;
    const vlm_option_t  *opt;

    for (opt = options; opt->name != NULL; opt++) {

        if ((opt->commands & cmd->bit) == 0 || opt->help == NULL) {
            continue;
        }

        n = printf("  --%s%s%s", opt->name, opt->value != NULL ? " " : "",
                   opt->value != NULL ? opt->value : "");

        printf("%*s%s\n", n < 34 ? 34 - n : 1, "", opt->help);
    }
}
