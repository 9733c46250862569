"""The published edition of ``hf_memory/context_recall``: recall of pairs that repeat in their row.

Usage::

    python dataset_scripts/context_recall.py --output_dir out
    python dataset_scripts/context_recall.py --push_to_hub <namespace>/context_recall
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="context_recall",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "plain_vocab16": {"length": 128, "test_lengths": (128, 256, 512, 1024)},
        "plain_vocab32": {"length": 128, "test_lengths": (128, 256, 512, 1024)},
        "plain_vocab128": {"length": 128, "test_lengths": (128, 256, 512, 1024)},
        "noisy_20": {"length": 128, "test_lengths": (128, 256, 512, 1024)},
        "noisy_40": {"length": 128, "test_lengths": (128, 256, 512, 1024)},
        "noisy_80": {"length": 128, "test_lengths": (128, 256, 512, 1024)},
        "noisy_vocab144": {"length": 128, "test_lengths": (128, 256, 512, 1024)},
        "fuzzy_vocab16": {"length": 128, "test_lengths": (128, 256, 512, 1024)},
        "fuzzy_vocab128": {"length": 128, "test_lengths": (128, 256, 512, 1024)},
        "plain_vocab16_single": {"length": 129, "test_lengths": (129, 257, 513, 1025)},
        "plain_vocab16_all": {"length": 128, "test_lengths": (128, 256, 512, 1024)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
