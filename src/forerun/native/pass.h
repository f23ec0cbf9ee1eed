// One pass: many sequences, each with input tokens and a token tree, through the whole model; a transaction on their KV.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "model.h"

namespace forerun {

constexpr int kMostNodes = 4096;     // of one draft
constexpr std::int64_t kBatchRows = 256;  // rows that go through the layers together; more are taken in turns

struct FeedInput {
  std::shared_ptr<Sequence> sequence;
  std::vector<std::int32_t> input_tokens, nodes, parents;
  bool logits = true;
};

// A feed with its place in the pass.
struct Feed {
  std::shared_ptr<Sequence> sequence;       // kept until the pass is closed, whoever else lets go of it
  std::int64_t start = 0;                   // committed tokens before the pass
  std::int64_t input_tokens = 0;
  std::vector<std::int32_t> tokens;         // input tokens, then nodes
  std::vector<std::int32_t> paths;          // for each node its path from the root's child, one after the other
  std::vector<std::size_t> path_begin;      // [nodes + 1]
  std::int64_t deepest = 0;                 // length of the longest path
  std::vector<Page*> drafts;                // KV of the nodes
  std::vector<const std::byte*> pages, draft_pages;
  std::int64_t first_row = 0, first_logits = 0, logits_rows = 0;
  bool committed = false;

  std::int64_t base() const { return start + input_tokens; }
  std::int64_t nodes() const { return std::int64_t(tokens.size()) - input_tokens; }
  std::int64_t depth(std::int64_t node) const { return std::int64_t(path_begin[node + 1] - path_begin[node]); }
};

class Pass {
 public:
  Pass(std::shared_ptr<Model> model, std::vector<int> hidden, bool every_row)
      : model_(std::move(model)), hidden_layers_(std::move(hidden)), every_row_(every_row) {}
  ~Pass() { close(); }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  // Checks the feeds and makes room for them. Throws std::invalid_argument (a malformed feed) or PassError (it cannot be run); the
  // sequences are then as they were. This, commit and close change sequences and pages: one thread at a time.
  void prepare(std::vector<FeedInput> inputs);
  // Runs it, once; other threads may meanwhile prepare, commit and close other passes. `between_layers` is called now and then and
  // may throw to stop. After an exception the pass can only be closed.
  void compute(const std::function<void()>& between_layers);

  std::int64_t outputs() const { return model_->shape.outputs(); }
  std::int64_t width() const { return model_->shape.width; }
  std::size_t feeds() const { return feeds_.size(); }
  // Rows of logits of a feed, [rows, outputs].
  const float* logits(std::size_t feed, std::int64_t* rows) const;
  // [input tokens + nodes, width]
  const float* hidden(std::size_t feed, int layer, std::int64_t* rows) const;
  std::shared_ptr<std::vector<float>> logits_owner() const { return logits_; }
  std::shared_ptr<std::vector<float>> hidden_owner() const { return hidden_; }

  // Keeps the input tokens and the nodes of `path`, root to leaf. Throws std::invalid_argument if it is not a path.
  void commit(std::size_t feed, const std::vector<std::int32_t>& path);
  // Rolls back what was not committed. Harmless when repeated.
  void close();
  bool closed() const { return closed_; }

 private:
  std::shared_ptr<Model> model_;
  std::vector<int> hidden_layers_;
  bool every_row_;
  bool closed_ = false;
  std::vector<Feed> feeds_;
  std::int64_t rows_ = 0, logits_rows_ = 0;
  std::shared_ptr<std::vector<float>> logits_, hidden_;  // hidden: [layers asked for, rows, width]

  void plan(std::vector<FeedInput>& inputs);
  void reserve();
};

}  // namespace forerun
