// A host that keeps exceptions and RTTI off: host [MODEL.gguf]. The second translation unit is
// host_other.cpp, so that the header is seen to be included twice in one program.
#ifdef DECANT_DIST
#include "decant.hpp"
#else
#include <decant/decant.hpp>
#endif

#include <cstdio>

decant::Token other_greedy(std::span<const float> logits);

static int fail(const char* what, const decant::Error& error) {
  std::fprintf(stderr, "%s: %s: %s\n", what, decant::error_code_name(error.code()),
               error.message().data());
  return 1;
}

int main(int argc, char** argv) {
  const auto missing = decant::Model::load("no such file.gguf");
  if (missing || missing.error().code() != decant::ErrorCode::not_found)
    return fail("a missing file", missing.error());

  const float logits[] = {0.5f, 2.0f, -1.0f};
  if (other_greedy(logits) != 1) return fail("greedy", {});

  if (argc > 1) {
    auto model = decant::Model::load(argv[1], {.backend = decant::Backend::reference});
    if (!model) return fail("load", model.error());
    auto session = model->session();
    if (!session) return fail("session", session.error());
    const decant::Token prompt[] = {1, 2, 3};
    if (auto status = session->append(prompt); !status) return fail("append", status.error());
    auto reply = session->generate(
        {.max_tokens = 3, .sampler = decant::Sampler::greedy(), .ignore_end = true});
    if (!reply) return fail("generate", reply.error());
    if (auto status = reply->wait(); !status) return fail("wait", status.error());
    if (reply->tokens().size() != 3) return fail("tokens", {});
  }
  std::puts(argc > 1 ? "host: a model answered" : "host: no model given");
}
