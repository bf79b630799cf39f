
/* Options: every kind of value, good and bad. */

#include <string.h>

#include "engine/cli/cli.h"
#include "t/unit/lib/tap.h"


static const vlm_command_t  serve = { "", VLM_CMD_SERVE, 0, "", "", NULL };
static const vlm_command_t  run = { "run", VLM_CMD_RUN, 0, "", "", NULL };
static const vlm_command_t  info = { "info", VLM_CMD_INFO, 1, "", "", NULL };


typedef struct {
    const vlm_command_t    *cmd;
    const char             *args[4];
    const char             *message;        /* begins so */
} bad_t;

static const bad_t  bads[] = {
    { &serve, { "--foo" }, "unknown option \"--foo\"" },
    { &serve, { "-m" }, "unknown option \"-m\"" },
    { &serve, { "--" }, "unknown option \"--\"" },
    { &serve, { "--mode", "x" }, "unknown option \"--mode\"" },
    { &serve, { "x" }, "unexpected argument \"x\"" },
    { &info, { "a", "b" }, "unexpected argument \"b\"" },
    { &serve, { "--model" }, "--model needs a value" },
    { &serve, { "--model", "" }, "--model \"\": must not be empty" },
    { &serve, { "--check=1" }, "--check takes no value" },
    { &serve, { "--prompt", "x" }, "option --prompt is not one of" },
    { &serve, { "--threads", "0" },
      "--threads 0 is out of range: 1 to 1024" },
    { &serve, { "--threads", "1025" },
      "--threads 1025 is out of range: 1 to 1024" },
    { &serve, { "--threads", "two" },
      "--threads \"two\": must be a whole number" },
    { &serve, { "--threads", "1.5" },
      "--threads \"1.5\": must be a whole number" },
    { &serve, { "--threads", "" }, "--threads \"\": must be a number" },
    { &serve, { "--threads", "-" }, "--threads \"-\": must be a number" },
    { &serve, { "--queue-timeout", "0" },
      "--queue-timeout 0 is out of range" },
    { &serve, { "--queue-timeout", "nan" },
      "--queue-timeout \"nan\": must be a number" },
    { &serve, { "--socket-mode", "888" }, "--socket-mode \"888\": must be" },
    { &serve, { "--socket-mode", "7777" },
      "--socket-mode \"7777\": must be" },
    { &serve, { "--block-size", "24" },
      "--block-size \"24\": must be a multiple of 16" },
    { &serve, { "--kv-cache-memory", "1x" },
      "--kv-cache-memory \"1x\": must be a size" },
    { &serve, { "--kv-cache-memory", "99999999999g" },
      "--kv-cache-memory \"99999999999g\": must be a size" },
    { &serve, { "--device", "cuda:" },
      "--device \"cuda:\": must be auto, cpu, cuda, cuda:N or emu" },
    { &serve, { "--device", "cuda:-1" }, "--device \"cuda:-1\": must be" },
    { &serve, { "--device", "cuda:1x" }, "--device \"cuda:1x\": must be" },
    { &serve, { "--device", "tpu" }, "--device \"tpu\": must be auto, cpu" },
    { &serve, { "--gpu-memory-utilization", "1.1" },
      "--gpu-memory-utilization 1.1 is out of range: 0.01 to 1" },
    { &serve, { "--embedding-dtype", "f64" },
      "--embedding-dtype \"f64\": must be bf16, f16, f32 or int8" },
    { &serve, { "--quantization", "fp8" },
      "--quantization \"fp8\": must be none or int8" },
    { &serve, { "--vision-quantization", "int4" },
      "--vision-quantization \"int4\": must be none, int8 or fp8" },
    { &serve, { "--prefix-cache", "yes" },
      "--prefix-cache \"yes\": must be on or off" },
    { &serve, { "--embedding-cache-memory", "x" },
      "--embedding-cache-memory \"x\": must be a size" },
    { &serve, { "--redis-max-value", "1g" },
      "--redis-max-value 1g is out of range: 1024 to 536870912" },
    { &serve, { "--redis-timeout", "0" },
      "--redis-timeout 0 is out of range: 1 to 60000" },
    { &serve, { "--log-level", "loud" }, "--log-level \"loud\": must be" },
    { &serve, { "--max-token-gap-factor", "1" },
      "--max-token-gap-factor 1 is out of range: 1.01 to 100" },
    { &run, { "--logprobs", "21" },
      "--logprobs 21 is out of range: 0 to 20" },
    { &run, { "--temperature", "2.1" },
      "--temperature 2.1 is out of range: 0 to 2" },
    { &run, { "--top-p", "0" }, "--top-p 0 is out of range" },
    { &run, { "--top-p", "1e-50" },
      "--top-p 1e-50 is out of range: above 0, at most 1" },
    { &run, { "--top-p", "0x1" }, "--top-p \"0x1\": must be a number" },
    { &run, { "--top-p", " 1" }, "--top-p \" 1\": must be a number" },
    { &run, { "--top-k", "-2" },
      "--top-k -2 is out of range: -1 to 2147483647" },
    { &run, { "--repetition-penalty", "0" },
      "--repetition-penalty 0 is out of range: above 0, at most 10" },
    { &run, { "--max-tokens", "0" },
      "--max-tokens \"0\": must be at least 1" },
    { &run, { "--max-tokens", "-5" },
      "--max-tokens \"-5\": must be at least 1" },
    { &run, { "--max-tokens", "1e3" },
      "--max-tokens \"1e3\": must be a whole number" },
    { &run, { "--seed", "-9223372036854775809" },
      "--seed \"-9223372036854775809\": must be an integer of 64 bits" },
    { &run, { "--seed", "18446744073709551616" },
      "--seed \"18446744073709551616\": must be an integer of 64 bits" },
    { &run, { "--stop", "" }, "--stop: at most" },
    { &run, { "--detail", "x" }, "--detail \"x\": must be" },
    { &info, { "--size", "640" }, "--size \"640\": must be WIDTHxHEIGHT" },
    { &info, { "--size", "0x5" }, "--size \"0x5\": must be" },
    { &info, { "--size", "-5x5" }, "--size \"-5x5\": must be" },
    { &info, { "--size", "5x 5" }, "--size \"5x 5\": must be" },
    { &info, { "--size", "5x5x" }, "--size \"5x5x\": must be" },
    { NULL, { NULL }, NULL }
};


