
/* What each kind of option makes of its value. */

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cli/options.h"


static int
bad(vlm_error_t *err, const vlm_option_t *opt, const char *value,
    const char *why)
{
    return vlm_fail(err, 400, NULL, "--%s \"%.100s\": %s", opt->name, value,
                    why);
}


#define field(o, opt, type)  ((type *) (void *) ((char *) (o) + (opt)->offset))


int
vlm_set_flag(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    *field(o, opt, int) = 1;

    return VLM_OK;
}


int
vlm_set_string(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    if (value[0] == '\0' && opt->offset != VLM_OPTION(prompt)
        && opt->offset != VLM_OPTION(system))
    {
        return bad(err, opt, value, "must not be empty");
    }

    *field(o, opt, const char *) = value;

    return VLM_OK;
}


/* as in a form: no white space, no hexadecimal digits */

static int
any_number(const vlm_option_t *opt, const char *value, int whole, double *d,
    vlm_error_t *err)
{
    char  *end;

    if (whole && value[strspn(value, "-0123456789")] != '\0') {
        return bad(err, opt, value, "must be a whole number");
    }

    *d = strtod(value, &end);

    if (end == value || *end != '\0' || !isfinite(*d)
        || value[strspn(value, "-+.eE0123456789")] != '\0')
    {
        return bad(err, opt, value, "must be a number");
    }

    return VLM_OK;
}


static int
in_range(const vlm_option_t *opt, const char *value, double d,
    vlm_error_t *err)
{
    if (d >= opt->min && d <= opt->max) {
        return VLM_OK;
    }

    if (opt->min == FLT_TRUE_MIN) {
        return vlm_fail(err, 400, NULL, "--%s %.40s is out of range: above 0, "
                        "at most %.15g", opt->name, value, opt->max);
    }

    return vlm_fail(err, 400, NULL, "--%s %.40s is out of range: %.15g to "
                    "%.15g", opt->name, value, opt->min, opt->max);
}


/* a number within the option's limits */

static int
number(const vlm_option_t *opt, const char *value, int whole, double *d,
    vlm_error_t *err)
{
    if (any_number(opt, value, whole, d, err) != VLM_OK) {
        return VLM_ERROR;
    }

    return in_range(opt, value, *d, err);
}


int
vlm_set_int(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    double  d;

    if (number(opt, value, 1, &d, err) != VLM_OK) {
        return VLM_ERROR;
    }

    *field(o, opt, int32_t) = (int32_t) d;
    o->sampling.set |= opt->bit;

    return VLM_OK;
}


int
vlm_set_u64(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    char      *end;
    double     d;
    uint64_t   n;

    if (number(opt, value, 1, &d, err) != VLM_OK) {
        return VLM_ERROR;
    }

    errno = 0;
    n = strtoull(value, &end, 10);

    if (errno != 0 || *end != '\0') {
        return bad(err, opt, value, "is too large");
    }

    *field(o, opt, uint64_t) = n;
    o->sampling.set |= opt->bit;

    return VLM_OK;
}


int
vlm_set_float(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    double  d;

    /* what counts is the rounded number, which may be the rounded limit */

    if (any_number(opt, value, 0, &d, err) != VLM_OK
        || ((float) d != (float) opt->min
            && in_range(opt, value, (float) d, err) != VLM_OK))
    {
        return VLM_ERROR;
    }

    *field(o, opt, float) = (float) d;
    o->sampling.set |= opt->bit;

    return VLM_OK;
}


/* any large number will do: it is lowered to what is possible later */

int
vlm_set_max_tokens(vlm_options_t *o, const vlm_option_t *opt,
    const char *value, vlm_error_t *err)
{
    double  d;

    if (any_number(opt, value, 1, &d, err) != VLM_OK) {
        return VLM_ERROR;
    }

    if (d < 1) {
        return bad(err, opt, value, "must be at least 1");
    }

    o->sampling.max_tokens = (d > UINT32_MAX) ? UINT32_MAX : (uint32_t) d;
    o->sampling.set |= opt->bit;

    return VLM_OK;
}


/* -1 is another way to say 0, off */

int
vlm_set_top_k(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    if (vlm_set_int(o, opt, value, err) != VLM_OK) {
        return VLM_ERROR;
    }

    if (o->sampling.top_k == -1) {
        o->sampling.top_k = 0;
    }

    return VLM_OK;
}


/* 64 bits with or without a sign */

int
vlm_set_seed(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    double  d;

    if (any_number(opt, value, 1, &d, err) != VLM_OK) {
        return VLM_ERROR;
    }

    errno = 0;
    o->sampling.seed = (value[0] == '-')
                       ? (uint64_t) strtoll(value, NULL, 10)
                       : strtoull(value, NULL, 10);

    if (errno != 0) {
        return bad(err, opt, value, "must be an integer of 64 bits");
    }

    o->sampling.set |= opt->bit;

    return VLM_OK;
}


int
vlm_set_factor(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    return number(opt, value, 0, field(o, opt, double), err);
}


int
vlm_set_logprobs(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    o->sampling.logprobs = 1;

    return vlm_set_int(o, opt, value, err);
}


int
vlm_set_bytes(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    uint64_t  n;

    if (vlm_parse_size(value, &n) != VLM_OK || (n == 0 && opt->min > 0)) {
        return bad(err, opt, value, "must be a size, as 4096, 64m or 2g");
    }

    if ((double) n < opt->min || (double) n > opt->max) {
        return vlm_fail(err, 400, NULL, "--%s %.40s is out of range: %.15g "
                        "to %.15g", opt->name, value, opt->min, opt->max);
    }

    *field(o, opt, uint64_t) = n;

    return VLM_OK;
}


