#!/usr/bin/env python3
"""House rules that can be read off the sources: source_rules.py [--self-test] [ROOT].

Each rule is a function that takes the tree's root and yields complaints. --self-test plants one
violation per rule in a scratch tree and fails when a rule stays silent.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

LAYERS = ["base", "format", "text", "sample", "kv", "backend", "model", "schedule", "api"]
TOP_LEVEL = {"CMakeLists.txt", "CMakePresets.json", "include", "src", "cuda", "examples", "tests",
             "docs", "LICENSE", "README.md", "CHANGELOG.md"}
CODE = {".hpp", ".h", ".cpp", ".cuh", ".cu"}
TEXT = CODE | {".py", ".sh", ".cmake", ".md", ".txt", ".json"}
MAX_LINES, MAX_COLUMNS, MAX_TOTAL_LINES, MAX_FILE_KIB = 900, 100, 30000, 2048

WORDS = re.compile(
    r"\b(abort|_?exit|_Exit|quick_exit|at_quick_exit|atexit|terminate|set_terminate|raise|system|"
    r"signal|sigaction|longjmp|"
    r"v?f?printf|v?sn?printf|f?puts|putchar|f?putc|fwrite|perror|cout|cerr|clog|cin|stdout|stderr|"
    r"getenv|secure_getenv|setenv|putenv|setlocale|localeconv|strerror|"
    r"strto(?:d|f|ld)|ato[fil]|atoll|sto(?:i|l|ul|ll|ull|f|d|ld)|scanf|sscanf|"
    r"[io]?stringstream|[io]?fstream|"
    r"is(?:alpha|alnum|digit|space|upper|lower|punct|print|cntrl|xdigit|graph|blank)|"
    r"to(?:upper|lower)|rand|srand|random_device|random_shuffle)\b"
    r"(?!\s*=)|\bassert\s*\(|\busing\s+namespace\s+(?!detail\s*;)|\bfmt::(?:print|println|format)\b")
HEADERS = re.compile(r"#\s*include\s*<(iostream|ostream|istream|sstream|fstream|iomanip|locale|"
                     r"regex|cstdio|stdio\.h|cassert|assert\.h|csignal|signal\.h|random|"
                     r"fmt/(?:printf|ostream|os|color|chrono|std)\.h)>")
SYSTEM_HEADERS = re.compile(r"#\s*include\s*<(windows\.h|unistd\.h|fcntl\.h|sys/[\w/]+\.h|"
                            r"pthread\.h|sched\.h|dlfcn\.h|io\.h|mach/[\w/]+\.h|bcrypt\.h)>")
PUBLIC_HEADERS = re.compile(r"#\s*include\s*(\"|<(?:Eigen|fmt|nlohmann|cuda|functional|iostream|"
                            r"thread|mutex|map|unordered_map))")
DEVICE_ONLY = re.compile(r"\b(__CUDA\w*|threadIdx|blockIdx|blockDim|gridDim|asm|__\w*sync\w*|__shared__|"
                         r"__global__|__device__|cuda[A-Z]\w*\s*\()|<<<|>>>")
OPEN_ENDS = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b")
FLAGS = re.compile(r"-march=na" r"tive|-ffast-ma" r"th\b")


def strip(text):
    """The code alone: comments and the contents of literals blanked, lines kept."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'
                         r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.S)

    def blank(match):
        inside = match[0]
        if inside.startswith('"'):
            return '"' + " " * (len(inside) - 2) + '"'
        return re.sub(r"[^\n]", " ", inside)

    lines = text.split("\n")
    kept = {i: line for i, line in enumerate(lines) if re.match(r"\s*#\s*include", line)}
    stripped = pattern.sub(blank, text).split("\n")
    return [kept.get(i, line) for i, line in enumerate(stripped)]


def files(root, folders, suffixes):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file() and "__pycache__" not in path.parts:
                yield path, path.relative_to(root).as_posix()


def library(root):
    return files(root, ["include", "src", "cuda"], CODE)


