// The template engine: a list of cases against jinja2 (tests/support/jinja_cases.py), origins of
// text, error texts, limits, and what hostile templates may cost.
#include "support/catch.hpp"
#include "unit/text/jinja_support.hpp"
#include "unit/text/small_stack.hpp"

using namespace decant_test;
using decant::ErrorCode;
using decant::detail::ChatTemplate;
using decant::detail::ChatTemplateLimits;
using decant::detail::TextPart;

static std::string error_of(std::string_view source, const Json& context = Json::object(),
                            const ChatTemplateLimits& limits = {}) {
  const auto got = render_text(source, context, limits);
  return got ? "no error: " + *got : std::string(got.error().message());
}

static ErrorCode code_of(std::string_view source) {
  return render_text(source, Json::object()).error().code();
}

TEST_CASE("templates give what jinja2 gives") {
  const Json data = Json::parse(read_text(DECANT_TEST_DATA "/jinja_cases.json"));
  const Json& context = data["context"];
  REQUIRE(data["cases"].size() > 700);
  for (const Json& c : data["cases"]) {
    const std::string source = c[0];
    INFO(source);
    const auto got = render_text(source, context);
    if (c[1].is_string()) {
      if (!got) FAIL_CHECK(got.error().message());
      if (got) CHECK(*got == c[1].get<std::string>());
      continue;
    }
    CHECK_FALSE(got);
    const std::string raised = c[2];
    if (!got && !raised.empty()) CHECK(got.error().message() == raised);
    if (!got) CHECK(got.error().code() != ErrorCode::internal);
  }
}

// ---- origins

// T: template, C: content of no message, 0..9: content of that message.
static std::string show(const decant::Result<std::vector<TextPart>>& parts) {
  if (!parts) return std::string(parts.error().message());
  std::string out;
  for (const TextPart& part : *parts) {
    const char content = part.message < 0 ? 'C' : static_cast<char>('0' + part.message);
    const char kind = part.special ? 'T' : content;
    out += std::string(1, kind) + "<" + part.text + ">";
    CHECK((!part.special || part.message == -1));
  }
  return out;
}

static std::string origins(std::string_view source) {
  const Json context = Json::parse(R"({
    "messages": [{"role": "user", "content": " Hi <|im_end|> "},
                 {"role": "assistant", "content": "yes", "extra": {"a": ["deep"]}, "n": 5}],
    "tools": [{"name": "t"}], "bos_token": "<s>", "other": "o"})");
  return show(render_parts(source, context));
}

TEST_CASE("text keeps its origin") {
  CHECK(origins("<|im_start|>{{ messages[0].role }}\n{{ messages[0].content }}<|im_end|>") ==
        "T<<|im_start|>>C<user>T<\n>0< Hi <|im_end|> >T<<|im_end|>>");
  CHECK(origins("{{ bos_token }}{{ other }}{{ tools[0].name }}{{ messages[1].content }}") ==
        "T<<s>>C<ot>1<yes>");
  // Neighbours of one kind are one part.
  CHECK(origins("a{{ 'b' }}{{ 1 }}{{ none }}c") == "T<ab1Nonec>");
  CHECK(origins("{{ messages[1].content }}{{ messages[1].content }}") == "1<yesyes>");
  CHECK(origins("{{ messages[1].extra.a[0] }}{{ messages[1].n }}") == "1<deep>T<5>");
}

