// Questions that come together share every pass over the weights: the same answers, sooner.
//
//   batching MODEL.gguf
#include <decant/decant.hpp>

#include <chrono>
#include <iostream>
#include <string>
#include <vector>

static const std::vector<std::string> kQuestions = {
    "Name a river.", "Name a bird.", "Name a tree.", "Name a metal.",
    "Name a fruit.", "Name a city.", "Name a fish.", "Name a tool."};

static decant::Session ask(decant::Model& model, const std::string& question) {
  auto session = model.session().value();
  session.append("Question: " + question + "\nAnswer:").value();
  return session;
}

static decant::GenerateOptions answer() {
  return {.max_tokens = 12, .sampler = decant::Sampler::greedy(), .stop = {"\n"}};
}

static double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int main(int argc, char** argv) try {
  if (argc < 2) {
    std::cerr << "usage: batching MODEL.gguf\n";
    return 2;
  }
  decant::ModelOptions options;
  options.prefix_cache = false;  // nothing is remembered from the first round
  auto model = decant::Model::load(argv[1], options).value();

  // [one]
  std::vector<std::vector<decant::Token>> alone;
  auto start = std::chrono::steady_clock::now();
  for (const std::string& question : kQuestions) {
    auto session = ask(model, question);
    auto reply = session.generate(answer()).value();
    reply.wait().value();
    alone.push_back(reply.tokens());
  }
  std::cout << "one after the other: " << seconds_since(start) << " s\n";
  // [/one]

  // [together]
  const decant::ModelMetrics before = model.metrics();
  start = std::chrono::steady_clock::now();
  std::vector<decant::Session> sessions;
  std::vector<decant::Reply> replies;
  for (const std::string& question : kQuestions) {
    sessions.push_back(ask(model, question));
    replies.push_back(sessions.back().generate(answer()).value());  // returns at once
  }
  for (decant::Reply& reply : replies) reply.wait().value();
  std::cout << "together: " << seconds_since(start) << " s\n";
  // [/together]

  for (std::size_t i = 0; i < replies.size(); ++i)
    if (replies[i].tokens() != alone[i]) {
      std::cerr << "the answer to \"" << kQuestions[i] << "\" differs\n";
      return 1;
    }
  std::cout << "the answers are the same\n";

  // [metrics]
  const decant::ModelMetrics now = model.metrics();
  const auto steps = static_cast<double>(now.steps - before.steps);
  std::cout << static_cast<double>(now.step_sequences - before.step_sequences) / steps
            << " replies in a step on average\n"
            << now.prometheus();  // what a host's /metrics endpoint would answer
  // [/metrics]
  return 0;
} catch (const decant::Exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
