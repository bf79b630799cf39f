
/*
 * What the engine has said and the client has not yet been sent: text, and
 * log probabilities where asked for, of each choice; together bounded.
 */


#include "ngx_http_vlm_module.h"

#include "engine/channel/vlm_logprob.h"


/* of one piece, before escaping; it holds no less of a further choice */
#define NGX_HTTP_VLM_PIECE          8192
#define NGX_HTTP_VLM_MIN_PIECE      64

/* an answer in one piece may have so many bytes for each token */
#define NGX_HTTP_VLM_TOKEN_BYTES    256
#define NGX_HTTP_VLM_LOGPROB_BYTES  64

/* room that is given back when it is empty */
#define NGX_HTTP_VLM_MANY_BYTES     8192


static size_t ngx_http_vlm_output_limit(ngx_http_vlm_ctx_t *ctx);
static ngx_int_t ngx_http_vlm_append(ngx_http_vlm_ctx_t *ctx,
    ngx_http_vlm_bytes_t *bytes, const char *data, size_t len);
static void ngx_http_vlm_overflow(ngx_http_vlm_ctx_t *ctx);
static void ngx_http_vlm_choice_take(ngx_http_vlm_choice_t *choice,
    size_t max);
static size_t ngx_http_vlm_choice_entries(ngx_http_vlm_choice_t *choice,
    size_t max);
static void ngx_http_vlm_taken(ngx_pool_t *pool, ngx_http_vlm_bytes_t *bytes,
    size_t len);


/* out->type and out->stream are known */

