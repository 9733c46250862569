#!/usr/bin/env bash
# One sweep on several machines that see one folder, without a scheduler: each runs the same command there.
#
#     examples/cluster/shared_folder.sh /shared/results/r1_bit_parity/cpu r1_bit_parity cpu first-host second-host
#
# `hf-memory` must be on the path of each machine, in the same release. Every process claims cells; whoever comes last
# waits for what the others are at. Clocks need not agree.
set -euo pipefail

results="${1:?a folder that all machines see}"
recipe="${2:?the name of a recipe, or a YAML file that all machines see}"
profile="${3:?the profile: smoke, cpu, cpu_long or full}"
shift 3
[[ $# -gt 0 ]] || { echo "give at least one machine" >&2; exit 2; }

printf -v command 'OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 hf-memory sweep %q --profile %q --results %q' \
  "${recipe}" "${profile}" "${results}"

pids=()
for host in "$@"; do
  ssh -o BatchMode=yes "${host}" "${command}" &
  pids+=("$!")
done

failed=0
for pid in "${pids[@]}"; do
  wait "${pid}" || failed=1
done
exit "${failed}"
