// Who runs, who waits, who loses pages. The host steps the models here, so every case is the same
// on every machine; what must happen in which step is worked out by hand.
#include <algorithm>
#include <deque>
#include <string>

#include "support/catch.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;
using decant::Admission;
using decant::BatchPolicy;
using decant::ErrorCode;
using decant::FinishReason;
using decant::GenerateOptions;
using decant::ModelOptions;
using namespace std::chrono_literals;

namespace {

const TinyModel& batching_file() {
  static const TinyModel tiny = random_model();
  return tiny;
}

ModelOptions manual_options() {
  ModelOptions options;
  options.mode = decant::RunMode::manual;
  options.threads = 1;
  options.sessions = 16;
  options.context = 128;
  options.prefix_cache = false;
  return options;
}

GenerateOptions tokens_of(std::size_t n) { return exactly(n, 9); }

/// Replies in flight with their sessions.
struct Batch {
  decant::Model model;
  std::deque<decant::Session> sessions;  // references into them stay good
  std::deque<decant::Reply> replies;

  explicit Batch(const ModelOptions& options) : model(batching_file().load(options)) {}
  decant::Reply& add(std::size_t prompt, const GenerateOptions& options) {
    sessions.push_back(session_with(model, TinyRandom(sessions.size()).tokens(prompt)));
    replies.push_back(sessions.back().generate(options).value());
    return replies.back();
  }
  /// Passes until there was one more.
  void one_pass() {
    const auto before = model.metrics().steps;
    // Too short for a second one.
    while (model.metrics().steps == before && model.step(20us).value()) {
    }
  }
  void finish() {
    while (model.step(1h).value()) {
    }
  }
  std::size_t running() const { return model.metrics().running; }
  std::size_t waiting() const { return model.metrics().waiting; }
};

std::vector<Token> alone(std::size_t prompt, std::uint64_t seed, const GenerateOptions& options) {
  auto model = batching_file().load(manual_options());
  auto session = session_with(model, TinyRandom(seed).tokens(prompt));
  auto reply = session.generate(options).value();
  reply.wait().value();
  return reply.tokens();
}

}  // namespace

TEST_CASE("places in the batch go by priority, then in order; the others wait") {
  ModelOptions options = manual_options();
  options.max_batch = 2;
  Batch batch(options);
  GenerateOptions plain = tokens_of(4), urgent = tokens_of(4);
  urgent.priority = 1;
  for (int i = 0; i < 4; ++i) batch.add(5, plain);
  auto& last = batch.add(5, urgent);
  CHECK(batch.running() == 0);
  CHECK(batch.waiting() == 5);
  batch.one_pass();
  CHECK(batch.running() == 2);
  CHECK(batch.waiting() == 3);
  CHECK(last.tokens().size() == 1);
  CHECK(batch.replies[0].tokens().size() == 1);
  CHECK(batch.replies[1].tokens().empty());
  batch.finish();
  for (const auto& reply : batch.replies) CHECK(reply.tokens().size() == 4);
  CHECK(batch.model.metrics().replies == 5);
  for (const auto& reply : batch.replies) {
    CHECK(reply.stats().queue_ms > 0);
    CHECK(reply.stats().queue_ms < reply.stats().ttft_ms);
  }
}

TEST_CASE("a full queue refuses and changes nothing") {
  ModelOptions options = manual_options();
  options.max_batch = 1;
  options.max_queue = 2;
  Batch batch(options);
  for (int i = 0; i < 3; ++i) batch.add(5, tokens_of(3));
  auto session = session_with(batch.model, TinyRandom(3).tokens(5));
  const auto refused = session.generate(tokens_of(3));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == ErrorCode::queue_full);
  CHECK(session.tokens().size() == 5);
  std::vector<float> row(batch.model.info().n_vocab);
  CHECK(session.logits(std::span(row)).error().code() == ErrorCode::queue_full);
  CHECK(batch.waiting() == 3);
  batch.finish();
  auto reply = session.generate(tokens_of(3)).value();
  batch.finish();
  CHECK(reply.tokens() == alone(5, 3, tokens_of(3)));
}

