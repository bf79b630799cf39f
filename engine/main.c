
#include "engine/cli/cli.h"


int
main(int argc, char **argv)
{
    return vlm_cli(argc, argv);
}
