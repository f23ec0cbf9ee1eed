// A small thread pool for regions of many short tasks: dynamic chunks, the caller takes part, nobody waits for a sleeper.
//
// A region is `run(items, grain, f)`: `f(begin, end, thread)` is called for disjoint ranges covering [0, items). Threads take
// ranges from one atomic counter, large ones first, so a thread that lost its core delays the region by one chunk at most.
// Workers spin for a few microseconds between regions and then sleep; a worker that wakes late finds the region closed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace forerun {

class Pool {
 public:
  // `threads` includes the caller; 0 means one.
  explicit Pool(unsigned threads = 1);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  unsigned threads() const { return threads_; }
  void resize(unsigned threads);  // not while a region runs

  // Calls f(begin, end, thread) with thread < threads(), ranges of at least `grain` items (but the last). Returns when all are
  // done. The first exception of any thread is rethrown here; ranges not yet begun are then skipped. Not reentrant: one region
  // at a time, and f must not call run. Safe in a forked child (which starts its own workers).
  template <class F>
  void run(std::size_t items, std::size_t grain, F&& f) {
    if (items == 0) return;
    if (threads_ == 1 || items <= grain) {
      f(std::size_t{0}, items, 0u);
      return;
    }
    using G = std::remove_reference_t<F>;
    run_region(items, grain, [](void* g, std::size_t begin, std::size_t end, unsigned thread) { (*static_cast<G*>(g))(begin, end, thread); },
               const_cast<void*>(static_cast<const void*>(&f)));
  }

  struct Shared;

 private:
  using Call = void (*)(void*, std::size_t, std::size_t, unsigned);
  void run_region(std::size_t items, std::size_t grain, Call call, void* context);
  void start();
  void stop();

  unsigned threads_;
  std::unique_ptr<Shared> shared_;
};

}  // namespace forerun
