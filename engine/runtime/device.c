
/* The device that computes: chosen by --device, CUDA, the CPU or the shim. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/runtime/internal.h"
#include "kernels/cuda/vlm_cuda.h"


/* sides of a weight that any device can quantise, if it can any */
#define PROBE  64


static int device_cuda(vlm_engine_t *e, char *text, size_t size);
static int device_cpu(vlm_engine_t *e, char *text, size_t size);
static int device_quant(vlm_engine_t *e, const char *option,
    vlm_quant_t quant, vlm_error_t *err);


/*
 * VLM_CUDA_DTYPE=f32 is for tests: what bfloat16 costs, it shows.
 * VLM_CUDA_GRAPHS=0 shows what graphs save.
 */

static vlm_cuda_options_t
cuda_options(const vlm_engine_t *e)
{
    const char          *dtype, *graphs;
    vlm_cuda_options_t   opt;

    memset(&opt, 0, sizeof(opt));

    dtype = getenv("VLM_CUDA_DTYPE");
    graphs = getenv("VLM_CUDA_GRAPHS");

    opt.f32 = dtype != NULL && strcmp(dtype, "f32") == 0;
    opt.deterministic = e->conf.deterministic;
    opt.no_graphs = graphs != NULL && strcmp(graphs, "0") == 0;

    return opt;
}


int
vlm_device_open(vlm_engine_t *e, vlm_error_t *err)
{
    int                 rc;
    char                text[256];
    vlm_cuda_options_t  opt;

    e->device_kind = e->conf.device;

    switch (e->conf.device) {

    case VLM_DEVICE_AUTO:
        rc = device_cuda(e, text, sizeof(text));

        if (rc == VLM_OK) {
            e->device_kind = VLM_DEVICE_CUDA;
            break;
        }

        vlm_log(VLM_LOG_INFO, "computing on the CPU: %s", text);

        e->device_kind = VLM_DEVICE_CPU;
        rc = device_cpu(e, text, sizeof(text));
        break;

    case VLM_DEVICE_CUDA:
        rc = device_cuda(e, text, sizeof(text));
        break;

    case VLM_DEVICE_EMU:
        opt = cuda_options(e);
        e->dev = vlm_emu_device(&opt, &e->ops, text, sizeof(text));
        rc = e->dev != NULL ? VLM_OK : VLM_ERROR;
        break;

    default:
        rc = device_cpu(e, text, sizeof(text));
        break;
    }

    if (rc != VLM_OK) {
        return vlm_fail(err, 500, NULL, "%s", text);
    }

    if (device_quant(e, "--quantization", e->conf.quant, err) != VLM_OK) {
        return VLM_ERROR;
    }

    return device_quant(e, "--vision-quantization", e->conf.vision_quant,
                        err);
}


static int
device_cuda(vlm_engine_t *e, char *text, size_t size)
{
    vlm_error_t         err;
    vlm_cuda_options_t  opt;

    opt = cuda_options(e);
    e->dev = vlm_cuda_device(e->conf.device_index, &opt, &e->ops, text, size);

    if (e->dev == NULL) {
        return VLM_ERROR;
    }

    if (vlm_device_room(e, &e->conf.device_memory, &err) != VLM_OK) {
        snprintf(text, size, "%.200s", err.message);
        vlm_cuda_device_destroy(e->dev);
        e->dev = NULL;
        return VLM_ERROR;
    }

    return VLM_OK;
}


/* a share of all memory, of which others may have some already */

int
vlm_device_room(vlm_engine_t *e, uint64_t *room, vlm_error_t *err)
{
    double  most;
    size_t  left, total;

    if (vlm_cuda_memory(e->dev, &left, &total) != 0) {
        return vlm_fail(err, 500, NULL, "device %s does not tell its memory",
                        e->ops->name);
    }

    most = (double) e->conf.gpu_utilization * (double) total
           - (double) (total - left);

    *room = most > 1 ? (uint64_t) most : 1;

    return VLM_OK;
}


static int
device_cpu(vlm_engine_t *e, char *text, size_t size)
{
    e->dev = vlm_cpu_device(e->conf.threads, &e->ops, text, size);

    return e->dev != NULL ? VLM_OK : VLM_ERROR;
}


/* what the device has not at all is refused before anything is loaded */

static int
device_quant(vlm_engine_t *e, const char *option, vlm_quant_t quant,
    vlm_error_t *err)
{
    char                    text[256];
    vlm_weight_t            w;
    vlm_host_matrix_t       part;
    static const uint16_t   zeros[PROBE * PROBE];

    if (quant == VLM_QUANT_NONE) {
        return VLM_OK;
    }

    part.data = zeros;
    part.dtype = VLM_BF16;
    part.rows = PROBE;
    part.cols = PROBE;

    if (e->ops->weight_create(e->dev, &w, VLM_WEIGHT_PLAIN, quant, &part,
                              NULL, 1, text, sizeof(text))
        != 0)
    {
        return vlm_fail(err, 500, NULL, "%s %s: %s", option,
                        vlm_quant_name(quant), text);
    }

    e->ops->weight_destroy(&w);

    return VLM_OK;
}


void
vlm_device_close(vlm_engine_t *e)
{
    if (e->dev == NULL) {
        return;
    }

    switch (e->device_kind) {

    case VLM_DEVICE_CUDA:
        vlm_cuda_device_destroy(e->dev);
        break;

    case VLM_DEVICE_EMU:
        vlm_emu_device_destroy(e->dev);
        break;

    default:
        vlm_cpu_device_destroy(e->dev);
        break;
    }

    e->dev = NULL;
}


int
vlm_device_lost(const vlm_engine_t *e)
{
    switch (e->device_kind) {

    case VLM_DEVICE_CUDA:
        return vlm_cuda_lost(e->dev);

    case VLM_DEVICE_EMU:
        return vlm_emu_lost(e->dev);

    default:
        return 0;
    }
}
