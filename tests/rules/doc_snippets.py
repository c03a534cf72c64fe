#!/usr/bin/env python3
"""Code in docs/*.md and README.md that follows `<!-- snippet: FILE NAME -->` must be the lines of FILE
between `// [NAME]` and `// [/NAME]` (the whole file without NAME).

  doc_snippets.py [ROOT]           says what differs; exit 1 if anything does
  doc_snippets.py --write [ROOT]   copies the lines into the pages
  doc_snippets.py --self-test      shows that a changed snippet is found
"""
import pathlib, re, sys, tempfile, textwrap

BLOCK = re.compile(r'(<!-- snippet: (\S+)(?: (\S+))? -->\n```\w*\n)(.*?)(```)', re.S)


def snippet(root, name, part):
    text = (root / name).read_text()
    if not part:
        return text
    found = re.search(rf'^ *// \[{part}\]\n(.*?)^ *// \[/{part}\]', text, re.S | re.M)
    if not found:
        raise SystemExit(f'{name} has no part [{part}]')
    return textwrap.dedent(found.group(1))


def check(root, write=False):
    wrong, seen = [], 0
    for page in [root / 'README.md', *sorted((root / 'docs').glob('*.md'))]:
        if not page.exists():
            continue
        text = page.read_text()
        blocks = list(BLOCK.finditer(text))
        seen += len(blocks)
        wrong += [f'{page.name}: {m[2]} {m[3] or ""}' for m in blocks if m[4] != snippet(root, m[2], m[3])]
        if write:
            page.write_text(BLOCK.sub(lambda m: m[1] + snippet(root, m[2], m[3]) + m[5], text))
    return wrong, seen


def self_test():
    with tempfile.TemporaryDirectory() as d:
        root = pathlib.Path(d); (root / 'docs').mkdir()
        (root / 'a.cpp').write_text('  // [x]\n  int a;\n  // [/x]\n')
        page = root / 'docs/p.md'
        page.write_text('<!-- snippet: a.cpp x -->\n```cpp\nint b;\n```\n')
        assert check(root) == (['p.md: a.cpp x'], 1)
        check(root, write=True)
        assert check(root) == ([], 1) and 'int a;' in page.read_text()
    print('self-test passed')


if __name__ == '__main__':
    arguments = sys.argv[1:]
    if '--self-test' in arguments:
        self_test()
        sys.exit(0)
    write = '--write' in arguments
    folders = [a for a in arguments if not a.startswith('--')]
    root = pathlib.Path(folders[0]) if folders else pathlib.Path(__file__).resolve().parents[2]
    wrong, seen = check(root, write)
    if write:
        sys.exit(0)
    print('\n'.join(wrong) or f'{seen} snippets agree')
    sys.exit(1 if wrong or not seen else 0)
