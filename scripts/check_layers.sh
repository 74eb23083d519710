#!/usr/bin/env bash
# scripts/check_layers.sh [TREE]
# Checks the include rules of docs/style.md and prints the file and line of each violation: an include in the wrong
# direction between modules or between folders of a module; a header of CUDA, NCCL, MPI or HDF5 outside the files of
# that backend; a path not relative to the root; a backend selected by the preprocessor; a header without #pragma once.
# TREE is the root of the tree (default: this repository).
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

folders=()
for folder in kernels sharding optim checkpoint engine capi libtorch apps include tests bench; do
  if [ -d "$folder" ]; then folders+=("$folder"); fi
done

find "${folders[@]}" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) | LC_ALL=C sort | awk '
BEGIN {
  modules = "kernels sharding optim checkpoint engine capi libtorch apps"
  may["kernels"] = "kernels"
  may["sharding"] = "kernels sharding"
  may["optim"] = "kernels optim"
  may["checkpoint"] = "kernels sharding checkpoint"
  may["engine"] = "kernels sharding optim engine"
  may["capi"] = "kernels sharding optim checkpoint engine capi"
  may["libtorch"] = "kernels sharding optim engine libtorch"
  may["apps"] = modules
  may["bench"] = modules " bench"
  may["include"] = "kernels sharding optim checkpoint engine libtorch aliquot"
  # The folders of a module that each folder may include. Files at the top of a module may include all of its folders.
  inner["kernels/formats"] = "kernels/formats"
  inner["kernels/gemm"] = "kernels/device kernels/elementwise kernels/formats kernels/gemm kernels/system"
  inner["kernels/layers"] = "kernels/device kernels/elementwise kernels/formats kernels/layers kernels/system"
  inner["kernels/system"] = "kernels/system"
  inner["sharding/comm"] = "sharding sharding/comm sharding/memory"
  inner["sharding/memory"] = "sharding/comm sharding/memory"
  inner["sharding/flight"] = "sharding/comm sharding/flight"
  inner["optim/muon"] = "optim optim/muon"
  inner["checkpoint"] = "checkpoint checkpoint/file checkpoint/hash"
  inner["checkpoint/hash"] = "checkpoint/hash"
  inner["checkpoint/file"] = "checkpoint/hash checkpoint/file"
  inner["checkpoint/weights"] = "checkpoint checkpoint/file checkpoint/weights"
  inner["engine/plan"] = "engine/plan engine/plan/writer"
  inner["engine/plan/writer"] = "engine/plan engine/plan/writer"
  inner["engine/proof"] = "engine/plan engine/proof"
  inner["engine/cost"] = "engine/plan engine/cost"
  inner["engine/choose"] = "engine/plan engine/cost engine/choose"
  inner["engine/options"] = "engine engine/plan engine/options"
  inner["engine/run"] = "engine/plan engine/run engine/run/memory"
  inner["engine/run/memory"] = "engine/plan engine/run engine/run/memory"
}
function has(words, word) { return index(" " words " ", " " word " ") > 0 }
function top(path) { sub(/\/.*/, "", path); return path }
function folder_of(path) { sub(/\/[^\/]*$/, "", path); return path }
function report(why) { printf "%s:%d: %s\n", file, line_number, why; bad++ }

# Returns the module whose rules apply to a file: its own folder or, for a test, the folder under test.
function module_of(path,   part) {
  split(path, part, "/")
  return part[1] == "tests" && has(modules, part[2]) ? part[2] : part[1]
}
# Returns whether a word of the file name is the backend, as in stream_cuda.h or bootstrap_mpi_test.cpp.
function belongs_to(name, backend) {
  sub(/.*\//, "", name)
  return name ~ ("(^|_)" backend "([_.]|$)") && (in_tests || name ~ ("_" backend "\\."))
}
function check_backend(header) {
  if (header ~ /^(cuda|cublas|curand|cub\/|thrust\/|cooperative_groups|nvtx|nccl|device_launch_parameters)/) {
    if (file !~ /\.cuh?$/ && !belongs_to(file, "cuda") && !belongs_to(file, "nccl"))
      report(header " may be included only by *.cu, *_cuda.* and *_nccl.*")
  } else if (header ~ /^mpi/) {
    if (!belongs_to(file, "mpi") && file != "include/aliquot/mpi.h")
      report(header " may be included only by *_mpi.* and <aliquot/mpi.h>")
  } else if (header ~ /^(hdf5|H5)/) {
    if (module != "checkpoint" && !(module == "apps" && file ~ /(data|tokens|hdf5|h5)[^\/]*$/))
      report(header " may be included only by checkpoint/ and the data reader of apps/")
  }
}
function check_module(header,   to) {
  to = top(header)
  if (to == "aliquot") {
    if (has(modules, module) && !in_tests && file !~ /^apps\/examples\// &&
        !(module == "capi" && header == "aliquot/c.h"))
      report("<aliquot/...> is for installed users: include the header of the module instead")
  } else if (has(modules, to) && module in may && !has(may[module], to))
    report(module " may not include " to "/ (allowed: " may[module] ")")
  else if (has("tests bench", to) && to != top(file) && !(top(file) == "bench" && folder_of(header) == "tests/support"))
    report(to "/ may not be included from " top(file) "/")
  else if (folder_of(file) in inner && to == top(file) && !has(inner[folder_of(file)], folder_of(header)))
    report(folder_of(file) "/ may not include " folder_of(header) "/ (allowed: " inner[folder_of(file)] ")")
}
function check_line(text,   header, quoted) {
  if (text ~ /^[ \t]*#[ \t]*(if|ifdef|ifndef|elif)[ \t(!].*(HAVE|WITH|USE|ENABLE|ALIQUOT)_(CUDA|NCCL|MPI)/)
    report("select a backend by source file in CMake, not by the preprocessor")
  if (text !~ /^[ \t]*#[ \t]*include[ \t]*[<"]/) return
  quoted = text ~ /include[ \t]*"/
  header = text
  sub(/^[ \t]*#[ \t]*include[ \t]*[<"]/, "", header)
  sub(/[>"].*/, "", header)
  check_backend(header)
  check_module(header)
  # Examples are compiled as a user would compile them, so they may include a header of their own folder by name alone.
  if (file ~ /^apps\/examples\//) header = folder_of(file) "/" header
  if (quoted && (header ~ /\.\.\// || (getline unused < header) < 0))
    report("\"" header "\" is not a file of this tree: write the path relative to its root")
  if (quoted) close(header)
}
{
  file = $0
  module = module_of(file)
  in_tests = top(file) == "tests" || top(file) == "bench"
  once = 0
  line_number = 0
  while ((getline text < file) > 0) {
    ++line_number
    if (text ~ /^#pragma once/) once = 1
    check_line(text)
  }
  close(file)
  if (file ~ /\.(h|cuh)$/ && !once) report("#pragma once is missing")
}
END { exit bad > 0 }'
