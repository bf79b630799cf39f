
/*
 * What all parts of the engine share: results, errors as values, the log, a
 * growing buffer, sizes with units, clocks.
 */

#ifndef VLM_BASE_H
#define VLM_BASE_H


#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>


#define VLM_OK       0
#define VLM_ERROR   -1
#define VLM_AGAIN   -2


/*
 * An error travels upwards as a value; only main() ends the process.
 * status is the HTTP status that a client should see for it: 400 for a bad
 * request or picture, 500 for the engine's own failures.
 */

typedef struct {
    int         status;
    char        code[32];           /* "invalid_image" ..., may be "" */
    char        param[48];          /* "image[2]", may be "" */
    char        message[400];
} vlm_error_t;

/* fills *err (which may be NULL) and returns VLM_ERROR */
int vlm_fail(vlm_error_t *err, int status, const char *code,
    const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* puts a prefix ("dir/config.json: ") before the message; VLM_ERROR */
int vlm_fail_in(vlm_error_t *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

void vlm_error_param(vlm_error_t *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));


#define VLM_LOG_ERROR       0
#define VLM_LOG_WARN        1
#define VLM_LOG_INFO        2
#define VLM_LOG_DEBUG       3

/* one line to stderr, time and level in front, by a single write() */
void vlm_log(int level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* "error", "warn", "info", "debug"; VLM_ERROR if unknown; any thread */
int vlm_log_level(const char *name);
int vlm_log_enabled(int level);


/* a growing buffer; {0} is an empty one; data is kept zero-terminated */

typedef struct {
    char       *data;
    size_t      len;
    size_t      size;
} vlm_buf_t;

int vlm_buf_append(vlm_buf_t *buf, const void *data, size_t len);
int vlm_buf_printf(vlm_buf_t *buf, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void vlm_buf_free(vlm_buf_t *buf);

/* appends text as a JSON string, quotes included; bad UTF-8 as U+FFFD */
int vlm_buf_json_string(vlm_buf_t *buf, const char *data, size_t len);


/* "64m", "1g", "4096" to bytes; VLM_ERROR if malformed or too large */
int vlm_parse_size(const char *text, uint64_t *size);

uint64_t vlm_now_us(void);          /* CLOCK_MONOTONIC */

/* reads a whole file of at most max bytes; the caller frees *data */
int vlm_read_file(const char *path, size_t max, char **data, size_t *len,
    vlm_error_t *err);

/* n * size (+ extra) without overflow; 0: it does not fit */
size_t vlm_mul(size_t n, size_t size);

/* length of the valid UTF-8 prefix (RFC 3629: no surrogates, no overlong) */
size_t vlm_utf8_valid(const char *data, size_t len);


#endif /* VLM_BASE_H */
