
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

#include "engine/cli/cli.h"


static int redis_password(const char *path, vlm_redis_url_t *url,
    vlm_error_t *err);


int
vlm_cli_redis(vlm_options_t *o, vlm_error_t *err)
{
    const char       *text;
    vlm_redis_url_t  *url;

    url = &o->redis_url;
    text = o->redis != NULL ? o->redis : getenv("VLM_REDIS_URL");

    if (text == NULL || text[0] == '\0') {

        if (o->redis_password != NULL) {
            return vlm_fail(err, 400, NULL, "--redis-password-file without "
                            "--redis");
        }

        return VLM_OK;
    }

    if (vlm_redis_url(text, url, err) != VLM_OK) {
        return vlm_fail_in(err, "%s: ", o->redis != NULL ? "--redis"
                                                         : "VLM_REDIS_URL");
    }

    if (o->redis != NULL && url->password[0] != '\0') {
        return vlm_fail(err, 400, NULL, "--redis: a password on the command "
                        "line can be seen by everybody: put the URL into "
                        "VLM_REDIS_URL, or use --redis-password-file");
    }

    if (o->redis_password != NULL
        && redis_password(o->redis_password, url, err) != VLM_OK)
    {
        return VLM_ERROR;
    }

    o->server.engine.redis = url;

    return VLM_OK;
}


/* the first line of a file */

static int
redis_password(const char *path, vlm_redis_url_t *url, vlm_error_t *err)
{
    int      rc;
    char    *data;
    size_t   len;

    if (vlm_read_file(path, 4096, &data, &len, err) != VLM_OK) {
        return vlm_fail_in(err, "--redis-password-file: ");
    }

    data[strcspn(data, "\r\n")] = '\0';
    len = strlen(data);

    if (len == 0 || len >= sizeof(url->password)) {
        rc = vlm_fail(err, 400, NULL, "--redis-password-file: %.200s: its "
                      "first line must have 1 to %zu bytes", path,
                      sizeof(url->password) - 1);

    } else {
        memcpy(url->password, data, len + 1);
        rc = VLM_OK;
    }

    OPENSSL_cleanse(data, len);
    free(data);

    return rc;
}
