
#include <string.h>

#include "engine/text/tokenizer_parts.h"


#define REPLACEMENT  "\xef\xbf\xbd"


/* is it the beginning of a character, complete or not? */

static int
is_begin(const char *data, size_t len)
{
    size_t                n;
    unsigned              lo, hi;
    const unsigned char  *p;

    p = (const unsigned char *) data;

    if (p[0] >= 0xc2 && p[0] <= 0xdf) {
        n = 2;

    } else if (p[0] >= 0xe0 && p[0] <= 0xef) {
        n = 3;

    } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        n = 4;

    } else {
        return 0;
    }

    if (len > 1) {
        lo = (p[0] == 0xe0) ? 0xa0 : (p[0] == 0xf0) ? 0x90 : 0x80;
        hi = (p[0] == 0xed) ? 0x9f : (p[0] == 0xf4) ? 0x8f : 0xbf;

        if (p[1] < lo || p[1] > hi) {
            return 0;
        }
    }

    return len <= n && (len < 3 || (p[2] & 0xc0) == 0x80)
           && (len < 4 || (p[3] & 0xc0) == 0x80);
}


/* bytes of the longest beginning of a character at data */

static size_t
begin_len(const char *data, size_t len)
{
    size_t  n;

    for (n = 0; n < len && n < 4 && is_begin(data, n + 1); n++) {
        /* void */
    }

    return n;
}


/* appends what is complete in data, returns the length that is left */

static int
convert(const char *data, size_t len, size_t *left, vlm_buf_t *out)
{
    size_t  n;

    while (len > 0) {
        n = vlm_utf8_valid(data, len);

        if (vlm_buf_append(out, data, n) == VLM_ERROR) {
            return VLM_ERROR;
        }

        data += n;
        len -= n;

        if (len == 0) {
            break;
        }

        n = begin_len(data, len);

        if (n == len) {
            break;
        }

        if (vlm_buf_append(out, REPLACEMENT, 3) == VLM_ERROR) {
            return VLM_ERROR;
        }

        n = n != 0 ? n : 1;
        data += n;
        len -= n;
    }

    *left = len;

    return VLM_OK;
}


int
vlm_lossy_add(vlm_lossy_t *lossy, const char *data, size_t len,
    vlm_buf_t *out)
{
    char    first[8];
    size_t  n, left, used;

    used = 0;

    if (lossy->len != 0) {

        /* at most 3 bytes wait; 4 more certainly end that character */

        n = len < 4 ? len : 4;
        memcpy(first, lossy->tail, lossy->len);
        memcpy(first + lossy->len, data, n);

        if (convert(first, lossy->len + n, &left, out) == VLM_ERROR) {
            return VLM_ERROR;
        }

        if (n == len) {
            memcpy(lossy->tail, first + lossy->len + n - left, left);
            lossy->len = left;
            return VLM_OK;
        }

        used = n - left;
    }

    if (convert(data + used, len - used, &left, out) == VLM_ERROR) {
        return VLM_ERROR;
    }

    memcpy(lossy->tail, data + len - left, left);
    lossy->len = left;

    return VLM_OK;
}


int
vlm_lossy_finish(vlm_lossy_t *lossy, vlm_buf_t *out)
{
    if (lossy->len == 0) {
        return VLM_OK;
    }

    lossy->len = 0;

    return vlm_buf_append(out, REPLACEMENT, 3);
}
