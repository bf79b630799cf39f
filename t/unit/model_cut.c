
/*
 * A checkpoint's file that is made shorter while it is read: an error that
 * names it, in whatever thread the kernel raises SIGBUS, and nothing is kept.
 */

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/model/mapping.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu.h"
#include "t/unit/lib/tap.h"


static char  dir[64];
static char  weights[128];


static void
copy_demo(void)
{
    char  line[512];

    snprintf(line, sizeof(line), "rm -rf %s; cp -rL %s %s", dir,
             tap_path("models/demo"), dir);

    if (system(line) != 0) {
        tap_diag("%s failed", line);
        exit(1);
    }

    snprintf(line, sizeof(line), "%s/.vlm-vision-digest", dir);
    (void) unlink(line);
}


static void
cut(off_t size)
{
    if (truncate(weights, size) == -1) {
        tap_ok(0, "truncate()");
    }
}


static void
names_file(int rc, const vlm_error_t *err, const char *what)
{
    char  expected[256];

    snprintf(expected, sizeof(expected), "%s: could not be read to its end",
             weights);

    tap_ok(rc == VLM_ERROR
           && strncmp(err->message, expected, strlen(expected)) == 0,
           "%s: %s", what, rc == VLM_ERROR ? err->message : "no error");
}


static void
test_model(off_t size, int load)
{
    int               rc;
    char              why[256], kept[128];
    uint8_t           digest[32];
    vlm_error_t       err;
    vlm_model_t      *m;
    vlm_device_t     *dev;
    const vlm_ops_t  *ops;

    copy_demo();

    m = vlm_model_open(dir, NULL, &err);
    dev = vlm_cpu_device(2, &ops, why, sizeof(why));

    if (m == NULL || dev == NULL) {
        tap_ok(0, "%s", m == NULL ? err.message : why);
        exit(1);
    }

    cut(size);

    if (load) {
        rc = vlm_model_load(m, dev, ops, NULL, NULL, &err);
        names_file(rc, &err, "load");

    } else {
        rc = vlm_model_vision_digest(m, dir, digest, &err);
        names_file(rc, &err, "digest");

        snprintf(kept, sizeof(kept), "%s/.vlm-vision-digest", dir);
        tap_is(access(kept, F_OK), -1, "no digest is kept");
    }

    vlm_model_free(m);
    vlm_cpu_device_destroy(dev);
}


static void
test_mapping(void)
{
    size_t          i, wrong;
    vlm_error_t     err;
    vlm_mapping_t  *map, *other;

    copy_demo();

    map = vlm_mapping_open(weights, &err);
    other = vlm_mapping_open(tap_path("models/demo/model.safetensors"), &err);

    if (map == NULL || other == NULL) {
        tap_ok(0, "%s", err.message);
        return;
    }

    tap_ok(vlm_mapping_whole(map, &err) == VLM_OK, "whole");
    cut(40960);

    for (i = 0, wrong = 0; i < map->len; i++) {
        wrong += map->data[i] != (i < 40960 ? other->data[i] : 0);
    }

    tap_is((long long) wrong, 0, "zeros where the file ends");
    names_file(vlm_mapping_whole(map, &err), &err, "and it is told");
    tap_ok(vlm_mapping_whole(other, &err) == VLM_OK, "of this file alone");

    vlm_mapping_close(other);
    vlm_mapping_close(map);
}


/* another's SIGBUS, with a mapping of ours or after it */

static void
test_foreign(int mapped)
{
    int              fd, status;
    char            *data;
    pid_t            pid;
    vlm_error_t      err;
    vlm_mapping_t   *map;
    struct rlimit    none = { 0, 0 };

    copy_demo();
    pid = fork();

    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &none);
        (void) close(STDERR_FILENO);        /* a sanitizer's report */

        map = vlm_mapping_open(tap_path("models/demo/model.safetensors"),
                               &err);

        if (!mapped) {
            vlm_mapping_close(map);
        }

        fd = open(weights, O_RDONLY);
        data = mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, 0);

        if (data == MAP_FAILED || truncate(weights, 0) == -1) {
            _exit(0);
        }

        _exit(*(volatile char *) data);
    }

    tap_ok(waitpid(pid, &status, 0) == pid
           && (WIFSIGNALED(status) ? WTERMSIG(status) == SIGBUS
                                   : WEXITSTATUS(status) != 0),
           "a SIGBUS of somebody else still ends the process, mapping %s",
           mapped ? "open" : "closed");
}


int
main(void)
{
    char  line[128];

    snprintf(dir, sizeof(dir), "/tmp/vlm-cut-%ld", (long) getpid());
    snprintf(weights, sizeof(weights), "%s/model.safetensors", dir);

    vlm_log_level("error");

    test_mapping();
    test_model(1000000, 0);
    test_model(1000000, 1);
    test_model(0, 0);
    test_model(0, 1);
    test_foreign(1);
    test_foreign(0);

    snprintf(line, sizeof(line), "rm -rf %s", dir);

    return system(line) == 0 ? tap_done() : 1;
}
