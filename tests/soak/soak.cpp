// soak MODEL MINUTES [SEED]: random work for a long time on two models, one that steps by itself
// and one that is stepped, in pools that are too small for all of it. At the end nothing may have
// been left over: no error but those that such work must expect, no page, no memory, no bit of a
// reply to a known prompt, and no processor time when idle.
#include <decant/decant.hpp>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;
using decant::ErrorCode;
using decant::Token;

static constexpr std::size_t kContext = 512, kSessions = 3, kSlots = 16, kMaxReply = 48;
static constexpr double kMebi = 1 << 20;

/// Resident bytes of this process.
static double resident() {
  std::ifstream file("/proc/self/statm");
  double all = 0, pages = 0;
  file >> all >> pages;
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE));
}

struct Counts {
  std::mutex mutex;
  std::map<std::string, std::size_t> of;  // operations and expected errors
  std::atomic<bool> failed{false};

  void add(const std::string& what) {
    const std::lock_guard lock(mutex);
    ++of[what];
  }
  void fail(const std::string& what) {
    const std::lock_guard lock(mutex);
    std::cerr << "soak: FAILED: " << what << std::endl;
    failed = true;
  }
};

/// One client of a model: sessions and replies in slots, to which random things happen.
class Client {
 public:
  Client(decant::Model& model, bool manual, std::uint64_t seed, Counts& counts)
      : model_(model), manual_(manual), random_(seed), counts_(counts), slots_(kSlots) {}

  void turn() {
    act();
    if (manual_ && !check("step", model_.step(std::chrono::microseconds(below(3000))))) return;
    for (Slot& slot : slots_)
      if (slot.reply) listen(slot);
  }

 private:
  struct Slot {
    std::optional<decant::Session> session;
    std::optional<decant::Reply> reply;  // dropped before its session
  };

  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

  /// A pool that is too small must answer out_of_memory now and then, a session context_full, a
  /// queue queue_full. All else is a failure.
  bool expected(const std::string& what, const decant::Error& error) {
    if (error.code() == ErrorCode::out_of_memory || error.code() == ErrorCode::context_full ||
        error.code() == ErrorCode::queue_full)
      counts_.add(what + ": " + decant::error_code_name(error.code()));
    else
      counts_.fail(what + ": " + std::string(error.message()));
    return false;
  }
  template <class T>
  bool check(const std::string& what, const decant::Result<T>& result) {
    counts_.add(what);
    return result ? true : expected(what, result.error());
  }

  std::vector<Token> tokens(std::size_t n) {
    std::vector<Token> list(n);
    for (Token& token : list) token = static_cast<Token>(below(model_.info().n_vocab));
    // Half of the prompts begin alike.
    if (below(2) == 0)
      for (std::size_t i = 0; i < n / 2; ++i) list[i] = static_cast<Token>(1 + i);
    return list;
  }

  decant::GenerateOptions options() {
    decant::GenerateOptions o;
    o.max_tokens = below(kMaxReply + 1);
    o.sampler = below(2) == 0 ? decant::Sampler::greedy() : decant::Sampler::creative();
    o.sampler.seed = random_();
    o.priority = static_cast<int>(below(3));
    o.ignore_end = below(2) == 0;
    if (below(4) == 0) o.admission = decant::Admission::guaranteed;
    if (below(8) == 0) o.timeout = std::chrono::milliseconds(1 + below(200));
    if (below(4) == 0) o.stop = {"e"};
    return o;
  }

  void listen(Slot& slot) {
    while (slot.reply->try_next()) {
    }
    if (!slot.reply->finished()) return;
    counts_.add(std::string("ended: ") + decant::finish_reason_name(slot.reply->finish_reason()));
    if (const decant::Status status = slot.reply->status(); !status)
      expected("reply", status.error());
    slot.reply.reset();
    // Sessions that are kept hold their pages: seldom, or nobody else would get any.
    if (below(4) != 0) slot.session.reset();
  }

  void act() {
    Slot& slot = slots_[below(kSlots)];
    Slot& other = slots_[below(kSlots)];
    if (slot.reply) {
      switch (below(12)) {
        case 0: slot.reply->cancel(); return counts_.add("cancel");
        case 1: slot.reply->stop(); return counts_.add("stop");
        case 2: slot.reply.reset(); return counts_.add("drop the reply");
        case 3:
          slot.session.reset();  // its reply goes on
          return counts_.add("drop the session");
        default: return;
      }
    }
    if (!slot.session) {
      auto made = model_.session();
      if (check("session", made)) slot.session.emplace(*std::move(made));
      if (slot.session) append_and_generate(slot);
      return;
    }
    switch (below(8)) {
      case 0: return slot.session.reset();
      case 1:
        static_cast<void>(
            check("rewind", slot.session->rewind(below(slot.session->tokens().size() + 1))));
        return;
      case 2: {
        if (&other == &slot || other.reply) return;
        auto copy = slot.session->fork(below(slot.session->tokens().size() + 1));
        if (check("fork", copy)) other.session.emplace(*std::move(copy));
        return;
      }
      case 3: {
        if (&other == &slot || other.reply || !other.session) return;
        const auto bytes = slot.session->save({.pages = below(2) == 0});
        if (check("save", bytes))
          static_cast<void>(check("restore", other.session->restore(*bytes)));
        return;
      }
      case 4: {
        if (slot.session->tokens().empty()) return;
        auto samples = slot.session->generate_n(1 + below(3), options());
        if (!check("samples", samples)) return;
        slot.session.reset();  // it would be busy until its prompt was run
        std::size_t at = 0;
        for (decant::Sample& sample : *samples) {
          while (at < kSlots && (slots_[at].reply || slots_[at].session)) ++at;
          if (at == kSlots) break;  // those left over are dropped
          slots_[at].session.emplace(std::move(sample.session));
          slots_[at].reply.emplace(std::move(sample.reply));
        }
        return;
      }
      case 5:
        if (!slot.session->tokens().empty())
          static_cast<void>(check("logits", slot.session->logits()));
        return;
      default: return append_and_generate(slot);
    }
  }