TEST_CASE("operations on text keep the origin of every part") {
  CHECK(origins("{{ '[' + messages[1].content + ']' }}") == "T<[>1<yes>T<]>");
  CHECK(origins("{{ '[' ~ messages[1].content ~ other ~ 1 }}") == "T<[>1<yes>C<o>T<1>");
  CHECK(origins("{{ ('<<' ~ messages[0].content ~ '>>')[1:6] }}") == "T<<>0< Hi >");
  CHECK(origins("{{ ('ab' ~ messages[1].content)[::-1] }}") == "1<sey>T<ba>");
  CHECK(origins("{{ messages[0].content | trim }}") == "0<Hi <|im_end|>>");
  CHECK(origins("{{ (' x' ~ messages[1].content ~ ' ').strip() }}") == "T<x>1<yes>");
  CHECK(origins("{{ messages[0].content.split('<')[1] }}") == "0<|im_end|> >");
  CHECK(origins("{{ messages[1].content | replace('e', 'E') }}") == "1<y>T<E>1<s>");
  CHECK(origins("{{ messages[1].content | replace('y', other) }}") == "C<o>1<es>");
  CHECK(origins("{{ ('a' ~ messages[1].content ~ 'b') | upper }}") == "T<A>1<YES>T<B>");
  CHECK(origins("{{ ('a ' ~ messages[1].content) | title }}") == "T<A >1<Yes>");
  CHECK(origins("{{ [other, messages[1].content] | join('+') }}") == "C<o>T<+>1<yes>");
  CHECK(origins("{{ '-'.join(messages[1].content) }}") == "1<y>T<->1<e>T<->1<s>");
  CHECK(origins("{{ ('x\n' ~ messages[1].content) | indent(2) }}") == "T<x\n  >1<yes>");
  CHECK(origins("{{ '%s: %s' % (other, messages[1].content) }}") == "C<o>T<: >1<yes>");
  CHECK(origins("{{ '{} {:>5}'.format(other, messages[1].content) }}") == "C<o>T<   >1<yes>");
  CHECK(origins("{{ other * 3 }}{{ messages[1].content | e }}") == "C<ooo>1<yes>");
  CHECK(origins("{{ 'x'.center(3, other) }}") == "T<oxo>");  // padding is the template's
  CHECK(origins("{{ messages[1].content[0] }}{{ messages[1].content | first }}") == "1<yy>");
  CHECK(origins("{% for c in messages[1].content %}{{ c }}{% endfor %}") == "1<yes>");
  CHECK(origins("{% set x %}a{{ other }}{% endset %}{{ x }}") == "T<a>C<o>");
  CHECK(origins("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(other) }}") == "T<<>C<o>T<>>");
  CHECK(origins("{% filter upper %}a{{ other }}{% endfilter %}") == "T<A>C<O>");
  CHECK(origins("{{ strftime_now(other) }}") == "C<o>");
}

TEST_CASE("texts and lists that share a beginning stay apart") {
  CHECK(origins("{% set a = 'x' ~ other %}{% set b = a ~ 'b' ~ other %}{% set c = a ~ 'c' %}"
                "{% set d = a ~ a %}{{ a }}|{{ b }}|{{ c }}|{{ d }}") ==
        "T<x>C<o>T<|x>C<o>T<b>C<o>T<|x>C<o>T<c|x>C<o>T<x>C<o>");
  CHECK(origins("{% set a = [1] + [2] %}{% set b = a + [3] %}{% set c = a + [4] + [5] %}"
                "{% set d = a + a %}{{ a }}{{ b }}{{ c }}{{ d }}") ==
        "T<[1, 2][1, 2, 3][1, 2, 4, 5][1, 2, 1, 2]>");
  // 20,000 steps of growth, which would not fit the memory if each made a copy.
  const auto grown = render_text(
      "{% set ns = namespace(s='', l=[]) %}{% for i in range(20000) %}{% set ns.s = ns.s ~ i ~ x %}"
      "{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.s | length }} {{ ns.l | length }}",
      {{"x", "-"}});
  REQUIRE(grown);
  CHECK(*grown == "108890 20000");
}

TEST_CASE("what is made of several values has one origin") {
  CHECK(origins("{{ tools | tojson }}") == "C<[{\"name\": \"t\"}]>");
  CHECK(origins("{{ messages[1].extra | tojson }}") == "1<{\"a\": [\"deep\"]}>");
  CHECK(origins("{{ ['lit', 1] | tojson }}") == "T<[\"lit\", 1]>");
  CHECK(origins("{{ [other, messages[1].content] }}") == "C<['o', 'yes']>");
  CHECK(origins("{{ ['a', messages[1].content] | string }}") == "1<['a', 'yes']>");
}

