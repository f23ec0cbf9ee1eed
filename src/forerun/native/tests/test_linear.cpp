// The linear kernels against an fp64 model of the same quantized product, and their bits over rows, positions, threads and
// instruction sets; hostile blobs; quantizing at load.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "../linear.h"
#include "../quants.h"
#include "check.h"

using namespace forerun;

namespace {

constexpr Kind kinds[] = {Kind::F32,  Kind::F16,  Kind::BF16, Kind::Q4_0, Kind::Q4_1, Kind::Q5_0,   Kind::Q5_1,  Kind::Q8_0,
                          Kind::Q2_K, Kind::Q3_K, Kind::Q4_K, Kind::Q5_K, Kind::Q6_K, Kind::IQ4_NL, Kind::IQ4_XS};

std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (Isa isa : {Isa::avx512, Isa::avx2, Isa::neon, Isa::portable})
    if (isa_supported(isa) && !(std::getenv("FORERUN_ISA") && isa != active_isa() && isa != Isa::portable)) all.push_back(isa);
  return all;
}

// Where a GGUF block keeps its fp16 fields.
std::vector<std::size_t> half_fields(Kind kind) {
  switch (kind) {
    case Kind::Q4_1:
    case Kind::Q5_1:
    case Kind::Q4_K:
    case Kind::Q5_K: return {0, 2};
    case Kind::Q2_K: return {80, 82};
    case Kind::Q3_K: return {108};
    case Kind::Q6_K: return {208};
    default: return {0};
  }
}

// Rows of GGUF data: every bit pattern, except that scales are of moderate size.
std::vector<std::uint8_t> random_rows(Kind kind, std::size_t rows, std::size_t cols, std::mt19937& random) {
  const FileBlock file = file_block(kind);
  std::vector<std::uint8_t> data(rows * row_bytes(kind, cols));
  for (std::uint8_t& b : data) b = static_cast<std::uint8_t>(random());
  for (std::size_t at = 0; at < data.size(); at += file.bytes) {
    if (kind == Kind::F32) {
      const float x = std::normal_distribution<float>()(random);
      std::memcpy(&data[at], &x, 4);
    } else {
      for (std::size_t field : half_fields(kind)) data[at + field + 1] = static_cast<std::uint8_t>(0x20 + random() % 0x20 + (random() % 2 ? 0x80 : 0));
    }
  }
  return data;
}

std::vector<float> random_inputs(std::size_t rows, std::size_t cols, std::mt19937& random) {
  std::vector<float> x(rows * cols);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < x.size(); i++) x[i] = normal(random) * (i % 97 == 0 ? 30.0f : 1.0f);
  for (std::size_t r = 0; r < rows; r += 3)  // all at the limit of int8, of both signs
    for (std::size_t k = 0; k < cols && r % 2; k++) x[r * cols + k] = k % 64 < 32 ? 3.0f : -3.0f;
  if (cols >= 64) std::fill(x.begin(), x.begin() + 32, 0.0f);
  return x;
}

std::vector<float> product(const LinearKernels& kernels, const PackedMatrix& w, const float* x, std::size_t rows, Pool& pool, const float* bias = nullptr) {
  Activations quantized;
  quantize_rows(kernels, x, w.cols(), rows, w.cols(), quantized, pool);
  std::vector<float> out(rows * w.rows(), -1.0f);
  const LinearTask task{&w, out.data(), w.rows(), bias, false};
  linear(kernels, &task, 1, {&quantized, x, w.cols(), rows}, pool);
  return out;
}

// The quantized activations as numbers, from the definition: scale = absmax / 127, round(x * (127 / absmax)); where the peak is more
// than three times the mean of all peaks, what is left on a scale 254 times finer.
std::vector<double> rounded(const float* x, std::size_t cols, bool dense) {
  std::vector<double> a(x, x + cols);
  float mean = 0;
  auto peak = [&](std::size_t k) {
    float top = 0;
    for (std::size_t i = k; i < k + 32; i++) top = std::max(top, std::fabs(x[i]));
    return top;
  };
  for (std::size_t k = 0; k < cols && !dense; k += 32) mean += peak(k) / static_cast<float>(cols / 32);
  for (std::size_t k = 0; k < cols && !dense; k += 32) {
    const float top = peak(k), scale = top / 127.0f, inverse = top > 0 ? 127.0f / top : 0.0f;
    for (std::size_t i = k; i < k + 32; i++) {
      const float code = x[i] * inverse, left = (code - std::nearbyint(code)) * 254.0f;
      a[i] = std::nearbyint(code) * static_cast<double>(scale);
      if (top > 3 * mean) a[i] += std::nearbyint(left) * static_cast<double>(scale) / 254;
    }
  }
  return a;
}

