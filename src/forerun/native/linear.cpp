#include "linear.h"

#include <chrono>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "quants.h"

namespace forerun {

namespace {

constexpr char magic[8] = {'f', 'o', 'r', 'e', 'r', 'u', 'n', 'W'};
constexpr std::uint32_t layout_version = 1;
constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::size_t limit = std::size_t{1} << 40;  // of any dimension or size: keeps every product below 2^63

struct Header {
  char magic[8];
  std::uint32_t version, kind;
  std::uint64_t rows, cols, bytes;
  std::uint8_t reserved[24];
};
static_assert(sizeof(Header) == 64, "the header is one cache line");

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

struct Layout {
  std::size_t meta, block, total;
};

Layout layout_of(Kind kind, std::size_t rows, std::size_t cols) {
  const std::size_t file = row_bytes(kind, cols);
  if (rows == 0 || rows > limit || file > limit / rows)
    throw std::invalid_argument("a matrix of " + std::to_string(rows) + " x " + std::to_string(cols) + " cannot be packed");
  const Form form = form_of(static_cast<std::uint32_t>(kind));
  Layout l{};
  if (kind_dense(kind)) {
    l.block = round_up(16 * file, 64);
  } else {
    l.meta = round_up(scale_bytes(form.scales, cols / 32), 64);
    l.block = l.meta + cols / 32 * code_bytes(form.codes);
  }
  l.total = 64 + (rows + 15) / 16 * l.block;
  return l;
}

// Large pieces ask for huge pages: streaming them otherwise takes a walk of the page table every 4 KiB.
std::shared_ptr<std::uint8_t> allocate(std::size_t bytes) {
  const std::size_t alignment = bytes < huge_page ? 64 : huge_page;
  auto* p = static_cast<std::uint8_t*>(::operator new(bytes, std::align_val_t{alignment}));
#if defined(__linux__)
  if (alignment == huge_page) madvise(p, bytes / huge_page * huge_page, MADV_HUGEPAGE);
#endif
  return {p, [alignment](std::uint8_t* q) { ::operator delete(q, std::align_val_t{alignment}); }};
}

}  // namespace

bool kind_known(std::uint32_t n) {
  switch (static_cast<Kind>(n)) {
    case Kind::F32:
    case Kind::F16:
    case Kind::Q4_0:
    case Kind::Q4_1:
    case Kind::Q5_0:
    case Kind::Q5_1:
    case Kind::Q8_0:
    case Kind::Q2_K:
    case Kind::Q3_K:
    case Kind::Q4_K:
    case Kind::Q5_K:
    case Kind::Q6_K:
    case Kind::IQ4_NL:
    case Kind::IQ4_XS:
    case Kind::BF16: return true;
  }
  return false;
}

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::F32: return "F32";
    case Kind::F16: return "F16";
    case Kind::Q4_0: return "Q4_0";
    case Kind::Q4_1: return "Q4_1";
    case Kind::Q5_0: return "Q5_0";
    case Kind::Q5_1: return "Q5_1";
    case Kind::Q8_0: return "Q8_0";
    case Kind::Q2_K: return "Q2_K";
    case Kind::Q3_K: return "Q3_K";
    case Kind::Q4_K: return "Q4_K";
    case Kind::Q5_K: return "Q5_K";
    case Kind::Q6_K: return "Q6_K";
    case Kind::IQ4_NL: return "IQ4_NL";
    case Kind::IQ4_XS: return "IQ4_XS";
    case Kind::BF16: return "BF16";
  }
  return "?";
}

std::size_t kind_block(Kind kind) { return file_block(kind).cols; }

std::size_t row_bytes(Kind kind, std::size_t cols) {
  const FileBlock file = file_block(kind);
  if (cols == 0 || cols > limit || cols % file.cols)
    throw std::invalid_argument(std::string(kind_name(kind)) + " needs a multiple of " + std::to_string(file.cols) + " columns, not " +
                                std::to_string(cols));
  return cols / file.cols * file.bytes;
}

std::size_t PackedMatrix::packed_bytes(Kind kind, std::size_t rows, std::size_t cols) { return layout_of(kind, rows, cols).total; }

