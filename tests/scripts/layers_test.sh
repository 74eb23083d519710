#!/usr/bin/env bash
# Tests every rule of check_layers.sh with one violation in an otherwise valid tree, and with a similar valid case.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"

# fresh: creates a small valid tree.
fresh() {
  rm -rf "${scratch:?}"/*
  mkdir -p "$scratch"/{kernels,sharding,optim,checkpoint,capi,apps/examples,tests/optim,bench,include/aliquot} \
    "$scratch"/engine/{plan,proof,cost,choose,run} "$scratch"/checkpoint/{file,weights}
  for folder in file weights; do echo '#pragma once' >"$scratch/checkpoint/$folder/a.h"; done
  for folder in plan cost run; do echo '#pragma once' >"$scratch/engine/$folder/a.h"; done
  for module in kernels sharding optim checkpoint engine capi apps; do
    echo '#pragma once' >"$scratch/$module/$module.h"
  done
  for folder in include/aliquot apps/examples; do echo '#pragma once' >"$scratch/$folder/aliquot.h"; done
}

# rule pass|fail TEXT FILE LINE...: creates a fresh tree, adds FILE with the lines, and runs check_layers.sh on it. The
# check must pass or fail, and its output must contain TEXT.
rule() {
  local wanted=$1 text=$2 file=$3
  shift 3
  fresh
  printf '%s\n' "$@" >"$scratch/$file"
  expect "$wanted" "$text" "$top/scripts/check_layers.sh" "$scratch"
}

rule fail "kernels may not include sharding/" kernels/a.cpp '#include "sharding/sharding.h"'
rule fail "optim may not include sharding/" optim/a.cpp '#include "sharding/sharding.h"'
rule fail "checkpoint may not include engine/" checkpoint/a.cpp '  #  include "engine/engine.h"'
rule fail "engine may not include checkpoint/" engine/a.cpp '#include <checkpoint/checkpoint.h>'
rule fail "engine/plan/ may not include engine/run/" engine/plan/a.cpp '#include "engine/run/a.h"'
rule fail "engine/proof/ may not include engine/cost/" engine/proof/a.cpp '#include "engine/cost/a.h"'
rule pass "" engine/choose/a.cpp '#include "engine/cost/a.h"' '#include "engine/plan/a.h"'
rule pass "" engine/a.cpp '#include "engine/run/a.h"'
rule fail "checkpoint/file/ may not include checkpoint/ (" checkpoint/file/a.cpp '#include "checkpoint/checkpoint.h"'
rule fail "checkpoint/ may not include checkpoint/weights/" checkpoint/a.cpp '#include "checkpoint/weights/a.h"'
rule pass "" checkpoint/weights/a.cpp '#include "checkpoint/checkpoint.h"' '#include "checkpoint/file/a.h"'
rule fail "optim may not include sharding/" tests/optim/a_test.cpp '#include "sharding/sharding.h"'
rule fail "tests/ may not be included" kernels/a.cpp '#include "tests/optim/a.h"'
rule fail "capi may not include apps/" capi/a.cpp '#include "apps/apps.h"'
rule fail "installed users" capi/a.cpp '#include <aliquot/aliquot.h>'
rule pass "" capi/a.cpp '#include <aliquot/c.h>' '#include "engine/engine.h"'
rule fail "installed users" engine/a.cpp '#include <aliquot/aliquot.h>'
rule fail "is not a file of this tree" kernels/a.cpp '#include "kernels.h"'
rule fail "is not a file of this tree" sharding/a.cpp '#include "../kernels/kernels.h"'
rule fail "kernels/a.cpp:2: cuda_runtime.h" kernels/a.cpp '// first' '#include <cuda_runtime.h>'
rule fail "cub/cub.cuh" kernels/cuda.cpp '#include <cub/cub.cuh>'
rule fail "nccl.h" sharding/nccl_exchange.cpp '#include <nccl.h>'
rule fail "mpi.h may be" sharding/world.cpp '#include <mpi.h>'
rule fail "hdf5.h may be" engine/a.cpp '#include <hdf5.h>'
rule fail "hdf5.h may be" apps/main.cpp '#include "hdf5.h"'
rule fail "by the preprocessor" kernels/a.cpp '#ifdef ALIQUOT_WITH_CUDA' '#endif'
rule fail "by the preprocessor" kernels/a.cpp '#if defined(HAVE_MPI)' '#endif'
rule fail "#pragma once is missing" kernels/a.h 'int a();'

rule pass "" apps/a.cpp '#include "engine/engine.h"' '#include "checkpoint/checkpoint.h"' '#include "kernels/kernels.h"'
rule pass "" sharding/a_mpi.cpp '#include <mpi.h>' '#include "kernels/kernels.h"'
rule pass "" include/aliquot/mpi.h '#pragma once' '#include <mpi.h>'
rule fail "mpi.h may be" include/aliquot/c.h '#pragma once' '#include <mpi.h>'
rule pass "" kernels/a.cu '#include <cub/cub.cuh>' '#include <cuda_runtime.h>'
rule pass "" sharding/a_nccl.h '#pragma once' '#include <nccl.h>'
rule pass "" checkpoint/file.cpp '#include <hdf5.h>'
rule pass "" apps/data_reader.cpp '#include <hdf5.h>'
rule pass "" apps/examples/a.cpp '#include <aliquot/aliquot.h>'
rule pass "" apps/examples/a.cpp '#include "aliquot.h"'
rule fail "is not a file of this tree" apps/examples/a.cpp '#include "beside.h"'
rule pass "" kernels/a.cpp '// #include "engine/engine.h"' '#ifdef __CUDACC__' '#endif'
exit $((failures > 0))
