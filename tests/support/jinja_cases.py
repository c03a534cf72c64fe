#!/usr/bin/env python3
"""Computes the expected values of tests/data/jinja_cases.json anew: jinja_cases.py [--write].

Needs jinja2 and transformers from PyPI. The environment is the one that transformers compiles chat
templates in, with the clock at 4 July 2025, 09:05:03. Each case is [template, output], or
[template, null, text] for an error; only the text of raise_exception is kept and compared.
"""
import copy
import datetime
import json
import pathlib
import sys
import warnings

import jinja2
import transformers.utils.chat_template_utils as chat

PATH = pathlib.Path(__file__).resolve().parents[1] / "data" / "jinja_cases.json"


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2025, 7, 4, 9, 5, 3)


def expected(template, context):
    try:
        return [chat._compile_jinja_template(template).render(**copy.deepcopy(context))]
    except jinja2.exceptions.TemplateError as error:
        raised = type(error) is jinja2.exceptions.TemplateError
        return [None, str(error.message) if raised else ""]
    except Exception:  # Python's own
        return [None, ""]


def main():
    warnings.filterwarnings("ignore")
    chat.datetime = Clock
    data = json.loads(PATH.read_text())
    cases = [[c[0], *expected(c[0], data["context"])] for c in data["cases"]]
    for old, new in zip(data["cases"], cases):
        if old != new:
            print(f"{new[0]!r}\n  was {old[1:]}\n  is  {new[1:]}")
    print(f"{len(cases)} cases, {sum(a != b for a, b in zip(data['cases'], cases))} differ")
    if "--write" in sys.argv:
        rows = ",\n".join(json.dumps(c) for c in cases)
        head = json.dumps({k: v for k, v in data.items() if k != "cases"})[:-1]
        PATH.write_text(f'{head}, "cases": [\n{rows}\n]}}\n')


main()
