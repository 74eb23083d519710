#!/usr/bin/env python3
"""Compares the speed of `aliquot data` with that of the Python package tokenizers, and the tokens of both.

    tokenizer_bench.py build/aliquot tokenizer.json [--megabytes 50] [--threads 1,2] [--repeats 3]

Both encode the same generated text, line by line, with the same number of threads. The times of the package are those of
encode_batch() alone, without reading the text. Those of `aliquot data` are of the whole command, which also reads the
text and writes the tokens. Processor seconds of all threads are less sensitive to other programs than wall seconds.
"""
import argparse
import itertools
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMON = """the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you were all her
she there would their we him been has when who will no more if out so up said what its about than into them can only other time new some could
these two may first then do any like my now over such our man me even most made after also did many off before must well back through""".split()
OTHER = ["Привет", "данные", "日本語", "中文文本", "한국어", "naïve", "café", "Straße", "🙂", "don't", "it's", "(see", "e.g.", "foo_bar(x[7]);", "--", '"so"']
SYLLABLES = "ka lo mi ren tas ver ing pro con ter al ex ist ous ble ment tion er ed s un de re th st ch qu ea ou ng".split()


def generated_text(size):
    """Lines of words whose frequencies fall like those of natural languages, with numbers, code and other scripts."""
    numbers = random.Random(1)
    words = ["".join(numbers.choices(SYLLABLES, k=numbers.randint(1, 5))) for _ in range(60000)]
    common_weights = list(itertools.accumulate(1 / (i + 1) for i in range(len(COMMON))))
    word_weights = list(itertools.accumulate(1 / (i + 20) for i in range(len(words))))
    lines, done = [], 0
    while done < size:
        count = numbers.randint(5, 40)
        line = numbers.choices(COMMON, cum_weights=common_weights, k=count) + numbers.choices(words, cum_weights=word_weights, k=count)
        line += numbers.choices(OTHER, k=count // 20) + [str(numbers.randint(0, 99999)) for _ in range(count // 15)]
        numbers.shuffle(line)
        lines.append(" ".join(word + numbers.choice(["", "", "", "", "", "", ",", "."]) for word in line) + ".")
        done += len(lines[-1].encode()) + 1
    return lines


def processor_seconds(who):
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def package_run(tokenizer_file, text_file):
    """Runs in its own process, because the package reads the number of threads only once. Prints both times, and the tokens' hash."""
    import hashlib

    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(tokenizer_file)
    lines = Path(text_file).read_text(encoding="utf-8").split("\n")[:-1]
    began, began_processor = time.perf_counter(), processor_seconds(resource.RUSAGE_SELF)
    encodings = tokenizer.encode_batch(lines, add_special_tokens=False)
    seconds = time.perf_counter() - began, processor_seconds(resource.RUSAGE_SELF) - began_processor
    numbers = [number for encoding in encodings for number in encoding.ids]
    print(*seconds, len(numbers), hashlib.sha256(b"".join(n.to_bytes(4, "little") for n in numbers)).hexdigest())


def run_package(options, text, threads):
    environment = os.environ | {"RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"}
    words = [sys.executable, __file__, "--package", options.tokenizer, text]
    wall, processor, count, tokens = subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout.split()
    return float(wall), float(processor), int(count), tokens


def run_aliquot(options, text, threads):
    import hashlib

    import h5py
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/tokens.h5"
        words = [options.aliquot, "data", text, "--documents", "line", "--separator", "none", "--tokenizer", options.tokenizer, "--threads",
                 str(threads), "--out", out, "--quiet"]
        began, began_processor = time.perf_counter(), processor_seconds(resource.RUSAGE_CHILDREN)
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        wall, processor = time.perf_counter() - began, processor_seconds(resource.RUSAGE_CHILDREN) - began_processor
        with h5py.File(out) as file:
            tokens = file["tokens"][:].astype("<u4")
    return wall, processor, len(tokens), hashlib.sha256(tokens.tobytes()).hexdigest()


def main():
    if sys.argv[1:2] == ["--package"]:
        return package_run(*sys.argv[2:])
    parser = argparse.ArgumentParser()
    parser.add_argument("aliquot")
    parser.add_argument("tokenizer")
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = f"{folder}/text"
        Path(text).write_text("".join(line + "\n" for line in generated_text(options.megabytes * 1e6)), encoding="utf-8")
        megabytes = Path(text).stat().st_size / 1e6
        print(f"{megabytes:.1f} MB of text\nthreads  program     MB/s   MB per processor second   tokens")
        for threads in map(int, options.threads.split(",")):
            tokens = set()
            for name, run in (("aliquot", run_aliquot), ("tokenizers", run_package)):
                runs = [run(options, text, threads) for _ in range(options.repeats)]
                tokens |= {one[2:] for one in runs}
                print(f"{threads:7}  {name:10} {megabytes / min(one[0] for one in runs):6.1f}   {megabytes / min(one[1] for one in runs):23.1f}"
                      f"   {runs[0][2]}", flush=True)
            if len(tokens) != 1:
                sys.exit("the tokens differ")


main()
