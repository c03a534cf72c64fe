// Broken, cut and lying GGUF files, failing readers, odd paths, files past 4 GiB. Every one of them
// ends in one documented error or in a file that can be walked from end to end.
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "format/gguf.hpp"
#include "support/catch.hpp"
#include "support/gguf_writer.hpp"
#include "support/temp_folder.hpp"

namespace decant::test {

using namespace decant_test;
using detail::Gguf;
using detail::GgufTensor;
using Bytes = std::vector<std::byte>;

// The error of a file, the same whichever way it is opened.
static Error gguf_error(const Bytes& file) {
  const TempFolder folder;
  const std::string path = folder.write("bad.gguf", file);
  const Bytes exact(file);  // no spare capacity: a sanitizer sees a read past the end
  detail::MemoryReader reader(exact);
  Reader* readers[] = {&reader};
  const Error errors[] = {Gguf::open(path, false).error(), Gguf::open(path, true).error(),
                          Gguf::open(std::span<const std::byte>(exact)).error(),
                          Gguf::open(readers).error()};
  INFO(errors[0].message());
  CHECK(errors[0].message().find(path) != std::string_view::npos);
  for (const Error& error : errors) CHECK(error.code() == errors[0].code());
  return errors[0];
}

static void check_error(std::string_view what, const Bytes& file, ErrorCode code,
                        std::string_view text) {
  INFO(what);
  const Error error = gguf_error(file);
  CHECK(error_code_name(error.code()) == std::string(error_code_name(code)));
  INFO(error.message());
  CHECK(error.message().find(text) != std::string_view::npos);
}

static void check_invalid(std::string_view what, const Bytes& file, std::string_view text) {
  check_error(what, file, ErrorCode::invalid_file, text);
}

// Touches everything that an opened file offers.
static void gguf_walk(const Gguf& gguf) {
  for (const auto& [key, text] : gguf.describe()) {
    (void)gguf.string(key, "");
    (void)gguf.uint(key, 0);
    (void)gguf.number(key, 0);
    (void)gguf.boolean(key, false);
    (void)gguf.strings(key);
    (void)gguf.floats(key);
    (void)gguf.integers(key);
  }
  for (const GgufTensor& tensor : gguf.tensors()) {
    Bytes bytes(tensor.bytes);
    REQUIRE(gguf.read(tensor, bytes));
    CHECK(gguf.find_tensor(tensor.name) == &tensor);
    if (!detail::tensor_type_info(tensor.type)->dequantises) continue;
    std::vector<float> values(tensor.elements());
    detail::dequantise(tensor.type, bytes.data(), values.size(), values.data());
  }
}

static GgufWriter small_writer() {
  GgufWriter w;
  w.add_string("general.architecture", "llama");
  w.add_u32("general.alignment", 32);
  w.add_strings("tokenizer.ggml.tokens", std::vector<std::string>{"a", "bc"});
  w.add_f32s("tokenizer.ggml.scores", std::vector<float>{1, 2});
  w.add_bool("tokenizer.ggml.add_bos_token", true);
  const std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8};
  w.add_f32_tensor("one", {4, 2}, x);
  w.add_tensor("two", 2, {32}, Bytes(18));
  w.add_f32_tensor("three", {8}, x);
  return w;
}

