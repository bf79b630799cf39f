
/*
 * One forward pass over a plan, and what comes of it: a token for each
 * sequence that has been computed to its end.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/runtime/internal.h"


/* beside answers, in the first step that has any */
#define FIRST_PROMPT_ROWS   4


static int tables_fill(vlm_engine_t *e, vlm_decode_batch_t *batch,
    vlm_error_t *err);
static void tables_rows(vlm_engine_t *e, const vlm_plan_entry_t *entry,
    int32_t row);
static int tables_inject(vlm_tables_t *t, const vlm_plan_entry_t *entry,
    int32_t row);
static int step_run(vlm_engine_t *e, const vlm_decode_batch_t *batch,
    vlm_error_t *err);
static int step_plan(vlm_engine_t *e, vlm_error_t *err);
static void step_failed(vlm_engine_t *e, const vlm_error_t *err);
static void step_tokens(vlm_engine_t *e);
static int step_token(vlm_engine_t *e, vlm_choice_t *c,
    const vlm_sampled_t *sampled);
static int step_text(vlm_engine_t *e, vlm_choice_t *c,
    const vlm_sampled_t *sampled);


int
vlm_tables_init(vlm_engine_t *e, vlm_error_t *err)
{
    size_t         rows, seqs, vocab;
    vlm_tables_t  *t;

    t = &e->tables;
    rows = (size_t) e->conf.max_rows;
    seqs = (size_t) e->conf.max_num_seqs;
    vocab = (size_t) vlm_model_info(e->model)->vocab;

    t->row_start = calloc(seqs + 1, sizeof(int32_t));
    t->context = calloc(seqs, sizeof(int32_t));
    t->ids = calloc(rows, sizeof(int32_t));
    t->positions = calloc(rows * 3, sizeof(int32_t));
    t->out_rows = calloc(seqs, sizeof(int32_t));
    t->params = calloc(seqs, sizeof(vlm_sample_t));
    t->sampled = calloc(seqs, sizeof(vlm_sampled_t));
    t->sampling = calloc(seqs, sizeof(vlm_choice_t *));

    if (e->conf.digest) {
        t->logits = calloc(seqs * vocab, sizeof(float));
    }

    if (t->row_start == NULL || t->context == NULL
        || t->ids == NULL || t->positions == NULL || t->out_rows == NULL
        || t->params == NULL || t->sampled == NULL || t->sampling == NULL
        || (e->conf.digest && t->logits == NULL))
    {
        return vlm_fail(err, 500, NULL, "no memory for a step's tables");
    }

    return VLM_OK;
}


void
vlm_tables_free(vlm_engine_t *e)
{
    vlm_tables_t  *t;

    t = &e->tables;

    free(t->row_start);
    free(t->context);
    free(t->blocks);
    free(t->ids);
    free(t->positions);
    free(t->out_rows);
    free(t->params);
    free(t->sampled);
    free(t->sampling);
    free(t->inject);
    free(t->logits);
}


int
vlm_step(vlm_engine_t *e)
{
    int32_t              i;
    uint64_t             now;
    vlm_error_t          err;
    vlm_plan_entry_t    *entry;
    vlm_decode_batch_t   batch;

    if (step_plan(e, &err) != VLM_OK) {
        step_failed(e, &err);
        return VLM_OK;
    }

    if (e->plan.n == 0) {
        return VLM_AGAIN;
    }

    now = vlm_now_us();

    if (tables_fill(e, &batch, &err) != VLM_OK
        || step_run(e, &batch, &err) != VLM_OK)
    {
        step_failed(e, &err);
        return VLM_OK;
    }

    for (i = 0; i < e->plan.n; i++) {
        entry = &e->plan.entries[i];
        vlm_choice_name(e, (vlm_choice_t *) entry->seq,
                        entry->start + entry->n);
    }

    vlm_sched_commit(&e->sched, &e->plan);

    vlm_pace_learn(e, vlm_now_us() - now);
    step_tokens(e);

    return VLM_OK;
}


/* rows of prompts by which a step of answers may grow */

