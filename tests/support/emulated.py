#!/usr/bin/env python3
"""The same bits on emulated processors: emulated.py MODEL TOKENS REFERENCE -- COMMAND... [-- ...]

Runs `REFERENCE logits` natively and `COMMAND... logits` (qemu-x86_64 -cpu Haswell build/.../decant,
say), each with the first TOKENS ids of the same prompt, and compares the logits byte by byte.
"""
import hashlib
import pathlib
import subprocess
import sys
import tempfile


def logits_hash(command, model, ids):
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder, "logits.npy")
        subprocess.run([*command, "logits", "--model", model, "--tokens", ids, "--threads", "2",
                        "--output", output], check=True)
        return hashlib.sha256(output.read_bytes()).hexdigest()[:16]


def main():
    model, n_tokens, native, *rest = sys.argv[1:]
    commands = []
    for word in rest:
        if word == "--":
            commands.append([])
        else:
            commands[-1].append(word)
    ids = ",".join(str(i * 397 % 32000 + 100) for i in range(int(n_tokens)))
    expected = logits_hash([native], model, ids)
    print(f"{expected}  {native}")
    different = 0
    for command in commands:
        found = logits_hash(command, model, ids)
        print(f"{found}  {' '.join(command)}", flush=True)
        different += found != expected
    sys.exit(f"{different} of {len(commands)} differ" if different else 0)


if __name__ == "__main__":
    main()
