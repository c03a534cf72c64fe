#!/usr/bin/env python3
"""bench_test.py DECANT ROOT: the answers of `decant bench` on a tiny model, and that the scripts
beside this file are well formed. Nothing here depends on how fast the machine is.

The expected bytes are sums by hand over the shapes that tests/data/models/gemma3/model-f16.gguf
states: 7 layers 64 wide, 4 heads of 32, one of them for keys and values, 144 in the feed-forward
part, 640 tokens tied, a window of 16 in all layers but the sixth.
"""
import ast
import json
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

DECANT, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = str(ROOT / "tests/data/models/gemma3/model-f16.gguf")
LAYERS = 7 * (2 * 128 * 64 + 2 * 32 * 64 + 3 * 144 * 64) * 2
HEAD = 640 * 64 * 2
KV = 2 * 32 * 2  # of a token in a layer, f16

failures = 0


def check(what, ok):
    global failures
    if not ok:
        failures += 1
        print(f"FAILED: {what}")


def run(*arguments):
    return subprocess.run([DECANT, "bench", *map(str, arguments)], capture_output=True, text=True)


def positive(value):
    return isinstance(value, float) and value > 0


done = run("--model", MODEL, "--threads", "1,2", "--prompt", 20, "--generate", 4, "--depth", "0,24",
           "--batch", "1,3", "--repeat", 2, "--isa", "portable", "--profile", "--json")
check(f"exit status {done.returncode}: {done.stderr}", done.returncode == 0)
out = json.loads(done.stdout)
check("model", out["model"] == MODEL)
check("isa", out["isa"] == "portable")
check("threads", out["threads"] == [1, 2])
for key in ("read_bandwidth_gbs", "int8_peak_gmacs", "load_ms"):
    check(key, positive(out[key]))
check("rulers", [r["threads"] for r in out["rulers"]] == [1, 2])
wanted = [("prefill", 20, 0, 1), ("decode", 4, 0, 1), ("decode", 4, 24, 1), ("batch", 4, 0, 1),
          ("batch", 12, 0, 3)]
found = [(r["kind"], r["tokens"], r["depth"], r["batch"]) for r in out["results"]]
check(f"kinds of results {found}", found == wanted * 2)
for r in out["results"]:
    check("threads of a result", r["threads"] in (1, 2))
    for key in ("tokens_per_second", "bytes_per_token", "bandwidth_share", "peak_share",
                "read_bandwidth_before_gbs", "read_bandwidth_after_gbs"):
        check(f"{r['kind']} {key}: {r[key]}", positive(r[key]))
    check("samples", len(r["samples"]) == 2 and all(map(positive, r["samples"])))
    check("the median of two", abs(r["tokens_per_second"] / (sum(r["samples"]) / 2) - 1) < 1e-9)
    bandwidth = (r["read_bandwidth_before_gbs"] + r["read_bandwidth_after_gbs"]) / 2
    share = r["tokens_per_second"] * r["bytes_per_token"] / 1e9 / bandwidth
    check("share of the bandwidth", abs(r["bandwidth_share"] / share - 1) < 1e-9)
    check("floats are held against the float peak", r["peak"] == "f32")
    check("operations", [o["name"] for o in r["operations"]] ==
          ["embed", "qkv", "attend", "attention_output", "gate_up", "down", "logits", "other"])
by_kind = {(r["kind"], r["depth"], r["batch"]): r["bytes_per_token"] for r in out["results"]}
# A token at position p reads p + 1 keys. Decoding at 24 begins with the one at position 24.
check("bytes of decoding", by_kind["decode", 24, 1] ==
      LAYERS + HEAD + KV * (6 * 16 + (25 + 26 + 27 + 28) / 4))
check("bytes of decoding from the start", by_kind["decode", 0, 1] ==
      LAYERS + HEAD + KV * 7 * (2 + 3 + 4 + 5) / 4)
check("bytes of a batch", abs(by_kind["batch", 0, 3] -
      ((LAYERS + HEAD) / 3 + KV * 7 * (1 + 2 + 3 + 4) / 4)) < 1e-6)

done = run("--model", MODEL, "--threads", 1, "--prompt", 0, "--generate", 2, "--depth", 3,
           "--batch", 0, "--repeat", 1)
check("the table", done.returncode == 0 and "decode 2 at 3" in done.stdout)
check("a kind left out", "prefill" not in done.stdout and "batch" not in done.stdout)
done = run("--rulers", "--threads", "2", "--json")
rulers = json.loads(done.stdout)["rulers"]
check("rulers alone", len(rulers) == 1 and all(
    positive(rulers[0][k]) for k in ("read_bandwidth_gbs", "int8_peak_gmacs", "f32_peak_gmacs")))

# Requests that arrive over time: the same ones for each policy and rate.
SVG = "{http://www.w3.org/2000/svg}"
with tempfile.TemporaryDirectory() as folder:
    chart = pathlib.Path(folder) / "load.svg"
    done = run("--model", MODEL, "--load", "--threads", 1, "--requests", 7, "--rate", "50,200.5",
               "--prompt", "3..9", "--generate", "2..6", "--max-batch", 3, "--together", 2,
               "--long-prompt", 40, "--svg", chart, "--json")
    check(f"--load: {done.returncode}: {done.stderr}", done.returncode == 0)
    out = json.loads(done.stdout)
    root = xml.etree.ElementTree.parse(chart).getroot()
check("what was asked for", out["max_batch"] == 3 and out["requests"] == 7 and
      out["prompt"] == [3, 9] and out["generate"] == [2, 6] and out["threads"] == 1)
