#!/usr/bin/env python3
"""scripts/sample_text.py SEED COUNT

Prints COUNT comments, messages and sentences of the documentation, drawn at random from the files that git tracks. A
reader who does not know the code judges each on one reading: clear, odd, or not understood. docs/style.md has the rules.
"""

import random
import re
import subprocess
import sys

SOURCES = ("h", "c", "cpp", "cu", "cuh", "inc")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


def joined_literals(lines):
    """Joins adjacent string literals on consecutive lines, as the compiler does."""
    lines = list(lines)
    for i in range(len(lines) - 1, 0, -1):
        continues = re.match(r'\s*"', lines[i]) and re.search(r'"\s*$', lines[i - 1]) and "//" not in lines[i - 1]
        if continues:
            lines[i - 1] = lines[i - 1].rstrip()[:-1] + lines[i].lstrip()[1:]
            lines[i] = ""
    return lines


def of_source(path, lines):
    """Comment blocks with the code line that follows, trailing comments with their code, and long messages."""
    i = 0
    literals = joined_literals(lines)
    while i < len(lines):
        comment = re.match(r"\s*//+ ?(.*)", lines[i])
        if comment and comment.group(1).strip() and not comment.group(1).startswith("NOLINT"):
            end = i
            while end < len(lines) and re.match(r"\s*//", lines[end]):
                end += 1
            text = " ".join(re.sub(r"^\s*//+ ?", "", line) for line in lines[i:end])
            code = next((line.strip() for line in lines[end:] if line.strip()), "")
            yield "comment", path, i + 1, text, code
            i = end
            continue
        trailing = re.match(r"(.*\S)\s+// (.*)$", lines[i])
        if trailing and '"' not in lines[i] and not re.match(r"\s*}|.*// (NOLINT|namespace)", lines[i]):
            yield "trailing", path, i + 1, trailing.group(2), trailing.group(1).strip()
        if not path.startswith("tests/"):
            for text in STRING.findall(literals[i]):
                if len(text) >= 25 and text.count(" ") >= 4:
                    yield "message", path, i + 1, text, ""
        i += 1


def of_script(path, lines):
    """Comment blocks with the line that follows."""
    i = 0
    while i < len(lines):
        end = i
        while end < len(lines) and re.match(r"\s*# \S", lines[end]) and "shellcheck" not in lines[end]:
            end += 1
        text = " ".join(re.sub(r"^\s*# ", "", line) for line in lines[i:end])
        if len(text) >= 20:
            yield "comment", path, i + 1, text, next((line.strip() for line in lines[end:] if line.strip()), "")
        i = max(end, i + 1)


def of_document(path, text):
    """Sentences, without code blocks and tables of numbers."""
    body = re.sub(r"```.*?```", "", text, flags=re.S)
    for paragraph in re.split(r"\n\s*\n", body):
        if re.match(r" {4}|\||!", paragraph):
            continue
        number = text[: max(text.find(paragraph), 0)].count("\n") + 1
        for sentence in re.split(r"(?<=[.:;]) ", " ".join(paragraph.split())):
            if sentence.count(" ") >= 5:
                yield "doc", path, number, sentence, ""


def units():
    for path in subprocess.check_output(["git", "ls-files"], text=True).splitlines():
        if "/golden/" in path or path.startswith("bench/results"):
            continue
        try:
            text = open(path, encoding="utf-8").read()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        lines = text.split("\n")
        if path.endswith(".md"):
            yield from of_document(path, text)
        elif path.rsplit(".", 1)[-1] in SOURCES:
            yield from of_source(path, lines)
        elif path.endswith((".sh", ".cmake", "CMakeLists.txt")):
            yield from of_script(path, lines)


def main():
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    drawn = list(units())
    random.seed(seed)
    random.shuffle(drawn)
    print(f"{len(drawn)} texts", file=sys.stderr)
    for number, (kind, path, line, text, code) in enumerate(drawn[:count], 1):
        print(f"{number}. [{kind}] {path}:{line}\n   {text}" + (f"\n   code: {code}" if code else "") + "\n")


main()
