// A fast 64-bit checksum against damage (not against intent), for caches of packed weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace forerun {

inline std::uint64_t checksum(const std::uint8_t* data, std::size_t bytes) {
  constexpr std::uint64_t kPrime = 0x9e3779b97f4a7c15u;  // odd, so that multiplying loses nothing
  std::uint64_t lanes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto mix = [&](const std::uint8_t* line) {
    for (int i = 0; i < 8; ++i) {
      std::uint64_t word;
      std::memcpy(&word, line + 8 * i, 8);
      lanes[i] = (lanes[i] ^ word) * kPrime;
      lanes[i] ^= lanes[i] >> 29;
    }
  };
  std::size_t at = 0;
  for (; at + 64 <= bytes; at += 64) mix(data + at);
  std::uint8_t rest[64] = {};
  std::memcpy(rest, data + at, bytes - at);
  mix(rest);
  std::uint64_t total = bytes;
  for (std::uint64_t lane : lanes) total = (total ^ lane) * kPrime ^ (total >> 31);
  return total;
}

}  // namespace forerun
