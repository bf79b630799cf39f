
/*
 * The demonstration model on held-out pictures, from the file to the text:
 * the reference's answers with float32 embeddings, nearly all of them with
 * embeddings rounded to bfloat16.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "t/unit/lib/golden.h"
#include "t/unit/lib/tap.h"


#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define EVERY       10          /* sanitizers are slow: every tenth */
#else
#define EVERY       1
#endif

#define MAX_ANSWER  80
#define MARGIN      1e-3        /* below it the reference is a toss-up */


typedef struct {
    char                text[256];
    char                image[128];
    char                reference[512];
    int64_t             prompt_tokens;
    int64_t             completion_tokens;
    double              margin;
} question_t;

typedef struct {
    int                 asked;
    int                 exact;              /* with float32 embeddings */
    int                 rounded;            /* with bfloat16 ones */
} score_t;


static void
copy(char *to, size_t size, const vlm_json_t *v)
{
    size_t       n;
    const char  *data;

    data = "";
    n = 0;
    vlm_json_string(v, &data, &n);
    snprintf(to, size, "%.*s", (int) n, data);
}


static int
question(const char *line, size_t len, question_t *q)
{
    vlm_error_t        err;
    vlm_json_doc_t    *doc;
    const vlm_json_t  *root;

    doc = vlm_json_parse(line, len, "questions.jsonl", &err);
    if (doc == NULL) {
        return tap_ok(0, "%s", err.message) - 1;
    }

    root = vlm_json_root(doc);
    copy(q->text, sizeof(q->text), vlm_json_get(root, "question"));
    copy(q->image, sizeof(q->image), vlm_json_get(root, "image"));
    copy(q->reference, sizeof(q->reference), vlm_json_get(root, "reference"));
    q->margin = 0;

    vlm_json_int(vlm_json_get(root, "prompt_tokens"), &q->prompt_tokens);
    vlm_json_int(vlm_json_get(root, "completion_tokens"),
                 &q->completion_tokens);
    vlm_json_double(vlm_json_get(root, "margin"), &q->margin);

    vlm_json_free(doc);

    return 0;
}


static int
picture(golden_rig_t *rig, const char *name, golden_case_t *c)
{
    char         *data;
    size_t        len;
    vlm_error_t   err;

    if (vlm_read_file(tap_path("t/data/heldout/%s", name), 1 << 24, &data,
                      &len, &err)
        == VLM_ERROR)
    {
        return tap_ok(0, "%s", err.message) - 1;
    }

    if (vlm_image_decode((uint8_t *) data, len, 1 << 24, NULL,
                         &c->pictures[0], &err)
        == VLM_ERROR
        || vlm_model_plan(rig->model, c->pictures[0].width,
                          c->pictures[0].height, VLM_DETAIL_AUTO,
                          &c->plans[0], &err)
           == VLM_ERROR
        || vlm_image_resize(&c->pictures[0], c->plans[0].width,
                            c->plans[0].height, c->plans[0].filter,
                            &c->resized[0], &err)
           == VLM_ERROR)
    {
        free(data);
        return tap_ok(0, "%s: %s", name, err.message) - 1;
    }

    c->npictures = 1;
    free(data);

    return 0;
}


/* one user turn: the picture, then the question */

static int
prompt(golden_rig_t *rig, const char *text, golden_case_t *c)
{
    int32_t         count;
    vlm_str_t       texts[2];
    vlm_part_t      parts[2];
    vlm_error_t     err;
    vlm_message_t   message;

    memset(texts, 0, sizeof(texts));
    memset(parts, 0, sizeof(parts));

    parts[0].type = VLM_PART_PICTURE;
    parts[1].type = VLM_PART_TEXT;
    texts[1].data = text;
    texts[1].len = (uint32_t) strlen(text);

    message.role = VLM_ROLE_USER;
    message.first_part = 0;
    message.nparts = 2;
    count = c->plans[0].ntokens;

    if (vlm_chat_build(vlm_model_tokenizer(rig->model),
                       vlm_model_chat(rig->model), &message, 1, parts, texts,
                       &count, 1, &c->prompt, &err)
        == VLM_ERROR)
    {
        return tap_ok(0, "%s: %s", text, err.message) - 1;
    }

    c->positions = calloc(c->prompt.ids.len * 3, sizeof(int32_t));

    if (vlm_model_positions(rig->model, &c->prompt, c->plans, c->positions,
                            &c->delta, &err)
        == VLM_ERROR)
    {
        return tap_ok(0, "%s: %s", text, err.message) - 1;
    }

    return 0;
}


