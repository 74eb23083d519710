#!/usr/bin/env bash
# run_until_done_test.sh ALIQUOT: checks that scripts/run_until_done.sh restarts only runs that may succeed later.
# shellcheck source=tests/scripts/supervised.sh
source "$(dirname "$0")/supervised.sh"
aliquot=$1

ends 1 "missing command" "${supervise[@]}" --
ends 1 "unknown option --rank" "${supervise[@]}" --rank 2 -- true
ends 1 "invalid value 'x' for --tries: expected an integer from 1" "${supervise[@]}" --tries x -- true
ends 1 "no --checkpoint-dir" "${supervise[@]}" -- true
ends 1 "each restart would begin from step 0" "${supervise[@]}" -- true --checkpoint-dir x --resume none
# Numbers are decimal even with leading zeros, also in the command.
ends 0 "starting again on 8 ranks" plays "3\n0" --ranks 08 --least 08 --tries 08 -- --global-batch 32
ends 0 "" plays "0" --ranks 010 -- --global-batch 40
started 1 "10 --global-batch 40"
ends 0 "" plays "0" --ranks 8 --least 1 -- --global-batch 024 --micro-batch 08
started 1 "3 --global-batch 024"
mkdir "$scratch/at_once"
printf '#!/bin/sh\n' >"$scratch/at_once/sleep"
chmod +x "$scratch/at_once/sleep"
PATH=$scratch/at_once:$PATH ends 0 "waiting 8 s" plays "3\n0" --wait 08 --
# Without --wait, a run that saved a new checkpoint restarts at once, and later failures in a row wait from 1 s on.
PATH=$scratch/at_once:$PATH
export PATH
pauses() { # pauses LINES: prints the pauses of a run that obeys these lines
  ends 0 "" plays "$1" --tries 9 --
  sed -n 's/.*; waiting \([0-9]*\) s$/\1/p' "$scratch/log" | tr '\n' ' '
}
with_wait=("${supervise[@]}") supervise=("$top/scripts/run_until_done.sh")
[ "$(pauses "3 01\n3\n3\n3 02\n3\n0")" = "0 1 2 0 1 " ] || { echo "wrong pauses after progress" && failures=$((failures + 1)); }
[ "$(pauses "3\n3\n3 01\n0")" = "1 2 0 " ] || { echo "wrong pauses before progress" && failures=$((failures + 1)); }
supervise=("${with_wait[@]}" --wait 2)
[ "$(pauses "3 01\n3\n0")" = "2 4 " ] || { echo "wrong pauses with --wait" && failures=$((failures + 1)); }
supervise=("${with_wait[@]}") PATH=${PATH#"$scratch/at_once:"}
# --replay-evict reads the host at fault from the last line of the metrics.
ends 1 "add --metrics FILE" "${supervise[@]}" --replay-evict -- true --checkpoint-dir x
ends 1 "needs {evicted} in the command" "${supervise[@]}" --replay-evict -- true --checkpoint-dir x --metrics y
metrics=$scratch/metrics.json
for line in '"decided":true,"hosts":["n17"]' '"decided":false,"hosts":["n17"]' '"decided":true,"hosts":["n17","n18"]'; do
  printf '{"run":{}}\n{"failure":{"reason":"x",%s}}\n' "$line" >"$metrics"
  evicted='' && if [[ $line = '"decided":true,"hosts":["n17"]' ]]; then evicted=n17; fi
  ends 0 "" plays "3\n3\n0" --replay-evict -- --metrics "$metrics" "--exclude={evicted}"
  started 3 "--exclude=$evicted --resume auto"
done
# If an option occurs twice, the last one counts.
rm -rf "$saved" "$scratch/starts"
printf '3 01\n3 02\n0\n' >"$scratch/plan"
ends 0 "the newest checkpoint is step-02" "${supervise[@]}" --tries 2 -- bash -c 'shift 2 && exec "$@"' - \
  --checkpoint-dir="$scratch/elsewhere" --skipped "$scratch/play.sh" "$scratch" --checkpoint-dir "$saved" 1
started 3 ""

# These exit codes end the script after the first start: 0 (done), 75 (stopped on request), and failures that would
# recur.
for code in 0 1 2 4 5 75; do
  ends $code "" plays "$code\n0" --
  started 1 "1 --resume auto"
done
ends 0 "" plays "75 01\n75 02\n75 03\n0" --again --tries 2 --
started 4 "--resume auto"
# The script gives up if a run exits with 75 at each start and saves nothing.
ends 75 "gave up after 3 failures in a row with no checkpoint newer than the beginning" \
  plays "75\n75\n75\n0" --again --tries 3 --
started 3 "--resume auto"
# After a first checkpoint, codes 1, 2 and 5 may have a temporary cause, such as a lack of memory or an unmounted disk.
# Code 4 still ends the script.
for code in 1 2 5; do
  ends 0 "starting again on 1 ranks, from step-01" plays "3 01\n$code\n0" --
  started 3 ""
done
ends 4 "" plays "3 01\n4\n0" --
# Every start of the command writes a corrupt checkpoint of a later step. New valid checkpoints are still recognized.
cat >"$scratch/bad.sh" <<'BAD'
#!/usr/bin/env bash
mkdir -p "$3/step-200"
touch -d yesterday "$3/step-200"
exec "$(dirname "$0")/play.sh" "$@"
BAD
chmod +x "$scratch/bad.sh"
rm -rf "$saved" "$scratch/starts"
printf '3 110\n3 120\n3 130\n3 140\n0\n' >"$scratch/plan"
ends 0 "the newest checkpoint is step-140" "${supervise[@]}" --ranks 8 --least 1 --tries 2 -- \
  "$scratch/bad.sh" "$scratch" --checkpoint-dir "$saved" "{ranks}" --global-batch 32
started 5 "8 --global-batch 32"
# New valid checkpoints are also recognized if an old checkpoint has a modification time in the future.
cat >"$scratch/tomorrow.sh" <<'TOMORROW'
#!/usr/bin/env bash
if [ ! -e "$3" ]; then mkdir -p "$3/step-01" && touch -d tomorrow "$3/step-01"; fi
exec "$(dirname "$0")/play.sh" "$@"
TOMORROW
chmod +x "$scratch/tomorrow.sh"
rm -rf "$saved" "$scratch/starts"
printf '3\n3 02\n3 03\n3 04\n0\n' >"$scratch/plan"
ends 0 "starting again on 1 ranks, from step-04" "${supervise[@]}" --tries 2 -- \
  "$scratch/tomorrow.sh" "$scratch" --checkpoint-dir "$saved" 1
started 5 ""
# The script restarts a run that crashes as long as the run adds checkpoints. It gives up after --tries failures without
# a new checkpoint.
ends 0 "starting again on 1 ranks, from step-03" plays "3 01\n137 02\n3 03\n139 04\n0" --tries 2 --
started 5 ""
gave_up="gave up after 4 failures in a row with no checkpoint newer than step-01"
ends 137 "exit code 137 on 1 ranks; the newest checkpoint is step-01; $gave_up" \
  plays "3 01\n3\n137\n137\n0" --tries 4 --
started 4 ""

# A launcher that does not end after its ranks is killed. A copy of the script waits 2 s for this, not 20 s. This
# substitute for mpirun waits forever at its first start, after its rank has ended. At its second start, its rank runs
# for 4 s.
cat >"$scratch/mpirun" <<'MPIRUN'
#!/bin/bash
# mpirun FOLDER COMMAND...
trap '' USR1
echo >>"$1/launches"
bash -c 'sleep "$0"; :' "$([ "$(wc -l <"$1/launches")" -eq 1 ] && echo 2 || echo 4)" "${@:2}" &
wait
mkdir -p "$1/saved/step-1"
if [ "$(wc -l <"$1/launches")" -gt 1 ]; then exit 0; fi
read -r _ <>"$1/never"
MPIRUN
chmod +x "$scratch/mpirun"
mkfifo "$scratch/never"
rm -rf "$saved"
mkdir "$scratch/hasty"
cp -r "$top/scripts/run_until_done.sh" "$top/scripts/run_until_done" "$scratch/hasty"
sed -i 's/^hung_after=20/hung_after=2/' "$scratch/hasty/run_until_done/launcher.sh"
ends 0 "mpirun still runs 2 s after its last rank on this host has ended; killing it" \
  timeout 100 "$scratch/hasty/run_until_done.sh" --wait 0 -- "$scratch/mpirun" "$scratch" --checkpoint-dir "$saved"
if ! grep -q "exit code 137 on 1 ranks; the newest checkpoint is step-1" "$scratch/log"; then
  cat "$scratch/log" && failures=$((failures + 1))
fi
# The same if a signal to the whole process group asks the run to stop.
rm "$scratch/launches"
set -m
"$scratch/hasty/run_until_done.sh" -- "$scratch/mpirun" "$scratch" --checkpoint-dir "$saved" 2>"$scratch/log" &
set +m
supervisor=$!
sleep 1
kill -s USR1 -- "-$supervisor"
status=0
wait "$supervisor" || status=$?
if [ $status -ne 75 ] || ! grep -q "mpirun still runs" "$scratch/log"; then
  echo "a signal to the group ended with code $status" && cat "$scratch/log" && failures=$((failures + 1))
fi
# A launcher without ranks on this host is not killed. A child that has not yet called exec is not a rank.
cat >"$scratch/remote" <<'REMOTE'
#!/bin/bash
(sleep 1; :) &
sleep 6
REMOTE
mkdir "$scratch/remote_only"
mv "$scratch/remote" "$scratch/remote_only/mpirun"
chmod +x "$scratch/remote_only/mpirun"
ends 0 "" timeout 100 "$scratch/hasty/run_until_done.sh" -- "$scratch/remote_only/mpirun" --checkpoint-dir "$saved"

# The script continues on fewer ranks: half as many after two failures in a row, or as many as --available prints. It
# uses only numbers that divide the batch.
ends 0 "starting again on 4 ranks" plays "3\n3\n0" --ranks 8 --least 2 --
started 3 "4 --resume auto"
ends 0 "starting again on 8 ranks" plays "3\n3\n0" --ranks 8 --
echo 7 >"$scratch/available"
ends 0 "" plays "3\n0" --ranks 8 --least 2 --available "cat $scratch/available" -- --micro-batch 1 --global-batch 24
started 2 "6 --micro-batch 1 --global-batch 24 --resume auto"
ends 0 "" plays "0" --ranks 8 --least 2 --available "cat $scratch/available" -- \
  --micro-batch 1 --global-batch 24 --reproducible
started 1 "4 --micro-batch 1 --global-batch 24 --reproducible"
ends 0 "" plays "0" --ranks 8 -- --micro-batch=2 --global-batch 32
started 1 "8 --micro-batch=2"
ends 0 "" plays "0" --ranks 8 --least 1 -- --global-batch 24
started 1 "6 --global-batch 24"
ends 3 "no number of ranks from 5 to 7 is valid for --global-batch 16 in micro-batches of 4; gave up" \
  plays "0" --ranks 8 --least 5 --available "echo 7" -- --global-batch=16
ends 0 "" plays "3\n0" --ranks 8 --least 1 --available "echo 7" -- --global-batch 48 --replicas 2
started 2 "6 --global-batch 48 --replicas 2"
ends 0 "" plays "3\n0" --ranks 12 --least 1 --available "echo 11" -- --global-batch 48 --pipeline 3 --replicas 2
started 2 "6 --global-batch 48 --pipeline 3 --replicas 2"
# With a fixed number of micro-batches, no other number of ranks gives the same global batch.
echo 8 >"$scratch/available"
ends 3 "from 1 to 3 is valid for --global-batch 64 in micro-batches of 4, --accumulate 2; gave up" \
  plays "3\n0" --ranks 8 --least 1 --available "cat $scratch/available; echo 3 >$scratch/available" -- \
  --global-batch 64 --accumulate 2
started 1 "8 --global-batch 64"
ends 1 "invalid value 'many' for the command's --global-batch" plays "0" --ranks 8 --least 1 -- --global-batch many
# A configuration file may contain the micro-batch, and the script does not read it. So --least requires --micro-batch
# in the command. Without --least the command itself checks the number of ranks.
ends 1 "add --micro-batch to the command" plays "0" --ranks 8 --least 4 -- --global-batch 24 --deepspeed ds.json
ends 0 "" plays "0" --ranks 8 --least 4 -- --global-batch 24 --deepspeed ds.json --micro-batch 1
started 1 "8 --global-batch 24"
ends 0 "" plays "0" --ranks 8 -- --global-batch 24 --deepspeed ds.json
started 1 "8 --global-batch 24"
# Without --global-batch the batch depends on the number of ranks, and a message says so.
ends 0 "4 ranks instead of 8, and the command has no --global-batch" plays "3\n3\n0" --ranks 8 --least 2 --
ends 0 "" plays "3\n3\n0" --ranks 8 --least 2 -- --global-batch 32
started 3 "4 --global-batch 32"
if grep -q "instead of" "$scratch/log"; then cat "$scratch/log" && failures=$((failures + 1)); fi
# If half the ranks cannot divide the batch, the run continues on the same number.
ends 0 "starting again on 9 ranks" plays "3\n3\n3\n0" --ranks 9 --least 4 -- --global-batch 36
started 4 "9 --global-batch 36"
ends 1 "--available printed 'many': expected a number" plays "0" --available "echo many" --
ends 1 "--available failed: exit 4" plays "0" --available "exit 4" --
ends 1 "missing value for --available" plays "0" --available --
ends 1 "--available took longer than 1 s (--available-within): echo 1; sleep 100" \
  plays "0" --available "echo 1; sleep 100" --available-within 01 --
ends 0 "" plays "0" --available "echo 1; sleep 20 &" --
# After the first start, --available runs again if it fails, prints no number, or prints too few ranks.
cat >"$scratch/replies" <<'REPLIES'
#!/usr/bin/env bash
# replies FILE: the n-th call prints the n-th line of FILE, or fails if that line is "fails".
echo >>"$1.asked"
word=$(sed -n "$(wc -l <"$1.asked")p" "$1")
if [ "$word" = fails ]; then exit 4; fi
echo "$word"
REPLIES
chmod +x "$scratch/replies"
printf '08\nfails\nmany\n0\n4\n' >"$scratch/words"
ends 0 "no number of ranks from 4 to 0 is valid for --global-batch 32 in micro-batches of 4; waiting" \
  plays "3\n0" --ranks 8 --least 4 --available "$scratch/replies $scratch/words" -- --global-batch 32
started 2 "4 --global-batch 32"
rm -f "$scratch/words.asked"
{ echo 8 && printf 'fails\n%.0s' {1..50}; } >"$scratch/words"
ends 3 "--available failed: $scratch/replies $scratch/words; gave up after running --available 40 times in a row" \
  plays "3" --tries 2 --ranks 8 --available "$scratch/replies $scratch/words" --

# A run that loses half of its ranks ends with the same bits as an undisturbed run.
train=("$aliquot" train --quiet --layers 1 --width 32 --sequence 32 --micro-batch 1 --threads 1 --steps 8 --reproducible
  --global-batch 8)
wanted=$("${train[@]}" --ranks 4)
cat >"$scratch/once.sh" <<'ONCE'
#!/usr/bin/env bash
# once.sh FOLDER COMMAND...: runs COMMAND. Only the first start injects the fault. After each start, two ranks are
# available.
folder=$1
shift
if [ -e "$folder/started" ]; then unset ALIQUOT_FAULT; fi
touch "$folder/started"
echo 2 >"$folder/available"
exec "$@"
ONCE
chmod +x "$scratch/once.sh"
for fault in kill throw; do
  rm -rf "$saved" "$scratch/started"
  echo 4 >"$scratch/available"
  ends 0 "$wanted" env ALIQUOT_FAULT=rank=3,step=5,op=reduce,kind=$fault "${supervise[@]}" --ranks 4 --least 1 \
    --available "cat $scratch/available" -- "$scratch/once.sh" "$scratch" "${train[@]}" --ranks "{ranks}" \
    --checkpoint-dir "$saved" --checkpoint-every 2 --save blocking
  if ! grep -q "starting again on 2 ranks, from step-00000004" "$scratch/log"; then
    cat "$scratch/log" && failures=$((failures + 1))
  fi
done
exit $((failures > 0))