def tracked(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, text=True)
    if listed.returncode == 0 and listed.stdout:
        return [name for name in listed.stdout.split("\0") if name]
    skip = {"build", "out", ".git", ".cache"}
    return [path.relative_to(root).as_posix() for path in root.rglob("*")
            if path.is_file() and path.relative_to(root).parts[0] not in skip]


def search(path, name, pattern, what):
    for number, line in enumerate(strip(path.read_text(encoding="utf-8")), 1):
        match = pattern.search(line)
        if match:
            yield f"{name}:{number}: {what}: {match[0].strip()}"


def rule_words(root):
    for path, name in library(root):
        yield from search(path, name, WORDS, "the library must not use this")
        yield from search(path, name, HEADERS, "the library must not include this")


def rule_system_calls(root):
    for path, name in library(root):
        if not name.startswith("src/base/platform/"):
            yield from search(path, name, SYSTEM_HEADERS, "only src/base/platform may include this")


def rule_public_header(root):
    for path, name in files(root, ["include"], CODE):
        yield from search(path, name, PUBLIC_HEADERS, "too much for a public header")


def rule_layers(root):
    for path, name in files(root, ["src"], CODE):
        layer = path.relative_to(root / "src").parts[0]
        for number, line in enumerate(strip(path.read_text(encoding="utf-8")), 1):
            match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
            if not match:
                continue
            target = match[1].split("/")[0]
            if target not in LAYERS or not (root / "src" / match[1]).is_file():
                yield f"{name}:{number}: write the path from src/: {match[1]}"
            elif layer not in LAYERS or LAYERS.index(target) > LAYERS.index(layer):
                yield f"{name}:{number}: includes point leftwards only: {layer} -> {target}"


def rule_cuda(root):
    for path, name in files(root, ["cuda"], CODE):
        if name != "cuda/device.cuh":
            yield from search(path, name, DEVICE_ONLY, "only cuda/device.cuh may tell GPU and host apart")


def included(root, path, seen):
    """The headers below src/ that `path` includes, one through another."""
    for name in re.findall(r'#\s*include\s*"([^"]+)"', path.read_text(encoding="utf-8")):
        if name not in seen and (root / "src" / name).is_file():
            seen.add(name)
            included(root, root / "src" / name, seen)
    return seen


def rule_contraction(root):
    for path, name in files(root, ["src"], {".cpp"}):
        code = "\n".join(strip(path.read_text(encoding="utf-8")))
        if (re.search(r"\b(float|double)\b", code)
                and "base/fp_contract.hpp" not in included(root, path, set())):
            yield f"{name}: computes with floating point, so it includes base/fp_contract.hpp"


def rule_text(root):
    for path, name in files(root, ["include", "src", "cuda", "examples", "tests", "docs"], TEXT):
        if name.startswith(("tests/data/", "tests/fuzz/corpus/")):
            continue
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            if path.suffix in CODE and not line.isascii():
                yield f"{name}:{number}: not ASCII"
            text = line.decode("utf-8", "replace")
            if OPEN_ENDS.search(text):
                yield f"{name}:{number}: open end: {text.strip()}"
            if path.suffix not in CODE and FLAGS.search(text):
                yield f"{name}:{number}: this flag breaks the promises: {text.strip()}"


def rule_size(root):
    total = 0
    for path, name in library(root):
        lines = path.read_text(encoding="utf-8").split("\n")
        total += len(lines)
        if len(lines) > MAX_LINES:
            yield f"{name}: {len(lines)} lines, at most {MAX_LINES}"
        for number, line in enumerate(lines, 1):
            if len(line) > MAX_COLUMNS:
                yield f"{name}:{number}: {len(line)} columns, at most {MAX_COLUMNS}"
    if total > MAX_TOTAL_LINES:
        yield f"the library has {total} lines, at most {MAX_TOTAL_LINES}"


def rule_tree(root):
    for name in sorted({name.split("/")[0] for name in tracked(root)}):
        if name not in TOP_LEVEL and not name.startswith("."):
            yield f"{name}: not part of the top level"
    for name in tracked(root):
        path = root / name
        if path.is_file() and path.stat().st_size > MAX_FILE_KIB * 1024:
            yield f"{name}: larger than {MAX_FILE_KIB} KiB"


