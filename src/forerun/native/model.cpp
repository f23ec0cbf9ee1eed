#include "model.h"

#include <cmath>
#include <new>
#include <stdexcept>

namespace forerun {

namespace {

constexpr std::int64_t kSmallModel = 400'000'000;               // weights
constexpr std::size_t kMostSpareLogits = std::size_t{16} << 20;  // floats of a buffer worth keeping

void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument("the model's description cannot be run: " + what);
}

void bounded(std::int64_t value, std::int64_t most, const char* name) {
  require(value >= 1 && value <= most, std::string(name) + " is " + std::to_string(value) + ", outside 1 to " + std::to_string(most));
}

Shape checked(Shape shape) {
  shape.check();
  return shape;
}

KvShape kv_shape_of(const Shape& shape, bool half) {
  return {int(shape.layers), int(shape.kv_heads), int(shape.padded_dim()), half};
}

}  // namespace

void Shape::check() const {
  bounded(vocab, 1 << 24, "vocab_size");
  bounded(width, 1 << 18, "width");
  require(head_rows >= 0 && head_rows <= vocab && (head_rows == 0 || !tied), "a head of some rows that is tied, or has more rows than ids");
  bounded(layers, 1 << 12, "layers");
  bounded(heads, 1 << 12, "heads");
  bounded(kv_heads, 1 << 12, "kv_heads");
  bounded(head_dim, kMaxHeadDim, "head_dim");
  bounded(ffn, 1 << 20, "ffn");
  bounded(context, 1 << 24, "context");
  require(heads % kv_heads == 0, "heads is not a multiple of kv_heads");
  require(head_dim % 2 == 0, "head_dim is odd");
  require(std::isfinite(norm_eps) && norm_eps >= 0, "norm_eps is not a number at or above zero");
  require(std::isfinite(query_scale) && std::isfinite(embed_scale) && std::isfinite(attention_factor), "a scale is not finite");
  require(std::int64_t(windows.size()) == layers && std::int64_t(local.size()) == layers, "not one window per layer");
  for (std::int64_t window : windows) require(window >= 0 && window <= (1 << 24), "a window is out of range");
  require(std::int64_t(frequencies.size()) == head_dim / 2, "not one rotary frequency per pair");
  require(local_frequencies.empty() || local_frequencies.size() == frequencies.size(), "not one local rotary frequency per pair");
  for (int is_local : local) require(!is_local || !local_frequencies.empty(), "a layer rotates by local frequencies that are absent");
  for (const auto* list : {&frequencies, &local_frequencies})
    for (double f : *list) require(f >= 0 && f * double(context) < 0x1p20, "a rotary frequency is out of range");
}

void Buffer::Free::operator()(void* p) const { ::operator delete(p, std::align_val_t{64}); }

float* Buffer::floats(std::size_t count) {
  if (count > size_) {
    data_.reset();
    size_ = 0;
    void* fresh = ::operator new((count + 64) * sizeof(float), std::align_val_t{64}, std::nothrow);
    if (fresh == nullptr) throw PassError("out of memory: no " + std::to_string(count >> 18) + " MiB left for a pass; feed fewer tokens at once");
    data_.reset(static_cast<float*>(fresh));
    size_ = count;
  }
  return data_.get();
}

float Shape::outlier() const {
  const std::int64_t layer = width * (2 * q_size() + 2 * kv_size() + 3 * ffn);
  return vocab * width + layers * layer < kSmallModel ? 1.0f : 6.0f;
}

Model::Model(Shape description, unsigned threads, bool half_kv, std::size_t kv_limit, Isa isa_wanted)
    : shape(checked(std::move(description))),
      isa(isa_wanted),
      layers(std::size_t(shape.layers)),
      rotary(shape.frequencies, shape.attention_factor),
      local_rotary(shape.local_frequencies, 1.0),
      pool(threads),
      linear(&linear_kernels(isa)),
      kernels(&pass_kernels(isa)),
      activations(shape.outlier()),
      pages_(std::make_shared<PagePool>(kv_shape_of(shape, half_kv), kv_limit)) {
  name_tensors();
}

