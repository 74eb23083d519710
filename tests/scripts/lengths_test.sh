#!/usr/bin/env bash
# Tests that check_lengths.sh measures functions of every shape, and ignores braces in literals and comments.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"

# body OPENING LINES [CLOSING]: prints a function of that many lines.
body() {
  echo "$1"
  for ((i = 2; i < $2; ++i)); do echo '    if (x) { y(); }  // }}'; done
  echo "${3:-\}}"
}

# lengths pass|fail TEXT: expects that the check of a tree passes, or fails with a message that contains TEXT. The only
# source file of the tree has the contents of standard input.
lengths() {
  mkdir -p "$scratch/kernels"
  cat >"$scratch/kernels/a.cpp"
  expect "$1" "$2" "$top/scripts/check_lengths.sh" "$scratch"
}

lengths pass "" < <(body 'void f() {' 60)
lengths fail "kernels/a.cpp:1: a function of 61 lines" < <(body 'void f() {' 61)
lengths fail "a.cpp:2: a function of 61" \
  < <(echo 'namespace a {' && body 'int f(int a) const noexcept {' 61 && echo '}')
lengths fail "a.cpp:2: a function of 61" < <(echo 'class A {' && body 'A(int x) : a_{x}, b_(x) {' 61 && echo '};')
lengths fail "a.cpp:1: a function of 61" < <(echo 'int f(int a,' && body '    int b) {' 60)
lengths fail "a function of 70" < <(body 'TEST(Suite, Case) {' 70)
lengths pass "" < <(echo "const char* a = \"{\"; char b = '{';" && body 'void f() {' 60)
lengths pass "" < <(echo 'const char* a = R"(void f() {' && body '' 70 ')";' && body 'void f() {' 60)
lengths pass "" < <(body 'namespace a {' 70)
lengths pass "" < <(body 'struct A {' 70 '};')
lengths pass "320 lines" < <(body '// long' 320 '//')
exit $((failures > 0))
