#!/usr/bin/env python3
"""Writes tests/data/tokenizers/kinds.json: small vocabularies of each kind, and ids of random texts.

Usage: python3 tests/support/tokenizer_cases.py [COUNT [SEED]] > kinds.json
WordPiece, mmBERT's and `whitespace` BPE by `tokenizers` 0.23.3, unigram models trained and run by
`sentencepiece` 0.2.3 (PyPI), rwkv and plamo2 by the plain loops below, on bytes and on characters.
Vocabularies are written as GGUF files have them: pieces that begin a word with U+2581, types
1 normal, 2 unknown, 3 control, 4 user-defined, 6 byte. Texts: [text, ids, text of the ids].
"""
import io
import json
import random
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_pb2
from tokenizers import (AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        trainers)

COUNT, SEED = (int(x) for x in (sys.argv[1:] + ['40', '1'])[:2])
rng = random.Random(SEED)
WORDS = ("the cat sat on a mat and saw another cat running runs runner walked walking talker "
         "unhappy happiness re-do it's don't \u00e9cole na\u00efve \u00c5ngstr\u00f6m Stra\u00dfe \u65e5\u672c \u6c49\u5b57 "
         "\u041f\u0440\u0438\u0432\u0435\u0442 \uac00\ub098 123 45.6 x=y+z [MASK] \u0939\u093f\u0928\u094d\u0926\u0940 \ufb01ne \u2168 \uff21\uff22").split()
ODD = list(" \u00a0\t\n\u3000!?.,;$+<>^`|~'\"-_#()\u2581\u200d\u0301\u0000\u00ad\ufffd\u0130\u0178\u01c5\u1e9e\ue000"
           "\U0001f525\U00020000\u0378zZ\u00c0\u0e33\u09cb\u037e\u212b\u2f83\u3131\ud7a3") + ['  ', '   ']
# U+037E becomes an ASCII semicolon, which BertTokenizer then splits at; GGUF readers need not.
ODD_WORD_PIECE = [c for c in ODD if c not in '\u037e\u2581']


def random_text(odd):
    parts = []
    for _ in range(rng.randrange(1, 12)):
        word = rng.choice(WORDS)
        parts.append(rng.choice([word, word.upper(), word.capitalize(), word + ' ', ' ' + word,
                                 rng.choice(odd), rng.choice(odd), word[1:]]))
    return ''.join(parts)


def word_piece(lowercase):
    letters = sorted({c for w in WORDS for c in w + w.upper()} | set("abcdefghijklmnopqrstuvwxyz;$+<"))
    pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'] + letters + ['##' + c for c in letters]
    pieces += ['the', 'cat', 'run', '##ning', '##ner', 'un', '##happ', '##iness', 'ang', '##strom',
               '\u1100', '##\u1161', '##\u1102', 'ecole', '\u00c9cole', 'strasse', 'i', '##s', 'fine']
    pieces = list(dict.fromkeys(pieces))
    t = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token='[UNK]',
                                   max_input_chars_per_word=100))
    t.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece(cleanup=False)
    cases = []
    for text in [random_text(ODD_WORD_PIECE) for _ in range(COUNT)] + ['a' * 100, 'a' * 101, '', ' ']:
        ids = t.encode(text, add_special_tokens=False).ids
        cases.append([text, ids, None if 1 in ids else t.decode(ids)])
    tokens = [p if i < 5 else p[2:] if p.startswith('##') else '\u2581' + p
              for i, p in enumerate(pieces)]
    return {'model': 'bert', 'tokens': tokens, 'types': [3, 2, 3, 3, 3] + [1] * (len(pieces) - 5),
            'scores': [], 'unk': 1, 'cls': 2, 'sep': 3, 'lowercase': lowercase, 'cases': cases}


def sentence_piece(kind, size, **options):
    corpus = [' '.join(rng.choice(WORDS) for _ in range(8)) for _ in range(400)]
    out = io.BytesIO()
    with tempfile.NamedTemporaryFile('w', suffix='.tsv') as rules:
        # A small charsmap of our own: ligature, full-width letters, a space, a letter that goes.
        for source, target in [('FB01', '66 69'), ('FF21', '41'), ('FF22', '42'), ('A0', '20'),
                               ('3000', '20'), ('9', '20'), ('A', '20'), ('AD', ''),
                               ('65 301', 'E9'), ('212B', 'C5'), ('2168', '49 58')]:
            rules.write(f'{source}\t{target}\n')
        rules.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus), model_writer=out, model_type=kind, vocab_size=size,
            normalization_rule_tsv=rules.name, hard_vocab_limit=False, minloglevel=2,
            max_sentence_length=4000, num_threads=1, **options)
    sp = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    proto = model_pb2.ModelProto.FromString(out.getvalue())
    cases = []
    for text in [random_text(ODD) for _ in range(COUNT)] + ['', ' ', '  x', '    x', '\u2581', ' x ']:
        ids = sp.encode(text)
        exact = sp.unk_id() not in ids and '\u2581' not in text
        cases.append([text, ids, sp.decode(ids) if exact else None])
    spec = proto.normalizer_spec
    return {'model': 't5' if kind == 'unigram' else 'llama', 'unk': sp.unk_id(), 'bos': sp.bos_id(),
            'eos': sp.eos_id(), 'tokens': [p.piece for p in proto.pieces],
            'types': [p.type for p in proto.pieces], 'scores': [p.score for p in proto.pieces],
            'charsmap': spec.precompiled_charsmap.hex() if kind == 'unigram' else '',
            'add_space_prefix': spec.add_dummy_prefix,
            'remove_extra_whitespaces': spec.remove_extra_whitespaces, 'cases': cases}