void PackedMatrix::pack_into(Kind kind, std::size_t rows, std::size_t cols, const std::uint8_t* data, std::size_t bytes,
                             std::uint8_t* destination, std::size_t destination_bytes, Pool* pool) {
  const Layout l = layout_of(kind, rows, cols);
  const std::size_t stride = row_bytes(kind, cols);
  if (bytes != rows * stride)
    throw std::invalid_argument("a " + std::to_string(rows) + " x " + std::to_string(cols) + " matrix of " + kind_name(kind) + " has " +
                                std::to_string(rows * stride) + " bytes, not " + std::to_string(bytes));
  if (destination_bytes != l.total || reinterpret_cast<std::uintptr_t>(destination) % 64)
    throw std::invalid_argument("the destination must be aligned to 64 bytes and as long as packed_bytes says");
  Header header{};
  std::memcpy(header.magic, magic, 8);
  header.version = layout_version;
  header.kind = static_cast<std::uint32_t>(kind);
  header.rows = rows;
  header.cols = cols;
  header.bytes = l.total;
  std::memcpy(destination, &header, 64);
  auto blocks = [&](std::size_t begin, std::size_t end, unsigned) {
    for (std::size_t b = begin; b < end; b++)
      pack_block(kind, data + 16 * b * stride, stride, rows - 16 * b < 16 ? rows - 16 * b : 16, cols, l.meta, destination + 64 + b * l.block, l.block);
  };
  if (pool)
    pool->run((rows + 15) / 16, 1, blocks);
  else
    blocks(0, (rows + 15) / 16, 0);
}

PackedMatrix PackedMatrix::pack(Kind kind, std::size_t rows, std::size_t cols, const std::uint8_t* data, std::size_t bytes, Pool* pool) {
  const std::size_t total = packed_bytes(kind, rows, cols);
  std::shared_ptr<std::uint8_t> memory = allocate(total);
  pack_into(kind, rows, cols, data, bytes, memory.get(), total, pool);
  PackedMatrix matrix = view(memory.get(), total);
  matrix.owned_ = std::move(memory);
  return matrix;
}

PackedMatrix PackedMatrix::view(const std::uint8_t* blob, std::size_t bytes) {
  Header header{};
  if (!blob || bytes < 64) throw std::invalid_argument("a packed matrix is at least 64 bytes long");
  if (reinterpret_cast<std::uintptr_t>(blob) % 64) throw std::invalid_argument("a packed matrix must be aligned to 64 bytes");
  std::memcpy(&header, blob, 64);
  if (std::memcmp(header.magic, magic, 8) != 0) throw std::invalid_argument("not a packed matrix");
  if (header.version != layout_version) throw std::invalid_argument("a packed matrix of another version of the layout");
  if (!kind_known(header.kind)) throw std::invalid_argument("a packed matrix of an unknown kind");
  PackedMatrix m;
  m.kind_ = static_cast<Kind>(header.kind);
  const Layout l = layout_of(m.kind_, header.rows, header.cols);
  if (l.total != header.bytes || l.total != bytes) throw std::invalid_argument("a packed matrix whose size does not match its header");
  m.rows_ = header.rows;
  m.cols_ = header.cols;
  m.meta_bytes_ = l.meta;
  m.block_bytes_ = l.block;
  m.blob_ = blob;
  return m;
}

void dequantize_row(const PackedMatrix& w, std::size_t row, float* out) {
  if (row >= w.rows()) throw std::out_of_range("row " + std::to_string(row) + " of a matrix with " + std::to_string(w.rows()));
  unpack_channel(w.kind(), w.block(row / 16), w.meta_bytes(), w.cols(), row % 16, out);
}

const std::uint8_t* Activations::data() const {
  const auto at = reinterpret_cast<std::uintptr_t>(storage_.data());
  return storage_.data() + (64 - at % 64) % 64;
}

std::uint8_t* Activations::data() { return const_cast<std::uint8_t*>(static_cast<const Activations*>(this)->data()); }

void Activations::reset(std::size_t rows, std::size_t cols) {
  rows_ = rows;
  cols_ = cols;
  groups_ = (cols + 31) / 32;
  tiles_ = rows <= max_tile ? 1 : (rows + max_tile - 1) / max_tile;
  const std::size_t need = rows * groups_ * digits * record_bytes + 64;
  if (storage_.size() < need) storage_.resize(need);
  wide_.assign(tiles_ * groups_, 0);
}

void quantize_row(const LinearKernels& kernels, const float* x, std::size_t row, Activations& to) {
  std::size_t tile = to.rows() ? (row * to.tiles() + to.tiles() - 1) / to.rows() : 0;
  while (tile > 0 && to.tile_begin(tile) > row) tile--;
  while (to.tile_begin(tile + 1) <= row) tile++;
  const std::size_t begin = to.tile_begin(tile);
  kernels.quantize_row(x, to.cols(), to.outlier(), to.tile_data(tile), to.wide(tile), row - begin, to.tile_begin(tile + 1) - begin);
}

void quantize_rows(const LinearKernels& kernels, const float* x, std::size_t stride, std::size_t rows, std::size_t cols, Activations& to,
                   Pool& pool) {
  to.reset(rows, cols);
  const std::size_t grain = 1 + 16384 / (cols + 1);  // a region costs about as much as this many columns
  pool.run(rows, grain, [&](std::size_t begin, std::size_t end, unsigned) {
    for (std::size_t r = begin; r < end; r++) quantize_row(kernels, x + r * stride, r, to);
  });
}

