#!/usr/bin/env bash
# scripts/check_layers.sh [TREE]
# Fails, naming file and line, on an include that runs the wrong way between rooms or between the folders of one, on a header of CUDA, NCCL, MPI or HDF5
# outside the files that may hold it, on a path not spelled from the top of the tree, on a backend chosen by the
# preprocessor, and on a header without #pragma once. TREE is this one unless named. docs/style.md has the rules.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

folders=()
for folder in kernels sharding optim checkpoint engine capi libtorch apps include tests bench; do
  if [ -d "$folder" ]; then folders+=("$folder"); fi
done

find "${folders[@]}" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) | LC_ALL=C sort | awk '
BEGIN {
  rooms = "kernels sharding optim checkpoint engine capi libtorch apps"
  may["kernels"] = "kernels"
  may["sharding"] = "kernels sharding"
  may["optim"] = "kernels optim"
  may["checkpoint"] = "kernels sharding checkpoint"
  may["engine"] = "kernels sharding optim engine"
  may["capi"] = "kernels sharding optim checkpoint engine capi"
  may["libtorch"] = "kernels sharding optim engine libtorch"
  may["apps"] = rooms
  may["bench"] = rooms " bench"
  may["include"] = "kernels sharding optim checkpoint engine libtorch aliquot"
  # Folders inside a room: which of that room each may include. A room itself, at its top, may include all of its folders.
  inner["kernels/formats"] = "kernels/formats"
  inner["kernels/gemm"] = "kernels/elementwise kernels/formats kernels/gemm kernels/system"
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
function complain(why) { printf "%s:%d: %s\n", file, line_number, why; bad++ }

# The room whose rules a file keeps: its own folder, or for a test the folder it mirrors.
function room_of(path,   part) {
  split(path, part, "/")
  return part[1] == "tests" && has(rooms, part[2]) ? part[2] : part[1]
}
# Whether the file name says, as one of its words, that it belongs to the backend: stream_cuda.h, bootstrap_mpi_test.cpp.
function belongs_to(name, backend) {
  sub(/.*\//, "", name)
  return name ~ ("(^|_)" backend "([_.]|$)") && (in_tests || name ~ ("_" backend "\\."))
}
function check_backend(header) {
  if (header ~ /^(cuda|cublas|curand|cub\/|thrust\/|cooperative_groups|nvtx|nccl|device_launch_parameters)/) {
    if (file !~ /\.cuh?$/ && !belongs_to(file, "cuda") && !belongs_to(file, "nccl"))
      complain(header " may be included by *.cu, *_cuda.* and *_nccl.* alone")
  } else if (header ~ /^mpi/) {
    if (!belongs_to(file, "mpi")) complain(header " may be included by *_mpi.* alone")
  } else if (header ~ /^(hdf5|H5)/) {
    if (room != "checkpoint" && !(room == "apps" && file ~ /(data|tokens|hdf5|h5)[^\/]*$/))
      complain(header " may be included by checkpoint/ and the data reader of apps/ alone")
  }
}
function check_room(header,   to) {
  to = top(header)
  if (to == "aliquot") {
    if (has(rooms, room) && !in_tests && file !~ /^apps\/examples\// && !(room == "capi" && header == "aliquot/c.h"))
      complain("<aliquot/...> is for installed users; a room names the headers it needs")
  } else if (has(rooms, to) && room in may && !has(may[room], to))
    complain(room " may not include " to "/ (it may: " may[room] ")")
  else if (has("tests bench", to) && to != top(file) && !(top(file) == "bench" && folder_of(header) == "tests/support"))
    complain(to "/ may not be included from " top(file) "/")
  else if (folder_of(file) in inner && to == top(file) && !has(inner[folder_of(file)], folder_of(header)))
    complain(folder_of(file) "/ may not include " folder_of(header) "/ (it may: " inner[folder_of(file)] ")")
}
function check_line(text,   header, quoted) {
  if (text ~ /^[ \t]*#[ \t]*(if|ifdef|ifndef|elif)[ \t(!].*(HAVE|WITH|USE|ENABLE|ALIQUOT)_(CUDA|NCCL|MPI)/)
    complain("a backend is chosen by source file in CMake, never by the preprocessor")
  if (text !~ /^[ \t]*#[ \t]*include[ \t]*[<"]/) return
  quoted = text ~ /include[ \t]*"/
  header = text
  sub(/^[ \t]*#[ \t]*include[ \t]*[<"]/, "", header)
  sub(/[>"].*/, "", header)
  check_backend(header)
  check_room(header)
  # Examples are compiled as users would, so one names a header that lies beside it.
  if (file ~ /^apps\/examples\//) header = folder_of(file) "/" header
  if (quoted && (header ~ /\.\.\// || (getline unused < header) < 0))
    complain("\"" header "\" is no file of this tree; paths are spelled from its top")
  if (quoted) close(header)
}
{
  file = $0
  room = room_of(file)
  in_tests = top(file) == "tests" || top(file) == "bench"
  once = 0
  line_number = 0
  while ((getline text < file) > 0) {
    ++line_number
    if (text ~ /^#pragma once/) once = 1
    check_line(text)
  }
  close(file)
  if (file ~ /\.(h|cuh)$/ && !once) complain("#pragma once is missing")
}
END { exit bad > 0 }'
