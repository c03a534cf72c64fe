// Gives what Gemma 3's own template gives for messages of plain text.
#include "text/chat_builtin.hpp"

#include <algorithm>

#include "text/unicode.hpp"

namespace decant::detail {

namespace {

class ChatParts {
 public:
  void add_template(std::string_view text) { add(text, true, -1); }
  void add_role(std::string_view text) { add(text, false, -1); }
  void add_content(std::string_view text, std::size_t message) {
    add(text, false, static_cast<int>(message));
  }
  std::vector<TextPart> take() { return std::move(parts_); }

 private:
  void add(std::string_view text, bool special, int message) {
    if (text.empty()) return;
    if (parts_.empty() || parts_.back().special != special || parts_.back().message != message) {
      parts_.push_back({{}, special, message});
    }
    parts_.back().text.append(text);
  }
  std::vector<TextPart> parts_;
};

}  // namespace

// Like str.strip of Python, which templates call trim: White_Space and U+001C to U+001F.
static std::string_view chat_trim(std::string_view text) {
  const auto blank = [](std::uint32_t c) {
    return unicode_is(c, kUnicodeSpace) || (c >= 0x1c && c <= 0x1f);
  };
  while (!text.empty()) {
    const Utf8Char c = utf8_decode(text);
    if (!blank(c.code_point)) break;
    text.remove_prefix(c.length);
  }
  while (!text.empty()) {
    std::size_t begin = text.size() - 1;  // of the last character: its lead byte
    while (begin > 0 && text.size() - begin < 4 && (text[begin] & 0xc0) == 0x80) --begin;
    const Utf8Char c = utf8_decode(text.substr(begin));
    if (c.length != text.size() - begin || !blank(c.code_point)) break;
    text.remove_suffix(c.length);
  }
  return text;
}

bool wants_gemma_chat(const Vocabulary& vocabulary, std::string_view architecture) {
  const auto has = [&](std::string_view token) {
    return std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), token) !=
           vocabulary.tokens.end();
  };
  return architecture == "gemma3" && vocabulary.chat_template.empty() && has("<start_of_turn>") &&
         has("<end_of_turn>");
}

Result<std::vector<TextPart>> render_gemma_chat(std::span<const Message> messages,
                                                bool add_generation_prompt) {
  if (messages.empty()) {
    return make_error(ErrorCode::invalid_argument, "there is no message to render");
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].json.empty()) continue;
    return make_error(ErrorCode::unsupported,
                      "message {} has json, which the built-in chat format cannot show; put its "
                      "text into the content",
                      i);
  }
  ChatParts parts;
  const std::size_t first = messages[0].role == "system" ? 1 : 0;
  for (std::size_t i = first; i < messages.size(); ++i) {
    const std::string_view role = messages[i].role;
    if ((role == "user") != ((i - first) % 2 == 0)) {
      return make_error(ErrorCode::invalid_argument,
                        "message {} has the role '{}', but roles must alternate between user and "
                        "assistant, after an optional system message",
                        i, role.substr(0, 64));
    }
    parts.add_template("<start_of_turn>");
    if (role == "assistant") {
      parts.add_template("model");
    } else {
      parts.add_role(role);
    }
    parts.add_template("\n");
    if (first == 1 && i == first) {
      parts.add_content(messages[0].content, 0);
      parts.add_template("\n\n");
    }
    parts.add_content(chat_trim(messages[i].content), i);
    parts.add_template("<end_of_turn>\n");
  }
  if (add_generation_prompt) parts.add_template("<start_of_turn>model\n");
  return parts.take();
}

}  // namespace decant::detail
