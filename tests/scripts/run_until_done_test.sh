#!/usr/bin/env bash
# run_until_done_test.sh ALIQUOT: that scripts/run_until_done.sh restarts what can be mended, and nothing else.
# shellcheck source=tests/scripts/supervised.sh
source "$(dirname "$0")/supervised.sh"
aliquot=$1

ends 1 "name a command" "${supervise[@]}" --
ends 1 "unknown option --rank" "${supervise[@]}" --rank 2 -- true
ends 1 "a whole number from 1, not 'x'" "${supervise[@]}" --tries x -- true
ends 1 "no --checkpoint-dir" "${supervise[@]}" -- true
ends 1 "begin anew" "${supervise[@]}" -- true --checkpoint-dir x --resume none
# Numbers are decimal, with zeros before them too, in the command as well.
ends 0 "starting again on 8 ranks" plays "3\n0" --ranks 08 --least 08 --tries 08 -- --global-batch 32
ends 0 "" plays "0" --ranks 010 -- --global-batch 40
started 1 "10 --global-batch 40"
ends 0 "" plays "0" --ranks 8 --least 1 -- --global-batch 024 --micro-batch 08
started 1 "3 --global-batch 024"
mkdir "$scratch/at_once"
printf '#!/bin/sh\n' >"$scratch/at_once/sleep"
chmod +x "$scratch/at_once/sleep"
PATH=$scratch/at_once:$PATH ends 0 "waiting 8 s" plays "3\n0" --wait 08 --
# Of an option that is said twice the last counts.
rm -rf "$saved" "$scratch/starts"
printf '3 01\n3 02\n0\n' >"$scratch/plan"
ends 0 "the newest checkpoint is step-02" "${supervise[@]}" --tries 2 -- bash -c 'shift 2 && exec "$@"' - \
  --checkpoint-dir="$scratch/elsewhere" --skipped "$scratch/play.sh" "$scratch" --checkpoint-dir "$saved" 1
started 3 ""

# What comes again however often it is tried is tried once; 75 means that somebody meant it.
for code in 0 1 2 4 5 75; do
  ends $code "" plays "$code\n0" --
  started 1 "1 --resume auto"
done
ends 0 "" plays "75 01\n75 02\n75 03\n0" --again --tries 2 --
started 4 "--resume auto"
# One that says so at each start, and saves nothing, is not asked for ever.
ends 75 "gave up after 3 failures in a row with no checkpoint newer than the beginning" plays "75\n75\n75\n0" --again --tries 3 --
started 3 "--resume auto"
# What worked once may be mended by itself, whatever it says: a machine that was out of memory for a moment, a disk that was away.
for code in 1 2 5; do
  ends 0 "starting again on 1 ranks, from step-01" plays "3 01\n$code\n0" --
  started 3 ""
done
ends 4 "" plays "3 01\n4\n0" --
# A newer step that is no good, and stays where it is, hides none that comes after it; nor does one that is written anew.
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
# Nor does one of tomorrow, from when the clock was ahead.
cat >"$scratch/tomorrow.sh" <<'TOMORROW'
#!/usr/bin/env bash
if [ ! -e "$3" ]; then mkdir -p "$3/step-01" && touch -d tomorrow "$3/step-01"; fi
exec "$(dirname "$0")/play.sh" "$@"
TOMORROW
chmod +x "$scratch/tomorrow.sh"
rm -rf "$saved" "$scratch/starts"
printf '3\n3 02\n3 03\n3 04\n0\n' >"$scratch/plan"
ends 0 "starting again on 1 ranks, from step-04" "${supervise[@]}" --tries 2 -- "$scratch/tomorrow.sh" "$scratch" --checkpoint-dir "$saved" 1
started 5 ""
# Crashes that come further go on for ever; those that do not are given up.
ends 0 "starting again on 1 ranks, from step-03" plays "3 01\n137 02\n3 03\n139 04\n0" --tries 2 --
started 5 ""
ends 137 "code 137 on 1 ranks; the newest checkpoint is step-01; gave up after 4 failures in a row with no checkpoint newer than step-01" \
  plays "3 01\n3\n137\n137\n0" --tries 4 --
started 4 ""

# On fewer ranks: half as many after two failures in a row, or what is there; such as divide the batch.
ends 0 "starting again on 4 ranks" plays "3\n3\n0" --ranks 8 --least 2 --
started 3 "4 --resume auto"
ends 0 "starting again on 8 ranks" plays "3\n3\n0" --ranks 8 --
echo 7 >"$scratch/available"
ends 0 "" plays "3\n0" --ranks 8 --least 2 --available "cat $scratch/available" -- --micro-batch 1 --global-batch 24
started 2 "6 --micro-batch 1 --global-batch 24 --resume auto"
ends 0 "" plays "0" --ranks 8 --least 2 --available "cat $scratch/available" -- --micro-batch 1 --global-batch 24 --reproducible
started 1 "4 --micro-batch 1 --global-batch 24 --reproducible"
ends 0 "" plays "0" --ranks 8 -- --micro-batch=2 --global-batch 32
started 1 "8 --micro-batch=2"
ends 0 "" plays "0" --ranks 8 --least 1 -- --global-batch 24
started 1 "6 --global-batch 24"
ends 3 "no number of ranks from 5 to 7 will do for --global-batch 16 in micro-batches of 4; gave up" \
  plays "0" --ranks 8 --least 5 --available "echo 7" -- --global-batch=16
