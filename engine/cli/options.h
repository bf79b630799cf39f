
/* Between the table of options and what reads their values. */

#ifndef VLM_CLI_OPTIONS_H
#define VLM_CLI_OPTIONS_H


#include <stddef.h>

#include "engine/cli/cli.h"


typedef struct vlm_option_s  vlm_option_t;

typedef int (*vlm_option_pt)(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);

struct vlm_option_s {
    const char         *name;
    const char         *value;          /* its name in the help, NULL: none */
    unsigned            commands;
    vlm_option_pt       set;
    size_t              offset;
    double              min;
    double              max;
    uint32_t            bit;            /* of sampling.set */
    const char         *help;           /* NULL: not shown */
};

#define VLM_OPTION(field)  offsetof(vlm_options_t, field)


int vlm_set_flag(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_string(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_int(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_u64(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_float(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_bytes(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_seconds(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_mode(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_block(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_name(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_device(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_dtype(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_detail(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_on(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_quant(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_log(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_logprobs(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_max_tokens(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_top_k(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_seed(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_factor(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_image(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_stop(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);
int vlm_set_size(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err);


#endif /* VLM_CLI_OPTIONS_H */