  void append_and_generate(Slot& slot) {
    if (!check("append", slot.session->append(tokens(1 + below(below(4) == 0 ? 300 : 60))))) {
      slot.session.reset();
      return;
    }
    auto reply = slot.session->generate(options());
    if (check("generate", reply))
      slot.reply.emplace(*std::move(reply));
    else
      slot.session.reset();
  }

  decant::Model& model_;
  bool manual_;
  std::mt19937_64 random_;
  Counts& counts_;
  std::vector<Slot> slots_;
};

static decant::Model load(const char* path, bool manual) {
  decant::ModelOptions options;
  options.mode = manual ? decant::RunMode::manual : decant::RunMode::background;
  options.context = kContext;
  options.sessions = kSessions;
  options.max_batch = 12;
  options.max_queue = 64;
  options.threads = manual ? 1 : 2;
  if (manual) options.swap_memory = std::size_t{8} << 20;  // the other runs preempted tokens again
  return decant::Model::load(path, options).value();
}

static std::vector<Token> golden(decant::Model& model) {
  auto session = model.session().value();
  std::vector<Token> prompt(100);
  for (std::size_t i = 0; i < prompt.size(); ++i)
    prompt[i] = static_cast<Token>((17 + 31 * i) % model.info().n_vocab);
  session.append(prompt).value();
  decant::GenerateOptions options;
  options.max_tokens = 32;
  options.ignore_end = true;
  options.sampler = decant::Sampler::greedy();
  auto reply = session.generate(options).value();
  reply.wait().value();
  return reply.tokens();
}

/// Every page of the pool is used once, so that what is resident does not grow for that reason.
static void touch_pages(decant::Model& model) {
  std::vector<decant::Session> sessions;
  for (std::size_t i = 0; i < kSessions; ++i) {
    sessions.push_back(model.session().value());
    const std::vector<Token> filler(kContext, static_cast<Token>(2 + i));
    sessions.back().append(filler).value();
    sessions.back().logits().value();
  }
}

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::cerr << "usage: soak MODEL MINUTES [SEED]\n";
    return 2;
  }
  const double minutes = std::stod(argv[2]);
  const std::uint64_t seed = argc > 3 ? std::stoull(argv[3]) : std::random_device()();
  std::cout << "seed " << seed << std::endl;
  std::vector<decant::Model> models;
  for (const bool manual : {false, true}) models.push_back(load(argv[1], manual));
  const std::vector<Token> expected = golden(models[0]);
  Counts counts;
  if (golden(models[1]) != expected) counts.fail("the two modes reply differently");
  for (decant::Model& model : models) touch_pages(model);

  std::atomic<bool> quit{false};
  std::vector<std::thread> clients;
  for (const std::size_t i : {0, 0, 1})  // two for the one that steps by itself
    clients.emplace_back([&, i, number = clients.size()] {
      try {
        Client client(models[i], i == 1, seed + number, counts);
        while (!quit && !counts.failed) client.turn();
      } catch (const std::exception& e) {
        counts.fail(e.what());
      }
    });

  const auto start = Clock::now();
  const double warm_up = std::min(2.0, minutes / 5);
  double warm = 0, most = 0, now = 0;
  for (int report = 1; now < minutes && !counts.failed;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    now = std::chrono::duration<double>(Clock::now() - start).count() / 60;
    if (warm == 0 && now >= warm_up) warm = resident();
    most = std::max(most, resident());
    if (now < report && now < minutes) continue;
    ++report;
    std::cout << "minute " << now << ": " << resident() / kMebi << " MiB resident, "
              << models[0].metrics().replies << " + " << models[1].metrics().replies << " replies"
              << std::endl;
    // What the heap keeps back after random work; a leak passes it sooner or later.
    if (warm != 0 && resident() > 1.02 * warm + 8 * kMebi)
      counts.fail("memory has grown from " + std::to_string(warm / kMebi) + " MiB");
  }
  quit = true;
  for (std::thread& client : clients) client.join();

  for (decant::Model& model : models) {
    while (model.metrics().running + model.metrics().waiting != 0)
      if (!model.step(std::chrono::milliseconds(1)))  // or it steps by itself
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (model.metrics().kv_pages_used != 0) counts.fail("pages are still held");
    if (golden(model) != expected) counts.fail("the reply to the known prompt has changed");
  }
  const std::clock_t used = std::clock();
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const double idle = static_cast<double>(std::clock() - used) / CLOCKS_PER_SEC / 2;
  if (idle > 0.01) counts.fail("processor time when idle");

  for (const auto& [what, n] : counts.of) std::cout << "  " << what << " " << n << "\n";
  for (const decant::Model& model : models)
    std::cout << "  preemptions " << model.metrics().preemptions << ", pages given up by the cache "
              << model.metrics().kv_evicted_pages << "\n";
  std::cout << "memory after " << warm_up << " minutes " << warm / kMebi << " MiB, at most "
            << most / kMebi << " MiB, at the end " << resident() / kMebi << " MiB; " << 100 * idle
            << " % of a processor when idle\n"
            << (counts.failed ? "soak: FAILED" : "soak: no error") << std::endl;
  return counts.failed ? 1 : 0;
} catch (const std::exception& error) {
  std::cerr << "soak: " << error.what() << "\n";
  return 1;
}
