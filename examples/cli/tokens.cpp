// decant tokenize, decant detokenize: the vocabulary alone is loaded.

#include <cstdint>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "args.hpp"

namespace cli {

static decant::Model load_vocabulary(const Args& args) {
  decant::ModelOptions options;
  options.vocabulary_only = true;
  return decant::Model::load(args.required("model"), options).value();
}

static std::string standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

/// `text` as JSON of type T; `where` names it in the error.
template <class T>
static T parse_json(const std::string& text, const std::string& where) {
  try {
    return nlohmann::json::parse(text).get<T>();
  } catch (const nlohmann::json::exception& e) {
    throw std::runtime_error(where + ": " + e.what());
  }
}

/// JSON would turn 1.5, true and 2^32 + 1 into tokens without a word.
static std::vector<decant::Token> parse_ids(const std::string& text, const std::string& where) {
  std::vector<decant::Token> tokens;
  for (const auto& id : parse_json<std::vector<nlohmann::json>>(text, where)) {
    const bool whole = id.is_number_integer();
    const bool fits = whole && (id.is_number_unsigned()
                                    ? id.get<std::uint64_t>() <= INT32_MAX
                                    : id.get<std::int64_t>() >= INT32_MIN);
    if (!fits) throw std::runtime_error(where + ": " + id.dump() + " is no token id");
    tokens.push_back(id.get<decant::Token>());
  }
  return tokens;
}

template <class Answer>
static void for_each_line(Answer&& answer) {
  std::string line;
  for (std::size_t n = 1; std::getline(std::cin, line); ++n)
    std::cout << answer(line, "line " + std::to_string(n)) << "\n";
}

int tokenize(int argc, char** argv) {
  const Args args(argc, argv, {"model"}, {"no-special", "no-bos", "lines"});
  const decant::Model model = load_vocabulary(args);
  const decant::TextOptions options{.add_bos = !args.has("no-bos"),
                                    .add_eos = !args.has("no-bos"),
                                    .special = !args.has("no-special")};
  const auto ids = [&](const std::string& text) {
    return nlohmann::json(model.tokenize(text, options).value()).dump();
  };
  if (args.has("lines"))
    for_each_line([&](const std::string& line, const std::string& where) {
      return ids(parse_json<std::string>(line, where));
    });
  else
    std::cout << ids(standard_input()) << "\n";
  return 0;
}

static std::string hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    constexpr std::string_view digits = "0123456789abcdef";
    out += digits[static_cast<unsigned char>(c) >> 4];
    out += digits[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

int detokenize(int argc, char** argv) {
  const Args args(argc, argv, {"model"}, {"lines"});
  const decant::Model model = load_vocabulary(args);
  const auto bytes = [&](const std::string& ids, const std::string& where) {
    return model.detokenize(parse_ids(ids, where)).value();
  };
  if (args.has("lines"))
    for_each_line(
        [&](const std::string& line, const std::string& where) { return hex(bytes(line, where)); });
  else
    std::cout << bytes(standard_input(), "standard input");
  return 0;
}

}  // namespace cli
