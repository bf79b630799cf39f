
/*
 * Byte pair encoding of a piece in O(n log n): symbols are a linked list over
 * an array, candidates a heap ordered by rank, then place.  A candidate is
 * stale if its symbol's pair no longer has the rank it was entered with.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer_parts.h"


struct vlm_symbol_s {
    int32_t             id;
    int32_t             prev;           /* -1: none */
    int32_t             next;
    uint32_t            rank;           /* of the pair with the next one */
    uint32_t            whole;          /* what that pair becomes */
};


static int reserve(vlm_bpe_t *bpe, size_t len);
static void set_pair(vlm_bpe_t *bpe, const vlm_merges_t *merges, int32_t i);
static void push(vlm_bpe_t *bpe, uint64_t key);
static uint64_t pop(vlm_bpe_t *bpe);
static int merge_id(const vlm_vocab_t *vocab, const vlm_json_t *v,
    char *buf, vlm_merge_t *merge);
static int merge_parts(const vlm_json_t *v, const char **left, size_t *nleft,
    const char **right, size_t *nright);


static uint32_t
hash_of(uint32_t left, uint32_t right)
{
    uint64_t  h;

    h = ((uint64_t) left << 32 | right) * 0x9e3779b97f4a7c15u;

    return (uint32_t) (h >> 32);
}


/* the slot of a pair, or the free one where it belongs */

static vlm_merge_t *
find(const vlm_merges_t *merges, uint32_t left, uint32_t right)
{
    uint32_t      i;
    vlm_merge_t  *slot;

    for (i = hash_of(left, right) & merges->mask; /* void */;
         i = (i + 1) & merges->mask)
    {
        slot = &merges->slots[i];

        if ((slot->left == left && slot->right == right)
            || slot->left == UINT32_MAX)
        {
            return slot;
        }
    }
}


int
vlm_merges_load(vlm_merges_t *merges, const vlm_vocab_t *vocab,
    const vlm_json_t *list, vlm_error_t *err)
{
    char              *buf;
    size_t             size;
    uint32_t           rank;
    vlm_merge_t        merge;
    const vlm_json_t  *v;

    if (vlm_json_type(list) != VLM_JSON_ARRAY) {
        return vlm_fail(err, 500, NULL, "model.merges is not an array");
    }

    for (size = 64; size < 2 * vlm_json_count(list); size *= 2) {
        /* void */
    }

    merges->mask = (uint32_t) (size - 1);
    merges->slots = malloc(size * sizeof(vlm_merge_t));
    buf = malloc(3 * (size_t) vocab->max_len + 1);

    if (merges->slots == NULL || buf == NULL) {
        free(buf);
        return vlm_fail(err, 500, NULL, "no memory for merges");
    }

    memset(merges->slots, 0xff, size * sizeof(vlm_merge_t));

    rank = 0;

    for (v = vlm_json_first(list); v != NULL; v = vlm_json_next(v)) {

        if (merge_id(vocab, v, buf, &merge) == VLM_ERROR) {
            free(buf);
            return vlm_fail(err, 500, NULL, "model.merges[%u] is not two "
                            "tokens that make a third one", rank);
        }

        merge.rank = rank++;
        *find(merges, merge.left, merge.right) = merge;
    }

    free(buf);

    return VLM_OK;
}


static int
merge_id(const vlm_vocab_t *vocab, const vlm_json_t *v, char *buf,
    vlm_merge_t *merge)
{
    size_t       nleft, nright, max;
    int32_t      left_id, right_id, id;
    ptrdiff_t    n, m;
    const char  *left, *right;

    if (merge_parts(v, &left, &nleft, &right, &nright) == VLM_ERROR) {
        return VLM_ERROR;
    }

    /*
     * A symbol takes one or two bytes and gives one.  The left one is as long
     * as a token at most when the right one is written behind it, in a buffer
     * for three tokens.
     */

    max = 2 * (size_t) vocab->max_len;

    if (nleft > max || nright > max) {
        return VLM_ERROR;
    }

    n = vlm_vocab_unmap(left, nleft, buf);

    if (n == -1 || n > (ptrdiff_t) vocab->max_len) {
        return VLM_ERROR;
    }

    left_id = vlm_vocab_find(vocab, buf, (size_t) n);

    m = vlm_vocab_unmap(right, nright, buf + n);

    if (m == -1) {
        return VLM_ERROR;
    }

    right_id = vlm_vocab_find(vocab, buf + n, (size_t) m);
    id = vlm_vocab_find(vocab, buf, (size_t) (n + m));

    if (left_id == -1 || right_id == -1 || id == -1) {
        return VLM_ERROR;
    }

    merge->left = (uint32_t) left_id;
    merge->right = (uint32_t) right_id;
    merge->id = (uint32_t) id;

    return VLM_OK;
}


/* "a b" in older files, ["a", "b"] in newer ones */

static int
merge_parts(const vlm_json_t *v, const char **left, size_t *nleft,
    const char **right, size_t *nright)
{
    size_t       len;
    const char  *text, *space;

    if (vlm_json_type(v) == VLM_JSON_ARRAY) {

        if (vlm_json_count(v) != 2
            || vlm_json_string(vlm_json_at(v, 0), left, nleft) == VLM_ERROR
            || vlm_json_string(vlm_json_at(v, 1), right, nright)
               == VLM_ERROR)
        {
            return VLM_ERROR;
        }

        return VLM_OK;
    }

    if (vlm_json_string(v, &text, &len) == VLM_ERROR) {
        return VLM_ERROR;
    }

    space = memchr(text, ' ', len);

    if (space == NULL) {
        return VLM_ERROR;
    }

    *left = text;
    *nleft = (size_t) (space - text);
    *right = space + 1;
    *nright = len - *nleft - 1;

    return VLM_OK;
}


