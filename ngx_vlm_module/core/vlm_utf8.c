
#include "vlm_utf8.h"


static int lead(vlm_utf8_t *u, uint8_t c);


int
vlm_utf8_add(vlm_utf8_t *u, const uint8_t *p, size_t len)
{
    const uint8_t  *last;

    last = p + len;

    while (p < last) {

        if (u->need == 0) {

            if (*p < 0x80) {
                p++;
                continue;
            }

            if (lead(u, *p++) != 0) {
                return -1;
            }

            continue;
        }

        if (*p < u->low || *p > u->high) {
            return -1;
        }

        u->low = 0x80;
        u->high = 0xbf;
        u->need--;
        p++;
    }

    return 0;
}


/* what may follow: table 3-7 of the Unicode standard */

static int
lead(vlm_utf8_t *u, uint8_t c)
{
    u->low = 0x80;
    u->high = 0xbf;

    if (c >= 0xc2 && c <= 0xdf) {
        u->need = 1;

    } else if (c >= 0xe0 && c <= 0xef) {
        u->need = 2;

        if (c == 0xe0) {
            u->low = 0xa0;

        } else if (c == 0xed) {
            u->high = 0x9f;
        }

    } else if (c >= 0xf0 && c <= 0xf4) {
        u->need = 3;

        if (c == 0xf0) {
            u->low = 0x90;

        } else if (c == 0xf4) {
            u->high = 0x8f;
        }

    } else {
        return -1;
    }

    return 0;
}


int
vlm_utf8_end(const vlm_utf8_t *u)
{
    return (u->need == 0) ? 0 : -1;
}


size_t
vlm_utf8_char(const uint8_t *p, const uint8_t *last)
{
    size_t      n;
    vlm_utf8_t  u;

    if (p == last) {
        return 0;
    }

    if (*p < 0x80) {
        return 1;
    }

    if (lead(&u, *p) != 0) {
        return 0;
    }

    n = 1 + u.need;

    if ((size_t) (last - p) < n || vlm_utf8_add(&u, p + 1, n - 1) != 0) {
        return 0;
    }

    return n;
}
