// Opening GGUF files, one part or many, and answering questions about them.
#include "base/fp_contract.hpp"

#include "format/gguf.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "format/gguf_parser.hpp"
#include "format/gguf_value.hpp"

namespace decant::detail {

// ------------------------------------------------------------------------------------- opening

// Short texts only.
template <class... Args>
static std::string gguf_format(fmt::format_string<Args...> format, Args&&... args) {
  char text[64];
  return std::string(format_into(text, format, fmt::make_format_args(args...)));
}

static std::string gguf_part_suffix(std::uint64_t number, std::uint64_t count) {
  return gguf_format("-{:05}-of-{:05}.gguf", number, count);
}

Result<Gguf> Gguf::open(std::string_view path, bool mapped) {
  return open_path(path, mapped, false);
}

Result<Gguf> Gguf::open_headers(std::string_view path) { return open_path(path, false, true); }

Result<Gguf> Gguf::open_path(std::string_view path, bool mapped, bool headers_only) {
  Gguf gguf;
  DECANT_TRY(gguf.add_file(path, mapped, headers_only));
  const std::string suffix = gguf_part_suffix(1, gguf.n_parts_);
  if (gguf.n_parts_ > 1 && !path.ends_with(suffix))
    return make_error(ErrorCode::invalid_file,
                      "'{}' is the first of {} parts; its name must end in '{}' for the others to "
                      "be found beside it",
                      shown_path(path), gguf.n_parts_, suffix);
  for (std::uint64_t i = 2; i <= gguf.n_parts_; ++i) {
    std::string part(path.substr(0, path.size() - suffix.size()));
    part += gguf_part_suffix(i, gguf.n_parts_);
    const Status status = gguf.add_file(part, mapped, headers_only);
    if (!status && status.error().code() == ErrorCode::not_found)
      return make_error(ErrorCode::not_found, "part {} of {} is missing: {}", i, gguf.n_parts_,
                        status.error().message());
    DECANT_TRY(status);
  }
  DECANT_TRY(gguf.check_whole());
  return gguf;
}

Result<Gguf> Gguf::open(std::span<const std::byte> memory) {
  Gguf gguf;
  Part part;
  part.name = "memory";
  part.size = memory.size();
  part.mapped = true;
  part.mapping = memory;
  DECANT_TRY(gguf.add_part(std::move(part)));
  if (gguf.n_parts_ > 1)
    return make_error(ErrorCode::invalid_argument,
                      "the file in memory is the first of {} parts; load them by path or by one "
                      "Reader for each",
                      gguf.n_parts_);
  DECANT_TRY(gguf.check_whole());
  return gguf;
}

Result<Gguf> Gguf::open(std::span<Reader* const> parts) {
  if (parts.empty() || std::find(parts.begin(), parts.end(), nullptr) != parts.end())
    return Error(ErrorCode::invalid_argument, "a model needs a Reader for each of its parts");
  Gguf gguf;
  for (Reader* reader : parts) {
    DECANT_TRY(gguf.add_reader(reader));
    if (gguf.n_parts_ != parts.size())
      return make_error(ErrorCode::invalid_argument, "'{}' has {} parts, but {} readers were given",
                        shown_path(gguf.name()), gguf.n_parts_, parts.size());
  }
  DECANT_TRY(gguf.check_whole());
  return gguf;
}

Status Gguf::add_file(std::string_view path, bool map, bool headers_only) {
  Part part;
  DECANT_ASSIGN(File file, File::open(path));
  part.file = std::make_unique<File>(std::move(file));
  part.reader = part.file.get();
  part.name = path;
  part.size = part.file->size();
  part.headers_only = headers_only;
  part.mapped = map;
  if (map) {
    DECANT_ASSIGN(part.mapping, part.file->map());
  }
  return add_part(std::move(part));
}

Status Gguf::add_reader(Reader* reader) {
  Part part;
  part.reader = reader;
  try {
    part.name = reader->name();
    part.size = reader->size();
  } catch (...) {
    return Error(ErrorCode::callback_failed, current_exception_error().message());
  }
  return add_part(std::move(part));
}

Status Gguf::add_part(Part part) {
  GgufParser parser(part, parts_.size(), tensors_);
  DECANT_TRY(parser.run());
  DECANT_TRY(check_split(part));
  if (parts_.empty()) {
    version_ = parser.version();
  } else {  // only the first part's metadata are looked at later
    part.buffer = {};
    part.values = {};
    part.by_key = {};
  }
  parts_.push_back(std::move(part));
  return {};
}

Status Gguf::check_split(const Part& part) {
  DECANT_ASSIGN(const std::uint64_t number, part.uint("split.no", 0));
  DECANT_ASSIGN(std::uint64_t count, part.uint("split.count", 1));
  count = std::max<std::uint64_t>(count, 1);
  if (count > kGgufMostParts || number >= count)
    return make_error(ErrorCode::invalid_file, "'{}' says it is part {} of {}",
                      shown_path(part.name), number, count);
  const std::uint64_t index = parts_.size();
  if (index == 0) n_parts_ = count;
  if (number == index && count == n_parts_) return {};
  if (index != 0)
    return make_error(ErrorCode::invalid_file,
                      "'{}' is part {} of {}, but part {} of {} belongs in its place",
                      shown_path(part.name), number + 1, count, index + 1, n_parts_);
  std::string first = "the first part";
  if (const std::string suffix = gguf_part_suffix(number + 1, count); part.name.ends_with(suffix))
    first = "'" + part.name.substr(0, part.name.size() - suffix.size()) +
            gguf_part_suffix(1, count) + "'";
  return make_error(ErrorCode::invalid_argument, "'{}' is part {} of {}; open {}",
                    shown_path(part.name).substr(0, 350), number + 1, count, shown_path(first));
}

Status Gguf::check_whole() {
  const Part& first = parts_.front();
  DECANT_ASSIGN(const std::uint64_t promised, first.uint("split.tensors.count", tensors_.size()));
  if (n_parts_ > 1 && promised != tensors_.size())
    return make_error(ErrorCode::invalid_file, "'{}' promises {} tensors, its {} parts hold {}",
                      shown_path(first.name), promised, n_parts_, tensors_.size());
  for (std::uint32_t i = 0; i < tensors_.size(); ++i) by_name_.push_back(i);
  std::sort(by_name_.begin(), by_name_.end(),
            [&](std::uint32_t a, std::uint32_t b) { return tensors_[a].name < tensors_[b].name; });
  for (std::size_t i = 1; i < by_name_.size(); ++i)
    if (tensors_[by_name_[i - 1]].name == tensors_[by_name_[i]].name)
      return make_error(ErrorCode::invalid_file, "'{}': tensor '{}' occurs twice",
                        shown_path(first.name), tensors_[by_name_[i]].name);
  return {};
}

// ------------------------------------------------------------------------------------- tensors

std::string_view Gguf::name() const { return parts_.front().name; }
std::string_view Gguf::name(int part) const { return parts_[static_cast<std::size_t>(part)].name; }
bool Gguf::mapped() const { return parts_.front().mapped; }

const GgufTensor* Gguf::find_tensor(std::string_view name) const {
  const auto at = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [&](std::uint32_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
  if (at == by_name_.end() || tensors_[*at].name != name) return nullptr;
  return &tensors_[*at];
}

Status Gguf::read(const GgufTensor& tensor, std::span<std::byte> to) const {
  if (to.size() != tensor.bytes)
    return make_error(ErrorCode::invalid_argument, "tensor '{}' has {} bytes, not {}", tensor.name,
                      tensor.bytes, to.size());
  return read(tensor, 0, to);
}

Status Gguf::read(const GgufTensor& tensor, std::uint64_t from, std::span<std::byte> to) const {
  if (from > tensor.bytes || to.size() > tensor.bytes - from)
    return make_error(ErrorCode::invalid_argument, "tensor '{}' has {} bytes, not {} at {}",
                      tensor.name, tensor.bytes, to.size(), from);
  const Part& part = parts_[static_cast<std::size_t>(tensor.part)];
  if (!part.mapped) return guarded_read(*part.reader, tensor.offset + from, to);
  if (!to.empty()) std::memcpy(to.data(), part.mapping.data() + tensor.offset + from, to.size());
  return {};
}

const std::byte* Gguf::mapped_data(const GgufTensor& tensor) const {
  const Part& part = parts_[static_cast<std::size_t>(tensor.part)];
  if (!part.mapped) return nullptr;
  const std::byte* data = part.mapping.data() + tensor.offset;
  return reinterpret_cast<std::uintptr_t>(data) % 8 == 0 ? data : nullptr;
}

// ------------------------------------------------------------------------------------ metadata

std::string_view Gguf::Part::string_at(std::uint64_t offset) const {
  const std::byte* at = bytes().data() + offset;
  return std::string_view(reinterpret_cast<const char*>(at) + 8,
                          static_cast<std::size_t>(gguf_load<std::uint64_t>(at)));
}

std::string_view Gguf::Part::key(const Value& value) const { return string_at(value.key); }

const Gguf::Value* Gguf::Part::find(std::string_view wanted) const {
  const auto at =
      std::lower_bound(by_key.begin(), by_key.end(), wanted,
                       [&](std::uint32_t i, std::string_view k) { return key(values[i]) < k; });
  if (at == by_key.end() || key(values[*at]) != wanted) return nullptr;
  return &values[*at];
}

Error Gguf::Part::type_error(const Value& value, std::string_view wanted) const {
  return make_error(ErrorCode::invalid_file, "'{}': metadata '{}' is {}{}, not {}",
                    shown_path(name), gguf_shown(key(value)), value.array ? "an array of " : "",
                    gguf_type_info(value.type).name, wanted);
}

Result<std::uint64_t> Gguf::Part::uint(std::string_view key, std::uint64_t fallback) const {
  const Value* value = find(key);
  if (value == nullptr) return fallback;
  const std::byte* data = bytes().data() + value->offset;
  if (!value->array && value->type == kGgufU64) return gguf_load<std::uint64_t>(data);
  if (value->array || value->type == kGgufBool) return type_error(*value, "an integer");
  const auto integer = gguf_integer(value->type, data);
  if (!integer) return type_error(*value, "an integer");
  if (*integer < 0)
    return make_error(ErrorCode::invalid_file, "'{}': metadata '{}' is {}; it must not be negative",
                      shown_path(name), gguf_shown(key), *integer);
  return static_cast<std::uint64_t>(*integer);
}

bool Gguf::has(std::string_view key) const { return parts_.front().find(key) != nullptr; }

Result<std::string_view> Gguf::string(std::string_view key, std::string_view fallback) const {
  const Part& part = parts_.front();
  const Value* value = part.find(key);
  if (value == nullptr) return fallback;
  if (value->array || value->type != kGgufString) return part.type_error(*value, "a string");
  return part.string_at(value->offset);
}

Result<std::uint64_t> Gguf::uint(std::string_view key, std::uint64_t fallback) const {
  return parts_.front().uint(key, fallback);
}

Result<double> Gguf::number(std::string_view key, double fallback) const {
  const Part& part = parts_.front();
  const Value* value = part.find(key);
  if (value == nullptr) return fallback;
  if (value->array) return part.type_error(*value, "a number");
  const auto number = gguf_number(value->type, part.bytes().data() + value->offset);
  if (!number) return part.type_error(*value, "a number");
  return *number;
}

Result<bool> Gguf::boolean(std::string_view key, bool fallback) const {
  const Part& part = parts_.front();
  const Value* value = part.find(key);
  if (value == nullptr) return fallback;
  if (value->array || value->type != kGgufBool) return part.type_error(*value, "a bool");
  return part.bytes()[static_cast<std::size_t>(value->offset)] != std::byte{0};
}

Result<std::vector<std::string_view>> Gguf::strings(std::string_view key) const {
  const Part& part = parts_.front();
  std::vector<std::string_view> texts;
  const Value* value = part.find(key);
  if (value == nullptr) return texts;
  if (!value->array || value->type != kGgufString)
    return part.type_error(*value, "an array of strings");
  texts.reserve(static_cast<std::size_t>(value->count));
  std::uint64_t at = value->offset;
  for (std::uint64_t i = 0; i < value->count; ++i) {
    texts.push_back(part.string_at(at));
    at += 8 + texts.back().size();
  }
  return texts;
}

Result<std::vector<float>> Gguf::floats(std::string_view key) const {
  const Part& part = parts_.front();
  std::vector<float> numbers;
  const Value* value = part.find(key);
  if (value == nullptr) return numbers;
  if (!value->array) return part.type_error(*value, "an array of numbers");
  const std::uint64_t step = gguf_type_info(value->type).bytes;
  const std::byte* at = part.bytes().data() + value->offset;
  if (value->type == kGgufString || value->type == kGgufBool)
    return part.type_error(*value, "an array of numbers");
  numbers.reserve(static_cast<std::size_t>(value->count));
  for (std::uint64_t i = 0; i < value->count; ++i, at += step)
    numbers.push_back(value->type == kGgufF32 ? gguf_load<float>(at)
                                              : static_cast<float>(*gguf_number(value->type, at)));
  return numbers;
}

Result<std::vector<std::int64_t>> Gguf::integers(std::string_view key) const {
  const Part& part = parts_.front();
  std::vector<std::int64_t> numbers;
  const Value* value = part.find(key);
  if (value == nullptr) return numbers;
  if (value->type == kGgufString) return part.type_error(*value, "an array of integers");
  const std::uint64_t step = gguf_type_info(value->type).bytes;
  const std::byte* at = part.bytes().data() + value->offset;
  numbers.reserve(static_cast<std::size_t>(value->count));
  for (std::uint64_t i = 0; i < value->count; ++i, at += step) {
    const auto integer = gguf_integer(value->type, at);
    if (!integer) return part.type_error(*value, "an array of integers below 2^63");
    numbers.push_back(*integer);
  }
  return numbers;
}

std::vector<std::pair<std::string, std::string>> Gguf::describe() const {
  const Part& part = parts_.front();
  std::vector<std::pair<std::string, std::string>> all;
  all.reserve(part.values.size());
  for (const Value& value : part.values) {
    const std::byte* data = part.bytes().data() + value.offset;
    const std::string_view type = gguf_type_info(value.type).name;
    std::string text;
    if (value.array) {
      text = gguf_format("[{} x {}]", type, value.count);
    } else if (value.type == kGgufString) {
      text = part.string_at(value.offset);
    } else if (value.type == kGgufBool) {
      text = *data == std::byte{0} ? "false" : "true";
    } else if (value.type == kGgufF32) {
      text = gguf_format("{}", gguf_load<float>(data));
    } else if (value.type == kGgufF64) {
      text = gguf_format("{}", gguf_load<double>(data));
    } else if (value.type == kGgufU64) {
      text = gguf_format("{}", gguf_load<std::uint64_t>(data));
    } else {
      text = gguf_format("{}", gguf_integer(value.type, data).value_or(0));
    }
    all.emplace_back(part.key(value), std::move(text));
  }
  return all;
}

}  // namespace decant::detail
