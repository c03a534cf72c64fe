// The layout (all little-endian): "GGUF", u32 version, u64 tensor count, u64 metadata count;
// metadata as {string key, u32 type, value}, where a string is {u64 length, bytes} and an array
// {u32 type, u64 count, elements}; tensors as {string name, u32 dimensions, u64 each, u32 type, u64
// offset}; padding to general.alignment; the data. A count or length is believed only after it was
// compared with the bytes that the file has left.
#include "format/gguf_parser.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked.hpp"

namespace decant::detail {

Status GgufParser::run() {
  DECANT_TRY(begin());
  DECANT_TRY(values());
  DECANT_TRY(tensors());
  DECANT_TRY(place_tensors());
  if (!part_.mapped) {
    part_.buffer.resize(static_cast<std::size_t>(at_));
    part_.buffer.shrink_to_fit();
  }
  return {};
}

// Makes the next n bytes available in bytes_.
Status GgufParser::need(std::uint64_t n, std::string_view what) {
  if (n <= bytes_.size() - at_) return {};
  if (n > left())
    return invalid("the file ends inside {}: it needs {} bytes at {}, {} are left", what, n, at_,
                   left());
  const std::uint64_t end = at_ + n;
  if (end > kGgufMostHeaderBytes)
    return fail(ErrorCode::unsupported, "its header is larger than {} bytes", kGgufMostHeaderBytes);
  if (part_.mapped) return invalid("its mapping is shorter than the file");
  constexpr std::uint64_t kFirstPiece = 64 << 10;
  const std::uint64_t have = bytes_.size();
  const std::uint64_t until = std::min(part_.size, std::max({end, 2 * have, kFirstPiece}));
  part_.buffer.resize(static_cast<std::size_t>(until));
  DECANT_TRY(guarded_read(*part_.reader, have,
                          std::span(part_.buffer).subspan(static_cast<std::size_t>(have))));
  bytes_ = part_.buffer;
  return {};
}

// The view lives until the next need().
Status GgufParser::take_string(std::string_view& text, std::uint64_t most, std::string_view what) {
  std::uint64_t size = 0;
  DECANT_TRY(take(size, what));
  if (size > left())
    return invalid("the length of {} at {} is {}, but only {} bytes are left", what, at_ - 8, size,
                   left());
  if (size > most)
    return invalid("the length of {} at {} is {}; at most {} are allowed", what, at_ - 8, size,
                   most);
  DECANT_TRY(need(size, what));
  text = std::string_view(reinterpret_cast<const char*>(bytes_.data()) + at_,
                          static_cast<std::size_t>(size));
  at_ += size;
  return {};
}

Status GgufParser::begin() {
  if (part_.size > kGgufMostFileBytes) return invalid("a size of {} is absurd", part_.size);
  if (part_.size < 4) return invalid("{} bytes are too few for a GGUF file", part_.size);
  DECANT_TRY(need(4, "its magic"));
  if (!starts_with("GGUF")) return not_gguf();
  at_ = 4;
  DECANT_TRY(take(version_, "its version"));
  if (version_ != 0 && (version_ & 0xffff) == 0)
    return fail(ErrorCode::unsupported,
                "a big-endian GGUF file; convert it with gguf-py's gguf_convert_endian");
  if (version_ == 1)
    return fail(ErrorCode::unsupported,
                "GGUF version 1; download a newer file or convert the original model again");
  if (version_ != 2 && version_ != 3)
    return fail(ErrorCode::unsupported, "GGUF version {}; versions 2 and 3 are supported",
                version_);
  DECANT_TRY(take(n_tensors_, "its tensor count"));
  DECANT_TRY(take(n_values_, "its metadata count"));
  // The least they take: a key of one byte and a value of one; a name of one and no dimensions.
  if (n_values_ > left() / 14)
    return invalid("{} metadata values cannot fit in the {} bytes left", n_values_, left());
  if (n_tensors_ > left() / 25)
    return invalid("{} tensors cannot fit in the {} bytes left", n_tensors_, left());
  if (n_values_ > kGgufMostValues)
    return fail(ErrorCode::unsupported, "{} metadata values; at most {} are supported", n_values_,
                kGgufMostValues);
  if (n_tensors_ > kGgufMostTensors)
    return fail(ErrorCode::unsupported, "{} tensors; at most {} are supported", n_tensors_,
                kGgufMostTensors);
  return {};
}

Error GgufParser::not_gguf() const {
  if (starts_with("version https://git-lfs"))
    return invalid("a Git LFS pointer, not the model; fetch it with `git lfs pull`");
  if (starts_with("<!") || starts_with("<h"))
    return invalid("a web page, not a model; the download went wrong");
  if (starts_with("lmgg") || starts_with("fmgg") || starts_with("tjgg"))
    return fail(ErrorCode::unsupported, "a GGML file from before GGUF; download the model as GGUF");
  return invalid("not a GGUF file: it does not begin with \"GGUF\"");
}

Status GgufParser::values() {
  for (std::uint64_t i = 0; i < n_values_; ++i) {
    Gguf::Value value;
    value.key = at_;
    std::string_view key;
    DECANT_TRY(take_string(key, kGgufMostKeyBytes, "a metadata key"));
    if (key.empty()) return invalid("the metadata key at {} is empty", at_ - 8);
    std::uint32_t type = 0;
    DECANT_TRY(take(type, "a metadata value"));
    if (type == kGgufArray) {
      value.array = true;
      DECANT_TRY(take(type, "an array of metadata"));
      DECANT_TRY(take(value.count, "an array of metadata"));
      if (type == kGgufArray)
        return fail(ErrorCode::unsupported, "metadata '{}' is an array of arrays", key_of(value));
    }
    if (type >= kGgufTypeCount)
      return invalid("metadata '{}' has the unknown type {}", key_of(value), type);
    value.type = type;
    value.offset = at_;
    DECANT_TRY(skip_elements(value));
    part_.values.push_back(value);
  }
  for (std::uint32_t i = 0; i < part_.values.size(); ++i) part_.by_key.push_back(i);
  const auto key = [&](std::uint32_t i) { return part_.key(part_.values[i]); };
  std::sort(part_.by_key.begin(), part_.by_key.end(),
            [&](std::uint32_t a, std::uint32_t b) { return key(a) < key(b); });
  for (std::size_t i = 1; i < part_.by_key.size(); ++i)
    if (key(part_.by_key[i - 1]) == key(part_.by_key[i]))
      return invalid("metadata '{}' occurs twice", gguf_shown(key(part_.by_key[i])));
  return {};
}

Status GgufParser::skip_elements(const Gguf::Value& value) {
  const GgufTypeInfo& info = gguf_type_info(value.type);
  if (value.count > left() / info.least_bytes)
    return invalid("metadata '{}' claims {} values of type {}, but only {} bytes are left",
                   key_of(value), value.count, info.name, left());
  if (value.type == kGgufString) {
    std::string_view text;
    for (std::uint64_t i = 0; i < value.count; ++i)
      DECANT_TRY(take_string(text, UINT64_MAX, "a string of metadata"));
    return {};
  }
  const std::uint64_t size = value.count * info.bytes;
  DECANT_TRY(need(size, "a value of metadata"));
  if (value.type == kGgufBool)
    for (std::uint64_t i = 0; i < size; ++i)
      if (bytes_[at_ + i] > std::byte{1})
        return invalid("metadata '{}' is a bool of value {}; 0 and 1 are allowed", key_of(value),
                       static_cast<unsigned>(bytes_[at_ + i]));
  at_ += size;
  return {};
}

Status GgufParser::tensors() {
  DECANT_ASSIGN(alignment_, part_.uint("general.alignment", kGgufDefaultAlignment));
  if (alignment_ < kGgufLeastAlignment || alignment_ > kGgufMostAlignment ||
      (alignment_ & (alignment_ - 1)) != 0)
    return invalid("general.alignment is {}; a power of two from {} to {} is allowed", alignment_,
                   kGgufLeastAlignment, kGgufMostAlignment);
  first_ = tensors_.size();
  for (std::uint64_t i = 0; i < n_tensors_; ++i) {
    GgufTensor tensor;
    std::string_view name;
    DECANT_TRY(take_string(name, kGgufMostNameBytes, "a tensor's name"));
    if (name.empty()) return invalid("the tensor name at {} is empty", at_ - 8);
    tensor.name = name;
    tensor.part = static_cast<int>(index_);
    DECANT_TRY(shape_and_size(tensor));
    tensors_.push_back(std::move(tensor));
  }
  return {};
}

Status GgufParser::shape_and_size(GgufTensor& tensor) {
  std::uint32_t n_dims = 0;
  DECANT_TRY(take(n_dims, "a tensor's shape"));
  if (n_dims > tensor.shape.size())
    return invalid("tensor '{}' has {} dimensions; at most {} are allowed", tensor.name, n_dims,
                   tensor.shape.size());
  tensor.n_dims = static_cast<int>(n_dims);
  std::uint64_t elements = 1;
  for (std::uint32_t d = 0; d < n_dims; ++d) {
    DECANT_TRY(take(tensor.shape[d], "a tensor's shape"));
    const auto product = checked_mul(elements, tensor.shape[d]);
    if (tensor.shape[d] == 0 || !product || *product > static_cast<std::uint64_t>(INT64_MAX))
      return invalid("tensor '{}' has a dimension of {}, which is {}", tensor.name, tensor.shape[d],
                     tensor.shape[d] == 0 ? "empty" : "more than memory can hold");
    elements = *product;
  }
  std::uint32_t type = 0;
  DECANT_TRY(take(type, "a tensor's type"));
  tensor.type = static_cast<TensorType>(type);
  const TensorTypeInfo* info = tensor_type_info(tensor.type);
  if (info == nullptr)
    return fail(ErrorCode::unsupported, "tensor '{}' has the unknown type {}", tensor.name, type);
  if (tensor.shape[0] % info->block_elements != 0)
    return invalid("tensor '{}' has rows of {} elements; type {} needs a multiple of {}",
                   tensor.name, tensor.shape[0], info->name, info->block_elements);
  const auto bytes = checked_mul(elements / info->block_elements, info->block_bytes);
  if (!bytes)
    return invalid("tensor '{}' of {} elements is more than memory can hold", tensor.name,
                   elements);
  tensor.bytes = *bytes;
  DECANT_TRY(take(tensor.offset, "a tensor's offset"));
  if (tensor.offset % alignment_ != 0)
    return invalid("tensor '{}' begins at {}, not at a multiple of {}", tensor.name, tensor.offset,
                   alignment_);
  return {};
}

// Offsets become absolute; every tensor must lie in the file and none on another.
Status GgufParser::place_tensors() {
  const auto data = checked_round_up(at_, alignment_);
  std::vector<std::size_t> order;
  for (std::size_t i = first_; i < tensors_.size(); ++i) {
    GgufTensor& tensor = tensors_[i];
    const auto begin = data ? checked_add(*data, tensor.offset) : std::nullopt;
    const auto end = begin ? checked_add(*begin, tensor.bytes) : std::nullopt;
    if (!end || (*end > part_.size && !part_.headers_only))
      return invalid(
          "the file is too short: tensor '{}' needs {} bytes at {} after the header of {}, but "
          "the file has {} (was the download interrupted?)",
          tensor.name, tensor.bytes, tensor.offset, at_, part_.size);
    tensor.offset = *begin;
    order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return tensors_[a].offset < tensors_[b].offset; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = tensors_[order[i - 1]];
    const GgufTensor& after = tensors_[order[i]];
    if (after.offset < before.offset + before.bytes)
      return invalid("tensors '{}' and '{}' lie on the same bytes", before.name, after.name);
  }
  return {};
}

}  // namespace decant::detail