TEST_CASE("the caller says which variables are tokens") {
  const auto compiled = ChatTemplate::compile("{{ bos_token }}{{ image_token }}");
  REQUIRE(compiled);
  const Json context = {{"bos_token", "<s>"}, {"image_token", "<img>"}};
  CHECK(show(compiled->render(context)) == "T<<s>>C<<img>>");
  const std::string_view names[] = {"image_token"};
  decant::detail::ChatRenderOptions options;
  options.special_variables = names;
  CHECK(show(compiled->render(context, options)) == "C<<s>>T<<img>>");
}

// ---- errors

TEST_CASE("errors of templates name the line and the matter") {
  CHECK(error_of("a\n{% if %}") ==
        "chat template, line 2: expected an expression, got end of "
        "statement block");
  CHECK(error_of("{{ x.y.z }}", {{"x", Json::object()}}) ==
        "chat template, line 1: 'dict object' has no attribute 'y'");
  CHECK(error_of("\n\n{{ nope.x }}") == "chat template, line 3: 'nope' is undefined");
  CHECK(error_of("{{ [].append(1) }}") ==
        "chat template, line 1: access to attribute 'append' of 'list object' is unsafe");
  CHECK(error_of("{% foo %}") == "chat template, line 1: unknown tag 'foo'");
  CHECK(error_of("{{ 1 | nope }}") == "chat template, line 1: there is no filter named 'nope'");
  CHECK(error_of("{{ 1 is nope }}") == "chat template, line 1: there is no test named 'nope'");
  CHECK(error_of("{% for x in [1] %}") ==
        "chat template, line 1: unexpected end of template, expected 'endfor'");
}

TEST_CASE("raise_exception gives exactly its text") {
  const std::string text = "Roles must alternate \xc3\xa9 {}!";
  const auto got = render_text("{{ raise_exception(m) }}", {{"m", text}});
  REQUIRE_FALSE(got);
  CHECK(got.error().code() == ErrorCode::invalid_argument);
  CHECK(got.error().message() == text);
}

TEST_CASE("what is not there is named as unsupported") {
  for (const char* source :
       {"{% include 'x' %}", "{% import 'x' as y %}", "{% from 'x' import y %}",
        "{% extends 'x' %}", "{% autoescape true %}{% endautoescape %}", "{{ 1 | nope }}",
        "{{ 1 is nope }}", "{{ [1] | random }}", "{{ lipsum() }}", "{{ 2 ** 100 }}",
        "{{ 'a'.encode() }}", "{{ 9223372036854775807 + 1 }}", "{{ 99999999999999999999 }}",
        "{{ '\\N{DIGIT ONE}' }}"}) {
    INFO(source);
    CHECK(code_of(source) == ErrorCode::unsupported);
  }
  CHECK(error_of("{% include 'x' %}") == "chat template, line 1: the tag 'include'");
  // Nothing is missed where nothing runs.
  const char* dead = "{% if false %}{% include 'x' %}{{ 1 | nope }}{% endif %}ok";
  CHECK(*render_text(dead, Json::object()) == "ok");
}

TEST_CASE("the variables of a template are an object") {
  CHECK(error_of("x", Json::array()) == "the variables of a template are an object");
  CHECK(*render_text("x{{ messages }}", {{"messages", "m"}}) == "xm");
}

// ---- limits

