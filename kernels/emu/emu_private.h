
/* inside the shim */

#ifndef VLM_EMU_PRIVATE_H
#define VLM_EMU_PRIVATE_H


#include "kernels/emu/emu.h"


#if defined(__SANITIZE_ADDRESS__)
#define VLM_EMU_ASAN  1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define VLM_EMU_ASAN  1
#endif
#endif


/* remembers what failed, for vlm_emu_error(); the first failure stays */
void vlm_emu_fail(int rc, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* from 0 to n - 1; the caller holds the shim's lock */
unsigned vlm_emu_below(unsigned n);


#endif /* VLM_EMU_PRIVATE_H */
