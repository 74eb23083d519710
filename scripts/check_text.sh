#!/usr/bin/env bash
# scripts/check_text.sh [TREE]
# Checks the text of the repository: comments of at most 120 columns, no phrase and no identifier of the lists below,
# and commit subjects of one imperative clause of at most 72 characters. Prints each finding, and the replacement of a
# listed phrase or identifier. TREE is the root of the tree (default: this repository). docs/style.md has the rules.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"
bad=0

# The script checks the subjects of all commits after this commit, if the history contains it.
subjects_base=a009bf84be852a6031dcbbf15d6b93981ad19b80

# Regular expression => replacement. Matched case-insensitively in prose, comments and messages.
phrases='
will not do => say what is invalid and what is expected
nobody[^ ]s => name the owner, or write "unused"
is none of => is not one of
for itself => separately, or name the subject
as few as balance => say what is minimal, and under which condition
is not to be had => is unavailable
the house.s => the project.s
house rules? => project conventions
no more and no less => exactly
is to be had => is available
pretend(s|ed|ing)? => simulates
who is at fault => which rank failed
'

# Old names of identifiers => current names.
identifiers='
Clockwork => EventSimulator
Homes => OffloadStores
Reach => GroupExtent
Meeting => GroupPlacement
Everybody => AllRanksArrived
Errand => CollectiveCall
Crew => Workers
BoardSide => BoardClient
ModelLoops => Backend
all_or_none => run_on_all_or_throw
kSpread => kAllGatherGradients
kRefresh => kGatherQuantizedShards
kBlend => kMuonMomentum
kCarried => kErrorFeedbackResidual
kMet => kNodePartialSums
kAcross => kReplicaPartialSums
kKept => kSavedActivations
take_optimizer => apply_optimizer
standing_bytes => persistent_bytes
'

# All files that git tracks. Fails outside a repository, so that the checks below do not pass on an empty list.
tracked=$(git ls-files) || { echo "check_text.sh: git ls-files failed in $PWD: run it in a checkout" >&2; exit 1; }
if [ -z "$tracked" ]; then echo "check_text.sh: git tracks no files in $PWD" >&2; exit 1; fi

sources() { git ls-files -- '*.h' '*.c' '*.cpp' '*.cu' '*.cuh' '*.inc' '*.sh' '*.cmake' '*CMakeLists.txt' '*.py' '*.awk'; }

# report_matches LIST OPTIONS...: prints each match of an entry of LIST in the files that standard input names.
report_matches() {
  local list=$1 files entry pattern replacement found
  shift
  mapfile -t files
  while IFS= read -r entry; do
    if [ -z "$entry" ]; then continue; fi
    pattern=${entry%% => *}
    replacement=${entry##* => }
    if found=$(grep -nHE "$@" -- "$pattern" "${files[@]}"); then
      printf '%s\n' "$found" | while IFS=: read -r file line _; do
        printf '%s:%s: "%s": write instead: %s\n' "$file" "$line" "$pattern" "$replacement"
      done
      bad=1
    fi
  done <<<"$list"
}

# Comments have at most 120 columns. clang-format checks code; shell code and long literals may be wider.
check_width() {
  local file comment wide
  while read -r file; do
    case $file in
      *.sh | *.cmake | *CMakeLists.txt | *.py | *.awk) comment='^(?=.{121})\s*#' ;;
      *) comment='^(?=.{121})((.*[^:"])?//|\s*(/\*|\*))' ;;
    esac
    if wide=$(LC_ALL=C.UTF-8 grep -nP "$comment" "$file" | cut -d: -f1 | head -3) && [ -n "$wide" ]; then
      printf '%s:%s: a comment of more than 120 columns\n' "$file" "${wide//$'\n'/,}"
      bad=1
    fi
  done
}

check_subjects() {
  local subject
  if ! git cat-file -e "$subjects_base^{commit}" 2>/dev/null; then return 0; fi
  while IFS= read -r subject; do
    if [ "${#subject}" -gt 72 ]; then echo "commit subject of ${#subject} characters (at most 72): $subject"; bad=1; fi
    if ! [[ $subject =~ ^[A-Z][a-z-]+\ .*[^.]$ ]]; then echo "commit subject is not an imperative clause: $subject"; bad=1; fi
  done < <(git log --no-merges --format=%s "$subjects_base..HEAD")
}

check_width < <(sources)
# This script and its test contain the phrases and identifiers, so they are excluded.
report_matches "$phrases" -i < <(git ls-files -- '*.h' '*.c' '*.cpp' '*.cu' '*.cuh' '*.inc' '*.sh' '*.cmake' '*CMakeLists.txt' '*.md' '*.py' |
  grep -vE '^(scripts/check_text.sh|tests/scripts/text_test.sh)$')
report_matches "$identifiers" -w < <(sources | grep -vE '^(scripts/check_text.sh|tests/scripts/text_test.sh)$')
check_subjects
exit $bad
