#!/usr/bin/env bash
# tests/docs/documented_commands_test.sh PROGRAM PAGE...: runs the listed commands of each page that begin with
# build/aliquot or mpirun. The commands of a page run in order in one directory. Training uses a tiny model and at most
# 20 steps. Excluded are commands of fine_tuning_test.sh, and those of the list `elsewhere`. Also
# checks what the comments after two commands promise.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/../scripts/expect.sh"
program=$(realpath "$1")
shift
export OMP_NUM_THREADS=1

# The commands that fine_tuning_test.sh runs.
fine_tuning='(^|[ /])(hf|tuned|own|runs/[a-z]+)([ /.]|$)'
# doctor --measure takes minutes, and later commands need its file. The tests of doctor and plan cover both.
# data needs texts: fine_tuning_test.sh and the tests of data cover it.
elsewhere='machine\.json|one\.jsonl|aliquot data '

# files DIRECTORY: writes the files that commands name.
files() {
  mkdir -p "$1/build"
  ln -s "$program" "$1/build/aliquot"
  seq -s ' ' 4000 >"$1/FILE"
  echo '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}' >"$1/ds_config.json"
  for name in web books; do
    seq -s ' ' 4000 >"$1/$name.txt"
    "$program" data "$1/$name.txt" --learn-tokenizer 300 --out "$1/$name.h5" >"$scratch/log"
  done
}

# tiny COMMAND: prints the command with a tiny model, few steps and few processes, and with a directory that exists.
tiny() {
  local command=$1
  command=${command//mpirun -n 16/mpirun -n 4}
  command=${command//disk:\/scratch/disk:$scratch}
  command=${command//gpt2-nano,gpt2-124m,gpt2-355m --ranks 1,2,8/gpt2-nano --ranks 1,2}
  case $command in
    *aliquot\ train\ *)
      command+=" --layers 4 --width 16 --heads 2 --context 16 --threads 1"
      case $command in *.h5*) command+=" --vocab 300" ;; esac
      case $command in *--deepspeed* | *--global-batch* | *--micro-batch*) ;; *) command+=" --micro-batch 1" ;; esac
      case $command in *--steps*) ;; *--stop-after*) command+=" --steps 60" ;; *) command+=" --steps 20" ;; esac
      ;;
  esac
  echo "$command"
}

# check_comments COMMAND LOG: checks what pages say about a command. LOG is its output.
check_comments() {
  local ranks digests digest
  case $1 in
    *--memory-budget*)
      # A run prints the schedule that it selected.
      if ! grep -qE '^ *chosen:? ' "$2"; then
        echo "$1: the output does not show what was chosen" && failures=$((failures + 1))
      fi
      ;;
    *train\ --ranks\ 4\ --reproducible*--pipeline*)
      # The mesh does not change the digest of the command before.
      digest=$(bash -c "$(tiny "$1") --quiet" </dev/null 2>&1) || true
      if [[ $digest != "${reproducible_digest:-none}" ]]; then
        echo "$1: expected $reproducible_digest, but got $digest" && failures=$((failures + 1))
      fi
      ;;
    *train\ --ranks\ 4\ --reproducible*)
      digests=$(for ranks in 1 2 4 8; do
        bash -c "$(tiny "${1/--ranks 4/--ranks $ranks}") --quiet" </dev/null
      done 2>&1 | sort -u) || true
      if ! [[ $digests =~ ^digest\ [0-9a-f]{64}$ ]]; then
        echo "$1: 1, 2, 4 and 8 ranks do not have one digest: $digests" && failures=$((failures + 1))
      fi
      reproducible_digest=$digests
      ;;
  esac
}

total=0
for page in "$@"; do
  commands=0
  place=$scratch/place
  rm -rf "$place"
  files "$place"
  while IFS= read -r command; do
    if [[ $command == mpirun* ]] && ! { command -v mpirun && ldd "$program" | grep libmpi; } >"$scratch/log"; then
      echo "skipped, because mpirun is missing or the build has no MPI: $command" && continue
    fi
    commands=$((commands + 1))
    if ! (cd "$place" && bash -c "$(tiny "$command")") </dev/null >"$scratch/log" 2>&1; then
      echo "$page: this command failed: $command" && tail -n 20 "$scratch/log" && failures=$((failures + 1))
    fi
    cd "$place"
    check_comments "$command" "$scratch/log"
    cd "$top"
    # report needs the metrics of a second run.
    if [ -e "$place/a.jsonl" ]; then cp "$place/a.jsonl" "$place/b.jsonl"; fi
  done < <(sed -nE '/^    (source <\()?(mpirun -n [0-9]+ )?build\/aliquot /{
    s/ +# .*//
    s/^ +//
    p
  }' "$page" | grep -vE "$fine_tuning|$elsewhere")
  echo "$(basename "$page"): ran $commands commands"
  total=$((total + commands))
done
if [ "$total" -lt 40 ]; then echo "ran $total commands, expected at least 40" && failures=$((failures + 1)); fi
exit $((failures > 0))
