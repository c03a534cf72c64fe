#!/usr/bin/env python3
"""Writes src/text/unicode_tables.cpp: the class of every code point as a two-stage table, and the
letters that stay of a character when its accents are taken away.

Usage: python3.11 src/tools/unicode_tables.py > src/text/unicode_tables.cpp
The classes are those of src/text/unicode.hpp: general categories as pre-tokenizers ask for them, and
White_Space. Blocks of 128 code points, 4 bits each, 16 in a word; equal blocks are stored once.
Hangul syllables are taken apart by arithmetic, not by these tables.
"""
import unicodedata

CLASSES = {'Cn': 0, 'Lu': 1, 'Ll': 2, 'Lt': 3, 'Lm': 4, 'Lo': 5, 'Mn': 6, 'M': 7, 'Nd': 8, 'Nl': 9,
           'N': 10, 'Pc': 11, 'P': 12, 'S': 13, 'Z': 14, 'C': 15}
BLOCK = 128
TABLE_END = 0x32000  # unicode_class() knows what lies above
CODE_POINTS = 0x110000


def code_point_class(c):
    category = unicodedata.category(chr(c))
    # White_Space is Z* and these controls (Python's isspace also takes U+001C to U+001F).
    if c in (9, 10, 11, 12, 13, 0x85):
        return CLASSES['Z']
    return CLASSES.get(category, CLASSES.get(category[0]))


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


def bare(c):
    """The canonical decomposition without nonspacing marks; None where nothing changes."""
    text = chr(c)
    kept = [x for x in unicodedata.normalize('NFD', text) if unicodedata.category(x) != 'Mn']
    return None if kept == [text] or not kept or 0xac00 <= c < 0xd7a4 else kept


blocks, index = {}, []
for start in range(0, TABLE_END, BLOCK):
    classes = [code_point_class(c) for c in range(start, start + BLOCK)]
    block = tuple(sum(classes[i + k] << 4 * k for k in range(16)) for i in range(0, BLOCK, 16))
    index.append(blocks.setdefault(block, len(blocks)))
assert len(blocks) <= 256
bare_forms = [(c, b) for c in range(CODE_POINTS) if (b := bare(c))]

print(f'''// Classes of code points and letters without accents, Unicode {unicodedata.unidata_version}.
// Written by src/tools/unicode_tables.py; do not edit.
#include "text/unicode.hpp"

namespace decant::detail {{

// clang-format off
{array('std::uint8_t', 'kUnicodeBlocks', index)}
{array('std::uint64_t', 'kUnicodeClasses', [f'0x{w:x}' for block in blocks for w in block])}
{array('std::uint64_t', 'kUnicodeBare', [
    hex(c << 21 | ord(b[0])) for c, b in bare_forms if len(b) == 1])}
{array('UnicodeBareSplit', 'kUnicodeBareSplits', [
    f'{{{hex(c)}, {{{", ".join(hex(ord(x)) for x in b)}}}}}' for c, b in bare_forms if len(b) > 1])}// clang-format on

}}  // namespace decant::detail''')
