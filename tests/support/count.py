#!/usr/bin/env python3
"""Adds up test results: count.py [--strict] [--failed N] RESULTS.xml ...

Reads the JUnit files that ctest writes, names what was skipped, and ends with the one line
'N passed, N failed, N skipped'. --failed adds steps that failed outside of ctest, such as a build.
--strict counts a skip as a failure unless its reason says what nobody can mend here: golden data that
is not there, or what the processor, an emulator, a cross build or the file system lacks, or the CUDA
Toolkit.
"""
import argparse
import os
import re
import sys
import xml.etree.ElementTree as xml

MARK = re.compile(r"DECANT_SKIPPED: (.*)")


def allowed(reason):
    golden = "DECANT_GOLDEN_DIR" in reason and not os.environ.get("DECANT_GOLDEN_DIR")
    return golden or re.search("processor lacks|emulator|cross build|file system|CUDA Toolkit", reason)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--failed", type=int, default=0)
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    passed, failed, skipped = 0, arguments.failed, 0
    for file in arguments.files:
        for case in xml.parse(file).getroot().iter("testcase"):
            status, name = case.get("status"), case.get("name")
            if status == "run":
                passed += 1
            elif status in ("notrun", "disabled"):
                reason = MARK.search(case.findtext("system-out") or "")
                forbidden = not reason or (arguments.strict and not allowed(reason[1]))
                reason = reason[1] if reason else "it could not be run"
                print(f"skipped{' (counts as failed)' if forbidden else ''}: {name}: {reason}")
                failed += forbidden
                skipped += not forbidden
            else:
                print(f"failed: {name}")
                failed += 1
    if passed + failed + skipped == 0:
        print("no test ran")
        failed = 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