int
vlm_set_seconds(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    double  d;

    if (number(opt, value, 0, &d, err) != VLM_OK) {
        return VLM_ERROR;
    }

    *field(o, opt, uint64_t) = (uint64_t) (d * 1000 + 0.5);

    return VLM_OK;
}


int
vlm_set_mode(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    char           *end;
    unsigned long   mode;

    mode = strtoul(value, &end, 8);

    if (value[0] < '0' || value[0] > '7' || *end != '\0' || mode > 0777) {
        return bad(err, opt, value, "must be octal, 0 to 0777");
    }

    o->server.mode = (mode_t) mode;

    return VLM_OK;
}


int
vlm_set_block(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    if (vlm_set_int(o, opt, value, err) != VLM_OK) {
        return VLM_ERROR;
    }

    if (o->server.engine.block_size % 16 != 0) {
        return bad(err, opt, value, "must be a multiple of 16");
    }

    return VLM_OK;
}


int
vlm_set_name(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    if (strlen(value) >= VLM_MODEL_NAME_LEN) {
        return bad(err, opt, value, "is longer than 127 bytes");
    }

    return vlm_set_string(o, opt, value, err);
}


int
vlm_set_device(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    int                 n, index;
    vlm_engine_conf_t  *e;

    e = &o->server.engine;
    n = 0;

    if (strcmp(value, "auto") == 0) {
        e->device = VLM_DEVICE_AUTO;

    } else if (strcmp(value, "cpu") == 0) {
        e->device = VLM_DEVICE_CPU;

    } else if (strcmp(value, "emu") == 0) {
        e->device = VLM_DEVICE_EMU;

    } else if (strcmp(value, "cuda") == 0) {
        e->device = VLM_DEVICE_CUDA;
        e->device_index = 0;

    } else if (sscanf(value, "cuda:%2d%n", &index, &n) == 1
               && value[n] == '\0' && index >= 0)
    {
        e->device = VLM_DEVICE_CUDA;
        e->device_index = index;

    } else {
        return bad(err, opt, value, "must be auto, cpu, cuda, cuda:N or emu");
    }

    return VLM_OK;
}


int
vlm_set_dtype(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    vlm_dtype_t  *dtype;

    dtype = &o->server.engine.embedding_dtype;

    if (strcmp(value, "bf16") == 0) {
        *dtype = VLM_BF16;

    } else if (strcmp(value, "f16") == 0) {
        *dtype = VLM_F16;

    } else if (strcmp(value, "f32") == 0) {
        *dtype = VLM_F32;

    } else if (strcmp(value, "int8") == 0) {
        *dtype = VLM_I8;

    } else {
        return bad(err, opt, value, "must be bf16, f16, f32 or int8");
    }

    return VLM_OK;
}


int
vlm_set_detail(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    if (strcmp(value, "auto") == 0) {
        o->detail = VLM_DETAIL_AUTO;

    } else if (strcmp(value, "low") == 0) {
        o->detail = VLM_DETAIL_LOW;

    } else if (strcmp(value, "high") == 0) {
        o->detail = VLM_DETAIL_HIGH;

    } else {
        return bad(err, opt, value, "must be auto, low or high");
    }

    return VLM_OK;
}


int
vlm_set_on(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    if (strcmp(value, "on") == 0) {
        *field(o, opt, int) = 1;

    } else if (strcmp(value, "off") == 0) {
        *field(o, opt, int) = 0;

    } else {
        return bad(err, opt, value, "must be on or off");
    }

    return VLM_OK;
}


int
vlm_set_quant(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    vlm_quant_t  *quant;

    quant = field(o, opt, vlm_quant_t);

    if (strcmp(value, "none") == 0) {
        *quant = VLM_QUANT_NONE;

    } else if (strcmp(value, "int8") == 0) {
        *quant = VLM_QUANT_INT8;

    } else if (strcmp(value, "fp8") == 0
               && opt->offset == VLM_OPTION(server.engine.vision_quant))
    {
        *quant = VLM_QUANT_FP8;

    } else {
        return bad(err, opt, value,
                   opt->offset == VLM_OPTION(server.engine.vision_quant)
                   ? "must be none, int8 or fp8" : "must be none or int8");
    }

    return VLM_OK;
}


int
vlm_set_log(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    if (vlm_log_level(value) != VLM_OK) {
        return bad(err, opt, value, "must be error, warn, info or debug");
    }

    return VLM_OK;
}


int
vlm_set_image(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    if (o->nimages == VLM_MAX_PICTURES) {
        return vlm_fail(err, 400, NULL, "more than %d --image",
                        VLM_MAX_PICTURES);
    }

    o->images[o->nimages++] = value;

    return VLM_OK;
}


int
vlm_set_stop(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    size_t  len;

    len = strlen(value);

    if (len == 0 || len > VLM_MAX_STOP_LEN || o->nstops == VLM_MAX_STOPS) {
        return vlm_fail(err, 400, NULL, "--stop: at most %d, each of 1 to %d "
                        "bytes", VLM_MAX_STOPS, VLM_MAX_STOP_LEN);
    }

    o->stops[o->nstops++] = value;

    return VLM_OK;
}


int
vlm_set_size(vlm_options_t *o, const vlm_option_t *opt, const char *value,
    vlm_error_t *err)
{
    int  n;

    n = 0;

    if (value[strspn(value, "0123456789x")] != '\0'
        || sscanf(value, "%6ux%6u%n", &o->width, &o->height, &n) != 2
        || value[n] != '\0' || o->width == 0 || o->height == 0)
    {
        return bad(err, opt, value, "must be WIDTHxHEIGHT, as 640x480");
    }

    return VLM_OK;
}