namespace {

void check(const LinearTask& t, const Input& input) {
  if (!t.weights || !t.weights->blob() || !t.out) throw std::invalid_argument("a linear task needs weights and an output");
  if (t.out_stride < t.weights->rows() && input.rows > 1) throw std::invalid_argument("the output's rows overlap");
  if (kind_dense(t.weights->kind())) {
    if (!input.x || (input.rows > 1 && input.x_stride < t.weights->cols())) throw std::invalid_argument("dense weights need rows of floats");
  } else if (!input.quantized || input.quantized->rows() != input.rows || input.quantized->cols() != t.weights->cols()) {
    throw std::invalid_argument("quantized weights need quantized rows of " + std::to_string(t.weights->cols()) + " columns");
  }
}

}  // namespace

void linear_blocks(const LinearKernels& kernels, const LinearTask& t, const Input& input, std::size_t begin, std::size_t end) {
  const PackedMatrix& w = *t.weights;
  BlockTask task{static_cast<std::uint32_t>(w.kind()), w.block(0), w.block_bytes(), w.meta_bytes(), w.rows(), w.cols(), w.cols() / 32,
                 t.out, t.out_stride, t.bias, t.add};
  Rows rows{nullptr, nullptr, (input.rows + max_tile - 1) / max_tile, input.rows, input.x, input.x_stride};
  if (input.quantized) rows.tiles = input.quantized->data(), rows.wide = input.quantized->wide();
  kernels.linear_blocks(&task, &rows, begin, end);
}

void linear(const LinearKernels& kernels, const LinearTask* tasks, std::size_t count, const Input& input, Pool& pool) {
  if (input.rows == 0) return;
  std::size_t items = 0, bytes = 0;
  for (std::size_t i = 0; i < count; i++) {
    check(tasks[i], input);
    items += tasks[i].weights->blocks();
    bytes += tasks[i].weights->blob_bytes();
  }
  const std::size_t grain = 1 + items * 32768 / (bytes + 1);
  pool.run(items, grain, [&](std::size_t begin, std::size_t end, unsigned) {
    std::size_t first = 0;
    for (std::size_t i = 0; i < count && first < end; i++) {
      const std::size_t n = tasks[i].weights->blocks();
      const std::size_t from = begin > first ? begin - first : 0, to = end - first < n ? end - first : n;
      if (from < to) linear_blocks(kernels, tasks[i], input, from, to);
      first += n;
    }
  });
}

namespace {

double seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

}  // namespace

double probe_bandwidth(Pool& pool, std::size_t bytes) {
  constexpr std::size_t piece = std::size_t{1} << 16, slice = 512;  // a try reads 32 MB, and the next one the memory after it
  const std::size_t slices = bytes / (piece * slice) ? bytes / (piece * slice) : 1;
  std::shared_ptr<std::uint8_t> memory = allocate(slices * slice * piece);
  std::memset(memory.get(), 1, slices * slice * piece);
  double best = 0;
  std::atomic<std::uint64_t> total{0};  // keeps the loop alive
  for (std::size_t attempt = 0; attempt < 4 * slices; attempt++) {
    const std::uint8_t* from = memory.get() + attempt % slices * slice * piece;
    const auto start = std::chrono::steady_clock::now();
    pool.run(slice, 4, [&](std::size_t begin, std::size_t end, unsigned) {
      std::uint64_t sums[8] = {};
      const std::uint8_t* p = from + begin * piece;
      for (std::size_t i = 0; i < (end - begin) * piece; i += 64) {
        std::uint64_t word;
        __builtin_prefetch(p + i + 2048);
        for (int j = 0; j < 8; j++) std::memcpy(&word, p + i + 8 * j, 8), sums[j] += word;
      }
      for (std::uint64_t s : sums) total.fetch_add(s, std::memory_order_relaxed);
    });
    const double rate = static_cast<double>(slice * piece) / seconds(start);
    if (rate > best) best = rate;
  }
  return best;
}

double probe_integer_peak(const LinearKernels& kernels, Pool& pool) {
  constexpr std::size_t rounds = 100;
  const std::size_t items = 16 * pool.threads();
  std::atomic<int> total{0};
  double best = 0;
  for (int attempt = 0; attempt < 50; attempt++) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(items, 1, [&](std::size_t begin, std::size_t end, unsigned) {
      total.fetch_add(kernels.integer_peak(rounds * (end - begin)), std::memory_order_relaxed);
    });
    const double rate = static_cast<double>(items * rounds) * 1024 * 64 / seconds(start);
    if (rate > best) best = rate;
  }
  return best;
}

}  // namespace forerun
