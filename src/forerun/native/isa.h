// Which instruction set the core runs on: chosen once per call site from the processor, or forced by FORERUN_ISA.
#pragma once

namespace forerun {

enum class Isa { portable, neon, avx2, avx512 };

const char* isa_name(Isa isa);

// True if this build has kernels for `isa` and this processor can run them.
bool isa_supported(Isa isa);

// The fastest supported instruction set.
Isa best_isa();

// From "avx512", "avx2", "neon" or "portable". Throws std::invalid_argument (unknown, or not supported here), listing what is.
Isa parse_isa(const char* name);

// FORERUN_ISA if set and not empty, else best_isa(). Reads the environment at each call; throws as parse_isa does.
Isa active_isa();

}  // namespace forerun