TEST_CASE("sizes that wrap around are refused, naming the tensor") {
  constexpr std::uint64_t kMax = UINT64_MAX;
  const auto entry = [](std::uint32_t type, std::vector<std::uint64_t> shape,
                        std::uint64_t offset) {
    GgufWriter w;
    w.add_tensor_entry("wrap", type, std::move(shape), offset);
    Bytes file = w.finish();
    file.resize(file.size() + 64);
    return file;
  };
  check_invalid("product of dimensions", entry(0, {(kMax >> 1), 2}, 0), "'wrap'");
  check_invalid("product of dimensions to 0", entry(0, {1ull << 32, 1ull << 32}, 0), "'wrap'");
  check_invalid("four dimensions to 0",
                entry(24, {1ull << 16, 1ull << 16, 1ull << 16, 1ull << 16}, 0), "'wrap'");
  check_invalid("matrix of 2^42 + 1", entry(0, {(1ull << 42) + 1, (1ull << 22)}, 0), "'wrap'");
  check_invalid("elements times size", entry(0, {kMax / 4}, 0), "'wrap'");
  check_invalid("elements times size to 0", entry(0, {1ull << 62}, 0), "'wrap'");
  check_invalid("times eight", entry(27, {(kMax >> 3) + 1}, 0), "'wrap'");
  check_invalid("size near the end of numbers", entry(24, {kMax >> 1}, 0), "'wrap'");
  check_invalid("negative", entry(24, {kMax}, 0), "'wrap'");
  check_invalid("offset plus size", entry(24, {64}, kMax - 31), "'wrap'");
  check_invalid("round up to alignment", entry(24, {0x7fffffffffffffc0u}, 0x7fffffffffffffe0u),
                "'wrap'");
  GgufWriter total;  // each passes alone, the sum wraps
  total.add_tensor_entry("wrap a", 24, {0x7fffffffffffffc0u}, 0);
  total.add_tensor_entry("wrap b", 24, {0x7fffffffffffffc0u}, 0x7fffffffffffffc0u);
  check_invalid("running total", total.finish(), "'wrap a'");
  for (const std::uint64_t overhead : {25u, 56u, 112u, 368u, 376u}) {
    GgufWriter count;
    count.set_counts(kMax / overhead + 1, 0);
    check_invalid("tensor count times overhead", count.finish(), "cannot fit");
  }
  check_invalid("a block type's rows", entry(12, {255, 2}, 0), "multiple of 256");
  check_invalid("rows, not elements, must be whole blocks", entry(2, {16, 2}, 0), "multiple of 32");
  check_invalid("an empty tensor", entry(0, {4, 0}, 0), "empty");
}