static int32_t
step_prompt_rows(const vlm_engine_t *e)
{
    double   us;
    int32_t  most;

    us = vlm_pace_allowance(&e->pace, vlm_answers(e));

    if (us < 0) {
        return e->conf.max_rows;
    }

    if (!e->ops->async && vlm_encode_busy(e)) {
        us /= 2;
    }

    /* what a few rows cost says little about many: not too much at a time */

    most = e->plan.nstreams > 0 ? e->plan.rows - e->plan.nstreams : 0;
    most = 2 * most + FIRST_PROMPT_ROWS;

    return vlm_pace_rows(&e->pace, us,
                         most < e->conf.max_rows ? most : e->conf.max_rows);
}


/* a plan that has its blocks */

static int
step_plan(vlm_engine_t *e, vlm_error_t *err)
{
    int32_t     rows;
    vlm_seq_t  *seq;

    rows = step_prompt_rows(e);

    for ( ;; ) {
        vlm_sched_plan(&e->sched, rows, &e->plan);

        if (vlm_sched_take(&e->sched, &e->plan) == VLM_OK) {
            return VLM_OK;
        }

        seq = vlm_sched_preempt(&e->sched);

        if (seq == NULL) {
            return vlm_fail(err, 500, NULL, "the KV cache of %d blocks of %d "
                            "tokens is too small for one request",
                            e->sched.blocks.total, e->sched.block_size);
        }

        vlm_log(VLM_LOG_DEBUG, "no block is free: a request starts again");
    }
}


static void
step_failed(vlm_engine_t *e, const vlm_error_t *err)
{
    int32_t      i, k;
    vlm_work_t  *w;

    vlm_log(VLM_LOG_ERROR, "a step of %d rows failed: %s", e->plan.rows,
            err->message);

    for (i = 0; i < e->plan.n; i++) {

        if (e->plan.entries[i].seq == NULL) {
            continue;
        }

        w = ((vlm_choice_t *) e->plan.entries[i].seq)->work;

        /* all its choices end */

        for (k = i + 1; k < e->plan.n; k++) {
            if (e->plan.entries[k].seq != NULL
                && ((vlm_choice_t *) e->plan.entries[k].seq)->work == w)
            {
                e->plan.entries[k].seq = NULL;
            }
        }

        vlm_compute_fail(e, w, err);
    }
}


/* the widest block table of the plan; room for all of them */

static int
tables_width(vlm_engine_t *e, int32_t *width)
{
    size_t         need;
    int32_t        i, *p;
    vlm_tables_t  *t;

    t = &e->tables;
    *width = 1;

    for (i = 0; i < e->plan.n; i++) {
        if (e->plan.entries[i].seq->nblocks > *width) {
            *width = e->plan.entries[i].seq->nblocks;
        }
    }

    need = (size_t) *width * (size_t) e->plan.n;

    if (need > t->size_blocks) {
        p = realloc(t->blocks, need * 2 * sizeof(int32_t));
        if (p == NULL) {
            return VLM_ERROR;
        }

        t->blocks = p;
        t->size_blocks = need * 2;
    }

    return VLM_OK;
}


static int
tables_fill(vlm_engine_t *e, vlm_decode_batch_t *batch, vlm_error_t *err)
{
    int32_t            i, row, width, nout;
    vlm_choice_t      *c;
    vlm_tables_t      *t;
    vlm_plan_entry_t  *entry;

    t = &e->tables;
    t->ninject = 0;
    row = 0;
    nout = 0;

    if (tables_width(e, &width) != VLM_OK) {
        return vlm_fail(err, 500, NULL, "no memory for a step's tables");
    }

    for (i = 0; i < e->plan.n; i++) {
        entry = &e->plan.entries[i];
        c = (vlm_choice_t *) entry->seq;

        t->row_start[i] = row;
        t->context[i] = entry->start;

        memcpy(t->blocks + (size_t) i * (size_t) width, c->seq.blocks,
               (size_t) c->seq.nblocks * sizeof(int32_t));

        tables_rows(e, entry, row);

        if (tables_inject(t, entry, row) != VLM_OK) {
            return vlm_fail(err, 500, NULL, "no memory for a step's tables");
        }

        row += entry->n;

        if (entry->sample) {
            t->out_rows[nout] = row - 1;
            t->params[nout] = c->sampler.op;
            t->sampling[nout] = c;
            nout++;
        }
    }

    t->row_start[i] = row;

    memset(batch, 0, sizeof(*batch));

    batch->step.nrows = row;
    batch->step.nseqs = e->plan.n;
    batch->step.row_start = t->row_start;
    batch->step.context = t->context;
    batch->step.blocks = t->blocks;
    batch->step.max_blocks = width;
    batch->step.ids = t->ids;
    batch->step.positions = t->positions;
    batch->inject = t->inject;
    batch->ninject = t->ninject;
    batch->out_rows = t->out_rows;
    batch->nout = nout;

    return VLM_OK;
}


