
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/vlm_base.h"


static const char  *log_names[] = { "error", "warn", "info", "debug" };

/* written by any thread with a relaxed store, at start as a rule */
static int          log_level = VLM_LOG_INFO;


int
vlm_fail(vlm_error_t *err, int status, const char *code, const char *fmt, ...)
{
    va_list  args;

    if (err == NULL) {
        return VLM_ERROR;
    }

    err->status = status;
    err->param[0] = '\0';
    snprintf(err->code, sizeof(err->code), "%s", code != NULL ? code : "");

    va_start(args, fmt);
    vsnprintf(err->message, sizeof(err->message), fmt, args);
    va_end(args);

    return VLM_ERROR;
}


int
vlm_fail_in(vlm_error_t *err, const char *fmt, ...)
{
    char     tail[sizeof(err->message)];
    va_list  args;
    size_t   len;

    if (err == NULL) {
        return VLM_ERROR;
    }

    memcpy(tail, err->message, sizeof(tail));

    va_start(args, fmt);
    vsnprintf(err->message, sizeof(err->message), fmt, args);
    va_end(args);

    len = strlen(err->message);
    snprintf(err->message + len, sizeof(err->message) - len, "%s", tail);

    return VLM_ERROR;
}


void
vlm_error_param(vlm_error_t *err, const char *fmt, ...)
{
    va_list  args;

    if (err == NULL) {
        return;
    }

    va_start(args, fmt);
    vsnprintf(err->param, sizeof(err->param), fmt, args);
    va_end(args);
}


int
vlm_log_level(const char *name)
{
    int  i;

    for (i = 0; i <= VLM_LOG_DEBUG; i++) {
        if (strcmp(name, log_names[i]) == 0) {
            __atomic_store_n(&log_level, i, __ATOMIC_RELAXED);
            return VLM_OK;
        }
    }

    return VLM_ERROR;
}


int
vlm_log_enabled(int level)
{
    return level <= __atomic_load_n(&log_level, __ATOMIC_RELAXED);
}


void
vlm_log(int level, const char *fmt, ...)
{
    int              n, m;
    char             line[1024];
    va_list          args;
    struct tm        tm;
    struct timespec  ts;

    if (!vlm_log_enabled(level)) {
        return;
    }

    clock_gettime(CLOCK_REALTIME, &ts);
    localtime_r(&ts.tv_sec, &tm);

    n = (int) strftime(line, sizeof(line), "%Y/%m/%d %H:%M:%S", &tm);
    n += snprintf(line + n, sizeof(line) - (size_t) n, ".%03d [%s] %d: ",
                  (int) (ts.tv_nsec / 1000000), log_names[level],
                  (int) getpid());

    va_start(args, fmt);
    m = vsnprintf(line + n, sizeof(line) - (size_t) n - 1, fmt, args);
    va_end(args);

    if (m > 0) {
        n += m;
    }

    if (n > (int) sizeof(line) - 2) {
        n = (int) sizeof(line) - 2;
    }

    line[n++] = '\n';

    /* a log that cannot be written must not disturb the work */
    while (write(STDERR_FILENO, line, (size_t) n) < 0 && errno == EINTR) {
        /* void */
    }
}


int
vlm_buf_append(vlm_buf_t *buf, const void *data, size_t len)
{
    char    *p;
    size_t   size;

    if (len >= buf->size - buf->len) {
        if (len > SIZE_MAX / 4 || buf->len > SIZE_MAX / 4) {
            return VLM_ERROR;
        }

        size = (buf->len + len + 1) * 2;

        if (size < 64) {
            size = 64;
        }

        p = realloc(buf->data, size);
        if (p == NULL) {
            return VLM_ERROR;
        }

        buf->data = p;
        buf->size = size;
    }

    if (len != 0) {
        memcpy(buf->data + buf->len, data, len);
    }

    buf->len += len;
    buf->data[buf->len] = '\0';

    return VLM_OK;
}


int
vlm_buf_printf(vlm_buf_t *buf, const char *fmt, ...)
{
    int      n;
    char     text[512];
    char    *p;
    va_list  args;

    va_start(args, fmt);
    n = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);

    if (n < 0) {
        return VLM_ERROR;
    }

    if ((size_t) n < sizeof(text)) {
        return vlm_buf_append(buf, text, (size_t) n);
    }

    va_start(args, fmt);
    n = vasprintf(&p, fmt, args);
    va_end(args);

    if (n < 0) {
        return VLM_ERROR;
    }

    n = vlm_buf_append(buf, p, (size_t) n);
    free(p);

    return n;
}


void
vlm_buf_free(vlm_buf_t *buf)
{
    free(buf->data);
    memset(buf, 0, sizeof(*buf));
}


static int
json_escape(vlm_buf_t *buf, unsigned char c)
{
    char  text[8];

    switch (c) {

    case '"':
        return vlm_buf_append(buf, "\\\"", 2);

    case '\\':
        return vlm_buf_append(buf, "\\\\", 2);

    case '\n':
        return vlm_buf_append(buf, "\\n", 2);

    case '\r':
        return vlm_buf_append(buf, "\\r", 2);

    case '\t':
        return vlm_buf_append(buf, "\\t", 2);

    default:
        snprintf(text, sizeof(text), "\\u%04x", c);
        return vlm_buf_append(buf, text, 6);
    }
}


