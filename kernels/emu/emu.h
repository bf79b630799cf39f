
/*
 * The shim that compiles the CUDA sources (kernels/cuda) with the host's C++
 * compiler: the words of the CUDA language and the part of its runtime that
 * these sources use.  No CUDA header is needed.
 *
 * A thread of a block is a fiber that runs until it waits: at a barrier of
 * its block, or at a shuffle for the other lanes of its warp.  The next to
 * run is drawn at random, so nothing may rely on lanes that keep step.  Shared
 * memory is full of NaNs when a block begins.  A barrier that not all threads
 * reach at the same line, or a shuffle that lanes leave out, fails the launch.
 * So do more than 48 KB of shared memory that a kernel has not been allowed,
 * or more than 99 KB.
 *
 * Streams hold their work back until something waits for it, or run parts of
 * it at random, so a missing wait shows.  Device memory is the host's, fresh
 * memory is full of NaNs, and AddressSanitizer sees kernels leave it.
 */

#ifndef VLM_EMU_H
#define VLM_EMU_H


#include <stddef.h>
#include <stdint.h>


#ifdef __cplusplus
extern "C" {
#endif


/* seeds the order of fibers and streams; VLM_EMU_SEED does it at start */
void vlm_emu_seed(uint64_t seed);

/* what failed; a failure stays, as a device's does, but for vlm_emu_reset() */
const char *vlm_emu_error(int rc);
void vlm_emu_reset(void);

/* calls for device and pinned memory so far */
uint64_t vlm_emu_allocations(void);

/* calls that put something on a stream so far; a graph is one */
uint64_t vlm_emu_calls(void);


/* ---- fibers: fiber.c ---- */

typedef struct {
    unsigned            x, y, z;
} vlm_emu_index_t;

typedef struct {
    vlm_emu_index_t     thread;
    vlm_emu_index_t     block;
    vlm_emu_index_t     block_dim;
    vlm_emu_index_t     grid_dim;
} vlm_emu_at_t;

/* of the fiber that runs */
extern vlm_emu_at_t  vlm_emu_at;

typedef void (*vlm_emu_call_pt)(void *arg);

typedef struct {
    const char         *name;
    vlm_emu_index_t     grid;
    vlm_emu_index_t     block;
    size_t              shared;             /* dynamic, bytes */
    size_t              allowed;            /* of it */
    vlm_emu_call_pt     run;
    void               *arg;
} vlm_emu_launch_t;

/* runs all blocks; 0, or the launch's error */
int vlm_emu_run(const vlm_emu_launch_t *launch);

/* from kernels: */
void vlm_emu_barrier(int line);

/* all lanes of a warp exchange 64 bits; the result is that of lane "from" */
uint64_t vlm_emu_shuffle(uint64_t value, int from, int line);

/* is it true for a lane of the warp? */
int vlm_emu_any(int value, int line);

/*
 * All lanes of a warp hand in a pointer each; when the last has come, it runs
 * "together" over all of them, before any goes on.
 */
typedef void (*vlm_emu_together_pt)(const uint64_t *pointers, int line);
void vlm_emu_meet(void *mine, vlm_emu_together_pt together, int line);

/* 4, 8 or 16 bytes to shared memory, there after the thread's next wait */
void vlm_emu_copy_async(void *to, const void *from, size_t size, int line);
void vlm_emu_copy_wait(void);

/* the launch fails: a text with two %d, for a number and the line */
void vlm_emu_wrong(const char *what, int number, int line)
    __attribute__((format(printf, 1, 0)));

/* a block's shared memory: by the address of a tag, and the dynamic part */
void *vlm_emu_shared(const void *tag, size_t size);
void *vlm_emu_dynamic(void);


/* ---- memory, streams and events: stream.c ---- */

typedef struct vlm_emu_stream_s  *vlm_emu_stream_t;
typedef struct vlm_emu_event_s   *vlm_emu_event_t;

/* work of "size" bytes at arg, copied, for a stream */
int vlm_emu_enqueue(vlm_emu_stream_t s, int (*run)(void *arg),
    const void *arg, size_t size);

int vlm_emu_malloc(void **p, size_t size);
int vlm_emu_free(void *p);
int vlm_emu_malloc_host(void **p, size_t size);
int vlm_emu_free_host(void *p);
int vlm_emu_memory(size_t *left, size_t *total);
int vlm_emu_copy(void *to, const void *from, size_t size, int kind,
    vlm_emu_stream_t s);
int vlm_emu_set(void *to, int byte, size_t size, vlm_emu_stream_t s);
int vlm_emu_stream_create(vlm_emu_stream_t *s, unsigned flags, int priority);
int vlm_emu_stream_destroy(vlm_emu_stream_t s);
int vlm_emu_stream_sync(vlm_emu_stream_t s);
int vlm_emu_stream_query(vlm_emu_stream_t s);
int vlm_emu_stream_wait(vlm_emu_stream_t s, vlm_emu_event_t e,
    unsigned flags);
int vlm_emu_event_create(vlm_emu_event_t *e, unsigned flags);
int vlm_emu_event_destroy(vlm_emu_event_t e);
int vlm_emu_event_record(vlm_emu_event_t e, vlm_emu_stream_t s);
int vlm_emu_event_sync(vlm_emu_event_t e);
int vlm_emu_event_query(vlm_emu_event_t e);
int vlm_emu_device_sync(void);
int vlm_emu_last_error(void);

/*
 * Dynamic shared memory of a kernel: 48 KB, with its arrays, unless more is
 * allowed.  The most is sm_86's and sm_89's, which have the least.  What was
 * allowed cannot be taken back: another thread may be about to launch.
 */
int vlm_emu_allow_shared(const void *kernel, size_t size);
size_t vlm_emu_shared_allowed(const void *kernel);

#define VLM_EMU_SHARED      ((size_t) 48 * 1024)
#define VLM_EMU_SHARED_MOST ((size_t) 99 * 1024)


/*
 * ---- graphs: capture.c ----
 *
 * What a stream is given between begin and end is captured, with copies of
 * its arguments, and runs when the graph is launched.  Meanwhile the capture
 * is broken by waiting for the stream or the device, and by the thread's
 * asking for memory or after events: these calls fail, as do all after them,
 * and the end.
 */

typedef struct vlm_emu_graph_s   *vlm_emu_graph_t;

int vlm_emu_capture_begin(vlm_emu_stream_t s, int mode);
int vlm_emu_capture_end(vlm_emu_stream_t s, vlm_emu_graph_t *g);
int vlm_emu_graph_instantiate(vlm_emu_graph_t *exec, vlm_emu_graph_t g,
    unsigned flags);
int vlm_emu_graph_launch(vlm_emu_graph_t exec, vlm_emu_stream_t s);
int vlm_emu_graph_destroy(vlm_emu_graph_t g);


#define VLM_EMU_FAILURE     719         /* cudaErrorLaunchFailure */
#define VLM_EMU_MEMORY      2           /* cudaErrorMemoryAllocation */
#define VLM_EMU_INVALID     1           /* cudaErrorInvalidValue */
#define VLM_EMU_NOT_READY   600         /* cudaErrorNotReady */
#define VLM_EMU_CAPTURING   900         /* ...StreamCaptureUnsupported */
#define VLM_EMU_BROKEN      901         /* ...StreamCaptureInvalidated */


#ifdef __cplusplus
}
#endif


