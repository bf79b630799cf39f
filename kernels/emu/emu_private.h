
/* inside the shim */

#ifndef VLM_EMU_PRIVATE_H
#define VLM_EMU_PRIVATE_H


#include <pthread.h>

#include "kernels/emu/emu.h"


#if defined(__SANITIZE_ADDRESS__)
#define VLM_EMU_ASAN  1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define VLM_EMU_ASAN  1
#endif
#endif


typedef struct vlm_emu_work_s  vlm_emu_work_t;

struct vlm_emu_work_s {
    vlm_emu_work_t     *next;
    int               (*run)(void *arg);        /* NULL: an event */
    vlm_emu_event_t     event;
    uint64_t            number;                 /* of the event's record */
    vlm_emu_stream_t    source;                 /* wait for its record there;
                                                   NULL: record it */
    size_t              size;
    uint64_t            arg[];
};

struct vlm_emu_stream_s {
    vlm_emu_work_t     *head;
    vlm_emu_work_t    **tail;

    int                 capturing;
    int                 broken;                 /* what its calls return */
    pthread_t           thread;                 /* that captures */
    vlm_emu_work_t     *captured;
    vlm_emu_work_t    **captured_tail;
};


/* of streams, events, captures and the functions below */
extern pthread_mutex_t  vlm_emu_lock;

/* NULL: no memory, which fails the device */
vlm_emu_work_t *vlm_emu_add(vlm_emu_work_t ***tail, size_t size);
void vlm_emu_work_free(vlm_emu_work_t *w);

/* one more of vlm_emu_calls() */
void vlm_emu_called(void);

/* lets streams run, or not */
void vlm_emu_run_early(void);

/* the failure that stays, or 0 */
int vlm_emu_failed(void);

/* remembers what failed, for vlm_emu_error(); the first failure stays */
void vlm_emu_fail(int rc, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* from 0 to n - 1 */
unsigned vlm_emu_below(unsigned n);


#endif /* VLM_EMU_PRIVATE_H */
