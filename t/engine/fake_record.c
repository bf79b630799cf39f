
/* What a request says, for the fake engine's log and its default answer. */

#include <string.h>

#include <openssl/sha.h>

#include "t/engine/fake_engine.h"


static const char  *roles[] = { "", "system", "user", "assistant" };
static const char  *details[] = { "auto", "low", "high" };


static void
picture_sum(const peer_t *peer, const vlm_picture_t *picture, char *hex,
    int *right)
{
    int            i;
    unsigned char  sum[SHA256_DIGEST_LENGTH];

    SHA256(vlm_peer_arena(&peer->vlm, picture->bytes.offset,
                          picture->bytes.length),
           (size_t) picture->bytes.length, sum);

    for (i = 0; i < SHA256_DIGEST_LENGTH; i++) {
        sprintf(hex + 2 * i, "%02x", sum[i]);
    }

    *right = (memcmp(sum, picture->sha256, sizeof(sum)) == 0);
}


static void
log_messages(const peer_t *peer, const vlm_request_t *req)
{
    char               name[32];
    uint32_t           i, k;
    const vlm_part_t  *part;

    say(" messages=%u", req->nmessages);

    for (i = 0; i < req->nmessages; i++) {
        say(" role[%u]=%s", i, roles[req->messages[i].role]);

        for (k = 0; k < req->messages[i].nparts; k++) {
            part = &req->parts[req->messages[i].first_part + k];

            if (part->type == VLM_PART_PICTURE) {
                say(" part[%u][%u]=picture%u", i, k, part->picture);
                continue;
            }

            snprintf(name, sizeof(name), "part[%u][%u]", i, k);
            say_text(name, vlm_peer_arena(&peer->vlm, part->text.offset,
                                          part->text.length),
                     (size_t) part->text.length);
        }
    }
}


static void
log_sampling(const vlm_sampling_t *s)
{
    if (s->set & VLM_SET_TEMPERATURE) {
        say(" temperature=%g", s->temperature);
    }

    if (s->set & VLM_SET_TOP_P) {
        say(" top_p=%g", s->top_p);
    }

    if (s->set & VLM_SET_TOP_K) {
        say(" top_k=%d", s->top_k);
    }

    if (s->set & VLM_SET_MIN_P) {
        say(" min_p=%g", s->min_p);
    }

    if (s->set & VLM_SET_SEED) {
        say(" seed=%llu", (unsigned long long) s->seed);
    }

    if (s->set & VLM_SET_MAX_TOKENS) {
        say(" max_tokens=%u", s->max_tokens);
    }

    if (s->set & VLM_SET_PRESENCE) {
        say(" presence=%g", s->presence);
    }

    if (s->set & VLM_SET_FREQUENCY) {
        say(" frequency=%g", s->frequency);
    }

    if (s->set & VLM_SET_REPETITION) {
        say(" repetition=%g", s->repetition);
    }

    say(" n=%u logprobs=%u top_logprobs=%u", s->nchoices, s->logprobs,
        s->top_logprobs);
}


void
record_log(const peer_t *peer, const vlm_submission_t *sub,
    const vlm_request_t *req)
{
    int          right;
    char         name[32], hex[2 * SHA256_DIGEST_LENGTH + 1];
    size_t       len;
    uint32_t     i;
    const char  *prompt;

    say("request id=%.*s peer=%u slot=%u generation=%u", (int)
        req->request_id.len, req->request_id.data, peer->id, sub->slot,
        sub->generation);
    say_text("model", req->model.data, req->model.len);
    say_text("scope", req->scope.data, req->scope.len);
    say(" received=%llu deadline=%llu flags=%u",
        (unsigned long long) req->received_ms,
        (unsigned long long) req->deadline_ms, req->flags);

    log_messages(peer, req);

    say(" pictures=%u", req->npictures);

    for (i = 0; i < req->npictures; i++) {
        picture_sum(peer, &req->pictures[i], hex, &right);
        say(" picture[%u]=%llu:%s:%s detail[%u]=%s", i,
            (unsigned long long) req->pictures[i].bytes.length, hex,
            right ? "ok" : "WRONG", i, details[req->pictures[i].detail]);
    }

    prompt = record_prompt(peer, req, &len);

    if (prompt != NULL) {
        say_text("prompt", prompt, len);
    }

    log_sampling(&req->sampling);

    for (i = 0; i < req->nstops; i++) {
        snprintf(name, sizeof(name), "stop[%u]", i);
        say_text(name, req->stops[i].data, req->stops[i].len);
    }

    for (i = 0; i < req->nlogit_bias; i++) {
        say(" bias[%d]=%g", req->logit_bias[i].id, req->logit_bias[i].bias);
    }

    say_end();
}


const char *
record_prompt(const peer_t *peer, const vlm_request_t *req, size_t *len)
{
    uint32_t              i, k;
    const vlm_part_t     *part, *found;
    const vlm_message_t  *m;

    found = NULL;

    for (i = 0; i < req->nmessages; i++) {
        m = &req->messages[i];

        if (m->role != VLM_ROLE_USER) {
            continue;
        }

        for (found = NULL, k = 0; k < m->nparts; k++) {
            part = &req->parts[m->first_part + k];
            found = (part->type == VLM_PART_TEXT) ? part : found;
        }
    }

    if (found == NULL) {
        return NULL;
    }

    *len = (size_t) found->text.length;

    return (const char *) vlm_peer_arena(&peer->vlm, found->text.offset,
                                         found->text.length);
}


size_t
record_describe(const peer_t *peer, const vlm_request_t *req, char *to,
    size_t size)
{
    int          right;
    char         hex[2 * SHA256_DIGEST_LENGTH + 1];
    size_t       n, len;
    uint32_t     i;
    const char  *prompt;

    /* at most 1024 roles of 10 bytes, 64 sums of 9: cut if it is too much */

    n = (size_t) snprintf(to, size, "roles=");

    for (i = 0; i < req->nmessages && n < size / 2; i++) {
        n += (size_t) snprintf(to + n, size - n, "%s%s", i == 0 ? "" : ",",
                               roles[req->messages[i].role]);
    }

    n += (size_t) snprintf(to + n, size - n, ";pictures=%u;sha=",
                           req->npictures);

    for (i = 0; i < req->npictures; i++) {
        picture_sum(peer, &req->pictures[i], hex, &right);
        n += (size_t) snprintf(to + n, size - n, "%s%.8s",
                               i == 0 ? "" : ",", right ? hex : "WRONG");
    }

    n += (size_t) snprintf(to + n, size - n, ";prompt=");

    prompt = record_prompt(peer, req, &len);

    if (prompt == NULL) {
        return n;
    }

    if (len > size - n) {
        len = size - n;

        while (len > 0 && (prompt[len] & 0xc0) == 0x80) {
            len--;
        }
    }

    memcpy(to + n, prompt, len);

    return n + len;
}
