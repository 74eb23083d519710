#!/usr/bin/env bash
# scripts/fuzz.sh [SECONDS] [TARGET...]
# Fuzzes the parsers of untrusted files under the address and undefined-behaviour sanitizers, each for SECONDS (60).
# Targets (all by default): manifest checkpoint safetensors weight_index deepspeed flight model_config tokenizer tokens.
# build-fuzz/corpus/TARGET keeps the inputs, and the next run starts from them. Failing inputs are in build-fuzz/found/.
# Needs clang (on Debian: apt install clang libclang-rt-14-dev).
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

seconds=60
targets=()
for argument in "$@"; do
  case $argument in
    --help | -h) usage && exit ;;
    manifest | checkpoint | safetensors | weight_index | deepspeed | flight | model_config | tokens)
      targets+=("$argument")
      ;;
    *[!0-9]* | '') fail 1 "unknown target $argument (see --help)" ;;
    *) seconds=$argument ;;
  esac
done
if [ ${#targets[@]} -eq 0 ]; then
  targets=(manifest checkpoint safetensors weight_index deepspeed flight model_config tokenizer tokens)
fi
if ! command -v clang++ >/dev/null; then fail 2 "clang++ is missing (on Debian: apt install clang)"; fi

build fuzz "${targets[@]/#/fuzz_}" || fail 1 "the build failed"
mkdir -p build-fuzz/found
bad=()
for target in "${targets[@]}"; do
  corpus=build-fuzz/corpus/$target
  mkdir -p "$corpus"
  program=build-fuzz/fuzz/fuzz_$target
  ALIQUOT_FUZZ_SEEDS=$corpus "$program" -runs=0 >/dev/null 2>&1 ||
    fail 1 "$program failed to write its seeds to $corpus"
  echo "fuzzing $target for $seconds s"
  words=()
  if [ -s "$corpus.words" ]; then words=(-dict="$corpus.words"); fi  # libFuzzer rejects an empty dictionary
  status=0
  "$program" -max_total_time="$seconds" "${words[@]}" -artifact_prefix="build-fuzz/found/$target-" \
    -rss_limit_mb=1024 -timeout=20 -print_final_stats=1 "$corpus" >"$corpus.log" 2>&1 || status=$?
  grep -E \
    '^(INFO: Loaded .* modules|stat::number|stat::peak|#[0-9]+.*DONE|SUMMARY|a parser)|ERROR' "$corpus.log" || true
  if [ "$status" -ne 0 ]; then bad+=("$target"); fi
done
if [ ${#bad[@]} -gt 0 ]; then fail 1 "failing targets: ${bad[*]} (the inputs are in build-fuzz/found/)"; fi
