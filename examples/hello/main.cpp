#include <decant/decant.hpp>
#include <iostream>

int main(int argc, char** argv) try {
  auto model = decant::Model::load(argc > 1 ? argv[1] : "model.gguf").value();
  auto session = model.session().value();
  session.append(decant::Message{"user", "Why is the sky blue?"}).value();
  auto reply = session.generate({.max_tokens = 200}).value();
  while (auto piece = reply.next()) std::cout << *piece << std::flush;
  reply.status().value();
} catch (const decant::Exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