void Model::name_tensors() {
  const Shape& s = shape;
  matrices_["embed"] = {&embed, s.vocab, s.width, true};
  matrices_["head"] = {&head, s.outputs(), s.width, !s.tied};
  vectors_["norm"] = {&norm, s.width, true};
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string prefix = "layers." + std::to_string(i) + ".";
    Layer& layer = layers[i];
    matrices_[prefix + "q"] = {&layer.q, s.q_size(), s.width, true};
    matrices_[prefix + "k"] = {&layer.k, s.kv_size(), s.width, true};
    matrices_[prefix + "v"] = {&layer.v, s.kv_size(), s.width, true};
    matrices_[prefix + "o"] = {&layer.o, s.width, s.q_size(), true};
    matrices_[prefix + "gate"] = {&layer.gate, s.ffn, s.width, true};
    matrices_[prefix + "up"] = {&layer.up, s.ffn, s.width, true};
    matrices_[prefix + "down"] = {&layer.down, s.width, s.ffn, true};
    vectors_[prefix + "attn_norm"] = {&layer.attn_norm, s.width, true};
    vectors_[prefix + "ffn_norm"] = {&layer.ffn_norm, s.width, true};
    vectors_[prefix + "q_bias"] = {&layer.q_bias, s.q_size(), false};
    vectors_[prefix + "k_bias"] = {&layer.k_bias, s.kv_size(), false};
    vectors_[prefix + "v_bias"] = {&layer.v_bias, s.kv_size(), false};
    vectors_[prefix + "o_bias"] = {&layer.o_bias, s.width, false};
    if (s.qk_norm) {
      vectors_[prefix + "q_norm"] = {&layer.q_norm, s.head_dim, true};
      vectors_[prefix + "k_norm"] = {&layer.k_norm, s.head_dim, true};
    }
    if (s.post_norms) {
      vectors_[prefix + "post_attn_norm"] = {&layer.post_attn_norm, s.width, true};
      vectors_[prefix + "post_ffn_norm"] = {&layer.post_ffn_norm, s.width, true};
    }
  }
}

void Model::set_matrix(const std::string& name, PackedMatrix matrix) {
  const auto found = matrices_.find(name);
  if (found == matrices_.end()) throw std::invalid_argument("this architecture has no matrix named " + name);
  const MatrixSlot& slot = found->second;
  if (std::int64_t(matrix.rows()) != slot.rows || std::int64_t(matrix.cols()) != slot.cols)
    throw std::invalid_argument(name + " is " + std::to_string(matrix.rows()) + " x " + std::to_string(matrix.cols()) + ", but the model needs " +
                                std::to_string(slot.rows) + " x " + std::to_string(slot.cols));
  *slot.matrix = std::move(matrix);
}

void Model::set_vector(const std::string& name, const float* values, std::size_t count) {
  const auto found = vectors_.find(name);
  if (found == vectors_.end()) throw std::invalid_argument("this architecture has no vector named " + name);
  const VectorSlot& slot = found->second;
  if (std::int64_t(count) != slot.size)
    throw std::invalid_argument(name + " has " + std::to_string(count) + " values, but the model needs " + std::to_string(slot.size));
  slot.vector->assign(values, values + count);
}

void Model::finish() {
  for (const auto& [name, slot] : matrices_)
    if (slot.required && slot.matrix->rows() == 0) throw std::invalid_argument("the file has no tensor " + name);
  for (const auto& [name, slot] : vectors_)
    if (slot.required && slot.vector->empty()) throw std::invalid_argument("the file has no tensor " + name);
  finished_ = true;
}

std::shared_ptr<std::vector<float>> Model::logits_buffer(std::size_t floats) {
  // Reused once nobody looks at it any more: a view that outlives its pass keeps its buffer.
  for (auto& spare : spare_logits_)
    if (spare.use_count() == 1 && floats <= kMostSpareLogits) {
      if (spare->size() < floats) spare->resize(floats);
      return spare;
    }
  auto fresh = std::make_shared<std::vector<float>>(floats);
  if (spare_logits_.size() < 2 && floats <= kMostSpareLogits) spare_logits_.push_back(fresh);
  return fresh;
}

}  // namespace forerun
