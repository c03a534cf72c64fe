// The command line of the decant program: flags by name, checked before anything runs.
#pragma once

#include <decant/decant.hpp>

#include <charconv>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace cli {

/// A wrong command line: exit code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Args {
 public:
  /// `values`: flags that take a value; `switches`: flags that take none. Without the dashes.
  Args(int argc, char** argv, std::vector<std::string_view> values,
       std::vector<std::string_view> switches);

  bool has(const std::string& flag) const { return given_.count(flag) != 0; }
  /// The last value given, or the fallback.
  std::string text(const std::string& flag, const std::string& fallback = "") const;
  std::string_view view(const std::string& flag) const;  ///< lives as long as this object
  std::string required(const std::string& flag) const;
  std::vector<std::string> all(const std::string& flag) const;

  template <class Number>
  Number number(const std::string& flag, Number fallback) const {
    return has(flag) ? parse<Number>("--" + flag, text(flag)) : fallback;
  }
  template <class Number>
  static Number parse(const std::string& what, std::string_view text) {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
      throw UsageError(what + ": '" + std::string(text) + "' is no number in range");
    return value;
  }

 private:
  std::map<std::string, std::vector<std::string>> given_;
};

/// All bytes of the file at a UTF-8 path. Throws with the path in the message.
std::string read_file(const std::string& path);

/// "1,2,3" to numbers.
std::vector<decant::Token> parse_tokens(const std::string& what, std::string_view text);

// What several commands take.
inline const std::vector<std::string_view> kModelFlags = {
    "model", "backend", "kv-type", "activations", "threads", "context", "chunk", "isa", "device"};
inline const std::vector<std::string_view> kSamplerFlags = {"preset",
                                                            "temperature",
                                                            "top-k",
                                                            "top-p",
                                                            "min-p",
                                                            "typical-p",
                                                            "repetition-penalty",
                                                            "frequency-penalty",
                                                            "presence-penalty",
                                                            "penalty-last",
                                                            "seed",
                                                            "sample-index",
                                                            "order"};

/// All of kModelFlags but --threads, which some commands take as a list.
decant::ModelOptions model_options_but_threads(const Args& args);
decant::ModelOptions model_options(const Args& args);
decant::Sampler sampler(const Args& args, decant::Sampler base);

std::vector<std::string_view> operator+(std::vector<std::string_view> a,
                                        const std::vector<std::string_view>& b);

// The commands; each returns the exit code. decant::Exception: exit code 1.
int generate(int argc, char** argv);
int tokenize(int argc, char** argv);
int detokenize(int argc, char** argv);
int logits(int argc, char** argv);
int sample(int argc, char** argv);
int inspect(int argc, char** argv);
int plan(int argc, char** argv);
int render(int argc, char** argv);
int chat(int argc, char** argv);
int bench(int argc, char** argv);

}  // namespace cli
