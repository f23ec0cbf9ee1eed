// The Python module forerun.backends.cpu._core. Sizes and kinds are checked here or below; nothing passed in can crash the process.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>

#include "checksum.h"
#include "pass.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {
namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableBytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

Kind kind_of(std::uint32_t number) {
  if (!kind_known(number)) throw std::invalid_argument("no tensor type with the number " + std::to_string(number));
  return Kind(number);
}

// A sequence and the model it belongs to.
struct Cache {
  std::shared_ptr<Model> model;
  std::shared_ptr<Sequence> sequence;

  Cache(std::shared_ptr<Model> m, std::shared_ptr<Sequence> s) : model(std::move(m)), sequence(std::move(s)) {}

  void close() {
    sequence->closed = true;
    if (!sequence->busy) sequence->clear();  // else when its pass is closed
  }
  void truncate(std::int64_t length) {
    if (length < 0 || length > sequence->length())
      throw std::invalid_argument("cannot cut " + std::to_string(sequence->length()) + " tokens back to " + std::to_string(length));
    if (sequence->busy) throw std::invalid_argument("cannot cut a sequence in the middle of a pass: commit first, or leave the pass");
    sequence->truncate(length);
  }
  nb::tuple snapshot(int layer) const {
    const KvShape& shape = model->kv_shape();
    if (layer < 0 || layer >= shape.layers) throw nb::index_error("no such layer");
    const std::size_t row = std::size_t(shape.dim) * shape.element();
    const std::size_t sizes[] = {std::size_t(shape.kv_heads), std::size_t(sequence->length()), row};
    auto* both = new std::vector<std::byte>(2 * sizes[0] * sizes[1] * row);
    nb::capsule owner(both, [](void* p) noexcept { delete static_cast<std::vector<std::byte>*>(p); });
    std::byte* values = both->data() + both->size() / 2;
    sequence->snapshot(layer, both->data(), values);
    using Array = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<3>>;
    return nb::make_tuple(Array(both->data(), 3, sizes, owner), Array(values, 3, sizes, owner));
  }
  nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>> store() const {
    if (sequence->closed) throw PassError("a closed sequence cannot be stored");
    auto* bytes = new std::vector<std::byte>(sequence->stored_bytes());
    nb::capsule owner(bytes, [](void* p) noexcept { delete static_cast<std::vector<std::byte>*>(p); });
    sequence->store(bytes->data());
    const std::size_t size[] = {bytes->size()};
    return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(bytes->data(), 1, size, owner);
  }
  Cache* fork() {
    if (sequence->closed) throw PassError("a closed sequence cannot be forked");
    return new Cache(model, sequence->fork());
  }
};

// A sequence with the tokens of another model's, which this one then reads and writes as its own: the two must store a
// layer alike, and this one have no more of them.
Cache* borrow(std::shared_ptr<Model> model, const Cache& lent) {
  const KvShape &ours = model->kv_shape(), &theirs = lent.model->kv_shape();
  if (lent.sequence->closed) throw PassError("a closed sequence cannot be borrowed");
  if (ours.kv_heads != theirs.kv_heads || ours.dim != theirs.dim || ours.half != theirs.half || ours.layers > theirs.layers)
    throw PassError("keys and values of another kind cannot be borrowed: heads, sizes and types must be the same, and layers enough");
  return new Cache(std::move(model), lent.sequence->fork());
}

// Python's signal handlers get a turn about every 20 ms, on the main thread: elsewhere Python runs none.
class Signals {
 public:
  explicit Signals(bool main_thread) : main_thread_(main_thread) {}
  void operator()() {
    if (!main_thread_) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(20)) return;
    last_ = now;
    nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }

 private:
  bool main_thread_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

using FeedArguments = std::tuple<Cache*, std::vector<std::int32_t>, std::vector<std::int32_t>, std::vector<std::int32_t>, bool>;

std::unique_ptr<Pass> forward(std::shared_ptr<Model> model, std::vector<FeedArguments> feeds, std::vector<int> hidden, bool every_row, bool main_thread) {
  std::vector<FeedInput> inputs;
  inputs.reserve(feeds.size());
  for (auto& [cache, input_tokens, nodes, parents, logits] : feeds) {
    if (cache == nullptr) throw std::invalid_argument("a feed without a sequence");
    if (cache->model != model) throw PassError("a sequence of another model was fed");
    inputs.push_back({cache->sequence, std::move(input_tokens), std::move(nodes), std::move(parents), logits});
  }
  auto pass = std::make_unique<Pass>(std::move(model), std::move(hidden), every_row);
  pass->prepare(std::move(inputs));
  Signals signals(main_thread);
  {
    nb::gil_scoped_release unlocked;
    pass->compute(signals);
  }
  return pass;
}

