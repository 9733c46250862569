"""The package in one page: a dataset, a model, Trainer, and what the model keeps beyond its training length.

python examples/quickstart.py            # about a minute on one core
python examples/quickstart.py --smoke    # a few seconds; the model learns nothing
"""

import argparse
import tempfile

from transformers import AutoModelForTokenClassification, set_seed

from hf_memory import MemoryLSTMConfig, MemoryLSTMForTokenClassification, MemoryTrainer, load_dataset
from hf_memory.data import MemoryCollator, TensorRows, specify
from hf_memory.experiments.evaluation import evaluate_lengths
from hf_memory.experiments.training import training_arguments


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a few steps only")
    smoke = parser.parse_args(argv).smoke

    # Bit parity: at every position, whether the number of ones so far is odd. Trained at length 32, tested up to 256.
    sizes = (
        {"num_train": 512, "num_validation": 64, "num_test": 64} if smoke else {"num_train": 20_000, "num_test": 500}
    )
    data = load_dataset("hf_memory/bit_parity", **sizes)
    print(data["train"][0])

    set_seed(0)
    config = MemoryLSTMConfig(vocab_size=2, num_labels=2, hidden_size=64, num_hidden_layers=2)
    model = MemoryLSTMForTokenClassification(config)

    with tempfile.TemporaryDirectory() as folder:
        trainer = MemoryTrainer(
            model=model,
            args=training_arguments(folder, learning_rate=5e-3, max_steps=5 if smoke else 200),
            train_dataset=TensorRows(data["train"]),
            data_collator=MemoryCollator(),
        )
        trainer.train()
        trainer.save_model()
        model = AutoModelForTokenClassification.from_pretrained(folder)

    tests = {name: rows for name, rows in data.items() if name.startswith("test_")}
    for row in evaluate_lengths(model, specify("bit_parity", **sizes), tests):
        print(f"length {row.length:3d}: accuracy {row.value():.3f}, chance {row.measured().chance:.3f}")


if __name__ == "__main__":
    main()
