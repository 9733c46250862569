"""The published edition of ``hf_memory/compositional_mqar``: recall by two keys at once.

The configurations without ``length`` take their training lengths, and the shares of these, from their presets.

Usage::

    python dataset_scripts/compositional_mqar.py --output_dir out
    python dataset_scripts/compositional_mqar.py --push_to_hub <namespace>/compositional_mqar
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="compositional_mqar",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "kv4_len64": {"length": 64, "test_lengths": (64, 128, 256)},
        "kv9_len64": {"length": 64, "test_lengths": (64, 128, 256)},
        "zoology_mixture": {"num_train": 180_000, "test_lengths": (64,)},
        "zoology_mixture_shuffled": {"num_train": 180_000, "test_lengths": (64,)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
