#include "api/chat.hpp"

#include <array>

#include "base/json.hpp"
#include "text/jinja/value.hpp"

namespace decant {

namespace detail {

using ChatJson = nlohmann::ordered_json;

// Of JSON from the host; what is built around it has a little room to the templates' limit.
static constexpr std::size_t kMaxJsonDepth = jinja::kMaxNesting - 4, kMaxJsonMembers = 4096;

/// What a parsed text may cost is bounded before it is parsed: copies of it recurse, and a member
/// of an object takes time in proportion to those before it.
static Status check_chat_json(std::string_view json, std::string_view what) {
  std::array<std::size_t, kMaxJsonDepth> members{};  // of what is open
  std::size_t depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (depth == members.size())
        return make_error(ErrorCode::invalid_argument, "{}: JSON is nested more than {} deep", what,
                          members.size());
      members[depth++] = 0;
    } else if (c == '}' || c == ']') {
      if (depth > 0) --depth;
    } else if (c == ':' && depth > 0 && ++members[depth - 1] > kMaxJsonMembers) {
      return make_error(ErrorCode::invalid_argument,
                        "{}: an object of JSON has more than {} members", what, kMaxJsonMembers);
    }
  }
  return {};
}

static Result<ChatJson> chat_object(std::string_view json, std::string_view what) {
  DECANT_TRY(check_chat_json(json, what));
  ChatJson object = ChatJson::parse(json, nullptr, false);
  if (!object.is_object())
    return make_error(ErrorCode::invalid_argument, "{} is no JSON object", what);
  return object;
}

/// What the template sees of a message: role and content, and the members of its `json` over them.
static Result<ChatJson> chat_message(const Message& message) {
  ChatJson out = {{"role", message.role}, {"content", message.content}};
  if (message.json.empty()) return out;
  DECANT_ASSIGN(ChatJson more, chat_object(message.json, "Message::json"));
  for (auto& [key, value] : more.get_ref<ChatJson::object_t&>()) out[key] = std::move(value);
  return out;
}

Status check_message(const Message& message) {
  if (message.role.empty())
    return make_error(ErrorCode::invalid_argument, "a message needs a role");
  if (message.json.empty()) return {};
  DECANT_ASSIGN([[maybe_unused]] const ChatJson object, chat_object(message.json, "Message::json"));
  return {};
}

Result<std::vector<TextPart>> render_conversation(const ModelState& model,
                                                  std::span<const Message> messages,
                                                  bool add_generation_prompt) {
  if (model.chat_template) {
    ChatJson context = {
        {"messages", ChatJson::array()}, {"tools", nullptr},
        {"documents", nullptr},          {"add_generation_prompt", add_generation_prompt},
        {"bos_token", model.bos_text},   {"eos_token", model.eos_text}};
    for (const Message& message : messages) {
      DECANT_ASSIGN(ChatJson shown, chat_message(message));
      context["messages"].push_back(std::move(shown));
    }
    return model.chat_template->render(context);
  }
  if (model.gemma_chat) return render_gemma_chat(messages, add_generation_prompt);
  if (model.chat_error) return model.chat_error;
  return make_error(
      ErrorCode::unsupported,
      "this model has no chat template and no chat format that is known; use raw text");
}

/// "2025-07-04T09:05:03".
static Result<ChatTime> chat_time(std::string_view text) {
  ChatTime time;
  int* const fields[] = {&time.year, &time.month,  &time.day,
                         &time.hour, &time.minute, &time.second};
  constexpr std::size_t starts[] = {0, 5, 8, 11, 14, 17}, lengths[] = {4, 2, 2, 2, 2, 2};
  bool good = text.size() >= 19;
  for (std::size_t i = 0; good && i < std::size(starts); ++i) {
    *fields[i] = 0;
    for (const char c : text.substr(starts[i], lengths[i])) {
      good = good && c >= '0' && c <= '9';
      *fields[i] = *fields[i] * 10 + (c - '0');
    }
  }
  if (!good || time.month < 1 || time.month > 12 || time.day < 1 || time.day > 31 ||
      time.hour > 23 || time.minute > 59 || time.second > 60)
    return make_error(ErrorCode::invalid_argument, "'{}' is no time like 2025-07-04T09:05:03",
                      text);
  return time;
}

}  // namespace detail

using namespace detail;

Result<std::string> render_template(std::string_view source, std::string_view variables) {
  return guarded([&]() -> Result<std::string> {
    DECANT_ASSIGN(const ChatTemplate compiled, ChatTemplate::compile(source));
    DECANT_ASSIGN(const ChatJson context, chat_object(variables, "the variables"));
    ChatRenderOptions options;
    if (const auto now = context.find("now"); now != context.end() && now->is_string()) {
      DECANT_ASSIGN(options.now, chat_time(now->get_ref<const std::string&>()));
    }
    DECANT_ASSIGN(const std::vector<TextPart> parts, compiled.render(context, options));
    std::string text;
    for (const TextPart& part : parts) text += part.text;
    return text;
  });
}

}  // namespace decant
