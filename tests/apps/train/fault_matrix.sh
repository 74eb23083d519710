#!/usr/bin/env bash
# fault_matrix.sh ALIQUOT few|all|tensor|nodes: injects faults (ALIQUOT_FAULT) into runs of the command and prints a
# table of the outcomes. The cases combine worlds, ranks, operations and kinds of faults. Each run must end as
# docs/reliability.md describes: on its own, within the deadline, with the documented exit code and a message that
# names rank and operation. Older checkpoints must stay valid, and a run that resumes from them must have the digest of
# an undisturbed run. No process and no file may be left. few: a few dozen cases in half a minute. all: all cases.
# tensor: the cases with tensor groups, which all contains too.
# nodes: some cases on emulated nodes (exit code 77 if nodes cannot be emulated).
# shellcheck source=scripts/runs.sh
source "$(dirname "$0")/../../../scripts/runs.sh"
own_shared_memory "$@"
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/../../scripts/expect.sh"
aliquot=$1 which=${2:-}
deadline=1
export TMPDIR=$scratch/tmp
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
mkdir "$TMPDIR"
declare -A digests
cases=0 began_all=$SECONDS
saves=(--save blocking) # so that earlier checkpoints are complete when the fault occurs
train=("$aliquot" train --quiet --layers 2 --width 32 --sequence 32 --micro-batch 1 --threads 1 --steps 6 --timeout "$deadline")

# launch WORLD OPTIONS...: trains in a WORLD such as threads2 (two ranks in one process), mpi4 (four ranks under mpirun)
# or nodes2 (two emulated nodes with one rank each).
launch() {
  local world=$1 count=${1//[a-z]/}
  shift
  case $world in
    threads*) "${train[@]}" --ranks "$count" "$@" ;;
    mpi*) mpirun -n "$count" "${train[@]}" "$@" ;;
    nodes*) "$top/scripts/cluster.sh" --nodes "$count" "${train[@]}" "$@" ;;
  esac
}

# promised WORLD RANK OPERATION KIND STEP: sets the expected exit `code`, the expected message `sentence` (an extended
# regular expression), and the time `limit` in tenths of a second.
promised() {
  local world=$1 rank=$2 operation=$3 kind=$4 step=$5
  limit=30 code=3
  if [[ $world != threads* ]]; then limit=60; fi # mpirun needs a second or two to end the remaining ranks
  if [[ $world = nodes* ]]; then limit=120; fi
  limit=$((limit * ${ALIQUOT_TIMES_AS_LONG:-1})) # for builds with sanitizers
  case $kind in
    kill)
      code=137 sentence="process rank $rank .*signal 9"
      if [[ $world = threads* ]]; then sentence=Killed; fi
      ;;
    throw) sentence="ALIQUOT_FAULT made rank $rank fail in $operation" ;;
    stop | slow:2s) sentence="rank $rank (never arrived|to end)|the data of rank $rank never arrived" ;;
    slow:0.2s) code=0 sentence="^digest" ;;
    nan) code=0 sentence="step $step was skipped: the gradient of .* is not finite" ;;
    enospc) sentence="rank $rank: .*No space left on device" ;;
    flip) sentence="rank $rank.* (differ|computed (wrong gradients|a wrong sum))" ;;
  esac
  if [ "$operation" = save ]; then
    if [ "$kind" = throw ]; then sentence="ALIQUOT_FAULT made rank $rank fail"; fi
    # If a rank cannot write a checkpoint, training warns and continues, except at the last step.
    if [[ $kind = throw || $kind = enospc ]] && [ "$step" -lt 6 ]; then
      code=0 sentence="checkpoint of step $step was not written .earlier checkpoints are unchanged.: .*$sentence"
    fi
  fi
}

# undisturbed WORLD OPTIONS...: sets `wanted` to the output of a run without a fault.
undisturbed() {
  if [ -z "${digests[$*]:-}" ]; then digests[$*]=$(launch "$@" 2>&1) || wrong "the run without a fault failed: ${digests[$*]}"; fi
  wanted=${digests[$*]}
}

