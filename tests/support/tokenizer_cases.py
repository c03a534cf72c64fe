#!/usr/bin/env python3
"""Writes tests/data/tokenizers/kinds.json: small vocabularies of each kind, and ids of random texts.

Usage: python3 tests/support/tokenizer_cases.py [COUNT [SEED]] > kinds.json
WordPiece by `tokenizers` 0.23.3, unigram and BPE models trained and run by `sentencepiece` 0.2.3
(PyPI). Vocabularies are written as GGUF files have them: pieces that begin a word with U+2581, types
1 normal, 2 unknown, 3 control, 4 user-defined, 6 byte. Texts: [text, ids, text of the ids].
"""
import io
import json
import random
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_pb2
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

COUNT, SEED = (int(x) for x in (sys.argv[1:] + ['60', '1'])[:2])
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


result = {'bert': word_piece(True), 'bert-cased': word_piece(False),
          't5': sentence_piece('unigram', 180),
          't5-spaces': sentence_piece('unigram', 400, remove_extra_whitespaces=False,
                                      add_dummy_prefix=False, byte_fallback=True)}
print('{' + ',\n'.join(f'"{name}": {json.dumps(v, separators=(",", ":"))}'
                       for name, v in result.items()) + '}')