def bpe(pre, tokens, normalizer, pre_tokenizer, cased=True, **options):
    t = Tokenizer(models.BPE(**options))
    t.pre_tokenizer = pre_tokenizer
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator([' '.join(rng.choices(WORDS, k=9)) for _ in range(60)],
                          trainers.BpeTrainer(special_tokens=tokens, vocab_size=len(tokens) + 150,
                                              show_progress=False))
    t.add_tokens([AddedToken(newlines, normalized=False) for newlines in ('\n', '\n\n')])
    model = json.loads(t.to_str())['model']
    merges = [' '.join(m) for m in model['merges']]
    pieces = [t.id_to_token(i) for i in range(t.get_vocab_size())]
    types = [2 if p == '<unk>' else 3 if p in ('<s>', '</s>') else 6 if p.startswith('<0x') else
             4 if p.startswith('\n') else 1 for p in pieces]
    cases = []
    for text in [random_text(ODD) for _ in range(COUNT)] + ['', ' ', 'a\n\n\n b\n', 'the  cat']:
        ids = t.encode(text, add_special_tokens=False).ids
        cases.append([text, [i for i in ids if i != 0], None])  # llama.cpp leaves unknown ones out
    return {'model': 'whitespace' if pre == 'whitespace' else 'gpt2', 'pre': pre, 'tokens': pieces,
            'types': types, 'scores': [], 'merges': merges, 'bos': 1, 'eos': 2,
            'lowercase': not cased, 'cases': cases}


def whitespace(cased):
    return bpe('whitespace', ['<unk>', '<s>', '</s>'], None if cased else normalizers.Lowercase(),
               pre_tokenizers.Whitespace(), cased, unk_token='<unk>')


def mmbert():
    return bpe('mmbert', ['<unk>', '<s>', '</s>'] + [f'<0x{b:02X}>' for b in range(256)],
               normalizers.Replace(' ', '\u2581'),
               pre_tokenizers.Metaspace(prepend_scheme='always', split=True),
               unk_token='<unk>', byte_fallback=True, fuse_unk=True)


def random_pieces(count):
    whole = ' '.join(rng.choices(WORDS, k=count)) + '\n\t\\\'"\\n  '
    cuts = [rng.randrange(len(whole)) for _ in range(count)]
    return dict.fromkeys(whole[at:at + rng.randrange(1, 8)] for at in cuts)


def rwkv():
    """The longest of the pieces that fit, from left to right."""
    pieces = [bytes([b]) for b in range(256)] + [b'\xe6\xb1', b'\x80\xff\\']
    pieces += [p.encode() for p in random_pieces(120) if len(p.encode()) > 1]
    ids = {p: i for i, p in enumerate(pieces, 1)}
    cases = []
    for text in [random_text(ODD) for _ in range(COUNT)] + ['', ' ', '<s>', '\\n\\x41']:
        tokens, rest = [], text.encode()
        while rest:
            piece = next(rest[:n] for n in range(24, 0, -1) if rest[:n] in ids)
            tokens.append(ids[piece])
            rest = rest[len(piece):]
        cases.append([text, tokens, text])
    return {'model': 'rwkv', 'tokens': ['<s>'] + [repr(p)[2:-1] for p in pieces] + ['[PAD0]'],
            'types': [3] + [1] * len(pieces) + [5], 'scores': [], 'bos': 0, 'eos': 0,
            'cases': cases}


def plamo2():
    """The least sum of round(-10000 score), 10^7 for a character in bytes; at each place, from the
    end of the text, the longest of equal ones."""
    special = ['<|plamo:unk|>', '<|plamo:bos|>', '<|plamo:eos|>', '<|plamo:pad|>']
    by_bytes = [f'<0x{b:02X}>' for b in range(256)]
    pieces = list(random_pieces(150)) + ['aaa', 'aa', 'a']
    pieces = list(dict.fromkeys(pieces))
    scores = [rng.choice((-2, -2.5, -4, -8.0625, -1999.5, -2000)) for _ in pieces]
    first = len(special) + len(by_bytes)
    ids = {p: i for i, p in enumerate(pieces, first)}
    cases = []
    for text in [random_text(ODD) for _ in range(COUNT)] + ['', ' ', 'a' * 11, '\ufeffa']:
        best = [(0, [])]  # of text[at:], at the front
        for at in reversed(range(len(text))):
            character = [len(special) + b for b in text[at].encode()]
            ways = [(n, -round(scores[ids[text[at:at + n]] - first] * 1e4), [ids[text[at:at + n]]])
                    for n in range(len(text) - at, 0, -1) if text[at:at + n] in ids]
            ways = [way for way in ways if way[1] < 20_000_000] + [(1, 10_000_000, character)]
            best.insert(0, min(((best[n - 1][0] + cost, tokens + best[n - 1][1])
                                for n, cost, tokens in ways), key=lambda way: way[0]))
        cases.append([text, best[0][1], text])
    return {'model': 'plamo2', 'tokens': special + by_bytes + pieces,
            'types': [2, 3, 3, 3] + [6] * 256 + [1] * len(pieces),
            'scores': [0] * first + scores, 'unk': 0, 'bos': 1, 'eos': 2, 'cases': cases}


result = {'bert': word_piece(True), 'bert-cased': word_piece(False),
          't5': sentence_piece('unigram', 180),
          't5-spaces': sentence_piece('unigram', 400, remove_extra_whitespaces=False,
                                      add_dummy_prefix=False, byte_fallback=True),
          'whitespace': whitespace(True), 'whitespace-lower': whitespace(False),
          'mmbert': mmbert(), 'rwkv': rwkv(), 'plamo2': plamo2()}
print('{' + ',\n'.join(f'"{name}": {json.dumps(v, separators=(",", ":"))}'
                       for name, v in result.items()) + '}')
