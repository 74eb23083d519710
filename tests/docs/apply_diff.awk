# awk -f apply_diff.awk PROGRAM DIFF: applies the diff's hunks to the program. Lines of a hunk begin with ' ', '-' or
# '+'; @@ separates hunks. The old lines of a hunk must occur in the program consecutively, and exactly once.
function fail(why) { print "apply_diff: " why > "/dev/stderr"; exit failed = 1 }
function matches(at,   i) {
  for (i = 1; i <= olds; ++i) if (program[at + i - 1] != old[i]) return 0
  return 1
}
function apply_hunk(   at, found, places, i, tail) {
  if (olds + news == 0) return
  for (at = 1; at + olds - 1 <= count; ++at) if (matches(at)) { found = at; ++places }
  if (places != 1) fail("the lines from \"" old[1] "\" occur " places + 0 " times in the program, expected once")
  tail = 0
  for (i = found + olds; i <= count; ++i) rest[++tail] = program[i]
  count = found - 1
  for (i = 1; i <= news; ++i) program[++count] = new[i]
  for (i = 1; i <= tail; ++i) program[++count] = rest[i]
  olds = news = 0
}
FNR == NR { program[++count] = $0; next }
/^@@/ { apply_hunk(); next }
/^-/ { old[++olds] = substr($0, 2); next }
/^[+]/ { new[++news] = substr($0, 2); next }
{ old[++olds] = new[++news] = substr($0, 2) }
END {
  if (failed) exit 1
  apply_hunk()
  if (failed) exit 1
  for (i = 1; i <= count; ++i) print program[i]
}
