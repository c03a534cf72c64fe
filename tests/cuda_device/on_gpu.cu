// The cases on the GPU, and how fast the kernels that stream memory do so there.
#include "base/fp_contract.hpp"

#include "cuda_device/cases.hpp"
#include "cuda_device/device_test.hpp"

namespace decant::detail::cuda_device {

using decant_test::Gpu;
using decant_test::Rate;

/// Mean seconds of one of n calls of go(i), after as many that are not counted.
template <class Go>
double seconds_of(Device& device, int n, Go go) {
  cudaEvent_t begin = nullptr, end = nullptr;
  device.stream.note(cudaEventCreate(&begin));
  device.stream.note(cudaEventCreate(&end));
  for (int i = 0; i < n; ++i) go(i);
  device.stream.note(cudaEventRecord(begin, device.stream.stream));
  for (int i = 0; i < n; ++i) go(i);
  device.stream.note(cudaEventRecord(end, device.stream.stream));
  static_cast<void>(device.finish());
  float milliseconds = 0;
  device.stream.note(cudaEventElapsedTime(&milliseconds, begin, end));
  device.stream.note(cudaEventDestroy(begin));
  device.stream.note(cudaEventDestroy(end));
  return static_cast<double>(milliseconds) / 1e3 / n;
}

inline Status describe(Device& device, Gpu& gpu) {
  cudaDeviceProp properties{};
  int clock_khz = 0, bus_bits = 0;
  device.stream.note(cudaGetDeviceProperties(&properties, 0));
  device.stream.note(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, 0));
  device.stream.note(cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, 0));
  gpu.name = properties.name;
  gpu.capability = 10 * properties.major + properties.minor;
  gpu.paper_bandwidth = 2.0 * clock_khz * 1e3 * bus_bits / 8;
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  std::byte* const from = device.take(kBytes);
  std::byte* const to = device.take(kBytes);
  if (from == nullptr || to == nullptr)
    return make_error(ErrorCode::out_of_memory, "the GPU has no 2 GiB to spare");
  gpu.copy_bandwidth = 2 * static_cast<double>(kBytes) /
                       seconds_of(device, 10, [&](int) { device.copy_within(to, from, kBytes); });
  return device.finish();
}

/// Projections of models of 1 and 8 billion parameters; the codes are zeros, which cost the same.
/// The copies of a weight are together larger than every cache.
inline Status add_multiply_rates(Device& device, std::vector<Rate>& rates) {
  struct Shape {
    const char* name;
    int rows, cols;
  };
  for (const Shape& s : {Shape{"1B up", 8192, 2048}, Shape{"8B qkv", 6144, 4096},
                         Shape{"8B up", 14336, 4096}, Shape{"8B down", 4096, 14336}})
    for (const TensorType type : {TensorType::Q4_0, TensorType::Q4_K, TensorType::Q8_0}) {
      DeviceWeight weight;
      weight.form = weight_form(type);
      weight.group_bytes = cuda_group_bytes(type, s.cols);
      weight.n_groups = s.rows / kRowGroup;
      weight.n_tiles = s.cols / kTileColumns;
      const auto bytes = usize(weight.n_groups) * static_cast<std::size_t>(weight.group_bytes);
      const int n_copies = static_cast<int>((std::size_t{512} << 20) / bytes) + 1;
      std::vector<std::byte*> copies;
      for (int i = 0; i < n_copies; ++i) copies.push_back(device.take(bytes));
      MultiplyArgs args;
      args.x.stride = s.cols;
      args.x.data = reinterpret_cast<const std::uint16_t*>(device.take(usize(64 * s.cols * 2)));
      args.out_stride = s.rows;
      args.out = reinterpret_cast<float*>(device.take(usize(64 * s.rows * 4)));
      if (copies.back() == nullptr || args.out == nullptr || args.x.data == nullptr)
        return make_error(ErrorCode::out_of_memory, "the GPU lacks memory for the rates");
      for (const int n : {1, 8, 16, 32, 64}) {
        args.x.n_rows = n;
        for_token_tiles(n, [&](auto tiles) {
          const double seconds = seconds_of(device, 2 * n_copies, [&](int i) {
            MultiplyArgs mine = args;
            mine.weight[0] = weight;
            mine.weight[0].data = copies[usize(i % n_copies)];
            launch(multiply_rows<tiles()>, {static_cast<unsigned>(weight.n_groups), 1, 1},
                   kMultiplyThreads, multiply_shared_bytes(stage_bytes(weight.form), tiles()),
                   device.stream, mine);
          });
          rates.push_back({std::string("multiply_rows ") + s.name + " " +
                               std::string(tensor_type_info(type)->name) + " x " +
                               std::to_string(n),
                           seconds, static_cast<double>(bytes)});
        });
      }
      DECANT_TRY(device.finish());
    }
  return {};
}

