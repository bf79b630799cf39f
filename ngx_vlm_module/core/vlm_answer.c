
#include <string.h>

#include "engine/channel/vlm_logprob.h"

#include "vlm_answer.h"


static void chunk_begin(vlm_out_t *o, const vlm_answer_t *a);
static void chunk_choice(vlm_out_t *o, const vlm_answer_t *a,
    unsigned choice);
static void chunk_end(vlm_out_t *o, const vlm_answer_t *a,
    const char *reason, const void *logprobs, size_t nlogprobs);
static void put_head(vlm_out_t *o, const vlm_answer_t *a,
    const char *object);
static void put_field(vlm_out_t *o, const char *before, uint64_t n);
static void put_string(vlm_out_t *o, const char *before, const char *s);
static void put_usage(vlm_out_t *o, const vlm_usage_t *usage);
static void put_error(vlm_out_t *o, const vlm_fail_t *fail);
static void put_logprobs(vlm_out_t *o, const void *p, size_t len);
static void put_token(vlm_out_t *o, const vlm_logprob_t *token);
static void put_logprob(vlm_out_t *o, float logprob);
static const char *reason_name(unsigned reason);


void
vlm_sse_role(vlm_out_t *o, const vlm_answer_t *a, unsigned choice)
{
    chunk_choice(o, a, choice);
    vlm_out_str(o, "\"role\":\"assistant\",\"content\":\"\"");
    chunk_end(o, a, NULL, NULL, 0);
}


void
vlm_sse_text(vlm_out_t *o, const vlm_answer_t *a, unsigned choice,
    const char *text, size_t len, const void *logprobs, size_t nlogprobs)
{
    chunk_choice(o, a, choice);
    vlm_out_str(o, "\"content\":\"");
    vlm_out_json(o, text, len);
    vlm_out_str(o, "\"");
    chunk_end(o, a, NULL, logprobs, nlogprobs);
}


void
vlm_sse_finish(vlm_out_t *o, const vlm_answer_t *a, unsigned choice,
    unsigned reason)
{
    chunk_choice(o, a, choice);
    chunk_end(o, a, reason_name(reason), NULL, 0);
}


void
vlm_sse_usage(vlm_out_t *o, const vlm_answer_t *a, const vlm_usage_t *usage)
{
    chunk_begin(o, a);
    vlm_out_str(o, "\"choices\":[],");
    put_usage(o, usage);
    vlm_out_str(o, "}\n\n");
}


void
vlm_sse_done(vlm_out_t *o)
{
    vlm_out_str(o, "data: [DONE]\n\n");
}


void
vlm_sse_error(vlm_out_t *o, const vlm_fail_t *fail)
{
    vlm_out_str(o, "data: ");
    put_error(o, fail);
    vlm_out_str(o, "\n\n");
}


void
vlm_sse_ping(vlm_out_t *o)
{
    vlm_out_str(o, ": ping\n\n");
}


void
vlm_json_begin(vlm_out_t *o, const vlm_answer_t *a)
{
    put_head(o, a, "chat.completion");
    vlm_out_str(o, "\"choices\":[");
}


void
vlm_json_choice(vlm_out_t *o, unsigned choice)
{
    put_field(o, (choice == 0) ? "{\"index\":" : ",{\"index\":", choice);
    vlm_out_str(o, ",\"message\":{\"role\":\"assistant\",\"content\":\"");
}


void
vlm_json_finish(vlm_out_t *o, unsigned reason, const void *logprobs,
    size_t nlogprobs)
{
    vlm_out_str(o, "\"},\"logprobs\":");
    put_logprobs(o, logprobs, nlogprobs);
    put_string(o, ",\"finish_reason\":", reason_name(reason));
    vlm_out_str(o, "}");
}


void
vlm_json_end(vlm_out_t *o, const vlm_usage_t *usage)
{
    vlm_out_str(o, "],");
    put_usage(o, usage);
    vlm_out_str(o, "}\n");
}


void
vlm_json_error(vlm_out_t *o, const vlm_fail_t *fail)
{
    put_error(o, fail);
    vlm_out_str(o, "\n");
}


static void
chunk_begin(vlm_out_t *o, const vlm_answer_t *a)
{
    vlm_out_str(o, "data: ");
    put_head(o, a, "chat.completion.chunk");
}


static void
chunk_choice(vlm_out_t *o, const vlm_answer_t *a, unsigned choice)
{
    chunk_begin(o, a);
    put_field(o, "\"choices\":[{\"index\":", choice);
    vlm_out_str(o, ",\"delta\":{");
}


