// Real chat templates and engine features against jinja2 in the settings of transformers. The data
// is other projects' and is read from DECANT_GOLDEN_DIR; templates/engine.json and the rest are
// described there.
#include <cstdlib>
#include <filesystem>

#include "support/catch.hpp"
#include "unit/text/jinja_support.hpp"

using namespace decant_test;
using decant::ErrorCode;

static std::string golden_templates() {
  const char* folder = std::getenv("DECANT_GOLDEN_DIR");
  return folder != nullptr ? std::string(folder) + "/templates" : std::string();
}

// Empty if it is as it should be. Only errors that the template raises have a text to compare.
static std::string verdict(const decant::Result<std::string>& got, const Json& want) {
  if (want.contains("output")) {
    if (!got) return std::string(got.error().message());
    const std::string expected = want["output"];
    return *got == expected ? "" : "got:\n" + *got + "\nexpected:\n" + expected;
  }
  if (!want["error"]["raised_by_template"]) {
    return got || got.error().code() != ErrorCode::internal ? "" : "internal error";
  }
  if (got) return "no error, but: " + *got;
  const std::string expected = want["error"]["message"];
  if (got.error().code() != ErrorCode::invalid_argument) return "another code";
  return got.error().message() == expected ? "" : std::string(got.error().message());
}

TEST_CASE("real chat templates render as jinja2 renders them") {
  const std::string folder = golden_templates();
  if (folder.empty()) DECANT_SKIP("DECANT_GOLDEN_DIR is not set");
  const Json conversations = Json::parse(read_text(folder + "/conversations.json"));
  int cases = 0, lenient = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder + "/expected")) {
    const std::string name = file.path().stem().string();
    const std::string source = read_text(folder + "/jinja/" + name + ".jinja");
    const Json expected = Json::parse(read_text(file.path().string()));
    auto compiled = decant::detail::ChatTemplate::compile(source);
    INFO(name);
    REQUIRE(compiled);
    for (const Json& conversation : conversations) {
      Json context = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
      for (const auto& [key, value] : conversation.items()) {
        if (key == "kwargs") context.update(value);
        if (key != "kwargs" && key != "name") context[key] = value;
      }
      for (const char* key : {"tools", "documents"}) {
        if (!context.contains(key)) context[key] = nullptr;
      }
      const std::string id = conversation["name"];
      const Json& want = expected.at(id);
      decant::detail::ChatRenderOptions options;
      options.now = kNow;
      auto parts = compiled->render(context, options);
      decant::Result<std::string> got = std::string();
      if (!parts) got = parts.error();
      if (parts) {
        for (const auto& part : *parts) *got += part.text;
      }
      INFO(id);
      CHECK(verdict(got, want) == "");
      lenient += want.contains("error") && got ? 1 : 0;
      ++cases;
    }
  }
  CHECK(cases == 680);
  // Where jinja2 fails, Decant fails too.
  CHECK(lenient == 0);
}

TEST_CASE("each feature of the engine behaves as in jinja2") {
  const std::string folder = golden_templates();
  if (folder.empty()) DECANT_SKIP("DECANT_GOLDEN_DIR is not set");
  const Json cases = Json::parse(read_text(folder + "/engine.json"));
  for (const Json& c : cases) {
    INFO(c["name"]);
    INFO(c["template"]);
    const auto got = render_text(c["template"].get<std::string>(), c["context"]);
    CHECK(verdict(got, c) == "");
    if (c.contains("error")) CHECK_FALSE(got);
  }
  CHECK(cases.size() == 68);
}