int
vlm_buf_json_string(vlm_buf_t *buf, const char *data, size_t len)
{
    int            rc;
    size_t         i, n, start;
    unsigned char  c;

    rc = vlm_buf_append(buf, "\"", 1);

    while (len > 0 && rc == VLM_OK) {
        n = vlm_utf8_valid(data, len);

        for (i = 0, start = 0; i < n && rc == VLM_OK; i++) {
            c = (unsigned char) data[i];

            if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) {
                continue;
            }

            rc = vlm_buf_append(buf, data + start, i - start);

            if (rc == VLM_OK) {
                rc = json_escape(buf, c);
            }

            start = i + 1;
        }

        if (rc == VLM_OK) {
            rc = vlm_buf_append(buf, data + start, n - start);
        }

        if (n < len && rc == VLM_OK) {
            rc = vlm_buf_append(buf, "\xef\xbf\xbd", 3);
            n++;
        }

        data += n;
        len -= n;
    }

    if (rc == VLM_OK) {
        rc = vlm_buf_append(buf, "\"", 1);
    }

    return rc;
}


int
vlm_parse_size(const char *text, uint64_t *size)
{
    char                *end;
    unsigned             shift;
    unsigned long long   n;

    if (!isdigit((unsigned char) text[0])) {
        return VLM_ERROR;
    }

    errno = 0;
    n = strtoull(text, &end, 10);

    if (errno != 0) {
        return VLM_ERROR;
    }

    switch (*end) {

    case 'k':
    case 'K':
        shift = 10;
        break;

    case 'm':
    case 'M':
        shift = 20;
        break;

    case 'g':
    case 'G':
        shift = 30;
        break;

    case '\0':
        *size = n;
        return VLM_OK;

    default:
        return VLM_ERROR;
    }

    if (end[1] != '\0' || n > (UINT64_MAX >> shift)) {
        return VLM_ERROR;
    }

    *size = (uint64_t) n << shift;

    return VLM_OK;
}


uint64_t
vlm_now_us(void)
{
    struct timespec  ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * 1000000 + (uint64_t) ts.tv_nsec / 1000;
}


static int
read_all(int fd, const char *path, size_t size, char **data, size_t *len,
    vlm_error_t *err)
{
    char     *p;
    size_t    done;
    ssize_t   n;

    p = malloc(size + 1);
    if (p == NULL) {
        return vlm_fail(err, 500, NULL, "%s: no memory for %zu bytes", path,
                        size);
    }

    for (done = 0; done < size; done += (size_t) n) {
        n = read(fd, p + done, size - done);

        if (n < 0 && errno == EINTR) {
            n = 0;
            continue;
        }

        if (n < 0) {
            vlm_fail(err, 500, NULL, "%s: %s", path, strerror(errno));
            free(p);
            return VLM_ERROR;
        }

        if (n == 0) {
            break;
        }
    }

    p[done] = '\0';
    *data = p;
    *len = done;

    return VLM_OK;
}


int
vlm_read_file(const char *path, size_t max, char **data, size_t *len,
    vlm_error_t *err)
{
    int          fd, rc;
    struct stat  st;

    fd = open(path, O_RDONLY|O_CLOEXEC);

    if (fd == -1) {
        return vlm_fail(err, 500, NULL, "%s: %s", path, strerror(errno));
    }

    if (fstat(fd, &st) == -1) {
        rc = vlm_fail(err, 500, NULL, "%s: %s", path, strerror(errno));

    } else if (!S_ISREG(st.st_mode)) {
        rc = vlm_fail(err, 500, NULL, "%s: is not a regular file", path);

    } else if ((uint64_t) st.st_size > max) {
        rc = vlm_fail(err, 500, NULL, "%s: is too large: %llu bytes, "
                      "at most %zu", path, (unsigned long long) st.st_size,
                      max);

    } else {
        rc = read_all(fd, path, (size_t) st.st_size, data, len, err);
    }

    close(fd);

    return rc;
}


size_t
vlm_mul(size_t n, size_t size)
{
    size_t  product;

    if (__builtin_mul_overflow(n, size, &product)) {
        return 0;
    }

    return product;
}


size_t
vlm_utf8_valid(const char *data, size_t len)
{
    size_t                i, n;
    unsigned              lo, hi;
    const unsigned char  *p;

    p = (const unsigned char *) data;

    for (i = 0; i < len; i += n) {

        if (p[i] < 0x80) {
            n = 1;
            continue;
        }

        /* the second byte's range excludes overlong forms and surrogates */

        lo = 0x80;
        hi = 0xbf;

        if (p[i] >= 0xc2 && p[i] <= 0xdf) {
            n = 2;

        } else if (p[i] >= 0xe0 && p[i] <= 0xef) {
            n = 3;
            lo = (p[i] == 0xe0) ? 0xa0 : lo;
            hi = (p[i] == 0xed) ? 0x9f : hi;

        } else if (p[i] >= 0xf0 && p[i] <= 0xf4) {
            n = 4;
            lo = (p[i] == 0xf0) ? 0x90 : lo;
            hi = (p[i] == 0xf4) ? 0x8f : hi;

        } else {
            return i;
        }

        if (len - i < n || p[i + 1] < lo || p[i + 1] > hi
            || (n > 2 && (p[i + 2] & 0xc0) != 0x80)
            || (n > 3 && (p[i + 3] & 0xc0) != 0x80))
        {
            return i;
        }
    }

    return i;
}
