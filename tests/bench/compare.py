#!/usr/bin/env python3
"""Runs decant and a llama.cpp build in turns on one model file and prints ratios.

    compare.py --peer PATH/llama-bench --decant PATH/decant --model FILE.gguf [--rows ROW,...]
               [--threads N] [--pairs 5] [--generate 128] [--prompt 512] [--isa I] [--output F.json]

rows (by default decode1, decode2, prefill, depth4096, batch8, batch16, loaded):
  decodeT    tokens after the first, T threads
  prefill    a prompt of --prompt tokens, --threads threads (default: one per processor)
  depthD     decode behind D tokens
  batchB     B sequences decoded together (the peer's llama-batched-bench, beside llama-bench)
  loaded     decode while another busy process runs on each processor, against the peer's better
             of 1 and --threads threads; also as a share of our own quiet figure

Each row is measured in pairs A B A B: one run of decant, one of the peer, same file, same threads,
keys and values in f16, flash attention on for the peer, weights warm in both. The peer's settings
(repacking on and off, where the build knows it) are tried first and the best is kept. The linear
read bandwidth is measured before the first pair and after each one (`decant bench --rulers`). A
ratio is the median of the pairs' ratios; only ratios of one run mean something. Keep everything
else on the machine quiet.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

DEFAULT_ROWS = "decode1,decode2,prefill,depth4096,batch8,batch16,loaded"


class Failed(Exception):
    pass


def output_of(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: exit status {done.returncode}\n"
                     f"{done.stderr.strip()[-2000:]}")
    return done.stdout


def help_of(program):
    """Some builds answer --help with a status other than 0."""
    done = subprocess.run([str(program), "--help"], capture_output=True, text=True)
    return done.stdout + done.stderr


class Work:
    """A row: what is run, the same for both."""

    def __init__(self, name, args):
        self.name, self.loaded = name, name == "loaded"
        self.threads, self.prompt, self.generate = args.threads, 0, args.generate
        self.depth, self.batch = 0, 0
        if match := re.fullmatch(r"decode(\d+)", name):
            self.threads = int(match[1])
        elif match := re.fullmatch(r"depth(\d+)", name):
            self.depth = int(match[1])
        elif match := re.fullmatch(r"batch(\d+)", name):
            self.batch = int(match[1])
        elif name == "prefill":
            self.prompt, self.generate = args.prompt, 0
        elif name != "loaded":
            raise Failed(f"--rows: {name} is no row; see --help")


class Decant:
    def __init__(self, args):
        self.program, self.model = args.decant, args.model
        self.isa = ["--isa", args.isa] if args.isa else []

    def run(self, work):
        """The result's object of one measured run (after one that warms up)."""
        command = [self.program, "bench", "--model", self.model, "--json", "--repeat", 1,
                   "--threads", work.threads, "--prompt", work.prompt, "--generate", work.generate,
                   "--depth", work.depth, "--batch", work.batch] + self.isa
        results = json.loads(output_of(command))["results"]
        kind = "prefill" if work.prompt else "batch" if work.batch else "decode"
        return next(r for r in results if r["kind"] == kind)

    def rulers(self, threads):
        command = [self.program, "bench", "--rulers", "--json", "--threads", threads] + self.isa
        return json.loads(output_of(command))["rulers"][0]


class Peer:
    def __init__(self, args):
        self.bench = pathlib.Path(args.peer)
        self.batched = self.bench.with_name("llama-batched-bench")
        self.model = args.model
        text = help_of(self.bench)
        if "--repack" in text:
            self.settings = [["--repack", "0"], ["--repack", "1"]]
        elif "-rtr" in text:
            self.settings = [["-rtr", "0"], ["-rtr", "1"]]
        else:
            self.settings = [[]]
        self.batched_settings = [[]]
        if self.batched.exists() and "--no-repack" in help_of(self.batched):
            self.batched_settings = [["--no-repack"], []]

    def candidates(self, work):
        """(threads, flags) worth trying."""
        threads = sorted({1, work.threads}) if work.loaded else [work.threads]
        settings = self.batched_settings if work.batch else self.settings
        return [(t, s) for t in threads for s in settings]

    def run(self, work, threads, setting):
        """Tokens per second of one run; the program warms up by itself."""
        if work.batch:
            if not self.batched.exists():
                raise Failed(f"{self.batched} is not there: build the target llama-batched-bench")
            command = [self.batched, "-m", self.model, "-t", threads, "-tb", threads, "-fa", "on",
                       "-c", work.batch * (work.generate + 32), "-npp", 1, "-ntg", work.generate,
                       "-npl", work.batch, "--output-format", "jsonl"] + setting
            lines = [l for l in output_of(command).splitlines() if l.startswith("{")]
            if not lines:
                raise Failed(f"{' '.join(map(str, command))}: printed no result")
            return json.loads(lines[-1])["speed_tg"]
        command = [self.bench, "-m", self.model, "-t", threads, "-fa", 1, "-r", 1, "-o", "json",
                   "-p", work.prompt, "-n", work.generate] + setting
        if work.depth:
            command += ["-d", work.depth]
        return json.loads(output_of(command))[-1]["avg_ts"]

    def best(self, work):
        """The candidate with the best of two runs; one that fails is named and left out."""
        rates = {}
        for number, candidate in enumerate(self.candidates(work)):
            try:
                rates[number] = max(self.run(work, *candidate) for _ in range(2))
            except Failed as error:
                print(f"compare.py: {work.name}: left out: {error}", file=sys.stderr)
        if not rates:
            raise Failed(f"{work.name}: no setting of the peer works")
        return self.candidates(work)[max(rates, key=rates.get)]