/* ids and positions of one sequence's rows */

static void
tables_rows(vlm_engine_t *e, const vlm_plan_entry_t *entry, int32_t row)
{
    int32_t        i, k, axis, n, rows;
    vlm_work_t    *w;
    vlm_choice_t  *c;
    vlm_tables_t  *t;

    t = &e->tables;
    c = (vlm_choice_t *) entry->seq;
    w = c->work;
    n = (int32_t) w->prompt.ids.len;
    rows = e->plan.rows;

    for (i = 0; i < entry->n; i++, row++) {
        k = entry->start + i;

        t->ids[row] = vlm_choice_id(c, k);

        for (axis = 0; axis < 3; axis++) {
            t->positions[(size_t) axis * (size_t) rows + (size_t) row] =
                k < n ? w->positions[(size_t) axis * (size_t) n + (size_t) k]
                      : k + w->delta;
        }
    }
}


/* the parts of pictures that lie in one sequence's rows */

static int
tables_inject(vlm_tables_t *t, const vlm_plan_entry_t *entry, int32_t row)
{
    size_t             i;
    int32_t            from, to, size;
    vlm_work_t        *w;
    vlm_inject_t      *p;
    const vlm_span_t  *span;

    w = ((vlm_choice_t *) entry->seq)->work;

    for (i = 0; i < w->prompt.nspans; i++) {
        span = &w->prompt.spans[i];

        from = span->first > entry->start ? span->first : entry->start;
        to = span->first + span->count;

        if (to > entry->start + entry->n) {
            to = entry->start + entry->n;
        }

        if (from >= to) {
            continue;
        }

        if (t->ninject == t->size_inject) {
            size = t->size_inject * 2 + 16;

            p = realloc(t->inject, (size_t) size * sizeof(vlm_inject_t));
            if (p == NULL) {
                return VLM_ERROR;
            }

            t->inject = p;
            t->size_inject = size;
        }

        p = &t->inject[t->ninject++];

        p->embeddings = &w->pics[span->picture].embedding;
        p->first = from - span->first;
        p->row = row + from - entry->start;
        p->n = to - from;
    }

    return VLM_OK;
}


/* SHA-256 over the logits of every step of an answer */

static int
step_digest(vlm_engine_t *e, const vlm_tensor_t *logits, vlm_error_t *err)
{
    char           text[256];
    int32_t        i;
    size_t         cols;
    vlm_tables_t  *t;
    vlm_tensor_t   row;

    t = &e->tables;
    cols = (size_t) logits->cols;

    for (i = 0; i < (int32_t) logits->rows; i++) {
        row = vlm_rows(logits, i, 1);
        e->ops->download(e->queue, t->logits + (size_t) i * cols, row.data,
                         cols * sizeof(float));
    }

    if (e->ops->sync(e->queue, text, sizeof(text)) != 0) {
        return vlm_fail(err, 500, NULL, "%s", text);
    }

    for (i = 0; i < (int32_t) logits->rows; i++) {
        EVP_DigestUpdate(t->sampling[i]->digest, t->logits + (size_t) i * cols,
                         cols * sizeof(float));
    }

    return VLM_OK;
}


static int
step_run(vlm_engine_t *e, const vlm_decode_batch_t *batch, vlm_error_t *err)
{
    char          text[256];
    vlm_tensor_t  logits;

    if (vlm_decoder_step(e->decoder, batch, &logits, err) != VLM_OK) {
        return VLM_ERROR;
    }

    if (batch->nout > 0) {

        if (e->conf.digest && step_digest(e, &logits, err) != VLM_OK) {
            return VLM_ERROR;
        }

        e->ops->sample(e->queue, &logits, e->tables.params,
                       e->tables.sampled);
    }

    (void) vlm_encode_submit(e);

    if (e->ops->sync(e->queue, text, sizeof(text)) != 0) {
        return vlm_fail(err, 500, NULL, "%s", text);
    }

    return VLM_OK;
}


