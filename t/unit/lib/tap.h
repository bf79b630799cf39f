
/* A unit test's output in TAP, which prove reads, and access to test data. */

#ifndef TAP_H
#define TAP_H


#include <stddef.h>
#include <stdint.h>


/* one result with a name; all return the condition */
int tap_ok(int condition, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
int tap_is(long long got, long long expected, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int tap_str(const char *got, const char *expected, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void tap_diag(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void tap_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* prints the plan; returns main()'s exit status */
int tap_done(void);


/*
 * The root of the source tree (tests are started there, or VLM_ROOT names
 * it), and a path below it.  Results of tap_path() are overwritten after 8
 * further calls.
 */
const char *tap_path(const char *fmt, ...)
    __attribute__((format(printf, 1, 2)));


/* one tensor of a safetensors file; data is malloc()ed, NULL if missing */

typedef struct {
    char        dtype[8];
    int         rank;
    int64_t     shape[8];
    int64_t     count;              /* elements */
    size_t      size;               /* bytes */
    void       *data;
} tap_tensor_t;

tap_tensor_t tap_tensor(const char *path, const char *name);

/* norm of the difference over the norm of "expected" */
double tap_distance(const float *got, const float *expected, size_t n);

/* counter-based random numbers for tests: same seed, same sequence */
uint64_t tap_random(uint64_t *state);
float tap_uniform(uint64_t *state);         /* -1 to 1 */


#endif /* TAP_H */
