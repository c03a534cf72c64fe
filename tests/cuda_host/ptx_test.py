#!/usr/bin/env python3
"""Reads the PTX of the kernels: ptx_test.py. Those that stream weights or pages must do it with matrix
products and asynchronous copies, of 16 bytes from global memory each; none may keep an array in local
memory but those that kernel_table.STACK names. Skipped without nvcc."""
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

import kernel_table

STREAMS = ("multiply_rows", "multiply_gate_up", "attend_tiles")


def instructions(ptx):
    """{kernel: [instruction]}"""
    bodies = dict(re.findall(r"\.entry (\w+)\(.*?\)\n.*?\n\{\n(.*?)\n\}\n", ptx, re.S))
    names = kernel_table.short_names(list(bodies))
    return {names[mangled]: [line.strip() for line in body.splitlines() if line.strip()]
            for mangled, body in bodies.items()}


def complaints(kernels):
    for stem in STREAMS:
        if not any(name.startswith(stem) for name in kernels):
            yield f"{stem} is not there"
    for name, lines in kernels.items():
        local = [line for line in lines if re.search(r"\.local\b|__local_depot", line)]
        if local and name not in kernel_table.STACK:
            yield f"{name} uses local memory: {local[0]}"
        if not name.startswith(STREAMS):
            continue
        if not any(line.startswith("mma.sync.aligned.m16n8k16") for line in lines):
            yield f"{name} has no matrix product"
        copies = [line for line in lines if line.startswith("cp.async.c")
                  and ".shared.global" in line]
        if not copies:
            yield f"{name} has no asynchronous copy"
        for line in copies:
            if not re.match(r"cp\.async\.cg\.shared\.global \[[^]]*\], \[[^]]*\], 16,", line):
                yield f"{name} copies less than 16 bytes at a time: {line}"
        for needed in ("cp.async.commit_group", "cp.async.wait_group"):
            if not any(line.startswith(needed) for line in lines):
                yield f"{name} has no {needed}"


def main():
    nvcc = kernel_table.find_nvcc()
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "kernels.ptx"
        subprocess.run([nvcc, "-ptx", "-arch=compute_80", *kernel_table.FLAGS,
                        kernel_table.ROOT / "cuda" / "backend.cu", "-o", file], check=True)
        kernels = instructions(file.read_text(encoding="utf-8"))
    # Each rule must be able to fail.
    spoilt = {"multiply_rows<1>": ["ld.local.u32 %r1, [%rd1];",
                                   "cp.async.ca.shared.global [%r1], [%rd2], 4;"]}
    if len(list(complaints(spoilt))) != 7:
        sys.exit("the rules do not notice: " + "; ".join(complaints(spoilt)))
    found = list(complaints(kernels))
    for name, lines in kernels.items():
        counts = collections.Counter(re.findall(r"\b(?:mma\.sync|cp\.async\.cg|ldmatrix)[\w.]*",
                                                "\n".join(lines)))
        if counts:
            print(f"{name}: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    print("\n".join(found) or "no complaints")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