TEST_CASE("a full queue leaves a conversation as it was") {
  ModelOptions options = manual_options();
  options.max_batch = 1;
  options.max_queue = 0;
  auto model = random_model({.architecture = "gemma3"}).load(options);
  auto first = session_with(model, TinyRandom(1).tokens(5));
  auto chat = model.session().value();
  chat.append(decant::Message{"user", "hello"}).value();
  auto before = chat.generate(tokens_of(3)).value();
  before.wait().value();
  chat.append(decant::Message{"user", "and?"}).value();
  const auto held = copy(chat.tokens());
  auto running = first.generate(tokens_of(3)).value();
  CHECK(chat.generate(tokens_of(3)).error().code() == ErrorCode::queue_full);
  CHECK(copy(chat.tokens()) == held);
  CHECK(chat.messages().size() == 3);
  running.wait().value();
  CHECK(chat.generate(tokens_of(3)));
}

TEST_CASE("fixed batches: nobody comes in before all have left") {
  for (const auto policy : {BatchPolicy::continuous, BatchPolicy::fixed}) {
    ModelOptions options = manual_options();
    options.batching = policy;
    options.max_batch = 2;
    Batch batch(options);
    // Prompts of three tokens are never cut.
    batch.add(3, tokens_of(2));
    batch.add(3, tokens_of(6));
    batch.add(3, tokens_of(2));
    std::vector<std::size_t> third;  // its tokens after each pass
    for (int pass = 0; pass < 8; ++pass) {
      batch.one_pass();
      third.push_back(batch.replies[2].tokens().size());
    }
    // The first leaves with pass 2, the second with pass 6.
    if (policy == BatchPolicy::continuous)
      CHECK(third == std::vector<std::size_t>{0, 0, 1, 2, 2, 2, 2, 2});
    else
      CHECK(third == std::vector<std::size_t>{0, 0, 0, 0, 0, 0, 1, 2});
    CHECK_FALSE(batch.model.step(0ns).value());
    for (std::size_t i = 0; i < 3; ++i)
      CHECK(batch.replies[i].tokens() == alone(3, i, tokens_of(i == 1 ? 6 : 2)));
  }
}

TEST_CASE("a prompt beside as many decoding sequences as there are rows has its turn") {
  ModelOptions options = manual_options();
  options.chunk = 4;
  Batch batch(options);
  for (int i = 0; i < 6; ++i) batch.add(1, tokens_of(60));
  for (int i = 0; i < 3; ++i) batch.one_pass();
  auto& late = batch.add(20, tokens_of(1));
  const auto before = batch.model.metrics().steps;
  while (!late.finished()) batch.one_pass();
  // A quarter of four rows is one a step; for its last token it stands in line with the others.
  CHECK(batch.model.metrics().steps - before >= 20);
  CHECK(batch.model.metrics().steps - before <= 22);
  CHECK(late.tokens() == alone(20, 6, tokens_of(1)));
  // The six had three rows a step between them and took turns.
  std::size_t least = SIZE_MAX, most = 0;
  for (std::size_t i = 0; i < 6; ++i) {
    least = std::min(least, batch.replies[i].tokens().size());
    most = std::max(most, batch.replies[i].tokens().size());
  }
  CHECK(most - least <= 3);
  CHECK(least >= 10);
}

TEST_CASE("decoding sequences go on in every pass of a long prompt, and a short one passes it") {
  ModelOptions options = manual_options();
  options.chunk = 8;
  Batch batch(options);
  batch.add(1, tokens_of(100));
  batch.one_pass();
  auto& lengthy = batch.add(100, tokens_of(1));
  batch.one_pass();
  auto& brief = batch.add(4, tokens_of(1));
  batch.one_pass();
  batch.one_pass();
  CHECK(brief.finished());
  CHECK_FALSE(lengthy.finished());
  while (!lengthy.finished()) batch.one_pass();
  CHECK(batch.replies[0].tokens().size() == batch.model.metrics().steps);
}

TEST_CASE("a timeout keeps what came and ends a reply wherever it is") {
  Batch batch(manual_options());
  GenerateOptions options = tokens_of(20);
  options.timeout = 1ns;
  auto& waiting = batch.add(5, options);
  batch.one_pass();
  CHECK(waiting.finished());
  CHECK(waiting.status());
  CHECK(waiting.finish_reason() == FinishReason::timeout);
  CHECK(std::string(decant::finish_reason_name(FinishReason::timeout)) == "timeout");
  CHECK(waiting.tokens().empty());
  CHECK(batch.sessions[0].tokens().size() == 5);

  // In the middle: the callback of the third token passes the time.
  struct Late {
    std::chrono::steady_clock::time_point until;
    int calls = 0;
  } late{std::chrono::steady_clock::now() + 300ms};
  options.timeout = 300ms;
  options.process_logits = [](void* l, std::span<const Token>, std::span<float>) {
    auto& late = *static_cast<Late*>(l);
    if (++late.calls == 3) std::this_thread::sleep_until(late.until + 300ms);
    return true;
  };
  options.process_logits_user = &late;
  auto& cut = batch.add(5, options);
  while (!cut.finished()) batch.one_pass();
  CHECK(cut.finish_reason() == FinishReason::timeout);
  const auto whole = alone(5, 1, tokens_of(20));
  const auto kept = cut.tokens();
  REQUIRE(kept.size() <= 3);
  CHECK(std::equal(kept.begin(), kept.end(), whole.begin()));
  CHECK(batch.sessions[1].tokens().size() == 5 + kept.size());

  options = tokens_of(3);
  options.timeout = std::chrono::hours(24 * 365 * 250);  // more than the clock can count to
  auto& patient = batch.add(5, options);
  batch.finish();
  CHECK(patient.finish_reason() == FinishReason::max_tokens);
  options.timeout = -1ns;
  CHECK(batch.sessions[0].generate(options).error().code() == ErrorCode::invalid_argument);
}

