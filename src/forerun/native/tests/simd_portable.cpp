#ifndef FORERUN_PORTABLE
#define FORERUN_PORTABLE 1
#endif
#ifndef FORERUN_NS
#define FORERUN_NS isa_portable
#endif
#include "simd_probe.inc"
