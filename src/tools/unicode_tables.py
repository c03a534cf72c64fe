#!/usr/bin/env python3
"""Writes src/text/unicode_tables.cpp: the class of every code point as a two-stage table.

Usage: python3 src/tools/unicode_tables.py > src/text/unicode_tables.cpp
The classes are those that pre-tokenizers ask for: letter (\\p{L}), number (\\p{N}), space
(White_Space, that is \\s) and other. Blocks of 128 code points, 2 bits each; equal blocks are
stored once.
"""
import unicodedata

OTHER, LETTER, NUMBER, SPACE = range(4)
BLOCK = 128
CODE_POINTS = 0x110000


def code_point_class(c):
    category = unicodedata.category(chr(c))
    # White_Space is Z* and these controls (Python's isspace also takes U+001C to U+001F).
    if category[0] == 'Z' or c in (9, 10, 11, 12, 13, 0x85):
        return SPACE
    return {'L': LETTER, 'N': NUMBER}.get(category[0], OTHER)


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


blocks, index = {}, []
for start in range(0, CODE_POINTS, BLOCK):
    classes = [code_point_class(c) for c in range(start, start + BLOCK)]
    block = tuple(sum(classes[i + k] << 2 * k for k in range(4)) for i in range(0, BLOCK, 4))
    index.append(blocks.setdefault(block, len(blocks)))
assert len(blocks) <= 256

print(f'''// Classes of code points, Unicode {unicodedata.unidata_version}.
// Written by src/tools/unicode_tables.py; do not edit.
#include "text/unicode.hpp"

namespace decant::detail {{

// clang-format off
{array('std::uint8_t', 'kUnicodeBlocks', index)}
{array('std::uint8_t', 'kUnicodeClasses', [b for block in blocks for b in block])}// clang-format on

}}  // namespace decant::detail''')
