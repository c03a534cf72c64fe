// Reads numpy's .npy and .npz files (stored or deflated; C or Fortran order, which becomes C
// order). Throws std::runtime_error with the reason. Link zlib and define DECANT_TEST_ZLIB; without
// it (cross builds), what is deflated cannot be read.
//
//   const auto file = decant_test::read_npz("golden.npz");
//   const NpyArray& logits = file.at("logits");
//   logits.shape;                       // {40, 512}
//   std::vector<float> x = logits.as<float>();   // converted element by element if need be
#pragma once

#ifdef DECANT_TEST_ZLIB
#include <zlib.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace decant_test {

struct NpyArray {
  std::string dtype;  // as in the file: "<f4", "<f8", "<i4", "<i8", "|u1", "|i1", "|b1"
  std::vector<std::size_t> shape;  // empty for a scalar
  std::vector<std::byte> data;     // row-major

  std::size_t size() const {
    std::size_t n = 1;
    for (std::size_t s : shape) n *= s;
    return n;
  }
  template <class T>
  std::vector<T> as() const {
    if (dtype == "<f4") return convert<T, float>();
    if (dtype == "<f8") return convert<T, double>();
    if (dtype == "<i2") return convert<T, std::int16_t>();
    if (dtype == "<i4") return convert<T, std::int32_t>();
    if (dtype == "<i8") return convert<T, std::int64_t>();
    if (dtype == "<u2") return convert<T, std::uint16_t>();
    if (dtype == "<u4") return convert<T, std::uint32_t>();
    if (dtype == "|u1" || dtype == "|b1") return convert<T, std::uint8_t>();
    if (dtype == "|i1") return convert<T, std::int8_t>();
    throw std::runtime_error("npy: unknown dtype " + dtype);
  }

 private:
  template <class T, class Stored>
  std::vector<T> convert() const {
    std::vector<T> out(size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      Stored value;
      std::memcpy(&value, data.data() + i * sizeof value, sizeof value);
      out[i] = static_cast<T>(value);
    }
    return out;
  }
};

inline std::vector<std::byte> read_file_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + path);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

namespace npz {

template <class T>
T load(const std::vector<std::byte>& from, std::size_t at) {
  if (at > from.size() || from.size() - at < sizeof(T)) throw std::runtime_error("npz: cut short");
  T value;
  std::memcpy(&value, from.data() + at, sizeof value);
  return value;
}

// The text after 'key': in the header's Python dictionary.
inline std::string_view field(std::string_view header, std::string_view key) {
  const std::size_t at = header.find("'" + std::string(key) + "':");
  if (at == header.npos) throw std::runtime_error("npy: no " + std::string(key));
  return header.substr(at + key.size() + 3);
}

inline NpyArray parse_npy(const std::vector<std::byte>& file) {
  if (file.size() < 10 || std::memcmp(file.data(), "\x93NUMPY", 6) != 0)
    throw std::runtime_error("npy: wrong magic");
  const bool long_header = file[6] != std::byte{1};
  const std::size_t begin = long_header ? 12 : 10;
  const std::size_t length =
      long_header ? load<std::uint32_t>(file, 8) : load<std::uint16_t>(file, 8);
  if (file.size() < begin + length) throw std::runtime_error("npy: cut short");
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + begin, length);

  NpyArray array;
  std::string_view descr = field(header, "descr");
  descr.remove_prefix(descr.find('\'') + 1);
  array.dtype = descr.substr(0, descr.find('\''));
  const std::string_view order = field(header, "fortran_order");
  const bool fortran = order.find("True") < order.find(',');
  std::string_view shape = field(header, "shape");
  shape = shape.substr(shape.find('(') + 1);
  shape = shape.substr(0, shape.find(')'));
  for (std::size_t i = 0; i < shape.size();) {
    if (shape[i] < '0' || shape[i] > '9') {
      ++i;
      continue;
    }
    std::size_t n = 0;
    for (; i < shape.size() && shape[i] >= '0' && shape[i] <= '9'; ++i)
      n = n * 10 + static_cast<std::size_t>(shape[i] - '0');
    array.shape.push_back(n);
  }
  const std::size_t item = static_cast<std::size_t>(array.dtype.at(2) - '0');
  const std::size_t count = array.size();
  if (file.size() - begin - length < count * item) throw std::runtime_error("npy: cut short");
  const std::byte* data = file.data() + begin + length;
  array.data.resize(count * item);
  if (!fortran || array.shape.size() < 2) {
    if (count != 0) std::memcpy(array.data.data(), data, count * item);
    return array;
  }
  std::vector<std::size_t> index(array.shape.size(), 0);  // counts in C order
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t from = 0;
    for (std::size_t d = index.size(); d-- > 0;) from = from * array.shape[d] + index[d];
    std::memcpy(array.data.data() + i * item, data + from * item, item);
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < array.shape[d]) break;
      index[d] = 0;
    }
  }
  return array;
}

