// The yardsticks of `decant bench`.
//
// The loops for peaks are assembly: sums must stay in registers, and there must be enough of them
// to hide the latency of an instruction (16 sums; 12 on AVX2, which has 16 registers in all). A dot
// product ends in 32-bit sums: vpdpbusd, sdot, on AVX2 vpmaddubsw + vpmaddwd + vpaddd. "portable"
// is what every processor of the architecture has.

#include "bench_rulers.hpp"

#include <decant/decant.hpp>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__)
#define CLI_RULERS_X86 1
#elif defined(__aarch64__) && defined(__GNUC__)
#define CLI_RULERS_NEON 1
#ifdef __linux__
#include <sys/auxv.h>
#endif
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace cli {

namespace {

// ------------------------------------------------------------------------------------ peak loops

/// One round: how many multiply-adds, and the loop that does `rounds` of them.
struct PeakLoop {
  double products;
  void (*run)(std::int64_t rounds);
};

/// All bytes in four streams, each a multiple of kLine.
using ReadLoop = void (*)(const std::byte* begin, std::size_t bytes);

struct RulerSet {
  const char* isa;
  bool available;
  PeakLoop int8, f32;
  ReadLoop read;
};

constexpr std::size_t kStreams = 4, kLine = 64;

#define CLI_12(f) \
  f("0") f("1") f("2") f("3") f("4") f("5") f("6") f("7") f("8") f("9") f("10") f("11")
#define CLI_16(f) CLI_12(f) f("12") f("13") f("14") f("15")

#ifdef CLI_RULERS_X86

#define CLI_XMM                                                                            \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

#define CLI_DOT(r) "vpdpbusd %%zmm17, %%zmm16, %%zmm" r "\n\t"
#define CLI_FMA(r) "vfmadd231ps %%zmm17, %%zmm16, %%zmm" r "\n\t"
#define CLI_ZERO(r) "vpxord %%zmm" r ", %%zmm" r ", %%zmm" r "\n\t"
#define CLI_PEAK_AVX512(step) \
  asm volatile(CLI_16(CLI_ZERO) "vpternlogd $255, %%zmm16, %%zmm16, %%zmm16\n\t"            \
               "vpsrld $25, %%zmm16, %%zmm16\n\t"                                           \
               "vmovdqa64 %%zmm16, %%zmm17\n\t"                                             \
               "1:\n\t" CLI_16(step) "decq %0\n\t"                                          \
               "jnz 1b\n\t"                                                                 \
               "vzeroupper"                                                                 \
               : "+r"(rounds)                                                               \
               :                                                                            \
               : "cc", CLI_XMM, "xmm16", "xmm17")

__attribute__((target("avx512f,avx512vnni"))) void int8_avx512(std::int64_t rounds) {
  CLI_PEAK_AVX512(CLI_DOT);
}
__attribute__((target("avx512f"))) void f32_avx512(std::int64_t rounds) {
  CLI_PEAK_AVX512(CLI_FMA);
}

#define CLI_DOT256(r)                        \
  "vpmaddubsw %%ymm13, %%ymm12, %%ymm15\n\t" \
  "vpmaddwd %%ymm14, %%ymm15, %%ymm15\n\t"   \
  "vpaddd %%ymm15, %%ymm" r ", %%ymm" r "\n\t"
#define CLI_FMA256(r) "vfmadd231ps %%ymm13, %%ymm12, %%ymm" r "\n\t"
#define CLI_ZERO256(r) "vpxor %%ymm" r ", %%ymm" r ", %%ymm" r "\n\t"
#define CLI_PEAK_AVX2(step) \
  asm volatile(CLI_12(CLI_ZERO256) "vpcmpeqd %%ymm12, %%ymm12, %%ymm12\n\t"                 \
               "vpsrld $25, %%ymm12, %%ymm12\n\t"                                           \
               "vmovdqa %%ymm12, %%ymm13\n\t"                                               \
               "vmovdqa %%ymm12, %%ymm14\n\t"                                               \
               "1:\n\t" CLI_12(step) "decq %0\n\t"                                          \
               "jnz 1b\n\t"                                                                 \
               "vzeroupper"                                                                 \
               : "+r"(rounds)                                                               \
               :                                                                            \
               : "cc", CLI_XMM)

__attribute__((target("avx2"))) void int8_avx2(std::int64_t rounds) { CLI_PEAK_AVX2(CLI_DOT256); }
__attribute__((target("avx2,fma"))) void f32_avx2(std::int64_t rounds) {
  CLI_PEAK_AVX2(CLI_FMA256);
}

// What every 64-bit x86 processor has.
#define CLI_DOT128(r)            \
  "movdqa %%xmm12, %%xmm15\n\t"  \
  "pmaddwd %%xmm13, %%xmm15\n\t" \
  "paddd %%xmm15, %%xmm" r "\n\t"
#define CLI_MULADD128(r)        \
  "movaps %%xmm12, %%xmm15\n\t" \
  "mulps %%xmm13, %%xmm15\n\t"  \
  "addps %%xmm15, %%xmm" r "\n\t"
#define CLI_ZERO128(r) "pxor %%xmm" r ", %%xmm" r "\n\t"
#define CLI_PEAK_SSE2(step) \
  asm volatile(CLI_12(CLI_ZERO128) "pxor %%xmm12, %%xmm12\n\t"  \
               "pxor %%xmm13, %%xmm13\n\t"                      \
               "1:\n\t" CLI_12(step) "decq %0\n\t"              \
               "jnz 1b"                                         \
               : "+r"(rounds)                                   \
               :                                                \
               : "cc", CLI_XMM)

void int8_portable(std::int64_t rounds) { CLI_PEAK_SSE2(CLI_DOT128); }
void f32_portable(std::int64_t rounds) { CLI_PEAK_SSE2(CLI_MULADD128); }

// Loads alone: nothing has to come of them.
#define CLI_READ_X86(lines)                                                         \
  const std::size_t part = bytes / kStreams;                                        \
  const std::byte *at = begin, *last = begin + 3 * part, *const end = begin + part; \
  asm volatile("1:\n\t" lines                                                       \
               "addq $64, %0\n\t"                                                   \
               "addq $64, %1\n\t"                                                   \
               "cmpq %3, %0\n\t"                                                    \
               "jb 1b"                                                              \
               : "+r"(at), "+r"(last)                                               \
               : "r"(part), "r"(end)                                                \
               : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3")
#define CLI_LOAD(load, vector, offset)                                                        \
  load " " offset "(%0), %%" vector "0\n\t" load " " offset "(%0,%2), %%" vector "1\n\t" load \
       " " offset "(%0,%2,2), %%" vector "2\n\t" load " " offset "(%1), %%" vector "3\n\t"

void read_avx512(const std::byte* begin, std::size_t bytes) {
  CLI_READ_X86(CLI_LOAD("vmovdqa64", "zmm", "0"));
}
void read_avx2(const std::byte* begin, std::size_t bytes) {
  CLI_READ_X86(CLI_LOAD("vmovdqa", "ymm", "0") CLI_LOAD("vmovdqa", "ymm", "32"));
}
void read_portable(const std::byte* begin, std::size_t bytes) {
  CLI_READ_X86(CLI_LOAD("movdqa", "xmm", "0") CLI_LOAD("movdqa", "xmm", "16")
                   CLI_LOAD("movdqa", "xmm", "32") CLI_LOAD("movdqa", "xmm", "48"));
}
#endif

#ifdef CLI_RULERS_NEON

#define CLI_V                                                                                    \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", \
      "v15", "v16", "v17", "v18"
#define CLI_DOT(r) "sdot v" r ".4s, v16.16b, v17.16b\n\t"
#define CLI_FMA(r) "fmla v" r ".4s, v16.4s, v17.4s\n\t"
#define CLI_ZERO(r) "movi v" r ".4s, #0\n\t"
#define CLI_PEAK_NEON(step) \
  asm volatile(".arch armv8.2-a+dotprod\n\t" CLI_16(CLI_ZERO) "movi v16.16b, #1\n\t"  \
               "movi v17.16b, #1\n\t"                                                 \
               "1:\n\t" CLI_16(step) "subs %0, %0, #1\n\t"                            \
               "b.ne 1b"                                                              \
               : "+r"(rounds)                                                         \
               :                                                                      \
               : "cc", CLI_V)

void int8_neon(std::int64_t rounds) { CLI_PEAK_NEON(CLI_DOT); }
void f32_neon(std::int64_t rounds) { CLI_PEAK_NEON(CLI_FMA); }

// What every 64-bit Arm processor has.
#define CLI_LONG_DOT(r) "smull v18.8h, v16.8b, v17.8b\n\tsadalp v" r ".4s, v18.8h\n\t"
void int8_portable(std::int64_t rounds) { CLI_PEAK_NEON(CLI_LONG_DOT); }
constexpr auto f32_portable = f32_neon;

void read_portable(const std::byte* begin, std::size_t bytes) {
  const std::size_t part = bytes / kStreams;
  for (const std::byte *at = begin, *const end = begin + part; at != end; at += kLine)
    for (std::size_t s = 0; s < kStreams; ++s)
      asm volatile("ldp q0, q1, [%0]\n\tldp q2, q3, [%0, #32]"
                   :
                   : "r"(at + s * part)
                   : "memory", "v0", "v1", "v2", "v3");
}

bool has_dot_product() {
#ifdef __linux__
  return (getauxval(AT_HWCAP) & (1UL << 20)) != 0;  // ASIMDDP
#else
  return true;  // every 64-bit Mac
#endif
}
#endif

#if !defined(CLI_RULERS_X86) && !defined(CLI_RULERS_NEON)
// Plain C++: what the compiler makes of it.
template <class Sum, class Factor>
void peak_portable(std::int64_t rounds) {
  Factor a[16] = {1, 2, 3}, b[16] = {4, 5, 6};
  Sum sum[16] = {};
  for (; rounds > 0; --rounds) {
    const Factor* volatile hidden = a;  // not to be seen through
    const Factor* const x = hidden;
    for (int i = 0; i < 16; ++i) sum[i] += static_cast<Sum>(x[i]) * static_cast<Sum>(b[i]);
  }
  volatile Sum out = Sum{};
  for (const Sum s : sum) out = s;
  static_cast<void>(out);
}
constexpr auto int8_portable = peak_portable<std::int32_t, std::int8_t>;
constexpr auto f32_portable = peak_portable<float, float>;

void read_portable(const std::byte* begin, std::size_t bytes) {
  const auto* const from = reinterpret_cast<const std::uint64_t*>(begin);
  const std::size_t part = bytes / kStreams / sizeof(std::uint64_t);
  std::uint64_t a = 0, b = 0, c = 0, d = 0;
  for (std::size_t at = 0; at < part; ++at) {
    a ^= from[at];
    b ^= from[part + at];
    c ^= from[2 * part + at];
    d ^= from[3 * part + at];
  }
  volatile std::uint64_t out = a ^ b ^ c ^ d;
  static_cast<void>(out);
}
#endif

std::vector<RulerSet> ruler_sets() {
  std::vector<RulerSet> sets;
#ifdef CLI_RULERS_X86
  sets.push_back(
      {"avx512",
       __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vnni") != 0,
       {16 * 64, int8_avx512},
       {16 * 16, f32_avx512},
       read_avx512});
  sets.push_back({"avx2",
                  __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0,
                  {12 * 32, int8_avx2},
                  {12 * 8, f32_avx2},
                  read_avx2});
#endif
#ifdef CLI_RULERS_NEON
  sets.push_back(
      {"neon", has_dot_product(), {16 * 16, int8_neon}, {16 * 4, f32_neon}, read_portable});
#endif
#if defined(CLI_RULERS_X86)
  constexpr double kDots = 12 * 8, kFmas = 12 * 4;
#elif defined(CLI_RULERS_NEON)
  constexpr double kDots = 16 * 8, kFmas = 16 * 4;
#else
  constexpr double kDots = 16, kFmas = 16;
#endif
  sets.push_back({"portable", true, {kDots, int8_portable}, {kFmas, f32_portable}, read_portable});
  return sets;
}

RulerSet ruler_set(std::string_view isa) {
  for (const RulerSet& set : ruler_sets()) {
    if (isa.empty() ? !set.available : isa != set.isa) continue;
    if (set.available) return set;
    break;
  }
  throw decant::Exception(
      {decant::ErrorCode::unsupported,
       "the processor or this build has no yardsticks for --isa " + std::string(isa)});
}

// ------------------------------------------------------------------------------------ stopwatch

/// Seconds of the fastest of `repeats` runs of work(thread) on all threads at once, from the first
/// thread's begin to the last one's end.
double best_seconds(int threads, int repeats, const std::function<void(int thread)>& work) {
  using Clock = std::chrono::steady_clock;
  std::barrier gate(threads);
  std::vector<Clock::time_point> begins(static_cast<std::size_t>(threads)), ends(begins);
  double best = 1e300;
  const auto body = [&](int thread) {
    const auto t = static_cast<std::size_t>(thread);
    for (int i = 0; i < repeats; ++i) {
      gate.arrive_and_wait();
      begins[t] = Clock::now();
      work(thread);
      ends[t] = Clock::now();
      gate.arrive_and_wait();
      if (thread == 0) {
        const std::chrono::duration<double> took = *std::max_element(ends.begin(), ends.end()) -
                                                   *std::min_element(begins.begin(), begins.end());
        best = std::min(best, took.count());
      }
      gate.arrive_and_wait();
    }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(body, t);
  body(0);
  for (std::thread& other : others) other.join();
  return best;
}

double peak(int threads, const PeakLoop& loop) {
  constexpr double kSeconds = 0.02;
  constexpr int kRepeats = 5;
  std::int64_t rounds = 1000;
  double took = 0;
  while ((took = best_seconds(1, 1, [&](int) { loop.run(rounds); })) < kSeconds / 2) rounds *= 2;
  took = best_seconds(threads, kRepeats, [&](int) { loop.run(rounds); });
  return loop.products * static_cast<double>(rounds) * threads / took / 1e9;
}

}  // namespace

// -------------------------------------------------------------------------------------- buffer

struct Rulers::Buffer {
  static constexpr std::size_t kBytes = std::size_t{1} << 30, kHugePage = std::size_t{2} << 20;
  std::byte* memory = nullptr;  // as allocated
  std::byte* data = nullptr;    // [kBytes], aligned

  Buffer() {
#ifdef __linux__
    void* const mapped = mmap(nullptr, kBytes + kHugePage, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped != MAP_FAILED) memory = static_cast<std::byte*>(mapped);
#else
    memory = static_cast<std::byte*>(std::malloc(kBytes + kHugePage));
#endif
    if (memory == nullptr)
      throw decant::Exception({decant::ErrorCode::out_of_memory,
                               "no 1 GiB of memory to measure the read bandwidth with"});
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    data = memory + ((address + kHugePage - 1) / kHugePage * kHugePage - address);
#ifdef __linux__
    madvise(data, kBytes, MADV_HUGEPAGE);  // a wish
#endif
    std::fill(data, data + kBytes, std::byte{1});
  }
  ~Buffer() {
#ifdef __linux__
    munmap(memory, kBytes + kHugePage);
#else
    std::free(memory);
#endif
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

Rulers::Rulers(std::string_view isa) : isa_(ruler_set(isa).isa) {}
Rulers::~Rulers() = default;

double Rulers::read_bandwidth(int threads) {
  if (buffer_ == nullptr) buffer_ = std::make_unique<Buffer>();
  constexpr int kRepeats = 8;
  // Streams at distances of a power of two share the sets of each cache: half the bandwidth.
  constexpr std::size_t kSkew = 5 * 4096;
  const ReadLoop read = ruler_set(isa_).read;
  const std::size_t part =
      (Buffer::kBytes / static_cast<std::size_t>(threads) / kStreams / kLine * kLine - kSkew) *
      kStreams;
  const double took = best_seconds(threads, kRepeats, [&](int thread) {
    read(buffer_->data + static_cast<std::size_t>(thread) * part, part);
  });
  return static_cast<double>(part) * threads / took / 1e9;
}

double Rulers::int8_peak(int threads) const { return peak(threads, ruler_set(isa_).int8); }
double Rulers::f32_peak(int threads) const { return peak(threads, ruler_set(isa_).f32); }

}  // namespace cli
