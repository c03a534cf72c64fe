// The executor itself, and the host twins of the primitives: what it must let pass and what it must
// notice.
#include <random>
#include <set>

#include "cuda/device.cuh"
#include "support/catch.hpp"

using namespace decant::detail;
using namespace decant::detail::cuda_host;

namespace {

using Order = Executor::Order;
struct Schedule {
  Order order;
  std::uint64_t seed;
};
const Schedule kSchedules[] = {{Order::ascending, 1},
                               {Order::descending, 1},
                               {Order::random, 1},
                               {Order::random, 2},
                               {Order::random, 3}};

/// Runs a kernel on one block and returns the executor's complaint.
template <class Kernel, class... Arguments>
std::string run(const Schedule& schedule, int threads, std::size_t shared_bytes, Kernel kernel,
                Arguments... arguments) {
  Executor executor(schedule.order, schedule.seed);
  Stream stream{&executor};
  launch(kernel, {1, 1, 1}, threads, shared_bytes, stream, arguments...);
  return executor.error();
}

/// out[i] = the value that thread i + 1 put into shared memory, with or without a barrier between.
void neighbour(float* out, bool barrier) {
  auto* const values = reinterpret_cast<float*>(shared_memory());
  const int i = thread_index();
  values[i] = static_cast<float>(i);
  if (barrier) sync_block();
  out[i] = values[(i + 1) % 128];
}

void warp_sum(int* out) {
  int value = thread_index();
  for (int mask = 16; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
  out[thread_index()] = value;
}

void half_at_barrier() {
  if (thread_index() < 64) sync_block();
}
void diverged() {
  if (thread_index() % 2 == 0)
    sync_warp();
  else
    shuffle_xor(1, 1);
}
void out_of_bounds(int offset) { shared_memory()[offset] = std::byte{1}; }

void last_block(Index* out) {
  if (thread_index() == 0) *out = block_index();
}
void count_block(int* out) {
  const Index b = block_index();
  if (thread_index() == 0) out[(b.z * 3 + b.y) * 5 + b.x] += 1;
}

struct alignas(16) Line {
  float x[4];
};
/// Copies without a wait, or into what another lane still reads, give NaN.
void staged(const Line* from, float* out, bool wait, bool barrier) {
  auto* const line = reinterpret_cast<Line*>(shared_memory());
  const int i = thread_index();
  copy_async(line + i, from + i);
  copy_commit();
  if (wait) copy_wait<0>();
  sync_warp();
  float sum = line[(i + 1) % 32].x[0];
  if (barrier) sync_warp();
  copy_async(line + i, from + 32 + i, i != 3);
  copy_commit();
  copy_wait<0>();
  sync_warp();
  out[i] = sum + line[(i + 5) % 32].x[3];
}

void one_mma(const std::uint16_t* a, const std::uint16_t* b, float* d, bool bf16) {
  const int g = thread_index() / 4, j = thread_index() % 4;
  FragmentA fa;
  FragmentB fb;
  FragmentD fd;
  for (int p = 0; p < 4; ++p)
    std::memcpy(&fa.pair[p], a + (g + p % 2 * 8) * 16 + 2 * j + p / 2 * 8, 4);
  for (int p = 0; p < 2; ++p)
    fb.pair[p] = b[(2 * j + 8 * p) * 8 + g] | static_cast<Pair>(b[(2 * j + 1 + 8 * p) * 8 + g])
                                                  << 16;
  for (int i = 0; i < 4; ++i) fd.value[i] = d[(g + i / 2 * 8) * 8 + 2 * j + i % 2];
  bf16 ? mma_bf16(fd, fa, fb) : mma_f16(fd, fa, fb);
  for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * j + i % 2] = fd.value[i];
}

/// The transpose of a 16 x 16 matrix [k][row] in shared memory as operand A.
void one_transposed(const std::uint16_t* matrix, std::uint16_t* out) {
  auto* const shared = reinterpret_cast<std::uint16_t*>(shared_memory());
  const int lane = thread_index(), g = lane / 4, j = lane % 4;
  for (int i = lane; i < 256; i += 32) shared[i] = matrix[i];
  sync_warp();
  const FragmentA a = load_transposed(shared + (lane % 8 + lane / 16 * 8) * 16 + lane / 8 % 2 * 8);
  for (int p = 0; p < 4; ++p)
    for (int i = 0; i < 2; ++i)
      out[(g + p % 2 * 8) * 16 + 2 * j + p / 2 * 8 + i] =
          static_cast<std::uint16_t>(a.pair[p] >> (16 * i));
}

}  // namespace

TEST_CASE("cuda host: barriers, and what their absence does") {
  std::set<std::vector<float>> without;
  for (const Schedule& s : kSchedules) {
    std::vector<float> out(128);
    REQUIRE(run(s, 128, 512, neighbour, out.data(), true).empty());
    for (int i = 0; i < 128; ++i) CHECK(out[static_cast<std::size_t>(i)] == (i + 1) % 128);
    REQUIRE(run(s, 128, 512, neighbour, out.data(), false).empty());
    for (float& x : out) x = x == x ? x : -1.0f;
    without.insert(out);
    std::vector<int> sums(64);
    REQUIRE(run(s, 64, 0, warp_sum, sums.data()).empty());
    CHECK(sums[5] == 31 * 16);
    CHECK(sums[40] == 31 * 16 + 32 * 32);
  }
  CHECK(without.size() >= 3);
}