/// Sequences of 4096 tokens, heads as those of an 8B model.
inline Status add_attend_rates(Device& device, std::vector<Rate>& rates) {
  const int kv_len = 4096, dim = 128, n_kv_heads = 8, group = 4, n_heads = n_kv_heads * group;
  for (const KvType type : {KvType::f16, KvType::int8})
    for (const int batch : {1, 16}) {
      const int n_pages = kv_len / kPageTokens, n_splits = kv_len / kSplit;
      const int n_pools = 64 / batch;  // together larger than every cache
      const Pages pages(type, 1, n_kv_heads, dim, 0);
      std::vector<std::int32_t> tables;
      std::vector<DeviceRow> rows;
      std::vector<AttendTile> tiles;
      for (int b = 0; b < batch; ++b) {
        rows.push_back({0, kv_len - 1, static_cast<int>(tables.size()), n_pages, b * n_splits});
        tiles.push_back({b, 1});
        for (int p = 0; p < n_pages; ++p) tables.push_back(b * n_pages + p);
      }
      const std::size_t bytes =
          usize(batch * n_pages) * static_cast<std::size_t>(pages.view.page_stride);
      std::byte* const pool = device.take(bytes * usize(n_pools));
      AttendArgs args;
      args.rows = to_device(device, rows);
      args.tiles = to_device(device, tiles);
      args.tables = to_device(device, tables);
      args.q = to_device(device, decant_test::normal_floats(usize(batch * n_heads * dim), 1));
      args.n_heads = n_heads;
      args.group = group;
      args.kv = pages.view;
      const std::vector<float> parts(usize(batch * n_splits * n_heads));
      args.max = to_device(device, parts);
      args.sum = to_device(device, parts);
      args.output = to_device(device, std::vector<float>(parts.size() * usize(dim)));
      if (pool == nullptr || args.output == nullptr)
        return make_error(ErrorCode::out_of_memory, "the GPU lacks memory for the rates");
      const double seconds = seconds_of(device, n_pools, [&](int i) {
        args.kv.pages = pool + bytes * usize(i);
        launch(attend_tiles<1>,
               {static_cast<unsigned>(n_splits), static_cast<unsigned>(n_kv_heads),
                static_cast<unsigned>(batch)},
               kAttendThreads, attend_shared_bytes<1>(args.kv), device.stream, args);
      });
      rates.push_back({std::string("attend_tiles ") + (type == KvType::f16 ? "f16" : "int8") +
                           " 4096 tokens x " + std::to_string(batch),
                       seconds, static_cast<double>(bytes)});
      DECANT_TRY(device.finish());
    }
  return {};
}

}  // namespace decant::detail::cuda_device

namespace decant_test {

namespace gpu = decant::detail::cuda_device;

decant::Result<std::vector<Outcome>> cases_on_gpu(bool small) { return gpu::run_cases(small); }

decant::Result<std::vector<Rate>> rates_on_gpu(Gpu& of) {
  std::vector<Rate> rates;
  // A device of its own each, so that its memory is free again for the next.
  const auto with_device = [](auto work) -> decant::Status {
    gpu::Device device;
    DECANT_TRY(device.open(0, nullptr));
    const gpu::CurrentDevice current = device.use();
    return work(device);
  };
  DECANT_TRY(with_device([&](gpu::Device& device) { return gpu::describe(device, of); }));
  DECANT_TRY(
      with_device([&](gpu::Device& device) { return gpu::add_multiply_rates(device, rates); }));
  DECANT_TRY(
      with_device([&](gpu::Device& device) { return gpu::add_attend_rates(device, rates); }));
  return decant::Result<std::vector<Rate>>(std::move(rates));
}

}  // namespace decant_test
