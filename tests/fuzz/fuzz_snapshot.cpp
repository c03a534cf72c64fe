// Any bytes as a snapshot, past the checksum: parsing gives an error or a snapshot that writes back
// to the same bytes.
#include <cstdint>
#include <cstring>

#include "kv/snapshot.hpp"

using namespace decant::detail;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  (void)check_snapshot(bytes);
  const auto snapshot = parse_snapshot(bytes);
  if (!snapshot) return 0;
  std::vector<std::byte> again = write_snapshot_head(*snapshot);
  for (const auto& pages : snapshot->pages) again.insert(again.end(), pages.begin(), pages.end());
  if (again.size() != size || std::memcmp(again.data(), data, size) != 0) __builtin_trap();
  return 0;
}
