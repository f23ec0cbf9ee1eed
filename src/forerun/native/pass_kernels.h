// The parts of a pass that are not matrix products: norms, rotary embedding, activations, attention. Compiled once per
// instruction set; every function gives the same bits on each, and for a row whatever else is in the pass.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"

namespace forerun {

constexpr int kPagePositions = 64;      // positions in a page of the KV cache
constexpr int kSegment = 256;           // keys that share one softmax before partial results are combined
constexpr int kMaxHeadDim = 1024;

// One query row of a pass.
struct AttentionRow {
  const float* q = nullptr;             // [heads * dim], rotated and scaled
  float* out = nullptr;                 // [heads * head_dim]
  std::int64_t position = 0;
  const std::int32_t* path = nullptr;   // nodes of the draft from the root's child down to this row; empty for rows of input tokens
  std::int32_t depth = 0;               // length of path
};

// The rows of one sequence that share keys, seen by one KV head of one layer.
struct AttentionTask {
  const AttentionRow* rows = nullptr;
  int count = 0;
  int head = 0;                         // KV head
  int group = 1;                        // query heads per KV head
  int dim = 0;                          // padded size of a head
  int head_dim = 0;
  bool half = true;                     // fp16 keys and values
  std::size_t offset = 0, panel = 0;    // where this layer and head lie in a page: K, V, and the magnitudes of both
  const std::byte* const* pages = nullptr;   // positions [0, base)
  const std::byte* const* drafts = nullptr;  // nodes, 64 to a page
  std::int64_t base = 0;
  int window = 0;                       // 0: everything before
};

// A segment's softmax for one query head: acc = sum of exp(s - peak) * v, total = sum of exp(s - peak).
// Laid out as [peak, total, 14 unused, acc[dim]].
constexpr int kPartialHeader = 16;

struct PassKernels {
  // out = x / rms(x) * weight, over n floats.
  void (*rms_norm)(const float* x, const float* weight, float eps, std::size_t n, float* out);
  // x += y over n floats.
  void (*add)(float* x, const float* y, std::size_t n);
  void (*scale)(float* x, float factor, std::size_t n);
  // gate = silu(gate) * up, or with the tanh form of gelu.
  void (*silu_gate)(float* gate, const float* up, std::size_t n);
  void (*gelu_gate)(float* gate, const float* up, std::size_t n);
  // Rotates pairs (d, d + half) of one head in place; out = rotated * factor, padded with zeros to `dim`.
  void (*rotate)(const float* x, const float* cosines, const float* sines, std::size_t half, float factor, std::size_t dim, float* out);
  // Stores one position of K ([dim][64], column `slot`) and V ([64][dim], row `slot`) of one head, and with `half` their
  // largest magnitudes. False if one of the stored numbers is not finite.
  bool (*store_kv)(const float* k, const float* v, std::size_t dim, bool half, int slot, std::byte* to);
  // Floats of scratch that `attend` needs for `queries` = rows * group.
  std::size_t (*attend_scratch)(std::size_t queries, std::size_t dim, std::size_t nodes);
  // Segments [from, to) in order. With `partials` null, finished rows are written to `out`; else each segment's partial
  // results to partials[((segment - from) * count * group + row * group + g) * (kPartialHeader + dim)].
  void (*attend)(const AttentionTask& task, std::int64_t from, std::int64_t to, float* partials, float* scratch);
  // Combines partial results of segments [0, count) for one query head, `stride` floats apart; unseen ones have total 0.
  void (*combine)(const float* partials, std::size_t count, std::size_t stride, std::size_t dim, std::size_t head_dim, float* out);
};

// The table of an instruction set. Throws std::invalid_argument if it is not supported here.
const PassKernels& pass_kernels(Isa isa);

}  // namespace forerun
