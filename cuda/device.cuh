// What kernels are made of, twice: for the GPU when nvcc compiles this, and for the processor, on
// which the tests run the same kernels (tests/cuda_host). Host and device may differ here and
// nowhere else. The lane maps are those of the PTX manual, "Matrix instructions".
//
// The two versions have namespaces of their own, so that one program may hold both.
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/float16.hpp"
#include "base/result.hpp"

#ifdef __CUDACC__
#include <cuda_runtime.h>
#define DECANT_CUDA_SPACE cuda_device
#define DECANT_DEVICE __device__ __forceinline__
#define DECANT_KERNEL(threads) __global__ void __launch_bounds__(threads, 1)
#define DECANT_UNROLL _Pragma("unroll")
#else
#include <functional>

#include "cuda_host/executor.hpp"
#define DECANT_CUDA_SPACE cuda_host
#define DECANT_DEVICE inline
#define DECANT_KERNEL(threads) inline void
#define DECANT_UNROLL
#endif

namespace decant::detail::DECANT_CUDA_SPACE {

inline constexpr int kWarp = 32;

/// 16 bytes that are loaded and stored together; 8 and 4 likewise.
struct alignas(16) Bytes16 {
  std::uint32_t word[4];
};
struct alignas(8) Bytes8 {
  std::uint32_t word[2];
};

struct Index {
  unsigned x, y, z;
};

/// Two 16-bit floats in a register, the lower one first.
using Pair = std::uint32_t;

/// The operands that a lane holds of D[16][8] += A[16][16] B[16][8]. With g = lane / 4 and
/// j = lane % 4:
///   A: pair 0 is row g, columns 2j, 2j + 1; pair 1 row g + 8; pairs 2, 3 the same 8 columns later
///   B: pair 0 is column g, rows 2j, 2j + 1; pair 1 rows 2j + 8, 2j + 9
///   D: 0, 1 are row g, columns 2j, 2j + 1; 2, 3 row g + 8
struct FragmentA {
  Pair pair[4];
};
struct FragmentB {
  Pair pair[2];
};
struct FragmentD {
  float value[4];
};

#ifdef __CUDACC__

// ------------------------------------------------------------------------------------- who I am
DECANT_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
DECANT_DEVICE Index block_index() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
DECANT_DEVICE Index grid_size() { return {gridDim.x, gridDim.y, gridDim.z}; }

// --------------------------------------------------------------------------- memory and barriers
/// The block's shared memory, as many bytes as the launch asked for, at 16 bytes.
DECANT_DEVICE std::byte* shared_memory() {
  extern __shared__ Bytes16 decant_shared[];
  return reinterpret_cast<std::byte*>(decant_shared);
}
DECANT_DEVICE void sync_block() { __syncthreads(); }
DECANT_DEVICE void sync_warp() { __syncwarp(); }

/// 16 bytes that this kernel reads once: around the first cache.
DECANT_DEVICE Bytes16 load_streaming(const void* from) {
  Bytes16 to;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to.word[0]), "=r"(to.word[1]), "=r"(to.word[2]), "=r"(to.word[3])
               : "l"(from));
  return to;
}

DECANT_DEVICE std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}
/// Starts a copy of 16 bytes to shared memory; `wanted` false: of zeros.
DECANT_DEVICE void copy_async(void* shared, const void* global, bool wanted = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(global), "r"(wanted ? 16 : 0)
               : "memory");
}
/// The copies that this thread started since the last commit become a group.
DECANT_DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until all but the last `Pending` groups of this thread are there. Others see them after a
/// barrier.
template <int Pending>
DECANT_DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

DECANT_DEVICE int atomic_add(int* to, int value) { return atomicAdd(to, value); }

/// Every thread calls this before it touches what an earlier kernel wrote or still reads: until
/// here the kernel may overlap the one before it in the stream (programmatic dependent launch). The
/// next one may do so from here on.
DECANT_DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// -------------------------------------------------------------------------------- within a warp
DECANT_DEVICE float shuffle_xor(float value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
}
DECANT_DEVICE int shuffle_xor(int value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
}
DECANT_DEVICE double shuffle_xor(double value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
}
DECANT_DEVICE std::uint64_t shuffle_xor(std::uint64_t value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
}

