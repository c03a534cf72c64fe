// Weights in a backend's own memory: the bytes that the arena would hold, piece by piece, and what
// goes wrong on the way.
#include "model/weights.hpp"

#include <cstring>

#include "backend/cpu/pack.hpp"
#include "backend/cuda/pack.hpp"
#include "model/architecture.hpp"
#include "support/catch.hpp"
#include "support/tiny_model.hpp"

using namespace decant::detail;
using namespace decant_test;
using decant::ErrorCode;
using decant::Result;
using decant::Status;

namespace {

/// Copies a piece as late as it may, and leaves nothing of it.
class TestStore final : public WeightStore {
 public:
  explicit TestStore(std::size_t piece_bytes = 1 << 20)
      : packed(piece_bytes), copied(piece_bytes) {}
  Result<std::byte*> take_matrix(std::uint64_t bytes) override {
    if (memory.size() == n_fit) return make_error(ErrorCode::out_of_memory, "full");
    memory.emplace_back(static_cast<std::size_t>(bytes));
    return memory.back().data();
  }
  std::span<std::byte> piece() override { return packed; }
  Status write(std::byte* to, std::size_t bytes) override {
    if (n_written == n_writes) return make_error(ErrorCode::device_lost, "lost");
    copy();
    std::swap(packed, copied);
    late = to;
    n_late = bytes;
    ++n_written;
    return {};
  }
  Status bind(const ModelWeights& weights) override {
    copy();
    bound = &weights;
    return n_written == n_writes ? make_error(ErrorCode::device_lost, "lost") : Status();
  }
  void copy() {
    if (late != nullptr) std::memcpy(late, copied.data(), n_late);
    std::fill(copied.begin(), copied.end(), std::byte{0xFF});
  }

  std::vector<std::byte> packed, copied;
  std::byte* late = nullptr;
  std::size_t n_late = 0;
  std::vector<std::vector<std::byte>> memory;
  std::size_t n_fit = SIZE_MAX, n_writes = SIZE_MAX, n_written = 0;
  const ModelWeights* bound = nullptr;
};

struct Loader {
  explicit Loader(const TinySpec& spec = {}) : bytes(random_model(spec).file()) {
    options.packing = &kCudaPacking;
    options.pool = &pool;
  }
  Result<LoadedWeights> load(WeightStore* store) {
    options.store = store;
    return LoadedWeights::load(file, spec, options);
  }

  std::vector<std::byte> bytes;
  Gguf file = Gguf::open(std::span<const std::byte>(bytes)).value();
  ModelSpec spec = read_model_spec(file).value();
  ThreadPool pool{2};
  WeightOptions options;
};

std::vector<const Weight*> matrices(const LoadedWeights& loaded) {
  const ModelWeights& w = loaded.weights();
  std::vector<const Weight*> all = {&w.embedding, &w.head};
  for (const LayerWeights& l : w.layers)
    for (const Weight* m : l.matrices()) all.push_back(m);
  return all;
}

}  // namespace

TEST_CASE("weights: a store gets the bytes of the arena, each matrix once, in pieces") {
  for (const Packing* packing : {&kCudaPacking, &kCpuPacking})
    for (const bool tied : {false, true}) {
      Loader loader({.n_embd = 4224, .tied = tied});
      loader.options.packing = packing;
      const LoadedWeights wanted = loader.load(nullptr).value();
      const auto a = matrices(wanted);
      const std::size_t group = a[0]->group_bytes;  // the largest
      for (const std::size_t room : {group, 3 * group + 1, 100 * group}) {
        TestStore store(room);
        const LoadedWeights got = loader.load(&store).value();
        const auto b = matrices(got);
        for (std::size_t i = 0; i < a.size(); ++i) {
          CAPTURE(tied, room, i);
          const std::size_t n = static_cast<std::size_t>(a[i]->n_groups()) * a[i]->group_bytes;
          REQUIRE(std::memcmp(a[i]->data, b[i]->data, n) == 0);
        }
        CHECK(store.memory.size() == a.size() - (tied ? 1 : 0));
        CHECK(store.bound != nullptr);
        CHECK((b[0]->data == b[1]->data) == tied);
        CHECK(got.memory_bytes() == wanted.memory_bytes());
      }
    }
}

TEST_CASE("weights: a store's errors are the load's, and a cancelled load is not bound") {
  Loader loader;
  TestStore all;
  REQUIRE(loader.load(&all));
  CHECK(all.memory.size() == 2 + 2 * 7);
  CHECK(all.n_written == all.memory.size());
  for (std::size_t n = 0; n <= all.n_written; ++n) {
    CAPTURE(n);
    TestStore full, lost;
    full.n_fit = n;
    lost.n_writes = n;
    if (n < all.n_written) {
      CHECK(loader.load(&full).error().code() == ErrorCode::out_of_memory);
      CHECK(full.bound == nullptr);
    }
    CHECK(loader.load(&lost).error().code() == ErrorCode::device_lost);
  }
  int n_left = 5;
  loader.options.progress_user = &n_left;
  loader.options.progress = [](void* n, float) { return --*static_cast<int*>(n) > 0; };
  TestStore store;
  CHECK(loader.load(&store).error().code() == ErrorCode::callback_failed);
  CHECK(store.bound == nullptr);
}
