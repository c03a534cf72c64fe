// Chat templates through the public API. Expected texts are worked out by hand from the templates;
// that the language itself is jinja2's is tested in tests/unit/text/jinja_*.
#include <decant/decant.hpp>

#include "support/catch.hpp"
#include "support/tiny_model.hpp"
#include "unit/text/small_stack.hpp"

using namespace decant_test;
using decant::ErrorCode;
using decant::Message;

TEST_CASE("a template renders on its own, with its clock and its errors") {
  CHECK(decant::render_template("{{ a }}-{{ strftime_now('%Y-%m-%d') }}",
                                R"({"a": 1, "now": "2025-07-04T09:05:03"})")
            .value() == "1-2025-07-04");
  const auto code = [](std::string_view source, std::string_view variables) {
    return decant::render_template(source, variables).error().code();
  };
  CHECK(code("{{ a", "{}") == ErrorCode::invalid_argument);
  CHECK(code("{{ a }}", "[]") == ErrorCode::invalid_argument);
  CHECK(code("{{ a }}", "{") == ErrorCode::invalid_argument);
  CHECK(code("{{ a }}", R"({"now": "yesterday"})") == ErrorCode::invalid_argument);
  CHECK(code("{% include 'x' %}", "{}") == ErrorCode::unsupported);
  CHECK(decant::render_template("{{ raise_exception('no such role') }}", "{}").error().message() ==
        "no such role");
}

TEST_CASE(
    "a model renders with its file's template; json adds to a message or replaces its parts") {
  TinyModel tiny = random_model({});
  tiny.set_string("tokenizer.chat_template",
                  "{% for m in messages %}[{{ m.role }}:{{ m.content }}"
                  "{% if m.tool_calls %}!{{ m.tool_calls[0].name }}{% endif %}]{% endfor %}"
                  "{% if add_generation_prompt %}>{% endif %}");
  const decant::Model model = tiny.load();
  const Message messages[] = {{"user", "hi"},
                              {"assistant", "", R"({"tool_calls": [{"name": "f"}]})"},
                              {"user", "x", R"({"content": "y"})"}};
  CHECK(model.render(messages).value() == "[user:hi][assistant:!f][user:y]>");
  CHECK(model.render(messages, false).value() == "[user:hi][assistant:!f][user:y]");
  const Message wrong[] = {{"user", "hi", "[1]"}};
  CHECK(model.render(wrong).error().code() == ErrorCode::invalid_argument);
}

static std::string repeat(std::string_view text, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

/// {"x": [[...]]}, with `depth` containers in all.
static std::string nested_json(int depth) {
  return "{\"x\":" + repeat("[", depth - 1) + repeat("]", depth - 1) + "}";
}

/// {"k0": 1, ...}
static std::string wide_json(int n) {
  std::string out = "{\"k0\": 1";
  for (int i = 1; i < n; ++i) out += ",\"k" + std::to_string(i) + "\":1";
  return out + "}";
}

// 96 levels and 4096 members are the documented limits.
TEST_CASE("JSON that is too deep or too wide is an error, on a small stack too") {
  TinyModel tiny = random_model({});
  tiny.set_string("tokenizer.chat_template", "{% for m in messages %}{{ m.role }}{% endfor %}");
  decant::Model model = tiny.load();
  auto session = model.session().value();
  on_small_stack([&] {
    const auto error = [&](const std::string& json) {
      const Message messages[] = {{"user", "hi", json}};
      const auto rendered = model.render(messages);
      const auto appended = session.append(messages[0]);
      const auto alone = decant::render_template("", json);
      CHECK(bool(rendered) == bool(appended));
      CHECK(bool(rendered) == bool(alone));
      if (rendered) return std::string();
      CHECK(rendered.error().code() == ErrorCode::invalid_argument);
      CHECK(appended.error().message() == rendered.error().message());
      CHECK(alone.error().code() == ErrorCode::invalid_argument);
      return std::string(rendered.error().message());
    };
    CHECK(error(nested_json(60000)) == "Message::json: JSON is nested more than 96 deep");
    CHECK(error("{\"x\":" + repeat("{\"a\":", 60000) + "1" + repeat("}", 60001)) ==
          "Message::json: JSON is nested more than 96 deep");
    CHECK(error(nested_json(97)) == "Message::json: JSON is nested more than 96 deep");
    CHECK(error(nested_json(96)).empty());
    CHECK(error(R"({"x": "[[\"]] )" + repeat("[", 200) + "\"}").empty());  // brackets of a text
    CHECK(error(wide_json(4096)).empty());
    CHECK(error(wide_json(4097)) == "Message::json: an object of JSON has more than 4096 members");
    CHECK(error("{\"x\": [1, " + wide_json(4097) + "]}") ==
          "Message::json: an object of JSON has more than 4096 members");
    CHECK(error("{\"x\": [" + wide_json(3000) + "," + wide_json(3000) + "]}").empty());
    CHECK(error(repeat("]", 200)) == "Message::json is no JSON object");
    CHECK(error("{\"x\": \"\\") == "Message::json is no JSON object");
  });
  // What was refused left nothing behind.
  CHECK(session.messages().size() == 4);
}

TEST_CASE("a template that cannot be compiled is an error of the calls that need it alone") {
  TinyModel tiny = random_model({});
  tiny.set_string("tokenizer.chat_template", "{% for");
  decant::Model model = tiny.load();
  const Message message[] = {{"user", "hi"}};
  CHECK(model.render(message).error().code() == ErrorCode::invalid_argument);
  auto session = model.session().value();
  session.append(message[0]).value();
  const auto reply = session.generate();
  CHECK(reply.error().code() == ErrorCode::invalid_argument);
  auto raw = model.session().value();
  raw.append("a").value();
  CHECK(raw.generate({.max_tokens = 1}).value().wait());
}