rows = [r for r in out["results"] if r["kind"] == "arrivals"]
check("policies in turns", [(r["rate"], r["policy"]) for r in rows] ==
      [(rate, policy) for rate in (None, 50, 200.5) for policy in ("continuous", "fixed")])
check("the same requests", len({r["tokens"] for r in rows}) == 1 and
      7 * 2 <= rows[0]["tokens"] <= 7 * 6)
for r in rows:
    check(f"mean batch {r['mean_batch']}", 1 <= r["mean_batch"] <= 3)
    check("throughput", abs(r["tokens_per_second"] * r["seconds"] / r["tokens"] - 1) < 1e-9)
    for key in "ttft_ms", "tpot_ms":
        check(key, 0 < r[key]["p50"] <= r[key]["p99"])
check("at the lowest rate the last request comes after a while", rows[2]["seconds"] > 2 / 50)
together, long_prompt = out["results"][-2:]
check("together", together["kind"] == "together" and together["sessions"] == 2 and all(
    positive(together[k]) for k in ("step_of_one_ms", "step_ms", "step_ratio", "tokens_per_second",
                                    "whole_tokens_per_second")))
check("a long prompt", long_prompt["kind"] == "long_prompt" and long_prompt["prompt"] == 40 and
      long_prompt["decoding"] == 8 and long_prompt["tokens"] >= 1 and
      positive(long_prompt["ttft_ms"]) and all(
          0 < long_prompt[k]["p50"] <= long_prompt[k]["p99"] for k in ("during_ms", "without_ms")))
lines = root.findall(SVG + "polyline")
check("two charts with a line for each policy and a point for each rate",
      [len(line.get("points").split()) for line in lines] == [2, 2, 2, 2])
texts = [text.text for text in root.findall(SVG + "text")]
check("axes with units, and a legend", all(texts.count(t) == n for t, n in [
    ("tokens/s generated", 2), ("p99, seconds", 1), ("p99, milliseconds", 1), ("continuous", 2),
    ("fixed", 2)]))
width, height = map(float, root.get("viewBox").split()[2:])
check("nothing outside of the picture", all(
    0 <= float(c.get("cx")) <= width and 0 <= float(c.get("cy")) <= height
    for c in root.findall(SVG + "circle")))
done = run("--model", MODEL, "--load", "--threads", 1, "--requests", 2, "--rate", 100, "--policy",
           "fixed", "--prompt", 2, "--generate", 3, "--together", 0, "--long-prompt", 0)
check("the table of loads", done.returncode == 0 and "all at once" in done.stdout and
      "fixed" in done.stdout)
check("loads left out", not any(w in done.stdout for w in ("continuous", "sessions,", "amid")))

tokens = {}
for lengths in "skewed", "bimodal":
    done = run("--model", MODEL, "--load", "--threads", 1, "--requests", 40, "--rate", 1e6, "--policy",
               "continuous", "--prompt", 2, "--generate", "2..19", "--lengths", lengths, "--together",
               0, "--long-prompt", 0, "--json")
    check(f"--lengths {lengths}", json.loads(done.stdout)["lengths"] == lengths)
    tokens[lengths] = json.loads(done.stdout)["results"][0]["tokens"]
check("most replies are short", all(40 * 2 < n < 40 * 10 for n in tokens.values()))
check("each is as short or as long as any", (tokens["bimodal"] - 40 * 2) % (19 - 2) == 0)

for arguments, word in [
        (["--model", MODEL, "--load", "--policy", "static"], "--policy"),
        (["--model", MODEL, "--load", "--lengths", "odd"], "--lengths"),
        (["--model", MODEL, "--load", "--rate", "0"], "--rate"),
        (["--model", MODEL, "--load", "--rate", "nan"], "--rate"),
        (["--model", MODEL, "--load", "--generate", "9..8"], "--generate"),
        (["--model", MODEL, "--load", "--prompt", "0..8"], "--prompt"),
        (["--model", MODEL, "--load", "--max-batch", "0"], "--max-batch"),
        (["--model", MODEL, "--load", "--context", "16"], "--context"),
        (["--model", MODEL, "--load", "--requests", "0", "--svg", "x"], "--svg"),
        (["--model", MODEL, "--load", "--depth", "1"], "--depth"),
        ([], "--model"), (["--model", MODEL, "--threads", "0"], "--threads"),
        (["--model", MODEL, "--threads", "1,"], "--threads"),
        (["--model", MODEL, "--depth", "x"], "--depth"),
        (["--model", MODEL, "--repeat", "0"], "--repeat"),
        (["--model", MODEL, "--activations", "int4"], "--activations"),
        (["--model", MODEL, "--kv-type", "int3"], "--kv-type"),
        (["--model", MODEL, "--speed", "1"], "--speed")]:
    done = run(*arguments)
    check(f"usage error of {arguments}: {done.returncode}, {done.stderr[:100]}",
          done.returncode == 2 and word in done.stderr.splitlines()[0] and not done.stdout)
done = run("--model", "missing.gguf")
check("a missing file", done.returncode == 1 and "missing.gguf" in done.stderr and not done.stdout)
done = run("--model", MODEL, "--isa", "quantum")
check("an unknown instruction set", done.returncode == 1 and "quantum" in done.stderr)

scripts = ROOT / "tests/bench"
done = subprocess.run([sys.executable, scripts / "compare.py", "--help"], capture_output=True,
                      text=True)
check("compare.py --help", done.returncode == 0 and "--peer" in done.stdout)
ast.parse((scripts / "make_model.py").read_text(encoding="utf-8"))

print("bench: all as expected" if failures == 0 else f"bench: {failures} failures")
sys.exit(failures != 0)
