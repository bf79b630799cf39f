
/* The options: what there is, for which command, and its default. */

#include <float.h>
#include <stdio.h>
#include <string.h>

#include "engine/cli/options.h"


#define S           VLM_CMD_SERVE
#define R           VLM_CMD_RUN
#define I           VLM_CMD_INFO
#define D           VLM_CMD_DECODE
#define P           VLM_CMD_PIXELS
#define T           VLM_CMD_TOKENIZE
#define ALL         (S|R|I|D|P|T)
#define OFF(field)  VLM_OPTION(field)
#define ENG(field)  VLM_OPTION(server.engine.field)
#define SAM(field)  VLM_OPTION(sampling.field)

static const vlm_option_t  options[] = {

    { "model", "DIR", S|R, vlm_set_string, ENG(model), 0, 0, 0,
      "checkpoint directory" },
    { "socket", "PATH", S, vlm_set_string, OFF(server.socket), 0, 0, 0,
      "unix socket to listen on" },
    { "socket-mode", "MODE", S, vlm_set_mode, OFF(server.mode), 0, 0, 0,
      "its permissions (0660)" },
    { "socket-group", "NAME", S, vlm_set_string, OFF(server.group), 0, 0, 0,
      "its group" },
    { "served-model-name", "NAME", S, vlm_set_name, ENG(name), 0, 0, 0,
      "the model's name in requests (name of DIR)" },
    { "check", NULL, S, vlm_set_flag, OFF(check), 0, 0, 0,
      "check the model and the memory it needs, then exit" },

    { "image", "FILE", R, vlm_set_image, 0, 0, 0, 0,
      "a picture: JPEG, PNG, WebP, GIF or PPM; repeatable" },
    { "prompt", "TEXT", R, vlm_set_string, OFF(prompt), 0, 0, 0,
      "the question" },
    { "system", "TEXT", R, vlm_set_string, OFF(system), 0, 0, 0,
      "the system message" },
    { "messages", "FILE", R, vlm_set_string, OFF(messages), 0, 0, 0,
      "a chat as JSON instead" },
    { "max-tokens", "N", R, vlm_set_max_tokens, 0, 0, 0, VLM_SET_MAX_TOKENS,
      "length of the answer at most (1024)" },
    { "temperature", "T", R, vlm_set_float, SAM(temperature), 0, 2,
      VLM_SET_TEMPERATURE, "0 is greedy" },
    { "top-p", "P", R, vlm_set_float, SAM(top_p), FLT_TRUE_MIN, 1,
      VLM_SET_TOP_P,
      "the most likely tokens that have this share; 1 is off" },
    { "top-k", "K", R, vlm_set_top_k, SAM(top_k), -1, INT32_MAX, VLM_SET_TOP_K,
      "0 is off" },
    { "min-p", "P", R, vlm_set_float, SAM(min_p), 0, 1, VLM_SET_MIN_P,
      "tokens this likely beside the likeliest; 0 is off" },
    { "presence-penalty", "X", R, vlm_set_float, SAM(presence), -2, 2,
      VLM_SET_PRESENCE, "on tokens that were used; 0 is off" },
    { "frequency-penalty", "X", R, vlm_set_float, SAM(frequency), -2, 2,
      VLM_SET_FREQUENCY, "for each time they were; 0 is off" },
    { "repetition-penalty", "X", R, vlm_set_float, SAM(repetition),
      FLT_TRUE_MIN, 10, VLM_SET_REPETITION, "1 is off" },
    { "seed", "N", R, vlm_set_seed, 0, 0, 0, VLM_SET_SEED,
      "the same one gives the same answer" },
    { "logprobs", "N", R, vlm_set_logprobs, SAM(top_logprobs), 0,
      VLM_MAX_TOP_LOGPROBS, 0,
      "log probabilities of tokens and of N others, in JSON" },
    { "stop", "TEXT", R, vlm_set_stop, 0, 0, 0, 0,
      "ends the answer; repeatable" },
    { "detail", "auto|low|high", R|P, vlm_set_detail, OFF(detail), 0, 0, 0,
      "size at which pictures are looked at" },
    { "ignore-eos", NULL, R, vlm_set_flag, OFF(ignore_eos), 0, 0, 0,
      "go on to --max-tokens" },
    { "json", NULL, R|I, vlm_set_flag, OFF(json), 0, 0, 0, "answer in JSON" },
    { "logits-digest", NULL, R, vlm_set_flag, ENG(digest), 0, 0, 0, NULL },

    { "size", "WxH", I, vlm_set_size, 0, 0, 0, 0,
      "what a picture of this size costs" },
    { "out", "FILE", D|P, vlm_set_string, OFF(out), 0, 0, 0, "the result" },
    { "special", NULL, T, vlm_set_flag, OFF(special), 0, 0, 0,
      "recognise added tokens in the text" },
    { "decode", NULL, T, vlm_set_flag, OFF(decode), 0, 0, 0,
      "from ids to text" },

    { "device", "auto|cpu|cuda[:N]|emu", S|R, vlm_set_device, 0, 0, 0, 0,
      "where to compute; emu is for tests" },
    { "gpu-memory-utilization", "X", S|R, vlm_set_float, ENG(gpu_utilization),
      0.01, 1, 0, "share of a GPU's memory to take (0.9)" },
    { "threads", "N", S|R, vlm_set_int, ENG(threads), 1, 1024, 0,
      "threads that compute (all CPUs)" },
    { "image-threads", "N", S|R, vlm_set_int, ENG(image_threads), 1, 64, 0,
      "threads that decode pictures (2)" },
    { "deterministic", NULL, S|R, vlm_set_flag, ENG(deterministic), 0, 0, 0,
      "same bits every time: always so on the CPU" },
    { "embedding-dtype", "bf16|f16|f32|int8", S|R, vlm_set_dtype, 0, 0, 0, 0,
      "type to which pictures' embeddings are rounded (bf16)" },
    { "quantization", "none|int8", S|R|I, vlm_set_quant, ENG(quant), 0, 0, 0,
      "smaller weights of the decoder, nearly the same answers (none)" },
    { "vision-quantization", "none|int8|fp8", S|R|I, vlm_set_quant,
      ENG(vision_quant), 0, 0, 0, "the same of the vision tower (none)" },
    { "max-model-len", "N", S|R, vlm_set_int, ENG(max_model_len), 16, 1e9, 0,
      "tokens of prompt and answer (the model's, if memory allows)" },
    { "max-num-seqs", "N", S|R, vlm_set_int, ENG(max_num_seqs), 1, 1024, 0,
      "requests that run at once (16)" },
    { "max-num-batched-tokens", "N", S|R, vlm_set_int, ENG(max_rows), 1, 65536,
      0, "tokens of one step (256)" },
    { "max-token-gap-factor", "G", S|R, vlm_set_factor, ENG(gap_factor), 1.01,
      100, 0, "how much longer other work may make a step (1.5)" },
    { "max-queue", "N", S, vlm_set_int, ENG(max_queue), 1, 1e6, 0,
      "requests that wait (64)" },
    { "queue-timeout", "S", S, vlm_set_seconds, ENG(queue_timeout_ms), 0.001,
      86400, 0, "how long they wait (30)" },
    { "limit-images-per-prompt", "N", S|R, vlm_set_int, ENG(max_images), 0,
      VLM_MAX_PICTURES, 0, "pictures of one request (16)" },
    { "max-image-pixels", "N", S|R|D|P, vlm_set_u64, ENG(max_image_pixels), 1,
      4294836225.0, 0, "pixels of one picture before resizing (67108864, "
      "fewer where memory is short)" },
    { "min-pixels", "N", S|R|I|P, vlm_set_u64, ENG(min_pixels), 1, 1e12, 0,
      "pixels of one picture after resizing" },
    { "max-pixels", "N", S|R|I|P, vlm_set_u64, ENG(max_pixels), 1, 1e12, 0,
      "the same, at most (the checkpoint's, capped at 1003520)" },
    { "kv-cache-memory", "SIZE", S|R, vlm_set_bytes, ENG(kv_memory), 1, 1e18,
      0, "memory of the KV cache (1g or one context, if there is)" },
    { "block-size", "N", S|R, vlm_set_block, ENG(block_size), 16, 256, 0,
      "tokens of one block of it (16)" },
    { "prefix-cache", "on|off", S|R, vlm_set_on, ENG(prefix_cache), 0, 0, 0,
      "keep what prompts begin with (on)" },
    { "embedding-cache-memory", "SIZE", S|R, vlm_set_bytes, ENG(cache_memory),
      0, 1e18, 0, "memory for embeddings of pictures seen before (256m)" },
    { "redis", "URL", S|R, vlm_set_string, OFF(redis), 0, 0, 0,
      "redis://HOST[:PORT][/DB] or unix:PATH, shared with other engines" },
    { "redis-password-file", "FILE", S|R, vlm_set_string, OFF(redis_password),
      0, 0, 0, "its password; or put the URL with it into VLM_REDIS_URL" },
    { "redis-ttl", "S", S|R, vlm_set_seconds, ENG(redis_ttl_ms), 1, 3e8, 0,
      "how long an embedding is kept there (604800, a week)" },
    { "redis-timeout", "MS", S|R, vlm_set_u64, ENG(redis_timeout_ms), 1, 60000,
      0, "time for a look-up (a quarter of that of encoding, 20 to 500)" },
    { "redis-max-value", "SIZE", S|R, vlm_set_bytes, ENG(redis_max_value),
      1024, 536870912, 0, "larger embeddings are not kept there (16m)" },
    { "log-level", "LEVEL", ALL, vlm_set_log, 0, 0, 0, 0,
      "error, warn, info or debug" },

    { "help", NULL, ALL, vlm_set_flag, OFF(help), 0, 0, 0, "this text" },
    { "version", NULL, ALL, vlm_set_flag, OFF(version), 0, 0, 0,
      "the version" },
    { NULL, NULL, 0, NULL, 0, 0, 0, 0, NULL }
};


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
