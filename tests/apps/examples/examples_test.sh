#!/usr/bin/env bash
# examples_test.sh EXAMPLES [MPIEXEC]: runs the example programs in the folder EXAMPLES and compares their losses.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/../../scripts/expect.sh"
examples=$1 mpiexec=${2:-}

# same WHAT FILE FILE: checks that the files are equal.
same() { cmp -s "$2" "$3" || { echo "$1: $(diff "$2" "$3" | head -4)" && failures=$((failures + 1)); }; }
# near WHAT FILE FILE: checks that the losses in the files differ by rounding only.
near() {
  paste "$2" "$3" | awk -v what="$1" '{ d = $4 - $8; if (d < 0) d = -d; if (!($4 > 0 && d < 1e-4 * $4)) { print what ": " $0; bad = 1 } }
    END { exit bad || NR == 0 }' || failures=$((failures + 1))
}

# The C and C++ programs give equal bits, at every ZeRO stage.
for ranks in 1 2 3; do
  "$examples/mlp" $ranks 0 60 >"$scratch/mlp"
  grep -q '^step 60 loss 0[.]00' "$scratch/mlp" || { cat "$scratch/mlp" && failures=$((failures + 1)); }
  for stage in 0 1 2 3; do
    "$examples/mlp" $ranks $stage 60 >"$scratch/stage"
    same "mlp, $ranks ranks, ZeRO stage $stage against 0" "$scratch/mlp" "$scratch/stage"
    "$examples/mlp_c" $ranks $stage 60 >"$scratch/c"
    same "mlp in C, $ranks ranks, ZeRO stage $stage" "$scratch/mlp" "$scratch/c"
  done
done
if [ -n "$mpiexec" ]; then
  "$examples/mlp" 2 3 20 >"$scratch/threads"
  "$mpiexec" -n 2 --oversubscribe "$examples/mlp_c" 1 3 20 >"$scratch/processes"
  same "mlp in C under mpirun" "$scratch/threads" "$scratch/processes"
fi

# A run that stops and resumes at another ZeRO stage has the losses of an uninterrupted run.
"$examples/mlp_c" 2 1 60 >"$scratch/uninterrupted"
"$examples/mlp_c" 2 3 40 "$scratch/state" >"$scratch/first"
"$examples/mlp_c" 2 0 60 "$scratch/state" >>"$scratch/first"
same "mlp in C, resumed" "$scratch/uninterrupted" "$scratch/first"
expect pass "" test -e "$scratch/state/step-00000060/state.h5"
expect fail "the option zero-stage: invalid value '5': expected one of 0, 1, 2, 3" "$examples/mlp_c" 2 5
expect fail "a world needs at least one rank" "$examples/mlp_c" 0

# The Fortran program computes the same bits, and prints them in another format. It resumes too.
same_numbers() {
  paste "$2" "$3" | awk -v what="$1" '{ if ($2 != $6 || $4 + 0 != $8 + 0) { print what ": " $0; bad = 1 } }
    END { exit bad || NR == 0 }' || failures=$((failures + 1))
}
if [ -x "$examples/mlp_f" ]; then
  for ranks in 1 2 3; do
    "$examples/mlp_c" $ranks 3 60 >"$scratch/c"
    "$examples/mlp_f" $ranks 3 60 >"$scratch/fortran"
    same_numbers "mlp in Fortran, $ranks ranks" "$scratch/c" "$scratch/fortran"
  done
  "$examples/mlp_c" 2 3 60 >"$scratch/c"
  "$examples/mlp_f" 3 2 20 "$scratch/fortran_state" >"$scratch/first"
  "$examples/mlp_f" 3 3 40 "$scratch/fortran_state" >>"$scratch/first"
  "$examples/mlp_c" 3 1 40 >"$scratch/uninterrupted"
  same_numbers "mlp in Fortran, resumed" "$scratch/uninterrupted" "$scratch/first"
  if [ -n "$mpiexec" ]; then
    "$mpiexec" -n 2 --oversubscribe "$examples/mlp_f" 1 3 60 >"$scratch/fortran"
    same_numbers "mlp in Fortran under mpirun" "$scratch/c" "$scratch/fortran"
  fi
  expect fail "aliquot: the option zero-stage: invalid value '5'" "$examples/mlp_f" 2 5