/// D += A B of bf16, summed in f32.
DECANT_DEVICE void mma_bf16(FragmentD& d, const FragmentA& a, const FragmentB& b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d.value[0]), "+f"(d.value[1]), "+f"(d.value[2]), "+f"(d.value[3])
      : "r"(a.pair[0]), "r"(a.pair[1]), "r"(a.pair[2]), "r"(a.pair[3]), "r"(b.pair[0]),
        "r"(b.pair[1]));
}
/// The same of f16.
DECANT_DEVICE void mma_f16(FragmentD& d, const FragmentA& a, const FragmentB& b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d.value[0]), "+f"(d.value[1]), "+f"(d.value[2]), "+f"(d.value[3])
      : "r"(a.pair[0]), "r"(a.pair[1]), "r"(a.pair[2]), "r"(a.pair[3]), "r"(b.pair[0]),
        "r"(b.pair[1]));
}
/// Four 8 x 8 matrices of 16-bit elements from shared memory, transposed: lanes 8m .. 8m + 7 give
/// the addresses of the rows of matrix m, each of 16 bytes. Pair m of a lane then holds the
/// elements of rows 2j and 2j + 1 in column g of matrix m.
DECANT_DEVICE FragmentA load_transposed(const void* row) {
  FragmentA a;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a.pair[0]), "=r"(a.pair[1]), "=r"(a.pair[2]), "=r"(a.pair[3])
               : "r"(shared_address(row))
               : "memory");
  return a;
}

// ------------------------------------------------------------------------------------ arithmetic
DECANT_DEVICE Pair pack_bf16(float low, float high) {
  Pair pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
DECANT_DEVICE Pair pack_f16(float low, float high) {
  Pair pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
DECANT_DEVICE float from_f16(std::uint16_t half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}
/// a - b of two pairs of bf16.
DECANT_DEVICE Pair subtract_bf16(Pair a, Pair b) {
  constexpr Pair kMinusOne = 0xBF80BF80u;
  Pair difference;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(difference) : "r"(b), "r"(kMinusOne), "r"(a));
  return difference;
}
/// Four bytes chosen from the eight of low and high, one digit of `which` each.
DECANT_DEVICE std::uint32_t choose_bytes(std::uint32_t low, std::uint32_t high,
                                         std::uint32_t which) {
  return __byte_perm(low, high, which);
}
DECANT_DEVICE float as_float(std::uint32_t bits) { return __uint_as_float(bits); }
DECANT_DEVICE std::uint32_t as_bits(float value) { return __float_as_uint(value); }
DECANT_DEVICE float fused(float a, float b, float c) { return fmaf(a, b, c); }
DECANT_DEVICE float exponential(float x) { return expf(x); }
DECANT_DEVICE float hyperbolic_tangent(float x) { return tanhf(x); }
DECANT_DEVICE float square_root(float x) { return sqrtf(x); }
DECANT_DEVICE double nearest_integer(double x) { return rint(x); }
/// The upper 64 bits of a product.
DECANT_DEVICE std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
  return __umul64hi(a, b);
}
/// sin(pi x) and cos(pi x).
DECANT_DEVICE void sine_cosine_pi(float x, float& sine, float& cosine) {
  sincospif(x, &sine, &cosine);
}

// ------------------------------------------------------------------- around kernels, on the host
/// Where work is queued. The first error stays, and nothing is queued after it.
struct Stream {
  cudaStream_t stream = nullptr;
  std::atomic<cudaError_t> error = cudaSuccess;
  bool overlaps = false;  // kernels may begin before the one in front of them has ended

  void note(cudaError_t result) {
    cudaError_t none = cudaSuccess;
    if (result != cudaSuccess) error.compare_exchange_strong(none, result);
  }
};

/// kernel<<<grid, threads, shared bytes, stream>>>(arguments...)
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), Index grid, int threads, std::size_t shared_bytes,
            Stream& stream, Arguments... arguments) {
  constexpr std::size_t kWithoutAsking = 48 << 10;
  if (stream.error == cudaSuccess && shared_bytes > kWithoutAsking)
    stream.note(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(shared_bytes)));
  if (stream.error != cudaSuccess) return;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid.x, grid.y, grid.z);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream.stream;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = stream.overlaps ? 1 : 0;
  stream.note(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

/// Launches that were recorded once and are queued as one.
struct Graph {
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (recorded != nullptr) static_cast<void>(cudaGraphExecDestroy(recorded));
  }
  cudaGraphExec_t recorded = nullptr;
  bool refused = false;
};

