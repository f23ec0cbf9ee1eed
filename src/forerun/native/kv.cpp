#include "kv.h"

#include <cstring>
#include <new>

namespace forerun {

namespace {
constexpr std::align_val_t kAlignment{64};

template <typename T>
void copy_slot(const KvShape& shape, const std::byte* from, int from_slot, std::byte* to, int to_slot) {
  const size_t heads = size_t(shape.layers) * shape.kv_heads, panel = size_t(shape.dim) * kPagePositions;
  for (size_t i = 0; i < heads; ++i, from += shape.head_bytes(), to += shape.head_bytes()) {
    const auto* k_from = reinterpret_cast<const T*>(from);
    auto* k_to = reinterpret_cast<T*>(to);
    for (int d = 0; d < shape.dim; ++d) k_to[d * kPagePositions + to_slot] = k_from[d * kPagePositions + from_slot];
    std::memcpy(k_to + panel + size_t(to_slot) * shape.dim, k_from + panel + size_t(from_slot) * shape.dim, size_t(shape.dim) * sizeof(T));
    if (!shape.half) continue;
    const auto* peaks_from = reinterpret_cast<const float*>(k_from + 2 * panel);
    auto* peaks_to = reinterpret_cast<float*>(k_to + 2 * panel);
    for (int side : {0, kPagePositions}) peaks_to[side + to_slot] = peaks_from[side + from_slot];
  }
}
}  // namespace

void copy_position(const KvShape& shape, const std::byte* from, int from_slot, std::byte* to, int to_slot) {
  if (shape.half) copy_slot<uint16_t>(shape, from, from_slot, to, to_slot);
  else copy_slot<float>(shape, from, from_slot, to, to_slot);
}

PagePool::~PagePool() {
  for (Page* page : idle_) {
    ::operator delete(page->data, kAlignment);
    delete page;
  }
}

Page* PagePool::acquire() {
  if (!idle_.empty()) {
    Page* page = idle_.back();
    idle_.pop_back();
    page->references = 1;
    return page;
  }
  if (shape_.page() > limit_ || bytes() > limit_ - shape_.page())
    throw PassError("the KV cache is full: " + std::to_string(bytes() >> 20) + " of " + std::to_string(limit_ >> 20) +
            " MiB are in use; close sequences, shorten them or raise kv_memory");
  auto page = std::make_unique<Page>();
  idle_.reserve(pages_ + 1);  // so that release never allocates
  page->data = static_cast<std::byte*>(::operator new(shape_.page(), kAlignment, std::nothrow));
  if (page->data == nullptr)
    throw PassError("out of memory: no " + std::to_string(shape_.page() >> 10) +
            " KiB left for the KV cache; close sequences or shorten them");
  std::memset(page->data, 0, shape_.page());
  page->references = 1;
  ++pages_;
  return page.release();
}

Page* PagePool::share(Page* page) {
  ++page->references;
  return page;
}

void PagePool::release(Page* page) {
  if (--page->references > 0) return;
  if (idle_.size() < kSpare) {
    idle_.push_back(page);
    return;
  }
  ::operator delete(page->data, kAlignment);
  delete page;
  --pages_;
}

Page* PagePool::writable(Page* page) {
  if (page->references == 1) return page;
  Page* own = acquire();
  std::memcpy(own->data, page->data, shape_.page());
  release(page);
  return own;
}

void Sequence::reserve(int64_t upto) {
  const size_t wanted = size_t((upto + kPagePositions - 1) / kPagePositions);
  for (size_t i = size_t(length_ / kPagePositions); i < pages_.size() && i < wanted; ++i) pages_[i] = pool_->writable(pages_[i]);
  if (pages_.capacity() < wanted) pages_.reserve(wanted + wanted / 2 + 4);
  while (pages_.size() < wanted) pages_.push_back(pool_->acquire());
}

int64_t Sequence::pages_needed(int64_t upto) const {
  const size_t wanted = size_t((upto + kPagePositions - 1) / kPagePositions);
  size_t needed = wanted > pages_.size() ? wanted - pages_.size() : 0;
  for (size_t i = size_t(length_ / kPagePositions); i < pages_.size() && i < wanted; ++i) needed += pages_[i]->references > 1;
  return int64_t(needed);
}

void Sequence::truncate(int64_t length) {
  const size_t kept = size_t((length + kPagePositions - 1) / kPagePositions);
  while (pages_.size() > kept) {
    pool_->release(pages_.back());
    pages_.pop_back();
  }
  length_ = length;
}

std::shared_ptr<Sequence> Sequence::fork() const {
  auto other = std::make_shared<Sequence>(pool_);
  const size_t kept = size_t((length_ + kPagePositions - 1) / kPagePositions);
  other->pages_.reserve(kept);
  for (size_t i = 0; i < kept; ++i) other->pages_.push_back(pool_->share(pages_[i]));
  other->length_ = length_;
  return other;
}

void Sequence::snapshot(int layer, std::byte* keys, std::byte* values) const {
  const KvShape& shape = pool_->shape();
  const size_t element = shape.element(), row = size_t(shape.dim) * element;
  for (int head = 0; head < shape.kv_heads; ++head)
    for (int64_t p = 0; p < length_; ++p, keys += row, values += row) {
      const std::byte* from = page(p / kPagePositions) + shape.offset(layer, head);
      const size_t slot = size_t(p % kPagePositions);
      for (size_t d = 0; d < size_t(shape.dim); ++d)
        std::memcpy(keys + d * element, from + (d * kPagePositions + slot) * element, element);
      std::memcpy(values, from + shape.panel() + slot * row, row);
    }
}

size_t Sequence::stored_bytes() const {
  return size_t((length_ + kPagePositions - 1) / kPagePositions) * pool_->shape().page();
}

void Sequence::store(std::byte* to) const {
  const size_t page = pool_->shape().page();
  for (size_t i = 0; i * page < stored_bytes(); ++i) std::memcpy(to + i * page, pages_[i]->data, page);
}

void Sequence::restore(const std::byte* from, int64_t length) {
  reserve(length);
  grow(length);
  const size_t page = pool_->shape().page();
  for (size_t i = 0; i * page < stored_bytes(); ++i) std::memcpy(pages_[i]->data, from + i * page, page);
}

void Sequence::clear() { truncate(0); }

}  // namespace forerun
