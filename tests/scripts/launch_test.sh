#!/usr/bin/env bash
# Tests the job templates for clusters: runs the batch script with simulated srun and scontrol, and checks the text of
# the Kubernetes templates.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"
batch=$top/scripts/slurm/train.sbatch

# The simulated srun runs the command as one task and forwards signals as Slurm does. The simulated scontrol records
# requests.
mkdir "$scratch/bin"
cat >"$scratch/bin/srun" <<'TEXT'
#!/usr/bin/env bash
echo "srun with ${SRUN_CPUS_PER_TASK:-no} cores per task: $*" >>"$SRUN_LOG"
while [[ ${1:-} == --* ]]; do shift; done
"$@" &
trap 'if [ $SECONDS -ge "${TASKS_AFTER:-0}" ]; then kill -USR1 $!; fi' USR1
trap 'kill $!' TERM # as scancel does
status=0
while :; do
  wait $!
  status=$?
  kill -0 $! 2>/dev/null || exit $status
done
TEXT
cat >"$scratch/bin/scontrol" <<'TEXT'
#!/usr/bin/env bash
echo "$*" >>"$SCONTROL_LOG"
TEXT
# The command's first argument selects how it ends: done exits with 0, broken with 3, others with 75 after SIGUSR1.
cat >"$scratch/command" <<'TEXT'
#!/usr/bin/env bash
echo "$*"
case $1 in
  done) exit 0 ;;
  broken) exit 3 ;;
esac
trap 'exit 75' USR1
touch "$STARTED"
for _ in $(seq 300); do sleep 0.1; done
exit 9
TEXT
chmod +x "$scratch/bin/srun" "$scratch/bin/scontrol" "$scratch/command"
export PATH="$scratch/bin:$PATH" SCONTROL_LOG=$scratch/asked STARTED=$scratch/started SRUN_LOG=$scratch/srun
export SLURM_JOB_ID=17 SLURM_CPUS_PER_TASK=8
unset SLURM_SUBMIT_DIR # as if the job was submitted outside the tree

expect fail "no command" "$batch"
expect fail "has no --checkpoint-dir" "$batch" "$scratch/command" "done"
expect pass "done --checkpoint-dir runs --resume auto" "$batch" "$scratch/command" "done" --checkpoint-dir runs
expect pass "srun with 8 cores per task: --mpi=pmix --kill-on-bad-exit=1 $scratch/command done" cat "$scratch/srun"
ended=0
"$batch" "$scratch/command" broken --checkpoint-dir runs >/dev/null || ended=$?
expect pass "" test "$ended" -eq 3
expect fail "" test -e "$scratch/asked"

# told SIGNAL: sends the signal while the command runs, and sets `ended` to the script's exit code.
told() {
  rm -f "$STARTED"
  "$batch" "$scratch/command" waits --checkpoint-dir runs >"$scratch/log" &
  for _ in $(seq 200); do
    if [ -e "$STARTED" ]; then break; fi
    sleep 0.05
  done
  kill "-$1" $!
  ended=0
  wait $! || ended=$?
}

# If Slurm requests a stop (SIGUSR1), the script requeues the job.
told USR1
expect pass "" test "$ended" -eq 0
expect pass "requeue 17" cat "$scratch/asked"
expect pass "requeueing job 17" cat "$scratch/log"

# The script also requeues the job if srun had no tasks yet and lost the signal.
rm "$scratch/asked"
export TASKS_AFTER=6
told USR1
unset TASKS_AFTER
expect pass "" test "$ended" -eq 0
expect pass "requeue 17" cat "$scratch/asked"

# If scancel stops the job (SIGTERM), the script does not requeue it.
rm "$scratch/asked"
told TERM
expect pass "" test "$ended" -eq 75
expect fail "" test -e "$scratch/asked"

# In a job submitted from the root of the tree, a run that crashes restarts on the same nodes. It ends after
# ALIQUOT_TRIES failures in a row without a new checkpoint. Signals still reach the run.
export SLURM_SUBMIT_DIR=$top ALIQUOT_WAIT=0 ALIQUOT_TRIES=2
rm -f "$SRUN_LOG"
cat >"$scratch/once" <<'TEXT'
#!/usr/bin/env bash
if [ -e "$STARTED" ]; then exit 0; fi
touch "$STARTED"
exit 137
TEXT
chmod +x "$scratch/once"
rm -f "$STARTED"
expect pass "starting again on 1 ranks" "$batch" "$scratch/once" --checkpoint-dir "$scratch/runs"
expect pass "" test "$(wc -l <"$SRUN_LOG")" -eq 2
expect fail "gave up after 2 failures" "$batch" "$scratch/command" broken --checkpoint-dir "$scratch/runs"
# The command itself checks that the number of tasks divides the batch.
SLURM_NTASKS=4 expect pass "done --checkpoint-dir $scratch/runs --global-batch 6 --resume auto" \
  "$batch" "$scratch/command" "done" --checkpoint-dir "$scratch/runs" --global-batch 6
rm -f "$SRUN_LOG"
expect fail "" "$batch" "$scratch/command" broken --config "$scratch/run.ini"
expect pass "" test "$(wc -l <"$SRUN_LOG")" -eq 1
told USR1
expect pass "" test "$ended" -eq 0
expect pass "requeue 17" cat "$scratch/asked"
rm "$scratch/asked"
told TERM
expect pass "" test "$ended" -eq 75
expect fail "" test -e "$scratch/asked"
unset SLURM_SUBMIT_DIR

# The script does not requeue a run that exits with 75 although the script received no signal.
printf '#!/bin/sh\nexit 75\n' >"$scratch/command"
ended=0
"$batch" "$scratch/command" --checkpoint-dir runs >/dev/null || ended=$?
expect pass "" test "$ended" -eq 75
expect fail "" test -e "$scratch/asked"

# The scripts that the templates name exist, the templates are valid YAML, and aliquot train has the options they use.
for file in "$top"/scripts/kubernetes/*.yaml; do
  while read -r script; do
    expect pass "" test -x "$top/scripts/$script"
  done < <(grep -oE '/opt/aliquot/scripts/[a-z_.]+' "$file" | sed 's,.*/scripts/,,')
  if ! /usr/bin/python3 -c 'import yaml' 2>/dev/null; then
    echo "python3-yaml is missing: ${file##*/} was not parsed"
  else
    expect pass "" /usr/bin/python3 -c 'import sys, yaml
for document in yaml.safe_load_all(open(sys.argv[1])):
    assert document["apiVersion"] and document["kind"] and document["metadata"]["name"] and document["spec"]' "$file"
  fi
  expect fail "" grep -nP '\t' "$file"
done
# Failures that would recur end the job. The supervisor does not restart a run without a checkpoint after these exit
# codes.
expect pass "" grep -qE '^ +values: \[1, 2, 4, 5\]$' "$top/scripts/kubernetes/job.yaml"
if [ $# -gt 0 ]; then
  help=$("$1" train --help)
  while read -r option; do
    if ! grep -qE -- "^ *$option( |\$)" <<<"$help"; then
      echo "job.yaml: aliquot train has no option $option"
      failures=$((failures + 1))
    fi
  done < <(grep -hoE -- '--[a-z]+(-[a-z]+)*' "$top"/scripts/kubernetes/job.yaml | sort -u)
fi
exit $((failures > 0))
