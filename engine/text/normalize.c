
/*
 * NFC in linear time.  utf8proc alone puts a run of combining marks in order
 * by exchanging neighbours; here a run is ordered by counting, which is
 * stable, and utf8proc composes.
 *
 * Its tables (Unicode 15) are newer than those of the reference's tokenizers,
 * which have some 60 marks of rare scripts, assigned since, as unknown.  Ids
 * can differ only where such a mark stands beside another mark of the same
 * letter, in an order that is not the canonical one: no text that the models
 * were trained on, and no reason to carry a second table.
 */

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/text/tokenizer_parts.h"


static int is_normal(const char *text, size_t len);
static ptrdiff_t decompose(const char *text, size_t len, int32_t *codes,
    size_t size);
static int order(int32_t *codes, size_t n, uint64_t *operations);
static int append_codes(const int32_t *codes, size_t n, vlm_buf_t *out);


int
vlm_nfc(const char *text, size_t len, vlm_buf_t *out, uint64_t *operations)
{
    int         rc;
    size_t      size;
    int32_t    *codes;
    ptrdiff_t   n;

    if (is_normal(text, len)) {
        return 0;
    }

    /* two bytes become three codes at most (U+0390) */

    size = 2 * len + 8;

    codes = malloc(vlm_mul(size, sizeof(int32_t)));
    if (codes == NULL) {
        return VLM_ERROR;
    }

    rc = VLM_ERROR;
    n = decompose(text, len, codes, size);

    if (n >= 0 && order(codes, (size_t) n, operations) == VLM_OK) {
        n = utf8proc_normalize_utf32(codes, n,
                                     UTF8PROC_COMPOSE|UTF8PROC_STABLE);

        if (n >= 0) {
            rc = append_codes(codes, (size_t) n, out);
        }
    }

    free(codes);

    return rc == VLM_OK ? 1 : VLM_ERROR;
}


/* large blocks without marks, decompositions or second halves of one */

int
vlm_nfc_inert(int32_t c)
{
    return c < 0x300
           || (c >= 0x400 && c < 0x483)         /* Cyrillic */
           || (c >= 0x2010 && c < 0x2030)       /* punctuation */
           || (c >= 0x3001 && c < 0x302a)
           || (c >= 0x3041 && c < 0x3097)       /* kana */
           || (c >= 0x30a1 && c < 0x30fb)
           || (c >= 0x4e00 && c < 0xa000)       /* Han */
           || (c >= 0xac00 && c < 0xd7a4)       /* Hangul syllables */
           || (c >= 0xff01 && c < 0xff5f)       /* wide forms */
           || (c >= 0x1f300 && c < 0x1fb00);    /* pictographs */
}


static int
is_normal(const char *text, size_t len)
{
    size_t    i;
    int32_t   c;
    ssize_t   n;

    for (i = 0; i < len; /* void */) {

        if ((unsigned char) text[i] < 0xcc) {
            i++;                        /* below U+0300, or within one */
            continue;
        }

        n = utf8proc_iterate((const utf8proc_uint8_t *) text + i,
                             (ssize_t) (len - i), &c);

        if (n <= 0 || !vlm_nfc_inert(c)) {
            return 0;
        }

        i += (size_t) n;
    }

    return 1;
}


static ptrdiff_t
decompose(const char *text, size_t len, int32_t *codes, size_t size)
{
    int       class;
    size_t    i, n;
    int32_t   c;
    ssize_t   m;

    for (i = 0, n = 0; i < len; i += (size_t) m) {

        m = utf8proc_iterate((const utf8proc_uint8_t *) text + i,
                             (ssize_t) (len - i), &c);

        if (m <= 0) {
            return VLM_ERROR;
        }

        class = 0;

        c = (int32_t) utf8proc_decompose_char(c, codes + n,
                                              (ssize_t) (size - n),
                                              UTF8PROC_DECOMPOSE
                                              |UTF8PROC_STABLE, &class);

        if (c < 0 || (size_t) c > size - n) {
            return VLM_ERROR;
        }

        n += (size_t) c;
    }

    return (ptrdiff_t) n;
}


static int
class_of(int32_t c)
{
    int  class;

    if (c < 0x300) {
        return 0;
    }

    class = (int) utf8proc_get_property(c)->combining_class;

    return class & 0xff;
}


/* puts one run of n marks into the order of their classes */

static void
order_run(int32_t *codes, size_t n, int32_t *tmp)
{
    size_t  i, sum, count, starts[256];

    memset(starts, 0, sizeof(starts));

    for (i = 0; i < n; i++) {
        starts[class_of(codes[i])]++;
    }

    for (i = 0, sum = 0; i < 256; i++) {
        count = starts[i];
        starts[i] = sum;
        sum += count;
    }

    for (i = 0; i < n; i++) {
        tmp[starts[class_of(codes[i])]++] = codes[i];
    }

    memcpy(codes, tmp, n * sizeof(int32_t));
}


static int
order(int32_t *codes, size_t n, uint64_t *operations)
{
    int       class, last, sorted;
    size_t    i, start;
    int32_t  *tmp;

    tmp = malloc(vlm_mul(n + 1, sizeof(int32_t)));
    if (tmp == NULL) {
        return VLM_ERROR;
    }

    start = 0;
    last = 0;
    sorted = 1;

    for (i = 0; i <= n; i++) {
        class = (i < n) ? class_of(codes[i]) : 0;

        if (class != 0) {
            sorted &= (class >= last);
            last = class;
            continue;
        }

        if (!sorted) {
            order_run(codes + start, i - start, tmp);
            *operations += i - start + 256;
        }

        start = i + 1;
        last = 0;
        sorted = 1;
    }

    *operations += n;
    free(tmp);

    return VLM_OK;
}


static int
append_codes(const int32_t *codes, size_t n, vlm_buf_t *out)
{
    size_t            i;
    ssize_t           m;
    utf8proc_uint8_t  text[4];

    for (i = 0; i < n; i++) {
        m = utf8proc_encode_char(codes[i], text);

        if (m <= 0 || vlm_buf_append(out, text, (size_t) m) == VLM_ERROR) {
            return VLM_ERROR;
        }
    }

    return VLM_OK;
}
