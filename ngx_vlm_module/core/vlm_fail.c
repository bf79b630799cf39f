
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "vlm_fail.h"


static void copy_cut(char *to, size_t size, const char *from);


void
vlm_fail(vlm_fail_t *f, unsigned status, const char *code, const char *param,
    const char *fmt, ...)
{
    int      n;
    va_list  args;

    f->status = status;
    f->retry_after = 0;
    copy_cut(f->code, sizeof(f->code), code);
    copy_cut(f->param, sizeof(f->param), param);

    va_start(args, fmt);
    n = vsnprintf(f->message, sizeof(f->message), fmt, args);
    va_end(args);

    if (n < 0) {
        f->message[0] = '\0';

    } else if ((size_t) n >= sizeof(f->message)) {
        /* vsnprintf() may have cut within a character */
        n = vlm_fail_cut(f->message, sizeof(f->message) - 1,
                         sizeof(f->message) - 1);
        f->message[n] = '\0';
    }
}


static void
copy_cut(char *to, size_t size, const char *from)
{
    size_t  len;

    if (from == NULL) {
        from = "";
    }

    len = vlm_fail_cut(from, strlen(from), size - 1);

    memcpy(to, from, len);
    to[len] = '\0';
}


size_t
vlm_fail_cut(const char *p, size_t len, size_t max)
{
    size_t         n, need;
    unsigned char  c;

    if (len > max) {
        len = max;
    }

    /* back to the lead byte of the last character, if it is incomplete */

    for (n = len; n > 0 && len - n < 4; n--) {
        c = p[n - 1];

        if (c < 0x80) {
            break;
        }

        if (c >= 0xc0) {
            need = (c >= 0xf0) ? 4 : (c >= 0xe0) ? 3 : 2;

            if (len - (n - 1) < need) {
                return n - 1;
            }

            break;
        }
    }

    return len;
}


const char *
vlm_fail_type(unsigned status)
{
    return (status >= 500) ? "server_error" : "invalid_request_error";
}
