// Times the products of a whole model's linear layers, rows by rows, beside the two floors: bytes / bandwidth and multiply-adds / peak.
//
//   bench_linear [--threads 2] [--rows 1,2,4,8,16,32,64] [--repeats 5] [--model qwen1.5b | KIND:OUTxIN:COUNT,...]
//
// Weights are random bytes with tame scales: times do not depend on the values. Every repeat streams all matrices in order. "quiet ms"
// adds up, over the groups of products, the best time seen for a group of that shape: an estimate that a busy machine disturbs less.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "linear.h"
#include "quants.h"

using namespace forerun;

namespace {

struct Shape {
  Kind kind;
  std::size_t out, in, count;
};

// Products that share an input are one entry, as in a real pass.
using Group = std::vector<Shape>;

Kind kind_of(const std::string& name) {
  for (std::uint32_t n = 0; n < 40; n++)
    if (kind_known(n) && name == kind_name(static_cast<Kind>(n))) return static_cast<Kind>(n);
  std::fprintf(stderr, "unknown kind %s\n", name.c_str());
  std::exit(2);
}

// The matrices of Qwen2.5-Coder-1.5B Q4_K_M in the order of a pass.
std::vector<Group> qwen() {
  std::vector<Group> all;
  for (int layer = 0; layer < 28; layer++) {
    const Kind wide = layer % 2 ? Kind::Q4_K : Kind::Q6_K;
    all.push_back({{Kind::Q4_K, 1536, 1536, 1}, {Kind::Q4_K, 256, 1536, 1}, {wide, 256, 1536, 1}});
    all.push_back({{Kind::Q4_K, 1536, 1536, 1}});
    all.push_back({{Kind::Q4_K, 8960, 1536, 1}, {Kind::Q4_K, 8960, 1536, 1}});
    all.push_back({{wide, 1536, 8960, 1}});
  }
  all.push_back({{Kind::Q6_K, 151936, 1536, 1}});
  return all;
}

std::vector<Group> parse(const std::string& text) {
  std::vector<Group> all;
  std::size_t at = 0;
  while (at < text.size()) {
    std::size_t end = text.find(',', at);
    if (end == std::string::npos) end = text.size();
    const std::string one = text.substr(at, end - at);
    const std::size_t colon = one.find(':');
    unsigned long out = 0, in = 0, count = 1;
    if (colon == std::string::npos || std::sscanf(one.c_str() + colon + 1, "%lux%lu:%lu", &out, &in, &count) < 2) {
      std::fprintf(stderr, "not KIND:OUTxIN:COUNT: %s\n", one.c_str());
      std::exit(2);
    }
    for (unsigned long i = 0; i < count; i++) all.push_back({{kind_of(one.substr(0, colon)), out, in, 1}});
    at = end + 1;
  }
  return all;
}

PackedMatrix random_matrix(const Shape& s, Pool& pool, std::uint32_t seed) {
  std::vector<std::uint8_t> data(s.out * row_bytes(s.kind, s.in));
  std::uint32_t x = seed * 2654435761u + 1;
  for (std::uint8_t& b : data) {
    x = x * 1664525u + 1013904223u;
    b = static_cast<std::uint8_t>(x >> 24) & 0x3b;  // bit 6 off: no infinities in fp16, moderate scales
  }
  return PackedMatrix::pack(s.kind, s.out, s.in, data.data(), data.size(), &pool);
}

std::vector<std::size_t> numbers(const char* text) {
  std::vector<std::size_t> all;
  for (char* p = const_cast<char*>(text); *p;) {
    all.push_back(std::strtoul(p, &p, 10));
    if (*p) p++;
  }
  return all;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

int main(int argc, char** argv) {
  unsigned threads = 2;
  std::size_t repeats = 5;
  std::vector<std::size_t> rows = {1, 2, 4, 8, 16, 32, 64};
  std::vector<Group> groups = qwen();
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!std::strcmp(argv[i], "--threads")) threads = static_cast<unsigned>(std::atoi(argv[i + 1]));
    if (!std::strcmp(argv[i], "--rows")) rows = numbers(argv[i + 1]);
    if (!std::strcmp(argv[i], "--repeats")) repeats = std::strtoul(argv[i + 1], nullptr, 10);
    if (!std::strcmp(argv[i], "--model") && std::strcmp(argv[i + 1], "qwen1.5b")) groups = parse(argv[i + 1]);
  }
  Pool pool(threads);
  const Isa isa = active_isa();
  const LinearKernels& kernels = linear_kernels(isa);
  const double bandwidth = probe_bandwidth(pool), peak = probe_integer_peak(kernels, pool);
  std::printf("%s, %u threads: %.1f GB/s, %.0f G multiply-adds/s\n", isa_name(isa), pool.threads(), bandwidth / 1e9, peak / 1e9);

