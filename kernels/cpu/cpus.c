
/* how many CPUs this process may use */

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"


static int affinity_count(void);
static int cgroup_count(void);
static int quota_of_tree(const char *mount, char *path, int v2);
static int quota_v2(const char *dir);
static int quota_v1(const char *dir);
static int read_line(const char *dir, const char *name, char *line,
    int size);


int
vlm_cpu_count(void)
{
    int  n, quota;

    n = affinity_count();
    quota = cgroup_count();

    return quota != 0 && quota < n ? quota : n;
}


static int
affinity_count(void)
{
    int         n, ncpus;
    size_t      size;
    cpu_set_t  *set;

    /* the kernel refuses a mask shorter than its own */

    for (ncpus = 1024; ncpus <= 65536; ncpus *= 4) {

        set = CPU_ALLOC(ncpus);
        if (set == NULL) {
            return 1;
        }

        size = CPU_ALLOC_SIZE(ncpus);
        n = 0;

        if (sched_getaffinity(0, size, set) == 0) {
            n = CPU_COUNT_S(size, set);
        }

        CPU_FREE(set);

        if (n > 0) {
            return n;
        }
    }

    return 1;
}


/* CPUs of the strictest quota, rounded up; 0: no quota */

static int
cgroup_count(void)
{
    int    quota, n, v2;
    char   line[1024], *controllers, *path;
    FILE  *f;

    f = fopen("/proc/self/cgroup", "re");
    if (f == NULL) {
        return 0;
    }

    quota = 0;

    /* "0::/path" is v2, "4:cpu,cpuacct:/path" v1 */

    while (fgets(line, sizeof(line), f) != NULL) {

        controllers = strchr(line, ':');
        path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (path == NULL) {
            continue;
        }

        *controllers++ = '\0';
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';

        v2 = controllers[0] == '\0';

        if (!v2 && strncmp(controllers, "cpu", 3) != 0) {
            continue;
        }

        n = quota_of_tree(v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu", path,
                          v2);
        if (n != 0 && (quota == 0 || n < quota)) {
            quota = n;
        }
    }

    fclose(f);

    return quota;
}


/*
 * A parent's quota holds for its children too.  In a container the path may
 * be one of the host's: what cannot be read is skipped.
 */

static int
quota_of_tree(const char *mount, char *path, int v2)
{
    int    quota, n;
    char   dir[1280], *slash;

    quota = 0;

    for ( ;; ) {
        snprintf(dir, sizeof(dir), "%s%s", mount, path);

        n = v2 ? quota_v2(dir) : quota_v1(dir);
        if (n != 0 && (quota == 0 || n < quota)) {
            quota = n;
        }

        slash = strrchr(path, '/');
        if (slash == NULL) {
            return quota;
        }

        *slash = '\0';
    }
}


static int
quota_v2(const char *dir)
{
    char  line[128];
    long  quota, period;

    if (read_line(dir, "cpu.max", line, sizeof(line)) != 0
        || sscanf(line, "%ld %ld", &quota, &period) != 2
        || quota <= 0 || period <= 0)
    {
        return 0;                       /* "max 100000": none */
    }

    return (int) ((quota + period - 1) / period);
}


static int
quota_v1(const char *dir)
{
    char  line[128];
    long  quota, period;

    if (read_line(dir, "cpu.cfs_quota_us", line, sizeof(line)) != 0) {
        return 0;
    }

    quota = strtol(line, NULL, 10);

    if (read_line(dir, "cpu.cfs_period_us", line, sizeof(line)) != 0) {
        return 0;
    }

    period = strtol(line, NULL, 10);

    if (quota <= 0 || period <= 0) {
        return 0;                       /* -1: none */
    }

    return (int) ((quota + period - 1) / period);
}


static int
read_line(const char *dir, const char *name, char *line, int size)
{
    int    rc;
    char   path[1536];
    FILE  *f;

    snprintf(path, sizeof(path), "%s/%s", dir, name);

    f = fopen(path, "re");
    if (f == NULL) {
        return -1;
    }

    rc = fgets(line, size, f) != NULL ? 0 : -1;

    fclose(f);

    return rc;
}
