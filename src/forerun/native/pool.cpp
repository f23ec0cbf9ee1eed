#include "pool.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <time.h>
#endif

namespace forerun {

namespace {

constexpr std::uint64_t open_bit = 1u << 15, active_mask = open_bit - 1, epoch_step = 1u << 16;
constexpr auto spin_time = std::chrono::microseconds(200);
// Of two threads, a caller that waits this long at the end of a region, for a worker that was not running most of that time, works
// alone from then on, since somebody else has the core: for so long, and twice as long each time that it happens again at once.
constexpr auto long_wait = std::chrono::microseconds(400), shortest_alone = std::chrono::microseconds(10'000);
constexpr auto longest_alone = std::chrono::microseconds(160'000);

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Processor time that a thread has had, or where systems do not tell, none: then any long wait counts.
std::chrono::nanoseconds processor_time(std::thread& thread) {
#if defined(__linux__)
  clockid_t clock;
  timespec now{};
  if (pthread_getcpuclockid(thread.native_handle(), &clock) == 0 && clock_gettime(clock, &now) == 0)
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
#endif
  (void)thread;
  return {};
}

// Grows in a forked child, whose pools then know that their workers stayed behind.
unsigned fork_generation() {
#if defined(__unix__) || defined(__APPLE__)
  static std::atomic<unsigned> generation{0};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); });
  (void)registered;
  return generation.load(std::memory_order_relaxed);
#else
  return 0;
#endif
}

}  // namespace

struct Pool::Shared {
  alignas(64) std::atomic<std::uint64_t> state{0};  // epoch << 16 | open | workers inside
  alignas(64) std::atomic<std::size_t> next{0};
  alignas(64) std::size_t items = 0;
  std::size_t grain = 1;
  unsigned threads = 1;
  Call call = nullptr;
  void* context = nullptr;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<int> sleepers{0};
  std::atomic<bool> quit{false};
  std::exception_ptr error;  // under mutex while a region is open
  std::vector<std::thread> workers;
  unsigned generation = fork_generation();
  // The caller's own: until when it works alone (if it does), and for how long next time.
  bool alone = false;
  std::chrono::steady_clock::time_point alone_until;
  std::chrono::microseconds alone_for = shortest_alone;

  // Takes ranges until none is left: large ones first, down to the grain.
  void work(unsigned thread) {
    try {
      std::size_t begin = next.load(std::memory_order_relaxed);
      while (begin < items) {
        std::size_t share = (items - begin) / (4 * threads), size = share > grain ? share : grain;
        std::size_t end = size < items - begin ? begin + size : items;
        if (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
        call(context, begin, end, thread);
        begin = next.load(std::memory_order_relaxed);
      }
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex);
      if (!error) error = std::current_exception();
      next.store(items, std::memory_order_relaxed);
    }
  }

  bool has_news(std::uint64_t seen) const {
    return quit.load(std::memory_order_relaxed) || (state.load() & ~(epoch_step - 1)) != seen;
  }

  void wait_for_news(std::uint64_t seen) {
    const auto until = std::chrono::steady_clock::now() + spin_time;
    do {
      for (int i = 0; i < 32; i++) {
        if (has_news(seen)) return;
        relax();
      }
    } while (std::chrono::steady_clock::now() < until);
    std::unique_lock<std::mutex> lock(mutex);
    sleepers.fetch_add(1);
    wake.wait(lock, [&] { return has_news(seen); });
    sleepers.fetch_sub(1);
  }

  bool busy() const { return (state.load(std::memory_order_acquire) & active_mask) != 0; }

  // The caller, when no range is left: workers may still be at their last ones.
  void wait_for_workers() {
    for (int spins = 0; spins < 1000; spins++) {
      if (!busy()) return;
      relax();
    }
    // Of more threads than two, working alone would lose more than waiting for one of them does.
    const bool pair = workers.size() == 1;
    const auto begin = std::chrono::steady_clock::now();
    const auto before = pair ? processor_time(workers[0]) : std::chrono::nanoseconds{};
    while (busy()) std::this_thread::yield();  // the worker may be waiting for this very core
    const auto end = std::chrono::steady_clock::now();
    if (!pair || end - begin < long_wait || processor_time(workers[0]) - before > (end - begin) / 2) return;
    // Again within a few regions of having tried: the core is still taken.
    alone_for = end - alone_until < 4 * long_wait + alone_for / 4 ? (alone_for * 2 < longest_alone ? alone_for * 2 : longest_alone) : shortest_alone;
    alone = true;
    alone_until = end + alone_for;
  }

  void worker(unsigned thread, std::uint64_t seen) {
    for (;;) {
      wait_for_news(seen);
      if (quit.load()) return;
      std::uint64_t now = state.load(std::memory_order_acquire);
      while ((now & open_bit) && !state.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) {
      }
      seen = now & ~(epoch_step - 1);
      if (!(now & open_bit)) continue;  // came late: the region is over
      work(thread);
      state.fetch_sub(1, std::memory_order_release);
    }
  }
};

Pool::Pool(unsigned threads) : threads_(threads ? threads : 1) { start(); }

Pool::~Pool() { stop(); }

void Pool::start() {
  shared_ = std::make_unique<Shared>();
  shared_->threads = threads_;
  try {
    for (unsigned t = 1; t < threads_; t++) shared_->workers.emplace_back([s = shared_.get(), t] { s->worker(t, 0); });
  } catch (...) {
    stop();
    threads_ = 1;
    throw;
  }
}

void Pool::stop() {
  if (!shared_) return;
  if (shared_->generation != fork_generation()) {  // in a child: the threads do not exist here, so neither join nor free them
    (void)shared_.release();
    return;
  }
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->quit.store(true);
  }
  shared_->wake.notify_all();
  for (std::thread& worker : shared_->workers) worker.join();
  shared_.reset();
}

void Pool::resize(unsigned threads) {
  if (threads == 0) threads = 1;
  if (threads == threads_ && shared_) return;
  stop();
  threads_ = threads;
  start();
}

void Pool::run_region(std::size_t items, std::size_t grain, Call call, void* context) {
  if (!shared_ || shared_->generation != fork_generation()) {
    stop();
    start();
  }
  Shared& s = *shared_;
  if (s.alone) {
    if (std::chrono::steady_clock::now() < s.alone_until) {
      call(context, 0, items, 0);
      return;
    }
    s.alone = false;
  }
  s.items = items;
  s.grain = grain ? grain : 1;
  s.call = call;
  s.context = context;
  s.next.store(0, std::memory_order_relaxed);
  s.state.store((s.state.load() & ~(epoch_step - 1)) + epoch_step + open_bit);
  if (s.sleepers.load() > 0) {
    { std::lock_guard<std::mutex> lock(s.mutex); }
    s.wake.notify_all();
  }
  s.work(0);
  s.state.fetch_and(~open_bit, std::memory_order_acq_rel);
  s.wait_for_workers();
  if (s.error) {
    std::exception_ptr error = s.error;
    s.error = nullptr;
    std::rethrow_exception(error);
  }
}

}  // namespace forerun
