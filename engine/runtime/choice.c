
/*
 * The answers of a request: each is a sequence of its own.  They share the
 * prompt by its blocks' names, which the first one gives.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/runtime/internal.h"


static int choices_keys(vlm_engine_t *e, vlm_work_t *w, uint64_t *scope);
static int choice_init(vlm_engine_t *e, vlm_choice_t *c,
    const vlm_stop_t *stops, vlm_error_t *err);
static int keys_extend(const vlm_choice_t *c, vlm_prefix_key_t *keys,
    int32_t n, int32_t to, int32_t block_size);


static int
nomem(vlm_error_t *err)
{
    return vlm_fail(err, 500, NULL, "no memory for the request");
}


int
vlm_choices_create(vlm_engine_t *e, vlm_req_t *req, vlm_error_t *err)
{
    uint32_t       i;
    uint64_t       scope;
    vlm_stop_t     stops[VLM_MAX_STOPS];
    vlm_work_t    *w;
    vlm_choice_t  *c;

    w = req->work;

    for (i = 0; i < w->in.nstops; i++) {
        stops[i].data = w->in.stops[i].data;
        stops[i].len = w->in.stops[i].len;

        if (vlm_utf8_valid(stops[i].data, stops[i].len) != stops[i].len) {
            vlm_fail(err, 400, "invalid_value", "a stop string is not valid "
                     "UTF-8");
            vlm_error_param(err, "stop");
            return VLM_ERROR;
        }
    }

    w->choices = calloc(w->in.sampling.nchoices, sizeof(vlm_choice_t));
    if (w->choices == NULL) {
        return nomem(err);
    }

    w->nchoices = w->in.sampling.nchoices;

    for (i = 0; i < w->nchoices; i++) {
        w->choices[i].work = w;
    }

    if (choices_keys(e, w, &scope) != VLM_OK) {
        return nomem(err);
    }

    for (i = 0; i < w->nchoices; i++) {
        c = &w->choices[i];

        c->seq.order = req->order;
        c->seq.choice = i;
        c->seq.scope = scope;
        c->seq.prompt = (int32_t) w->prompt.ids.len;
        c->seq.total = c->seq.prompt;
        c->seq.max_total = c->seq.prompt + w->max_tokens;
        c->seq.pictures = (w->in.npictures != 0);
        c->seq.keys = w->keys;
        c->seq.nkeys = c->seq.prompt / e->conf.block_size;

        /* a picture's rows are computed twice, by the tower and here */
        c->seq.cost = c->seq.prompt + (int32_t) req->admitted.image_tokens;

        if (choice_init(e, c, stops, err) != VLM_OK) {
            return VLM_ERROR;
        }
    }

    for (i = 0; i < w->in.npictures; i++) {
        if (!w->pics[i].cache.keyed) {
            vlm_work_unshare(e, w, (int32_t) i);
        }
    }

    return VLM_OK;
}


void
vlm_work_unshare(const vlm_engine_t *e, vlm_work_t *w, int32_t picture)
{
    int32_t     n;
    uint32_t    i;
    vlm_seq_t  *seq;

    n = vlm_work_span(w, picture)->first / e->conf.block_size;
    w->unshared = 1;

    for (i = 0; i < w->nchoices; i++) {
        seq = &w->choices[i].seq;
        seq->nkeys = seq->nkeys < n ? seq->nkeys : n;
    }
}


static int
choice_init(vlm_engine_t *e, vlm_choice_t *c, const vlm_stop_t *stops,
    vlm_error_t *err)
{
    vlm_work_t              *w;
    const vlm_model_info_t  *info;

    w = c->work;
    info = vlm_model_info(e->model);

    c->detok = vlm_detok_create(vlm_model_tokenizer(e->model), stops,
                                w->in.nstops, err);

    if (c->detok == NULL
        || vlm_sampler_init(&c->sampler, &w->in, &info->generation,
                            info->vocab, &w->prompt.ids, err)
           != VLM_OK)
    {
        return VLM_ERROR;
    }

    /* a seed that was drawn is the request's too */

    c->sampler.op.seed = w->choices[0].sampler.op.seed;
    c->sampler.op.choice = c->seq.choice;

    if (e->conf.digest) {
        c->digest = EVP_MD_CTX_new();

        if (c->digest == NULL
            || EVP_DigestInit_ex(c->digest, EVP_sha256(), NULL) != 1)
        {
            return nomem(err);
        }
    }

    return VLM_OK;
}


void
vlm_choices_free(vlm_work_t *w)
{
    uint32_t       i;
    vlm_choice_t  *c;

    for (i = 0; i < w->nchoices; i++) {
        c = &w->choices[i];

        vlm_sampler_free(&c->sampler);
        vlm_detok_free(c->detok);
        vlm_said_free(&c->said);
        vlm_ids_free(&c->generated);
        EVP_MD_CTX_free(c->digest);
        free(c->keys);
    }

    free(w->choices);
}


/* ---- names of blocks ---- */

