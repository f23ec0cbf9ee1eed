// Cosines and sines of rotary embedding by position, computed when first needed and kept; the same bits on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace forerun {

class RotaryTable {
 public:
  // `frequencies`: radians per position of each pair; cosines and sines are multiplied by `factor`.
  RotaryTable(std::vector<double> frequencies, double factor) : frequencies_(std::move(frequencies)), factor_(factor) {}

  std::size_t half() const { return frequencies_.size(); }
  // Makes positions [0, upto) available. Not while another thread reads.
  void extend(std::int64_t upto);
  // half() cosines, followed by half() sines.
  const float* at(std::int64_t position) const {
    return chunks_[std::size_t(position / kChunk)].get() + std::size_t(position % kChunk) * 2 * half();
  }

 private:
  static constexpr std::int64_t kChunk = 64;
  std::vector<double> frequencies_;
  double factor_;
  std::vector<std::unique_ptr<float[]>> chunks_;
};

// sin and cos of 0 <= x < 2^21 radians, within about 1e-15.
void sine_cosine(double x, double* sine, double* cosine);

}  // namespace forerun
