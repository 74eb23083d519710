# Reads the output of ctest. Prints the ten tests that took the longest, with their seconds.
match($0, /Test +#[0-9]+: /) && match($0, /[0-9.]+ sec *$/) {
  seconds = substr($0, RSTART) + 0
  name = $0
  sub(/^.*Test +#[0-9]+: /, "", name)
  sub(/ .*$/, "", name)
  time[name] = seconds
}
END {
  for (place = 1; place <= 10; ++place) {
    slowest = ""
    for (name in time) {
      if (slowest == "" || time[name] > time[slowest] || (time[name] == time[slowest] && name < slowest)) slowest = name
    }
    if (slowest == "") break
    if (place == 1) print "The slowest tests, in seconds:"
    printf "  %7.1f %s\n", time[slowest], slowest
    delete time[slowest]
  }
}