/// Makes a GPU this thread's for a while, and then the one that it was before.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index) {
    if (cudaGetDevice(&before_) != cudaSuccess || before_ == index) before_ = -1;
    static_cast<void>(cudaSetDevice(index));
  }
  ~CurrentDevice() {
    if (before_ >= 0) static_cast<void>(cudaSetDevice(before_));
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = -1;
};

/// A GPU, its memory and a stream of work on it. Copies and launches run in the order in which they
/// are asked for. Copies may be asked for by any thread.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() {
    if (index_ < 0) return;
    const CurrentDevice current = use();
    static_cast<void>(cudaStreamSynchronize(stream.stream));
    for (void* memory : taken_) static_cast<void>(cudaFree(memory));
    for (void* memory : pinned_) static_cast<void>(cudaFreeHost(memory));
    if (owns_stream_) static_cast<void>(cudaStreamDestroy(stream.stream));
    static_cast<void>(cudaGetLastError());
  }

  /// `host_stream`: a cudaStream_t, or null. Errors: device_unavailable.
  Status open(int index, void* host_stream) {
    int count = 0, major = 0, minor = 0;
    cudaError_t result = cudaGetDeviceCount(&count);
    if (result == cudaSuccess && index < count)
      result = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
    if (result == cudaSuccess && index < count)
      result = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
    if (result != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return make_error(
          ErrorCode::device_unavailable,
          "no GPU can be used: {}; install NVIDIA's driver, or choose the cpu backend",
          cudaGetErrorString(result));
    }
    if (index >= count)
      return make_error(ErrorCode::device_unavailable,
                        "there is no GPU number {}; this machine has {}", index, count);
    if (major < 8)
      return make_error(ErrorCode::device_unavailable,
                        "GPU {} has compute capability {}.{}; 8.0 or above is needed", index, major,
                        minor);
    index_ = index;
    const CurrentDevice current = use();
    stream.stream = static_cast<cudaStream_t>(host_stream);
    owns_stream_ = host_stream == nullptr;
    if (owns_stream_) stream.note(cudaStreamCreateWithFlags(&stream.stream, cudaStreamNonBlocking));
    return finish();
  }
  /// Kernels overlap if this one was compiled for GPUs that can do so: others ignore the wait.
  template <class... Parameters>
  void overlap_as(void (*kernel)(Parameters...)) {
    cudaFuncAttributes attributes{};
    const cudaError_t result =
        cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
    stream.note(result);
    stream.overlaps = result == cudaSuccess && attributes.ptxVersion >= 90;
  }
  /// Each thread that calls the others, or launches, keeps this while it does.
  [[nodiscard]] CurrentDevice use() const { return CurrentDevice(index_); }

  /// Zeroed memory of the device's, until the end; null: there is no more.
  std::byte* take(std::size_t bytes) {
    void* memory = nullptr;
    if (cudaMalloc(&memory, bytes) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());  // a mere lack of memory harms nothing
      return nullptr;
    }
    taken_.push_back(memory);
    stream.note(cudaMemsetAsync(memory, 0, bytes, stream.stream));
    return static_cast<std::byte*>(memory);
  }
  /// Memory of the host's from which copies are fast.
  std::byte* take_pinned(std::size_t bytes) {
    void* memory = nullptr;
    if (cudaMallocHost(&memory, bytes) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return nullptr;
    }
    pinned_.push_back(memory);
    return static_cast<std::byte*>(memory);
  }
  /// No copy from it may be under way.
  void free_pinned(std::byte* memory) {
    static_cast<void>(cudaFreeHost(memory));
    std::erase(pinned_, memory);
  }
  /// The source may change after `finish`, one that is not pinned at once.
  void copy_in(void* device, const void* host, std::size_t bytes) {
    copy(device, host, bytes, cudaMemcpyHostToDevice);
  }
  /// From pinned memory, perhaps as late as in `finish`: nothing before that may need it.
  void copy_in_late(void* device, const void* host, std::size_t bytes) {
    copy_in(device, host, bytes);
  }
  /// The target is filled after `finish`.
  void copy_out(void* host, const void* device, std::size_t bytes) {
    copy(host, device, bytes, cudaMemcpyDeviceToHost);
  }
  void copy_within(void* to, const void* from, std::size_t bytes) {
    copy(to, from, bytes, cudaMemcpyDeviceToDevice);
  }
  /// Queues what `work` launches, which must be the same each time: recorded the first time, or, if
  /// that cannot be done, launch by launch.
  template <class Work>
  void replay(Graph& graph, Work work) {
    if (stream.error == cudaSuccess && graph.recorded == nullptr && !graph.refused)
      record(graph, work);
    if (graph.recorded == nullptr) return work();
    if (stream.error == cudaSuccess) stream.note(cudaGraphLaunch(graph.recorded, stream.stream));
  }
  /// Waits for all that was queued. Errors: device_lost, and then for ever.
  Status finish() {
    if (stream.error == cudaSuccess) stream.note(cudaStreamSynchronize(stream.stream));
    if (stream.error == cudaSuccess) return {};
    return make_error(ErrorCode::device_lost,
                      "GPU {} failed: {}; load the model again, or with the cpu backend", index_,
                      cudaGetErrorString(stream.error));
  }

  Stream stream;

 private:
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    if (stream.error == cudaSuccess)
      stream.note(cudaMemcpyAsync(to, from, bytes, kind, stream.stream));
  }
  template <class Work>
  void record(Graph& graph, Work work) {
    cudaGraph_t launches = nullptr;
    cudaError_t result = cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeThreadLocal);
    if (result == cudaSuccess) {
      work();
      result = cudaStreamEndCapture(stream.stream, &launches);
    }
    if (result == cudaSuccess) result = stream.error;
    if (result == cudaSuccess) result = cudaGraphInstantiate(&graph.recorded, launches, 0);
    if (launches != nullptr) static_cast<void>(cudaGraphDestroy(launches));
    if (result == cudaSuccess) return;
    // Nothing has run. What harms more than the recording will be seen again.
    graph.recorded = nullptr;
    graph.refused = true;
    stream.error = cudaSuccess;
    static_cast<void>(cudaGetLastError());
  }
  int index_ = -1;
  bool owns_stream_ = false;
  std::vector<void*> taken_, pinned_;
};

