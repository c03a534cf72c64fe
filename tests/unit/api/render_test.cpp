// Chat templates through the public API. Expected texts are worked out by hand from the templates;
// that the language itself is jinja2's is tested in tests/unit/text/jinja_*.
#include <decant/decant.hpp>

#include "support/catch.hpp"
#include "support/tiny_model.hpp"

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
