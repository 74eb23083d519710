#!/usr/bin/env bash
# mesh_kill.sh ALIQUOT [KILLS]: kills runs at random moments, KILLS times (200). The runs have the mesh of 2 pipeline
# stages, 2 shards and tensor groups of 2 ranks, and other meshes in turn. Each run resumes from the newest checkpoint
# of the run before. After each kill, all checkpoints must be valid and none may be lost. After about 300 steps, the
# training is completed and must have the loss of an undisturbed run. Then a new training begins.
# shellcheck source=scripts/runs.sh
source "$(dirname "$0")/../../../scripts/runs.sh"
own_shared_memory "$@"
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/../../scripts/expect.sh"
aliquot=$1 kills=${2:-200} steps=1500
export TMPDIR=$scratch/tmp
mkdir "$TMPDIR"
saved=$scratch/saved
meshes=("--pipeline 2 --tensor 2" "--pipeline 2 --tensor 2 --zero-stage 1" "--tensor 4" "--pipeline 2 --tensor 2"
  "--replicas 2 --tensor 2 --zero-stage 2" "--pipeline 2 --tensor 4" "--pipeline 2 --tensor 2" "--pipeline 4 --zero-stage 0")
train=("$aliquot" train --quiet --ranks 8 --layers 6 --width 32 --heads 8 --vocab 251 --sequence 16 --micro-batch 1
  --global-batch 8 --threads 1 --steps "$steps" --schedule constant --lr 1e-4)

# losses FILE: prints step and loss of each line of a file of metrics.
losses() { sed -n 's/^{"step":\([0-9]*\),.*"loss":\([-+.0-9e]*\).*/\1 \2/p' "$1"; }
# newest: prints the step of the newest checkpoint. A run may be killed before it has created the directory.
newest() {
  [ -d "$saved" ] || return 0
  find "$saved" -maxdepth 1 -name 'step-*' | sed 's/.*step-0*//' | sort -n | tail -n 1
}

wrong() {
  echo "$*"
  failures=$((failures + 1))
}

# finish: completes the training, compares its last loss, and removes its checkpoints.
finish() {
  local got
  "${train[@]}" --tensor 2 --checkpoint-dir "$saved" --resume auto --metrics "$scratch/resumed" >"$scratch/log" 2>&1 ||
    wrong "the last run failed: $(tail -n 1 "$scratch/log")"
  got=$(losses "$scratch/resumed" | tail -n 1)
  awk -v got="${got#* }" -v expected="${expected#* }" \
    'BEGIN { if (got == "") exit 1; d = got / expected - 1; exit !(d < 1e-6 && d > -1e-6) }' ||
    wrong "the loss is $got, and that of the undisturbed run is $expected"
  rm -rf "$saved" "$scratch/resumed"
  trainings=$((trainings + 1))
  last=0
}

"${train[@]}" --metrics "$scratch/undisturbed" >"$scratch/log" 2>&1 || wrong "the undisturbed run failed"
expected=$(losses "$scratch/undisturbed" | tail -n 1)
last=0 during=0 trainings=0
for ((kill = 0; kill < kills; ++kill)); do
  read -ra mesh <<<"${meshes[kill % ${#meshes[@]}]}"
  "${train[@]}" "${mesh[@]}" --checkpoint-dir "$saved" --checkpoint-every 1 --keep 2 --resume auto >"$scratch/log" 2>&1 &
  sleep "$((RANDOM % 2)).$((RANDOM % 10))$((RANDOM % 10))"
  if kill -KILL $! 2>/dev/null; then during=$((during + 1)); fi
  wait $! 2>/dev/null || true
  now=$(newest)
  if [ "${now:-0}" -lt "$last" ]; then wrong "kill $kill (${mesh[*]}): the newest checkpoint is step ${now:-0}, after step $last"; fi
  last=${now:-0}
  if [ "$last" -gt 0 ] && ! "$aliquot" checkpoint verify "$saved" >"$scratch/verified" 2>&1; then
    wrong "kill $kill (${mesh[*]}): $(tail -n 1 "$scratch/verified")"
  fi
  if [ "$last" -ge 300 ]; then finish; fi
done
finish
echo "$during of $kills runs were killed, in $trainings trainings; the last loss of the undisturbed run is $expected; $failures failures"
exit $((failures > 0))
