#!/usr/bin/env bash
# One sweep on the GPUs of several nodes of SLURM, four cells on each GPU: small models leave most of one idle.
#
#     sbatch examples/cluster/slurm_gpu.sh r6_mqar_widths full /shared/results/r6_mqar_widths/full
#
# Each node starts a Ray of its own, which listens on the loopback address alone and hands out shares of its GPUs; what
# the nodes share is the folder.
#SBATCH --job-name=hf-memory-gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --output=%x-%j.out
set -euo pipefail

recipe="${1:?the name of a recipe, or a YAML file}"
profile="${2:?the profile: smoke, cpu, cpu_long or full}"
results="${3:?a folder that all nodes see}"
share="${4:-0.25}"

export OMP_NUM_THREADS=1
export HF_HUB_OFFLINE=1

srun --kill-on-bad-exit=0 \
  hf-memory sweep "${recipe}" --profile "${profile}" --results "${results}" --backend ray --gpu-share "${share}"
