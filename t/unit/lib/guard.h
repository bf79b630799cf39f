
/*
 * A device around another one, for tests of code that works through
 * kernels/ops.h: what such code must not do ends the test with a message, or
 * with SIGSEGV at the very place.
 *
 * - Device pointers point to memory without any access; the operations
 *   translate them.  Fresh memory is full of 0xff bytes (NaNs), reaches up to
 *   64 bytes before a page without access, and is never handed out twice.
 * - Every tensor must lie inside of one allocation that is still alive, and
 *   name this device.
 * - What operations write to the host appears at sync() only; what they read
 *   there must not change before it, or before a fence behind them is reached.
 * - Memory of host_alloc() is the host's too, and ends before such a page.
 */

#ifndef GUARD_H
#define GUARD_H


#include "kernels/ops.h"


/* the real device must outlive it; ends the test if there is no memory */
vlm_device_t *guard_create(vlm_device_t *real, const vlm_ops_t *real_ops,
    const vlm_ops_t **ops);
void guard_destroy(vlm_device_t *dev);

/* allocations, weights and steps that were not freed */
int guard_alive(vlm_device_t *dev);


#endif /* GUARD_H */
