#!/usr/bin/env bash
# One sweep on the GPUs of this machine, several cells on each: a share of 0.25 is four cells on a GPU.
#
#     examples/cluster/gpu_share.sh r6_mqar_widths full 0.25
#
# Shares are a number that Ray counts, not a wall: the cells must fit into the memory of the GPU together.
set -euo pipefail

recipe="${1:?the name of a recipe, or a YAML file}"
profile="${2:?the profile: smoke, cpu, cpu_long or full}"
share="${3:-0.25}"

export OMP_NUM_THREADS=1

hf-memory sweep "${recipe}" --profile "${profile}" --backend ray --gpu-share "${share}"
