
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "t/unit/lib/tap.h"


static int  ntests;
static int  nfailed;


static int
report(int condition, const char *fmt, va_list args)
{
    ntests++;

    if (!condition) {
        nfailed++;
    }

    printf("%sok %d - ", condition ? "" : "not ", ntests);
    vprintf(fmt, args);
    printf("\n");
    fflush(stdout);

    return condition;
}


int
tap_ok(int condition, const char *fmt, ...)
{
    va_list  args;

    va_start(args, fmt);
    report(condition, fmt, args);
    va_end(args);

    return condition;
}


int
tap_is(long long got, long long expected, const char *fmt, ...)
{
    va_list  args;

    va_start(args, fmt);
    report(got == expected, fmt, args);
    va_end(args);

    if (got != expected) {
        tap_diag("got %lld, expected %lld", got, expected);
    }

    return got == expected;
}


int
tap_str(const char *got, const char *expected, const char *fmt, ...)
{
    int      same;
    va_list  args;

    same = (got != NULL && strcmp(got, expected) == 0);

    va_start(args, fmt);
    report(same, fmt, args);
    va_end(args);

    if (!same) {
        tap_diag("got \"%s\"", got != NULL ? got : "(null)");
        tap_diag("expected \"%s\"", expected);
    }

    return same;
}


void
tap_diag(const char *fmt, ...)
{
    va_list  args;

    printf("# ");
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}


void
tap_skip(const char *fmt, ...)
{
    va_list  args;

    ntests++;
    printf("ok %d # skip ", ntests);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
}


int
tap_done(void)
{
    printf("1..%d\n", ntests);

    return (nfailed != 0 || ntests == 0) ? 1 : 0;
}


const char *
tap_path(const char *fmt, ...)
{
    int            n;
    va_list        args;
    const char    *root;
    static char    paths[8][1024];
    static int     next;

    root = getenv("VLM_ROOT");
    next = (next + 1) % 8;

    n = snprintf(paths[next], sizeof(paths[next]), "%s/",
                 root != NULL ? root : ".");

    va_start(args, fmt);
    vsnprintf(paths[next] + n, sizeof(paths[next]) - (size_t) n, fmt, args);
    va_end(args);

    return paths[next];
}


/* enough of the format for our own files: no escapes in names */

static int
find_tensor(char *header, const char *name, tap_tensor_t *t, uint64_t *begin)
{
    char                *p, *q, key[512];
    unsigned long long   from, to;

    snprintf(key, sizeof(key), "\"%s\":", name);
    p = strstr(header, key);

    if (p == NULL) {
        return 0;
    }

    q = strstr(p, "\"dtype\":");
    if (q == NULL || sscanf(q, "\"dtype\": \"%7[^\"]\"", t->dtype) != 1) {
        return 0;
    }

    q = strstr(p, "\"shape\":");
    if (q == NULL) {
        return 0;
    }

    q = strchr(q, '[');
    t->count = 1;

    while (*q != ']' && t->rank < 8) {
        q++;

        if (*q == ']') {
            break;
        }

        t->shape[t->rank] = strtoll(q, &q, 10);
        t->count *= t->shape[t->rank++];

        while (*q == ' ') {
            q++;
        }
    }

    q = strstr(p, "\"data_offsets\":");
    if (q == NULL || sscanf(strchr(q, '['), "[%llu , %llu", &from, &to) != 2) {
        return 0;
    }

    *begin = from;
    t->size = (size_t) (to - from);

    return 1;
}


tap_tensor_t
tap_tensor(const char *path, const char *name)
{
    FILE          *f;
    char          *header;
    uint64_t       n, begin;
    tap_tensor_t   t;

    memset(&t, 0, sizeof(t));

    f = fopen(path, "rb");
    if (f == NULL) {
        tap_diag("cannot open %s", path);
        return t;
    }

    if (fread(&n, 8, 1, f) == 1 && n < (1u << 26)) {
        header = calloc(1, (size_t) n + 1);

        if (header != NULL && fread(header, 1, (size_t) n, f) == n
            && find_tensor(header, name, &t, &begin)
            && fseek(f, (long) (8 + n + begin), SEEK_SET) == 0)
        {
            t.data = malloc(t.size + 1);

            if (t.data != NULL && fread(t.data, 1, t.size, f) != t.size) {
                free(t.data);
                t.data = NULL;
            }
        }

        free(header);
    }

    if (t.data == NULL) {
        tap_diag("no tensor %s in %s", name, path);
    }

    fclose(f);

    return t;
}


double
tap_distance(const float *got, const float *expected, size_t n)
{
    size_t  i;
    double  d, diff, norm;

    diff = 0;
    norm = 0;

    for (i = 0; i < n; i++) {
        d = (double) got[i] - (double) expected[i];
        diff += d * d;
        norm += (double) expected[i] * (double) expected[i];
    }

    return sqrt(diff) / (norm > 0 ? sqrt(norm) : 1);
}


uint64_t
tap_random(uint64_t *state)
{
    uint64_t  z;

    z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;

    return z ^ (z >> 31);
}


float
tap_uniform(uint64_t *state)
{
    return (float) (int32_t) (tap_random(state) >> 32) / 2147483648.0f;
}
