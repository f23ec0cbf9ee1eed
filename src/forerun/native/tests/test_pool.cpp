// The pool: every item once, exceptions, resizing, forked children, and cores that another process keeps busy.
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "../pool.h"
#include "check.h"

using forerun::Pool;

namespace {

bool covers(Pool& pool, std::size_t items, std::size_t grain) {
  std::vector<std::atomic<int>> seen(items);
  pool.run(items, grain, [&](std::size_t begin, std::size_t end, unsigned thread) {
    if (thread >= pool.threads() || begin >= end || end > items) std::abort();
    for (std::size_t i = begin; i < end; i++) seen[i]++;
  });
  for (auto& count : seen)
    if (count != 1) return false;
  return true;
}

void every_item_once() {
  for (unsigned threads : {0u, 1u, 2u, 5u}) {
    Pool pool(threads);
    for (std::size_t items : {0, 1, 2, 7, 64, 1000})
      for (std::size_t grain : {0, 1, 3, 100})
        for (int again = 0; again < 20; again++) CHECK(covers(pool, items, grain));
  }
}

void many_short_regions() {
  Pool pool(2);
  std::atomic<std::size_t> total{0};
  for (int i = 0; i < 20000; i++) {
    pool.run(8, 1, [&](std::size_t begin, std::size_t end, unsigned) { total += end - begin; });
    if (i % 5000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));  // the worker falls asleep
  }
  CHECK(total == 160000);
}

void exceptions_arrive() {
  Pool pool(2);
  for (int i = 0; i < 200; i++) {
    bool caught = false;
    try {
      pool.run(100, 1, [&](std::size_t begin, std::size_t end, unsigned) {
        if (begin <= 50 && 50 < end) throw std::runtime_error("planted");
      });
    } catch (const std::runtime_error&) {
      caught = true;
    }
    CHECK(caught);
    CHECK(covers(pool, 100, 1));
  }
}

void resizing() {
  Pool pool(1);
  for (unsigned threads : {2u, 3u, 1u, 2u, 2u, 0u}) {
    pool.resize(threads);
    CHECK(pool.threads() == (threads ? threads : 1));
    CHECK(covers(pool, 100, 1));
  }
}

void forked_child() {
  Pool pool(2);
  CHECK(covers(pool, 100, 1));
  const pid_t child = fork();
  if (child == 0) {
    bool fine = covers(pool, 1000, 1);
    pool.resize(3);
    fine = fine && covers(pool, 1000, 1);
    _exit(fine ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(covers(pool, 100, 1));
}

}  // namespace

int main() {
  every_item_once();
  many_short_regions();
  exceptions_arrive();
  resizing();
  forked_child();
  std::printf("%d failures\n", failures());
  return failures() != 0;
}
