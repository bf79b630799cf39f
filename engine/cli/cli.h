
/* The command line: options, and one function for each command. */

#ifndef VLM_CLI_H
#define VLM_CLI_H


#include "engine/runtime/server.h"


#define VLM_EXIT_FAILED     1
#define VLM_EXIT_USAGE      2

/* which commands know an option */

#define VLM_CMD_SERVE       0x01
#define VLM_CMD_RUN         0x02
#define VLM_CMD_INFO        0x04
#define VLM_CMD_DECODE      0x08
#define VLM_CMD_PIXELS      0x10
#define VLM_CMD_TOKENIZE    0x20

typedef struct {
    vlm_server_conf_t   server;
    int                 help;
    int                 version;
    int                 check;
    const char         *redis;          /* as given */
    const char         *redis_password; /* file */
    vlm_redis_url_t     redis_url;

    const char         *args[2];        /* not options, in order */
    int                 nargs;

    /* run */

    const char         *images[VLM_MAX_PICTURES];
    int                 nimages;
    const char         *prompt;
    const char         *system;
    const char         *messages;
    const char         *stops[VLM_MAX_STOPS];
    int                 nstops;
    vlm_sampling_t      sampling;
    uint32_t            detail;
    int                 ignore_eos;
    int                 json;

    /* info, decode, pixels, tokenize */

    uint32_t            width;
    uint32_t            height;
    const char         *out;
    int                 special;
    int                 decode;
} vlm_options_t;

typedef struct {
    const char         *name;           /* "" is the default one */
    unsigned            bit;
    int                 nargs;
    const char         *usage;
    const char         *help;
    int               (*main)(vlm_options_t *o);
} vlm_command_t;


/* the whole program but the name main(): its exit status */
int vlm_cli(int argc, char **argv);

/* defaults, then argv; VLM_ERROR and a message in one line */
int vlm_options_parse(vlm_options_t *o, const vlm_command_t *cmd, int argc,
    char **argv, vlm_error_t *err);
void vlm_options_help(const vlm_command_t *cmd);

/*
 * From --redis, --redis-password-file and VLM_REDIS_URL to the engine's
 * settings, which point into o.
 */
int vlm_cli_redis(vlm_options_t *o, vlm_error_t *err);

/* prints "vlm-engine: message" and returns status */
int vlm_cli_fail(int status, const vlm_error_t *err);

int vlm_cmd_serve(vlm_options_t *o);
int vlm_cmd_run(vlm_options_t *o);
int vlm_cmd_info(vlm_options_t *o);
int vlm_cmd_decode(vlm_options_t *o);
int vlm_cmd_pixels(vlm_options_t *o);
int vlm_cmd_tokenize(vlm_options_t *o);

/* a JPEG, PNG or (by its first bytes) PPM file as a picture */
int vlm_cli_picture(const char *path, uint64_t max_pixels,
    vlm_image_t *image, vlm_error_t *err);


/*
 * A request made of options: its record, texts and pictures in one buffer,
 * which stands for a worker's arena.
 */

typedef struct {
    vlm_buf_t           arena;
    uint64_t            record_offset;
    uint32_t            record_length;
    vlm_image_t        *given;          /* pictures from PPM, or NULL */
    uint32_t            npictures;
} vlm_local_request_t;

int vlm_local_request(const vlm_options_t *o, vlm_local_request_t *r,
    vlm_error_t *err);
void vlm_local_request_free(vlm_local_request_t *r);


#endif /* VLM_CLI_H */
