
#include <stdio.h>
#include <string.h>

#include "vlm_out.h"
#include "vlm_utf8.h"


static void escape(vlm_out_t *o, uint8_t c);


void
vlm_out_init(vlm_out_t *o, void *buf, size_t size)
{
    o->buf = buf;
    o->size = size;
    o->len = 0;
}


void
vlm_out_bytes(vlm_out_t *o, const void *p, size_t len)
{
    size_t  n;

    if (len != 0 && o->len < o->size) {
        n = o->size - o->len;

        if (n > len) {
            n = len;
        }

        memcpy(o->buf + o->len, p, n);
    }

    o->len += len;
}


void
vlm_out_str(vlm_out_t *o, const char *s)
{
    vlm_out_bytes(o, s, strlen(s));
}


void
vlm_out_uint(vlm_out_t *o, uint64_t n)
{
    char    buf[20];
    size_t  i;

    i = sizeof(buf);

    do {
        buf[--i] = '0' + n % 10;
        n /= 10;
    } while (n != 0);

    vlm_out_bytes(o, buf + i, sizeof(buf) - i);
}


void
vlm_out_json(vlm_out_t *o, const char *text, size_t len)
{
    size_t          n;
    const uint8_t  *p, *run, *last;

    p = (const uint8_t *) text;
    last = p + len;
    run = p;

    while (p < last) {

        if (*p >= 0x20 && *p < 0x7f && *p != '"' && *p != '\\') {
            p++;
            continue;
        }

        n = (*p >= 0x80) ? vlm_utf8_char(p, last) : 0;

        if (n != 0) {
            p += n;
            continue;
        }

        vlm_out_bytes(o, run, p - run);
        escape(o, *p++);
        run = p;
    }

    vlm_out_bytes(o, run, p - run);
}


static void
escape(vlm_out_t *o, uint8_t c)
{
    char                buf[8];
    const char         *s;
    static const char   plain[] = "\"\\\b\f\n\r\t";
    static const char  *names[] = {
        "\\\"", "\\\\", "\\b", "\\f", "\\n", "\\r", "\\t"
    };

    if (c >= 0x80) {
        vlm_out_str(o, "\\ufffd");
        return;
    }

    s = (c != '\0') ? strchr(plain, c) : NULL;

    if (s != NULL) {
        vlm_out_str(o, names[s - plain]);
        return;
    }

    (void) snprintf(buf, sizeof(buf), "\\u%04x", (unsigned) c);
    vlm_out_str(o, buf);
}
