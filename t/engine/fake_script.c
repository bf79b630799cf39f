
/* Modes of the fake engine, and its log. */

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "t/engine/fake_engine.h"


static const char  *mode_names[] = {
    "ok", "text", "slow", "silent", "progress", "queued", "error", "busy",
    "late-error", "die", "close", "garbage", "stale", "wrong-slot",
    "after-done", "unfinished", "flood", "deaf", "length", "choices", "turns",
    "logprobs", "hold", NULL
};

const char  *meet_names[] = {
    "well", "no-accept", "hang", "close-on-accept", "close-after-hello",
    "bad-magic", "bad-abi", "short-welcome", "refuse-version", "refuse-fd",
    "refuse-busy", "talk", NULL
};

static const char  *garbage_names[] = {
    "type", "size0", "small", "odd", "large", "tail", "length", "choice",
    "slot", "generation", "reason", "stage", "status", "code", "outcome",
    "logprobs", NULL
};


int64_t
now_ms(void)
{
    struct timespec  ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return (int64_t) ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}


void
say(const char *fmt, ...)
{
    va_list  args;

    if (conf.log == NULL) {
        return;
    }

    va_start(args, fmt);
    vfprintf(conf.log, fmt, args);
    va_end(args);
}


void
say_text(const char *name, const void *data, size_t len)
{
    size_t                i;
    const unsigned char  *p;

    say(" %s=\"", name);

    for (p = data, i = 0; i < len && i < MAX_TEXT; i++) {

        if (p[i] < 0x20 || p[i] == '"' || p[i] == '\\' || p[i] == 0x7f) {
            say("\\x%02x", p[i]);

        } else {
            say("%c", p[i]);
        }
    }

    say("\"");
}


void
say_end(void)
{
    if (conf.log != NULL) {
        fputc('\n', conf.log);
        fflush(conf.log);
    }
}


int
find_name(const char **names, const char *name)
{
    int  i;

    for (i = 0; names[i] != NULL; i++) {
        if (strcmp(names[i], name) == 0) {
            return i;
        }
    }

    return -1;
}


/* copies the next word, "" if there is none; returns what follows it */

static const char *
word(const char *p, char *to, size_t size)
{
    size_t  n, len;

    p += strspn(p, " ");
    len = strcspn(p, " ");
    n = (len < size) ? len : size - 1;

    memcpy(to, p, n);
    to[n] = '\0';

    p += len;

    return p + strspn(p, " ");
}


static int64_t
number(const char *word, int64_t absent)
{
    if (word[0] == '\0') {
        return absent;
    }

    return (strcmp(word, "never") == 0) ? NEVER : atoll(word);
}


static int
script_error(script_t *s, const char *p)
{
    char  w[MAX_WORD];

    p = word(p, w, sizeof(w));
    s->status = (unsigned) number(w, 500);
    p = word(p, s->code, sizeof(s->code));
    p = word(p, s->param, sizeof(s->param));

    if (strcmp(s->param, "-") == 0) {
        s->param[0] = '\0';
    }

    snprintf(s->rest, sizeof(s->rest), "%s", p);

    return 0;
}


int
script_parse(script_t *s, const char *line)
{
    int          mode, kind;
    char         a[MAX_WORD], b[MAX_WORD], c[MAX_WORD];
    const char  *p;

    p = word(line, a, sizeof(a));
    mode = find_name(mode_names, a);

    if (mode == -1) {
        return -1;
    }

    memset(s, 0, sizeof(script_t));
    s->mode = mode;
    snprintf(s->rest, sizeof(s->rest), "%s", p);

    word(word(word(p, a, sizeof(a)), b, sizeof(b)), c, sizeof(c));

    switch (s->mode) {

    case MODE_ERROR:
        return script_error(s, p);

    case MODE_LATE_ERROR:
        s->at = (unsigned) number(a, 1);
        return script_error(s, word(p, b, sizeof(b)));

    case MODE_BUSY:
        s->status = 503;
        s->ms = number(a, 1);
        snprintf(s->code, sizeof(s->code), "overloaded");
        snprintf(s->rest, sizeof(s->rest), "the queue is full");
        return 0;

    case MODE_GARBAGE:
        kind = find_name(garbage_names, a);
        s->kind = (unsigned) kind;
        s->at = (unsigned) number(b, 1);
        return (kind == -1) ? -1 : 0;

    case MODE_SLOW:
        s->at = (unsigned) number(a, 8);
        s->ms = number(b, 50);
        return 0;

    case MODE_FLOOD:
        s->at = (unsigned) number(a, 1000);
        s->kind = (unsigned) number(b, 4000);
        return (s->kind > VLM_MAX_EVENT_TEXT) ? -1 : 0;

    case MODE_DEAF:
        s->ms = number(a, NEVER);
        s->at = (unsigned) number(b, 8);
        s->kind = (unsigned) number(c, 50);
        return 0;

    case MODE_CHOICES:
        s->kind = (unsigned) number(a, 2);
        return (s->kind < 1 || s->kind > VLM_MAX_CHOICES) ? -1 : 0;

    case MODE_LOGPROBS:
        s->kind = (unsigned) number(a, 0);
        return (s->kind > VLM_MAX_TOP_LOGPROBS) ? -1 : 0;

    default:
        s->ms = number(a, 0);
        s->at = (unsigned) s->ms;
        s->kind = (a[0] != '\0');
        return 0;
    }
}


