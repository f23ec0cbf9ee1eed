// A decoder's shape and weights, checked, and what its passes share: threads, KV pages, scratch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kv.h"
#include "linear.h"
#include "pass_kernels.h"
#include "pool.h"
#include "rotary.h"

namespace forerun {

struct Shape {
  std::int64_t vocab = 0, width = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, context = 0;
  float norm_eps = 0, query_scale = 1, embed_scale = 1;
  std::int64_t head_rows = 0;  // of a head that covers some ids only; 0 is all of them
  bool qk_norm = false, post_norms = false, gelu = false, tied = false;
  std::vector<std::int64_t> windows;      // per layer, 0 for full attention
  std::vector<int> local;                 // per layer: whether it rotates by the local table
  std::vector<double> frequencies, local_frequencies;  // [head_dim / 2]; the local ones may be absent
  double attention_factor = 1;

  std::int64_t outputs() const { return head_rows > 0 ? head_rows : vocab; }
  std::int64_t q_size() const { return heads * head_dim; }
  std::int64_t kv_size() const { return kv_heads * head_dim; }
  std::int64_t padded_dim() const { return (head_dim + 15) / 16 * 16; }
  // Which groups of activations keep second digits (linear.h). Rounding to int8 moves 4 of 100 top choices of a model of 135M weights
  // and 2 of one of 500M, mostly through groups that hold a channel far larger than the rest; small models, whose passes are hardly
  // made of products, keep more of them. LOG.md has the figures.
  float outlier() const;
  // Throws std::invalid_argument for sizes that are absurd or do not fit each other.
  void check() const;
};

using Vector = std::vector<float>;

struct Layer {
  PackedMatrix q, k, v, o, gate, up, down;
  Vector attn_norm, ffn_norm, post_attn_norm, post_ffn_norm, q_norm, k_norm;
  Vector q_bias, k_bias, v_bias, o_bias;
};

// Memory that only grows, aligned to 64 bytes; contents are lost when it does.
class Buffer {
 public:
  float* floats(std::size_t count);  // throws PassError when out of memory

 private:
  struct Free { void operator()(void* p) const; };
  std::unique_ptr<float, Free> data_;
  std::size_t size_ = 0;

  friend class Model;
};

class Model {
 public:
  // kv_limit: bytes that KV pages may take.
  Model(Shape shape, unsigned threads, bool half_kv, std::size_t kv_limit, Isa isa);

  // Tensors by canonical name ("embed", "layers.3.q", ...). Throw std::invalid_argument for a name the architecture does not have,
  // and for sizes other than the shape's.
  void set_matrix(const std::string& name, PackedMatrix matrix);
  void set_vector(const std::string& name, const float* values, std::size_t count);
  // Throws std::invalid_argument if a tensor is missing.
  void finish();
  bool finished() const { return finished_; }

  std::shared_ptr<Sequence> open() { return std::make_shared<Sequence>(pages_); }
  std::shared_ptr<std::vector<float>> logits_buffer(std::size_t floats);

  const Shape shape;
  const Isa isa;
  std::mutex mutex;  // one pass computes at a time

  PackedMatrix embed, head;
  Vector norm;
  std::vector<Layer> layers;
  RotaryTable rotary, local_rotary;
  Pool pool;
  const LinearKernels* linear;
  const PassKernels* kernels;

  const PackedMatrix& output() const { return shape.tied && head.rows() == 0 ? embed : head; }
  PagePool& pages() { return *pages_; }
  const KvShape& kv_shape() const { return pages_->shape(); }

  // Scratch of the pass in progress.
  Buffer x, h, q, k, v, attended, gate, up, rotated, partials, attention;
  Activations activations;

 private:
  struct MatrixSlot { PackedMatrix* matrix; std::int64_t rows, cols; bool required; };
  struct VectorSlot { Vector* vector; std::int64_t size; bool required; };
  std::map<std::string, MatrixSlot> matrices_;
  std::map<std::string, VectorSlot> vectors_;
  std::shared_ptr<PagePool> pages_;
  std::vector<std::shared_ptr<std::vector<float>>> spare_logits_;
  bool finished_ = false;

  void name_tensors();
};

}  // namespace forerun
