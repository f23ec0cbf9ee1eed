#include "pass.h"

#include <algorithm>
#include <mutex>
#include <string>

#include "batch.h"

namespace forerun {

namespace {

std::string counted(std::int64_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

Feed planned(FeedInput& input, const Shape& shape) {
  Feed feed;
  if (input.sequence == nullptr || input.sequence->closed) throw PassError("a closed sequence cannot be fed: open a new one");
  if (input.sequence->busy) throw PassError("a sequence is in another pass that is still open, or twice in this one: leave that one first, or fork it");
  if (input.input_tokens.empty()) throw std::invalid_argument("an input has no tokens: give at least the last committed one");
  if (input.nodes.size() != input.parents.size()) throw std::invalid_argument("a draft has as many parents as tokens");
  if (std::int64_t(input.nodes.size()) > kMostNodes)
    throw PassError("a draft of " + std::to_string(input.nodes.size()) + " nodes is too large; draft at most " + std::to_string(kMostNodes));
  feed.sequence = input.sequence;
  feed.start = input.sequence->length();
  feed.input_tokens = std::int64_t(input.input_tokens.size());
  feed.tokens = std::move(input.input_tokens);
  feed.tokens.insert(feed.tokens.end(), input.nodes.begin(), input.nodes.end());
  for (std::int32_t token : feed.tokens)
    if (token < 0 || token >= shape.vocab)
      throw PassError("token id " + std::to_string(token) + " is not one of the model's " + std::to_string(shape.vocab) + ": use its own tokenizer");
  feed.path_begin.push_back(0);
  for (std::size_t node = 0; node < input.parents.size(); ++node) {
    const std::int32_t parent = input.parents[node];
    if (parent < -1 || parent >= std::int32_t(node)) throw std::invalid_argument("a node's parent comes before it");
    const std::size_t from = parent < 0 ? 0 : feed.path_begin[parent], to = parent < 0 ? 0 : feed.path_begin[parent + 1];
    feed.paths.reserve(feed.paths.size() + (to - from) + 1);  // so that the copy below reads memory that stays
    for (std::size_t i = from; i < to; ++i) feed.paths.push_back(feed.paths[i]);
    feed.paths.push_back(std::int32_t(node));
    feed.path_begin.push_back(feed.paths.size());
    feed.deepest = std::max(feed.deepest, feed.depth(std::int64_t(node)));
  }
  if (feed.base() + feed.deepest > shape.context)
    throw PassError("a pass reaches position " + std::to_string(feed.base() + feed.deepest) + ", but the model holds " + counted(shape.context, "token") +
                    ": shorten the text or the draft");
  return feed;
}

}  // namespace

void Pass::plan(std::vector<FeedInput>& inputs) {
  const Shape& shape = model_->shape;
  for (int layer : hidden_layers_)
    if (layer < -1 || layer >= shape.layers)
      throw std::invalid_argument("no layer " + std::to_string(layer) + ": the model has " + counted(shape.layers, "layer"));
  for (FeedInput& input : inputs) {
    Feed feed = planned(input, shape);
    feed.sequence->busy = true;
    feed.first_row = rows_;
    feed.first_logits = logits_rows_;
    rows_ += std::int64_t(feed.tokens.size());
    if (every_row_) feed.logits_rows = std::int64_t(feed.tokens.size());
    else if (input.logits) feed.logits_rows = feed.nodes() + 1;
    logits_rows_ += feed.logits_rows;
    feeds_.push_back(std::move(feed));
  }
}

void Pass::reserve() {
  for (Feed& feed : feeds_) {
    // Room for the longest path too: memory must not run out in `commit`, when the verdict is known and others have committed.
    feed.sequence->reserve(feed.base() + feed.deepest);
    for (std::int64_t p = 0; p < feed.base(); p += kPagePositions) feed.pages.push_back(feed.sequence->page(p / kPagePositions));
    feed.drafts.reserve(std::size_t((feed.nodes() + kPagePositions - 1) / kPagePositions));
    for (std::int64_t n = 0; n < feed.nodes(); n += kPagePositions) {
      feed.drafts.push_back(model_->pages().acquire());
      feed.draft_pages.push_back(feed.drafts.back()->data);
    }
  }
  if (logits_rows_ > 0) logits_ = model_->logits_buffer(std::size_t(logits_rows_) * model_->shape.outputs());
  if (!hidden_layers_.empty()) hidden_ = std::make_shared<std::vector<float>>(hidden_layers_.size() * rows_ * model_->shape.width);
}

void Pass::prepare(std::vector<FeedInput> inputs) {
  try {
    if (!model_->finished()) throw PassError("the model has not been loaded");
    feeds_.reserve(inputs.size());
    plan(inputs);
    reserve();
  } catch (...) {
    close();
    throw;
  }
}

void Pass::compute(const std::function<void()>& between_layers) {
  std::lock_guard lock(model_->mutex);
  Batch batch(*model_, feeds_, hidden_layers_, logits_ ? logits_->data() : nullptr, hidden_ ? hidden_->data() : nullptr, rows_);
  for (std::int64_t first = 0; first < rows_; first += kBatchRows) batch.run(first, std::min(rows_, first + kBatchRows), between_layers);
}

const float* Pass::logits(std::size_t feed, std::int64_t* rows) const {
  *rows = feeds_.at(feed).logits_rows;
  return logits_ ? logits_->data() + feeds_[feed].first_logits * model_->shape.outputs() : nullptr;
}

const float* Pass::hidden(std::size_t feed, int layer, std::int64_t* rows) const {
  const auto found = std::find(hidden_layers_.begin(), hidden_layers_.end(), layer);
  if (found == hidden_layers_.end()) throw PassError("hidden states of layer " + std::to_string(layer) + " were not asked for");
  *rows = std::int64_t(feeds_.at(feed).tokens.size());
  return hidden_->data() + ((found - hidden_layers_.begin()) * rows_ + feeds_[feed].first_row) * model_->shape.width;
}

void Pass::commit(std::size_t index, const std::vector<std::int32_t>& path) {
  if (closed_) throw PassError("the pass is over: commit before leaving it");
  Feed& feed = feeds_.at(index);
  if (feed.committed || feed.sequence->closed) throw PassError("nothing to commit: the feed was committed, or its sequence closed meanwhile");
  if (!path.empty()) {
    const std::int32_t leaf = path.back();
    if (leaf < 0 || leaf >= feed.nodes() || feed.depth(leaf) != std::int64_t(path.size()) ||
        !std::equal(path.begin(), path.end(), feed.paths.begin() + std::ptrdiff_t(feed.path_begin[leaf])))
      throw std::invalid_argument("what is committed does not lead from the root down");
  }
  const std::int64_t length = feed.base() + std::int64_t(path.size());
  feed.sequence->reserve(length);
  for (std::size_t i = 0; i < path.size(); ++i) {
    const std::int64_t position = feed.base() + std::int64_t(i);
    copy_position(model_->kv_shape(), feed.draft_pages[path[i] / kPagePositions], path[i] % kPagePositions,
                  feed.sequence->page(position / kPagePositions), int(position % kPagePositions));
  }
  feed.sequence->grow(length);
  feed.committed = true;
}

void Pass::close() {
  if (closed_) return;
  closed_ = true;
  for (Feed& feed : feeds_) {
    for (Page* page : feed.drafts) model_->pages().release(page);
    feed.sequence->busy = false;
    if (feed.sequence->closed) feed.sequence->clear();
    else feed.sequence->trim();
  }
  feeds_.clear();
}

}  // namespace forerun
