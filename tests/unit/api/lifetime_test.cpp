// Destruction in every order, on every thread, while things run; no memory and no thread left.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#if defined(__GLIBC__)
#include <malloc.h>
#endif
#if defined(__linux__)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "support/catch.hpp"
#include "support/temp_folder.hpp"
#include "support/threads.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;
using decant::FinishReason;
using decant::GenerateOptions;

namespace {

const TinyModel& lifetime_file() {
  static const TinyModel tiny = random_model();
  return tiny;
}

struct Handles {
  std::optional<decant::Model> model;
  std::optional<decant::Session> session;
  std::optional<decant::Reply> reply;

  explicit Handles(const GenerateOptions& options) {
    model.emplace(lifetime_file().load());
    session.emplace(session_with(*model, byte_tokens("hello")));
    reply.emplace(session->generate(options).value());
  }
  void drop(int which) {
    if (which == 0) model.reset();
    if (which == 1) session.reset();
    if (which == 2) reply.reset();
  }
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

GenerateOptions endless() {
  GenerateOptions options;
  options.ignore_end = true;
  return options;
}

#if defined(__linux__)
/// Without what malloc keeps for later: how much each of its arenas holds back depends on which
/// thread came first.
std::size_t resident_pages() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
  std::ifstream statm("/proc/self/statm");
  std::size_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident;
}
#else
std::size_t n_threads() { return 0; }
bool threads_settle_at(std::size_t) { return true; }
#endif

}  // namespace

TEST_CASE("handles may go in every order while a reply runs") {
  const std::size_t threads = n_threads();
  int order[] = {0, 1, 2};
  do {
    for (const unsigned wait_us : {0u, 200u, 2000u}) {
      CAPTURE(order[0], order[1], order[2], wait_us);
      Handles h{endless()};
      std::this_thread::sleep_for(std::chrono::microseconds(wait_us));
      for (const int which : order) {
        h.drop(which);
        // Whatever is left still answers.
        if (h.model) CHECK(h.model->tokenize("x"));
        if (h.session) CHECK(h.session->tokens().size() >= 5);
        if (h.reply) CHECK(h.reply->status());
      }
    }
  } while (std::next_permutation(order, order + 3));
  CHECK(threads_settle_at(threads));
}

TEST_CASE("a reply goes on after its model and session are gone") {
  GenerateOptions options = endless();
  options.max_tokens = 40;
  options.sampler.seed = 3;
  std::vector<Token> expected;
  {
    Handles h{options};
    REQUIRE(h.reply->wait());
    expected = h.reply->tokens();
    CHECK(expected.size() == 40);
  }
  Handles h{options};
  h.model.reset();
  h.session.reset();
  std::string text = read_all(*h.reply);
  CHECK(h.reply->status());
  CHECK(h.reply->tokens() == expected);
  CHECK(h.reply->finish_reason() == FinishReason::max_tokens);
}

TEST_CASE("a session goes on after its model is gone") {
  auto model = std::make_optional(lifetime_file().load());
  auto session = session_with(*model, byte_tokens("hello"));
  const auto before = copy(session.tokens());
  std::vector<float> expected(model->info().n_vocab);
  session.logits(std::span(expected)).value();
  model.reset();
  CHECK(session.append("!"));
  CHECK(session.rewind(5));
  CHECK(same_bits(session.logits().value(), expected));
}

TEST_CASE("moved handles work, assigned ones let go of what they had") {
  auto a = lifetime_file().load(), b = lifetime_file().load();
  auto session = session_with(a, byte_tokens("x"));
  auto reply = session.generate(endless()).value();
  a = std::move(b);  // the first model lives on in the session
  auto other = session_with(a, byte_tokens("y"));
  GenerateOptions two = endless();
  two.max_tokens = 2;
  reply = other.generate(two).value();  // cancels the first
  CHECK(reply.wait());
  session = std::move(other);
  CHECK(session.tokens().size() == 3);
}

