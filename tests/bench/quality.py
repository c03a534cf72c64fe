#!/usr/bin/env python3
"""What rounding costs: next-token distributions of one setting against the reference backend.

quality.py --decant build/release/decant --model M.gguf --text FILE [--tokens 2048]
           [--flags "--activations int16"] [--flags ...]

Cuts the beginning of the text into pieces of 512 tokens, each with a begin token in front if the
model wants one (without it Gemma is lost for a while), takes the logits of every position from
the reference backend (float32 keys and values, double sums) and from the cpu backend with each set
of flags, and prints the mean Kullback-Leibler divergence KL(reference || cpu) in nats, the largest
one, the change of perplexity, and how often both prefer the same token. Needs numpy.
"""
import argparse
import json
import pathlib
import shlex
import subprocess
import tempfile

import numpy as np

PIECE = 512


def run(command, **options):
    return subprocess.run(command, check=True, capture_output=True, **options).stdout


def log_softmax(logits):
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


class Difference:
    def __init__(self):
        self.kl, self.nll_reference, self.nll, self.same = [], [], [], []

    def add(self, ids, reference, other):
        """ids [n]; log-probabilities [n, vocabulary] after each of them."""
        self.kl.append((np.exp(reference) * (reference - other)).sum(axis=1))
        following = ids[1:]
        rows = np.arange(len(following))
        self.nll_reference.append(-reference[rows, following])
        self.nll.append(-other[rows, following])
        self.same.append(reference.argmax(axis=1) == other.argmax(axis=1))

    def line(self):
        kl = np.concatenate(self.kl)
        before, after = (np.concatenate(x).mean() for x in (self.nll_reference, self.nll))
        return (f"KL mean {kl.mean():.2e}, max {kl.max():.2e}; perplexity {np.exp(before):.3f} -> "
                f"{np.exp(after):.3f} ({np.expm1(after - before):+.3%}); same first choice "
                f"{np.concatenate(self.same).mean():.2%} of {len(kl)} positions")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--decant", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True, type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--flags", action="append", help="of the cpu backend; may be repeated")
    args = parser.parse_args()
    settings = args.flags or [""]

    def tokenize(text, *flags):
        return json.loads(run([args.decant, "tokenize", "--model", args.model, *flags], input=text))

    begin_tokens = tokenize(b"")
    ids = tokenize(args.text.read_bytes(), "--no-special", "--no-bos")[:args.tokens]
    differences = [Difference() for _ in settings]
    with tempfile.TemporaryDirectory() as folder:
        output = f"{folder}/logits.npy"
        for begin in range(0, len(ids), PIECE):
            piece = begin_tokens + ids[begin:begin + PIECE]

            def logits(flags):
                run([args.decant, "logits", "--model", args.model, "--tokens",
                     ",".join(map(str, piece)), "--output", output, *flags])
                return log_softmax(np.load(output))

            reference = logits(["--backend", "reference"])
            for setting, difference in zip(settings, differences):
                difference.add(np.array(piece), reference, logits(shlex.split(setting)))
            print(f"{min(begin + PIECE, len(ids))} of {len(ids)} tokens", flush=True)
    for setting, difference in zip(settings, differences):
        print(f"{setting or 'default'}: {difference.line()}")


if __name__ == "__main__":
    main()
