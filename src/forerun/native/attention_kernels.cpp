// Attention of a few rows of one sequence over its pages of KV and the drafted nodes. Compiled once per instruction set.
//
// The order of every fp32 sum depends on positions alone: keys are taken in segments of 256 by absolute position, and segments are
// folded in order. A drafted row takes the keys of its own path at their positions, wherever the nodes lie, so siblings change
// nothing. Inside a segment, fp32 KV is summed in the order of dimensions and of positions (attention_float.inc); fp16 KV is
// turned into integers, whose sums have no order (attention_integer.inc).
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

constexpr int64_t lower(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t upper(int64_t a, int64_t b) { return a > b ? a : b; }
FORERUN_INLINE size_t round16(size_t n) { return (n + 15) / 16 * 16; }

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

// Scores of lanes [from, to) become f(lane, exp(s - peak)) and those of the other lanes of [first, last) become zero; both are
// multiples of 16. Stores peak and total of the exponentials.
template <class F>
FORERUN_INLINE void softmax(float* scores, size_t first, size_t last, size_t from, size_t to, float* peak_and_total, F f) {
  static const int32_t kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const F16 masked = broadcast(-__builtin_inff());
  F16 peaks = masked;
  for (size_t i = from / 16 * 16; i < to; i += 16) {
    F16 s = load(scores + i);
    if (i < from || i + 16 > to) {
      const F16 lane = add(to_float(load(kLanes)), broadcast((float)i));
      s = select(less(lane, broadcast((float)from)), masked, select(less(lane, broadcast((float)to)), s, masked));
      store(scores + i, s);
    }
    peaks = max(peaks, s);
  }
  const float peak = max_of(peaks);
  const F16 top = broadcast(peak);
  F16 totals = zero();
  size_t i = first;
  for (; i + 16 <= from; i += 16) store(scores + i, zero());
  for (; i < to; i += 16) {
    const F16 p = exp_or_zero(sub(load(scores + i), top));
    totals = add(totals, p);
    store(scores + i, f(i, p));
  }
  for (; i < last; i += 16) store(scores + i, zero());
  peak_and_total[0] = peak;
  peak_and_total[1] = sum(totals);
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

// The rows of a task and what they see of one segment.
struct Segment {
  const AttentionTask& task;
  size_t queries, dim;
  int64_t start = 0;                // its first position
  int64_t first = 0, last = 0;      // positions in pages that some row sees
  int64_t end = 0;                  // positions that some row sees, nodes included
  int32_t nodes = 0;                // nodes that some row sees, counted from the first

  explicit Segment(const AttentionTask& t) : task(t), queries((size_t)t.count * t.group), dim((size_t)t.dim) {}

  // False if no row sees anything of it.
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
      each_node(r, [&](int64_t, int32_t node) { nodes = node + 1 > nodes ? node + 1 : nodes; });
    }
    return first < end;
  }

  // Lanes of the segment, in sixteens, that hold everything seen.
  size_t lanes_from() const { return (size_t)(first - start) / 16 * 16; }
  size_t lanes_to() const { return round16((size_t)(end - start)); }

  // The page with a position, from where this layer and head begin.
  const std::byte* page_at(int64_t position) const { return task.pages[position / kPagePositions] + task.offset; }

  // Calls f(page, its first position, keys wanted [from, to) of it) for the pages that hold [first, last).
  template <class F>
  inline __attribute__((always_inline)) void each_page(F f) const {
    for (int64_t p = first / kPagePositions * kPagePositions; p < last; p += kPagePositions) {
      const int64_t from = upper(p, first), to = lower(p + kPagePositions, last);
      if (from >= to) continue;  // windows that begin behind the pages, among the nodes
      f(page_at(p), p, (size_t)(from - p), (size_t)(to - p));
    }
  }

  // Calls f(lane, node) for the nodes of row r's path that lie in the segment, in the order of positions.
  template <class F>
  inline __attribute__((always_inline)) void each_node(int r, F f) const {
    const AttentionRow& row = task.rows[r];
    const View view = view_of(task, row, start);
    for (int64_t p = upper(view.from, task.base); p < view.to; p++) f(p - start, row.path[p - task.base]);
  }
};

#include "attention_float.inc"
#include "attention_integer.inc"

// Scores of one row become weights; its nodes' scores take the lanes of their positions first.
template <class Sums>
FORERUN_INLINE void weigh(const Segment& s, Sums& sums, int r, float* parts, size_t part_stride) {
  const View view = view_of(s.task, s.task.rows[r], s.start);
  const size_t from = s.lanes_from(), to = s.lanes_to();
  sums.prepare(r);
  for (size_t q = (size_t)r * s.task.group; q < (size_t)(r + 1) * s.task.group; q++) {
    float *scores = sums.scores + q * kSegment, *part = parts + q * part_stride;
    memset(part, 0, part_stride * sizeof(float));
    if (view.from >= view.to) {
      sums.unseen(q);
      continue;
    }
    s.each_node(r, [&](int64_t lane, int32_t node) { scores[lane] = sums.node_scores[q * sums.node_stride + (size_t)node]; });
    sums.weigh(q, from, to, (size_t)(view.from - s.start), (size_t)(view.to - s.start), part);
  }
}

template <class Sums>
void attend_by(const AttentionTask& task, int64_t from, int64_t to, float* partials, float* scratch) {
  Segment segment(task);
  const size_t queries = segment.queries, part = kPartialHeader + segment.dim;
  size_t nodes = 0;
  for (int r = 0; r < task.count; r++)
    for (int i = 0; i < task.rows[r].depth; i++) nodes = (size_t)upper((int64_t)nodes, task.rows[r].path[i] + 1);
  float *states = scratch, *own = states + queries * part;
  Sums sums(segment, round16(nodes), own + queries * part);
  memset(states, 0, queries * part * sizeof(float));
  for (int64_t i = from; i < to; i++) {
    float* parts = partials ? partials + (size_t)(i - from) * queries * part : own;
    if (!segment.survey(i)) {
      if (partials) memset(parts, 0, queries * part * sizeof(float));
      continue;
    }
    sums.score();
    for (int r = 0; r < task.count; r++) weigh(segment, sums, r, parts, part);
    sums.gather(parts, part);
    if (partials) continue;
    for (size_t q = 0; q < queries; q++) fold(states + q * part, parts + q * part, segment.dim);
  }
  if (partials) return;
  for (size_t q = 0; q < queries; q++)
    finish(states + q * part, (size_t)task.head_dim,
           task.rows[q / task.group].out + ((size_t)task.head * task.group + q % task.group) * task.head_dim);
}

}  // namespace

void attend(const AttentionTask& task, std::int64_t from, std::int64_t to, float* partials, float* scratch) {
  if (task.half) attend_by<IntegerSums>(task, from, to, partials, scratch);
  else attend_by<FloatSums>(task, from, to, partials, scratch);
}

size_t attend_scratch(size_t queries, size_t dim, size_t nodes) {
  const size_t both = queries * (2 * (kPartialHeader + dim) + kSegment + round16(nodes));
  const size_t a = FloatSums::floats(queries), b = IntegerSums::floats(queries, dim);
  return both + (a > b ? a : b);
}

void combine(const float* partials, size_t count, size_t stride, size_t dim, size_t head_dim, float* out) {
  float state[kPartialHeader + kMaxHeadDim];
  memset(state, 0, (kPartialHeader + dim) * sizeof(float));
  for (size_t i = 0; i < count; i++) fold(state, partials + i * stride, dim);
  finish(state, head_dim, out);
}

}  // namespace FORERUN_NS
}  // namespace forerun
