
/*
 * While a model is being loaded.  Its config.json is a FIFO here: opening it
 * blocks until this test opens the other end, and then it is refused.
 */

#include <fcntl.h>
#include <sys/stat.h>

#include "t/unit/runtime_client.h"


int
main(void)
{
    int          fd;
    char         dir[64], path[128];
    heard_t     *h;
    served_t     s;
    client_t    *c;
    question_t   q;

    vlm_log_level("error");

    served_init(&s);
    free((char *) s.conf.engine.model);

    snprintf(dir, sizeof(dir), "%s/model", s.dir);
    snprintf(path, sizeof(path), "%s/config.json", dir);

    if (mkdir(dir, 0700) == -1 || mkfifo(path, 0600) == -1) {
        die("mkfifo()", strerror(errno));
    }

    s.conf.engine.model = dir;
    served_start(&s);

    c = malloc(sizeof(client_t));
    client_open(c, &s, VLM_MIN_EVENT_RING);
    tap_is(vlm_worker_state(&c->w), VLM_STATE_LOADING,
           "the socket is open while the model is loaded");

    memset(&q, 0, sizeof(q));
    q.prompt = "Hello";
    client_ask(c, 0, &q);
    h = client_end(c, 0);

    tap_is(h->error.status, 503, "a request is refused");
    tap_str(h->error.code, "engine_loading", "because of the loading");
    tap_ok(h->error.retry_after >= 1, "with a hint when to come again");

    /* now it fails */

    fd = open(path, O_WRONLY);
    pthread_join(s.thread, NULL);
    close(fd);

    tap_is(s.result, VLM_ERROR, "a model that cannot be loaded ends it");
    tap_ok(strstr(s.error.message, "config.json") != NULL
           && strstr(s.error.message, "is not a regular file") != NULL,
           "with the reason: %s", s.error.message);

    vlm_server_destroy(s.server);

    while (!c->closed) {
        client_pump(c, 1000);
    }

    tap_ok(access(s.path, F_OK) == -1, "the socket is removed");

    client_close(c);
    free(c);
    unlink(path);
    rmdir(dir);
    rmdir(s.dir);

    return tap_done();
}