void near_fp64(Kind kind, const PackedMatrix& w, const float* x, std::size_t rows, const std::vector<float>& out) {
  std::vector<float> weight(w.cols());
  for (std::size_t c = 0; c < w.rows(); c++) {
    dequantize_row(w, c, weight.data());
    for (std::size_t r = 0; r < rows; r++) {
      const std::vector<double> a = rounded(x + r * w.cols(), w.cols(), kind_dense(kind));
      double sum = 0, size = 0;
      for (std::size_t k = 0; k < w.cols(); k++) sum += weight[k] * a[k], size += std::fabs(weight[k] * a[k]);
      CHECK(std::fabs(out[r * w.rows() + c] - sum) <= 2e-6 * size + 1e-30);
    }
  }
}

void one_shape(Kind kind, std::size_t outs, std::size_t cols, std::mt19937& random) {
  constexpr std::size_t rows = 37;
  const std::vector<std::uint8_t> data = random_rows(kind, outs, cols, random);
  const PackedMatrix w = PackedMatrix::pack(kind, outs, cols, data.data(), data.size());
  const std::vector<float> x = random_inputs(rows, cols, random);
  Pool one(1), two(2);
  const std::vector<float> expected = product(linear_kernels(Isa::portable), w, x.data(), rows, one);
  near_fp64(kind, w, x.data(), 5, expected);
  for (Isa isa : isas()) {
    const LinearKernels& kernels = linear_kernels(isa);
    for (std::size_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 31, 37}) {
      if (isa == Isa::portable && n > 9) continue;
      const std::size_t from = random() % (rows - n + 1);
      const std::vector<float> out = product(kernels, w, x.data() + from * cols, n, n % 2 ? one : two);
      CHECK(std::memcmp(out.data(), expected.data() + from * outs, out.size() * 4) == 0);
    }
  }
}

void every_kind() {
  std::mt19937 random(1);
  for (Kind kind : kinds) {
    const std::size_t block = kind_block(kind);
    for (std::size_t outs : {1, 16, 33}) {
      one_shape(kind, outs, kind_dense(kind) ? 32 : block, random);
      one_shape(kind, outs, kind_dense(kind) ? 77 : 3 * block, random);
    }
    if (kind_dense(kind)) one_shape(kind, 17, 1, random);
    std::printf("%s: near fp64, same bits\n", kind_name(kind));
  }
}

// Bias, then what was there; several products in one region; a stride wider than the rows.
void tasks_together() {
  std::mt19937 random(2);
  constexpr std::size_t rows = 11, cols = 512;
  const std::vector<float> x = random_inputs(rows, cols, random);
  std::vector<PackedMatrix> w;
  std::vector<std::vector<float>> bias, out, alone;
  std::vector<LinearTask> tasks;
  for (Kind kind : {Kind::Q4_K, Kind::Q6_K, Kind::F16, Kind::Q8_0}) {
    const std::size_t outs = 40 + 23 * w.size();
    const std::vector<std::uint8_t> data = random_rows(kind, outs, cols, random);
    w.push_back(PackedMatrix::pack(kind, outs, cols, data.data(), data.size()));
    bias.emplace_back(outs);
    for (float& b : bias.back()) b = std::normal_distribution<float>()(random);
    out.emplace_back(rows * (outs + 3));
    for (float& o : out.back()) o = std::normal_distribution<float>()(random);
  }
  const std::vector<std::vector<float>> before = out;
  for (Isa isa : isas()) {
    const LinearKernels& kernels = linear_kernels(isa);
    Pool pool(2);
    out = before;
    tasks.clear();
    for (std::size_t i = 0; i < w.size(); i++) tasks.push_back({&w[i], out[i].data(), w[i].rows() + 3, i % 2 ? nullptr : bias[i].data(), i > 1});
    Activations quantized;
    quantize_rows(kernels, x.data(), cols, rows, cols, quantized, pool);
    linear(kernels, tasks.data(), tasks.size(), {&quantized, x.data(), cols, rows}, pool);
    for (std::size_t i = 0; i < w.size(); i++) {
      const std::vector<float> plain = product(kernels, w[i], x.data(), rows, pool);
      for (std::size_t r = 0; r < rows; r++)
        for (std::size_t c = 0; c < w[i].rows() + 3; c++) {
          const std::size_t at = r * (w[i].rows() + 3) + c;
          if (c >= w[i].rows()) {
            CHECK(out[i][at] == before[i][at]);
            continue;
          }
          float expected = plain[r * w[i].rows() + c];
          if (i % 2 == 0) expected += bias[i][c];
          if (i > 1) expected += before[i][at];
          CHECK(out[i][at] == expected);
        }
    }
  }
}