static int
parse(vlm_options_t *o, const vlm_command_t *cmd, const char *const *args,
    vlm_error_t *err)
{
    int  n;

    for (n = 0; n < 4 && args[n] != NULL; n++) {
        /* void */
    }

    return vlm_options_parse(o, cmd, n, (char **) args, err);
}


static void
test_bad(void)
{
    const bad_t    *b;
    vlm_error_t     err;
    vlm_options_t   o;

    for (b = bads; b->cmd != NULL; b++) {
        memset(&err, 0, sizeof(err));

        tap_is(parse(&o, b->cmd, b->args, &err), VLM_ERROR, "%s %s",
               b->args[0], b->args[1] != NULL ? b->args[1] : "");

        if (!tap_ok(strncmp(err.message, b->message, strlen(b->message))
                    == 0, "says \"%s\"", b->message))
        {
            tap_diag("%s", err.message);
        }
    }
}


static void
test_good(void)
{
    vlm_error_t    err;
    vlm_options_t  o;
    const char    *a[] = { "--model=m", "--socket", "s", "--socket-mode=600" };
    const char    *b[] = { "--kv-cache-memory", "64m", "--queue-timeout=1.5",
                           "--embedding-dtype=f32" };
    const char    *c[] = { "--seed=18446744073709551615", "--image=a",
                           "--image", "b" };
    const char    *d[] = { "--temperature", "0.5", "--prompt", "" };
    const char    *e[] = { "--size", "640x480", "dir", "--json" };
    const char    *f[] = { "--gpu-memory-utilization", "0.01", NULL };

    tap_is(parse(&o, &serve, a, &err), VLM_OK, "model and socket");
    tap_str(o.server.engine.model, "m", "model");
    tap_str(o.server.socket, "s", "socket");
    tap_is(o.server.mode, 0600, "mode");
    tap_is(o.server.engine.max_num_seqs, 16, "a default");

    tap_is(parse(&o, &serve, b, &err), VLM_OK, "sizes and times");
    tap_is((long long) o.server.engine.kv_memory, 64 << 20, "64m");
    tap_is((long long) o.server.engine.queue_timeout_ms, 1500, "1.5 s");
    tap_is(o.server.engine.embedding_dtype, VLM_F32, "f32");

    tap_is(parse(&o, &serve, f, &err), VLM_OK, "a lower limit itself");

    tap_is(parse(&o, &run, c, &err), VLM_OK, "seed and images");
    tap_ok(o.sampling.seed == UINT64_MAX, "the largest seed");
    tap_is(o.sampling.set, VLM_SET_SEED, "only the seed is set");
    tap_is(o.nimages, 2, "two images");
    tap_str(o.images[1], "b", "in their order");

    tap_is(parse(&o, &run, d, &err), VLM_OK, "an empty prompt");
    tap_is(o.sampling.set, VLM_SET_TEMPERATURE, "temperature is set");
    tap_ok(o.sampling.temperature == 0.5f, "0.5");

    tap_is(parse(&o, &info, e, &err), VLM_OK, "size");
    tap_is(o.width, 640, "width");
    tap_is(o.height, 480, "height");
    tap_is(o.nargs, 1, "one argument");
    tap_str(o.args[0], "dir", "the directory");
}


/* what a form accepts is accepted here, and means the same */

static void
test_form(void)
{
    vlm_error_t    err;
    vlm_options_t  o;
    const char    *a[] = { "--seed=-1", "--top-k=-1", "--max-tokens",
                           "99999999999999999999999" };
    const char    *b[] = { "--top-p=1e-40", "--temperature=2.00000001",
                           "--repetition-penalty", "0.0001" };

    tap_is(parse(&o, &run, a, &err), VLM_OK, "seed, top-k, max-tokens");
    tap_ok(o.sampling.seed == UINT64_MAX, "seed -1 in 64 bits");
    tap_is(o.sampling.top_k, 0, "top-k -1 is off");
    tap_is(o.sampling.max_tokens, UINT32_MAX, "the most tokens");
    tap_is(o.sampling.set,
           VLM_SET_SEED|VLM_SET_TOP_K|VLM_SET_MAX_TOKENS, "all are set");

    tap_is(parse(&o, &run, b, &err), VLM_OK, "numbers as they are rounded");
    tap_ok(o.sampling.top_p == 1e-40f && o.sampling.temperature == 2
           && o.sampling.repetition == 0.0001f, "to float");
}


int
main(void)
{
    test_bad();
    test_good();
    test_form();

    return tap_done();
}