static int
is_eos(const vlm_generation_t *gen, int32_t id)
{
    int32_t  i;

    for (i = 0; i < gen->neos; i++) {
        if (gen->eos[i] == id) {
            return 1;
        }
    }

    return 0;
}


static void
step_tokens(vlm_engine_t *e)
{
    int32_t         i, k;
    vlm_work_t     *w;
    vlm_error_t     err;
    vlm_choice_t  **c;

    c = e->tables.sampling;

    for (i = 0; i < e->plan.nsample; i++) {

        if (c[i] == NULL || step_token(e, c[i], &e->tables.sampled[i])
                            == VLM_OK)
        {
            continue;
        }

        w = c[i]->work;

        for (k = i + 1; k < e->plan.nsample; k++) {
            if (c[k] != NULL && c[k]->work == w) {
                c[k] = NULL;
            }
        }

        vlm_fail(&err, 500, NULL, "no memory for the answer");
        vlm_compute_fail(e, w, &err);
    }
}


/* VLM_ERROR: no memory */

static int
step_token(vlm_engine_t *e, vlm_choice_t *c, const vlm_sampled_t *sampled)
{
    uint32_t     finish;
    vlm_work_t  *w;

    w = c->work;

    if (w->first_us == 0) {
        w->first_us = vlm_now_us();
        vlm_mail_stage(e, w->req, VLM_STAGE_GENERATE, 0);

        if (vlm_compute_siblings(e, w) != VLM_OK) {
            return VLM_ERROR;
        }
    }

    if (vlm_ids_append(&c->generated, sampled->id, 1) != VLM_OK
        || vlm_sampler_token(&c->sampler, sampled->id) != VLM_OK
        || step_text(e, c, sampled) != VLM_OK)
    {
        return VLM_ERROR;
    }

    finish = c->said.finish;

    /* tokens wait for their text, as they may be cut with it */

    if ((finish != 0 || c->said.text.len != 0)
        && vlm_mail_said(e, w->req, c->seq.choice, &c->said) != VLM_OK)
    {
        return VLM_ERROR;
    }

    if (finish != 0) {
        vlm_compute_ended(e, c);
        return VLM_OK;
    }

    c->seq.total++;
    vlm_choice_ready(c);

    return VLM_OK;
}


/* what the token says, and whether it is the last one */

static int
step_text(vlm_engine_t *e, vlm_choice_t *c, const vlm_sampled_t *sampled)
{
    int                rc;
    vlm_said_t        *said;
    const vlm_work_t  *w;

    w = c->work;
    said = &c->said;
    said->ntokens++;

    if (is_eos(&vlm_model_info(e->model)->generation, sampled->id)
        && (w->in.flags & VLM_FLAG_IGNORE_EOS) == 0)
    {
        said->finish = VLM_FINISH_STOP;
        return vlm_detok_finish(c->detok, &said->text);
    }

    if (c->sampler.op.ntop >= 0 && vlm_said_token(said, sampled) != VLM_OK) {
        return VLM_ERROR;
    }

    rc = vlm_detok_add(c->detok, sampled->id, &said->text);

    if (rc == 1) {
        said->finish = VLM_FINISH_STOP;

    } else if (rc == VLM_OK && (int32_t) c->generated.len == w->max_tokens) {
        said->finish = VLM_FINISH_LENGTH;
        rc = vlm_detok_finish(c->detok, &said->text);
    }

    if (said->nlisted != 0) {
        said->tokens[said->nlisted - 1].length = (uint32_t) said->text.len;
    }

    /* of a stop string nothing is shown, its tokens neither */

    while (rc == 1 && said->nlisted != 0
           && said->tokens[said->nlisted - 1].length == 0)
    {
        said->nlisted--;
    }

    return rc == VLM_ERROR ? VLM_ERROR : VLM_OK;
}