void
vlm_merges_protect(vlm_merges_t *merges, const vlm_vocab_t *vocab)
{
    uint32_t      i;
    vlm_merge_t  *slot;

    for (i = 0; i <= merges->mask; i++) {
        slot = &merges->slots[i];

        if (slot->left != UINT32_MAX && vocab->tokens[slot->id].special) {
            slot->rank = VLM_NO_RANK;
        }
    }
}


void
vlm_merges_free(vlm_merges_t *merges)
{
    free(merges->slots);
}


int
vlm_bpe_run(vlm_bpe_t *bpe, const vlm_merges_t *merges,
    const vlm_vocab_t *vocab, const char *piece, size_t len, vlm_ids_t *ids)
{
    int32_t        i, n;
    uint64_t       key;
    vlm_symbol_t  *s, *dead;

    if (reserve(bpe, len) == VLM_ERROR) {
        return VLM_ERROR;
    }

    n = (int32_t) len;
    s = bpe->symbols;

    for (i = 0; i < n; i++) {
        s[i].id = vocab->byte_id[(unsigned char) piece[i]];
        s[i].prev = i - 1;
        s[i].next = (i + 1 < n) ? i + 1 : -1;
    }

    for (i = 0; i < n; i++) {
        set_pair(bpe, merges, i);
    }

    while (bpe->nheap > 0) {
        key = pop(bpe);
        i = (int32_t) (key & UINT32_MAX);

        if (s[i].rank != (uint32_t) (key >> 32)) {
            continue;
        }

        dead = &s[s[i].next];
        dead->rank = VLM_NO_RANK;

        s[i].id = (int32_t) s[i].whole;
        s[i].next = dead->next;

        if (dead->next != -1) {
            s[dead->next].prev = i;
        }

        set_pair(bpe, merges, i);

        if (s[i].prev != -1) {
            set_pair(bpe, merges, s[i].prev);
        }
    }

    for (i = 0; i != -1 && n > 0; i = s[i].next) {
        if (vlm_ids_append(ids, s[i].id, 1) == VLM_ERROR) {
            return VLM_ERROR;
        }
    }

    return VLM_OK;
}


/*
 * The heap takes a candidate for each pair at first; a merge takes one out
 * and puts at most two in, and there are fewer merges than symbols.
 */

static int
reserve(vlm_bpe_t *bpe, size_t len)
{
    size_t  size;

    bpe->nheap = 0;

    if (len <= bpe->size) {
        return VLM_OK;
    }

    size = len < 64 ? 64 : len;

    vlm_bpe_free(bpe);

    bpe->symbols = malloc(vlm_mul(size, sizeof(vlm_symbol_t)));
    bpe->heap = malloc(vlm_mul(size, 2 * sizeof(uint64_t)));

    if (bpe->symbols == NULL || bpe->heap == NULL) {
        vlm_bpe_free(bpe);
        return VLM_ERROR;
    }

    bpe->size = size;

    return VLM_OK;
}


/* looks the pair at i up and enters it as a candidate */

static void
set_pair(vlm_bpe_t *bpe, const vlm_merges_t *merges, int32_t i)
{
    vlm_symbol_t  *s;
    vlm_merge_t   *merge;

    s = &bpe->symbols[i];
    s->rank = VLM_NO_RANK;

    if (s->next == -1) {
        return;
    }

    bpe->operations++;

    merge = find(merges, (uint32_t) s->id,
                 (uint32_t) bpe->symbols[s->next].id);

    if (merge->rank == VLM_NO_RANK) {
        return;
    }

    s->rank = merge->rank;
    s->whole = merge->id;

    push(bpe, (uint64_t) merge->rank << 32 | (uint32_t) i);
}


static void
push(vlm_bpe_t *bpe, uint64_t key)
{
    size_t     i, up;
    uint64_t  *heap;

    heap = bpe->heap;

    for (i = bpe->nheap++; i > 0; i = up) {
        up = (i - 1) / 2;

        if (heap[up] <= key) {
            break;
        }

        heap[i] = heap[up];
        bpe->operations++;
    }

    heap[i] = key;
}


static uint64_t
pop(vlm_bpe_t *bpe)
{
    size_t     i, down, n;
    uint64_t  *heap, top, key;

    heap = bpe->heap;
    top = heap[0];

    n = --bpe->nheap;
    key = heap[n];

    for (i = 0; 2 * i + 1 < n; i = down) {
        down = 2 * i + 1;

        if (down + 1 < n && heap[down + 1] < heap[down]) {
            down++;
        }

        if (key <= heap[down]) {
            break;
        }

        heap[i] = heap[down];
        bpe->operations++;
    }

    heap[i] = key;

    return top;
}


void
vlm_bpe_free(vlm_bpe_t *bpe)
{
    free(bpe->symbols);
    free(bpe->heap);

    bpe->symbols = NULL;
    bpe->heap = NULL;
    bpe->size = 0;
}
