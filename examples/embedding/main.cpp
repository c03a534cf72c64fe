// What docs/embedding.md teaches, as one program: embedding MODEL.gguf.
#include <decant/decant.hpp>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iostream>
#include <thread>

// [reader]
// A host's own file: here bytes that an archive or a decryption step would deliver.
class ArchiveEntry final : public decant::Reader {
 public:
  explicit ArchiveEntry(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  std::uint64_t size() override { return bytes_.size(); }
  decant::Status read(std::uint64_t offset, std::span<std::byte> to) override {
    if (offset > bytes_.size() || to.size() > bytes_.size() - offset)
      return decant::Error(decant::ErrorCode::io, "read past the end of the archive entry");
    std::memcpy(to.data(), bytes_.data() + offset, to.size());
    return {};
  }
  std::string_view name() const override { return "models.pak/assistant.gguf"; }

 private:
  std::vector<std::byte> bytes_;
};
// [/reader]

static std::vector<std::byte> read_file(const char* path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<std::byte> bytes(file ? static_cast<std::size_t>(file.tellg()) : 0);
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

// [errors]
// Without exceptions: every call answers a Result. It converts to bool, and `error()` says why not.
static decant::Result<std::size_t> count_tokens(const decant::Model& model, std::string_view text) {
  auto tokens = model.tokenize(text);
  if (!tokens) return tokens.error();
  return tokens->size();
}
// [/errors]

static decant::Model load(const char* path) {
  // [load]
  ArchiveEntry entry(read_file(path));
  decant::Reader* parts[] = {&entry};
  decant::ModelOptions options;
  options.threads = 2;
  options.context = 512;  // tokens a session may hold
  options.sessions = 2;   // the KV pool has room for so many of them
  options.progress = [](void*, float fraction) {
    std::cerr << "\rloading " << static_cast<int>(fraction * 100) << " %" << std::flush;
    return true;  // false cancels
  };
  auto model = decant::Model::load(parts, options);
  // [/load]
  std::cerr << "\n";
  return std::move(model).value();
}

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::cerr << "usage: embedding MODEL.gguf\n";
    return 2;
  }
  auto model = load(argv[1]);
  if (const auto n = count_tokens(model, "How many tokens is this?"))
    std::cout << *n << " tokens\n";
  else
    std::cerr << n.error().message() << "\n";

  // [poll]
  // A loop that must not wait, such as one that draws frames: take what is ready, go on.
  auto session = model.session().value();
  session.append(decant::Message{"user", "Say hello."}).value();
  auto reply = session.generate({.max_tokens = 8}).value();
  while (!reply.finished()) {
    while (auto piece = reply.try_next()) std::cout << *piece << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(16));  // the frame
  }
  while (auto piece = reply.try_next()) std::cout << *piece;
  std::cout << "\n[" << decant::finish_reason_name(reply.finish_reason()) << ", "
            << reply.stats().tokens << " tokens]\n";
  // [/poll]

  // [cancel]
  // From any thread: stop keeps what came, cancel takes the session back to before generate.
  session.append(decant::Message{"user", "Tell me a long story."}).value();
  auto story = session.generate().value();
  std::thread window([&] { story.cancel(); });  // the user closed the window
  const bool ended_well = static_cast<bool>(story.wait());
  window.join();
  std::cout << "cancelled: "
            << (ended_well && story.finish_reason() == decant::FinishReason::cancelled)
            << ", messages kept: " << session.messages().size() << "\n";
  // [/cancel]

  // [batch]
  // Replies in flight at the same time share every pass over the weights.
  auto villager = model.session().value(), guard = model.session().value();
  villager.append(decant::Message{"user", "What do you sell?"}).value();
  guard.append(decant::Message{"user", "Who goes there?"}).value();
  decant::GenerateOptions urgent;
  urgent.max_tokens = 8;
  urgent.priority = 1;                        // before others when there is not room for all
  urgent.timeout = std::chrono::seconds(20);  // then it ends, and what came is kept
  urgent.on_text = [](void*, const decant::ReplyText& piece) {  // in place of next()
    std::cout << (piece.finished ? std::string_view("\n") : piece.text);
    return true;  // false stops it
  };
  auto says = guard.generate(urgent).value();
  auto offers = villager.generate({.max_tokens = 8}).value();
  says.wait().value();
  offers.wait().value();
  // [/batch]

  // [samples]
  // Several replies to one prompt, which is run once. One is kept.
  auto story_session = model.session().value();
  story_session.append(decant::Message{"user", "Name a colour."}).value();
  auto samples = story_session.generate_n(3, {.max_tokens = 4}).value();
  for (auto& sample : samples) sample.reply.wait().value();
  story_session = std::move(samples[1].session);
  // [/samples]

  // [hook]
  // The host's own say in every token: here one that is never chosen.
  static const auto forbidden = model.tokenize(" the", {.add_bos = false}).value();
  decant::GenerateOptions options;
  options.max_tokens = 8;
  options.process_logits = [](void*, std::span<const decant::Token>, std::span<float> logits) {
    for (const decant::Token t : forbidden) logits[static_cast<std::size_t>(t)] = -1e30f;
    return true;
  };
  auto raw = model.session().value();
  raw.append("Once upon a time").value();
  auto careful = raw.generate(options).value();
  careful.wait().value();
  // [/hook]

  // [step]
  // The host runs the model itself: no thread of the library, so many milliseconds of each frame.
  decant::ModelOptions in_game;
  in_game.mode = decant::RunMode::manual;
  in_game.threads = 1;
  auto stepped = decant::Model::load(argv[1], in_game).value();
  auto hero = stepped.session().value();
  hero.append(decant::Message{"user", "Hello!"}).value();
  auto greeting = hero.generate({.max_tokens = 4}).value();
  while (stepped.step(std::chrono::milliseconds(2)).value()) {
    while (auto piece = greeting.try_next()) std::cout << *piece << std::flush;
    // draw the frame
  }
  // [/step]

  // [text]
  // What people type is content: what looks like a control token in it stays text.
  const std::string typed = "<|im_end|> hello";
  const auto as_text = model.tokenize(typed, {.special = false}).value();
  const auto as_control = model.tokenize(typed, {.special = true}).value();
  std::cout << as_text.size() << " tokens of text, " << as_control.size() << " with a control token: "
            << model.detokenize(as_text).value() << "\n";
  // [/text]

  // [own]
  // Or the host chooses every token itself.
  auto own = model.session().value();
  own.append("The capital of France is").value();
  const auto logits = own.logits().value();
  const decant::Token next = decant::Sampler::greedy().sample(logits).value();
  std::cout << "next token: " << model.detokenize(std::span(&next, 1)).value() << "\n";
  own.append(std::span(&next, 1)).value();
  own.rewind(own.tokens().size() - 1).value();  // or takes it back
  // [/own]
} catch (const decant::Exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
