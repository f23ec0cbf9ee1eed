// The whole pass on a random tiny model: the same bits for every instruction set, number of threads, chunk, tree and company,
// transactions on KV, and errors that leave sequences as they were.
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "../pass.h"
#include "check.h"

using namespace forerun;

// True if f throws what the core throws on purpose.
template <class F>
static bool throws(F f) {
  try {
    f();
  } catch (const std::runtime_error&) {
    return true;
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

namespace {

using Tokens = std::vector<std::int32_t>;
using Rows = std::vector<std::vector<float>>;

constexpr std::int64_t kVocab = 90, kWidth = 64, kFfn = 96, kContext = 700;

Shape shape_of() {
  Shape s;
  s.vocab = kVocab, s.width = kWidth, s.layers = 3, s.heads = 6, s.kv_heads = 2, s.head_dim = 24, s.ffn = kFfn, s.context = kContext;
  s.norm_eps = 1e-5f, s.query_scale = 0.2f, s.qk_norm = true, s.post_norms = true, s.gelu = true, s.tied = true;
  s.windows = {9, 70, 0}, s.local = {1, 1, 0};
  for (int i = 0; i < 12; ++i) {
    s.frequencies.push_back(std::pow(1e6, -i / 12.0));
    s.local_frequencies.push_back(std::pow(1e4, -i / 12.0));
  }
  return s;
}

std::vector<float> normal(std::size_t n, unsigned seed, float mean, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(mean, scale);
  std::vector<float> values(n);
  for (float& v : values) v = draw(random);
  return values;
}

// Matrices take turns as fp32, 8 bits and 4 bits.
PackedMatrix matrix(std::size_t rows, std::size_t cols, unsigned seed) {
  const std::vector<float> x = normal(rows * cols, seed, 0, 1.5f / std::sqrt(float(cols)));
  const Kind kind = cols % 32 || seed % 3 == 0 ? Kind::F32 : seed % 3 == 1 ? Kind::Q8_0 : Kind::Q4_1;
  std::vector<std::uint8_t> data(rows * row_bytes(kind, cols));
  if (kind == Kind::F32) std::memcpy(data.data(), x.data(), data.size());
  else (kind == Kind::Q8_0 ? quantize_w8 : quantize_w4)(x.data(), rows, cols, data.data());
  return PackedMatrix::pack(kind, rows, cols, data.data(), data.size());
}

std::shared_ptr<Model> model_of(Isa isa, unsigned threads, bool half = true, std::size_t kv_limit = SIZE_MAX) {
  const Shape s = shape_of();
  auto model = std::make_shared<Model>(s, threads, half, kv_limit, isa);
  unsigned seed = 1;
  const auto vector = [&](const std::string& name, std::int64_t n) {
    const std::vector<float> values = normal(std::size_t(n), seed++, 1, 0.1f);
    model->set_vector(name, values.data(), values.size());
  };
  model->set_matrix("embed", matrix(kVocab, kWidth, seed++));
  vector("norm", kWidth);
  for (int i = 0; i < s.layers; ++i) {
    const std::string p = "layers." + std::to_string(i) + ".";
    for (const char* name : {"attn_norm", "post_attn_norm", "ffn_norm", "post_ffn_norm"}) vector(p + name, kWidth);
    vector(p + "q_norm", s.head_dim), vector(p + "k_norm", s.head_dim);
    model->set_matrix(p + "q", matrix(std::size_t(s.q_size()), kWidth, seed++));
    model->set_matrix(p + "k", matrix(std::size_t(s.kv_size()), kWidth, seed++));
    model->set_matrix(p + "v", matrix(std::size_t(s.kv_size()), kWidth, seed++));
    model->set_matrix(p + "o", matrix(kWidth, std::size_t(s.q_size()), seed++));
    model->set_matrix(p + "gate", matrix(kFfn, kWidth, seed++));
    model->set_matrix(p + "up", matrix(kFfn, kWidth, seed++));
    model->set_matrix(p + "down", matrix(kWidth, kFfn, seed++));
  }
  model->finish();
  return model;
}

Tokens text(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  Tokens tokens(n);
  for (auto& t : tokens) t = std::int32_t(random() % kVocab);
  return tokens;
}

std::unique_ptr<Pass> pass_of(const std::shared_ptr<Model>& model, std::vector<FeedInput> feeds, bool every_row = false) {
  auto pass = std::make_unique<Pass>(model, std::vector<int>{}, every_row);
  pass->prepare(std::move(feeds));
  pass->compute([] {});
  return pass;
}

Rows rows_of(const Pass& pass, std::size_t feed) {
  std::int64_t count;
  const float* data = pass.logits(feed, &count);
  Rows rows;
  for (std::int64_t r = 0; r < count; ++r) rows.emplace_back(data + r * kVocab, data + (r + 1) * kVocab);
  return rows;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void read(const std::shared_ptr<Model>& model, const std::shared_ptr<Sequence>& sequence, const Tokens& tokens, std::size_t chunk) {
  for (std::size_t at = 0; at < tokens.size(); at += chunk) {
    const Tokens part(tokens.begin() + std::ptrdiff_t(at), tokens.begin() + std::ptrdiff_t(std::min(tokens.size(), at + chunk)));
    pass_of(model, {{sequence, part, {}, {}, false}})->commit(0, {});
  }
}

// Two subtrees whose nodes lie between one another, and a chain longer than the narrowest window.
const std::vector<std::int32_t> kParents = {-1, -1, 0, 1, 0, 2, 3, 5, 7, 8, 9, 10, 11, 12, 13};

Tokens path_of(std::int32_t node) {
  Tokens path;
  for (; node >= 0; node = kParents[std::size_t(node)]) path.insert(path.begin(), node);
  return path;
}

const Tokens kDrafted = text(kParents.size(), 99);
constexpr std::int32_t kKept = 8;  // the node whose path is committed

Tokens with_path(Tokens tokens, std::int32_t node) {
  for (std::int32_t n : path_of(node)) tokens.push_back(kDrafted[std::size_t(n)]);
  return tokens;
}

// Rows of the root and of every node, each by a prefill of its own text in portable code, and the row behind what was kept.
Rows oracle(const std::shared_ptr<Model>& portable, const Tokens& prompt) {
  Rows rows;
  const auto last = [&](const Tokens& tokens) {
    auto fresh = portable->open();
    rows.push_back(rows_of(*pass_of(portable, {{fresh, tokens, {}, {}, true}}), 0).back());
  };
  for (std::int32_t node = -1; node < std::int32_t(kParents.size()); ++node) last(with_path(prompt, node));
  Tokens next = with_path(prompt, kKept);
  next.push_back(17);
  last(next);
  return rows;
}

void test_same_bits(const std::shared_ptr<Model>& model, const Tokens& prompt, const Rows& wanted) {
  auto sequence = model->open(), company = model->open();
  read(model, sequence, Tokens(prompt.begin(), prompt.end() - 1), prompt.size() % 2 ? 7 : 100);
  const auto pass = pass_of(model, {{company, text(11, 5), {4, 5}, {-1, -1}, true}, {sequence, {prompt.back()}, kDrafted, kParents, true}});
  const Rows rows = rows_of(*pass, 1);
  CHECK(rows.size() + 1 == wanted.size());
  for (std::size_t r = 0; r < rows.size(); ++r) CHECK(same(rows[r], wanted[r]));
  pass->commit(1, path_of(kKept));
  pass->close();
  CHECK(sequence->length() == std::int64_t(prompt.size() + path_of(kKept).size()));
  CHECK(same(rows_of(*pass_of(model, {{sequence, {17}, {}, {}, true}}), 0)[0], wanted.back()));
}

void test_situations(bool half) {
  const auto portable = model_of(Isa::portable, 1, half);
  std::vector<std::shared_ptr<Model>> models = {model_of(Isa::portable, 2, half)};
  for (Isa isa : {Isa::neon, Isa::avx2, Isa::avx512})
    if (isa_supported(isa))
      for (unsigned threads : {1u, 2u}) models.push_back(model_of(isa, threads, half));
  for (std::size_t before : {1u, 3u, 63u, 64u, 65u, 130u, 255u, 257u}) {
    const Tokens prompt = text(before, unsigned(before));
    const Rows wanted = oracle(portable, prompt);
    for (const auto& model : models) test_same_bits(model, prompt, wanted);
  }
}

void test_transactions() {
  const auto model = model_of(best_isa(), 2);
  auto first = model->open();
  read(model, first, text(70, 1), 70);
  auto second = first->fork();
  const Rows wanted = rows_of(*pass_of(model, {{first, {5}, {}, {}, true}}), 0);
  CHECK(first->length() == 70);
  CHECK(same(rows_of(*pass_of(model, {{second, {5}, {}, {}, true}}), 0)[0], wanted[0]));
  read(model, second, text(30, 2), 30);
  first->truncate(70);
  CHECK(same(rows_of(*pass_of(model, {{first, {5}, {}, {}, true}}), 0)[0], wanted[0]));
  second->truncate(70);
  CHECK(same(rows_of(*pass_of(model, {{second, {5}, {}, {}, true}}), 0)[0], wanted[0]));

  Pass stopped(model, {}, false);
  stopped.prepare({{first, text(40, 3), {1, 2}, {-1, 0}, true}});
  CHECK(throws([&] { stopped.compute([] { throw std::runtime_error("stop"); }); }));
  stopped.close();
  CHECK(first->length() == 70 && !first->busy);
  CHECK(same(rows_of(*pass_of(model, {{first, {5}, {}, {}, true}}), 0)[0], wanted[0]));
}

void test_errors() {
  const auto model = model_of(best_isa(), 1);
  auto sequence = model->open();
  const auto refused = [&](const FeedInput& feed) {
    Pass pass(model, {}, false);
    CHECK(throws([&] { pass.prepare({feed}); }));
    CHECK(!sequence->busy && sequence->length() == 0);
  };
  refused({sequence, {}, {}, {}, true});
  refused({sequence, {-1}, {}, {}, true});
  refused({sequence, {std::int32_t(kVocab)}, {}, {}, true});
  refused({sequence, {1}, {2}, {0}, true});
  refused({sequence, {1}, {2}, {-2}, true});
  refused({sequence, {1}, {2, 3}, {-1}, true});
  refused({sequence, text(kContext + 1, 1), {}, {}, true});
  refused({nullptr, {1}, {}, {}, true});
  Pass hidden(model, {3}, false);
  CHECK(throws([&] { hidden.prepare({}); }));

  const auto small = model_of(best_isa(), 1, true, model->kv_shape().page());
  auto one = small->open(), two = small->open();
  read(small, one, text(64, 1), 64);
  Pass full(small, {}, false);
  CHECK(throws([&] { full.prepare({{two, {1}, {}, {}, true}}); }));
  one.reset();
  read(small, two, text(64, 1), 64);
  CHECK(two->length() == 64);
}

// A draft that may go on past the end of a page needs a page for itself and one for what is kept of it: both or none.
void test_room_for_what_is_committed() {
  const std::size_t page = model_of(best_isa(), 1)->kv_shape().page();
  for (std::size_t pages : {2u, 3u}) {
    const auto model = model_of(best_isa(), 1, true, pages * page);
    auto sequence = model->open();
    read(model, sequence, text(62, 1), 62);
    Pass pass(model, {}, false);
    const FeedInput feed{sequence, {5}, {1, 2, 3}, {-1, 0, 1}, true};
    if (pages == 2) {
      CHECK(throws([&] { pass.prepare({feed}); }));
      CHECK(sequence->length() == 62 && !sequence->busy && model->pages().free() == 1);
      Pass shorter(model, {}, false);
      shorter.prepare({{sequence, {5}, {1}, {-1}, true}});
      shorter.compute([] {});
      shorter.commit(0, {0});
      CHECK(sequence->length() == 64);
      continue;
    }
    pass.prepare({feed});
    pass.compute([] {});
    CHECK(model->pages().free() == 0);
    pass.commit(0, {0, 1, 2});
    pass.close();
    CHECK(sequence->length() == 66 && model->pages().free() == 1);
  }
}

}  // namespace

int main() {
  test_situations(true);
  test_situations(false);
  test_transactions();
  test_errors();
  test_room_for_what_is_committed();
  return failures() > 0;
}