ngx_int_t
ngx_http_vlm_choices_init(ngx_http_vlm_ctx_t *ctx)
{
    vlm_form_t             *form;
    ngx_http_vlm_output_t  *out;

    out = &ctx->output;
    form = &ctx->body->form;

    if (out->type == VLM_ANSWER_TEXT && form->sampling.nchoices > 1) {
        vlm_fail(&ctx->fail, NGX_HTTP_BAD_REQUEST, "invalid_value", "n",
                 "n must be 1 where the answer is plain text");
        return NGX_ERROR;
    }

    out->limit = ngx_http_vlm_output_limit(ctx);
    out->nchoices = form->sampling.nchoices;
    out->logprobs = (form->sampling.logprobs
                     && out->type != VLM_ANSWER_TEXT);

    out->choices = ngx_pcalloc(ctx->request->pool,
                               out->nchoices * sizeof(ngx_http_vlm_choice_t));
    if (out->choices == NULL) {
        vlm_fail(&ctx->fail, NGX_HTTP_INTERNAL_SERVER_ERROR, NULL, NULL,
                 "there is not enough memory");
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* an answer in one piece must be held whole: its tokens bound it */

static size_t
ngx_http_vlm_output_limit(ngx_http_vlm_ctx_t *ctx)
{
    size_t           token, tokens;
    vlm_sampling_t  *sampling;

    if (ctx->output.stream) {
        return ctx->conf->output_buffer_size;
    }

    sampling = &ctx->body->form.sampling;

    token = NGX_HTTP_VLM_TOKEN_BYTES;

    if (sampling->logprobs) {
        token += NGX_HTTP_VLM_LOGPROB_BYTES * (1 + sampling->top_logprobs);
    }

    tokens = ctx->conf->max_tokens;

    if (sampling->set & VLM_SET_MAX_TOKENS) {
        tokens = ngx_min(tokens, sampling->max_tokens);
    }

    return ngx_max(ctx->conf->output_buffer_size,
                   token * tokens * sampling->nchoices);
}


/* collects what a text event says; does not touch the request's connection */

void
ngx_http_vlm_output_text(ngx_http_vlm_ctx_t *ctx, const vlm_event_t *event)
{
    size_t                  nlogprobs;
    ngx_http_vlm_choice_t  *choice;
    ngx_http_vlm_output_t  *out;

    out = &ctx->output;

    if (event->choice >= out->nchoices) {
        return;
    }

    choice = &out->choices[event->choice];
    nlogprobs = out->logprobs ? event->u.text.nlogprobs : 0;

    if (event->u.text.length + nlogprobs > out->limit - out->len) {
        ngx_http_vlm_overflow(ctx);
        ngx_http_vlm_slot_leave(ctx);
        return;
    }

    if (ngx_http_vlm_append(ctx, &choice->text, event->text,
                            event->u.text.length)
        != NGX_OK
        || ngx_http_vlm_append(ctx, &choice->logprobs, event->logprobs,
                               nlogprobs)
           != NGX_OK)
    {
        vlm_fail(&ctx->fail, NGX_HTTP_INTERNAL_SERVER_ERROR, NULL, NULL,
                 "there is not enough memory");
        ngx_http_vlm_slot_leave(ctx);
    }
}


static ngx_int_t
ngx_http_vlm_append(ngx_http_vlm_ctx_t *ctx, ngx_http_vlm_bytes_t *bytes,
    const char *data, size_t len)
{
    u_char      *p;
    size_t       size;
    ngx_pool_t  *pool;

    if (len == 0) {
        return NGX_OK;
    }

    if (len > bytes->size - bytes->len) {

        pool = ctx->request->pool;
        size = bytes->size ? bytes->size : 1024;

        while (size < bytes->len + len) {
            size *= 2;
        }

        size = ngx_min(size, ctx->output.limit);

        p = ngx_palloc(pool, size);
        if (p == NULL) {
            return NGX_ERROR;
        }

        if (bytes->data) {
            ngx_memcpy(p, bytes->data, bytes->len);
            (void) ngx_pfree(pool, bytes->data);
        }

        bytes->data = p;
        bytes->size = size;
    }

    ngx_memcpy(bytes->data + bytes->len, data, len);

    bytes->len += len;
    ctx->output.len += len;

    return NGX_OK;
}


static void
ngx_http_vlm_overflow(ngx_http_vlm_ctx_t *ctx)
{
    size_t  limit;

    limit = ctx->output.limit;

    if (ctx->output.stream) {
        ngx_log_error(NGX_LOG_WARN, ctx->request->connection->log, 0,
                      "client reads too slowly: more than %uz bytes of its "
                      "answer wait", limit);

        vlm_fail(&ctx->fail, NGX_HTTP_REQUEST_TIME_OUT, "client_too_slow",
                 NULL, "more than %zu bytes of the answer were not read in "
                 "time", limit);
        return;
    }

    ngx_log_error(NGX_LOG_ERR, ctx->request->connection->log, 0,
                  "engine \"%V\" answers with more than %uz bytes",
                  &ctx->engine->name, limit);

    vlm_fail(&ctx->fail, NGX_HTTP_BAD_GATEWAY, "engine_error", NULL,
             "the answer is larger than %zu bytes", limit);
}


/* what of each choice goes into the next piece of a stream */

void
ngx_http_vlm_choices_take(ngx_http_vlm_ctx_t *ctx,
    ngx_http_vlm_piece_t *piece)
{
    size_t                  left, take;
    ngx_uint_t              i, first, next;
    ngx_http_vlm_choice_t  *choice;
    ngx_http_vlm_output_t  *out;

    out = &ctx->output;

    left = NGX_HTTP_VLM_PIECE;
    first = out->first;
    next = first;

    for (i = 0; i < out->nchoices; i++) {
        choice = &out->choices[(first + i) % out->nchoices];

        ngx_http_vlm_choice_take(choice, left);

        choice->end = 0;
        take = choice->take + choice->take_logprobs;
        left -= ngx_min(left, take);
        piece->take += take;

        if (choice->take < choice->text.len
            || choice->take_logprobs < choice->logprobs.len)
        {
            /* the piece is full: the next one begins with this choice */

            next = (next == first) ? (first + i) % out->nchoices : next;
            continue;
        }

        if (!choice->ended && ctx->fail.status == 0
            && (choice->finish || ctx->finished))
        {
            choice->end = 1;
            piece->end = 1;
        }
    }

    out->first = next;
}


static void
ngx_http_vlm_choice_take(ngx_http_vlm_choice_t *choice, size_t max)
{
    size_t  n;

    choice->take = 0;
    choice->take_logprobs = 0;

    if (max < NGX_HTTP_VLM_MIN_PIECE) {
        return;
    }

    n = choice->logprobs.len ? max / 2 : max;

    choice->take = vlm_fail_cut((char *) choice->text.data, choice->text.len,
                                n);

    /* bytes that are no UTF-8 must not stop the stream */

    if (choice->take == 0) {
        choice->take = ngx_min(choice->text.len, n);
    }

    choice->take_logprobs = ngx_http_vlm_choice_entries(choice,
                                                        max - choice->take);
}


/* at least one entry; not those of tokens behind the text that is taken */

static size_t
ngx_http_vlm_choice_entries(ngx_http_vlm_choice_t *choice, size_t max)
{
    size_t           n, pos, text;
    vlm_logprobs_t   entry;

    text = 0;

    for (pos = 0; pos < choice->logprobs.len; pos += n) {

        n = vlm_logprobs_read(choice->logprobs.data + pos,
                              choice->logprobs.len - pos, &entry);

        if (n == 0 || (pos && n > max - ngx_min(max, pos))) {
            break;
        }

        text += entry.token.length;

        if (text > choice->take && choice->take < choice->text.len) {
            break;
        }
    }

    return pos;
}


/* the next piece is composed */

void
ngx_http_vlm_choices_taken(ngx_http_vlm_ctx_t *ctx)
{
    ngx_uint_t              i;
    ngx_pool_t             *pool;
    ngx_http_vlm_choice_t  *choice;
    ngx_http_vlm_output_t  *out;

    out = &ctx->output;
    pool = ctx->request->pool;

    for (i = 0; i < out->nchoices; i++) {
        choice = &out->choices[i];

        ngx_http_vlm_taken(pool, &choice->text, choice->take);
        ngx_http_vlm_taken(pool, &choice->logprobs, choice->take_logprobs);

        out->len -= choice->take + choice->take_logprobs;

        choice->ended |= choice->end;
        choice->take = 0;
        choice->take_logprobs = 0;
        choice->end = 0;
    }
}


static void
ngx_http_vlm_taken(ngx_pool_t *pool, ngx_http_vlm_bytes_t *bytes, size_t len)
{
    bytes->len -= len;

    if (bytes->len) {
        ngx_memmove(bytes->data, bytes->data + len, bytes->len);
        return;
    }

    if (bytes->size > NGX_HTTP_VLM_MANY_BYTES) {
        (void) ngx_pfree(pool, bytes->data);
        bytes->data = NULL;
        bytes->size = 0;
    }
}
