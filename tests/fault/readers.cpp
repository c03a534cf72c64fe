// A host's file that fails, throws or lies, and loads that the host cancels.
#include <cstring>
#include <new>
#include <stdexcept>

#include "support/catch.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;
using decant::Error;
using decant::ErrorCode;
using decant::ModelOptions;

namespace {

struct FaultyReader final : decant::Reader {
  enum Fault { error, throws, throws_memory, throws_int };
  std::vector<std::byte> bytes;
  std::size_t fails_at = SIZE_MAX, n_reads = 0;
  Fault fault = error;
  bool size_throws = false;
  std::uint64_t lied_size = 0;

  std::uint64_t size() override {
    if (size_throws) throw std::runtime_error("no size");
    return lied_size != 0 ? lied_size : bytes.size();
  }
  decant::Status read(std::uint64_t offset, std::span<std::byte> to) override {
    if (n_reads++ == fails_at) {
      if (fault == throws) throw std::runtime_error("the archive is locked");
      if (fault == throws_memory) throw std::bad_alloc();
      if (fault == throws_int) throw 42;
      return Error(ErrorCode::io, "the archive is locked");
    }
    if (offset > bytes.size() || to.size() > bytes.size() - offset)
      return Error(ErrorCode::io, "behind the end");
    std::memcpy(to.data(), bytes.data() + offset, to.size());
    return {};
  }
  std::string_view name() const override { return "archive/tiny.gguf"; }
};

decant::Result<decant::Model> load(FaultyReader& reader, const ModelOptions& options = {}) {
  reader.n_reads = 0;
  decant::Reader* const parts[] = {&reader};
  return decant::Model::load(std::span(parts), options);
}

}  // namespace

TEST_CASE("the N-th read of a host's file fails") {
  FaultyReader reader;
  reader.bytes = random_model().file();
  std::size_t n = 0;
  REQUIRE(load(reader));
  const std::size_t all = reader.n_reads;
  REQUIRE(all > 20);  // the header, and every tensor
  for (; n <= all; ++n) {
    reader.fails_at = n;
    for (const auto fault : {FaultyReader::error, FaultyReader::throws, FaultyReader::throws_memory,
                             FaultyReader::throws_int}) {
      reader.fault = fault;
      const auto model = load(reader);
      CAPTURE(n, static_cast<int>(fault));
      REQUIRE(bool(model) == (n == all));
      if (model) continue;
      CAPTURE(model.error().message());
      if (fault == FaultyReader::error) {
        CHECK(model.error().code() == ErrorCode::io);
        CHECK(model.error().message().find("archive is locked") != std::string_view::npos);
      } else {
        const bool right = model.error().code() == ErrorCode::callback_failed ||
                           model.error().code() == ErrorCode::out_of_memory;
        CHECK(right);
      }
    }
  }
}

TEST_CASE("a host's file that has no size, a wrong one, or is not there") {
  FaultyReader reader;
  reader.bytes = random_model().file();
  reader.size_throws = true;
  const auto no_size = load(reader);
  REQUIRE_FALSE(no_size);
  CHECK(no_size.error().code() == decant::ErrorCode::callback_failed);
  reader.size_throws = false;
  for (const std::uint64_t lie :
       {std::uint64_t{1}, std::uint64_t{24}, std::uint64_t{reader.bytes.size() - 1},
        std::uint64_t{reader.bytes.size() - 1000}}) {
    reader.lied_size = lie;
    const auto model = load(reader);
    REQUIRE_FALSE(model);
    CHECK(model.error().code() == ErrorCode::invalid_file);
  }
  // Larger than it is: the reads themselves fail at the latest.
  reader.lied_size = reader.bytes.size();
  reader.bytes.resize(reader.bytes.size() / 2);
  const auto half = load(reader);
  REQUIRE_FALSE(half);
  CHECK(half.error().code() == ErrorCode::io);

  const auto none = decant::Model::load(std::span<decant::Reader* const>());
  REQUIRE_FALSE(none);
  CHECK(none.error().code() == ErrorCode::invalid_argument);
  decant::Reader* const null[] = {nullptr};
  const auto nothing = decant::Model::load(std::span(null));
  REQUIRE_FALSE(nothing);
  CHECK(nothing.error().code() == ErrorCode::invalid_argument);
}

TEST_CASE("a load is cancelled at each call of progress") {
  const std::vector<std::byte> file = random_model().file();
  struct Progress {
    std::size_t cancel_at = SIZE_MAX;
    bool throws = false;
    std::vector<float> seen;
    static bool report(void* self, float fraction) {
      auto& p = *static_cast<Progress*>(self);
      p.seen.push_back(fraction);
      if (p.seen.size() - 1 != p.cancel_at) return true;
      if (p.throws) throw std::runtime_error("host");
      return false;
    }
  } progress;
  ModelOptions options;
  options.threads = 2;
  options.progress = Progress::report;
  options.progress_user = &progress;
  REQUIRE(decant::Model::load(std::span(file), options));
  const std::vector<float> all = progress.seen;
  REQUIRE(all.size() > 10);
  CHECK(all.front() == 0.0f);
  CHECK(all.back() == 1.0f);
  for (std::size_t i = 1; i < all.size(); ++i) {
    CHECK(all[i - 1] <= all[i]);
    if (i + 1 < all.size()) CHECK(all[i] < 1.0f);
  }
  for (std::size_t k = 0; k < all.size(); ++k)
    for (const bool throws : {false, true}) {
      progress = Progress{k, throws, {}};
      const auto model = decant::Model::load(std::span(file), options);
      CAPTURE(k, throws);
      REQUIRE_FALSE(model);
      CHECK(model.error().code() == ErrorCode::callback_failed);
      CHECK(progress.seen.size() == k + 1);  // not called again
    }
}

TEST_CASE("logs are for warnings, and a log that throws does no harm") {
  struct Log {
    std::vector<std::string> lines;
    static void write(void* self, decant::LogLevel, std::string_view line) {
      static_cast<Log*>(self)->lines.emplace_back(line);
      throw std::runtime_error("host");
    }
  } log;
  ModelOptions options;
  options.threads = 1;
  options.context = 1000;  // the model was trained on 512
  options.log = Log::write;
  options.log_user = &log;
  const auto model = random_model().try_load(options);
  REQUIRE(model);
  REQUIRE(log.lines.size() == 1);
  CHECK(log.lines[0].find("1000") != std::string::npos);
  CHECK(model->info().context == 1000);
}
