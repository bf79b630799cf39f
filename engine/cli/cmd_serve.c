
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "engine/cli/cli.h"


static int cmd_check(vlm_options_t *o);


int
vlm_cmd_serve(vlm_options_t *o)
{
    int            rc;
    sigset_t       set;
    vlm_error_t    err;
    vlm_server_t  *server;

    if (o->server.engine.model == NULL) {
        vlm_fail(&err, 400, NULL, "--model is missing");
        return vlm_cli_fail(VLM_EXIT_USAGE, &err);
    }

    if (vlm_cli_redis(o, &err) != VLM_OK) {
        return vlm_cli_fail(VLM_EXIT_USAGE, &err);
    }

    if (o->check) {
        return cmd_check(o);
    }

    if (o->server.socket == NULL) {
        vlm_fail(&err, 400, NULL, "--socket is missing");
        return vlm_cli_fail(VLM_EXIT_USAGE, &err);
    }

    /* before any thread is made: all of them leave the signals to the loop */

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);

    server = vlm_server_create(&o->server, &err);
    if (server == NULL) {
        return vlm_cli_fail(VLM_EXIT_FAILED, &err);
    }

    rc = vlm_server_run(server, &err);

    if (rc == VLM_AGAIN) {
        /* threads are at work: their memory must stay until the end */
        unlink(o->server.socket);
        _exit(0);
    }

    vlm_server_destroy(server);

    if (rc == VLM_ERROR) {
        return vlm_cli_fail(VLM_EXIT_FAILED, &err);
    }

    vlm_log(VLM_LOG_INFO, "drained, exiting");

    return 0;
}


static int
cmd_check(vlm_options_t *o)
{
    vlm_error_t   err;
    vlm_memory_t  mem;

    if (vlm_engine_check(&o->server.engine, &mem, &err) != VLM_OK) {
        return vlm_cli_fail(VLM_EXIT_FAILED, &err);
    }

    printf("model ok: weights %.1f MiB, KV cache %.1f MiB (%d blocks), work "
           "space %.1f MiB, embedding cache %.1f MiB, pictures being "
           "decoded %.1f MiB at most, available %.1f MiB, context %d "
           "tokens\n",
           (double) mem.weights / 1048576, (double) mem.kv / 1048576,
           mem.nblocks, (double) mem.work / 1048576,
           (double) mem.cache / 1048576, (double) mem.pictures / 1048576,
           (double) mem.available / 1048576, mem.context);

    return 0;
}
