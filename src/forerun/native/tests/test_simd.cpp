// The lanes give the same bits on each instruction set: random operands with zeros, subnormals and large values; all of fp16.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "../isa.h"
#include "check.h"

#define DECLARE(ns)                                                                                                     \
  namespace forerun::ns {                                                                                               \
  size_t probe(const float*, const float*, const float*, const uint8_t*, const int8_t*, uint8_t*);                      \
  void halves(const uint16_t*, float*, uint16_t*);                                                                      \
  }
DECLARE(isa_portable)
#if defined(__x86_64__)
DECLARE(isa_avx512)
DECLARE(isa_avx2)
#elif defined(__aarch64__)
DECLARE(isa_neon)
#endif

using namespace forerun;

namespace {

using Probe = size_t (*)(const float*, const float*, const float*, const uint8_t*, const int8_t*, uint8_t*);
using Halves = void (*)(const uint16_t*, float*, uint16_t*);

void compare(const char* name, Probe probe, Halves halves) {
  std::mt19937 random(7);
  std::vector<uint8_t> ours(1 << 16), theirs(1 << 16);
  for (int attempt = 0; attempt < 2000; attempt++) {
    float a[16], b[16], c[16];
    uint8_t bytes[256];
    int8_t acts[64];
    for (int i = 0; i < 16; i++) {
      for (float* x : {a + i, b + i, c + i}) {
        uint32_t u = random();
        if (attempt % 4 == 1) u = (u & 0x807fffffu) | 0x3f800000u;  // of similar size
        if (attempt % 4 == 2) u &= 0x80ffffffu;                     // subnormal or tiny
        if (attempt % 4 == 3 && random() % 4 == 0) u &= 0x80000000u;
        if ((u & 0x7f800000u) == 0x7f800000u) u &= 0xbfffffffu;     // finite
        std::memcpy(x, &u, 4);
      }
    }
    for (uint8_t& x : bytes) x = attempt % 8 == 0 ? 255 : static_cast<uint8_t>(random());
    for (int8_t& x : acts) x = static_cast<int8_t>(attempt % 8 == 0 ? (attempt % 16 ? 127 : -127) : static_cast<int>(random() % 255) - 127);
    const size_t n = isa_portable::probe(a, b, c, bytes, acts, ours.data()), m = probe(a, b, c, bytes, acts, theirs.data());
    CHECK(n == m && n < ours.size());
    size_t at = 0;
    for (; at + 4 <= n; at += 4) {  // the payload of a NaN may differ, that it is one may not
      float x, y;
      std::memcpy(&x, &ours[at], 4);
      std::memcpy(&y, &theirs[at], 4);
      if (std::memcmp(&x, &y, 4) != 0 && !(std::isnan(x) && std::isnan(y))) break;
    }
    if (at + 4 <= n) std::printf("%s: attempt %d differs at byte %zu\n", name, attempt, at);
    CHECK(at + 4 > n);
  }
  for (uint32_t h = 0; h < 65536; h += 16) {
    uint16_t in[16], back[2][16];
    float values[2][16];
    for (uint32_t i = 0; i < 16; i++) in[i] = static_cast<uint16_t>(h + i);
    isa_portable::halves(in, values[0], back[0]);
    halves(in, values[1], back[1]);
    CHECK(std::memcmp(values[0], values[1], 64) == 0);
    CHECK(std::memcmp(back[0], back[1], 32) == 0);
    for (int i = 0; i < 16; i++) CHECK(back[0][i] == in[i] || std::isnan(values[0][i]));
  }
  std::printf("%s: same bits\n", name);
}

}  // namespace

int main() {
#if defined(__x86_64__)
  if (isa_supported(Isa::avx512)) compare("avx512", isa_avx512::probe, isa_avx512::halves);
  if (isa_supported(Isa::avx2)) compare("avx2", isa_avx2::probe, isa_avx2::halves);
#elif defined(__aarch64__)
  compare("neon", isa_neon::probe, isa_neon::halves);
#endif
  compare("portable", isa_portable::probe, isa_portable::halves);
  return failures() != 0;
}
