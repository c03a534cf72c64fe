#!/usr/bin/env python3
"""errors_test.py DECANT ROOT: what the program says to wrong input: one line that names what is
wrong, and an exit code, never a crash."""
import pathlib
import subprocess
import sys
import tempfile

DECANT, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = str(ROOT / "tests/data/models/gemma3/model-f16.gguf")

failures = 0


def run(*arguments, text=""):
    return subprocess.run([DECANT, *map(str, arguments)], input=text, capture_output=True, text=True,
                          errors="replace")


def check(says, done, code=1):
    """The program ended with `code` and one line on stderr that holds `says`."""
    global failures
    if done.returncode == code and says in done.stderr and done.stderr.count("\n") == 1:
        return
    failures += 1
    print(f"FAILED: {done.args} ends with {done.returncode}: {done.stderr!r}; wanted {says!r}")


for ids in "[1.5]", "[true]", "[4294967297]", "[-2147483649]", "[18446744073709551615]", "[[1]]":
    check(ids[1:-1] + " is no token id", run("detokenize", "--model", MODEL, text=ids))
    check("line 1", run("detokenize", "--model", MODEL, "--lines", text=ids + "\n"))
check("temperature", run("generate", "--model", "none", "--prompt", "x", "--temperature", "nan"))
check("isa", run("generate", "--model", MODEL, "--prompt", "x", "--backend", "reference",
                 "--isa", "portable"))
check("portable", run("generate", "--model", MODEL, "--prompt", "x", "--isa", "no-such"))

with tempfile.TemporaryDirectory() as folder:
    check("cannot write", run("bench", "--model", MODEL, "--load", "--svg", folder))
    check(folder, run("logits", "--model", MODEL, "--tokens-file", folder, "--output", "none.npy"))
    template = pathlib.Path(folder) / "template"
    context = pathlib.Path(folder) / "context.json"
    template.write_text("{{ bos_token }}{{ messages }}{{ tools is none }}")
    check(folder, run("render", "--template", template, "--messages", folder))
    check("none.json", run("render", "--template", template, "--messages", "none.json"))
    for deep in "[" * 100000 + "]" * 100000, '{"a":' * 100000 + "1" + "}" * 100000:
        context.write_text('{"x": ' + deep + "}")
        check("nested", run("render", "--template", template, "--context", context))
    for wrong in "", " ", "[]", "1":
        context.write_text(wrong)
        check("no JSON object", run("render", "--template", template, "--context", context))
    # Defaults of --messages give way to what the file says.
    context.write_text(' {"messages": 1, "tools": 2, "bos_token": "<b>"}')
    done = run("render", "--template", template, "--messages", context)
    if done.stdout != "<b>1False":
        failures += 1
        print(f"FAILED: {done.args} gives {done.stdout!r}, {done.stderr!r}")

sys.exit(failures != 0)
