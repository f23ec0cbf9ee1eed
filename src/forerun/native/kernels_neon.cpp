// The linear kernels for neon: compile with -march=armv8.2-a+dotprod -ffp-contract=off.
#define FORERUN_NS isa_neon
#if !defined(__ARM_FEATURE_DOTPROD)
#error "wrong compiler flags for this file"
#endif
#include "kernels.inc"
