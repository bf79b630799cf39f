
#include <stdlib.h>
#include <string.h>

#include "engine/cache/redis.h"


static int url_login(const char *text, size_t len, vlm_redis_url_t *url,
    vlm_error_t *err);
static int url_place(const char *text, vlm_redis_url_t *url,
    vlm_error_t *err);


/* messages never show the URL: there may be a password in it */

static int
bad(vlm_error_t *err, const char *why)
{
    return vlm_fail(err, 400, NULL, "Redis URL: %s; the form is "
                    "redis://[:password@]host[:port][/db] or "
                    "unix:PATH[?db=N]", why);
}


/* a whole number up to max, to the end of the text */

static int
number(const char *text, int max, int *n)
{
    int  value;

    if (*text == '\0') {
        return VLM_ERROR;
    }

    for (value = 0; *text != '\0'; text++) {

        if (*text < '0' || *text > '9') {
            return VLM_ERROR;
        }

        value = value * 10 + (*text - '0');

        if (value > max) {
            return VLM_ERROR;
        }
    }

    *n = value;

    return VLM_OK;
}


static int
hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}


/* undoes %XX */

static int
decode(const char *text, size_t len, char *to, size_t size)
{
    size_t  i, n;

    for (i = 0, n = 0; i < len; i++, n++) {

        if (n + 1 >= size) {
            return VLM_ERROR;
        }

        to[n] = text[i];

        if (text[i] == '%') {

            if (len - i < 3 || hex_digit(text[i + 1]) < 0
                || hex_digit(text[i + 2]) < 0)
            {
                return VLM_ERROR;
            }

            to[n] = (char) (hex_digit(text[i + 1]) * 16
                            + hex_digit(text[i + 2]));
            i += 2;
        }

        if (to[n] == '\0') {
            return VLM_ERROR;
        }
    }

    to[n] = '\0';

    return VLM_OK;
}


int
vlm_redis_url(const char *text, vlm_redis_url_t *url, vlm_error_t *err)
{
    size_t       len;
    const char  *at, *query;

    memset(url, 0, sizeof(*url));

    if (strncmp(text, "rediss://", 9) == 0) {
        return vlm_fail(err, 400, NULL, "rediss:// is not supported: this "
                        "build's hiredis has no TLS; use redis:// through a "
                        "tunnel, or a unix socket");
    }

    if (strncmp(text, "unix:", 5) == 0) {
        text += 5;

        if (strncmp(text, "//", 2) == 0) {
            text += 2;
        }

        query = strchr(text, '?');
        len = query != NULL ? (size_t) (query - text) : strlen(text);

        if (text[0] != '/' || len > 107
            || decode(text, len, url->host, sizeof(url->host)) != VLM_OK)
        {
            return bad(err, "the path must be absolute and at most 107 "
                       "bytes long");
        }

        if (query != NULL
            && (strncmp(query, "?db=", 4) != 0
                || number(query + 4, 65535, &url->db) != VLM_OK))
        {
            return bad(err, "only ?db=N may follow a path");
        }

        return VLM_OK;
    }

    if (strncmp(text, "redis://", 8) != 0) {
        return bad(err, "unknown scheme");
    }

    text += 8;
    at = strrchr(text, '@');

    if (at != NULL) {
        if (url_login(text, (size_t) (at - text), url, err) != VLM_OK) {
            return VLM_ERROR;
        }

        text = at + 1;
    }

    return url_place(text, url, err);
}


static int
url_login(const char *text, size_t len, vlm_redis_url_t *url,
    vlm_error_t *err)
{
    size_t       user;
    const char  *colon;

    colon = memchr(text, ':', len);

    if (colon == NULL) {
        return bad(err, "a user without a password");
    }

    user = (size_t) (colon - text);

    if (decode(text, user, url->user, sizeof(url->user)) != VLM_OK
        || decode(colon + 1, len - user - 1, url->password,
                  sizeof(url->password))
           != VLM_OK)
    {
        return bad(err, "user or password is too long or wrongly encoded");
    }

    return VLM_OK;
}


/* host, :port, /db */

static int
url_place(const char *text, vlm_redis_url_t *url, vlm_error_t *err)
{
    char         port[16];
    size_t       len;
    const char  *end;

    if (text[0] == '[') {
        text++;
        end = strchr(text, ']');

        if (end == NULL) {
            return bad(err, "no \"]\" after an address");
        }

        len = (size_t) (end - text);
        end++;

    } else {
        len = strcspn(text, ":/");
        end = text + len;
    }

    if (len == 0 || decode(text, len, url->host, sizeof(url->host)) != VLM_OK)
    {
        return bad(err, "no valid host");
    }

    url->port = 6379;

    if (*end == ':') {
        len = strcspn(end + 1, "/");

        if (len >= sizeof(port)) {
            return bad(err, "no valid port");
        }

        memcpy(port, end + 1, len);
        port[len] = '\0';
        end += 1 + len;

        if (number(port, 65535, &url->port) != VLM_OK || url->port == 0) {
            return bad(err, "no valid port");
        }
    }

    if (*end == '/' && end[1] != '\0') {
        if (number(end + 1, 65535, &url->db) != VLM_OK) {
            return bad(err, "no valid database number");
        }

    } else if (*end != '\0' && *end != '/') {
        return bad(err, "no valid host");
    }

    return VLM_OK;
}
