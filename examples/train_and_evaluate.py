r"""Train a sequence mixer on a memory task with Trainer, then measure recall and extrapolation.

    python examples/train_and_evaluate.py --mixer lstm --task bit_parity --max_steps 300 --learning_rate 5e-3
    python examples/train_and_evaluate.py --mixer attention --task mqar --config kv4_len64 \
        --model hidden_size=64 conv_kernel=4 --data num_train=20000 --report_to tensorboard
    accelerate launch --num_processes 2 examples/train_and_evaluate.py --mixer delta_net --task mqar

All arguments of ``transformers.TrainingArguments`` are understood; ``--smoke`` runs a few steps on a few rows.
Training, evaluation at every test length and the result rows work on any number of processes.
"""

from accelerate import PartialState

from hf_memory.cli.app import print_rows
from hf_memory.experiments.arguments import parse_arguments


def main(argv: list[str] | None = None) -> None:
    experiment, results, output_dir, overwrite = parse_arguments(argv)
    rows = experiment.run(results, output_dir, overwrite=overwrite)
    if PartialState().is_main_process:
        print_rows(rows)
        print(f"checkpoint: {output_dir}, result rows: {results}")


if __name__ == "__main__":
    main()