FloatRows rows_view(const float* data, std::int64_t rows, std::int64_t columns, std::shared_ptr<std::vector<float>> owner) {
  auto* keep = new std::shared_ptr<std::vector<float>>(std::move(owner));
  nb::capsule capsule(keep, [](void* p) noexcept { delete static_cast<std::shared_ptr<std::vector<float>>*>(p); });
  return FloatRows(const_cast<float*>(data), {std::size_t(rows), std::size_t(columns)}, capsule);
}

void check_feed(const Pass& pass, std::size_t feed) {
  if (pass.closed()) throw PassError("the pass is over; its results are gone");
  if (feed >= pass.feeds()) throw nb::index_error("no such feed");
}

}  // namespace
}  // namespace forerun

NB_MODULE(_core, m) {
  using namespace forerun;

  nb::exception<PassError>(m, "PassError", PyExc_RuntimeError);

  m.def("best_isa", [] { return std::string(isa_name(best_isa())); });
  m.def("active_isa", [] { return std::string(isa_name(active_isa())); });
  m.def("supported_isas", [] {
    std::vector<std::string> names;
    for (Isa isa : {Isa::portable, Isa::neon, Isa::avx2, Isa::avx512})
      if (isa_supported(isa)) names.emplace_back(isa_name(isa));
    return names;
  });
  m.def("probe_bandwidth", [](unsigned threads) {
    nb::gil_scoped_release unlocked;
    Pool pool(threads);
    return probe_bandwidth(pool);
  }, "threads"_a, "Bytes a second that so many threads read from memory together.");
  m.def("probe_integer_peak", [](unsigned threads) {
    nb::gil_scoped_release unlocked;
    Pool pool(threads);
    return probe_integer_peak(linear_kernels(active_isa()), pool);
  }, "threads"_a, "Multiply-adds of int8 a second of so many threads together.");
  m.def("checksum", [](Bytes data) {
    nb::gil_scoped_release unlocked;
    return checksum(data.data(), data.size());
  }, "data"_a.noconvert());
  m.def("row_bytes", [](std::uint32_t kind, std::size_t columns) { return row_bytes(kind_of(kind), columns); }, "kind"_a, "columns"_a);
  m.def("kind_block", [](std::uint32_t kind) { return kind_block(kind_of(kind)); }, "kind"_a);
  m.def("packed_bytes", [](std::uint32_t kind, std::size_t rows, std::size_t columns) { return PackedMatrix::packed_bytes(kind_of(kind), rows, columns); },
        "kind"_a, "rows"_a, "columns"_a);
  m.def("pack_into", [](std::uint32_t kind, std::size_t rows, std::size_t columns, Bytes data, WritableBytes destination) {
    PackedMatrix::pack_into(kind_of(kind), rows, columns, data.data(), data.size(), destination.data(), destination.size());
  }, "kind"_a, "rows"_a, "columns"_a, "data"_a.noconvert(), "destination"_a.noconvert());
  m.def("quantize", [](Floats values, std::size_t rows, std::size_t columns, bool eight_bits, WritableBytes destination) {
    const Kind kind = eight_bits ? Kind::Q8_0 : Kind::Q4_1;
    if (rows == 0 || values.size() / rows != columns || values.size() % rows != 0 || destination.size() / rows != row_bytes(kind, columns) ||
        destination.size() % rows != 0)
      throw std::invalid_argument("sizes do not fit");
    (eight_bits ? quantize_w8 : quantize_w4)(values.data(), rows, columns, destination.data());
  }, "values"_a.noconvert(), "rows"_a, "columns"_a, "eight_bits"_a, "destination"_a.noconvert());

  nb::class_<PackedMatrix>(m, "PackedMatrix")
      .def_static("pack", [](std::uint32_t kind, std::size_t rows, std::size_t columns, Bytes data) {
        return PackedMatrix::pack(kind_of(kind), rows, columns, data.data(), data.size());
      }, "kind"_a, "rows"_a, "columns"_a, "data"_a.noconvert())
      .def_static("view", [](Bytes blob) { return PackedMatrix::view(blob.data(), blob.size()); }, "blob"_a.noconvert(), nb::keep_alive<0, 1>())
      .def_prop_ro("kind", [](const PackedMatrix& w) { return std::uint32_t(w.kind()); })
      .def_prop_ro("rows", &PackedMatrix::rows)
      .def_prop_ro("columns", &PackedMatrix::cols)
      .def("row", [](const PackedMatrix& w, std::size_t row) {
        if (row >= w.rows()) throw nb::index_error("no such row");
        auto values = std::make_shared<std::vector<float>>(w.cols());
        dequantize_row(w, row, values->data());
        return rows_view(values->data(), 1, std::int64_t(w.cols()), values);
      }, "row"_a);

  nb::class_<Shape>(m, "Shape")
      .def(nb::init<>())
      .def_rw("vocab", &Shape::vocab)
      .def_rw("head_rows", &Shape::head_rows)
      .def_rw("width", &Shape::width)
      .def_rw("layers", &Shape::layers)
      .def_rw("heads", &Shape::heads)
      .def_rw("kv_heads", &Shape::kv_heads)
      .def_rw("head_dim", &Shape::head_dim)
      .def_rw("ffn", &Shape::ffn)
      .def_rw("context", &Shape::context)
      .def_rw("norm_eps", &Shape::norm_eps)
      .def_rw("query_scale", &Shape::query_scale)
      .def_rw("embed_scale", &Shape::embed_scale)
      .def_rw("qk_norm", &Shape::qk_norm)
      .def_rw("post_norms", &Shape::post_norms)
      .def_rw("gelu", &Shape::gelu)
      .def_rw("tied", &Shape::tied)
      .def_rw("windows", &Shape::windows)
      .def_rw("local", &Shape::local)
      .def_rw("frequencies", &Shape::frequencies)
      .def_rw("local_frequencies", &Shape::local_frequencies)
      .def_rw("attention_factor", &Shape::attention_factor);

  nb::class_<Cache>(m, "Sequence")
      .def_prop_ro("length", [](const Cache& c) { return c.sequence->length(); })
      .def("pages_needed", [](const Cache& c, std::int64_t length) { return c.sequence->pages_needed(length); }, "length"_a)
      .def("truncate", &Cache::truncate, "length"_a)
      .def("fork", &Cache::fork, nb::rv_policy::take_ownership)
      .def("snapshot", &Cache::snapshot, "layer"_a)
      .def("store", &Cache::store)
      .def("close", &Cache::close);

  nb::class_<Pass>(m, "Pass")
      .def("logits", [](const Pass& pass, std::size_t feed) {
        check_feed(pass, feed);
        std::int64_t rows;
        const float* data = pass.logits(feed, &rows);
        return rows_view(data, rows, pass.outputs(), pass.logits_owner());
      }, "feed"_a)
      .def("hidden", [](const Pass& pass, std::size_t feed, int layer) {
        check_feed(pass, feed);
        std::int64_t rows;
        const float* data = pass.hidden(feed, layer, &rows);
        return rows_view(data, rows, pass.width(), pass.hidden_owner());
      }, "feed"_a, "layer"_a)
      .def("commit", [](Pass& pass, std::size_t feed, const std::vector<std::int32_t>& path) {
        check_feed(pass, feed);
        pass.commit(feed, path);
      }, "feed"_a, "path"_a)
      .def("close", &Pass::close);

  nb::class_<Model>(m, "Model")
      .def("__init__", [](Model* self, const Shape& shape, unsigned threads, bool half_kv, std::size_t kv_limit, const std::string& isa) {
        new (self) Model(shape, threads, half_kv, kv_limit, isa.empty() ? active_isa() : parse_isa(isa.c_str()));
      }, "shape"_a, "threads"_a = 1, "half_kv"_a = true, "kv_limit"_a = SIZE_MAX, "isa"_a = "")
      .def("set_vector", [](Model& model, const std::string& name, Floats values) { model.set_vector(name, values.data(), values.size()); },
           "name"_a, "values"_a.noconvert())
      .def("set_matrix", [](Model& model, const std::string& name, const PackedMatrix& matrix) { model.set_matrix(name, matrix); },
           "name"_a, "matrix"_a, nb::keep_alive<1, 3>())
      .def("finish", &Model::finish)
      .def("open", [](std::shared_ptr<Model> model) {
        auto sequence = model->open();
        return new Cache(std::move(model), std::move(sequence));
      }, nb::rv_policy::take_ownership)
      .def("restore", [](std::shared_ptr<Model> model, Bytes stored, std::int64_t length) {
        const std::int64_t pages = (length + kPagePositions - 1) / kPagePositions;
        if (length < 0 || std::size_t(pages) * model->kv_shape().page() != stored.size())
          throw std::invalid_argument("the stored keys and values are not of " + std::to_string(length) + " tokens of this model");
        auto sequence = model->open();
        sequence->restore(reinterpret_cast<const std::byte*>(stored.data()), length);
        return new Cache(std::move(model), std::move(sequence));
      }, "stored"_a, "length"_a, nb::rv_policy::take_ownership)
      .def("borrow", &borrow, "sequence"_a, nb::rv_policy::take_ownership)
      .def("forward", &forward, "feeds"_a, "hidden"_a = std::vector<int>(), "every_row"_a = false, "main_thread"_a = false)
      .def_prop_ro("isa", [](Model& model) { return std::string(isa_name(model.isa)); })
      .def_prop_ro("kv_bytes", [](Model& model) { return model.pages().bytes(); })
      .def_prop_ro("kv_page_bytes", [](Model& model) { return model.kv_shape().page(); })
      .def_prop_ro("kv_pages", [](Model& model) { return nb::make_tuple(model.pages().free(), model.pages().total()); })
      .def_prop_ro("threads", [](Model& model) { return model.pool.threads(); })
      .def("set_threads", [](Model& model, unsigned threads) {
        nb::gil_scoped_release unlocked;
        std::lock_guard lock(model.mutex);
        model.pool.resize(threads);
      }, "threads"_a);
}