fi

# A simulation on one rank feeds the others, which train. The plain program adds the gradients of the batches in another
# order, so its losses differ by rounding. The evaluations differ likewise.
near_evaluations() {
  paste "$2" "$3" | awk -v what="$1" 'function far(a, b,  d) { d = a - b; if (d < 0) d = -d; return !(a > 0 && d < 1e-3 * a) }
    $2 != $8 || far($4, $10) || far($6, $12) { print what ": " $0; bad = 1 } END { exit bad || NR == 0 }' ||
    failures=$((failures + 1))
}
if [ -n "$mpiexec" ] && [ -x "$examples/surrogate_mpi" ]; then
  for trainers in 1 2 3; do
    "$examples/surrogate" $trainers 60 >"$scratch/plain"
    grep -q '^step 60 loss 0[.]00.* error 0[.]00' "$scratch/plain" || { cat "$scratch/plain" && failures=$((failures + 1)); }
    for program in surrogate_mpi surrogate_mpi_f; do
      if [ ! -x "$examples/$program" ]; then continue; fi
      "$mpiexec" -n $((trainers + 1)) --oversubscribe "$examples/$program" 60 3 >"$scratch/$program"
      near_evaluations "$program, $trainers ranks train" "$scratch/plain" "$scratch/$program"
      "$mpiexec" -n $((trainers + 1)) --oversubscribe "$examples/$program" 60 1 >"$scratch/stage"
      same "$program, $trainers ranks train, ZeRO stage 1" "$scratch/$program" "$scratch/stage"
    done
    if [ -e "$scratch/surrogate_mpi_f" ]; then
      # MPI_Abort() makes mpiexec print a text, or a message that show_help.c cannot decode the texts of several ranks.
      said=$("$mpiexec" -n $((trainers + 1)) --oversubscribe "$examples/surrogate_mpi_f" 60 9 2>&1) && failures=$((failures + 1))
      if [[ $said != *"surrogate_mpi_f: the option zero-stage: invalid value '9'"* ]] || ! grep -qi 'abort\|show_help\.c' <<<"$said"; then
        echo "an error of surrogate_mpi_f: $said" && failures=$((failures + 1))
      fi
      paste "$scratch/surrogate_mpi" "$scratch/surrogate_mpi_f" |
        awk '{ if ($4 + 0 != $10 + 0 || $6 + 0 != $12 + 0) { print "the surrogates differ: " $0; bad = 1 } } END { exit bad || NR != 3 }' ||
        failures=$((failures + 1))
    fi
  done
fi

# On one rank, the sharded transformer gives the same bits as the transformer without Aliquot.
"$examples/transformer" 4 1 >"$scratch/alone"
for stage in 0 1 2 3; do
  "$examples/transformer_sharded" 4 1 1 $stage >"$scratch/stage"
  same "transformer, 1 rank, ZeRO stage $stage" "$scratch/alone" "$scratch/stage"
done
# With several ranks, gradients are added in a different order, so losses differ by rounding. The same holds for two
# micro-batches at ZeRO stage 3. At ZeRO stage 1, full gradients are accumulated in the order of the unsharded program.
for ranks in 2 4; do
  "$examples/transformer" 4 $ranks >"$scratch/alone"
  "$examples/transformer_sharded" 4 1 $ranks 0 >"$scratch/stage0"
  near "transformer, $ranks ranks" "$scratch/alone" "$scratch/stage0"
  for stage in 1 2 3; do
    "$examples/transformer_sharded" 4 1 $ranks $stage >"$scratch/stage"
    same "transformer, $ranks ranks, ZeRO stage $stage against 0" "$scratch/stage0" "$scratch/stage"
  done