static void
chunk_end(vlm_out_t *o, const vlm_answer_t *a, const char *reason,
    const void *logprobs, size_t nlogprobs)
{
    vlm_out_str(o, "},\"logprobs\":");
    put_logprobs(o, logprobs, nlogprobs);
    put_string(o, ",\"finish_reason\":", reason);
    vlm_out_str(o, a->usage ? "}],\"usage\":null}\n\n" : "}]}\n\n");
}


static void
put_head(vlm_out_t *o, const vlm_answer_t *a, const char *object)
{
    vlm_out_str(o, "{\"id\":\"chatcmpl-");
    vlm_out_json(o, a->id, a->id_len);
    put_string(o, "\",\"object\":", object);
    put_field(o, ",\"created\":", a->created);
    vlm_out_str(o, ",\"model\":\"");
    vlm_out_json(o, a->model, a->model_len);
    vlm_out_str(o, "\",");
}


static void
put_field(vlm_out_t *o, const char *before, uint64_t n)
{
    vlm_out_str(o, before);
    vlm_out_uint(o, n);
}


static void
put_string(vlm_out_t *o, const char *before, const char *s)
{
    vlm_out_str(o, before);

    if (s == NULL || s[0] == '\0') {
        vlm_out_str(o, "null");
        return;
    }

    vlm_out_str(o, "\"");
    vlm_out_json(o, s, strlen(s));
    vlm_out_str(o, "\"");
}


static void
put_usage(vlm_out_t *o, const vlm_usage_t *u)
{
    put_field(o, "\"usage\":{\"prompt_tokens\":", u->prompt_tokens);
    put_field(o, ",\"completion_tokens\":", u->completion_tokens);
    put_field(o, ",\"total_tokens\":",
              (uint64_t) u->prompt_tokens + u->completion_tokens);
    put_field(o, ",\"prompt_tokens_details\":{\"cached_tokens\":",
              u->cached_tokens);
    put_field(o, ",\"image_tokens\":", u->image_tokens);
    vlm_out_str(o, "}}");
}


static void
put_error(vlm_out_t *o, const vlm_fail_t *fail)
{
    vlm_out_str(o, "{\"error\":{\"message\":\"");
    vlm_out_json(o, fail->message, strlen(fail->message));
    put_string(o, "\",\"type\":", vlm_fail_type(fail->status));
    put_string(o, ",\"param\":", fail->param);
    put_string(o, ",\"code\":", fail->code);
    vlm_out_str(o, "}}");
}


static void
put_logprobs(vlm_out_t *o, const void *p, size_t len)
{
    size_t          n, pos;
    uint32_t        i;
    vlm_logprobs_t  entry;

    if (len == 0) {
        vlm_out_str(o, "null");
        return;
    }

    vlm_out_str(o, "{\"content\":[");

    for (pos = 0; pos < len; pos += n) {

        n = vlm_logprobs_read((const uint8_t *) p + pos, len - pos, &entry);

        if (n == 0) {
            break;
        }

        vlm_out_str(o, (pos == 0) ? "{" : ",{");
        put_token(o, &entry.token);
        vlm_out_str(o, ",\"top_logprobs\":[");

        for (i = 0; i < entry.ntop; i++) {
            vlm_out_str(o, (i == 0) ? "{" : ",{");
            put_token(o, &entry.top[i]);
            vlm_out_str(o, "}");
        }

        vlm_out_str(o, "]}");
    }

    vlm_out_str(o, "],\"refusal\":null}");
}


/* a token need not be whole characters: its bytes tell what it is */

static void
put_token(vlm_out_t *o, const vlm_logprob_t *token)
{
    uint32_t  i;

    vlm_out_str(o, "\"token\":\"");
    vlm_out_json(o, token->bytes, token->length);
    vlm_out_str(o, "\",\"logprob\":");
    put_logprob(o, token->logprob);
    vlm_out_str(o, ",\"bytes\":[");

    for (i = 0; i < token->length; i++) {
        put_field(o, (i == 0) ? "" : ",", (uint8_t) token->bytes[i]);
    }

    vlm_out_str(o, "]");
}


/* printf() would ask the locale for its decimal point; 0 and below */

static void
put_logprob(vlm_out_t *o, float logprob)
{
    char      buf[9];
    int       i;
    uint64_t  n;

    n = (uint64_t) (-(double) logprob * 1e8 + 0.5);

    put_field(o, (n == 0) ? "" : "-", n / 100000000);

    buf[0] = '.';
    n %= 100000000;

    for (i = 8; i > 0; i--) {
        buf[i] = '0' + n % 10;
        n /= 10;
    }

    for (i = 8; i > 0 && buf[i] == '0'; i--) {
        /* void */
    }

    vlm_out_bytes(o, buf, (i == 0) ? 0 : i + 1);
}


static const char *
reason_name(unsigned reason)
{
    return (reason == VLM_FINISH_LENGTH) ? "length" : "stop";
}