#else

// Each function does what the one above does, for one lane of the executor's current block. Warp
// operations are a rendezvous: the last lane to come does the work of all.

using Lanes = void* const*;  // [32] a lane's operands, null of one that has ended

inline int thread_index() { return here().thread; }
inline Index block_index() {
  const Executor& e = *here().executor;
  return {e.block[0], e.block[1], e.block[2]};
}
inline Index grid_size() {
  const Executor& e = *here().executor;
  return {e.grid[0], e.grid[1], e.grid[2]};
}

inline std::byte* shared_memory() { return here().executor->shared(); }
inline void sync_block() { here().executor->sync_block(); }
inline void sync_warp() {
  char nothing = 0;
  here().executor->meet("sync_warp", &nothing, [](Lanes) {});
}

inline Bytes16 load_streaming(const void* from) {
  Bytes16 to;
  std::memcpy(&to, from, sizeof to);
  return to;
}

inline void copy_async(void* shared, const void* global, bool wanted = true) {
  here().executor->copy_async(shared, global, wanted);
}
inline void copy_commit() { here().executor->copy_commit(); }
template <int Pending>
void copy_wait() {
  here().executor->copy_wait(Pending);
}

inline int atomic_add(int* to, int value) {
  const int before = *to;
  *to += value;
  return before;
}

template <class T>
T shuffle_xor_host(T value, int mask) {
  struct Operand {
    T value, result;
    int mask;
  } operand{value, T{}, mask};
  here().executor->meet("shuffle_xor", &operand, [](Lanes lanes) {
    for (int i = 0; i < kWarp; ++i) {
      auto* to = static_cast<Operand*>(lanes[i]);
      if (to == nullptr) continue;
      const auto* from = static_cast<const Operand*>(lanes[i ^ to->mask]);
      to->result = from != nullptr ? from->value : T{};
    }
  });
  return operand.result;
}
inline float shuffle_xor(float value, int mask) { return shuffle_xor_host(value, mask); }
inline int shuffle_xor(int value, int mask) { return shuffle_xor_host(value, mask); }
inline double shuffle_xor(double value, int mask) { return shuffle_xor_host(value, mask); }
inline std::uint64_t shuffle_xor(std::uint64_t value, int mask) {
  return shuffle_xor_host(value, mask);
}