/*
 * The prompt's.  Without the prefix cache they are of use too, between the
 * choices of a request and after it was preempted: it only has to be alone.
 */

static int
choices_keys(vlm_engine_t *e, vlm_work_t *w, uint64_t *scope)
{
    size_t              i;
    int32_t             n;
    uint64_t            unique;
    vlm_str_t           s;
    vlm_prefix_key_t    root;

    n = (int32_t) w->prompt.ids.len / e->conf.block_size;

    w->keys = calloc((size_t) n + 1, sizeof(vlm_prefix_key_t));
    w->spans = calloc(w->prompt.nspans + 1, sizeof(vlm_prefix_span_t));

    if (w->keys == NULL || w->spans == NULL) {
        return VLM_ERROR;
    }

    for (i = 0; i < w->prompt.nspans; i++) {
        w->spans[i].first = w->prompt.spans[i].first;
        w->spans[i].count = w->prompt.spans[i].count;
        w->spans[i].key = &w->pics[w->prompt.spans[i].picture].cache.key;
    }

    s = w->in.scope;

    if (vlm_prefix_root(&e->secret, s.data, s.len, 0, &root) != VLM_OK) {
        return VLM_ERROR;
    }

    memcpy(scope, root.bytes, sizeof(*scope));

    unique = e->conf.prefix_cache ? 0 : w->req->order + 1;

    if (vlm_prefix_root(&e->secret, s.data, s.len, unique, &w->root)
        != VLM_OK)
    {
        return VLM_ERROR;
    }

    return keys_extend(&w->choices[0], w->keys, 0, n, e->conf.block_size);
}


/* the keys [n, to); tokens beyond the prompt are the choice's answer */

static int
keys_extend(const vlm_choice_t *c, vlm_prefix_key_t *keys, int32_t n,
    int32_t to, int32_t block_size)
{
    int32_t            i, k, first, ids[256];
    const vlm_work_t  *w;

    w = c->work;

    for (k = n; k < to; k++) {
        first = k * block_size;

        for (i = 0; i < block_size; i++) {
            ids[i] = vlm_choice_id(c, first + i);
        }

        if (vlm_prefix_next(k > 0 ? &keys[k - 1] : &w->root, ids, first,
                            block_size, w->spans, w->prompt.nspans, &keys[k])
            != VLM_OK)
        {
            return VLM_ERROR;
        }
    }

    return VLM_OK;
}


int32_t
vlm_choice_id(const vlm_choice_t *c, int32_t i)
{
    const vlm_ids_t  *prompt;

    prompt = &c->work->prompt.ids;

    return i < (int32_t) prompt->len
           ? prompt->data[i] : c->generated.data[i - (int32_t) prompt->len];
}


void
vlm_choice_name(vlm_engine_t *e, vlm_choice_t *c, int32_t n)
{
    int32_t            size;
    vlm_prefix_key_t  *p;

    n /= e->conf.block_size;

    if (n <= c->seq.nkeys || c->work->unshared) {
        return;
    }

    if (n > c->size_keys) {
        size = n + n / 2 + 8;

        p = realloc(c->keys, (size_t) size * sizeof(vlm_prefix_key_t));
        if (p == NULL) {
            return;
        }

        if (c->keys == NULL) {
            memcpy(p, c->seq.keys,
                   (size_t) c->seq.nkeys * sizeof(vlm_prefix_key_t));
        }

        c->keys = p;
        c->size_keys = size;
        c->seq.keys = p;
    }

    if (keys_extend(c, c->keys, c->seq.nkeys, n, e->conf.block_size)
        == VLM_OK)
    {
        c->seq.nkeys = n;
    }
}


/* ---- pictures ---- */

void
vlm_choice_ready(vlm_choice_t *c)
{
    size_t             i;
    vlm_seq_t         *seq;
    const vlm_work_t  *w;
    const vlm_span_t  *span;

    w = c->work;
    seq = &c->seq;
    seq->ready = seq->total;

    for (i = 0; i < w->prompt.nspans; i++) {
        span = &w->prompt.spans[i];

        if (w->pics[span->picture].embedding.data == NULL
            && span->first + span->count > seq->computed
            && span->first < seq->ready)
        {
            seq->ready = span->first > seq->computed ? span->first
                                                     : seq->computed;
        }
    }
}


const vlm_span_t *
vlm_work_span(const vlm_work_t *w, int32_t picture)
{
    size_t  i;

    /* every picture is used exactly once */

    for (i = 0; w->prompt.spans[i].picture != picture; i++) {
        /* void */
    }

    return &w->prompt.spans[i];
}


int
vlm_work_needs(const vlm_work_t *w, int32_t picture)
{
    uint32_t           i;
    const vlm_span_t  *span;
    const vlm_seq_t   *seq;

    span = vlm_work_span(w, picture);

    for (i = 0; i < w->nchoices; i++) {
        seq = &w->choices[i].seq;

        if (seq->blocks != NULL && seq->computed < span->first + span->count)
        {
            return 1;
        }
    }

    return 0;
}
