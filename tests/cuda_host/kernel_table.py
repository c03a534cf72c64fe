#!/usr/bin/env python3
"""The kernels as nvcc compiles them for GPUs: kernel_table.py [--check] ARCHITECTURE...   (80 = sm_80)

Warnings, spilled registers and arrays that do not fit into registers are errors (STACK names what is
known). Writes the
registers of each kernel, and the size of all, into the table of docs/cuda.md; with --check compares
them with what is there, if the table was made by the same nvcc. Skipped without nvcc, or where it is
too old.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "cuda.md"
BEGIN, END = "<!-- registers: written by tests/cuda_host/kernel_table.py -->", "<!-- end -->"
SIZE = "all of them, KiB"
STACK = {"sample_rows": 32}  # bytes of local memory that a kernel may have; the others none
FLAGS = ["-std=c++20", "--expt-relaxed-constexpr", "-fmad=false", "-O3", f"-I{ROOT}",
         f"-I{ROOT}/src", f"-I{ROOT}/include"]


def skip(why):
    print(f"DECANT_SKIPPED: {why}")
    sys.exit(0)


def find_nvcc():
    nvcc = shutil.which("nvcc") or os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin/nvcc"
    if not os.access(nvcc, os.X_OK):
        skip("there is no nvcc on PATH or in /usr/local/cuda/bin; install the CUDA Toolkit")
    return nvcc


def short_names(mangled):
    """`void decant::detail::cuda_device::multiply_rows<8>(...)` is multiply_rows<8>."""
    names = subprocess.run(["c++filt", *mangled], capture_output=True, text=True, check=True).stdout
    short = [re.search(r"(\w+(?:<[^()]*>)?)\(", name)[1] for name in names.splitlines()]
    return dict(zip(mangled, (re.sub(r"\((?:int|bool)\)", "", name) for name in short)))


def compiled(nvcc, architecture):
    """{kernel: registers}, with the size of the binary in KiB."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = pathlib.Path(folder) / "kernels.cubin"
        done = subprocess.run(
            [nvcc, "-cubin", f"-arch=sm_{architecture}", *FLAGS, "-Xptxas", "-v,-warn-spills",
             "-Werror", "all-warnings", ROOT / "cuda" / "backend.cu", "-o", cubin],
            capture_output=True, text=True)
        log = done.stdout + done.stderr
        if done.returncode != 0:
            sys.exit(f"sm_{architecture} does not compile:\n{log}")
        size = round(cubin.stat().st_size / 1024)
    entries = re.findall(r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes "
                         r"spill stores, (\d+) bytes spill loads.*?Used (\d+) registers([^\n]*)",
                         log, re.S)
    names = short_names([entry[0] for entry in entries])
    registers = {}
    for mangled, stack, stores, loads, used, more in entries:
        name = names[mangled]
        if (stores, loads) != ("0", "0") or int(stack) > STACK.get(name, 0):
            sys.exit(f"sm_{architecture}: {name}: {stack} bytes of stack, {stores} spilled, "
                     f"{loads} loaded again")
        if "smem" in more:
            sys.exit(f"sm_{architecture}: {name}: shared memory that no launch asks for:{more}")
        registers[name] = int(used)
    if not registers:
        sys.exit(f"sm_{architecture}: ptxas named no kernel:\n{log}")
    return registers | {SIZE: size}


def read_table(page):
    """{architecture: {kernel: number}} and the nvcc that made it."""
    table = page[page.index(BEGIN) + len(BEGIN) : page.index(END)]
    rows = [[cell.strip(" `") for cell in line.strip("| ").split("|")]
            for line in table.splitlines() if line.startswith("|") and not line.startswith("|---")]
    if not rows:
        return {}, None
    head, *body = rows
    columns = {name.removeprefix("sm_"): {row[0]: int(row[i]) for row in body if row[i] != "-"}
               for i, name in enumerate(head) if i > 0}
    return columns, re.search(r"release [\d.]+, V[\d.]+", table)[0]


def written(columns, version):
    order = sorted(columns, key=int)
    kernels = sorted({name for column in columns.values() for name in column} - {SIZE}) + [SIZE]
    lines = [f"Registers of a thread, as nvcc {version} compiles the kernels:", ""]
    lines += ["| kernel | " + " | ".join(f"sm_{a}" for a in order) + " |",
              "|---|" + "--:|" * len(order)]
    for name in kernels:
        shown = name if name == SIZE else f"`{name}`"
        lines.append(f"| {shown} | " + " | ".join(str(columns[a].get(name, "-")) for a in order) + " |")
    return "\n".join(lines)


def write_table(columns, version):
    page = PAGE.read_text(encoding="utf-8")
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(page[:begin] + "\n" + written(columns, version) + "\n" + page[end:],
                    encoding="utf-8")


def main():
    check = sys.argv[1:2] == ["--check"]
    architectures = sys.argv[2:] if check else sys.argv[1:]
    nvcc = find_nvcc()
    known = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True).stdout.split()
    for architecture in architectures:
        if f"sm_{architecture}" not in known:
            skip(f"this nvcc does not know sm_{architecture}; it takes a newer CUDA Toolkit")
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"release [\d.]+, V[\d.]+", version)[0]
    page = PAGE.read_text(encoding="utf-8")
    columns, of_table = read_table(page)
    bad = 0
    for architecture in architectures:
        found = compiled(nvcc, architecture)
        print(f"sm_{architecture}: {len(found) - 1} kernels, none spills, {found[SIZE]} KiB", flush=True)
        if not check:
            columns[architecture] = found
            write_table(columns, version)
        elif of_table != version:
            print(f"the table is of nvcc {of_table}, this is {version}: not compared")
        else:
            there = columns.get(architecture, {})
            for name in sorted(found.keys() | there.keys()):
                if found.get(name) != there.get(name):
                    print(f"docs/cuda.md: sm_{architecture}: {name}: the table says "
                          f"{there.get(name)}, nvcc {found.get(name)}")
                    bad += 1
    if bad:
        print("python3 tests/cuda_host/kernel_table.py 80 86 89 90 100 120 writes the table anew")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
