// The linear kernels for portable: compile with -ffp-contract=off and nothing else.
#define FORERUN_PORTABLE 1
#define FORERUN_NS isa_portable
#include "kernels.inc"
