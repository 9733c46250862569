#!/usr/bin/env bash
# One sweep as an array of SLURM: each task runs its part of the cells, and none waits for another.
#
#     sbatch --array=1-8 examples/cluster/slurm_array.sh r1_bit_parity cpu /shared/results/r1_bit_parity/cpu
#
# A stage that follows another one needs all of its cells: submit the same again when the array has ended, with
# `--dependency=afterany:<job>`, until the last task prints verdicts. Tasks whose folders are not shared are joined by
# copying the files of all folders into one.
#SBATCH --job-name=hf-memory-array
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=2G
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --output=%x-%A-%a.out
set -euo pipefail

recipe="${1:?the name of a recipe, or a YAML file}"
profile="${2:?the profile: smoke, cpu, cpu_long or full}"
results="${3:?the folder of the results}"

export OMP_NUM_THREADS=1
export HF_HUB_OFFLINE=1

hf-memory sweep "${recipe}" --profile "${profile}" --results "${results}" --workers "${SLURM_CPUS_PER_TASK:-1}" \
  --shard "${SLURM_ARRAY_TASK_ID:?submit it with --array=1-N}/${SLURM_ARRAY_TASK_COUNT:?submit it with --array=1-N}"
