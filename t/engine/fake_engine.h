
/* What the files of the fake engine share; see fake_engine.c. */

#ifndef FAKE_ENGINE_H
#define FAKE_ENGINE_H


#include <stdint.h>
#include <stdio.h>

#include "engine/channel/vlm_peer.h"
#include "engine/channel/vlm_record.h"


#define MAX_PEERS       64
#define MAX_TEXT        8192
#define MAX_WORD        64
#define RETRY_MS        2               /* the event ring was full */
#define NEVER           INT64_MAX


typedef enum {
    MODE_OK = 0,
    MODE_TEXT,
    MODE_SLOW,
    MODE_SILENT,
    MODE_PROGRESS,
    MODE_QUEUED,
    MODE_ERROR,
    MODE_BUSY,
    MODE_LATE_ERROR,
    MODE_DIE,
    MODE_CLOSE,
    MODE_GARBAGE,
    MODE_STALE,
    MODE_WRONG_SLOT,
    MODE_AFTER_DONE,
    MODE_UNFINISHED,
    MODE_FLOOD,
    MODE_DEAF,
    MODE_LENGTH,
    MODE_CHOICES,
    MODE_TURNS,
    MODE_LOGPROBS,
    MODE_HOLD
} mode_e;

typedef enum {
    MEET_WELL = 0,
    MEET_NO_ACCEPT,
    MEET_HANG,
    MEET_CLOSE_ON_ACCEPT,
    MEET_CLOSE_AFTER_HELLO,
    MEET_BAD_MAGIC,
    MEET_BAD_ABI,
    MEET_SHORT,
    MEET_REFUSE_VERSION,
    MEET_REFUSE_FD,
    MEET_REFUSE_BUSY,
    MEET_TALK
} meet_e;

typedef enum {
    GARBAGE_TYPE = 0,
    GARBAGE_SIZE0,
    GARBAGE_SMALL,
    GARBAGE_ODD,
    GARBAGE_LARGE,
    GARBAGE_TAIL,
    GARBAGE_LENGTH,
    GARBAGE_CHOICE,
    GARBAGE_SLOT,
    GARBAGE_GENERATION,
    GARBAGE_REASON,
    GARBAGE_STAGE,
    GARBAGE_STATUS,
    GARBAGE_CODE,
    GARBAGE_OUTCOME,
    GARBAGE_LOGPROBS
} garbage_e;

/* what comes next for a request */

typedef enum {
    STEP_ADMITTED = 0,
    STEP_QUEUED,
    STEP_RELEASED,
    STEP_TOKENS,
    STEP_FINISH,
    STEP_RELEASED_LATE,
    STEP_DONE,
    STEP_AFTER_DONE,
    STEP_ERROR,
    STEP_CANCELLED,
    STEP_SILENT,
    STEP_PROGRESS,
    STEP_GONE
} step_e;

typedef struct {
    mode_e          mode;
    int64_t         ms;
    unsigned        at;                 /* tokens before the fault */
    unsigned        kind;               /* garbage_e, choices, ... */
    unsigned        status;
    char            code[32];
    char            param[48];
    char            rest[MAX_TEXT];
} script_t;

typedef struct {
    vlm_peer_t      vlm;
    int             open;
    int             ready;
    unsigned        id;
} peer_t;

typedef struct job_s  job_t;

struct job_s {
    job_t          *next;
    peer_t         *peer;
    uint32_t        slot;
    uint32_t        generation;
    step_e          step;
    int64_t         due;
    int64_t         start;
    int64_t         wake;               /* end of the queue */
    script_t        script;
    int64_t         cancel_at;          /* when a deaf one hears */
    unsigned        npieces;            /* of the whole answer */
    unsigned        ntokens;            /* of each choice, cut by max_tokens */
    unsigned        token;
    unsigned        nchoices;
    unsigned        finished;           /* choices */
    int             logprobs;           /* alternatives, -1: not asked for */
    unsigned        extra;              /* events of stale, wrong-slot */
    int64_t         delay;
    int             length;             /* finish reason */
    int             words;              /* "t0 t1 ..." */
    unsigned        npictures;
    unsigned        prompt_tokens;
    char            text[MAX_TEXT];
    size_t          text_len;
};


typedef struct {
    const char         *socket;
    const char         *text;
    unsigned            tokens;
    int64_t             delay;
    uint32_t            state;
    uint32_t            retry_after;
    int64_t             ready_at;
    int                 hurry;
    vlm_engine_info_t   info;
    script_t            script;
    meet_e              meet;
    FILE               *log;
} conf_t;

extern conf_t           conf;
extern job_t           *jobs;
extern const char      *meet_names[];


int64_t now_ms(void);

/* the log, a line in pieces */
void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void say_text(const char *name, const void *data, size_t len);
void say_end(void);

int find_name(const char **names, const char *name);

/* "slow 50 20" into a script; -1: there is no such mode */
int script_parse(script_t *s, const char *line);

/* the texts of a request, its pictures' sums and all its fields in the log */
void record_log(const peer_t *peer, const vlm_submission_t *sub,
    const vlm_request_t *req);

/* the last text of the last user message; NULL: there is none */
const char *record_prompt(const peer_t *peer, const vlm_request_t *req,
    size_t *len);

/* "roles=...;pictures=...": returns the length */
size_t record_describe(const peer_t *peer, const vlm_request_t *req, char *to,
    size_t size);

/* zeroed, for the job's own slot and generation unless they are set */
void new_event(vlm_event_t *e, uint16_t type);

/* OK, or AGAIN: later; the peer may be closed afterwards */
int send_event(job_t *job, vlm_event_t *e);

/* token number n of a choice */
int send_token(job_t *job, unsigned choice, unsigned n);
int send_finish(job_t *job, unsigned choice);

/* stale, wrong-slot: texts that the module must not take */
int send_intruder(job_t *job);

void send_garbage(job_t *job);

/* takes one submission */
void job_submit(peer_t *peer, const vlm_submission_t *sub);

/* does what is due; returns when the next thing is */
int64_t jobs_run(int64_t now);

/* the log tells why; its requests are forgotten */
void peer_close(peer_t *peer, const char *why);


#endif /* FAKE_ENGINE_H */
