
#include <fcntl.h>

#include "engine/cli/cli.h"


/*
 * A descriptor that is closed at start would be given to the next thing that
 * is opened, and the log written into it.  Input and output still fail.
 */

static int
keep_stdio(void)
{
    int  fd;

    for (fd = 0; fd <= 2; fd++) {

        if (fcntl(fd, F_GETFD) == -1
            && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) == -1)
        {
            return -1;
        }
    }

    return 0;
}


int
main(int argc, char **argv)
{
    if (keep_stdio() == -1) {
        return VLM_EXIT_FAILED;
    }

    return vlm_cli(argc, argv);
}