class BusyProcesses:
    """One endless loop per processor while it lives."""

    def __init__(self, wanted):
        self.n = (os.cpu_count() or 1) if wanted else 0

    def __enter__(self):
        self.processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
                          for _ in range(self.n)]

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


def measure(work, ours, peer, pairs):
    row = {"row": work.name, "threads": work.threads, "ours": [], "peer": []}
    if work.loaded:
        row["quiet"] = statistics.median(ours.run(work)["tokens_per_second"] for _ in range(3))
    bandwidths = [ours.rulers(work.threads)["read_bandwidth_gbs"]]
    with BusyProcesses(work.loaded):
        threads, setting = peer.best(work)
        for _ in range(pairs):
            result = ours.run(work)
            row["ours"].append(result["tokens_per_second"])
            row["peer"].append(peer.run(work, threads, setting))
            if not work.loaded:  # between busy processes it would say nothing of the machine
                bandwidths.append(ours.rulers(work.threads)["read_bandwidth_gbs"])
    row["peer_threads"], row["peer_setting"] = threads, " ".join(setting)
    row["ratios"] = [a / b for a, b in zip(row["ours"], row["peer"])]
    row["ratio"] = statistics.median(row["ratios"])
    row["bytes_per_token"] = result["bytes_per_token"]
    row["peak"], peak_share = result["peak"], result["peak_share"] / result["tokens_per_second"]
    row["our_peak_share"] = statistics.median(row["ours"]) * peak_share
    row["peer_peak_share"] = statistics.median(row["peer"]) * peak_share
    row["read_bandwidth_gbs"] = bandwidths
    if work.loaded:
        row["share_of_quiet"] = statistics.median(row["ours"]) / row["quiet"]
    else:
        around = [(a + b) / 2 for a, b in zip(bandwidths, bandwidths[1:])]
        for who in ("our", "peer"):
            rates = row["ours" if who == "our" else "peer"]
            row[f"{who}_bandwidth_share"] = statistics.median(
                rate * result["bytes_per_token"] / 1e9 / b for rate, b in zip(rates, around))
    return row


def line_of(row):
    def percent(key):
        return f"{100 * row[key]:5.1f} %" if key in row else "      -"

    text = (f"{row['row']:<10} {row['threads']:>7} {statistics.median(row['ours']):>9.1f} "
            f"{statistics.median(row['peer']):>9.1f} {row['ratio']:>6.2f} x   "
            f"{percent('our_bandwidth_share')} {percent('peer_bandwidth_share')}   "
            f"{percent('our_peak_share')} {percent('peer_peak_share')}   "
            f"{statistics.median(row['read_bandwidth_gbs']):>5.1f}  "
            f"{row['peer_threads']} thread(s) {row['peer_setting'] or 'defaults'}")
    if "share_of_quiet" in row:
        text += f"; {100 * row['share_of_quiet']:.0f} % of our quiet {row['quiet']:.1f}"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="llama-bench of a native release build")
    parser.add_argument("--decant", required=True, help="the decant program")
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", default=DEFAULT_ROWS)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--isa", help="of decant, when the peer was built for less than native")
    parser.add_argument("--output", help="a JSON file with everything that was measured")
    args = parser.parse_args()
    try:
        works = [Work(name, args) for name in args.rows.split(",")]
        ours, peer = Decant(args), Peer(args)
        print(f"{args.model}, {args.pairs} pairs; shares are of the measured read bandwidth and of "
              "the measured arithmetic peak\n"
              f"{'row':<10} {'threads':>7} {'decant':>9} {'peer':>9} {'ratio':>8}   "
              f"{'bandwidth: ours, peer':<15}   {'peak: ours, peer':<15}  GB/s  peer's best",
              flush=True)
        rows = []
        for work in works:
            rows.append(measure(work, ours, peer, args.pairs))
            print(line_of(rows[-1]), flush=True)
            if args.output:
                pathlib.Path(args.output).write_text(json.dumps(
                    {"model": args.model, "pairs": args.pairs, "rows": rows}, indent=1) + "\n",
                    encoding="utf-8")
    except (Failed, OSError) as error:
        sys.exit(f"compare.py: {error}")


if __name__ == "__main__":
    main()
