#!/usr/bin/env bash
# Checks that scripts/effective_time.py reads the metrics of runs that are killed and begin again.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"

cat >"$scratch/read.py" <<'READ'
import os
import sys

sys.path.insert(0, os.path.join(os.environ["top"], "scripts"))
sys.dont_write_bytecode = True
from effective_time import MetricsReader

path = os.path.join(sys.argv[1], "metrics.jsonl")
reader = MetricsReader(path)


def check(what, mode, text, *expected):
    if text is not None:
        with open(path, mode, encoding="utf-8") as file:
            file.write(text)
    found = [record.get("step") for record in reader.new_records()]
    if found != list(expected):
        sys.exit(f"{what}: read {found}, expected {list(expected)}")


check("no file", "a", None)
check("complete lines", "w", '{"step": 1}\n{"step": 2}\n{"st', 1, 2)
check("rest of a line", "a", 'ep": 3}\n', 3)
check("nothing new", "a", None)
# A killed run left a line incomplete, and the next run began a new line.
check("incomplete line", "a", '{"step": 4, "lo\n{"step": 3}\n', 3)
# A run that has no checkpoint to resume from empties the file first.
check("incomplete line", "a", '{"step": 4, "lo')
check("file begun again", "w", '{"step": 1}\n', 1)
check("next line", "a", '{"step": 2}\n5\n', 2)
print("read all lines")
READ
expect pass "read all lines" python3 "$scratch/read.py" "$scratch"
exit $((failures > 0))
