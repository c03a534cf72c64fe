#include "bench_load_runs.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "bench_common.hpp"

namespace cli {

namespace {

double ms_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

/// Replies that have ended, as their callbacks tell.
class Ended {
 public:
  void add(std::size_t index) {
    const std::lock_guard lock(mutex_);
    list_.push_back(index);
    changed_.notify_one();
  }
  /// The next one; none if there is none by then.
  std::optional<std::size_t> next(Clock::time_point until) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, until, [&] { return !list_.empty(); })) return std::nullopt;
    const std::size_t index = list_.front();
    list_.pop_front();
    return index;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::size_t> list_;
};

/// A reply with the times of its tokens.
struct Watched {
  decant::Session session;
  std::size_t index = 0;
  Ended* ended = nullptr;
  std::vector<Clock::time_point> times = {};
  std::atomic<std::size_t> n_times{0};
  std::optional<decant::Reply> reply = {};

  explicit Watched(decant::Session s) : session(std::move(s)) {}

  void start(std::size_t n) {
    decant::GenerateOptions options = greedy(n);
    times.clear();
    times.reserve(n);
    n_times = 0;
    options.process_logits = [](void* self, std::span<const decant::Token>, std::span<float>) {
      auto& watched = *static_cast<Watched*>(self);
      watched.times.push_back(Clock::now());
      watched.n_times = watched.times.size();
      return true;
    };
    options.process_logits_user = this;
    if (ended != nullptr) {
      options.on_text = [](void* self, const decant::ReplyText& piece) {
        const auto& watched = *static_cast<Watched*>(self);
        if (piece.finished) watched.ended->add(watched.index);
        return true;
      };
      options.on_text_user = this;
    }
    reply = session.generate(options).value();
  }
};

/// A group of replies. However this ends, no callback runs later.
struct Watch {
  std::deque<Watched> replies = {};

  Watched& add(decant::Model& model) {
    Watched& added = replies.emplace_back(model.session().value());
    added.index = replies.size() - 1;
    return added;
  }
  ~Watch() {
    for (Watched& w : replies)
      if (w.reply) w.reply->cancel();
    for (Watched& w : replies)
      if (w.reply) static_cast<void>(w.reply->wait());
  }
};

/// While it is shut the model does not step, so that all that is submitted begins together.
class Gate {
 public:
  Gate(decant::Model& model, RandomTokens& random) : watched_(watch_.add(model)) {
    watched_.session.append(random.draw(1)).value();
    decant::GenerateOptions options = greedy(1);
    options.process_logits = [](void* open, std::span<const decant::Token>, std::span<float>) {
      static_cast<std::atomic<bool>*>(open)->wait(false);
      return true;
    };
    options.process_logits_user = &open_;
    watched_.reply = watched_.session.generate(options).value();
  }
  ~Gate() { open(); }
  void open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  std::atomic<bool> open_{false};
  Watch watch_;
  Watched& watched_;
};

}  // namespace

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  return values[std::max<std::size_t>(static_cast<std::size_t>(rank), 1) - 1];
}

std::vector<Arrival> draw_arrivals(std::size_t n, std::uint64_t seed, Range prompt, Range generate,
                                   Lengths lengths) {
  std::mt19937_64 random(seed);
  const auto fraction = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  const auto even = [&](Range range) {
    return range.low + random() % (range.high - range.low + 1);
  };
  const auto logarithmic = [&](Range range) {
    const auto low = static_cast<double>(range.low), end = static_cast<double>(range.high + 1);
    return std::min(range.high, static_cast<std::size_t>(low * std::pow(end / low, fraction())));
  };
  const auto reply = [&] {
    switch (lengths) {
      case Lengths::even: return even(generate);
      case Lengths::skewed: return logarithmic(generate);
      case Lengths::bimodal: break;
    }
    return fraction() < 0.9 ? generate.low : generate.high;
  };
  std::vector<Arrival> arrivals;
  double time = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t n_prompt = even(prompt);
    arrivals.push_back({time, n_prompt, reply()});
    // Exponential gaps, drawn by inversion.
    time -= std::log1p(-fraction());
  }
  return arrivals;
}

ArrivalsResult run_arrivals(decant::Model& model, const std::vector<Arrival>& arrivals,
                            double rate) {
  RandomTokens random(model.info().n_vocab);
  Ended ended;
  Watch watch;
  std::optional<Gate> gate;
  if (rate == 0) gate.emplace(model, random);
  const decant::ModelMetrics before = model.metrics();
  const auto start = Clock::now();
  auto first_due = start, last_token = start;
  ArrivalsResult result;
  std::vector<Clock::time_point> due(arrivals.size());
  std::size_t n_ended = 0;
  // Sessions go as soon as their reply has ended, because they hold pages.
  const auto take_ended = [&](Clock::time_point until) {
    const std::optional<std::size_t> index = ended.next(until);
    if (!index) return false;
    Watched& w = watch.replies[*index];
    w.reply->wait().value();
    result.tokens += w.times.size();
    result.ttft_ms.push_back(ms_between(due[*index], w.times.front()));
    if (w.times.size() > 1)
      result.tpot_ms.push_back(ms_between(w.times.front(), w.times.back()) /
                               static_cast<double>(w.times.size() - 1));
    last_token = std::max(last_token, w.times.back());
    w.reply.reset();
    w.session.rewind(0).value();
    ++n_ended;
    return true;
  };
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    // The time it is due counts, so that a late caller hides no waiting.
    due[i] = start;
    if (rate != 0) {
      due[i] += std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(arrivals[i].time / rate));
      while (take_ended(due[i])) {
      }
    }
    Watched& w = watch.add(model);
    w.ended = &ended;
    w.session.append(random.draw(arrivals[i].prompt)).value();
    w.start(arrivals[i].generate);
  }
  if (gate) {
    first_due = last_token = Clock::now();
    std::fill(due.begin(), due.end(), first_due);
    gate->open();
  }
  while (n_ended < arrivals.size()) take_ended(Clock::now() + std::chrono::seconds(1));
  result.seconds = ms_between(first_due, last_token) / 1000;
  const decant::ModelMetrics after = model.metrics();
  result.mean_batch = static_cast<double>(after.step_sequences - before.step_sequences) /
                      static_cast<double>(std::max<std::uint64_t>(after.steps - before.steps, 1));
  result.preemptions = after.preemptions - before.preemptions;
  return result;
}

