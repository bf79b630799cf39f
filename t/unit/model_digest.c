
/* The digest of the vision weights: what changes it, and where it is kept. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/vlm_json.h"
#include "engine/model/model.h"
#include "t/unit/lib/tap.h"


static char  dir[64], cache[80];


static void
run(const char *fmt, const char *a, const char *b)
{
    char  line[1024];

    snprintf(line, sizeof(line), fmt, a, b);

    if (system(line) != 0) {
        tap_diag("%s failed", line);
        exit(1);
    }
}


static char *
slurp(const char *name, size_t *len)
{
    char         path[256], *data;
    vlm_error_t  err;

    snprintf(path, sizeof(path), "%s/%s", dir, name);

    return vlm_read_file(path, 1 << 28, &data, len, &err) == VLM_OK ? data
                                                                    : NULL;
}


static void
spew(const char *name, const char *data, size_t len)
{
    FILE  *f;
    char   path[256];

    snprintf(path, sizeof(path), "%s/%s", dir, name);

    f = fopen(path, "w");

    if (f == NULL || fwrite(data, 1, len, f) != len || fclose(f) != 0) {
        exit(1);
    }
}


static void
digest(uint8_t to[32])
{
    vlm_error_t   err;
    vlm_model_t  *m;

    memset(to, 0, 32);

    m = vlm_model_open(dir, NULL, &err);

    if (m == NULL || vlm_model_vision_digest(m, dir, to, &err) != VLM_OK) {
        tap_diag("%s", err.message);
        exit(1);
    }

    vlm_model_free(m);
}


/* flips a bit of the first tensor whose name has this in it */

static void
flip(const char *part)
{
    char              *data, name[256];
    size_t             len, n;
    int64_t            offset;
    uint64_t           head;
    const char        *key;
    vlm_error_t        err;
    vlm_json_doc_t    *doc;
    const vlm_json_t  *v;

    data = slurp("model.safetensors", &len);

    if (data == NULL) {
        exit(1);
    }

    memcpy(&head, data, 8);
    doc = vlm_json_parse(data + 8, head, "header", &err);

    for (v = vlm_json_first(vlm_json_root(doc)); v != NULL;
         v = vlm_json_next(v))
    {
        key = vlm_json_key(v, &n);
        snprintf(name, sizeof(name), "%.*s", (int) n, key);

        if (strstr(name, part) != NULL) {
            vlm_json_int(vlm_json_at(vlm_json_get(v, "data_offsets"), 0),
                         &offset);
            data[8 + head + (uint64_t) offset] ^= 1;
            break;
        }
    }

    tap_ok(v != NULL, "a bit of %s", part);
    spew("model.safetensors", data, len);

    vlm_json_free(doc);
    free(data);
}


static void
test_contents(void)
{
    uint8_t  first[32], again[32];

    digest(first);
    digest(again);
    tap_ok(memcmp(first, again, 32) == 0, "the same twice");

    flip("model.layers.0");
    digest(again);
    tap_ok(memcmp(first, again, 32) == 0, "the language model does not matter");

    flip("visual.blocks.0");
    digest(again);
    tap_ok(memcmp(first, again, 32) != 0, "the tower does");
    flip("visual.blocks.0");

    flip("visual.merger");
    digest(again);
    tap_ok(memcmp(first, again, 32) != 0, "the connector does");
    flip("visual.merger");

    digest(again);
    tap_ok(memcmp(first, again, 32) == 0, "and back");
}


static void
test_config(void)
{
    char     *config, *p;
    size_t    len;
    uint8_t   first[32], again[32];

    digest(first);

    config = slurp("config.json", &len);
    p = config != NULL ? strstr(config, "\"num_heads\": ") : NULL;

    if (p == NULL) {
        exit(1);
    }

    p[13] = p[13] == '2' ? '1' : '2';
    spew("config.json", config, len);

    digest(again);
    tap_ok(memcmp(first, again, 32) != 0,
           "heads do, which no weight tells: %.15s", p);
    free(config);
}


static void
test_kept(void)
{
    char         *kept, path[256];
    size_t        len;
    uint8_t       first[32], again[32];
    struct stat   sb;

    digest(first);
    kept = slurp(".vlm-vision-digest", &len);
    tap_ok(kept != NULL && strncmp(kept, "vlm vision digest 1\n", 20) == 0,
           "kept beside the weights");

    if (kept == NULL) {
        return;
    }

    /* what is kept is believed, as long as it is of these files */

    kept[20] = kept[20] == '0' ? '1' : '0';
    spew(".vlm-vision-digest", kept, len);
    digest(again);
    tap_ok(memcmp(first, again, 32) != 0, "it is used");

    run("touch -d 2001-01-01 %s/model.safetensors", dir, NULL);
    digest(again);
    tap_ok(memcmp(first, again, 32) == 0, "not for files of another time");

    spew(".vlm-vision-digest", kept, len / 2);
    digest(again);
    tap_ok(memcmp(first, again, 32) == 0, "nor if it is damaged");
    free(kept);

    /* a place where no file can be */

    run("rm -f %s/.vlm-vision-digest; mkdir -p %s/.vlm-vision-digest/x", dir,
        dir);
    digest(again);
    tap_ok(memcmp(first, again, 32) == 0, "a place that is not writable");

    snprintf(path, sizeof(path), "%s/ngx_vlm", cache);
    tap_ok(stat(path, &sb) == 0 && S_ISDIR(sb.st_mode),
           "then it is kept in the user's cache");

    run("sed -i '2s/^...../00000/' %s/*", path, NULL);
    digest(again);
    tap_ok(memcmp(first, again, 32) != 0, "and used there");
}


int
main(void)
{
    snprintf(dir, sizeof(dir), "/tmp/vlm-digest-XXXXXX");

    if (mkdtemp(dir) == NULL) {
        return 1;
    }

    run("cp %s/*.json %s", tap_path("models/demo"), dir);
    run("cp %s/model.safetensors %s", tap_path("models/demo"), dir);

    snprintf(cache, sizeof(cache), "%s/cache", dir);
    setenv("XDG_CACHE_HOME", cache, 1);

    test_contents();
    test_kept();
    test_config();

    run("rm -r %s", dir, NULL);

    return tap_done();
}