TEST_CASE("counts, lengths, keys and types are not believed") {
  const auto with_counts = [](std::uint64_t n_tensors, std::uint64_t n_values) {
    GgufWriter w;
    w.set_counts(n_tensors, n_values);
    return w.finish();
  };
  check_invalid("n_kv = -1", with_counts(0, UINT64_MAX), "cannot fit");
  check_invalid("n_tensors = -1", with_counts(UINT64_MAX, 0), "cannot fit");
  check_invalid("one value too many", with_counts(0, 1), "cannot fit");

  const auto after_header = [](std::initializer_list<std::uint64_t> words, std::size_t padding) {
    GgufWriter w;
    w.set_counts(0, 1);
    Bytes file = w.finish();
    for (const std::uint64_t word : words) GgufWriter::put(file, word);
    file.resize(file.size() + padding);
    return file;
  };
  check_invalid("key length 2^48", after_header({1ull << 48}, 8), "length of a metadata key");
  check_invalid("key length -1", after_header({UINT64_MAX}, 8), "length of a metadata key");
  check_invalid("key length 0", after_header({0}, 8), "is empty");
  check_invalid("key length 65536", after_header({65536}, 70000), "at most 65535");

  const auto value = [](std::uint32_t type, std::initializer_list<std::uint64_t> words,
                        std::uint32_t element = 99) {
    Bytes bytes;
    if (element != 99) GgufWriter::put(bytes, element);
    for (const std::uint64_t word : words) GgufWriter::put(bytes, word);
    GgufWriter w;
    w.add_raw("the.key", type, bytes);
    return w.finish();
  };
  check_invalid("string length 2^63", value(8, {1ull << 63}), "only 0 bytes are left");
  check_invalid("array length 2^63", value(9, {1ull << 63}, 4), "'the.key' claims");
  check_invalid("array of strings, length 2^61", value(9, {1ull << 61}, 8), "'the.key' claims");
  check_invalid("array of u64, length 2^61", value(9, {1ull << 61}, 10), "'the.key' claims");
  check_error("nested array", value(9, {1, 0, 0}, 9), ErrorCode::unsupported, "'the.key'");
  check_invalid("unknown value type", value(13, {0}), "'the.key' has the unknown type 13");
  check_invalid("unknown value type", value(0xffffffffu, {0}), "unknown type");
  check_invalid("unknown element type", value(9, {0}, 14), "unknown type 14");
  check_invalid("bool of 2", value(7, {2}), "a bool of value 2");
  check_invalid("array of bools with a 3", value(9, {8, 0x0300000000000000u}, 7),
                "bool of value 3");

  GgufWriter twice;
  twice.add_u32("same.key", 1);
  twice.add_u32("other.key", 1);
  twice.add_u32("same.key", 1);
  check_invalid("duplicate key", twice.finish(), "'same.key' occurs twice");

  GgufWriter tensors;
  tensors.add_f32_tensor("same", {1}, std::vector<float>{1});
  tensors.add_f32_tensor("same", {1}, std::vector<float>{1});
  check_invalid("duplicate tensor", tensors.finish(), "'same' occurs twice");

  const auto named = [](std::string_view name, std::vector<std::uint64_t> shape,
                        std::uint32_t type = 0, std::uint64_t offset = 0) {
    GgufWriter w;
    w.add_tensor_entry(name, type, std::move(shape), offset);
    Bytes file = w.finish();
    file.resize(file.size() + 4096);
    return file;
  };
  check_invalid("five dimensions", named("five", {1, 1, 1, 1, 1}), "'five' has 5 dimensions");
  check_invalid("long tensor name", named(std::string(128, 'n'), {1}), "at most 127");
  check_invalid("empty tensor name", named("", {1}), "is empty");
  check_error("unknown tensor type", named("odd", {1}, 77), ErrorCode::unsupported,
              "'odd' has the unknown type 77");
  check_invalid("unaligned offset", named("askew", {1}, 0, 4), "'askew' begins at 4");

  GgufWriter overlap;
  overlap.add_f32_tensor("below", {16}, std::vector<float>(16));
  overlap.add_tensor_entry("above", 0, {8}, 32);
  check_invalid("two tensors on the same bytes", overlap.finish(), "'below' and 'above'");

  for (const std::uint32_t alignment : {0u, 1u, 4u, 24u, 33u, 1u << 21, 0x80000000u}) {
    GgufWriter w;
    w.add_u32("general.alignment", alignment);
    check_invalid("alignment", w.finish(), "general.alignment is");
  }
  GgufWriter text_alignment;
  text_alignment.add_string("general.alignment", "32");
  check_invalid("alignment as text", text_alignment.finish(), "'general.alignment' is string");
}

TEST_CASE("other versions and other files are recognised") {
  const auto version = [](std::uint32_t v) { return GgufWriter(v).finish(); };
  check_error("version 0", version(0), ErrorCode::unsupported, "version 0");
  check_error("version 1", version(1), ErrorCode::unsupported, "convert");
  check_error("version 4", version(4), ErrorCode::unsupported, "versions 2 and 3");
  check_error("big-endian", version(0x03000000), ErrorCode::unsupported, "big-endian");
  check_error("version -1", version(0xffffffffu), ErrorCode::unsupported, "version 4294967295");

  const auto text = [](std::string_view s) {
    Bytes file(s.size());
    std::memcpy(file.data(), s.data(), s.size());
    return file;
  };
  check_invalid("wrong magic", text("GGUX\3\0\0\0 and more bytes than a header"),
                "not a GGUF file");
  check_invalid("empty", {}, "0 bytes");
  check_invalid("tiny", text("GG"), "2 bytes");
  check_invalid("magic alone", text("GGUF"), "ends inside its version");
  check_invalid("Git LFS pointer", text("version https://git-lfs.github.com/spec/v1\noid"),
                "git lfs pull");
  check_invalid("web page", text("<!doctype html><html>Not found</html>"), "web page");
  check_error("GGML", text("tjgg\1\0\0\0 more"), ErrorCode::unsupported, "before GGUF");
}

