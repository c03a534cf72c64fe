#!/usr/bin/env python3
"""Whether the tests of the CUDA kernels notice a lost barrier, wait or mask: mutate.py BUILD_FOLDER.

The kernels are rewritten so that each barrier, each commit of and wait for asynchronous copies, and
each condition can be taken away at run time, and built once with their tests (cmake's target
decant_mutants, with the address sanitizer). Then each in turn is taken away, and the test cases that
reach it run, first those that are quick or have noticed much, until one fails, crashes or runs on and
on. What no case notices survives; the exit status is 0 when every survivor is explained below and
every explanation is needed.

What is taken away: sync_block, sync_warp, copy_commit, copy_wait; an `if`, or what stands before a
`?`, becomes always and never true; a `while` never; one operand of && becomes true, of || false.
"""
import argparse
import concurrent.futures
import itertools
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import discover
NOT_KERNELS = {"device.cuh", "backend.cuh"}

# "file: function: what -> what it becomes" -> why nothing can notice it.
SAME_VALUE = "all who then store there store the same"
UNUSED = "what is then computed or loaded is within bounds, and is not used"
UNSEEN = "such a score is -infinity already, and becomes zero"
MERGED_SEEN = "some position of every merged split is seen, so its sum is at least 1"
ROUNDING = "where both halves share a scale, it is one rounding more"
ZERO = "adds zero"
SHORTCUT = "the same comes out, later"
REACHED = "all of it measures the target or more, so the end is met before"
NOT_FINITE = "the scale is NaN, so no code matters"
SIX_BITS = "sub-scales of types with a minimum have at most 6 bits"
EXPLAINED = {
    "attend.cuh: attend_scores: chunk < n_chunks - 1 -> false":
        "parts of a score are overwritten by the whole",
    "attend.cuh: attend_weights: at >= first -> true (2)": UNSEEN,
    "attend.cuh: attend_weights: at < end -> true (2)": UNSEEN,
    "attend.cuh: attend_weights: seen -> true": UNSEEN,
    "attend.cuh: attend_weights: w.lane != 0 -> false": SAME_VALUE,
    "attend.cuh: merge_splits: other == 0.0f -> false": MERGED_SEEN,
    "attend.cuh: merge_splits: sum == 0.0f -> false (3)": MERGED_SEEN,
    "attend.cuh: merge_splits: head == a.n_heads - 1 -> true": SAME_VALUE,
    "multiply.cuh: scale_row_pair: is_signed -> true": SIX_BITS,
    "multiply.cuh: multiply_tile: form.has_min -> true": UNUSED,
    "multiply.cuh: multiply_tile: form.has_min -> true (2)": UNUSED,
    "multiply.cuh: multiply_tile: form.halves -> true (3)": ROUNDING,
    "multiply.cuh: multiply_tile: form.halves -> true (4)": ROUNDING,
    "multiply.cuh: multiply_tile: !form.has_min -> false": ZERO,
    "sample.cuh: block_reduce: thread_index() % kWarp == 0 -> true": SAME_VALUE,
    "sample.cuh: each: n_listed >= 0 -> false": SHORTCUT,
    "sample.cuh: find_id: lane == 0 -> true": SAME_VALUE,
    "sample.cuh: find_id: found < kSampleWarps - 1 -> true": REACHED,
    "sample.cuh: find_x: target > 1 -> true": SHORTCUT,
    "sample.cuh: find_x: x >= pivot(0) -> true": SHORTCUT,
    "sample.cuh: apply_cut: c.n_listed < 0 -> true": SHORTCUT,
    "sample.cuh: apply_cut: c.n_listed < 0 && c.total({}) > kListed -> true": SHORTCUT,
    "sample.cuh: apply_cut: c.total({}) > kListed -> true": SHORTCUT,
    "sample.cuh: apply_cut: thread_index() == 0 -> true": SAME_VALUE,
    "sample.cuh: apply_cut: id_kept >= 0 -> true":
        "a listed id of -1 lies in no range, and a list has room for one of each thread",
    "sample.cuh: choose_token: !draws -> true": "behind the last step stands no other",
    "sample.cuh: choose_token: *step == SamplerStep::temperature -> true":
        "no step drops the most likely token",
    "sample.cuh: choose_token: row.temperature != 1.0f -> true": "divides by 1",
    "sample.cuh: choose_token: thread_index() < c.n_listed -> true": UNUSED,
    "sample.cuh: choose_token: sync_block() -> nothing":
        "until the next barrier each thread reads what it divided itself",
    "sample.cuh: choose_token: row.min_p > 0.0f -> true": "no weight is below 0",
    "sample.cuh: choose_token: !m.weighs -> true (2)": "a share below 1 is less than all",
    "rows.cuh: weight_element: form.has_min -> true": UNUSED,
    "rows.cuh: weight_element: !form.has_min -> true": SIX_BITS,
    "rows.cuh: weight_element: form.has_min -> true (2)": UNUSED,
    "rows.cuh: weight_element: form.has_min -> true (3)": ZERO,
    "rows.cuh: block_sum: thread_index() % kWarp == 0 -> true": SAME_VALUE,
    "rows.cuh: norm_rows: a.post_norm != nullptr -> true": UNUSED,
    "rows.cuh: place_int8: lane == 0 -> true": SAME_VALUE,
    "rows.cuh: place_int8: finite -> true (2)": NOT_FINITE,
    "rows.cuh: place_int8: finite -> true (3)": NOT_FINITE,
    "rows.cuh: place_int8: step > 0.0f -> true":
        "all numbers are zeros then, and zero times infinity becomes code 0 too",
    "sample.cuh: sample_rows: row.greedy -> false": "the same token, by way of all steps",
    "sample.cuh: sample_rows: thread_index() == 0 -> true": SAME_VALUE,
    "sample.cuh: sample_rows: thread_index() == 0 -> true (2)": SAME_VALUE,
    "sample.cuh: sample_rows: !c.infinite -> true": "x is 0 then, whatever has occurred",
    "sample.cuh: sample_rows: !penalises -> false": "what is then cleared is zero already",
    "sample.cuh: sample_rows: sync_block() -> nothing (2)":
        "what reads them is a sum or a search, and these end with a barrier",
}

