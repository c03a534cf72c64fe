#!/usr/bin/env python3
"""Writes src/text/jinja/tables.cpp: what Python's string methods know about code points.

Usage: python3.11 src/tools/jinja_tables.py > src/text/jinja/tables.cpp
Sets are sorted borders (inside, outside, inside, ...) or strided runs; case mappings are strided
runs with a distance, and lists of the characters that map to several.
"""
import sys
import unicodedata

CODE_POINTS = [chr(c) for c in range(0x110000)]


def array(kind, name, values):
    lines, line = [], '   '
    for value in values:
        item = f' {value},'
        if len(line) + len(item) > 100:
            lines.append(line)
            line = '   '
        line += item
    lines.append(line)
    return f'const {kind} {name}[{len(values)}] = {{\n' + '\n'.join(lines) + '\n};\n'


def borders(name, test):
    out, inside = [], False
    for c in CODE_POINTS:
        if test(c) != inside:
            out.append(hex(ord(c)))
            inside = not inside
    return array('std::uint32_t', name, out)


def runs(codes, key):
    """Splits sorted code points into (first, last, stride) with one key per run."""
    i = 0
    while i < len(codes):
        best, stride = 1, 1
        for step in (1, 2):
            j = i
            while (j + 1 < len(codes) and codes[j + 1] - codes[j] == step
                   and key(codes[j + 1]) == key(codes[i])):
                j += 1
            if j - i + 1 > best:
                best, stride = j - i + 1, step
        yield codes[i], codes[i + best - 1], stride
        i += best


def run_set(name, test):
    codes = [ord(c) for c in CODE_POINTS if test(c)]
    return array('JinjaRun', name, [f'{{{hex(a)}, {hex(b)}, {s}, 0}}'
                                    for a, b, s in runs(codes, lambda c: 0)])


def mapping(name, convert):
    to = {ord(c): ord(convert(c)) - ord(c) for c in CODE_POINTS
          if len(convert(c)) == 1 and convert(c) != c}
    return array('JinjaRun', name, [f'{{{hex(a)}, {hex(b)}, {s}, {to[a]}}}'
                                    for a, b, s in runs(sorted(to), to.get)])


def specials(name, pairs):
    return array('JinjaSpecial', name, [
        f'{{{hex(ord(c))}, {{' + ', '.join(hex(ord(x)) for x in text.ljust(3, '\0')) + '}}'
        for c, text in pairs])


sys.stdout.write(f'''// Properties of code points as Python's str knows them, Unicode {unicodedata.unidata_version}.
// Written by src/tools/jinja_tables.py.
#include "text/jinja/unicode.hpp"

namespace decant::detail::jinja {{

''')
print('\n'.join([
    borders('kJinjaPrintable', str.isprintable),
    borders('kJinjaDecimal', str.isdecimal),
    borders('kJinjaDigit', str.isdigit),
    borders('kJinjaNumeric', str.isnumeric),
    run_set('kJinjaLower', str.islower),
    run_set('kJinjaUpper', str.isupper),
    mapping('kJinjaToUpper', str.upper),
    mapping('kJinjaToLower', str.lower),
    specials('kJinjaUpperSpecials', [(c, c.upper()) for c in CODE_POINTS if len(c.upper()) > 1]),
    specials('kJinjaTitleSpecials', [(c, c.title()) for c in CODE_POINTS if c.title() != c.upper()]),
]))
print('}  // namespace decant::detail::jinja')
