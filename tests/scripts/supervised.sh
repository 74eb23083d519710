#!/usr/bin/env bash
# Sourced by the tests of scripts/run_until_done.sh: a substitute for training, and checks of the supervisor.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "${BASH_SOURCE[0]}")/expect.sh"
# shellcheck source=scripts/runs.sh
source "$top/scripts/runs.sh"
supervise=("$top/scripts/run_until_done.sh" --wait 0)
saved=$scratch/saved

# ends CODE TEXT COMMAND...: checks that the command exits with that code, and that its output contains the text.
ends() {
  local code=$1 text=$2 status=0
  shift 2
  "$@" >"$scratch/log" 2>&1 || status=$?
  if [ $status -ne "$code" ] || [[ $(cat "$scratch/log") != *"$text"* ]]; then
    echo "expected code $code with \"$text\", got $status from: $*" && cat "$scratch/log"
    failures=$((failures + 1))
  fi
}

# Substitute for training. Its n-th start obeys the n-th line of the file `plan`: the exit code, and the step that it
# saves.
cat >"$scratch/play.sh" <<'PLAY'
#!/usr/bin/env bash
# play.sh FOLDER --checkpoint-dir SAVED RANKS ...
echo "$*" >>"$1/starts"
read -r code step < <(sed -n "$(wc -l <"$1/starts")p" "$1/plan")
if [ -n "$step" ]; then mkdir -p "$3/step-$step"; fi
exit "$code"
PLAY
chmod +x "$scratch/play.sh"
# plays LINES OPTIONS... -- ARGUMENTS...: sets `starts` and runs the substitute under the supervisor.
# shellcheck disable=SC2317 # called by ends
plays() {
  local lines=$1
  shift
  rm -rf "$saved" "$scratch/starts"
  printf '%b\n' "$lines" >"$scratch/plan"
  local options=()
  while [ "$1" != -- ]; do options+=("$1") && shift; done
  shift
  "${supervise[@]}" "${options[@]}" -- "$scratch/play.sh" "$scratch" --checkpoint-dir "$saved" "{ranks}" "$@"
}
# started COUNT TEXT: checks that the substitute was started COUNT times, the last time with arguments that contain
# TEXT.
started() {
  if [ "$(wc -l <"$scratch/starts")" -ne "$1" ] || [[ $(tail -n 1 "$scratch/starts") != *"$2"* ]]; then
    echo "expected $1 starts, the last with \"$2\":" && cat "$scratch/starts" "$scratch/log"
    failures=$((failures + 1))
  fi
}
