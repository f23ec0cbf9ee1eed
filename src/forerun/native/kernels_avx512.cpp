// The linear kernels for avx512: compile with -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx2 -mfma -mf16c -ffp-contract=off.
#define FORERUN_NS isa_avx512
#if !defined(__AVX512VNNI__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__AVX512VL__)
#error "wrong compiler flags for this file"
#endif
#include "kernels.inc"
