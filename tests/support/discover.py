#!/usr/bin/env python3
"""Writes the ctest file of a Catch2 program, one test for each case, whatever its name holds.

    discover.py LABEL CATCH_VERSION FILE [EMULATOR...] PROGRAM -- ARGUMENTS...

Cases tagged [real] get the label `real` instead of LABEL; hidden ones ([.]) are left out.
"""
import subprocess
import sys

PROPERTIES = 'TIMEOUT 900 SKIP_REGULAR_EXPRESSION "DECANT_SKIPPED: " ' \
             'FAIL_REGULAR_EXPRESSION "No test cases matched"'


def names(command, version, tag):
    listing = ["--list-test-names-only"]
    if int(version.split(".")[0]) >= 3:
        listing = ["--list-tests", "--verbosity", "quiet"]
    # Catch2 2.x exits with the number of cases.
    listed = subprocess.run([*command, tag, *listing], capture_output=True, text=True)
    if listed.returncode < 0 or listed.stderr:
        sys.exit(f"{command}: could not list its tests: {listed.stderr}")
    return [line.strip() for line in listed.stdout.splitlines() if line.strip()]


def bracket(text):
    assert "]===]" not in text
    return f"[===[{text}]===]"


def main():
    label, version, file, *rest = sys.argv[1:]
    split = rest.index("--")
    command, arguments = rest[:split], rest[split + 1 :]
    lines = []
    for tag, case_label in (("~[real]~[.]", label), ("[real]~[.]", "real")):
        for name in names(command, version, tag):
            # What has a meaning in a Catch2 test specification.
            spec = "".join("\\" + c if c in '\\,[]"*~' else c for c in name)
            test = bracket(f"{label}: {name}")
            words = " ".join(bracket(word) for word in [*command, spec, *arguments])
            lines.append(f"add_test({test} {words})")
            lines.append(f"set_tests_properties({test} PROPERTIES LABELS {case_label} {PROPERTIES})")
    with open(file, "w", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