done
"$examples/transformer" 4 2 >"$scratch/alone"
"$examples/transformer_sharded" 4 2 1 1 >"$scratch/full"
same "transformer, 2 micro-batches accumulated into full gradients" "$scratch/alone" "$scratch/full"
"$examples/transformer_sharded" 4 2 1 3 >"$scratch/shard"
near "transformer, 2 micro-batches accumulated into shards" "$scratch/alone" "$scratch/shard"

# On a pipeline, the transformer gives the same bits as without Aliquot if full gradients are accumulated. If shards of
# gradients are accumulated, the bits are the same for any number of pipeline stages.
for stages in 1 2 3; do
  "$examples/transformer_pipeline" 4 2 $stages 1 >"$scratch/pipeline"
  same "transformer on $stages pipeline stages" "$scratch/alone" "$scratch/pipeline"
  "$examples/transformer_pipeline" 4 2 $stages 3 >"$scratch/pipeline"
  same "transformer on $stages pipeline stages at ZeRO stage 3" "$scratch/shard" "$scratch/pipeline"
done
# Split backward passes give the same bits as whole ones.
"$examples/transformer" 4 4 >"$scratch/alone"
for stages in 2 3; do
  "$examples/transformer_pipeline" 4 4 $stages 1 zero-bubble >"$scratch/pipeline"
  same "transformer on $stages pipeline stages with split backward passes" "$scratch/alone" "$scratch/pipeline"
done
if [ -n "$mpiexec" ]; then
  "$mpiexec" -n 2 --oversubscribe "$examples/transformer_pipeline" 4 2 2 3 >"$scratch/pipeline"
  same "transformer on 2 pipeline stages under mpirun" "$scratch/shard" "$scratch/pipeline"
fi

# In tensor groups, the sums over the hidden layer differ by rounding. The ZeRO stage changes no bits.
"$examples/transformer" 4 1 >"$scratch/alone"
"$examples/transformer" 4 2 >"$scratch/alone2"
for tensor in 2 3 4; do
  "$examples/transformer_tensor" 4 $tensor $tensor 3 >"$scratch/tensor"
  near "transformer in a tensor group of $tensor ranks" "$scratch/alone" "$scratch/tensor"
  "$examples/transformer_tensor" 4 $tensor $tensor 1 >"$scratch/stage"
  same "transformer in a tensor group of $tensor ranks, ZeRO stage 1" "$scratch/tensor" "$scratch/stage"
done
"$examples/transformer_tensor" 4 2 4 3 >"$scratch/tensor"
near "transformer in 2 tensor groups" "$scratch/alone2" "$scratch/tensor"

# GPT-2 has arrays of all layers and a tied table. On one rank, losses and the sampled text have the bits of the program
# without Aliquot. On several ranks, losses differ from it by rounding. The ZeRO stage and the language change no bits.
losses() { grep '^step' "$1"; }
for ranks in 1 2 4; do
  "$examples/gpt2" 3 $ranks >"$scratch/alone"
  "$examples/gpt2_sharded" $ranks 0 3 >"$scratch/stage0"
  if [ $ranks = 1 ]; then same "gpt2, 1 rank" "$scratch/alone" "$scratch/stage0"; fi
  near "gpt2, $ranks ranks" <(losses "$scratch/alone") <(losses "$scratch/stage0")
  for stage in 0 1 2 3; do
    "$examples/gpt2_sharded" $ranks $stage 3 >"$scratch/stage"
    same "gpt2, $ranks ranks, ZeRO stage $stage against 0" "$scratch/stage0" "$scratch/stage"
    "$examples/gpt2_sharded_c" $ranks $stage 3 >"$scratch/c"
    same "gpt2 in C, $ranks ranks, ZeRO stage $stage" "$scratch/stage0" "$scratch/c"
  done
