#include "isa.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "kernels.h"
#include "linear.h"

namespace forerun {

// The kernel files that a build for this architecture contains. AVX-VNNI needs a newer compiler, so a build has to ask for it.
#if defined(__x86_64__)
#define FORERUN_WITH_AVX512 1
#define FORERUN_WITH_AVX2 1
#elif defined(__aarch64__)
#define FORERUN_WITH_NEON 1
#endif
#if defined(FORERUN_WITH_AVX512)
namespace isa_avx512 { extern const LinearKernels linear_table; }
#endif
#if defined(FORERUN_WITH_AVX2)
namespace isa_avx2 { extern const LinearKernels linear_table; }
#endif
#if defined(FORERUN_WITH_AVXVNNI)
namespace isa_avxvnni { extern const LinearKernels linear_table; }
#endif
#if defined(FORERUN_WITH_NEON)
namespace isa_neon { extern const LinearKernels linear_table; }
#endif
namespace isa_portable { extern const LinearKernels linear_table; }

namespace {

constexpr Isa all[] = {Isa::avx512, Isa::avx2, Isa::neon, Isa::portable};

bool built(Isa isa) {
  switch (isa) {
#if defined(FORERUN_WITH_AVX512)
    case Isa::avx512: return true;
#endif
#if defined(FORERUN_WITH_AVX2)
    case Isa::avx2: return true;
#endif
#if defined(FORERUN_WITH_NEON)
    case Isa::neon: return true;
#endif
    case Isa::portable: return true;
    default: return false;
  }
}

bool runs_here(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    case Isa::avx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#endif
#if defined(__aarch64__) && defined(__linux__)
    case Isa::neon: return (getauxval(AT_HWCAP) & (1ul << 20)) != 0;  // HWCAP_ASIMDDP
#elif defined(__aarch64__)
    case Isa::neon: return true;
#endif
    case Isa::portable: return true;
    default: return false;
  }
}

#if defined(FORERUN_WITH_AVXVNNI)
bool has_avx_vnni() {  // leaf 7.1 eax bit 4; GCC 12 has no name for it in __builtin_cpu_supports
  unsigned a = 7, b = 0, c = 1, d = 0;
  __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  return (a >> 4) & 1u;
}
#endif

std::string supported_names() {
  std::string names;
  for (Isa isa : all)
    if (isa_supported(isa)) names += std::string(names.empty() ? "" : ", ") + isa_name(isa);
  return names;
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::avx512: return "avx512";
    case Isa::avx2: return "avx2";
    case Isa::neon: return "neon";
    case Isa::portable: return "portable";
  }
  return "?";
}

bool isa_supported(Isa isa) { return built(isa) && runs_here(isa); }

Isa best_isa() {
  for (Isa isa : all)
    if (isa_supported(isa)) return isa;
  return Isa::portable;
}

Isa parse_isa(const char* name) {
  for (Isa isa : all) {
    if (std::string(name) != isa_name(isa)) continue;
    if (isa_supported(isa)) return isa;
    throw std::invalid_argument("instruction set '" + std::string(name) + "' is not available here; this machine and build run " + supported_names());
  }
  throw std::invalid_argument("unknown instruction set '" + std::string(name) + "'; this machine and build run " + supported_names());
}

Isa active_isa() {
  const char* asked = std::getenv("FORERUN_ISA");
  return asked && *asked ? parse_isa(asked) : best_isa();
}

const LinearKernels& linear_kernels(Isa isa) {
  if (!isa_supported(isa)) parse_isa(isa_name(isa));
  switch (isa) {
#if defined(FORERUN_WITH_AVX512)
    case Isa::avx512: return isa_avx512::linear_table;
#endif
#if defined(FORERUN_WITH_AVX2)
    case Isa::avx2:
#if defined(FORERUN_WITH_AVXVNNI)
      if (has_avx_vnni()) return isa_avxvnni::linear_table;
#endif
      return isa_avx2::linear_table;
#endif
#if defined(FORERUN_WITH_NEON)
    case Isa::neon: return isa_neon::linear_table;
#endif
    default: return isa_portable::linear_table;
  }
}

}  // namespace forerun
