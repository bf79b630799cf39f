
/* the shim's fibers as they are where the CPU is no x86-64: the same tests */

#define VLM_EMU_UCONTEXT

#include "kernels/emu/fiber.c"
#include "t/unit/cuda_emu.c"