done
if [ -n "$mpiexec" ]; then
  "$mpiexec" -n 4 --oversubscribe "$examples/gpt2_sharded_c" 1 3 3 >"$scratch/processes"
  same "gpt2 in C under mpirun" "$scratch/stage0" "$scratch/processes"
fi
# A checkpoint of the C program continues in the C++ program at another ZeRO stage, and on other numbers of ranks.
"$examples/gpt2_sharded" 2 1 4 >"$scratch/uninterrupted"
"$examples/gpt2_sharded_c" 2 3 2 "$scratch/gpt2" >"$scratch/first"
for ranks in 1 2 4; do
  cp -r "$scratch/gpt2" "$scratch/gpt2-$ranks"
  "$examples/gpt2_sharded" $ranks 0 4 "$scratch/gpt2-$ranks" >"$scratch/resumed"
  expect pass "step 4 loss" cat "$scratch/resumed"
  expect fail "" grep -q 'step 2 loss' "$scratch/resumed"
  if [ $ranks = 2 ]; then same "gpt2, resumed" <(tail -n +3 "$scratch/uninterrupted") "$scratch/resumed"; fi
done
# The checking mode finds no defect in the examples.
ALIQUOT_CHECK=1 "$examples/gpt2_sharded_c" 2 3 4 >"$scratch/checked"
same "gpt2 in the checking mode" "$scratch/uninterrupted" "$scratch/checked"

# The lines of code in the chapter of the guide on GPT-2 are from the programs. The last two lines use views.
awk '/^## One array for all layers/ { on = 1; next } /^## / { on = 0 } on && /^    / && !/View|view_/ { sub(/^ +/, ""); print }' \
  "$top/docs/wrapping.md" >"$scratch/lines"
if [ "$(wc -l <"$scratch/lines")" -lt 15 ]; then echo "the guide has no code on GPT-2" && failures=$((failures + 1)); fi
while IFS= read -r line; do
  expect pass "" grep -qF -- "$line" "$top"/apps/examples/gpt2_{sharded.cpp,sharded.c,model.h}
done <"$scratch/lines"

# Wrapping the transformer adds at most 40 lines.
changes() { { diff "$top/apps/examples/transformer.c" "$top/apps/examples/transformer_sharded.cpp" || true; } | grep -c "^$1"; }
added=$(changes '>')
removed=$(changes '<')
echo "transformer: $added lines added, $removed removed; mlp.cpp: $(wc -l <"$top/apps/examples/mlp.cpp") lines"
if [ "$added" -gt 40 ]; then echo "wrapping the transformer adds $added lines: expected at most 40" && failures=$((failures + 1)); fi
if [ "$(wc -l <"$top/apps/examples/mlp.cpp")" -gt 100 ]; then echo "mlp.cpp is longer than 100 lines" && failures=$((failures + 1)); fi
# Wrapping changes no kernel: the programs include the same headers, which have all functions of the model and no
# reference to Aliquot.
kernels=$top/apps/examples/transformer_kernels.h
layers=$top/apps/examples/transformer_layers.h
for program in transformer.c transformer_sharded.cpp; do
  expect pass "" grep -qxF '#include "transformer_kernels.h"' "$top/apps/examples/$program"
done
for program in gpt2.c gpt2_sharded.c gpt2_sharded.cpp; do
  expect pass "" grep -qxF '#include "gpt2_model.h"' "$top/apps/examples/$program"
done
for function in linear linear_backward normalize normalize_backward attend attend_backward forward_block backward_block forward backward; do
  expect pass "" grep -q "^static void $function(" "$kernels" "$layers"
done
expect fail "" grep -i aliquot "$kernels" "$layers" "$top/apps/examples/gpt2_model.h"
exit $((failures > 0))
