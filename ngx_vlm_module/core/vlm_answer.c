
#include <string.h>

#include "engine/channel/vlm_wire.h"

#include "vlm_answer.h"


static void chunk_begin(vlm_out_t *o, const vlm_answer_t *a);
static void chunk_choice(vlm_out_t *o, const vlm_answer_t *a,
    unsigned choice);
static void chunk_end(vlm_out_t *o, const vlm_answer_t *a,
    const char *reason);
static void put_head(vlm_out_t *o, const vlm_answer_t *a,
    const char *object);
static void put_field(vlm_out_t *o, const char *before, uint64_t n);
static void put_string(vlm_out_t *o, const char *before, const char *s);
static void put_usage(vlm_out_t *o, const vlm_usage_t *usage);
static void put_error(vlm_out_t *o, const vlm_fail_t *fail);
static const char *reason_name(unsigned reason);


void
vlm_sse_role(vlm_out_t *o, const vlm_answer_t *a, unsigned choice)
{
    chunk_choice(o, a, choice);
    vlm_out_str(o, "\"role\":\"assistant\",\"content\":\"\"");
    chunk_end(o, a, NULL);
}


void
vlm_sse_text(vlm_out_t *o, const vlm_answer_t *a, unsigned choice,
    const char *text, size_t len)
{
    chunk_choice(o, a, choice);
    vlm_out_str(o, "\"content\":\"");
    vlm_out_json(o, text, len);
    vlm_out_str(o, "\"");
    chunk_end(o, a, NULL);
}


void
vlm_sse_finish(vlm_out_t *o, const vlm_answer_t *a, unsigned choice,
    unsigned reason)
{
    chunk_choice(o, a, choice);
    chunk_end(o, a, reason_name(reason));
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
vlm_json_finish(vlm_out_t *o, unsigned reason)
{
    vlm_out_str(o, "\"},\"logprobs\":null,\"finish_reason\":\"");
    vlm_out_str(o, reason_name(reason));
    vlm_out_str(o, "\"}");
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
chunk_end(vlm_out_t *o, const vlm_answer_t *a, const char *reason)
{
    vlm_out_str(o, "},\"logprobs\":null");
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


static const char *
reason_name(unsigned reason)
{
    return (reason == VLM_FINISH_LENGTH) ? "length" : "stop";
}
