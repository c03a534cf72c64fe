// The smallest program: hello MODEL.gguf [PROMPT].
#include <decant/decant.hpp>

#include <iostream>

int main(int argc, char** argv) try {
  // [hello]
  auto model = decant::Model::load(argc > 1 ? argv[1] : "model.gguf").value();
  auto session = model.session().value();
  session.append(decant::Message{"user", argc > 2 ? argv[2] : "Why is the sky blue?"}).value();
  auto reply = session.generate({.max_tokens = 200}).value();
  while (auto piece = reply.next()) std::cout << *piece << std::flush;
  std::cout << '\n';
  reply.status().value();
  // [/hello]
} catch (const decant::Exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