TEST_CASE("limits of templates are errors") {
  ChatTemplateLimits limits;
  limits.source_bytes = 10;
  CHECK(error_of("12345678901", Json::object(), limits) ==
        "the chat template has 11 bytes, more than the limit of 10");
  limits = {};
  limits.output_bytes = 1000;
  CHECK(error_of("{% for i in range(101) %}0123456789{% endfor %}", Json::object(), limits) ==
        "chat template, line 1: a text is longer than 1000 bytes");
  CHECK(*render_text("{% for i in range(100) %}0123456789{% endfor %}", Json::object(), limits) !=
        "");
  limits = {};
  limits.steps = 1000;
  CHECK(error_of("{% for i in range(1000) %}{% endfor %}", Json::object(), limits) ==
        "chat template, line 1: more than 1000 steps; the template may never end");
  limits = {};
  limits.memory_bytes = 100000;
  CHECK(error_of("{% set x = 'a' * 200000 %}", Json::object(), limits) ==
        "chat template, line 1: rendering needs more than 100000 bytes of memory");
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define JINJA_TEST_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define JINJA_TEST_SANITIZED
#endif

// 256 KiB where the stack is as the library promises: optimised and without sanitizers.
static void on_small_thread(const std::function<void()>& work) {
#if defined(__OPTIMIZE__) && !defined(JINJA_TEST_SANITIZED)
  on_small_stack(work);
#else
  std::thread(work).join();
#endif
}

static std::string repeated(std::string_view text, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

TEST_CASE("hostile templates end in an error, on a small stack and in bounded time") {
  const std::string templates[] = {
      "{{ " + repeated("(", 50000) + " }}",
      "{{ " + repeated("[", 101) + repeated("]", 101) + " }}",
      "{{ " + repeated("not ", 5000) + "1 }}",
      "{{ " + repeated("-", 5000) + "1 }}",
      "{{ " + repeated("{'a':", 5000) + "1 }}",
      "{{ a" + repeated("|upper", 50000) + " }}",
      "{{ a" + repeated(".b", 50000) + " }}",
      "{{ 1" + repeated(" if 1 else (1", 5000) + " }}",
      repeated("{% if 1 %}", 5000),
      repeated("{% for a in [1] %}", 101) + repeated("{% endfor %}", 101),
      "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
      "{% macro m(x) %}{% for i in [1] %}{% if x %}{% set y %}{{ m(x + 1) | trim }}{% endset %}"
      "{% endif %}{% endfor %}{% endmacro %}{{ m(1) }}",
      "{% macro m(a=m()) %}{% endmacro %}{{ m() }}",
      "{% macro m() %}{% call m() %}{{ m() }}{% endcall %}{{ caller() }}{% endmacro %}{{ m() }}",
      "{% macro m(x) %}{% with a = [m(x)] %}{% generation %}{{ '%s' % (m({'a': m(x)}),) }}"
      "{% endgeneration %}{% endwith %}{% endmacro %}{{ m(1) }}",
      "{% for i in [[1]] recursive %}{{ loop([i]) }}{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(999) %}{% set ns.l = [ns.l] %}{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}"
      "{% endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=[]) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}"
      "{% endfor %}{{ ns.l | tojson }}",
      "{% set ns = namespace(l=1, k=1) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}"
      "{% set ns.k = [ns.k, ns.k] %}{% endfor %}{{ ns.l == ns.k }}",
      "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns }}",
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% set ns = namespace(s='abcdefgh') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s %}"
      "{% endfor %}",
      "{% set ns = namespace(s=[1]) %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}"
      "{% endfor %}",
      "{{ 'ab' * 99999999999 }}",
      "{{ [1] * 99999999999 }}",
      "{{ 'a'.ljust(99999999999) }}",
      "{{ '%99999999d' % 1 }}",
      "{{ '{:99999999}'.format(1) }}",
      "{{ 'a\nb' | indent(99999999999) }}",
      "{{ [1] | batch(99999999999, 'x') | list }}",
      "{{ [1] | slice(99999999999) | list }}",
      "{% set a = 'a' * 1000000 %}{{ a.replace('a' * 500000 ~ 'b', '') }}",
      "{{ range(100000) | unique | list | length }}",
  };
  ChatTemplateLimits limits;
  limits.steps = 5'000'000;
  limits.memory_bytes = std::size_t{64} << 20;
  for (const std::string& source : templates) {
    INFO(source.substr(0, 200));
    decant::Result<std::string> got = std::string();
    on_small_thread([&] { got = render_text(source, Json::object(), limits); });
    CHECK_FALSE(got);
  }
}

TEST_CASE("what is nested as deeply as allowed renders on a small stack") {
  const std::string templates[] = {
      "{{ " + repeated("[", 98) + repeated("]", 98) + " }}",
      "{{ " + repeated("(1 + ", 98) + "1" + repeated(")", 98) + " }}",
      "{{ 'a'" + repeated("|upper", 290) + " }}",
      "{{ 1" + repeated(" + 1", 50000) + " }}",
      repeated("{% for a in [1] %}", 98) + "x" + repeated("{% endfor %}", 98),
      "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}x{% endmacro %}{{ m(60) }}",
  };
  for (const std::string& source : templates) {
    INFO(source.substr(0, 200));
    decant::Result<std::string> got = std::string();
    on_small_thread([&] { got = render_text(source, Json::object()); });
    if (!got) FAIL_CHECK(got.error().message());
    if (got) CHECK(*got != "");
  }
}

TEST_CASE("threads may share a template") {
  const auto compiled =
      ChatTemplate::compile("{% for m in messages %}{{ 'a' 'b' ~ m.content | upper }}{% endfor %}");
  REQUIRE(compiled);
  std::string results[4];
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const std::string content(3, static_cast<char>('a' + i));
      const Json context = {{"messages", {{{"content", content}}}}};
      for (int k = 0; k < 200; ++k) {
        const auto parts = compiled->render(context);
        results[i].clear();
        for (const TextPart& part : *parts) results[i] += part.text;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (int i = 0; i < 4; ++i) {
    CHECK(results[i] == "ab" + std::string(3, static_cast<char>('A' + i)));
  }
}

TEST_CASE("without a clock of the host it is the system's, UTC") {
  const auto compiled = ChatTemplate::compile("{{ strftime_now('%Y-%m-%d') }}");
  REQUIRE(compiled);
  const auto date = [] {
    const auto day = std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now());
    const std::chrono::year_month_day d(day);
    const unsigned month = static_cast<unsigned>(d.month()), dd = static_cast<unsigned>(d.day());
    return std::to_string(static_cast<int>(d.year())) + (month < 10 ? "-0" : "-") +
           std::to_string(month) + (dd < 10 ? "-0" : "-") + std::to_string(dd);
  };
  const std::string before = date();
  const auto parts = compiled->render(Json::object());
  REQUIRE(parts);
  CHECK((parts->at(0).text == before || parts->at(0).text == date()));
}

TEST_CASE("strftime_now knows the calendar") {
  // Python: datetime(2024, 2, 29, 0, 30, 7).strftime(...), datetime(2027, 1, 1, 12).strftime(...)
  const auto compiled = ChatTemplate::compile("{{ strftime_now('%j %U %W %V %G %a %I %p') }}");
  REQUIRE(compiled);
  const auto at = [&](decant::detail::ChatTime now) {
    decant::detail::ChatRenderOptions options;
    options.now = now;
    return compiled->render(Json::object(), options)->at(0).text;
  };
  CHECK(at({2024, 2, 29, 0, 30, 7}) == "060 08 09 09 2024 Thu 12 AM");
  CHECK(at({2027, 1, 1, 12, 0, 0}) == "001 00 00 53 2026 Fri 12 PM");
  CHECK(at({2024, 12, 30, 23, 0, 0}) == "365 52 53 01 2025 Mon 11 PM");
  CHECK(at({2000, 1, 2, 1, 0, 0}) == "002 01 00 52 1999 Sun 01 AM");
  decant::detail::ChatRenderOptions options;
  options.now = decant::detail::ChatTime{2024, 13, 1};
  CHECK_FALSE(compiled->render(Json::object(), options));
}

TEST_CASE("invalid UTF-8 passes through") {
  const std::string bytes = "a\xff\xc3(\xed\xa0\x80z";
  CHECK(*render_text("{{ x }}|{{ x | upper }}|{{ x | length }}", {{"x", bytes}}) ==
        bytes + "|A\xff\xc3(\xed\xa0\x80Z|8");
  CHECK(*render_text(bytes + "{{ '\xff' }}", Json::object()) == bytes + "\xff");
}
