"""The published edition of ``hf_memory/flip_flop``: reading the bit that was written last.

The configurations without ``length`` take their training lengths, and the shares of these, from their presets.

Usage::

    python dataset_scripts/flip_flop.py --output_dir out
    python dataset_scripts/flip_flop.py --push_to_hub <namespace>/flip_flop
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="flip_flop",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "ignore80_len512": {"length": 512, "test_lengths": (512,)},
        "ignore80_len512_all": {"length": 512, "test_lengths": (512,)},
        "mixed_len512": {"num_train": 100_000, "test_lengths": (512,)},
        "ignore80_len64": {"length": 64, "test_lengths": (64, 128, 256)},
        "ignore98_len512_8_writes": {"length": 512, "test_lengths": (512, 1024)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
