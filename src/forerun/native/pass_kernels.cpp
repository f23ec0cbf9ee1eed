#include "pass_kernels.h"

#include <stdexcept>
#include <string>

namespace forerun {

namespace isa_portable { extern const PassKernels pass_table; }
#if defined(__x86_64__)
namespace isa_avx2 { extern const PassKernels pass_table; }
namespace isa_avx512 { extern const PassKernels pass_table; }
#elif defined(__aarch64__)
namespace isa_neon { extern const PassKernels pass_table; }
#endif

const PassKernels& pass_kernels(Isa isa) {
  if (!isa_supported(isa)) throw std::invalid_argument(std::string("this processor or build cannot run ") + isa_name(isa));
  switch (isa) {
#if defined(__x86_64__)
    case Isa::avx2: return isa_avx2::pass_table;
    case Isa::avx512: return isa_avx512::pass_table;
#elif defined(__aarch64__)
    case Isa::neon: return isa_neon::pass_table;
#endif
    default: return isa_portable::pass_table;
  }
}

}  // namespace forerun
