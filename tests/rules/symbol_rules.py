#!/usr/bin/env python3
"""House rules that can be read off the compiled library (ELF, binutils).

    symbol_rules.py LIBRARY.a|OBJECT.o ...     what a host would link
    symbol_rules.py --shared LIBRARY.so        exports only
    symbol_rules.py --self-test CXX            plants a violation of each rule and expects a complaint

A reference counts against the library unless it comes from a function of fmt or nlohmann-json, or
from the one function of ours that fmt is compiled into, and stands in ALLOWED.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

FORBIDDEN = re.compile(
    r"^(abort|_?exit|_Exit|quick_exit|atexit|__cxa_atexit|raise|system|signal|sigaction|longjmp|"
    r"(__)?v?f?printf(_chk)?|(__)?v?sn?printf(_chk)?|v?dprintf|f?puts|putchar|f?putc|fwrite|fflush|"
    r"perror|stdout|stderr|stdin|__assert_fail|__assert|__glibcxx_assert_fail|"
    r"getenv|secure_getenv|setenv|putenv|setlocale|localeconv|newlocale|uselocale|strerror|"
    r"(__isoc23_)?strto(d|f|ld|l|ul|ll|ull)|ato(f|i|l|ll)|(__isoc(99|23)_)?v?s?scanf|"
    r"is(alpha|alnum|digit|space|upper|lower|punct|print|cntrl|xdigit|graph|blank)|"
    r"to(upper|lower)|__ctype_(b|tolower|toupper)_loc|rand|srand|"
    r"_ZSt4(cout|cerr|clog)|_ZNSt8ios_base\w*|_ZNSt6locale\w*|_ZNSo\w*|_ZSt9use_facet\w*)$")
# beginning of the mangled name of a function -> what its code may refer to
ALLOWED = {
    # hexadecimal floats, which no format string of ours asks for
    r"_ZN3fmt|_ZN6decant6detail(11format_into|12format_error)": {"snprintf"},
    # nlohmann-json reads and writes numbers; results do not depend on the locale
    r"_ZNK?8nlohmann|_ZN6decant6detail.*(chat_object|chat_message)":
        {"strtod", "strtof", "strtold", "strtoll", "strtoull", "localeconv", "snprintf"},
}
OURS = re.compile(r"decant_|_Z(?:T[VTIS]|GV|T[hv][n0-9_]+)?N?K?[RO]?6decant")
# Not state: never written after it is laid out, or the C++ library's own.
DATA_EXCEPTIONS = re.compile(r"_ZN6decant6detail\w+19error_out_of_memoryE$|_ZZ?NK?St")
# nm's letters of symbols that clash when two libraries define them
STRONG = set("TDBRSG")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def demangle(name):
    return output("c++filt", name).strip()


def members(file):
    """The parts of objdump's output that belong to one object file."""
    return re.split(r"^\S.*: +file format .*$", output("objdump", "-t", "-r", "-w", file), flags=re.M)


def references(file):
    """(function, symbol) of every relocation."""
    for member in members(file):
        functions, section = {}, ""  # section -> [(start, end, name)]
        for line in member.splitlines():
            symbol = re.match(r"([0-9a-f]+) .{6}F (\S+)\s+([0-9a-f]+) +(?:\.hidden )?(\S+)$", line)
            if symbol:
                start = int(symbol[1], 16)
                functions.setdefault(symbol[2], []).append(
                    (start, start + int(symbol[3], 16), symbol[4]))
            header = re.match(r"RELOCATION RECORDS FOR \[(.*)\]", line)
            if header:
                section = header[1]
            elif re.match(r"[0-9a-f]{8,} +R_", line) and not section.startswith(".debug"):
                place, _, name = line.split()
                owners = [function for start, end, function in functions.get(section, [])
                          if start <= int(place, 16) < end]
                yield owners[0] if owners else section, re.sub(r"[-+]0x[0-9a-f]+$|@.*$", "", name)


def rule_references(file):
    for function, symbol in sorted(set(references(file))):
        allowed = set()
        for pattern, symbols in ALLOWED.items():
            if re.match(pattern, function):
                allowed = symbols
        if FORBIDDEN.match(symbol) and symbol not in allowed:
            yield f"{file}: {demangle(function)} refers to {demangle(symbol)}"