# ends_well WORLD OPTIONS...: checks that the checkpoints are valid, and that a resumed run has the digest of an
# undisturbed one.
ends_well() {
  local world=$1 digest wanted
  undisturbed "$@"
  shift
  "$aliquot" checkpoint verify "$saved" >"$scratch/verified" 2>&1 || wrong "a checkpoint is not valid: $(tail -n 1 "$scratch/verified")"
  digest=$(launch "$world" "$@" --checkpoint-dir "$saved" --resume auto 2>"$scratch/resumed") || wrong "the run cannot resume: $(tail -n 1 "$scratch/resumed")"
  if [ "$digest" != "$wanted" ]; then wrong "the digest of the resumed run differs from that of an undisturbed run"; fi
  if compgen -G "$saved/.tmp-*" >/dev/null; then wrong "the run left an incomplete checkpoint"; fi
}

# left_nothing: checks that the run has left no process, and no file in /dev/shm or the temporary directory.
left_nothing() {
  local left file
  for file in $(comm -13 <(echo "$shared_before") <(shared_names)); do wrong "the run left /dev/shm/$file"; done
  # Only files count, because Open MPI leaves an empty folder.
  left=$(find "$TMPDIR" ! -type d)
  if [ -n "$left" ]; then wrong "the run left $left"; fi
  if pgrep -f -- "$saved" >/dev/null; then wrong "a process of the run still exists"; fi
}

# is_explained: checks that `aliquot doctor --explain` names the failed rank. If a run has several groups, its own
# message may name a rank that only waits for the failed rank.
is_explained() {
  local text
  case $operation in
    exchange | send | receive | send-gradient | receive-gradient | backward-input | backward-weights | collective | tensor-sum) ;;
    *) return 1 ;;
  esac
  text=$("$aliquot" doctor --explain "$saved")
  [[ $text = *"First cause: rank $rank "* || $text = *"never reached collective"*"  rank $rank "* ]]
}

wrong() { problems+=("$*"); }

