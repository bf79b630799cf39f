
/*
 * Work that comes again in every step: it runs once, so that whatever it
 * needs is there; the second time it is recorded, and from then on one call
 * puts all of it.
 *
 * What a graph depends on is compared: the work's number and the step's
 * sizes; and the addresses that it holds, of the step's tables and of the
 * queue's work space.  If these have changed it is recorded again.
 */

#include "kernels/cuda/cuda.h"


/* of a queue; what was used longest ago makes room */
#ifdef VLM_EMU
#define GRAPHS  6
#else
#define GRAPHS  64
#endif


VLM_CUDA_BEGIN


typedef enum {
    GRAPH_NEW = 0,
    GRAPH_RUN,                          /* has run: may be recorded */
    GRAPH_READY,
    GRAPH_REFUSED                       /* cannot be recorded */
} state_t;

typedef struct {
    uint64_t            work;
    int32_t             nrows;
    int32_t             nseqs;
    int32_t             max_blocks;
    int32_t             npairs;
} work_key_t;

typedef struct {
    vlm_cuda_step_t     step;
    const void         *scratch;
} addresses_t;

typedef struct {
    work_key_t          key;
    addresses_t         addresses;      /* READY */
    cudaGraphExec_t     exec;           /* the same */
    state_t             state;
    uint64_t            used;           /* at this time; 0: free */
} graph_t;

struct graphs_s {
    uint64_t            now;
    graph_t            *open;           /* of graph_begin() */
    graph_t             graphs[GRAPHS];
};


static graph_t *find_graph(vlm_queue_t *q, const work_key_t *key);
static void drop_exec(vlm_queue_t *q, graph_t *g);
static void record_begin(vlm_queue_t *q, graph_t *g);
static int record_end(vlm_queue_t *q, graph_t *g, char *err, size_t errlen);


static work_key_t
key_of(const vlm_cuda_step_t *step, uint64_t work)
{
    work_key_t  key;

    memset(&key, 0, sizeof(work_key_t));

    key.work = work;
    key.nrows = step->nrows;
    key.nseqs = step->nseqs;
    key.max_blocks = step->max_blocks;
    key.npairs = step->npairs;

    return key;
}


static addresses_t
addresses_of(const vlm_queue_t *q, const vlm_cuda_step_t *step)
{
    addresses_t  a;

    memset(&a, 0, sizeof(addresses_t));

    a.step = *step;
    a.scratch = q->scratch;

    return a;
}


int
vlm_cuda_graph_begin(vlm_queue_t *q, const vlm_step_t *step, uint64_t work)
{
    graph_t      *g;
    work_key_t    key;
    addresses_t   addresses;

    if (vlm_cuda_begin(q) != 0 || vlm_cuda_ungraphed(q, "graph_begin") != 0) {
        return 0;
    }

    key = key_of(vlm_cuda_step(step), work);
    addresses = addresses_of(q, vlm_cuda_step(step));

    g = find_graph(q, &key);
    if (g == NULL) {
        return 0;
    }

    if (g->state == GRAPH_READY
        && memcmp(&g->addresses, &addresses, sizeof(addresses_t)) == 0)
    {
        (void) vlm_cuda_check(q, cudaGraphLaunch(g->exec, q->stream),
                              "graph");
        return 1;
    }

    q->graphs->open = g;
    q->graph = VLM_GRAPH_EAGER;

    if (g->state == GRAPH_RUN || g->state == GRAPH_READY) {
        g->addresses = addresses;
        record_begin(q, g);
    }

    return 0;
}


/* NULL: the queue has failed */

static graph_t *
find_graph(vlm_queue_t *q, const work_key_t *key)
{
    int       i;
    graph_t  *g, *oldest;

    if (q->graphs == NULL) {
        q->graphs = (graphs_s *) calloc(1, sizeof(graphs_s));

        if (q->graphs == NULL) {
            vlm_cuda_fail(q, "graph_begin: no memory for %d graphs", GRAPHS);
            return NULL;
        }
    }

    oldest = &q->graphs->graphs[0];

    for (i = 0; i < GRAPHS; i++) {
        g = &q->graphs->graphs[i];

        if (g->used != 0 && memcmp(&g->key, key, sizeof(work_key_t)) == 0) {
            g->used = ++q->graphs->now;
            return g;
        }

        if (g->used < oldest->used) {
            oldest = g;
        }
    }

    drop_exec(q, oldest);

    oldest->key = *key;
    oldest->state = GRAPH_NEW;
    oldest->used = ++q->graphs->now;

    return oldest;
}


/* it may be running */

static void
drop_exec(vlm_queue_t *q, graph_t *g)
{
    if (g->exec == NULL) {
        return;
    }

    (void) vlm_cuda_check(q, cudaStreamSynchronize(q->stream), "graph");
    (void) cudaGraphExecDestroy(g->exec);

    g->exec = NULL;
    g->state = GRAPH_RUN;
}


/* other threads go on, but do not wait for the whole device */

static void
record_begin(vlm_queue_t *q, graph_t *g)
{
    drop_exec(q, g);

    pthread_mutex_lock(&q->dev->recording);

    if (cudaStreamBeginCapture(q->stream, cudaStreamCaptureModeThreadLocal)
        == cudaSuccess)
    {
        q->graph = VLM_GRAPH_RECORD;
        return;
    }

    pthread_mutex_unlock(&q->dev->recording);

    (void) cudaGetLastError();
    g->state = GRAPH_REFUSED;
}


int
vlm_cuda_graph_end(vlm_queue_t *q, char *err, size_t errlen)
{
    graph_t           *g;
    vlm_graph_mode_t   mode;

    mode = q->graph;
    q->graph = VLM_GRAPH_NONE;

    if (mode == VLM_GRAPH_NONE) {
        return 0;
    }

    g = q->graphs->open;

    if (mode == VLM_GRAPH_RECORD) {
        return record_end(q, g, err, errlen);
    }

    if (g->state == GRAPH_NEW && !q->failed) {
        g->state = GRAPH_RUN;
    }

    return 0;
}


/*
 * What failed while it was recorded fails again, if it must, when it is put
 * once more.
 */

static int
record_end(vlm_queue_t *q, graph_t *g, char *err, size_t errlen)
{
    cudaError_t  rc;
    cudaGraph_t  graph;

    graph = NULL;
    rc = cudaStreamEndCapture(q->stream, &graph);

    pthread_mutex_unlock(&q->dev->recording);

    if (rc == cudaSuccess && !q->failed) {
        rc = cudaGraphInstantiate(&g->exec, graph, 0);
    }

    if (graph != NULL) {
        (void) cudaGraphDestroy(graph);
    }

    if (rc != cudaSuccess || q->failed) {
        snprintf(err, errlen, "%s", q->failed ? q->err
                                              : cudaGetErrorString(rc));
        (void) cudaGetLastError();

        q->failed = 0;
        g->exec = NULL;
        g->state = GRAPH_REFUSED;

        return -1;
    }

    g->state = GRAPH_READY;
    (void) vlm_cuda_check(q, cudaGraphLaunch(g->exec, q->stream), "graph");

    return 0;
}


void
vlm_cuda_graphs_done(vlm_queue_t *q)
{
    int  i;

    if (q->graphs == NULL) {
        return;
    }

    for (i = 0; i < GRAPHS; i++) {
        drop_exec(q, &q->graphs->graphs[i]);
    }

    free(q->graphs);
    q->graphs = NULL;
}


VLM_CUDA_END
