#!/usr/bin/env bash
# One sweep on a cluster of Ray that is running, by its address. The folder must be one that all of its nodes see.
#
#     examples/cluster/ray_address.sh 10.0.0.1:6379 r1_bit_parity cpu /shared/results/r1_bit_parity/cpu
#
# Ray asks nobody for a password: whoever reaches its ports runs code as its user. Keep them in a network of your own.
# A node that is lost costs its running cells, which Ray starts again on another.
set -euo pipefail

export RAY_ADDRESS="${1:?the address of the head, host:port}"
recipe="${2:?the name of a recipe, or a YAML file}"
profile="${3:?the profile: smoke, cpu, cpu_long or full}"
results="${4:?a folder that all nodes see}"
share="${5:-0}"

hf-memory sweep "${recipe}" --profile "${profile}" --results "${results}" --backend ray --gpu-share "${share}"