  std::vector<std::vector<PackedMatrix>> weights;
  double bytes = 0, macs = 0, file = 0;
  std::size_t widest = 0, longest = 0;
  for (const Group& g : groups) {
    weights.emplace_back();
    for (const Shape& s : g) {
      weights.back().push_back(random_matrix(s, pool, static_cast<std::uint32_t>(weights.size())));
      bytes += static_cast<double>(weights.back().back().blob_bytes());
      file += static_cast<double>(s.out * row_bytes(s.kind, s.in));
      macs += static_cast<double>(s.out) * static_cast<double>(s.in);
      widest = std::max(widest, s.in);
      longest = std::max(longest, s.out);
    }
  }
  std::printf("%.1f MB packed (%.1f MB in the file), %.0f M multiply-adds a row\n", bytes / 1e6, file / 1e6, macs / 1e6);
  const std::size_t most = *std::max_element(rows.begin(), rows.end());
  std::vector<float> x(most * widest), out(3 * most * longest);
  for (std::size_t i = 0; i < x.size(); i++) x[i] = static_cast<float>(static_cast<int>(i * 2654435761u >> 16) % 201 - 100) / 50;
  Activations act;
  using Class = std::vector<std::size_t>;
  std::map<Class, double> quickest;
  auto class_of = [&](std::size_t g, std::size_t n) {
    Class key = {n};
    for (const Shape& s : groups[g]) key.insert(key.end(), {static_cast<std::size_t>(s.kind), s.out, s.in});
    return key;
  };
  auto pass = [&](std::size_t n) {
    for (std::size_t g = 0; g < groups.size(); g++) {
      const std::size_t in = groups[g][0].in;
      const double start = now();
      quantize_rows(kernels, x.data(), in, n, in, act, pool);
      LinearTask tasks[4];
      for (std::size_t i = 0; i < groups[g].size(); i++)
        tasks[i] = {&weights[g][i], out.data() + i * n * longest, groups[g][i].out, nullptr, false};
      linear(kernels, tasks, groups[g].size(), {&act, x.data(), in, n}, pool);
      const double took = now() - start;
      double& best = quickest.emplace(class_of(g, n), took).first->second;
      best = std::min(best, took);
    }
  };
  std::vector<std::vector<double>> times(rows.size());
  for (std::size_t r = 0; r <= repeats; r++)  // the first is a warm-up; interleaved, so that drift hits all alike
    for (std::size_t i = 0; i < rows.size(); i++) {
      const double start = now();
      pass(rows[i]);
      if (r) times[i].push_back(now() - start);
    }
  std::printf("%5s %9s %9s %9s %7s %8s %9s %8s %7s\n", "rows", "median ms", "best ms", "quiet ms", "v", "GB/s", "Gmac/s", "floor ms", "x floor");
  double one = 0;
  for (std::size_t i = 0; i < rows.size(); i++) {
    std::sort(times[i].begin(), times[i].end());
    const double t = times[i][times[i].size() / 2], n = static_cast<double>(rows[i]);
    const double floor = std::max(bytes / bandwidth, n * macs / peak);
    double quiet = 0;
    for (std::size_t g = 0; g < groups.size(); g++) quiet += quickest[class_of(g, rows[i])];
    if (i == 0) one = t;
    std::printf("%5zu %9.2f %9.2f %9.2f %7.2f %8.1f %9.0f %8.2f %7.2f\n", rows[i], t * 1e3, times[i][0] * 1e3, quiet * 1e3, t / one, bytes / t / 1e9,
                n * macs / t / 1e9, floor * 1e3, t / floor);
  }
  return 0;
}
