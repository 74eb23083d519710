# awk -f throws.awk -v table=FILE HITS EXCEPTIONS SOURCE...: writes FILE, a table of the throwing statements in the
# sources, each with its exit code and a test that reaches it. HITS has lines "TEST FILE LINE". EXCEPTIONS has lines
# "FILE | part of the statement | reason why no test reaches it". Prints each statement that no test reaches and that
# EXCEPTIONS does not list, and fails. Also fails if a test reaches a listed statement, or if a line of EXCEPTIONS
# matches no statement.
function code_of(kind) {
  sub(/^.*::/, "", kind)
  if (kind == "UsageError" || kind == "SafetensorsFormatError") return 1
  if (kind == "UnavailableError") return 2
  if (kind == "FaultError" || kind == "CommunicationError") return 3
  if (kind == "CheckpointError" || kind == "ManifestFormatError") return 5
  if (kind == "Error") return "of the error"
  if (kind == "WorkCancelled") return "of the failed rank"
  return "a bug"
}
FNR == 1 { ++part; if (part > 2) { file = FILENAME; open = 0 } }
part == 1 {
  if ($2 == "-" || $3 == "") next
  key = $2 ":" $3
  if (!(key in first) || (first[key] == "-" && $1 != "-")) first[key] = $1
  if (!((key, $1) in came)) { came[key, $1] = 1; ++tests[key] }
  next
}
part == 2 {
  if ($0 ~ /^#/ || $0 !~ / \| /) next
  split($0, column, / +\| +/)
  ++exceptions
  exception_file[exceptions] = column[1]
  exception_words[exceptions] = column[2]
  reason[exceptions] = column[3]
  next
}
/^[ \t]*\/\// { next }
!open && match($0, /(^|[^A-Za-z_"])throw [A-Za-z_:]+[({]/) {
  open = 1
  ++places
  kind[places] = substr($0, RSTART, RLENGTH - 1)
  sub(/^.*throw /, "", kind[places])
  place[places] = file ":" FNR
  place_file[places] = file
  text[places] = ""
}
open {
  line = $0
  sub(/^[ \t]+/, "", line)
  text[places] = text[places] (text[places] == "" ? "" : " ") line
  key = file ":" FNR
  if (key in first) {
    if (!(places in test)) { test[places] = first[key]; others[places] = tests[key] - 1 }
  }
  if ($0 ~ /;[ })]*(\/\/.*)?$/) open = 0
}
function why(p,   e) {
  for (e = 1; e <= exceptions; ++e) {
    if (exception_file[e] == place_file[p] && index(text[p], exception_words[e])) { used[e] = p; return reason[e] }
  }
  return ""
}
END {
  print "| place | error | exit code | test | statement |\n| --- | --- | --- | --- | --- |" >table
  for (p = 1; p <= places; ++p) {
    listed = why(p)
    if (p in test) {
      ++hit
      if (listed != "") {
        printf "%s is listed as unreachable (%s), but %s reaches it\n", place[p], listed, test[p]
        ++bad
      }
      by = test[p] (others[p] > 0 ? " and " others[p] " more" : "")
    } else if (listed != "") {
      ++excepted
      by = "none: " listed
    } else {
      printf "%s: no test reaches this statement: %s\n", place[p], substr(text[p], 1, 150)
      ++bad
      by = "NONE"
    }
    what = text[p]
    gsub(/\|/, "\\|", what)
    printf "| %s | %s | %s | %s | `%s` |\n", place[p], kind[p], code_of(kind[p]), by, what >table
  }
  for (e = 1; e <= exceptions; ++e) {
    if (!(e in used)) {
      printf "this exception matches no statement: %s | %s\n", exception_file[e], exception_words[e]
      ++bad
    }
  }
  printf "%d throwing statements: tests reach %d, %d are listed as unreachable\n", places, hit, excepted
  exit bad > 0
}
