// Products of packed weights with rows of activations: out[r, c] = sum over k of weight[c, k] * x[r, k].
//
// The same bits for a row whatever else is in the call: integer sums inside a group of 32, fp32 fused multiply-adds across groups
// in the order of k, for any number of rows, threads, and on each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "isa.h"
#include "kernels.h"
#include "pool.h"

namespace forerun {

// GGUF's numbers for tensor types.
enum class Kind : std::uint32_t {
  F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13, Q6_K = 14,
  IQ4_NL = 20, IQ4_XS = 23, BF16 = 30,
};

bool kind_known(std::uint32_t number);
const char* kind_name(Kind kind);
inline bool kind_dense(Kind kind) { return kind == Kind::F32 || kind == Kind::F16 || kind == Kind::BF16; }
// Columns must be a multiple of this: 1, 32 or 256.
std::size_t kind_block(Kind kind);
// Bytes of one row as GGUF stores it. Throws std::invalid_argument if cols is zero or not a multiple of kind_block.
std::size_t row_bytes(Kind kind, std::size_t cols);

// A weight matrix [rows, cols] interleaved over 16 output channels, as one contiguous blob (64-byte header included), about as
// large as in the file and lossless. Owns its memory or views somebody else's (a mapped cache file).
class PackedMatrix {
 public:
  PackedMatrix() = default;

  // `data` holds `rows` rows as GGUF stores them. Throws std::invalid_argument on sizes that do not fit, std::bad_alloc.
  static PackedMatrix pack(Kind kind, std::size_t rows, std::size_t cols, const std::uint8_t* data, std::size_t bytes, Pool* pool = nullptr);
  // Size of the blob, a multiple of 64.
  static std::size_t packed_bytes(Kind kind, std::size_t rows, std::size_t cols);
  // Writes the blob to `destination` (aligned to 64 bytes, exactly packed_bytes long).
  static void pack_into(Kind kind, std::size_t rows, std::size_t cols, const std::uint8_t* data, std::size_t bytes,
                        std::uint8_t* destination, std::size_t destination_bytes, Pool* pool = nullptr);
  // A view of a blob that outlives it; everything in the header is checked, std::invalid_argument if it is not one of ours.
  static PackedMatrix view(const std::uint8_t* blob, std::size_t bytes);

  Kind kind() const { return kind_; }
  std::size_t rows() const { return rows_; }  // output channels
  std::size_t cols() const { return cols_; }
  std::size_t blocks() const { return (rows_ + 15) / 16; }
  std::size_t block_bytes() const { return block_bytes_; }
  std::size_t meta_bytes() const { return meta_bytes_; }
  const std::uint8_t* block(std::size_t index) const { return blob_ + 64 + index * block_bytes_; }
  const std::uint8_t* blob() const { return blob_; }
  std::size_t blob_bytes() const { return 64 + blocks() * block_bytes_; }

 private:
  Kind kind_ = Kind::F32;
  std::size_t rows_ = 0, cols_ = 0, meta_bytes_ = 0, block_bytes_ = 0;
  const std::uint8_t* blob_ = nullptr;
  std::shared_ptr<std::uint8_t> owned_;
};

// Row `row` as fp32, bit for bit what GGUF's reference dequantizer gives. `out` has cols floats.
void dequantize_row(const PackedMatrix& weights, std::size_t row, float* out);

// Quantize at load: fp32 rows [rows, cols] (cols a multiple of 32) to GGUF rows of the kind given (Q8_0 for w8, Q4_1 for w4).
void quantize_w8(const float* x, std::size_t rows, std::size_t cols, std::uint8_t* out);
void quantize_w4(const float* x, std::size_t rows, std::size_t cols, std::uint8_t* out);

// Rows of activations as int8 with one fp32 scale per group of 32, in tiles of at most max_tile rows (kernels.h has the layout).
// Groups whose peak stands out among the row's keep a second int8. Reused between calls; columns are padded with zeros to a
// multiple of 32.
class Activations {
 public:
  // outlier: a group keeps second digits if its peak is more than this many times the mean of its row's peaks.
  explicit Activations(float outlier = 3) : outlier_(outlier) {}
  void reset(std::size_t rows, std::size_t cols);
  std::size_t rows() const { return rows_; }
  std::size_t cols() const { return cols_; }
  std::size_t groups() const { return groups_; }
  std::size_t tiles() const { return tiles_; }
  std::size_t tile_begin(std::size_t tile) const { return tile * rows_ / tiles_; }
  std::uint8_t* tile_data(std::size_t tile) { return data() + tile_begin(tile) * groups_ * digits * record_bytes; }
  const std::uint8_t* data() const;
  std::uint8_t* data();
  std::uint8_t* wide(std::size_t tile) { return wide_.data() + tile * groups_; }
  const std::uint8_t* wide() const { return wide_.data(); }
  float outlier() const { return outlier_; }

 private:
  float outlier_;
  std::size_t rows_ = 0, cols_ = 0, groups_ = 0, tiles_ = 1;
  std::vector<std::uint8_t> storage_, wide_;
};

// What a product reads: the quantized rows for quantized weights, the floats for dense ones. Either may be absent if no task needs it.
struct Input {
  const Activations* quantized = nullptr;
  const float* x = nullptr;    // [rows, x_stride]
  std::size_t x_stride = 0;
  std::size_t rows = 0;
};

// One product. out[r * out_stride + c] = dot (+ bias[c]) (+ out[r * out_stride + c] if `add`), in that order.
struct LinearTask {
  const PackedMatrix* weights = nullptr;
  float* out = nullptr;
  std::size_t out_stride = 0;
  const float* bias = nullptr;
  bool add = false;
};

// The table of an instruction set (kernels.h). Throws std::invalid_argument if it is not supported here.
const LinearKernels& linear_kernels(Isa isa);

// Quantizes one row (to.cols() floats) into its place; different rows may be quantized by different threads.
void quantize_row(const LinearKernels& kernels, const float* x, std::size_t row, Activations& to);

// Channels [16 * begin, 16 * end) of one product for all rows, by the calling thread: for regions that fuse several steps.
void linear_blocks(const LinearKernels& kernels, const LinearTask& task, const Input& input, std::size_t begin, std::size_t end);

// Resets `to` and quantizes rows of x [rows, stride].
void quantize_rows(const LinearKernels& kernels, const float* x, std::size_t stride, std::size_t rows, std::size_t cols, Activations& to, Pool& pool);

// All products of tasks that share an input, in one parallel region. Throws std::invalid_argument if shapes do not fit.
void linear(const LinearKernels& kernels, const LinearTask* tasks, std::size_t count, const Input& input, Pool& pool);

// Bytes per second that the pool's threads read from memory together (streaming over `bytes`), best of a few tries.
double probe_bandwidth(Pool& pool, std::size_t bytes = std::size_t{512} << 20);
// Multiply-adds of int8 per second of the pool's threads together, nothing but dot products.
double probe_integer_peak(const LinearKernels& kernels, Pool& pool);

}  // namespace forerun