# run_case WORLD RANK OPERATION KIND STEP OPTIONS...: runs one case and prints its line of the table.
run_case() {
  local world=$1 rank=$2 operation=$3 kind=$4 step=$5 problems=() status=0 code sentence limit began elapsed wanted
  shift 5
  local saved=$scratch/saved-$cases log=$scratch/log shared_before
  shared_before=$(shared_names)
  promised "$world" "$rank" "$operation" "$kind" "$step"
  began=$(date +%s%N)
  (
    export ALIQUOT_FAULT=rank=$rank,step=$step,op=$operation,kind=$kind
    launch "$world" "$@" "${saves[@]}" --checkpoint-dir "$saved" --checkpoint-every 2
    exit $?
  ) >"$log" 2>&1 || status=$?
  elapsed=$((($(date +%s%N) - began) / 100000000))
  if [[ $status = 137 && $world = threads* ]]; then echo Killed >>"$log"; fi
  if [ $status -ne "$code" ]; then wrong "exit code $status, expected $code"; fi
  if [ "$elapsed" -gt "$limit" ]; then wrong "the run took more than $((limit / 10)) s"; fi
  grep -Eq -- "$sentence" "$log" || is_explained || wrong "the output does not match: $sentence"
  left_nothing
  if [ "$code" -ne 0 ]; then ends_well "$world" "$@"; fi
  if [ "$kind" = slow:0.2s ]; then
    undisturbed "$world" "$@"
    grep -qxF -- "$wanted" "$log" || wrong "the digest differs from that of an undisturbed run"
  fi
  printf '%-8s %-4s %-13s %-9s %-4s %-4s %3d.%d  %s\n' "$world" "$rank" "$operation" "$kind" "$step" "$status" \
    $((elapsed / 10)) $((elapsed % 10)) "$(if [ ${#problems[@]} -eq 0 ]; then echo "passed"; else echo "FAILED: ${problems[*]}"; fi) ${*//$scratch/DIR}"
  if [ ${#problems[@]} -gt 0 ]; then
    failures=$((failures + 1))
    sed 's/^/  | /' "$log"
  fi
  rm -rf "$saved"
  cases=$((cases + 1))
}

# For each operation, the options with which a run executes this operation.
declare -A options=([gather]="" [forward]="" [backward]="" [release]="" [reduce]="" [norm]="" [update]=""
  [recompute]="--recompute block" [publish]="--zero-stage 2" [spread]="--zero-stage 0" [exchange]="--replicas 2"
  [blend]="--optimizer muon" [collect]="--optimizer muon" [orthogonalize]="--optimizer muon" [scatter]="--optimizer muon"
  [digest]="--replay-every 3" [copy-in]="--offload disk:$TMPDIR" [copy-out]="--offload disk:$TMPDIR")

# operation WORLD RANK OPERATION KIND...: runs one case for each kind of fault.
operation() {
  local world=$1 rank=$2 name=$3 kind words
  shift 3
  read -ra words <<<"${options[$name]}"
  for kind in "$@"; do run_case "$world" "$rank" "$name" "$kind" 3 "${words[@]}"; done
}

every_operation() {
  local world=$1 rank=$2 name
  shift 2
  for name in "${!options[@]}"; do operation "$world" "$rank" "$name" "$@"; done
}

# piped WORLD KIND...: runs cases with faults in the sends and receives of two pipeline stages.
piped() {
  local world=$1 second=$((${1//[a-z]/} / 2)) kind
  shift
  for kind in "$@"; do
    run_case "$world" 0 send "$kind" 3 --pipeline 2 --tied off --accumulate 2
    run_case "$world" "$second" receive "$kind" 3 --pipeline 2 --tied off --accumulate 2
    run_case "$world" "$second" send-gradient "$kind" 3 --pipeline 2 --tied off --accumulate 2
    run_case "$world" 0 receive-gradient "$kind" 3 --pipeline 2 --tied off --accumulate 2
    run_case "$world" "$second" send "$kind" 3 --pipeline 2 --tied on --accumulate 2
    run_case "$world" 0 send-gradient "$kind" 3 --pipeline 2 --tied on --accumulate 2
    run_case "$world" "$second" send "$kind" 3 --pipeline 2 --pipeline-schedule interleaved --accumulate 2
    run_case "$world" 0 send-gradient "$kind" 3 --pipeline 2 --pipeline-schedule interleaved --accumulate 2
    run_case "$world" "$second" backward-input "$kind" 3 --pipeline 2 --pipeline-schedule zero-bubble --accumulate 4
    run_case "$world" "$second" backward-weights "$kind" 3 --pipeline 2 --pipeline-schedule zero-bubble --accumulate 4
  done
}

# tensor WORLD KIND...: runs cases with faults in the collectives of tensor groups of two ranks, also in a pipeline.
tensor() {
  local world=$1 last=$((${1//[a-z]/} - 1)) name kind
  shift
  for kind in "$@"; do
    for name in collective tensor-sum; do
      run_case "$world" 0 $name "$kind" 3 --tensor 2
      run_case "$world" 1 $name "$kind" 3 --tensor 2 --zero-stage 1
    done
    run_case "$world" 1 collective "$kind" 3 --tensor 2 --sequence-parallel off --recompute block
    if [ "$last" -eq 3 ]; then run_case "$world" 3 collective "$kind" 3 --tensor 2 --pipeline 2 --accumulate 2; fi
  done
}

# replayed WORLD RANK KIND...: runs cases with faults in a replay.
replayed() {
  local world=$1 rank=$2 kind
  shift 2
  for kind in "$@"; do
    run_case "$world" "$rank" forward "$kind" 3,in=replay --replay-every 3
    run_case "$world" "$rank" backward "$kind" 3,in=replay --replay-every 3 --zero-stage 0 --accumulate 2
  done
}

# saving WORLD RANK KIND...: runs cases with faults in saves. Saves run in the background here, as by default.
saving() {
  local world=$1 rank=$2 kind saves=()
  shift 2
  for kind in "$@"; do run_case "$world" "$rank" save "$kind" 4; done
  run_case "$world" "$rank" save enospc 6
}

spoiled() {
  local world=$1 rank=$2 last=$((${1//[a-z]/} - 1)) words
  for words in "" "--zero-stage 2" "--zero-stage 1" "--zero-stage 0"; do
    read -ra words <<<"$words"
    run_case "$world" "$rank" reduce nan 3 "${words[@]}"
    run_case "$world" "$rank" backward nan 3 "${words[@]}"
    # Only the last pipeline stage splits backward passes.
    run_case "$world" "$last" backward-weights nan 3 "${words[@]}" --pipeline 2 --pipeline-schedule zero-bubble --accumulate 4
  done
}

# flipped WORLD RANK: runs cases with a flipped bit in one rank's copy of replicated state. --check-every detects it.
flipped() {
  local world=$1 rank=$2
  run_case "$world" "$rank" update flip 3 --zero-stage 0 --check-every 1
  run_case "$world" "$rank" publish flip 3 --zero-stage 1 --check-every 1
  run_case "$world" "$rank" publish flip 3 --zero-stage 2 --check-every 1
  run_case "$world" "$rank" update flip 3 --replicas 2 --check-every 1
  run_case "$world" "$rank" backward flip 3 --replay-every 3
  run_case "$world" "$rank" backward flip 3,in=replay --replay-every 3
  run_case "$world" "$rank" reduce flip 3 --replay-every 3
  run_case "$world" "$rank" reduce flip 2,times=always --zero-stage 3 --replay-every 3
  run_case "$world" "$rank" exchange flip 3 --replicas 2 --replay-every 3
}

printf '%-8s %-4s %-13s %-9s %-4s %-4s %5s  %s\n' world rank operation kind step code s outcome
case $which in
  nodes)
    status=0
    "$top/scripts/cluster.sh" true || status=$?
    if [ $status -eq 77 ]; then exit 77; fi
    for name in reduce backward; do operation nodes2 1 $name kill stop throw slow:2s slow:0.2s nan; done
    operation nodes2 0 gather throw slow:2s
    saving nodes2 1 kill throw enospc
    ;;
  tensor)
    for world in threads2 threads4; do tensor $world kill throw slow:2s slow:0.2s; done
    if has_mpi "$aliquot"; then
      tensor mpi2 kill stop throw slow:2s slow:0.2s
      tensor mpi4 kill stop throw
    fi
    ;;
  all)
    for world in threads2 threads4; do
      every_operation $world 0 kill throw slow:2s slow:0.2s
      every_operation $world 1 kill throw slow:2s slow:0.2s
      piped $world kill throw slow:2s slow:0.2s
      tensor $world kill throw slow:2s slow:0.2s
      spoiled $world 1
      flipped $world 1
      replayed $world 1 kill throw slow:2s slow:0.2s
      saving $world 0 kill throw slow:2s slow:0.2s enospc
      saving $world 1 kill throw slow:2s slow:0.2s enospc
    done
    if has_mpi "$aliquot"; then
      every_operation mpi2 0 kill throw slow:2s
      every_operation mpi2 1 kill stop throw slow:2s slow:0.2s
      every_operation mpi4 2 kill stop throw
      piped mpi2 kill stop throw slow:2s slow:0.2s
      piped mpi4 kill stop throw
      tensor mpi2 kill stop throw slow:2s slow:0.2s
      tensor mpi4 kill stop throw
      spoiled mpi2 1
      flipped mpi2 1
      replayed mpi2 1 kill stop throw slow:2s
      saving mpi2 0 kill stop throw enospc
      saving mpi2 1 kill stop throw slow:2s enospc
    fi
    ;;
  *)
    operation threads2 1 gather throw slow:0.2s
    operation threads2 0 reduce kill throw slow:2s nan
    operation threads2 1 backward throw nan
    for name in exchange update publish spread collect copy-in digest; do operation threads2 1 $name throw; done
    piped threads2 throw
    tensor threads2 throw
    replayed threads2 1 throw slow:2s
    for name in backward reduce; do run_case threads2 1 $name flip 3 --replay-every 3; done
    saving threads2 1 kill throw enospc
    run_case threads2 1 publish flip 3 --zero-stage 2 --check-every 1
    if has_mpi "$aliquot"; then
      operation mpi2 1 reduce kill stop throw
      operation mpi2 0 forward throw
      saving mpi2 1 kill
    fi
    ;;
esac
echo "$cases cases in $((SECONDS - began_all)) s, $failures failed"
exit $((failures > 0))
