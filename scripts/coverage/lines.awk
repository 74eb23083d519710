# awk -f lines.awk: reads the output of gcov --stdout for all objects, and prints a table of reached lines by folder.
# -v unhit=FILE: writes the unreached lines to FILE. A line of a header counts once, as reached if any object reached
# it.
BEGIN { FS = ":" }
{
  count = $1
  gsub(/[ *]/, "", count)
  line = $2 + 0
}
line == 0 {
  if ($3 == "Source") { file = $4; is_ours = file ~ /^(kernels|sharding|optim|checkpoint|engine|capi|apps|libtorch)\// }
  next
}
!is_ours || count !~ /^([0-9]+|#####|=====|\$\$\$\$\$|%%%%%)$/ { next }
{
  key = file ":" line
  if (!(key in reached)) { reached[key] = 0; text[key] = substr($0, length($1) + length($2) + 3); file_of[key] = file }
  if (count ~ /^[0-9]/ && count + 0 > 0) reached[key] = 1
}
END {
  for (key in reached) {
    folder = file_of[key]
    sub(/\/[^\/]*$/, "", folder)
    ++lines[folder]
    hits[folder] += reached[key]
    ++all
    all_hits += reached[key]
    if (!reached[key] && unhit) print key ":" text[key] | ("sort -t : -k 1,1 -k 2,2n >" unhit)
  }
  printf "%-22s %8s %8s %8s\n", "folder", "lines", "reached", "%"
  for (folder in lines) {
    percent = 100 * hits[folder] / lines[folder]
    printf "%-22s %8d %8d %8.1f\n", folder, lines[folder], hits[folder], percent | "LC_ALL=C sort"
  }
  close("LC_ALL=C sort")
  if (all) printf "%-22s %8d %8d %8.1f\n", "all", all, all_hits, 100 * all_hits / all
}