/* ---- what the CUDA sources see ---- */

#ifdef __cplusplus

#define __global__          static
#define __device__
#define __host__
#define __forceinline__     inline __attribute__((always_inline))
#define __launch_bounds__(...)

#define threadIdx           (vlm_emu_at.thread)
#define blockIdx            (vlm_emu_at.block)
#define blockDim            (vlm_emu_at.block_dim)
#define gridDim             (vlm_emu_at.grid_dim)

struct dim3 {
    unsigned            x, y, z;

    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

typedef int                 cudaError_t;
typedef vlm_emu_stream_t    cudaStream_t;
typedef vlm_emu_event_t     cudaEvent_t;
typedef vlm_emu_graph_t     cudaGraph_t;
typedef vlm_emu_graph_t     cudaGraphExec_t;

#define cudaSuccess                 0
#define cudaErrorMemoryAllocation   VLM_EMU_MEMORY
#define cudaErrorLaunchFailure      VLM_EMU_FAILURE
#define cudaErrorNotReady           VLM_EMU_NOT_READY
#define cudaSetDevice(index)        0
#define cudaMemcpyHostToDevice      1
#define cudaMemcpyDeviceToHost      2
#define cudaMemcpyDeviceToDevice    3
#define cudaStreamNonBlocking       1
#define cudaEventDisableTiming      2
#define cudaStreamCaptureModeThreadLocal  1

#define cudaMalloc                  vlm_emu_malloc
#define cudaFree                    vlm_emu_free
#define cudaMallocHost              vlm_emu_malloc_host
#define cudaFreeHost                vlm_emu_free_host
#define cudaMemGetInfo              vlm_emu_memory
#define cudaMemcpyAsync             vlm_emu_copy
#define cudaMemsetAsync             vlm_emu_set
#define cudaStreamCreateWithPriority  vlm_emu_stream_create
#define cudaStreamDestroy           vlm_emu_stream_destroy
#define cudaStreamSynchronize       vlm_emu_stream_sync
#define cudaStreamQuery             vlm_emu_stream_query
#define cudaStreamWaitEvent         vlm_emu_stream_wait
#define cudaEventCreateWithFlags    vlm_emu_event_create
#define cudaEventDestroy            vlm_emu_event_destroy
#define cudaEventRecord             vlm_emu_event_record
#define cudaEventSynchronize        vlm_emu_event_sync
#define cudaEventQuery              vlm_emu_event_query
#define cudaStreamBeginCapture      vlm_emu_capture_begin
#define cudaStreamEndCapture        vlm_emu_capture_end
#define cudaGraphInstantiate        vlm_emu_graph_instantiate
#define cudaGraphLaunch             vlm_emu_graph_launch
#define cudaGraphDestroy            vlm_emu_graph_destroy
#define cudaGraphExecDestroy        vlm_emu_graph_destroy
#define cudaDeviceSynchronize       vlm_emu_device_sync
#define cudaGetLastError            vlm_emu_last_error
#define cudaGetErrorString          vlm_emu_error


/* a kernel's launch as work, which holds copies of the arguments */

template <typename F>
struct vlm_emu_kernel_t {
    vlm_emu_launch_t    launch;
    F                   body;
};

template <typename F>
static void
vlm_emu_body(void *arg)
{
    (*(F *) arg)();
}

template <typename F>
static int
vlm_emu_kernel_run(void *arg)
{
    vlm_emu_kernel_t<F>  *k = (vlm_emu_kernel_t<F> *) arg;

    k->launch.run = vlm_emu_body<F>;
    k->launch.arg = &k->body;

    return vlm_emu_run(&k->launch);
}

template <typename F>
static int
vlm_emu_add_kernel(vlm_emu_stream_t s, const vlm_emu_launch_t &launch, F body)
{
    vlm_emu_kernel_t<F>  k = { launch, body };

    return vlm_emu_enqueue(s, vlm_emu_kernel_run<F>, &k, sizeof(k));
}

template <typename F, typename... A>
static int
vlm_emu_launch(vlm_emu_stream_t s, const char *name, dim3 grid, dim3 block,
    size_t shared, F kernel, A... args)
{
    vlm_emu_launch_t  launch = {
        name, { grid.x, grid.y, grid.z }, { block.x, block.y, block.z },
        shared, vlm_emu_shared_allowed((const void *) kernel), NULL, NULL
    };

    return vlm_emu_add_kernel(s, launch, [=]() { kernel(args...); });
}


/* host work on a stream: what a library would do on the device */

template <typename F>
static int
vlm_emu_host_run(void *arg)
{
    return (*(F *) arg)();
}

template <typename F>
static int
vlm_emu_host(vlm_emu_stream_t s, F body)
{
    return vlm_emu_enqueue(s, vlm_emu_host_run<F>, &body, sizeof(body));
}

#endif /* __cplusplus */


#endif /* VLM_EMU_H */
