#ifndef FORERUN_NS
#define FORERUN_NS isa_avx2
#endif
#include "simd_probe.inc"