static int
is_eos(const golden_rig_t *rig, int32_t id)
{
    int32_t                  i;
    const vlm_generation_t  *g;

    g = &vlm_model_info(rig->model)->generation;

    for (i = 0; i < g->neos; i++) {
        if (g->eos[i] == id) {
            return 1;
        }
    }

    return 0;
}


/* does the model say what the reference does? */

static int
answer(golden_rig_t *rig, const golden_case_t *c, const vlm_tensor_t *e,
    const question_t *q)
{
    int             i, same;
    vlm_buf_t       text;
    vlm_error_t     err;
    golden_seq_t    seq;
    vlm_sampled_t   sampled;

    memset(&text, 0, sizeof(text));

    if (golden_begin(&seq, c, e, 0) < 0) {
        return 0;
    }

    for (i = 0; i < MAX_ANSWER; i++) {
        if (golden_step(rig, &seq, 1, NULL, &sampled) < 0) {
            return 0;
        }

        vlm_ids_append(&seq.ids, sampled.id, 1);

        if (is_eos(rig, sampled.id)) {
            break;
        }
    }

    same = vlm_tokenizer_decode(vlm_model_tokenizer(rig->model),
                                seq.ids.data + c->prompt.ids.len,
                                seq.ids.len - c->prompt.ids.len, 1, &text,
                                &err)
           == VLM_OK
           && text.data != NULL && strcmp(text.data, q->reference) == 0;

    if (!same) {
        tap_diag("%s %s: \"%s\", reference \"%s\", margin %g", q->image,
                 q->text, text.data != NULL ? text.data : "", q->reference,
                 q->margin);
    }

    vlm_buf_free(&text);
    vlm_ids_free(&seq.ids);

    return same;
}


static void
ask(golden_rig_t *rig, const question_t *q, score_t *score)
{
    char               why[256];
    vlm_tensor_t       rounded;
    golden_case_t      c;
    vlm_encode_job_t  *job;

    memset(&c, 0, sizeof(c));
    job = NULL;

    if (picture(rig, q->image, &c) == 0 && prompt(rig, q->text, &c) == 0) {
        job = golden_encode(rig, &c, INFINITY);
    }

    if (job != NULL) {
        if ((int64_t) c.prompt.ids.len != q->prompt_tokens) {
            tap_is((long long) c.prompt.ids.len, q->prompt_tokens,
                   "%s %s: tokens of the prompt", q->image, q->text);
        }

        score->asked++;
        score->exact += answer(rig, &c, vlm_encode_result(job), q);

        rounded = *vlm_encode_result(job);
        rounded.dtype = VLM_BF16;
        rounded.data = rig->ops->alloc(rig->dev, (size_t) rounded.rows
                                                 * (size_t) rounded.cols * 2);

        rig->ops->convert(rig->queue, &rounded, vlm_encode_result(job));
        rig->ops->sync(rig->queue, why, sizeof(why));

        score->rounded += answer(rig, &c, &rounded, q);
        rig->ops->free(rig->dev, rounded.data);
    }

    vlm_encode_free(job);
    golden_free(&c);
}


int
main(void)
{
    int            n;
    FILE          *f;
    char           line[4096];
    score_t        score;
    question_t     q;
    golden_rig_t   rig;

    memset(&score, 0, sizeof(score));
    f = fopen(tap_path("t/data/heldout/questions.jsonl"), "r");

    if (f == NULL
        || golden_open(&rig, tap_path("models/demo"), NULL, NULL) < 0)
    {
        tap_ok(0, "questions and model");
        return tap_done();
    }

    for (n = 0; fgets(line, sizeof(line), f) != NULL; n++) {
        if (n % EVERY == 0 && question(line, strlen(line), &q) == 0
            && q.margin > MARGIN)
        {
            ask(&rig, &q, &score);
        }
    }

    fclose(f);

    tap_ok(score.asked >= 390 / EVERY, "%d questions asked", score.asked);
    tap_is(score.exact, score.asked, "the reference's answers");
    tap_ok(score.rounded * 100 >= score.asked * 99,
           "%d of them with rounded embeddings", score.rounded);

    golden_close(&rig);

    return tap_done();
}
