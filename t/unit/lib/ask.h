
/* An engine without its socket, asked by a test as by a front. */

#ifndef ASK_H
#define ASK_H


#include "engine/cli/cli.h"


typedef struct {
    vlm_options_t           o;
    char                    image[256];
    char                    prompt[256];
    char                    expected[256];
    char                    truth[256];
    double                  margin;
    const uint8_t          *claimed;    /* digest of the first picture, as
                                           the worker has it; or NULL */

    vlm_local_request_t     local;
    vlm_req_t              *req;
    vlm_mail_t              mail;           /* all that was said */
    const char             *text;
    int                     result;
    vlm_error_t             error;
    int                     final;
} asked_t;


/* the model is a directory; 64 MiB of KV cache, no prefix cache */
void ask_conf(vlm_engine_conf_t *conf, const char *model);

/* waits until it is ready; a failure ends the test */
vlm_engine_t *ask_start(const vlm_engine_conf_t *conf);

/* sends a request made of a->o; "order" is unique */
void ask(vlm_engine_t *e, asked_t *a, uint64_t order);

/* takes the mail until n requests have come back */
void ask_collect(vlm_engine_t *e, int n);
void ask_forget(asked_t *a);


#endif /* ASK_H */