struct MmaOperands {
  FragmentD* d;
  const FragmentA* a;
  const FragmentB* b;
};
template <float (*Widen)(std::uint16_t)>
void mma_host(Lanes lanes) {
  float a[16][16], b[16][8], sum[16][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto& at = *static_cast<const MmaOperands*>(lanes[lane]);
    const int g = lane / 4, j = lane % 4;
    const auto widen = [](Pair pair, float* to, int stride) {
      to[0] = Widen(static_cast<std::uint16_t>(pair));
      to[stride] = Widen(static_cast<std::uint16_t>(pair >> 16));
    };
    for (int p = 0; p < 4; ++p) widen(at.a->pair[p], &a[g + 8 * (p % 2)][2 * j + 8 * (p / 2)], 1);
    for (int p = 0; p < 2; ++p) widen(at.b->pair[p], &b[2 * j + 8 * p][g], 8);
    for (int i = 0; i < 4; ++i) sum[g + 8 * (i / 2)][2 * j + i % 2] = at.d->value[i];
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) sum[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto& at = *static_cast<const MmaOperands*>(lanes[lane]);
    for (int i = 0; i < 4; ++i)
      at.d->value[i] = sum[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
  }
}
inline float widen_bf16(std::uint16_t value) { return bf16_to_f32(value); }
inline float widen_f16(std::uint16_t value) { return f16_to_f32(value); }
inline void mma_bf16(FragmentD& d, const FragmentA& a, const FragmentB& b) {
  MmaOperands operands{&d, &a, &b};
  here().executor->meet("mma_bf16", &operands, mma_host<widen_bf16>);
}
inline void mma_f16(FragmentD& d, const FragmentA& a, const FragmentB& b) {
  MmaOperands operands{&d, &a, &b};
  here().executor->meet("mma_f16", &operands, mma_host<widen_f16>);
}

inline FragmentA load_transposed(const void* row) {
  struct Operand {
    const void* row;
    FragmentA to;
  } operand{row, {}};
  here().executor->meet("load_transposed", &operand, [](Lanes lanes) {
    std::uint16_t matrix[4][8][8];
    for (int lane = 0; lane < kWarp; ++lane)
      std::memcpy(matrix[lane / 8][lane % 8], static_cast<const Operand*>(lanes[lane])->row, 16);
    for (int lane = 0; lane < kWarp; ++lane)
      for (int m = 0; m < 4; ++m) {
        const int row = 2 * (lane % 4), column = lane / 4;
        static_cast<Operand*>(lanes[lane])->to.pair[m] =
            matrix[m][row][column] | static_cast<Pair>(matrix[m][row + 1][column]) << 16;
      }
  });
  return operand.to;
}

inline Pair pack_bf16(float low, float high) {
  return f32_to_bf16(low) | static_cast<Pair>(f32_to_bf16(high)) << 16;
}
inline Pair pack_f16(float low, float high) {
  return f32_to_f16(low) | static_cast<Pair>(f32_to_f16(high)) << 16;
}
inline float from_f16(std::uint16_t half) { return f16_to_f32(half); }
inline Pair subtract_bf16(Pair a, Pair b) {
  const auto part = [](Pair pair, int i) {
    return bf16_to_f32(static_cast<std::uint16_t>(pair >> (16 * i)));
  };
  return pack_bf16(part(a, 0) - part(b, 0), part(a, 1) - part(b, 1));
}
inline std::uint32_t choose_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t which) {
  const std::uint64_t all = low | static_cast<std::uint64_t>(high) << 32;
  std::uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i)
    chosen |= static_cast<std::uint32_t>(all >> (8 * (which >> (4 * i) & 7)) & 0xFF) << (8 * i);
  return chosen;
}
inline float as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t as_bits(float value) { return std::bit_cast<std::uint32_t>(value); }
inline float fused(float a, float b, float c) { return std::fma(a, b, c); }
inline float exponential(float x) { return std::exp(x); }
inline float hyperbolic_tangent(float x) { return std::tanh(x); }
inline float square_root(float x) { return std::sqrt(x); }
inline double nearest_integer(double x) { return std::nearbyint(x); }
inline std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Wide>(a) * b >> 64);
}
inline void sine_cosine_pi(float x, float& sine, float& cosine) {
  constexpr double kPi = 3.14159265358979323846;
  sine = static_cast<float>(std::sin(kPi * static_cast<double>(x)));
  cosine = static_cast<float>(std::cos(kPi * static_cast<double>(x)));
}

