// A game at 60 frames a second in which everybody talks: each frame gives the model a few
// milliseconds (Model::step) and shows what the characters have said meanwhile.
//
//   frame_loop MODEL.gguf [--characters 16] [--frames 600] [--budget-ms 2] [--threads 1]
//              [--prompt TOKENS]
// With --prompt a text of so many tokens arrives in frame 30 and is read between the frames too.
#include <decant/decant.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;

struct Options {
  int characters = 16, frames = 600, threads = 1, prompt = 0;
  double budget_ms = 2;
};

static double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct Character {
  std::string name, line;  // what was said so far
  decant::Session session;
  std::optional<decant::Reply> reply = {};
  int n_lines = 0;

  // [speak]
  /// Begins the next line. Who has said enough begins anew.
  void speak() {
    if (session.tokens().size() > 900) session.rewind(0).value();
    session.append("\n\"And what do you think?\" - " + name + " says: \"").value();
    decant::GenerateOptions options;
    options.max_tokens = 24;
    options.stop = {"\"", "\n"};
    options.sampler = decant::Sampler::creative();
    options.sampler.seed = static_cast<std::uint64_t>(n_lines);
    line.clear();
    reply = session.generate(options).value();
  }

  /// Shows what has come since the last frame; never waits.
  void listen() {
    while (const auto piece = reply->try_next()) line += *piece;
    if (!reply->finished()) return;
    reply->status().value();
    if (++n_lines == 1) std::cout << name << ": " << line << "\n";
    speak();
  }
  // [/speak]
};

/// Bars of text, one for each `width` milliseconds from `low` on; the last one has all that is
/// more.
static void print_histogram(const std::string& title, const std::vector<double>& values, double low,
                            double width) {
  constexpr std::size_t kBars = 14;
  std::vector<std::size_t> counts(kBars);
  for (const double value : values) {
    const double bar = std::clamp((value - low) / width, 0.0, static_cast<double>(kBars - 1));
    ++counts[static_cast<std::size_t>(bar)];
  }
  std::cout << "\n" << title << "\n" << std::fixed << std::setprecision(2);
  for (std::size_t i = 0; i < kBars; ++i) {
    const std::size_t n = (counts[i] * 60 + values.size() - 1) / values.size();
    std::cout << std::setw(8) << low + width * static_cast<double>(i)
              << (i + 1 == kBars ? "..   ms " : " ms    ") << std::setw(6) << counts[i] << " "
              << std::string(n, '#') << "\n";
  }
}

static int run(const char* path, const Options& o) {
  decant::ModelOptions model_options;
  model_options.mode = decant::RunMode::manual;
  model_options.threads = o.threads;
  model_options.context = std::max<std::size_t>(1024, static_cast<std::size_t>(o.prompt) + 64);
  model_options.sessions = static_cast<std::size_t>(o.characters) + 1;
  auto model = decant::Model::load(path, model_options).value();

  std::vector<Character> characters;
  for (int i = 0; i < o.characters; ++i)
    characters.push_back({"Villager " + std::to_string(i + 1), "", model.session().value()});
  for (Character& character : characters) {
    character.session.append("The storm is over, and the village meets in the tavern.").value();
    character.speak();
  }
  // Of a text only its length matters here.
  auto book = model.session().value();
  std::vector<decant::Token> text(static_cast<std::size_t>(o.prompt));
  for (std::size_t i = 0; i < text.size(); ++i)
    text[i] = static_cast<decant::Token>((1000 + 7 * i) % model.info().n_vocab);
  book.append(text).value();
  std::optional<decant::Reply> reading;
  int read_from = 0, read_to = 0;

  // [loop]
  constexpr auto kFrame = std::chrono::nanoseconds(16'666'667);
  const auto budget = std::chrono::nanoseconds(std::llround(o.budget_ms * 1e6));
  std::vector<double> steps_ms, frames_ms;
  auto frame_start = Clock::now();
  for (int frame = 0; frame < o.frames; ++frame) {
    if (frame == 30 && o.prompt != 0) {
      reading = book.generate({.max_tokens = 1}).value();
      read_from = frame;
    }
    const auto step_start = Clock::now();
    model.step(budget).value();
    steps_ms.push_back(ms_since(step_start));
    for (Character& character : characters) character.listen();
    if (reading && reading->finished()) {
      reading->status().value();
      reading.reset();
      read_to = frame;
    }
    // Here a game moves and draws its world.
    std::this_thread::sleep_until(frame_start + kFrame);
    frames_ms.push_back(ms_since(frame_start));
    frame_start = Clock::now();
  }
  // [/loop]

  print_histogram("time in Model::step", steps_ms, 0, o.budget_ms / 8);
  print_histogram("time of a frame", frames_ms, 16.5, 0.1);
  const auto in_time = std::count_if(steps_ms.begin(), steps_ms.end(),
                                     [&](double ms) { return ms <= o.budget_ms + 0.25; });
  const decant::ModelMetrics metrics = model.metrics();
  std::cout << "\n"
            << 100 * static_cast<double>(in_time) / static_cast<double>(steps_ms.size())
            << " % of the calls ended within the budget of " << o.budget_ms
            << " ms + 0.25 ms; the longest took "
            << *std::max_element(steps_ms.begin(), steps_ms.end()) << " ms\n"
            << o.characters << " characters said " << metrics.generated_tokens << " tokens in "
            << o.frames << " frames\n";
  if (read_to != 0)
    std::cout << o.prompt << " tokens were read in " << read_to - read_from + 1 << " frames\n";
  else if (o.prompt != 0)
    std::cout << o.prompt << " tokens were not read to the end in so few frames\n";
  return 0;
}

int main(int argc, char** argv) try {
  Options o;
  bool good = argc >= 2 && argc % 2 == 0;
  for (int i = 2; good && i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const double value = std::atof(argv[i + 1]);
    if (flag == "--characters")
      o.characters = static_cast<int>(value);
    else if (flag == "--frames")
      o.frames = static_cast<int>(value);
    else if (flag == "--threads")
      o.threads = static_cast<int>(value);
    else if (flag == "--prompt")
      o.prompt = static_cast<int>(value);
    else if (flag == "--budget-ms")
      o.budget_ms = value;
    else
      good = false;
  }
  if (!good || o.characters < 1 || o.frames < 1 || o.prompt < 0 || !(o.budget_ms > 0)) {
    std::cerr << "usage: frame_loop MODEL.gguf [--characters 16] [--frames 600] [--budget-ms 2] "
                 "[--threads 1] [--prompt TOKENS]\n";
    return 2;
  }
  return run(argv[1], o);
} catch (const decant::Exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