TEST_CASE("what can never fit is refused at once") {
  ModelOptions options = manual_options();
  options.context = 128;
  Batch measure(options);
  options.kv_memory = 2 * 16 * measure.model.info().kv_bytes_per_token;  // two pages
  Batch batch(options);
  auto session = session_with(batch.model, TinyRandom(1).tokens(33));
  const auto refused = session.generate(tokens_of(1));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == ErrorCode::out_of_memory);
  CHECK(refused.error().message().find("kv_memory") != std::string_view::npos);
  CHECK(session.logits().error().code() == ErrorCode::out_of_memory);
  session.rewind(16).value();
  GenerateOptions guaranteed = tokens_of(17);
  guaranteed.admission = Admission::guaranteed;
  CHECK(session.generate(guaranteed).error().code() == ErrorCode::out_of_memory);
  guaranteed.max_tokens = 16;
  auto reply = session.generate(guaranteed).value();
  batch.finish();
  CHECK(reply.tokens().size() == 16);
  // Without a promise the same may begin, and ends when nobody can give it a page.
  auto again = session_with(batch.model, TinyRandom(1).tokens(16));
  session.rewind(0).value();
  auto endless = again.generate(tokens_of(100)).value();
  batch.finish();
  CHECK(endless.status().error().code() == ErrorCode::out_of_memory);
  CHECK(again.tokens().size() == 16);
}

TEST_CASE("guaranteed: starts when its pages are set aside, and nobody takes them") {
  ModelOptions options = manual_options();
  Batch measure(options);
  options.kv_memory = 5 * 16 * measure.model.info().kv_bytes_per_token;
  for (const bool guaranteed : {true, false}) {
    CAPTURE(guaranteed);
    Batch batch(options);
    GenerateOptions o = tokens_of(16);
    if (guaranteed) o.admission = Admission::guaranteed;
    for (int i = 0; i < 3; ++i) batch.add(16, o);
    batch.one_pass();
    // Two pages each of five; optimistic ones take one at first.
    CHECK(batch.running() == (guaranteed ? 2 : 3));
    // An optimistic neighbour has the fifth page alone.
    std::size_t most = 0;
    while (!batch.replies[0].finished()) {
      batch.one_pass();
      most = std::max(most, batch.running());
    }
    batch.sessions[0].rewind(0).value();
    batch.sessions[1].rewind(0).value();
    batch.finish();
    CHECK(batch.model.metrics().preemptions == (guaranteed ? 0 : 1));
    for (std::size_t i = 0; i < 3; ++i)
      CHECK(batch.replies[i].tokens() == alone(16, i, tokens_of(16)));
  }
}

TEST_CASE(
    "when pages run out the youngest of the lowest priority waits and goes on with the same") {
  ModelOptions options = manual_options();
  Batch measure(options);
  options.kv_memory = 8 * 16 * measure.model.info().kv_bytes_per_token;
  Batch batch(options);
  // Four that need three pages each at last.
  for (int i = 0; i < 4; ++i) {
    GenerateOptions o = tokens_of(30);
    o.priority = i == 3 ? 1 : 0;
    batch.add(15, o);
  }
  std::vector<std::size_t> done;
  while (batch.model.step(20us).value())
    for (std::size_t i = 0; i < 4; ++i)
      if (batch.replies[i].finished() && std::find(done.begin(), done.end(), i) == done.end()) {
        done.push_back(i);
        CHECK(batch.replies[i].status());
        batch.sessions[i].rewind(0).value();
      }
  for (std::size_t i = 0; i < 4; ++i) CHECK(batch.sessions[i].rewind(0));
  CHECK(batch.model.metrics().preemptions > 0);
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(batch.replies[i].tokens() == alone(15, i, tokens_of(30)));
  // The last one in line waited for the others.
  REQUIRE(done.size() >= 3);
  CHECK(std::find(done.begin(), done.begin() + 3, 2u) == done.begin() + 3);
  CHECK(batch.model.metrics().kv_pages_used == 0);
}