TEST_CASE("cuda host: each block runs once, in an order that the schedule chooses") {
  std::set<unsigned> last;
  for (const Schedule& s : kSchedules) {
    Executor executor(s.order, s.seed);
    Stream stream{&executor};
    std::vector<int> n(30);
    Index index{};
    launch(count_block, {5, 3, 2}, 32, 0, stream, n.data());
    launch(last_block, {5, 3, 2}, 32, 0, stream, &index);
    CHECK(n == std::vector<int>(30, 1));
    last.insert((index.z * 3 + index.y) * 5 + index.x);
  }
  CHECK(last.count(29) == 1);
  CHECK(last.count(0) == 1);
}

TEST_CASE("cuda host: threads that wait for what does not come end the launch") {
  for (const Schedule& s : kSchedules) {
    CHECK(run(s, 128, 0, half_at_barrier).find("the others wait at a barrier") !=
          std::string::npos);
    CHECK(run(s, 32, 0, diverged).find("others of its warp wait") != std::string::npos);
    CHECK(run(s, 32, 64, out_of_bounds, 64).find("outside") != std::string::npos);
    CHECK(run(s, 32, 64, out_of_bounds, -1).find("outside") != std::string::npos);
    CHECK(run(s, 32, 64, out_of_bounds, 63).empty());
    CHECK(run(s, 31, 0, half_at_barrier).find("more than every GPU has") != std::string::npos);
  }
  // The error stays until it is cleared, and the executor is of use again.
  Executor executor;
  Stream stream{&executor};
  launch(half_at_barrier, {1, 1, 1}, 128, 0, stream);
  std::vector<int> sums(64);
  launch(warp_sum, {1, 1, 1}, 64, 0, stream, sums.data());
  CHECK(sums[0] == 0);
  executor.clear_error();
  launch(warp_sum, {1, 1, 1}, 64, 0, stream, sums.data());
  CHECK(executor.error().empty());
  CHECK(sums[0] == 31 * 16);
}

TEST_CASE("cuda host: asynchronous copies are there after the wait, not before") {
  std::vector<Line> from(64);
  for (int i = 0; i < 64; ++i)
    for (int k = 0; k < 4; ++k) from[static_cast<std::size_t>(i)].x[k] = static_cast<float>(i + k);
  for (const Schedule& s : kSchedules)
    for (const auto& [wait, barrier] : {std::pair{true, true}, {false, true}, {true, false}}) {
      std::vector<float> out(32);
      REQUIRE(run(s, 32, 512, staged, from.data(), out.data(), wait, barrier).empty());
      std::size_t n_wrong = 0;
      for (int i = 0; i < 32; ++i) {
        const int second = (i + 5) % 32;
        const int wanted = (i + 1) % 32 + (second == 3 ? 0 : 32 + second + 3);
        n_wrong += out[static_cast<std::size_t>(i)] != static_cast<float>(wanted);
      }
      CAPTURE(static_cast<int>(s.order), s.seed, wait, barrier);
      CHECK((n_wrong == 0) == (wait && barrier));
    }
  std::vector<float> out(32);
  const auto unaligned = reinterpret_cast<const Line*>(from[0].x + 1);
  CHECK(
      run(kSchedules[0], 32, 512, staged, unaligned, out.data(), true, true).find("not aligned") !=
      std::string::npos);
}

TEST_CASE("cuda host: matrix products and transposed loads against plain loops") {
  std::mt19937_64 random(1);
  const auto number = [&] { return static_cast<float>(static_cast<int>(random() % 33) - 16) / 8; };
  for (const bool bf16 : {true, false})
    for (const Schedule& s : kSchedules) {
      std::vector<std::uint16_t> a(256), b(128);
      std::vector<float> d(128), wanted(128);
      const auto narrow = [&](float x) { return bf16 ? f32_to_bf16(x) : f32_to_f16(x); };
      const auto widen = [&](std::uint16_t x) { return bf16 ? bf16_to_f32(x) : f16_to_f32(x); };
      for (auto& x : a) x = narrow(number());
      for (auto& x : b) x = narrow(number());
      for (auto& x : d) x = number();
      for (std::size_t row = 0; row < 16; ++row)
        for (std::size_t column = 0; column < 8; ++column) {
          wanted[row * 8 + column] = d[row * 8 + column];  // all sums are exact
          for (std::size_t k = 0; k < 16; ++k)
            wanted[row * 8 + column] += widen(a[row * 16 + k]) * widen(b[k * 8 + column]);
        }
      REQUIRE(run(s, 32, 0, one_mma, a.data(), b.data(), d.data(), bf16).empty());
      CHECK(d == wanted);
      std::vector<std::uint16_t> transposed(256);
      REQUIRE(run(s, 32, 512, one_transposed, a.data(), transposed.data()).empty());
      for (std::size_t i = 0; i < 256; ++i) CHECK(transposed[i] == a[i % 16 * 16 + i / 16]);
    }
}

TEST_CASE("cuda host: conversions and bytes") {
  CHECK(pack_bf16(1.0f, -2.0f) == 0xC0003F80u);
  CHECK(pack_f16(1.0f, -2.0f) == 0xC0003C00u);
  CHECK(from_f16(0x3800) == 0.5f);
  CHECK(choose_bytes(0x33221100u, 0x77665544u, 0x7041u) == 0x77004411u);
  float sine, cosine;
  sine_cosine_pi(0.5f, sine, cosine);
  CHECK(sine == 1.0f);
  CHECK(std::abs(cosine) < 1e-7f);
}
