#include "batch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "pass.h"

namespace forerun {

namespace {

constexpr std::int64_t kChunkQueries = 48;           // query heads that share the loads of keys and values
constexpr std::size_t kRegionCost = 4096;            // floats worth handing to another thread
constexpr std::size_t kMostPartials = std::size_t{4} << 20;

const float* data_or_null(const Vector& v) { return v.empty() ? nullptr : v.data(); }

}  // namespace

Batch::Batch(Model& model, const std::vector<Feed>& feeds, const std::vector<int>& hidden_layers, float* logits, float* hidden, std::int64_t rows)
    : model_(model), shape_(model.shape), feeds_(feeds), hidden_layers_(hidden_layers), logits_(logits), hidden_(hidden), all_rows_(rows) {
  std::int64_t furthest = 0;
  for (const Feed& feed : feeds_) furthest = std::max(furthest, feed.base() + feed.nodes());
  model_.rotary.extend(furthest);
  if (!shape_.local_frequencies.empty()) model_.local_rotary.extend(furthest);
}

// f(row) for all rows; `cost` is the number of floats that one row touches.
template <class F>
void Batch::each_row(std::size_t cost, F f) {
  const std::size_t grain = std::max<std::size_t>(1, kRegionCost / std::max<std::size_t>(1, cost));
  model_.pool.run(count(), grain, [&](std::size_t begin, std::size_t end, unsigned) {
    for (std::size_t r = begin; r < end; ++r) f(r);
  });
}

void Batch::gather(std::int64_t first, std::int64_t last) {
  first_ = first;
  rows_.clear();
  for (const Feed& feed : feeds_) {
    const std::int64_t size = std::int64_t(feed.tokens.size());
    const std::int64_t from = std::max<std::int64_t>(0, first - feed.first_row), to = std::min(size, last - feed.first_row);
    for (std::int64_t i = from; i < to; ++i) {
      const std::int64_t position = i < feed.input_tokens ? feed.start + i : feed.base() - 1 + feed.depth(i - feed.input_tokens);
      const std::int64_t row = i - (size - feed.logits_rows);
      rows_.push_back({&feed, i, position, row < 0 ? -1 : feed.first_logits + row});
    }
  }
}

void Batch::chunk() {
  const std::int64_t group = shape_.heads / shape_.kv_heads;
  const int most = int(std::max<std::int64_t>(1, kChunkQueries / group));
  chunks_.clear();
  plans_.clear();
  scratch_ = 0;
  for (int r = 0; r < int(count());) {
    int end = r;
    while (end < int(count()) && rows_[end].feed == rows_[r].feed) ++end;
    const int parts = (end - r + most - 1) / most, size = end - r, begin = r;
    for (int i = 0; i < parts; ++i) {
      Chunk chunk{rows_[begin].feed, begin + i * size / parts, 0, std::numeric_limits<std::int64_t>::max(), 0, 0};
      chunk.count = begin + (i + 1) * size / parts - chunk.first;
      for (int j = chunk.first; j < chunk.first + chunk.count; ++j) {
        chunk.least = std::min(chunk.least, rows_[j].position);
        chunk.most = std::max(chunk.most, rows_[j].position);
        chunk.nodes = std::max(chunk.nodes, int(rows_[j].index + 1 - chunk.feed->input_tokens));
      }
      scratch_ = std::max(scratch_, model_.kernels->attend_scratch(std::size_t(chunk.count * group), std::size_t(shape_.padded_dim()), std::size_t(chunk.nodes)));
      chunks_.push_back(chunk);
    }
    r = end;
  }
  scratch_ = (scratch_ + 15) / 16 * 16;
}

const Batch::Plan& Batch::plan(std::int64_t window) {
  const auto found = plans_.find(window);
  if (found != plans_.end()) return found->second;
  Plan plan;
  const std::size_t part = std::size_t(kPartialHeader + shape_.padded_dim());
  std::int64_t longest = 0;
  for (const Chunk& chunk : chunks_) {
    plan.from.push_back(window > 0 ? std::max<std::int64_t>(0, chunk.least + 1 - window) / kSegment : 0);
    plan.to.push_back(chunk.most / kSegment + 1);
    plan.partials.push_back(plan.floats);
    plan.floats += std::size_t(plan.to.back() - plan.from.back()) * std::size_t(chunk.count * shape_.heads) * part;
    longest = std::max(longest, plan.to.back() - plan.from.back());
  }
  const std::size_t threads = model_.pool.threads();
  plan.split = threads > 1 && longest > 1 && chunks_.size() * std::size_t(shape_.kv_heads) < 4 * threads && plan.floats <= kMostPartials;
  for (int c = 0; c < int(chunks_.size()); ++c) {
    const std::size_t size = std::size_t(chunks_[c].count * (shape_.heads / shape_.kv_heads)) * part;
    const std::int64_t segments = plan.to[c] - plan.from[c];
    for (int head = 0; head < int(shape_.kv_heads); ++head) {
      if (!plan.split) {
        plan.items.push_back({c, head, plan.from[c], plan.to[c], 0});
        continue;
      }
      for (std::int64_t s = 0; s < segments; ++s)
        plan.items.push_back({c, head, plan.from[c] + s, plan.from[c] + s + 1, plan.partials[c] + std::size_t(head * segments + s) * size});
    }
  }
  return plans_.emplace(window, std::move(plan)).first->second;
}

void Batch::run(std::int64_t first, std::int64_t last, const std::function<void()>& between_layers) {
  gather(first, last);
  chunk();
  const std::size_t n = count(), width = std::size_t(shape_.width);
  const std::size_t rotated = std::size_t(shape_.heads * shape_.padded_dim());
  x_ = model_.x.floats(n * width);
  h_ = model_.h.floats(n * width);
  float* q = model_.rotated.floats(n * rotated);
  float* attended = model_.attended.floats(n * std::size_t(shape_.q_size()));
  attention_rows_.assign(n, {});
  for (std::size_t r = 0; r < n; ++r) {
    const Row& row = rows_[r];
    AttentionRow& to = attention_rows_[r];
    to.q = q + r * rotated;
    to.out = attended + r * std::size_t(shape_.q_size());
    to.position = row.position;
    if (row.index < row.feed->input_tokens) continue;
    const std::int64_t node = row.index - row.feed->input_tokens;
    to.path = row.feed->paths.data() + row.feed->path_begin[node];
    to.depth = std::int32_t(row.feed->depth(node));
  }
  embed();
  for (std::size_t i = 0; i < model_.layers.size(); ++i) {
    between_layers();
    layer(i);
    keep_hidden(int(i), x_);
  }
  output();
}

void Batch::embed() {
  const std::size_t width = std::size_t(shape_.width);
  each_row(width, [&](std::size_t r) {
    dequantize_row(model_.embed, std::size_t(rows_[r].feed->tokens[rows_[r].index]), x_ + r * width);
    if (shape_.embed_scale != 1.0f) model_.kernels->scale(x_ + r * width, shape_.embed_scale, width);
  });
}

void Batch::normalize(const float* x, const Vector& weight, float* out, bool quantize) {
  const std::size_t width = std::size_t(shape_.width);
  if (quantize) model_.activations.reset(count(), width);
  each_row(2 * width, [&](std::size_t r) {
    model_.kernels->rms_norm(x + r * width, weight.data(), shape_.norm_eps, width, out + r * width);
    if (quantize) quantize_row(*model_.linear, out + r * width, r, model_.activations);
  });
}

// x is read by dense weights, the quantized rows by the others.
void Batch::product(const LinearTask* tasks, std::size_t size, const float* x, std::size_t cols) {
  Input input;
  input.quantized = &model_.activations;
  input.x = x;
  input.x_stride = cols;
  input.rows = count();
  linear(*model_.linear, tasks, size, input, model_.pool);
}

// x_ += norm(weights * x + bias), where there is a norm after the block.
void Batch::residual(const PackedMatrix& weights, const Vector* bias, const Vector& post_norm, const float* x, std::size_t cols) {
  const std::size_t width = std::size_t(shape_.width);
  LinearTask task{&weights, shape_.post_norms ? h_ : x_, width, bias ? data_or_null(*bias) : nullptr, !shape_.post_norms};
  product(&task, 1, x, cols);
  if (!shape_.post_norms) return;
  each_row(2 * width, [&](std::size_t r) {
    model_.kernels->rms_norm(h_ + r * width, post_norm.data(), shape_.norm_eps, width, h_ + r * width);
    model_.kernels->add(x_ + r * width, h_ + r * width, width);
  });
}

void Batch::layer(std::size_t index) {
  const Layer& layer = model_.layers[index];
  const std::size_t n = count(), q_size = std::size_t(shape_.q_size()), kv_size = std::size_t(shape_.kv_size());
  float *q = model_.q.floats(n * q_size), *k = model_.k.floats(n * kv_size), *v = model_.v.floats(n * kv_size);
  normalize(x_, layer.attn_norm, h_, true);
  const LinearTask tasks[] = {{&layer.q, q, q_size, data_or_null(layer.q_bias), false},
                              {&layer.k, k, kv_size, data_or_null(layer.k_bias), false},
                              {&layer.v, v, kv_size, data_or_null(layer.v_bias), false}};
  product(tasks, 3, h_, std::size_t(shape_.width));
  store(index);
  if (index + 1 == model_.layers.size() && !narrow()) return;
  attend(index);
  residual(layer.o, &layer.o_bias, layer.post_attn_norm, attention_rows_[0].out, q_size);
  feed_forward(index);
}

// Norms and rotates q and k, and writes k and v to where they belong.
void Batch::store(std::size_t index) {
  const Layer& layer = model_.layers[index];
  const KvShape& kv = model_.kv_shape();
  const PassKernels& kernels = *model_.kernels;
  const std::size_t dim = std::size_t(kv.dim), head_dim = std::size_t(shape_.head_dim), half = head_dim / 2;
  const std::size_t q_size = std::size_t(shape_.q_size()), kv_size = std::size_t(shape_.kv_size());
  float *q = model_.q.floats(0), *k = model_.k.floats(0), *v = model_.v.floats(0), *rotated = model_.rotated.floats(0);
  const RotaryTable& table = shape_.local[index] ? model_.local_rotary : model_.rotary;
  each_row(q_size + 2 * kv_size, [&](std::size_t r) {
    const Row& row = rows_[r];
    const float *cosines = table.at(row.position), *sines = cosines + half;
    for (std::int64_t head = 0; head < shape_.heads; ++head) {
      float* from = q + r * q_size + std::size_t(head) * head_dim;
      if (shape_.qk_norm) kernels.rms_norm(from, layer.q_norm.data(), shape_.norm_eps, head_dim, from);
      kernels.rotate(from, cosines, sines, half, shape_.query_scale, dim, rotated + (r * std::size_t(shape_.heads) + std::size_t(head)) * dim);
    }
    const bool node = row.index >= row.feed->input_tokens;
    const std::int64_t place = node ? row.index - row.feed->input_tokens : row.position;
    const std::byte* page = (node ? row.feed->draft_pages : row.feed->pages)[std::size_t(place / kPagePositions)];
    auto* to = const_cast<std::byte*>(page);
    for (int head = 0; head < int(shape_.kv_heads); ++head) {
      alignas(64) float key[kMaxHeadDim + 16], value[kMaxHeadDim + 16];
      float* from = k + r * kv_size + std::size_t(head) * head_dim;
      if (shape_.qk_norm) kernels.rms_norm(from, layer.k_norm.data(), shape_.norm_eps, head_dim, from);
      kernels.rotate(from, cosines, sines, half, 1.0f, dim, key);
      std::memcpy(value, v + r * kv_size + std::size_t(head) * head_dim, head_dim * sizeof(float));
      std::fill(value + head_dim, value + dim, 0.0f);
      if (!kernels.store_kv(key, value, dim, kv.half, int(place % kPagePositions), to + kv.offset(int(index), head)))
        throw PassError(kv.half ? "keys or values do not fit fp16: use kv_dtype fp32, or get the file again if it is damaged"
                                : "the model computed something that is not a number: the file may be damaged, get it again");
    }
  });
}

void Batch::attend(std::size_t index) {
  const Plan& plan = this->plan(shape_.windows[index]);
  const KvShape& kv = model_.kv_shape();
  const std::size_t group = std::size_t(shape_.heads / shape_.kv_heads), dim = std::size_t(kv.dim), head_dim = std::size_t(shape_.head_dim);
  float* scratch = model_.attention.floats(scratch_ * model_.pool.threads());
  float* partials = plan.split ? model_.partials.floats(plan.floats) : nullptr;
  model_.pool.run(plan.items.size(), 1, [&](std::size_t begin, std::size_t end, unsigned thread) {
    for (std::size_t i = begin; i < end; ++i) {
      const Item& item = plan.items[i];
      const Chunk& chunk = chunks_[std::size_t(item.chunk)];
      AttentionTask task;
      task.rows = attention_rows_.data() + chunk.first;
      task.count = chunk.count;
      task.head = item.head;
      task.group = int(group);
      task.dim = int(dim);
      task.head_dim = int(head_dim);
      task.half = kv.half;
      task.offset = kv.offset(int(index), item.head);
      task.panel = kv.panel();
      task.pages = chunk.feed->pages.data();
      task.drafts = chunk.feed->draft_pages.data();
      task.base = chunk.feed->base();
      task.window = int(shape_.windows[index]);
      model_.kernels->attend(task, item.from, item.to, partials ? partials + item.partials : nullptr, scratch + thread * scratch_);
    }
  });
  const std::size_t q_size = std::size_t(shape_.q_size());
  model_.activations.reset(count(), q_size);
  std::vector<int> chunk_of(partials ? count() : 0);
  if (partials)
    for (std::size_t c = 0; c < chunks_.size(); ++c) std::fill_n(chunk_of.begin() + chunks_[c].first, chunks_[c].count, int(c));
  each_row(2 * q_size, [&](std::size_t r) {
    float* out = attention_rows_[r].out;
    if (partials) {
      const std::size_t c = std::size_t(chunk_of[r]), part = kPartialHeader + dim, queries = std::size_t(chunks_[c].count) * group;
      const std::size_t segments = std::size_t(plan.to[c] - plan.from[c]);
      for (std::size_t head = 0; head < std::size_t(shape_.heads); ++head) {
        const float* from = partials + plan.partials[c] + (head / group) * segments * queries * part;
        from += ((r - std::size_t(chunks_[c].first)) * group + head % group) * part;
        model_.kernels->combine(from, segments, queries * part, dim, head_dim, out + head * head_dim);
      }
    }
    quantize_row(*model_.linear, out, r, model_.activations);
  });
}

void Batch::feed_forward(std::size_t index) {
  const Layer& layer = model_.layers[index];
  const std::size_t n = count(), ffn = std::size_t(shape_.ffn);
  float *gate = model_.gate.floats(n * ffn), *up = model_.up.floats(n * ffn);
  normalize(x_, layer.ffn_norm, h_, true);
  const LinearTask tasks[] = {{&layer.gate, gate, ffn, nullptr, false}, {&layer.up, up, ffn, nullptr, false}};
  product(tasks, 2, h_, std::size_t(shape_.width));
  model_.activations.reset(n, ffn);
  each_row(4 * ffn, [&](std::size_t r) {
    (shape_.gelu ? model_.kernels->gelu_gate : model_.kernels->silu_gate)(gate + r * ffn, up + r * ffn, ffn);
    quantize_row(*model_.linear, gate + r * ffn, r, model_.activations);
  });
  residual(layer.down, nullptr, layer.post_ffn_norm, gate, ffn);
}

bool Batch::asked_for(int layer) const { return std::find(hidden_layers_.begin(), hidden_layers_.end(), layer) != hidden_layers_.end(); }

// Behind the keys and values of the last layer, only rows that want logits matter, unless somebody wants its hidden states:
// the other rows leave the batch. False if none is left.
bool Batch::narrow() {
  if (asked_for(-1) || asked_for(int(model_.layers.size()) - 1)) return true;
  const std::size_t width = std::size_t(shape_.width);
  std::size_t kept = 0;
  for (std::size_t r = 0; r < count(); ++r) {
    if (rows_[r].logits < 0) continue;
    if (kept < r) {
      rows_[kept] = rows_[r];
      std::memcpy(x_ + kept * width, x_ + r * width, width * sizeof(float));
      float* out = attention_rows_[kept].out;
      attention_rows_[kept] = attention_rows_[r];
      attention_rows_[kept].out = out;
    }
    ++kept;
  }
  if (kept == count()) return true;
  rows_.resize(kept);
  if (kept > 0) chunk();
  return kept > 0;
}

void Batch::keep_hidden(int layer, const float* states) {
  const std::size_t width = std::size_t(shape_.width);
  for (std::size_t i = 0; i < hidden_layers_.size(); ++i)
    if (hidden_layers_[i] == layer)
      std::memcpy(hidden_ + (i * std::size_t(all_rows_) + std::size_t(first_)) * width, states, count() * width * sizeof(float));
}

void Batch::output() {
  const std::size_t width = std::size_t(shape_.width), outputs = std::size_t(shape_.outputs());
  std::vector<std::size_t> wanted;
  for (std::size_t r = 0; r < count(); ++r)
    if (rows_[r].logits >= 0) wanted.push_back(r);
  const bool last_hidden = asked_for(-1);
  if (wanted.empty() && !last_hidden) return;
  if (last_hidden) {
    normalize(x_, model_.norm, h_, false);
    keep_hidden(-1, h_);
  }
  if (wanted.empty()) return;
  // Rows that want logits are neighbors in the buffer of logits, since both go in order of rows.
  const std::int64_t first = rows_[wanted[0]].logits;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    float* to = h_ + i * width;
    model_.kernels->rms_norm(x_ + wanted[i] * width, model_.norm.data(), shape_.norm_eps, width, to);
    if (!std::all_of(to, to + width, [](float f) { return std::isfinite(f); }))
      throw PassError("the model computed something that is not a number: the file may be damaged, get it again");
  }
  quantize_rows(*model_.linear, h_, width, wanted.size(), width, model_.activations, model_.pool);
  LinearTask task{&model_.output(), logits_ + std::size_t(first) * outputs, outputs, nullptr, false};
  Input input;
  input.quantized = &model_.activations;
  input.x = h_;
  input.x_stride = width;
  input.rows = wanted.size();
  linear(*model_.linear, &task, 1, input, model_.pool);
}

}  // namespace forerun