TogetherResult run_together(decant::Model& model, std::size_t n, std::size_t prompt,
                            std::size_t generate) {
  RandomTokens random(model.info().n_vocab);
  Watch watch;
  for (std::size_t i = 0; i < n; ++i) watch.add(model);
  TogetherResult result;
  for (const bool prompts_before : {true, false}) {
    for (Watched& w : watch.replies) {
      w.reply.reset();
      w.session.rewind(0).value();
      w.session.append(random.draw(prompt)).value();
      if (prompts_before) w.session.logits().value();
    }
    std::optional<Gate> gate(std::in_place, model, random);
    for (Watched& w : watch.replies) w.start(generate);
    const auto start = Clock::now();
    gate.reset();
    for (Watched& w : watch.replies) w.reply->wait().value();
    if (!prompts_before) {
      result.whole_tokens_per_second = static_cast<double>(n * generate) / seconds_since(start);
      break;
    }
    // Steps between the last one's first token and the first one's last.
    auto all_begun = Clock::time_point::min(), none_ended = Clock::time_point::max();
    for (const Watched& w : watch.replies) {
      all_begun = std::max(all_begun, w.times.front());
      none_ended = std::min(none_ended, w.times.back());
    }
    std::vector<double> steps;
    const auto& times = watch.replies.front().times;
    for (std::size_t i = 1; i < times.size(); ++i)
      if (times[i - 1] >= all_begun && times[i] <= none_ended)
        steps.push_back(ms_between(times[i - 1], times[i]));
    result.step_ms = percentile(steps, 0.5);
    if (result.step_ms > 0)
      result.tokens_per_second = 1000 * static_cast<double>(n) / result.step_ms;
  }
  return result;
}

namespace {

/// Replies to short prompts, and the times between their tokens.
struct Decoders {
  Watch watch = {};
  std::vector<std::size_t> from = {}, to = {};  // of each reply, the tokens of a stretch of time

  Decoders(decant::Model& model, RandomTokens& random, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) watch.add(model).session.append(random.draw(16)).value();
  }
  void start(std::size_t n_tokens) {
    for (Watched& w : watch.replies) w.start(n_tokens);
  }
  void wait_for_tokens(std::size_t n) const {
    const auto has = [&](const Watched& w) { return w.n_times >= n || w.reply->finished(); };
    while (!std::all_of(watch.replies.begin(), watch.replies.end(), has))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void stop() {
    for (Watched& w : watch.replies) w.reply->stop();
    for (Watched& w : watch.replies) w.reply->wait().value();
  }
  /// The tokens that came between two moments.
  void find_stretch(Clock::time_point begin, Clock::time_point end) {
    for (const Watched& w : watch.replies) {
      const auto at = [&](Clock::time_point time) {
        return static_cast<std::size_t>(std::lower_bound(w.times.begin(), w.times.end(), time) -
                                        w.times.begin());
      };
      from.push_back(std::max<std::size_t>(at(begin), 1));
      to.push_back(at(end));
    }
  }
  /// Times between tokens of the stretch of `other`.
  std::vector<double> times_of_stretch(const Decoders& other) const {
    std::vector<double> ms;
    for (std::size_t i = 0; i < watch.replies.size(); ++i)
      for (std::size_t t = other.from[i]; t < other.to[i]; ++t)
        ms.push_back(ms_between(watch.replies[i].times[t - 1], watch.replies[i].times[t]));
    return ms;
  }
};

}  // namespace

LongPromptResult run_long_prompt(decant::Model& model, std::size_t decoding, std::size_t prompt) {
  constexpr std::size_t kTokensBefore = 100;  // of each that decodes
  RandomTokens random(model.info().n_vocab);
  LongPromptResult result;
  Decoders with(model, random, decoding);
  {
    Watch watch;
    Watched& long_one = watch.add(model);
    long_one.session.append(random.draw(prompt)).value();
    with.start(model.info().context - 16);
    with.wait_for_tokens(kTokensBefore);
    const auto due = Clock::now();
    long_one.start(1);
    long_one.reply->wait().value();
    const auto read = long_one.times.front();
    with.stop();
    with.find_stretch(due, read);
    result.ttft_ms = ms_between(due, read);
    result.during_ms = with.times_of_stretch(with);
  }
  with.watch.replies.clear();  // gives their pages back
  Decoders alone(model, random, decoding);
  alone.start(*std::max_element(with.to.begin(), with.to.end()));
  for (Watched& w : alone.watch.replies) w.reply->wait().value();
  result.without_ms = alone.times_of_stretch(with);
  return result;
}

}  // namespace cli