TEST_CASE("handles may go inside a callback, in every order, the last one there too") {
  const std::size_t threads = n_threads();
  struct Inside {
    std::atomic<Handles*> handles{nullptr};
    int order[3];
    int n_dropped = 0;
    std::atomic<bool> done{false};
  };
  int order[] = {0, 1, 2};
  do {
    for (int inside_count = 1; inside_count <= 3; ++inside_count) {
      CAPTURE(order[0], order[1], order[2], inside_count);
      Inside inside;
      std::copy_n(order, 3, inside.order);
      inside.n_dropped = inside_count;
      GenerateOptions options = endless();
      options.max_tokens = 50;
      options.process_logits = [](void* i, std::span<const Token>, std::span<float>) {
        auto& in = *static_cast<Inside*>(i);
        if (in.done) return true;
        while (in.handles == nullptr) std::this_thread::yield();
        for (int k = 0; k < in.n_dropped; ++k) in.handles.load()->drop(in.order[k]);
        in.done = true;
        return true;
      };
      options.process_logits_user = &inside;
      auto handles = std::make_unique<Handles>(options);
      inside.handles = handles.get();
      while (!inside.done) std::this_thread::yield();
      if (handles->reply) CHECK(handles->reply->wait());
      handles.reset();
      // The worker may still be on its way out of the callback, whose data must live until then.
      REQUIRE(threads_settle_at(threads));
    }
  } while (std::next_permutation(order, order + 3));
}

TEST_CASE("models of many sessions in flight end at once") {
  const std::size_t threads = n_threads();
  for (int round = 0; round < 5; ++round) {
    std::vector<decant::Session> sessions;
    std::vector<decant::Reply> replies;
    {
      decant::ModelOptions options;
      options.threads = 3;
      options.sessions = 8;
      auto model = lifetime_file().load(options);
      for (int i = 0; i < 8; ++i) {
        sessions.push_back(session_with(model, TinyRandom(1).tokens(40)));
        replies.push_back(sessions.back().generate(endless()).value());
      }
    }
    if (round % 2 == 0)
      sessions.clear();
    else
      replies.clear();
  }
  CHECK(threads_settle_at(threads));
}

#if defined(__linux__)
// An emulator of one program runs the system's own programs natively.
static bool under_emulator() {
#if defined(__aarch64__)
  return std::system("test \"$(uname -m)\" = aarch64") != 0;
#else
  return false;
#endif
}

TEST_CASE("loading and dropping a hundred times leaves neither memory nor threads") {
  const std::size_t threads = n_threads();
  const std::vector<std::byte> file = lifetime_file().file();
  const auto cycle = [&] {
    decant::ModelOptions options;
    options.threads = 3;
    auto model = decant::Model::load(std::span(file), options).value();
    auto session = session_with(model, byte_tokens("hello"));
    GenerateOptions some = endless();
    some.max_tokens = 3;
    auto reply = session.generate(some).value();
    reply.wait().value();
    auto cancelled = session.generate(endless()).value();
  };
  for (int i = 0; i < 20; ++i) cycle();
  const std::size_t before = resident_pages();
  for (int i = 0; i < 100; ++i) cycle();
  const std::size_t after = resident_pages();
  // One cycle holds 500 KB and more; a leak of a twentieth of that would show. Sanitizers keep
  // freed memory for a while and look for leaks themselves; an emulator grows with what it runs.
  if (!kSanitized && !under_emulator()) CHECK(after <= before + 512);
  CHECK(threads_settle_at(threads));
}

// Prints nothing: the parent reads the tokens from the file that the variable names.
TEST_CASE("child of the next test", "[.child]") {
  const char* path = std::getenv("DECANT_TEST_CHILD");
  if (path == nullptr) DECANT_SKIP("the next test runs this one");
  Handles h{[] {
    GenerateOptions options = endless();
    options.max_tokens = 60;
    options.sampler.seed = 12345;
    return options;
  }()};
  h.reply->wait().value();
  std::ofstream out(path);
  for (const Token t : h.reply->tokens()) out << t << "\n";
  CHECK(out.good());
}