def rule_names(file):
    for line in output("nm", "--defined-only", file).splitlines():
        match = re.match(r"[0-9a-f]* ?(\w) (\S+)$", line)
        if match and match[1] in STRONG and not OURS.match(match[2]):
            yield f"{file}: defines {demangle(match[2])} outside of namespace decant"


def rule_mutable_data(file):
    for line in output("objdump", "-t", "-w", file).splitlines():
        match = re.match(r"[0-9a-f]+ (.{7}) (\S+)\s+([0-9a-f]+) +(?:\.hidden )?(\S+)$", line)
        if not match or "d" in match[1] or match[4].startswith("DW.ref."):
            continue
        if DATA_EXCEPTIONS.match(match[4]):
            continue
        if re.match(r"\.(data(?!\.rel\.ro)|bss|tdata|tbss)", match[2]):
            yield f"{file}: state outside of any object: {demangle(match[4])} in {match[2]}"


def rule_initialisers(file):
    for line in output("objdump", "-h", "-w", file).splitlines():
        if re.search(r"\.(init_array|ctors)\b", line):
            yield f"{file}: runs code before main"


RULES = [rule_references, rule_names, rule_mutable_data, rule_initialisers]


def rule_exports(file):
    names = output("nm", "-D", "--defined-only", file).split("\n")
    found = [line.split()[-1].split("@")[0] for line in names if line.strip()]
    if not any(re.match(r"_ZN6decant", name) for name in found):
        yield f"{file}: exports nothing of decant"
    for name in found:
        if not OURS.match(name):
            yield f"{file}: exports {demangle(name)}"
        elif "6decant6detail" in name and not name.startswith(("_ZNSt", "_ZNKSt")):
            yield f"{file}: exports the internal {demangle(name)}"


PLANTED = {
    rule_references: ["#include <cstdlib>\nnamespace decant { void f() { std::abort(); } }",
                      "#include <cstdio>\nnamespace decant { void f() { std::puts(\"x\"); } }",
                      "#include <iostream>\nnamespace decant { void f(int i) { std::cout << i; } }",
                      "#include <cctype>\nnamespace decant { int f(int c) { return isspace(c); } }",
                      "#include <string>\nnamespace decant { double f(const std::string& s) "
                      "{ return std::stod(s); } }",
                      "#include <string>\nnamespace decant { std::string f(double d) "
                      "{ return std::to_string(d); } }",
                      "#undef NDEBUG\n#include <cassert>\nnamespace decant { void f(int i) "
                      "{ assert(i); } }"],
    rule_names: ["int helper(int i) { return i + 1; }", "extern const int table[2] = {1, 2};",
                 "namespace other { int f() { return 1; } }"],
    rule_mutable_data: ["namespace decant { int counter; int f() { return ++counter; } }",
                        "namespace decant { int f() { static int n = 1; return ++n; } }",
                        "namespace decant { thread_local int n; int f() { return ++n; } }"],
    rule_initialisers: ["#include <vector>\nnamespace decant { extern const std::vector<int> v; "
                        "const std::vector<int> v(3); }"],
    rule_exports: ["namespace decant { __attribute__((visibility(\"default\"))) void f() {} }\n"
                   "void other() {}"],
}
CLEAN = ("#include <string>\nnamespace decant { static const char* const kNames[] = {\"a\", \"b\"};\n"
         "std::string f(unsigned i) { return kNames[i % 2]; } }\n"
         "extern \"C\" int decant_version() { return 1; }")


def self_test(cxx):
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        def build(text, *flags):
            source = pathlib.Path(folder) / "x.cpp"
            source.write_text(text + "\n", encoding="ascii")
            binary = str(source.with_suffix(".o"))
            subprocess.run([cxx, "-std=c++20", "-O2", "-fPIC", *flags, source, "-o", binary],
                           check=True)
            return binary

        for rule in [*RULES, rule_exports]:
            flags = ["-shared"] if rule is rule_exports else ["-c"]
            failures += [f"{rule.__name__}, clean code: {c}" for c in rule(build(CLEAN, *flags))]
            for text in PLANTED[rule]:
                if not list(rule(build(text, *flags))):
                    failures.append(f"{rule.__name__} did not notice: {text}")
    return failures


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--self-test"]:
        complaints = self_test(arguments[1])
    elif arguments[:1] == ["--shared"]:
        complaints = list(rule_exports(arguments[1]))
    elif arguments:
        complaints = [complaint for file in arguments for rule in RULES for complaint in rule(file)]
    else:
        sys.exit(__doc__)
    print("\n".join(complaints) or "no complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
