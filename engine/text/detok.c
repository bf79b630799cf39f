
/*
 * Incremental detokenizer.  A stop string is looked for by its own automaton
 * (Knuth, Morris, Pratt), so that each byte is looked at once; what could
 * still become a stop string is the longest of their partial matches.
 *
 * The first stop string to be complete ends the text; of several that end at
 * the same byte, the longest.  Neither depends on how tokens cut the text.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer_parts.h"


typedef struct {
    char               *data;
    uint32_t           *fail;           /* of each prefix */
    uint32_t            len;
    uint32_t            matched;
} stop_t;

struct vlm_detok_s {
    const vlm_tokenizer_t  *tok;
    vlm_lossy_t             lossy;
    vlm_buf_t               text;       /* characters not shown yet */
    size_t                  seen;       /* of it, by the automata */
    int                     stopped;
    size_t                  nstops;
    stop_t                  stops[];
};


static int add_stop(stop_t *stop, const vlm_stop_t *text, vlm_error_t *err);
static int scan(vlm_detok_t *d, vlm_buf_t *out);


vlm_detok_t *
vlm_detok_create(const vlm_tokenizer_t *tok, const vlm_stop_t *stops,
    size_t nstops, vlm_error_t *err)
{
    size_t        i;
    vlm_detok_t  *d;

    d = NULL;

    if (nstops < SIZE_MAX / sizeof(stop_t) / 2) {
        d = calloc(1, sizeof(*d) + nstops * sizeof(stop_t));
    }

    if (d == NULL) {
        vlm_fail(err, 500, NULL, "no memory");
        return NULL;
    }

    d->tok = tok;
    d->nstops = nstops;

    for (i = 0; i < nstops; i++) {
        if (add_stop(&d->stops[i], &stops[i], err) == VLM_ERROR) {
            vlm_detok_free(d);
            return NULL;
        }
    }

    return d;
}


static int
add_stop(stop_t *stop, const vlm_stop_t *text, vlm_error_t *err)
{
    uint32_t  i, k;

    if (text->len == 0 || text->len > UINT32_MAX / 8
        || vlm_utf8_valid(text->data, text->len) < text->len)
    {
        vlm_fail(err, 400, "invalid_stop",
                 "a stop string is empty or not valid UTF-8");
        vlm_error_param(err, "stop");
        return VLM_ERROR;
    }

    stop->len = (uint32_t) text->len;
    stop->data = malloc(text->len);
    stop->fail = malloc(text->len * sizeof(uint32_t));

    if (stop->data == NULL || stop->fail == NULL) {
        return vlm_fail(err, 500, NULL, "no memory");
    }

    memcpy(stop->data, text->data, text->len);

    stop->fail[0] = 0;

    for (i = 1, k = 0; i < stop->len; i++) {
        while (k > 0 && stop->data[i] != stop->data[k]) {
            k = stop->fail[k - 1];
        }

        k += (stop->data[i] == stop->data[k]);
        stop->fail[i] = k;
    }

    return VLM_OK;
}


void
vlm_detok_free(vlm_detok_t *d)
{
    size_t  i;

    if (d == NULL) {
        return;
    }

    for (i = 0; i < d->nstops; i++) {
        free(d->stops[i].data);
        free(d->stops[i].fail);
    }

    vlm_buf_free(&d->text);
    free(d);
}


int
vlm_detok_add(vlm_detok_t *d, int32_t id, vlm_buf_t *out)
{
    int          special;
    size_t       len;
    const char  *data;

    if (d->stopped) {
        return 1;
    }

    data = vlm_tokenizer_bytes(d->tok, id, &len, &special);

    if (data == NULL || special) {
        return 0;
    }

    if (d->nstops == 0) {
        return vlm_lossy_add(&d->lossy, data, len, out);
    }

    if (vlm_lossy_add(&d->lossy, data, len, &d->text) == VLM_ERROR) {
        return VLM_ERROR;
    }

    return scan(d, out);
}


int
vlm_detok_finish(vlm_detok_t *d, vlm_buf_t *out)
{
    int  rc;

    if (d->stopped) {
        return VLM_OK;
    }

    if (d->nstops == 0) {
        return vlm_lossy_finish(&d->lossy, out);
    }

    if (vlm_lossy_finish(&d->lossy, &d->text) == VLM_ERROR) {
        return VLM_ERROR;
    }

    rc = scan(d, out);

    if (rc == 0) {
        rc = vlm_buf_append(out, d->text.data, d->text.len);
        d->text.len = 0;
        d->seen = 0;
    }

    return rc == VLM_ERROR ? VLM_ERROR : VLM_OK;
}


/* one byte of text: 1 if the stop string is complete */

static int
advance(stop_t *stop, char c)
{
    uint32_t  k;

    k = stop->matched;

    while (k > 0 && stop->data[k] != c) {
        k = stop->fail[k - 1];
    }

    k += (stop->data[k] == c);
    stop->matched = k;

    return k == stop->len;
}


/* looks at new text; what cannot become a stop string any more is shown */

static int
scan(vlm_detok_t *d, vlm_buf_t *out)
{
    size_t  i, held, complete, show;

    complete = 0;

    while (d->seen < d->text.len && !d->stopped) {

        for (i = 0, complete = 0; i < d->nstops; i++) {
            if (advance(&d->stops[i], d->text.data[d->seen])
                && d->stops[i].len > complete)
            {
                complete = d->stops[i].len;
            }
        }

        d->seen++;
        d->stopped = (complete != 0);
    }

    if (d->stopped) {
        return vlm_buf_append(out, d->text.data, d->seen - complete)
               == VLM_OK ? 1 : VLM_ERROR;
    }

    for (i = 0, held = 0; i < d->nstops; i++) {
        if (d->stops[i].matched > held) {
            held = d->stops[i].matched;
        }
    }

    show = d->text.len - held;

    if (show > 0) {
        if (vlm_buf_append(out, d->text.data, show) == VLM_ERROR) {
            return VLM_ERROR;
        }

        memmove(d->text.data, d->text.data + show, held);
        d->text.len = held;
        d->seen = held;
    }

    return 0;
}