ends 0 "" plays "3\n0" --ranks 8 --least 1 --available "echo 7" -- --global-batch 48 --replicas 2
started 2 "6 --global-batch 48 --replicas 2"
# Where the number of micro-batches is fixed, no other number of ranks has the same batch.
echo 8 >"$scratch/available"
ends 3 "from 1 to 3 will do for --global-batch 64 in micro-batches of 4, --accumulate 2; gave up" \
  plays "3\n0" --ranks 8 --least 1 --available "cat $scratch/available; echo 3 >$scratch/available" -- --global-batch 64 --accumulate 2
started 1 "8 --global-batch 64"
ends 1 "are whole numbers from 1, not 'many'" plays "0" --ranks 8 --least 1 -- --global-batch many
# Which it is, is not guessed where a file may say it; and where there is no choice, the command is asked.
ends 1 "say --micro-batch in the command" plays "0" --ranks 8 --least 4 -- --global-batch 24 --deepspeed ds.json
ends 0 "" plays "0" --ranks 8 --least 4 -- --global-batch 24 --deepspeed ds.json --micro-batch 1
started 1 "8 --global-batch 24"
ends 0 "" plays "0" --ranks 8 -- --global-batch 24 --deepspeed ds.json
started 1 "8 --global-batch 24"
# Without a global batch, the batch goes with the ranks, and that is said.
ends 0 "4 ranks instead of 8, and the command says no --global-batch" plays "3\n3\n0" --ranks 8 --least 2 --
ends 0 "" plays "3\n3\n0" --ranks 8 --least 2 -- --global-batch 32
started 3 "4 --global-batch 32"
if grep -q "instead of" "$scratch/log"; then cat "$scratch/log" && failures=$((failures + 1)); fi
# Nor is half a number taken that the batch cannot be split over: a crash or two do not end a run that has ranks.
ends 0 "starting again on 9 ranks" plays "3\n3\n3\n0" --ranks 9 --least 4 -- --global-batch 36
started 4 "9 --global-batch 36"
ends 1 "is to print a number" plays "0" --available "echo many" --
ends 1 "--available failed: exit 4" plays "0" --available "exit 4" --
ends 1 "--available takes a command" plays "0" --available --
ends 1 "--available took longer than 1 s (--available-within): echo 1; sleep 100" \
  plays "0" --available "echo 1; sleep 100" --available-within 01 --
ends 0 "" plays "0" --available "echo 1; sleep 20 &" --
# Later, what cannot be told or is too little for a moment is asked again.
cat >"$scratch/moods" <<'MOODS'
#!/usr/bin/env bash
# The n-th time, the n-th word.
echo >>"$1.asked"
word=$(sed -n "$(wc -l <"$1.asked")p" "$1")
if [ "$word" = fails ]; then exit 4; fi
echo "$word"
MOODS
chmod +x "$scratch/moods"
printf '08\nfails\nmany\n0\n4\n' >"$scratch/words"
ends 0 "no number of ranks from 4 to 0 will do for --global-batch 32 in micro-batches of 4; waiting" plays "3\n0" --ranks 8 --least 4 --available "$scratch/moods $scratch/words" -- --global-batch 32
started 2 "4 --global-batch 32"
rm -f "$scratch/words.asked"
{ echo 8 && printf 'fails\n%.0s' {1..50}; } >"$scratch/words"
ends 3 "--available failed: $scratch/moods $scratch/words; gave up after it was asked 40 times in a row" \
  plays "3" --tries 2 --ranks 8 --available "$scratch/moods $scratch/words" --

# A run that loses half of its ranks in the middle ends with the bits of one that nothing disturbed.
train=("$aliquot" train --quiet --layers 1 --width 32 --sequence 32 --micro-batch 1 --threads 1 --steps 8 --reproducible --global-batch 8)
wanted=$("${train[@]}" --ranks 4)
cat >"$scratch/once.sh" <<'ONCE'
#!/usr/bin/env bash
# once.sh FOLDER COMMAND...: with the fault at the first start alone, after which two ranks are left.
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
    --available "cat $scratch/available" -- "$scratch/once.sh" "$scratch" "${train[@]}" --ranks "{ranks}" --checkpoint-dir "$saved" \
    --checkpoint-every 2 --save blocking
  if ! grep -q "starting again on 2 ranks, from step-00000004" "$scratch/log"; then cat "$scratch/log" && failures=$((failures + 1)); fi
done
exit $((failures > 0))
