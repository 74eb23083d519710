# Reads GoogleTest's XML reports. Prints the number of cases, and the number skipped by suite and reason.
function plain(text) {
  gsub(/&#x0A;/, " ", text)
  gsub(/&apos;/, "\047", text)
  gsub(/&quot;/, "\"", text)
  gsub(/&lt;/, "<", text)
  gsub(/&gt;/, ">", text)
  gsub(/&amp;/, "\\&", text)
  return text
}
/<testcase / {
  split($0, part, " classname=\"")
  split(part[2], class, "\"")
  ++cases
}
/<skipped message="/ {
  reason = $0
  sub(/^.*<skipped message="/, "", reason)
  sub(/".*/, "", reason)
  sub(/^[^&]*&#x0A;/, "", reason)  # the file and line
  reason = class[1] ": " plain(reason)
  if (!count[reason]++) order[++reasons] = reason
  ++skipped
}
END {
  printf "%d GoogleTest cases, %d of them skipped\n", cases, skipped
  for (i = 1; i <= reasons; ++i) printf "  %d of %s\n", count[order[i]], order[i]
}
