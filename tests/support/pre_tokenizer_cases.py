#!/usr/bin/env python3
"""Writes tests/data/tokenizers/pre_tokenizer.json: where pre-tokenizers cut random texts.

Usage: python3 tests/support/pre_tokenizer_cases.py [COUNT [SEED]] > pre_tokenizer.json
The cuts are made by the `regex` package (PyPI, 2026.11.19) with the expressions that the models'
tokenizer.json files carry: each expression cuts the pieces of the one before it at the beginning
and the end of its matches. {"texts": [...], "ends": {name: [ends of the pieces in bytes, ...]}}.
"""
import json
import random
import sys

import regex

SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = (SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES)
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def cased(suffix, digits, tail=r'[\r\n/]*', but=''):
    lead = r"[^\r\n\p{L}\p{N}]?"
    upper, lower = f'[{UPPER}{but}]', f'[{LOWER}{but}]'
    return (f"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}|{digits}|"
            r" ?[^\s\p{L}\p{N}]+" + tail + "|" + SPACES)


GPT4O = cased(SUFFIX + '?', r'\p{N}{1,3}')
TAG = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
CASED_LETTERS = (  # of the published list; the alphabet below has no others with case
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0370-\u0373"
    "\u0386\u0388-\u038a\u03a3-\u03f5\u03f7-\u0481\u1e00-\u1f15\u212a-\u212d\uff21-\uff3a\U00010400-\U0001044f")

