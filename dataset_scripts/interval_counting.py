"""The published edition of ``hf_memory/interval_counting``: when will a signal switch off?.

The configurations without ``length`` take their training lengths, and the shares of these, from their presets.

Usage::

    python dataset_scripts/interval_counting.py --output_dir out
    python dataset_scripts/interval_counting.py --push_to_hub <namespace>/interval_counting
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="interval_counting",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "isi10_len200": {"num_train": 200, "test_lengths": (200, 400, 800)},
        "isi30_len600": {"num_train": 200, "test_lengths": (600, 1200, 2400)},
        "isi50_len1000": {"num_train": 200, "test_lengths": (1000, 2000, 4000)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