inline void wait_for_previous() { here().executor->note_wait(); }

struct Stream {
  Executor* executor = nullptr;
  std::vector<std::function<void()> >* recording = nullptr;
};
struct Graph {
  std::vector<std::function<void()> > recorded;
};

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), Index grid, int threads, std::size_t shared_bytes,
            Stream& stream, Arguments... arguments) {
  const auto work = [=, executor = stream.executor] {
    const auto body = [&] { kernel(static_cast<Parameters>(arguments)...); };
    executor->run(
        {grid.x, grid.y, grid.z}, threads, shared_bytes,
        [](const void* f) { (*static_cast<decltype(body)*>(f))(); }, &body);
  };
  if (stream.recording != nullptr)
    stream.recording->push_back(work);
  else
    work();
}

struct CurrentDevice {
  ~CurrentDevice() {}  // as something that has one
};

/// The device of the tests. Its index is the order in which threads run: 0 ascending, 1 descending,
/// any other the seed of a random one; kFails + n: it fails after n launches; kLacks + n: it has
/// memory for the first n that ask.
class Device {
 public:
  static constexpr int kFails = 1 << 20, kLacks = 1 << 24;
  Status open(int index, void*) {
    using Order = Executor::Order;
    const Order order = index == 0   ? Order::ascending
                        : index == 1 ? Order::descending
                                     : Order::random;
    executor_ = std::make_unique<Executor>(order, static_cast<std::uint64_t>(index));
    if (index >= kLacks)
      n_takes_left_ = index - kLacks;
    else if (index >= kFails)
      executor_->fail_after(index - kFails);
    executor_->demand_wait();
    stream.executor = executor_.get();
    return {};
  }
  template <class Kernel>
  void overlap_as(Kernel) {}
  [[nodiscard]] CurrentDevice use() const { return {}; }
  std::byte* take(std::size_t bytes) {
    if (n_takes_left_ == 0) return nullptr;
    if (n_takes_left_ > 0) --n_takes_left_;
    taken_.emplace_back(bytes / sizeof(Bytes16) + 1);
    return reinterpret_cast<std::byte*>(taken_.back().data());
  }
  std::byte* take_pinned(std::size_t bytes) { return take(bytes); }
  void free_pinned(std::byte* memory) {
    std::erase_if(taken_, [&](auto& taken) { return static_cast<void*>(taken.data()) == memory; });
  }
  void copy_in(void* device, const void* host, std::size_t bytes) {
    std::memcpy(device, host, bytes);
  }
  void copy_in_late(void* device, const void* host, std::size_t bytes) {
    late_.push_back([=] { std::memcpy(device, host, bytes); });
  }
  void copy_out(void* host, const void* device, std::size_t bytes) {
    std::memcpy(host, device, bytes);
    n_copied_out += bytes;
  }
  void copy_within(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  template <class Work>
  void replay(Graph& graph, Work work) {
    if (graph.recorded.empty()) {
      stream.recording = &graph.recorded;
      work();
      stream.recording = nullptr;
    }
    for (const auto& launch : graph.recorded) launch();
  }
  Status finish() {
    for (const auto& copy : late_) copy();
    late_.clear();
    if (executor_->error().empty()) return {};
    return make_error(ErrorCode::device_lost, "the executor stopped: {}", executor_->error());
  }

  Stream stream;

 private:
  std::unique_ptr<Executor> executor_;
  int n_takes_left_ = -1;  // -1: as many as there are
  std::vector<std::vector<Bytes16> > taken_;
  std::vector<std::function<void()> > late_;
};

#endif

}  // namespace decant::detail::DECANT_CUDA_SPACE
