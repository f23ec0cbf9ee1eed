// The linear kernels for avx2: compile with -mavx2 -mfma -mf16c -ffp-contract=off.
#define FORERUN_NS isa_avx2
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "wrong compiler flags for this file"
#endif
#include "kernels.inc"
