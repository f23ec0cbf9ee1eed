// The least that a native test needs: CHECK(condition) prints and counts; main returns failures().
#pragma once

#include <cstdio>

inline int& failures() {
  static int count = 0;
  return count;
}

#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) {                                                      \
      std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);    \
      if (++failures() > 20) return;                                         \
    }                                                                        \
  } while (0)
