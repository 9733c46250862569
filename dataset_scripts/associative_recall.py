"""The published edition of ``hf_memory/associative_recall``: one query among key-value pairs.

Usage::

    python dataset_scripts/associative_recall.py --output_dir out
    python dataset_scripts/associative_recall.py --push_to_hub <namespace>/associative_recall
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="associative_recall",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "kv15_len32": {"length": 32, "test_lengths": (32, 48, 64)},
        "kv7_len16": {"length": 16, "test_lengths": (16, 24, 32)},
        "kv4_len32": {"length": 32, "test_lengths": (32, 48, 64)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