HEADER = """// Which mutant runs, and which were reached.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <type_traits>
namespace decant_test {
struct Mutants {
  int chosen = -1;
  bool reached[%d] = {};
  Mutants() {
    if (const char* number = std::getenv("DECANT_MUTANT")) chosen = std::atoi(number);
  }
  ~Mutants() {
    const char* path = std::getenv("DECANT_MUTANTS_REACHED");
    if (path == nullptr) return;
    std::FILE* file = std::fopen(path, "w");
    for (int i = 0; i < %d; ++i)
      if (reached[i]) std::fprintf(file, "%%d\\n", i);
    std::fclose(file);
  }
};
inline Mutants mutants;
constexpr bool mutant(int i) {
  if (std::is_constant_evaluated()) return false;
  mutants.reached[i] = true;
  return mutants.chosen == i;
}
}  // namespace decant_test
"""


# ------------------------------------------------------------------------------ finding the mutants

def without_comments(text):
    return re.sub(r'//[^\n]*|"(?:\\.|[^"\\\n])*"', lambda m: " " * len(m[0]), text)


def closing(text, at):
    """The place of the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0:
            return i
    raise ValueError(text[at : at + 50])


def functions(text):
    """(name, begin, end) of the bodies of what runs on the device."""
    pattern = re.compile(r"(?:DECANT_DEVICE|DECANT_KERNEL\(\w+\)|\n  constexpr)\s[^;{}()=]*?(\w+)\(")
    for match in pattern.finditer(text):
        begin = text.find("{", closing(text, match.end() - 1))
        yield match[1], begin, closing(text, begin)


STOPS = re.compile(r"&&|\|\||[,;?{}]|(?<![:]):(?!:)|(?<![=<>!])=(?!=)|\breturn\b")


def backwards(text, at, low):
    """Where the operand that ends before `at` begins; `low` binds less tightly than what is there."""
    depth = 0
    i = at
    stops = {m.end(): m[0] for m in STOPS.finditer(text, max(0, at - 600), at)}
    while i > 0:
        if depth == 0 and i in stops and (stops[i] not in ("&&", "||") or stops[i] in low):
            break
        depth += (text[i - 1] in ")]}") - (text[i - 1] in "([{")
        if depth < 0:
            break
        i -= 1
    return i + len(text[i:at]) - len(text[i:at].lstrip())


def forwards(text, at, low):
    depth = 0
    stops = {m.start(): m[0] for m in STOPS.finditer(text, at, at + 600)}
    i = at
    while True:
        if depth == 0 and i in stops and (stops[i] not in ("&&", "||") or stops[i] in low):
            break
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth < 0:
            break
        i += 1
    return i - (len(text[at:i]) - len(text[at:i].rstrip()))


def constant(text, at):
    """Whether the statement around `at` is computed by the compiler."""
    begin = max(text.rfind(c, 0, at) for c in ";{}")
    return re.match(r"\s*(?:inline\s+|static\s+|else\s+)*(?:constexpr|if constexpr|template)\b",
                    text[begin + 1 : at + 1])


class Mutant:
    def __init__(self, begin, end, becomes):
        self.begin, self.end, self.becomes = begin, end, becomes


def find(text, begin, end):
    for m in re.finditer(r"\b(?:sync_block|sync_warp|copy_commit|copy_wait<[^>]*>)\(\)(?=;)",
                         text[begin:end]):
        yield Mutant(begin + m.start(), begin + m.end(), "nothing")
    for m in re.finditer(r"\b(if|while) \(", text[begin:end]):
        open_at = begin + m.end() - 1
        for becomes in ("true", "false") if m[1] == "if" else ("false",):
            yield Mutant(open_at + 1, closing(text, open_at), becomes)
    for m in re.finditer(r" (\?|&&|\|\|)\s", text[begin:end]):
        at, operator = begin + m.start() + 1, m[1]
        if constant(text, at):
            continue
        if operator == "?":
            for becomes in ("true", "false"):
                yield Mutant(backwards(text, at - 1, ()), at - 1, becomes)
            continue
        low = ("&&", "||") if operator == "&&" else ("||",)
        becomes = "true" if operator == "&&" else "false"
        yield Mutant(backwards(text, at - 1, low), at - 1, becomes)
        after = at + 2
        after += len(text[after:]) - len(text[after:].lstrip())
        yield Mutant(after, forwards(text, after, low), becomes)


def mutants_of(path):
    text = path.read_text(encoding="utf-8")
    code = without_comments(text)
    found = {}
    for name, begin, end in functions(code):
        for m in find(code, begin, end):
            m.end = m.begin + len(code[m.begin : m.end].rstrip())
            m.path, m.function = path, name
            m.line = text.count("\n", 0, m.begin) + 1
            what = " ".join(text[m.begin : m.end].split())
            m.name = f"{path.name}: {name}: {what} -> {m.becomes}"
            found[m.begin, m.end, m.becomes] = m
    # The same text twice in one function: numbered.
    seen = {}
    for m in sorted(found.values(), key=lambda m: (m.begin, m.end)):
        seen[m.name] = seen.get(m.name, 0) + 1
        if seen[m.name] > 1:
            m.name += f" ({seen[m.name]})"
        yield m


def rewritten(text, mutants):
    pieces = []  # (place, order among those at the same place, text)
    for m in mutants:
        size = m.end - m.begin
        open_text, close_text = {
            "nothing": (f"(decant_test::mutant({m.number}) ? void() : ", ")"),
            "true": (f"(decant_test::mutant({m.number}) || (", "))"),
            "false": (f"(!decant_test::mutant({m.number}) && (", "))"),
        }[m.becomes]
        pieces.append((m.begin, 1, -size, m.number, open_text))
        pieces.append((m.end, 0, size, -m.number, close_text))
    out, at = [], 0
    for place, _, _, _, piece in sorted(pieces):
        out += [text[at:place], piece]
        at = place
    return "".join(out) + text[at:]


def write_mutants(folder):
    """The kernels with all mutants in them; returns those."""
    folder.mkdir(parents=True, exist_ok=True)
    mutants = []
    for path in sorted((ROOT / "cuda").glob("*.cuh")):
        text = path.read_text(encoding="utf-8")
        if path.name not in NOT_KERNELS:
            mine = list(mutants_of(path))
            for number, m in enumerate(mine, len(mutants)):
                m.number = number
            mutants += mine
            text = rewritten(text, mine).replace("#pragma once\n",
                                                 '#pragma once\n#include "cuda/mutant.hpp"\n', 1)
        write(folder / path.name, text)
    write(folder / "mutant.hpp", HEADER % (len(mutants), len(mutants)))
    return mutants


def write(path, text):
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


# ------------------------------------------------------------------------------------ running them

def run(program, case, limit, **environment):
    """(whether it passes, seconds of processor time), in at most `limit` of those."""
    spec = "".join("\\" + c if c in '\\,[]"*~' else c for c in case)
    process = subprocess.Popen([program, spec, "--abort"], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL,
                               env=os.environ | {"ASAN_OPTIONS": "detect_leaks=0"} | environment,
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)))
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = status
    return status == 0, used.ru_utime + used.ru_stime


def reached_by(program, cases, n_threads):
    """case -> (seconds, numbers of the mutants that it reaches)"""
    def one(case):
        with tempfile.NamedTemporaryFile("r") as file:
            passed, seconds = run(program, case, 900, DECANT_MUTANTS_REACHED=file.name)
            if not passed:
                sys.exit(f"mutate.py: without any mutant this fails: {case}")
            return seconds, {int(line) for line in file.read().split()}
    with concurrent.futures.ThreadPoolExecutor(n_threads) as pool:
        return dict(zip(cases, pool.map(one, cases)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", default="", help="a part of the mutants' names")
    parser.add_argument("--write-only", action="store_true", help="the kernels, for cmake")
    parser.add_argument("-j", type=int, default=2)
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    mutants = write_mutants(build / "tests" / "with_mutants" / "cuda")
    if arguments.write_only:
        return 0
    subprocess.run(["cmake", "--build", build, "-j", str(arguments.j), "--target", "decant_mutants"],
                   check=True, stdout=subprocess.DEVNULL)
    program = build / "tests" / "decant_mutants"
    usage = subprocess.run([program, "--help"], capture_output=True, text=True).stdout
    cases = discover.names([program], "2" if "--list-test-names-only" in usage else "3", "~[real]~[.]")
    reached = reached_by(program, cases, arguments.j)
    chosen = [m for m in mutants if arguments.only in m.name]
    noticed = dict.fromkeys(cases, 0)
    judged = itertools.count(1)

    def survives(m):
        mine = [case for case in cases if m.number in reached[case][1]]
        mine.sort(key=lambda case: reached[case][0] / (1 + noticed[case]))
        why = "tests reach it, and none fails" if mine else "no test reaches it"
        for case in mine:
            if not run(program, case, int(4 + 3 * reached[case][0]), DECANT_MUTANT=str(m.number))[0]:
                noticed[case] += 1
                why = None
                break
        print(f"{next(judged)} of {len(chosen)}: {m.name}:", why or f"noticed by {case}",
              file=sys.stderr)
        return why

    with concurrent.futures.ThreadPoolExecutor(arguments.j) as pool:
        results = list(zip(chosen, pool.map(survives, chosen)))
    bad = 0
    for m, why in results:
        explained = EXPLAINED.get(m.name)
        if why is not None and explained is None:
            print(f"cuda/{m.path.name}:{m.line}: survives: {m.name}: {why}")
        elif why is None and explained is not None:
            print(f"cuda/{m.path.name}:{m.line}: is noticed, so needs no explanation: {m.name}")
        elif why is not None:
            print(f"cuda/{m.path.name}:{m.line}: survives rightly: {m.name}: {explained}")
            continue
        else:
            continue
        bad += 1
    if not arguments.only:
        for name in EXPLAINED.keys() - {m.name for m in mutants}:
            print(f"explained, but not there: {name}")
            bad += 1
    n_survived = sum(why is not None for _, why in results)
    print(f"{len(results)} mutants, {len(results) - n_survived} noticed, {n_survived} survive, "
          f"{bad} complaints")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
