
/* Graphs of the shim: work that was captured from a stream, to run again. */

#include <stdlib.h>
#include <string.h>

#include "kernels/emu/emu_private.h"


struct vlm_emu_graph_s {
    vlm_emu_work_t     *work;
};


/* copies of all of it; 0 or the failure */

static int
copy_work(vlm_emu_work_t ***tail, const vlm_emu_work_t *from)
{
    vlm_emu_work_t  *w;

    for ( ; from != NULL; from = from->next) {
        w = vlm_emu_add(tail, from->size);
        if (w == NULL) {
            return vlm_emu_failed();
        }

        w->run = from->run;
        memcpy(w->arg, from->arg, from->size);
    }

    return 0;
}


void
vlm_emu_work_free(vlm_emu_work_t *w)
{
    vlm_emu_work_t  *next;

    for ( ; w != NULL; w = next) {
        next = w->next;
        free(w);
    }
}


/* (all captures are the thread's own, whatever the mode) */

int
vlm_emu_capture_begin(vlm_emu_stream_t s, int mode)
{
    int  rc;

    pthread_mutex_lock(&vlm_emu_lock);

    rc = s->capturing ? VLM_EMU_CAPTURING : vlm_emu_failed();

    if (rc == 0) {
        s->capturing = 1;
        s->broken = 0;
        s->thread = pthread_self();
        s->captured = NULL;
        s->captured_tail = &s->captured;
    }

    pthread_mutex_unlock(&vlm_emu_lock);

    return rc;
}


int
vlm_emu_capture_end(vlm_emu_stream_t s, vlm_emu_graph_t *g)
{
    int  rc;

    *g = NULL;

    pthread_mutex_lock(&vlm_emu_lock);

    rc = s->capturing ? s->broken : VLM_EMU_INVALID;

    if (rc == 0) {
        *g = calloc(1, sizeof(struct vlm_emu_graph_s));
        rc = *g != NULL ? 0 : VLM_EMU_MEMORY;
    }

    if (rc == 0) {
        (*g)->work = s->captured;

    } else {
        vlm_emu_work_free(s->captured);
    }

    s->capturing = 0;
    s->captured = NULL;

    pthread_mutex_unlock(&vlm_emu_lock);

    return rc;
}


int
vlm_emu_graph_instantiate(vlm_emu_graph_t *exec, vlm_emu_graph_t g,
    unsigned flags)
{
    int               rc;
    vlm_emu_work_t  **tail;

    *exec = calloc(1, sizeof(struct vlm_emu_graph_s));
    if (*exec == NULL) {
        return VLM_EMU_MEMORY;
    }

    pthread_mutex_lock(&vlm_emu_lock);

    tail = &(*exec)->work;
    rc = copy_work(&tail, g->work);

    pthread_mutex_unlock(&vlm_emu_lock);

    if (rc != 0) {
        vlm_emu_graph_destroy(*exec);
        *exec = NULL;
    }

    return rc;
}


int
vlm_emu_graph_launch(vlm_emu_graph_t exec, vlm_emu_stream_t s)
{
    int  rc;

    pthread_mutex_lock(&vlm_emu_lock);

    rc = s->capturing ? VLM_EMU_CAPTURING : copy_work(&s->tail, exec->work);

    vlm_emu_called();
    vlm_emu_run_early();

    rc = rc != 0 ? rc : vlm_emu_failed();

    pthread_mutex_unlock(&vlm_emu_lock);

    return rc;
}


int
vlm_emu_graph_destroy(vlm_emu_graph_t g)
{
    vlm_emu_work_free(g->work);
    free(g);

    return 0;
}
