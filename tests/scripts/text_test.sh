#!/usr/bin/env bash
# Tests that check_text.sh reports wide comments, listed phrases and identifiers, and commit subjects that are not
# imperative.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"
tree=$scratch/tree
git init -q "$tree"
git -C "$tree" config user.name a
git -C "$tree" config user.email a@b
git -C "$tree" config commit.gpgsign false

# text pass|fail TEXT FILE: checks a tree with one tracked file, whose content is standard input.
text() {
  local file=$3
  rm -rf "${tree:?}"/*
  cat >"$tree/$file"
  git -C "$tree" add -A
  expect "$1" "$2" "$checker" "$tree"
}

# Tests of comments and identifiers use the checker of this tree.
checker=$top/scripts/check_text.sh
columns=$(printf 'x%.0s' {1..117})
text pass "" a.cpp <<<"// $columns"
text fail "a.cpp:1: a comment of more than 120 columns" a.cpp <<<"// ${columns}x"
text fail "a.cpp:1: a comment of more" a.cpp <<<"int i;  // $columns"
text fail "a.c:2: a comment of more" a.c < <(printf '/* a\n * %s\n */\n' "${columns}x")
text fail "a.sh:1: a comment of more" a.sh <<<"# ${columns}xx"
text pass "" a.sh <<<"echo $columns"
text pass "" a.cpp <<<"const char* url = \"http://$columns\";"
text pass "" a.cpp <<<"// $(printf 'é%.0s' {1..117})"
text pass "" a.md <<<"${columns}xxxx"
text fail 'a.h:2: "will not do": write instead' a.h < <(printf 'int x;\n// A file Will Not Do.\n')
text fail 'a.md:1: "nobody[^ ]s"' a.md <<<"The lock is nobody's."
text fail "write instead: EventSimulator" a.cpp <<<"Clockwork clock;"
text pass "" a.cpp <<<"ClockworkOrange clock;"

# Tests of subjects use a copy of the checker, whose base is the first commit of the scratch tree.
checker=$scratch/check_text.sh
echo 'int x;' >"$tree/a.cpp"
git -C "$tree" add -A
git -C "$tree" commit -qm "First"
sed "s/^subjects_base=.*/subjects_base=$(git -C "$tree" rev-parse HEAD)/" "$top/scripts/check_text.sh" >"$checker"
chmod +x "$checker"

# subject pass|fail TEXT SUBJECT: checks a commit with that subject.
subject() {
  git -C "$tree" commit -q --allow-empty -m "$3"
  expect "$1" "$2" "$checker" "$tree"
  git -C "$tree" reset -q --hard HEAD~1
}

subject pass "" "Add a test"
subject pass "" "Add $(printf 'y%.0s' {1..68})"
subject fail "of 73 characters" "Add $(printf 'y%.0s' {1..69})"
subject fail "is not an imperative clause: added a test" "added a test"
subject fail "is not an imperative clause: Add a test." "Add a test."
subject fail "is not an imperative clause" "Tests"

mkdir "$scratch/no_repository"
expect fail "git ls-files failed" env GIT_CEILING_DIRECTORIES="$scratch" "$checker" "$scratch/no_repository"
exit $((failures > 0))