TEST_CASE("a file cut anywhere is an error, in bounded time") {
  const Bytes whole = small_writer().finish();
  REQUIRE(Gguf::open(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    const auto by_memory = Gguf::open(std::span<const std::byte>(cut));
    detail::MemoryReader reader(cut);
    Reader* readers[] = {&reader};
    const auto by_reader = Gguf::open(readers);
    INFO(size);
    REQUIRE_FALSE(by_memory);
    REQUIRE_FALSE(by_reader);
    CHECK(by_memory.error().code() == ErrorCode::invalid_file);
    CHECK(by_memory.error().message() == by_reader.error().message());
  }
}

TEST_CASE("a file shorter than its tensors names tensor, wanted and available bytes") {
  const GgufWriter writer = [] {
    GgufWriter w = small_writer();
    w.add_f32_tensor("last", {2048}, std::vector<float>(2048, 1));
    return w;
  }();
  const Bytes whole = writer.finish();
  const std::size_t header = writer.header().size();
  const TempFolder folder;
  for (const std::size_t size : {whole.size() - 1, whole.size() - 4096, whole.size() / 2, header}) {
    const std::string path =
        folder.write("cut.gguf", std::span<const std::byte>(whole).first(size));
    for (const bool mapped : {false, true}) {
      const auto gguf = Gguf::open(path, mapped);
      REQUIRE_FALSE(gguf);
      CHECK(gguf.error().code() == ErrorCode::invalid_file);
      const std::string text(gguf.error().message());
      INFO(text);
      CHECK(text.find(path) != text.npos);
      CHECK(text.find(size == header ? "'one'" : "'last' needs 8192 bytes") != text.npos);
      CHECK(text.find("the file has " + std::to_string(size)) != text.npos);
    }
  }
}

TEST_CASE("a file cut after it was opened answers reads with an error") {
  const TempFolder folder;
  const std::string path = folder.write("shrinks.gguf", small_writer().finish());
  auto gguf = Gguf::open(path, false);
  REQUIRE(gguf);
  std::filesystem::resize_file(path, 300);
  const GgufTensor& tensor = gguf->tensors().back();
  Bytes bytes(tensor.bytes);
  const Status status = gguf->read(tensor, bytes);
  REQUIRE_FALSE(status);
  CHECK(status.error().code() == ErrorCode::io);
  CHECK(status.error().message().find(path) != std::string_view::npos);
}

TEST_CASE("any changed byte of the header gives an error or a file that can be walked") {
  const GgufWriter writer = small_writer();
  const Bytes whole = writer.finish();
  int opened = 0;
  int refused = 0;
  for (std::size_t i = 0; i < writer.header().size(); ++i)
    for (const unsigned change : {0x01u, 0x02u, 0x08u, 0x10u, 0x40u, 0x80u, 0xffu}) {
      Bytes changed(whole);
      changed[i] ^= static_cast<std::byte>(change);
      const auto gguf = Gguf::open(std::span<const std::byte>(changed));
      if (gguf) gguf_walk(*gguf);
      (gguf ? opened : refused) += 1;
    }
  // Names and values may change unnoticed; sizes, types and offsets may not.
  CHECK(opened > 500);
  CHECK(refused > 1000);
}

// ------------------------------------------------------------------------------------ readers

// Counts reads; the read with number `fails_at` does what `failure` says.
struct FaultyReader final : Reader {
  enum Failure { answers_error, throws_exception, throws_number };
  explicit FaultyReader(const Bytes& b) : bytes(b) {}
  std::uint64_t size() override {
    if (size_throws) throw std::runtime_error("no size");
    return claimed != 0 ? claimed : bytes.size();
  }
  Status read(std::uint64_t offset, std::span<std::byte> to) override {
    if (n_reads++ == fails_at) {
      if (failure == throws_exception) throw std::runtime_error("lost connection");
      if (failure == throws_number) throw 7;
      return Error(ErrorCode::io, "the archive is locked");
    }
    n_bytes += to.size();
    for (std::size_t i = 0; i < to.size(); ++i)
      to[i] = offset + i < bytes.size() ? bytes[offset + i] : std::byte{0};
    return {};
  }
  std::string_view name() const override {
    if (name_throws) throw std::runtime_error("no name");
    return "faulty";
  }
  Bytes bytes;
  std::uint64_t claimed = 0;
  Failure failure = answers_error;
  int fails_at = -1;
  int n_reads = 0;
  std::uint64_t n_bytes = 0;
  bool size_throws = false;
  bool name_throws = false;
};

TEST_CASE("whichever read fails or throws, the error comes back and nothing else happens") {
  GgufWriter w = small_writer();
  w.add_strings("many", std::vector<std::string>(40000, "twenty bytes of text"));
  const Bytes file = w.finish();
  const auto load = [](FaultyReader& reader) -> Status {
    Reader* readers[] = {&reader};
    DECANT_ASSIGN(const Gguf gguf, Gguf::open(readers));
    for (const GgufTensor& tensor : gguf.tensors()) {
      Bytes bytes(tensor.bytes);
      DECANT_TRY(gguf.read(tensor, bytes));
    }
    return {};
  };
  FaultyReader sound(file);
  REQUIRE(load(sound));
  CHECK(sound.n_reads >= 8);   // the header comes in growing pieces
  CHECK(sound.n_reads <= 20);  // and not byte by byte
  for (int n = 0; n < sound.n_reads; ++n)
    for (const auto failure : {FaultyReader::answers_error, FaultyReader::throws_exception,
                               FaultyReader::throws_number}) {
      FaultyReader reader(file);
      reader.failure = failure;
      reader.fails_at = n;
      const Status status = load(reader);
      REQUIRE_FALSE(status);
      CHECK(reader.n_reads == n + 1);
      if (failure == FaultyReader::answers_error) {
        CHECK(status.error().code() == ErrorCode::io);
        CHECK(status.error().message() == "the archive is locked");
      } else {
        CHECK(status.error().code() == ErrorCode::callback_failed);
      }
    }
  FaultyReader no_size(file);
  no_size.size_throws = true;
  CHECK(load(no_size).error().code() == ErrorCode::callback_failed);
  FaultyReader no_name(file);
  no_name.name_throws = true;
  CHECK(load(no_name).error().code() == ErrorCode::callback_failed);
}

TEST_CASE("a lying size makes nobody read or allocate much") {
  GgufWriter w;
  Bytes array;
  GgufWriter::put(array, std::uint32_t{6});
  GgufWriter::put(array, std::uint64_t{1} << 36);
  w.add_raw("endless", 9, array);
  FaultyReader reader(w.finish());
  reader.claimed = std::uint64_t{1} << 50;
  Reader* readers[] = {&reader};
  const auto gguf = Gguf::open(readers);
  REQUIRE_FALSE(gguf);
  CHECK(gguf.error().code() == ErrorCode::unsupported);
  CHECK(gguf.error().message().find("its header is larger than") != std::string_view::npos);
  CHECK(reader.n_bytes <= 65536);

  FaultyReader absurd(small_writer().finish());
  absurd.claimed = UINT64_MAX;
  Reader* absurd_readers[] = {&absurd};
  CHECK(Gguf::open(absurd_readers).error().code() == ErrorCode::invalid_file);
}

// ------------------------------------------------------------------------------------ paths

TEST_CASE("a model opens and shows its errors under any folder name") {
  const std::string odd =
      "\xD0\x97\xD0\xB0\xD0\xB3\xD1\x80\xD1\x83\xD0\xB7\xD0\xBA\xD0\xB8 \xE7\x94\xB0\xE4\xB8\xAD"
      "\xE3\x80\x80\xC3\xA9 \xF0\x9F\x99\x82 %20 'x\"";
  const TempFolder folder;
  std::filesystem::create_directories(folder.file(odd));
  const Bytes file = small_writer().finish();
  const std::string path = folder.write(odd + "/model.gguf", file);
  for (const bool mapped : {false, true}) {
    auto gguf = Gguf::open(path, mapped);
    REQUIRE(gguf);
    gguf_walk(*gguf);
  }
  folder.write(odd + "/model.gguf", std::span(file).first(file.size() - 1));
  const auto cut = Gguf::open(path, false);
  REQUIRE_FALSE(cut);
  CHECK(cut.error().message().find(path) != std::string_view::npos);

  const auto before = std::filesystem::current_path();
  folder.write("relative.gguf", file);
  std::filesystem::current_path(folder.path());
  auto relative = Gguf::open("relative.gguf", false);
  std::filesystem::current_path(before);
  REQUIRE(relative);
  gguf_walk(*relative);  // reads after the current folder has changed

  // Names are cut in texts so that reasons survive.
  const std::string deep = std::string(200, 'a') + "/" + std::string(200, 'b') + "/" +
                           std::string(200, 'c') + "/" + std::string(200, 'd');
  std::filesystem::create_directories(folder.file(deep));
  const auto far =
      Gguf::open(folder.write(deep + "/cut.gguf", std::span(file).first(file.size() - 1)), false);
  REQUIRE_FALSE(far);
  CHECK(far.error().message().find("cut.gguf") != std::string_view::npos);
  CHECK(far.error().message().find("'three' needs") != std::string_view::npos);
}

TEST_CASE("tensors past 2 and 4 GiB are read, from a sparse file") {
  if (sizeof(void*) < 8) DECANT_SKIP("a 32-bit process");
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  GgufWriter w;
  w.add_tensor_entry("filler", 24, {3 * kGiB}, 0);
  w.add_tensor_entry("second", 0, {4}, 3 * kGiB);
  w.add_tensor_entry("more", 24, {kGiB, 2}, 3 * kGiB + 32);
  w.add_tensor_entry("third", 0, {4}, 5 * kGiB + 32);
  Bytes header = w.header();
  while (header.size() % 32 != 0) header.push_back(std::byte{0});
  const TempFolder folder;
  const std::string path = folder.write("sparse.gguf", header);
  std::error_code error;
  std::filesystem::resize_file(path, header.size() + 5 * kGiB + 48, error);
  if (error) DECANT_SKIP("the file system of the temporary folder has no sparse files of 5 GiB");
  const float second[] = {1, 2, 3, 4};
  const float third[] = {5, 6, 7, 8};
  {
    std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(header.size() + 3 * kGiB));
    out.write(reinterpret_cast<const char*>(second), sizeof second);
    out.seekp(static_cast<std::streamoff>(header.size() + 5 * kGiB + 32));
    out.write(reinterpret_cast<const char*>(third), sizeof third);
    REQUIRE(out.good());
  }
  for (const bool mapped : {false, true}) {
    auto gguf = Gguf::open(path, mapped);
    REQUIRE(gguf);
    float values[4];
    REQUIRE(gguf->read(*gguf->find_tensor("second"), std::as_writable_bytes(std::span(values))));
    CHECK(std::memcmp(values, second, sizeof values) == 0);
    REQUIRE(gguf->read(*gguf->find_tensor("third"), std::as_writable_bytes(std::span(values))));
    CHECK(std::memcmp(values, third, sizeof values) == 0);
  }
  std::filesystem::resize_file(path, header.size() + 5 * kGiB + 47);
  const auto cut = Gguf::open(path, false);
  REQUIRE_FALSE(cut);
  CHECK(cut.error().message().find("'third'") != std::string_view::npos);
}

}  // namespace decant::test
