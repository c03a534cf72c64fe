#!/usr/bin/env python3
"""frame_loop_test.py FRAME_LOOP ROOT: the example's figures are there and add up; never how good they
are, which depends on the machine."""
import pathlib
import re
import subprocess
import sys

PROGRAM, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = str(ROOT / "tests/data/models/gemma3/model-f16.gguf")
FRAMES = 60

failures = 0


def check(what, ok):
    global failures
    if not ok:
        failures += 1
        print(f"FAILED: {what}")


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True,
                          errors="replace")


done = run(MODEL, "--characters", 3, "--frames", FRAMES, "--prompt", 100)
check(f"exit status {done.returncode}: {done.stderr}", done.returncode == 0)
for title in "time in Model::step", "time of a frame":
    bars = done.stdout.partition(title + "\n")[2].partition("\n\n")[0].splitlines()
    counts = [int(re.match(r" *[0-9.]+ +ms +(\d+)", bar)[1]) for bar in bars]
    check(f"{title}: {counts} are {FRAMES} frames", sum(counts) == FRAMES)
share = re.search(r"([0-9.]+) % of the calls ended within the budget of 2.00 ms", done.stdout)
check("share of calls in time", share and 0 <= float(share[1]) <= 100)
said = re.search(r"3 characters said (\d+) tokens in 60 frames", done.stdout)
check("tokens", said and int(said[1]) > 0)
check("the long text", re.search(r"100 tokens were (read in \d+ frames|not read)", done.stdout))

for wrong in [[], [MODEL, "--frames"], [MODEL, "--frames", 0], [MODEL, "--speed", 1]]:
    done = run(*wrong)
    check(f"usage of {wrong}", done.returncode == 2 and "usage: frame_loop" in done.stderr)
done = run("missing.gguf")
check("a missing file", done.returncode == 1 and "missing.gguf" in done.stderr)

sys.exit(failures != 0)
