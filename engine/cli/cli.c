
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/cli/cli.h"


static const vlm_command_t  commands[] = {

    { "", VLM_CMD_SERVE, 0,
      "vlm-engine --model DIR --socket PATH [OPTION]...",
      "serves NGINX workers on a unix socket", vlm_cmd_serve },

    { "run", VLM_CMD_RUN, 0,
      "vlm-engine run --model DIR [--image FILE]... --prompt TEXT",
      "one answer on stdout, without NGINX", vlm_cmd_run },

    { "info", VLM_CMD_INFO, 1,
      "vlm-engine info DIR [--size WxH] [--json]",
      "what a checkpoint is and costs", vlm_cmd_info },

    { "decode", VLM_CMD_DECODE, 1,
      "vlm-engine decode FILE --out FILE.ppm",
      "a picture as decoded: EXIF applied, on white", vlm_cmd_decode },

    { "pixels", VLM_CMD_PIXELS, 2,
      "vlm-engine pixels DIR FILE --out FILE.npy",
      "what the vision tower is shown", vlm_cmd_pixels },

    { "tokenize", VLM_CMD_TOKENIZE, 1,
      "vlm-engine tokenize DIR [--special] [--decode]",
      "lines of JSON: text in, ids out, or the other way",
      vlm_cmd_tokenize },

    { NULL, 0, 0, NULL, NULL, NULL }
};


static int
help(const vlm_command_t *cmd)
{
    const vlm_command_t  *c;

    printf("usage: %s\n%s\n\n", cmd->usage, cmd->help);
    vlm_options_help(cmd);

    if (cmd->name[0] == '\0') {
        printf("\nother commands (vlm-engine COMMAND --help):\n");

        for (c = commands + 1; c->name != NULL; c++) {
            printf("  %-32s%s\n", c->name, c->help);
        }
    }

    return 0;
}


int
vlm_cli_fail(int status, const vlm_error_t *err)
{
    fprintf(stderr, "vlm-engine: %s\n", err->message);

    return status;
}


/* what stdio kept back may fail to be written, too */

static int
done(int status)
{
    vlm_error_t  err;

    if (status != 0 || (fflush(stdout) == 0 && !ferror(stdout))) {
        return status;
    }

    vlm_fail(&err, 500, NULL, "stdout: %s", strerror(errno));

    return vlm_cli_fail(VLM_EXIT_FAILED, &err);
}


int
vlm_cli(int argc, char **argv)
{
    vlm_error_t           err;
    vlm_options_t         o;
    const vlm_command_t  *cmd;

    cmd = &commands[0];
    argc--;
    argv++;

    if (argc > 0 && argv[0][0] != '-') {

        for (cmd = commands + 1; cmd->name != NULL; cmd++) {
            if (strcmp(cmd->name, argv[0]) == 0) {
                break;
            }
        }

        if (cmd->name == NULL) {
            vlm_fail(&err, 400, NULL, "unknown command \"%.100s\", see "
                     "vlm-engine --help", argv[0]);
            return vlm_cli_fail(VLM_EXIT_USAGE, &err);
        }

        argc--;
        argv++;
    }

    if (vlm_options_parse(&o, cmd, argc, argv, &err) != VLM_OK) {
        return vlm_cli_fail(VLM_EXIT_USAGE, &err);
    }

    if (o.help) {
        return done(help(cmd));
    }

    if (o.version) {
        printf("vlm-engine %s\n", VLM_VERSION);
        return done(0);
    }

    if (o.nargs < cmd->nargs) {
        vlm_fail(&err, 400, NULL, "too few arguments, usage: %s",
                 cmd->usage);
        return vlm_cli_fail(VLM_EXIT_USAGE, &err);
    }

    if (o.server.engine.max_rows < o.server.engine.max_num_seqs) {
        vlm_fail(&err, 400, NULL, "--max-num-batched-tokens %d is less than "
                 "--max-num-seqs %d", o.server.engine.max_rows,
                 o.server.engine.max_num_seqs);
        return vlm_cli_fail(VLM_EXIT_USAGE, &err);
    }

    return done(cmd->main(&o));
}
