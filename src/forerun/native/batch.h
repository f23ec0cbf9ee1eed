// Some rows of a pass on their way through the layers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "model.h"

namespace forerun {

struct Feed;

class Batch {
 public:
  // logits: [rows that want them, outputs] or null; hidden: [layers asked for, rows, width] or null.
  Batch(Model& model, const std::vector<Feed>& feeds, const std::vector<int>& hidden_layers, float* logits, float* hidden, std::int64_t rows);

  // Rows [first, last) of the pass, in order; earlier ones have been run.
  void run(std::int64_t first, std::int64_t last, const std::function<void()>& between_layers);

 private:
  struct Row {
    const Feed* feed;
    std::int64_t index;      // in the feed: input tokens, then nodes
    std::int64_t position;
    std::int64_t logits;     // row of the logits, or -1
  };
  // Rows of one feed that attend together.
  struct Chunk {
    const Feed* feed;
    int first, count;        // rows of the batch
    std::int64_t least, most;  // positions
    int nodes;
  };
  struct Item {
    int chunk, head;
    std::int64_t from, to;   // segments
    std::size_t partials;
  };
  // How the attention of all layers with one window is shared out.
  struct Plan {
    std::vector<Item> items;
    std::vector<std::int64_t> from, to;    // per chunk
    std::vector<std::size_t> partials;     // per chunk
    std::size_t floats = 0;
    bool split = false;
  };

  Model& model_;
  const Shape& shape_;
  const std::vector<Feed>& feeds_;
  const std::vector<int>& hidden_layers_;
  float *logits_, *hidden_;
  std::int64_t all_rows_;
  std::vector<Row> rows_;
  std::vector<Chunk> chunks_;
  std::vector<AttentionRow> attention_rows_;
  std::map<std::int64_t, Plan> plans_;
  std::size_t scratch_ = 0;  // floats of attention scratch per thread
  float *x_ = nullptr, *h_ = nullptr;
  std::int64_t first_ = 0;

  std::size_t count() const { return rows_.size(); }
  void gather(std::int64_t first, std::int64_t last);
  void chunk();
  const Plan& plan(std::int64_t window);
  void embed();
  void layer(std::size_t index);
  void store(std::size_t index);
  void attend(std::size_t index);
  void feed_forward(std::size_t index);
  bool asked_for(int layer) const;
  void keep_hidden(int layer, const float* states);
  bool narrow();
  void output();

  template <class F> void each_row(std::size_t cost, F f);
  void normalize(const float* x, const Vector& weight, float* out, bool quantize);
  void product(const LinearTask* tasks, std::size_t count, const float* x, std::size_t cols);
  void residual(const PackedMatrix& weights, const Vector* bias, const Vector& post_norm, const float* x, std::size_t cols);
};

}  // namespace forerun
