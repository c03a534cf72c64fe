// The decant program: thin over the public API, useful by itself, and the way the library is
// checked. Exit codes: 0 success, 1 an error (on stderr), 2 a wrong command line.

#include <iostream>

#include "args.hpp"

#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#endif

static constexpr std::string_view kUsage = R"(usage: decant COMMAND [flags]

  generate    --model M --prompt TEXT [--chat] [--max-tokens N] [--stop TEXT]... [sampler flags]
              [model flags] [--json]
              streams text; --chat asks TEXT as a user message instead of continuing it
  chat        --model M [--system TEXT] [sampler flags] [model flags]
              a conversation: one line, one answer; an empty line ends it
  render      --model M | --template FILE (--messages F.json | --context F.json)
              the chat template's exact output; F.json: an object of variables
  tokenize    --model M [--no-special] [--no-bos] [--lines]
              stdin (any bytes) to a JSON array of ids; --no-bos leaves out begin and end token
  detokenize  --model M [--lines]
              a JSON array of ids on stdin to bytes (with --lines: to hex)
  logits      --model M --tokens 1,2,3 | --tokens-file F --output F.npy [--last N] [model flags]
              float32 array [n_tokens, vocabulary], or of the last N positions
  sample      --logits F.npy [sampler flags] [--order STEPS] [--history 1,2,3] [--probabilities]
              a token, or the final distribution as a JSON array
  bench       --model M [--threads 1,2] [--prompt 512] [--generate 128] [--depth 0,1024]
              [--batch 1,4,16] [--repeat 5] [--profile] [model flags] [--json]
              tokens per second and the shares of what the machine can do; 0 leaves a kind out;
              --rulers instead of a model measures the machine alone
  bench       --model M --load [--requests 128] [--rate 1,2.5] [--prompt 16..256]
              [--generate 8..256] [--lengths even|skewed|bimodal] [--policy continuous|fixed|both]
              [--max-batch 16] [--kv-memory BYTES] [--swap-memory BYTES] [--seed N] [--svg FILE]
              [--together 16] [--long-prompt 4000] [model flags] [--json]
              requests that arrive over time: throughput and latency by rate (requests a second)
              and policy; many sessions together; a long prompt amid replies; 0 leaves one out
  plan        --model M [--sessions N] [--kv-memory BYTES] [--swap-memory BYTES] [model flags]
              [--json]
              what it takes of memory, from the file's headers alone
  inspect     --model M [--json]
              what is in the file

model flags:   --backend cpu|reference|cuda  --device N  --kv-type f32|f16|bf16|int8 or K,V
               --threads N  --context N  --chunk N  --activations int8|int16
               --isa portable|avx2|avx512|neon
sampler flags: --preset greedy|precise|balanced|creative  --temperature X  --top-k N  --top-p X
               --min-p X  --typical-p X  --repetition-penalty X  --frequency-penalty X
               --presence-penalty X  --penalty-last N  --seed N  --sample-index N
               --order penalties,top_k,typical,top_p,min_p,temperature
With --lines each input line is a JSON value and each output line its answer.
)";

static int run(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  argc -= 2;
  argv += 2;
  if (command == "generate") return cli::generate(argc, argv);
  if (command == "tokenize") return cli::tokenize(argc, argv);
  if (command == "detokenize") return cli::detokenize(argc, argv);
  if (command == "logits") return cli::logits(argc, argv);
  if (command == "sample") return cli::sample(argc, argv);
  if (command == "render") return cli::render(argc, argv);
  if (command == "chat") return cli::chat(argc, argv);
  if (command == "bench") return cli::bench(argc, argv);
  if (command == "inspect") return cli::inspect(argc, argv);
  if (command == "plan") return cli::plan(argc, argv);
  if (command == "help" || command == "--help" || command == "-h") {
    std::cout << kUsage;
    return 0;
  }
  throw cli::UsageError(command.empty() ? "a command is missing"
                                        : "unknown command '" + std::string(command) + "'");
}

int main(int argc, char** argv) {
#ifdef _WIN32
  _setmode(_fileno(stdin), _O_BINARY);  // any bytes, unchanged
  _setmode(_fileno(stdout), _O_BINARY);
#endif
  std::ios::sync_with_stdio(false);
  try {
    const int code = run(argc, argv);
    std::cout.flush();
    if (std::cout) return code;
    std::cerr << "decant: writing to the standard output failed\n";
    return 1;
  } catch (const cli::UsageError& e) {
    std::cerr << "decant: " << e.what() << "\n\n" << kUsage;
    return 2;
  } catch (const std::exception& e) {
    std::cerr << "decant: " << e.what() << "\n";
    return 1;
  }
}