RULES = [rule_words, rule_system_calls, rule_public_header, rule_layers, rule_cuda, rule_contraction,
         rule_text, rule_size, rule_tree]

CLEAN = {
    "CMakeLists.txt": "project(x)\n",
    "include/decant/decant.hpp": "#include <cstdint>\n// may exit, never does\n",
    "src/base/a.hpp": "inline int a() { return 1; }  // no abort() here\n",
    "src/base/platform/p.cpp": "#include <unistd.h>\n",
    "src/format/b.cpp": '#include "base/a.hpp"\nconst char* b = "printf(1)";\nint n = 1\'000;\n'
                        "struct S { int exit = 0; };\n",
    "src/format/c.cpp": '#include "base/fp_contract.hpp"\nfloat c = 1;\n',
    "src/base/fp_contract.hpp": "#pragma once\n",
    "cuda/device.cuh": "#ifdef __CUDACC__\n#endif\n",
}
# rule -> files of which each alone must make it complain
PLANTED = {
    rule_words: {
        "src/base/x1.cpp": "void f() { std::abort(); }\n",
        "src/base/x2.cpp": "void f() { printf(\"x\"); }\n",
        "src/base/x3.cpp": "#include <iostream>\n",
        "src/base/x4.cpp": "int f(char c) { return std::isspace(c); }\n",
        "src/base/x5.cpp": "void f(int a) { assert(a); }\n",
        "src/base/x6.cpp": "using namespace std;\n",
        "include/decant/x7.hpp": "inline void f() { exit(1); }\n",
        "src/base/x8.cpp": "char c = '\"'; void f() { exit(1); } char d = '\"';\n",
    },
    rule_system_calls: {"src/format/x.cpp": "#include <unistd.h>\n"},
    rule_public_header: {"include/decant/x.hpp": "#include <fmt/core.h>\n"},
    rule_layers: {
        "src/base/x1.cpp": '#include "format/y.hpp"\n',
        "src/format/x2.cpp": '#include "a.hpp"\n',
    },
    rule_cuda: {
        "cuda/x1.cuh": "#ifdef __CUDA_ARCH__\n#endif\n",
        "cuda/x2.cuh": "void f() { __syncthreads(); }\n",
        "cuda/x3.cu": "void f() { kernel<<<1, 32>>>(); }\n",
    },
    rule_contraction: {"src/base/x.cpp": "float f(float a) { return a * a + a; }\n"},
    rule_text: {
        "src/base/x1.cpp": "// caf\u00e9\n",
        "docs/x2.md": "TO" "DO: write this\n",
        "tests/x3.sh": "g++ -march=na" "tive x.cpp\n",
    },
    rule_size: {
        "src/base/x1.cpp": "\n" * 1000,
        "src/base/x2.cpp": "// " + "x" * 100 + "\n",
    },
    rule_tree: {"tools/x.txt": "x", "tests/large.bin": "x" * (3 << 20)},
}


def write_tree(root, tree):
    for name, text in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def self_test():
    failures = [f"{rule.__name__} has no planted violation" for rule in RULES if rule not in PLANTED]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        write_tree(root, CLEAN | {"src/format/y.hpp": "\n"})
        for rule in RULES:
            failures += [f"{rule.__name__} complains about a clean tree: {c}" for c in rule(root)]
            for name, text in PLANTED.get(rule, {}).items():
                write_tree(root, {name: text})
                if not any(name.split("/")[0] in complaint for complaint in rule(root)):
                    failures.append(f"{rule.__name__} did not notice {name}")
                (root / name).unlink()
    return failures


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--self-test"]:
        complaints = self_test()
    else:
        default = pathlib.Path(__file__).resolve().parents[2]
        root = pathlib.Path(arguments[0]).resolve() if arguments else default
        complaints = [complaint for rule in RULES for complaint in rule(root)]
    print("\n".join(complaints) or "no complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
