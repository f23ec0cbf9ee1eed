// The linear kernels for portable: compile with -ffp-contract=off and nothing else.
#ifndef FORERUN_PORTABLE
#define FORERUN_PORTABLE 1
#endif
#define FORERUN_NS isa_portable
#include "kernels.inc"
