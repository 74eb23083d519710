#!/usr/bin/env bash
# scripts/check_lengths.sh [TREE]
# Lists headers over 200 lines and sources over 300, and fails if a function exceeds 60 lines. TREE is the root of the
# tree (default: this repository).
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

folders=()
for folder in kernels sharding optim checkpoint engine capi libtorch apps include tests bench; do
  if [ -d "$folder" ]; then folders+=("$folder"); fi
done

find "${folders[@]}" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) | LC_ALL=C sort | awk '
# Functions are found by counting braces. A brace that is outside any function and follows a parameter list opens a
# function.
#
# Removes strings, comments and preprocessor lines from a line.
function leave_out(text) {
  if (raw != "") {  # inside a raw string, which ends with its own delimiter
    if (!index(text, raw)) return ""
    text = substr(text, index(text, raw) + length(raw))
    raw = ""
  }
  if (match(text, /R"[^( ]*\(/)) {
    raw = ")" substr(text, RSTART + 2, RLENGTH - 3) "\""
    rest = substr(text, RSTART + RLENGTH)
    text = substr(text, 1, RSTART - 1)
    if (index(rest, raw)) { text = text substr(rest, index(rest, raw) + length(raw)); raw = "" }
  }
  gsub(/\\./, "", text)
  gsub(/\047[{}()"]\047/, "", text)
  gsub(/"[^"]*"/, "", text)
  sub(/\/\/.*/, "", text)
  if (text ~ /^[ \t]*#/) text = ""
  return text
}
function is_function(text) {
  return text ~ /\)/ && text !~ /^[ \t]*(namespace|class|struct|union|enum|extern)[ \t{]/
}
function open_brace() {
  ++depth
  saved[depth] = statement
  saved_line[depth] = statement_line
  if (!inside && is_function(statement)) { inside = depth; opened = statement_line }
  statement = ""
}
function close_brace(rest,   length_lines) {
  if (inside == depth) {
    inside = 0
    length_lines = line_number - opened + 1
    if (length_lines > 60) { printf "%s:%d: a function of %d lines (at most 60)\n", file, opened, length_lines; bad++ }
  }
  # The line may continue the statement, for example with the next member of an initialiser list.
  statement = rest ~ /^[ \t]*;?[ \t]*$/ ? "" : saved[depth]
  statement_line = saved_line[depth]
  if (depth > 0) --depth
}
function walk(text,   i, c) {
  for (i = 1; i <= length(text); ++i) {
    c = substr(text, i, 1)
    if (c == "{") open_brace()
    else if (c == "}") close_brace(substr(text, i + 1))
    else if (c == ";") statement = ""
    else if (statement != "" || c !~ /[ \t]/) {
      if (statement == "") statement_line = line_number
      statement = statement c
    }
  }
}
{
  file = $0
  depth = inside = line_number = 0
  statement = raw = ""
  while ((getline text < file) > 0) { ++line_number; walk(leave_out(text)) }
  close(file)
  limit = file ~ /\.(h|cuh)$/ ? 200 : 300
  if (line_number > limit) printf "%s: %d lines (recommended: at most %d; not a failure)\n", file, line_number, limit
}
END { exit bad > 0 }'
