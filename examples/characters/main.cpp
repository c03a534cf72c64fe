// One world, many voices: forty characters share the description of their world. It is computed for
// the first of them; the others begin where it ends, in the same memory.
//
//   characters MODEL.gguf [CHARACTERS]
#include <decant/decant.hpp>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

static std::string world() {
  std::string text =
      "The harbour town of Low Ferris lies where the river meets a grey sea. Its people know the "
      "tides better than the calendar.";
  for (int i = 1; text.size() < 4400; ++i)
    text += " House " + std::to_string(i) +
            " stands by the quay; who lives there mends nets in "
            "winter, sails in summer, and owes the baker for " +
            std::to_string(3 * i) + " loaves.";
  return text;
}

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: characters MODEL.gguf [CHARACTERS]\n";
    return 2;
  }
  const int n_characters = argc > 2 ? std::atoi(argv[2]) : 40;
  decant::ModelOptions options;
  options.context = 2048;
  options.sessions = 4;  // room for four of them apart; shared, forty fit
  auto model = decant::Model::load(argv[1], options);
  if (!model) {
    std::cerr << model.error().message() << "\n";
    return 1;
  }
  const std::string description = world();
  std::vector<decant::Session> characters;
  double first_ms = 0, rest_ms = 0;
  std::size_t n_world = 0, n_tokens = 0, n_run = 0;
  for (int i = 0; i < n_characters; ++i) {
    auto session = model->session();
    const bool placed = session && session->append(description);
    if (placed) n_world = session->tokens().size();
    if (!placed || !session->append("\n\nCharacter " + std::to_string(i + 1) +
                                    ", asked about the weather, says: \"")) {
      std::cerr << "cannot make character " << i + 1 << "\n";
      return 1;
    }
    decant::GenerateOptions say;
    say.max_tokens = 12;
    say.stop = {"\"", "\n"};
    say.sampler.seed = static_cast<std::uint64_t>(i);
    auto reply = session->generate(say);
    std::string line;
    while (reply)
      if (const auto piece = reply->next())
        line += *piece;
      else
        break;
    if (!reply || !reply->status()) {
      std::cerr << (reply ? reply->status().error() : reply.error()).message() << "\n";
      return 1;
    }
    const decant::ReplyStats stats = reply->stats();
    (i == 0 ? first_ms : rest_ms) += stats.ttft_ms;
    n_tokens += stats.prompt_tokens;
    n_run += stats.prompt_tokens - stats.cached_tokens;
    if (i < 3 || i + 1 == n_characters)
      std::cout << "character " << i + 1 << ": " << stats.prompt_tokens << " tokens, "
                << stats.cached_tokens << " of them there already, first word after "
                << stats.ttft_ms << " ms: " << line << "\n";
    characters.push_back(std::move(*session));
  }
  const decant::ModelMetrics metrics = model->metrics();
  const std::size_t n_shared = n_world / model->memory().page_tokens;  // whole pages
  std::cout << "time to the first word: " << first_ms << " ms for the first, "
            << rest_ms / (n_characters > 1 ? n_characters - 1 : 1) << " ms for each other\n"
            << "prompt tokens: " << n_tokens << ", of them run: " << n_run << " (the world's "
            << n_world << " once)\n"
            << "pages of the KV cache in use: " << metrics.kv_pages_used << " of "
            << metrics.kv_pages << ", " << n_shared << " with the world for all and "
            << metrics.kv_pages_used - n_shared << " with what is the characters' own\n";
  return 0;
}