# name -> expressions. Other names share these; the test of the table of names sees to them.
EXPRESSIONS = {
    'gpt-2': [GPT2],
    'smollm': [r'\p{N}', GPT2],
    'llama-bpe': [LLAMA3],
    'minicpm5': [r'\p{N}{1,3}', LLAMA3.replace('{1,3}', '+')],
    'jais-2': [LLAMA3.replace(r'\s+(?!\S)|\s+', '|'.join(
        rf'\s{{{n}}}(?!\S)' for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r'|\s{1,2}(?!\S)|\s{1}')],
    'qwen2': [LLAMA3.replace('{1,3}', '')],
    'bailingmoe': [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
                   r"\s*[\r\n]|\s+(?!\S)|\s+"],
    'laguna': [r'[^\n]+|[\n]+', LLAMA3.replace('{1,3}', '')],
    'ufakzeka': [LLAMA3.replace('{1,3}', '').replace(SUFFIX + '|', '')],
    'qwen35': [SUFFIX + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
               + SPACES],
    'seed-coder': [SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + SPACES],
    'exaone-moe': [SUFFIX + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}|"
                   r" ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
    'tekken': [cased('', r'\p{N}')],
    'gpt-4o': [GPT4O],
    'tiny_aya': [r'\d{1,3}(?=(?:\d{3})*(?![\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}]))', GPT4O],  # \b, as Oniguruma
    'youtu': ["[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b"
              "\uff0c\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|" + HAN_KANA,
              cased(SUFFIX + '?', r'\p{N}')],
    'kimi-k2': [r"\p{Han}+|" + cased(SUFFIX + '?', r'\p{N}{1,3}', r'[\r\n]*', r'--\p{Han}')],
    'deepseek-v3': [r'\p{N}{1,3}', HAN_KANA, TAG + r"[\r\n]*|" + SPACES],
    'spark2_5': [r'\p{N}{1,3}', HAN_KANA, TAG + r"|[\r\n]|\s+(?!\S)|\s+", r'\p{N}'],
    'deepseek-llm': [r'[\r\n]', rf'\s?[{CASED_LETTERS}]+',
                     "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r'\s+\Z',
                     CJK, r'\p{N}+'],
    'deepseek-coder': [r'[\r\n]', r'\s?\p{L}+', r'\s?\p{P}+', CJK, r'\p{N}'],
    'falcon': [r'[\p{P}\$\+<=>\^~\|`]+', GPT2, '[0-9][0-9][0-9]'],
    'default': [r'[\p{P}\$\+<=>\^~\|]+', GPT2, r'\p{N}+', '[0-9][0-9][0-9]'],
    'chameleon': [r'[\t\n]|    |  ', r'\p{N}', r'[\p{P}!-/:-@\[-`{-~]', GPT2],
    'bloom': [BLOOM],
    'viking': [BLOOM, r'\p{N}'],
    'superbpe': [r'\p{N}+', r'(?=(\d{3})+(?!\d))'],
    'gemma4': [r'[^\n]+|[\n]+'],
}
# afmoe is llama.cpp's description, not an expression: digits in threes from the right.
EXPRESSIONS['afmoe'] = [
    r'\p{N}+', r'(?=(\p{N}{3})+(?!\p{N}))',
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
    "\u1100-\u11ff]+", TAG + r"[\r\n]*|" + SPACES]

ALPHABET = (list("aabzAABZstmdlvreSTMDLVRE01234567890123456789_-.,!?$+<=>^~|`/(){}[]'\"\\#@:;*&%") +
            ["'"] * 10 + [' '] * 18 + ['\n'] * 6 + ['\r', '\t', '\r\n', '\v', '\x1c', '\x00', '\x7f'] +
            list("\u0085\u00a0\u3000\u2003\u2028\u00e9\u00c9\u00df\u01c5\u02b0\u0301\u0903\u0945\u20dd"
                 "\u017f\u212a\u0661\u0663\u00bd\u00b2\u2167\u3007\u3005\u6c49\u5b57\u9fa6\u3400\u3042"
                 "\u30ab\u3131\uac00\ud55c\u3105\u0e40\u0e01\u1780\u05d0\u0905\u093f\u0378\uffff\u200b"
                 "\u2014\u2019\u201c\u2026\u3002\uff0c\uff01\uff1a\u203f\u20ac\u00a9\u2190\uff21\uff71"
                 "\ufa0e\u2e80\U0001f525\U0001d400\U00010400\U00020000\U0001f1e6\ufe0f\u200d\u0964\u060c"
                 "\u1100\u0800\uf15b\ufffd\U000e0101"))
WORDS = ["don't", "I'LL", "we're", "HTTPServer", "\u00c9cole", "1234567", "123a", "12_3", "3.1415",
         "        ", "  \n  ", "\n\n\n", "!!!\n", "...\n/", " the", "\u6c49\u5b57", "\u65e5\u672c\u8a9e\u3067",
         "\u0939\u093f\u0928\u094d\u0926\u0940", "e\u0301", "<|x|>", "//", "foo bar baz", "\uc548\ub155 \ud558",
         ' ' * 37, ' ' * 700]


def random_text(rng):
    parts = []
    for _ in range(rng.randrange(1, 16)):
        parts.append(rng.choice(WORDS) if rng.random() < .2 else
                     rng.choice(ALPHABET) * rng.choice((1, 1, 1, 2, 5)))
    return ''.join(parts)


def cut(pieces, expression):
    out = []
    for piece in pieces:
        at = 0
        for match in expression.finditer(piece):
            out += [piece[at:match.start()], match.group()]
            at = match.end()
        out.append(piece[at:])
    return [p for p in out if p]


def ends(text, expressions):
    pieces = [text]
    for expression in expressions:
        pieces = cut(pieces, expression)
    out, at = [], 0
    for piece in pieces:
        out.append(at := at + len(piece.encode()))
    return out


count, seed = int((sys.argv[1:] + ['70'])[0]), int((sys.argv[2:] + ['1'])[0])
rng = random.Random(seed)
texts = [random_text(rng) for _ in range(count)]
compiled = {name: [regex.compile(e, regex.V1) for e in es] for name, es in EXPRESSIONS.items()}
result = {name: [ends(text, es) for text in texts] for name, es in compiled.items()}
print('{"texts":', json.dumps(texts) + ',\n"ends": {\n' + ',\n'.join(
    f'"{name}": {json.dumps(e, separators=(",", ":"))}' for name, e in result.items()) + '}}')
