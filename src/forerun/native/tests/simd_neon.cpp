#ifndef FORERUN_NS
#define FORERUN_NS isa_neon
#endif
#include "simd_probe.inc"
