
/*
 * Ids and stop strings: what is streamed equals what is decoded at once, up
 * to the stop string that is complete first.  Input: number of stop strings,
 * for each a length and its bytes, then two bytes for each id.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer_parts.h"


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static vlm_tokenizer_t  *tok;


/* the slow way: at each byte, does a stop string end here? */

static size_t
cut(const vlm_buf_t *text, const vlm_stop_t *stops, size_t nstops)
{
    size_t  i, end, longest;

    for (end = 1; end <= text->len; end++) {
        longest = 0;

        for (i = 0; i < nstops; i++) {
            if (stops[i].len <= end && stops[i].len > longest
                && memcmp(text->data + end - stops[i].len, stops[i].data,
                          stops[i].len) == 0)
            {
                longest = stops[i].len;
            }
        }

        if (longest != 0) {
            return end - longest;
        }
    }

    return text->len;
}


static void
check(const vlm_stop_t *stops, size_t nstops, const vlm_ids_t *ids)
{
    int           rc;
    size_t        i, n;
    vlm_buf_t     out, whole;
    vlm_error_t   err;
    vlm_detok_t  *d;

    memset(&out, 0, sizeof(out));
    memset(&whole, 0, sizeof(whole));

    d = vlm_detok_create(tok, stops, nstops, &err);
    if (d == NULL) {
        return;
    }

    for (i = 0, rc = 0; i < ids->len && rc == 0; i++) {
        rc = vlm_detok_add(d, ids->data[i], &out);

        if (vlm_utf8_valid(out.data, out.len) != out.len) {
            __builtin_trap();
        }
    }

    if (rc == VLM_ERROR || vlm_detok_finish(d, &out) == VLM_ERROR
        || vlm_tokenizer_decode(tok, ids->data, ids->len, 1, &whole, &err)
           == VLM_ERROR)
    {
        __builtin_trap();
    }

    n = cut(&whole, stops, nstops);

    if (out.len != n || (n > 0 && memcmp(out.data, whole.data, n) != 0)) {
        __builtin_trap();
    }

    vlm_detok_free(d);
    vlm_buf_free(&out);
    vlm_buf_free(&whole);
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t        n, nstops;
    vlm_ids_t     ids;
    vlm_stop_t    stops[4];
    vlm_error_t   err;

    if (tok == NULL) {
        tok = vlm_tokenizer_load("models/demo", &err);

        if (tok == NULL) {
            fprintf(stderr, "%s (start in the root)\n", err.message);
            exit(1);
        }
    }

    if (size == 0) {
        return 0;
    }

    n = data[0] % 5;
    data++;
    size--;

    for (nstops = 0; nstops < n && size > 0; nstops++) {
        stops[nstops].len = data[0] % 8;
        data++;
        size--;

        if (stops[nstops].len > size) {
            stops[nstops].len = size;
        }

        stops[nstops].data = (const char *) data;
        data += stops[nstops].len;
        size -= stops[nstops].len;
    }

    memset(&ids, 0, sizeof(ids));

    for (/* void */; size >= 2; data += 2, size -= 2) {
        if (vlm_ids_append(&ids, (data[0] | data[1] << 8) % 544 - 2, 1)
            == VLM_ERROR)
        {
            __builtin_trap();
        }
    }

    check(stops, nstops, &ids);
    vlm_ids_free(&ids);

    return 0;
}
