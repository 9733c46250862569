#!/usr/bin/env bash
# One sweep on the CPUs of several nodes of SLURM: every node works in the same folder, where cells are claimed.
#
#     sbatch examples/cluster/slurm.sh r1_bit_parity cpu /shared/results/r1_bit_parity/cpu
#
# A job that ran into its limit goes on where it was when it is submitted again; more nodes may join by a second job.
#SBATCH --job-name=hf-memory
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem-per-cpu=2G
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --output=%x-%j.out
set -euo pipefail

recipe="${1:?the name of a recipe, or a YAML file}"
profile="${2:?the profile: smoke, cpu, cpu_long or full}"
results="${3:?a folder that all nodes see}"

# One thread a process, and a process for each core.
export OMP_NUM_THREADS=1
export HF_HUB_OFFLINE=1

# A node that is lost must not end the others: its cells are free again after two minutes.
srun --kill-on-bad-exit=0 \
  hf-memory sweep "${recipe}" --profile "${profile}" --results "${results}" --workers "${SLURM_CPUS_PER_TASK:-1}"
