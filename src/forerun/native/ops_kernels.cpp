// Norms, rotary embedding, gated activations and the writing of KV. Compiled once per instruction set.
#include "pass_kernels.h"
#include "simd.h"

namespace forerun {
namespace FORERUN_NS {
namespace {

#include "math.inc"

// Applies f to `n` floats of a and b, sixteen at a time; each lane on its own, so the tail needs no other order.
template <class F>
FORERUN_INLINE void each(float* a, const float* b, size_t n, F f) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) store(a + i, f(load(a + i), load(b + i)));
  if (i < n) store_first(a + i, f(load_first(a + i, n - i), load_first(b + i, n - i)), n - i);
}

void rms_norm(const float* x, const float* weight, float eps, size_t n, float* out) {
  F16 squares[4] = {zero(), zero(), zero(), zero()};
  size_t i = 0;
  for (; i + 64 <= n; i += 64)
    for (int k = 0; k < 4; k++) {
      F16 v = load(x + i + 16 * k);
      squares[k] = fma(v, v, squares[k]);
    }
  for (int k = 0; i < n; i += 16, k++) {
    F16 v = n - i < 16 ? load_first(x + i, n - i) : load(x + i);
    squares[k] = fma(v, v, squares[k]);
  }
  float total = sum(add(add(squares[0], squares[1]), add(squares[2], squares[3])));
  F16 inverse = div(broadcast(1.0f), sqrt(broadcast(total / (float)n + eps)));
  for (i = 0; i + 16 <= n; i += 16) store(out + i, mul(mul(load(x + i), inverse), load(weight + i)));
  if (i < n) store_first(out + i, mul(mul(load_first(x + i, n - i), inverse), load_first(weight + i, n - i)), n - i);
}

void add_rows(float* x, const float* y, size_t n) {
  each(x, y, n, [](F16 a, F16 b) { return add(a, b); });
}

void scale(float* x, float factor, size_t n) {
  each(x, x, n, [factor](F16 a, F16) { return mul(a, broadcast(factor)); });
}

void silu_gate(float* gate, const float* up, size_t n) {
  each(gate, up, n, [](F16 a, F16 b) { return mul(silu(a), b); });
}

void gelu_gate(float* gate, const float* up, size_t n) {
  each(gate, up, n, [](F16 a, F16 b) { return mul(gelu_tanh(a), b); });
}

void rotate(const float* x, const float* cosines, const float* sines, size_t half, float factor, size_t dim, float* out) {
  const F16 f = broadcast(factor);
  for (size_t i = 0; i < half; i += 16) {
    size_t n = half - i < 16 ? half - i : 16;
    F16 a = load_first(x + i, n), b = load_first(x + half + i, n);
    F16 c = load_first(cosines + i, n), s = load_first(sines + i, n);
    F16 first = fnma(b, s, mul(a, c)), second = fma(a, s, mul(b, c));
    store_first(out + i, mul(first, f), n);
    store_first(out + half + i, mul(second, f), n);
  }
  for (size_t i = 2 * half; i < dim; i++) out[i] = 0.0f;
}

// The largest magnitude of sixteen numbers, as bits: for numbers without sign their order is that of integers.
FORERUN_INLINE I16 larger(I16 peak, F16 x) { return max(peak, as_int(absolute(x))); }

bool store_kv(const float* k, const float* v, size_t dim, bool half, int slot, std::byte* to) {
  const size_t panel = dim * kPagePositions;
  I16 peaks[2] = {broadcast(int32_t(0)), broadcast(int32_t(0))};
  if (half) {
    uint16_t *keys = (uint16_t*)to, *values = keys + panel + (size_t)slot * dim;
    for (size_t d = 0; d < dim; d += 16) {
      uint16_t t[16];
      store_half(t, load(k + d));
      peaks[0] = larger(peaks[0], load_half(t));
      for (size_t i = 0; i < 16; i++) keys[(d + i) * kPagePositions + slot] = t[i];
      store_half(values + d, load(v + d));
      peaks[1] = larger(peaks[1], load_half(values + d));
    }
  } else {
    float *keys = (float*)to, *values = keys + panel + (size_t)slot * dim;
    for (size_t d = 0; d < dim; d += 16) {
      peaks[0] = larger(peaks[0], load(k + d));
      peaks[1] = larger(peaks[1], load(v + d));
    }
    for (size_t d = 0; d < dim; d++) keys[d * kPagePositions + slot] = k[d];
    memcpy(values, v, dim * sizeof(float));
  }
  bool finite = true;
  for (int i = 0; i < 2; i++) {
    const uint32_t bits = (uint32_t)max_of(peaks[i]);
    const bool good = bits < 0x7f800000u;
    finite = finite && good;
    if (half) ((float*)((uint16_t*)to + 2 * panel))[i * kPagePositions + slot] = good ? float_of(bits) : 0.0f;
  }
  return finite;
}

}  // namespace

void attend(const AttentionTask& task, std::int64_t from, std::int64_t to, float* partials, float* scratch);
size_t attend_scratch(size_t queries, size_t dim, size_t nodes);
void combine(const float* partials, size_t count, size_t stride, size_t dim, size_t head_dim, float* out);

extern const PassKernels pass_table;
const PassKernels pass_table = {rms_norm, add_rows, scale, silu_gate, gelu_gate, rotate, store_kv, attend_scratch, attend, combine};

}  // namespace FORERUN_NS
}  // namespace forerun
