#include "quants.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#define FORERUN_PORTABLE 1
#define FORERUN_NS isa_scalar
#include "simd.h"

namespace forerun {

namespace {

using isa_scalar::bfloat_to_float;
using isa_scalar::float_to_half;
using isa_scalar::half_to_float;

std::uint16_t read16(const std::uint8_t* p) {
  std::uint16_t h;
  std::memcpy(&h, p, 2);
  return h;
}

float read_half(const std::uint8_t* p) { return half_to_float(read16(p)); }

// --- GGUF's integers: group `g` of a row as 32 unsigned codes (form_of gives what was added to the weight's integer) ---------------

void nibbles(const std::uint8_t* p, std::uint8_t* q) {  // low ones first, then high ones
  for (int i = 0; i < 16; i++) {
    q[i] = p[i] & 15;
    q[i + 16] = p[i] >> 4;
  }
}

void read_codes(Kind kind, const std::uint8_t* row, std::size_t g, std::uint8_t* q) {
  const FileBlock file = file_block(kind);
  const std::uint8_t* b = row + g * 32 / file.cols * file.bytes;
  const std::size_t s = g % (file.cols / 32);  // group inside its block
  switch (kind) {
    case Kind::Q4_0:
    case Kind::IQ4_NL: return nibbles(b + 2, q);
    case Kind::Q4_1: return nibbles(b + 4, q);
    case Kind::Q5_0:
    case Kind::Q5_1: {
      const std::uint8_t* high = b + (kind == Kind::Q5_0 ? 2 : 4);
      nibbles(high + 4, q);
      for (int i = 0; i < 32; i++) q[i] |= static_cast<std::uint8_t>(((high[i / 8] >> (i % 8)) & 1) << 4);
      return;
    }
    case Kind::Q8_0:
      for (int i = 0; i < 32; i++) q[i] = static_cast<std::uint8_t>(b[2 + i] + 128);
      return;
    case Kind::Q2_K:
      for (int i = 0; i < 32; i++) q[i] = (b[16 + s / 4 * 32 + i] >> (2 * (s % 4))) & 3;
      return;
    case Kind::Q3_K:
      for (int i = 0; i < 32; i++) {
        int low = (b[32 + s / 4 * 32 + i] >> (2 * (s % 4))) & 3, high = (b[i] >> s) & 1;
        q[i] = static_cast<std::uint8_t>(low | high << 2);
      }
      return;
    case Kind::Q4_K:
      for (int i = 0; i < 32; i++) q[i] = (b[16 + s / 2 * 32 + i] >> (4 * (s % 2))) & 15;
      return;
    case Kind::Q5_K:
      for (int i = 0; i < 32; i++) {
        int low = (b[48 + s / 2 * 32 + i] >> (4 * (s % 2))) & 15, high = (b[16 + i] >> s) & 1;
        q[i] = static_cast<std::uint8_t>(low | high << 4);
      }
      return;
    case Kind::Q6_K:
      for (int i = 0; i < 32; i++) {
        int low = (b[s / 4 * 64 + s % 2 * 32 + i] >> (4 * (s / 2 % 2))) & 15, high = (b[128 + s / 4 * 32 + i] >> (2 * (s % 4))) & 3;
        q[i] = static_cast<std::uint8_t>(low | high << 4);
      }
      return;
    case Kind::IQ4_XS: return nibbles(b + 8 + 16 * s, q);
    default: return;
  }
}

// --- scales ------------------------------------------------------------------------------------------------------------------------

// The eight 6-bit scales and minimums of Q4_K and Q5_K.
void six_bit_scales(const std::uint8_t* p, std::uint8_t* scale, std::uint8_t* minimum) {
  for (int i = 0; i < 4; i++) {
    scale[i] = p[i] & 63;
    minimum[i] = p[i + 4] & 63;
    scale[i + 4] = static_cast<std::uint8_t>((p[i + 8] & 15) | ((p[i] >> 2) & 48));
    minimum[i + 4] = static_cast<std::uint8_t>((p[i + 8] >> 4) | ((p[i + 4] >> 2) & 48));
  }
}

// The signed scales of a block of 256: 16 of them (Q3_K, Q6_K) or 8 (IQ4_XS).
void signed_scales(Kind kind, const std::uint8_t* b, std::int8_t* scale) {
  if (kind == Kind::Q6_K) std::memcpy(scale, b + 192, 16);
  if (kind == Kind::Q3_K)
    for (int j = 0; j < 16; j++) {
      int low = (b[96 + j % 8] >> (4 * (j / 8))) & 15, high = (b[104 + j % 4] >> (2 * (j / 4))) & 3;
      scale[j] = static_cast<std::int8_t>((low | high << 4) - 32);
    }
  if (kind == Kind::IQ4_XS)
    for (int j = 0; j < 8; j++) {
      int low = (b[4 + j / 2] >> (4 * (j % 2))) & 15, high = (read16(b + 2) >> (2 * j)) & 3;
      scale[j] = static_cast<std::int8_t>((low | high << 4) - 32);
    }
}

std::size_t d_offset(Kind kind) {  // of the fp16 d in GGUF's block of 256
  return kind == Kind::Q2_K ? 80 : kind == Kind::Q3_K ? 108 : kind == Kind::Q6_K ? 208 : 0;
}

void put_super_min(const std::uint8_t* b, std::size_t lane, std::uint8_t* m) {
  std::uint8_t v[16];
  std::uint32_t words[3] = {0, 0, 0};
  six_bit_scales(b + 4, v, v + 8);
  for (int i = 0; i < 15; i++) words[i / 5] |= static_cast<std::uint32_t>(v[i]) << (6 * (i % 5));
  for (int i = 0; i < 3; i++) words[i] |= static_cast<std::uint32_t>((v[15] >> (2 * i)) & 3) << 30;
  std::memcpy(m + 2 * lane, b, 2);
  std::memcpy(m + 32 + 2 * lane, b + 2, 2);
  for (int i = 0; i < 3; i++) std::memcpy(m + 64 + 64 * i + 4 * lane, &words[i], 4);
}

void pack_scales(Kind kind, const std::uint8_t* row, std::size_t cols, std::size_t lane, std::uint8_t* meta) {
  const FileBlock file = file_block(kind);
  const Scales scales = form_of(static_cast<std::uint32_t>(kind)).scales;
  for (std::size_t n = 0; n < cols / file.cols; n++) {
    const std::uint8_t* b = row + n * file.bytes;
    std::uint8_t* m = meta + scale_bytes(scales, (n * file.cols) / 32);
    std::int8_t s[16];
    switch (scales) {
      case Scales::half: std::memcpy(m + 2 * lane, b, 2); break;
      case Scales::half_min:
        std::memcpy(m + 2 * lane, b, 2);
        std::memcpy(m + 32 + 2 * lane, b + 2, 2);
        break;
      case Scales::super_min: put_super_min(b, lane, m); break;
      case Scales::super_16:
      case Scales::super_32:
        signed_scales(kind, b, s);
        std::memcpy(m + 2 * lane, b + d_offset(kind), 2);
        for (std::size_t j = 0; j < (scales == Scales::super_16 ? 16 : 8); j++) std::memcpy(m + 32 + 16 * j + lane, s + j, 1);
        break;
      case Scales::super_4:
        std::memcpy(m + 2 * lane, b + 80, 2);
        std::memcpy(m + 32 + 2 * lane, b + 82, 2);
        for (std::size_t j = 0; j < 16; j++) m[64 + 16 * j + lane] = b[j];
        break;
      case Scales::none: break;
    }
  }
}

// --- planes: w[j] is vector j of a group, 64 bytes ------------------------------------------------------------------------------------

void join_planes(Codes codes, const std::uint8_t (*w)[64], std::uint8_t* out) {
  std::memset(out, 0, code_bytes(codes));
  for (int i = 0; i < 64; i++) {
    if (codes == Codes::eight)
      for (int j = 0; j < 8; j++) out[64 * j + i] = w[j][i];
    if (codes == Codes::two || codes == Codes::three)
      for (int j = 0; j < 8; j++) out[64 * (j / 4) + i] |= static_cast<std::uint8_t>((w[j][i] & 3) << (2 * (j % 4)));
    if (codes == Codes::three)
      for (int j = 0; j < 8; j++) out[128 + i] |= static_cast<std::uint8_t>((w[j][i] >> 2) << j);
    if (codes == Codes::four || codes == Codes::five || codes == Codes::six || codes == Codes::table)
      for (int j = 0; j < 4; j++) out[64 * j + i] = static_cast<std::uint8_t>((w[j][i] & 15) | (w[j + 4][i] & 15) << 4);
    if (codes == Codes::five)
      for (int j = 0; j < 8; j++) out[256 + i] |= static_cast<std::uint8_t>((w[j][i] >> 4) << j);
    if (codes == Codes::six)
      for (int j = 0; j < 8; j++) out[256 + 64 * (j / 4) + i] |= static_cast<std::uint8_t>((w[j][i] >> 4) << (2 * (j % 4)));
  }
}

// The stored integer of column k (0..31) of a group, for one channel.
int code_at(Codes codes, const std::uint8_t* group, std::size_t lane, std::size_t k) {
  const std::size_t j = k / 4, at = 4 * lane + k % 4;
  auto nibble = [&] { return (group[64 * (j % 4) + at] >> (4 * (j / 4))) & 15; };
  auto pair = [&](std::size_t from) { return (group[from + 64 * (j / 4) + at] >> (2 * (j % 4))) & 3; };
  switch (codes) {
    case Codes::two: return pair(0);
    case Codes::three: return pair(0) | ((group[128 + at] >> j) & 1) << 2;
    case Codes::four: return nibble();
    case Codes::five: return nibble() | ((group[256 + at] >> j) & 1) << 4;
    case Codes::six: return nibble() | pair(256) << 4;
    case Codes::eight: return group[64 * j + at];
    case Codes::table: return table_values[nibble()];
    default: return 0;
  }
}

void pack_dense(std::size_t width, const std::uint8_t* data, std::size_t row_stride, std::size_t rows, std::size_t cols, std::uint8_t* block) {
  for (std::size_t c = 0; c < rows; c++)
    for (std::size_t k = 0; k < cols; k++) std::memcpy(block + (16 * k + c) * width, data + c * row_stride + k * width, width);
}

// Scale and minimum of column k's group, as the reference dequantizer computes them (each product rounded to fp32).
void scale_at(Scales scales, const std::uint8_t* meta, std::size_t lane, std::size_t k, float* scale, float* minimum) {
  const std::size_t g = k / 32, in = g % 8;
  const std::uint8_t* m = meta + (scales == Scales::half || scales == Scales::half_min ? scale_bytes(scales, g) : scale_bytes(scales, g / 8 * 8));
  const float d = read_half(m + 2 * lane);
  *scale = d;
  *minimum = 0;
  if (scales == Scales::half_min) *minimum = read_half(m + 32 + 2 * lane);
  if (scales == Scales::super_min) {
    std::uint32_t words[3];
    for (int i = 0; i < 3; i++) std::memcpy(&words[i], m + 64 + 64 * i + 4 * lane, 4);
    auto value = [&](std::size_t v) {
      return v < 15 ? (words[v / 5] >> (6 * (v % 5))) & 63 : (words[0] >> 30) | (words[1] >> 30) << 2 | (words[2] >> 30) << 4;
    };
    *scale = d * static_cast<float>(value(in));
    *minimum = read_half(m + 32 + 2 * lane) * static_cast<float>(value(in + 8));
  }
  if (scales == Scales::super_16 || scales == Scales::super_32) {
    std::size_t j = scales == Scales::super_16 ? k % 256 / 16 : in;
    *scale = d * static_cast<float>(static_cast<std::int8_t>(m[32 + 16 * j + lane]));
  }
  if (scales == Scales::super_4) {
    const std::uint8_t v = m[64 + 16 * (k % 256 / 16) + lane];
    *scale = d * static_cast<float>(v & 15);
    *minimum = read_half(m + 32 + 2 * lane) * static_cast<float>(v >> 4);
  }
}

}  // namespace

FileBlock file_block(Kind kind) {
  switch (kind) {
    case Kind::F32: return {1, 4};
    case Kind::F16:
    case Kind::BF16: return {1, 2};
    case Kind::Q4_0:
    case Kind::IQ4_NL: return {32, 18};
    case Kind::Q4_1: return {32, 20};
    case Kind::Q5_0: return {32, 22};
    case Kind::Q5_1: return {32, 24};
    case Kind::Q8_0: return {32, 34};
    case Kind::Q2_K: return {256, 84};
    case Kind::Q3_K: return {256, 110};
    case Kind::Q4_K: return {256, 144};
    case Kind::Q5_K: return {256, 176};
    case Kind::Q6_K: return {256, 210};
    case Kind::IQ4_XS: return {256, 136};
  }
  throw std::invalid_argument("not a type of tensor that the core multiplies with");
}

void pack_block(Kind kind, const std::uint8_t* data, std::size_t row_stride, std::size_t rows, std::size_t cols, std::size_t meta_bytes,
                std::uint8_t* block, std::size_t block_bytes) {
  std::memset(block, 0, block_bytes);
  if (kind_dense(kind)) return pack_dense(file_block(kind).bytes, data, row_stride, rows, cols, block);
  for (std::size_t c = 0; c < rows; c++) pack_scales(kind, data + c * row_stride, cols, c, block);
  const Codes codes = form_of(static_cast<std::uint32_t>(kind)).codes;
  std::uint8_t w[8][64];
  std::memset(w, 0, sizeof w);
  for (std::size_t g = 0; g < cols / 32; g++) {
    for (std::size_t c = 0; c < rows; c++) {
      std::uint8_t q[32];
      read_codes(kind, data + c * row_stride, g, q);
      for (std::size_t j = 0; j < 8; j++) std::memcpy(w[j] + 4 * c, q + 4 * j, 4);
    }
    join_planes(codes, w, block + meta_bytes + g * code_bytes(codes));
  }
}

void unpack_channel(Kind kind, const std::uint8_t* block, std::size_t meta_bytes, std::size_t cols, std::size_t lane, float* out) {
  if (kind == Kind::F32) {
    for (std::size_t k = 0; k < cols; k++) std::memcpy(out + k, block + (16 * k + lane) * 4, 4);
    return;
  }
  if (kind_dense(kind)) {
    for (std::size_t k = 0; k < cols; k++) {
      std::uint16_t h = read16(block + (16 * k + lane) * 2);
      out[k] = kind == Kind::F16 ? half_to_float(h) : bfloat_to_float(h);
    }
    return;
  }
  const Form form = form_of(static_cast<std::uint32_t>(kind));
  const int zero = form.zero_shift ? 1 << form.zero_shift : 0;
  float scale = 0, minimum = 0;
  for (std::size_t k = 0; k < cols; k++) {
    if (k % 16 == 0) scale_at(form.scales, block, lane, k, &scale, &minimum);
    const std::uint8_t* group = block + meta_bytes + k / 32 * code_bytes(form.codes);
    const float product = scale * static_cast<float>(code_at(form.codes, group, lane, k % 32) - zero);
    switch (form.scales) {
      case Scales::half_min: out[k] = product + minimum; break;
      case Scales::super_min:
      case Scales::super_4: out[k] = product - minimum; break;
      default: out[k] = product;
    }
  }
}

// --- quantizing at load ----------------------------------------------------------------------------------------------------------------

void quantize_w8(const float* x, std::size_t rows, std::size_t cols, std::uint8_t* out) {
  if (cols % 32) throw std::invalid_argument("w8 needs a multiple of 32 columns, not " + std::to_string(cols));
  for (std::size_t n = 0; n < rows * cols / 32; n++, x += 32, out += 34) {
    float top = 0;
    for (int i = 0; i < 32; i++) top = std::fmax(top, std::fabs(x[i]));
    const std::uint16_t h = float_to_half(top / 127.0f);
    const float d = half_to_float(h), inverse = d > 0 ? 1.0f / d : 0.0f;  // of the rounded scale: the codes make up for its error
    std::memcpy(out, &h, 2);
    for (int i = 0; i < 32; i++) {
      const float q = std::nearbyintf(x[i] * inverse);
      out[2 + i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(q < -127 ? -127 : q > 127 ? 127 : q));
    }
  }
}

namespace {

struct Affine {
  float d = 0, m = 0;
  std::uint8_t q[32] = {};
  double error = 0;
};

// Codes and squared error of a group under fp16 scale and minimum.
Affine round_to(const float* x, float d, float m) {
  Affine a;
  a.d = half_to_float(float_to_half(d));
  a.m = half_to_float(float_to_half(m));
  for (int i = 0; i < 32; i++) {
    const float t = a.d > 0 ? std::nearbyintf((x[i] - a.m) / a.d) : 0.0f;
    a.q[i] = static_cast<std::uint8_t>(t > 15 ? 15 : t > 0 ? t : 0);
    const double e = static_cast<double>(x[i]) - (static_cast<double>(a.d) * a.q[i] + a.m);
    a.error += e * e;
  }
  return a;
}

// Least squares for scale and minimum with the codes held.
Affine refit(const float* x, const Affine& a) {
  double n = 32, sq = 0, sqq = 0, sx = 0, sxq = 0;
  for (int i = 0; i < 32; i++) {
    sq += a.q[i];
    sqq += a.q[i] * a.q[i];
    sx += x[i];
    sxq += static_cast<double>(x[i]) * a.q[i];
  }
  const double det = n * sqq - sq * sq;
  if (det <= 0) return a;
  const double d = (n * sxq - sq * sx) / det;
  return d > 0 ? round_to(x, static_cast<float>(d), static_cast<float>((sx - d * sq) / n)) : a;
}

}  // namespace

void quantize_w4(const float* x, std::size_t rows, std::size_t cols, std::uint8_t* out) {
  if (cols % 32) throw std::invalid_argument("w4 needs a multiple of 32 columns, not " + std::to_string(cols));
  for (std::size_t n = 0; n < rows * cols / 32; n++, x += 32, out += 20) {
    float low = x[0], high = x[0];
    for (int i = 1; i < 32; i++) low = std::fmin(low, x[i]), high = std::fmax(high, x[i]);
    Affine best = round_to(x, (high - low) / 15, low);
    for (int cut = 0; cut < 4; cut++) {  // clipping the range a little often pays; each start is refitted until it stops gaining
      const float margin = (high - low) * 0.03f * static_cast<float>(cut);
      Affine a = round_to(x, (high - low - 2 * margin) / 15, low + margin);
      for (int step = 0; step < 4; step++) {
        Affine b = refit(x, a);
        if (!(b.error < a.error)) break;
        a = b;
      }
      if (a.error < best.error) best = a;
    }
    const std::uint16_t d = float_to_half(best.d), m = float_to_half(best.m);
    std::memcpy(out, &d, 2);
    std::memcpy(out + 2, &m, 2);
    for (int i = 0; i < 16; i++) out[4 + i] = static_cast<std::uint8_t>(best.q[i] | best.q[i + 16] << 4);
  }
}

}  // namespace forerun
