#ifndef FORERUN_NS
#define FORERUN_NS isa_avx512
#endif
#include "simd_probe.inc"
