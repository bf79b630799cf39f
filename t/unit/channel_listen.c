
/* The listening socket: stale, live, foreign and impossible paths. */

#include "t/unit/channel_pair.h"

#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>


static char  dir[] = "/tmp/vlm-listen-XXXXXX";
static char  path[64];
static char  why[300];


static int
try(const char *at, mode_t mode, const char *group)
{
    why[0] = '\0';

    return vlm_listen(at, mode, group, why, sizeof(why));
}


/* one that a new socket does not have by itself */

static struct group *
other_group(void)
{
    int            i, n;
    gid_t          gids[64];
    struct group  *group;

    if (geteuid() == 0) {
        setgrent();

        do {
            group = getgrent();
        } while (group != NULL && group->gr_gid == getegid());

        /* the entry stays valid, the open file would count as a leak */
        endgrent();

        return group;
    }

    n = getgroups(64, gids);

    for (i = 0; i < n; i++) {
        group = getgrgid(gids[i]);

        if (gids[i] != getegid() && group != NULL) {
            return group;
        }
    }

    return NULL;
}


static void
test_mode(void)
{
    int            fd;
    struct stat    st;
    struct group  *group;

    fd = try(path, 0660, NULL);
    tap_ok(fd != -1, "listen: %s", why);
    tap_is(lstat(path, &st), 0, "the socket exists");
    tap_ok(S_ISSOCK(st.st_mode), "it is one");
    tap_is(st.st_mode & 07777, 0660, "mode");
    tap_is(fcntl(fd, F_GETFD), FD_CLOEXEC, "close-on-exec");
    tap_ok(fcntl(fd, F_GETFL) & O_NONBLOCK, "non-blocking");
    close(fd);
    unlink(path);

    umask(0777);
    fd = try(path, 0666, NULL);
    umask(022);
    lstat(path, &st);
    tap_is(st.st_mode & 07777, 0666, "whatever the umask is");
    close(fd);
    unlink(path);

    tap_is(try(path, 0660, "no-such-group"), -1, "an unknown group: %s", why);
    tap_is(access(path, F_OK), -1, "nothing was created");

    group = other_group();

    if (group == NULL) {
        tap_skip("this user has one group only");
        return;
    }

    fd = try(path, 0660, group->gr_name);
    tap_ok(fd != -1, "group %s: %s", group->gr_name, why);
    lstat(path, &st);
    tap_is(st.st_gid, group->gr_gid, "the socket's group");
    close(fd);
    unlink(path);
}


static void
test_taken(void)
{
    int                 fd, second, i, clients[64];
    struct stat         st;
    struct sockaddr_un  addr;

    fd = try(path, 0660, NULL);

    second = try(path, 0660, NULL);
    tap_is(second, -1, "a live engine: %s", why);
    tap_ok(strstr(why, "another engine") != NULL, "the message says so");
    tap_is(lstat(path, &st), 0, "its socket stays");
    close(fd);

    fd = try(path, 0660, NULL);
    tap_ok(fd != -1, "a stale socket is replaced: %s", why);
    close(fd);
    unlink(path);

    /* an engine whose backlog is full */

    fd = socket(AF_UNIX, SOCK_STREAM|SOCK_CLOEXEC, 0);
    memset(&addr, 0, sizeof(addr));
    addr.sun_family = AF_UNIX;
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);

    if (bind(fd, (struct sockaddr *) &addr, sizeof(addr)) == -1
        || listen(fd, 1) == -1)
    {
        pair_fatal("bind()", strerror(errno));
    }

    for (i = 0; i < 64; i++) {
        clients[i] = socket(AF_UNIX, SOCK_STREAM|SOCK_NONBLOCK|SOCK_CLOEXEC,
                            0);

        if (connect(clients[i], (struct sockaddr *) &addr, sizeof(addr))
            == -1)
        {
            break;
        }
    }

    tap_ok(i < 64 && errno == EAGAIN, "the backlog is full");
    tap_is(try(path, 0660, NULL), -1, "a busy engine is a live one: %s", why);
    tap_ok(strstr(why, "another engine") != NULL, "the message says so");

    for ( /* void */ ; i >= 0; i--) {
        close(clients[i]);
    }

    close(fd);
    unlink(path);

    /* what is not ours */

    fd = socket(AF_UNIX, SOCK_DGRAM|SOCK_CLOEXEC, 0);
    tap_is(bind(fd, (struct sockaddr *) &addr, sizeof(addr)), 0, "a datagram "
           "socket");
    tap_is(try(path, 0660, NULL), -1, "is an error: %s", why);
    tap_is(lstat(path, &st), 0, "and stays");
    close(fd);
    unlink(path);

    fd = open(path, O_CREAT|O_WRONLY|O_CLOEXEC, 0600);
    close(fd);
    tap_is(try(path, 0660, NULL), -1, "a file: %s", why);
    tap_is(lstat(path, &st), 0, "it stays");
    unlink(path);

    tap_is(symlink("/dev/null", path), 0, "symlink()");
    tap_is(try(path, 0660, NULL), -1, "a symbolic link: %s", why);
    tap_is(lstat(path, &st), 0, "it stays");
    unlink(path);
}


static void
test_paths(void)
{
    int   fd;
    char  longest[200];

    tap_is(try("", 0660, NULL), -1, "no path: %s", why);
    tap_is(try("/nonexistent/vlm.sock", 0660, NULL), -1, "no directory: %s",
           why);

    memset(longest, 'x', sizeof(longest));
    memcpy(longest, dir, strlen(dir));
    longest[strlen(dir)] = '/';

    longest[108] = '\0';
    tap_is(try(longest, 0660, NULL), -1, "108 bytes");
    tap_ok(strstr(why, "107") != NULL, "the limit is told: %s", why);

    longest[107] = '\0';
    fd = try(longest, 0660, NULL);
    tap_ok(fd != -1, "107 bytes are possible: %s", why);
    close(fd);
    unlink(longest);
}


int
main(void)
{
    int  fds;

    fds = pair_count_fds();

    if (mkdtemp(dir) == NULL) {
        pair_fatal("mkdtemp()", strerror(errno));
    }

    snprintf(path, sizeof(path), "%s/engine.sock", dir);

    test_mode();
    test_taken();
    test_paths();

    tap_is(rmdir(dir), 0, "nothing is left in the directory");
    tap_is(pair_count_fds(), fds, "no descriptor is left");

    return tap_done();
}