inline std::vector<std::byte> inflate_raw(const std::byte* from, std::size_t size,
                                          std::size_t unpacked) {
#ifndef DECANT_TEST_ZLIB
  (void)from, (void)size, (void)unpacked;
  throw std::runtime_error("npz: this build has no zlib");
#else
  std::vector<std::byte> out(unpacked);
  z_stream stream = {};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw std::runtime_error("npz: zlib");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(from));
  stream.avail_in = static_cast<uInt>(size);
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(unpacked);
  const int result = inflate(&stream, Z_FINISH);
  const bool whole = result == Z_STREAM_END && stream.total_out == unpacked;
  inflateEnd(&stream);
  if (!whole) throw std::runtime_error("npz: damaged entry");
  return out;
#endif
}

}  // namespace npz

inline NpyArray read_npy(const std::string& path) { return npz::parse_npy(read_file_bytes(path)); }

/// All arrays of an .npz file by name (without ".npy"). Sizes come from the zip's directory.
inline std::map<std::string, NpyArray> read_npz(const std::string& path) {
  using npz::load;
  const std::vector<std::byte> file = read_file_bytes(path);
  if (file.size() < 22) throw std::runtime_error("npz: cut short");
  std::size_t end = file.size() - 22;
  while (load<std::uint32_t>(file, end) != 0x06054b50u) {
    if (end == 0) throw std::runtime_error("npz: not a zip file");
    --end;
  }
  const std::size_t n_entries = load<std::uint16_t>(file, end + 10);
  std::size_t at = load<std::uint32_t>(file, end + 16);
  std::map<std::string, NpyArray> arrays;
  for (std::size_t i = 0; i < n_entries; ++i) {
    if (load<std::uint32_t>(file, at) != 0x02014b50u) throw std::runtime_error("npz: directory");
    const auto method = load<std::uint16_t>(file, at + 10);
    const std::size_t packed = load<std::uint32_t>(file, at + 20);
    const std::size_t unpacked = load<std::uint32_t>(file, at + 24);
    const std::size_t name_size = load<std::uint16_t>(file, at + 28);
    const std::size_t local = load<std::uint32_t>(file, at + 42);
    if (at + 46 + name_size > file.size()) throw std::runtime_error("npz: cut short");
    std::string name(reinterpret_cast<const char*>(file.data()) + at + 46, name_size);
    const std::size_t data =
        local + 30 + load<std::uint16_t>(file, local + 26) + load<std::uint16_t>(file, local + 28);
    if (data > file.size() || packed > file.size() - data)
      throw std::runtime_error("npz: cut short");
    std::vector<std::byte> entry;
    if (method == 0)
      entry.assign(file.begin() + static_cast<std::ptrdiff_t>(data),
                   file.begin() + static_cast<std::ptrdiff_t>(data + packed));
    else if (method == 8)
      entry = npz::inflate_raw(file.data() + data, packed, unpacked);
    else
      throw std::runtime_error("npz: unknown packing");
    if (name.ends_with(".npy")) name.resize(name.size() - 4);
    arrays.emplace(std::move(name), npz::parse_npy(entry));
    at += 46 + name_size + load<std::uint16_t>(file, at + 30) + load<std::uint16_t>(file, at + 32);
  }
  return arrays;
}

}  // namespace decant_test
