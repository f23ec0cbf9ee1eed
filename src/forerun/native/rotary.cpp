#include "rotary.h"

#include <cmath>

namespace forerun {

void sine_cosine(double x, double* sine, double* cosine) {
  // pi / 2 in three parts; the first two have 33 bits, so their products with n < 2^20 are exact.
  constexpr double kHigh = 0x1.921fb544p+0, kMiddle = 0x1.0b4611a6p-34, kLow = 0x1.3198a2e037073p-69;
  const double n = std::floor(x * 0x1.45f306dc9c883p-1 + 0.5);
  const double r = ((x - n * kHigh) - n * kMiddle) - n * kLow, z = r * r;
  double s = 0.0, c = 0.0;  // Taylor: the first term left out is below 1e-17 for |r| <= pi / 4
  constexpr double kSine[] = {-1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0,
                              -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0};
  constexpr double kCosine[] = {1.0 / 20922789888000.0, -1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0,
                                1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5};
  for (double term : kSine) s = s * z + term;
  for (double term : kCosine) c = c * z + term;
  s = r + r * (z * s);
  c = 1.0 + z * c;
  switch (static_cast<std::int64_t>(n) & 3) {
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s;
  }
}

void RotaryTable::extend(std::int64_t upto) {
  while (std::int64_t(chunks_.size()) * kChunk < upto) {
    const std::int64_t start = std::int64_t(chunks_.size()) * kChunk;
    auto chunk = std::make_unique<float[]>(std::size_t(kChunk) * 2 * half());
    float* out = chunk.get();
    for (std::int64_t p = start; p < start + kChunk; ++p, out += 2 * half())
      for (std::size_t i = 0; i < half(); ++i) {
        double sine, cosine;
        sine_cosine(double(p) * frequencies_[i], &sine, &cosine);
        out[i] = float(cosine * factor_);
        out[half() + i] = float(sine * factor_);
      }
    chunks_.push_back(std::move(chunk));
  }
}

}  // namespace forerun
