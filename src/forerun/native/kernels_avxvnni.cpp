// The linear kernels for avx2 on processors with AVX-VNNI: compile with -mavx2 -mfma -mf16c -mavxvnni -ffp-contract=off, and isa.cpp
// with FORERUN_WITH_AVXVNNI. Part of "avx2": the bits are the same, so nothing else needs to know.
#ifndef FORERUN_NS
#define FORERUN_NS isa_avxvnni
#endif
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__) || !defined(__AVXVNNI__)
#error "wrong compiler flags for this file"
#endif
#include "kernels.inc"