TEST_CASE("one seed gives one reply, in other processes too") {
  if (under_emulator()) DECANT_SKIP("under an emulator, this program cannot be run again");
  const TempFolder folder;
  std::vector<std::string> replies;
  for (int i = 0; i < 2; ++i) {
    const std::string path = folder.file("child" + std::to_string(i));
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    const std::string command = "DECANT_TEST_CHILD='" + path + "' '" + self + "' '[.child]' > '" +
                                folder.file("log") + "' 2>&1";
    REQUIRE(std::system(command.c_str()) == 0);
    std::ifstream in(path);
    replies.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  GenerateOptions options = endless();
  options.max_tokens = 60;
  options.sampler.seed = 12345;
  Handles h{options};
  h.reply->wait().value();
  std::string here;
  for (const Token t : h.reply->tokens()) here += std::to_string(t) + "\n";
  CHECK(replies[0] == here);
  CHECK(replies[1] == here);
  CHECK(std::count(here.begin(), here.end(), '\n') == 60);
}

// The thread sanitizer does not follow a fork of many threads.
#if !defined(__SANITIZE_THREAD__)
namespace {

/// Everything that handles of a child process are asked; the number of what went wrong, else 0.
int ask_in_child(Handles& h) {
  const auto refused = [](const auto& result) {
    return !result && result.error().code() == decant::ErrorCode::invalid_state;
  };
  const std::vector<Token> tokens = byte_tokens("x");
  std::vector<float> row(h.model->info().n_vocab);
  if (!refused(h.model->session()) || !refused(h.model->tokenize("x"))) return 1;
  if (!refused(h.model->detokenize(tokens)) || !refused(h.model->render({}))) return 2;
  if (!refused(h.model->step(std::chrono::nanoseconds(1)))) return 3;
  if (!refused(h.session->append("x")) || !refused(h.session->append(tokens))) return 4;
  if (!refused(h.session->append(decant::Message{"user", "x"}))) return 5;
  if (!refused(h.session->generate()) || !refused(h.session->generate_n(2))) return 6;
  if (!refused(h.session->logits()) || !refused(h.session->logits(std::span(row)))) return 7;
  if (!refused(h.session->fork()) || !refused(h.session->pin_prefix())) return 8;
  if (!refused(h.session->save()) || !refused(h.session->restore(std::string_view("none"))))
    return 9;
  const decant::Session* const all[] = {&*h.session};
  if (!refused(decant::Session::save_all(all)) ||
      !refused(decant::Session::restore_all(*h.model, std::string_view("none"))) ||
      !refused(h.session->rewind(0)))
    return 10;
  if (!h.session->tokens().empty() || !h.session->messages().empty()) return 11;
  if (h.reply->next() || h.reply->try_next() || !h.reply->finished()) return 12;
  if (!refused(h.reply->wait()) || !refused(h.reply->status())) return 13;
  if (!h.reply->tokens().empty() || h.reply->stats().tokens != 0) return 14;
  h.reply->stop();
  h.reply->cancel();
  h.model->unpin_prefixes();
  (void)h.model->metrics();
  // Assigned and dropped in any order.
  h.session = std::nullopt;
  h.model = std::nullopt;
  h.reply = std::nullopt;
  return 0;
}

}  // namespace

TEST_CASE("after fork the child's handles answer invalid_state, and the parent goes on") {
  for (const bool running : {true, false})
    for (int i = 0; i < 10; ++i) {
      CAPTURE(running, i);
      Handles h{endless()};
      if (!running) {
        h.reply->cancel();
        h.reply->wait().value();
      }
      const pid_t child = fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        alarm(60);  // ends a child that hangs
        _exit(ask_in_child(h));
      }
      int status = 0;
      REQUIRE(waitpid(child, &status, 0) == child);
      CHECK(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) == 0);
      if (running) {
        const std::size_t before = h.reply->tokens().size();
        while (h.reply->tokens().size() == before && !h.reply->finished())
          std::this_thread::yield();
        CHECK(h.reply->status());
      }
    }
}
#endif
#endif