TEST_CASE("a request of high priority takes the place in the pool of a low one") {
  ModelOptions options = manual_options();
  Batch measure(options);
  options.kv_memory = 4 * 16 * measure.model.info().kv_bytes_per_token;
  Batch batch(options);
  auto& low = batch.add(40, tokens_of(8));
  while (low.tokens().empty()) batch.one_pass();
  GenerateOptions urgent = tokens_of(8);
  urgent.priority = 1;
  for (const auto admission : {Admission::optimistic, Admission::guaranteed}) {
    urgent.admission = admission;
    auto& high = batch.add(20, urgent);
    const std::size_t seed = batch.sessions.size() - 1;
    while (!high.finished()) batch.one_pass();
    CHECK_FALSE(batch.replies[0].finished());
    CHECK(high.tokens() == alone(20, seed, tokens_of(8)));
    batch.sessions.back().rewind(0).value();
    batch.one_pass();
  }
  batch.finish();
  CHECK(batch.replies[0].tokens() == alone(40, 0, tokens_of(8)));
  CHECK(batch.model.metrics().preemptions >= 1);
}

// -------------------------------------------------------------------------------------- metrics

TEST_CASE("what the engine counts") {
  ModelOptions options = manual_options();
  options.chunk = 8;
  options.prefix_cache = true;
  Batch batch(options);
  auto& reply = batch.add(20, tokens_of(5));
  reply.wait().value();
  auto metrics = batch.model.metrics();
  CHECK(metrics.steps == 7);  // 8 + 8 + 4 rows of the prompt, then 4 tokens
  CHECK(metrics.step_rows == 24);
  CHECK(metrics.step_sequences == 7);
  CHECK(metrics.prompt_tokens == 20);
  CHECK(metrics.cached_tokens == 0);
  CHECK(metrics.generated_tokens == 5);
  CHECK(metrics.replies == 1);
  CHECK(metrics.running + metrics.waiting == 0);
  CHECK(metrics.kv_pages_used == 2);  // 24 tokens
  // The same prompt again: its full page is there.
  auto again = session_with(batch.model, TinyRandom(0).tokens(20));
  auto second = again.generate(tokens_of(1)).value();
  second.wait().value();
  CHECK(second.stats().cached_tokens == 16);
  metrics = batch.model.metrics();
  CHECK(metrics.cached_tokens == 16);
  CHECK(metrics.prompt_tokens == 40);
  CHECK(metrics.step_rows == 28);
}

TEST_CASE("Prometheus' text format") {
  Batch batch(manual_options());
  batch.add(5, tokens_of(2)).wait().value();
  const std::string text = batch.model.metrics().prometheus();
  REQUIRE(text.ends_with("\n"));
  const auto is_name = [](std::string_view s) {
    return !s.empty() && s.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == s.npos;
  };
  std::string family, type;
  std::size_t samples = 0, wrong = 0;
  std::vector<std::string> families;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    CAPTURE(line);
    if (line.starts_with("# HELP ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      CHECK(std::find(families.begin(), families.end(), family) == families.end());
      families.push_back(family);
      type.clear();
    } else if (line.starts_with("# TYPE ")) {
      CHECK(line.substr(7, family.size()) == family);
      type = line.substr(8 + family.size());
      wrong += type != "counter" && type != "gauge";
      wrong += family.ends_with("_total") != (type == "counter");
    } else {
      const std::size_t space = line.rfind(' '), brace = line.find('{');
      REQUIRE(space != line.npos);
      wrong += !is_name(line.substr(0, std::min(space, brace)));
      wrong += line.substr(0, std::min(space, brace)) != family || type.empty();
      wrong += line.find_first_not_of("0123456789.", space + 1) != line.npos;
      if (brace < space) wrong += line.find("operation=\"") != brace + 1 || line[space - 1] != '}';
      ++samples;
    }
    CHECK(wrong == 0);
  }
  CHECK(samples >= 14 + 16);
  CHECK(text.find("\ndecant_generated_tokens_total 2\n") != text.npos);
  CHECK(text.find("\ndecant_steps_total 2\n") != text.npos);
}
