// The KV cache: pages of 64 positions that hold every layer, counted by reference, and the sequences made of them.
//
// A page holds, for each layer and KV head, K transposed ([dim][64], after RoPE) and then V ([64][dim]): one load then
// brings 16 neighboring positions of one dimension of K, and 16 dimensions of one position of V. `dim` is the head's
// size rounded up to 16; the padding is zero. With fp16, the largest magnitudes of each position's K and V follow (64
// floats each): attention turns both into integers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "pass_kernels.h"

namespace forerun {


// A pass or a sequence cannot go on; the message is for the user.
struct PassError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct KvShape {
  int layers = 0;
  int kv_heads = 0;
  int dim = 0;       // padded to a multiple of 16
  bool half = true;  // fp16, otherwise fp32

  size_t element() const { return half ? 2 : 4; }
  size_t panel() const { return size_t(dim) * kPagePositions * element(); }  // K or V of one layer and head
  size_t head_bytes() const { return 2 * panel() + (half ? 2 * kPagePositions * sizeof(float) : 0); }
  size_t page() const { return size_t(layers) * kv_heads * head_bytes(); }
  size_t offset(int layer, int head) const { return (size_t(layer) * kv_heads + head) * head_bytes(); }
};

struct Page {
  std::byte* data = nullptr;
  int references = 0;
};

// Owns every page of a model's sequences, those that another model has borrowed too. Pages given back are kept for reuse, and freed where more than `kSpare` are idle.
class PagePool {
 public:
  PagePool(KvShape shape, size_t limit) : shape_(shape), limit_(limit) {}
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  Page* acquire();            // throws PassError when the limit or the memory is exhausted
  Page* share(Page* page);    // one more owner
  void release(Page* page);   // one owner fewer
  Page* writable(Page* page);  // the page itself, or a copy where others own it too (the caller's share moves)

  const KvShape& shape() const { return shape_; }
  size_t bytes() const { return pages_ * shape_.page(); }  // held, idle pages included
  size_t total() const { return limit_ / shape_.page(); }  // pages that the limit allows
  size_t free() const { return total() - (pages_ - idle_.size()); }  // of them, those that no sequence holds

 private:
  static constexpr size_t kSpare = 16;
  KvShape shape_;
  size_t limit_;
  size_t pages_ = 0;
  std::vector<Page*> idle_;
};

// One sequence: `length` committed tokens, and the pages that hold them.
class Sequence {
 public:
  explicit Sequence(std::shared_ptr<PagePool> pool) : pool_(std::move(pool)) {}
  ~Sequence() { clear(); }
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  int64_t length() const { return length_; }
  // Makes positions [length, upto) writable; what it added stays when it throws and is cut by `trim`.
  void reserve(int64_t upto);
  // How many pages `reserve(upto)` would take from the pool.
  int64_t pages_needed(int64_t upto) const;
  // Cuts to `length` tokens and gives back the pages past it.
  void truncate(int64_t length);
  void trim() { truncate(length_); }
  // `length` tokens are now committed; they were written into reserved positions.
  void grow(int64_t length) { length_ = length; }
  std::shared_ptr<Sequence> fork() const;
  void clear();

  // Keys and values of the committed tokens in one layer as they are stored, [kv_heads][length][dim] each, K not transposed.
  void snapshot(int layer, std::byte* keys, std::byte* values) const;

  // The pages of the committed tokens as they are, and a sequence of such pages again.
  size_t stored_bytes() const;
  void store(std::byte* to) const;
  void restore(const std::byte* from, int64_t length);

  std::byte* page(int64_t index) const { return pages_[size_t(index)]->data; }

  bool busy = false;    // an open pass writes to it
  bool closed = false;

 private:
  std::shared_ptr<PagePool> pool_;
  std::vector<Page*> pages_;
  int64_t length_ = 0;
};

// Copies one position of every layer and head from a page to another.
void copy_position(const KvShape& shape, const std::byte* from, int from_slot, std::byte* to, int to_slot);

}  // namespace forerun
