// Attention of a few rows of one sequence over its pages of KV and the drafted nodes. Compiled once per instruction set.
//
// The order of every sum depends on positions alone: keys are taken in segments of 256 by absolute position; inside one, scores
// run over dimensions, totals over lanes in order, and values over positions in order; segments are folded in order. A drafted
// row takes the keys of its own path at their positions, wherever the nodes lie, so siblings change nothing. A masked key weighs
// exactly zero, which can only change the sign of a zero; the final addition of +0 removes that.
#include "pass_kernels.h"
#include "simd.h"

namespace forerun {
namespace FORERUN_NS {
namespace {

#include "math.inc"

#if FORERUN_AVX512
constexpr int kTileRows = 6, kTileLanes = 4;
#else
constexpr int kTileRows = 3, kTileLanes = 2;
#endif

FORERUN_INLINE F16 load_kv(const uint16_t* p) { return load_half(p); }
FORERUN_INLINE F16 load_kv(const float* p) { return load(p); }

constexpr int64_t lower(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t upper(int64_t a, int64_t b) { return a > b ? a : b; }

// scores[r][0 .. 16 V) = q[r] . k, where k is [dim][64] from the first lane wanted.
template <int R, int V, class T>
void score_tile(const float* const* q, size_t dim, const T* k, float* scores, size_t stride) {
  F16 acc[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) acc[r][v] = zero();
  for (size_t d = 0; d < dim; d++) {
    F16 key[V];
    for (int v = 0; v < V; v++) key[v] = load_kv(k + d * kPagePositions + 16 * v);
    for (int r = 0; r < R; r++) {
      F16 x = broadcast(q[r][d]);
      for (int v = 0; v < V; v++) acc[r][v] = fma(x, key[v], acc[r][v]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) store(scores + r * stride + 16 * v, acc[r][v]);
}

// acc[r][0 .. 16 V) += p[r][j] * v[j] for keys j in order.
template <int R, int V, class T>
void value_tile(const float* p, size_t p_stride, const T* values, size_t dim, size_t keys, float* acc, size_t stride) {
  F16 sums[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) sums[r][v] = load(acc + r * stride + 16 * v);
  for (size_t j = 0; j < keys; j++) {
    F16 value[V];
    for (int v = 0; v < V; v++) value[v] = load_kv(values + j * dim + 16 * v);
    for (int r = 0; r < R; r++) {
      F16 x = broadcast(p[r * p_stride + j]);
      for (int v = 0; v < V; v++) sums[r][v] = fma(x, value[v], sums[r][v]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) store(acc + r * stride + 16 * v, sums[r][v]);
}

template <int R, class T>
void score_rows(const float* const* q, size_t dim, const T* k, size_t lanes, float* scores, size_t stride) {
  size_t lane = 0;
  for (; lane + 16 * kTileLanes <= lanes; lane += 16 * kTileLanes) score_tile<R, kTileLanes>(q, dim, k + lane, scores + lane, stride);
  for (; lane < lanes; lane += 16) score_tile<R, 1>(q, dim, k + lane, scores + lane, stride);
}

template <int R, class T>
void value_rows(const float* p, size_t p_stride, const T* values, size_t dim, size_t keys, float* acc, size_t stride) {
  size_t d = 0;
  for (; d + 16 * kTileLanes <= dim; d += 16 * kTileLanes) value_tile<R, kTileLanes>(p, p_stride, values + d, dim, keys, acc + d, stride);
  for (; d < dim; d += 16) value_tile<R, 1>(p, p_stride, values + d, dim, keys, acc + d, stride);
}

// Calls f with the tile's size as a constant: tiles as equal as they can be.
template <int R, class F>
FORERUN_INLINE void with_rows(size_t rows, F f) {
  if constexpr (R > 1) {
    if (rows < (size_t)R) return with_rows<R - 1>(rows, f);
  }
  f.template operator()<R>();
}

template <class F>
FORERUN_INLINE void each_tile(size_t queries, F f) {
  size_t tiles = (queries + kTileRows - 1) / kTileRows;
  for (size_t t = 0; t < tiles; t++) {
    size_t begin = t * queries / tiles;
    with_rows<kTileRows>((t + 1) * queries / tiles - begin, [&]<int R>() { f.template operator()<R>(begin); });
  }
}

// scores[0, lanes) become exp(s - peak) where from <= lane < to and zero elsewhere. `scores` starts at lane zero of the segment
// and lanes before `first` are not touched; both are multiples of 16.
FORERUN_INLINE void softmax(float* scores, size_t first, size_t lanes, size_t from, size_t to, float* peak_out, float* total_out) {
  static const int32_t kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const F16 iota = to_float(load(kLanes)), masked = broadcast(-__builtin_inff());
  const F16 low = broadcast((float)from), high = broadcast((float)to);
  F16 peaks = masked;
  for (size_t i = from / 16 * 16; i < to; i += 16) {
    F16 s = load(scores + i), lane = add(iota, broadcast((float)i));
    s = select(less(lane, low), masked, select(less(lane, high), s, masked));
    store(scores + i, s);
    peaks = max(peaks, s);
  }
  const float peak = max_of(peaks);
  const F16 top = broadcast(peak);
  F16 totals = zero();
  for (size_t i = first; i < lanes; i += 16) {
    F16 p = zero();
    if (i + 16 > from && i < to) p = exp_or_zero(sub(load(scores + i), top));
    totals = add(totals, p);
    store(scores + i, p);
  }
  *peak_out = peak;
  *total_out = sum(totals);
}

// Folds a segment's partial result into the running one.
FORERUN_INLINE void fold(float* state, const float* part, size_t dim) {
  if (part[1] == 0.0f) return;
  if (state[1] == 0.0f) {
    memcpy(state, part, (kPartialHeader + dim) * sizeof(float));
    return;
  }
  const float peak = state[0] > part[0] ? state[0] : part[0];
  const F16 a = exp(broadcast(state[0] - peak)), b = exp(broadcast(part[0] - peak));
  float total[16];
  store(total, fma(broadcast(state[1]), a, mul(broadcast(part[1]), b)));
  for (size_t d = kPartialHeader; d < kPartialHeader + dim; d += 16) store(state + d, fma(load(state + d), a, mul(load(part + d), b)));
  state[0] = peak;
  state[1] = total[0];
}

FORERUN_INLINE void finish(const float* state, size_t head_dim, float* out) {
  const F16 inverse = div(broadcast(1.0f), broadcast(state[1]));
  const float* acc = state + kPartialHeader;
  for (size_t d = 0; d < head_dim; d += 16) {
    size_t n = head_dim - d < 16 ? head_dim - d : 16;
    store_first(out + d, fma(load(acc + d), inverse, zero()), n);
  }
}

// What one row sees of a segment: positions [from, to), of which those past `base` are nodes of its path.
struct View {
  int64_t from, to;
};

FORERUN_INLINE View view_of(const AttentionTask& task, const AttentionRow& row, int64_t start) {
  int64_t from = task.window > 0 ? upper(0, row.position + 1 - task.window) : 0;
  return {upper(from, start), lower(row.position + 1, start + kSegment)};
}

struct Scratch {
  const float** queries;
  float *scores, *node_scores, *parts;
  size_t node_stride, part_stride;
};

FORERUN_INLINE size_t round16(size_t n) { return (n + 15) / 16 * 16; }

template <class T>
struct Attention {
  const AttentionTask& task;
  Scratch s;
  size_t queries, dim;
  int64_t start = 0;                     // of the segment
  int64_t first = 0, last = 0;           // positions in pages that some row sees
  int64_t end = 0;                       // positions that some row sees, nodes included
  int32_t nodes = 0;                     // nodes that some row sees, counted from the first

  const T* keys(const std::byte* page) const { return (const T*)(page + task.k_offset); }
  const T* values(const std::byte* page) const { return (const T*)(page + task.v_offset); }

  bool survey(int64_t segment) {
    start = segment * kSegment;
    first = start + kSegment;
    last = end = start;
    nodes = 0;
    for (int r = 0; r < task.count; r++) {
      const View view = view_of(task, task.rows[r], start);
      if (view.from >= view.to) continue;
      first = lower(first, view.from);
      last = upper(last, lower(view.to, task.base));
      end = upper(end, view.to);
      for (int64_t p = upper(view.from, task.base); p < view.to; p++) {
        int32_t node = task.rows[r].path[p - task.base] + 1;
        if (node > nodes) nodes = node;
      }
    }
    return first < end;
  }

  // Calls f(page, its first lane wanted, lanes wanted rounded to 16, keys wanted) for pages that hold [first, last).
  template <class F>
  inline __attribute__((always_inline)) void each_page(F f) const {
    for (int64_t p = first / kPagePositions * kPagePositions; p < last; p += kPagePositions) {
      int64_t from = upper(p, first), to = lower(p + kPagePositions, last);
      f(task.pages[p / kPagePositions], p, from - p, to - p);
    }
  }

  void score() {
    each_page([&](const std::byte* page, int64_t p, int64_t from, int64_t to) {
      from = from / 16 * 16;
      each_tile(queries, [&]<int R>(size_t q) {
        score_rows<R>(s.queries + q, dim, keys(page) + from, round16((size_t)(to - from)), s.scores + q * kSegment + (p + from - start), kSegment);
      });
    });
    for (int32_t n = 0; n < nodes; n += kPagePositions) {
      const T* k = keys(task.drafts[n / kPagePositions]);
      size_t lanes = round16((size_t)lower(kPagePositions, nodes - n));
      each_tile(queries, [&]<int R>(size_t q) {
        score_rows<R>(s.queries + q, dim, k, lanes, s.node_scores + q * s.node_stride + n, s.node_stride);
      });
    }
  }

  void weigh() {
    const size_t lanes_from = (size_t)(first - start) / 16 * 16, lanes = round16((size_t)(end - start));
    for (int r = 0; r < task.count; r++) {
      const AttentionRow& row = task.rows[r];
      const View view = view_of(task, row, start);
      for (int g = 0; g < task.group; g++) {
        const size_t q = (size_t)r * task.group + g;
        float *scores = s.scores + q * kSegment, *part = s.parts + q * s.part_stride;
        memset(part, 0, s.part_stride * sizeof(float));
        if (view.from >= view.to) {
          memset(scores + lanes_from, 0, (lanes - lanes_from) * sizeof(float));
          continue;
        }
        for (int64_t p = upper(view.from, task.base); p < view.to; p++)
          scores[p - start] = s.node_scores[q * s.node_stride + row.path[p - task.base]];
        softmax(scores, lanes_from, lanes, (size_t)(view.from - start), (size_t)(view.to - start), part, part + 1);
      }
    }
  }

  void gather() {
    each_page([&](const std::byte* page, int64_t p, int64_t from, int64_t to) {
      each_tile(queries, [&]<int R>(size_t q) {
        value_rows<R>(s.scores + q * kSegment + (p + from - start), kSegment, values(page) + from * dim, dim, (size_t)(to - from),
                      s.parts + q * s.part_stride + kPartialHeader, s.part_stride);
      });
    });
    if (nodes == 0) return;
    for (int r = 0; r < task.count; r++) {
      const AttentionRow& row = task.rows[r];
      const View view = view_of(task, row, start);
      const size_t q = (size_t)r * task.group;
      for (int64_t p = upper(view.from, task.base); p < view.to; p++) {
        const int32_t node = row.path[p - task.base];
        const T* v = values(task.drafts[node / kPagePositions]) + (size_t)(node % kPagePositions) * dim;
        for (size_t d = 0; d < dim; d += 16) {
          const F16 value = load_kv(v + d);
          for (int g = 0; g < task.group; g++) {
            float* acc = s.parts + (q + g) * s.part_stride + kPartialHeader + d;
            store(acc, fma(broadcast(s.scores[(q + g) * kSegment + (p - start)]), value, load(acc)));
          }
        }
      }
    }
  }
};

template <class T>
void attend_as(const AttentionTask& task, int64_t from, int64_t to, float* partials, float* scratch) {
  const size_t queries = (size_t)task.count * task.group, dim = (size_t)task.dim, part = kPartialHeader + dim;
  size_t nodes = 0;
  for (int r = 0; r < task.count; r++)
    for (int i = 0; i < task.rows[r].depth; i++) nodes = (size_t)upper((int64_t)nodes, task.rows[r].path[i] + 1);
  Attention<T> a{task, {}, queries, dim};
  a.s = {(const float**)scratch, scratch + 2 * queries, nullptr, nullptr, round16(nodes), part};
  a.s.node_scores = a.s.scores + queries * kSegment;
  a.s.parts = a.s.node_scores + queries * a.s.node_stride;
  float* states = a.s.parts + queries * part;
  for (int r = 0; r < task.count; r++)
    for (int g = 0; g < task.group; g++) a.s.queries[r * task.group + g] = task.rows[r].q + (size_t)(task.head * task.group + g) * dim;
  if (!partials) memset(states, 0, queries * part * sizeof(float));
  for (int64_t segment = from; segment < to; segment++) {
    if (partials) a.s.parts = partials + (size_t)(segment - from) * queries * part;
    if (!a.survey(segment)) {
      if (partials) memset(a.s.parts, 0, queries * part * sizeof(float));
      continue;
    }
    a.score();
    a.weigh();
    a.gather();
    if (partials) continue;
    for (size_t q = 0; q < queries; q++) fold(states + q * part, a.s.parts + q * part, dim);
  }
  if (partials) return;
  for (size_t q = 0; q < queries; q++)
    finish(states + q * part, (size_t)task.head_dim,
           task.rows[q / task.group].out + ((size_t)task.head * task.group + q % task.group) * task.head_dim);
}

}  // namespace

void attend(const AttentionTask& task, int64_t from, int64_t to, float* partials, float* scratch) {
  if (task.half) attend_as<uint16_t>(task, from, to, partials, scratch);
  else attend_as<float>(task, from, to, partials, scratch);
}

size_t attend_scratch(size_t queries, size_t dim, size_t nodes) {
  return queries * (2 + kSegment + round16(nodes) + 2 * (kPartialHeader + dim));
}

void combine(const float* partials, size_t count, size_t stride, size_t dim, size_t head_dim, float* out) {
  float state[kPartialHeader + kMaxHeadDim];
  memset(state, 0, (kPartialHeader + dim) * sizeof(float));
  for (size_t i = 0; i < count; i++) fold(state, partials + i * stride, dim);
  finish(state, head_dim, out);
}

}  // namespace FORERUN_NS
}  // namespace forerun