void not_a_number() {
  std::mt19937 random(3);
  const std::vector<std::uint8_t> data = random_rows(Kind::Q4_K, 16, 256, random);
  const PackedMatrix w = PackedMatrix::pack(Kind::Q4_K, 16, 256, data.data(), data.size());
  Pool pool(1);
  for (Isa isa : isas())
    for (float bad : {std::nanf(""), INFINITY, -INFINITY}) {
      std::vector<float> x = random_inputs(3, 256, random);
      x[256 + 77] = bad;
      const std::vector<float> out = product(linear_kernels(isa), w, x.data(), 3, pool);
      for (std::size_t i = 0; i < out.size(); i++) CHECK(std::isnan(out[i]) == (i / 16 == 1));
    }
}

template <class F> bool refused(F f) {
  try {
    f();
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

void hostile_blobs() {
  const std::vector<float> x(40 * 64, 1.0f);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(x.data());
  const PackedMatrix w = PackedMatrix::pack(Kind::F32, 40, 64, bytes, x.size() * 4);
  const std::size_t size = w.blob_bytes();
  std::vector<std::uint8_t> storage(size + 128);
  std::uint8_t* blob = storage.data() + (64 - reinterpret_cast<std::uintptr_t>(storage.data()) % 64);
  std::memcpy(blob, w.blob(), size);
  CHECK(PackedMatrix::view(blob, size).rows() == 40);
  for (std::size_t n : {std::size_t{0}, std::size_t{63}, std::size_t{64}, size - 64, size - 1, size + 1}) CHECK(refused([&] { PackedMatrix::view(blob, n); }));
  std::memmove(blob + 4, blob, size);
  CHECK(refused([&] { PackedMatrix::view(blob + 4, size); }));
  std::memcpy(blob, w.blob(), size);
  std::mt19937 random(4);
  for (int attempt = 0; attempt < 20000; attempt++) {
    std::memcpy(blob, w.blob(), 64);
    const std::size_t at = random() % 40;
    blob[at] = static_cast<std::uint8_t>(random());
    if (attempt % 3 == 0) std::memset(blob + 16 + 8 * (random() % 3), attempt % 2 ? 0xff : 0, 8);
    if (std::memcmp(blob, w.blob(), 64) == 0) continue;
    try {
      const PackedMatrix v = PackedMatrix::view(blob, size);  // whatever is accepted must lie inside
      CHECK(v.blob_bytes() == size);
      std::vector<float> row(v.cols());
      dequantize_row(v, v.rows() - 1, row.data());
    } catch (const std::invalid_argument&) {
    }
  }
  CHECK(refused([&] { PackedMatrix::packed_bytes(Kind::Q4_K, 16, 128); }));
  CHECK(refused([&] { PackedMatrix::packed_bytes(Kind::Q4_0, 16, 0); }));
  CHECK(refused([&] { PackedMatrix::packed_bytes(Kind::Q4_0, SIZE_MAX, 32); }));
  CHECK(refused([&] { PackedMatrix::packed_bytes(Kind::F32, 16, SIZE_MAX); }));
  CHECK(refused([&] { PackedMatrix::pack(Kind::F32, 40, 64, bytes, x.size() * 4 - 1); }));
}

void quantized_at_load() {
  std::mt19937 random(5);
  constexpr std::size_t rows = 8, cols = 512;
  std::vector<float> x(rows * cols), row(cols);
  for (float& v : x) v = std::normal_distribution<float>(0.01f, 0.05f)(random);
  std::fill(x.begin(), x.begin() + 64, 0.0f);
  std::fill(x.begin() + 64, x.begin() + 96, 0.25f);
  for (Kind kind : {Kind::Q8_0, Kind::Q4_1}) {
    std::vector<std::uint8_t> data(rows * row_bytes(kind, cols));
    (kind == Kind::Q8_0 ? quantize_w8 : quantize_w4)(x.data(), rows, cols, data.data());
    const PackedMatrix w = PackedMatrix::pack(kind, rows, cols, data.data(), data.size());
    double error = 0, size = 0;
    for (std::size_t r = 0; r < rows; r++) {
      dequantize_row(w, r, row.data());
      for (std::size_t k = 0; k < cols; k++) {
        error += std::pow(row[k] - x[r * cols + k], 2);
        size += std::pow(x[r * cols + k], 2);
        if (r == 0 && k < 64) CHECK(row[k] == 0.0f);
        if (r == 0 && k >= 64 && k < 96) CHECK(std::fabs(row[k] - 0.25f) < 1e-3f);
      }
    }
    const double relative = std::sqrt(error / size);
    std::printf("%s at load: relative error %.4f\n", kind_name(kind), relative);
    CHECK(relative < (kind == Kind::Q8_0 ? 0.006 : 0.085));
  }
}

}  // namespace

int main() {
  every_kind();
  tasks_together();
  not_a_number();
  hostile_blobs();
  quantized_at_load();
  std::printf("%d failures\n", failures());
  return failures() != 0;
}
